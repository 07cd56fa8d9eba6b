//! The parts of config.json that are more than one number: kinds, layer types, experts, stored type.

use super::config::{Experts, LayerKind, StoredFloat};
use super::fields::{Fields, contradiction, missing, unexpected, unsupported};
use crate::json::show;
use ir::diag::Result;
use ir::graph::verify::types::MAX_EXPERTS;
use serde_json::Value;

/// Most heads, and widest head.
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
    let (name, value) = f.need("hidden_activation")?;
    if value != "gelu_pytorch_tanh" {
        return Err(unsupported(f.place, format!("`{name}` is {}, only \"gelu_pytorch_tanh\" is known", show(value))));
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
    let (_, value) = f.need("layer_types")?;
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

/// The mixture of experts, if the model has one.
pub(super) fn experts(f: &Fields) -> Result<Option<Experts>> {
    if !f.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let e = Experts {
        count: f.count("num_experts", MAX_EXPERTS as usize)?,
        top_k: f.count("top_k_experts", MAX_EXPERTS as usize)?,
        width: f.count("moe_intermediate_size", WIDTH)?,
    };
    if e.top_k > e.count {
        return Err(contradiction(f.place, format!("`top_k_experts` = {} exceeds `num_experts` = {}", e.top_k, e.count)));
    }
    Ok(Some(e))
}

/// `dtype`, or `torch_dtype` in older files.
pub(super) fn dtype(f: &Fields) -> Result<StoredFloat> {
    let (name, value) = f.need("dtype")?;
    match value.as_str() {
        Some("bfloat16") => Ok(StoredFloat::Bf16),
        Some("float16") => Ok(StoredFloat::F16),
        Some("float32") => Ok(StoredFloat::F32),
        _ => Err(unexpected(f.place, name, value, "bfloat16, float16 or float32")),
    }
}
