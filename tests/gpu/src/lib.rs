//! The check of GPU kernels against the CPU, in two programs: `prepare` emits kernels of this project's own path into a
//! bundle (needs LLVM), `check` runs the bundle on a machine with a GPU (needs neither LLVM nor a CUDA toolkit).
#![warn(missing_docs)]

pub mod case;
pub mod random;
