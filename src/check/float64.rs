//! The operations of a graph in float64, for one launch at a time: what a kernel's values should have been, on the inputs that
//! it had, if nothing were rounded. Weights are `s·q + β`; functions are those of the platform, which serves as a yardstick,
//! not as truth to the last bit. Shares no code with kernels or the interpreters.

use ir::graph::interp::{WeightSource, matrix};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Rows};
use std::collections::BTreeMap;

/// Values of a step, and the caches.
pub struct Float64<'a> {
    graph: &'a Graph,
    source: &'a dyn WeightSource,
    /// What a launch had, or what earlier ones made.
    given: BTreeMap<NodeId, Vec<f64>>,
    /// Experts and their weights.
    routes: BTreeMap<NodeId, Vec<(usize, f64)>>,
    tokens: Vec<u32>,
    first: usize,
    from: usize,
    /// By layer: keys and values, `[position][head][dim]`.
    caches: BTreeMap<u32, [Vec<f64>; 2]>,
}

impl<'a> Float64<'a> {
    /// No token was taken yet.
    pub fn new(graph: &'a Graph, source: &'a dyn WeightSource) -> Self {
        let (given, routes, caches) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Float64 { graph, source, given, routes, tokens: vec![], first: 0, from: 0, caches }
    }

    /// Begins a step; the outputs are its last rows, from `from` on.
    pub fn begin(&mut self, tokens: &[u32], first: usize, from: usize) {
        (self.tokens, self.first, self.from) = (tokens.to_vec(), first, from);
        self.given.clear();
        self.routes.clear();
    }

    /// Gives a value.
    pub fn give(&mut self, id: NodeId, values: &[f32]) {
        self.given.insert(id, values.iter().map(|&x| f64::from(x)).collect());
    }

    /// Gives the experts of each row.
    pub fn give_route(&mut self, id: NodeId, route: Vec<(usize, f64)>) {
        self.routes.insert(id, route);
    }

    /// Gives a cache the keys or values of the step's tokens.
    pub fn give_cache(&mut self, layer: u32, keys: bool, floats: &[f32]) {
        self.caches.entry(layer).or_default()[usize::from(!keys)].extend(floats.iter().map(|&x| f64::from(x)));
    }

    /// A node computed from its operands, those given as they are; none for what is no row of floats.
    pub fn compute(&self, id: NodeId) -> Option<Vec<f64>> {
        let n = self.graph.node(id);
        let x = &n.inputs;
        let width = n.ty.width() as usize;
        let a = || self.value(*x.first()?);
        let zip =
            |f: &dyn Fn(f64, f64) -> f64| Some(self.value(x[0])?.iter().zip(self.value(x[1])?).map(|(a, b)| f(*a, b)).collect());
        match &n.op {
            Op::Embed { factor, .. } => {
                let w = Matrix::open(self.source, &self.graph.node(x[0]).name)?;
                Some(self.tokens.iter().flat_map(|&t| w.row(0, t as usize)).map(|v| v * f64::from(*factor)).collect())
            }
            Op::RmsNorm { dim, eps, .. } => {
                let w = x.get(1).and_then(|&w| self.vector(w));
                let runs = a()?;
                let norm = |run: &[f64]| {
                    let mean = run.iter().map(|v| v * v).sum::<f64>() / run.len() as f64 + f64::from(*eps);
                    run.iter().enumerate().map(|(i, v)| v / mean.sqrt() * w.as_ref().map_or(1.0, |w| w[i])).collect::<Vec<f64>>()
                };
                Some(runs.chunks_exact(*dim as usize).flat_map(norm).collect())
            }
            // Fixed point stands for the row that it was made of.
            Op::Quantize { .. } => a(),
            Op::Linear { .. } | Op::QLinear { .. } => {
                let w = Matrix::open(self.source, &self.graph.node(x[1]).name)?;
                let rows = a()?;
                let weights: Vec<Vec<f64>> = (0..width).map(|r| w.row(0, r)).collect();
                let row = |v: &[f64]| weights.iter().map(|w| dot(w, v)).collect::<Vec<f64>>();
                Some(rows.chunks_exact(w.cols).flat_map(row).collect())
            }
            Op::ExpertLinear { .. } | Op::QExpertLinear { .. } => {
                let w = Matrix::open(self.source, &self.graph.node(x[1]).name)?;
                let (rows, route) = (a()?, self.route(x[2])?);
                let share = (route.len() * w.cols / rows.len().max(1)).max(1);
                let mut out = vec![];
                for (i, (expert, _)) in route.iter().enumerate() {
                    let v = &rows[i / share * w.cols..][..w.cols];
                    out.extend((0..w.rows).map(|r| dot(&w.row(*expert, r), v)));
                }
                Some(out)
            }
            Op::Add => zip(&|a, b| a + b),
            Op::Mul if matches!(self.graph.node(x[1]).op, Op::Weight) => {
                let w = self.vector(x[1])?;
                Some(a()?.iter().enumerate().map(|(i, a)| a * w[i % w.len()]).collect())
            }
            Op::Mul => zip(&|a, b| a * b),
            Op::MulConst { c } => Some(a()?.iter().map(|a| a * f64::from(*c)).collect()),
            Op::RoundBf16 => Some(a()?.iter().map(|a| f64::from(bf16(*a as f32))).collect()),
            Op::GeluMul => zip(&|g, u| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
                0.5 * g * (1.0 + inner.tanh()) * u
            }),
            Op::Rope(p) => {
                let (mut out, half) = (a()?, p.dim as usize / 2);
                for (t, row) in out.chunks_exact_mut(width).enumerate() {
                    for j in 0..half.min(p.rotated as usize) {
                        let f = p.theta.powf(-2.0 * j as f64 / f64::from(p.dim)) / p.factor;
                        let (sin, cos) = ((self.first + t) as f64 * f).sin_cos();
                        for head in row.chunks_exact_mut(2 * half) {
                            let (a, b) = (head[j], head[j + half]);
                            (head[j], head[j + half]) = (a * cos - b * sin, b * cos + a * sin);
                        }
                    }
                }
                Some(out)
            }
            Op::Attention { heads, .. } => self.attention(&a()?, *heads as usize, x[1]),
            Op::ExpertSum => {
                let (rows, route) = (a()?, self.route(x[1])?);
                let k = route.len() / self.tokens.len().max(1);
                let mut out = vec![0.0; self.tokens.len() * width];
                for (r, (_, weight)) in route.iter().enumerate() {
                    for i in 0..width {
                        out[r / k.max(1) * width + i] += weight * rows[r * width + i];
                    }
                }
                Some(out)
            }
            Op::Select => Some(a()?[self.from * width..].to_vec()),
            Op::Slice { start, len } => {
                let (rows, of) = (a()?, self.graph.node(x[0]).ty.width() as usize);
                Some(rows.chunks_exact(of).flat_map(|r| &r[*start as usize..][..*len as usize]).copied().collect())
            }
            Op::Softcap { cap } => Some(a()?.iter().map(|v| f64::from(*cap) * (v / f64::from(*cap)).tanh()).collect()),
            _ => None,
        }
    }

    fn value(&self, id: NodeId) -> Option<Vec<f64>> {
        match self.given.get(&id) {
            Some(v) => Some(v.clone()),
            None => self.compute(id),
        }
    }

    /// The experts of all rows: those given, or chosen by the logits.
    fn route(&self, id: NodeId) -> Option<Vec<(usize, f64)>> {
        if let Some(r) = self.routes.get(&id) {
            return Some(r.clone());
        }
        let n = self.graph.node(id);
        let Op::Route { k } = n.op else { return None };
        let (z, scale) = (self.value(n.inputs[0])?, self.vector(n.inputs[1])?);
        let experts = self.graph.node(n.inputs[0]).ty.width() as usize;
        let row = |z: &[f64]| {
            let mut by: Vec<usize> = (0..experts).collect();
            by.sort_by(|&a, &b| z[b].total_cmp(&z[a]).then(a.cmp(&b)));
            by.truncate(k as usize);
            let e: Vec<f64> = by.iter().map(|&i| (z[i] - z[by[0]]).exp()).collect();
            let sum: f64 = e.iter().sum();
            by.iter().zip(&e).map(|(&i, e)| (i, e / sum * scale[i])).collect::<Vec<_>>()
        };
        Some(z.chunks_exact(experts).flat_map(row).collect())
    }

    /// What the router should have chosen, and the distance between the last that is chosen and the first that is not, of the
    /// row where it is smallest, relative to the largest logit.
    pub fn choice(&self, id: NodeId) -> Option<(Vec<(usize, f64)>, f64)> {
        let n = self.graph.node(id);
        let Op::Route { k } = n.op else { return None };
        let z = self.value(n.inputs[0])?;
        let experts = self.graph.node(n.inputs[0]).ty.width() as usize;
        let gap = |z: &[f64]| {
            let mut s = z.to_vec();
            s.sort_by(|a, b| b.total_cmp(a));
            let near = s.windows(2).take(k as usize).map(|w| w[0] - w[1]).fold(f64::INFINITY, f64::min);
            near / s.iter().fold(0.0, |m: f64, v| m.max(v.abs())).max(f64::MIN_POSITIVE)
        };
        let near = z.chunks_exact(experts).map(gap).fold(f64::INFINITY, f64::min);
        Some((self.route(id)?, near))
    }

    fn vector(&self, id: NodeId) -> Option<Vec<f64>> {
        let t = self.source.plain(&self.graph.node(id).name)?;
        Some((0..t.matrix_len() as usize * t.stack() as usize).map(|i| f64::from(t.at(i))).collect())
    }

    fn attention(&self, q: &[f64], heads: usize, kv: NodeId) -> Option<Vec<f64>> {
        let n = self.graph.node(kv);
        let of = if n.op == Op::KvWrite { n.inputs[0] } else { kv };
        let Op::Kv { layer, heads: kv_heads, dim, window } = self.graph.node(of).op else { return None };
        let (kv_heads, dim, window) = (kv_heads as usize, dim as usize, window as usize);
        let [mut keys, mut values] = self.caches.get(&layer)?.clone();
        // Not written by a launch before this one: then it is computed here.
        let wanted = (self.first + self.tokens.len()) * kv_heads * dim;
        if keys.len() < wanted && n.op == Op::KvWrite {
            keys.extend(self.value(n.inputs[1])?);
            values.extend(self.value(n.inputs[2])?);
        }
        let mut out = Vec::with_capacity(q.len());
        for (i, q) in q.chunks_exact(dim).enumerate() {
            let (p, head) = (self.first + i / heads, (i % heads) / (heads / kv_heads));
            let lo = if window == 0 { 0 } else { (p + 1).saturating_sub(window) };
            let row = |of: &[f64], at: usize| (at * kv_heads + head) * dim..(at * kv_heads + head + 1) * dim.min(of.len());
            let scores: Vec<f64> = (lo..=p).map(|at| dot(q, &keys[row(&keys, at)])).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut o = vec![0.0; dim];
            for (at, w) in (lo..=p).zip(&weights) {
                o.iter_mut().zip(&values[row(&values, at)]).for_each(|(o, v)| *o += w / sum * v);
            }
            out.extend(o);
        }
        Some(out)
    }

    /// Keys and values that a cache write should have left.
    pub fn written(&self, id: NodeId) -> Option<[Vec<f64>; 2]> {
        let n = self.graph.node(id);
        Some([self.value(n.inputs[1])?, self.value(n.inputs[2])?])
    }

    /// Rows of a value in this step.
    pub fn rows(&self, id: NodeId) -> usize {
        if self.graph.node(id).ty.rows == Rows::Outputs { self.tokens.len() - self.from } else { self.tokens.len() }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A weight matrix, or a stack of them.
struct Matrix<'a> {
    rows: usize,
    cols: usize,
    at: Box<dyn Fn(usize, usize) -> Vec<f64> + 'a>,
}

impl<'a> Matrix<'a> {
    fn open(source: &'a dyn WeightSource, name: &str) -> Option<Matrix<'a>> {
        if let Some(w) = source.affine(name) {
            let (rows, cols, bits, group) = (w.rows as usize, w.cols as usize, w.bits as usize, w.group as usize);
            let number = move |bytes: &[u8], i: usize| {
                let t = ir::graph::interp::Plain { dtype: w.scale_dtype, shape: vec![1], parts: vec![] };
                let n = t.dtype.bytes();
                let one = ir::graph::interp::Plain { parts: vec![bytes[i * n..(i + 1) * n].to_vec().into()], ..t };
                f64::from(one.at(0))
            };
            let at = move |m: usize, r: usize| {
                let (bytes, groups) = (cols * bits / 8, cols / group);
                let codes = &matrix(&w.words, w.stack, m as u32)[r * bytes..(r + 1) * bytes];
                let (s, b) = (matrix(&w.scales, w.stack, m as u32), matrix(&w.biases, w.stack, m as u32));
                let params: Vec<(f64, f64)> = (r * groups..(r + 1) * groups).map(|g| (number(s, g), number(b, g))).collect();
                let code = |i: usize| {
                    let bit = |j: usize| usize::from(codes[(i * bits + j) / 8] >> ((i * bits + j) % 8) & 1) << j;
                    (0..bits).map(bit).sum::<usize>() as f64
                };
                (0..cols).map(|i| params[i / group].0 * code(i) + params[i / group].1).collect()
            };
            return Some(Matrix { rows, cols, at: Box::new(at) });
        }
        let t = source.plain(name)?;
        let cols = *t.shape.last()? as usize;
        let rows = t.matrix_len() as usize / cols.max(1);
        let at = move |m: usize, r: usize| (0..cols).map(|i| f64::from(t.at((m * rows + r) * cols + i))).collect();
        Some(Matrix { rows, cols, at: Box::new(at) })
    }

    /// Row `r` of matrix `m`.
    fn row(&self, m: usize, r: usize) -> Vec<f64> {
        (self.at)(m, r)
    }
}

/// Nearest bf16 value, ties to even, of a number.
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    if x.is_nan() { x } else { f32::from_bits((bits.wrapping_add(0x7fff + (bits >> 16 & 1))) & 0xffff_0000) }
}
