//! Control flow, and blocks of several warps.

mod common;
use codegen::{HostIsa, host_object};
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::*;
use ir::math::Arith;

#[test]
fn loops_nest_and_carry() {
    let mut b = Builder::new("nest", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let (lane, row) = (b.lane(), b.block_x());
    let zero = b.i(0);
    let f0 = b.f(0.0);
    // The trip count is read from memory, and is 0 or negative in some blocks.
    let trip = b.load(x, Elem::I32, row, None);
    let out = b.for_(trip, &[f0, zero, lane], |b, i, c| {
        let inner = b.for_(i, &[c[0], c[1]], |b, j, d| {
            let f = b.i_to_f(j);
            let half = b.f(0.5);
            let s = b.fma(f, half, d[0]);
            // Carried values swap.
            vec![s, b.int(IntOp::Sub, i, d[1])]
        });
        let next = b.add_c(c[2], 2);
        let v = b.load(x, Elem::I32, c[2], None);
        let v = b.i_to_f(v);
        vec![b.add(inner[0], v), inner[1], next]
    });
    let one = b.i(1);
    let big = b.icmp(ICmp::Lt, one, row);
    let pick = b.if_(
        big,
        |b| {
            let f = b.mul(out[0], out[0]);
            b.store(y, Elem::F32, lane, f, None);
            vec![f, lane]
        },
        |_| vec![out[0], zero],
    );
    let at = b.mul_c(row, 32);
    let at = b.int(IntOp::Add, at, lane);
    for (n, v) in [out[1], out[2], pick[1]].into_iter().enumerate() {
        let o = b.add_c(at, 1024 * (n as i32 + 1));
        b.store(y, Elem::I32, o, v, None);
    }
    let o = b.add_c(at, 4096);
    b.store(y, Elem::F32, o, pick[0], None);
    let mut xs: Vec<u32> = vec![0, 5, -3i32 as u32, 1, 7, 2];
    xs.extend(6..100);
    check(&b.finish(), [6, 1], &[ints(xs), vec![0; 4 * 8192]]);
}

#[test]
fn warps_exchange_in_a_loop() {
    let mut b = Builder::new("exchange", 4);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let s = b.shared("s", 4 * 128);
    let (lane, w, row) = (b.lane(), b.warp(), b.block_x());
    let at = b.mul_c(w, 32);
    let at = b.int(IntOp::Add, at, lane);
    let v = b.load(x, Elem::F32, at, None);
    let trip = b.add_c(row, 1);
    let zero = b.i(0);
    let out = b.for_(trip, &[v, zero, v], |b, i, c| {
        b.store(s, Elem::F32, at, c[0], None);
        b.barrier();
        let k = b.add_c(i, 1);
        let o = b.int(IntOp::Add, w, k);
        let o = b.int_c(IntOp::And, o, 3);
        let o = b.mul_c(o, 32);
        let l = b.int_c(IntOp::Xor, lane, 9);
        let o = b.int(IntOp::Add, o, l);
        let got = b.load(s, Elem::F32, o, None);
        b.barrier();
        let half = b.f(0.5);
        let next = b.fma(got, half, c[0]);
        let n = b.int(IntOp::Add, c[1], o);
        // The first and third carried values trade places.
        vec![c[2], n, next]
    });
    let big = b.i(1);
    let cond = b.icmp(ICmp::Lt, big, row);
    let fin = b.if_(
        cond,
        |b| {
            b.store(s, Elem::F32, at, out[2], None);
            b.barrier();
            let o = b.int_c(IntOp::Xor, at, 96);
            vec![b.load(s, Elem::F32, o, None)]
        },
        |_| vec![out[0]],
    );
    let o = b.mul_c(row, 512);
    let o = b.int(IntOp::Add, o, at);
    b.store(y, Elem::F32, o, fin[0], None);
    let o2 = b.add_c(o, 128);
    b.store(y, Elem::I32, o2, out[1], None);
    let o3 = b.add_c(o, 256);
    b.store(y, Elem::F32, o3, out[2], None);
    let k = b.finish();
    let mut r = Rng(3);
    check(&k, [4, 1], &[r.floats(128), vec![0; 4 * 2048]]);
}

#[test]
fn pipelines_feed_all_warps() {
    for warps in [1, 4] {
        for stages in [2, 3, 4] {
            let mut b = Builder::new("pipe", warps);
            let (x, y) = (b.buf("x", false), b.buf("y", true));
            let w32 = warps as i32 * 32;
            let ring = b.shared("ring", stages * warps * 512);
            let (lane, w, trip) = (b.lane(), b.warp(), b.block_x());
            let at = b.mul_c(w, 32);
            let at = b.int(IntOp::Add, at, lane);
            let zero = b.f(0.0);
            let out = b.pipeline(
                stages,
                trip,
                &[zero],
                |b, i, slot| {
                    let from = b.mul_c(i, w32);
                    let from = b.int(IntOp::Add, from, at);
                    let to = b.mul_c(slot, w32);
                    let to = b.int(IntOp::Add, to, at);
                    let half = b.i(w32 / 2);
                    let p = b.icmp(ICmp::Lt, at, half);
                    b.copy(ring, to, x, from, None);
                    let back = b.i(w32 - 1);
                    let swap = b.int(IntOp::Sub, back, at);
                    let from = b.mul_c(i, w32);
                    let from = b.int(IntOp::Add, from, swap);
                    b.copy(ring, to, x, from, Some(p));
                },
                |b, _, slot, c| {
                    let o = b.mul_c(slot, w32);
                    let last = b.i(w32 - 1);
                    let r = b.int(IntOp::Sub, last, at);
                    let o = b.int(IntOp::Add, o, r);
                    let o = b.mul_c(o, 4);
                    let v = b.load_n(ring, Elem::F32, o, 4, None);
                    let s = b.add(v[0], v[1]);
                    let t = b.fma(v[2], v[3], s);
                    let half = b.f(0.5);
                    vec![b.fma(c[0], half, t)]
                },
            );
            let row = b.block_x();
            let row = b.mul_c(row, w32);
            let o = b.int(IntOp::Add, row, at);
            b.store(y, Elem::F32, o, out[0], None);
            let k = b.finish();
            let mut r = Rng(9);
            check(&k, [7, 1], &[r.floats(8 * warps as usize * 128), vec![0; 7 * warps as usize * 128]]);
        }
    }
}

#[test]
fn shuffles() {
    let mut b = Builder::new("shuffles", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let (lane, row) = (b.lane(), b.block_x());
    let i = b.load(x, Elem::I32, lane, None);
    let f = b.i_to_f(i);
    let p = b.icmp(ICmp::Lt, i, lane);
    let (c7, c100) = (b.i(7), b.i(100));
    let mut out = vec![];
    for m in [0, 1, 2, 4, 8, 16, 31] {
        let v = b.shuffle_xor(f, m);
        out.push(b.bits(v));
        out.push(b.shuffle_xor(lane, m));
        let q = b.shuffle_xor(p, m);
        out.push(b.select(q, c7, c100));
    }
    for src in [c7, c100, row, i, lane] {
        out.push(b.shuffle_idx(i, src));
        let v = b.shuffle_idx(f, src);
        out.push(b.bits(v));
        let q = b.shuffle_idx(p, src);
        out.push(b.select(q, c7, c100));
        out.push(b.shuffle_idx(lane, src));
    }
    let n = out.len();
    let base = b.mul_c(row, 32 * n as i32);
    let base = b.int(IntOp::Add, base, lane);
    for (j, v) in out.into_iter().enumerate() {
        let o = b.add_c(base, 32 * j as i32);
        b.store(y, Elem::I32, o, v, None);
    }
    let mut r = Rng(4);
    check(&b.finish(), [3, 1], &[r.words(32), vec![0; 3 * n * 128]]);
}

#[test]
fn objects_are_the_same_twice() {
    let ks: Vec<Kernel> = (0..6).map(|s| random::kernel(s, 4, 20).0).collect();
    let ks: Vec<&Kernel> = ks.iter().collect();
    for isa in isas() {
        assert_eq!(host_object(&ks, isa).unwrap(), host_object(&ks, isa).unwrap());
    }
    assert!(HostIsa::Native.resolve().unwrap().runs_here());
}
