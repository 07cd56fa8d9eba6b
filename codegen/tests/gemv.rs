//! The inner loop that matters: results, and what it compiles to.

mod common;
use codegen::{HostIsa, Target, audit, host_assembly, ptx};
use common::*;

fn inputs(groups: usize, rows: usize) -> Vec<Vec<u8>> {
    let mut r = Rng(7);
    let bf16s: Vec<u8> = (0..groups * rows * 2)
        .flat_map(|_| ((((r.u32() as i32 as f32) / 2f32.powi(33)).to_bits() >> 16) as u16).to_le_bytes())
        .collect();
    vec![r.words(groups * rows * 8), bf16s, r.words(groups * 48), r.floats(groups * 2), vec![0; rows * 4]]
}

#[test]
fn results_equal_the_emulation() {
    for warps in [1, 4] {
        let k = gemv::gemv(11, warps as u32);
        check(&k, [2, 1], &inputs(11, 64 * warps));
    }
}

/// The lines between the label of the innermost loop and its backward branch.
fn innermost_loop(asm: &str) -> Vec<&str> {
    let lines: Vec<&str> = asm.lines().map(str::trim).collect();
    let mut best: Option<(usize, usize)> = None;
    for (end, line) in lines.iter().enumerate() {
        let Some(target) = line.strip_prefix('j').and_then(|l| l.split_whitespace().nth(1)) else { continue };
        let Some(start) = lines.iter().position(|l| l.starts_with(&format!("{target}:"))) else { continue };
        if start < end && best.is_none_or(|(s, e)| end - start > e - s) {
            best = Some((start, end));
        }
    }
    let (s, e) = best.expect("a loop");
    lines[s..=e].iter().filter(|l| !l.starts_with('#') && !l.is_empty()).copied().collect()
}

#[test]
fn the_loop_is_vector_code() {
    let k = gemv::gemv(44, 1);
    for (isa, dot, count) in [
        (HostIsa::X86_64V4Vnni, "vpdpbusd", 8 * 6 * 2),
        (HostIsa::X86_64V4, "vpmaddwd", 8 * 6 * 2),
        (HostIsa::X86_64V3, "vpmaddwd", 8 * 6 * 4),
    ] {
        let asm = host_assembly(&[&k], isa).unwrap();
        let body = innermost_loop(&asm);
        let n = |s: &str| body.iter().filter(|l| l.contains(s)).count();
        assert_eq!(n(dot), count, "{}:\n{}", isa.name(), body.join("\n"));
        for bad in ["gather", "call", "vpinsr", "vpextr"] {
            assert_eq!(n(bad), 0, "{} in the loop of {}:\n{}", bad, isa.name(), body.join("\n"));
        }
        if isa != HostIsa::X86_64V3 {
            assert_eq!(n("(%rsp)") + n("(%rbp)"), 0, "spills on {}:\n{}", isa.name(), body.join("\n"));
        }
    }
}

#[test]
fn ptx_has_the_same_operations() {
    for warps in [1, 8] {
        let k = gemv::gemv(44, warps);
        for t in [Target::Sm90, Target::Sm121] {
            let text = &ptx(&[&k], t).unwrap()[0];
            assert_eq!(audit::ptx_counts(text), audit::float_counts(&k));
            assert_eq!(audit::float_counts(&k), audit::Counts { fma: 3, mul: 1, add: 0 });
            for part in ["ld.global.nc", "dp4a.u32.u32", &format!(".maxntid {}", warps * 32), "nounroll"] {
                assert!(text.contains(part), "no {part} in\n{text}");
            }
        }
    }
}
