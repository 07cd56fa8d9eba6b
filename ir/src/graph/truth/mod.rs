//! The judge: a graph's values in float64, of the graph as it is before weights are lowered to integers. Promises: nothing of
//! what it judges is in it. Sums are plain, weights are `s·q + β` in float64 from the checkpoint's bytes, functions are
//! libm's, and constants are the numbers that the graph's floats stand for ([`meant`]), not the floats.
//! Threads share the work, and no sum is shared between threads: the result does not depend on their number.
//!
//! A session keeps the keys and values of every position, so a token more costs one token. [`Truth::branches`] asks what one
//! token would give if its values were disturbed in many ways, and leaves the session as it is.

pub mod meant;
mod ops;
pub mod weights;

use super::interp::WeightSource;
use super::op::Op;
use super::verify::verify;
use super::{Graph, Node, NodeId, Rows};
use crate::diag::{Diagnostic, Result};
use ops::Cache;
use std::collections::BTreeMap;
use weights::Weight;

/// Rows that are computed together: each row of a matrix is widened once for all of them.
const CHUNK: usize = 64;

/// Codes of the judge's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0375", "an operation that lowering makes has no meaning in float64"),
    ("E0376", "the source has no such weight"),
    ("E0377", "a weight's format, shape or size is not what the graph states"),
    ("E0378", "a value is not finite in float64"),
    ("E0379", "a step has no token, or a token outside the vocabulary"),
];

/// What a node computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Rows of numbers.
    Floats(Vec<f64>),
    /// Token ids, or the result of argmax.
    Ids(Vec<u32>),
    /// Chosen experts with their weights, `k` a row.
    Route(Vec<(u32, f64)>),
}

/// Sees every value as it is computed, and may change it: the node, and the rows.
pub type Look<'l> = &'l mut dyn FnMut(&Node, &mut Value);

/// A graph with its weights, and the keys and values of the tokens so far.
pub struct Truth<'a> {
    graph: &'a Graph,
    topo: Vec<NodeId>,
    /// The last user of each value, as an index into `topo`: a value is dropped after it.
    last: Vec<usize>,
    weights: BTreeMap<NodeId, Weight<'a>>,
    caches: BTreeMap<u32, Cache>,
    threads: usize,
    length: usize,
}

/// The step under way.
struct Step<'s> {
    tokens: &'s [u32],
    first: usize,
    /// The first row whose logits are asked for.
    from: usize,
    /// Each row is another future of position `first`, with keys and values of its own.
    branch: BTreeMap<u32, (Vec<f64>, Vec<f64>)>,
    branching: bool,
}

impl Step<'_> {
    fn position(&self, row: usize) -> usize {
        if self.branching { self.first } else { self.first + row }
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Once => 1,
            Rows::Tokens => self.tokens.len(),
            Rows::Outputs => self.tokens.len() - self.from,
        }
    }
}

impl<'a> Truth<'a> {
    /// Verifies the graph, finds its weights and checks them.
    pub fn new(graph: &'a Graph, source: &'a dyn WeightSource, threads: usize) -> Result<Truth<'a>, Vec<Diagnostic>> {
        verify(graph)?;
        let topo = graph.topo();
        let (mut weights, mut caches, mut errors) = (BTreeMap::new(), BTreeMap::new(), vec![]);
        let mut last = vec![0; graph.id_count()];
        for (at, &id) in topo.iter().enumerate() {
            let n = graph.node(id);
            n.inputs.iter().for_each(|i| last[i.idx()] = at);
            match n.op {
                Op::Weight if graph.users(id).is_empty() => {}
                Op::Weight => match Weight::find(source, &n.name, &n.ty) {
                    Ok(w) => _ = weights.insert(id, w),
                    Err(d) => errors.push(d),
                },
                Op::Kv { layer, heads, dim, window } => _ = caches.insert(layer, Cache::new(heads, dim, window)),
                Op::Quantize { .. } | Op::QLinear { .. } | Op::QExpertLinear { .. } => errors.push(
                    Diagnostic::new("E0375", format!("`{}` is an operation on integers, which float64 can't judge", n.op.name()))
                        .at(&n.name)
                        .hint("take the graph as it is before `quant-lower`"),
                ),
                _ => {}
            }
        }
        if errors.is_empty() {
            Ok(Truth { graph, topo, last, weights, caches, threads: threads.max(1), length: 0 })
        } else {
            Err(errors)
        }
    }

    /// Tokens taken so far.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Forgets all tokens but the first `n`.
    pub fn rewind(&mut self, n: usize) {
        self.length = self.length.min(n);
        let length = self.length;
        self.caches.values_mut().for_each(|c| c.truncate(length));
    }

    /// Takes more tokens; the logits of those from index `from` on are asked for (it may be `tokens.len()`).
    /// After an error the session is as it was before the chunk of tokens that failed.
    pub fn run(&mut self, tokens: &[u32], from: usize, look: Look) -> Result<()> {
        self.check(tokens)?;
        for start in (0..tokens.len()).step_by(CHUNK) {
            let chunk = &tokens[start..tokens.len().min(start + CHUNK)];
            let from = from.saturating_sub(start).min(chunk.len());
            let step = Step { tokens: chunk, first: self.length, from, branch: BTreeMap::new(), branching: false };
            match self.step(step, look) {
                Ok(()) => self.length += chunk.len(),
                Err(d) => {
                    self.rewind(self.length);
                    return Err(d);
                }
            }
        }
        Ok(())
    }

    /// What token `id` at `position`, up to which all tokens were taken, gives in each of `rows` futures. They differ only in
    /// what `look` does to their rows. Nothing is kept.
    pub fn branches(&mut self, position: usize, id: u32, rows: usize, look: Look) -> Result<()> {
        let tokens = vec![id; rows];
        self.check(&tokens)?;
        let first = position.min(self.length);
        self.step(Step { tokens: &tokens, first, from: 0, branch: BTreeMap::new(), branching: true }, look)
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Diagnostic::new("E0379", "a step of no token"));
        }
        for &id in &self.topo {
            let n = self.graph.node(id);
            if let Op::Embed { .. } = n.op {
                let vocab = self.graph.node(n.inputs[0]).ty.shape[0];
                if let Some(t) = tokens.iter().find(|t| **t >= vocab) {
                    return Err(Diagnostic::new("E0379", format!("token {t} is outside the vocabulary of {vocab}")).at(&n.name));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, mut step: Step, look: Look) -> Result<()> {
        let mut values: Vec<Option<Value>> = vec![None; self.graph.id_count()];
        for at in 0..self.topo.len() {
            let id = self.topo[at];
            let n = self.graph.node(id);
            match n.op {
                Op::Weight | Op::Kv { .. } => continue,
                Op::KvWrite => self.write(n, &values, &mut step),
                _ => {
                    let mut v = self.eval(n, &values, &step);
                    look(n, &mut v);
                    finite(n, &v)?;
                    values[id.idx()] = Some(v);
                }
            }
            for i in &n.inputs {
                if self.last[i.idx()] == at {
                    values[i.idx()] = None;
                }
            }
        }
        Ok(())
    }

    /// The layer whose cache a node names or writes.
    fn layer(&self, id: NodeId) -> u32 {
        let n = self.graph.node(id);
        match n.op {
            Op::Kv { layer, .. } => layer,
            _ => self.layer(n.inputs[0]),
        }
    }

    fn write(&mut self, n: &Node, values: &[Option<Value>], step: &mut Step) {
        let layer = self.layer(n.inputs[0]);
        let (k, v) = (floats(values, n.inputs[1]), floats(values, n.inputs[2]));
        if step.branching {
            step.branch.insert(layer, (k.to_vec(), v.to_vec()));
        } else if let Some(c) = self.caches.get_mut(&layer) {
            c.append(k, v);
        }
    }

    fn eval(&self, n: &Node, values: &[Option<Value>], step: &Step) -> Value {
        let x = &n.inputs;
        let of = |i: usize| floats(values, x[i]);
        let vector = |i: usize| self.weights.get(&x[i]).map(Weight::vector);
        let width = n.ty.width() as usize;
        let zip = |f: &dyn Fn(f64, f64) -> f64| of(0).iter().zip(of(1)).map(|(&a, &b)| f(a, b)).collect::<Vec<f64>>();
        let map = |f: &dyn Fn(f64) -> f64| of(0).iter().map(|&a| f(a)).collect::<Vec<f64>>();
        Value::Floats(match &n.op {
            Op::Tokens => return Value::Ids(step.tokens.to_vec()),
            Op::Embed { mode, factor } => ops::embed(&self.weights[&x[0]], step.tokens, *mode, *factor),
            Op::RmsNorm { dim, eps, .. } => {
                let w = if x.len() > 1 { vector(1) } else { None };
                ops::rms_norm(of(0), w.as_deref(), *dim as usize, meant::decimal(*eps))
            }
            Op::Linear { .. } => {
                let cols = of(0).len() / step.rows(n.ty.rows).max(1);
                let xs: Vec<&[f64]> = of(0).chunks_exact(cols.max(1)).collect();
                let mut out = vec![0.0; xs.len() * width];
                self.weights[&x[1]].product(0, &xs, self.threads, &mut |row, i, y| out[i * width + row] = y);
                out
            }
            Op::ExpertLinear { .. } => {
                let ty = &self.graph.node(x[1]).ty;
                let (r, cols) = (ty.shape[1] as usize, ty.shape[2] as usize);
                ops::experts(&self.weights[&x[1]], of(0), route(values, x[2]), (r, cols), self.threads)
            }
            Op::Add => zip(&|a, b| a + b),
            Op::Mul => match vector(1) {
                Some(w) => of(0).iter().enumerate().map(|(i, a)| a * w[i % w.len()]).collect(),
                None => zip(&|a, b| a * b),
            },
            Op::MulConst { c } => {
                let c = meant::factor(*c);
                map(&|a| a * c)
            }
            // The judge says what is right without it.
            Op::RoundBf16 => map(&|a| a),
            Op::GeluMul => zip(&|g, u| ops::gelu(g) * u),
            Op::Rope(p) => ops::rope(of(0), width, p, &|row| step.position(row)),
            Op::Attention { heads, .. } => {
                let layer = self.layer(x[1]);
                let branch = step.branch.get(&layer).map(|(k, v)| (k.as_slice(), v.as_slice()));
                let at = |row: usize| step.position(row);
                ops::attention(of(0), *heads as usize, &self.caches[&layer], branch, &at, self.threads)
            }
            Op::Route { k } => {
                let experts = self.graph.node(x[0]).ty.width() as usize;
                return Value::Route(ops::route(of(0), experts, *k as usize, &vector(1).unwrap_or_default()));
            }
            Op::ExpertSum => ops::expert_sum(of(0), route(values, x[1]), width, step.rows(n.ty.rows)),
            Op::Select => of(0)[step.from * width..].to_vec(),
            Op::Slice { start, len } => {
                let (start, len) = (*start as usize, *len as usize);
                let rows = of(0).chunks_exact(self.graph.node(x[0]).ty.width() as usize);
                rows.flat_map(|r| &r[start..start + len]).copied().collect()
            }
            Op::Softcap { cap } => {
                let cap = meant::decimal(*cap);
                map(&|a| if a.is_finite() { cap * libm::tanh(a / cap) } else { f64::NAN })
            }
            Op::Argmax => {
                let rows = of(0).chunks_exact(self.graph.node(x[0]).ty.width() as usize);
                return Value::Ids(rows.map(|z| best(z)[0]).collect());
            }
            // Refused or passed over before.
            Op::Weight | Op::Kv { .. } | Op::KvWrite | Op::Quantize { .. } | Op::QLinear { .. } | Op::QExpertLinear { .. } => {
                vec![]
            }
        })
    }
}

fn floats(values: &[Option<Value>], id: NodeId) -> &[f64] {
    match values.get(id.idx()) {
        Some(Some(Value::Floats(x))) => x,
        _ => &[], // verified: an operand of floats
    }
}

fn route(values: &[Option<Value>], id: NodeId) -> &[(u32, f64)] {
    match values.get(id.idx()) {
        Some(Some(Value::Route(x))) => x,
        _ => &[], // verified: an operand of chosen experts
    }
}

fn finite(n: &Node, v: &Value) -> Result<()> {
    let bad = match v {
        Value::Floats(x) => x.iter().any(|x| !x.is_finite()),
        Value::Route(x) => x.iter().any(|(_, w)| !w.is_finite()),
        Value::Ids(_) => false,
    };
    match bad {
        true => Err(Diagnostic::new("E0378", "a value is not finite in float64").at(&n.name)),
        false => Ok(()),
    }
}

/// Indices of the two greatest, ties to the lowest; the second is the first again if there is only one.
pub fn best(z: &[f64]) -> [u32; 2] {
    let top = |not: Option<usize>| {
        let all = z.iter().enumerate().filter(|(i, _)| Some(*i) != not);
        all.reduce(|a, b| if b.1 > a.1 { b } else { a }).map(|(i, _)| i)
    };
    let first = top(None).unwrap_or(0);
    [first as u32, top(Some(first)).unwrap_or(first) as u32]
}
