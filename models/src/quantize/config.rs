//! config.json of the result: the text decoder's fields under `text_config`, in the form that mlx-lm reads.

use super::Options;
use super::plan::Item;
use crate::checkpoint::Checkpoint;
use crate::json;
use ir::diag::{Diagnostic, Result};
use serde_json::{Map, Value, json};

/// Top-level fields that say nothing about the text decoder.
fn foreign(key: &str) -> bool {
    key.ends_with("_config")
        || key.ends_with("_token_id")
        || key.ends_with("_token_index")
        || matches!(key, "architectures" | "model_type" | "transformers_version" | "quantization" | "_name_or_path")
}

pub(super) fn text(ck: &Checkpoint, o: &Options, items: &[Item]) -> Result<String> {
    let c = ck.config();
    let bytes = ck.file("config.json").unwrap_or_default();
    let Value::Object(top) = json::parse(bytes, json::MAX_CONFIG, &c.place)? else {
        return Err(Diagnostic::new("E0284", "config.json is not an object").at(&c.place));
    };
    let nested = top.get("text_config").and_then(Value::as_object);
    let mut text = nested.cloned().unwrap_or_default();
    for (key, value) in &top {
        // Where everything lies at the top level, the ids of special tokens are the text decoder's too.
        let take = if nested.is_some() { !foreign(key) } else { !foreign(key) || key.ends_with("_token_id") };
        if take && text.get(key).is_none_or(Value::is_null) {
            text.insert(key.clone(), value.clone());
        }
    }
    let kind = |m: &Map<String, Value>| m.get("model_type").and_then(Value::as_str).unwrap_or_default().to_string();
    let unified = kind(&top).contains("unified") || kind(&text).contains("unified");
    if kind(&text).is_empty() {
        text.insert("model_type".into(), json!(if unified { "gemma4_unified_text" } else { "gemma4_text" }));
    }

    let mut quantization = Map::new();
    quantization.insert("group_size".into(), json!(o.group));
    quantization.insert("bits".into(), json!(o.bits));
    quantization.insert("mode".into(), json!("affine"));
    for item in items {
        let module = item.name.rsplit_once('.').map_or("", |(p, _)| p);
        match item.format {
            Some((bits, group)) if (bits, group) != (o.bits, o.group) => {
                quantization.insert(item.name.clone(), json!({"group_size": group, "bits": bits}));
            }
            Some(_) => {}
            None if item.shape.len() > 1 => {
                quantization.insert(module.into(), json!(false));
            }
            None => {}
        }
    }

    let mut out = Map::new();
    out.insert("architectures".into(), json!(["Gemma4ForConditionalGeneration"]));
    out.insert("model_type".into(), json!(if unified { "gemma4_unified" } else { "gemma4" }));
    for key in ["dtype", "torch_dtype"] {
        if let Some(v) = top.get(key).or_else(|| text.get(key)) {
            out.insert(key.into(), v.clone());
        }
    }
    out.insert("tie_word_embeddings".into(), json!(c.tied));
    // mlx-lm takes this one from the top level, whatever text_config says.
    out.insert("vocab_size".into(), json!(c.vocab_size));
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        if let Some(v) = top.get(key).or_else(|| text.get(key)) {
            out.insert(key.into(), v.clone());
        }
    }
    out.insert("quantization".into(), Value::Object(quantization.clone()));
    out.insert("quantization_config".into(), Value::Object(quantization));
    out.insert("text_config".into(), Value::Object(text));
    Ok(format!("{:#}\n", Value::Object(out)))
}
