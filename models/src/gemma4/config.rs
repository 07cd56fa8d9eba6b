//! The configuration of a Gemma 4 text decoder, from config.json: complete, validated, and free of surprises.
//!
//! Whatever [`Config::parse`] returns has sizes that multiply without overflow in 64 bits (any two of them),
//! head counts that divide, and ids inside the vocabulary.

use super::fields::{Fields, contradiction, missing, positive, token_ids, unexpected};
use super::parts::{MANY, WIDTH, activation, dtype, even, experts, kinds, layer_kinds, rope};
use super::quant_config::QuantConfig;
use crate::json;
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
        let global_kv_heads = if k_eq_v { f.count("num_global_key_value_heads", MANY)? } else { kv_heads };
        for (name, kv) in [("num_key_value_heads", kv_heads), ("num_global_key_value_heads", global_kv_heads)] {
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
            eos.extend(token_ids(place, "eos_token_id", map.get("eos_token_id"), vocab_size)?);
        }
        eos.sort_unstable();
        eos.dedup();
        if eos.is_empty() {
            return Err(missing(place, "eos_token_id").hint("without it a generation would never stop"));
        }

        let num_kv_shared_layers = f.count_or_zero("num_kv_shared_layers", MANY)?;
        if num_kv_shared_layers >= layers.len() {
            return Err(contradiction(
                place,
                format!("`num_kv_shared_layers` = {num_kv_shared_layers} leaves none of {} layers", layers.len()),
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
            softcap: f.get("final_logit_softcapping")?.map(|v| positive(place, "final_logit_softcapping", v, 1e6)).transpose()?,
            experts: experts(&f)?,
            rope_sliding: rope(&f, "sliding_attention", "default")?,
            rope_full: rope(&f, "full_attention", "proportional")?,
            per_layer: match f.count_or_zero("hidden_size_per_layer_input", WIDTH)? {
                0 => None,
                width => Some(PerLayerEmbedding { width, vocab_size: f.count("vocab_size_per_layer_input", WIDTH)? }),
            },
            num_kv_shared_layers,
            double_wide: f.flag("use_double_wide_mlp", false)?,
            tied: f.flag("tie_word_embeddings", true)?,
            dtype: dtype(&f)?,
            max_position_embeddings: f.count("max_position_embeddings", LONG)?,
            eos,
            bos: f.id("bos_token_id", vocab_size)?.ok_or_else(|| missing(place, "bos_token_id"))?,
            pad: f.id("pad_token_id", vocab_size)?,
            quantization: QuantConfig::parse(top, place)?,
            layers,
        })
    }

    /// Refuses what can be read but not yet built.
    pub fn supported(&self) -> Result<()> {
        let refuse = |what: &str| Err(Diagnostic::new("E0209", format!("{what} not supported yet")).at(&self.place));
        if self.per_layer.is_some() {
            return refuse("per-layer embeddings (E2B, E4B) are");
        }
        if self.num_kv_shared_layers > 0 {
            return refuse("layers that share keys and values (E2B, E4B) are");
        }
        if !self.tied {
            return refuse("an output projection apart from the embedding (`tie_word_embeddings` false) is");
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

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
