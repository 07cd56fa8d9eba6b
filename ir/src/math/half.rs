//! binary16 to binary32, exactly.

use super::Arith;

/// The binary16 in the high half of a word, widened; what the low half holds does not matter. 1 mul.
///
/// Sign, exponent and significand are moved to where binary32 has them; the value is then short of `2^112`, the difference of
/// the biases, and the product with it is exact, for subnormal numbers too. Infinities and NaNs get their exponent instead.
pub fn f16_high<A: Arith>(a: &mut A, word: A::I) -> A::F {
    let t = a.ashr(word, 3);
    let mask = a.ci(0x8fff_e000_u32 as i32);
    let t = a.iand(t, mask);
    let (small, bias) = (a.float(t), a.cf(f32::from_bits((127 + 112) << 23)));
    let finite = a.mul(small, bias);
    let top = a.ci(0x0f80_0000);
    let e = a.iand(t, top);
    let special = a.ieq(e, top);
    let exponent = a.ci(0x7f80_0000);
    let other = a.ior(t, exponent);
    let other = a.float(other);
    a.sel(special, other, finite)
}

/// The binary16 in the low half of a word, widened. 1 mul.
pub fn f16_low<A: Arith>(a: &mut A, word: A::I) -> A::F {
    let high = a.shl(word, 16);
    f16_high(a, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Scalar;

    #[test]
    fn all_values_are_exact() {
        for bits in 0..=u16::MAX {
            let want = half::f16::from_bits(bits).to_f32();
            let word = i32::from(bits);
            for got in [f16_low(&mut Scalar, word | 0x5a5a << 16), f16_high(&mut Scalar, word << 16 | 0x7fff)] {
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:04x}: {got} {want}");
            }
        }
    }
}
