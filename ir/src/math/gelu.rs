//! `gelu` in its tanh form.
//!
//! `0.5·x·(1 + tanh u) = x / (1 + exp(-2u))` with `u = sqrt(2/π)·(x + 0.044715·x³)`. The right side has
//! no cancellation, so the lower tail keeps a relative accuracy that only the error of the exponent
//! limits (2u reaches 87, hence the factor `1 + |2u|` in the bound).

use super::Arith;
use super::exp::exp_parts;
use super::recip::recip_of_negated;
use super::util::{ONE, SIGN, clamp};

/// The error of [`gelu`] for `|x| ≤ GELU_TAIL` is at most
/// `GELU_REL·(1 + max(-2u, 0))·|gelu x|`, plus half of the smallest subnormal.
/// Over every f32 input 3.26 would do in place of 3.5.
pub const GELU_REL: f64 = 3.5 / 16_777_216.0;
/// The absolute error of [`gelu`] is at most this times |x|. The largest over every f32 input is 1.554e-7.
pub const GELU_ABS: f64 = 1.6e-7;
/// Below `-GELU_TAIL` the result is -0 (the true value is above -1.8e-37).
pub const GELU_TAIL: f32 = 9.984_375;

/// `-2·sqrt(2/π)`, rounded.
const C1: f32 = -1.595_769;
/// `-2·sqrt(2/π)·0.044715`, rounded.
const C3: f32 = -0.071_354_814;

/// `0.5·x·(1 + tanh(sqrt(2/π)·(x + 0.044715·x³)))`.
///
/// Domain: all. `gelu(±0) = ±0`, `gelu(+inf) = +inf`, `gelu(-inf) = -0` (as every x below
/// `-GELU_TAIL`), `gelu(x) = x` exactly from 5 on; NaN gives NaN.
///
/// 16 fma, 3 mul, 1 add.
pub fn gelu<A: Arith>(a: &mut A, x: A::F) -> A::F {
    let c = clamp(a, x, -GELU_TAIL, GELU_TAIL);
    let (c1, c3) = (a.cf(C1), a.cf(C3));
    let z = a.mul(c, c);
    let w = a.fma(z, c3, c1);
    let v = a.mul(c, w);
    let (p, t) = exp_parts(a, v);
    // -2^n; a product with the NaN of a NaN input stays NaN whatever n is
    let (n, base, minus_one) = (a.shl(t, 23), a.ci(ONE ^ SIGN), a.cf(-1.0));
    let s = a.iadd(n, base);
    let s = a.float(s);
    let nd = a.fma(p, s, minus_one);
    let q = recip_of_negated(a, nd);
    let y = a.mul(x, q);
    let (tail, zero) = (a.cf(-GELU_TAIL), a.cf(-0.0));
    let below = a.flt(x, tail);
    a.sel(below, zero, y)
}
