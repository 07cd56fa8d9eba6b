//! The reference interpreter of graphs: what every operation means, in plain scalar Rust that obeys the orders on the
//! nodes. Promises: a value's bits are a function of the weights, the tokens up to its position and the graph's
//! numerics, and not of the chunks in which the tokens came; kernels give these bits. It shares no code with lowering or
//! kernels but [`crate::math`] and the orders.
//!
//! Stages and launches do not matter to it. A reduction without an order is one chain in ascending order (attention: one
//! split); `linear` and `expert_linear` with affine weights, which come before the lowering to exact integers, sum in f64 and
//! round once: good to look at, not what kernels compute.

mod attention;
mod matmul;
pub mod pieces;
mod rowwise;
mod sites;
mod weights;

pub use matmul::Fixed;
pub use rowwise::Choice;
pub use weights::{Affine, Dtype, Parts, Plain, WeightSource, matrix, parts_fit};

use super::op::Op;
use super::verify::verify;
use super::{Graph, NodeId, Rows, Type};
use crate::diag::{Diagnostic, Result};
use crate::order::{AttentionOrder, ReductionOrder};
use attention::Cache;
use std::collections::{BTreeMap, BTreeSet};
use weights::Tensor;

/// Positions end here: up to it every position is a float.
pub const MAX_POSITION: usize = 1 << 24;

/// Codes of the interpreter's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0341", "the checkpoint has no such weight"),
    ("E0342", "a weight's format, shape or size is not what the graph states"),
    ("E0343", "a step has no token, a token outside the vocabulary, or too many positions"),
];

/// What a node computed in the last step.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Rows of floats.
    F32(Vec<f32>),
    /// Token ids, or the result of argmax.
    I32(Vec<i32>),
    /// Rows in fixed point.
    Q24(Fixed),
    /// Chosen experts, `k` a row.
    Route(Vec<Choice>),
}

impl Value {
    /// The floats, if it is of floats.
    pub fn f32s(&self) -> Option<&[f32]> {
        match self {
            Value::F32(x) => Some(x),
            _ => None,
        }
    }
}

/// A graph with its weights and key/value caches, run step by step.
pub struct Session<'a> {
    graph: &'a Graph,
    topo: Vec<NodeId>,
    weights: BTreeMap<NodeId, Tensor<'a>>,
    caches: BTreeMap<u32, Cache>,
    values: Vec<Option<Value>>,
    position: usize,
    /// Tokens of the step under way, and the first whose logits are asked for.
    step: (usize, usize),
    /// Layers whose caches have this step's tokens, where a step goes node by node.
    written: BTreeSet<u32>,
}

impl<'a> Session<'a> {
    /// Verifies the graph, finds its weights and checks them.
    pub fn new(graph: &'a Graph, source: &'a dyn WeightSource) -> Result<Self, Vec<Diagnostic>> {
        verify(graph)?;
        let (mut weights, mut errors) = (BTreeMap::new(), vec![]);
        for id in graph.ids().filter(|&id| graph.node(id).op == Op::Weight) {
            match Tensor::find(source, &graph.node(id).name, &graph.node(id).ty) {
                Ok(t) => _ = weights.insert(id, t),
                Err(d) => errors.push(d),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut s = Session {
            graph,
            topo: graph.topo(),
            weights,
            caches: BTreeMap::new(),
            values: vec![None; graph.id_count()],
            position: 0,
            step: (0, 0),
            written: BTreeSet::new(),
        };
        s.reset();
        Ok(s)
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.position = 0;
        self.values.fill(None);
        self.caches.clear();
        for id in self.graph.ids() {
            if let Op::Kv { layer, heads, dim, window } = self.graph.node(id).op {
                self.caches.insert(layer, Cache::new(heads, dim, window));
            }
        }
    }

    /// Tokens taken so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The value of this name in the last step; absent for weights and caches.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.node_value(self.graph.by_name(name)?)
    }

    /// The value of this node in the last step; absent for weights and caches.
    pub fn node_value(&self, id: NodeId) -> Option<&Value> {
        self.values.get(id.idx())?.as_ref()
    }

    /// Takes a chunk of tokens; the logits of those from index `output_from` on are asked for (it may be `tokens.len()`).
    /// Nothing has changed after an error.
    pub fn step(&mut self, tokens: &[u32], output_from: usize) -> Result<()> {
        self.check_step(tokens, output_from)?;
        self.step = (tokens.len(), output_from);
        for i in 0..self.topo.len() {
            let id = self.topo[i];
            let value = match self.graph.node(id).op {
                Op::Weight | Op::Kv { .. } => None,
                Op::Tokens => Some(Value::I32(tokens.iter().map(|&t| t as i32).collect())),
                Op::KvWrite => {
                    self.kv_write(id);
                    None
                }
                _ => Some(self.eval(id)),
            };
            self.values[id.idx()] = value;
        }
        self.position += tokens.len();
        Ok(())
    }

    /// Refuses tokens that no step can have.
    fn check_step(&self, tokens: &[u32], output_from: usize) -> Result<()> {
        if tokens.is_empty() || output_from > tokens.len() {
            let m = format!("a step of {} tokens, logits from number {output_from} on", tokens.len());
            return Err(Diagnostic::new("E0343", m));
        }
        if tokens.len() > MAX_POSITION - self.position {
            return Err(Diagnostic::new("E0343", format!("more than {MAX_POSITION} positions")));
        }
        for id in self.graph.ids() {
            let n = self.graph.node(id);
            if let Op::Embed { .. } = n.op {
                let vocab = self.ty(n.inputs[0]).shape[0];
                if let Some(t) = tokens.iter().find(|&&t| t >= vocab) {
                    let m = format!("token {t} is outside the vocabulary of {vocab}");
                    return Err(Diagnostic::new("E0343", m).at(&n.name));
                }
            }
        }
        Ok(())
    }

    fn ty(&self, id: NodeId) -> &Type {
        &self.graph.node(id).ty
    }

    /// Rows of a value, and the absolute position of the first.
    fn rows(&self, rows: Rows) -> (usize, usize) {
        let (tokens, from) = self.step;
        match rows {
            Rows::Once => (1, self.position),
            Rows::Tokens => (tokens, self.position),
            Rows::Outputs => (tokens - from, self.position + from),
        }
    }

    fn kv_write(&mut self, id: NodeId) {
        let n = self.graph.node(id);
        if let Op::Kv { layer, .. } = self.graph.node(n.inputs[0]).op {
            let (k, v) = (self.f32s(n.inputs[1]).to_vec(), self.f32s(n.inputs[2]).to_vec());
            if let Some(c) = self.caches.get_mut(&layer) {
                c.append(&k, &v);
            }
        }
    }

    /// The cache that a node names or writes.
    fn cache(&self, id: NodeId) -> &Cache {
        match &self.graph.node(id).op {
            Op::Kv { layer, .. } => &self.caches[layer],
            _ => self.cache(self.graph.node(id).inputs[0]),
        }
    }

    fn f32s(&self, id: NodeId) -> &[f32] {
        self.node_value(id).and_then(Value::f32s).expect("verified: an operand of floats")
    }

    fn fixed(&self, id: NodeId) -> &Fixed {
        match self.node_value(id) {
            Some(Value::Q24(x)) => x,
            _ => unreachable!("verified: an operand in fixed point"),
        }
    }

    fn route(&self, id: NodeId) -> &[Choice] {
        match self.node_value(id) {
            Some(Value::Route(x)) => x,
            _ => unreachable!("verified: an operand of chosen experts"),
        }
    }

    /// The elements of a plain weight, widened.
    fn vector(&self, id: NodeId) -> Vec<f32> {
        self.weights[&id].widen()
    }

    fn eval(&self, id: NodeId) -> Value {
        let n = self.graph.node(id);
        let x = &n.inputs;
        let chain = |o: &Option<ReductionOrder>| o.unwrap_or(ReductionOrder::CHAIN);
        let unary = |f: &dyn Fn(f32) -> f32| self.f32s(x[0]).iter().map(|&a| f(a)).collect::<Vec<f32>>();
        let (rows, first) = self.rows(n.ty.rows);
        let width = n.ty.width() as usize;
        let out = match &n.op {
            Op::Tokens | Op::Weight | Op::Kv { .. } | Op::KvWrite => unreachable!("not evaluated"),
            Op::Embed { mode, factor } => match self.node_value(x[1]) {
                Some(Value::I32(ids)) => matmul::embed(&self.weights[&x[0]], ids, width, *mode, *factor),
                _ => unreachable!("verified: token ids"),
            },
            Op::RmsNorm { dim, eps, order } => {
                let w = x.get(1).map(|&w| self.vector(w));
                rowwise::rms_norm(self.f32s(x[0]), w.as_deref(), *dim, *eps, chain(order))
            }
            Op::Linear { order } => matmul::linear(self.f32s(x[0]), rows, &self.weights[&x[1]], width, chain(order)),
            Op::ExpertLinear { order } => {
                let w = &self.ty(x[1]).shape;
                let shape = (w[1] as usize, w[2] as usize);
                matmul::expert_linear(self.f32s(x[0]), self.route(x[2]), &self.weights[&x[1]], shape, chain(order))
            }
            Op::Quantize { group } => return Value::Q24(matmul::quantize(self.f32s(x[0]), *group as usize)),
            Op::QLinear { order } => matmul::qlinear(self.fixed(x[0]), rows, self.weights[&x[1]].affine(), chain(order)),
            Op::QExpertLinear { order } => {
                matmul::qexpert_linear(self.fixed(x[0]), self.route(x[2]), self.weights[&x[1]].affine(), chain(order))
            }
            Op::Add => rowwise::zip(self.f32s(x[0]), self.f32s(x[1]), |a, b| a + b),
            Op::Mul => {
                let a = self.f32s(x[0]);
                if self.weights.contains_key(&x[1]) {
                    let w = self.vector(x[1]);
                    a.iter().enumerate().map(|(i, a)| a * w[i % w.len()]).collect()
                } else {
                    rowwise::zip(a, self.f32s(x[1]), |a, b| a * b)
                }
            }
            Op::MulConst { c } => unary(&|a| a * c),
            Op::RoundBf16 => unary(&matmul::round_bf16),
            Op::GeluMul => rowwise::zip(self.f32s(x[0]), self.f32s(x[1]), rowwise::gelu_mul),
            Op::Rope(p) => rowwise::rope(self.f32s(x[0]), width, p, first),
            Op::Attention { heads, order } => {
                let chain = ReductionOrder::CHAIN;
                let order = order.unwrap_or(AttentionOrder { split: 1 << 20, dot: chain, sum: chain });
                attention::attention(self.f32s(x[0]), *heads as usize, self.cache(x[1]), first, &order)
            }
            Op::Route { k } => {
                let experts = self.ty(x[0]).width() as usize;
                let scale = self.vector(x[1]);
                let rows = self.f32s(x[0]).chunks_exact(experts);
                return Value::Route(rows.flat_map(|z| rowwise::route(z, *k as usize, &scale)).collect());
            }
            Op::ExpertSum => rowwise::expert_sum(self.f32s(x[0]), self.route(x[1]), width, rows),
            Op::Select => self.f32s(x[0])[self.step.1 * width..].to_vec(),
            Op::Slice { start, len } => {
                let rows = self.f32s(x[0]).chunks_exact(self.ty(x[0]).width() as usize);
                rows.flat_map(|r| &r[*start as usize..][..*len as usize]).copied().collect()
            }
            Op::Softcap { cap } => unary(&|a| rowwise::softcap(a, *cap)),
            Op::Argmax => {
                let n = self.ty(x[0]).width() as usize;
                return Value::I32(self.f32s(x[0]).chunks_exact(n).map(rowwise::argmax).collect());
            }
        };
        Value::F32(out)
    }
}
