//! Random weights: the values of `random.txt`, which `random.py` made from the definition alone; their statistics; pieces
//! and whole tensors are the same; and no file but config.json is needed.

use ir::graph::interp::WeightSource;
use ir::graph::{Dtype, Elem};
use models::{Checkpoint, checkpoint};
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with the demo model's configuration, 64 wide, and this quantization.
fn folder(quantization: Option<(u32, u32)>) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("random-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let mut c: serde_json::Value = serde_json::from_slice(include_bytes!("../demo/mlx-4bit/config.json")).unwrap();
    let top = c.as_object_mut().unwrap();
    top.remove("quantization_config");
    top.remove("quantization");
    if let Some((bits, group)) = quantization {
        top.insert("quantization".into(), json!({"bits": bits, "group_size": group}));
    }
    c["text_config"]["hidden_size"] = json!(64);
    c["text_config"]["intermediate_size"] = json!(128);
    std::fs::write(dir.join("config.json"), c.to_string()).unwrap();
    dir
}

fn random(quantization: Option<(u32, u32)>, seed: u64) -> Checkpoint {
    let dir = folder(quantization);
    let ck = Checkpoint::with_random_weights(&dir, seed).unwrap_or_else(|d| panic!("{d}"));
    std::fs::remove_dir_all(dir).unwrap();
    ck
}

const UP: &str = "layers.0.mlp.up_proj";

/// Half words as `random.txt` has them.
fn half(bytes: &[u8], i: usize) -> String {
    format!("{:04x}", u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))
}

#[test]
fn values_are_those_of_the_definition() {
    let mut lines = 0;
    for line in include_str!("random.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let seed: u64 = words[0].parse().unwrap();
        let bits = words[1].parse().ok();
        let ck = random(bits.map(|b| (b, 32)), seed);
        let got: Vec<String> = match (words[1], words[2]) {
            ("number", _) => {
                let p = ck.plain(UP).unwrap();
                [0, 1, 63, 64, 127, 8191].map(|i| half(&p.parts[0], i)).into()
            }
            (_, "codes") => {
                let a = ck.affine(UP).unwrap();
                let row = |i: usize| &a.words[0][i / 64 * 8 * a.bits as usize..];
                let at = [0, 1, 2, 31, 32, 63, 64, 65, 4095, 8191];
                at.map(|i| checkpoint::code(row(i), a.bits, i % 64).unwrap().to_string()).into()
            }
            (_, "params") => {
                let a = ck.affine(UP).unwrap();
                [0, 1, 2, 255].map(|g| format!("{}/{}", half(&a.scales[0], g), half(&a.biases[0], g))).into()
            }
            (name, _) => {
                let p = ck.plain(name).unwrap();
                let n = p.parts[0].len() / 2;
                [0, 1, 2, 31].into_iter().filter(|i| *i < n).map(|i| half(&p.parts[0], i)).collect()
            }
        };
        let want = &words[if bits.is_some() || words[1] == "number" { 3 - usize::from(words[1] == "number") } else { 2 }..];
        assert_eq!(got, want, "{line}");
        lines += 1;
    }
    assert_eq!(lines, 32);
}

#[test]
fn entries_have_mean_0_and_deviation_1_by_the_root_of_the_columns() {
    let spread = |x: &[f64]| {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        (mean, (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt())
    };
    for quantization in [None, Some((2, 32)), Some((3, 64)), Some((4, 32)), Some((5, 64)), Some((6, 32)), Some((8, 64))] {
        let ck = random(quantization, 7);
        let values: Vec<f64> = match quantization {
            None => {
                let p = ck.plain(UP).unwrap();
                (0..8192).map(|i| f64::from(p.at(i))).collect()
            }
            Some((bits, group)) => {
                let a = ck.affine(UP).unwrap();
                let wide =
                    |b: &[u8], g: usize| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([b[2 * g], b[2 * g + 1]])) << 16));
                let row = 8 * bits as usize;
                let one = |i: usize| {
                    let code = checkpoint::code(&a.words[0][i / 64 * row..], bits, i % 64).unwrap();
                    let g = i / group as usize;
                    wide(&a.scales[0], g) * f64::from(code) + wide(&a.biases[0], g)
                };
                (0..8192).map(one).collect()
            }
        };
        let (mean, deviation) = spread(&values);
        // Codes of 2 bits are coarse.
        let tolerance = if quantization.is_some_and(|q| q.0 < 4) { 0.35 } else { 0.06 };
        assert!(mean.abs() < 0.01, "{quantization:?}: mean {mean}");
        assert!((deviation * 8.0 - 1.0).abs() < tolerance, "{quantization:?}: deviation {deviation}");
    }
}

#[test]
fn pieces_are_parts_of_the_whole_and_seeds_differ() {
    for quantization in [None, Some((4, 32)), Some((3, 32)), Some((8, 64))] {
        let (ck, other) = (random(quantization, 1), random(quantization, 2));
        for name in ["embed_tokens", "layers.0.experts.switch_glu.gate_proj", "layers.0.router.scale", "norm"] {
            let whole = |ck: &Checkpoint| match ck.affine(name) {
                Some(a) => vec![a.words, a.scales, a.biases].concat().concat(),
                None => ck.plain(name).unwrap().parts.concat(),
            };
            assert_ne!(whole(&ck), whole(&other), "{name}");
            let t = ck.open(name).unwrap();
            let h = t.head();
            let (mut e, mut s, mut b) = (vec![], vec![], vec![]);
            for m in 0..h.stack {
                let mut r = 0;
                while r < h.rows {
                    let to = (r + 37).min(h.rows);
                    let p = t.rows(m, r..to);
                    e.extend_from_slice(&p.elements);
                    s.extend_from_slice(&p.scales);
                    b.extend_from_slice(&p.biases);
                    r = to;
                }
            }
            assert_eq!([e, s, b].concat(), whole(&ck), "{name} in {quantization:?}");
        }
    }
}

#[test]
fn formats_are_those_of_the_configuration() {
    let affine = Elem::Affine { bits: 4, group: 64, scales: Dtype::Bf16 };
    let ck = random(Some((4, 64)), 1);
    assert_eq!(ck.format(UP).unwrap(), affine);
    assert_eq!(ck.format("norm").unwrap(), Elem::Bf16);
    assert_eq!(random(None, 1).format(UP).unwrap(), Elem::Bf16);
    // Groups of 128 do not divide 64 columns, but the 128 of the other projection.
    let ck = random(Some((4, 128)), 1);
    assert_eq!(ck.format(UP).unwrap(), Elem::Bf16);
    assert_eq!(ck.format("layers.0.mlp.down_proj").unwrap(), Elem::Affine { bits: 4, group: 128, scales: Dtype::Bf16 });
    assert!(ck.format("layers.0.mlp.nonsense").is_err());
}
