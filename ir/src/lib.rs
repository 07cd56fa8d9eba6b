//! isobit's intermediate representations and their exact meaning.
pub mod diag;
