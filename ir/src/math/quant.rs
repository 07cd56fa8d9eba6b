//! 24-bit fixed-point quantization of activations, and the one rounding that joins exact plane sums
//! (DESIGN section 3).
//!
//! `x ≈ 2^e·X` per group: `E` is the exponent of the group's largest magnitude,
//! `e = clamp(E - 22, -126, 105)`, `X = min(rne(x·2^-e), 2^23 - 1)`, so `-2^23 ≤ X < 2^23`.
//! X is stored as three byte planes: `X = 65536·hi + 256·mid + lo`, hi signed, mid and lo unsigned.

use super::Arith;
use super::util::{INF, MAGNITUDE};

/// Smallest exponent e.
pub const E_MIN: i32 = -126;
/// Largest exponent e.
pub const E_MAX: i32 = 105;
/// Largest X. The smallest is `-X_MAX - 1`.
pub const X_MAX: i32 = 0x7f_ffff;

/// What a group has in common.
#[derive(Clone, Copy, Debug)]
pub struct Group<I, F, B> {
    /// The exponent e; 105 where `ok` is false.
    pub e: I,
    /// `2^e`, or NaN (0x7fc00000) where `ok` is false.
    pub scale: F,
    /// `2^-e`, always a normal number.
    pub inv: F,
    /// No element is an infinity or NaN.
    pub ok: B,
}

/// The group's exponent and scales from `amax_bits`, the integer maximum of `bits(x) & 0x7fffffff` over its
/// elements (a value below `2^31`, so that signed comparison orders it).
///
/// amax zero or subnormal has E = -127, hence e = -126. Integer operations only.
pub fn group_exponent<A: Arith>(a: &mut A, amax_bits: A::I) -> Group<A::I, A::F, A::B> {
    let inf = a.ci(INF);
    let ok = a.ilt(amax_bits, inf);
    let biased = a.lshr(amax_bits, 23);
    let offset = a.ci(127 + 22);
    let e = a.isub(biased, offset);
    let (lo, hi) = (a.ci(E_MIN), a.ci(E_MAX));
    let under = a.ilt(e, lo);
    let e = a.isel(under, lo, e);
    let over = a.ilt(hi, e);
    let e = a.isel(over, hi, e);
    let bias = a.ci(127);
    let s = a.iadd(bias, e);
    let s = a.shl(s, 23);
    let s = a.float(s);
    let nan = a.cf(f32::NAN);
    let scale = a.sel(ok, s, nan);
    let inv = a.isub(bias, e);
    let inv = a.shl(inv, 23);
    let inv = a.float(inv);
    Group { e, scale, inv, ok }
}

/// `bits(x) & 0x7fffffff`: what the group maximum is taken of.
pub fn magnitude_bits<A: Arith>(a: &mut A, x: A::F) -> A::I {
    let (b, m) = (a.bits(x), a.ci(MAGNITUDE));
    a.iand(b, m)
}

/// `X = min(rne(x·2^-e), 2^23 - 1)`, or 0 where `ok` is false. 1 mul.
///
/// The product is exact, or a subnormal that rounds to X = 0 as its exact value does. x must belong to the
/// group of `inv` and `ok`: then `|x·2^-e| < 2^23`, and the conversion to an integer is in range.
pub fn quantize<A: Arith>(a: &mut A, x: A::F, inv: A::F, ok: A::B) -> A::I {
    let zero = a.cf(0.0);
    let x = a.sel(ok, x, zero);
    let x = a.mul(x, inv);
    let x = a.round_even(x);
    let x = a.f_to_i(x);
    let max = a.ci(X_MAX);
    let over = a.ilt(max, x);
    a.isel(over, max, x)
}

/// `(hi, mid, lo)` with `X = 65536·hi + 256·mid + lo`: hi in -128..=127, mid and lo in 0..=255.
pub fn planes<A: Arith>(a: &mut A, x: A::I) -> (A::I, A::I, A::I) {
    let byte = a.ci(0xff);
    let hi = a.ashr(x, 16);
    let mid = a.lshr(x, 8);
    let mid = a.iand(mid, byte);
    let lo = a.iand(x, byte);
    (hi, mid, lo)
}

/// `RN(65536·hi + 256·mid + lo)`, the exact integer rounded once, from plane sums. 1 fma.
///
/// `A = 256·mid + lo`, `H = hi + (A >> 16)`, `P = fma(f32(H), 65536, f32(A & 0xffff))`. With the arithmetic
/// shift, `65536·(A >> 16) + (A & 0xffff) = A` for either sign, so this is exact before its one rounding
/// wherever
/// - `-2^31 ≤ 256·mid + lo < 2^31` (the wrapping sum is the sum), and
/// - `|H| ≤ 2^24` (f32(H) is exact).
///
/// Both hold for `Σ q·X` over a group of at most 128 with unsigned weights q up to 8 bits
/// (`A ≤ 257·128·255·255 = 2139062400 < 2^31`, `|H| ≤ 4177920 + 32640 < 2^23`), and with signed 8-bit ones.
/// A zero sum gives +0.
pub fn join<A: Arith>(a: &mut A, hi: A::I, mid: A::I, lo: A::I) -> A::F {
    let mid = a.shl(mid, 8);
    let sum = a.iadd(mid, lo);
    let carry = a.ashr(sum, 16);
    let h = a.iadd(hi, carry);
    let h = a.i_to_f(h);
    let mask = a.ci(0xffff);
    let low = a.iand(sum, mask);
    let low = a.i_to_f(low);
    let k = a.cf(65_536.0);
    a.fma(h, k, low)
}
