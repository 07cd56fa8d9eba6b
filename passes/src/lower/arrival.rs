//! Sums in the order in which their terms arrive, for `--determinism off`: one launch writes zeros, the next has a block for each
//! chosen expert and adds its row by float atomics. No launch of any other level is made here.

use super::blocks;
use super::cx::{ArgKey, Kx};
use super::schedule::Schedule;
use crate::pass::Relaxed;
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Stage};
use ir::kernel::{ICmp, IntOp, Kernel, V};
use ir::math::Arith;

/// The sum that a stage is, if it is nothing else and is relaxed.
pub fn sum(g: &Graph, stage: &Stage, relaxed: &Relaxed) -> Option<NodeId> {
    let [id] = stage.nodes[..] else { return None };
    let n = g.node(id);
    (matches!(n.op, Op::ExpertSum) && relaxed.unordered.contains(&n.name)).then_some(id)
}

/// Names, kernels, parameters and blocks along x of the launches, in order.
pub fn launches(g: &Graph, s: &Schedule, id: NodeId) -> [(&'static str, Kernel, Vec<ArgKey>, u32); 2] {
    let n = g.node(id);
    let (y, route, width) = (n.inputs[0], n.inputs[1], n.ty.width());
    let (tiles, k) = (blocks(width, 32), g.node(route).ty.width());
    let new = || Kx::new(g, *s, "k", 1, n.ty.rows, 1, vec![vec![]]);
    // The element of a lane of tile `t`, and whether there is one.
    let element = |kx: &mut Kx, t: V| {
        let lane = kx.b.lane();
        let first = kx.b.mul_c(t, 32);
        let i = kx.b.iadd(first, lane);
        let end = kx.b.i(width as i32);
        let exists = kx.b.icmp(ICmp::Lt, i, end);
        (i, (!width.is_multiple_of(32)).then_some(exists))
    };

    let mut kx = new();
    let (bx, zero) = (kx.b.block_x(), kx.b.f(0.0));
    let (i, exists) = element(&mut kx, bx);
    kx.store_value(id, i, zero, exists);
    let (zeros, zeros_args) = kx.finish();

    let mut kx = new();
    let bx = kx.b.block_x();
    // Blocks that run at the same time add to the same elements.
    let (rank, t) = (kx.b.int_c(IntOp::Div, bx, tiles as i32), kx.b.int_c(IntOp::Rem, bx, tiles as i32));
    let (i, exists) = element(&mut kx, t);
    let w = kx.expert_weight(route, rank);
    let from = kx.b.mul_c(rank, width as i32);
    let from = kx.b.iadd(from, i);
    let x = kx.load_value(y, from, exists);
    let x = kx.b.mul(w, x);
    let out = kx.arg(ArgKey::Value(id), true);
    let base = kx.row_base(id);
    let at = kx.b.iadd(base, i);
    kx.b.atomic_fadd(out, at, x, exists);
    let (adds, adds_args) = kx.finish();
    [("zero", zeros, zeros_args, tiles), ("add", adds, adds_args, tiles * k)]
}
