//! Folders with a configuration only, for random weights, and such weights as a file.

use ir::graph::interp::WeightSource;
use models::Checkpoint;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The demo model's configuration, unquantized and edited, in a folder of its own.
pub fn folder(name: &str, edit: impl FnOnce(&mut Value)) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit/config.json");
    let mut c: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let top = c.as_object_mut().unwrap();
    top.remove("quantization_config");
    top.remove("quantization");
    edit(&mut c);
    write(name, &c)
}

/// A configuration in a folder of its own.
pub fn write(name: &str, config: &Value) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    dir
}

/// The random weights of a folder.
pub fn open(dir: &Path, seed: u64) -> Checkpoint {
    Checkpoint::with_random_weights(dir, seed).unwrap_or_else(|d| panic!("{d}"))
}

/// Writes random weights, unquantized, as `model.safetensors` beside their configuration.
pub fn store(ck: &Checkpoint, dir: &Path) {
    let all = models::gemma4::tensors::tensors(ck.config());
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for e in &all {
        let bytes = 2 * e.count();
        let bare = e.shape.len() == 1 && (e.name.ends_with("scale") || e.name.ends_with("layer_scalar"));
        let name = format!("model.{}{}", e.name, if bare { "" } else { ".weight" });
        header.insert(name, json!({"dtype": "BF16", "shape": e.shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(dir.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    for e in &all {
        let t = ck.open(&e.name).unwrap();
        let h = t.head();
        assert_eq!(h.elem, ir::graph::Elem::Bf16);
        for m in 0..h.stack {
            for r in (0..h.rows).step_by(1024) {
                file.write_all(&t.rows(m, r..(r + 1024).min(h.rows)).elements).unwrap();
            }
        }
    }
    file.flush().unwrap();
}
