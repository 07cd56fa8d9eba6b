//! Weights made up for a graph: a source of random tensors of the types that the graph states.

use super::{Rng, bf16};
use ir::graph::interp::{Affine, Dtype, Plain, WeightSource};
use ir::graph::op::Op;
use ir::graph::{Elem, Graph};
use std::collections::BTreeMap;

/// Words, scales, offsets.
struct Codes {
    shape: [u32; 3],
    bits: u32,
    group: u32,
    words: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// Tensors in memory.
#[derive(Default)]
pub struct Made {
    plain: BTreeMap<String, (Vec<u32>, Vec<u8>)>,
    codes: BTreeMap<String, Codes>,
}

/// What the numbers are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Moderate numbers.
    Random,
    /// Among them zeros of both signs, subnormals, huge ones, infinities and NaN.
    Special,
}

/// bf16 numbers that are hard: zeros, subnormals, the least normal, huge, infinite, NaN.
const SPECIAL: [u16; 14] =
    [0, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x3f80, 0xbf80];

impl Made {
    /// Tensors for all weights of a graph.
    pub fn of(g: &Graph, kind: Kind, seed: u64) -> Made {
        let (mut m, mut r) = (Made::default(), Rng(seed));
        for id in g.ids().filter(|&id| g.node(id).op == Op::Weight) {
            let n = g.node(id);
            let count: usize = n.ty.shape.iter().map(|&d| d as usize).product();
            // One in 32 is special, so that many rows stay finite and differences show.
            let mut number = |size: f32| match kind {
                Kind::Special if r.below(32) == 0 => SPECIAL[r.below(SPECIAL.len() as u32) as usize],
                _ => bf16(r.unit() * size),
            };
            match n.ty.elem {
                Elem::Bf16 => {
                    let bytes = (0..count).flat_map(|_| number(2.0).to_le_bytes()).collect();
                    m.plain.insert(n.name.clone(), (n.ty.shape.clone(), bytes));
                }
                Elem::Affine { bits, group, scales: Dtype::Bf16 } => {
                    let groups = count / group as usize;
                    let scales = (0..groups).flat_map(|_| number(0.1).to_le_bytes()).collect();
                    let biases = (0..groups).flat_map(|_| number(0.7).to_le_bytes()).collect();
                    let words = (0..count * bits as usize / 8).map(|_| r.word() as u8).collect();
                    let mut shape = [1; 3];
                    shape[3 - n.ty.shape.len()..].copy_from_slice(&n.ty.shape);
                    m.codes.insert(n.name.clone(), Codes { shape, bits, group, words, scales, biases });
                }
                other => panic!("{}: no made-up weights of {other:?}", n.name),
            }
        }
        m
    }

    /// Replaces the codes, scales and offsets of a matrix; `f(row, element)`, `g(row, group)`.
    pub fn set(&mut self, name: &str, f: &mut dyn FnMut(u32, u32) -> u32, g: &mut dyn FnMut(u32, u32) -> (f32, f32)) {
        let c = self.codes.get_mut(name).unwrap_or_else(|| panic!("no matrix {name}"));
        let [stack, rows, cols] = c.shape;
        let per_byte = 8 / c.bits;
        c.words.clear();
        c.scales.clear();
        c.biases.clear();
        for row in 0..stack * rows {
            for i in 0..cols / per_byte {
                let code = |k: u32, f: &mut dyn FnMut(u32, u32) -> u32| f(row, i * per_byte + k) << (c.bits * k);
                c.words.push((0..per_byte).map(|k| code(k, f)).sum::<u32>() as u8);
            }
            for k in 0..cols / c.group {
                let (s, b) = g(row, k);
                c.scales.extend(bf16(s).to_le_bytes());
                c.biases.extend(bf16(b).to_le_bytes());
            }
        }
    }
}

impl WeightSource for Made {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        self.plain.get(name).map(|(shape, bytes)| Plain { dtype: Dtype::Bf16, shape: shape.clone(), parts: vec![bytes.into()] })
    }

    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        self.codes.get(name).map(|c| Affine {
            bits: c.bits,
            group: c.group,
            stack: c.shape[0],
            rows: c.shape[1],
            cols: c.shape[2],
            scale_dtype: Dtype::Bf16,
            words: vec![(&c.words).into()],
            scales: vec![(&c.scales).into()],
            biases: vec![(&c.biases).into()],
        })
    }
}
