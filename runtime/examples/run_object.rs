//! Runs one kernel of a host object: for checks of code for another processor, under an emulator.
//!
//! Reads one case from the standard input: numbers (u32, little endian) and byte strings (length, then bytes), in this
//! order: object, name of the kernel, grid x and y, bytes of shared memory, number of buffers, each buffer's contents.
//! Writes the buffers' contents afterwards, one after the other. Memory that nobody wrote is poisoned.

use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{Device, KernelNames, KernelSig, LaunchDesc};
use std::io::{Read, Write};
use std::process::ExitCode;

/// The rest of the input.
struct Input(std::io::Cursor<Vec<u8>>);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

impl Input {
    fn number(&mut self) -> Result<u32> {
        let mut b = [0; 4];
        self.0.read_exact(&mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let mut b = vec![];
        let len = u64::from(self.number()?);
        let read = Read::by_ref(&mut self.0).take(len).read_to_end(&mut b)?;
        if read as u64 == len { Ok(b) } else { Err("the case is cut short".into()) }
    }
}

fn run(input: Vec<u8>) -> Result<Vec<u8>> {
    let mut input = Input(std::io::Cursor::new(input));
    let (object, name) = (input.bytes()?, String::from_utf8_lossy(&input.bytes()?).into_owned());
    let (grid, shared_bytes) = ([input.number()?, input.number()?], input.number()?);
    let bufs = (0..input.number()?).map(|_| input.bytes()).collect::<Result<Vec<_>>>()?;
    let mut device = CpuDevice::new(CpuOptions { threads: 1, poison: true, ..CpuOptions::default() })?;
    let sig = KernelSig { name: &name, bufs: bufs.len() as u32 };
    let kernel = device.load_module(&object, &KernelNames { place: "case", kernels: &[sig] })?[0];
    let mut args = vec![];
    for b in &bufs {
        let id = device.alloc(b.len() as u64)?;
        device.write(id, 0, b)?;
        args.push((id, 0));
    }
    let ids: Vec<_> = args.iter().map(|a| a.0).collect();
    let list = device.prepare(&[LaunchDesc { kernel, args, grid, warps: 1, shared_bytes }])?;
    // SAFETY: whoever made the case says that the kernel stays inside its buffers.
    unsafe { device.run(list, &[])? };
    let mut out = vec![];
    for (id, b) in ids.into_iter().zip(bufs) {
        let mut now = b;
        device.read(id, 0, &mut now)?;
        out.extend(now);
    }
    Ok(out)
}

fn main() -> ExitCode {
    let mut input = vec![];
    let read = std::io::stdin().read_to_end(&mut input).map_err(Into::into);
    match read.and_then(|_| run(input)).and_then(|out| Ok(std::io::stdout().write_all(&out)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
