//! Byte dot products: every combination of signs, of uniform and varying operands, of known small bytes.

mod common;
use codegen::{HostIsa, Target, host_assembly, ptx};
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::*;

fn kernel() -> (Kernel, usize) {
    let mut b = Builder::new("dots", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let (lane, row) = (b.lane(), b.block_x());
    let base = b.mul_c(row, 96);
    let at = b.int(IntOp::Add, base, lane);
    let [v, w, acc] = [0, 32, 64].map(|o| {
        let i = b.add_c(at, o);
        b.load(x, Elem::I32, i, None)
    });
    let [u, t, ua] = [1, 33, 65].map(|o| {
        let i = b.add_c(base, o);
        b.load(x, Elem::I32, i, None)
    });
    let mut out = vec![];
    for mask in [-1, 0x7f7f_7f7f, 0x0f0f_0f0f] {
        let (vm, um) = (b.int_c(IntOp::And, v, mask), b.int_c(IntOp::And, u, mask));
        for s in [false, true] {
            for t_ in [false, true] {
                for (p, q, a) in
                    [(vm, w, acc), (w, vm, acc), (vm, t, acc), (t, vm, acc), (um, w, acc), (um, t, acc), (um, t, ua), (um, w, ua)]
                {
                    out.push(b.dp4a(s, t_, p, q, a));
                }
            }
        }
    }
    let n = out.len();
    let base = b.mul_c(row, 32 * n as i32);
    for (i, v) in out.into_iter().enumerate() {
        let o = b.int(IntOp::Add, base, lane);
        let o = b.add_c(o, 32 * i as i32);
        b.store(y, Elem::I32, o, v, None);
    }
    (b.finish(), n)
}

#[test]
fn dots_are_exact() {
    let (k, n) = kernel();
    let extreme = [0u32, 0x7f7f_7f7f, 0x8080_8080, 0xffff_ffff, 0x80ff_7f01, 0x0180_ff7f, 0x0f0f_0f0f, 0xff00_ff00];
    let mut r = Rng(5);
    let mut xs: Vec<u32> = vec![];
    // Every pair of extreme words meets: rows of one word against all.
    for e in extreme {
        xs.extend((0..96).map(|i| if i < 32 { e } else { extreme[i % 8] }));
    }
    while xs.len() < 96 * 40 {
        xs.push(r.u32());
    }
    check(&k, [40, 1], &[ints(xs), vec![0; 40 * 32 * 4 * n]]);
}

#[test]
fn dots_are_simd() {
    let (k, _) = kernel();
    let asm = host_assembly(&[&k], HostIsa::X86_64V4Vnni).unwrap();
    assert!(asm.contains("vpdpbusd") && !asm.contains("vpmaddwd"));
    for isa in [HostIsa::X86_64V3, HostIsa::X86_64V4] {
        let asm = host_assembly(&[&k], isa).unwrap();
        assert!(asm.contains("vpmaddwd") && asm.contains("vpmaddubsw") && !asm.contains("vpdpbusd"));
    }
    for (isa, has, not) in [
        (HostIsa::Aarch64, &["smull", "umull", "sadalp", "uadalp"][..], &["sdot", "udot"][..]),
        (HostIsa::Aarch64DotProd, &["sdot", "udot"], &["usdot", "mull"]),
        (HostIsa::Aarch64I8mm, &["sdot", "udot", "usdot"], &["mull"]),
    ] {
        let asm = host_assembly(&[&k], isa).unwrap();
        let n = |op: &str| asm.lines().filter(|l| l.trim_start().starts_with(op)).count();
        for op in has {
            assert!(n(op) > 0, "no {op} on {}", isa.name());
        }
        for op in not {
            assert_eq!(n(op), 0, "{op} on {}", isa.name());
        }
    }
}

/// Matrix products of a warp: every combination of signs, operands that differ from lane to lane and operands that do not.
#[test]
fn products_of_matrices_are_exact() {
    let mut b = Builder::new("products", 2);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let (lane, warp, row) = (b.lane(), b.warp(), b.block_x());
    let base = b.mul_c(row, 320);
    let at = b.int(IntOp::Add, base, lane);
    let v: Vec<V> = (0..10)
        .map(|i| {
            let at = b.add_c(at, 32 * i);
            b.load(x, Elem::I32, at, None)
        })
        .collect();
    let u = b.load(x, Elem::I32, base, None);
    let small = b.int_c(IntOp::And, v[4], 0x0f0f_0f0f);
    let mut out = vec![];
    for (s, t) in [(false, false), (false, true), (true, false), (true, true)] {
        out.extend(b.mma(s, t, [v[0], v[1], v[2], v[3]], [v[4], v[5]], [v[6], v[7], v[8], v[9]]));
        out.extend(b.mma(s, t, [v[0], u, v[2], lane], [small, v[5]], [v[6], u, v[8], v[9]]));
        out.extend(b.mma(s, t, [u, u, u, u], [u, u], [u, u, u, u]));
        out.extend(b.mma(s, t, [v[0], v[1], v[2], v[3]], [u, u], [u, v[7], lane, u]));
    }
    let n = out.len() as i32;
    let at = b.mul_c(row, 2);
    let at = b.int(IntOp::Add, at, warp);
    let at = b.mul_c(at, 32 * n);
    let at = b.int(IntOp::Add, at, lane);
    for (i, v) in out.into_iter().enumerate() {
        let at = b.add_c(at, 32 * i as i32);
        b.store(y, Elem::I32, at, v, None);
    }
    let k = b.finish();
    let mut r = Rng(11);
    let extreme = [0u32, 0x7f7f_7f7f, 0x8080_8080, 0xffff_ffff, 0x80ff_7f01, 0x0180_ff7f, 0x0f0f_0f0f, 0xff00_ff00];
    let xs: Vec<u32> = (0..320 * 12).map(|i| if i < 320 * 4 { extreme[r.u32() as usize % 8] } else { r.u32() }).collect();
    check(&k, [12, 1], &[ints(xs), vec![0; 12 * 2 * 32 * 4 * n as usize]]);
    for t in [Target::Sm90, Target::Sm121] {
        let text = &ptx(&[&k], t).unwrap()[0];
        for kinds in ["s32.u8.u8.s32", "s32.u8.s8.s32", "s32.s8.u8.s32", "s32.s8.s8.s32"] {
            let name = format!("mma.sync.aligned.m16n8k32.row.col.{kinds}");
            assert_eq!(text.matches(&name).count(), 4, "{name} in\n{text}");
        }
    }
}
