//! Safetensors files that are none: cut, with headers that lie, with tensors that overlap.

use super::Case;
use super::model::{WEIGHTS, damaged, demo, shard, two};

/// All cases.
pub fn cases() -> Vec<Case> {
    let file = |name: &str, bytes: Vec<u8>| damaged(name, move |m| m.put(WEIGHTS, &bytes));
    let claims = |length: u64| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([b' '; 64]);
        file(&format!("header-length-{length}"), bytes)
    };
    let mut out = vec![file("empty", vec![]), file("four-bytes", vec![2, 0, 0, 0])];
    out.extend([0, 1, 73, 1 << 31, 1 << 63, u64::MAX].map(claims));
    for i in 1..16 {
        out.push(damaged(format!("cut-at-{i}-sixteenths"), move |m| {
            let length = demo().join(WEIGHTS).metadata().unwrap().len();
            m.own(WEIGHTS).set_len(length * i / 16).unwrap();
        }));
    }
    out.extend([
        damaged("cut-by-one", |m| {
            let f = m.own(WEIGHTS);
            f.set_len(f.metadata().unwrap().len() - 1).unwrap();
        }),
        damaged("one-byte-too-many", |m| {
            let f = m.own(WEIGHTS);
            f.set_len(f.metadata().unwrap().len() + 1).unwrap();
        }),
        file("git-lfs-pointer", b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
        file("header-is-a-list", shard("[1]", &[])),
        file("header-is-no-json", shard("{\"a\" 7}", &[])),
        file("header-is-cut", shard("{\"a\"", &[])),
        file("header-is-not-utf8", shard(b"{\"\xff\":7}", &[])),
        file("header-is-nested", shard("[".repeat(10_000), &[])),
        file("header-is-nested-in-an-entry", shard(format!("{{\"a\":{}", "{\"a\":".repeat(10_000)), &[])),
        file("header-with-zero-byte", shard("{\"a\":\u{0}}", &[])),
        file("metadata-is-a-number", shard(r#"{"__metadata__":{"a":1}}"#, &[])),
        file("no-tensors", shard("{}", &[])),
        file("overlapping", two([0, 5], [4, 8])),
        file("one-range-twice", two([0, 8], [0, 8])),
        file("gap", two([0, 3], [4, 8])),
    ]);
    let entry = |name: &str, text: &str| file(name, shard(format!("{{\"t\":{text}}}"), &[0; 8]));
    let one = r#""t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    out.extend([
        entry("entry-is-a-number", "7"),
        entry("no-dtype", r#"{"shape":[2],"data_offsets":[0,8]}"#),
        entry("no-shape", r#"{"dtype":"F32","data_offsets":[0,8]}"#),
        entry("no-offsets", r#"{"dtype":"F32","shape":[2]}"#),
        entry("unknown-dtype", r#"{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#),
        entry("negative-shape", r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#),
        entry("shape-of-floats", r#"{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}"#),
        entry("shape-is-a-number", r#"{"dtype":"F32","shape":2,"data_offsets":[0,8]}"#),
        entry("shape-too-large", r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#),
        entry("shape-of-half-bytes", r#"{"dtype":"F4","shape":[15],"data_offsets":[0,8]}"#),
        entry("shape-overflows", r#"{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}"#),
        entry("shape-beyond-64-bits", r#"{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}"#),
        entry("three-offsets", r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}"#),
        entry("offsets-inverted", r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#),
        entry("offsets-overflow", r#"{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]}"#),
        entry("offsets-beyond-the-file", r#"{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#),
        entry("bytes-before", r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#),
        entry("bytes-after", r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#),
        entry("unknown-key", r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}"#),
        entry("duplicate-key-in-entry", r#"{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}"#),
        file("duplicate-tensor", shard(format!("{{{one},{one}}}"), &[0; 8])),
    ]);
    out
}
