//! Weights in pieces: a tensor of a source as a stack of matrices, read some rows at a time, so that whoever packs a large
//! one never holds it twice.

use super::weights::{Affine, Parts, Plain, matrix};
use crate::graph::Elem;
use std::borrow::Cow;
use std::ops::Range;

/// What a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Format of the elements: floats or affine codes.
    pub elem: Elem,
    /// Matrices in the stack, 1 for a single one.
    pub stack: u32,
    /// Rows of a matrix, 1 for a vector.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Are there as many bytes as that takes? If not, no rows may be read.
    pub fits: bool,
}

/// Rows of one matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Numbers, or codes; row-major.
    pub elements: Cow<'a, [u8]>,
    /// One per group; empty for numbers.
    pub scales: Cow<'a, [u8]>,
    /// One per group; empty for numbers.
    pub biases: Cow<'a, [u8]>,
}

/// One tensor of a source.
pub trait Tensor: Sync {
    /// What it is.
    fn head(&self) -> Head;
    /// Rows of matrix `m`, both inside what [`head`](Self::head) says.
    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_>;
}

/// Rows of one matrix in parts that fit.
fn cut<'b>(parts: &'b Parts<'_>, head: &Head, m: u32, rows: &Range<u32>) -> Cow<'b, [u8]> {
    if parts.is_empty() {
        return Cow::Borrowed(&[]);
    }
    let all = matrix(parts, head.stack, m);
    let row = all.len() / head.rows.max(1) as usize;
    Cow::Borrowed(&all[rows.start as usize * row..rows.end as usize * row])
}

impl Tensor for Plain<'_> {
    fn head(&self) -> Head {
        let (rows, cols) = match self.shape[..] {
            [.., rows, cols] => (rows, cols),
            [cols] => (1, cols),
            [] => (1, 1),
        };
        Head { elem: self.dtype.elem(), stack: self.stack(), rows, cols, fits: self.shape.len() <= 3 && self.fits() }
    }

    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_> {
        let none = Cow::Borrowed(&[][..]);
        Piece { elements: cut(&self.parts, &self.head(), m, &rows), scales: none.clone(), biases: none }
    }
}

impl Tensor for Affine<'_> {
    fn head(&self) -> Head {
        let elem = Elem::Affine { bits: self.bits, group: self.group, scales: self.scale_dtype };
        Head { elem, stack: self.stack, rows: self.rows, cols: self.cols, fits: self.fits() }
    }

    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_> {
        let head = self.head();
        Piece {
            elements: cut(&self.words, &head, m, &rows),
            scales: cut(&self.scales, &head, m, &rows),
            biases: cut(&self.biases, &head, m, &rows),
        }
    }
}
