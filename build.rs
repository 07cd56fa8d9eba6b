//! Gives the cache a name for this build: a hash over the sources, so that a changed compiler never meets old results.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let mut files = vec![PathBuf::from("Cargo.lock")];
    for dir in ["src", "ir/src", "passes/src", "codegen/src", "runtime/src", "models/src"] {
        println!("cargo:rerun-if-changed={dir}");
        walk(Path::new(dir), &mut files);
    }
    println!("cargo:rerun-if-changed=Cargo.lock");
    files.sort();
    // FNV-1a, 64 bits; no one attacks it.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for f in files {
        let name = f.to_string_lossy().into_owned();
        let content = fs::read(&f).unwrap_or_default();
        for b in name.bytes().chain([0]).chain(content) {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=ISOBIT_BUILD={hash:016x}");
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, out);
        } else {
            out.push(path);
        }
    }
}
