//! The configuration of a Gemma 4 text decoder, from config.json: complete, validated, and free of surprises.
//!
//! Whatever [`Config::parse`] returns has sizes that multiply without overflow in 64 bits (any two of them),
//! head counts that divide, and ids inside the vocabulary.

use super::fields::{Fields, contradiction, missing, positive, token_ids, unexpected, unsupported};
use super::quant_config::QuantConfig;
use crate::json::{self, show};
use ir::diag::{Diagnostic, Result};
use serde_json::Value;

/// The attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Sees the last `sliding_window` positions, itself included.
    Sliding,
    /// Sees every earlier position.
    Full,
}

/// The float format in which a checkpoint stores what is not quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFloat {
    /// bfloat16
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
}

/// Rotary embedding of one kind of layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Share of the pairs that rotate (1 on sliding layers).
    pub partial_rotary_factor: f64,
    /// Divides the frequencies.
    pub factor: f64,
}

/// The mixture of experts beside the dense MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts per layer.
    pub count: usize,
    /// Experts used per token.
    pub top_k: usize,
    /// Intermediate width of one expert.
    pub width: usize,
}

/// Per-layer input embeddings (E2B, E4B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerEmbedding {
    /// Width of one layer's input.
    pub width: usize,
    /// Rows of the table.
    pub vocab_size: usize,
}

/// The text decoder of a Gemma 4 checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where it was read, for messages.
    pub place: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the dense MLP.
    pub intermediate_size: usize,
    /// One entry a layer; the last one is `Full`.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads of sliding layers.
    pub kv_heads: usize,
    /// Key and value heads of full layers.
    pub global_kv_heads: usize,
    /// Head size of sliding layers.
    pub head_dim: usize,
    /// Head size of full layers.
    pub global_head_dim: usize,
    /// Positions that a sliding layer sees, the token itself included.
    pub sliding_window: usize,
    /// Full layers use the raw key projection as values and have no value weight.
    pub k_eq_v: bool,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Cap of the logits.
    pub softcap: Option<f64>,
    /// Mixture of experts, if any.
    pub experts: Option<Experts>,
    /// Rotary embedding of sliding layers.
    pub rope_sliding: Rope,
    /// Rotary embedding of full layers.
    pub rope_full: Rope,
    /// Per-layer embeddings, if any.
    pub per_layer: Option<PerLayerEmbedding>,
    /// Last layers that reuse the keys and values of an earlier one.
    pub num_kv_shared_layers: usize,
    /// Sharing layers have an MLP of twice the width.
    pub double_wide: bool,
    /// The output projection is the embedding.
    pub tied: bool,
    /// Format of the unquantized tensors.
    pub dtype: StoredFloat,
    /// Longest context that the model was made for.
    pub max_position_embeddings: usize,
    /// Ids that end a generation, ascending (generation_config.json may add some).
    pub eos: Vec<u32>,
    /// Id that starts every prompt.
    pub bos: u32,
    /// Padding id.
    pub pad: Option<u32>,
    /// Quantization, if the checkpoint declares one.
    pub quantization: Option<QuantConfig>,
}

const KINDS: [&str; 4] = [
    "gemma4",
    "gemma4_text",
    "gemma4_unified",
    "gemma4_unified_text",
];
const WIDTH: usize = 1 << 24;
const MANY: usize = 1 << 16;
const LONG: usize = (1 << 31) - 1;

impl Config {
    /// Parses config.json; `place` names the file in errors.
    pub fn parse(text: &str, place: &str) -> Result<Config> {
        Self::from_bytes(text.as_bytes(), place)
    }

    /// Parses the bytes of config.json.
    pub fn from_bytes(bytes: &[u8], place: &str) -> Result<Config> {
        let value = json::parse(bytes, json::MAX_CONFIG, place)?;
        let Value::Object(top) = &value else {
            return Err(unexpected(place, "config.json", &value, "an object"));
        };
        let text = match top.get("text_config") {
            None | Some(Value::Null) => None,
            Some(Value::Object(o)) => Some(o),
            Some(other) => return Err(unexpected(place, "text_config", other, "an object")),
        };
        let f = Fields { top, text, place };
        kinds(&f)?;

        let layers = layer_kinds(&f)?;
        let heads = f.count("num_attention_heads", MANY)?;
        let kv_heads = f.count("num_key_value_heads", MANY)?;
        f.need("attention_k_eq_v")?;
        let k_eq_v = f.flag("attention_k_eq_v", false)?;
        // Only models whose full layers reuse K as V have a head count of their own there.
        let global_kv_heads = if k_eq_v {
            f.count("num_global_key_value_heads", MANY)?
        } else {
            kv_heads
        };
        for (name, kv) in [
            ("num_key_value_heads", kv_heads),
            ("num_global_key_value_heads", global_kv_heads),
        ] {
            if heads % kv != 0 {
                return Err(contradiction(
                    place,
                    format!("`num_attention_heads` = {heads} is not a multiple of `{name}` = {kv}"),
                ));
            }
        }
        let head_dim = even(&f, "head_dim")?;
        let global_head_dim = even(&f, "global_head_dim")?;
        let vocab_size = f.count("vocab_size", WIDTH)?;
        let hidden_size = f.count("hidden_size", WIDTH)?;
        activation(&f)?;

        let mut eos = Vec::new();
        for map in [Some(f.top), f.text].into_iter().flatten() {
            eos.extend(token_ids(
                place,
                "eos_token_id",
                map.get("eos_token_id"),
                vocab_size,
            )?);
        }
        eos.sort_unstable();
        eos.dedup();
        if eos.is_empty() {
            return Err(
                missing(place, "eos_token_id").hint("without it a generation would never stop")
            );
        }

        let num_kv_shared_layers = f.count_or_zero("num_kv_shared_layers", MANY)?;
        if num_kv_shared_layers >= layers.len() {
            return Err(contradiction(
                place,
                format!(
                    "`num_kv_shared_layers` = {num_kv_shared_layers} leaves none of {} layers",
                    layers.len()
                ),
            ));
        }
        let kept = &layers[..layers.len() - num_kv_shared_layers];
        if let Some(kind) = layers[kept.len()..].iter().find(|k| !kept.contains(k)) {
            return Err(contradiction(
                place,
                format!(
                    "`num_kv_shared_layers` = {num_kv_shared_layers}: no earlier layer is {kind:?}, so there is nothing to share"
                ),
            ));
        }

        Ok(Config {
            place: place.to_string(),
            vocab_size,
            hidden_size,
            intermediate_size: f.count("intermediate_size", WIDTH)?,
            heads,
            kv_heads,
            global_kv_heads,
            head_dim,
            global_head_dim,
            sliding_window: f.count("sliding_window", LONG)?,
            k_eq_v,
            rms_norm_eps: positive(place, "rms_norm_eps", f.need("rms_norm_eps")?, 1.0)?,
            softcap: f
                .get("final_logit_softcapping")?
                .map(|v| positive(place, "final_logit_softcapping", v, 1e6))
                .transpose()?,
            experts: experts(&f)?,
            rope_sliding: rope(&f, "sliding_attention", "default")?,
            rope_full: rope(&f, "full_attention", "proportional")?,
            per_layer: match f.count_or_zero("hidden_size_per_layer_input", WIDTH)? {
                0 => None,
                width => Some(PerLayerEmbedding {
                    width,
                    vocab_size: f.count("vocab_size_per_layer_input", WIDTH)?,
                }),
            },
            num_kv_shared_layers,
            double_wide: f.flag("use_double_wide_mlp", false)?,
            tied: f.flag("tie_word_embeddings", true)?,
            dtype: dtype(&f)?,
            max_position_embeddings: f.count("max_position_embeddings", LONG)?,
            eos,
            bos: f
                .id("bos_token_id", vocab_size)?
                .ok_or_else(|| missing(place, "bos_token_id"))?,
            pad: f.id("pad_token_id", vocab_size)?,
            quantization: QuantConfig::parse(top, place)?,
            layers,
        })
    }

    /// Refuses what can be read but not yet built.
    pub fn supported(&self) -> Result<()> {
        let refuse = |what: &str| {
            Err(Diagnostic::new("E0209", format!("{what} not supported yet")).at(&self.place))
        };
        if self.per_layer.is_some() {
            return refuse("per-layer embeddings (E2B, E4B) are");
        }
        if self.num_kv_shared_layers > 0 {
            return refuse("layers that share keys and values (E2B, E4B) are");
        }
        if !self.tied {
            return refuse(
                "an output projection apart from the embedding (`tie_word_embeddings` false) is",
            );
        }
        Ok(())
    }

    /// Head size of a kind of layer.
    pub fn head_dim_of(&self, kind: LayerKind) -> usize {
        match kind {
            LayerKind::Sliding => self.head_dim,
            LayerKind::Full => self.global_head_dim,
        }
    }

    /// Key and value heads of a kind of layer.
    pub fn kv_heads_of(&self, kind: LayerKind) -> usize {
        match kind {
            LayerKind::Sliding => self.kv_heads,
            LayerKind::Full => self.global_kv_heads,
        }
    }

    /// Rotary embedding of a kind of layer.
    pub fn rope_of(&self, kind: LayerKind) -> Rope {
        match kind {
            LayerKind::Sliding => self.rope_sliding,
            LayerKind::Full => self.rope_full,
        }
    }
}

fn kinds(f: &Fields) -> Result<()> {
    for map in [Some(f.top), f.text].into_iter().flatten() {
        match map.get("model_type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if KINDS.contains(&kind.as_str()) => {}
            Some(other) => {
                return Err(
                    unsupported(f.place, format!("the model is of type {}", show(other))).hint(
                        format!("isobit builds Gemma 4 text decoders ({})", KINDS.join(", ")),
                    ),
                );
            }
        }
    }
    if f.top.get("model_type").is_none() && f.text.is_none_or(|t| t.get("model_type").is_none()) {
        return Err(
            missing(f.place, "model_type").hint(format!("expected one of {}", KINDS.join(", ")))
        );
    }
    Ok(())
}

fn activation(f: &Fields) -> Result<()> {
    let value = f.need("hidden_activation")?;
    if value != "gelu_pytorch_tanh" {
        return Err(unsupported(
            f.place,
            format!(
                "`hidden_activation` is {}, only \"gelu_pytorch_tanh\" is known",
                show(value)
            ),
        ));
    }
    if f.flag("attention_bias", false)? {
        return Err(unsupported(
            f.place,
            "`attention_bias` is true, but Gemma 4 has no biases".into(),
        ));
    }
    match f.get("use_bidirectional_attention")? {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(v) if v == "vision" => Ok(()),
        Some(v) => Err(unsupported(
            f.place,
            format!(
                "`use_bidirectional_attention` is {}, only null and \"vision\" are known",
                show(v)
            ),
        )),
    }
}

fn layer_kinds(f: &Fields) -> Result<Vec<LayerKind>> {
    let count = f.count("num_hidden_layers", 4096)?;
    let value = f.need("layer_types")?;
    let Value::Array(list) = value else {
        return Err(unexpected(f.place, "layer_types", value, "a list"));
    };
    if list.len() != count {
        return Err(contradiction(
            f.place,
            format!(
                "`layer_types` has {} entries, but `num_hidden_layers` is {count}",
                list.len()
            ),
        ));
    }
    let mut out = Vec::with_capacity(count);
    for (i, v) in list.iter().enumerate() {
        out.push(match v.as_str() {
            Some("sliding_attention") => LayerKind::Sliding,
            Some("full_attention") => LayerKind::Full,
            _ => {
                let field = format!("layer_types[{i}]");
                return Err(unexpected(
                    f.place,
                    &field,
                    v,
                    "\"sliding_attention\" or \"full_attention\"",
                ));
            }
        });
    }
    if out.last() != Some(&LayerKind::Full) {
        return Err(contradiction(f.place, "the last entry of `layer_types` is not \"full_attention\"".into())
            .hint("one reference implementation silently forces it, the other does not: say what is meant"));
    }
    Ok(out)
}

fn even(f: &Fields, field: &str) -> Result<usize> {
    let n = f.count(field, MANY)?;
    if n % 2 != 0 {
        return Err(unexpected(
            f.place,
            field,
            f.need(field)?,
            "an even number (rotary pairs)",
        ));
    }
    Ok(n)
}

fn experts(f: &Fields) -> Result<Option<Experts>> {
    if !f.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let e = Experts {
        count: f.count("num_experts", MANY)?,
        top_k: f.count("top_k_experts", MANY)?,
        width: f.count("moe_intermediate_size", WIDTH)?,
    };
    if e.top_k > e.count {
        return Err(contradiction(
            f.place,
            format!(
                "`top_k_experts` = {} exceeds `num_experts` = {}",
                e.top_k, e.count
            ),
        ));
    }
    Ok(Some(e))
}

fn rope(f: &Fields, layer: &str, kind: &str) -> Result<Rope> {
    let name = format!("rope_parameters.{layer}");
    let entry = match f.need("rope_parameters")? {
        Value::Object(o) => o.get(layer).ok_or_else(|| missing(f.place, &name))?,
        other => {
            return Err(unexpected(
                f.place,
                "rope_parameters",
                other,
                "an object with one entry a layer type",
            ));
        }
    };
    let Value::Object(entry) = entry else {
        return Err(unexpected(f.place, &name, entry, "an object"));
    };
    let get = |key: &str| entry.get(key).filter(|v| !v.is_null());
    let found = get("rope_type").ok_or_else(|| missing(f.place, &format!("{name}.rope_type")))?;
    if found != kind {
        return Err(unsupported(
            f.place,
            format!(
                "`{name}.rope_type` is {}, only \"{kind}\" is known there",
                show(found)
            ),
        ));
    }
    let number = |key: &str, max: f64| {
        get(key)
            .map(|v| positive(f.place, &format!("{name}.{key}"), v, max))
            .transpose()
    };
    let partial = number("partial_rotary_factor", 1.0)?;
    Ok(Rope {
        theta: number("rope_theta", 1e30)?
            .ok_or_else(|| missing(f.place, &format!("{name}.rope_theta")))?,
        partial_rotary_factor: match (kind, partial) {
            ("default", None | Some(1.0)) => 1.0,
            ("default", Some(_)) => {
                return Err(unsupported(
                    f.place,
                    format!("`{name}.partial_rotary_factor` must be 1 or absent"),
                ));
            }
            (_, p) => {
                p.ok_or_else(|| missing(f.place, &format!("{name}.partial_rotary_factor")))?
            }
        },
        factor: number("factor", 1e6)?.unwrap_or(1.0),
    })
}

fn dtype(f: &Fields) -> Result<StoredFloat> {
    let (name, old) = (f.text("dtype")?, f.text("torch_dtype")?);
    if let (Some(a), Some(b)) = (name, old)
        && a != b
    {
        return Err(contradiction(
            f.place,
            format!("`dtype` is {a} but `torch_dtype` is {b}"),
        ));
    }
    match name.or(old).ok_or_else(|| missing(f.place, "dtype"))? {
        "bfloat16" => Ok(StoredFloat::Bf16),
        "float16" => Ok(StoredFloat::F16),
        "float32" => Ok(StoredFloat::F32),
        other => Err(unexpected(
            f.place,
            "dtype",
            &other.into(),
            "bfloat16, float16 or float32",
        )),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
