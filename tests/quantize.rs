//! `isobit quantize` as a user meets it: what it makes runs, what it refuses leaves no trace. That its bits are MLX's is
//! tested in models/tests/quantize.rs.

use isobit::source::Source;
use models::checkpoint::{Checkpoint, Dtype, Module, Tensor, dequant_f64};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_isobit");

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

struct Output {
    out: String,
    err: String,
    code: i32,
}

fn finish(c: &mut Command, dir: &Path) -> Output {
    let o = c.current_dir(dir).env("XDG_CACHE_HOME", dir.join("cache")).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Output { out: text(&o.stdout), err: text(&o.stderr), code: o.status.code().unwrap_or(-1) }
}

fn isobit(dir: &Path, args: &[&str]) -> Output {
    finish(Command::new(PROGRAM).args(args), dir)
}

fn bf16(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    // To nearest; ties, which hardly occur, away from zero.
    values.into_iter().flat_map(|v| (((v as f32).to_bits() + 0x8000) >> 16).to_le_bytes()[..2].to_vec()).collect()
}

/// Rows of an affine module as bf16; `t` are its codes.
fn rows(ck: &Checkpoint, path: &str, t: &Tensor) -> (Vec<usize>, Vec<u8>) {
    let (_, group) = ck.config().quantization.as_ref().unwrap().of(path).unwrap();
    let lead = &t.shape[..t.shape.len() - 1];
    let groups = *ck.tensor(&format!("{path}.scales")).unwrap().shape.last().unwrap();
    let m = ck.module(path, lead, groups * group as usize).unwrap();
    let Module::Affine { stack, rows, cols, .. } = m else { panic!("{path}") };
    let all = (0..stack * rows).flat_map(|r| dequant_f64(&m, r / rows, r % rows).unwrap());
    ([lead, &[cols]].concat(), bf16(all))
}

/// A Hugging Face folder of the demo model: its weights as bf16, the experts' gate and up fused.
fn hugging_face(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let ck = Source::Demo.checkpoint().unwrap();
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for t in ck.tensors() {
        let name = t.name.strip_prefix(ck.prefix()).unwrap();
        if name.ends_with(".scales") || name.ends_with(".biases") {
            continue;
        }
        let (shape, bytes) = match name.strip_suffix(".weight").filter(|_| t.dtype == Dtype::U32) {
            Some(path) => rows(&ck, path, &t),
            None => (t.shape.to_vec(), t.bytes.to_vec()),
        };
        tensors.insert(name.to_string(), (shape, bytes));
    }
    for i in 0..ck.config().layers.len() {
        let at = format!("layers.{i}.experts.");
        let mut take = |p: &str| tensors.remove(&format!("{at}switch_glu.{p}_proj.weight")).unwrap();
        let ((shape, gate), (_, up), down) = (take("gate"), take("up"), take("down"));
        let one = gate.len() / shape[0];
        let fused = (0..shape[0]).flat_map(|e| [&gate[e * one..(e + 1) * one], &up[e * one..(e + 1) * one]].concat());
        tensors.insert(format!("{at}gate_up_proj"), (vec![shape[0], 2 * shape[1], shape[2]], fused.collect()));
        tensors.insert(format!("{at}down_proj"), down);
    }
    let (mut header, mut data) = (Map::new(), vec![]);
    for (name, (shape, bytes)) in tensors {
        let start = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(format!("model.language_model.{name}"), entry);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(dir.join("model.safetensors"), file).unwrap();
    let mut config: Value = serde_json::from_slice(ck.file("config.json").unwrap()).unwrap();
    let top = config.as_object_mut().unwrap();
    top.remove("quantization");
    top.remove("quantization_config");
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        fs::write(dir.join(name), ck.file(name).unwrap()).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut out: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    out.retain(|n| n != "cache");
    out.sort();
    out
}

/// What is there but should not be: half-written folders under their temporary names too.
fn left(dir: &Path, expected: &[&str]) -> Vec<String> {
    names(dir).into_iter().filter(|n| !expected.contains(&n.as_str())).collect()
}

/// The result is a model like the shipped one: it runs, means the same, and comes out the same each time.
#[test]
fn the_result_runs() {
    let dir = scratch("quantize-runs");
    hugging_face(&dir.join("hf"));
    let o = isobit(&dir, &["quantize", "hf", "-o", "q4"]);
    assert_eq!((o.code, o.err.as_str()), (0, "wrote q4\n"));
    let table = "\
format                   modules     parameters     before      after  bits/weight
4 bits, groups of 64          55        9109504    18.2 MB     5.1 MB        4.500
8 bits, groups of 64          32        1605632     3.2 MB     1.7 MB        8.500
bf16                          97          17416    34.8 kB    34.8 kB       16.000
all                          184       10732552    21.5 MB     6.9 MB        5.117
";
    assert_eq!(o.out, table);
    // An empty folder may be there.
    fs::create_dir(dir.join("again")).unwrap();
    let o = isobit(&dir, &["quantize", "hf", "--output", "again", "--recipe", "mixed", "--group", "64", "--bits", "4", "--json"]);
    let report: Value = serde_json::from_str(&o.out).unwrap();
    assert_eq!(
        (&report["output"], &report["parameters"], &report["recipe"]),
        (&json!("again"), &json!(10732552), &json!("mixed"))
    );
    assert_eq!(report["copied"].as_array().unwrap().len(), 4);
    assert_eq!(names(&dir.join("q4")), names(&dir.join("again")));
    for name in names(&dir.join("q4")) {
        assert_eq!(fs::read(dir.join("q4").join(&name)).unwrap(), fs::read(dir.join("again").join(&name)).unwrap(), "{name}");
    }
    assert!(left(&dir, &["hf", "q4", "again"]).is_empty());

    // Weights that were rounded twice give nearly the same logits; the near ties of the demo model forbid to ask for the same ids.
    let ids: Vec<String> = (0..48).map(|i| (2 + i * 37 % 4000).to_string()).collect();
    let logits = |model: &str| -> Vec<f32> {
        let o = isobit(&dir, &["run", model, "--ids", &ids.join(","), "-n", "1", "--logits", "z"]);
        assert_eq!(o.code, 0, "{}", o.err);
        let bytes = fs::read(dir.join("z")).unwrap();
        let t = safetensors(&bytes, "logits");
        t.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let (ours, shipped) = (logits("q4"), logits("demo"));
    assert_eq!(ours.len(), 48 * 4096);
    let apart = |a: &[f32], b: &[f32]| {
        let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(&x, &y)| f(x.into(), y.into())).sum::<f64>();
        (sum(&|x, y| (x - y) * (x - y)) / sum(&|_, y| y * y)).sqrt()
    };
    let near = apart(&ours, &shipped);
    assert!(near > 0.0 && near < 0.2, "{near}");
    // The logits of the next position are far from that.
    let far = apart(&ours[4096..], &shipped[..47 * 4096]);
    assert!(far > 0.6, "{far}");
}

/// Data of a tensor of a safetensors file.
fn safetensors<'a>(bytes: &'a [u8], name: &str) -> &'a [u8] {
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let at = |i: usize| header + text[name]["data_offsets"][i].as_u64().unwrap() as usize;
    &bytes[at(0)..at(1)]
}

/// Nothing is replaced, and what fails leaves nothing behind.
#[test]
fn failures_leave_nothing_behind() {
    let dir = scratch("quantize-fails");
    hugging_face(&dir.join("hf"));
    fs::create_dir_all(dir.join("full")).unwrap();
    fs::write(dir.join("full/precious"), "weights").unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("link")).unwrap();
    let there = ["full", "hf", "link"];
    let refused = |args: &[&str], code: i32, says: &str| {
        let o = isobit(&dir, args);
        assert!(o.code == code && o.err.contains(says), "{args:?}: {} {}", o.code, o.err);
        assert_eq!(left(&dir, &there), Vec::<String>::new(), "{args:?}");
    };
    for output in ["full", "link", "hf", "hf/config.json"] {
        refused(
            &["quantize", "hf", "-o", output],
            1,
            "error[E0761]: this exists and is not an empty folder, so it is not replaced\n",
        );
    }
    refused(&["quantize", "hf", "-o", "no/where"], 1, "error[E0760]: the folder to write to does not exist\n  at no\n");
    refused(&["quantize", "demo", "-o", "out"], 1, "error[E0280]: the checkpoint is quantized already\n");
    refused(&["quantize", "hf", "-o", "out", "--bits", "7"], 2, "error[E0281]: there are no codes of 7 bits\nhint: ");
    refused(&["quantize", "hf", "-o", "out", "--group", "16"], 2, "error[E0281]: there are no groups of 16\nhint: ");
    refused(&["quantize", "hf", "-o", "out", "--bits", "four"], 2, "invalid value 'four' for '--bits <N>'");
    refused(&["quantize", "hf"], 2, "--output <DIR>");

    // A full disk, seen as a file that may not grow; the weights would take 6.9 MB.
    let limit = "trap '' XFSZ; ulimit -f 4000; exec \"$0\" quantize hf -o out";
    let o = finish(Command::new("bash").args(["-c", limit, PROGRAM]), &dir);
    assert!(o.code == 1 && o.err.starts_with("error[E0285]: cannot be written: "), "{}", o.err);
    assert!(o.err.contains("\n  at out/model.safetensors\nhint: the result takes 6864912 bytes: make room"), "{}", o.err);
    assert_eq!(left(&dir, &there), Vec::<String>::new());
    // The same command does write with room.
    let o =
        finish(Command::new("bash").args(["-c", &limit.replace("4000", "20000").replace("-o out", "-o wide"), PROGRAM]), &dir);
    assert_eq!((o.code, left(&dir, &there)), (0, vec!["wide".to_string()]), "{}", o.err);
    fs::remove_dir_all(dir.join("wide")).unwrap();

    // One damaged value in the last layer, met when most is written.
    let path = dir.join("hf/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let tensor = safetensors(&bytes, "model.language_model.layers.7.mlp.down_proj.weight");
    let at = tensor.as_ptr() as usize - bytes.as_ptr() as usize + 2 * 4321;
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let says = "error[E0283]: element 4321 is infinite or not a number\n  at model.safetensors: model.language_model.layers.7.mlp.down_proj.weight\n";
    refused(&["quantize", "hf", "-o", "out"], 1, says);

    // Killed while it writes (by the signal that the same limit sends), it leaves a folder under another name, which is the
    // half-written one that the checks above did not see.
    let killed = limit.replace("trap '' XFSZ;", "ulimit -c 0;");
    let o = finish(Command::new("bash").args(["-c", &killed, PROGRAM]), &dir);
    let rest = left(&dir, &there);
    assert!(o.code == -1 && rest.len() == 1 && rest[0].starts_with(".out.tmp-"), "{} {rest:?} {}", o.code, o.err);
    assert_eq!(names(&dir.join(&rest[0])), ["model.safetensors"]);
    assert_eq!(fs::read_to_string(dir.join("full/precious")).unwrap(), "weights");
}

/// Modules that the group does not divide are left alone, with a warning, and the JSON lists them.
#[test]
fn what_the_group_does_not_divide_is_said() {
    let dir = scratch("quantize-undivided");
    hugging_face(&dir.join("hf"));
    let o = isobit(&dir, &["quantize", "hf", "-o", "out", "--group", "128", "--json"]);
    assert_eq!(o.code, 0, "{}", o.err);
    let report: Value = serde_json::from_str(&o.out).unwrap();
    let list = report["undivided"].as_array().unwrap();
    assert_eq!(list.len(), 8, "{list:?}");
    assert_eq!(list[0], "language_model.model.layers.0.experts.switch_glu.down_proj");
    let says = "warning[E0774]: 8 modules stay as they are: a group of 128 does not divide their input features\n";
    assert!(o.err.starts_with(says), "{}", o.err);
}
