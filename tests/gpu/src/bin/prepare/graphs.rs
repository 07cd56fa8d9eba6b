//! The graphs of the cases: parts of the model with random weights, small and as wide as the real one.

use ir::graph::op::{EmbedMode, Op, RopeParams};
use ir::graph::{Elem, Graph, NodeId, Rows, Type};

/// Token ids of every case but the head.
pub const VOCAB: u32 = 512;

/// Builds a graph before quantized lowering.
pub struct B {
    g: Graph,
    bits: u32,
    group: u32,
}

/// Heads of an attention layer.
#[derive(Clone, Copy)]
pub struct Heads {
    /// Query heads.
    pub q: u32,
    /// Key heads.
    pub kv: u32,
    /// Head size.
    pub dim: u32,
    /// Window, 0 for all.
    pub window: u32,
}

/// Experts of a layer.
#[derive(Clone, Copy)]
pub struct Experts {
    /// How many.
    pub n: u32,
    /// Chosen per token.
    pub k: u32,
    /// Inner width.
    pub width: u32,
}

impl B {
    /// An empty graph with weights of `bits` bits in groups of `group`.
    pub fn new(name: &str, bits: u32, group: u32) -> Self {
        B { g: Graph::new(name), bits, group }
    }

    fn matrix(&mut self, name: &str, shape: &[u32], bits: u32) -> NodeId {
        let elem = Elem::Affine { bits, group: self.group, scales: ir::graph::Dtype::Bf16 };
        self.g.add(name, Op::Weight, &[], Type { elem, rows: Rows::Once, shape: shape.to_vec() })
    }

    fn vector(&mut self, name: &str, n: u32) -> NodeId {
        self.g.add(name, Op::Weight, &[], Type { elem: Elem::Bf16, rows: Rows::Once, shape: vec![n] })
    }

    fn width(&self, x: NodeId) -> u32 {
        self.g.node(x).ty.width()
    }

    fn like(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> NodeId {
        let ty = self.g.node(inputs[0]).ty.clone();
        self.g.add(name, op, inputs, ty)
    }

    /// Embedded tokens.
    pub fn embed(&mut self, width: u32) -> NodeId {
        let tokens = self.g.add("tokens", Op::Tokens, &[], Type { elem: Elem::I32, rows: Rows::Tokens, shape: vec![] });
        let table = self.matrix("embed_tokens", &[VOCAB, width], self.bits);
        let op = Op::Embed { mode: EmbedMode::Factor, factor: (width as f32).sqrt() };
        self.g.add("embed", op, &[table, tokens], Type::tokens(&[width]))
    }

    fn norm(&mut self, name: &str, x: NodeId, dim: u32, weight: bool) -> NodeId {
        let mut inputs = vec![x];
        if weight {
            inputs.push(self.vector(&format!("{name}_w"), dim));
        }
        self.like(name, Op::RmsNorm { dim, eps: 1e-6, order: None }, &inputs)
    }

    fn linear(&mut self, name: &str, x: NodeId, rows: u32, bits: u32) -> NodeId {
        let w = self.matrix(&format!("{name}_proj"), &[rows, self.width(x)], bits);
        let ty = Type { shape: vec![rows], ..self.g.node(x).ty.clone() };
        self.g.add(name, Op::Linear { order: None }, &[x, w], ty)
    }

    /// Norm, gate·up with GELU, down, norm, residual.
    pub fn mlp(&mut self, p: &str, h: NodeId, inner: u32, bits: u32) -> NodeId {
        let width = self.width(h);
        let x = self.norm(&format!("{p}.mlp_in"), h, width, true);
        let gate = self.linear(&format!("{p}.gate"), x, inner, bits);
        let up = self.linear(&format!("{p}.up"), x, inner, bits);
        let y = self.like(&format!("{p}.act"), Op::GeluMul, &[gate, up]);
        let y = self.linear(&format!("{p}.down"), y, width, bits);
        let y = self.norm(&format!("{p}.mlp_out"), y, width, true);
        self.like(&format!("{p}.mlp"), Op::Add, &[h, y])
    }

    /// Norms, q, k, v, rotary embedding, cache write, attention, output product, residual.
    pub fn attention(&mut self, layer: u32, h: NodeId, a: Heads) -> NodeId {
        let (p, width) = (format!("layers.{layer}.attn"), self.width(h));
        let n = |t: &str| format!("{p}.{t}");
        let x = self.norm(&n("in"), h, width, true);
        let q = self.linear(&n("q_raw"), x, a.q * a.dim, self.bits);
        let k = self.linear(&n("k_raw"), x, a.kv * a.dim, self.bits);
        let v = if a.window == 0 { k } else { self.linear(&n("v_raw"), x, a.kv * a.dim, self.bits) };
        let rope = RopeParams {
            dim: a.dim,
            rotated: if a.window == 0 { a.dim / 8 } else { a.dim / 2 },
            theta: if a.window == 0 { 1e6 } else { 1e4 },
            factor: 1.0,
        };
        let q = self.norm(&n("q_norm"), q, a.dim, true);
        let q = self.like(&n("q"), Op::Rope(rope), &[q]);
        let k = self.norm(&n("k_norm"), k, a.dim, true);
        let k = self.like(&n("k"), Op::Rope(rope), &[k]);
        let v = self.norm(&n("v"), v, a.dim, false);
        let ty = Type { elem: Elem::Kv, rows: Rows::Once, shape: vec![a.kv, a.dim] };
        let op = Op::Kv { layer, heads: a.kv, dim: a.dim, window: a.window };
        let kv = self.g.add(&n("kv"), op, &[], ty.clone());
        let kv = self.g.add(&n("kv_write"), Op::KvWrite, &[kv, k, v], ty);
        let y = self.like(&n("out"), Op::Attention { heads: a.q, order: None }, &[q, kv]);
        let y = self.linear(&n("o"), y, width, self.bits);
        let y = self.norm(&n("post"), y, width, true);
        self.like(&n("resid"), Op::Add, &[h, y])
    }

    /// Router (8-bit), experts, weighted sum, residual.
    pub fn moe(&mut self, p: &str, h: NodeId, e: Experts) -> NodeId {
        let width = self.width(h);
        let n = |t: &str| format!("{p}.{t}");
        let x = self.norm(&n("router_norm"), h, width, false);
        let w = self.vector(&n("router_scale"), width);
        let x = self.like(&n("router_scaled"), Op::Mul, &[x, w]);
        let x = self.like(&n("router_in"), Op::MulConst { c: 1.0 / (width as f32).sqrt() }, &[x]);
        let z = self.linear(&n("router"), x, e.n, 8);
        let scale = self.vector(&n("expert_scale"), e.n);
        let ty = Type { elem: Elem::Route, rows: self.g.node(h).ty.rows, shape: vec![e.k] };
        let route = self.g.add(&n("route"), Op::Route { k: e.k }, &[z, scale], ty);
        let x = self.norm(&n("experts_in"), h, width, true);
        let linear = |b: &mut B, name: &str, x: NodeId, rows: u32| {
            let cols = *b.g.node(x).ty.shape.last().unwrap_or(&1);
            let w = b.matrix(&format!("{}_proj", n(name)), &[e.n, rows, cols], b.bits);
            let ty = Type { shape: vec![e.k, rows], ..b.g.node(x).ty.clone() };
            b.g.add(&n(name), Op::ExpertLinear { order: None }, &[x, w, route], ty)
        };
        let gate = linear(self, "expert_gate", x, e.width);
        let up = linear(self, "expert_up", x, e.width);
        let y = self.like(&n("expert_act"), Op::GeluMul, &[gate, up]);
        let y = linear(self, "expert_down", y, width);
        let ty = Type { shape: vec![width], ..self.g.node(y).ty.clone() };
        let y = self.g.add(&n("expert_sum"), Op::ExpertSum, &[y, route], ty);
        let y = self.norm(&n("experts_out"), y, width, true);
        self.like(&n("moe"), Op::Add, &[h, y])
    }

    /// The graph, whose output is `h`.
    pub fn finish(mut self, h: NodeId) -> Graph {
        self.g.outputs = vec![h];
        self.g
    }

    /// The graph with norm, head, softcap and greedy choice after `h`.
    pub fn head(mut self, h: NodeId, vocab: u32, bits: u32) -> Graph {
        let h = {
            let ty = Type { rows: Rows::Outputs, ..self.g.node(h).ty.clone() };
            self.g.add("final.select", Op::Select, &[h], ty)
        };
        let width = self.width(h);
        let x = self.norm("final.norm", h, width, true);
        let z = self.linear("logits.raw", x, vocab, bits);
        let z = self.like("logits", Op::Softcap { cap: 30.0 }, &[z]);
        let ty = Type { elem: Elem::I32, rows: Rows::Outputs, shape: vec![] };
        let next = self.g.add("next_token", Op::Argmax, &[z], ty);
        self.g.outputs = vec![z, next];
        self.g
    }
}
