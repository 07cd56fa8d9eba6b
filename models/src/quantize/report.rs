//! What a quantization made, in numbers.

use super::Options;
use super::plan::Item;
use crate::checkpoint::Why;
use std::collections::BTreeMap;

/// A tensor of the input that the result does not have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Skipped {
    /// Full name in the input.
    pub name: String,
    /// Its bytes there.
    pub bytes: u64,
    /// Why it is left out.
    pub why: String,
}

impl Skipped {
    pub(super) fn new(name: &str, bytes: usize, why: Why) -> Skipped {
        Skipped { name: name.into(), bytes: bytes as u64, why: why.to_string() }
    }
}

/// The modules and tensors of one format.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FormatRow {
    /// Bits of a code; none: not quantized.
    pub bits: Option<u32>,
    /// Elements that share a scale and a bias.
    pub group: Option<usize>,
    /// Type of scales and biases, or of the values where they are not quantized (`BF16`).
    pub dtype: String,
    /// Modules, or tensors that are no module's weight.
    pub modules: usize,
    /// Parameters in them.
    pub parameters: u64,
    /// Bytes in the input.
    pub bytes_before: u64,
    /// Bytes in the result.
    pub bytes_after: u64,
}

/// The whole.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    /// Name of the recipe.
    pub recipe: &'static str,
    /// General bits.
    pub bits: u32,
    /// General group.
    pub group: usize,
    /// Parameters of the text decoder.
    pub parameters: u64,
    /// Bytes of its tensors in the input.
    pub bytes_before: u64,
    /// Bytes of its tensors in the result.
    pub bytes_after: u64,
    /// Bits of the result for each parameter.
    pub bits_per_weight: f64,
    /// Files of weights.
    pub shards: usize,
    /// By format: fewest bits first, unquantized last.
    pub formats: Vec<FormatRow>,
    /// Modules left as they are because the group does not divide their input features.
    pub undivided: Vec<String>,
    /// Tensors of the input that are left out.
    pub skipped: Vec<Skipped>,
}

impl Report {
    pub(super) fn new(o: &Options, items: &[Item], skipped: Vec<Skipped>, undivided: Vec<String>, shards: usize) -> Report {
        let mut rows: BTreeMap<(u32, usize, String), FormatRow> = BTreeMap::new();
        for item in items {
            let dtype = format!("{:?}", item.dtype);
            let key = item.format.unwrap_or((u32::MAX, 0));
            let row = rows.entry((key.0, key.1, dtype.clone())).or_insert_with(|| FormatRow {
                bits: item.format.map(|f| f.0),
                group: item.format.map(|f| f.1),
                dtype,
                modules: 0,
                parameters: 0,
                bytes_before: 0,
                bytes_after: 0,
            });
            row.modules += 1;
            row.parameters += item.elements();
            row.bytes_before += item.elements() * item.width as u64;
            row.bytes_after += item.bytes();
        }
        let formats: Vec<FormatRow> = rows.into_values().collect();
        let sum = |f: fn(&FormatRow) -> u64| formats.iter().map(f).sum::<u64>();
        let (parameters, bytes_before, bytes_after) = (sum(|r| r.parameters), sum(|r| r.bytes_before), sum(|r| r.bytes_after));
        Report {
            recipe: o.recipe.name(),
            bits: o.bits,
            group: o.group,
            parameters,
            bytes_before,
            bytes_after,
            bits_per_weight: 8.0 * bytes_after as f64 / parameters.max(1) as f64,
            shards,
            formats,
            undivided,
            skipped,
        }
    }
}
