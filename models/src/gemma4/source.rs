//! The checkpoint as the source of weights that interpreter and packer read, by the names of the graph's weight nodes.

use crate::checkpoint::{Checkpoint, Tensor};
use ir::graph::interp::{Affine, Dtype, Plain, WeightSource};

fn shape(t: &Tensor) -> Vec<u32> {
    t.shape.iter().map(|&d| d as u32).collect()
}

fn dtype(t: &Tensor) -> Option<Dtype> {
    Some(match t.dtype {
        safetensors::Dtype::BF16 => Dtype::Bf16,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::F32 => Dtype::F32,
        _ => return None,
    })
}

impl WeightSource for Checkpoint {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        let t = self.tensor(&format!("{name}.weight")).or_else(|| self.tensor(name))?;
        Some(Plain { dtype: dtype(&t)?, shape: shape(&t), parts: vec![t.bytes.into()] })
    }

    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        let part = |p: &str| self.tensor(&format!("{name}.{p}"));
        let (w, scales, biases) = (part("weight")?, part("scales")?, part("biases")?);
        let (ws, ss) = (shape(&w), shape(&scales));
        let (&[.., rows, _], &groups) = (ws.as_slice(), ss.last()?) else {
            return None;
        };
        let stack = ws[..ws.len() - 2].iter().product();
        // Shapes alone leave bits and group open; the graph builder has checked the config's word against them.
        let (bits, group) = self.config().quantization.as_ref()?.of(name)?;
        let cols = groups * group;
        let scale_dtype = dtype(&scales)?;
        let [words, scales, biases] = [w, scales, biases].map(|t| vec![t.bytes.into()]);
        Some(Affine { bits, group, stack, rows, cols, scale_dtype, words, scales, biases })
    }
}
