//! The configuration of a Gemma 4 text decoder, from config.json: complete, validated, and free of surprises.
//!
//! Whatever [`Config::parse`] returns has tensors whose sizes and numbers of elements fit 32 and 60 bits, head counts that
//! divide, and ids inside the vocabulary.

use super::fields::{Fields, missing, positive, token_ids, unexpected, unsupported};
use super::layer::{LONG, layers};
use super::parts::{WIDTH, activation, dtype, experts, kinds};
use super::quant_config::QuantConfig;
use super::rope::rope;
use crate::json;
use ir::diag::Result;
use serde_json::Value;

/// The attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Sees the last `sliding_window` positions, itself included.
    Sliding,
    /// Sees every earlier position.
    Full,
}

/// One layer's sizes, `per_layer_config` and all other exceptions applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What its queries see.
    pub kind: LayerKind,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of the query heads.
    pub kv_heads: usize,
    /// Elements of a head, an even number.
    pub head_dim: usize,
    /// Positions that a query sees, its own included; 0 for all earlier ones.
    pub window: usize,
    /// Width of the dense MLP.
    pub mlp_width: usize,
    /// The values are the raw key projection: there is no value weight.
    pub k_eq_v: bool,
    /// The earlier layer whose keys and values it reads; it then has neither weights for them nor a cache.
    pub kv_from: Option<usize>,
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
    /// The layers; the last one is full.
    pub layers: Vec<Layer>,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Cap of the logits.
    pub softcap: Option<f64>,
    /// Mixture of experts beside the dense MLP of every layer, if any.
    pub experts: Option<Experts>,
    /// Rotary embedding of sliding layers.
    pub rope_sliding: Rope,
    /// Rotary embedding of full layers.
    pub rope_full: Rope,
    /// Per-layer embeddings, if any.
    pub per_layer: Option<PerLayerEmbedding>,
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
        let layers = layers(&f)?;
        activation(&f)?;
        let vocab_size = f.count("vocab_size", WIDTH)?;

        let mut eos = Vec::new();
        for map in [Some(f.top), f.text].into_iter().flatten() {
            eos.extend(token_ids(place, "eos_token_id", map.get("eos_token_id"), vocab_size)?);
        }
        eos.sort_unstable();
        eos.dedup();
        if eos.is_empty() {
            return Err(missing(place, "eos_token_id").hint("without it a generation would never stop"));
        }

        Ok(Config {
            place: place.to_string(),
            vocab_size,
            hidden_size: f.count("hidden_size", WIDTH)?,
            per_layer: per_layer(&f, vocab_size, layers.len())?,
            layers,
            rms_norm_eps: positive(place, "rms_norm_eps", f.need("rms_norm_eps")?.1, 1.0)?,
            softcap: f.get("final_logit_softcapping")?.map(|v| positive(place, "final_logit_softcapping", v, 1e6)).transpose()?,
            experts: experts(&f)?,
            rope_sliding: rope(&f, LayerKind::Sliding)?,
            rope_full: rope(&f, LayerKind::Full)?,
            tied: f.flag("tie_word_embeddings", true)?,
            dtype: dtype(&f)?,
            max_position_embeddings: f.count("max_position_embeddings", LONG)?,
            eos,
            bos: f.id("bos_token_id", vocab_size)?.ok_or_else(|| missing(place, "bos_token_id"))?,
            pad: f.id("pad_token_id", vocab_size)?,
            quantization: QuantConfig::parse(&f)?,
        })
    }

    /// Rotary embedding of a kind of layer.
    pub fn rope_of(&self, kind: LayerKind) -> Rope {
        match kind {
            LayerKind::Sliding => self.rope_sliding,
            LayerKind::Full => self.rope_full,
        }
    }
}

/// The per-layer embedding, if the model has one.
fn per_layer(f: &Fields, vocab: usize, layers: usize) -> Result<Option<PerLayerEmbedding>> {
    let width = f.count_or_zero("hidden_size_per_layer_input", WIDTH)?;
    if width == 0 {
        return Ok(None);
    }
    if width * layers > WIDTH {
        let m = format!("`hidden_size_per_layer_input` = {width} times {layers} layers exceeds {WIDTH}");
        return Err(unsupported(f.place, m));
    }
    let rows = f.count("vocab_size_per_layer_input", WIDTH)?;
    if rows < vocab {
        let m = format!("`vocab_size_per_layer_input` = {rows} is less than `vocab_size` = {vocab}");
        return Err(unsupported(f.place, m).hint("tokens without a per-layer embedding are not known"));
    }
    Ok(Some(PerLayerEmbedding { width, vocab_size: rows }))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
