//! Runs kernels as host code, on this machine or under an emulator of another one, and in a plain emulation, and compares all memory.
#![allow(dead_code)]

pub mod emulate;
pub mod gemv;
mod qemu;
pub mod random;
mod random_memory;

use codegen::{HostIsa, host_object};
use ir::kernel::*;
use runtime::cpu::loader::Module;

/// All instruction sets that this machine runs, itself or under the emulator.
pub fn isas() -> Vec<HostIsa> {
    assert!(HostIsa::Native.runs_here(), "this machine runs no supported instruction set");
    HostIsa::ALL.into_iter().filter(|i| i.runs_here() || qemu::runs(*i)).collect()
}

/// A buffer on a 64-byte boundary.
#[derive(Clone, PartialEq)]
pub struct Mem64(Vec<[u64; 8]>, usize);

impl Mem64 {
    pub fn new(bytes: &[u8]) -> Self {
        let mut v = vec![[0u64; 8]; bytes.len().div_ceil(64)];
        for (i, b) in bytes.iter().enumerate() {
            v[i / 64][i % 64 / 8] |= u64::from(*b) << (i % 8 * 8);
        }
        Mem64(v, bytes.len())
    }
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flatten().flat_map(|w| w.to_le_bytes()).take(self.1).collect()
    }
    pub fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Runs a kernel on a grid as compiled code.
pub fn run(k: &Kernel, isa: HostIsa, grid: [u32; 2], bufs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let object = host_object(&[k], isa).unwrap_or_else(|e| panic!("{e}"));
    run_object(&object, k, isa, grid, bufs).unwrap_or_else(|e| panic!("{} on {}: {e}", k.name, isa.name()))
}

/// Runs a kernel of an object.
pub fn run_object(object: &[u8], k: &Kernel, isa: HostIsa, grid: [u32; 2], bufs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
    if !isa.runs_here() {
        return qemu::run(object, k, grid, bufs);
    }
    let module = Module::load(object, &k.name).map_err(|e| e.to_string())?;
    let f = module.function(&k.name).map_err(|e| e.to_string())?;
    let mut mem: Vec<Mem64> = bufs.iter().map(|b| Mem64::new(b)).collect();
    let ptrs: Vec<*mut u8> = mem.iter_mut().map(Mem64::ptr).collect();
    for y in 0..grid[1] {
        for x in 0..grid[0] {
            let mut shared = Mem64::new(&vec![0xcd; k.shared_layout().1 as usize + 64]);
            // SAFETY: the kernels of these tests stay inside their buffers (the emulation checks every access).
            unsafe { f(ptrs.as_ptr(), x, y, shared.ptr()) };
        }
    }
    Ok(mem.iter().map(Mem64::bytes).collect())
}

/// Compiled code on every instruction set = the emulation. Returns the buffers afterwards.
pub fn check(k: &Kernel, grid: [u32; 2], bufs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let want = emulate::run(k, grid, bufs);
    for isa in isas() {
        let got = run(k, isa, grid, bufs);
        for (b, (g, w)) in got.iter().zip(&want).enumerate() {
            if let Some(at) = (0..g.len()).find(|&i| g[i] != w[i]) {
                let word = |v: &[u8]| v[at / 4 * 4..].iter().take(4).map(|b| format!("{b:02x}")).collect::<String>();
                let n = g.iter().zip(w).filter(|(a, b)| a != b).count();
                panic!(
                    "{} on {}: buffer '{}' differs at byte {at} (word {}): got {} want {}; {n} of {} bytes differ",
                    k.name,
                    isa.name(),
                    k.bufs[b].name,
                    at / 4,
                    word(g),
                    word(w),
                    g.len()
                );
            }
        }
    }
    want
}

/// Bytes of integers.
pub fn ints(xs: impl IntoIterator<Item = u32>) -> Vec<u8> {
    xs.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Bytes of floats.
pub fn floats(xs: impl IntoIterator<Item = f32>) -> Vec<u8> {
    xs.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Words of a buffer.
pub fn words(b: &[u8]) -> Vec<u32> {
    b.chunks(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// A small generator: the same numbers in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u32
    }
    pub fn below(&mut self, n: u32) -> u32 {
        self.u32() % n
    }
    pub fn words(&mut self, n: usize) -> Vec<u8> {
        ints((0..n).map(|_| self.u32()))
    }
    /// Floats of moderate size.
    pub fn floats(&mut self, n: usize) -> Vec<u8> {
        floats((0..n).map(|_| (self.u32() as i32 as f32) / (1u32 << 29) as f32))
    }
}
