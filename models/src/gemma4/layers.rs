//! Gemma 4 as a tensor graph, readable beside section 2 of the specification. Names of values are stable: every later pass,
//! dump and trace keeps them.

use super::{Config, LayerKind};
use crate::checkpoint::{Checkpoint, Module};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::{EmbedMode, Op, RopeParams};
use ir::graph::verify::types::infer;
use ir::graph::{Elem, Graph, NodeId, Rows, Type};
use safetensors::Dtype;

/// Name of the value that holds the logits.
pub const LOGITS: &str = "logits";
/// Name of the value that holds the greedy choice.
pub const NEXT: &str = "next_token";

struct Build<'a> {
    g: Graph,
    c: &'a Config,
    ck: &'a Checkpoint,
}

/// The graph of a text decoder; types come from the tensors that the checkpoint holds.
pub fn graph(ck: &Checkpoint, embed: EmbedMode) -> Result<Graph> {
    let c = ck.config();
    c.supported()?;
    if c.quantization.is_none() {
        return Err(Diagnostic::new("E0258", "the checkpoint is not quantized, which is not supported yet")
            .at(ck.place())
            .hint("use a checkpoint in MLX's affine format with 4 or 8 bits"));
    }
    let mut b = Build { g: Graph::new("gemma4"), c, ck };
    let ids = b.node("tokens", Op::Tokens, &[])?;
    let table = b.matrix("embed_tokens", &[c.vocab_size], c.hidden_size)?;
    let factor = embed_factor(c.hidden_size, embed, c.dtype);
    let mut h = b.node("embed", Op::Embed { mode: embed, factor }, &[table, ids])?;
    for i in 0..c.layers.len() {
        h = b.layer(i, h)?;
    }
    let h = b.node("final.select", Op::Select, &[h])?;
    let h = b.norm("final.norm", h, Some("norm"), c.hidden_size, c.hidden_size)?;
    let head = match ck.tensor("lm_head.weight") {
        Some(_) if !c.tied => b.matrix("lm_head", &[c.vocab_size], c.hidden_size)?,
        _ => table,
    };
    let mut z = b.node("logits.raw", Op::Linear { order: None }, &[h, head])?;
    if let Some(cap) = c.softcap {
        z = b.node(LOGITS, Op::Softcap { cap: cap as f32 }, &[z])?;
    } else {
        b.g.node_mut(z).name = LOGITS.into();
    }
    let next = b.node(NEXT, Op::Argmax, &[z])?;
    b.g.outputs = vec![z, next];
    all_used(ck, &b.g)?;
    Ok(b.g)
}

/// Refuses a checkpoint with tensors of the text model that the configuration has no place for: it is then the
/// configuration of another model. A copy of the embedding as `lm_head` is fine.
fn all_used(ck: &Checkpoint, g: &Graph) -> Result<()> {
    let weights: std::collections::BTreeSet<&str> =
        g.ids().filter(|&i| matches!(g.node(i).op, Op::Weight)).map(|i| g.node(i).name.as_str()).collect();
    let surplus: Vec<&str> = ck
        .tensors()
        .filter_map(|t| t.name.strip_prefix(ck.prefix()))
        .filter(|name| {
            let base =
                ["weight", "scales", "biases"].iter().find_map(|s| name.strip_suffix(s)?.strip_suffix('.')).unwrap_or(name);
            !weights.contains(base) && base != "lm_head"
        })
        .collect();
    match surplus.first() {
        None => Ok(()),
        Some(first) => Err(Diagnostic::new(
            "E0260",
            format!("the configuration has no place for {} tensors of the checkpoint, {first} the first", surplus.len()),
        )
        .at(&ck.config().place)
        .hint("config.json seems to belong to another model (layers, experts, attention_k_eq_v)")),
    }
}

/// sqrt(H), rounded as the mode says (SPEC section 4).
fn embed_factor(hidden: usize, mode: EmbedMode, stored: super::StoredFloat) -> f32 {
    let exact = (hidden as f64).sqrt();
    match (mode, stored) {
        (EmbedMode::Exact, _) | (EmbedMode::Factor, super::StoredFloat::F32) => exact as f32,
        (EmbedMode::Factor, super::StoredFloat::F16) => half::f16::from_f64(exact).to_f32(),
        _ => half::bf16::from_f64(exact).to_f32(),
    }
}

impl Build<'_> {
    fn node(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> Result<NodeId> {
        let declared = Type { elem: Elem::F32, rows: Rows::Tokens, shape: vec![] };
        let types: Vec<&Type> = inputs.iter().map(|&i| &self.g.node(i).ty).collect();
        let ty = infer(&op, &types, &declared).map_err(|d| d.at(name))?;
        Ok(self.g.add(name, op, inputs, ty))
    }

    fn weight(&mut self, name: &str, ty: Type) -> NodeId {
        match self.g.by_name(name) {
            Some(id) => id,
            None => self.g.add(name, Op::Weight, &[], ty),
        }
    }

    /// A linear module's weight, `[lead.., cols]`.
    fn matrix(&mut self, path: &str, lead: &[usize], cols: usize) -> Result<NodeId> {
        let elem = match self.ck.module(path, lead, cols)? {
            Module::Affine { bits, group, scales, .. } => {
                if !(bits == 4 || bits == 8) {
                    return Err(Diagnostic::new("E0258", format!("{bits}-bit weights are not supported yet")).at(path));
                }
                if scales.dtype != Dtype::BF16 {
                    return Err(Diagnostic::new("E0258", format!("scales of type {:?} are not supported yet", scales.dtype))
                        .at(scales.place()));
                }
                Elem::Affine { bits, group, scales: ir::graph::Dtype::Bf16 }
            }
            Module::Plain(t) => elem_of(t.dtype)
                .ok_or_else(|| Diagnostic::new("E0258", format!("{:?} weights are not supported", t.dtype)).at(t.place()))?,
        };
        let shape = lead.iter().chain([&cols]).map(|&d| d as u32).collect();
        Ok(self.weight(path, Type { elem, rows: Rows::Once, shape }))
    }

    /// A vector of floats, named as in the checkpoint without `.weight`.
    fn vector(&mut self, name: &str, len: usize) -> Result<NodeId> {
        let full = format!("{name}.weight");
        let full = if self.ck.tensor(&full).is_some() { full } else { name.to_string() };
        let t = self.ck.floats(&full, &[len])?;
        let elem = elem_of(t.dtype).unwrap_or(Elem::F32);
        Ok(self.weight(name, Type { elem, rows: Rows::Once, shape: vec![len as u32] }))
    }

    fn norm(&mut self, name: &str, x: NodeId, weight: Option<&str>, dim: usize, len: usize) -> Result<NodeId> {
        let mut inputs = vec![x];
        if let Some(w) = weight {
            inputs.push(self.vector(w, len)?);
        }
        let eps = self.c.rms_norm_eps as f32;
        self.node(name, Op::RmsNorm { dim: dim as u32, eps, order: None }, &inputs)
    }

    fn linear(&mut self, name: &str, x: NodeId, path: &str, rows: usize, cols: usize) -> Result<NodeId> {
        let w = self.matrix(path, &[rows], cols)?;
        self.node(name, Op::Linear { order: None }, &[x, w])
    }

    fn layer(&mut self, i: usize, h: NodeId) -> Result<NodeId> {
        let (c, hidden) = (self.c, self.c.hidden_size);
        let n = |s: &str| format!("layers.{i}.{s}");
        let x = self.norm(&n("attn.norm"), h, Some(&n("input_layernorm")), hidden, hidden)?;
        let a = self.attention(i, x)?;
        let a = self.norm(&n("attn.post_norm"), a, Some(&n("post_attention_layernorm")), hidden, hidden)?;
        let h = self.node(&n("attn.resid"), Op::Add, &[h, a])?;

        let x = self.norm(&n("mlp.norm"), h, Some(&n("pre_feedforward_layernorm")), hidden, hidden)?;
        let width = c.intermediate_size;
        let gate = self.linear(&n("mlp.gate"), x, &n("mlp.gate_proj"), width, hidden)?;
        let up = self.linear(&n("mlp.up"), x, &n("mlp.up_proj"), width, hidden)?;
        let act = self.node(&n("mlp.act"), Op::GeluMul, &[gate, up])?;
        let mut m = self.linear(&n("mlp.down"), act, &n("mlp.down_proj"), hidden, width)?;
        if c.experts.is_some() {
            let e = self.experts(i, h)?;
            let m1 = self.norm(&n("mlp.post_norm"), m, Some(&n("post_feedforward_layernorm_1")), hidden, hidden)?;
            let e1 = self.norm(&n("moe.post_norm"), e, Some(&n("post_feedforward_layernorm_2")), hidden, hidden)?;
            m = self.node(&n("ffn.sum"), Op::Add, &[m1, e1])?;
        }
        let m = self.norm(&n("ffn.post_norm"), m, Some(&n("post_feedforward_layernorm")), hidden, hidden)?;
        let h = self.node(&n("ffn.resid"), Op::Add, &[h, m])?;
        let s = self.vector(&n("layer_scalar"), 1)?;
        self.node(&n("resid"), Op::Mul, &[h, s])
    }

    fn attention(&mut self, i: usize, x: NodeId) -> Result<NodeId> {
        let (c, kind) = (self.c, self.c.layers[i]);
        let n = |s: &str| format!("layers.{i}.{s}");
        let (d, nq, nk) = (c.head_dim_of(kind), c.heads, c.kv_heads_of(kind));
        let r = c.rope_of(kind);
        let rotated = (r.partial_rotary_factor * d as f64 / 2.0) as u32;
        let rope = RopeParams { dim: d as u32, rotated, theta: r.theta, factor: r.factor };
        let window = if kind == LayerKind::Sliding { c.sliding_window as u32 } else { 0 };

        let q = self.linear(&n("attn.q_proj"), x, &n("self_attn.q_proj"), nq * d, c.hidden_size)?;
        let q = self.norm(&n("attn.q_norm"), q, Some(&n("self_attn.q_norm")), d, d)?;
        let q = self.node(&n("attn.q"), Op::Rope(rope), &[q])?;
        let raw = self.linear(&n("attn.k_proj"), x, &n("self_attn.k_proj"), nk * d, c.hidden_size)?;
        let k = self.norm(&n("attn.k_norm"), raw, Some(&n("self_attn.k_norm")), d, d)?;
        let k = self.node(&n("attn.k"), Op::Rope(rope), &[k])?;
        let v = if kind == LayerKind::Full && c.k_eq_v {
            raw
        } else {
            self.linear(&n("attn.v_proj"), x, &n("self_attn.v_proj"), nk * d, c.hidden_size)?
        };
        let v = self.norm(&n("attn.v"), v, None, d, d)?;
        let kv = Op::Kv { layer: i as u32, heads: nk as u32, dim: d as u32, window };
        let kv = self.node(&format!("kv.{i}"), kv, &[])?;
        let kv = self.node(&n("attn.kv"), Op::KvWrite, &[kv, k, v])?;
        let o = self.node(&n("attn.out"), Op::Attention { heads: nq as u32, order: None }, &[q, kv])?;
        self.linear(&n("attn.o_proj"), o, &n("self_attn.o_proj"), c.hidden_size, nq * d)
    }

    fn experts(&mut self, i: usize, h: NodeId) -> Result<NodeId> {
        let (c, hidden) = (self.c, self.c.hidden_size);
        let Some(e) = c.experts else {
            return Err(Diagnostic::new("E0259", "the model has no experts"));
        };
        let n = |s: &str| format!("layers.{i}.{s}");
        let r = self.norm(&n("moe.router_norm"), h, None, hidden, hidden)?;
        let scale = self.vector(&n("router.scale"), hidden)?;
        let r = self.node(&n("moe.router_scaled"), Op::Mul, &[r, scale])?;
        let root = (1.0 / (hidden as f64).sqrt()) as f32;
        let r = self.node(&n("moe.router_in"), Op::MulConst { c: root }, &[r])?;
        let z = self.linear(&n("moe.router_logits"), r, &n("router.proj"), e.count, hidden)?;
        let per_expert = self.vector(&n("router.per_expert_scale"), e.count)?;
        let route = self.node(&n("moe.route"), Op::Route { k: e.top_k as u32 }, &[z, per_expert])?;

        let x = self.norm(&n("moe.norm"), h, Some(&n("pre_feedforward_layernorm_2")), hidden, hidden)?;
        let expert = |b: &mut Self, name: &str, x, proj: &str, rows, cols| {
            let w = b.matrix(&n(&format!("experts.switch_glu.{proj}")), &[e.count, rows], cols)?;
            b.node(&n(name), Op::ExpertLinear { order: None }, &[x, w, route])
        };
        let gate = expert(self, "moe.gate", x, "gate_proj", e.width, hidden)?;
        let up = expert(self, "moe.up", x, "up_proj", e.width, hidden)?;
        let act = self.node(&n("moe.act"), Op::GeluMul, &[gate, up])?;
        let y = expert(self, "moe.down", act, "down_proj", hidden, e.width)?;
        self.node(&n("moe.sum"), Op::ExpertSum, &[y, route])
    }
}

fn elem_of(d: Dtype) -> Option<Elem> {
    match d {
        Dtype::BF16 => Some(Elem::Bf16),
        Dtype::F16 => Some(Elem::F16),
        Dtype::F32 => Some(Elem::F32),
        _ => None,
    }
}
