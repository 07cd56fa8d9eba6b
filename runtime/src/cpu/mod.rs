//! The host CPU as a device: maps code objects ([`loader`]), runs blocks on threads ([`pool`]), and
//! offers both through the [`Device`](crate::device::Device) trait ([`CpuDevice`]).

pub(crate) mod available;
mod device;
mod fpenv;
mod link;
pub mod loader;
mod map;
mod memory;
mod order;
pub mod pool;
mod reloc;

pub use device::{CpuDevice, CpuOptions};

/// Entry point of a compiled kernel: runs one block.
///
/// `bufs` points to one pointer per kernel parameter, `shared` to the block's scratch memory, 64-byte
/// aligned and undefined at entry.
pub type KernelFn = unsafe extern "C" fn(bufs: *const *mut u8, block_x: u32, block_y: u32, shared: *mut u8);
