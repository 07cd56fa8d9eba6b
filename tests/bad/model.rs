//! The demo model in the folder `model`, to be damaged. Its files are links, and a change replaces the link, so nothing large
//! is copied or held in memory unless it is changed.

use super::{Case, case};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// The command that meets most damaged models.
pub const RUN: &str = "run model --no-cache --target x86-64-v3 --threads 1 -n 2 --ids 2,105";
/// The weights.
pub const WEIGHTS: &str = "model.safetensors";

/// The good model.
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit")
}

/// A model's folder.
pub struct Model(pub PathBuf);

/// A damaged model, met by [`RUN`].
pub fn damaged(name: impl Into<String>, change: impl Fn(&Model) + 'static) -> Case {
    case(name, move |dir| change(&Model::new(dir)), RUN)
}

impl Model {
    /// The good model in `model`.
    pub fn new(dir: &Path) -> Model {
        let to = dir.join("model");
        fs::create_dir(&to).unwrap();
        for e in fs::read_dir(demo()).unwrap() {
            let from = e.unwrap().path();
            symlink(&from, to.join(from.file_name().unwrap())).unwrap();
        }
        Model(to)
    }

    /// A tiny model in `model`, for cases in which the model does not matter: it compiles in a third of the time.
    pub fn tiny(dir: &Path) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-dense/mlx");
        let to = dir.join("model");
        fs::create_dir(&to).unwrap();
        for name in ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
            symlink(from.join(name), to.join(name)).unwrap();
        }
    }

    /// Path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Takes a file away.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Another file of this name.
    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let _ = fs::remove_file(self.path(name));
        fs::write(self.path(name), bytes).unwrap();
    }

    /// A copy of its own, to be changed in place.
    pub fn own(&self, name: &str) -> File {
        self.remove(name);
        fs::copy(demo().join(name), self.path(name)).unwrap();
        File::options().read(true).write(true).open(self.path(name)).unwrap()
    }

    /// Text of a file.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The file with another text in one place.
    pub fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.text(name);
        assert_eq!(text.matches(from).count(), 1, "{name}: {from}");
        self.put(name, text.replacen(from, to, 1));
    }

    /// A JSON file, changed.
    pub fn json(&self, name: &str, change: impl Fn(&mut Value)) {
        let mut v = serde_json::from_str(&self.text(name)).unwrap();
        change(&mut v);
        self.put(name, v.to_string());
    }

    /// The weights with a changed header; the data stay where they are. The index goes, since it would not fit.
    pub fn header(&self, change: impl Fn(&mut Value)) {
        self.remove("model.safetensors.index.json");
        let (mut header, data_at) = header_of(&demo().join(WEIGHTS));
        change(&mut header);
        let text = header.to_string();
        self.remove(WEIGHTS);
        let mut out = File::create(self.path(WEIGHTS)).unwrap();
        out.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
        out.write_all(text.as_bytes()).unwrap();
        let mut from = File::open(demo().join(WEIGHTS)).unwrap();
        from.seek(SeekFrom::Start(data_at)).unwrap();
        io::copy(&mut from, &mut out).unwrap();
    }

    /// Overwrites bytes of a tensor, from byte `at` of its data on.
    pub fn poke(&self, tensor: &str, at: u64, bytes: &[u8]) {
        let (header, data_at) = header_of(&demo().join(WEIGHTS));
        let start = header[tensor]["data_offsets"][0].as_u64().unwrap_or_else(|| panic!("no tensor {tensor}"));
        self.own(WEIGHTS).write_all_at(bytes, data_at + start + at).unwrap();
    }
}

/// Header of a safetensors file, and where its data begin.
pub fn header_of(path: &Path) -> (Value, u64) {
    let mut file = File::open(path).unwrap();
    let mut length = [0; 8];
    file.read_exact(&mut length).unwrap();
    let mut text = vec![0; u64::from_le_bytes(length) as usize];
    file.read_exact(&mut text).unwrap();
    (serde_json::from_slice(&text).unwrap(), 8 + text.len() as u64)
}

/// A safetensors file from a header's text and data.
pub fn shard(header: impl AsRef<[u8]>, data: &[u8]) -> Vec<u8> {
    let header = header.as_ref();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header);
    out.extend_from_slice(data);
    out
}

/// A file of two tensors with these byte ranges, and eight bytes of data.
pub fn two(a: [u64; 2], b: [u64; 2]) -> Vec<u8> {
    let e = |r: [u64; 2]| json!({"dtype": "U8", "shape": [r[1] - r[0]], "data_offsets": r});
    shard(json!({"a": e(a), "b": e(b)}).to_string(), &[0; 8])
}
