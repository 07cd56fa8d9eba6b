//! Damaged and contradicting checkpoints: each planted fault is refused with a message that names it.

use models::{Checkpoint, Module};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/mlx-4bit");

/// A safetensors file from a header text and data.
fn shard(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

/// A well-formed shard of zeros.
fn zeros(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let size = shape.iter().product::<usize>()
            * if *dtype == "BF16" || *dtype == "F16" {
                2
            } else {
                4
            };
        header.insert(
            name.to_string(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}),
        );
        at += size;
    }
    shard(&Value::Object(header).to_string(), &vec![0; at])
}

fn config() -> Value {
    serde_json::from_slice(&fs::read(format!("{DEMO}/config.json")).unwrap()).unwrap()
}

fn open(config: &Value, shards: &[(&str, Vec<u8>)]) -> ir::diag::Result<Checkpoint> {
    let mut files = vec![(
        "config.json".to_string(),
        Cow::Owned(config.to_string().into_bytes()),
    )];
    files.extend(
        shards
            .iter()
            .map(|(n, b)| (n.to_string(), Cow::Owned(b.clone()))),
    );
    Checkpoint::from_memory(files)
}

fn refused(bytes: Vec<u8>) -> String {
    open(&config(), &[("m.safetensors", bytes)])
        .err()
        .expect("must be refused")
        .to_string()
}

#[track_caller]
fn says(message: String, part: &str) {
    assert!(message.contains(part), "expected {part:?} in:\n{message}");
}

const EMBED: (&str, &str, &[usize]) = ("model.embed_tokens.weight", "BF16", &[2, 2]);

#[test]
fn header_lengths() {
    says(
        refused(vec![]),
        "m.safetensors: 0 bytes are too few for a safetensors file",
    );
    says(refused(vec![2, 0, 0, 0]), "4 bytes are too few");
    for claimed in [0u64, 1, 1 << 31, 1 << 63, u64::MAX] {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend([b' '; 64]);
        says(
            refused(bytes),
            &format!("the header claims to have {claimed} bytes, expected 2 to 100000000"),
        );
    }
    let mut bytes = 100u64.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    says(
        refused(bytes),
        "claims to have 100 bytes, but the file has 10\nhint: the file seems cut off",
    );
    says(
        refused(b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
        "Git LFS pointer",
    );
    says(
        refused(shard("[1]", &[])),
        "the header is [1], expected an object",
    );
    says(
        refused(shard("{\"a\"", &[])),
        "m.safetensors: safetensors header: damaged JSON: EOF",
    );
    says(refused(shard(&"[".repeat(9999), &[])), "recursion limit");
    says(refused(shard("{\"a\":\u{0}}", &[])), "damaged JSON");
    says(
        refused(shard("{\"__metadata__\":{\"a\":1}}", &[])),
        "`__metadata__` is {\"a\":1}, expected strings",
    );
    says(
        refused(shard("{}", &[])),
        "no text decoder among the 0 tensors",
    );
}

/// One tensor `t` of an entry, with 8 bytes of data.
fn entry(text: &str) -> String {
    refused(shard(&format!("{{\"t\":{text}}}"), &[0; 8]))
}

#[test]
fn tensor_entries() {
    says(
        entry("7"),
        "m.safetensors: t: its entry is 7, expected an object",
    );
    says(
        entry(r#"{"shape":[2],"data_offsets":[0,8]}"#),
        "t: `dtype` is missing",
    );
    says(
        entry(r#"{"dtype":"F32","data_offsets":[0,8]}"#),
        "t: `shape` is missing",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[2]}"#),
        "t: `data_offsets` is missing",
    );
    says(
        entry(r#"{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#),
        "`dtype` is \"F31\", which is unknown",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#),
        "`shape` is [-2], expected a list of sizes",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}"#),
        "`shape` is [2.0]",
    );
    says(
        entry(r#"{"dtype":"F32","shape":2,"data_offsets":[0,8]}"#),
        "`shape` is 2",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}"#),
        "`data_offsets` has 3 numbers, expected 2",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#),
        "`data_offsets` run backwards, from 8 to 0",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#),
        "[3] of F32 takes 12 bytes, but `data_offsets` hold 8",
    );
    says(
        entry(r#"{"dtype":"F4","shape":[15],"data_offsets":[0,8]}"#),
        "[15] of F4 takes 8 bytes",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}"#),
        "more bits than can be counted",
    );
    says(
        entry(
            r#"{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]}"#,
        ),
        "beyond any file",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#),
        "t: its data end at byte",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#),
        "t: 4 bytes between the header and its data belong to nothing",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#),
        "m.safetensors: 4 bytes after the last tensor belong to nothing",
    );
    says(
        entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}"#),
        "t: unknown key `x`",
    );
    let one = r#""t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    says(
        refused(shard(&format!("{{{one},{one}}}"), &[0; 8])),
        "the key `t` is given twice",
    );
    let two = |a: [usize; 2], b: [usize; 2]| {
        let e = |r: [usize; 2]| json!({"dtype": "U8", "shape": [r[1] - r[0]], "data_offsets": r});
        refused(shard(&json!({"a": e(a), "b": e(b)}).to_string(), &[0; 8]))
    };
    says(
        two([0, 5], [4, 8]),
        "m.safetensors: b: its data overlap those of a by 1 bytes",
    );
    says(
        two([0, 8], [0, 8]),
        "b: its data overlap those of a by 8 bytes",
    );
    says(
        two([0, 3], [4, 8]),
        "b: 1 bytes between a and its data belong to nothing",
    );
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
    let (a, b) = (
        zeros(&[EMBED]),
        zeros(&[("model.norm.weight", "BF16", &[2])]),
    );
    let c = open(
        &config(),
        &[
            ("m-1.safetensors", a.clone()),
            ("m-2.safetensors", b.clone()),
        ],
    )
    .unwrap();
    assert_eq!(
        (c.prefix(), c.tensor("norm.weight").unwrap().file),
        ("model.", "m-2.safetensors")
    );
    let names: Vec<&str> = c.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    // The headers decide: an index that lies is not read.
    let index = (
        "model.safetensors.index.json",
        b"{\"weight_map\":{\"model.norm.weight\":\"gone\"}}".to_vec(),
    );
    assert!(open(&config(), &[("m.safetensors", a.clone()), index]).is_ok());
    let twice = open(
        &config(),
        &[("x.safetensors", a.clone()), ("y.safetensors", a.clone())],
    );
    says(
        twice.err().unwrap().to_string(),
        "model.embed_tokens.weight is in two files, x.safetensors and y.safetensors",
    );
    let both = zeros(&[
        EMBED,
        ("language_model.model.embed_tokens.weight", "BF16", &[2, 2]),
    ]);
    says(
        refused(both),
        "several text decoders here, named language_model.model. and model.",
    );
    says(
        refused(b),
        "no embed_tokens.weight\nhint: looked for the prefixes language_model.model. model.language_model. model.; the names here begin with: model.norm.weight",
    );
}

/// The message for the module `m`, of 4 rows and 64 columns, stored as given.
fn module(tensors: &[(&str, &str, &[usize])], declared: Value) -> Result<(u32, u32), String> {
    let mut c = config();
    c.as_object_mut().unwrap().remove("quantization_config");
    c["quantization"] = declared;
    let named: Vec<(String, &str, &[usize])> = tensors
        .iter()
        .map(|(n, d, s)| (format!("model.m.{n}"), *d, *s))
        .collect();
    let mut all = vec![EMBED];
    all.extend(named.iter().map(|(n, d, s)| (n.as_str(), *d, *s)));
    let opened = open(&c, &[("m.safetensors", zeros(&all))]).unwrap();
    match opened.module("m", &[4], 64) {
        Ok(Module::Affine {
            bits,
            group,
            stack: 1,
            rows: 4,
            cols: 64,
            ..
        }) => Ok((bits, group)),
        Ok(Module::Plain(_)) => Ok((0, 0)),
        Ok(other) => panic!("{other:?}"),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn modules() {
    let q = |bits: u32, group: u32| json!({"bits": bits, "group_size": group});
    let w4: (&str, &str, &[usize]) = ("weight", "U32", &[4, 8]);
    let (s, b): ((&str, &str, &[usize]), (&str, &str, &[usize])) =
        (("scales", "BF16", &[4, 1]), ("biases", "BF16", &[4, 1]));
    assert_eq!(module(&[w4, s, b], q(4, 64)), Ok((4, 64)));
    assert_eq!(
        module(
            &[
                ("weight", "U32", &[4, 16]),
                ("scales", "F16", &[4, 2]),
                ("biases", "F16", &[4, 2])
            ],
            q(8, 32)
        ),
        Ok((8, 32))
    );
    assert_eq!(module(&[("weight", "F32", &[4, 64])], q(4, 64)), Ok((0, 0)));

    let fails = |t: &[(&str, &str, &[usize])], d: Value| module(t, d).expect_err("must be refused");
    says(
        fails(&[w4, s, b], q(8, 64)),
        "m.safetensors: model.m.weight: config.json says 8 bits in groups of 64 for m, the tensors say 4 bits in groups of 64",
    );
    says(
        fails(&[w4, s, b], q(4, 32)),
        "says 4 bits in groups of 32 for m, the tensors say 4 bits in groups of 64",
    );
    says(
        fails(&[w4, s, b], Value::Null),
        "says nothing about quantization for m, the tensors say 4 bits",
    );
    says(
        fails(
            &[w4, s, b],
            json!({"bits": 4, "group_size": 64, "model.m": false}),
        ),
        "says not quantized for m, the tensors say 4",
    );
    says(
        fails(
            &[("weight", "BF16", &[4, 64])],
            json!({"bits": 4, "group_size": 64, "model.m": {"bits": 8, "group_size": 64}}),
        ),
        "says 8 bits in groups of 64 for m, the tensors say no scales, so not quantized",
    );
    says(
        fails(&[], q(4, 64)),
        "the tensor model.m.weight is missing\nhint: a shard",
    );
    says(
        fails(&[w4, s], q(4, 64)),
        "the tensor model.m.biases is missing",
    );
    says(
        fails(&[("weight", "BF16", &[4, 64]), b], q(4, 64)),
        "model.m.biases: there are biases but no scales",
    );
    says(
        fails(&[("weight", "BF16", &[4, 8]), s, b], q(4, 64)),
        "there are scales, but the codes are BF16, expected U32",
    );
    says(
        fails(&[("weight", "U32", &[4, 64])], q(4, 64)),
        "the type is U32, expected BF16, F16 or F32",
    );
    says(
        fails(&[("weight", "BF16", &[64, 4])], q(4, 64)),
        "model.m.weight: the shape is [64, 4], expected [4, 64]",
    );
    says(
        fails(&[("weight", "U32", &[5, 8]), s, b], q(4, 64)),
        "the shape is [5, 8], expected [4] and a last dimension of u32 words",
    );
    says(
        fails(&[("weight", "U32", &[4, 6]), s, b], q(4, 64)),
        "6 words a row of 64 are not codes of 4 or 8 bits",
    );
    says(
        fails(&[("weight", "U32", &[4, 0]), s, b], q(4, 64)),
        "the shape is [4, 0]",
    );
    says(
        fails(
            &[w4, ("scales", "BF16", &[4, 3]), ("biases", "BF16", &[4, 3])],
            q(4, 64),
        ),
        "3 groups a row of 64 are not groups of 32",
    );
    says(
        fails(&[w4, ("scales", "I32", &[4, 1]), b], q(4, 64)),
        "model.m.scales: the type is I32",
    );
    says(
        fails(&[w4, s, ("biases", "BF16", &[4, 2])], q(4, 64)),
        "biases are BF16 [4, 2], but scales BF16 [4, 1]",
    );
}

#[test]
fn the_demo_checkpoint() {
    let c = Checkpoint::open(Path::new(DEMO)).unwrap();
    assert_eq!(c.prefix(), "language_model.model.");
    let Module::Affine {
        bits: 4,
        group: 64,
        stack: 16,
        rows: 256,
        cols: 64,
        ..
    } = c
        .module("layers.0.experts.switch_glu.down_proj", &[16, 256], 64)
        .unwrap()
    else {
        panic!("expected 4-bit stacked experts");
    };
    let router = c.module("layers.7.router.proj", &[16], 256).unwrap();
    assert!(matches!(
        router,
        Module::Affine {
            bits: 8,
            group: 64,
            stack: 1,
            rows: 16,
            cols: 256,
            ..
        }
    ));
    let row = models::checkpoint::dequant_f64(&router, 0, 15).unwrap();
    assert!(row.len() == 256 && row.iter().all(|x| x.is_finite()) && row.iter().any(|x| *x != 0.0));
    assert_eq!(
        c.floats("norm.weight", &[256])
            .unwrap()
            .floats()
            .unwrap()
            .len(),
        256
    );
    says(
        c.floats("norm.weight", &[255]).unwrap_err().to_string(),
        "language_model.model.norm.weight: the shape is [256], expected [255]",
    );
    says(
        c.floats("nope", &[1]).unwrap_err().to_string(),
        "the tensor language_model.model.nope is missing",
    );
}

#[test]
fn the_content_hash_sees_contents_only() {
    let files: Vec<(String, Cow<'static, [u8]>)> = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ]
    .map(|n| {
        (
            n.to_string(),
            Cow::Owned(fs::read(format!("{DEMO}/{n}")).unwrap()),
        )
    })
    .into();
    let opened = Checkpoint::open(Path::new(DEMO)).unwrap().content_hash();
    let hash =
        |f: Vec<(String, Cow<'static, [u8]>)>| Checkpoint::from_memory(f).unwrap().content_hash();
    let mut other_order = files.clone();
    other_order.reverse();
    other_order.push(("README.md".into(), Cow::Borrowed(b"hi")));
    assert_eq!(
        (opened.len(), &opened, &opened),
        (64, &hash(files.clone()), &hash(other_order))
    );
    for i in 0..files.len() - 1 {
        let mut changed = files.clone();
        let bytes = changed[i].1.to_mut();
        let last = bytes.len() - 1;
        if i == 5 {
            bytes[last] ^= 1
        } else {
            bytes.push(b'\n')
        }
        assert_ne!(opened, hash(changed), "{}", files[i].0);
    }
}

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), bytes).unwrap();
    }
    fn refused(&self) -> String {
        Checkpoint::open(&self.0)
            .err()
            .expect("must be refused")
            .to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn folders() {
    let f = Folder::new("bad_checkpoints_folders");
    let missing = Checkpoint::open(&f.0.join("nowhere")).err().unwrap();
    says(
        missing.to_string(),
        "nowhere: there is no such folder\nhint: give the folder of a downloaded checkpoint",
    );
    says(
        f.refused(),
        "there is no config.json here\nhint: a checkpoint is a folder with",
    );
    f.put("m.gguf", "");
    says(f.refused(), "not GGUF");
    f.put("config.json", "");
    says(f.refused(), "config.json: damaged JSON: EOF");
    f.put("config.json", config().to_string());
    says(
        f.refused(),
        "there is no *.safetensors file here\nhint: the weights seem not to be downloaded",
    );
    f.put("pytorch_model.bin", "");
    says(f.refused(), "only safetensors is read");
    f.put("m.safetensors", "");
    says(f.refused(), "m.safetensors: 0 bytes are too few");
    f.put("m.safetensors", zeros(&[EMBED]));
    f.put("._m.safetensors", "litter");
    assert!(Checkpoint::open(&f.0).is_ok());
    let file = Checkpoint::open(&f.0.join("m.safetensors"))
        .err()
        .unwrap()
        .to_string();
    says(
        file.clone(),
        "this is a file, but a checkpoint is a folder\nhint: give the folder that holds it: ",
    );
    fs::create_dir(f.0.join("x.safetensors")).unwrap();
    says(f.refused(), "x.safetensors: this is not a regular file");
    fs::remove_dir(f.0.join("x.safetensors")).unwrap();
    std::os::unix::fs::symlink("gone", f.0.join("tokenizer.json")).unwrap();
    says(f.refused(), "tokenizer.json: cannot be read: No such file");
    let twice = vec![("config.json".to_string(), Cow::Borrowed(&b"{}"[..])); 2];
    says(
        Checkpoint::from_memory(twice).err().unwrap().to_string(),
        "the file config.json is given twice",
    );
}

#[test]
fn configurations_are_checked_on_opening() {
    let mut c = config();
    c["text_config"]["top_k_experts"] = json!(99);
    let e = open(&c, &[("m.safetensors", zeros(&[EMBED]))])
        .err()
        .unwrap()
        .to_string();
    says(
        e,
        "config.json: `top_k_experts` = 99 exceeds `num_experts` = 16",
    );
}
