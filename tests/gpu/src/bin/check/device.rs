//! The device itself, with kernels of a few lines: order of launches as a stream and as graphs, with and without early starts,
//! queued copies while the GPU is busy, and faults, each of which must be told and leave the next run unharmed.

use ir::diag::{Diagnostic, Result};
use runtime::assembler::Cubins;
use runtime::cuda::{About, CudaDevice, CudaOptions, Part, about, frame};
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, KernelSig, LaunchDesc, LaunchMode};

/// `b[i] = a[i] + 1 + block`, after a wait; and a kernel that writes outside all memory.
const BODY: &str = "\n{\n  .reg .pred %p<2>;\n  .reg .b64 %rd<6>;\n  .reg .b32 %r<6>;\n  griddepcontrol.wait;\n  \
     ld.param.u64 %rd1, [a];\n  ld.param.u64 %rd2, [b];\n  mov.u32 %r1, %tid.x;\n  mov.u32 %r4, %ctaid.y;\n  \
     mad.lo.u32 %r5, %r4, 32, %r1;\n  mul.wide.u32 %rd3, %r5, 4;\n  add.u64 %rd4, %rd1, %rd3;\n  add.u64 %rd5, %rd2, %rd3;\n  \
     ld.global.u32 %r2, [%rd4];\n  add.u32 %r3, %r2, 1;\n  add.u32 %r3, %r3, %r4;\n  st.global.u32 [%rd5], %r3;\n  ret;\n}\n";

/// PTX of a kernel of this name.
fn ptx(name: &str, target: &str, body: &str) -> String {
    let header = format!(".version 8.0\n.target {target}\n.address_size 64\n");
    format!("{header}.visible .entry {name}(.param .u64 a, .param .u64 b){body}")
}

fn kernel(device: &mut CudaDevice, name: &str, text: &str, cubin: Option<(&str, &[u8])>) -> Result<KernelHandle> {
    let module = frame([Part { name, ptx: text, cubin }]);
    let names = KernelNames { place: "check", kernels: &[KernelSig { name, bufs: 2 }] };
    Ok(device.load_module(&module, &names)?[0])
}

fn wrong(what: String) -> Diagnostic {
    Diagnostic::new("E0424", what)
}

fn launch(kernel: KernelHandle, from: BufferId, to: BufferId) -> LaunchDesc {
    LaunchDesc { kernel, args: vec![(from, 0), (to, 0)], grid: [1, 1], warps: 1, shared_bytes: 0 }
}

fn words(device: &mut CudaDevice, b: BufferId, n: usize) -> Result<Vec<u32>> {
    let mut out = vec![0; 4 * n];
    device.read(b, 0, &mut out)?;
    Ok(out.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect())
}

/// A chain of launches back and forth, with grids that come and go.
fn order(options: CudaOptions) -> Result<()> {
    const ROWS: usize = 12;
    let mut d = CudaDevice::new(options)?;
    let k = kernel(&mut d, "next", &ptx("next", "sm_90", BODY), None)?;
    let (a, b) = (d.alloc(128 * ROWS as u64)?, d.alloc(128 * ROWS as u64)?);
    let list: Vec<LaunchDesc> = (0..40).map(|i| if i % 2 == 0 { launch(k, a, b) } else { launch(k, b, a) }).collect();
    let prepared = d.prepare(&list)?;
    let mut want = vec![0u32; 32 * ROWS];
    // One row often, then more grids than graphs are kept, then again.
    let plan = [1; 50].into_iter().chain((1..=ROWS as u32).chain(1..=ROWS as u32)).chain([1, 1, 3, 3, 3, 1]);
    for rows in plan {
        // SAFETY: the kernel stays inside 32 words a row.
        unsafe { d.run(prepared, &vec![rows; list.len()])? };
        (0..rows as usize).for_each(|y| want[32 * y..32 * (y + 1)].iter_mut().for_each(|w| *w += 40 * (1 + y as u32)));
    }
    let got = words(&mut d, a, 32 * ROWS)?;
    d.release(prepared)?;
    if got == want { Ok(()) } else { Err(wrong(format!("launches are out of order: {:?} for {:?}", &got[..4], &want[..4]))) }
}

/// Writes, copies and reads that are queued between runs, more than the ring holds.
fn queues(options: CudaOptions) -> Result<()> {
    let mut d = CudaDevice::new(options)?;
    let k = kernel(&mut d, "next", &ptx("next", "sm_90", BODY), None)?;
    let (a, b, c) = (d.alloc(128)?, d.alloc(128)?, d.alloc(256)?);
    let prepared = d.prepare(&[launch(k, a, b), launch(k, b, a)])?;
    let mut reads = std::collections::VecDeque::new();
    for i in 0..3000u32 {
        d.queue_write(a, 0, &[i; 32].map(u32::to_le_bytes).concat())?;
        // SAFETY: as above.
        unsafe { d.run(prepared, &[])? };
        d.queue_copy((a, 64), (c, 128), 64)?;
        reads.push_back((i, d.queue_read(c, 128, 64)?));
        while reads.len() > (i % 5) as usize {
            if let Some((i, read)) = reads.pop_front() {
                let got = d.finish(read)?;
                if got != [i + 2; 16].map(u32::to_le_bytes).concat() {
                    return Err(wrong(format!("read {i} has {:?}", &got[..4])));
                }
            }
        }
    }
    // More than can be queued, and a staging buffer filled in turn with another.
    let large = d.alloc(64 << 20)?;
    for (at, byte) in [(0u64, 1u8), (16 << 20, 2), (32 << 20, 3), (48 << 20, 4)] {
        d.write_with(large, at, 16 << 20, &mut |out| out.fill(byte))?;
    }
    let mut out = vec![0; 64 << 20];
    d.read(large, 0, &mut out)?;
    let good = out.chunks(16 << 20).zip(1u8..).all(|(part, byte)| part.iter().all(|b| *b == byte));
    if good { Ok(()) } else { Err(wrong("staged writes are not what was filled".into())) }
}

/// Is this the refusal that is due? All words must be in it.
fn refused<T>(what: &str, code: &str, words: &[&str], result: Result<T>) -> Result<()> {
    match result {
        Ok(_) => Err(wrong(format!("{what} was not refused"))),
        Err(d) => {
            println!("    {what}: [{}] {}", d.code, d.to_string().replace('\n', " | "));
            let text = d.to_string();
            match words.iter().find(|w| !text.contains(**w)) {
                None if d.code == code => Ok(()),
                _ => Err(wrong(format!("{what}: expected {code} with {words:?}, found {} {text}", d.code))),
            }
        }
    }
}

/// Code that the driver or the GPU does not take.
fn code_faults(options: CudaOptions, gpu: &About) -> Result<()> {
    let arch = format!("sm_{}{}", gpu.capability.0, gpu.capability.1);
    let good = ptx("next", "sm_90", BODY);
    let mut d = CudaDevice::new(options)?;
    let broken = ptx("next", "sm_90", &BODY.replace("st.global.u32", "st.nowhere.u32"));
    refused("broken PTX", "E0443", &["kernel `next`", "nowhere"], kernel(&mut d, "next", &broken, None))?;
    refused("PTX that ends early", "E0443", &["kernel `next`"], kernel(&mut d, "next", &good[..good.len() / 2], None))?;
    refused(
        "PTX for a later GPU",
        "E0467",
        &["sm_130", gpu.name.as_str()],
        kernel(&mut d, "next", &ptx("next", "sm_130", BODY), None),
    )?;
    refused("PTX of the future", "E0443", &["kernel `next`"], kernel(&mut d, "next", &good.replace("8.0", "99.9"), None))?;
    refused("a kernel of another name", "E0407", &["other"], kernel(&mut d, "other", &good.replace("//", ""), None))?;
    // Damaged machine code: PTX takes over, unless nothing else is wanted.
    kernel(&mut d, "next", &good, Some((&arch, b"\x7fELF junk")))?;
    refused(
        "damaged machine code and PTX",
        "E0443",
        &["machine code", "PTX"],
        kernel(&mut d, "next", &broken, Some((&arch, b"junk"))),
    )?;
    let mut only = CudaDevice::new(CudaOptions { cubins: Cubins::On, ..options })?;
    refused(
        "damaged machine code",
        "E0469",
        &["kernel `next`"],
        kernel(&mut only, "next", &good, Some((&arch, b"\x7fELF junk"))),
    )?;
    refused("no machine code", "E0469", &["kernel `next`"], kernel(&mut only, "next", &good, Some(("sm_70", b""))))?;
    Ok(())
}

/// Memory that is not there, buffers of others, and an access outside everything, after which a new process is needed.
fn run_faults(options: CudaOptions) -> Result<()> {
    let mut d = CudaDevice::new(options)?;
    let a = d.alloc(4096)?;
    refused("memory that is not there", "E0420", &["buffers hold"], d.alloc(1 << 50))?;
    refused("an access outside a buffer", "E0422", &["4096"], d.write(a, 4000, &[0; 100]))?;
    refused(
        "a GPU that is not there",
        "E0441",
        &["4095"],
        CudaDevice::new(CudaOptions { ordinal: 4095, ..options }).map(|_| ()),
    )?;
    let wild =
        BODY.replace("ld.global.u32 %r2, [%rd4];", "mov.u32 %r2, 0;").replace("add.u64 %rd5, %rd2, %rd3;", "mov.u64 %rd5, 64;");
    let k = kernel(&mut d, "wild", &ptx("wild", "sm_90", &wild), None)?;
    // SAFETY: the fault is the point; the driver ends the context.
    refused("a write outside all memory", "E0445", &[], unsafe { d.launch(&[launch(k, a, a)]) })?;
    match d.sync() {
        Ok(()) => Err(wrong("a call after that was not refused".into())),
        Err(_) => Ok(()),
    }
}

/// Runs all of it; true if nothing was wrong.
pub fn all() -> Result<bool> {
    let gpu = about(0)?;
    let base = CudaOptions::default();
    let mut good = true;
    let mut part = |name: &str, result: Result<()>| {
        match &result {
            Ok(()) => println!("device {name}: passed"),
            Err(d) => println!("device {name}: FAILED: [{}] {d}", d.code),
        }
        good &= result.is_ok();
    };
    for launch in LaunchMode::ALL {
        for dependent in [false, true] {
            let o = CudaOptions { launch, dependent, ..base };
            let name = format!("{}{}", launch.name(), if dependent { ", early starts" } else { "" });
            part(&format!("order ({name})"), order(o));
            part(&format!("queues ({name})"), queues(o));
        }
    }
    part("code faults", code_faults(base, &gpu));
    part("order after faults", order(base));
    part("run faults", run_faults(base)); // the last: this process's context is of no use afterwards
    Ok(good)
}
