//! Random kernels: host code on every instruction set equals the emulation, PTX passes the audit.

mod common;
use codegen::{Target, ptx};
use common::*;

/// Each from a seed of its own.
const KERNELS: u64 = 24;

fn one(seed: u64) {
    let warps = [1, 1, 2, 4][seed as usize % 4];
    let (k, stores) = random::kernel(seed, warps, 14 + seed as usize % 20);
    let mut r = Rng(seed ^ 0xabcd);
    check(&k, random::GRID, &random::buffers(&mut r, stores, warps));
}

#[test]
fn host_code_equals_the_emulation() {
    (0..KERNELS).for_each(one);
}

#[test]
fn ptx_passes_the_audit() {
    let mut bad = vec![];
    for seed in 0..KERNELS {
        let (k, _) = random::kernel(seed, 4, 20);
        for t in [Target::Sm90, Target::Sm121] {
            if let Err(e) = ptx(&[&k], t) {
                bad.push(format!("seed {seed}, {}: {e}", t.name()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
