//! How fast this machine reads memory, to compare with what a model's kernels read: a buffer much larger than every cache,
//! read from one end to the other by all threads, or by a kernel that does nothing else. The best of several times counts.

use ir::diag::{Diagnostic, Result};
use runtime::device::{Device, KernelNames, KernelSig, LaunchDesc};
use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of the buffer.
pub const BYTES: u64 = 1 << 30;
/// Times that it is read.
const TIMES: usize = 5;

/// Bytes per second that threads read, once.
pub fn once(words: &[u64], threads: usize) -> f64 {
    let t = Instant::now();
    std::thread::scope(|s| {
        for part in words.chunks(words.len().div_ceil(threads.max(1)).max(1)) {
            s.spawn(move || {
                let mut sums = [0u64; 32];
                for c in part.chunks_exact(32) {
                    for (s, w) in sums.iter_mut().zip(c) {
                        *s = s.wrapping_add(*w);
                    }
                }
                black_box(sums);
            });
        }
    });
    words.len() as f64 * 8.0 / t.elapsed().as_secs_f64()
}

/// Bytes per second that threads of the processor read.
pub fn host(threads: usize) -> Result<f64> {
    let (mut words, n) = (vec![], BYTES as usize / 8);
    words.try_reserve_exact(n).map_err(|_| {
        Diagnostic::new("E0799", format!("not enough memory to measure how fast it is read: that takes {BYTES} bytes"))
    })?;
    words.resize(n, 1u64);
    Ok((0..TIMES).map(|_| once(&words, threads)).fold(0.0, f64::max))
}

/// Warps of a block of the kernel, reads of 16 bytes of a lane, launches behind one another.
const WARPS: u32 = 8;
const READS: u32 = 8;
const LAUNCHES: usize = 4;

/// A kernel that reads. What it read is written only if its bits are a certain word: a buffer of equal bytes never gives that.
/// For every GPU that has a driver of CUDA 12.
pub fn ptx() -> String {
    let step = 16 * 32 * WARPS;
    let mut out = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry isobit_read(.param .u64 from, .param .u64 to)\n.maxntid {}\n{{\n",
        32 * WARPS
    );
    let _ = writeln!(out, "\t.reg .pred %p;\n\t.reg .b32 %r<{}>;\n\t.reg .b64 %d<4>;", 4 * READS + 2);
    out += "\tld.param.u64 %d0, [from];\n\tld.param.u64 %d1, [to];\n";
    out += "\tcvta.to.global.u64 %d0, %d0;\n\tcvta.to.global.u64 %d1, %d1;\n";
    out += "\tmov.u32 %r0, %ctaid.x;\n\tmov.u32 %r1, %tid.x;\n";
    let _ = writeln!(out, "\tmul.wide.u32 %d2, %r0, {};\n\tmul.wide.u32 %d3, %r1, 16;", step * READS);
    out += "\tadd.s64 %d0, %d0, %d2;\n\tadd.s64 %d0, %d0, %d3;\n";
    for i in 0..READS {
        let r = 4 * i + 2;
        let _ = writeln!(out, "\tld.global.v4.u32 {{%r{r}, %r{}, %r{}, %r{}}}, [%d0+{}];", r + 1, r + 2, r + 3, i * step);
    }
    for r in 3..4 * READS + 2 {
        let _ = writeln!(out, "\txor.b32 %r2, %r2, %r{r};");
    }
    out += "\tsetp.eq.u32 %p, %r2, 0x9e3779b9;\n\t@%p st.global.u32 [%d1], %r2;\n\tret;\n}\n";
    out
}

/// Bytes per second that a GPU reads. The buffer is given back.
pub fn gpu(device: &mut dyn Device) -> Result<f64> {
    let sigs = [KernelSig { name: "isobit_read", bufs: 2 }];
    let kernel = device.load_module(ptx().as_bytes(), &KernelNames { place: "measuring bandwidth", kernels: &sigs })?[0];
    let (from, to) = (device.alloc(BYTES)?, device.alloc(64)?);
    let grid = [(BYTES / u64::from(512 * WARPS * READS)) as u32, 1];
    let launch = LaunchDesc { kernel, args: vec![(from, 0), (to, 0)], grid, warps: WARPS, shared_bytes: 0 };
    let list = device.prepare(&vec![launch; LAUNCHES])?;
    let mut best = f64::MAX;
    // The first times a graph is not there yet.
    for _ in 0..TIMES + 2 {
        device.sync()?;
        let t = Instant::now();
        // SAFETY: the grid's blocks together read the buffer, and write at most a word of the other.
        unsafe { device.run(list, &[])? };
        device.sync()?;
        best = best.min(t.elapsed().as_secs_f64());
    }
    device.release(list)?;
    device.free(from)?;
    device.free(to)?;
    Ok(LAUNCHES as f64 * BYTES as f64 / best)
}
