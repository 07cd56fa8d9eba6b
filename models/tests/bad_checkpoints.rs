//! Damaged checkpoints: each planted fault is refused with a message that names it.

mod common;

use common::*;
use models::Checkpoint;
use serde_json::json;
use std::borrow::Cow;
use std::fs;

#[test]
fn header_lengths() {
    says(refused(vec![]), "m.safetensors: 0 bytes are too few for a safetensors file");
    says(refused(vec![2, 0, 0, 0]), "4 bytes are too few");
    for claimed in [0u64, 1, 1 << 31, 1 << 63, u64::MAX] {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend([b' '; 64]);
        says(refused(bytes), &format!("the header claims to have {claimed} bytes, expected 2 to 100000000"));
    }
    let mut bytes = 100u64.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    says(refused(bytes), "claims to have 100 bytes, but the file has 10\nhint: the file seems cut off");
    says(refused(b"version https://git-lfs.github.com/spec/v1\n".to_vec()), "Git LFS pointer");
    says(refused(shard("[1]", &[])), "the header is [1], expected an object");
    says(refused(shard("{\"a\"", &[])), "m.safetensors: safetensors header: damaged JSON: EOF");
    says(refused(shard(&"[".repeat(9999), &[])), "recursion limit");
    says(refused(shard("{\"a\":\u{0}}", &[])), "damaged JSON");
    says(refused(shard("{\"__metadata__\":{\"a\":1}}", &[])), "`__metadata__` is {\"a\":1}, expected strings");
    says(refused(shard("{}", &[])), "no text decoder among the 0 tensors");
}

/// One tensor `t` of an entry, with 8 bytes of data.
fn entry(text: &str) -> String {
    refused(shard(&format!("{{\"t\":{text}}}"), &[0; 8]))
}

#[test]
fn tensor_entries() {
    says(entry("7"), "m.safetensors: t: its entry is 7, expected an object");
    says(entry(r#"{"shape":[2],"data_offsets":[0,8]}"#), "t: `dtype` is missing");
    says(entry(r#"{"dtype":"F32","data_offsets":[0,8]}"#), "t: `shape` is missing");
    says(entry(r#"{"dtype":"F32","shape":[2]}"#), "t: `data_offsets` is missing");
    says(entry(r#"{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#), "`dtype` is \"F31\", which is unknown");
    says(entry(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#), "`shape` is [-2], expected a list of sizes");
    says(entry(r#"{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}"#), "`shape` is [2.0]");
    says(entry(r#"{"dtype":"F32","shape":2,"data_offsets":[0,8]}"#), "`shape` is 2");
    says(entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}"#), "`data_offsets` has 3 numbers, expected 2");
    says(entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#), "`data_offsets` run backwards, from 8 to 0");
    says(entry(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#), "[3] of F32 takes 12 bytes, but `data_offsets` hold 8");
    says(entry(r#"{"dtype":"F4","shape":[15],"data_offsets":[0,8]}"#), "[15] of F4 takes 8 bytes");
    says(entry(r#"{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}"#), "more bits than can be counted");
    says(entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]}"#), "beyond any file");
    says(entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#), "t: its data end at byte");
    says(
        entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#),
        "t: 4 bytes between the header and its data belong to nothing",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#),
        "m.safetensors: 4 bytes after the last tensor belong to nothing",
    );
    says(entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}"#), "t: unknown key `x`");
    let one = r#""t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    says(refused(shard(&format!("{{{one},{one}}}"), &[0; 8])), "the key `t` is given twice");
    let two = |a: [usize; 2], b: [usize; 2]| {
        let e = |r: [usize; 2]| json!({"dtype": "U8", "shape": [r[1] - r[0]], "data_offsets": r});
        refused(shard(&json!({"a": e(a), "b": e(b)}).to_string(), &[0; 8]))
    };
    says(two([0, 5], [4, 8]), "m.safetensors: b: its data overlap those of a by 1 bytes");
    says(two([0, 8], [0, 8]), "b: its data overlap those of a by 8 bytes");
    says(two([0, 3], [4, 8]), "b: 1 bytes between a and its data belong to nothing");
}

#[test]
fn every_truncation_of_the_demo_file_is_refused() {
    let whole = fs::read(format!("{DEMO}/model.safetensors")).unwrap();
    let len = whole.len();
    let cuts = [1, 7, 8, 9, 1000, 44279, 44280, 44281, len / 2, len - 1];
    for cut in cuts {
        let e = refused(whole[..cut].to_vec());
        assert!(e.starts_with("m.safetensors"), "{cut}: {e}");
        says(e, "cut off");
    }
    let mut longer = whole.clone();
    longer.push(0);
    says(refused(longer), "1 bytes after the last tensor");
}

#[test]
fn no_flipped_header_byte_panics() {
    let good = zeros(&[EMBED, ("model.norm.weight", "BF16", &[2])]);
    let mut accepted = 0;
    for at in 0..good.len() - 12 {
        for flip in [1u8, 4, 32, 128] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            accepted += open(&config(), &[("m.safetensors", bytes)]).is_ok() as usize;
        }
    }
    // A letter of a name may change without harm; the structure may not.
    assert!(accepted < good.len(), "{accepted}");
}

#[test]
fn shards() {
    let (a, b) = (zeros(&[EMBED]), zeros(&[("model.norm.weight", "BF16", &[2])]));
    let c = open(&config(), &[("m-1.safetensors", a.clone()), ("m-2.safetensors", b.clone())]).unwrap();
    assert_eq!((c.prefix(), c.tensor("norm.weight").unwrap().file), ("model.", "m-2.safetensors"));
    let names: Vec<&str> = c.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    // The headers decide: an index that lies is not read.
    let index = ("model.safetensors.index.json", b"{\"weight_map\":{\"model.norm.weight\":\"gone\"}}".to_vec());
    assert!(open(&config(), &[("m.safetensors", a.clone()), index]).is_ok());
    let twice = open(&config(), &[("x.safetensors", a.clone()), ("y.safetensors", a.clone())]);
    says(twice.err().unwrap().to_string(), "model.embed_tokens.weight is in two files, x.safetensors and y.safetensors");
    let both = zeros(&[EMBED, ("language_model.model.embed_tokens.weight", "BF16", &[2, 2])]);
    says(refused(both), "several text decoders here, named language_model.model. and model.");
    says(
        refused(b),
        "no embed_tokens.weight\nhint: looked for the prefixes language_model.model. model.language_model. model.; the names here begin with: model.norm.weight",
    );
}

#[test]
fn folders() {
    let f = Folder::new("bad_checkpoints_folders");
    let missing = Checkpoint::open(&f.0.join("nowhere")).err().unwrap();
    says(missing.to_string(), "nowhere: there is no such folder\nhint: give the folder of a downloaded checkpoint");
    says(f.refused(), "there is no config.json here\nhint: a checkpoint is a folder with");
    f.put("m.gguf", "");
    says(f.refused(), "not GGUF");
    f.put("config.json", "");
    says(f.refused(), "config.json: damaged JSON: EOF");
    f.put("config.json", config().to_string());
    says(f.refused(), "there is no *.safetensors file here\nhint: the weights seem not to be downloaded");
    f.put("pytorch_model.bin", "");
    says(f.refused(), "only safetensors is read");
    f.put("m.safetensors", "");
    says(f.refused(), "m.safetensors: 0 bytes are too few");
    f.put("m.safetensors", zeros(&[EMBED]));
    f.put("._m.safetensors", "litter");
    assert!(Checkpoint::open(&f.0).is_ok());
    let file = Checkpoint::open(&f.0.join("m.safetensors")).err().unwrap().to_string();
    says(file.clone(), "this is a file, but a checkpoint is a folder\nhint: give the folder that holds it: ");
    fs::create_dir(f.0.join("x.safetensors")).unwrap();
    says(f.refused(), "x.safetensors: this is not a regular file");
    fs::remove_dir(f.0.join("x.safetensors")).unwrap();
    std::os::unix::fs::symlink("gone", f.0.join("tokenizer.json")).unwrap();
    says(f.refused(), "tokenizer.json: cannot be read: No such file");
    let twice = vec![("config.json".to_string(), Cow::Borrowed(&b"{}"[..])); 2];
    says(Checkpoint::from_memory(twice).err().unwrap().to_string(), "the file config.json is given twice");
}

#[test]
fn configurations_are_checked_on_opening() {
    let mut c = config();
    c["text_config"]["top_k_experts"] = json!(99);
    let e = open(&c, &[("m.safetensors", zeros(&[EMBED]))]).err().unwrap().to_string();
    says(e, "config.json: `top_k_experts` = 99 exceeds `num_experts` = 16");
}
