//! Runs aarch64 objects on another machine: QEMU's user emulator with the runtime's own loader, built for aarch64
//! (`runtime/examples/run_object.rs`). Without them it fails, it does not skip: `make aarch64` puts them there.

use codegen::HostIsa;
use ir::kernel::Kernel;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Is it one for the emulator?
pub fn runs(isa: HostIsa) -> bool {
    isa.name().starts_with("aarch64")
}

fn runner() -> PathBuf {
    // A folder of the target folder.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder in a folder");
    let p = target.join("aarch64-unknown-linux-gnu/release/examples/run_object");
    assert!(p.exists(), "{} is missing: run `make aarch64`", p.display());
    p
}

/// Runs a kernel of an object on a grid; the buffers afterwards.
pub fn run(object: &[u8], k: &Kernel, grid: [u32; 2], bufs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
    let mut case = vec![];
    let number = |case: &mut Vec<u8>, n: usize| case.extend(u32::try_from(n).expect("small").to_le_bytes());
    for b in [object, k.name.as_bytes()] {
        number(&mut case, b.len());
        case.extend(b);
    }
    for n in [grid[0] as usize, grid[1] as usize, k.shared_layout().1 as usize, bufs.len()] {
        number(&mut case, n);
    }
    for b in bufs {
        number(&mut case, b.len());
        case.extend(b);
    }
    let mut child = Command::new("qemu-aarch64")
        .args(["-L", "/usr/aarch64-linux-gnu"])
        .arg(runner())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("qemu-aarch64: {e}: run `make aarch64`"));
    // It reads all before it writes.
    let written = child.stdin.take().expect("piped").write_all(&case);
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim()));
    }
    written.map_err(|e| e.to_string())?;
    let total: usize = bufs.iter().map(Vec::len).sum();
    if out.stdout.len() != total {
        return Err(format!("{} bytes came back of {total}", out.stdout.len()));
    }
    let mut rest = &out.stdout[..];
    Ok(bufs
        .iter()
        .map(|b| {
            let (now, more) = rest.split_at(b.len());
            rest = more;
            now.to_vec()
        })
        .collect())
}
