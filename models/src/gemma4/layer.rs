//! One layer's sizes: what the configuration says for all layers or for a kind of layer, changed by `per_layer_config`.
//!
//! transformers 5.15 and later write `per_layer_config` (layer numbers, zero-padded, to the fields that differ) in place of
//! `global_head_dim` and `num_global_key_value_heads`; both spellings are read, and must not contradict each other. Five
//! fields can differ by layer; any other is refused by name.

use super::config::{Layer, LayerKind};
use super::fields::{Fields, contradiction, count, missing, same, unexpected, unsupported};
use super::parts::{MANY, WIDTH, layer_kinds};
use crate::json::show;
use ir::diag::Result;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest window, longest context.
pub(super) const LONG: usize = (1 << 31) - 1;
/// What a layer may have of its own, and its largest value.
const OWN: [(&str, usize); 5] = [
    ("head_dim", MANY),
    ("num_attention_heads", MANY),
    ("num_key_value_heads", MANY),
    ("intermediate_size", WIDTH),
    ("sliding_window", LONG),
];

/// A size, and the name of the field that it comes from.
struct Size {
    name: String,
    value: usize,
}

/// `per_layer_config`: per layer, field by field.
struct Overrides<'a> {
    /// There is such a section.
    given: bool,
    kinds: &'a [LayerKind],
    by_layer: Vec<BTreeMap<&'static str, Size>>,
}

impl<'a> Overrides<'a> {
    fn parse(f: &Fields, kinds: &'a [LayerKind]) -> Result<Overrides<'a>> {
        let mut out = Overrides { given: false, kinds, by_layer: kinds.iter().map(|_| BTreeMap::new()).collect() };
        let section = match f.get("per_layer_config")? {
            None => return Ok(out),
            Some(Value::Object(section)) => section,
            Some(v) => return Err(unexpected(f.place, "per_layer_config", v, "an object from layers to their own fields")),
        };
        out.given = true;
        for (key, entry) in section {
            let name = format!("per_layer_config.{key}");
            let of = |kind| kinds.iter().enumerate().filter(|(_, k)| **k == kind).map(|(i, _)| i).collect();
            let layers: Vec<usize> = match key.as_str() {
                "sliding_attention" => of(LayerKind::Sliding),
                "full_attention" => of(LayerKind::Full),
                k => match k.parse::<usize>() {
                    Ok(i) if i < kinds.len() && k.bytes().all(|b| b.is_ascii_digit()) => vec![i],
                    _ => {
                        let m = format!("`{name}` names no layer: expected 0 to {}, or a layer type", kinds.len() - 1);
                        return Err(contradiction(f.place, m));
                    }
                },
            };
            match entry {
                Value::Null => continue,
                Value::Object(fields) => {
                    for (field, value) in fields.iter().filter(|(_, v)| !v.is_null()) {
                        out.set(f, &layers, format!("{name}.{field}"), field, value)?;
                    }
                }
                other => return Err(unexpected(f.place, &name, other, "an object")),
            }
        }
        Ok(out)
    }

    fn set(&mut self, f: &Fields, layers: &[usize], name: String, field: &str, value: &Value) -> Result<()> {
        let Some((field, max)) = OWN.into_iter().find(|(n, _)| *n == field) else {
            // `skip: []` and what only repeats the value of all layers change nothing.
            let harmless = (field == "skip" && *value == Value::Array(vec![]))
                || f.get(field)?.is_some_and(|everywhere| same(everywhere, value));
            let list: Vec<&str> = OWN.iter().map(|(n, _)| *n).collect();
            return match harmless {
                true => Ok(()),
                false => Err(unsupported(f.place, format!("`{name}` is {}, but this cannot differ by layer", show(value)))
                    .hint(format!("a layer can have its own {}", list.join(", ")))),
            };
        };
        let value = count(f.place, &name, value, 1, max)?;
        for &i in layers {
            if let Some(old) = self.by_layer[i].get(field)
                && old.value != value
            {
                let m = format!("`{}` is {} but `{name}` is {value}, and both mean layer {i}", old.name, old.value);
                return Err(contradiction(f.place, m));
            }
            self.by_layer[i].insert(field, Size { name: name.clone(), value });
        }
        Ok(())
    }

    /// Whether some full layer has its own value of a field.
    fn full_ones_have(&self, field: &str) -> bool {
        self.by_layer.iter().zip(self.kinds).any(|(l, k)| *k == LayerKind::Full && l.contains_key(field))
    }

    /// Layer `i`'s value of a field, which is `field` for all layers.
    fn size(&self, f: &Fields, i: usize, field: &str, max: usize) -> Result<Size> {
        let (name, value) = match self.by_layer[i].get(field) {
            Some(own) => (own.name.as_str(), own.value),
            None => (field, f.count(field, max)?),
        };
        Ok(Size { name: name.into(), value })
    }

    /// The same on a full layer, where a field of another name speaks for all full layers.
    fn full_size(&self, f: &Fields, i: usize, field: &str, global: &str, max: usize) -> Result<Size> {
        let everywhere = match f.find(global)? {
            Some((name, v)) => Some(Size { name: name.into(), value: count(f.place, name, v, 1, max)? }),
            None if self.given => None,
            None => return Err(missing(f.place, global)),
        };
        match everywhere {
            None => self.size(f, i, field, max),
            Some(g) if !self.full_ones_have(field) => Ok(g),
            Some(g) => {
                // One reference then reads `per_layer_config` alone.
                let s = self.size(f, i, field, max)?;
                if s.value == g.value {
                    return Ok(s);
                }
                let m = format!("`{}` is {} but `{}` is {}, and both mean layer {i}", g.name, g.value, s.name, s.value);
                Err(contradiction(f.place, m).hint("remove the one that is wrong"))
            }
        }
    }
}

/// All layers.
pub(super) fn layers(f: &Fields) -> Result<Vec<Layer>> {
    let kinds = layer_kinds(f)?;
    f.need("attention_k_eq_v")?;
    let k_eq_v = f.flag("attention_k_eq_v", false)?;
    let double_wide = f.flag("use_double_wide_mlp", false)?;
    let shared = f.count_or_zero("num_kv_shared_layers", MANY)?;
    if shared >= kinds.len() {
        let m = format!("`num_kv_shared_layers` = {shared} leaves none of {} layers", kinds.len());
        return Err(contradiction(f.place, m));
    }
    let own_kv = kinds.len() - shared;
    let o = Overrides::parse(f, &kinds)?;
    let mut out: Vec<Layer> = Vec::with_capacity(kinds.len());
    for (i, &kind) in kinds.iter().enumerate() {
        let full = kind == LayerKind::Full;
        let raw_values = full && k_eq_v;
        let head_dim = match full {
            true => o.full_size(f, i, "head_dim", "global_head_dim", MANY)?,
            false => o.size(f, i, "head_dim", MANY)?,
        };
        if head_dim.value % 2 != 0 {
            return Err(unexpected(f.place, &head_dim.name, &head_dim.value.into(), "an even number (rotary pairs)"));
        }
        let heads = o.size(f, i, "num_attention_heads", MANY)?;
        // Only models whose full layers reuse K as V have a head count of their own there.
        let kv = match raw_values {
            true => o.full_size(f, i, "num_key_value_heads", "num_global_key_value_heads", MANY)?,
            false => o.size(f, i, "num_key_value_heads", MANY)?,
        };
        if heads.value % kv.value != 0 {
            let m = format!("`{}` = {} is not a multiple of `{}` = {}", heads.name, heads.value, kv.name, kv.value);
            return Err(contradiction(f.place, m));
        }
        if heads.value * head_dim.value > WIDTH {
            let m = format!("`{}` = {} times `{}` = {} exceeds {WIDTH}", heads.name, heads.value, head_dim.name, head_dim.value);
            return Err(unsupported(f.place, m));
        }
        let everywhere = f.count("sliding_window", LONG)?;
        let window = o.size(f, i, "sliding_window", LONG)?;
        if full && window.value != everywhere {
            let m = format!("`{}` is {}, but layer {i} sees every position", window.name, window.value);
            return Err(contradiction(f.place, m));
        }
        let mlp = o.size(f, i, "intermediate_size", WIDTH)?;
        let doubled = double_wide && i >= own_kv;
        if doubled && o.by_layer[i].contains_key("intermediate_size") {
            let m = format!("`{}` is {}, and `use_double_wide_mlp` doubles layer {i}", mlp.name, mlp.value);
            return Err(unsupported(f.place, m).hint("it cannot be told whether the width given is to be doubled"));
        }
        let layer = Layer {
            kind,
            heads: heads.value,
            kv_heads: kv.value,
            head_dim: head_dim.value,
            window: if full { 0 } else { window.value },
            mlp_width: mlp.value * if doubled { 2 } else { 1 },
            k_eq_v: raw_values,
            kv_from: None,
        };
        let kv_from = if i >= own_kv { Some(source(f, &out[..own_kv], i, &layer, shared)?) } else { None };
        out.push(Layer { kv_from, ..layer });
    }
    Ok(out)
}

/// The layer whose keys and values layer `i` reads: the last one of the same type that has its own.
fn source(f: &Fields, own: &[Layer], i: usize, layer: &Layer, shared: usize) -> Result<usize> {
    let Some(from) = own.iter().rposition(|l| l.kind == layer.kind) else {
        let m = format!("`num_kv_shared_layers` = {shared}: no earlier layer is {:?}, so there is nothing to share", layer.kind);
        return Err(contradiction(f.place, m));
    };
    let sizes = |l: &Layer| (l.kv_heads, l.head_dim, l.window);
    if sizes(&own[from]) != sizes(layer) {
        let show = |(heads, dim, window)| format!("{heads} heads of {dim} in a window of {window}");
        let m = format!(
            "layer {i} reads the keys of layer {from}, which has {}, but is itself of {}",
            show(sizes(&own[from])),
            show(sizes(layer))
        );
        return Err(contradiction(f.place, m).hint("`per_layer_config` must say the same of layers that share"));
    }
    Ok(from)
}
