//! The graph verifier. It collects every violation; a graph that passes can be interpreted, printed and lowered without
//! a further check. Invariants:
//!
//! - names are unique and not empty; operands and outputs are live; there is no cycle and there is an output;
//! - every operation has its number of operands, of the types of [`types::infer`], and states the type that follows:
//!   tokens `i32[T]`; kv and kv_write `kv[heads,dim]`; route `route[T,k]`, `k ≤ experts ≤ 1024`; groups of 32, 64 or 128
//!   that divide a row and are the same on both sides of a qlinear; query heads a multiple of key heads;
//! - an expert matrix holds as many experts as its route chooses from;
//! - a layer has one cache, its cache one write, and attention reads the cache as written;
//! - orders are legal, and present if [`Options::require_orders`] (linear and expert_linear, which have none, must have
//!   been lowered then);
//! - stages and launches, if present, are what [`stages`] demands.

mod stages;
pub mod types;

use super::op::Op;
use super::{Elem, Graph, NodeId, Type};
use crate::diag::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};

/// What is demanded beyond well-formedness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Every reduction has an order: levels `run` and above.
    pub require_orders: bool,
}

/// Codes of the graph verifier's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0301", "two nodes or two stages have one name, or a name is empty"),
    ("E0302", "an operand is not a node of the graph"),
    ("E0303", "the graph has a cycle"),
    ("E0304", "an output is not a node that computes a value, or there is none"),
    ("E0305", "an operation has the wrong number of operands"),
    ("E0306", "an operand is of the wrong kind: element, rows, or not a weight"),
    ("E0307", "shapes do not fit"),
    ("E0308", "a node states another type than follows from its operation"),
    ("E0309", "an attribute is out of its range"),
    ("E0310", "a reduction order is not legal"),
    ("E0311", "a reduction has no order, which only `--determinism off` allows"),
    ("E0312", "a key/value cache is declared twice, written twice, or read before it is written"),
    ("E0313", "an expert matrix holds another number of experts than its route chooses from"),
    ("E0320", "a stage names a node that is no live computation, or names it twice"),
    ("E0321", "a node that an output needs is computed by no stage"),
    ("E0322", "the nodes of a stage are not in topological order"),
    ("E0323", "a stage reads a value that no earlier stage stores"),
    ("E0324", "a value is stored more than once"),
    ("E0325", "a stage stores a value that it does not compute"),
    ("E0326", "an output is not stored"),
    ("E0327", "a cache write is computed without being stored, or read in its own stage"),
    ("E0328", "a stage stores values with different rows, or nothing"),
    ("E0330", "the launches do not hold every stage once"),
    ("E0331", "a stage depends on one of its own or a later launch"),
];

/// Checks a graph; reductions may lack an order.
pub fn verify(g: &Graph) -> Result<(), Vec<Diagnostic>> {
    verify_with(g, &Options::default())
}

/// Checks a graph.
pub fn verify_with(g: &Graph, options: &Options) -> Result<(), Vec<Diagnostic>> {
    let mut c = Check { g, errors: vec![] };
    let sound = c.structure();
    if sound {
        for id in g.ids() {
            c.node(id, options);
        }
        c.caches();
        stages::check(&mut c);
    }
    if c.errors.is_empty() { Ok(()) } else { Err(c.errors) }
}

/// A check under way.
struct Check<'a> {
    g: &'a Graph,
    errors: Vec<Diagnostic>,
}

impl Check<'_> {
    /// Records an error at a node.
    fn at_node(&mut self, id: NodeId, code: &'static str, message: impl Into<String>) {
        let name = self.g.get(id).map_or("", |n| &n.name);
        self.errors.push(Diagnostic::new(code, message).at(format!("{id} \"{name}\"")));
    }

    /// Names, liveness, cycles: what the other checks rest on. False if they cannot be made.
    fn structure(&mut self) -> bool {
        let mut names = BTreeMap::new();
        for id in self.g.ids() {
            let node = self.g.node(id);
            if node.name.is_empty() {
                self.at_node(id, "E0301", "the name is empty");
            } else if let Some(other) = names.insert(&node.name, id) {
                self.at_node(id, "E0301", format!("{other} has the same name"));
            }
        }
        let before = self.errors.len();
        for id in self.g.ids() {
            for &i in &self.g.node(id).inputs {
                if self.g.get(i).is_none() {
                    self.at_node(id, "E0302", format!("operand {i} is not a node of the graph"));
                }
            }
        }
        if self.g.outputs.is_empty() {
            self.errors.push(Diagnostic::new("E0304", "the graph has no output"));
        }
        for &o in &self.g.outputs {
            if !self.g.get(o).is_some_and(|n| n.op.computes()) {
                self.at_node(o, "E0304", format!("output {o} is not a node that computes a value"));
            }
        }
        let live = self.errors.len() == before;
        if !live {
            return false;
        }
        // Not by a search in depth: a long graph would overflow the stack.
        let done: BTreeSet<_> = self.g.topo().into_iter().collect();
        let rest: Vec<String> = self.g.ids().filter(|i| !done.contains(i)).take(8).map(|i| i.to_string()).collect();
        if !rest.is_empty() {
            self.errors.push(Diagnostic::new("E0303", format!("there is a cycle at or before {}", rest.join(" "))));
        }
        rest.is_empty()
    }

    fn node(&mut self, id: NodeId, options: &Options) {
        let n = self.g.node(id);
        let inputs: Vec<&Type> = n.inputs.iter().map(|&i| &self.g.node(i).ty).collect();
        let mut fine = true;
        if let Err(d) = types::well_formed(&n.ty) {
            self.at_node(id, d.code, d.message);
            fine = false;
        }
        // A faulty operand is reported where it is defined.
        fine &= inputs.iter().all(|t| types::well_formed(t).is_ok());
        if fine {
            match types::infer(&n.op, &inputs, &n.ty) {
                Err(d) => self.at_node(id, d.code, d.message),
                Ok(t) if t != n.ty => {
                    self.at_node(id, "E0308", format!("{} gives {t}, the node states {}", n.op.name(), n.ty));
                }
                Ok(_) => {}
            }
        }
        self.order(id, options);
        self.experts(id);
    }

    fn order(&mut self, id: NodeId, options: &Options) {
        let op = &self.g.node(id).op;
        let (present, legal) = match op {
            Op::RmsNorm { order, .. } | Op::QLinear { order } | Op::QExpertLinear { order } => {
                (order.is_some(), order.map_or(Ok(()), |o| o.check()))
            }
            Op::Attention { order, .. } => (order.is_some(), order.map_or(Ok(()), |o| o.check())),
            Op::Linear { order } | Op::ExpertLinear { order } => {
                // The order of affine weights is that of the exact integers they are lowered to.
                (order.is_some() && !self.is_affine_matmul(id), order.map_or(Ok(()), |o| o.check()))
            }
            _ => return,
        };
        let name = op.name();
        if let Err(m) = legal {
            self.at_node(id, "E0310", m);
        }
        if options.require_orders && !present {
            let hint = match op {
                Op::Linear { .. } | Op::ExpertLinear { .. } if self.is_affine_matmul(id) => {
                    "the pass `quant-lower` lowers it to exact integers"
                }
                _ => "the pass `pin-reductions` sets it; or compile with `--determinism off`",
            };
            self.at_node(id, "E0311", format!("{name} sums in no fixed order"));
            if let Some(d) = self.errors.last_mut() {
                d.hint = hint.into();
            }
        }
    }

    /// Is the weight of this matmul affine codes?
    fn is_affine_matmul(&self, id: NodeId) -> bool {
        let weight = self.g.node(id).inputs.get(1).and_then(|&w| self.g.get(w));
        weight.is_some_and(|w| matches!(w.ty.elem, Elem::Affine { .. }))
    }

    fn experts(&mut self, id: NodeId) {
        let n = self.g.node(id);
        if !matches!(n.op, Op::ExpertLinear { .. } | Op::QExpertLinear { .. }) {
            return;
        }
        let [_, w, route] = n.inputs[..] else { return };
        let stack = self.g.node(w).ty.shape.first().copied();
        let logits = self.g.node(route).inputs.first().and_then(|&l| self.g.node(l).ty.shape.first().copied());
        if stack.is_some() && logits.is_some() && stack != logits {
            let (a, b) = (stack.unwrap_or(0), logits.unwrap_or(0));
            self.at_node(id, "E0313", format!("the weight holds {a} experts, the route chooses from {b}"));
        }
    }

    fn caches(&mut self) {
        let mut layers = BTreeMap::new();
        for id in self.g.ids() {
            match self.g.node(id).op {
                Op::Kv { layer, .. } => {
                    if let Some(other) = layers.insert(layer, id) {
                        self.at_node(id, "E0312", format!("layer {layer} has a cache already: {other}"));
                    }
                    let users = self.g.users(id);
                    let (writes, reads): (Vec<_>, Vec<_>) = users.into_iter().partition(|&u| self.g.node(u).op == Op::KvWrite);
                    for &w in writes.iter().skip(1) {
                        self.at_node(w, "E0312", format!("{id} is written already by {}", writes[0]));
                    }
                    for &r in &reads {
                        self.at_node(r, "E0312", format!("reads {id} before this step's keys are written to it"));
                    }
                }
                Op::KvWrite => {
                    let kv = self.g.node(id).inputs.first().copied();
                    if kv.is_some_and(|kv| self.g.node(kv).op == Op::KvWrite) {
                        self.at_node(id, "E0312", "writes a cache that is written already in this step");
                    }
                }
                _ => {}
            }
        }
    }
}
