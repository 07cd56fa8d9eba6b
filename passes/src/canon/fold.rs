//! Operations that change nothing are taken out: a product with one, a selection of selected rows.
//! Nothing that rounds is folded: two constant factors in a row stay two products.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Rows};

/// The pass.
pub struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }
    fn about(&self) -> &'static str {
        "Takes out operations whose result is their operand, bit for bit: a product with the constant 1, a selection of rows \
         that are selected already. Nothing that rounds is folded."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let g = &mut m.graph;
        let mut folded = 0;
        for id in g.topo() {
            let Some(x) = identity(g, id) else { continue };
            let name = g.node(id).name.clone();
            // An output keeps its name.
            let fixed = g.outputs.contains(&id) || cx.options.keeps(&name);
            if fixed || !cx.decide(format!("fold {name} into {}", g.node(x).name)) {
                continue;
            }
            g.replace_uses(id, x);
            g.remove(id);
            g.stages.clear();
            g.launches.clear();
            folded += 1;
        }
        cx.stat("folded", folded);
        Ok(folded > 0)
    }
}

/// The operand that the node equals.
fn identity(g: &Graph, id: NodeId) -> Option<NodeId> {
    let n = g.node(id);
    let x = *n.inputs.first()?;
    let same = match n.op {
        Op::MulConst { c } => c == 1.0,
        Op::Select => g.node(x).ty.rows == Rows::Outputs,
        _ => false,
    };
    same.then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::pass::run_alone;
    use crate::sketch::Sketch;

    #[test]
    fn only_identities_fold() {
        let mut s = Sketch::new("t");
        let x = s.embed("x", 64);
        let a = s.like("a", Op::MulConst { c: 1.0 }, &[x]);
        let b = s.like("b", Op::MulConst { c: 2.0 }, &[a]);
        let c = s.select("c", b);
        let d = s.select("d", c);
        let e = s.norm("e", d, 64, false);
        let mut m = Module::new(s.finish(&[e]));
        let (changed, stats) = run_alone(&Fold, &mut m, &Options::default()).unwrap();
        assert!(changed);
        assert_eq!(stats["folded"], 2);
        assert_eq!(m.graph.node(b).inputs, [x]);
        assert_eq!(m.graph.node(e).inputs, [c]);
        let none = Options { pass_limit: Some(0), ..Options::default() };
        assert!(!run_alone(&Fold, &mut m, &none).unwrap().0);
    }
}
