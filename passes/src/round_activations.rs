//! Rounds activations between kernels as other programs do, for experiments: their near ties appear on demand. Rounded are the
//! results of linear layers, of norms over whole rows, and of sums, which is where such programs store bf16. What a single kernel
//! of theirs keeps in f32 (norms of heads and rotary embedding, softmax, the choice of experts) is not.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId};

/// The pass.
pub struct RoundActivations;

/// Its name.
pub const NAME: &str = "round-activations";

impl Pass for RoundActivations {
    fn name(&self) -> &'static str {
        NAME
    }
    fn about(&self) -> &'static str {
        "For experiments (`--activations bf16`): the results of linear layers, norms and sums are rounded to bf16, as in programs \
         that keep activations in that type. Logits are then as far from float64 as theirs"
    }
    fn effect(&self) -> Effect {
        Effect::Rounding
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let g = &mut m.graph;
        let todo: Vec<NodeId> = g.topo().into_iter().filter(|&id| is_boundary(g, id)).collect();
        let mut changed = false;
        for id in todo {
            let n = g.node(id).clone();
            if !cx.decide(format!("round {}", n.name)) {
                continue;
            }
            let users = g.users(id);
            let rounded = g.add(&format!("{}.bf16", n.name), Op::RoundBf16, &[id], n.ty);
            for user in users {
                let inputs: Vec<NodeId> = g.node(user).inputs.iter().map(|&i| if i == id { rounded } else { i }).collect();
                g.set_inputs(user, &inputs);
            }
            cx.stat("values", 1);
            changed = true;
        }
        Ok(changed)
    }
}

/// A value that other programs store.
fn is_boundary(g: &Graph, id: NodeId) -> bool {
    let n = g.node(id);
    let users = g.users(id);
    if g.outputs.contains(&id) || users.is_empty() || users.iter().any(|&u| matches!(g.node(u).op, Op::RoundBf16)) {
        return false;
    }
    match n.op {
        Op::Linear { .. } | Op::ExpertLinear { .. } | Op::Add => true,
        Op::RmsNorm { dim, .. } => {
            dim == n.ty.width() && !users.iter().any(|&u| matches!(g.node(u).op, Op::Rope(_) | Op::KvWrite))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::pass::run_alone;
    use crate::testing::moe_model;

    #[test]
    fn boundaries_are_rounded_once() {
        let mut m = Module::new(moe_model(1));
        let (changed, stats) = run_alone(&RoundActivations, &mut m, &Options::default()).unwrap();
        assert!(changed && stats["values"] > 8);
        ir::graph::verify::verify(&m.graph).unwrap();
        for id in m.graph.ids() {
            assert!(!is_boundary(&m.graph, id), "{}", m.graph.node(id).name);
        }
        assert!(!run_alone(&RoundActivations, &mut m, &Options::default()).unwrap().0);
    }
}
