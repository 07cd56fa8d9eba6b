//! Loads and stores: strides, tiles, anywhere, predicates; and what common shapes compile to.

mod common;
use codegen::{HostIsa, host_assembly};
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::*;
use ir::math::Arith;

const ELEMS: [Elem; 4] = [Elem::I32, Elem::F32, Elem::U8, Elem::Bf16];

/// Copies 32 × n elements through registers, with an index and a predicate of choice.
fn copy(elem: Elem, n: usize, index: impl Fn(&mut Builder, V) -> (V, Option<V>)) -> Kernel {
    let mut b = Builder::new("copy", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let (i, p) = index(&mut b, lane);
    let i = b.mul_c(i, n as i32);
    let vs = b.load_n(x, elem, i, n, p);
    let row = b.block_x();
    let row = b.mul_c(row, 32 * n as i32);
    let at = b.mul_c(lane, n as i32);
    let at = b.int(IntOp::Add, at, row);
    for (j, v) in vs.into_iter().enumerate() {
        let o = b.add_c(at, j as i32);
        b.store(y, elem, o, v, None);
    }
    b.finish()
}

fn inputs(elem: Elem, n: usize) -> Vec<Vec<u8>> {
    let mut r = Rng(11);
    let x = match elem {
        Elem::I32 | Elem::U8 => r.words(1024),
        Elem::F32 => r.floats(1024),
        // No NaNs: their payloads may change.
        Elem::Bf16 => r.words(1024).chunks(2).flat_map(|c| [c[0], c[1] & 0xbf]).collect(),
    };
    vec![x, vec![0; 4 * 32 * n * elem.bytes() as usize]]
}

#[test]
fn strides_and_tiles() {
    for elem in ELEMS {
        for n in [1, 2, 4] {
            for stride in [1, 2, 3, 4, 6, -1, 0] {
                let k = copy(elem, n, |b, lane| {
                    let at = b.mul_c(lane, stride);
                    let row = b.block_x();
                    let at = b.int(IntOp::Add, at, row);
                    let from = if stride < 0 { 40 } else { 3 };
                    (b.add_c(at, from), None)
                });
                check(&k, [4, 1], &inputs(elem, n));
            }
            let k = copy(elem, n, |b, lane| {
                let (lo, hi) = (b.int_c(IntOp::And, lane, 3), b.lshr(lane, 2));
                let hi = b.mul_c(hi, 20);
                let at = b.int(IntOp::Add, lo, hi);
                let row = b.block_x();
                (b.int(IntOp::Add, at, row), None)
            });
            check(&k, [4, 1], &inputs(elem, n));
        }
    }
}

#[test]
fn predicates() {
    for elem in ELEMS {
        for n in [1, 4] {
            // A tail, a head before the start of the memory, a run-time mask, and none at all.
            for kind in 0..6 {
                let k = copy(elem, n, |b, lane| {
                    let row = b.block_x();
                    let step = b.mul_c(row, 32);
                    let at = b.int(IntOp::Add, step, lane);
                    let limit = b.i(77);
                    let tail = b.icmp(ICmp::Lt, at, limit);
                    match kind {
                        0 => (at, Some(tail)),
                        1 => {
                            let at = b.add_c(at, -50);
                            let m = b.i(-1);
                            (at, Some(b.icmp(ICmp::Lt, m, at)))
                        }
                        2 => {
                            let bit = b.int(IntOp::Lshr, lane, row);
                            let bit = b.int_c(IntOp::And, bit, 1);
                            let zero = b.i(0);
                            (at, Some(b.icmp(ICmp::Ne, bit, zero)))
                        }
                        3 => {
                            // The first lanes, which take no part, lie before the memory.
                            let c = b.i(7);
                            let p = b.icmp(ICmp::Lt, c, lane);
                            let at = b.int(IntOp::Add, lane, row);
                            (b.add_c(at, -8), Some(p))
                        }
                        4 => {
                            let far = b.mul_c(lane, 3);
                            let far = b.int(IntOp::Add, far, row);
                            (far, Some(tail))
                        }
                        _ => {
                            let c = b.i(9);
                            let p = b.icmp(ICmp::Le, lane, c);
                            let one = b.i(1);
                            let q = b.icmp(ICmp::Ne, row, one);
                            (at, Some(b.bool_op(BoolOp::And, p, q)))
                        }
                    }
                });
                check(&k, [4, 1], &inputs(elem, n));
            }
        }
    }
}

#[test]
fn stores_of_all_shapes() {
    for elem in ELEMS {
        let mut b = Builder::new("stores", 1);
        let (x, y) = (b.buf("x", false), b.buf("y", true));
        let (lane, row) = (b.lane(), b.block_x());
        let v = b.load(x, elem, lane, None);
        let first = b.load(x, elem, row, None);
        let base = b.mul_c(row, 1024);
        let c = b.i(5);
        let (is5, below, limit) = (b.icmp(ICmp::Eq, lane, c), b.icmp(ICmp::Lt, lane, c), b.icmp(ICmp::Lt, lane, row));
        let moved = b.int(IntOp::Xor, lane, row);
        let moved = b.int_c(IntOp::Xor, moved, 21);
        let sparse = b.int_c(IntOp::And, lane, 5);
        let sparse = b.icmp(ICmp::Eq, sparse, c);
        let three = b.mul_c(lane, 3);
        let cases = [
            (lane, v, None),
            (lane, v, Some(is5)),
            (lane, v, Some(below)),
            (lane, v, Some(limit)),
            (lane, v, Some(sparse)),
            (lane, first, None),
            (three, v, None),
            (three, v, Some(limit)),
            (moved, v, None),
            (moved, v, Some(limit)),
            (row, first, None),
            (row, first, Some(limit)),
            (row, v, Some(is5)),
        ];
        for (n, (at, val, pred)) in cases.into_iter().enumerate() {
            let o = b.int(IntOp::Add, at, base);
            let o = b.add_c(o, 70 * n as i32);
            b.store(y, elem, o, val, pred);
        }
        let k = b.finish();
        let x = inputs(elem, 1)[0].clone();
        check(&k, [4, 1], &[x, vec![0xee; 4096 * elem.bytes() as usize]]);
    }
}

#[test]
fn memory_that_is_written_is_read_back() {
    // A buffer both written and read, across a barrier, with offsets past what a constant displacement covers.
    let mut b = Builder::new("back", 2);
    let y = b.buf("y", true);
    let (lane, w) = (b.lane(), b.warp());
    let at = b.mul_c(w, 32);
    let at = b.int(IntOp::Add, at, lane);
    let seen = b.load(y, Elem::I32, at, None);
    let more = b.add_c(seen, 100);
    b.store(y, Elem::I32, at, more, None);
    b.barrier();
    let other = b.int_c(IntOp::Xor, at, 32);
    let v = b.load(y, Elem::I32, other, None);
    b.barrier();
    let o = b.add_c(at, 64);
    b.store(y, Elem::I32, o, v, None);
    check(&b.finish(), [3, 1], &[ints(0..128)]);
}

#[test]
fn indices_may_pass_zero_on_the_way() {
    let mut b = Builder::new("around", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let (lane, row) = (b.lane(), b.block_x());
    let five = b.i(5);
    // Negative in the first blocks, then not: the constant must not go into the address.
    let low = b.int(IntOp::Sub, row, five);
    let up = b.add_c(low, 5);
    let u = b.load(x, Elem::I32, up, None);
    let far = b.int(IntOp::Sub, lane, five);
    let far = b.add_c(far, 6);
    let v = b.load(x, Elem::I32, far, None);
    let s = b.int(IntOp::Sub, v, u);
    let at = b.mul_c(row, 32);
    let at = b.int(IntOp::Add, at, lane);
    let at = b.add_c(at, -40);
    let at = b.add_c(at, 41);
    b.store(y, Elem::I32, at, s, None);
    check(&b.finish(), [9, 1], &[ints(100..140), vec![0; 9 * 128 + 4]]);
}

#[test]
fn common_shapes_have_no_gathers() {
    for isa in [HostIsa::X86_64V3, HostIsa::X86_64V4] {
        for n in [1, 2, 4] {
            for stride in [1, 2] {
                let k = copy(Elem::I32, n, |b, lane| {
                    let row = b.block_x();
                    let at = b.mul_c(lane, stride);
                    (b.int(IntOp::Add, at, row), None)
                });
                let asm = host_assembly(&[&k], isa).unwrap();
                assert!(!asm.contains("gather") && !asm.contains("vpinsrd"), "stride {stride}, n {n}:\n{asm}");
            }
        }
    }
}

#[test]
fn atomic_additions() {
    // Indices and predicates of every kind: one place, a row, anywhere; all lanes, known lanes, lanes that data choose.
    for which in 0..4 {
        for pred in 0..5 {
            let mut b = Builder::new("sum", 2);
            let (x, y) = (b.buf("x", false), b.buf("y", true));
            let (lane, row) = (b.lane(), b.block_x());
            let v = b.load(x, Elem::I32, lane, None);
            let idx = match which {
                0 => row,
                1 => b.int(IntOp::Add, lane, row),
                2 => b.int_c(IntOp::And, v, 31),
                _ => b.int_c(IntOp::And, lane, 1),
            };
            let zero = b.i(0);
            let known = {
                let two = b.i(2);
                b.icmp(ICmp::Lt, lane, two)
            };
            let odd = b.int_c(IntOp::And, row, 1);
            let uniform = b.icmp(ICmp::Ne, odd, zero);
            let data = b.icmp(ICmp::Lt, v, zero);
            let both = b.bool_op(BoolOp::And, known, uniform);
            let p = [None, Some(known), Some(uniform), Some(data), Some(both)][pred];
            b.atomic_add(y, idx, v, p);
            check(&b.finish(), [4, 1], &[Rng(5).words(32), Rng(6).words(64)]);
        }
    }
}
