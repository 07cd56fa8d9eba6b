//! The released sizes: their configurations with random weights, whole or cut to few layers.

use super::random;
use models::Checkpoint;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Folders in `tests/configs`.
pub const SIZES: [&str; 6] = ["26b-a4b-mlx-4bit", "e2b", "e4b", "12b", "31b", "26b-a4b"];

/// The folder of a size.
pub fn folder(size: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(size)
}

/// A size with random weights.
pub fn whole(size: &str) -> Checkpoint {
    random::open(&folder(size), 1)
}

/// A size with a sliding and a full layer only; where layers share keys, with two more that do. `vocab`: a smaller vocabulary.
pub fn cut(size: &str, vocab: Option<usize>) -> Checkpoint {
    let text = std::fs::read(folder(size).join("config.json")).unwrap();
    let mut c: Value = serde_json::from_slice(&text).unwrap();
    let t = &mut c["text_config"];
    let mut kinds = vec!["sliding_attention", "full_attention"];
    if t["num_kv_shared_layers"].as_u64() > Some(0) {
        kinds.extend(kinds.clone());
        t["num_kv_shared_layers"] = json!(2);
    }
    t["num_hidden_layers"] = json!(kinds.len());
    t["layer_types"] = json!(kinds);
    if let Some(v) = vocab {
        t["vocab_size"] = json!(v);
        t["vocab_size_per_layer_input"] = json!(v);
    }
    let dir = random::write(&format!("cut-{size}-{}", vocab.unwrap_or(0)), &c);
    let ck = random::open(&dir, 1);
    std::fs::remove_dir_all(dir).unwrap();
    ck
}
