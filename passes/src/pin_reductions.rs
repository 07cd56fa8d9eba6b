//! Pins the order of every reduction. The policy is the table [`POLICY`]; orders that are set already are respected.

use crate::options::{Level, Options};
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::graph::op::Op;
use ir::order::{AttentionOrder, KV_BLOCK, ReductionOrder};

/// Reductions that have an order, in words; [`pin`] is the same as code.
pub const POLICY: [(&str, &str); 6] = [
    ("rmsnorm", "strided, one lane per element up to 256: the greatest power of two in dim, at least 32; pairs"),
    ("qlinear", "4 contiguous runs of groups; pairs"),
    ("qexpert_linear", "4 contiguous runs of groups; pairs"),
    ("linear", "plain weights: 8 contiguous runs of units of 8 elements; pairs"),
    ("expert_linear", "as linear"),
    ("attention", "splits of one block of 32 keys; dot: 4 contiguous runs, pairs; sum of a block: 32 strided lanes, pairs"),
];

/// Order of a norm over `dim` elements.
pub fn norm_order(dim: u32) -> ReductionOrder {
    let fits = 1 << dim.max(1).ilog2();
    ReductionOrder::strided(u32::clamp(fits, 32, 256))
}

/// Order over the groups of a matmul's row.
pub const MATMUL: ReductionOrder = ReductionOrder::contiguous(4);

/// Order over the units of a row of plain weights.
pub const PLAIN: ReductionOrder = ReductionOrder::contiguous(8);

/// Order of attention.
pub const ATTENTION: AttentionOrder =
    AttentionOrder { split: KV_BLOCK, dot: ReductionOrder::contiguous(4), sum: ReductionOrder::strided(32) };

/// Sets the orders that are missing; says how many.
pub fn pin(g: &mut Graph) -> u64 {
    let mut n = 0;
    for id in g.ids().collect::<Vec<_>>() {
        let before = is_open(&g.node(id).op);
        // One with affine weights has no order before its lowering.
        let plain = g.node(id).inputs.get(1).is_some_and(|&w| g.node(w).ty.dtype().is_some());
        match &mut g.node_mut(id).op {
            Op::RmsNorm { dim, order, .. } => *order = order.or(Some(norm_order(*dim))),
            Op::QLinear { order } | Op::QExpertLinear { order } => *order = order.or(Some(MATMUL)),
            Op::Linear { order } | Op::ExpertLinear { order } if plain => *order = order.or(Some(PLAIN)),
            Op::Attention { order, .. } => *order = order.or(Some(ATTENTION)),
            _ => {}
        }
        n += u64::from(before && !is_open(&g.node(id).op));
    }
    n
}

/// A reduction whose order nobody has pinned.
pub fn is_open(op: &Op) -> bool {
    match op {
        Op::RmsNorm { order, .. }
        | Op::Linear { order }
        | Op::ExpertLinear { order }
        | Op::QLinear { order }
        | Op::QExpertLinear { order } => order.is_none(),
        Op::Attention { order, .. } => order.is_none(),
        _ => false,
    }
}

/// The pass.
pub struct PinReductions;

impl Pass for PinReductions {
    fn name(&self) -> &'static str {
        "pin-reductions"
    }
    fn about(&self) -> &'static str {
        "Gives every sum the order in which it is taken: lanes, what a lane takes, how lanes are joined. The order is part of \
         the numerics and is obeyed by every kernel. Orders that a model or an earlier pass set are kept."
    }
    fn effect(&self) -> Effect {
        Effect::Rounding
    }
    fn required(&self, options: &Options) -> Option<&'static str> {
        (options.determinism >= Level::Run).then_some("a sum without an order may differ from run to run")
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let pinned = pin(&mut m.graph);
        cx.stat("pinned", pinned);
        for id in m.graph.ids() {
            let n = m.graph.node(id);
            let checked = match &n.op {
                Op::RmsNorm { order: Some(o), .. }
                | Op::Linear { order: Some(o) }
                | Op::ExpertLinear { order: Some(o) }
                | Op::QLinear { order: Some(o) }
                | Op::QExpertLinear { order: Some(o) } => o.check(),
                Op::Attention { order: Some(o), .. } => o.check(),
                _ => Ok(()),
            };
            checked.map_err(|e| Diagnostic::new("E0713", format!("the order is not legal: {e}")).at(&n.name))?;
            if is_open(&n.op) && cx.options.determinism >= Level::Run {
                return Err(Diagnostic::new("E0712", format!("`{}` has no pinned order", n.op.name()))
                    .at(&n.name)
                    .hint("run `quant-lower` before `pin-reductions`"));
            }
        }
        Ok(pinned > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::run_alone;
    use crate::sketch::Sketch;

    #[test]
    fn policy() {
        for (dim, lanes) in [(1, 32), (31, 32), (64, 64), (96, 64), (2816, 256), (256, 256)] {
            assert_eq!(norm_order(dim), ReductionOrder::strided(lanes), "{dim}");
        }
        let mut s = Sketch::new("t");
        let x = s.embed("x", 64);
        let n = s.norm("n", x, 64, true);
        let own = ReductionOrder::strided(32);
        s.g.node_mut(n).op = Op::RmsNorm { dim: 64, eps: 1e-6, order: Some(own) };
        let y = s.linear("y", n, 64);
        let mut m = Module::new(s.unpinned(&[y]));
        let (changed, stats) = run_alone(&PinReductions, &mut m, &Options::default()).unwrap();
        assert!(changed && stats["pinned"] == 1);
        assert!(matches!(m.graph.node(n).op, Op::RmsNorm { order: Some(o), .. } if o == own));
        assert!(matches!(m.graph.node(y).op, Op::QLinear { order: Some(MATMUL) }));
    }

    #[test]
    fn nothing_stays_open_at_run_and_above() {
        let mut s = Sketch::new("t");
        s.linear = true;
        let x = s.embed("x", 64);
        let y = s.linear("y", x, 64);
        let g = s.unpinned(&[y]);
        let d = run_alone(&PinReductions, &mut Module::new(g.clone()), &Options::default()).unwrap_err();
        assert_eq!(d.code, "E0712");
        let off = Options { determinism: Level::Off, ..Options::default() };
        assert!(run_alone(&PinReductions, &mut Module::new(g), &off).is_ok());
    }
}
