//! The checkpoint as the source of weights that interpreter and packer read, by the names of the graph's weight nodes.

use crate::checkpoint::{Checkpoint, Module};
use ir::graph::Dtype;
use ir::graph::interp::{Affine, Parts, Plain, WeightSource};
use std::borrow::Cow;

/// The type of stored floats; `None` if it is none of those that weights have.
pub(super) fn float(d: safetensors::Dtype) -> Option<Dtype> {
    match d {
        safetensors::Dtype::BF16 => Some(Dtype::Bf16),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::F32 => Some(Dtype::F32),
        _ => None,
    }
}

fn parts(p: Vec<&[u8]>) -> Parts<'_> {
    p.into_iter().map(Cow::Borrowed).collect()
}

impl WeightSource for Checkpoint {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        let shape = self.expected(name)?.shape.iter().map(|&d| d as u32).collect();
        match self.weight(name).ok()? {
            Module::Plain { dtype, values, .. } => Some(Plain { dtype: float(dtype)?, shape, parts: parts(values) }),
            Module::Affine { .. } => None,
        }
    }

    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        match self.weight(name).ok()? {
            Module::Affine { bits, group, stack, rows, cols, dtype, words, scales, biases } => Some(Affine {
                bits,
                group,
                stack: stack as u32,
                rows: rows as u32,
                cols: cols as u32,
                scale_dtype: float(dtype)?,
                words: parts(words),
                scales: parts(scales),
                biases: parts(biases),
            }),
            Module::Plain { .. } => None,
        }
    }
}
