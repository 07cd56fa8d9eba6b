//! Checkpoints whose files are sound and do not fit each other, or are not there.

use super::model::{Model, RUN, WEIGHTS, damaged, header_of, shard};
use super::{Case, case, pipe};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;

const Q: &str = "language_model.model.layers.3.self_attn.q_proj";
const NORM: &str = "language_model.model.layers.3.input_layernorm.weight";
const INDEX: &str = "model.safetensors.index.json";

/// The weights as two shards; `change` is told the tensors of the second before they are written.
fn two_shards(m: &Model, change: impl Fn(&mut Vec<String>)) {
    let (header, data_at) = header_of(&m.path(WEIGHTS));
    let bytes = fs::read(m.path(WEIGHTS)).unwrap();
    let names: Vec<String> = header.as_object().unwrap().keys().filter(|k| *k != "__metadata__").cloned().collect();
    let (a, b) = names.split_at(names.len() / 2);
    let mut b = b.to_vec();
    change(&mut b);
    m.remove(WEIGHTS);
    for (file, names) in [("model-1-of-2.safetensors", a), ("model-2-of-2.safetensors", &b)] {
        let (mut entries, mut data) = (serde_json::Map::new(), vec![]);
        for n in names {
            let mut e = header[n].clone();
            let at = |i: usize| e["data_offsets"][i].as_u64().unwrap() + data_at;
            let part = &bytes[at(0) as usize..at(1) as usize];
            e["data_offsets"] = json!([data.len(), data.len() + part.len()]);
            data.extend_from_slice(part);
            entries.insert(n.clone(), e);
        }
        m.put(file, shard(Value::Object(entries).to_string(), &data));
    }
    let map: serde_json::Map<String, Value> = names
        .iter()
        .enumerate()
        .map(|(i, n)| (n.clone(), format!("model-{}-of-2.safetensors", 1 + usize::from(i >= names.len() / 2)).into()))
        .collect();
    m.put(INDEX, json!({ "weight_map": map }).to_string());
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let header = |name: &str, change: fn(&mut Value)| damaged(name, move |m| m.header(change));
    let rename = |v: &mut Value, from: &str, to: &str| {
        let o = v.as_object_mut().unwrap();
        let e = o.remove(from).unwrap();
        o.insert(to.into(), e);
    };
    vec![
        header("norm-of-integers", |v| v[NORM]["dtype"] = json!("I16")),
        header("norm-of-another-length", |v| v[NORM]["shape"] = json!([128, 2])),
        header("codes-of-another-type", |v| v[format!("{Q}.weight")]["dtype"] = json!("F32")),
        header("codes-of-another-width", |v| v[format!("{Q}.weight")]["shape"] = json!([1024, 16])),
        header("scales-of-another-width", |v| v[format!("{Q}.scales")]["shape"] = json!([256, 8])),
        header("offsets-of-another-type", |v| v[format!("{Q}.biases")]["dtype"] = json!("F16")),
        damaged("scales-missing", move |m| m.header(|v| rename(v, &format!("{Q}.scales"), "vision_tower.x"))),
        damaged("biases-missing", move |m| m.header(|v| rename(v, &format!("{Q}.biases"), "vision_tower.x"))),
        damaged("codes-missing", move |m| m.header(|v| rename(v, &format!("{Q}.weight"), "vision_tower.x"))),
        damaged("norm-missing", move |m| m.header(|v| rename(v, NORM, "vision_tower.x"))),
        damaged("tensor-of-a-layer-too-many", move |m| {
            m.header(|v| rename(v, NORM, "language_model.model.layers.8.input_layernorm.weight"))
        }),
        damaged("tensor-with-an-unknown-name", move |m| {
            m.header(|v| rename(v, NORM, "language_model.model.layers.3.input_layer_norm.weight"))
        }),
        damaged("two-decoders", |m| {
            let zeros = r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
            m.put("other.safetensors", shard(zeros, &[0; 8]));
        }),
        damaged("tensor-in-two-files", |m| symlink(WEIGHTS, m.path("again.safetensors")).unwrap()),
        damaged("tensor-in-two-shards", |m| two_shards(m, |b| b.insert(0, NORM.replace(".3.", ".0.")))),
        damaged("shard-missing", |m| {
            two_shards(m, |_| ());
            m.remove("model-2-of-2.safetensors");
        }),
        damaged("shard-empty", |m| {
            two_shards(m, |_| ());
            m.put("model-2-of-2.safetensors", "");
        }),
        damaged("index-stale", |m| m.replace(INDEX, NORM, "language_model.model.gone"))
            .warns()
            .large("compiles and runs the model"),
        damaged("index-damaged", |m| m.put(INDEX, "{")).warns().large("compiles and runs the model"),
        damaged("no-weights", |m| m.remove(WEIGHTS)),
        damaged("weights-of-pytorch", |m| {
            m.remove(WEIGHTS);
            m.put("pytorch_model.bin", "");
        }),
        damaged("weights-of-gguf", |m| {
            for name in [WEIGHTS, "config.json"] {
                m.remove(name);
            }
            m.put("model.gguf", "GGUF");
        }),
        damaged("no-config", |m| m.remove("config.json")),
        damaged("weights-are-a-folder", |m| {
            m.remove(WEIGHTS);
            fs::create_dir(m.path(WEIGHTS)).unwrap();
        }),
        damaged("weights-are-a-pipe", |m| {
            m.remove(WEIGHTS);
            pipe(&m.path(WEIGHTS));
        }),
        damaged("config-is-a-pipe", |m| {
            m.remove("config.json");
            pipe(&m.path("config.json"));
        }),
        damaged("weights-lead-nowhere", |m| {
            m.remove(WEIGHTS);
            symlink("gone", m.path(WEIGHTS)).unwrap();
        }),
        case("no-such-folder", |_| (), &RUN.replace("model", "no/such")),
        case("empty-folder", |dir| fs::create_dir(dir.join("model")).unwrap(), RUN),
        case("a-file-for-a-folder", |dir| fs::write(dir.join("model"), "text").unwrap(), RUN),
        damaged("a-file-of-the-folder", |_| ()).run(&RUN.replace("model", "model/model.safetensors")),
    ]
}
