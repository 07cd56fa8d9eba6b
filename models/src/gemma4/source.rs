//! The checkpoint as the source of weights that interpreter and packer read, by the names of the graph's weight nodes.

use crate::checkpoint::{Checkpoint, Module};
use crate::random;
use ir::diag::{Diagnostic, Result};
use ir::graph::interp::pieces::Tensor;
use ir::graph::interp::{Affine, Parts, Plain, WeightSource};
use ir::graph::{Dtype, Elem};
use std::borrow::Cow;

/// The type of stored floats; `None` if it is none of those that weights have.
fn float(d: safetensors::Dtype) -> Option<Dtype> {
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

impl Checkpoint {
    /// The format of a weight: as it is stored, or as the configuration says where weights are random.
    pub fn format(&self, name: &str) -> Result<Elem> {
        if self.random().is_some()
            && let Some(e) = self.expected(name)
        {
            return Ok(random::format(self.config(), e));
        }
        let odd = |d| Diagnostic::new("E0258", format!("weights of type {d:?} are not supported")).at(name);
        Ok(match self.weight(name)? {
            Module::Affine { bits, group, dtype, .. } => {
                Elem::Affine { bits, group, scales: float(dtype).ok_or_else(|| odd(dtype))? }
            }
            Module::Plain { dtype, .. } => float(dtype).ok_or_else(|| odd(dtype))?.elem(),
        })
    }
}

impl WeightSource for Checkpoint {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        if let Some(seed) = self.random() {
            return random::plain(seed, self, name);
        }
        let shape = self.expected(name)?.shape.iter().map(|&d| d as u32).collect();
        match self.weight(name).ok()? {
            Module::Plain { dtype, values, .. } => Some(Plain { dtype: float(dtype)?, shape, parts: parts(values) }),
            Module::Affine { .. } => None,
        }
    }

    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        if let Some(seed) = self.random() {
            return random::affine(seed, self, name);
        }
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
    fn open(&self, name: &str) -> Option<Box<dyn Tensor + '_>> {
        if let Some(seed) = self.random() {
            return random::open(seed, self, name);
        }
        if let Some(a) = self.affine(name) {
            return Some(Box::new(a));
        }
        Some(Box::new(self.plain(name)?))
    }

    fn done(&self, bytes: &[u8]) {
        self.forget(bytes);
    }
}
