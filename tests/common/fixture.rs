//! The tiny models of `tests/fixtures` with what float64 makes of them, and their runs by the interpreter of graphs.

use ir::graph::Graph;
use ir::graph::interp::{Session, Value, WeightSource};
use ir::graph::op::EmbedMode;
use models::Checkpoint;
use models::gemma4::layers::{LOGITS, NEXT, PER_LAYER, graph};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// Model and layout of every fixture.
pub const FIXTURES: [(&str, &str); 6] = [
    ("tiny-moe", "hf"),
    ("tiny-moe", "mlx"),
    ("tiny-dense", "hf"),
    ("tiny-dense", "mlx"),
    ("tiny-ple", "hf"),
    ("tiny-ple", "mlx"),
];

/// Values that exist once a layer: in the fixture, in the graph.
const PER_LAYER_VALUES: [(&str, &str); 6] = [
    ("attn_out", "attn.o_proj"),
    ("resid_attn", "attn.resid"),
    ("mlp_out", "mlp.down"),
    ("moe_out", "moe.sum"),
    ("resid_out", "resid"),
    ("router_logits", "moe.router_logits"),
];

/// What else the files hold: read elsewhere, or not a value of the model.
const OTHERS: [&str; 13] = [
    "prompt_ids",
    "greedy_ids",
    "greedy_gap",
    "greedy_top8_ids",
    "greedy_top8_logits_f64",
    "greedy_last_logits_f64",
    "logits_f64",
    "logits_f32",
    "logits_bf16embed",
    "router_idx",
    "router_w",
    "inv_freq.full_attention",
    "inv_freq.sliding_attention",
];

/// One checkpoint and its expected values.
pub struct Fixture {
    pub name: String,
    pub ck: Checkpoint,
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    expected: BTreeMap<String, Vec<f64>>,
}

impl Fixture {
    pub fn load(model: &str, layout: &str) -> Fixture {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(model).join(layout);
        let (mut files, mut expected) = (vec![], BTreeMap::new());
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let bytes = std::fs::read(&path).unwrap();
            match name.as_str() {
                "expected.safetensors" => expected = numbers(&bytes),
                "expected.json" => {}
                _ => files.push((name, Cow::Owned(bytes))),
            }
        }
        let ck = Checkpoint::from_memory(files).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(ck.warnings(), [], "{model}/{layout}");
        let ids = |k: &str| expected[k].iter().map(|x| *x as u32).collect();
        Fixture { name: format!("{model}/{layout}"), ck, prompt: ids("prompt_ids"), greedy: ids("greedy_ids"), expected }
    }

    pub fn graph(&self, embed: EmbedMode) -> Graph {
        graph(&self.ck, embed).unwrap_or_else(|d| panic!("{}: {d}", self.name))
    }

    /// An expected tensor.
    pub fn want(&self, name: &str) -> &[f64] {
        self.expected.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.name))
    }

    /// Names in the graph of the values that are expected at every position, but for the logits.
    pub fn traced(&self) -> Vec<String> {
        let mut out = vec!["embed".to_string(), "final.norm".into()];
        if self.expected.contains_key("per_layer_inputs") {
            out.push(PER_LAYER.into());
        }
        for (name, value) in PER_LAYER_VALUES.iter().filter(|(n, _)| self.expected.contains_key(*n)) {
            let layers = self.ck.config().layers.len();
            assert!(self.want(name).len().is_multiple_of(layers));
            out.extend((0..layers).map(|i| format!("layers.{i}.{value}")));
        }
        out
    }

    /// The error of every expected value, by name. A choice of experts that
    /// differs is an infinite error.
    pub fn errors(&self, t: &Trace) -> BTreeMap<String, f64> {
        let wide = |x: &Vec<f32>| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let floats = t.floats.iter().map(|(name, x)| (name.clone(), wide(x))).collect();
        let routes = t.routes.iter().map(|(layer, (ids, w))| (*layer, (ids.clone(), wide(w)))).collect();
        self.errors_of(&floats, &routes)
    }

    /// The same of values in float64.
    pub fn errors_of(
        &self,
        floats: &BTreeMap<String, Vec<f64>>,
        routes: &BTreeMap<usize, (Vec<u32>, Vec<f64>)>,
    ) -> BTreeMap<String, f64> {
        let (layers, mut out) = (self.ck.config().layers.len(), BTreeMap::new());
        let error = |value: &str, want: &[f64]| {
            let got = floats.get(value).unwrap_or_else(|| panic!("{}: the graph has no {value}", self.name));
            error_of(got, want)
        };
        for (name, want) in &self.expected {
            match name.as_str() {
                "embed" => _ = out.insert(name.clone(), error("embed", want)),
                "final_norm" => _ = out.insert(name.clone(), error("final.norm", want)),
                "per_layer_inputs" => _ = out.insert(name.clone(), error(PER_LAYER, want)),
                other => match PER_LAYER_VALUES.iter().find(|(n, _)| *n == other) {
                    Some((_, value)) => {
                        for (i, want) in want.chunks_exact(want.len() / layers).enumerate() {
                            out.insert(format!("{name}.{i}"), error(&format!("layers.{i}.{value}"), want));
                        }
                    }
                    None => assert!(OTHERS.contains(&other), "{}: nobody judges {other}", self.name),
                },
            }
        }
        out.insert("logits".into(), error(LOGITS, self.want("logits_f64")));
        if let Some(w) = self.expected.get("router_w") {
            let (idx, n) = (self.want("router_idx"), w.len() / layers);
            for i in 0..layers {
                let (ids, weights) = &routes[&i];
                let same = idx[i * n..(i + 1) * n].iter().zip(ids).all(|(a, b)| *a == f64::from(*b));
                let e = error_of(weights, &w[i * n..(i + 1) * n]);
                out.insert(format!("router_w.{i}"), if same && ids.len() == n { e } else { f64::INFINITY });
            }
        }
        out
    }
}

/// The values of one run over the prompt.
#[derive(Default)]
pub struct Trace {
    /// Rows of floats by name.
    pub floats: BTreeMap<String, Vec<f32>>,
    /// Chosen experts and their weights, by layer.
    pub routes: BTreeMap<usize, (Vec<u32>, Vec<f32>)>,
}

/// All values of one step over the prompt, by the interpreter of graphs.
pub fn trace(g: &Graph, source: &dyn WeightSource, ids: &[u32]) -> Trace {
    let mut s = Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(ids, 0).unwrap_or_else(|d| panic!("{d}"));
    let mut t = Trace::default();
    for id in g.ids() {
        let name = &g.node(id).name;
        match s.node_value(id) {
            Some(Value::F32(x)) => _ = t.floats.insert(name.clone(), x.clone()),
            Some(Value::Route(r)) => {
                let layer = name.split('.').nth(1).and_then(|l| l.parse().ok()).unwrap_or_else(|| panic!("{name}"));
                t.routes.insert(layer, (r.iter().map(|c| c.expert).collect(), r.iter().map(|c| c.weight).collect()));
            }
            _ => {}
        }
    }
    t
}

/// Greedy decoding after the prompt, by the interpreter of graphs: ids, and the logits that chose each.
pub fn greedy(g: &Graph, source: &dyn WeightSource, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f32>) {
    let mut s = Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    let (mut ids, mut rows, mut input) = (vec![], vec![], prompt.to_vec());
    while ids.len() < n {
        s.step(&input, input.len() - 1).unwrap_or_else(|d| panic!("{d}"));
        rows.extend_from_slice(s.value(LOGITS).and_then(|v| v.f32s()).expect("logits"));
        let Some(Value::I32(next)) = s.value(NEXT) else { panic!("no choice") };
        input = vec![u32::try_from(next[0]).expect("finite logits")];
        ids.push(input[0]);
    }
    (ids, rows)
}

/// Greatest error over greatest magnitude.
pub fn relative_error_f64(got: &[f32], want: &[f64]) -> f64 {
    error_of(&got.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), want)
}

/// The same of numbers in float64.
pub fn error_of(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let max = |it: &mut dyn Iterator<Item = f64>| it.fold(0.0, |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x) });
    let diff = max(&mut got.iter().zip(want).map(|(a, b)| (a - b).abs()));
    diff / max(&mut want.iter().map(|x| x.abs()))
}

/// Tensors of a file, as f64.
fn numbers(bytes: &[u8]) -> BTreeMap<String, Vec<f64>> {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    let entries = header.as_object().unwrap().iter().filter(|(k, _)| *k != "__metadata__");
    entries
        .map(|(name, t)| {
            let at = |k: usize| 8 + n + t["data_offsets"][k].as_u64().unwrap() as usize;
            let data = &bytes[at(0)..at(1)];
            let values = match t["dtype"].as_str().unwrap() {
                "F64" => data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
                "F32" => data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
                "I32" => data.chunks_exact(4).map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap()))).collect(),
                other => panic!("{name}: {other}"),
            };
            (name.clone(), values)
        })
        .collect()
}
