//! isobit's intermediate representations and their exact meaning.
//! No LLVM, no CUDA, no files, no clock.
#![warn(missing_docs)]

pub mod diag;
pub mod digest;
pub mod graph;
pub mod kernel;
pub mod layout;
pub mod math;
pub mod order;
pub mod plan;
pub mod text;
