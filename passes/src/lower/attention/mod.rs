//! Attention in three forms, all with the bits of its order. Blocks of keys and splits are aligned to absolute positions, and
//! masks come from positions.
//!
//! - [`attention`], for hosts and for any order: a warp for a query head walks the visible keys in blocks of 32, one key a lane
//!   for the scores, one element a lane for the values.
//! - [`parts`], for one token on a GPU: a block of threads for a block of keys of one key head, then a second launch that joins.
//! - [`tiles`], for many tokens on a GPU: a block of threads for some tokens and the query heads that share a key head.

pub mod parts;
pub mod tiles;

use super::cx::{ArgKey, Kx, pinned};
use super::heads::cache_block;
use super::schedule::Schedule;
use super::shared::SHARED_BUDGET;
use ir::diag::{Diagnostic, Result};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Stage};
use ir::kernel::{BoolOp, Elem, FCmp, ICmp, IntOp, V};
use ir::math::{self, Arith};
use ir::order::{AttentionOrder, KV_BLOCK, Take, Tree};

/// Keys whose values are added between two turns of the inner loop.
const UNROLL: u32 = 8;

/// What an attention is over.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The attention.
    pub id: NodeId,
    /// Queries.
    pub q: NodeId,
    /// The cache.
    pub kv: NodeId,
    /// Query heads.
    pub heads: u32,
    /// Key heads.
    pub kv_heads: u32,
    /// Head size.
    pub dim: u32,
    /// Window, 0 for all.
    pub window: u32,
    /// Its order.
    pub order: AttentionOrder,
}

impl Shape {
    /// Of a node.
    pub fn of(g: &Graph, id: NodeId) -> Result<Shape> {
        let n = g.node(id);
        let other = || Diagnostic::new("E0620", "expected attention over a cache").at(&n.name);
        let (&Op::Attention { heads, order }, &[q, write]) = (&n.op, &n.inputs[..]) else { return Err(other()) };
        let kv = match g.node(write).op {
            Op::KvWrite => g.node(write).inputs[0],
            _ => write,
        };
        let Op::Kv { heads: kv_heads, dim, window, .. } = g.node(kv).op else { return Err(other()) };
        let order = pinned(g, id, order)?;
        let lanes = order.dot.lanes;
        if !dim.is_multiple_of(32) || !dim.is_multiple_of(lanes) || lanes > 32 || order.sum.lanes != 32 {
            return Err(Diagnostic::new("E0621", format!("no kernel for attention over heads of {dim} in order {order}"))
                .at(&n.name)
                .hint("dot takes a number of lanes that divides the head size, at most 32; sum takes 32 lanes"));
        }
        Ok(Shape { id, q, kv, heads, kv_heads, dim, window, order })
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Is it computed in parts, that another launch joins?
    pub fn in_parts(&self, s: &Schedule) -> bool {
        s.warps > 1 && s.tokens == 1 && self.order.split == KV_BLOCK && parts::shared(self).iter().sum::<u32>() <= SHARED_BUDGET
    }

    /// Elements of one chain of a dot product.
    fn run(&self) -> u32 {
        self.dim / self.order.dot.lanes
    }

    /// First position that the token at `pos` sees.
    fn first_seen(&self, kx: &mut Kx, pos: V) -> V {
        let zero = kx.b.i(0);
        if self.window == 0 {
            return zero;
        }
        let first = kx.b.add_c(pos, 1 - self.window as i32);
        kx.b.int(IntOp::Max, first, zero)
    }
}

/// Stages in which the launch that joins an attention's parts also quantizes them, where all readers ask for that: else another
/// launch or each block of a matmul would do it. A stage that has no other node is left empty. What nobody reads is then no longer stored, unless `keep` names it.
pub fn quantized(g: &Graph, s: &Schedule, mut stages: Vec<Stage>, keep: &dyn Fn(&str) -> bool) -> Vec<Stage> {
    for a in 0..stages.len() {
        let [id] = stages[a].nodes[..] else { continue };
        let Some(shape) = Shape::of(g, id).ok().filter(|shape| shape.in_parts(s)) else { continue };
        let fits = |&q: &NodeId| match g.node(q).op {
            Op::Quantize { group } => group.is_multiple_of(32) && shape.dim.is_multiple_of(group),
            _ => false,
        };
        let users = g.users(id);
        let [q] = users[..] else { continue };
        if !fits(&q) {
            continue;
        }
        for s in &mut stages {
            s.nodes.retain(|&n| n != q);
            s.stores.retain(|&n| n != q);
        }
        stages[a].nodes.push(q);
        if !g.outputs.contains(&id) && !keep(&g.node(id).name) {
            stages[a].stores.clear();
        }
        stages[a].stores.push(q);
    }
    stages
}

/// The greater; the second if neither is.
fn max(kx: &mut Kx, a: V, b: V) -> V {
    let p = kx.b.fcmp(FCmp::Lt, b, a);
    kx.b.select(p, a, b)
}

/// The greatest of all lanes, in every lane.
fn max_of_lanes(kx: &mut Kx, x: V) -> V {
    kx.butterfly(x, |b, x, y| {
        let p = b.fcmp(FCmp::Lt, y, x);
        b.select(p, x, y)
    })
}

/// Emits the attention of query head `head`, by one warp.
pub fn attention(kx: &mut Kx, shape: &Shape, head: V) -> Result<()> {
    let &Shape { id, q, kv, heads, kv_heads, dim, order, .. } = shape;
    let run = shape.run();
    let vecs = (dim / 32) as usize;
    let (keys, vals) = (kx.arg(ArgKey::Keys(kv), false), kx.arg(ArgKey::Vals(kv), false));
    let weights = kx.shared("weights", 4 * KV_BLOCK);
    let kv_head = kx.b.int_c(IntOp::Div, head, (heads / kv_heads) as i32);
    let pos = kx.position();
    let (zero, one) = (kx.b.i(0), kx.b.i(1));
    let lo = shape.first_seen(kx, pos);
    let lane = kx.b.lane();
    let q_base = kx.row_base(q);
    let at = kx.b.mul_c(head, dim as i32);
    let q_base = kx.b.iadd(q_base, at);
    let q_mem = kx.arg(ArgKey::Value(q), false);
    let (f0, ninf) = (kx.b.f(0.0), kx.b.f(f32::NEG_INFINITY));
    let visible = move |kx: &mut Kx, c: V| {
        let (a, b) = (kx.b.icmp(ICmp::Le, lo, c), kx.b.icmp(ICmp::Le, c, pos));
        kx.b.bool_op(BoolOp::And, a, b)
    };
    // A split of one block needs no running maximum: what there was before it counts nothing.
    let single = order.split == KV_BLOCK;

    let first_split = kx.b.int_c(IntOp::Div, lo, order.split as i32);
    let last_split = kx.b.int_c(IntOp::Div, pos, order.split as i32);
    let splits = kx.b.isub(last_split, first_split);
    let splits = kx.b.iadd(splits, one);
    let mut err = Ok(());
    let mut init = vec![ninf, f0];
    init.extend(vec![f0; vecs]);
    let total = kx.for_(splits, &init, |kx, s, total| {
        let split = kx.b.iadd(first_split, s);
        let start = kx.b.mul_c(split, order.split as i32);
        let end = kx.b.add_c(start, order.split as i32 - 1);
        let (from, to) = (kx.b.int(IntOp::Max, start, lo), kx.b.int(IntOp::Min, end, pos));
        let (b0, b1) = (kx.b.lshr(from, 5), kx.b.lshr(to, 5));
        let blocks = kx.b.isub(b1, b0);
        let blocks = if single { one } else { kx.b.iadd(blocks, one) };
        let part = kx.for_(blocks, &init, |kx, b, part| {
            let block = kx.b.iadd(b0, b);
            let first_key = kx.b.shl(block, 5);
            let slot = match cache_block(kx, kv, kv_head, block) {
                Ok(v) => v,
                Err(e) => {
                    err = Err(e);
                    zero
                }
            };
            let slot = kx.b.mul_c(slot, (32 * dim) as i32);
            // Scores: a key a lane, the dot product in the pinned chains.
            let my_key = kx.b.iadd(first_key, lane);
            let mine = visible(kx, my_key);
            let column = kx.b.iadd(slot, lane);
            let trip = kx.b.i(run as i32);
            let chains = kx.for_(trip, &vec![f0; order.dot.lanes as usize], |kx, t, acc| {
                (0..order.dot.lanes)
                    .map(|c| {
                        let j = match order.dot.take {
                            Take::Contiguous => kx.b.add_c(t, (c * run) as i32),
                            Take::Strided => {
                                let far = kx.b.mul_c(t, order.dot.lanes as i32);
                                kx.b.add_c(far, c as i32)
                            }
                        };
                        let qi = kx.b.iadd(q_base, j);
                        let qj = kx.b.load(q_mem, Elem::F32, qi, None);
                        let row = kx.b.shl(j, 5);
                        let ki = kx.b.iadd(column, row);
                        // A key that is not visible may never have been written.
                        let kj = kx.b.load(keys, Elem::F32, ki, Some(mine));
                        kx.b.fma(qj, kj, acc[c as usize])
                    })
                    .collect()
            });
            let score = join_chains(kx, order.dot.tree, chains);
            let score = kx.b.select(mine, score, ninf);
            let block_max = max_of_lanes(kx, score);
            let m = if single { block_max } else { max(kx, block_max, part[0]) };
            let alpha = (!single).then(|| {
                let old = kx.b.sub(part[0], m);
                kx.exp(old)
            });
            let rel = kx.b.sub(score, m);
            let p = kx.exp(rel);
            let p = kx.b.select(mine, p, f0);
            let sum = kx.join_lanes(order.sum, vec![p]);
            let l = alpha.map_or(sum, |alpha| kx.b.fma(part[1], alpha, sum));
            kx.b.store(weights, Elem::F32, lane, p, None);
            kx.b.barrier();
            // Values: an element a lane, keys in ascending order.
            let scaled: Vec<V> = part[2..].iter().map(|&o| alpha.map_or(o, |alpha| kx.b.mul(o, alpha))).collect();
            let turns = kx.b.i((KV_BLOCK / UNROLL) as i32);
            let o = kx.for_(turns, &scaled, |kx, t, o| {
                let mut o = o.to_vec();
                for u in 0..UNROLL {
                    let k = kx.b.mul_c(t, UNROLL as i32);
                    let k = kx.b.add_c(k, u as i32);
                    let c = kx.b.iadd(first_key, k);
                    let seen = visible(kx, c);
                    let pk = kx.b.load(weights, Elem::F32, k, None);
                    let row = kx.b.mul_c(k, dim as i32);
                    let row = kx.b.iadd(slot, row);
                    let row = kx.b.iadd(row, lane);
                    for (c, o) in o.iter_mut().enumerate() {
                        let at = kx.b.add_c(row, 32 * c as i32);
                        let v = kx.b.load(vals, Elem::F32, at, Some(seen));
                        *o = kx.b.fma(pk, v, *o);
                    }
                }
                o
            });
            kx.b.barrier();
            [m, l].into_iter().chain(o).collect()
        });
        // Splits are joined in ascending order; the first is taken as it is.
        let m = max(kx, part[0], total[0]);
        let (da, db) = (kx.b.sub(total[0], m), kx.b.sub(part[0], m));
        let (a, b) = (kx.exp(da), kx.exp(db));
        let is_first = kx.is_zero(s);
        let mut next = vec![m];
        for (&x, &y) in total[1..].iter().zip(&part[1..]) {
            let yb = kx.b.mul(y, b);
            let joined = kx.b.fma(x, a, yb);
            next.push(kx.b.select(is_first, y, joined));
        }
        next
    });
    err?;
    let r = math::recip(&mut kx.b, total[1]);
    for (c, &o) in total[2..].iter().enumerate() {
        let y = kx.b.mul(o, r);
        let at = kx.b.mul_c(head, dim as i32);
        let at = kx.b.add_c(at, 32 * c as i32);
        let at = kx.b.iadd(at, lane);
        kx.store_value(id, at, y, None);
    }
    Ok(())
}

/// Joins chains that one lane holds.
fn join_chains(kx: &mut Kx, tree: Tree, mut acc: Vec<V>) -> V {
    match tree {
        Tree::Pair => {
            while acc.len() > 1 {
                let half = acc.len() / 2;
                for k in 0..half {
                    acc[k] = kx.b.add(acc[k], acc[k + half]);
                }
                acc.truncate(half);
            }
            acc[0]
        }
        Tree::Fold => {
            let mut sum = acc[0];
            for &x in &acc[1..] {
                sum = kx.b.add(sum, x);
            }
            sum
        }
    }
}
