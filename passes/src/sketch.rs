//! A small builder of graphs, for the examples of fusion rules and for tests. Shapes follow the verifier's rules.

use ir::graph::op::{EmbedMode, Op, RopeParams};
use ir::graph::{Dtype, Elem, Graph, NodeId, Rows, Type};

/// Builds a graph; names are the caller's.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// The graph.
    pub g: Graph,
    /// Elements of a group of all quantized weights.
    pub group: u32,
    /// Bits of their codes.
    pub bits: u32,
    /// Format of their scales.
    pub scales: Dtype,
    /// Plain matrices of this format instead of quantized ones.
    pub plain: Option<Dtype>,
    /// Use `Linear` instead of `Quantize` and `QLinear`.
    pub linear: bool,
    tokens: NodeId,
}

impl Sketch {
    /// A graph with token ids.
    pub fn new(name: &str) -> Self {
        let mut g = Graph::new(name);
        let tokens = g.add("tokens", Op::Tokens, &[], Type { elem: Elem::I32, rows: Rows::Tokens, shape: vec![] });
        Sketch { g, group: 32, bits: 4, scales: Dtype::Bf16, plain: None, linear: false, tokens }
    }

    /// Type of a value.
    pub fn ty(&self, id: NodeId) -> Type {
        self.g.node(id).ty.clone()
    }

    /// A vector weight in bf16.
    pub fn vector(&mut self, name: &str, n: u32) -> NodeId {
        self.g.add(name, Op::Weight, &[], Type { elem: Elem::Bf16, rows: Rows::Once, shape: vec![n] })
    }

    /// A matrix, or a stack of them.
    pub fn matrix(&mut self, name: &str, shape: &[u32]) -> NodeId {
        let affine = Elem::Affine { bits: self.bits, group: self.group, scales: self.scales };
        let elem = self.plain.map_or(affine, Dtype::elem);
        self.g.add(name, Op::Weight, &[], Type { elem, rows: Rows::Once, shape: shape.to_vec() })
    }

    /// Embedded tokens, `width` elements a token.
    pub fn embed(&mut self, name: &str, width: u32) -> NodeId {
        let table = self.matrix(&format!("{name}.table"), &[64, width]);
        let op = Op::Embed { mode: EmbedMode::Factor, factor: 8.0 };
        self.g.add(name, op, &[table, self.tokens], Type::tokens(&[width]))
    }

    /// Norm over `dim` elements, with a weight of its own or without.
    pub fn norm(&mut self, name: &str, x: NodeId, dim: u32, weight: bool) -> NodeId {
        let mut inputs = vec![x];
        if weight {
            inputs.push(self.vector(&format!("{name}.weight"), dim));
        }
        let ty = self.ty(x);
        self.g.add(name, Op::RmsNorm { dim, eps: 1e-6, order: None }, &inputs, ty)
    }

    /// An operation whose result has the type of its first operand.
    pub fn like(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> NodeId {
        let ty = self.ty(inputs[0]);
        self.g.add(name, op, inputs, ty)
    }

    /// Sum.
    pub fn add(&mut self, name: &str, a: NodeId, b: NodeId) -> NodeId {
        self.like(name, Op::Add, &[a, b])
    }

    /// Product with a weight vector of its own.
    pub fn mul_weight(&mut self, name: &str, x: NodeId, len: u32) -> NodeId {
        let w = self.vector(&format!("{name}.weight"), len);
        self.like(name, Op::Mul, &[x, w])
    }

    /// Rows whose logits are asked for.
    pub fn select(&mut self, name: &str, x: NodeId) -> NodeId {
        let ty = Type { rows: Rows::Outputs, ..self.ty(x) };
        self.g.add(name, Op::Select, &[x], ty)
    }

    /// Elements `start..start + len` of a row.
    pub fn slice(&mut self, name: &str, x: NodeId, start: u32, len: u32) -> NodeId {
        let ty = Type { shape: vec![len], ..self.ty(x) };
        self.g.add(name, Op::Slice { start, len }, &[x], ty)
    }

    /// Fixed point; shared by all that ask for the same value.
    pub fn quantize(&mut self, x: NodeId) -> NodeId {
        let name = format!("{}.q24", self.g.node(x).name);
        if let Some(q) = self.g.by_name(&name) {
            return q;
        }
        let ty = self.ty(x).with(Elem::Q24 { group: self.group });
        self.g.add(&name, Op::Quantize { group: self.group }, &[x], ty)
    }

    /// `rows` rows of a matmul with a weight of its own.
    pub fn linear(&mut self, name: &str, x: NodeId, rows: u32) -> NodeId {
        let (width, r) = (self.ty(x).width(), self.ty(x).rows);
        let w = self.matrix(&format!("{name}_proj"), &[rows, width]);
        let ty = Type { elem: Elem::F32, rows: r, shape: vec![rows] };
        if self.linear || self.plain.is_some() {
            return self.g.add(name, Op::Linear { order: None }, &[x, w], ty);
        }
        let q = self.quantize(x);
        self.g.add(name, Op::QLinear { order: None }, &[q, w], ty)
    }

    /// The same for the chosen of `experts` experts.
    pub fn expert_linear(&mut self, name: &str, x: NodeId, route: NodeId, experts: u32, rows: u32) -> NodeId {
        let cols = *self.ty(x).shape.last().unwrap_or(&1);
        let k = self.ty(route).width();
        let w = self.matrix(&format!("{name}_proj"), &[experts, rows, cols]);
        let ty = Type { elem: Elem::F32, rows: self.ty(x).rows, shape: vec![k, rows] };
        if self.linear || self.plain.is_some() {
            return self.g.add(name, Op::ExpertLinear { order: None }, &[x, w, route], ty);
        }
        let q = self.quantize(x);
        self.g.add(name, Op::QExpertLinear { order: None }, &[q, w, route], ty)
    }

    /// The `k` best experts.
    pub fn route(&mut self, name: &str, logits: NodeId, k: u32) -> NodeId {
        let scale = self.vector(&format!("{name}.scale"), self.ty(logits).width());
        let ty = Type { elem: Elem::Route, rows: self.ty(logits).rows, shape: vec![k] };
        self.g.add(name, Op::Route { k }, &[logits, scale], ty)
    }

    /// Sum over experts.
    pub fn expert_sum(&mut self, name: &str, y: NodeId, route: NodeId) -> NodeId {
        let t = self.ty(y);
        self.g.add(name, Op::ExpertSum, &[y, route], Type { shape: t.shape[1..].to_vec(), ..t })
    }

    /// Rotary embedding of heads of `dim` elements.
    pub fn rope(&mut self, name: &str, x: NodeId, dim: u32) -> NodeId {
        self.like(name, Op::Rope(RopeParams { dim, rotated: dim / 2, theta: 1e4, factor: 1.0 }), &[x])
    }

    /// The cache of a layer, written with k and v.
    pub fn cache(&mut self, prefix: &str, layer: u32, k: NodeId, v: NodeId, dim: u32) -> NodeId {
        let heads = self.ty(k).width() / dim;
        let ty = Type { elem: Elem::Kv, rows: Rows::Once, shape: vec![heads, dim] };
        let kv = self.g.add(&format!("{prefix}kv"), Op::Kv { layer, heads, dim, window: 0 }, &[], ty.clone());
        self.g.add(&format!("{prefix}kv_write"), Op::KvWrite, &[kv, k, v], ty)
    }

    /// Attention.
    pub fn attention(&mut self, name: &str, q: NodeId, kv: NodeId, dim: u32) -> NodeId {
        let heads = self.ty(q).width() / dim;
        self.like(name, Op::Attention { heads, order: None }, &[q, kv])
    }

    /// The graph, with these outputs and with orders pinned where the operations have any.
    pub fn finish(mut self, outputs: &[NodeId]) -> Graph {
        self.g.outputs = outputs.to_vec();
        crate::pin_reductions::pin(&mut self.g);
        self.g
    }

    /// The graph with these outputs and without orders.
    pub fn unpinned(mut self, outputs: &[NodeId]) -> Graph {
        self.g.outputs = outputs.to_vec();
        self.g
    }
}
