//! Weights in float64, a row at a time, from the bytes that the checkpoint stores.

use crate::diag::{Diagnostic, Result};
use crate::graph::interp::WeightSource;
use crate::graph::interp::pieces::{Head, Piece, Tensor};
use crate::graph::{Dtype, Elem, Type};

/// Bytes of elements that one piece has at most.
const PIECE: usize = 1 << 20;
/// Multiplications below which a thread costs more than it saves.
const ALONE: usize = 1 << 19;
/// Sums that run side by side, so that a processor need not wait for one.
const LANES: usize = 8;

/// One tensor of a source.
pub struct Weight<'a> {
    tensor: Box<dyn Tensor + 'a>,
    head: Head,
    source: &'a dyn WeightSource,
}

impl<'a> Weight<'a> {
    /// The tensor of this name, if it is what the type says.
    pub fn find(source: &'a dyn WeightSource, name: &str, ty: &Type) -> Result<Weight<'a>> {
        let Some(tensor) = source.open(name) else {
            return Err(Diagnostic::new("E0376", "there is no weight of this name").at(name));
        };
        let head = tensor.head();
        let shape = match ty.shape[..] {
            [stack, rows, cols] => [stack, rows, cols],
            [rows, cols] => [1, rows, cols],
            [cols] => [1, 1, cols],
            _ => [1, 1, 1],
        };
        if head.elem != ty.elem || [head.stack, head.rows, head.cols] != shape || !head.fits {
            let m = format!(
                "the graph states {:?} {:?}, the source has {:?} {:?}",
                ty.elem,
                shape,
                head.elem,
                [head.stack, head.rows, head.cols]
            );
            return Err(Diagnostic::new("E0377", m).at(name));
        }
        Ok(Weight { tensor, head, source })
    }

    /// Row `r` of matrix `m`.
    pub fn row(&self, m: u32, r: u32) -> Vec<f64> {
        let piece = self.tensor.rows(m, r..r + 1);
        let mut out = vec![];
        widen(&self.head, &piece, 0, &mut out);
        out
    }

    /// All numbers of a vector.
    pub fn vector(&self) -> Vec<f64> {
        self.row(0, 0)
    }

    /// Matrix `m` times each of the columns `xs`: `give(row, x, sum)`.
    pub fn product(&self, m: u32, xs: &[&[f64]], threads: usize, give: &mut dyn FnMut(usize, usize, f64)) {
        let (rows, cols, n) = (self.head.rows as usize, self.head.cols as usize, xs.len());
        let mut out = vec![0.0; rows * n];
        let work = rows * cols * (n + 2);
        let share = rows.div_ceil(threads.min(work / ALONE + 1)).max(1);
        if share >= rows {
            self.rows_times(m, 0, xs, &mut out);
        } else {
            std::thread::scope(|scope| {
                for (i, part) in out.chunks_mut(share * n.max(1)).enumerate() {
                    scope.spawn(move || self.rows_times(m, i * share, xs, part));
                }
            });
        }
        for (row, sums) in out.chunks_exact(n.max(1)).enumerate() {
            sums.iter().enumerate().for_each(|(x, y)| give(row, x, *y));
        }
    }

    /// Rows from `first` on, as many as `out` has room for.
    fn rows_times(&self, m: u32, first: usize, xs: &[&[f64]], out: &mut [f64]) {
        let cols = (self.head.cols as usize).max(1);
        let at_once = (PIECE / (4 * cols)).clamp(1, 256);
        let mut row = vec![];
        for (block, out) in out.chunks_mut(at_once * xs.len().max(1)).enumerate() {
            let n = out.len() / xs.len().max(1);
            let from = (first + block * at_once) as u32;
            let piece = self.tensor.rows(m, from..from + n as u32);
            for (r, out) in out.chunks_exact_mut(xs.len().max(1)).enumerate() {
                widen(&self.head, &piece, r, &mut row);
                for (to, x) in out.iter_mut().zip(xs) {
                    *to = dot(&row, x);
                }
            }
            [&piece.elements, &piece.scales, &piece.biases].into_iter().for_each(|b| self.source.done(b));
        }
    }
}

/// Row `r` of a piece.
pub fn widen(head: &Head, piece: &Piece, r: usize, out: &mut Vec<f64>) {
    let cols = head.cols as usize;
    out.clear();
    match head.elem {
        Elem::Affine { bits, group, scales } => {
            let (bits, group) = (bits as usize, (group as usize).max(1));
            let (bytes, groups) = (cols * bits / 8, cols / group);
            let codes = &piece.elements[r * bytes..][..bytes];
            for g in 0..groups {
                let s = number(scales, &piece.scales, r * groups + g);
                let beta = number(scales, &piece.biases, r * groups + g);
                out.extend((g * group..(g + 1) * group).map(|i| s * f64::from(code(codes, bits, i)) + beta));
            }
        }
        elem => {
            let dtype = match elem {
                Elem::Bf16 => Dtype::Bf16,
                Elem::F16 => Dtype::F16,
                _ => Dtype::F32,
            };
            out.extend((r * cols..(r + 1) * cols).map(|i| number(dtype, &piece.elements, i)));
        }
    }
}

/// Code `i` of a row: a stream of bits, the first in the lowest of the first byte.
fn code(row: &[u8], bits: usize, i: usize) -> u32 {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let next = row.get(byte + 1).copied().unwrap_or(0);
    (u32::from(u16::from_le_bytes([row[byte], next])) >> shift) & ((1 << bits) - 1)
}

/// Number `i` of a run.
fn number(dtype: Dtype, b: &[u8], i: usize) -> f64 {
    let half = |b: &[u8]| u16::from_le_bytes([b[2 * i], b[2 * i + 1]]);
    match dtype {
        Dtype::Bf16 => f64::from(f32::from_bits(u32::from(half(b)) << 16)),
        Dtype::F16 => half::f16::from_bits(half(b)).to_f64(),
        Dtype::F32 => f64::from(f32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]])),
    }
}

/// The nearest number of a format, as it is stored.
pub fn narrow(dtype: Dtype, x: f64, out: &mut Vec<u8>) {
    match dtype {
        Dtype::Bf16 => out.extend(half::bf16::from_f64(x).to_le_bytes()),
        Dtype::F16 => out.extend(half::f16::from_f64(x).to_le_bytes()),
        Dtype::F32 => out.extend((x as f32).to_le_bytes()),
    }
}

/// Plain sum of products.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for l in 0..LANES {
            sums[l] += a[l] * b[l];
        }
    }
    sums.iter().sum::<f64>() + rest
}
