//! Elementwise operations of the host lowering against the emulation.

mod common;
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::*;
use ir::math::Arith;

const SPECIAL: [f32; 16] =
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, f32::MIN_POSITIVE, 1e-45, -3e-42, 1e-39, 3.0e38, -1.75e-38, 8388607.5, 123456.79];

#[test]
fn floats_keep_subnormals_and_order() {
    let mut b = Builder::new("ops", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let bx = b.block_x();
    let row = b.mul_c(bx, 32);
    let at = b.int(IntOp::Add, row, lane);
    let a = b.load(x, Elem::F32, at, None);
    let other = b.int_c(IntOp::Xor, lane, 5);
    let at2 = b.int(IntOp::Add, row, other);
    let c = b.load(x, Elem::F32, at2, None);
    let (p, q, r) = (b.add(a, c), b.sub(a, c), b.mul(a, c));
    let s = b.fma(a, c, q);
    let t = b.round_even(a);
    let u = b.round_bf16(a);
    let lt = b.flt(a, c);
    let le = b.fcmp(FCmp::Le, c, a);
    let eq = b.fcmp(FCmp::Eq, a, c);
    let n1 = b.is_nan(a);
    let v = b.sel(lt, p, q);
    let either = b.bool_op(BoolOp::Or, le, eq);
    let w = b.sel(either, r, s);
    let small = b.cf(1000.0);
    let minus = b.cf(-1000.0);
    let (lo, hi) = (b.flt(a, small), b.flt(minus, a));
    let fits = b.bool_op(BoolOp::And, lo, hi);
    let zero = b.cf(0.0);
    let safe = b.sel(fits, a, zero);
    let i = b.f_to_i(safe);
    let back = b.i_to_f(i);
    let bits = b.bits(t);
    let bits2 = b.int_c(IntOp::Xor, bits, i32::MIN);
    let neg = b.float(bits2);
    let one = b.cf(1.0);
    let nan_flag = b.sel(n1, one, zero);
    let base = b.mul_c(at, 12);
    for (n, v) in [p, q, r, s, t, u, v, w, back, neg, nan_flag].into_iter().enumerate() {
        // A NaN's payload is not specified: store a fixed one.
        let bad = b.is_nan(v);
        let fixed = b.cf(f32::from_bits(0x7fc0_0000));
        let v = b.sel(bad, fixed, v);
        let o = b.add_c(base, n as i32);
        b.store(y, Elem::F32, o, v, None);
    }
    let k = b.finish();
    let mut rng = Rng(1);
    let mut xs: Vec<f32> = SPECIAL.to_vec();
    xs.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    while xs.len() < 32 * 40 {
        xs.push(f32::from_bits(rng.u32()));
    }
    check(&k, [40, 1], &[floats(xs), vec![0; 32 * 40 * 12 * 4]]);
}

#[test]
fn integers() {
    let mut b = Builder::new("ints", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let two = b.mul_c(lane, 2);
    let v = b.load_n(x, Elem::I32, two, 2, None);
    let sh = b.int_c(IntOp::And, v[1], 31);
    let div = b.int_c(IntOp::Or, v[1], 1);
    let uni = b.block_y();
    let uni = b.add_c(uni, 7);
    use IntOp::*;
    let mut out = vec![];
    for op in [Add, Sub, Mul, And, Or, Xor, Max, Min] {
        out.push(b.int(op, v[0], v[1]));
        out.push(b.int(op, lane, v[1]));
        out.push(b.int(op, v[0], uni));
        out.push(b.int(op, uni, lane));
    }
    for op in [Shl, Lshr, Ashr] {
        out.push(b.int(op, v[0], sh));
        out.push(b.int_c(op, v[0], 9));
        out.push(b.int_c(op, two, 3));
        out.push(b.int(op, uni, lane));
    }
    for op in [Div, Rem] {
        out.push(b.int(op, v[0], div));
        out.push(b.int(op, lane, uni));
        out.push(b.int_c(op, lane, 5));
        out.push(b.int_c(op, v[0], 10));
    }
    for op in [ICmp::Eq, ICmp::Ne, ICmp::Lt, ICmp::Le] {
        for (p, q) in [(v[0], v[1]), (lane, sh), (lane, uni)] {
            let c = b.icmp(op, p, q);
            let d = b.select(c, v[0], lane);
            out.push(d);
        }
        let nine = b.i(9);
        let c = b.icmp(op, lane, nine);
        out.push(b.select(c, two, lane));
    }
    for (n, v) in out.iter().enumerate() {
        let o = b.add_c(lane, 32 * n as i32);
        b.store(y, Elem::I32, o, *v, None);
    }
    let k = b.finish();
    let mut rng = Rng(2);
    let xs = rng.words(64);
    check(&k, [1, 3], &[xs, vec![0; out.len() * 128]]);
}
