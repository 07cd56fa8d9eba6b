//! Weights as the interpreter reads them: the checkpoint's own bytes, checked against the graph's types.

use crate::diag::{Diagnostic, Result};
use crate::graph::{Elem, Type};

/// Number format of a plain tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// binary16
    F16,
    /// binary32
    F32,
}

/// A tensor of floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain<'a> {
    /// Number format.
    pub dtype: Dtype,
    /// Dimensions.
    pub shape: Vec<u32>,
    /// Little-endian elements, row-major.
    pub bytes: &'a [u8],
}

/// Affine codes in MLX layout: `w = scale·code + bias` per group of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine<'a> {
    /// 4 or 8.
    pub bits: u32,
    /// Elements of a group.
    pub group: u32,
    /// Matrices in the stack, 1 for a single one.
    pub stack: u32,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// u32 words, row-major and little-endian, the lowest element in the lowest bits.
    pub words: &'a [u8],
    /// bf16, one per group.
    pub scales: &'a [u8],
    /// bf16, one per group.
    pub biases: &'a [u8],
}

/// Where weights come from; names are those of the graph's weight nodes.
pub trait WeightSource {
    /// The tensor of floats of that name.
    fn plain(&self, name: &str) -> Option<Plain<'_>>;
    /// The quantized matrix, or stack of matrices, of that name.
    fn affine(&self, name: &str) -> Option<Affine<'_>>;
}

/// bf16 bits as the float they are.
pub(super) fn bf16(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])) << 16)
}

impl Plain<'_> {
    /// Element `i`, widened.
    pub fn at(&self, i: usize) -> f32 {
        let b = self.bytes;
        match self.dtype {
            Dtype::Bf16 => bf16(b, i),
            Dtype::F16 => half::f16::from_le_bytes([b[2 * i], b[2 * i + 1]]).to_f32(),
            Dtype::F32 => f32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]),
        }
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
    /// Reads row `r` of all rows of the stack.
    pub(super) fn read(&self, r: usize, out: &mut Row) {
        let groups = (self.cols / self.group) as usize;
        let bytes = self.cols as usize * self.bits as usize / 8;
        out.codes.clear();
        out.params.clear();
        // In little-endian words with the lowest element in the lowest bits, elements are in the order of bytes.
        for &b in &self.words[r * bytes..(r + 1) * bytes] {
            if self.bits == 4 {
                out.codes.extend([i32::from(b & 15), i32::from(b >> 4)]);
            } else {
                out.codes.push(i32::from(b));
            }
        }
        out.params.extend((r * groups..(r + 1) * groups).map(|g| (bf16(self.scales, g), bf16(self.biases, g))));
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
        let elements: u64 = ty.shape.iter().map(|&d| u64::from(d)).product();
        let Elem::Affine { bits, group } = ty.elem else {
            let t = source.plain(name).ok_or_else(|| missing("unquantized"))?;
            let (elem, size) = match t.dtype {
                Dtype::Bf16 => (Elem::Bf16, 2),
                Dtype::F16 => (Elem::F16, 2),
                Dtype::F32 => (Elem::F32, 4),
            };
            if elem != ty.elem || t.shape != ty.shape || t.bytes.len() as u64 != elements * size {
                return Err(other(format!("{elem}{:?} of {} bytes", t.shape, t.bytes.len())));
            }
            return Ok(Tensor::Plain(t));
        };
        let t = source.affine(name).ok_or_else(|| missing("quantized"))?;
        let shape = [t.stack, t.rows, t.cols];
        let groups = elements / u64::from(group);
        let fits = (t.bits, t.group) == (bits, group)
            && (shape[..] == ty.shape[..] || (t.stack == 1 && shape[1..] == ty.shape[..]))
            && t.words.len() as u64 == elements * u64::from(bits) / 8
            && t.scales.len() as u64 == groups * 2
            && t.biases.len() as u64 == groups * 2;
        if !fits {
            let sizes = (t.words.len(), t.scales.len(), t.biases.len());
            return Err(other(format!("u{}g{}{shape:?} of {sizes:?} bytes", t.bits, t.group)));
        }
        Ok(Tensor::Affine(t))
    }

    /// All elements of a plain tensor.
    pub fn widen(&self) -> Vec<f32> {
        match self {
            Tensor::Plain(t) => {
                let size = if t.dtype == Dtype::F32 { 4 } else { 2 };
                (0..t.bytes.len() / size).map(|i| t.at(i)).collect()
            }
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
