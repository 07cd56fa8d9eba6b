//! The `quantization` section of an MLX configuration: default bits and group, and exceptions by module.

use super::fields::{Fields, contradiction, count, missing, same, unexpected, unsupported};
use crate::json::show;
use ir::diag::Result;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Prefixes under which checkpoints keep the text decoder, the longest first.
pub const PREFIXES: [&str; 3] = ["language_model.model.", "model.language_model.", "model."];

/// Widths of a code that MLX's affine format has.
pub const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
/// Sizes of a group that it has.
pub const GROUPS: [u32; 3] = [32, 64, 128];

/// A module's path without prefix, however a checkpoint spells it (`lm_head` stands beside the decoder).
pub(crate) fn canonical(name: &str) -> &str {
    let inner = PREFIXES.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    inner.strip_prefix("language_model.").unwrap_or(inner)
}

/// What the configuration says about quantization. The tensors' shapes have to agree with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantConfig {
    /// Bits of a code where no exception says otherwise.
    pub bits: u32,
    /// Elements that share a scale and a bias, where no exception says otherwise.
    pub group_size: u32,
    /// Exceptions by canonical module path (`layers.0.mlp.up_proj`): bits and group, or `None` for "not quantized".
    pub overrides: BTreeMap<String, Option<(u32, u32)>>,
}

impl QuantConfig {
    /// Bits and group of a module by its canonical path; `None`: the module is declared unquantized.
    pub fn of(&self, module: &str) -> Option<(u32, u32)> {
        self.overrides.get(module).copied().unwrap_or(Some((self.bits, self.group_size)))
    }

    /// Reads `quantization` and its copies: `quantization_config`, and either of them in `text_config`.
    pub(super) fn parse(f: &Fields) -> Result<Option<QuantConfig>> {
        let place = f.place;
        let (key, value) = match (f.get("quantization")?, f.get("quantization_config")?) {
            (None, None) => return Ok(None),
            (Some(a), Some(b)) if !same(a, b) => {
                return Err(contradiction(place, "`quantization` and `quantization_config` differ".into())
                    .hint("they are two copies of the same section: remove the wrong one"));
            }
            (Some(a), _) => ("quantization", a),
            (None, Some(b)) => ("quantization_config", b),
        };
        let Value::Object(section) = value else {
            return Err(unexpected(place, key, value, "an object"));
        };
        if let Some(method) = section.get("quant_method") {
            return Err(unsupported(place, format!("quantization method {} is not supported", show(method)))
                .hint("isobit reads the affine layout of MLX, and unquantized checkpoints"));
        }
        affine(section, key, place)?;
        let (bits, group_size) = bits_and_group(section, key, place)?;
        let mut overrides = BTreeMap::new();
        for (name, entry) in section {
            if matches!(name.as_str(), "bits" | "group_size" | "mode") {
                continue;
            }
            let field = format!("{key}.{name}");
            let pair = match entry {
                Value::Bool(false) => None,
                Value::Bool(true) => Some((bits, group_size)),
                Value::Object(o) => {
                    affine(o, &field, place)?;
                    Some(bits_and_group(o, &field, place)?)
                }
                other => {
                    return Err(unexpected(place, &field, other, "false or {\"bits\", \"group_size\"}"));
                }
            };
            let canonical = canonical(name);
            if let Some(old) = overrides.insert(canonical.to_string(), pair)
                && old != pair
            {
                return Err(contradiction(place, format!("two different entries of `{key}` mean `{canonical}`")));
            }
        }
        Ok(Some(QuantConfig { bits, group_size, overrides }))
    }
}

fn affine(section: &Map<String, Value>, field: &str, place: &str) -> Result<()> {
    match section.get("mode") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(mode)) if mode == "affine" => Ok(()),
        Some(other) => Err(unsupported(place, format!("`{field}.mode` is {}, only \"affine\" is supported", show(other)))),
    }
}

fn bits_and_group(section: &Map<String, Value>, field: &str, place: &str) -> Result<(u32, u32)> {
    let get = |key: &str| {
        let name = format!("{field}.{key}");
        let value = section.get(key).ok_or_else(|| missing(place, &name))?;
        Ok((count(place, &name, value, 1, 1 << 16)? as u32, name, value))
    };
    let (bits, name, value) = get("bits")?;
    if !BITS.contains(&bits) {
        return Err(unsupported(place, format!("`{name}` is {}, only 2, 3, 4, 5, 6 and 8 bits are supported", show(value))));
    }
    let (group, name, value) = get("group_size")?;
    if !GROUPS.contains(&group) {
        return Err(unsupported(place, format!("`{name}` is {}, only groups of 32, 64 and 128 are supported", show(value))));
    }
    Ok((bits, group))
}
