//! Kernel IR to code: NVPTX text for GPUs, position-independent x86-64 and aarch64 objects for the host, through LLVM 22.
//!
//! One emitter serves both (`emit`). Nothing here decides about numerics: every float operation of a kernel becomes
//! exactly one instruction, no LLVM pass that could merge or split roundings runs, and [`audit`] counts them again in the
//! text that comes out. Without the feature `llvm` there is [`audit`] alone.

pub mod audit;
mod live;

#[cfg(feature = "llvm")]
mod check;
#[cfg(feature = "llvm")]
mod disassemble;
#[cfg(feature = "llvm")]
mod emit;
#[cfg(feature = "llvm")]
mod module;
#[cfg(feature = "llvm")]
mod target;

#[cfg(feature = "llvm")]
pub use disassemble::host_scan;
#[cfg(feature = "llvm")]
pub use module::{host_assembly, host_object, llvm_ir, llvm_version, ptx, ptx_for};
#[cfg(feature = "llvm")]
pub use target::{HostIsa, Target};
