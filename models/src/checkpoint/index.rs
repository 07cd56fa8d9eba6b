//! The index of a sharded checkpoint, which repositories sometimes leave behind when shards are replaced. Tensors are found by
//! the shards' own headers; the index is compared with them, and what it says wrong becomes a warning.

use super::safetensors::Entry;
use crate::json;
use ir::diag::Diagnostic;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Name of the index file.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Largest index that is read.
const MAX_INDEX: usize = 64 << 20;

/// What an index says that is not so.
#[derive(Default)]
pub(super) struct Stale {
    /// Shards that it names and that are not here, in name order.
    pub(super) absent: Vec<String>,
    /// The warning, if there is reason for one.
    pub(super) warning: Option<Diagnostic>,
}

/// Compares an index with what the shards hold.
pub(super) fn compare(bytes: &[u8], place: &str, shards: &BTreeSet<&str>, entries: &BTreeMap<String, Entry>) -> Stale {
    let warn = |message: String| {
        let message = format!("{message}; tensors are found by the headers of the shards instead");
        Some(
            Diagnostic::new("E0234", message)
                .at(place)
                .hint("the index is of another state of this checkpoint: download it again"),
        )
    };
    let map = match json::parse(bytes, MAX_INDEX, place) {
        Err(d) => return Stale { warning: warn(format!("this index cannot be read ({})", d.message)), ..Stale::default() },
        Ok(Value::Object(mut o)) => match o.remove("weight_map") {
            Some(Value::Object(m)) if m.values().all(Value::is_string) => m,
            _ => {
                return Stale {
                    warning: warn("this index has no `weight_map` from tensors to files".into()),
                    ..Stale::default()
                };
            }
        },
        Ok(_) => return Stale { warning: warn("this index is not an object".into()), ..Stale::default() },
    };
    let mut absent = BTreeSet::new();
    let (mut elsewhere, mut nowhere) = (vec![], vec![]);
    for (tensor, file) in &map {
        let file = file.as_str().unwrap_or_default();
        if !shards.contains(file) {
            absent.insert(file.to_string());
        }
        match entries.get(tensor) {
            None => nowhere.push(tensor),
            Some(e) if e.file != file => elsewhere.push(tensor),
            Some(_) => {}
        }
    }
    let unlisted: Vec<&String> = entries.keys().filter(|t| !map.contains_key(*t)).collect();
    let mut what = vec![];
    if let Some(first) = absent.first() {
        what.push(format!(
            "names {} {} not here ({first})",
            absent.len(),
            if absent.len() == 1 { "shard that is" } else { "shards that are" }
        ));
    }
    for (list, says) in [(&elsewhere, "puts"), (&nowhere, "lists"), (&unlisted, "leaves out")] {
        if let Some(first) = list.first() {
            let tail = match says {
                "puts" => " in the wrong file",
                "lists" => " that no shard holds",
                _ => "",
            };
            what.push(format!("{says} {} tensors{tail} ({first})", list.len()));
        }
    }
    let warning = if what.is_empty() { None } else { warn(format!("this index is stale: it {}", what.join(", "))) };
    Stale { absent: absent.into_iter().collect(), warning }
}
