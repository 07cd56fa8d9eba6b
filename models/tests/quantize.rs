//! Quantizing against MLX's own quantizer and mlx-lm's own conversion. What they give for inputs that both sides generate
//! is in tests/quantize/expected.json; tests/quantize/make_expected.py made it.

mod common;

use common::{Folder, says, shard};
use models::Checkpoint;
use models::checkpoint::Dtype;
use models::quantize::affine::{Bad, quantize};
use models::quantize::{Options, Plan, Recipe};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const COLS: usize = 256;
const ROWS: usize = 32;

fn expected() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/quantize/expected.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn dtype(name: &Value) -> Dtype {
    serde_json::from_value(name.clone()).unwrap()
}

fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf29ce484222325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3))
}

/// The generator of make_expected.py: exact in every step.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mix = |i: u64| {
        let x = seed.wrapping_add(i).wrapping_add(0x9e3779b97f4a7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d049bb133111eb);
        x ^ (x >> 31)
    };
    (0..n as u64)
        .map(|i| {
            let u = mix(i);
            let sum: i64 = [0, 21, 42].map(|k| ((u >> k) & 0x1fffff) as i64).iter().sum();
            (sum - 3 * (1 << 20)) as f32 * 2f32.powi(-21)
        })
        .collect()
}

fn store(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let put = |v: &f32| match dtype {
        Dtype::BF16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
        _ => v.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(put).collect()
}

/// Rows of all kinds of trouble, as in make_expected.py.
fn matrix(dtype: Dtype, bits: i32) -> Vec<u8> {
    let half = dtype == Dtype::F16;
    let row = |r: usize| -> Vec<f32> {
        let z = noise(seed_of(&format!("row {r}")), COLS);
        let first = z[0];
        let each = |f: &dyn Fn(usize, f32) -> f32| z.iter().enumerate().map(|(j, &v)| f(j, v)).collect();
        let times = |e: i32| each(&|_, v| (f64::from(v) * 2f64.powi(e)) as f32);
        match r % 16 {
            0 => z.clone(),
            1 => times(-6),
            2 => times(-12),
            3 => times(7),
            4 => times(-22),
            5 => each(&|_, _| first),
            6 => each(&|_, _| 0.0),
            7 => each(&|_, v| -v.abs() - 0.25),
            8 => each(&|_, v| v.abs() + 0.25),
            9 => times(if half { 14 } else { 125 }),
            10 => times(if half { -18 } else { -130 }),
            11 => each(&|j, v| match j % 32 {
                3 => 1.5,
                9 => -1.5,
                _ => v * 0.25,
            }),
            12 => each(&|_, v| if v < 0.0 { -0.0 } else { 0.0 }),
            13 => each(&|j, _| {
                let n = 2f32.powi(bits);
                match j % 32 {
                    0 => n - 1.0,
                    1 => 0.0,
                    _ => (j * 11 % (2 * n as usize - 1)) as f32 / 2.0,
                }
            }),
            14 => each(&|j, v| if j % 64 == 17 { 40.0 } else { v / 32.0 }),
            _ => each(&|_, v| 1.0 + (v * 8.0).round_ties_even() / 128.0),
        }
    };
    store(&(0..ROWS).flat_map(row).collect::<Vec<_>>(), dtype)
}

/// Codes, scales and biases.
type Three = [Vec<u8>; 3];

fn ours(dtype: Dtype, bits: u32, group: usize, input: &[u8]) -> Result<Three, (usize, Bad)> {
    let width = if dtype == Dtype::F32 { 4 } else { 2 };
    let n = input.len() / width;
    let mut out = [vec![0; n * bits as usize / 8], vec![0; n / group * width], vec![0; n / group * width]];
    let [c, s, b] = &mut out;
    quantize(dtype, bits, group, input, c, s, b)?;
    Ok(out)
}

/// A case of expected.json does not hold for these bytes: which part of it.
fn differs(case: &Value, got: &Three) -> Option<String> {
    for (part, bytes) in ["weight", "scales", "biases"].iter().zip(got) {
        if case[part] != digest(bytes) {
            return Some(format!("{part} of {} {} bits, groups of {}", case["dtype"], case["bits"], case["group"]));
        }
    }
    None
}

fn cases(of: &Value) -> impl Iterator<Item = (&Value, Dtype, u32, usize)> {
    let list = of["matrices"].as_array().unwrap();
    assert_eq!(list.len(), 3 * 6 * 3);
    list.iter().map(|c| (c, dtype(&c["dtype"]), c["bits"].as_u64().unwrap() as u32, c["group"].as_u64().unwrap() as usize))
}

#[test]
fn every_bit_is_mlx_s() {
    let all = expected();
    for (case, dtype, bits, group) in cases(&all) {
        let input = matrix(dtype, bits as i32);
        assert_eq!(case["input"], digest(&input), "the generators differ: {case}");
        let got = ours(dtype, bits, group, &input).unwrap();
        // Groups in full first: they say more.
        let (words, width) = (group * bits as usize / 8, if dtype == Dtype::F32 { 4 } else { 2 });
        for g in case["groups"].as_array().unwrap() {
            let at = g[0].as_u64().unwrap() as usize * COLS / group;
            let cut = |bytes: &[u8], size: usize| hex(&bytes[at * size..(at + 1) * size]);
            let found = json!([g[0], cut(&got[0], words), cut(&got[1], width), cut(&got[2], width)]);
            assert_eq!(*g, found, "{dtype:?} {bits} bits, groups of {group}");
        }
        assert_eq!(differs(case, &got), None);
    }
}

/// Faults in a plain restatement of the quantizer, each of which the expected values must show.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Nothing,
    CodeOffByOne,
    ScaleNotRounded,
    ScaleTruncated,
    CodesFromRoundedScale,
    TiesAwayFromZero,
    EdgeNotExact,
    SmallestStepLeftOut,
    HighStartsAtZero,
    HighBitsFirst,
}

fn plain(dtype: Dtype, bits: u32, group: usize, input: &[u8], fault: Fault) -> Three {
    let width = if dtype == Dtype::F32 { 4 } else { 2 };
    let value = |b: &[u8]| match dtype {
        Dtype::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
        _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
    };
    let rint = |x: f32| if fault == Fault::TiesAwayFromZero { x.round() } else { x.round_ties_even() };
    let n = (1u32 << bits) as f32 - 1.0;
    let (mut codes, mut scales, mut biases) = (vec![], vec![], vec![]);
    for g in input.chunks(group * width) {
        let w: Vec<f32> = g.chunks(width).map(value).collect();
        let start = if fault == Fault::HighStartsAtZero { 0.0 } else { f32::NEG_INFINITY };
        let (lo, hi) = w.iter().fold((f32::INFINITY, start), |(l, h), v| (l.min(*v), h.max(*v)));
        let eps = if fault == Fault::SmallestStepLeftOut { 1e-30 } else { 1e-7 };
        let (mut scale, edge) = if lo.abs() > hi.abs() { (1.0, lo) } else { (-1.0, hi) };
        scale *= ((hi - lo) / n).max(eps);
        let code = rint(edge / scale);
        let mut bias = 0.0;
        if code != 0.0 {
            scale = if fault == Fault::EdgeNotExact { scale } else { edge / code };
            bias = edge;
        }
        let rounded = value(&store(&[scale], dtype));
        let with = if fault == Fault::CodesFromRoundedScale { rounded } else { scale };
        codes.extend(w.iter().map(|v| rint((v - bias) / with).clamp(0.0, n) as u8));
        scales.extend(match fault {
            Fault::ScaleNotRounded => scale.to_le_bytes().to_vec(),
            Fault::ScaleTruncated if dtype == Dtype::BF16 => scale.to_le_bytes()[2..].to_vec(),
            _ => store(&[scale], dtype),
        });
        biases.extend(store(&[bias], dtype));
    }
    if fault == Fault::CodeOffByOne {
        let last = codes.len() - 1;
        codes[last] ^= 1;
    }
    let mut out = vec![0u8; codes.len() * bits as usize / 8];
    for (i, c) in codes.iter().enumerate() {
        for b in 0..bits as usize {
            let from = if fault == Fault::HighBitsFirst { bits as usize - 1 - b } else { b };
            let at = i * bits as usize + b;
            out[at / 8] |= (c >> from & 1) << (at % 8);
        }
    }
    [out, scales, biases]
}

/// The expected values tell the quantizer from its likely mistakes, for every type that a mistake can show in.
#[test]
fn expected_values_show_mistakes() {
    use Fault::*;
    let all = expected();
    for fault in [
        Nothing,
        CodeOffByOne,
        ScaleNotRounded,
        ScaleTruncated,
        CodesFromRoundedScale,
        TiesAwayFromZero,
        EdgeNotExact,
        SmallestStepLeftOut,
        HighStartsAtZero,
        HighBitsFirst,
    ] {
        for of in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            let shows = cases(&all)
                .filter(|(_, dtype, ..)| *dtype == of)
                .filter_map(|(case, _, bits, group)| differs(case, &plain(of, bits, group, &matrix(of, bits as i32), fault)))
                .count();
            let least = match fault {
                Nothing => 0,
                ScaleNotRounded | CodesFromRoundedScale if of == Dtype::F32 => 0,
                ScaleTruncated if of != Dtype::BF16 => 0,
                // With 2 bits few codes can change.
                CodesFromRoundedScale => 15,
                _ => 18,
            };
            assert!(shows >= least && (least > 0 || shows == 0), "{fault:?} of {of:?} shows in {shows} cases of 18");
        }
    }
}

#[test]
fn values_that_have_no_affine_form() {
    for (dtype, bad) in [(Dtype::BF16, f32::NAN), (Dtype::F16, f32::INFINITY), (Dtype::F32, f32::NEG_INFINITY)] {
        let mut w = noise(1, 256);
        w[77] = bad;
        assert_eq!(ours(dtype, 4, 32, &store(&w, dtype)), Err((77, Bad::NotFinite)));
    }
    let mut w = noise(1, 256);
    (w[130], w[140]) = (3e38, -3e38);
    assert_eq!(ours(Dtype::F32, 4, 128, &store(&w, Dtype::F32)), Err((128, Bad::Spread)));
}

/// Name and shape.
type Shaped = (String, Vec<usize>);

/// Writes a Hugging Face folder: tensors with the generator's values, each in the file that `file_of` says.
fn hf(dir: &Folder, config: &Value, tensors: &[Shaped], dtype: Dtype, file_of: &dyn Fn(&str) -> &'static str) {
    let mut files: BTreeMap<&str, (serde_json::Map<String, Value>, Vec<u8>)> = BTreeMap::new();
    for (full, shape) in tensors {
        let (header, data) = files.entry(file_of(full)).or_default();
        let name = full.rsplit_once("language_model.").map_or(full.as_str(), |x| x.1);
        // Where the output projection is the embedding, a head that is there is its copy.
        let copy = name == "lm_head.weight" && !config.to_string().contains("\"tie_word_embeddings\":false");
        let name = if copy { "embed_tokens.weight" } else { name };
        let values: Vec<f32> = noise(seed_of(name), shape.iter().product()).iter().map(|v| v / 16.0).collect();
        let start = data.len();
        data.extend(store(&values, dtype));
        let entry = json!({"dtype": format!("{dtype:?}"), "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(full.clone(), entry);
    }
    for (name, (header, data)) in files {
        dir.put(name, shard(&Value::Object(header).to_string(), &data));
    }
    dir.put("config.json", config.to_string());
}

fn tensors_of(model: &Value, prefix: &str) -> Vec<Shaped> {
    let shape = |v: &Value| serde_json::from_value::<Vec<usize>>(v.clone()).unwrap();
    let full = |n: &str| if n == "lm_head.weight" { n.to_string() } else { format!("{prefix}{n}") };
    model["hf"].as_object().unwrap().iter().map(|(n, s)| (full(n), shape(s))).collect()
}

/// Configuration, its text decoder's fields below `text_config`.
fn nested(model: &Value) -> Value {
    json!({"model_type": "gemma4", "text_config": model["text_config"], "vision_config": {"depth": 3}, "audio_config": null})
}

fn options(model: &Value) -> Options {
    let recipe = if model["recipe"] == "mixed" { Recipe::Mixed } else { Recipe::Uniform };
    let (bits, group) = (model["bits"].as_u64().unwrap() as u32, model["group"].as_u64().unwrap() as usize);
    Options { bits, group, recipe, ..Options::default() }
}

fn write(from: &Folder, to: &Folder, o: &Options) -> ir::diag::Result<()> {
    let ck = Checkpoint::open(&from.0)?;
    Plan::new(&ck, o)?.write(&to.0, &mut |_, _, _| {})
}

/// Name, type, shape and digest of every tensor in a folder.
fn written(dir: &Path) -> Value {
    let mut out = BTreeMap::new();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    for path in names.iter().filter(|p| p.extension().is_some_and(|e| e == "safetensors")) {
        let bytes = fs::read(path).unwrap();
        let (size, meta) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(meta.metadata().as_ref().unwrap()["format"], "mlx");
        assert!(size.is_multiple_of(8));
        for (name, t) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let at = t.data().as_ptr() as usize - bytes.as_ptr() as usize;
            assert!(at.is_multiple_of(t.dtype().bitsize() / 8), "{name} is not aligned in the file");
            let entry = json!([format!("{:?}", t.dtype()), t.shape(), digest(t.data())]);
            assert!(out.insert(name.to_string(), entry).is_none(), "{name} is there twice");
        }
    }
    json!(out)
}

/// Names, shapes and all bytes of mlx-lm's conversion of small models, mixture of experts and per-layer embeddings included.
#[test]
fn whole_models_are_as_mlx_lm_converts_them() {
    let all = expected();
    let mut seen = 0;
    for (i, model) in all["models"].as_array().unwrap().iter().enumerate() {
        let (from, to) = (Folder::new(&format!("quantize-hf-{i}")), Folder::new(&format!("quantize-mlx-{i}")));
        // Towers and a copy of the embedding are skipped.
        let mut tensors = tensors_of(model, "model.language_model.");
        tensors.push(("model.vision_tower.patch.weight".into(), vec![4, 4]));
        tensors.push(("model.embed_audio.proj.weight".into(), vec![4, 4]));
        let tied = model["text_config"]["tie_word_embeddings"] == true;
        if tied {
            let hidden = model["text_config"]["hidden_size"].as_u64().unwrap() as usize;
            tensors.push(("lm_head.weight".into(), vec![96, hidden]));
        }
        let file = |name: &str| if name.len().is_multiple_of(2) { "model-00001-of-00002.safetensors" } else { "b.safetensors" };
        hf(&from, &nested(model), &tensors, dtype(&model["dtype"]), &file);
        let o = options(model);
        let ck = Checkpoint::open(&from.0).unwrap();
        let plan = Plan::new(&ck, &o).unwrap();
        plan.write(&to.0, &mut |_, _, _| {}).unwrap();
        let found = written(&to.0);
        assert_eq!(found, model["mlx"], "{}", model["name"]);

        let config: Value = serde_json::from_slice(&fs::read(to.0.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["quantization"], config["quantization_config"]);
        assert_eq!((&config["vocab_size"], &config["model_type"]), (&json!(96), &json!("gemma4")));
        assert_eq!(config["text_config"], model["text_config"]);
        // mlx-lm says nothing of modules that it left alone; false says the same.
        let mut quantization = config["quantization"].as_object().unwrap().clone();
        let left: Vec<String> = quantization.iter().filter(|(_, v)| **v == json!(false)).map(|(k, _)| k.clone()).collect();
        quantization.retain(|_, v| *v != json!(false));
        let general = json!({"group_size": o.group, "bits": o.bits});
        let mut theirs = model["quantization"].as_object().unwrap().clone();
        theirs.retain(|_, v| *v != general);
        assert_eq!(Value::Object(quantization), Value::Object(theirs));
        let report = plan.report();
        assert_eq!(report.undivided, left);

        let bytes: u64 = fs::metadata(to.0.join("model.safetensors")).unwrap().len();
        assert!(report.bytes_after < bytes && bytes < report.bytes_after + 64 * 1024);
        assert_eq!(report.formats.iter().map(|r| r.bytes_after).sum::<u64>(), report.bytes_after);
        let index: Value = serde_json::from_slice(&fs::read(to.0.join("model.safetensors.index.json")).unwrap()).unwrap();
        assert_eq!(index["metadata"]["total_size"], report.bytes_after);
        assert_eq!(index["weight_map"].as_object().unwrap().len(), found.as_object().unwrap().len());
        let why: Vec<&str> = report.skipped.iter().map(|s| s.why.as_str()).collect();
        assert!(why.len() >= 2 && why.contains(&"a copy of the embedding") == tied, "{:?}", report.skipped);
        seen += 1;
    }
    assert_eq!(seen, 7);
}

fn moe() -> Value {
    expected()["models"][0].clone()
}

fn one_file(_: &str) -> &'static str {
    "model.safetensors"
}

/// Other ways in which the same model is stored give the same tensors: a text-only export, experts stacked, one by one.
#[test]
fn layouts_of_the_input_do_not_matter() {
    let model = moe();
    for (n, prefix) in ["model.", "language_model.model."].into_iter().enumerate() {
        let (from, to) = (Folder::new(&format!("quantize-prefix-{n}")), Folder::new(&format!("quantize-prefix-out-{n}")));
        let config = if prefix == "model." { model["text_config"].clone() } else { nested(&model) };
        hf(&from, &config, &tensors_of(&model, ""), Dtype::BF16, &one_file);
        // The generator goes by names without prefix, so the prefix comes in afterwards.
        rename(&from, &|name, shape, bytes| vec![(format!("{prefix}{name}"), shape, bytes)]);
        write(&from, &to, &options(&model)).unwrap();
        assert_eq!(written(&to.0), model["mlx"], "{prefix}");
        let config: Value = serde_json::from_slice(&fs::read(to.0.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["text_config"]["model_type"], "gemma4_text");
        Checkpoint::open(&to.0).unwrap();
    }
    for one_by_one in [false, true] {
        let (from, to) =
            (Folder::new(&format!("quantize-experts-{one_by_one}")), Folder::new(&format!("quantize-experts-out-{one_by_one}")));
        hf(&from, &nested(&model), &tensors_of(&model, ""), Dtype::BF16, &one_file);
        rename(&from, &|name, shape, bytes| {
            let Some((layer, proj)) = name.split_once(".experts.") else {
                return vec![(format!("model.language_model.{name}"), shape, bytes)];
            };
            let (e, rows, cols) = (shape[0], shape[1], shape[2]);
            let names: &[&str] = if proj == "down_proj" { &["down_proj"] } else { &["gate_proj", "up_proj"] };
            let mut out = vec![];
            for (k, n) in names.iter().enumerate() {
                let r = rows / names.len();
                let of = |e: usize| bytes[(e * rows + k * r) * cols * 2..][..r * cols * 2].to_vec();
                let at = format!("model.language_model.{layer}.experts.");
                if one_by_one {
                    out.extend((0..e).map(|e| (format!("{at}{e}.{n}.weight"), vec![r, cols], of(e))));
                } else {
                    out.push((format!("{at}switch_glu.{n}.weight"), vec![e, r, cols], (0..e).flat_map(of).collect()));
                }
            }
            out
        });
        write(&from, &to, &options(&model)).unwrap();
        assert_eq!(written(&to.0), model["mlx"], "one by one: {one_by_one}");
    }
}

type Edit<'a> = &'a dyn Fn(&str, Vec<usize>, Vec<u8>) -> Vec<(String, Vec<usize>, Vec<u8>)>;

/// Writes model.safetensors anew, each tensor replaced.
fn rename(dir: &Folder, edit: Edit) {
    let bytes = fs::read(dir.0.join("model.safetensors")).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    for (name, t) in SafeTensors::deserialize(&bytes).unwrap().iter() {
        for (name, shape, bytes) in edit(name, t.shape().to_vec(), t.data().to_vec()) {
            let start = data.len();
            data.extend(bytes);
            let entry = json!({"dtype": format!("{:?}", t.dtype()), "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(name, entry);
        }
    }
    dir.put("model.safetensors", shard(&Value::Object(header).to_string(), &data));
}

/// Shards have the same tensors, are as small as asked, listed in the index, and the same bytes come out each time.
#[test]
fn shards_and_determinism() {
    let model = moe();
    let (from, to, again) =
        (Folder::new("quantize-shards"), Folder::new("quantize-shards-out"), Folder::new("quantize-shards-again"));
    hf(&from, &nested(&model), &tensors_of(&model, "model.language_model."), Dtype::BF16, &one_file);
    let o = Options { shard_bytes: 100_000, ..options(&model) };
    write(&from, &to, &o).unwrap();
    write(&from, &again, &o).unwrap();
    assert_eq!(written(&to.0), model["mlx"]);
    let index: Value = serde_json::from_slice(&fs::read(to.0.join("model.safetensors.index.json")).unwrap()).unwrap();
    let mut shards = 0;
    for entry in fs::read_dir(&to.0).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let bytes = fs::read(to.0.join(&name)).unwrap();
        assert_eq!(bytes, fs::read(again.0.join(&name)).unwrap(), "{name}");
        if name.ends_with(".safetensors") {
            shards += 1;
            assert!(bytes.len() < 110_000, "{name} has {} bytes", bytes.len());
            for (tensor, _) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                assert_eq!(index["weight_map"][tensor], name);
            }
        }
    }
    assert!(shards > 2 && to.0.join(format!("model-00001-of-{shards:05}.safetensors")).exists(), "{shards}");
    assert!(Checkpoint::open(&to.0).is_ok());
}

fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures"))
}

/// The recipe's exceptions are those that the published 26B conversion lists.
#[test]
fn the_recipe_of_the_published_26b() {
    let path = fixtures().join("configs/26b-a4b-mlx-4bit/config.json");
    let config = models::Config::from_bytes(&fs::read(&path).unwrap(), "26B").unwrap();
    let published = config.quantization.as_ref().unwrap();
    assert_eq!((published.bits, published.group_size, published.overrides.len()), (4, 64, 120));
    let (mut seen, mut uniform) = (0, 0);
    for e in models::gemma4::tensors::tensors(&config) {
        let theirs = published.overrides.get(&e.name).copied();
        let ours = Recipe::Mixed.exception(&e.name).filter(|_| e.shape.len() > 1);
        assert_eq!(ours.map(|(b, g)| Some((b, g as u32))), theirs, "{}", e.name);
        seen += usize::from(theirs.is_some());
        uniform += usize::from(Recipe::Uniform.exception(&e.name).is_some());
    }
    assert_eq!((seen, uniform), (120, 30));
}

/// The tiny models whose MLX twins were quantized by another program (NumPy) and loaded in mlx-lm.
#[test]
fn fixtures_come_out_as_their_twins() {
    for (name, recipe) in [("tiny-moe", Recipe::Mixed), ("tiny-dense", Recipe::Uniform), ("tiny-ple", Recipe::Uniform)] {
        let ck = Checkpoint::open(&fixtures().join(name).join("hf")).unwrap();
        let to = Folder::new(&format!("quantize-{name}"));
        let plan = Plan::new(&ck, &Options { recipe, ..Options::default() }).unwrap();
        plan.write(&to.0, &mut |_, _, _| {}).unwrap();
        let ours = Checkpoint::open(&to.0).unwrap();
        let twin = Checkpoint::open(&fixtures().join(name).join("mlx")).unwrap();
        // The twin keeps keys and values that no layer uses; mlx-lm's conversion does not.
        let unused: Vec<&str> = twin.skipped().map(|(t, _)| t.name).collect();
        assert_eq!(unused.iter().any(|n| n.contains("k_proj")), name == "tiny-ple");
        let mut compared = 0;
        for t in twin.tensors().filter(|t| !unused.contains(&t.name)) {
            let o = ours.tensor_by_full_name(t.name).unwrap_or_else(|| panic!("{name}: {} is missing", t.name));
            assert!((o.dtype, o.shape, o.bytes) == (t.dtype, t.shape, t.bytes), "{name}: {} differs", t.name);
            compared += 1;
        }
        assert_eq!(compared, ours.tensors().count());
        assert!(ours.warnings().is_empty() && ours.fits().is_ok() && ours.skipped().next().is_none());
        let set = |ck: &Checkpoint| ck.config().quantization.clone().unwrap();
        assert_eq!(set(&ours), set(&twin));
    }
}

/// Every tensor that is wrong is named, before anything is written.
#[test]
fn what_does_not_fit_is_told_all_at_once() {
    let model = moe();
    let refused = |edit: &dyn Fn(&mut Vec<Shaped>)| {
        let (from, to) = (Folder::new("quantize-bad"), Folder::new("quantize-bad-out"));
        let mut tensors = tensors_of(&model, "model.language_model.");
        edit(&mut tensors);
        hf(&from, &nested(&model), &tensors, Dtype::BF16, &one_file);
        let message = write(&from, &to, &options(&model)).unwrap_err().to_string();
        assert_eq!(fs::read_dir(&to.0).unwrap().count(), 0);
        message
    };
    let gone = ["layers.1.mlp.up_proj.weight", "layers.0.input_layernorm.weight"];
    let message = refused(&|t| t.retain(|(n, _)| !gone.iter().any(|g| n.ends_with(g))));
    says(message.clone(), "2 tensors are missing:");
    gone.iter().for_each(|g| says(message.clone(), g));
    says(refused(&|t| t.push(("model.language_model.layers.7.layer_scalar".into(), vec![1]))), "no place for 1 tensors");
    let wrong = ["layers.0.router.proj.weight", "layers.1.layer_scalar", "layers.1.experts.gate_up_proj"];
    let message = refused(&|t| t.iter_mut().filter(|(n, _)| wrong.iter().any(|w| n.ends_with(w))).for_each(|(_, s)| s[0] += 1));
    for part in [
        "3 tensors do not fit config.json:",
        "\n  model.safetensors: model.language_model.layers.0.router.proj.weight: the shape is [5, 128], expected [4, 128]",
        "\n  model.safetensors: model.language_model.layers.1.layer_scalar: the shape is [2], expected [1]",
        "\n  model.safetensors: model.language_model.layers.1.experts.gate_up_proj: the shape is [5, 256, 128], expected [4, ",
    ] {
        says(message.clone(), part);
    }
}

/// Damaged values are found everywhere, and named with their place in the tensor of the input.
#[test]
fn damaged_values_are_told_all_at_once() {
    let model = moe();
    let (from, to) = (Folder::new("quantize-nan"), Folder::new("quantize-nan-out"));
    hf(&from, &nested(&model), &tensors_of(&model, "model.language_model."), Dtype::BF16, &one_file);
    let damage = |names: &'static [(&'static str, usize)]| {
        rename(&from, &move |name, shape, mut bytes| {
            for (n, i) in names.iter().filter(|(n, _)| name.ends_with(n)) {
                assert!(*i < bytes.len() / 2, "{n}");
                bytes[2 * i..2 * i + 2].copy_from_slice(&0x7f80u16.to_le_bytes());
            }
            vec![(name.into(), shape, bytes)]
        });
        write(&from, &to, &options(&model)).unwrap_err().to_string()
    };
    let one = damage(&[("layers.1.experts.gate_up_proj", 3 * 256 * 128 + 200 * 128 + 5)]);
    let at = 3 * 256 * 128 + 200 * 128 + 5;
    says(one, &format!("model.safetensors: model.language_model.layers.1.experts.gate_up_proj: element {at} is infinite or not"));
    fs::remove_file(to.0.join("model.safetensors")).unwrap();
    let many = damage(&[("layers.0.input_layernorm.weight", 3), ("embed_tokens.weight", 1000)]);
    says(
        many.clone(),
        "3 tensors cannot be quantized:\n  model.safetensors: model.language_model.embed_tokens.weight: element 1000 is",
    );
    says(many, "layers.0.input_layernorm.weight: element 3 is infinite");
}

#[test]
fn what_is_not_to_be_quantized() {
    let demo = Checkpoint::open(Path::new(common::DEMO)).unwrap();
    let o = Options::default();
    says(Plan::new(&demo, &o).err().unwrap().to_string(), "quantized already\nhint: quantizing twice");
    let d = Plan::new(&demo, &Options { bits: 7, ..o }).err().unwrap();
    assert_eq!((d.code, d.message.as_str()), ("E0281", "there are no codes of 7 bits"));
    says(Plan::new(&demo, &Options { group: 48, ..o }).err().unwrap().to_string(), "no groups of 48");
}
