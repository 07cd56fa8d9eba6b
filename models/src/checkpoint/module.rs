//! A module's weight as the compiler sees it: plain, or affine-quantized with bits and group proved by the shapes.
//!
//! A module is quantized if and only if its `.scales` exist. Experts are found in each of three layouts: stacked as MLX has
//! them (`experts.switch_glu.gate_proj`), gate and up in one tensor as Hugging Face has them (`experts.gate_up_proj`), or one
//! by one (`experts.0.gate_proj`). Nothing is copied: what does not lie in one piece is given in parts, one a matrix.

use super::{Checkpoint, Dtype, Tensor};
use crate::gemma4::quant_config::{BITS, GROUPS};
use crate::gemma4::tensors::Role;
use ir::diag::{Diagnostic, Result};
use std::ops::Range;

/// Bytes in the order of rows: in one piece, or one piece a matrix of the stack.
pub type Parts<'a> = Vec<&'a [u8]>;

/// The weight of one linear module, of a stack of them (experts), or a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module<'a> {
    /// `w = scale·code + bias`, one scale and bias a group of each row.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Elements of a group: 32, 64 or 128.
        group: u32,
        /// Matrices in the stack; 1 if it is not stacked.
        stack: usize,
        /// Output features of one matrix.
        rows: usize,
        /// Input features.
        cols: usize,
        /// Stored type of scales and biases: bf16, f16 or f32.
        dtype: Dtype,
        /// Codes: a row is a stream of bits from the lowest of the first byte on, which little-endian u32 words hold.
        words: Parts<'a>,
        /// Scales, one a group.
        scales: Parts<'a>,
        /// Offsets, one a group.
        biases: Parts<'a>,
    },
    /// Not quantized.
    Plain {
        /// Stored type: bf16, f16 or f32.
        dtype: Dtype,
        /// Matrices in the stack; 1 if it is not stacked.
        stack: usize,
        /// Output features of one matrix; 1 for a vector.
        rows: usize,
        /// Input features.
        cols: usize,
        /// Elements.
        values: Parts<'a>,
    },
}

/// Where (a part of) a module is stored.
pub(super) struct Source {
    /// Canonical path of the stored module.
    pub(super) base: String,
    /// Its dimensions before the input features.
    lead: Vec<usize>,
    /// The rows of each of its matrices that are meant.
    rows: Range<usize>,
}

/// A stored module.
#[derive(Clone, Copy)]
enum Stored<'a> {
    Plain(Tensor<'a>),
    Affine { bits: u32, group: u32, weight: Tensor<'a>, scales: Tensor<'a>, biases: Tensor<'a> },
}

impl Stored<'_> {
    /// What has to be the same for all matrices of a stack.
    fn format(&self) -> String {
        match self {
            Stored::Plain(t) => format!("{:?}", t.dtype),
            Stored::Affine { bits, group, scales, .. } => {
                format!("{bits} bits in groups of {group} with scales of {:?}", scales.dtype)
            }
        }
    }

    fn place(&self) -> String {
        match self {
            Stored::Plain(t) | Stored::Affine { weight: t, .. } => t.place(),
        }
    }
}

pub(super) fn not_float(t: &Tensor) -> Diagnostic {
    Diagnostic::new("E0225", format!("the type is {:?}, expected BF16, F16 or F32", t.dtype)).at(t.place())
}

fn is_float(t: &Tensor) -> bool {
    matches!(t.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32)
}

impl Checkpoint {
    /// A float tensor of a given shape (norm weights, scalars), by canonical name.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        let t = self.tensor(name).ok_or_else(|| self.no_tensor(name))?;
        if t.shape != shape {
            return Err(wrong_shape(&t, shape, ""));
        }
        if is_float(&t) { Ok(t) } else { Err(not_float(&t)) }
    }

    /// The weight of this name in the table of [`crate::gemma4::tensors::tensors`], checked against the shape there.
    pub fn weight(&self, name: &str) -> Result<Module<'_>> {
        let Some(e) = self.expected.get(name) else {
            return Err(Diagnostic::new("E0239", format!("the text decoder has no weight {name}")).at(&self.config_place));
        };
        match (e.role, e.shape.as_slice()) {
            (Role::Vector, &[n]) => {
                let full = format!("{name}.weight");
                let t = self.floats(if self.tensor(&full).is_some() { &full } else { name }, &[n])?;
                Ok(Module::Plain { dtype: t.dtype, stack: 1, rows: 1, cols: n, values: vec![t.bytes] })
            }
            (_, [lead @ .., cols]) => self.module(name, lead, *cols),
            _ => Err(self.no_tensor(name)),
        }
    }

    /// The weight of the module at a canonical path. `lead` are the dimensions before the input features:
    /// `[rows]`, or `[stack, rows]`.
    pub fn module(&self, path: &str, lead: &[usize], cols: usize) -> Result<Module<'_>> {
        let (stack, rows) = match *lead {
            [rows] => (1, rows),
            [stack, rows] => (stack, rows),
            _ => return Err(Diagnostic::new("E0239", format!("no weight has the dimensions {lead:?} before {cols}")).at(path)),
        };
        let sources = self.sources(path, lead)?;
        let Some(first) = sources.first() else { return Err(self.no_tensor(&format!("{path}.weight"))) };
        let first = self.stored(&first.base, &first.lead, cols)?;
        let (mut w, mut s, mut b) = (vec![], vec![], vec![]);
        for source in &sources {
            let one = self.stored(&source.base, &source.lead, cols)?;
            if one.format() != first.format() {
                let m = format!("this expert has {}, but {} has {}", one.format(), first.place(), first.format());
                return Err(Diagnostic::new("E0237", m).at(one.place()).hint("the experts of a layer must have one format"));
            }
            match one {
                Stored::Plain(t) => w.extend(cut(&t, source)),
                Stored::Affine { weight, scales, biases, .. } => {
                    w.extend(cut(&weight, source));
                    s.extend(cut(&scales, source));
                    b.extend(cut(&biases, source));
                }
            }
        }
        Ok(match first {
            Stored::Plain(t) => Module::Plain { dtype: t.dtype, stack, rows, cols, values: w },
            Stored::Affine { bits, group, scales, .. } => {
                Module::Affine { bits, group, stack, rows, cols, dtype: scales.dtype, words: w, scales: s, biases: b }
            }
        })
    }

    /// Whether something of a stored module is there.
    fn has(&self, base: &str) -> bool {
        let name = |s: &str| self.names.full.contains_key(&format!("{base}{s}"));
        name("") || name(".weight") || name(".scales")
    }

    /// Where the module at a canonical path is stored: empty if nowhere. Parts of it may still be missing.
    pub(super) fn sources(&self, path: &str, lead: &[usize]) -> Result<Vec<Source>> {
        let whole =
            |base: String, lead: &[usize]| vec![Source { base, lead: lead.to_vec(), rows: 0..lead.last().copied().unwrap_or(0) }];
        let mut found: Vec<Vec<Source>> = vec![];
        if self.has(path) {
            found.push(whole(path.into(), lead));
        }
        if let (Some((layer, proj)), &[stack, rows]) = (path.split_once(".experts.switch_glu."), lead) {
            let (fused, rows_there, range) = match proj {
                "gate_proj" => ("gate_up_proj", 2 * rows, 0..rows),
                "up_proj" => ("gate_up_proj", 2 * rows, rows..2 * rows),
                other => (other, rows, 0..rows),
            };
            let fused = format!("{layer}.experts.{fused}");
            if self.has(&fused) {
                found.push(vec![Source { base: fused, lead: vec![stack, rows_there], rows: range }]);
            }
            // The character after 9 ends the names that begin with a digit.
            let (from, to) = (format!("{layer}.experts.0"), format!("{layer}.experts.:"));
            if self.names.full.range(from..to).next().is_some() {
                found.push((0..stack).flat_map(|e| whole(format!("{layer}.experts.{e}.{proj}"), &[rows])).collect());
            }
        }
        match found.as_slice() {
            [a, b, ..] => {
                let m = format!("the same experts are stored as {} and as {}", a[0].base, b[0].base);
                Err(Diagnostic::new("E0236", m).at(&self.place).hint("the folder seems to mix two checkpoints: keep one"))
            }
            _ => Ok(found.pop().unwrap_or_default()),
        }
    }

    /// Names without prefix of the tensors that a stored module may have, those that exist.
    pub(super) fn tensors_of(&self, base: &str) -> impl Iterator<Item = String> {
        let all = ["", ".weight", ".scales", ".biases"].map(|s| format!("{base}{s}"));
        all.into_iter().filter(|n| self.names.full.contains_key(n))
    }

    /// Whether the weight of a stored module is there.
    pub(super) fn has_weight(&self, base: &str) -> bool {
        self.names.full.contains_key(base) || self.names.full.contains_key(&format!("{base}.weight"))
    }

    /// One stored module, checked against shape and configuration.
    fn stored(&self, path: &str, lead: &[usize], cols: usize) -> Result<Stored<'_>> {
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
            return if is_float(&weight) { Ok(Stored::Plain(weight)) } else { Err(not_float(&weight)) };
        };
        let Some(biases) = self.tensor(&format!("{path}.biases")) else {
            return Err(self.no_tensor(&format!("{path}.biases")).hint("affine quantization stores scales and biases"));
        };
        let (bits, group) = derive(&weight, &scales, &biases, lead, cols)?;
        let shapes = format!("{bits} bits in groups of {group}");
        match declared.map(|q| q.of(path)) {
            // Where config.json is silent, the shapes alone say it; opening has warned.
            None => {}
            Some(Some(pair)) if pair == (bits, group) => {}
            Some(Some((b, g))) => {
                return Err(self.disagree(path, &weight, &format!("{b} bits in groups of {g}"), &shapes));
            }
            Some(None) => return Err(self.disagree(path, &weight, "not quantized", &shapes)),
        }
        Ok(Stored::Affine { bits, group, weight, scales, biases })
    }

    pub(super) fn no_tensor(&self, name: &str) -> Diagnostic {
        Diagnostic::new("E0227", format!("the tensor {}{name} is missing", self.names.prefix))
            .at(&self.place)
            .hint("a shard of the checkpoint seems missing, or config.json belongs to another model")
    }

    fn disagree(&self, path: &str, weight: &Tensor, declared: &str, shapes: &str) -> Diagnostic {
        Diagnostic::new("E0228", format!("config.json says {declared} for {path}, the tensors say {shapes}"))
            .at(weight.place())
            .hint(format!("look at `quantization` in {}", self.config_place))
    }
}

/// The bytes of a source's rows: in one piece if those are all rows, else one piece a matrix.
fn cut<'a>(t: &Tensor<'a>, s: &Source) -> Parts<'a> {
    let rows = s.lead.last().copied().unwrap_or(0).max(1);
    let stack: usize = s.lead[..s.lead.len() - 1].iter().product();
    if s.rows == (0..rows) {
        return vec![t.bytes];
    }
    let row = t.bytes.len() / (stack * rows).max(1);
    (0..stack).filter_map(|m| t.bytes.get((m * rows + s.rows.start) * row..(m * rows + s.rows.end) * row)).collect()
}

/// Bits and group from the shapes: cols = weight words × 32 / bits = scales × group.
fn derive(weight: &Tensor, scales: &Tensor, biases: &Tensor, lead: &[usize], cols: usize) -> Result<(u32, u32)> {
    if weight.dtype != Dtype::U32 {
        return Err(Diagnostic::new("E0229", format!("there are scales, but the codes are {:?}, expected U32", weight.dtype))
            .at(weight.place()));
    }
    for t in [scales, biases] {
        if !is_float(t) {
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
    let Some(bits) = bits.and_then(|b| u32::try_from(b).ok()).filter(|b| BITS.contains(b)) else {
        let m = format!("{words} words a row of {cols} are not codes of 2, 3, 4, 5, 6 or 8 bits");
        return Err(Diagnostic::new("E0231", m).at(weight.place()).hint(format!(
            "4 bits would be {} words, 8 bits {}",
            cols / 8,
            cols / 4
        )));
    };
    let group = if cols.is_multiple_of(groups) { u32::try_from(cols / groups).ok() } else { None };
    let Some(group) = group.filter(|g| GROUPS.contains(g)) else {
        return Err(Diagnostic::new("E0232", format!("{groups} groups a row of {cols} are not groups of 32, 64 or 128"))
            .at(scales.place()));
    };
    Ok((bits, group))
}

fn with(lead: &[usize], last: usize) -> Vec<usize> {
    lead.iter().copied().chain([last]).collect()
}

pub(super) fn wrong_shape(t: &Tensor, expected: &[usize], more: &str) -> Diagnostic {
    Diagnostic::new("E0233", format!("the shape is {:?}, expected {expected:?}{more}", t.shape))
        .at(t.place())
        .hint("the file and config.json seem to belong to different models")
}
