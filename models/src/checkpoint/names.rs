//! Whose tensor is it: names as files have them, and names as the text decoder has them.

use super::safetensors::Entry;
use crate::gemma4::Config;
use crate::gemma4::quant_config::PREFIXES;
use ir::diag::{Diagnostic, Result};
use std::collections::BTreeMap;

/// Parts of multimodal checkpoints beside the text decoder.
const TOWERS: [&str; 5] = ["vision_tower", "embed_vision", "audio_tower", "embed_audio", "multi_modal_projector"];
/// What may stand before `lm_head`.
const HEAD_PREFIXES: [&str; 5] = ["", "language_model.", "model.", "model.language_model.", "language_model.model."];

/// Why a tensor is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It belongs to a vision or audio tower, or to its projection.
    Tower,
    /// It makes keys or values in a layer that reads those of an earlier one.
    SharedKeys,
    /// A copy of the embedding as output projection.
    HeadCopy,
    /// It lies outside the text decoder, under a name that is none of the known towers'.
    Outside,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Why::Tower => "part of a vision or audio tower",
            Why::SharedKeys => "keys or values of a layer that reads an earlier layer's",
            Why::HeadCopy => "a copy of the embedding",
            Why::Outside => "outside the text decoder",
        })
    }
}

/// The names of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// What stands before the names of the text decoder's tensors.
    pub(super) prefix: &'static str,
    /// From names without prefix to those in the file.
    pub(super) full: BTreeMap<String, String>,
    /// Names in the file of what is not read, in name order.
    pub(super) skipped: Vec<(String, Why)>,
}

/// Sorts all names.
pub(super) fn sort(entries: &BTreeMap<String, Entry>, config: &Config, place: &str) -> Result<Names> {
    let prefix = prefix(entries, place)?;
    let mut n = Names { prefix, ..Names::default() };
    for name in entries.keys() {
        let head = HEAD_PREFIXES.iter().find_map(|p| name.strip_prefix(p).filter(|rest| rest.starts_with("lm_head.")));
        let canonical = if is_tower(name) { None } else { head.or_else(|| name.strip_prefix(prefix)) };
        let why = match canonical {
            None if is_tower(name) => Some(Why::Tower),
            None => Some(Why::Outside),
            Some(_) if head.is_some() && config.tied => Some(Why::HeadCopy),
            Some(c) if makes_shared_keys(c, config) => Some(Why::SharedKeys),
            Some(_) => None,
        };
        if let Some(why) = why {
            n.skipped.push((name.clone(), why));
        }
        if let Some(c) = canonical
            && let Some(old) = n.full.insert(c.to_string(), name.clone())
        {
            return Err(Diagnostic::new("E0235", format!("{old} and {name} are the same tensor of the text decoder"))
                .at(place)
                .hint("the folder seems to mix two checkpoints: keep the shards of one"));
        }
    }
    Ok(n)
}

fn is_tower(name: &str) -> bool {
    let rest = name.strip_prefix("model.").unwrap_or(name);
    TOWERS.iter().any(|t| rest.strip_prefix(t).is_some_and(|r| r.starts_with('.')))
}

fn makes_shared_keys(name: &str, config: &Config) -> bool {
    let Some((layer, rest)) = name.strip_prefix("layers.").and_then(|r| r.split_once('.')) else { return false };
    let shares = layer.parse().ok().and_then(|i: usize| config.layers.get(i)).is_some_and(|l| l.kv_from.is_some());
    shares
        && ["k_proj.", "v_proj.", "k_norm.", "v_norm."]
            .iter()
            .any(|m| rest.strip_prefix("self_attn.").is_some_and(|r| r.starts_with(m)))
}

fn prefix(entries: &BTreeMap<String, Entry>, place: &str) -> Result<&'static str> {
    let mut found: Vec<&'static str> =
        PREFIXES.into_iter().filter(|p| entries.contains_key(&format!("{p}embed_tokens.weight"))).collect();
    if found.is_empty() {
        // The shard with the embedding may be what is missing: then the layers tell, and all that is missing can be listed.
        let layers = |p: &&str| entries.range(format!("{p}layers.")..format!("{p}layers/")).next().is_some();
        found = PREFIXES.into_iter().filter(layers).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let some: Vec<&str> = entries.keys().take(3).map(String::as_str).collect();
            Err(Diagnostic::new("E0222", format!("no text decoder among the {} tensors: no embed_tokens.weight", entries.len()))
                .at(place)
                .hint(format!("looked for the prefixes {}; the names here begin with: {}", PREFIXES.join(" "), some.join(", "))))
        }
        many => Err(Diagnostic::new("E0223", format!("there are several text decoders here, named {}", many.join(" and ")))
            .at(place)
            .hint("the folder seems to mix two checkpoints: keep the shards of one")),
    }
}
