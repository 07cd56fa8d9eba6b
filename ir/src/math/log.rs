//! Natural logarithm.
//!
//! `x = 2^k·m` with `2/3 ≤ m < 4/3` by integer operations, `f = m - 1` exactly,
//! `log x = k·ln 2 + f - f²/2 + f³·P(f)`, P of degree 7: minimax of the relative error of log(1 + f)
//! (method of `exp.rs`): 4.7e-9. One float for ln 2 is enough: its error is 0.05 ulp of the result.

use super::Arith;
use super::util::{poly, split_sign};

/// Largest error of [`log`] in ulp of the true value. Over every f32 input the largest is 0.9338.
pub const LOG_ULP: f64 = 1.0;

const LN_2: f32 = f32::from_bits(0x3f31_7218);
/// Bits of 2/3.
const TWO_THIRDS: i32 = 0x3f2a_aaab;
/// `-1/2`, then P.
const COEFFICIENTS: [f32; 9] = [
    -0.5,
    f32::from_bits(0x3eaa_aa83),
    f32::from_bits(0xbe7f_ff7e),
    f32::from_bits(0x3e4c_e822),
    f32::from_bits(0xbe2a_ce22),
    f32::from_bits(0x3e0f_6b31),
    f32::from_bits(0xbdf9_997c),
    f32::from_bits(0x3e0f_33c6),
    f32::from_bits(0xbe03_e44a),
];

/// `ln x`.
///
/// Domain: all. `log(1) = +0`, `log(±0) = -inf`, `log(x) = NaN` for x < 0, `log(+inf) = +inf`, NaN gives
/// NaN; subnormals are scaled by 2^23 first.
///
/// 10 fma, 2 mul, 1 add.
pub fn log<A: Arith>(a: &mut A, x: A::F) -> A::F {
    let (tiny, up) = (a.cf(f32::MIN_POSITIVE), a.cf(8_388_608.0));
    let (shift, zero) = (a.ci(-23), a.ci(0));
    let subnormal = a.flt(x, tiny);
    let scaled = a.mul(x, up);
    let m = a.sel(subnormal, scaled, x);
    let k0 = a.isel(subnormal, shift, zero);

    let (b, base, mask) = (a.bits(m), a.ci(TWO_THIRDS), a.ci(-1 << 23));
    let t = a.isub(b, base);
    let k = a.ashr(t, 23);
    let k = a.iadd(k, k0);
    let k = a.i_to_f(k);
    let t = a.iand(t, mask);
    let m = a.isub(b, t);
    let m = a.float(m);
    let one = a.cf(1.0);
    let f = a.sub(m, one);

    let s = a.mul(f, f);
    let p = poly(a, f, &COEFFICIENTS);
    let r = a.fma(p, s, f);
    let ln2 = a.cf(LN_2);
    let y = a.fma(k, ln2, r);

    let (inf, fzero, nan, low) = (a.cf(f32::INFINITY), a.cf(0.0), a.cf(f32::NAN), a.cf(f32::NEG_INFINITY));
    let finite = a.flt(x, inf);
    let y = a.sel(finite, y, x);
    let negative = a.flt(x, fzero);
    let y = a.sel(negative, nan, y);
    let (magnitude, _) = split_sign(a, x);
    let is_zero = a.ieq(magnitude, zero);
    a.sel(is_zero, low, y)
}
