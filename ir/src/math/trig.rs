//! `sin` and `cos`, and the form that rotary position embedding needs.
//!
//! `n = rne(x·2/π)`, `r = x - n·π/2` in three fma with π/2 as three floats (72 bits): the first is exact
//! for `|n| < 2^22`, the others round once each. On `|r| ≤ 0.83`
//! (π/4, and what the rounding of x·2/π adds for the largest x): `sin r = r + r³·S(r²)` and
//! `cos r = 1 - r²/2 + r⁴·C(r²)`, S and C of degree 2, minimax of the relative error (method of
//! `exp.rs`): 6.2e-9 and 2.2e-10. The quadrant swaps them and sets signs, by integer operations.

use super::Arith;
use super::util::{MAGIC, SIGN, add_bits, neg, poly, split_sign};

/// Largest error of the sine of [`sincos`] in ulp of the true value. Over every f32 input in the
/// domain the largest is 1.6689.
pub const SIN_ULP: f64 = 1.7;
/// Largest error of the cosine of [`sincos`] in ulp. Over every f32 input in the domain the largest is 1.8067.
pub const COS_ULP: f64 = 1.85;
/// [`sincos`] gives NaN for `|x|` at or above this.
pub const SINCOS_LIMIT: f32 = 1_048_576.0;
/// Largest absolute error of both results of [`sincos_pos`] for a non-negative position and a frequency in
/// (0, 1]. The largest over a million random pairs is 9.0e-8.
pub const SINCOS_POS_ABS: f64 = 1.2e-7;
/// [`sincos_pos`] gives NaN where `pos·f_hi` is at or above this.
pub const SINCOS_POS_LIMIT: f32 = 1_048_576.0;

const TWO_OVER_PI: f32 = f32::from_bits(0x3f22_f983);
/// Minus π/2, as three floats.
const MINUS_HALF_PI: [f32; 3] = [f32::from_bits(0xbfc9_0fdb), f32::from_bits(0x333b_bd2e), f32::from_bits(0x26f7_2ced)];
const SIN: [f32; 3] = [f32::from_bits(0xbe2a_aa9f), f32::from_bits(0x3c08_8243), f32::from_bits(0xb94c_3159)];
const COS: [f32; 5] = [1.0, -0.5, f32::from_bits(0x3d2a_aaa3), f32::from_bits(0xbab6_04e0), f32::from_bits(0x37cc_9de7)];

/// `(r, q)`: `x = n·π/2 + r` and the low bits of q are those of n; `|x| < 2^22`. 4 fma, 1 add.
fn reduce<A: Arith>(a: &mut A, x: A::F) -> (A::F, A::I) {
    let (k, magic) = (a.cf(TWO_OVER_PI), a.cf(MAGIC));
    let t = a.fma(x, k, magic);
    let n = a.sub(t, magic);
    let mut r = x;
    for c in MINUS_HALF_PI {
        let c = a.cf(c);
        r = a.fma(n, c, r);
    }
    (r, a.bits(t))
}

/// Sine and cosine of `n·π/2 + r`. 7 fma, 2 mul. A NaN r gives NaN.
fn quadrant<A: Arith>(a: &mut A, r: A::F, q: A::I) -> (A::F, A::F) {
    let z = a.mul(r, r);
    let p = poly(a, z, &SIN);
    let rz = a.mul(r, z);
    let s = a.fma(rz, p, r);
    let c = poly(a, z, &COS);

    let (one, zero, sign) = (a.ci(1), a.ci(0), a.ci(SIGN));
    let odd = a.iand(q, one);
    let even = a.ieq(odd, zero);
    let s0 = a.sel(even, s, c);
    let c0 = a.sel(even, c, s);
    let flip = a.shl(q, 30);
    let flip = a.iand(flip, sign);
    let sin = add_bits(a, s0, flip);
    let next = a.iadd(q, one);
    let flip = a.shl(next, 30);
    let flip = a.iand(flip, sign);
    let cos = add_bits(a, c0, flip);
    (sin, cos)
}

/// x, or NaN where the float with the bits `magnitude` is not below `limit`.
fn within<A: Arith>(a: &mut A, x: A::F, magnitude: A::I, limit: f32) -> A::F {
    let limit = a.ci(limit.to_bits() as i32);
    let inside = a.ilt(magnitude, limit);
    let nan = a.cf(f32::NAN);
    a.sel(inside, x, nan)
}

/// `(sin x, cos x)`.
///
/// Domain: `|x| < SINCOS_LIMIT`; beyond it, for infinities and for NaN both results are NaN.
/// `sin(±0) = ±0`, `cos(±0) = 1`, sin is odd and cos even by construction (computed on |x|).
///
/// 11 fma, 2 mul, 1 add for both.
pub fn sincos<A: Arith>(a: &mut A, x: A::F) -> (A::F, A::F) {
    let (magnitude, sign) = split_sign(a, x);
    let m = a.float(magnitude);
    let m = within(a, m, magnitude, SINCOS_LIMIT);
    let (r, q) = reduce(a, m);
    let (s, c) = quadrant(a, r, q);
    (add_bits(a, s, sign), c)
}

/// `sin x`: the first part of [`sincos`].
pub fn sin<A: Arith>(a: &mut A, x: A::F) -> A::F {
    sincos(a, x).0
}

/// `cos x`: the second part of [`sincos`].
pub fn cos<A: Arith>(a: &mut A, x: A::F) -> A::F {
    sincos(a, x).1
}

/// Sine and cosine of the rotary angle `pos·(f_hi + f_lo)`, the frequency given as the unevaluated sum
/// of a float and the rest that it rounded away (`|f_lo| ≤ ulp(f_hi)/2`).
///
/// `p = pos·f_hi` rounded, `err = pos·(f_hi + f_lo) - p` by two fma; err joins the reduced argument, so
/// that no rounding of the large angle is left. Domain: `|pos| < 2^24` (so that it is a float) and
/// `|p| < SINCOS_POS_LIMIT`, else NaN. `pos = 0` gives exactly (±0, 1).
///
/// 13 fma, 3 mul, 2 add.
pub fn sincos_pos<A: Arith>(a: &mut A, pos: A::I, f_hi: A::F, f_lo: A::F) -> (A::F, A::F) {
    let f = a.i_to_f(pos);
    let p = a.mul(f, f_hi);
    let np = neg(a, p);
    let err = a.fma(f, f_hi, np);
    let err = a.fma(f, f_lo, err);
    let (magnitude, _) = split_sign(a, p);
    let p = within(a, p, magnitude, SINCOS_POS_LIMIT);
    let (r, q) = reduce(a, p);
    let r = a.add(r, err);
    quadrant(a, r, q)
}
