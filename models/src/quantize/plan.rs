//! What is written, decided from headers and configuration alone.

use super::affine;
use super::report::{Report, Skipped};
use super::{Options, config, together};
use crate::checkpoint::{Checkpoint, Dtype, Module, Parts};
use crate::gemma4::quant_config::{BITS, GROUPS};
use crate::gemma4::tensors::{Expected, Role, tensors};
use ir::diag::{Diagnostic, Result};

/// One tensor of the result, or the three of a quantized module.
pub(super) struct Item<'a> {
    /// Full name in the result; of a quantized module its path.
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Type in the input; scales, biases and what is not quantized keep it.
    pub(super) dtype: Dtype,
    pub(super) width: usize,
    /// Bits and group, if it is quantized.
    pub(super) format: Option<(u32, usize)>,
    /// Whole rows, in order.
    pub(super) pieces: Parts<'a>,
}

/// One tensor of the result.
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
}

impl Item<'_> {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }

    pub(super) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The tensors: of a quantized module codes, scales and biases.
    pub(super) fn stored(&self) -> Vec<Stored> {
        let (n, width) = (self.elements(), self.width as u64);
        let Some((bits, group)) = self.format else {
            return vec![Stored { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), bytes: n * width }];
        };
        let part = |suffix: &str, dtype, last: usize, bytes| {
            let mut shape = self.shape.clone();
            if let Some(d) = shape.last_mut() {
                *d = last;
            }
            Stored { name: format!("{}.{suffix}", self.name), dtype, shape, bytes }
        };
        let groups = self.cols() / group;
        let pairs = n / group as u64 * width;
        vec![
            part("weight", Dtype::U32, self.cols() * bits as usize / 32, n * u64::from(bits) / 8),
            part("scales", self.dtype, groups, pairs),
            part("biases", self.dtype, groups, pairs),
        ]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.stored().iter().map(|s| s.bytes).sum()
    }
}

/// A checked plan: the tensors of the result, where each comes from, and in which file each is written.
pub struct Plan<'a> {
    pub(super) ck: &'a Checkpoint,
    pub(super) items: Vec<Item<'a>>,
    /// Items of each file.
    pub(super) shards: Vec<Vec<usize>>,
    pub(super) config: String,
    pub(super) report: Report,
}

impl<'a> Plan<'a> {
    /// Decides what is written, and refuses what cannot be: bits or groups that the format does not have, an input that is
    /// quantized already, tensors that are missing, left over, or of another shape or type than the configuration says.
    /// Tensors that are wrong for one reason are all named at once.
    pub fn new(ck: &'a Checkpoint, o: &Options) -> Result<Plan<'a>> {
        check_options(o)?;
        unquantized(ck)?;
        ck.fits()?;
        let (mut items, mut undivided, mut errors) = (vec![], vec![], vec![]);
        for e in tensors(ck.config()) {
            match item(ck, o, &e) {
                Ok(item) => {
                    if item.format.is_none() && e.role != Role::Vector {
                        undivided.push(module(&e.name));
                    }
                    items.push(item);
                }
                Err(d) => errors.push((d.place, d.message)),
            }
        }
        // Fused experts are looked at twice.
        errors.dedup();
        if let Some(d) = together("E0282", "do not fit config.json", ck.place(), errors) {
            return Err(d.hint("the files and config.json seem to belong to different models"));
        }
        let skipped = ck.skipped().map(|(t, why)| Skipped::new(t.name, t.bytes.len(), why)).collect();
        let shards = shards(&items, o.shard_bytes);
        let report = Report::new(o, &items, skipped, undivided, shards.len());
        let config = config::text(ck, o, &items)?;
        Ok(Plan { ck, items, shards, config, report })
    }

    /// What the result will be.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// Full path of a module in the result.
fn module(name: &str) -> String {
    if name == "lm_head" { format!("language_model.{name}") } else { format!("language_model.model.{name}") }
}

/// Where a tensor comes from, and what becomes of it.
fn item<'a>(ck: &'a Checkpoint, o: &Options, e: &Expected) -> Result<Item<'a>> {
    let Module::Plain { dtype, values, cols, .. } = ck.weight(&e.name)? else {
        return Err(quantized_already(format!("{}: {}", ck.place(), e.name)));
    };
    let width = affine::width(dtype).ok_or_else(|| Diagnostic::new("E0282", format!("the type is {dtype:?}")).at(&e.name))?;
    let mut name = module(&e.name);
    let mut format = None;
    if e.role == Role::Vector {
        // Scales of the router and of the layer are no module's weight.
        if ck.tensor(&format!("{}.weight", e.name)).is_some() {
            name.push_str(".weight");
        }
    } else if cols.is_multiple_of(o.group) {
        let (bits, group) = o.recipe.exception(&e.name).unwrap_or((o.bits, o.group));
        format = Some(if cols.is_multiple_of(group) { (bits, group) } else { (bits, o.group) });
    } else {
        // As mlx-lm: what the general group does not divide is not quantized.
        name.push_str(".weight");
    }
    Ok(Item { name, shape: e.shape.clone(), dtype, width, format, pieces: values })
}

fn check_options(o: &Options) -> Result<()> {
    let bad = |what: String, hint: &str| Err(Diagnostic::new("E0281", what).hint(hint));
    if !BITS.contains(&o.bits) {
        return bad(format!("there are no codes of {} bits", o.bits), "MLX's affine format has 2, 3, 4, 5, 6 and 8");
    }
    if !GROUPS.iter().any(|g| *g as usize == o.group) {
        return bad(format!("there are no groups of {}", o.group), "MLX's affine format has 32, 64 and 128");
    }
    Ok(())
}

fn quantized_already(place: String) -> Diagnostic {
    Diagnostic::new("E0280", "the checkpoint is quantized already")
        .at(place)
        .hint("quantizing twice loses precision twice: name the original checkpoint (bf16, f16 or f32)")
}

fn unquantized(ck: &Checkpoint) -> Result<()> {
    let of_text = |name: &str| name.starts_with(ck.prefix()) && name.ends_with(".scales");
    match ck.tensors().find(|t| of_text(t.name)) {
        Some(t) => Err(quantized_already(t.place())),
        None if ck.config().quantization.is_some() => Err(quantized_already(ck.config().place.clone())),
        None => Ok(()),
    }
}

/// Items of each file: in order, as many as fit.
fn shards(items: &[Item], most: u64) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = vec![];
    let mut size = 0;
    for (i, item) in items.iter().enumerate() {
        let bytes = item.bytes();
        match out.last_mut() {
            Some(last) if size + bytes <= most => last.push(i),
            _ => {
                out.push(vec![i]);
                size = 0;
            }
        }
        size += bytes;
    }
    out
}
