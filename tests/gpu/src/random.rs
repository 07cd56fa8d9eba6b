//! Seeded random weights and tokens: the same on every machine.

use crate::case::Tensor;
use ir::graph::interp::{Affine, Dtype, Plain, WeightSource};
use std::collections::BTreeMap;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream for this seed and purpose.
    pub fn new(seed: u64, purpose: &str) -> Self {
        // FNV-1a over the name.
        let name = purpose.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let mut r = Random(seed ^ name);
        r.bits();
        r
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// In 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 16_777_216.0
    }
}

/// Upper half of a float, truncated.
fn bf16(x: f32) -> [u8; 2] {
    ((x.to_bits() >> 16) as u16).to_le_bytes()
}

struct Codes {
    shape: [u32; 5],
    words: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// Random tensors by name. Codes are bell-shaped around the middle, scales vary by a factor of two within a row and are
/// sometimes negative, and rows have about unit norm, so that activations stay in range through many layers.
pub struct RandomWeights {
    plain: BTreeMap<String, (Vec<u32>, Vec<u8>)>,
    affine: BTreeMap<String, Codes>,
}

impl RandomWeights {
    /// Makes all tensors.
    pub fn new(seed: u64, tensors: &[Tensor]) -> Self {
        let mut out = RandomWeights { plain: BTreeMap::new(), affine: BTreeMap::new() };
        for t in tensors {
            let mut r = Random::new(seed, t.name());
            match t {
                Tensor::Plain { name, len } => {
                    let bytes = (0..*len).flat_map(|_| bf16(0.75 + r.unit() / 2.0)).collect();
                    out.plain.insert(name.clone(), (vec![*len], bytes));
                }
                Tensor::Affine { name, bits, group, stack, rows, cols } => {
                    let elements = u64::from(*stack) * u64::from(*rows) * u64::from(*cols);
                    let bytes = (elements * u64::from(*bits) / 8) as usize;
                    // The mean of two uniform codes, all at once.
                    let half = if *bits == 4 { 0x7777_7777_7777_7777 } else { 0x7f7f_7f7f_7f7f_7f7f };
                    let mut words = Vec::with_capacity(bytes + 8);
                    while words.len() < bytes {
                        let (a, b) = (r.bits(), r.bits());
                        words.extend_from_slice(&((a & b) + (((a ^ b) >> 1) & half)).to_le_bytes());
                    }
                    words.truncate(bytes);
                    let (middle, spread) = if *bits == 4 { (7.25, 3.26) } else { (127.25, 52.3) };
                    let unit = 1.0 / (spread * (*cols as f32).sqrt());
                    let (mut scales, mut biases) = (vec![], vec![]);
                    for _ in 0..elements / u64::from(*group) {
                        let s = unit * (0.7 + 0.7 * r.unit()) * if r.below(16) == 0 { -1.0 } else { 1.0 };
                        let s = f32::from_bits(s.to_bits() & 0xffff_0000);
                        scales.extend(bf16(s));
                        biases.extend(bf16(-s * middle * (0.96 + 0.08 * r.unit())));
                    }
                    out.affine
                        .insert(name.clone(), Codes { shape: [*bits, *group, *stack, *rows, *cols], words, scales, biases });
                }
            }
        }
        out
    }
}

impl WeightSource for RandomWeights {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        let (shape, bytes) = self.plain.get(name)?;
        Some(Plain { dtype: Dtype::Bf16, shape: shape.clone(), parts: vec![bytes.into()] })
    }

    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        let c = self.affine.get(name)?;
        let [bits, group, stack, rows, cols] = c.shape;
        Some(Affine {
            bits,
            group,
            stack,
            rows,
            cols,
            scale_dtype: Dtype::Bf16,
            words: vec![(&c.words).into()],
            scales: vec![(&c.scales).into()],
            biases: vec![(&c.biases).into()],
        })
    }
}
