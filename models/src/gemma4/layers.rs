//! Gemma 4 as a tensor graph, readable beside section 2 of the specification. Names of values are stable: every later pass,
//! dump and trace keeps them. Shapes of weights come from [`super::tensors`], their types from the checkpoint.

use super::{Config, Layer, LayerKind, StoredFloat};
use crate::checkpoint::Checkpoint;
use ir::diag::{Diagnostic, Result};
use ir::graph::op::{EmbedMode, Op, RopeParams};
use ir::graph::verify::types::infer;
use ir::graph::{Elem, Graph, NodeId, Rows, Type};
use std::collections::BTreeMap;

/// Name of the value that holds the logits.
pub const LOGITS: &str = "logits";
/// Name of the value that holds the greedy choice.
pub const NEXT: &str = "next_token";
/// Name of the value that holds the per-layer inputs, layer after layer.
pub const PER_LAYER: &str = "per_layer_inputs";

struct Build<'a> {
    g: Graph,
    c: &'a Config,
    ck: &'a Checkpoint,
    /// Weights that the graph has already (the embedding is used twice).
    weights: BTreeMap<String, NodeId>,
    /// Caches after the step's keys and values were written, by layer; `None` in layers without a cache.
    kv: Vec<Option<NodeId>>,
}

/// The graph of a text decoder; types come from the tensors that the checkpoint holds.
pub fn graph(ck: &Checkpoint, embed: EmbedMode) -> Result<Graph> {
    ck.fits()?;
    let c = ck.config();
    let mut b = Build { g: Graph::new("gemma4"), c, ck, weights: BTreeMap::new(), kv: vec![] };
    let ids = b.node("tokens", Op::Tokens, &[])?;
    let mut h = b.embed("embed", "embed_tokens", c.hidden_size, embed, ids)?;
    let per_layer = match c.per_layer {
        Some(p) => Some(b.per_layer_inputs(p.width, embed, ids, h)?),
        None => None,
    };
    for i in 0..c.layers.len() {
        h = b.layer(i, h, per_layer)?;
    }
    let h = b.node("final.select", Op::Select, &[h])?;
    let h = b.norm("final.norm", h, Some("norm"), c.hidden_size)?;
    let mut z = b.linear("logits.raw", h, if c.tied { "embed_tokens" } else { "lm_head" })?;
    if let Some(cap) = c.softcap {
        z = b.node(LOGITS, Op::Softcap { cap: cap as f32 }, &[z])?;
    } else {
        b.g.node_mut(z).name = LOGITS.into();
    }
    let next = b.node(NEXT, Op::Argmax, &[z])?;
    b.g.outputs = vec![z, next];
    Ok(b.g)
}

/// The square root of a table's width, rounded as the mode says (SPEC section 4).
fn embed_factor(width: usize, mode: EmbedMode, stored: StoredFloat) -> f32 {
    let exact = (width as f64).sqrt();
    match (mode, stored) {
        (EmbedMode::Exact, _) | (EmbedMode::Factor, StoredFloat::F32) => exact as f32,
        (EmbedMode::Factor, StoredFloat::F16) => half::f16::from_f64(exact).to_f32(),
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

    /// A weight of the decoder's table.
    fn weight(&mut self, name: &str) -> Result<NodeId> {
        if let Some(&id) = self.weights.get(name) {
            return Ok(id);
        }
        let elem = self.ck.format(name)?;
        let shape = self.ck.expected(name).map(|e| e.shape.iter().map(|&d| d as u32).collect()).unwrap_or_default();
        let id = self.g.add(name, Op::Weight, &[], Type { elem, rows: Rows::Once, shape });
        self.weights.insert(name.into(), id);
        Ok(id)
    }

    fn embed(&mut self, name: &str, table: &str, width: usize, mode: EmbedMode, ids: NodeId) -> Result<NodeId> {
        let table = self.weight(table)?;
        let factor = embed_factor(width, mode, self.c.dtype);
        self.node(name, Op::Embed { mode, factor }, &[table, ids])
    }

    /// A norm over runs of `dim`.
    fn norm(&mut self, name: &str, x: NodeId, weight: Option<&str>, dim: usize) -> Result<NodeId> {
        let mut inputs = vec![x];
        if let Some(w) = weight {
            inputs.push(self.weight(w)?);
        }
        let eps = self.c.rms_norm_eps as f32;
        self.node(name, Op::RmsNorm { dim: dim as u32, eps, order: None }, &inputs)
    }

    fn linear(&mut self, name: &str, x: NodeId, path: &str) -> Result<NodeId> {
        let w = self.weight(path)?;
        self.node(name, Op::Linear { order: None }, &[x, w])
    }

    /// What each layer gets beside the residual stream: of all layers, side by side (SPEC 2.5).
    fn per_layer_inputs(&mut self, width: usize, mode: EmbedMode, ids: NodeId, h: NodeId) -> Result<NodeId> {
        let tok = self.embed("ple.embed", "embed_tokens_per_layer", width, mode, ids)?;
        let ctx = self.linear("ple.context", h, "per_layer_model_projection")?;
        let root = (1.0 / (self.c.hidden_size as f64).sqrt()) as f32;
        let ctx = self.node("ple.context_scaled", Op::MulConst { c: root }, &[ctx])?;
        let ctx = self.norm("ple.context_norm", ctx, Some("per_layer_projection_norm"), width)?;
        let sum = self.node("ple.sum", Op::Add, &[ctx, tok])?;
        self.node(PER_LAYER, Op::MulConst { c: std::f32::consts::FRAC_1_SQRT_2 }, &[sum])
    }

    fn layer(&mut self, i: usize, h: NodeId, per_layer: Option<NodeId>) -> Result<NodeId> {
        let (c, hidden) = (self.c, self.c.hidden_size);
        let n = |s: &str| format!("layers.{i}.{s}");
        let x = self.norm(&n("attn.norm"), h, Some(&n("input_layernorm")), hidden)?;
        let a = self.attention(i, x)?;
        let a = self.norm(&n("attn.post_norm"), a, Some(&n("post_attention_layernorm")), hidden)?;
        let h = self.node(&n("attn.resid"), Op::Add, &[h, a])?;

        let x = self.norm(&n("mlp.norm"), h, Some(&n("pre_feedforward_layernorm")), hidden)?;
        let gate = self.linear(&n("mlp.gate"), x, &n("mlp.gate_proj"))?;
        let up = self.linear(&n("mlp.up"), x, &n("mlp.up_proj"))?;
        let act = self.node(&n("mlp.act"), Op::GeluMul, &[gate, up])?;
        let mut m = self.linear(&n("mlp.down"), act, &n("mlp.down_proj"))?;
        if let Some(e) = c.experts {
            let e = self.experts(i, h, e.top_k)?;
            let m1 = self.norm(&n("mlp.post_norm"), m, Some(&n("post_feedforward_layernorm_1")), hidden)?;
            let e1 = self.norm(&n("moe.post_norm"), e, Some(&n("post_feedforward_layernorm_2")), hidden)?;
            m = self.node(&n("ffn.sum"), Op::Add, &[m1, e1])?;
        }
        let m = self.norm(&n("ffn.post_norm"), m, Some(&n("post_feedforward_layernorm")), hidden)?;
        let mut h = self.node(&n("ffn.resid"), Op::Add, &[h, m])?;
        if let (Some(all), Some(p)) = (per_layer, c.per_layer) {
            let p = self.node(&n("ple.input"), Op::Slice { start: (i * p.width) as u32, len: p.width as u32 }, &[all])?;
            let gate = self.linear(&n("ple.gate"), h, &n("per_layer_input_gate"))?;
            let act = self.node(&n("ple.act"), Op::GeluMul, &[gate, p])?;
            let y = self.linear(&n("ple.proj"), act, &n("per_layer_projection"))?;
            let y = self.norm(&n("ple.post_norm"), y, Some(&n("post_per_layer_input_norm")), hidden)?;
            h = self.node(&n("ple.resid"), Op::Add, &[h, y])?;
        }
        let s = self.weight(&n("layer_scalar"))?;
        self.node(&n("resid"), Op::Mul, &[h, s])
    }

    fn attention(&mut self, i: usize, x: NodeId) -> Result<NodeId> {
        let l = self.c.layers[i];
        let n = |s: &str| format!("layers.{i}.{s}");
        let rope = self.rope(&l);
        let q = self.linear(&n("attn.q_proj"), x, &n("self_attn.q_proj"))?;
        let q = self.norm(&n("attn.q_norm"), q, Some(&n("self_attn.q_norm")), l.head_dim)?;
        let q = self.node(&n("attn.q"), Op::Rope(rope), &[q])?;
        let own = match l.kv_from {
            Some(_) => None,
            None => Some(self.keys_and_values(i, &l, x)?),
        };
        self.kv.push(own);
        // What that layer attended to in this step: its cache and the chunk.
        let kv = self.kv.get(l.kv_from.unwrap_or(i)).copied().flatten();
        let kv = kv.ok_or_else(|| Diagnostic::new("E0259", "there are no keys and values to read").at(n("attn")))?;
        let o = self.node(&n("attn.out"), Op::Attention { heads: l.heads as u32, order: None }, &[q, kv])?;
        self.linear(&n("attn.o_proj"), o, &n("self_attn.o_proj"))
    }

    /// Projects keys and values and writes them to the layer's cache.
    fn keys_and_values(&mut self, i: usize, l: &Layer, x: NodeId) -> Result<NodeId> {
        let n = |s: &str| format!("layers.{i}.{s}");
        let rope = self.rope(l);
        let raw = self.linear(&n("attn.k_proj"), x, &n("self_attn.k_proj"))?;
        let k = self.norm(&n("attn.k_norm"), raw, Some(&n("self_attn.k_norm")), l.head_dim)?;
        let k = self.node(&n("attn.k"), Op::Rope(rope), &[k])?;
        let v = if l.k_eq_v { raw } else { self.linear(&n("attn.v_proj"), x, &n("self_attn.v_proj"))? };
        let v = self.norm(&n("attn.v"), v, None, l.head_dim)?;
        let kv = Op::Kv { layer: i as u32, heads: l.kv_heads as u32, dim: l.head_dim as u32, window: l.window as u32 };
        let kv = self.node(&format!("kv.{i}"), kv, &[])?;
        self.node(&n("attn.kv"), Op::KvWrite, &[kv, k, v])
    }

    fn rope(&self, l: &Layer) -> RopeParams {
        let r = self.c.rope_of(l.kind);
        let rotated = match l.kind {
            LayerKind::Sliding => l.head_dim as u32 / 2,
            LayerKind::Full => (r.partial_rotary_factor * l.head_dim as f64 / 2.0) as u32,
        };
        RopeParams { dim: l.head_dim as u32, rotated, theta: r.theta, factor: r.factor }
    }

    fn experts(&mut self, i: usize, h: NodeId, top_k: usize) -> Result<NodeId> {
        let hidden = self.c.hidden_size;
        let n = |s: &str| format!("layers.{i}.{s}");
        let r = self.norm(&n("moe.router_norm"), h, None, hidden)?;
        let scale = self.weight(&n("router.scale"))?;
        let r = self.node(&n("moe.router_scaled"), Op::Mul, &[r, scale])?;
        let root = (1.0 / (hidden as f64).sqrt()) as f32;
        let r = self.node(&n("moe.router_in"), Op::MulConst { c: root }, &[r])?;
        let z = self.linear(&n("moe.router_logits"), r, &n("router.proj"))?;
        let per_expert = self.weight(&n("router.per_expert_scale"))?;
        let route = self.node(&n("moe.route"), Op::Route { k: top_k as u32 }, &[z, per_expert])?;

        let x = self.norm(&n("moe.norm"), h, Some(&n("pre_feedforward_layernorm_2")), hidden)?;
        let expert = |b: &mut Self, name: &str, x, proj: &str| {
            let w = b.weight(&n(&format!("experts.switch_glu.{proj}")))?;
            b.node(&n(name), Op::ExpertLinear { order: None }, &[x, w, route])
        };
        let gate = expert(self, "moe.gate", x, "gate_proj")?;
        let up = expert(self, "moe.up", x, "up_proj")?;
        let act = self.node(&n("moe.act"), Op::GeluMul, &[gate, up])?;
        let y = expert(self, "moe.down", act, "down_proj")?;
        self.node(&n("moe.sum"), Op::ExpertSum, &[y, route])
    }
}
