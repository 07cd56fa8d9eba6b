//! What is written, decided from headers and configuration alone.

use super::affine::{self, BITS, GROUPS};
use super::parts::{Part, parts};
use super::report::{Report, Skipped};
use super::{Options, config, together};
use crate::checkpoint::{Checkpoint, Dtype, Tensor};
use ir::diag::{Diagnostic, Result};
use std::collections::BTreeSet;

/// Prefix of the text decoder's names in the result.
pub(super) const PREFIX: &str = "language_model.model.";

/// Rows that lie together in the input.
pub(super) struct Piece<'a> {
    pub(super) bytes: &'a [u8],
    /// Where, for messages.
    pub(super) place: String,
    /// Index of the first element in the tensor.
    pub(super) first: usize,
}

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
    pub(super) pieces: Vec<Piece<'a>>,
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
    pub(super) items: Vec<Item<'a>>,
    /// Items of each file.
    pub(super) shards: Vec<Vec<usize>>,
    pub(super) config: String,
    pub(super) report: Report,
}

impl<'a> Plan<'a> {
    /// Decides what is written, and refuses what cannot be: bits or groups that the format does not have, an input that is
    /// quantized already, tensors that are missing, of another shape or type than the configuration says (all of them in
    /// one error), or that it has no place for.
    pub fn new(ck: &'a Checkpoint, o: &Options) -> Result<Plan<'a>> {
        check_options(o)?;
        unquantized(ck)?;
        let mut find = Find { ck, used: BTreeSet::new(), errors: vec![] };
        let mut items = vec![];
        let mut undivided = vec![];
        for part in parts(ck.config()) {
            let Some((dtype, width, pieces)) = find.part(&part) else { continue };
            let cols = part.shape.last().copied().unwrap_or(1);
            let mut format = None;
            if part.module {
                // As mlx-lm: what the general group does not divide is not quantized.
                if cols.is_multiple_of(o.group) {
                    let (bits, group) = o.recipe.exception(&part.path).unwrap_or((o.bits, o.group));
                    format = Some(if cols.is_multiple_of(group) { (bits, group) } else { (bits, o.group) });
                } else {
                    undivided.push(format!("{PREFIX}{}", part.path));
                }
            }
            let suffix = if part.module && format.is_none() { ".weight" } else { "" };
            let name = format!("{PREFIX}{}{suffix}", part.path);
            items.push(Item { name, shape: part.shape, dtype, width, format, pieces });
        }
        let Find { used, mut errors, .. } = find;
        let mut skipped = vec![];
        for t in ck.tensors().filter(|t| !used.contains(t.name)) {
            match surplus(ck, t.name) {
                Some(why) => skipped.push(Skipped { name: t.name.into(), bytes: t.bytes.len() as u64, why }),
                None => errors.push((t.place(), "config.json has no place for this tensor".into())),
            }
        }
        if let Some(d) = together("E0282", "do not fit config.json", ck.place(), errors) {
            return Err(d.hint("a shard seems missing, or config.json belongs to another model; nothing was written"));
        }
        let shards = shards(&items, o.shard_bytes);
        let report = Report::new(o, &items, skipped, undivided, shards.len());
        let config = config::text(ck, o, &items)?;
        Ok(Plan { items, shards, config, report })
    }

    /// What the result will be.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

fn check_options(o: &Options) -> Result<()> {
    let bad = |what: String, hint: &str| Err(Diagnostic::new("E0281", what).hint(hint));
    if !BITS.contains(&o.bits) {
        return bad(format!("there are no codes of {} bits", o.bits), "MLX's affine format has 2, 3, 4, 5, 6 and 8");
    }
    if !GROUPS.contains(&o.group) {
        return bad(format!("there are no groups of {}", o.group), "MLX's affine format has 32, 64 and 128");
    }
    Ok(())
}

fn unquantized(ck: &Checkpoint) -> Result<()> {
    let hint = "quantizing twice loses precision twice: name the original checkpoint (bf16, f16 or f32)";
    if let Some(t) = ck.tensors().find(|t| t.name.starts_with(ck.prefix()) && t.name.ends_with(".scales")) {
        return Err(Diagnostic::new("E0280", "the checkpoint is quantized already").at(t.place()).hint(hint));
    }
    if ck.config().quantization.is_some() {
        return Err(Diagnostic::new("E0280", "config.json says that the checkpoint is quantized already")
            .at(&ck.config().place)
            .hint(hint));
    }
    if !ck.config().tied {
        return Err(Diagnostic::new("E0284", "an output projection apart from the embedding cannot be quantized yet")
            .at(&ck.config().place)
            .hint("no released Gemma 4 has one: is `tie_word_embeddings` right?"));
    }
    Ok(())
}

/// Finds parts in the checkpoint; what is wrong is noted.
struct Find<'a> {
    ck: &'a Checkpoint,
    used: BTreeSet<&'a str>,
    errors: Vec<(String, String)>,
}

impl<'a> Find<'a> {
    fn part(&mut self, part: &Part) -> Option<(Dtype, usize, Vec<Piece<'a>>)> {
        if let Some((layer, proj)) = part.path.split_once(".experts.switch_glu.") {
            let stacked = format!("{}.weight", part.path);
            if self.ck.tensor(&stacked).is_none() {
                return self.experts(layer, proj, &part.shape);
            }
        }
        let name = if part.module { format!("{}.weight", part.path) } else { part.path.clone() };
        let (t, width) = self.tensor(&name, &part.shape)?;
        Some((t.dtype, width, vec![Piece { bytes: t.bytes, place: t.place(), first: 0 }]))
    }

    /// One projection of all experts: from the fused tensors of Hugging Face, or from one tensor an expert.
    fn experts(&mut self, layer: &str, proj: &str, shape: &[usize]) -> Option<(Dtype, usize, Vec<Piece<'a>>)> {
        let &[count, rows, cols] = shape else { return None };
        let one = |e: usize| format!("{layer}.experts.{e}.{proj}.weight");
        if self.ck.tensor(&one(0)).is_some() {
            let mut pieces = vec![];
            let mut kind = None;
            for e in 0..count {
                let (t, width) = self.tensor(&one(e), &[rows, cols])?;
                let (dtype, _) = *kind.get_or_insert((t.dtype, width));
                if dtype != t.dtype {
                    self.errors.push((t.place(), format!("its type is {:?}, that of expert 0 {dtype:?}", t.dtype)));
                    return None;
                }
                pieces.push(Piece { bytes: t.bytes, place: t.place(), first: 0 });
            }
            return kind.map(|(dtype, width)| (dtype, width, pieces));
        }
        let (name, fused_rows, start) = match proj {
            "gate_proj" => ("gate_up_proj", 2 * rows, 0),
            "up_proj" => ("gate_up_proj", 2 * rows, rows),
            _ => ("down_proj", rows, 0),
        };
        let mut name = format!("{layer}.experts.{name}");
        if self.ck.tensor(&name).is_none() && self.ck.tensor(&format!("{name}.weight")).is_some() {
            name.push_str(".weight");
        }
        let (t, width) = self.tensor(&name, &[count, fused_rows, cols])?;
        let pieces = (0..count).map(|e| {
            let first = (e * fused_rows + start) * cols;
            let bytes = t.bytes.get(first * width..(first + rows * cols) * width).unwrap_or_default();
            Piece { bytes, place: t.place(), first }
        });
        Some((t.dtype, width, pieces.collect()))
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Option<(Tensor<'a>, usize)> {
        let Some(t) = self.ck.tensor(name) else {
            let error = (self.ck.place().into(), format!("the tensor {}{name} is missing", self.ck.prefix()));
            // Fused experts are looked for twice.
            if !self.errors.contains(&error) {
                self.errors.push(error);
            }
            return None;
        };
        let twice = !self.used.insert(t.name);
        if t.shape != shape {
            if !twice {
                self.errors.push((t.place(), format!("the shape is {:?}, expected {shape:?}", t.shape)));
            }
            return None;
        }
        let Some(width) = affine::width(t.dtype) else {
            if !twice {
                self.errors.push((t.place(), format!("the type is {:?}, expected BF16, F16 or F32", t.dtype)));
            }
            return None;
        };
        Some((t, width))
    }
}

/// Why a tensor that the result does not have may be in the checkpoint; `None`: it may not.
fn surplus(ck: &Checkpoint, full: &str) -> Option<&'static str> {
    const TOWERS: [&str; 7] = [
        "vision_tower.",
        "audio_tower.",
        "embed_vision.",
        "embed_audio.",
        "multi_modal_projector.",
        "vision_embedder.",
        "audio_embedder.",
    ];
    let within = full.strip_prefix("model.").unwrap_or(full);
    if TOWERS.iter().any(|t| within.starts_with(t)) {
        return Some("another tower than the text decoder");
    }
    if full.ends_with("lm_head.weight") {
        return Some("a copy of the embedding");
    }
    let Some(name) = full.strip_prefix(ck.prefix()) else {
        return Some("not of the text decoder");
    };
    if ["rotary_emb", "input_max", "input_min", "output_max", "output_min"].iter().any(|s| name.contains(s)) {
        return Some("not a weight");
    }
    let c = ck.config();
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let sharing = layer.parse::<usize>().is_ok_and(|i| i < c.layers.len() && i >= c.layers.len() - c.num_kv_shared_layers);
    let kv = ["k_proj", "v_proj", "k_norm", "v_norm"].iter().any(|k| rest == format!("self_attn.{k}.weight"));
    (sharing && kv).then_some("the layer uses the keys and values of an earlier one")
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
