//! The parts of config.json that are more than one number: kinds, layer types, experts, rotary embedding.

use super::config::{Experts, LayerKind, Rope, StoredFloat};
use super::fields::{Fields, contradiction, missing, positive, unexpected, unsupported};
use crate::json::show;
use ir::diag::Result;
use serde_json::Value;

/// Most heads, experts and the like.
pub(super) const MANY: usize = 1 << 16;
/// Widest vector, largest vocabulary.
pub(super) const WIDTH: usize = 1 << 24;
/// Values of `model_type` that are Gemma 4 with a text decoder.
pub(super) const KINDS: [&str; 4] = ["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"];

/// Refuses other models.
pub(super) fn kinds(f: &Fields) -> Result<()> {
    for map in [Some(f.top), f.text].into_iter().flatten() {
        match map.get("model_type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if KINDS.contains(&kind.as_str()) => {}
            Some(other) => {
                return Err(unsupported(f.place, format!("the model is of type {}", show(other)))
                    .hint(format!("isobit builds Gemma 4 text decoders ({})", KINDS.join(", "))));
            }
        }
    }
    if f.top.get("model_type").is_none() && f.text.is_none_or(|t| t.get("model_type").is_none()) {
        return Err(missing(f.place, "model_type").hint(format!("expected one of {}", KINDS.join(", "))));
    }
    Ok(())
}

/// Refuses variants of the layers that Gemma 4 does not have.
pub(super) fn activation(f: &Fields) -> Result<()> {
    let value = f.need("hidden_activation")?;
    if value != "gelu_pytorch_tanh" {
        return Err(unsupported(f.place, format!("`hidden_activation` is {}, only \"gelu_pytorch_tanh\" is known", show(value))));
    }
    if f.flag("attention_bias", false)? {
        return Err(unsupported(f.place, "`attention_bias` is true, but Gemma 4 has no biases".into()));
    }
    match f.get("use_bidirectional_attention")? {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(v) if v == "vision" => Ok(()),
        Some(v) => {
            Err(unsupported(f.place, format!("`use_bidirectional_attention` is {}, only null and \"vision\" are known", show(v))))
        }
    }
}

/// `layer_types`, as many as `num_hidden_layers`.
pub(super) fn layer_kinds(f: &Fields) -> Result<Vec<LayerKind>> {
    let count = f.count("num_hidden_layers", 4096)?;
    let value = f.need("layer_types")?;
    let Value::Array(list) = value else {
        return Err(unexpected(f.place, "layer_types", value, "a list"));
    };
    if list.len() != count {
        return Err(contradiction(
            f.place,
            format!("`layer_types` has {} entries, but `num_hidden_layers` is {count}", list.len()),
        ));
    }
    let mut out = Vec::with_capacity(count);
    for (i, v) in list.iter().enumerate() {
        out.push(match v.as_str() {
            Some("sliding_attention") => LayerKind::Sliding,
            Some("full_attention") => LayerKind::Full,
            _ => {
                let field = format!("layer_types[{i}]");
                return Err(unexpected(f.place, &field, v, "\"sliding_attention\" or \"full_attention\""));
            }
        });
    }
    if out.last() != Some(&LayerKind::Full) {
        return Err(contradiction(f.place, "the last entry of `layer_types` is not \"full_attention\"".into())
            .hint("one reference implementation silently forces it, the other does not: say what is meant"));
    }
    Ok(out)
}

/// A head size.
pub(super) fn even(f: &Fields, field: &str) -> Result<usize> {
    let n = f.count(field, MANY)?;
    if n % 2 != 0 {
        return Err(unexpected(f.place, field, f.need(field)?, "an even number (rotary pairs)"));
    }
    Ok(n)
}

/// The mixture of experts, if the model has one.
pub(super) fn experts(f: &Fields) -> Result<Option<Experts>> {
    if !f.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let e = Experts {
        count: f.count("num_experts", MANY)?,
        top_k: f.count("top_k_experts", MANY)?,
        width: f.count("moe_intermediate_size", WIDTH)?,
    };
    if e.top_k > e.count {
        return Err(contradiction(f.place, format!("`top_k_experts` = {} exceeds `num_experts` = {}", e.top_k, e.count)));
    }
    Ok(Some(e))
}

/// The rotary embedding of a layer type, which has to be of a given kind.
pub(super) fn rope(f: &Fields, layer: &str, kind: &str) -> Result<Rope> {
    let name = format!("rope_parameters.{layer}");
    let entry = match f.need("rope_parameters")? {
        Value::Object(o) => o.get(layer).ok_or_else(|| missing(f.place, &name))?,
        other => {
            return Err(unexpected(f.place, "rope_parameters", other, "an object with one entry a layer type"));
        }
    };
    let Value::Object(entry) = entry else {
        return Err(unexpected(f.place, &name, entry, "an object"));
    };
    let get = |key: &str| entry.get(key).filter(|v| !v.is_null());
    let found = get("rope_type").ok_or_else(|| missing(f.place, &format!("{name}.rope_type")))?;
    if found != kind {
        return Err(unsupported(f.place, format!("`{name}.rope_type` is {}, only \"{kind}\" is known there", show(found))));
    }
    let number = |key: &str, max: f64| get(key).map(|v| positive(f.place, &format!("{name}.{key}"), v, max)).transpose();
    let partial = number("partial_rotary_factor", 1.0)?;
    Ok(Rope {
        theta: number("rope_theta", 1e30)?.ok_or_else(|| missing(f.place, &format!("{name}.rope_theta")))?,
        partial_rotary_factor: match (kind, partial) {
            ("default", None | Some(1.0)) => 1.0,
            ("default", Some(_)) => {
                return Err(unsupported(f.place, format!("`{name}.partial_rotary_factor` must be 1 or absent")));
            }
            (_, p) => p.ok_or_else(|| missing(f.place, &format!("{name}.partial_rotary_factor")))?,
        },
        factor: number("factor", 1e6)?.unwrap_or(1.0),
    })
}

/// `dtype`, or `torch_dtype` in older files.
pub(super) fn dtype(f: &Fields) -> Result<StoredFloat> {
    let (name, old) = (f.text("dtype")?, f.text("torch_dtype")?);
    if let (Some(a), Some(b)) = (name, old)
        && a != b
    {
        return Err(contradiction(f.place, format!("`dtype` is {a} but `torch_dtype` is {b}")));
    }
    match name.or(old).ok_or_else(|| missing(f.place, "dtype"))? {
        "bfloat16" => Ok(StoredFloat::Bf16),
        "float16" => Ok(StoredFloat::F16),
        "float32" => Ok(StoredFloat::F32),
        other => Err(unexpected(f.place, "dtype", &other.into(), "bfloat16, float16 or float32")),
    }
}
