//! A module's weight as the compiler sees it: plain, or affine-quantized with bits and group proved by the shapes.

use super::{Checkpoint, Dtype, Tensor};
use ir::diag::{Diagnostic, Result};

/// The weight of one linear module, or of a stack of them (experts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module<'a> {
    /// `w = scale·code + bias`, one scale and bias a group of each row.
    Affine {
        /// Bits of a code.
        bits: u32,
        /// Elements of a group.
        group: u32,
        /// Matrices in the stack; 1 if it is not stacked.
        stack: usize,
        /// Output features of one matrix.
        rows: usize,
        /// Input features.
        cols: usize,
        /// Codes, u32 words, the first code in the lowest bits.
        weight: Tensor<'a>,
        /// Scales, one a group.
        scales: Tensor<'a>,
        /// Offsets, one a group.
        biases: Tensor<'a>,
    },
    /// Not quantized.
    Plain(Tensor<'a>),
}

pub(super) fn not_float(t: &Tensor) -> Diagnostic {
    Diagnostic::new("E0225", format!("the type is {:?}, expected BF16, F16 or F32", t.dtype)).at(t.place())
}

impl Checkpoint {
    /// A float tensor of a given shape (norm weights, scalars), by canonical name.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        let t = self.tensor(name).ok_or_else(|| self.no_tensor(name))?;
        if t.shape != shape {
            return Err(wrong_shape(&t, shape, ""));
        }
        match t.dtype {
            Dtype::BF16 | Dtype::F16 | Dtype::F32 => Ok(t),
            _ => Err(not_float(&t)),
        }
    }

    /// The weight of the module at a canonical path. `lead` are the dimensions before the input features:
    /// `[rows]`, or `[stack, rows]`. It is quantized if and only if `PATH.scales` exists; HF's stacked experts
    /// have no `.weight` at the end of their name.
    pub fn module(&self, path: &str, lead: &[usize], cols: usize) -> Result<Module<'_>> {
        let weight = match (self.tensor(&format!("{path}.weight")), self.tensor(path)) {
            (Some(w), None) | (None, Some(w)) => w,
            (None, None) => return Err(self.no_tensor(&format!("{path}.weight"))),
            (Some(w), Some(_)) => {
                return Err(Diagnostic::new("E0224", format!("both {path} and {path}.weight exist")).at(w.place()));
            }
        };
        let declared = self.config.quantization.as_ref();
        let Some(scales) = self.tensor(&format!("{path}.scales")) else {
            if let Some(Some((bits, group))) = declared.and_then(|q| q.overrides.get(path)) {
                return Err(self.disagree(
                    path,
                    &weight,
                    &format!("{bits} bits in groups of {group}"),
                    "no scales, so not quantized",
                ));
            }
            if let Some(b) = self.tensor(&format!("{path}.biases")) {
                return Err(Diagnostic::new("E0226", "there are biases but no scales").at(b.place()));
            }
            let shape = with(lead, cols);
            if weight.shape != shape {
                return Err(wrong_shape(&weight, &shape, ""));
            }
            return match weight.dtype {
                Dtype::BF16 | Dtype::F16 | Dtype::F32 => Ok(Module::Plain(weight)),
                _ => Err(not_float(&weight)),
            };
        };
        let Some(biases) = self.tensor(&format!("{path}.biases")) else {
            return Err(self.no_tensor(&format!("{path}.biases")).hint("affine quantization stores scales and biases"));
        };
        let (bits, group) = derive(&weight, &scales, &biases, lead, cols)?;
        let shapes = format!("{bits} bits in groups of {group}");
        match declared.map(|q| q.of(path)) {
            Some(Some(pair)) if pair == (bits, group) => {}
            Some(Some((b, g))) => {
                return Err(self.disagree(path, &weight, &format!("{b} bits in groups of {g}"), &shapes));
            }
            Some(None) => return Err(self.disagree(path, &weight, "not quantized", &shapes)),
            None => {
                return Err(self.disagree(path, &weight, "nothing about quantization", &shapes));
            }
        }
        let (stack, rows) = match lead {
            [rows] => (1, *rows),
            [stack, rows] => (*stack, *rows),
            _ => return Err(wrong_shape(&weight, lead, " (a stack of matrices at most)")),
        };
        Ok(Module::Affine { bits, group, stack, rows, cols, weight, scales, biases })
    }

    fn no_tensor(&self, name: &str) -> Diagnostic {
        Diagnostic::new("E0227", format!("the tensor {}{name} is missing", self.prefix))
            .at(&self.place)
            .hint("a shard of the checkpoint seems missing, or config.json belongs to another model")
    }

    fn disagree(&self, path: &str, weight: &Tensor, declared: &str, shapes: &str) -> Diagnostic {
        Diagnostic::new("E0228", format!("config.json says {declared} for {path}, the tensors say {shapes}"))
            .at(weight.place())
            .hint(format!("look at `quantization` in {}", self.config_place))
    }
}

/// Bits and group from the shapes: cols = weight words × 32 / bits = scales × group.
fn derive(weight: &Tensor, scales: &Tensor, biases: &Tensor, lead: &[usize], cols: usize) -> Result<(u32, u32)> {
    if weight.dtype != Dtype::U32 {
        return Err(Diagnostic::new("E0229", format!("there are scales, but the codes are {:?}, expected U32", weight.dtype))
            .at(weight.place()));
    }
    for t in [scales, biases] {
        if !matches!(t.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32) {
            return Err(not_float(t));
        }
    }
    if biases.shape != scales.shape || biases.dtype != scales.dtype {
        return Err(Diagnostic::new(
            "E0230",
            format!("biases are {:?} {:?}, but scales {:?} {:?}", biases.dtype, biases.shape, scales.dtype, scales.shape),
        )
        .at(biases.place()));
    }
    let last = |t: &Tensor| match t.shape.split_last() {
        Some((&last, rest)) if rest == lead && last > 0 => Some(last),
        _ => None,
    };
    let words = last(weight).ok_or_else(|| wrong_shape(weight, lead, " and a last dimension of u32 words"))?;
    let groups = last(scales).ok_or_else(|| wrong_shape(scales, lead, " and a last dimension of groups"))?;
    let bits = words.checked_mul(32).filter(|n| cols > 0 && n.is_multiple_of(cols)).map(|n| n / cols);
    let Some(bits @ (4 | 8)) = bits else {
        return Err(Diagnostic::new("E0231", format!("{words} words a row of {cols} are not codes of 4 or 8 bits"))
            .at(weight.place())
            .hint(format!("expected {} or {} words: other widths are not supported", cols / 8, cols / 4)));
    };
    if !cols.is_multiple_of(groups) || !matches!(cols / groups, 32 | 64 | 128) {
        return Err(Diagnostic::new("E0232", format!("{groups} groups a row of {cols} are not groups of 32, 64 or 128"))
            .at(scales.place()));
    }
    Ok((bits as u32, (cols / groups) as u32))
}

fn with(lead: &[usize], last: usize) -> Vec<usize> {
    lead.iter().copied().chain([last]).collect()
}

fn wrong_shape(t: &Tensor, expected: &[usize], more: &str) -> Diagnostic {
    Diagnostic::new("E0233", format!("the shape is {:?}, expected {expected:?}{more}", t.shape))
        .at(t.place())
        .hint("the file and config.json seem to belong to different models")
}
