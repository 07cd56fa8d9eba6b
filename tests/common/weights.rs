//! Weights made up for a graph: a source of random tensors of the types that the graph states.

use super::{Rng, bf16};
use ir::graph::interp::{Affine, Dtype, Parts, Plain, WeightSource};
use ir::graph::op::Op;
use ir::graph::{Elem, Graph};
use std::collections::BTreeMap;

/// Words, scales, offsets.
struct Codes {
    shape: [u32; 3],
    bits: u32,
    group: u32,
    scale_dtype: Dtype,
    words: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// Tensors in memory.
#[derive(Default)]
pub struct Made {
    plain: BTreeMap<String, (Dtype, Vec<u32>, Vec<u8>)>,
    codes: BTreeMap<String, Codes>,
    /// Stacks in one part a matrix.
    split: bool,
}

/// What the numbers are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Moderate numbers.
    Random,
    /// Among them zeros of both signs, subnormals, the least normal, and great ones that overflow nowhere.
    Special,
    /// Among them also huge ones, infinities and NaN.
    Wild,
}

/// Zeros, subnormals and the least normal of each format.
const TINY_BF16: [u16; 7] = [0, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080];
const TINY_F16: [u16; 7] = [0, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x8400];
const TINY_F32: [u32; 6] = [0, 0x8000_0000, 0x0000_0001, 0x8000_0001, 0x007f_ffff, 0x0080_0000];

/// Huge, infinite, NaN, and some with all their bits.
const WILD_BF16: [u16; 7] = [0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x3f80, 0xbf80];
const WILD_F16: [u16; 7] = [0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3555, 0xb555];
const WILD_F32: [u32; 7] = [0x7f7f_ffff, 0xff7f_ffff, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x3eaa_aaab, 0xbeaa_aaab];

/// Great in a matrix that a norm comes after; bf16 and f16 both have it.
const GREAT: f32 = 65280.0;
/// Great among factors, and in the table that logits come from: times the size of the others, so that the softcap hides nothing.
const GREATER: f32 = 32.0;

/// binary16 bits of a number below 65504, cut off.
fn f16(x: f32) -> u16 {
    let (sign, exponent, rest) = (x.to_bits() >> 16 & 0x8000, (x.to_bits() >> 23 & 255) as i32 - 112, x.to_bits() >> 13 & 0x3ff);
    (if exponent > 0 { sign | (exponent as u32) << 10 | rest } else { sign }) as u16
}

/// A number of this format and of magnitudes below `size`, or a great one.
fn number(r: &mut Rng, kind: Kind, dtype: Dtype, size: f32, great: f32) -> Vec<u8> {
    // One in 32 is special, so that many rows stay finite and differences show.
    let x = if kind == Kind::Random || r.below(32) > 0 {
        r.unit() * size
    } else {
        match (r.below(2), dtype, kind) {
            (0, Dtype::Bf16, _) => return one_of(r, &TINY_BF16).to_le_bytes().to_vec(),
            (0, Dtype::F16, _) => return one_of(r, &TINY_F16).to_le_bytes().to_vec(),
            (0, Dtype::F32, _) => return one_of(r, &TINY_F32).to_le_bytes().to_vec(),
            (_, Dtype::Bf16, Kind::Wild) => return one_of(r, &WILD_BF16).to_le_bytes().to_vec(),
            (_, Dtype::F16, Kind::Wild) => return one_of(r, &WILD_F16).to_le_bytes().to_vec(),
            (_, Dtype::F32, Kind::Wild) => return one_of(r, &WILD_F32).to_le_bytes().to_vec(),
            _ => one_of(r, &[great, -great]),
        }
    };
    match dtype {
        Dtype::Bf16 => bf16(x).to_le_bytes().to_vec(),
        Dtype::F16 => f16(x).to_le_bytes().to_vec(),
        Dtype::F32 => x.to_le_bytes().to_vec(),
    }
}

fn one_of<T: Copy>(r: &mut Rng, list: &[T]) -> T {
    list[r.below(list.len() as u32) as usize]
}

impl Made {
    /// The same with every stack in one part a matrix.
    pub fn in_parts(self) -> Made {
        Made { split: true, ..self }
    }

    /// The same with the lowest bit of some bytes flipped.
    pub fn with_one_bit_flipped(mut self, name: &str) -> Made {
        let bytes = match self.codes.get_mut(name) {
            Some(c) => &mut c.words,
            None => &mut self.plain.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}")).2,
        };
        // Of all rows, as not every expert is chosen and not every row matters.
        bytes.iter_mut().skip(3).step_by(61).for_each(|b| *b ^= 1);
        self
    }

    fn parts<'a>(&self, bytes: &'a [u8], stack: u32) -> Parts<'a> {
        let n = if self.split { bytes.len() / stack as usize } else { bytes.len() };
        bytes.chunks(n).map(Into::into).collect()
    }

    /// Tensors for all weights of a graph.
    pub fn of(g: &Graph, kind: Kind, seed: u64) -> Made {
        let (mut m, mut r) = (Made::default(), Rng(seed));
        for id in g.ids().filter(|&id| g.node(id).op == Op::Weight) {
            let n = g.node(id);
            let count: usize = n.ty.shape.iter().map(|&d| d as usize).product();
            let great = |size: f32| if n.ty.shape.len() > 1 && !n.name.ends_with(".table") { GREAT } else { GREATER * size };
            match n.ty.elem {
                Elem::Affine { bits, group, scales: scale_dtype } => {
                    let groups = count / group as usize;
                    // Codes of fewer bits are worth more.
                    let size = 1.6 / (1 << bits) as f32;
                    let scales = (0..groups).flat_map(|_| number(&mut r, kind, scale_dtype, size, great(size))).collect();
                    let biases = (0..groups).flat_map(|_| number(&mut r, kind, scale_dtype, 0.7, great(0.7))).collect();
                    let words = (0..count * bits as usize / 8).map(|_| r.word() as u8).collect();
                    let mut shape = [1; 3];
                    shape[3 - n.ty.shape.len()..].copy_from_slice(&n.ty.shape);
                    m.codes.insert(n.name.clone(), Codes { shape, bits, group, scale_dtype, words, scales, biases });
                }
                _ => {
                    let dtype = n.ty.dtype().unwrap_or_else(|| panic!("{}: no made-up weights of {}", n.name, n.ty));
                    // Rows of a matrix are short sums, a vector's numbers are factors.
                    let size = if n.ty.shape.len() > 1 { 0.7 } else { 2.0 };
                    let bytes = (0..count).flat_map(|_| number(&mut r, kind, dtype, size, great(size))).collect();
                    m.plain.insert(n.name.clone(), (dtype, n.ty.shape.clone(), bytes));
                }
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
        let (dtype, shape, bytes) = self.plain.get(name)?;
        let stack = if shape.len() == 3 { shape[0] } else { 1 };
        Some(Plain { dtype: *dtype, shape: shape.clone(), parts: self.parts(bytes, stack) })
    }

    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        let c = self.codes.get(name)?;
        let [stack, rows, cols] = c.shape;
        let [words, scales, biases] = [&c.words, &c.scales, &c.biases].map(|b| self.parts(b, stack));
        Some(Affine { bits: c.bits, group: c.group, stack, rows, cols, scale_dtype: c.scale_dtype, words, scales, biases })
    }
}
