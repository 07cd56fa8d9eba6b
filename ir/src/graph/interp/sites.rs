//! A step node by node, on values that are given: what a kernel should have made of the inputs that it had. Promises: what
//! [`Session::need`] computes is what [`Session::step`] would, if all values that are not given were computed.

use super::{Session, Value};
use crate::diag::Result;
use crate::graph::NodeId;
use crate::graph::op::Op;

impl Session<'_> {
    /// Begins a step in which nothing is computed yet; the logits of tokens from index `output_from` on are asked for. The
    /// position must be where the last step ended.
    pub fn begin(&mut self, tokens: &[u32], output_from: usize) -> Result<()> {
        self.check_step(tokens, output_from)?;
        self.step = (tokens.len(), output_from);
        self.values.fill(None);
        self.written.clear();
        for i in 0..self.topo.len() {
            let id = self.topo[i];
            if self.graph.node(id).op == Op::Tokens {
                self.values[id.idx()] = Some(Value::I32(tokens.iter().map(|&t| t as i32).collect()));
            }
        }
        Ok(())
    }

    /// Gives a node a value.
    pub fn give(&mut self, id: NodeId, value: Value) {
        if let Some(v) = self.values.get_mut(id.idx()) {
            *v = Some(value);
        }
    }

    /// Gives a cache the keys and values of this step's tokens, `[token][head][dim]`, once a step.
    pub fn give_cache(&mut self, layer: u32, keys: &[f32], values: &[f32]) {
        if self.written.insert(layer)
            && let Some(c) = self.caches.get_mut(&layer)
        {
            c.append(keys, values);
        }
    }

    /// Computes a node from values that were given or computed before, and what is missing of them. Nothing for weights and
    /// caches, which a [`Op::KvWrite`] fills once a step.
    pub fn need(&mut self, id: NodeId) {
        let n = self.graph.node(id);
        if self.values[id.idx()].is_some() || matches!(n.op, Op::Weight | Op::Kv { .. }) {
            return;
        }
        for &x in &n.inputs {
            self.need(x);
        }
        if n.op == Op::KvWrite {
            if let Op::Kv { layer, .. } = self.graph.node(n.inputs[0]).op
                && self.written.insert(layer)
            {
                self.kv_write(id);
            }
            return;
        }
        let value = self.eval(id);
        self.values[id.idx()] = Some(value);
    }

    /// Computes a node anew from its operands.
    pub fn again(&mut self, id: NodeId) -> Option<&Value> {
        self.values[id.idx()] = None;
        self.need(id);
        self.node_value(id)
    }

    /// Ends the step.
    pub fn end(&mut self) {
        self.position += self.step.0;
    }
}
