//! The rotary embedding of each kind of layer, in the spellings that configurations have had: `rope_parameters` with an entry a
//! layer type, the same under `rope_scaling`, and flat `rope_theta` (full layers), `rope_local_base_freq` (sliding layers)
//! and `partial_rotary_factor` beside a flat `rope_scaling`.

use super::config::{LayerKind, Rope};
use super::fields::{Fields, agreed, missing, positive, unexpected, unsupported};
use crate::json::show;
use ir::diag::Result;
use serde_json::{Map, Value};

/// The sections that may hold rotary settings.
const SECTIONS: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Names of the layer types.
const TYPES: [&str; 2] = ["sliding_attention", "full_attention"];

/// The rotary embedding of a kind of layer.
pub(super) fn rope(f: &Fields, kind: LayerKind) -> Result<Rope> {
    let (layer, form, flat_theta) = match kind {
        LayerKind::Sliding => (TYPES[0], "default", "rope_local_base_freq"),
        LayerKind::Full => (TYPES[1], "proportional", "rope_theta"),
    };
    let entries = entries(f, layer, kind)?;
    let stated = |key: &str| -> Vec<(String, &Value)> {
        let of =
            |(name, e): &(String, &'_ Map<String, Value>)| e.get(key).filter(|v| !v.is_null()).map(|_| format!("`{name}.{key}`"));
        entries.iter().filter_map(|e| Some((of(e)?, &e.1[key]))).collect()
    };
    // The place of a value in messages is the section that a user would look for.
    let name = |key: &str| format!("rope_parameters.{layer}.{key}");
    let with_flat = |key: &str, flat: &str| -> Result<Option<&Value>> {
        let mut all = stated(key);
        if let Some(v) = f.get(flat)? {
            all.push((format!("`{flat}`"), v));
        }
        agreed(f.place, &all)
    };

    if entries.is_empty() && f.get(flat_theta)?.is_none() {
        return Err(missing(f.place, &format!("rope_parameters.{layer}")));
    }
    match agreed(f.place, &stated("rope_type"))? {
        Some(v) if v != form => {
            return Err(unsupported(f.place, format!("`{}` is {}, only \"{form}\" is known there", name("rope_type"), show(v))));
        }
        // The flat spelling has no type for sliding layers.
        None if !(kind == LayerKind::Sliding && entries.is_empty()) => return Err(missing(f.place, &name("rope_type"))),
        _ => {}
    }
    let number = |key: &str, v: Option<&Value>, max: f64| v.map(|v| positive(f.place, &name(key), v, max)).transpose();
    let partial = match kind {
        LayerKind::Sliding => agreed(f.place, &stated("partial_rotary_factor"))?,
        LayerKind::Full => with_flat("partial_rotary_factor", "partial_rotary_factor")?,
    };
    let partial = number("partial_rotary_factor", partial, 1.0)?;
    Ok(Rope {
        theta: number("rope_theta", with_flat("rope_theta", flat_theta)?, 1e30)?
            .ok_or_else(|| missing(f.place, &name("rope_theta")))?,
        partial_rotary_factor: match (kind, partial) {
            (LayerKind::Sliding, None | Some(1.0)) => 1.0,
            (LayerKind::Sliding, Some(_)) => {
                return Err(unsupported(f.place, format!("`{}` must be 1 or absent", name("partial_rotary_factor"))));
            }
            (LayerKind::Full, p) => p.ok_or_else(|| missing(f.place, &name("partial_rotary_factor")))?,
        },
        factor: number("factor", agreed(f.place, &stated("factor"))?, 1e6)?.unwrap_or(1.0),
    })
}

/// The entries of a layer type, with their names. A flat section is one of full layers.
fn entries<'a>(f: &Fields<'a>, layer: &str, kind: LayerKind) -> Result<Vec<(String, &'a Map<String, Value>)>> {
    let mut out = vec![];
    for section in SECTIONS {
        let Some(value) = f.get(section)? else { continue };
        let Value::Object(map) = value else {
            return Err(unexpected(f.place, section, value, "an object with one entry a layer type"));
        };
        let nested = section == SECTIONS[0] || TYPES.iter().any(|t| map.contains_key(*t));
        if !nested {
            if kind == LayerKind::Full {
                out.push((section.to_string(), map));
            }
            continue;
        }
        let name = format!("{section}.{layer}");
        match map.get(layer) {
            None => return Err(missing(f.place, &name)),
            Some(Value::Object(entry)) => out.push((name, entry)),
            Some(other) => return Err(unexpected(f.place, &name, other, "an object")),
        }
    }
    Ok(out)
}
