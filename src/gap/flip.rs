//! How little noise makes another token win. Noise of size `e` multiplies every element of a layer's output, at the position
//! that chooses, by `1 + e·u`, with `u` between -1 and 1 a function of (seed, trial, layer, element) alone. So `e = 2^-9` is what
//! rounding to bf16 may do, and `e = 2^-24` to f32. For each trial the size is bisected, in float64, with `u` and with `-u`: one
//! of them leads towards the other token, and the smaller size counts.

use super::Judge;
use ir::diag::Result;

/// Sizes are `2^(k / STEPS)`, from `2^-LEAST` to 1.
const STEPS: i32 = 8;
const LEAST: i32 = 40;

/// Which noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// Noise of another trial is other noise.
    pub trial: u64,
    /// In the output of this layer alone, or of all.
    pub layer: Option<u32>,
}

/// What noise did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flip {
    /// The size at which another token wins; none if noise as large as the values leaves the choice; 0 if float64 without
    /// noise chooses another.
    pub radius: Option<f64>,
    /// The token that wins there.
    pub to: u32,
}

/// The layer whose output has this name.
pub fn layer_output(name: &str) -> Option<u32> {
    name.strip_prefix("layers.")?.strip_suffix(".resid")?.parse().ok()
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number between -1 and 1.
fn unit(seed: u64, trial: u64, layer: u32, element: usize) -> f64 {
    let words = [trial, u64::from(layer), element as u64];
    let h = words.into_iter().fold(mix(seed), |h, w| mix(h.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(w)));
    (h >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn size(k: i32) -> f64 {
    exp2(f64::from(k) / f64::from(STEPS))
}

/// `2^x`, the same everywhere: a power of two times a root that is looked up.
fn exp2(x: f64) -> f64 {
    let whole = x.floor();
    let eighth = ((x - whole) * f64::from(STEPS)).round() as i32;
    let root = 2f64.sqrt().sqrt().sqrt();
    (0..eighth).fold(1.0, |p, _| p * root) * f64::from_bits(((1023 + whole as i64) as u64) << 52)
}

/// For each noise the size that makes another token than `chosen` win after `ids`.
pub fn radii(judge: &mut Judge, ids: &[u32], chosen: u32, seed: u64, noises: &[Noise]) -> Result<Vec<Flip>> {
    let rows = 2 * noises.len();
    // Exponents of sizes at which each row is known not to flip, and known to flip.
    let (mut low, mut high) = (vec![-LEAST * STEPS; rows], vec![0; rows]);
    let mut winners = |sizes: &[f64]| {
        judge.futures(ids, rows, &|layer, row, x| {
            let (noise, sign) = (noises[row / 2], if row % 2 == 0 { 1.0 } else { -1.0 });
            if noise.layer.is_none_or(|l| l == layer) && sizes[row] > 0.0 {
                let e = sign * sizes[row];
                x.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + e * unit(seed, noise.trial, layer, i));
            }
        })
    };
    let quiet = winners(&vec![0.0; rows])?;
    if let Some(&to) = quiet.first().filter(|to| **to != chosen) {
        return Ok(vec![Flip { radius: Some(0.0), to }; noises.len()]);
    }
    let mut to = winners(&vec![1.0; rows])?;
    let flips: Vec<bool> = to.iter().map(|t| *t != chosen).collect();
    while low.iter().zip(&high).any(|(l, h)| h - l > 1) {
        let middle: Vec<i32> = low.iter().zip(&high).map(|(l, h)| l + (h - l) / 2).collect();
        let sizes: Vec<f64> = middle.iter().map(|&k| size(k)).collect();
        for (i, w) in winners(&sizes)?.into_iter().enumerate() {
            if w == chosen {
                low[i] = middle[i];
            } else {
                (high[i], to[i]) = (middle[i], w);
            }
        }
    }
    // A row that flips nowhere below 1 has `high` at 0, and flips there or not at all.
    let flip = |i: usize| Flip { radius: (flips[i] || high[i] < 0).then(|| size(high[i])), to: to[i] };
    let smaller = |a: Flip, b: Flip| match (a.radius, b.radius) {
        (Some(x), Some(y)) if y < x => b,
        (None, Some(_)) => b,
        _ => a,
    };
    Ok((0..noises.len()).map(|n| smaller(flip(2 * n), flip(2 * n + 1))).collect())
}

/// The middle one of the radii, those without counting as infinite; none if there is none.
pub fn median(flips: &[Flip]) -> Option<f64> {
    let mut all: Vec<f64> = flips.iter().map(|f| f.radius.unwrap_or(f64::INFINITY)).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().filter(|r| r.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_even_and_a_function_of_its_place() {
        let n = 20_000;
        let all: Vec<f64> = (0..n).map(|i| unit(7, 1, 2, i)).collect();
        let mean = all.iter().sum::<f64>() / n as f64;
        let square = all.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!(all.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!(mean.abs() < 0.02 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
        let places = [unit(7, 1, 2, 3), unit(8, 1, 2, 3), unit(7, 2, 2, 3), unit(7, 1, 3, 3), unit(7, 1, 2, 4)];
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| a != b));
        }
        assert_eq!(unit(7, 1, 2, 3), places[0]);
    }

    #[test]
    fn sizes_are_eighths_of_octaves() {
        assert_eq!([size(0), size(-8), size(-9 * 8)], [1.0, 0.5, 1.0 / 512.0]);
        assert!((size(-4) - 0.5f64.sqrt()).abs() < 1e-12 && (size(-9) / size(-8) - size(-1)).abs() < 1e-12);
    }

    #[test]
    fn the_middle_of_radii() {
        let of = |r: &[Option<f64>]| median(&r.iter().map(|r| Flip { radius: *r, to: 0 }).collect::<Vec<_>>());
        assert_eq!(of(&[Some(3.0), Some(1.0), Some(2.0)]), Some(2.0));
        assert_eq!(of(&[Some(3.0), None, None]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn outputs_of_layers_by_name() {
        assert_eq!(layer_output("layers.12.resid"), Some(12));
        assert!(
            ["layers.1.attn.resid", "layers.1.ffn.resid", "resid", "layers.x.resid"].iter().all(|n| layer_output(n).is_none())
        );
    }
}
