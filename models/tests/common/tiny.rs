//! Random little Gemma 4 models, written as safetensors in every layout that checkpoints have. The numbers are a function of
//! kind and format of codes alone, and exact in bf16, f16 and f32: all layouts of one model hold the same numbers.

use models::Config;
use models::gemma4::tensors::{Expected, Role, tensors};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Which released kind the model is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 26B-A4B: experts beside the dense MLP, values that are raw keys.
    Moe,
    /// 31B.
    Dense,
    /// E2B: per-layer embeddings, shared keys and values, double-wide MLPs.
    Ple,
}

pub const KINDS: [Kind; 3] = [Kind::Moe, Kind::Dense, Kind::Ple];

/// How experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// `experts.switch_glu.gate_proj.weight`, `[E, M, H]`
    Stacked,
    /// `experts.gate_up_proj`, `[E, 2M, H]`
    Fused,
    /// `experts.0.gate_proj.weight`, `[M, H]`
    Single,
}

/// How a model is written.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Before the decoder's names.
    pub prefix: &'static str,
    /// Stored type of plain tensors, and of scales and biases.
    pub dtype: &'static str,
    pub experts: Experts,
    /// Number of files; with an index if there are several.
    pub shards: usize,
    /// The decoder's fields in `text_config`, tensors of other towers, a copy of the embedding, and keys and values of layers
    /// that do not use them.
    pub multimodal: bool,
}

/// Hugging Face, text only.
pub const HF: Layout = Layout { prefix: "model.", dtype: "BF16", experts: Experts::Fused, shards: 1, multimodal: false };
/// MLX.
pub const MLX: Layout = Layout { prefix: "language_model.model.", experts: Experts::Stacked, ..HF };

/// The numbers of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    Plain(Vec<f32>),
    Codes { bits: u32, group: usize, codes: Vec<u8>, scales: Vec<f32>, biases: Vec<f32> },
}

/// A stored tensor: type, shape, bytes.
pub type Stored = (&'static str, Vec<usize>, Vec<u8>);

pub struct Tiny {
    kind: Kind,
    /// Bits and group of most matrices.
    pub quant: Option<(u32, usize)>,
    pub tensors: Vec<(Expected, Numbers)>,
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Numbers of elements.
fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl Tiny {
    /// A model of a kind. With `quant`, matrices whose rows are whole groups are codes, but for the router of the first layer
    /// (left plain) and the embedding (of 8 bits).
    pub fn new(kind: Kind, quant: Option<(u32, usize)>) -> Tiny {
        let mut t = Tiny { kind, quant, tensors: vec![] };
        let config = Config::parse(&t.config(&HF).to_string(), "tiny").unwrap_or_else(|d| panic!("{d}"));
        let mut r = Random(7 + kind as u64);
        for e in tensors(&config) {
            let numbers = t.numbers(&e, &mut r);
            t.tensors.push((e, numbers));
        }
        t
    }

    fn numbers(&self, e: &Expected, r: &mut Random) -> Numbers {
        let (n, cols) = (count(&e.shape), *e.shape.last().unwrap());
        let mut eighth = |center: i64| (center + r.below(63) as i64 - 31) as f32 / 128.0;
        match self.format(&e.name, e.role, cols) {
            None if e.role == Role::Vector => Numbers::Plain((0..n).map(|_| eighth(100)).collect()),
            None => Numbers::Plain((0..n).map(|_| eighth(0)).collect()),
            Some((bits, group)) => {
                let codes = (0..n).map(|_| r.below(1 << bits) as u8).collect();
                let groups = n / group;
                // Largest magnitude near 1/4 whatever the number of codes.
                let unit = 0.5 / f32::from(1u16 << bits);
                let scales = (0..groups).map(|_| unit * [1.0, 0.75, -0.5][r.below(3) as usize]).collect();
                let biases = (0..groups).map(|_| (r.below(31) as f32 - 15.0) / 64.0).collect();
                Numbers::Codes { bits, group, codes, scales, biases }
            }
        }
    }

    fn format(&self, name: &str, role: Role, cols: usize) -> Option<(u32, usize)> {
        let (bits, group) = self.quant?;
        let plain = role == Role::Vector || name == "layers.0.router.proj" || !cols.is_multiple_of(group);
        if plain { None } else { Some((if name == "embed_tokens" { 8 } else { bits }, group)) }
    }

    /// The same model with every matrix plain: `scale·code + bias`, exact in f32.
    pub fn dequantized(&self) -> Tiny {
        let plain = |n: &Numbers| match n {
            Numbers::Plain(_) => n.clone(),
            Numbers::Codes { group, codes, scales, biases, .. } => {
                let value = |(i, &c): (usize, &u8)| scales[i / group] * f32::from(c) + biases[i / group];
                Numbers::Plain(codes.iter().enumerate().map(value).collect())
            }
        };
        let tensors = self.tensors.iter().map(|(e, n)| (e.clone(), plain(n))).collect();
        Tiny { kind: self.kind, quant: None, tensors }
    }

    /// config.json.
    pub fn config(&self, layout: &Layout) -> Value {
        let layers: &[&str] = match self.kind {
            Kind::Moe | Kind::Dense => &["sliding_attention", "full_attention"],
            Kind::Ple => &["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        };
        let (moe, ple) = (self.kind == Kind::Moe, self.kind == Kind::Ple);
        let mut text = json!({
            "model_type": "gemma4_text", "vocab_size": 48, "hidden_size": 128, "intermediate_size": 128,
            "num_hidden_layers": layers.len(), "layer_types": layers, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64, "sliding_window": 4,
            "attention_k_eq_v": !ple, "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0,
            "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "max_position_embeddings": 4096,
            "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0, "enable_moe_block": moe,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            },
            "dtype": match layout.dtype { "BF16" => "bfloat16", "F16" => "float16", _ => "float32" },
        });
        let more = match self.kind {
            Kind::Moe => {
                json!({"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 128, "num_global_key_value_heads": 1})
            }
            Kind::Dense => json!({"num_global_key_value_heads": 1}),
            Kind::Ple => json!({"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 48,
                "num_kv_shared_layers": 2, "use_double_wide_mlp": true}),
        };
        text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut out = if layout.multimodal { json!({"model_type": "gemma4", "text_config": text}) } else { text };
        if let Some((bits, group)) = self.quant {
            let mut q = json!({"bits": bits, "group_size": group, "mode": "affine"});
            q[format!("{}embed_tokens", layout.prefix)] = json!({"bits": 8, "group_size": group});
            if self.kind == Kind::Moe {
                q[format!("{}layers.0.router.proj", layout.prefix)] = json!(false);
            }
            out["quantization"] = q;
        }
        out
    }

    /// The tensors under their names in the file.
    pub fn stored(&self, layout: &Layout) -> BTreeMap<String, Stored> {
        let mut out = BTreeMap::new();
        let mut pair: Option<(&Expected, &Numbers)> = None;
        for (e, n) in &self.tensors {
            let base = format!("{}{}", layout.prefix, e.name);
            let Some((layer, proj)) = base.split_once(".experts.switch_glu.") else {
                put(
                    &mut out,
                    &base,
                    e.role == Role::Vector && e.name.ends_with("scale") || e.name.ends_with("scalar"),
                    layout,
                    &e.shape,
                    n,
                );
                continue;
            };
            match (layout.experts, proj) {
                (Experts::Stacked, _) => put(&mut out, &base, false, layout, &e.shape, n),
                (Experts::Single, _) => {
                    for k in 0..e.shape[0] {
                        let name = format!("{layer}.experts.{k}.{proj}");
                        put(&mut out, &name, false, layout, &e.shape[1..], &rows(n, &e.shape, k, 0..e.shape[1]));
                    }
                }
                // Plain fused experts have no `.weight` at the end of their names.
                (Experts::Fused, "down_proj") => put(&mut out, &format!("{layer}.experts.down_proj"), true, layout, &e.shape, n),
                (Experts::Fused, "gate_proj") => pair = Some((e, n)),
                (Experts::Fused, _) => {
                    let (g, gate) = pair.take().expect("gate before up");
                    let shape = [g.shape[0], 2 * g.shape[1], g.shape[2]];
                    let parts = (0..shape[0]).flat_map(|k| [(gate, k), (n, k)]);
                    let both = join(parts.map(|(n, k)| rows(n, &e.shape, k, 0..e.shape[1])));
                    put(&mut out, &format!("{layer}.experts.gate_up_proj"), true, layout, &shape, &both);
                }
            }
        }
        if layout.multimodal {
            self.others(layout, &mut out);
        }
        out
    }

    /// What a text decoder does not read.
    fn others(&self, layout: &Layout, out: &mut BTreeMap<String, Stored>) {
        let junk = |shape: &[usize]| ("BF16", shape.to_vec(), vec![1; 2 * count(shape)]);
        let outer = if layout.prefix == "model.language_model." { "model." } else { "" };
        for tower in ["vision_tower.encoder.layers.0.weight", "embed_vision.weight", "audio_tower.conv.weight"] {
            out.insert(format!("{outer}{tower}"), junk(&[3, 5]));
        }
        for part in ["weight", "scales", "biases"] {
            if let Some(t) = out.get(&format!("{}embed_tokens.{part}", layout.prefix)).cloned() {
                let outer = if layout.prefix == "language_model.model." { "language_model." } else { "" };
                out.insert(format!("{outer}lm_head.{part}"), t);
            }
        }
        if self.kind == Kind::Ple {
            for (layer, dim) in [(2, 32), (3, 64)] {
                for proj in ["k_proj", "v_proj"] {
                    out.insert(format!("{}layers.{layer}.self_attn.{proj}.weight", layout.prefix), junk(&[2 * dim, 128]));
                }
                out.insert(format!("{}layers.{layer}.self_attn.k_norm.weight", layout.prefix), junk(&[dim]));
            }
        }
    }

    /// All files of a checkpoint folder.
    pub fn files(&self, layout: &Layout) -> Vec<(String, Cow<'static, [u8]>)> {
        files(&self.config(layout), &self.stored(layout), layout.shards)
    }
}

/// Files of a checkpoint folder of these tensors, dealt to shards in turn.
pub fn files(config: &Value, tensors: &BTreeMap<String, Stored>, shards: usize) -> Vec<(String, Cow<'static, [u8]>)> {
    let mut out = vec![("config.json".to_string(), Cow::Owned(config.to_string().into_bytes()))];
    let name = |i: usize| match shards {
        1 => "model.safetensors".to_string(),
        n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    for i in 0..shards {
        let mine = tensors.iter().enumerate().filter(|(k, _)| k % shards == i).map(|(_, t)| t);
        out.push((name(i), Cow::Owned(safetensors(mine))));
    }
    if shards > 1 {
        let map: Map<String, Value> = tensors.keys().enumerate().map(|(k, t)| (t.clone(), name(k % shards).into())).collect();
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        out.push(("model.safetensors.index.json".into(), Cow::Owned(index.to_string().into_bytes())));
    }
    out
}

/// One safetensors file.
pub fn safetensors<'a>(tensors: impl Iterator<Item = (&'a String, &'a Stored)>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), vec![]);
    for (name, (dtype, shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    super::shard(&Value::Object(header).to_string(), &data)
}

/// Numbers in a stored type; they must be exact in it.
pub fn floats(dtype: &str, values: &[f32]) -> Vec<u8> {
    let one = |x: &f32| -> Vec<u8> {
        let (bytes, back) = match dtype {
            "BF16" => (half::bf16::from_f32(*x).to_le_bytes().to_vec(), half::bf16::from_f32(*x).to_f32()),
            "F16" => (half::f16::from_f32(*x).to_le_bytes().to_vec(), half::f16::from_f32(*x).to_f32()),
            _ => (x.to_le_bytes().to_vec(), *x),
        };
        assert_eq!(back, *x, "{x} is not exact in {dtype}");
        bytes
    };
    values.iter().flat_map(one).collect()
}

/// Codes as little-endian words, the first code in the lowest bits.
pub fn packed(codes: &[u8], bits: u32) -> Vec<u8> {
    let mut out = vec![0u8; codes.len() * bits as usize / 8];
    for (i, &c) in codes.iter().enumerate() {
        for k in (0..bits as usize).filter(|k| c >> k & 1 == 1) {
            let at = i * bits as usize + k;
            out[at / 8] |= 1 << (at % 8);
        }
    }
    out
}

fn put(out: &mut BTreeMap<String, Stored>, base: &str, bare: bool, layout: &Layout, shape: &[usize], n: &Numbers) {
    let dtype = layout.dtype;
    match n {
        Numbers::Plain(x) => {
            let name = if bare { base.to_string() } else { format!("{base}.weight") };
            out.insert(name, (dtype, shape.to_vec(), floats(dtype, x)));
        }
        Numbers::Codes { bits, group, codes, scales, biases } => {
            let (cols, lead) = shape.split_last().unwrap();
            let with = |last: usize| lead.iter().copied().chain([last]).collect::<Vec<_>>();
            out.insert(format!("{base}.weight"), ("U32", with(cols * *bits as usize / 32), packed(codes, *bits)));
            out.insert(format!("{base}.scales"), (dtype, with(cols / group), floats(dtype, scales)));
            out.insert(format!("{base}.biases"), (dtype, with(cols / group), floats(dtype, biases)));
        }
    }
}

/// Rows of matrix `k` of a stack.
fn rows(n: &Numbers, shape: &[usize], k: usize, of: std::ops::Range<usize>) -> Numbers {
    let (rows, cols) = (shape[1], shape[2]);
    let cut = |per_row: usize| (k * rows + of.start) * per_row..(k * rows + of.end) * per_row;
    match n {
        Numbers::Plain(x) => Numbers::Plain(x[cut(cols)].to_vec()),
        Numbers::Codes { bits, group, codes, scales, biases } => Numbers::Codes {
            bits: *bits,
            group: *group,
            codes: codes[cut(cols)].to_vec(),
            scales: scales[cut(cols / group)].to_vec(),
            biases: biases[cut(cols / group)].to_vec(),
        },
    }
}

fn join(parts: impl Iterator<Item = Numbers>) -> Numbers {
    parts
        .reduce(|a, b| match (a, b) {
            (Numbers::Plain(mut x), Numbers::Plain(y)) => {
                x.extend(y);
                Numbers::Plain(x)
            }
            (
                Numbers::Codes { bits, group, mut codes, mut scales, mut biases },
                Numbers::Codes { codes: c, scales: s, biases: b, .. },
            ) => {
                codes.extend(c);
                scales.extend(s);
                biases.extend(b);
                Numbers::Codes { bits, group, codes, scales, biases }
            }
            _ => panic!("a stack of one format"),
        })
        .expect("one at least")
}
