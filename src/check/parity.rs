//! At every launch of a real decode: what it made against its operations one by one on the same inputs, bit for bit, and both
//! against float64. The operations are the interpreter's of graphs, which shares no lowering with kernels; what a launch
//! reads is taken as it stood in memory, so a fault is found where it arises and not where it is felt.

use super::float64::Float64;
use super::record::{Log, Record, Step, words};
use super::{Finding, PARITY};
use ir::diag::{Diagnostic, Result};
use ir::graph::interp::{Choice, Session, Value, WeightSource};
use ir::graph::op::Op;
use ir::graph::{Elem, Graph, NodeId};
use std::collections::BTreeMap;

/// A value that is farther from float64 than this, relative to the greatest of its row, is wrong.
const FAR: f64 = 1e-4;
/// After so many findings a person has seen enough.
const MOST: usize = 20;

/// What was found.
#[derive(Default)]
pub struct Parity {
    /// Values that differ.
    pub findings: Vec<Finding>,
    /// Values that were compared.
    pub sites: usize,
    /// By operation: the greatest distance from float64, relative to the greatest of its row, and where.
    pub distance: BTreeMap<String, (f64, String)>,
}

/// Compares what a log holds.
pub fn parity(log: &Log, graph: &Graph, source: &dyn WeightSource) -> Result<Parity> {
    let session = Session::new(graph, source).map_err(crate::pipeline::first)?;
    let mut cx = Cx { graph, session, exact: Float64::new(graph, source), out: Parity::default() };
    for (i, step) in log.steps.iter().enumerate() {
        if step.position != cx.session.position() {
            return Err(Diagnostic::new(
                PARITY,
                format!("a step begins at position {}, not {}", step.position, cx.session.position()),
            ));
        }
        let from = step.tokens.len() - step.outputs.min(step.tokens.len());
        cx.session.begin(&step.tokens, from)?;
        cx.exact.begin(&step.tokens, step.position, from);
        for r in log.records.iter().filter(|r| r.step == i) {
            cx.launch(step, r);
        }
        cx.session.end();
        // What follows was made of this.
        if cx.out.findings.len() >= MOST {
            break;
        }
    }
    Ok(cx.out)
}

struct Cx<'a> {
    graph: &'a Graph,
    session: Session<'a>,
    exact: Float64<'a>,
    out: Parity,
}

impl Cx<'_> {
    fn launch(&mut self, step: &Step, r: &Record) {
        for (id, bytes) in &r.reads {
            self.give(*id, bytes);
        }
        for (id, bytes) in &r.writes {
            self.written(step, r, *id, bytes);
            self.give(*id, bytes);
        }
        for c in &r.caches {
            let floats: Vec<f32> = c.floats.iter().map(|b| f32::from_bits(*b)).collect();
            let write = self.graph.ids().find(|&id| {
                let n = self.graph.node(id);
                n.op == Op::KvWrite && matches!(self.graph.node(n.inputs[0]).op, Op::Kv { layer, .. } if layer == c.layer)
            });
            if let Some(id) = write {
                let from = self.graph.node(id).inputs[if c.keys { 1 } else { 2 }];
                self.session.need(from);
                if let Some(want) = self.session.node_value(from).and_then(Value::f32s) {
                    let want: Vec<f32> = want.to_vec();
                    let name = format!("kv.{}.{}", c.layer, if c.keys { "keys" } else { "values" });
                    self.same(step, r, &name, "kv_write", &floats, &want);
                }
                if let Some(exact) = self.exact.written(id) {
                    self.far(
                        step,
                        r,
                        &format!("kv.{}", c.layer),
                        "kv_write",
                        &floats,
                        &exact[usize::from(!c.keys)],
                        floats.len(),
                    );
                }
            }
            self.exact.give_cache(c.layer, c.keys, &floats);
        }
        // The reference has the cache that the kernels have.
        for c in r.caches.iter().filter(|c| c.keys) {
            let values = r.caches.iter().find(|v| v.layer == c.layer && !v.keys);
            let floats = |c: &[u32]| c.iter().map(|b| f32::from_bits(*b)).collect::<Vec<f32>>();
            if let Some(v) = values {
                self.session.give_cache(c.layer, &floats(&c.floats), &floats(&v.floats));
            }
        }
    }

    /// Takes a value as it stands in memory; fixed point is made of its row again.
    fn give(&mut self, id: NodeId, bytes: &[u8]) {
        match self.read(id, bytes) {
            Some(Value::F32(x)) => {
                self.exact.give(id, &x);
                self.session.give(id, Value::F32(x));
            }
            Some(Value::Route(r)) => {
                self.exact.give_route(id, r.iter().map(|c| (c.expert as usize, f64::from(c.weight))).collect());
                self.session.give(id, Value::Route(r));
            }
            Some(v) => self.session.give(id, v),
            None => {}
        }
    }

    fn read(&self, id: NodeId, bytes: &[u8]) -> Option<Value> {
        let w = words(bytes);
        match self.graph.node(id).ty.elem {
            Elem::F32 => Some(Value::F32(w.iter().map(|b| f32::from_bits(*b)).collect())),
            Elem::I32 => Some(Value::I32(w.iter().map(|b| *b as i32).collect())),
            Elem::Route => {
                let k = self.graph.node(id).ty.width() as usize;
                let row = |row: &[u32]| {
                    (0..k).map(|i| Choice { expert: row[i], weight: f32::from_bits(row[k + i]) }).collect::<Vec<_>>()
                };
                Some(Value::Route(w.chunks_exact(2 * k).flat_map(row).collect()))
            }
            _ => None,
        }
    }

    /// Compares a value that a launch wrote.
    fn written(&mut self, step: &Step, r: &Record, id: NodeId, bytes: &[u8]) {
        let n = self.graph.node(id);
        let Some(got) = self.read(id, bytes) else { return };
        let want = self.session.again(id).cloned();
        let (name, op) = (n.name.clone(), n.op.name());
        match (&got, &want) {
            (Value::F32(got), Some(Value::F32(want))) => {
                self.same(step, r, &name, op, got, want);
                if let Some(exact) = self.exact.compute(id) {
                    self.far(step, r, &name, op, got, &exact, got.len() / self.exact.rows(id).max(1));
                }
            }
            (Value::I32(got), Some(Value::I32(want))) => {
                self.out.sites += 1;
                if let Some(i) = (0..got.len().min(want.len())).find(|&i| got[i] != want[i]) {
                    self.found(step, r, &name, format!("row {i} is {}, its operation gives {}", got[i], want[i]));
                }
            }
            (Value::Route(got), Some(Value::Route(want))) => {
                self.out.sites += 1;
                let differs = |(a, b): &(&Choice, &Choice)| a.expert != b.expert || a.weight.to_bits() != b.weight.to_bits();
                if let Some((i, (a, b))) = got.iter().zip(want).enumerate().find(|(_, p)| differs(p)) {
                    let what = format!(
                        "choice {i} is {} with {:?}, its operation gives {} with {:?}",
                        a.expert, a.weight, b.expert, b.weight
                    );
                    self.found(step, r, &name, what);
                }
                if let Some((exact, near)) = self.exact.choice(id)
                    && near > FAR
                    && let Some(i) = (0..got.len().min(exact.len())).find(|&i| got[i].expert as usize != exact[i].0)
                {
                    self.found(
                        step,
                        r,
                        &name,
                        format!("choice {i} is {}, in float64 {}, and no logits are near", got[i].expert, exact[i].0),
                    );
                }
            }
            _ => self.found(step, r, &name, "its operation gives a value of another kind".into()),
        }
    }

    /// Bits.
    fn same(&mut self, step: &Step, r: &Record, name: &str, op: &str, got: &[f32], want: &[f32]) {
        self.out.sites += 1;
        let other = |a: &f32, b: &f32| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        let n = got.iter().zip(want).filter(|(a, b)| other(a, b)).count();
        if n > 0 || got.len() != want.len() {
            let i = got.iter().zip(want).position(|(a, b)| other(a, b)).unwrap_or(0);
            let what = format!(
                "{n} of {} numbers differ from those of the operations one by one ({op}); the first is number {i}: {:?}, not {:?}",
                got.len(),
                got.get(i).copied().unwrap_or(f32::NAN),
                want.get(i).copied().unwrap_or(f32::NAN)
            );
            self.found(step, r, name, what);
        }
    }

    /// Distance from float64, row by row.
    #[expect(clippy::too_many_arguments)]
    fn far(&mut self, step: &Step, r: &Record, name: &str, op: &str, got: &[f32], exact: &[f64], width: usize) {
        let mut worst = 0f64;
        for (got, exact) in got.chunks(width.max(1)).zip(exact.chunks(width.max(1))) {
            let most = exact.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
            let off = got.iter().zip(exact).fold(0f64, |m, (a, b)| m.max((f64::from(*a) - b).abs()));
            worst = worst.max(off / most);
        }
        let place = format!("{name} at position {}", step.position);
        let known = self.out.distance.entry(op.into()).or_insert((0.0, place.clone()));
        if worst > known.0 {
            *known = (worst, place);
        }
        if worst > FAR || worst.is_nan() {
            self.found(step, r, name, format!("it is {worst:.1e} of its row's greatest away from float64 ({op})"));
        }
    }

    fn found(&mut self, step: &Step, r: &Record, name: &str, what: String) {
        let place = format!("{name}, position {}, launch {} of {}", step.position, r.launch, r.phase);
        self.out.findings.push(Finding { code: PARITY.into(), place, what });
    }
}
