//! Dead code: what no output needs is removed. Cache writes stay: later steps read them.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::NodeId;
use ir::graph::op::Op;
use std::collections::BTreeSet;

/// The pass.
pub struct Dce;

impl Pass for Dce {
    fn name(&self) -> &'static str {
        "dce"
    }
    fn about(&self) -> &'static str {
        "Removes nodes that no output and no cache write needs, weights included. Values named by keep stay."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let g = &mut m.graph;
        let mut live: BTreeSet<NodeId> = BTreeSet::new();
        let roots = |id: &NodeId| g.node(*id).op == Op::KvWrite || cx.options.keeps(&g.node(*id).name);
        let mut todo: Vec<NodeId> = g.outputs.iter().copied().chain(g.ids().filter(roots)).collect();
        while let Some(id) = todo.pop() {
            if live.insert(id) {
                todo.extend(&g.node(id).inputs);
            }
        }
        let dead: Vec<NodeId> = g.topo().into_iter().rev().filter(|id| !live.contains(id)).collect();
        for &id in &dead {
            g.remove(id);
        }
        if !dead.is_empty() {
            g.stages.clear();
            g.launches.clear();
        }
        cx.stat("removed", dead.len() as u64);
        Ok(!dead.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::pass::run_alone;
    use crate::sketch::Sketch;

    #[test]
    fn only_what_is_needed_stays() {
        let mut s = Sketch::new("t");
        let x = s.embed("x", 64);
        let dead = s.norm("dead", x, 64, true);
        let (k, v) = (s.embed("k", 64), s.embed("v", 64));
        let kv = s.cache("", 0, k, v, 32);
        let mut m = Module::new(s.finish(&[x]));
        let kept = Options { keep: ["dead".to_string()].into(), ..Options::default() };
        assert!(!run_alone(&Dce, &mut m, &kept).unwrap().0);
        let (changed, stats) = run_alone(&Dce, &mut m, &Options::default()).unwrap();
        assert!(changed);
        assert_eq!(stats["removed"], 2);
        assert!(m.graph.get(dead).is_none() && m.graph.get(kv).is_some());
    }
}
