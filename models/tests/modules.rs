//! Modules, the demo checkpoint and the content hash: quantization is what the shapes say, and config.json agrees.

mod common;

use common::*;
use models::{Checkpoint, Module};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fs;
use std::path::Path;

/// The message for the module `m`, of 4 rows and 64 columns, stored as given.
fn module(tensors: &[Stored], declared: Value) -> Result<(u32, u32), String> {
    let mut c = config();
    c.as_object_mut().unwrap().remove("quantization_config");
    c["quantization"] = declared;
    let named: Vec<(String, &str, &[usize])> = tensors.iter().map(|(n, d, s)| (format!("model.m.{n}"), *d, *s)).collect();
    let mut all = vec![EMBED];
    all.extend(named.iter().map(|(n, d, s)| (n.as_str(), *d, *s)));
    let opened = open(&c, &[("m.safetensors", zeros(&all))]).unwrap();
    match opened.module("m", &[4], 64) {
        Ok(Module::Affine { bits, group, stack: 1, rows: 4, cols: 64, .. }) => Ok((bits, group)),
        Ok(Module::Plain { stack: 1, rows: 4, cols: 64, .. }) => Ok((0, 0)),
        Ok(other) => panic!("{other:?}"),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn modules() {
    let q = |bits: u32, group: u32| json!({"bits": bits, "group_size": group});
    let w4: Stored = ("weight", "U32", &[4, 8]);
    let (s, b): (Stored, Stored) = (("scales", "BF16", &[4, 1]), ("biases", "BF16", &[4, 1]));
    assert_eq!(module(&[w4, s, b], q(4, 64)), Ok((4, 64)));
    assert_eq!(
        module(&[("weight", "U32", &[4, 16]), ("scales", "F16", &[4, 2]), ("biases", "F16", &[4, 2])], q(8, 32)),
        Ok((8, 32))
    );
    assert_eq!(module(&[("weight", "F32", &[4, 64])], q(4, 64)), Ok((0, 0)));

    let fails = |t: &[Stored], d: Value| module(t, d).expect_err("must be refused");
    says(
        fails(&[w4, s, b], q(8, 64)),
        "m.safetensors: model.m.weight: config.json says 8 bits in groups of 64 for m, the tensors say 4 bits in groups of 64",
    );
    says(fails(&[w4, s, b], q(4, 32)), "says 4 bits in groups of 32 for m, the tensors say 4 bits in groups of 64");
    // A silent configuration leaves it to the shapes, with a warning.
    assert_eq!(module(&[w4, s, b], Value::Null), Ok((4, 64)));
    for (bits, words) in [(2u32, 4usize), (3, 6), (5, 10), (6, 12)] {
        assert_eq!(module(&[("weight", "U32", &[4, words]), s, b], q(bits, 64)), Ok((bits, 64)));
    }
    says(
        fails(&[w4, s, b], json!({"bits": 4, "group_size": 64, "model.m": false})),
        "says not quantized for m, the tensors say 4",
    );
    says(
        fails(&[("weight", "BF16", &[4, 64])], json!({"bits": 4, "group_size": 64, "model.m": {"bits": 8, "group_size": 64}})),
        "says 8 bits in groups of 64 for m, the tensors say no scales, so not quantized",
    );
    says(fails(&[], q(4, 64)), "the tensor model.m.weight is missing\nhint: a shard");
    says(fails(&[w4, s], q(4, 64)), "the tensor model.m.biases is missing");
    says(fails(&[("weight", "BF16", &[4, 64]), b], q(4, 64)), "model.m.biases: there are biases but no scales");
    says(fails(&[("weight", "BF16", &[4, 8]), s, b], q(4, 64)), "there are scales, but the codes are BF16, expected U32");
    says(fails(&[("weight", "U32", &[4, 64])], q(4, 64)), "the type is U32, expected BF16, F16 or F32");
    says(fails(&[("weight", "BF16", &[64, 4])], q(4, 64)), "model.m.weight: the shape is [64, 4], expected [4, 64]");
    says(
        fails(&[("weight", "U32", &[5, 8]), s, b], q(4, 64)),
        "the shape is [5, 8], expected [4] and a last dimension of u32 words",
    );
    says(fails(&[("weight", "U32", &[4, 14]), s, b], q(4, 64)), "14 words a row of 64 are not codes of 2, 3, 4, 5, 6 or 8 bits");
    says(fails(&[("weight", "U32", &[4, 0]), s, b], q(4, 64)), "the shape is [4, 0]");
    says(
        fails(&[w4, ("scales", "BF16", &[4, 3]), ("biases", "BF16", &[4, 3])], q(4, 64)),
        "3 groups a row of 64 are not groups of 32",
    );
    says(fails(&[w4, ("scales", "I32", &[4, 1]), b], q(4, 64)), "model.m.scales: the type is I32");
    says(fails(&[w4, s, ("biases", "BF16", &[4, 2])], q(4, 64)), "biases are BF16 [4, 2], but scales BF16 [4, 1]");
}

#[test]
fn the_demo_checkpoint() {
    let c = Checkpoint::open(Path::new(DEMO)).unwrap();
    assert_eq!(c.prefix(), "language_model.model.");
    let Module::Affine { bits: 4, group: 64, stack: 16, rows: 256, cols: 64, .. } =
        c.module("layers.0.experts.switch_glu.down_proj", &[16, 256], 64).unwrap()
    else {
        panic!("expected 4-bit stacked experts");
    };
    let router = c.module("layers.7.router.proj", &[16], 256).unwrap();
    assert!(matches!(router, Module::Affine { bits: 8, group: 64, stack: 1, rows: 16, cols: 256, .. }));
    let row = models::checkpoint::dequant_f64(&router, 0, 15).unwrap();
    assert!(row.len() == 256 && row.iter().all(|x| x.is_finite()) && row.iter().any(|x| *x != 0.0));
    assert_eq!(c.floats("norm.weight", &[256]).unwrap().floats().unwrap().len(), 256);
    says(
        c.floats("norm.weight", &[255]).unwrap_err().to_string(),
        "language_model.model.norm.weight: the shape is [256], expected [255]",
    );
    says(c.floats("nope", &[1]).unwrap_err().to_string(), "the tensor language_model.model.nope is missing");
}

#[test]
fn the_content_hash_sees_contents_only() {
    type Files = Vec<(String, Cow<'static, [u8]>)>;
    let folder = Folder::new("content_hash");
    let mut files: Files = vec![("model.safetensors".into(), Cow::Owned(zeros(&[EMBED])))];
    for name in ["config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"] {
        files.push((name.into(), Cow::Owned(fs::read(format!("{DEMO}/{name}")).unwrap())));
    }
    files.push(("tokenizer.json".into(), Cow::Borrowed(b"not read here")));
    for (name, bytes) in &files {
        folder.put(name, bytes);
    }
    let opened = Checkpoint::open(&folder.0).unwrap().content_hash();
    let hash = |f: Files| Checkpoint::from_memory(f).unwrap().content_hash();
    let mut other_order = files.clone();
    other_order.reverse();
    other_order.push(("README.md".into(), Cow::Borrowed(b"hi")));
    other_order.push(("model.safetensors.index.json".into(), Cow::Borrowed(b"stale")));
    assert_eq!(opened.len(), 64);
    assert_eq!([&opened, &opened], [&hash(files.clone()), &hash(other_order)]);
    for i in 0..files.len() {
        let mut changed = files.clone();
        let bytes = changed[i].1.to_mut();
        match i {
            0 => *bytes.last_mut().unwrap() ^= 1,
            _ => bytes.push(b'\n'),
        }
        assert_ne!(opened, hash(changed), "{}", files[i].0);
    }
    let fewer: Files = files[..5].to_vec();
    assert_ne!(opened, hash(fewer));
}
