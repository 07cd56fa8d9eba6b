//! Weights as interpreter and packer read them: the checkpoint's own bytes, in one part or one a matrix of the stack,
//! checked against the graph's types.

pub use crate::graph::Dtype;

use super::pieces;
use crate::diag::{Diagnostic, Result};
use crate::graph::{Elem, Type};
use std::borrow::Cow;

/// Bytes of a stack of matrices: one part for all of them, or one part a matrix (experts that are stored one by one, halves
/// of a fused tensor). A single matrix or vector is a stack of one.
pub type Parts<'a> = Vec<Cow<'a, [u8]>>;

/// Are these parts a stack of `stack` matrices of `bytes` bytes each?
pub fn parts_fit(parts: &[Cow<'_, [u8]>], stack: u32, bytes: u64) -> bool {
    let whole = parts.len() == 1 && Some(parts[0].len() as u64) == bytes.checked_mul(u64::from(stack));
    whole || (parts.len() == stack as usize && parts.iter().all(|p| p.len() as u64 == bytes))
}

/// Bytes of matrix `m` of a stack; the parts [fit](parts_fit).
pub fn matrix<'b>(parts: &'b [Cow<'_, [u8]>], stack: u32, m: u32) -> &'b [u8] {
    if parts.len() == stack as usize {
        return &parts[m as usize];
    }
    let n = parts[0].len() / stack as usize;
    &parts[0][m as usize * n..][..n]
}

/// A tensor of floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain<'a> {
    /// Number format.
    pub dtype: Dtype,
    /// Dimensions; three of them are a stack of matrices.
    pub shape: Vec<u32>,
    /// Little-endian elements, row-major.
    pub parts: Parts<'a>,
}

/// Affine codes in MLX layout: `w = scale·code + bias` per group of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affine<'a> {
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Elements of a group.
    pub group: u32,
    /// Matrices in the stack, 1 for a single one.
    pub stack: u32,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Number format of scales and biases.
    pub scale_dtype: Dtype,
    /// Codes, row-major: a row is a stream of bits over little-endian bytes, the first code in the lowest bits.
    pub words: Parts<'a>,
    /// One per group.
    pub scales: Parts<'a>,
    /// One per group.
    pub biases: Parts<'a>,
}

/// Where weights come from; names are those of the graph's weight nodes.
pub trait WeightSource: Sync {
    /// The tensor of floats of that name.
    fn plain(&self, name: &str) -> Option<Plain<'_>>;
    /// The quantized matrix, or stack of matrices, of that name.
    fn affine(&self, name: &str) -> Option<Affine<'_>>;
    /// The tensor of that name, to be read in pieces. A source that makes its numbers makes those of the piece only.
    fn open(&self, name: &str) -> Option<Box<dyn pieces::Tensor + '_>> {
        if let Some(a) = self.affine(name) {
            return Some(Box::new(a));
        }
        Some(Box::new(self.plain(name)?))
    }
    /// Is told that these bytes of a piece were used and will not be read again soon. A source that maps files gives their
    /// pages back.
    fn done(&self, _bytes: &[u8]) {}
}

/// Number `i` of a run of numbers, widened.
fn number(dtype: Dtype, b: &[u8], i: usize) -> f32 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_le_bytes([b[2 * i], b[2 * i + 1]]).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes([b[2 * i], b[2 * i + 1]]).to_f32(),
        Dtype::F32 => f32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]),
    }
}

impl Plain<'_> {
    /// Matrices in the stack.
    pub fn stack(&self) -> u32 {
        if self.shape.len() == 3 { self.shape[0] } else { 1 }
    }

    /// Elements of one matrix.
    pub fn matrix_len(&self) -> u64 {
        self.shape.iter().map(|&d| u64::from(d)).product::<u64>() / u64::from(self.stack().max(1))
    }

    /// Do the parts hold what the shape says?
    pub fn fits(&self) -> bool {
        parts_fit(&self.parts, self.stack(), self.matrix_len() * self.dtype.bytes() as u64)
    }

    /// Element `i` of the whole tensor, widened.
    pub fn at(&self, i: usize) -> f32 {
        let n = self.matrix_len() as usize;
        number(self.dtype, matrix(&self.parts, self.stack(), (i / n) as u32), i % n)
    }
}

/// One row of codes with its scales and offsets.
#[derive(Default)]
pub(super) struct Row {
    pub codes: Vec<i32>,
    /// (scale, offset) per group.
    pub params: Vec<(f32, f32)>,
}

impl Affine<'_> {
    /// Bytes of one matrix's codes and of its scales.
    fn matrix_bytes(&self) -> (u64, u64) {
        let n = u64::from(self.rows) * u64::from(self.cols);
        (n * u64::from(self.bits) / 8, n / u64::from(self.group.max(1)) * self.scale_dtype.bytes() as u64)
    }

    /// Do the parts hold what the dimensions say?
    pub fn fits(&self) -> bool {
        let (codes, numbers) = self.matrix_bytes();
        let fit = |parts: &Parts, bytes| parts_fit(parts, self.stack, bytes);
        fit(&self.words, codes) && fit(&self.scales, numbers) && fit(&self.biases, numbers)
    }

    /// Reads row `r` of all rows of the stack.
    pub(super) fn read(&self, r: usize, out: &mut Row) {
        let (m, r) = ((r / self.rows as usize) as u32, r % self.rows as usize);
        let groups = (self.cols / self.group) as usize;
        let bytes = self.cols as usize * self.bits as usize / 8;
        let row = &matrix(&self.words, self.stack, m)[r * bytes..(r + 1) * bytes];
        out.codes.clear();
        out.codes.extend((0..self.cols as usize).map(|i| {
            let (byte, shift) = (i * self.bits as usize / 8, i * self.bits as usize % 8);
            let next = row.get(byte + 1).copied().unwrap_or(0);
            i32::from(u16::from_le_bytes([row[byte], next]) >> shift) & ((1 << self.bits) - 1)
        }));
        let (s, b) = (matrix(&self.scales, self.stack, m), matrix(&self.biases, self.stack, m));
        out.params.clear();
        out.params
            .extend((r * groups..(r + 1) * groups).map(|g| (number(self.scale_dtype, s, g), number(self.scale_dtype, b, g))));
    }
}

/// A weight of the graph.
pub(super) enum Tensor<'a> {
    Plain(Plain<'a>),
    Affine(Affine<'a>),
}

impl<'a> Tensor<'a> {
    /// Finds a weight and checks that it is what the graph states.
    pub fn find(source: &'a dyn WeightSource, name: &str, ty: &Type) -> Result<Self> {
        let missing = |kind| Diagnostic::new("E0341", format!("the checkpoint has no {kind} tensor of this name")).at(name);
        let other = |found: String| Diagnostic::new("E0342", format!("the graph states {ty}, found {found}")).at(name);
        let sizes = |p: &Parts| p.iter().map(|p| p.len()).sum::<usize>();
        let Elem::Affine { bits, group, scales } = ty.elem else {
            let t = source.plain(name).ok_or_else(|| missing("unquantized"))?;
            if t.dtype.elem() != ty.elem || t.shape != ty.shape || !t.fits() {
                return Err(other(format!("{}{:?} of {} bytes", t.dtype.elem(), t.shape, sizes(&t.parts))));
            }
            return Ok(Tensor::Plain(t));
        };
        let t = source.affine(name).ok_or_else(|| missing("quantized"))?;
        let shape = [t.stack, t.rows, t.cols];
        let fits = (t.bits, t.group, t.scale_dtype) == (bits, group, scales)
            && (shape[..] == ty.shape[..] || (t.stack == 1 && shape[1..] == ty.shape[..]))
            && t.fits();
        if !fits {
            let elem = Elem::Affine { bits: t.bits, group: t.group, scales: t.scale_dtype };
            let sizes = (sizes(&t.words), sizes(&t.scales), sizes(&t.biases));
            return Err(other(format!("{elem}{shape:?} of {sizes:?} bytes")));
        }
        Ok(Tensor::Affine(t))
    }

    /// All elements of a plain tensor.
    pub fn widen(&self) -> Vec<f32> {
        match self {
            Tensor::Plain(t) => (0..t.matrix_len() as usize * t.stack() as usize).map(|i| t.at(i)).collect(),
            Tensor::Affine(_) => unreachable!("verified: a plain weight"),
        }
    }

    /// The codes.
    pub fn affine(&self) -> &Affine<'a> {
        match self {
            Tensor::Affine(t) => t,
            Tensor::Plain(_) => unreachable!("verified: affine codes"),
        }
    }
}
