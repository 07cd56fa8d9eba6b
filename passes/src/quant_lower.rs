//! Quantized lowering: a linear layer with an affine weight becomes exact integers inside groups (DESIGN section 3). The
//! activation row is quantized once per value and group size, and shared.

use crate::options::{Level, Options};
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::op::Op;
use ir::graph::{Elem, Graph, NodeId};
use std::collections::BTreeMap;

/// The pass.
pub struct QuantLower;

impl Pass for QuantLower {
    fn name(&self) -> &'static str {
        "quant-lower"
    }
    fn about(&self) -> &'static str {
        "Linear layers with affine weights become a quantization of the activation row to 24-bit fixed point and a matmul on \
         exact integers inside each group. Activations that several layers read are quantized once. Layers with plain weights \
         stay as they are: chains of fma in f32."
    }
    fn effect(&self) -> Effect {
        Effect::Rounding
    }
    fn required(&self, options: &Options) -> Option<&'static str> {
        (options.determinism >= Level::Portable).then_some("the matmuls of the portable numerics are those on exact integers")
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let g = &mut m.graph;
        let mut known: BTreeMap<(NodeId, u32), NodeId> = BTreeMap::new();
        for id in g.ids() {
            if let Op::Quantize { group } = g.node(id).op {
                known.insert((g.node(id).inputs[0], group), id);
            }
        }
        let todo: Vec<NodeId> = g.topo().into_iter().filter(|&id| is_affine_matmul(g, id)).collect();
        for &id in &todo {
            let n = g.node(id).clone();
            let (x, w) = (n.inputs[0], n.inputs[1]);
            let Elem::Affine { group, .. } = g.node(w).ty.elem else { continue };
            let q = match known.get(&(x, group)) {
                Some(&q) => q,
                None => {
                    let ty = g.node(x).ty.with(Elem::Q24 { group });
                    let name = free_name(g, x, group);
                    let q = g.add(&name, Op::Quantize { group }, &[x], ty);
                    known.insert((x, group), q);
                    cx.stat("quantized", 1);
                    q
                }
            };
            let mut inputs = n.inputs.clone();
            inputs[0] = q;
            let (expert, op) = match n.op {
                Op::ExpertLinear { order } => (true, Op::QExpertLinear { order }),
                Op::Linear { order } => (false, Op::QLinear { order }),
                _ => continue,
            };
            g.node_mut(id).op = op;
            g.set_inputs(id, &inputs);
            cx.stat(if expert { "expert-matmuls" } else { "matmuls" }, 1);
        }
        Ok(!todo.is_empty())
    }
}

/// `x.q24`; where one value is quantized in several group sizes, the later ones say theirs.
fn free_name(g: &Graph, x: NodeId, group: u32) -> String {
    let name = format!("{}.q24", g.node(x).name);
    if g.by_name(&name).is_none() { name } else { format!("{name}.g{group}") }
}

/// A linear layer that is to be lowered.
fn is_affine_matmul(g: &Graph, id: NodeId) -> bool {
    let n = g.node(id);
    let affine = |w: &NodeId| matches!(g.node(*w).ty.elem, Elem::Affine { .. });
    matches!(n.op, Op::Linear { .. } | Op::ExpertLinear { .. }) && n.inputs.get(1).is_some_and(affine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::run_alone;
    use crate::sketch::Sketch;

    #[test]
    fn activations_are_quantized_once_and_groups_are_kept_apart() {
        let mut s = Sketch::new("t");
        s.linear = true;
        let x = s.embed("x", 64);
        let (a, b) = (s.linear("a", x, 64), s.linear("b", x, 64));
        s.group = 64;
        let c = s.linear("c", x, 64);
        let mut m = Module::new(s.unpinned(&[a, b, c]));
        let (changed, stats) = run_alone(&QuantLower, &mut m, &Options::default()).unwrap();
        assert!(changed);
        assert_eq!((stats["quantized"], stats["matmuls"]), (2, 3));
        let q = m.graph.by_name("x.q24").unwrap();
        assert_eq!(m.graph.users(q), [a, b]);
        assert!(m.graph.by_name("x.q24.g64").is_some());
        assert_eq!(m.graph.node(a).name, "a");
        assert!(!run_alone(&QuantLower, &mut m, &Options::default()).unwrap().0);
    }

    #[test]
    fn plain_weights_stay_and_orders_are_kept() {
        let mut s = Sketch::new("t");
        s.linear = true;
        let x = s.embed("x", 64);
        let (a, b) = (s.linear("a", x, 64), s.linear("b", x, 64));
        let w = s.g.by_name("a_proj").unwrap();
        s.g.node_mut(w).ty.elem = Elem::Bf16;
        let own = Some(ir::order::ReductionOrder::contiguous(2));
        s.g.node_mut(b).op = Op::Linear { order: own };
        let mut m = Module::new(s.unpinned(&[a, b]));
        let (_, stats) = run_alone(&QuantLower, &mut m, &Options::default()).unwrap();
        assert_eq!(stats["matmuls"], 1);
        assert_eq!(m.graph.node(a).op, Op::Linear { order: None });
        assert_eq!(m.graph.node(b).op, Op::QLinear { order: own });
    }
}
