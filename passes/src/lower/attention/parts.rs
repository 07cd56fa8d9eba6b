//! Attention of one token in two launches. The first has a block of threads for each key head and block of keys: the query
//! heads that share the key head read keys and values once. It leaves what a split of one block has: maximum, sum, weighted
//! values. The second joins them in ascending order. The grid is the same at every position: blocks of threads take key
//! blocks in turn, and those without any end at once.

use super::{Shape, join_chains, max, max_of_lanes};
use crate::lower::cx::{ArgKey, Kx};
use crate::lower::heads::cache_block;
use crate::lower::rows::{Dest, QRow, quantize_groups};
use crate::lower::schedule::Schedule;
use ir::diag::Result;
use ir::graph::NodeId;
use ir::kernel::{BoolOp, Elem, ICmp, IntOp, Mem, V};
use ir::math::{self, Arith};
use ir::order::{KV_BLOCK, Take};
use ir::plan::state;

/// Blocks of threads of the first launch, at most, about: two for each multiprocessor of a large GPU.
const GRID: u32 = 264;

/// Key elements that a lane of the first launch asks for before it uses one.
const AHEAD: u32 = 32;

/// Warps of a block of the first launch.
pub fn warps(s: &Schedule) -> u32 {
    s.warps
}

/// Blocks along x of the first launch.
pub fn grid(shape: &Shape) -> u32 {
    shape.kv_heads * turns(shape)
}

/// What the second launch leaves.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// The values themselves.
    pub floats: bool,
    /// A node that quantizes them, and the elements of its groups, which lie inside of a head.
    pub fixed: Option<(NodeId, u32)>,
}

impl Out {
    /// Vectors of a warp: a group.
    fn vecs(&self) -> u32 {
        self.fixed.map_or(1, |(_, group)| group / 32)
    }

    /// Blocks along x.
    pub fn grid(&self, s: &Schedule, shape: &Shape) -> u32 {
        (shape.heads * shape.dim / 32 / self.vecs()).div_ceil(s.warps)
    }
}

/// Bytes of the shared arrays of the first launch: queries, chains of scores, weights.
pub fn shared(shape: &Shape) -> [u32; 3] {
    let group = shape.group();
    [4 * group * shape.dim, 4 * KV_BLOCK * group * shape.order.dot.lanes, 4 * KV_BLOCK * group]
}

/// Blocks of threads that share the key blocks of a head.
fn turns(shape: &Shape) -> u32 {
    let most = if shape.window == 0 { u32::MAX } else { (shape.window - 1).div_ceil(KV_BLOCK) + 1 };
    (GRID / shape.kv_heads).clamp(1, most)
}

/// The largest divisor of `n` that is at most `most`, and at least 1.
pub fn divisor(n: u32, most: u32) -> u32 {
    (1..=most.min(n)).rev().find(|d| n.is_multiple_of(*d)).unwrap_or(1)
}

/// Runs `f(item)` for items `warp, warp + warps, ...` of `count`; without barriers inside.
pub fn on_items(kx: &mut Kx, count: u32, mut f: impl FnMut(&mut Kx, V)) {
    let (warps, warp) = (kx.b.warps(), kx.b.warp());
    for t in 0..count.div_ceil(warps) {
        let item = kx.b.add_c(warp, (t * warps) as i32);
        if (t + 1) * warps <= count {
            f(kx, item);
            continue;
        }
        let lim = kx.b.i(count as i32);
        let there = kx.b.icmp(ICmp::Lt, item, lim);
        kx.when(there, |kx| f(kx, item));
    }
}

/// Where the parts of this row lie.
struct Parts {
    mem: Mem,
    /// First element of the row.
    row: V,
    /// Key blocks that there is room for.
    blocks: V,
}

impl Parts {
    fn of(kx: &mut Kx, shape: &Shape, write: bool) -> Parts {
        let &Shape { heads, dim, window, .. } = shape;
        let mem = kx.arg(ArgKey::Parts { heads, dim, window }, write);
        let blocks = kx.state(if window == 0 { state::FULL_BLOCKS } else { state::RING_BLOCKS });
        let words = kx.b.mul_c(blocks, (heads * (dim + 2)) as i32);
        let (row, y) = (kx.out, words);
        let row = kx.b.int(IntOp::Mul, row, y);
        Parts { mem, row, blocks }
    }

    /// First weighted value of a head in the `s`-th block.
    fn values(&self, kx: &mut Kx, shape: &Shape, s: V, head: V) -> V {
        let at = kx.b.mul_c(s, shape.heads as i32);
        let at = kx.b.iadd(at, head);
        let at = kx.b.mul_c(at, shape.dim as i32);
        kx.b.iadd(self.row, at)
    }

    /// Maximum and sum of a head in the `s`-th block.
    fn scalars(&self, kx: &mut Kx, shape: &Shape, s: V, head: V) -> [V; 2] {
        let first = kx.b.mul_c(self.blocks, (shape.heads * shape.dim) as i32);
        let at = kx.b.int(IntOp::Mul, head, self.blocks);
        let at = kx.b.iadd(at, s);
        let at = kx.b.iadd(at, first);
        let m = kx.b.iadd(self.row, at);
        let far = kx.b.mul_c(self.blocks, shape.heads as i32);
        [m, kx.b.iadd(m, far)]
    }
}

/// First position that the token sees, its own, and the first and the number of the key blocks that hold them.
fn seen(kx: &mut Kx, shape: &Shape) -> [V; 4] {
    let pos = kx.position();
    let lo = shape.first_seen(kx, pos);
    let (first, last) = (kx.b.lshr(lo, 5), kx.b.lshr(pos, 5));
    let count = kx.b.isub(last, first);
    let count = kx.b.add_c(count, 1);
    [lo, pos, first, count]
}

/// One key block.
struct KeyBlock {
    /// First key and value element in the cache.
    base: V,
    /// First and last key of it that the token sees.
    first: V,
    last: V,
    /// It sees them all.
    whole: V,
}

/// Emits the first launch.
pub fn parts(kx: &mut Kx, shape: &Shape, bx: V) -> Result<()> {
    let &Shape { kv, kv_heads, dim, .. } = shape;
    let group = shape.group();
    if kx.s.min_blocks > 0 {
        // Registers for the sums of many heads.
        let threads = if group > 8 { 8 } else { 16 };
        kx.b.min_blocks((threads / kx.b.warps()).max(1));
    }
    let (kv_head, turn) = (kx.b.int_c(IntOp::Rem, bx, kv_heads as i32), kx.b.int_c(IntOp::Div, bx, kv_heads as i32));
    let turns = turns(shape);
    let [lo, pos, first, count] = seen(kx, shape);
    let some = kx.b.icmp(ICmp::Lt, turn, count);
    let mut result = Ok(());
    kx.when(some, |kx| {
        let [queries, chains, weights] = shared(shape);
        let queries = kx.shared("queries", queries);
        let chains = kx.shared("chains", chains);
        let weights = kx.shared("weights", weights);
        let left = kx.b.isub(count, turn);
        let left = kx.b.add_c(left, turns as i32 - 1);
        let trip = kx.b.int_c(IntOp::Div, left, turns as i32);
        kx.for_(trip, &[], |kx, t, _| {
            let s = kx.b.mul_c(t, turns as i32);
            let s = kx.b.iadd(s, turn);
            let block = kx.b.iadd(first, s);
            let slot = match cache_block(kx, kv, kv_head, block) {
                Ok(v) => v,
                Err(e) => {
                    result = Err(e);
                    s
                }
            };
            let base = kx.b.mul_c(slot, (32 * dim) as i32);
            let first_key = kx.b.shl(block, 5);
            let (zero, end) = (kx.b.i(0), kx.b.i(31));
            let (a, b) = (kx.b.isub(lo, first_key), kx.b.isub(pos, first_key));
            let (a, b) = (kx.b.int(IntOp::Max, a, zero), kx.b.int(IntOp::Min, b, end));
            let (all_a, all_b) = (kx.b.icmp(ICmp::Eq, a, zero), kx.b.icmp(ICmp::Eq, b, end));
            let whole = kx.b.bool_op(BoolOp::And, all_a, all_b);
            let block = KeyBlock { base, first: a, last: b, whole };
            let first_turn = kx.is_zero(t);
            one_block(kx, shape, kv_head, s, &block, [queries, chains, weights], |kx| {
                kx.when(first_turn, |kx| stage_queries(kx, shape, kv_head, queries));
            });
            vec![]
        });
    });
    result
}

/// Queries of the heads to shared memory, so that each chain's elements stand side by side.
fn stage_queries(kx: &mut Kx, shape: &Shape, kv_head: V, queries: Mem) {
    let &Shape { q, dim, order, .. } = shape;
    let (group, lanes, run, lane) = (shape.group(), order.dot.lanes, shape.run(), kx.b.lane());
    let (q_base, q_mem) = (kx.row_base(q), kx.arg(ArgKey::Value(q), false));
    let head0 = kx.b.mul_c(kv_head, (group * dim) as i32);
    let q_base = kx.b.iadd(q_base, head0);
    on_items(kx, group * dim / 32, |kx, item| {
        let at = kx.b.mul_c(item, 32);
        let at = kx.b.iadd(at, lane);
        let from = kx.b.iadd(q_base, at);
        let x = kx.b.load(q_mem, Elem::F32, from, None);
        let to = match order.dot.take {
            Take::Contiguous => at,
            Take::Strided => {
                let (head, j) = (kx.b.int_c(IntOp::Div, at, dim as i32), kx.b.int_c(IntOp::Rem, at, dim as i32));
                let (c, t) = (kx.b.int_c(IntOp::Rem, j, lanes as i32), kx.b.int_c(IntOp::Div, j, lanes as i32));
                let (head, c) = (kx.b.mul_c(head, dim as i32), kx.b.mul_c(c, run as i32));
                let to = kx.b.iadd(head, c);
                kx.b.iadd(to, t)
            }
        };
        kx.b.store(queries, Elem::F32, to, x, None);
    });
}

/// What a block of threads does with one key block, the `s`-th that the token sees. `stage` sees to the queries, while the
/// first keys and values are on their way.
fn one_block(
    kx: &mut Kx,
    shape: &Shape,
    kv_head: V,
    s: V,
    block: &KeyBlock,
    [queries, chains, weights]: [Mem; 3],
    stage: impl FnOnce(&mut Kx),
) {
    let &Shape { dim, order, .. } = shape;
    let (group, vecs, warps, lane) = (shape.group(), dim / 32, kx.b.warps(), kx.b.lane());
    let out = Parts::of(kx, shape, true);
    let head0 = kx.b.mul_c(kv_head, group as i32);
    // Values: a vector of elements for some of the heads; those of the first turn are on their way meanwhile.
    let shares = if vecs >= warps { 1 } else { divisor(group, warps / vecs) };
    let count = vecs * shares;
    let item = |kx: &mut Kx, t: u32| {
        let (warp, last) = (kx.b.warp(), kx.b.i(count as i32 - 1));
        let item = kx.b.add_c(warp, (t * warps) as i32);
        let there = ((t + 1) * warps > count).then(|| kx.b.icmp(ICmp::Le, item, last));
        let item = if there.is_some() { kx.b.int(IntOp::Min, item, last) } else { item };
        (kx.b.int_c(IntOp::Rem, item, vecs as i32), kx.b.int_c(IntOp::Div, item, vecs as i32), there)
    };
    let ask = |kx: &mut Kx, t: u32| {
        let (vec, ..) = item(kx, t);
        let at = kx.b.shl(vec, 5);
        let at = kx.b.iadd(at, lane);
        values(kx, shape, block, at)
    };
    let mut next = ask(kx, 0);
    let scores = Scores::new(kx, shape, block, queries);
    let keys = scores.first_keys(kx);
    stage(kx);
    kx.b.barrier();
    scores.run(kx, keys, chains);
    kx.b.barrier();
    // A head a warp: a key a lane.
    let (f0, ninf) = (kx.b.f(0.0), kx.b.f(f32::NEG_INFINITY));
    let (a, b) = (kx.b.icmp(ICmp::Le, block.first, lane), kx.b.icmp(ICmp::Le, lane, block.last));
    let mine = kx.b.bool_op(BoolOp::And, a, b);
    let lane0 = kx.is_zero(lane);
    on_items(kx, group, |kx, h| {
        let at = kx.b.mul_c(h, (KV_BLOCK * order.dot.lanes) as i32);
        let at = kx.b.iadd(at, lane);
        let sums = (0..order.dot.lanes).map(|c| {
            let at = kx.b.add_c(at, (KV_BLOCK * c) as i32);
            kx.b.load(chains, Elem::F32, at, None)
        });
        let sums = sums.collect();
        let score = join_chains(kx, order.dot.tree, sums);
        let score = kx.b.select(mine, score, ninf);
        let m = max_of_lanes(kx, score);
        let rel = kx.b.sub(score, m);
        let p = kx.exp(rel);
        let p = kx.b.select(mine, p, f0);
        let l = kx.join_lanes(order.sum, vec![p]);
        let at = kx.b.mul_c(h, KV_BLOCK as i32);
        let at = kx.b.iadd(at, lane);
        kx.b.store(weights, Elem::F32, at, p, None);
        let head = kx.b.iadd(head0, h);
        for (at, x) in out.scalars(kx, shape, s, head).into_iter().zip([m, l]) {
            kx.b.store(out.mem, Elem::F32, at, x, Some(lane0));
        }
    });
    kx.b.barrier();
    for t in 0..count.div_ceil(warps) {
        let vs = std::mem::take(&mut next);
        let (vec, share, there) = item(kx, t);
        let heads = group / shares;
        let first = kx.b.mul_c(share, heads as i32);
        let at = kx.b.mul_c(first, KV_BLOCK as i32);
        let mut o = vec![f0; heads as usize];
        let n = if heads > 8 { 2 } else { 4 };
        for (k, vs) in vs.chunks(n).enumerate() {
            if k * n == KV_BLOCK as usize / 2 && (t + 1) * warps < count {
                // As soon as there are registers.
                next = ask(kx, t + 1);
            }
            let p: Vec<Vec<V>> = (0..heads)
                .map(|h| {
                    let at = kx.b.add_c(at, (h * KV_BLOCK) as i32 + (n * k) as i32);
                    kx.b.load_n(weights, Elem::F32, at, n, None)
                })
                .collect();
            for (u, &v) in vs.iter().enumerate() {
                for (o, p) in o.iter_mut().zip(&p) {
                    *o = kx.b.fma(p[u], v, *o);
                }
            }
        }
        let element = kx.b.shl(vec, 5);
        let element = kx.b.iadd(element, lane);
        for (h, o) in o.into_iter().enumerate() {
            let head = kx.b.iadd(head0, first);
            let head = kx.b.add_c(head, h as i32);
            let at = out.values(kx, shape, s, head);
            let at = kx.b.iadd(at, element);
            kx.b.store(out.mem, Elem::F32, at, o, there);
        }
    }
}

/// Chains of all scores: each warp takes a chain, a key a lane, for some of the heads.
struct Scores<'a> {
    shape: &'a Shape,
    keys: Mem,
    queries: Mem,
    /// This lane's column of the block.
    column: V,
    /// Warps that share a chain, and heads of each.
    shares: u32,
    heads: u32,
    /// Elements that are asked for before one is used.
    ahead: u32,
}

impl Scores<'_> {
    fn new<'a>(kx: &mut Kx, shape: &'a Shape, block: &KeyBlock, queries: Mem) -> Scores<'a> {
        let group = shape.group();
        let shares = divisor(group, kx.b.warps() / shape.order.dot.lanes);
        let heads = group / shares;
        // Many heads take registers of their own.
        let ahead = divisor(shape.run(), if heads > 2 { AHEAD / 2 } else { AHEAD });
        // A key that is not visible may never have been written: one that is takes its place, and its score is not used.
        let lane = kx.b.lane();
        let column = kx.b.int(IntOp::Max, lane, block.first);
        let column = kx.b.int(IntOp::Min, column, block.last);
        let column = kx.b.iadd(block.base, column);
        Scores { shape, keys: kx.arg(ArgKey::Keys(shape.kv), false), queries, column, shares, heads, ahead }
    }

    fn count(&self) -> u32 {
        self.shape.order.dot.lanes * self.shares
    }

    /// Chain and share of an item.
    fn place(&self, kx: &mut Kx, item: V) -> (V, V) {
        let lanes = self.shape.order.dot.lanes as i32;
        (kx.b.int_c(IntOp::Rem, item, lanes), kx.b.int_c(IntOp::Div, item, lanes))
    }

    /// Keys of turn `t` of a chain.
    fn ask(&self, kx: &mut Kx, chain: V, t: V) -> Vec<V> {
        let (first, step) = match self.shape.order.dot.take {
            Take::Contiguous => (kx.b.mul_c(chain, (self.shape.run() * KV_BLOCK) as i32), KV_BLOCK),
            Take::Strided => (kx.b.mul_c(chain, KV_BLOCK as i32), KV_BLOCK * self.shape.order.dot.lanes),
        };
        let at = kx.b.iadd(first, self.column);
        let far = kx.b.mul_c(t, (self.ahead * step) as i32);
        let at = kx.b.iadd(at, far);
        let one = |u| {
            let at = kx.b.add_c(at, (u * step) as i32);
            kx.b.load(self.keys, Elem::F32, at, None)
        };
        (0..self.ahead).map(one).collect()
    }

    /// Keys of the first turn of this warp's first chain.
    fn first_keys(&self, kx: &mut Kx) -> Vec<V> {
        let (warp, last, zero) = (kx.b.warp(), kx.b.i(self.count() as i32 - 1), kx.b.i(0));
        let item = if kx.b.warps() > self.count() { kx.b.int(IntOp::Min, warp, last) } else { warp };
        let (chain, _) = self.place(kx, item);
        self.ask(kx, chain, zero)
    }

    /// Adds the products of turn `t`; `q0`: the first query of the chain.
    fn turn(&self, kx: &mut Kx, q0: V, t: V, ks: &[V], acc: &[V]) -> Vec<V> {
        let n = if self.ahead.is_multiple_of(4) { 4 } else { 1 };
        let at = kx.b.mul_c(t, self.ahead as i32);
        let at = kx.b.iadd(q0, at);
        let mut acc = acc.to_vec();
        for (i, ks) in ks.chunks(n).enumerate() {
            let qs: Vec<Vec<V>> = (0..self.heads)
                .map(|h| {
                    let at = kx.b.add_c(at, (h * self.shape.dim) as i32 + (i * n) as i32);
                    kx.b.load_n(self.queries, Elem::F32, at, n, None)
                })
                .collect();
            for (u, &k) in ks.iter().enumerate() {
                for (acc, q) in acc.iter_mut().zip(&qs) {
                    *acc = kx.b.fma(q[u], k, *acc);
                }
            }
        }
        acc
    }

    /// All chains; `keys`: those of [`Scores::first_keys`].
    fn run(&self, kx: &mut Kx, keys: Vec<V>, chains: Mem) {
        let &Shape { dim, order, .. } = self.shape;
        let (lanes, run, lane, f0) = (order.dot.lanes, self.shape.run(), kx.b.lane(), kx.b.f(0.0));
        let mut keys = Some(keys);
        on_items(kx, self.count(), |kx, item| {
            let (chain, share) = self.place(kx, item);
            let (q0, h0) = (kx.b.mul_c(chain, run as i32), kx.b.mul_c(share, (self.heads * dim) as i32));
            let q0 = kx.b.iadd(q0, h0);
            let turns = run / self.ahead;
            let mut acc = vec![f0; self.heads as usize];
            let done = match keys.take() {
                Some(ks) => {
                    let zero = kx.b.i(0);
                    acc = self.turn(kx, q0, zero, &ks, &acc);
                    1
                }
                None => 0,
            };
            let trip = kx.b.i((turns - done) as i32);
            let acc = kx.for_(trip, &acc, |kx, t, acc| {
                let t = kx.b.add_c(t, done as i32);
                let ks = self.ask(kx, chain, t);
                self.turn(kx, q0, t, &ks, acc)
            });
            let at = kx.b.mul_c(share, (self.heads * lanes) as i32);
            let at = kx.b.iadd(at, chain);
            let at = kx.b.shl(at, 5);
            let at = kx.b.iadd(at, lane);
            for (h, x) in acc.into_iter().enumerate() {
                let at = kx.b.add_c(at, (h as u32 * lanes * KV_BLOCK) as i32);
                kx.b.store(chains, Elem::F32, at, x, None);
            }
        });
    }
}

/// Element `at` of the values of a block's keys. One that the token does not see may never have been written, and is +0.
fn values(kx: &mut Kx, shape: &Shape, block: &KeyBlock, at: V) -> Vec<V> {
    let dim = shape.dim as i32;
    let vals = kx.arg(ArgKey::Vals(shape.kv), false);
    let at = kx.b.iadd(block.base, at);
    let keys = 0..KV_BLOCK as i32;
    kx.b.if_(
        block.whole,
        |b| {
            let one = |k| {
                let at = b.add_c(at, k * dim);
                b.load(vals, Elem::F32, at, None)
            };
            keys.clone().map(one).collect()
        },
        |b| {
            let one = |k| {
                let key = b.i(k);
                let (low, high) = (b.icmp(ICmp::Le, block.first, key), b.icmp(ICmp::Le, key, block.last));
                let seen = b.bool_op(BoolOp::And, low, high);
                let (key, zero) = (b.int(IntOp::Max, block.first, key), b.f(0.0));
                let key = b.int(IntOp::Min, key, block.last);
                let row = b.mul_c(key, dim);
                let at = b.iadd(at, row);
                let v = b.load(vals, Elem::F32, at, None);
                b.select(seen, v, zero)
            };
            keys.clone().map(one).collect()
        },
    )
}

/// Emits the second launch: a warp for 32 elements of a head, or for those of a group.
pub fn join(kx: &mut Kx, shape: &Shape, out: Out, bx: V) -> Result<()> {
    let &Shape { id, heads, dim, .. } = shape;
    let (warps, warp, lane) = (kx.b.warps(), kx.b.warp(), kx.b.lane());
    let vecs = out.vecs();
    let (per_head, n) = (dim / 32 / vecs, vecs as usize);
    let parts = Parts::of(kx, shape, false);
    let [_, _, _, count] = seen(kx, shape);
    let item = kx.b.mul_c(bx, warps as i32);
    let item = kx.b.iadd(item, warp);
    let (last, exact) = (kx.b.i((heads * per_head) as i32 - 1), (heads * per_head).is_multiple_of(warps));
    let there = (!exact).then(|| kx.b.icmp(ICmp::Le, item, last));
    let item = if exact { item } else { kx.b.int(IntOp::Min, item, last) };
    let (head, unit) = (kx.b.int_c(IntOp::Div, item, per_head as i32), kx.b.int_c(IntOp::Rem, item, per_head as i32));
    let element = kx.b.mul_c(unit, 32 * vecs as i32);
    let element = kx.b.iadd(element, lane);
    let (f0, ninf, end) = (kx.b.f(0.0), kx.b.f(f32::NEG_INFINITY), kx.b.add_c(count, -1));
    let turns = kx.b.add_c(count, 31);
    let turns = kx.b.lshr(turns, 5);
    // Maximum, sum and weighted values so far; 32 parts a turn, whose factors are made a part a lane.
    let mut init = vec![ninf, f0];
    init.extend(vec![f0; n]);
    let total = kx.for_(turns, &init, |kx, t, total| {
        let s0 = kx.b.shl(t, 5);
        let mine = kx.b.iadd(s0, lane);
        let valid = kx.b.icmp(ICmp::Le, mine, end);
        let s = kx.b.int(IntOp::Min, mine, end);
        let [m, l] = parts.scalars(kx, shape, s, head).map(|at| kx.b.load(parts.mem, Elem::F32, at, None));
        let ys: Vec<Vec<V>> = (0..KV_BLOCK)
            .map(|k| {
                let s = kx.b.add_c(s0, k as i32);
                let s = kx.b.int(IntOp::Min, s, end);
                let at = parts.values(kx, shape, s, head);
                let at = kx.b.iadd(at, element);
                let one = |v| {
                    let at = kx.b.add_c(at, 32 * v as i32);
                    kx.b.load(parts.mem, Elem::F32, at, None)
                };
                (0..vecs).map(one).collect()
            })
            .collect();
        let m = kx.b.select(valid, m, ninf);
        let mut here = max(kx, m, total[0]);
        for d in [1, 2, 4, 8, 16] {
            let (from, d) = (kx.b.add_c(lane, -d), kx.b.i(d));
            let before = kx.b.shuffle_idx(here, from);
            let greater = max(kx, before, here);
            let any = kx.b.icmp(ICmp::Le, d, lane);
            here = kx.b.select(any, greater, here);
        }
        let from = kx.b.add_c(lane, -1);
        let before = kx.b.shuffle_idx(here, from);
        let lane0 = kx.is_zero(lane);
        let before = kx.b.select(lane0, total[0], before);
        let (da, db) = (kx.b.sub(before, here), kx.b.sub(m, here));
        let (a, b) = (kx.exp(da), kx.exp(db));
        let lb = kx.b.mul(l, b);
        // The sum goes the way of the values.
        let mut sums = total[1..].to_vec();
        let first = kx.is_zero(t);
        for (k, ys) in ys.iter().enumerate() {
            let lane = kx.b.i(k as i32);
            let [a, b, lb] = [a, b, lb].map(|x| kx.b.shuffle_idx(x, lane));
            let at = kx.b.add_c(s0, k as i32);
            let there = kx.b.icmp(ICmp::Le, at, end);
            for (i, sum) in sums.iter_mut().enumerate() {
                let yb = if i == 0 { lb } else { kx.b.mul(ys[i - 1], b) };
                let mut next = kx.b.fma(*sum, a, yb);
                if k == 0 {
                    // The first is taken as it is.
                    let y = if i == 0 { kx.b.shuffle_idx(l, lane) } else { ys[i - 1] };
                    next = kx.b.select(first, y, next);
                }
                *sum = kx.b.select(there, next, *sum);
            }
        }
        let last = kx.b.i(31);
        let m = kx.b.shuffle_idx(here, last);
        [vec![m], sums].concat()
    });
    let r = math::recip(&mut kx.b, total[1]);
    let at = kx.b.mul_c(head, dim as i32);
    let at = kx.b.iadd(at, element);
    let mut vals = vec![];
    for (v, &o) in total[2..].iter().enumerate() {
        let (y, at) = (kx.b.mul(o, r), kx.b.add_c(at, 32 * v as i32));
        vals.push((at, y));
        if out.floats {
            kx.store_value(id, at, y, there);
        }
    }
    if let Some((q, group)) = out.fixed {
        let (mem, words) = (kx.arg(ArgKey::Value(q), true), kx.row_base(q));
        let base = kx.b.mul_c(words, 4);
        let row = QRow { mem, base, width: heads * dim, group };
        quantize_groups(kx, &[Dest { row, pred: there, value: Some(q) }], vec![(item, None, vals)]);
    }
    Ok(())
}
