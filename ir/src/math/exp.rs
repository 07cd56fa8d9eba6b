//! `exp`.
//!
//! `x = n·ln 2 + r` with `n = rne(x·log2 e)` and `|r| ≤ ln 2 / 2`, `exp x = 2^n·exp r`.
//! ln 2 is two floats: `fma(n, -hi, x)` is exact (the result is a multiple of the smaller ulp and at most
//! 0.35), `fma(n, -lo, ·)` rounds once.
//! `exp r = 1 + r·(1 + r·q(r))`, q of degree 4: minimax of the relative error (Lawson iteration at 2000
//! Chebyshev points in f64; coefficients rounded to f32 one by one, the rest refitted): 3.1e-9.

use super::Arith;
use super::util::{MAGIC, ONE, clamp, poly};

/// Largest error of [`exp`] in ulp of the true value, subnormal results included.
/// Over every f32 input the largest is 0.8913.
pub const EXP_ULP: f64 = 0.9;

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// ln 2 to the nearest f32 (it is above ln 2) ...
const LN2_HI: f32 = f32::from_bits(0x3f31_7218);
/// ... and minus the rest: ln 2 = LN2_HI - LN2_REST.
const LN2_REST: f32 = f32::from_bits(0x3102_e308);
const COEFFICIENTS: [f32; 7] = [
    1.0,
    1.0,
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac56),
    f32::from_bits(0x3c09_1cbe),
    f32::from_bits(0x3ab5_288d),
];

/// `(exp r, t)`: `exp x = 2^n·exp r` with `bits(t) = 0x4b400000 + n`; `|x| < 2^21`.
/// 9 fma, 1 add. A NaN gives a NaN first part (the second is then any integer).
pub(super) fn exp_parts<A: Arith>(a: &mut A, x: A::F) -> (A::F, A::I) {
    let (k, magic) = (a.cf(LOG2_E), a.cf(MAGIC));
    let t = a.fma(x, k, magic);
    let n = a.sub(t, magic);
    let (hi, rest) = (a.cf(-LN2_HI), a.cf(LN2_REST));
    let r = a.fma(n, hi, x);
    let r = a.fma(n, rest, r);
    (poly(a, r, &COEFFICIENTS), a.bits(t))
}

/// `e^x`.
///
/// Domain: all. `exp(±0) = 1` and `exp(-inf) = +0` exactly, overflow gives +inf, NaN gives NaN.
/// Subnormal results are right (not flushed): `2^n` is applied as two factors of about `2^(n/2)`, the
/// first product is exact, the second rounds. x is clamped to [-104, 89] first: below, the result rounds
/// to +0; above, to +inf.
///
/// 9 fma, 2 mul, 1 add.
pub fn exp<A: Arith>(a: &mut A, x: A::F) -> A::F {
    let x = clamp(a, x, -104.0, 89.0);
    let (p, t) = exp_parts(a, x);
    let (one, mask) = (a.ci(ONE), a.ci(-1 << 23));
    let n = a.shl(t, 23);
    let half = a.shl(t, 22);
    let half = a.iand(half, mask);
    let rest = a.isub(n, half);
    let s = a.iadd(half, one);
    let s = a.float(s);
    let p = a.mul(p, s);
    let s = a.iadd(rest, one);
    let s = a.float(s);
    a.mul(p, s)
}
