//! isobit's intermediate representations and their exact meaning.
//! No LLVM, no CUDA, no files, no clock.
#![warn(missing_docs)]

pub mod diag;
pub mod kernel;
pub mod math;
