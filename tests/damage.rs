//! Damaged models, through the whole path: a configuration of another model is refused by name, and a value that is not
//! finite stops generation with its position and place.

#![cfg(feature = "llvm")]

mod common;

use common::{best_target, object, on_host, plan, threads, through_passes};
use ir::graph::op::EmbedMode;
use models::Checkpoint;
use passes::Options;
use runtime::session::Limits;
use std::borrow::Cow;
use std::path::Path;

/// The demo model's files, changed.
fn damaged(change: impl Fn(&str, &mut Vec<u8>)) -> ir::diag::Result<Checkpoint> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit");
    let mut files = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut bytes = std::fs::read(&path).unwrap();
        change(&name, &mut bytes);
        files.push((name, Cow::Owned(bytes)));
    }
    Checkpoint::from_memory(files)
}

fn replaced(bytes: &mut Vec<u8>, from: &str, to: &str) {
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.contains(from), "{from}");
    *bytes = text.replace(from, to).into_bytes();
}

#[test]
fn a_configuration_that_leaves_tensors_over_is_refused() {
    let ck = damaged(|name, bytes| {
        if name == "config.json" {
            replaced(bytes, "\"enable_moe_block\": true", "\"enable_moe_block\": false");
        }
    });
    let e = ck.and_then(|ck| models::gemma4::layers::graph(&ck, EmbedMode::Exact)).unwrap_err();
    assert_eq!(e.code, "E0260");
    assert!(e.message.contains("layers.0.experts"), "{e}");
}

#[test]
fn a_nan_in_a_scale_is_reported_where_it_enters() {
    let clean = damaged(|_, _| {}).unwrap();
    let t = clean.tensor("layers.3.self_attn.q_proj.scales").unwrap();
    let at = t.bytes.as_ptr() as usize - clean.file("model.safetensors").unwrap().as_ptr() as usize;
    let ck = damaged(|name, bytes| {
        if name == "model.safetensors" {
            bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
        }
    })
    .unwrap();
    let graph = models::gemma4::layers::graph(&ck, EmbedMode::Exact).unwrap();
    let options = Options::default();
    let p = plan(&through_passes(graph, &options), &options);
    let mut s = on_host(&p, &object(&p, best_target()), threads(1), Limits::default(), &ck);
    for chunk in [128, 1] {
        s.reset();
        let e = s.run(&[2, 107, 3000, 5], chunk, 0, &mut |_| {}).unwrap_err();
        assert_eq!(e.code, "E0436");
        assert!(e.message.contains("position 0"), "{e}");
        assert_eq!(e.place, "layers.3.attn.q", "{e}");
    }
}
