//! Commutative operations take their operands in ascending order of id, so that equal sums look equal.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::op::Op;

/// The pass.
pub struct OrderOperands;

impl Pass for OrderOperands {
    fn name(&self) -> &'static str {
        "order-operands"
    }
    fn about(&self) -> &'static str {
        "Sums and products of two values of one type take the operand with the lower id first. Addition and multiplication \
         of floats are commutative bit for bit; which NaN comes out is not part of the numerics."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let g = &mut m.graph;
        let mut swapped = 0;
        for id in g.ids().collect::<Vec<_>>() {
            let n = g.node(id);
            let ([a, b], Op::Add | Op::Mul) = (&n.inputs[..], &n.op) else { continue };
            let (a, b) = (*a, *b);
            if a > b && g.node(a).ty == g.node(b).ty {
                g.set_inputs(id, &[b, a]);
                swapped += 1;
            }
        }
        cx.stat("swapped", swapped);
        Ok(swapped > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::pass::run_alone;
    use crate::sketch::Sketch;

    #[test]
    fn lower_id_first_and_weights_stay_second() {
        let mut s = Sketch::new("t");
        let w = s.vector("w", 64);
        let (x, y) = (s.embed("x", 64), s.embed("y", 64));
        let a = s.add("a", y, x);
        let b = s.like("b", Op::Mul, &[a, w]);
        let mut m = Module::new(s.finish(&[b]));
        assert!(run_alone(&OrderOperands, &mut m, &Options::default()).unwrap().0);
        assert_eq!(m.graph.node(a).inputs, [x, y]);
        assert_eq!(m.graph.node(b).inputs, [a, w]);
    }
}
