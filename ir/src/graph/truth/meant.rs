//! The numbers that a graph's floats stand for. A graph says `c=0x3f3504f3`, the float that is nearest to 1/√2; that a kernel
//! multiplies with the float is a part of its error, so the judge takes 1/√2.

/// Roots of numbers up to this are recognized: wider than any model.
const WIDEST: f64 = (1 << 20) as f64;

/// The shortest decimal that reads as this float: the number that stood in a configuration.
pub fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// `√n` or `1/√n` of a whole number, if it is the float nearest to that; else its decimal.
pub fn factor(x: f32) -> f64 {
    let square = f64::from(x) * f64::from(x);
    let candidates = [(square, false), (1.0 / square, true)];
    for (n, inverse) in candidates.map(|(n, inverse)| (n.round(), inverse)) {
        if x > 0.0 && (1.0..=WIDEST).contains(&n) {
            let root = if inverse { 1.0 / n.sqrt() } else { n.sqrt() };
            if root as f32 == x {
                return root;
            }
        }
    }
    decimal(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_stand_for_numbers() {
        assert_eq!([decimal(1e-6), decimal(30.0), decimal(0.1)], [1e-6, 30.0, 0.1]);
        assert_eq!(factor(std::f32::consts::FRAC_1_SQRT_2), 1.0 / 2f64.sqrt());
        for n in [1.0f64, 2.0, 64.0, 256.0, 1536.0, 2816.0, 3840.0, 5376.0] {
            assert_eq!(factor(n.sqrt() as f32), n.sqrt(), "√{n}");
            assert_eq!(factor((1.0 / n.sqrt()) as f32), 1.0 / n.sqrt(), "1/√{n}");
        }
        // No root, and what is no number at all.
        assert_eq!(factor(0.3), 0.3);
        assert_eq!(factor(-2.0), -2.0);
        assert!(factor(f32::NAN).is_nan() && factor(f32::INFINITY).is_infinite() && factor(0.0) == 0.0);
    }
}
