//! What the checkpoint tests share: building small checkpoints, and asserting on messages.
#![allow(dead_code)] // not every test uses every helper

pub mod tiny;

use models::Checkpoint;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

pub const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/mlx-4bit");

/// Name, type and shape.
pub type Stored<'a> = (&'a str, &'a str, &'a [usize]);

/// A safetensors file from a header text and data.
pub fn shard(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

/// A well-formed shard of zeros.
pub fn zeros(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let size = shape.iter().product::<usize>() * if *dtype == "BF16" || *dtype == "F16" { 2 } else { 4 };
        header.insert(name.to_string(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}));
        at += size;
    }
    shard(&Value::Object(header).to_string(), &vec![0; at])
}

pub fn config() -> Value {
    serde_json::from_slice(&fs::read(format!("{DEMO}/config.json")).unwrap()).unwrap()
}

pub fn open(config: &Value, shards: &[(&str, Vec<u8>)]) -> ir::diag::Result<Checkpoint> {
    let mut files = vec![("config.json".to_string(), Cow::Owned(config.to_string().into_bytes()))];
    files.extend(shards.iter().map(|(n, b)| (n.to_string(), Cow::Owned(b.clone()))));
    Checkpoint::from_memory(files)
}

pub fn refused(bytes: Vec<u8>) -> String {
    open(&config(), &[("m.safetensors", bytes)]).err().expect("must be refused").to_string()
}

#[track_caller]
pub fn says(message: String, part: &str) {
    assert!(message.contains(part), "expected {part:?} in:\n{message}");
}

pub const EMBED: Stored = ("model.embed_tokens.weight", "BF16", &[2, 2]);

/// A folder of its own for one test, removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), bytes).unwrap();
    }
    pub fn refused(&self) -> String {
        Checkpoint::open(&self.0).err().expect("must be refused").to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
