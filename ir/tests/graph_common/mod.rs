//! What the graph tests share: a seeded generator, random weights for a graph, a small model as text.
#![allow(dead_code)]

use ir::graph::interp::{Affine, Dtype, Plain, WeightSource};
use ir::graph::op::Op;
use ir::graph::{Elem, Graph};
use std::collections::BTreeMap;

/// splitmix64
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    /// -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

pub struct Stored {
    dtype: Dtype,
    bytes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    elem: Elem,
    shape: Vec<u32>,
}

/// Random weights of the graph's types.
#[derive(Default)]
pub struct Weights(pub BTreeMap<String, Stored>);

fn number_bytes(format: Dtype, x: f32) -> Vec<u8> {
    match format {
        Dtype::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::F32 => x.to_le_bytes().to_vec(),
    }
}

fn bf16_bytes(x: f32) -> [u8; 2] {
    half::bf16::from_f32(x).to_le_bytes()
}

impl Weights {
    pub fn random(g: &Graph, seed: u64) -> Self {
        let mut r = Rng(seed);
        let mut w = Weights::default();
        for id in g.ids().filter(|&id| g.node(id).op == Op::Weight) {
            let n = g.node(id);
            let count: usize = n.ty.shape.iter().map(|&d| d as usize).product();
            let (mut bytes, mut scales, mut biases, mut dtype) = (vec![], vec![], vec![], Dtype::F32);
            match n.ty.elem {
                Elem::Affine { bits, group, scales: format } => {
                    bytes = (0..count * bits as usize / 8).map(|_| r.next() as u8).collect();
                    for _ in 0..count / group as usize {
                        let s = 0.02 * (1.5 + r.unit()) * 16.0 / (1 << bits) as f32;
                        scales.extend(number_bytes(format, s));
                        biases.extend(number_bytes(format, -s * (1 << (bits - 1)) as f32 * (1.0 + 0.2 * r.unit())));
                    }
                }
                Elem::Bf16 => {
                    dtype = Dtype::Bf16;
                    (0..count).for_each(|_| bytes.extend(bf16_bytes(1.0 + 0.5 * r.unit())));
                }
                Elem::F16 => {
                    dtype = Dtype::F16;
                    (0..count).for_each(|_| bytes.extend(half::f16::from_f32(1.0 + 0.5 * r.unit()).to_le_bytes()));
                }
                _ => (0..count).for_each(|_| bytes.extend((1.0 + 0.5 * r.unit()).to_le_bytes())),
            }
            let s = Stored { dtype, bytes, scales, biases, elem: n.ty.elem, shape: n.ty.shape.clone() };
            w.0.insert(n.name.clone(), s);
        }
        w
    }

    /// Sets a plain f32 tensor.
    pub fn set(&mut self, name: &str, shape: &[u32], x: &[f32]) {
        let bytes = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (scales, biases) = (vec![], vec![]);
        let s = Stored { dtype: Dtype::F32, bytes, scales, biases, elem: Elem::F32, shape: shape.to_vec() };
        self.0.insert(name.into(), s);
    }
}

impl WeightSource for Weights {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        let s = self.0.get(name).filter(|s| s.scales.is_empty())?;
        Some(Plain { dtype: s.dtype, shape: s.shape.clone(), parts: vec![(&s.bytes[..]).into()] })
    }
    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        let s = self.0.get(name).filter(|s| !s.scales.is_empty())?;
        let Elem::Affine { bits, group, scales: scale_dtype } = s.elem else { return None };
        let (cols, rest) = s.shape.split_last()?;
        let (rows, stack) = (*rest.last()?, if rest.len() == 2 { rest[0] } else { 1 });
        let part = |b: &'_ Vec<u8>| vec![std::borrow::Cow::Owned(b.clone())];
        let (words, scales, biases) = (part(&s.bytes), part(&s.scales), part(&s.biases));
        Some(Affine { bits, group, stack, rows, cols: *cols, scale_dtype, words, scales, biases })
    }
}

/// Errors of a parser or verifier as one text.
pub fn show(errors: &[ir::diag::Diagnostic]) -> String {
    errors.iter().map(|d| format!("{} {d}\n", d.code)).collect()
}

/// One layer with attention, dense MLP and experts; logits capped; argmax.
pub const MODEL: &str = include_str!("model.graph");
