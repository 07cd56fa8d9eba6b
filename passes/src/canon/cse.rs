//! Common subexpressions: two nodes of one operation, with equal operands and type, are one. The lower id and its name stay.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::NodeId;
use ir::graph::op::Op;
use std::collections::BTreeMap;

/// The pass.
pub struct Cse;

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }
    fn about(&self) -> &'static str {
        "Nodes that compute the same operation of the same operands are joined; the lower id and its name stay. A node named \
         by keep is not given up."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let g = &mut m.graph;
        let mut joined = 0;
        // Joining operands can make users equal; ids need not be in topological order.
        for id in g.topo() {
            // Joined already, as the higher id of two.
            let Some(n) = g.get(id) else { continue };
            if !n.op.computes() || n.op == Op::KvWrite {
                continue;
            }
            let peers = g.users(n.inputs[0]);
            let twin = peers.into_iter().filter(|&p| p != id).find(|&p| {
                let o = g.node(p);
                key(&o.op) == key(&n.op) && o.inputs == n.inputs && o.ty == n.ty
            });
            let Some(twin) = twin else { continue };
            let (stay, go) = if twin < id { (twin, id) } else { (id, twin) };
            let name = g.node(go).name.clone();
            if cx.options.keeps(&name) || !cx.decide(format!("join {name} with {}", g.node(stay).name)) {
                continue;
            }
            merge(g, stay, go);
            joined += 1;
        }
        cx.stat("joined", joined);
        Ok(joined > 0)
    }
}

/// All attributes, with floats told apart as `{:?}` does (it prints `-0.0`, and as many digits as identify the value).
fn key(op: &Op) -> String {
    format!("{op:?}")
}

fn merge(g: &mut ir::graph::Graph, stay: NodeId, go: NodeId) {
    g.replace_uses(go, stay);
    g.remove(go);
    g.stages.clear();
    g.launches.clear();
    // An output that was asked for twice under two names is one output now.
    let mut seen = BTreeMap::new();
    g.outputs.retain(|o| seen.insert(*o, ()).is_none());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::pass::run_alone;
    use crate::sketch::Sketch;

    #[test]
    fn chains_of_equal_nodes_are_joined_by_value_of_their_attributes() {
        let mut s = Sketch::new("t");
        let x = s.embed("x", 64);
        let mut out = vec![];
        for (name, c) in [("a", 0.0), ("b", 0.0), ("c", -0.0)] {
            let y = s.like(name, Op::MulConst { c }, &[x]);
            out.push(s.norm(&format!("{name}.n"), y, 64, false));
        }
        let sum = s.add("sum", out[0], out[1]);
        let sum = s.add("sum2", sum, out[2]);
        let mut m = Module::new(s.finish(&[sum]));
        let (changed, stats) = run_alone(&Cse, &mut m, &Options::default()).unwrap();
        assert!(changed);
        assert_eq!(stats["joined"], 2, "-0.0 is another constant");
        let sum = m.graph.by_name("sum").unwrap();
        assert_eq!(m.graph.node(sum).inputs, [out[0], out[0]]);
        assert!(m.graph.by_name("a.n").is_some() && m.graph.by_name("b.n").is_none());
    }
}
