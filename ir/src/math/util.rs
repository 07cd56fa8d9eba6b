//! Short sequences that several functions share. No function of its own lives here.

use super::Arith;

/// The sign bit.
pub(super) const SIGN: i32 = i32::MIN;
/// Everything but the sign bit.
pub(super) const MAGNITUDE: i32 = i32::MAX;
/// Bits of +infinity.
pub(super) const INF: i32 = 0x7f80_0000;
/// Bits of 1.0.
pub(super) const ONE: i32 = 0x3f80_0000;
/// 2^64, 2^-64, 2^32, 2^-32.
pub(super) const UP_64: f32 = f32::from_bits(0x5f80_0000);
pub(super) const DOWN_64: f32 = f32::from_bits(0x1f80_0000);
pub(super) const UP_32: f32 = f32::from_bits(0x4f80_0000);
pub(super) const DOWN_32: f32 = f32::from_bits(0x2f80_0000);
/// `1.5·2^23`. `fma(x, k, MAGIC)` rounds `x·k` to the nearest integer n (ties to even, one rounding in
/// all) for `|n| < 2^22` and leaves n in the low mantissa bits: `bits = 0x4b400000 + n`.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// `c[0] + x·(c[1] + x·(…))`: Horner, `c.len() - 1` fma.
pub(super) fn poly<A: Arith>(a: &mut A, x: A::F, c: &[f32]) -> A::F {
    let (last, rest) = c.split_last().expect("a polynomial has a coefficient");
    let mut p = a.cf(*last);
    for k in rest.iter().rev() {
        let k = a.cf(*k);
        p = a.fma(p, x, k);
    }
    p
}

/// The float with the given bits added to those of `x` (wrapping).
pub(super) fn add_bits<A: Arith>(a: &mut A, x: A::F, by: A::I) -> A::F {
    let b = a.bits(x);
    let b = a.iadd(b, by);
    a.float(b)
}

/// `-x`: flips the sign bit (adding `SIGN` wraps, so it is exclusive or).
pub(super) fn neg<A: Arith>(a: &mut A, x: A::F) -> A::F {
    let s = a.ci(SIGN);
    add_bits(a, x, s)
}

/// `(bits of |x|, sign bit of x)`.
pub(super) fn split_sign<A: Arith>(a: &mut A, x: A::F) -> (A::I, A::I) {
    let (b, m, s) = (a.bits(x), a.ci(MAGNITUDE), a.ci(SIGN));
    (a.iand(b, m), a.iand(b, s))
}

/// `x` moved into `[lo, hi]`; NaN stays NaN.
pub(super) fn clamp<A: Arith>(a: &mut A, x: A::F, lo: f32, hi: f32) -> A::F {
    let (lo, hi) = (a.cf(lo), a.cf(hi));
    let c = a.flt(x, lo);
    let x = a.sel(c, lo, x);
    let c = a.flt(hi, x);
    a.sel(c, hi, x)
}
