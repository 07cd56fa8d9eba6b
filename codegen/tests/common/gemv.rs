//! A kernel like the quantized matrix-vector product: lane = row, groups of 8 words, three planes of activations.

use ir::kernel::build::Builder;
use ir::kernel::*;
use ir::math::Arith;

/// 4-bit weights of 32 rows per block; per group and row: 8 words of nibbles (stored [group][word][row]), scale and
/// bias; activations per group: 3 planes of 16 words, 2^e and the sum.
pub fn gemv(groups: u32, warps: u32) -> Kernel {
    let mut b = Builder::new("gemv", warps);
    let (w, sb, x, xs, y) = (b.fixed("w"), b.buf("sb", false), b.buf("x", false), b.buf("xs", false), b.buf("y", true));
    let (lane, warp, bx) = (b.lane(), b.warp(), b.block_x());
    let tile = b.mul_c(bx, warps as i32);
    let tile = b.int(IntOp::Add, tile, warp);
    let n = groups as i32;
    let w0 = b.mul_c(tile, n * 8 * 32);
    let w0 = b.int(IntOp::Add, w0, lane);
    let s0 = b.mul_c(tile, n * 32);
    let s0 = b.int(IntOp::Add, s0, lane);
    let zero = b.cf(0.0);
    let acc = b.for_n(groups, &[zero], |b, g, c| {
        let izero = b.i(0);
        let mut planes = [izero; 3];
        let wg = b.mul_c(g, 8 * 32);
        let wg = b.int(IntOp::Add, w0, wg);
        let xg = b.mul_c(g, 48);
        for i in 0..8 {
            let at = b.add_c(wg, i * 32);
            let word = b.load(w, Elem::I32, at, None);
            let low = b.int_c(IntOp::And, word, 0x0f0f_0f0f);
            let high = b.lshr(word, 4);
            let high = b.int_c(IntOp::And, high, 0x0f0f_0f0f);
            for (half, q) in [low, high].into_iter().enumerate() {
                for (p, acc) in planes.iter_mut().enumerate() {
                    let at = b.add_c(xg, p as i32 * 16 + i * 2 + half as i32);
                    let xw = b.load(x, Elem::I32, at, None);
                    *acc = b.dp4a(p == 0, false, xw, q, *acc);
                }
            }
        }
        let [hi, mid, lo] = planes;
        let a = b.shl(mid, 8);
        let a = b.iadd(a, lo);
        let up = b.ashr(a, 16);
        let h = b.iadd(hi, up);
        let l = b.int_c(IntOp::And, a, 0xffff);
        let (hf, lf) = (b.i_to_f(h), b.i_to_f(l));
        let c65536 = b.cf(65536.0);
        let p = b.fma(hf, c65536, lf);
        let sg = b.mul_c(g, 32);
        let sg = b.int(IntOp::Add, s0, sg);
        let sg = b.mul_c(sg, 2);
        let sbv = b.load_n(sb, Elem::Bf16, sg, 2, None);
        let xg2 = b.mul_c(g, 2);
        let e = b.load_n(xs, Elem::F32, xg2, 2, None);
        let bs = b.mul(sbv[1], e[1]);
        let u = b.fma(sbv[0], p, bs);
        vec![b.fma(e[0], u, c[0])]
    });
    let row = b.mul_c(tile, 32);
    let row = b.int(IntOp::Add, row, lane);
    b.store(y, Elem::F32, row, acc[0], None);
    b.finish()
}
