//! Which rows of a chunk chose which expert: for each expert the pairs (row, rank) in ascending order, so that an expert's
//! matrix is multiplied by all of them at once. Integers only, and every word has one writer: the lists are the same whatever
//! the order of blocks.
//!
//! A buffer has, for each expert, where its list begins, then for each where it ends, then the lists: `row * k + rank`.

use super::cx::{ArgKey, Kx, row_bytes};
use super::schedule::Schedule;
use ir::graph::{Graph, NodeId, Rows};
use ir::kernel::{Elem, ICmp, IntOp, Kernel, V};
use ir::math::Arith;
use ir::plan::state;

/// Rows of a chunk that count for one block along y, of the lists and of the matmuls that read them.
pub const ROWS: u32 = 256;

/// Warps of a block that makes a list.
const WARPS: u32 = 8;

/// Experts, and how many a row chooses.
fn sizes(g: &Graph, route: NodeId) -> (u32, u32) {
    let n = g.node(route);
    (g.node(n.inputs[0]).ty.width(), n.ty.width())
}

/// Bytes for each row of a chunk: one row has room for where lists begin and end.
pub fn bytes(g: &Graph, route: NodeId) -> u32 {
    let (experts, k) = sizes(g, route);
    (4 * (2 * experts + k)).next_multiple_of(64)
}

/// Where the list of an expert begins and ends.
pub fn list(kx: &mut Kx, route: NodeId, expert: V) -> (V, V) {
    let (experts, _) = sizes(kx.g, route);
    let mem = kx.arg(ArgKey::Lists(route), false);
    let end = kx.b.add_c(expert, experts as i32);
    (kx.b.load(mem, Elem::I32, expert, None), kx.b.load(mem, Elem::I32, end, None))
}

/// Row and rank of an entry.
pub fn pair(kx: &mut Kx, route: NodeId, at: V) -> (V, V) {
    let (experts, k) = sizes(kx.g, route);
    let mem = kx.arg(ArgKey::Lists(route), false);
    let at = kx.b.add_c(at, 2 * experts as i32);
    let p = kx.b.load(mem, Elem::I32, at, None);
    (kx.b.int_c(IntOp::Div, p, k as i32), kx.b.int_c(IntOp::Rem, p, k as i32))
}

/// The kernel that makes the lists, one block along x for each expert, and their number.
pub fn lists(g: &Graph, s: &Schedule, route: NodeId) -> (Kernel, Vec<ArgKey>, u32) {
    let (experts, k) = sizes(g, route);
    let threads = 32 * WARPS;
    let mut kx = Kx::new(g, *s, "k", WARPS, Rows::Tokens, 1, vec![vec![8 * threads]]);
    let (expert, y) = (kx.b.block_x(), kx.b.block_y());
    let first_block = kx.is_zero(y);
    kx.when(first_block, |kx| {
        let (lane, warp, zero) = (kx.b.lane(), kx.b.warp(), kx.b.i(0));
        let thread = kx.b.mul_c(warp, 32);
        let thread = kx.b.iadd(thread, lane);
        let tokens = kx.state(state::TOKENS);
        let all = kx.b.mul_c(tokens, k as i32);
        // A thread looks at consecutive pairs.
        let share = kx.b.add_c(all, threads as i32 - 1);
        let share = kx.b.int_c(IntOp::Div, share, threads as i32);
        let mine = kx.b.int(IntOp::Mul, thread, share);
        let chosen = |kx: &mut Kx, i: V| {
            let p = kx.b.iadd(mine, i);
            let there = kx.b.icmp(ICmp::Lt, p, all);
            let (row, rank) = (kx.b.int_c(IntOp::Div, p, k as i32), kx.b.int_c(IntOp::Rem, p, k as i32));
            let at = kx.b.mul_c(row, (row_bytes(kx.g, route) / 4) as i32);
            let at = kx.b.iadd(at, rank);
            let mem = kx.arg(ArgKey::Value(route), false);
            let e = kx.b.load(mem, Elem::I32, at, Some(there));
            let none = kx.b.i(experts as i32);
            (p, kx.b.select(there, e, none))
        };
        // How many pairs of this thread have a lower expert, how many this one.
        let counts = kx.for_(share, &[zero, zero], |kx, i, n| {
            let (_, e) = chosen(kx, i);
            let (lower, same) = (kx.b.icmp(ICmp::Lt, e, expert), kx.b.icmp(ICmp::Eq, e, expert));
            [lower, same].into_iter().zip(n).map(|(p, &n)| count(kx, p, n)).collect()
        });
        let mem = kx.shared("counts", 8 * threads);
        for (j, &n) in counts.iter().enumerate() {
            let at = kx.b.add_c(thread, (j as u32 * threads) as i32);
            kx.b.store(mem, Elem::I32, at, n, None);
        }
        kx.b.barrier();
        let trip = kx.b.i(threads as i32);
        let sums = kx.for_(trip, &[zero, zero, zero], |kx, i, sums| {
            let far = kx.b.add_c(i, threads as i32);
            let (lower, same) = (kx.b.load(mem, Elem::I32, i, None), kx.b.load(mem, Elem::I32, far, None));
            let before = kx.b.icmp(ICmp::Lt, i, thread);
            let zero = kx.b.i(0);
            let mine = kx.b.select(before, same, zero);
            vec![kx.b.iadd(sums[0], lower), kx.b.iadd(sums[1], same), kx.b.iadd(sums[2], mine)]
        });
        let out = kx.arg(ArgKey::Lists(route), true);
        let begin = sums[0];
        let end = kx.b.iadd(begin, sums[1]);
        let one = kx.is_zero(thread);
        let at = kx.b.add_c(expert, experts as i32);
        kx.b.store(out, Elem::I32, expert, begin, Some(one));
        kx.b.store(out, Elem::I32, at, end, Some(one));
        let at = kx.b.iadd(begin, sums[2]);
        let at = kx.b.add_c(at, 2 * experts as i32);
        kx.for_(share, &[at], |kx, i, at| {
            let (p, e) = chosen(kx, i);
            let same = kx.b.icmp(ICmp::Eq, e, expert);
            kx.b.store(out, Elem::I32, at[0], p, Some(same));
            vec![count(kx, same, at[0])]
        });
    });
    let (kernel, args) = kx.finish();
    (kernel, args, experts)
}

/// One more where it holds.
fn count(kx: &mut Kx, p: V, n: V) -> V {
    let more = kx.b.add_c(n, 1);
    kx.b.select(p, more, n)
}
