//! The golden transcripts and tensors, made with float64 arithmetic by `../shared/demo-model/make_golden.py`.

use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// One prompt and what greedy decoding makes of it.
pub struct Transcript {
    pub id: String,
    pub user: String,
    pub prompt: Vec<u32>,
    pub generated: Vec<u32>,
    pub text: String,
    pub stop: String,
    /// Best id, second id, their logits: for each generated token.
    pub top2: Vec<(u32, u32, f64, f64)>,
    /// The narrowest choice of experts in the whole transcript.
    pub router_min_gap: f64,
}

/// All transcripts.
pub fn transcripts() -> &'static [Transcript] {
    static ALL: OnceLock<Vec<Transcript>> = OnceLock::new();
    ALL.get_or_init(|| {
        let all: Value = serde_json::from_str(include_str!("../golden/golden.json")).unwrap();
        let all: Vec<Transcript> = all["transcripts"].as_array().unwrap().iter().map(read).collect();
        assert_eq!(all.len(), 11, "golden.json is not the one these tests were written for");
        all
    })
}

/// The transcript of this name.
pub fn transcript(id: &str) -> &'static Transcript {
    transcripts().iter().find(|t| t.id == id).unwrap_or_else(|| panic!("no transcript {id}"))
}

fn read(t: &Value) -> Transcript {
    let text = |k: &str| t[k].as_str().unwrap().to_string();
    let ids = |k: &str| t[k].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
    let top = |x: &Value| {
        let (id, z) = (|k: usize| x[k].as_u64().unwrap() as u32, |k: usize| x[k].as_f64().unwrap());
        (id(0), id(1), z(2), z(3))
    };
    Transcript {
        id: text("id"),
        user: text("user"),
        prompt: ids("prompt_ids"),
        generated: ids("generated_ids"),
        text: text("text"),
        stop: text("stop"),
        top2: t["top2"].as_array().unwrap().iter().map(top).collect(),
        router_min_gap: t["router_min_gap"]["gap"].as_f64().unwrap(),
    }
}

/// Tensors by name: shape, and elements as 32-bit words.
pub fn tensors() -> BTreeMap<String, (Vec<usize>, Vec<u32>)> {
    let bytes = include_bytes!("../golden/golden.safetensors");
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    let number = |v: &Value| v.as_u64().unwrap() as usize;
    let entries = header.as_object().unwrap().iter().filter(|(k, _)| *k != "__metadata__");
    entries
        .map(|(name, t)| {
            let shape = t["shape"].as_array().unwrap().iter().map(number).collect();
            let at = |k: usize| 8 + n + number(&t["data_offsets"][k]);
            let words = bytes[at(0)..at(1)].chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
            (name.clone(), (shape, words))
        })
        .collect()
}
