//! Attention of many tokens: a block of threads for a tile of rows, which are the query heads that share a key head, of
//! consecutive tokens. It walks the key blocks that any of them sees, in ascending order; keys and values are read once for
//! all rows. Where its tokens are not of one sequence, each has a walk of its own, in which the others see nothing. Each step has three phases with barriers between: chains of scores, weights and factors, weighted values. Rows
//! differ in what they see: a block that a row does not see is not joined to its sums, a key that it does not see has weight
//! +0 and the value +0.

use super::parts::{divisor, on_items};
use super::{Shape, join_chains, max, max_of_lanes};
use crate::lower::cx::{ArgKey, Kx};
use crate::lower::heads::cache_block_of;
use crate::lower::schedule::Schedule;
use crate::lower::shared::SHARED_BUDGET;
use ir::diag::Result;
use ir::kernel::{BoolOp, Elem, ICmp, IntOp, Mem, V};
use ir::math::{self, Arith};
use ir::order::{KV_BLOCK, Take};

/// Rows of a tile, at most.
const ROWS: u32 = 64;
/// Lanes that share the rows of a score tile; the others share its keys, four each.
const ROW_LANES: u32 = 4;
/// Keys of a lane.
const KEYS: u32 = KV_BLOCK * ROW_LANES / 32;
/// Elements of a chain that a lane takes in a turn of the loop.
const STEP: u32 = 8;
/// Keys whose values are added in a turn of the loop.
const TURN: u32 = 2;
/// What a row does with a block.
const SKIP: i32 = 0;
const FIRST: i32 = 1;
const JOIN: i32 = 2;

/// How a tile is shared out.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Tokens.
    pub tokens: u32,
    /// Rows: tokens times heads.
    rows: u32,
    /// Key blocks of a step.
    blocks: u32,
    /// Rows of a lane in the scores.
    score_rows: u32,
    /// Rows and elements of a lane in the values.
    value_rows: u32,
    elements: u32,
}

impl Tile {
    /// The largest that fits, if any does.
    pub fn of(shape: &Shape, s: &Schedule) -> Option<Tile> {
        let (warps, lanes) = (warps(s), shape.order.dot.lanes);
        let plain = shape.order.split == KV_BLOCK && shape.order.dot.take == Take::Contiguous;
        if s.tokens == 1 || s.warps == 1 || !plain || !shape.run().is_multiple_of(STEP) {
            return None;
        }
        let fits = |tokens: u32| {
            let rows = tokens * shape.group();
            let (score_rows, value_rows) = (divisor(rows / ROW_LANES, 8), divisor(rows, 8));
            let row_lanes = rows / value_rows;
            let even = rows.is_multiple_of(warps) && rows.is_multiple_of(ROW_LANES) && value_rows.is_multiple_of(4);
            if rows > ROWS || !even || !32u32.is_multiple_of(row_lanes) {
                return None;
            }
            let elements = shape.dim / warps * row_lanes / 32;
            if elements * 32 * warps != shape.dim * row_lanes || value_rows * elements > (512 / warps).min(64) {
                return None;
            }
            let tile = Tile { tokens, rows, blocks: ROWS / rows, score_rows, value_rows, elements };
            (tile.shared(lanes).iter().sum::<u32>() <= SHARED_BUDGET).then_some(tile)
        };
        [32, 16, 8, 4, 2].into_iter().find_map(fits)
    }

    /// Bytes of the shared arrays: chains of scores, weights, two factors, what to do.
    fn shared(&self, lanes: u32) -> [u32; 5] {
        let all = 4 * self.rows * self.blocks;
        [all * KV_BLOCK * lanes, 4 * self.blocks * KV_BLOCK * self.stride(), all, all, all]
    }

    /// Elements between the weights of one key and those of the next.
    fn stride(&self) -> u32 {
        self.rows + 4
    }

    /// Rows of a score tile.
    fn score_tile(&self) -> u32 {
        ROW_LANES * self.score_rows
    }

    /// Rows of a lane in the values, the first of them, and its elements.
    fn value_place(&self, kx: &mut Kx, dim: u32) -> (u32, V, Vec<V>) {
        let tile = self;
        let (warps, warp, lane) = (kx.b.warps(), kx.b.warp(), kx.b.lane());
        let row_lanes = tile.rows / tile.value_rows;
        let (others, n) = (32 / row_lanes, self.vector());
        let (row, other) = (kx.b.int_c(IntOp::Div, lane, others as i32), kx.b.int_c(IntOp::Rem, lane, others as i32));
        let (first, at) = (kx.b.mul_c(row, tile.value_rows as i32), kx.b.mul_c(warp, (dim / warps) as i32));
        let other = kx.b.mul_c(other, n as i32);
        let at = kx.b.iadd(at, other);
        let elements = (0..tile.elements).map(|e| kx.b.add_c(at, (e / n * n * others + e % n) as i32));
        (tile.value_rows, first, elements.collect())
    }

    /// Elements of a lane that stand side by side.
    fn vector(&self) -> u32 {
        [4, 2].into_iter().find(|n| self.elements.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Where the chain of a row (`of`) and its key lies in its 32 places: so that neither phase meets conflicts of banks.
    fn place(&self, kx: &mut Kx, of: V, key: V) -> V {
        let (low, high) = (kx.b.int_c(IntOp::Rem, key, KEYS as i32), kx.b.int_c(IntOp::Div, key, KEYS as i32));
        let at = kx.b.mul_c(low, (KV_BLOCK / KEYS) as i32);
        let at = kx.b.iadd(at, high);
        let turn = kx.b.mul_c(of, (KV_BLOCK / KEYS) as i32);
        let at = kx.b.iadd(at, turn);
        kx.b.int_c(IntOp::And, at, 31)
    }
}

/// Warps of a block.
pub fn warps(s: &Schedule) -> u32 {
    s.warps
}

/// Token within the tile, and head within the group, of row `base + i`; `base` is a multiple of `step`, `i` below it.
fn token_of(kx: &mut Kx, shape: &Shape, base: V, i: u32, step: u32) -> (V, V) {
    let group = shape.group();
    let (token, head) = (kx.b.int_c(IntOp::Div, base, group as i32), kx.b.int_c(IntOp::Rem, base, group as i32));
    if group.is_multiple_of(step) {
        return (token, kx.b.add_c(head, i as i32));
    }
    if step.is_multiple_of(group) {
        return (kx.b.add_c(token, (i / group) as i32), kx.b.i((i % group) as i32));
    }
    let row = kx.b.add_c(base, i as i32);
    (kx.b.int_c(IntOp::Div, row, group as i32), kx.b.int_c(IntOp::Rem, row, group as i32))
}

/// First and last position that a token of the tile sees.
fn span(kx: &mut Kx, shape: &Shape, token: V) -> [V; 2] {
    kx.go_to(token);
    let pos = kx.position();
    [shape.first_seen(kx, pos), pos]
}

/// What a token sees that has no part in a walk: nothing.
const NOTHING: [i32; 2] = [i32::MAX, -1];

/// The kernel under way.
struct Walk<'a> {
    shape: &'a Shape,
    tile: Tile,
    kv_head: V,
    /// All tokens are of one sequence.
    one: V,
    /// If not, the token whose walk it is.
    token: V,
    /// Slot of the sequence.
    slot: V,
    /// Positions that some token sees: from, to.
    some: [V; 2],
    /// Positions that all tokens see.
    all: [V; 2],
    /// First key block.
    first: V,
    chains: Mem,
    weights: Mem,
    /// Factors of what was and of what comes, and what to do.
    factors: [Mem; 3],
}

/// Emits the attention of a tile for key head `kv_head`.
pub fn tiles(kx: &mut Kx, shape: &Shape, tile: Tile, kv_head: V) -> Result<()> {
    kx.b.min_blocks(0);
    // The last tokens see most: they begin.
    kx.last_rows_first();
    let (warps, warp, lane) = (kx.b.warps(), kx.b.warp(), kx.b.lane());
    let (zero, last) = (kx.b.i(0), kx.b.i(tile.tokens as i32 - 1));
    // Rows of one sequence follow each other in a step.
    let slots = [zero, last].map(|token| {
        kx.go_to(token);
        kx.slot()
    });
    let one = kx.b.icmp(ICmp::Eq, slots[0], slots[1]);
    let names = ["chains", "weights", "old", "new", "what"];
    let arrays: Vec<Mem> =
        names.iter().zip(tile.shared(shape.order.dot.lanes)).map(|(name, bytes)| kx.shared(name, bytes)).collect();
    // Rows whose sums this warp keeps, a row a lane.
    let mine = tile.rows / warps;
    let row0 = kx.b.mul_c(warp, mine as i32);
    let items = score_items(kx, shape, tile, kv_head);
    let (f0, ninf) = (kx.b.f(0.0), kx.b.f(f32::NEG_INFINITY));
    let mut init = vec![ninf, f0];
    init.extend(vec![f0; (tile.value_rows * tile.elements) as usize]);
    let mut result = Ok(());
    let (once, tokens) = (kx.b.i(1), kx.rows_here());
    let walks = kx.b.select(one, once, tokens);
    let factors = [arrays[2], arrays[3], arrays[4]];
    let total = kx.for_(walks, &init, |kx, token, total| {
        let ends = [zero, last].map(|end| kx.b.select(one, end, token));
        let [lo0, pos0] = span(kx, shape, ends[0]);
        let slot = kx.slot();
        let [lo1, pos1] = span(kx, shape, ends[1]);
        let (first, end) = (kx.b.lshr(lo0, 5), kx.b.lshr(pos1, 5));
        let count = kx.b.isub(end, first);
        let count = kx.b.add_c(count, 1);
        let nothing = NOTHING.map(|x| kx.b.i(x));
        let all = [kx.b.select(one, lo1, nothing[0]), kx.b.select(one, pos0, nothing[1])];
        let (chains, weights) = (arrays[0], arrays[1]);
        let walk = Walk { shape, tile, kv_head, one, token, slot, some: [lo0, pos1], all, first, chains, weights, factors };
        let spans: Vec<[V; 2]> = (0..mine)
            .map(|r| {
                let (token, _) = token_of(kx, shape, row0, r, mine);
                walk.span(kx, token)
            })
            .collect();
        let mut of_lane = spans[0];
        for (r, s) in spans.iter().enumerate().skip(1) {
            let r = kx.b.i(r as i32);
            let here = kx.b.icmp(ICmp::Eq, lane, r);
            of_lane = [0, 1].map(|i| kx.b.select(here, s[i], of_lane[i]));
        }
        let up = kx.b.add_c(count, tile.blocks as i32 - 1);
        let trip = kx.b.int_c(IntOp::Div, up, tile.blocks as i32);
        kx.for_(trip, total, |kx, t, total| {
            let s0 = kx.b.mul_c(t, tile.blocks as i32);
            let left = kx.b.isub(count, s0);
            let blocks = kx.b.i(tile.blocks as i32);
            let here = if tile.blocks == 1 { blocks } else { kx.b.int(IntOp::Min, left, blocks) };
            let mut run = || -> Result<Vec<V>> {
                walk.scores(kx, s0, here, &items)?;
                kx.b.barrier();
                let sums = walk.softmax(kx, s0, here, row0, &spans, of_lane, &total[..2]);
                kx.b.barrier();
                let o = walk.values(kx, s0, here, &total[2..])?;
                Ok([sums, o].concat())
            };
            run().unwrap_or_else(|e| {
                result = Err(e);
                total.to_vec()
            })
        })
    });
    result?;
    let r = math::recip(&mut kx.b, total[1]);
    let lim = kx.b.i(mine as i32);
    let keeps = kx.b.icmp(ICmp::Lt, lane, lim);
    let at = kx.b.iadd(row0, lane);
    kx.b.barrier();
    kx.b.store(factors[0], Elem::F32, at, r, Some(keeps));
    kx.b.barrier();
    let (rows, first_row, elements) = tile.value_place(kx, shape.dim);
    for i in 0..rows {
        let (token, head) = token_of(kx, shape, first_row, i, rows);
        let there = kx.go_to(token);
        let at = kx.b.add_c(first_row, i as i32);
        let r = kx.b.load(factors[0], Elem::F32, at, None);
        let h = kx.b.mul_c(kv_head, shape.group() as i32);
        let head = kx.b.iadd(h, head);
        let at = kx.b.mul_c(head, shape.dim as i32);
        for (e, &element) in elements.iter().enumerate() {
            let y = kx.b.mul(total[2 + (i * tile.elements) as usize + e], r);
            let at = kx.b.iadd(at, element);
            kx.store_value(shape.id, at, y, there);
        }
    }
    Ok(())
}

/// A score tile of a warp: key block within the step, chain, first row, and where the queries of this lane's rows begin.
struct Item {
    block: V,
    chain: V,
    row: V,
    queries: Vec<V>,
}

/// The score tiles of a warp.
fn score_items(kx: &mut Kx, shape: &Shape, tile: Tile, kv_head: V) -> Vec<Item> {
    let (warps, warp, lane) = (kx.b.warps(), kx.b.warp(), kx.b.lane());
    let (lanes, groups) = (shape.order.dot.lanes, tile.rows / tile.score_tile());
    (0..(lanes * groups * tile.blocks).div_ceil(warps))
        .map(|t| {
            let item = kx.b.add_c(warp, (t * warps) as i32);
            let chain = kx.b.int_c(IntOp::Rem, item, lanes as i32);
            let rest = kx.b.int_c(IntOp::Div, item, lanes as i32);
            let (group, block) = (kx.b.int_c(IntOp::Rem, rest, groups as i32), kx.b.int_c(IntOp::Div, rest, groups as i32));
            let row = kx.b.mul_c(group, tile.score_tile() as i32);
            let mine = kx.b.int_c(IntOp::Div, lane, (32 / ROW_LANES) as i32);
            let mine = kx.b.mul_c(mine, tile.score_rows as i32);
            let row = kx.b.iadd(row, mine);
            let first = kx.b.mul_c(chain, shape.run() as i32);
            let queries = (0..tile.score_rows).map(|i| {
                let (token, head) = token_of(kx, shape, row, i, tile.score_rows);
                kx.go_to(token);
                let base = kx.row_base(shape.q);
                let h = kx.b.mul_c(kv_head, shape.group() as i32);
                let head = kx.b.iadd(h, head);
                let at = kx.b.mul_c(head, shape.dim as i32);
                let at = kx.b.iadd(base, at);
                kx.b.iadd(at, first)
            });
            let queries = queries.collect();
            Item { block, chain, row, queries }
        })
        .collect()
}

impl Walk<'_> {
    /// First and last position that a token sees of what is walked.
    fn span(&self, kx: &mut Kx, token: V) -> [V; 2] {
        let seen = span(kx, self.shape, token);
        let its = kx.b.icmp(ICmp::Eq, token, self.token);
        let its = kx.b.bool_op(BoolOp::Or, self.one, its);
        let nothing = NOTHING.map(|x| kx.b.i(x));
        [0, 1].map(|i| kx.b.select(its, seen[i], nothing[i]))
    }

    /// The `s`-th key block: its first element in the cache, and its first key.
    fn block(&self, kx: &mut Kx, s: V) -> Result<(V, V)> {
        let block = kx.b.iadd(self.first, s);
        let place = cache_block_of(kx, self.shape.kv, self.slot, self.kv_head, block)?;
        Ok((kx.b.mul_c(place, (32 * self.shape.dim) as i32), kx.b.shl(block, 5)))
    }

    /// Chains of the scores of `here` key blocks from the `s0`-th on.
    fn scores(&self, kx: &mut Kx, s0: V, here: V, items: &[Item]) -> Result<()> {
        let (tile, shape) = (self.tile, self.shape);
        let (lanes, groups) = (shape.order.dot.lanes, tile.rows / tile.score_tile());
        let lane = kx.b.lane();
        let mut turn = items.iter();
        let mut result = Ok(());
        on_items(kx, lanes * groups * tile.blocks, |kx, _| {
            let Some(item) = turn.next() else { return };
            let there = kx.b.icmp(ICmp::Lt, item.block, here);
            let work = |kx: &mut Kx| -> Result<()> {
                let s = kx.b.iadd(s0, item.block);
                let (base, first_key) = self.block(kx, s)?;
                let key = kx.b.int_c(IntOp::Rem, lane, (32 / ROW_LANES) as i32);
                let key = kx.b.mul_c(key, KEYS as i32);
                let at = kx.b.mul_c(item.chain, (shape.run() * KV_BLOCK) as i32);
                let at = kx.b.iadd(base, at);
                // A key behind the last may never have been written: the last takes its place.
                let last = kx.b.isub(self.some[1], first_key);
                let end = kx.b.i(KV_BLOCK as i32 - 1);
                let written = kx.b.icmp(ICmp::Le, end, last);
                let acc = kx.either(
                    written,
                    |kx| {
                        let at = kx.b.iadd(at, key);
                        self.chain(kx, &item.queries, at, None)
                    },
                    |kx| {
                        let columns = (0..KEYS).map(|i| {
                            let key = kx.b.add_c(key, i as i32);
                            kx.b.int(IntOp::Min, key, last)
                        });
                        let columns: Vec<V> = columns.collect();
                        self.chain(kx, &item.queries, at, Some(&columns))
                    },
                );
                let at = kx.b.mul_c(item.block, lanes as i32);
                let at = kx.b.iadd(at, item.chain);
                let at = kx.b.mul_c(at, tile.rows as i32);
                let at = kx.b.iadd(at, item.row);
                let at = kx.b.shl(at, 5);
                let of = kx.b.int_c(IntOp::Div, lane, (32 / ROW_LANES) as i32);
                for k in 0..KEYS {
                    let key = kx.b.add_c(key, k as i32);
                    let place = tile.place(kx, of, key);
                    let at = kx.b.iadd(at, place);
                    for r in 0..tile.score_rows {
                        let at = kx.b.add_c(at, (r * KV_BLOCK) as i32);
                        kx.b.store(self.chains, Elem::F32, at, acc[(r * KEYS + k) as usize], None);
                    }
                }
                Ok(())
            };
            if tile.blocks == 1 {
                result = work(kx);
            } else {
                kx.when(there, |kx| result = work(kx));
            }
        });
        result
    }

    /// One chain of a lane's rows and keys, from element `at` of the keys on, or at these columns of it.
    fn chain(&self, kx: &mut Kx, queries: &[V], at: V, columns: Option<&[V]>) -> Vec<V> {
        let (keys, q) = (kx.arg(ArgKey::Keys(self.shape.kv), false), kx.arg(ArgKey::Value(self.shape.q), false));
        // Keys one by one take more registers.
        let step = if columns.is_some() { STEP / 2 } else { STEP };
        let (trip, f0) = (kx.b.i((self.shape.run() / step) as i32), kx.b.f(0.0));
        kx.for_(trip, &vec![f0; queries.len() * KEYS as usize], |kx, t, acc| {
            let (far, near) = (kx.b.mul_c(t, (step * KV_BLOCK) as i32), kx.b.mul_c(t, step as i32));
            let at = kx.b.iadd(at, far);
            let mut acc = acc.to_vec();
            let mut ks: Vec<Vec<V>> = vec![];
            for j in 0..step {
                let at = kx.b.add_c(at, (j * KV_BLOCK) as i32);
                ks.push(match columns {
                    None => kx.b.load_n(keys, Elem::F32, at, KEYS as usize, None),
                    Some(columns) => {
                        let one = |&c: &V| {
                            let at = kx.b.iadd(at, c);
                            kx.b.load(keys, Elem::F32, at, None)
                        };
                        columns.iter().map(one).collect()
                    }
                });
            }
            for (j, ks) in ks.chunks(4).enumerate() {
                let qs: Vec<Vec<V>> = queries
                    .iter()
                    .map(|&row| {
                        let at = kx.b.iadd(row, near);
                        let at = kx.b.add_c(at, 4 * j as i32);
                        kx.b.load_n(q, Elem::F32, at, 4, None)
                    })
                    .collect();
                for (j, ks) in ks.iter().enumerate() {
                    for (q, acc) in qs.iter().zip(acc.chunks_mut(KEYS as usize)) {
                        for (k, acc) in ks.iter().zip(acc) {
                            *acc = kx.b.fma(q[j], *k, *acc);
                        }
                    }
                }
            }
            acc
        })
    }

    /// Weights of the blocks, factors, and the maxima and sums of this warp's rows, a row a lane.
    #[allow(clippy::too_many_arguments)]
    fn softmax(&self, kx: &mut Kx, s0: V, here: V, row0: V, spans: &[[V; 2]], of_lane: [V; 2], sums: &[V]) -> Vec<V> {
        let (tile, order, lane) = (self.tile, self.shape.order, kx.b.lane());
        let (f0, ninf) = (kx.b.f(0.0), kx.b.f(f32::NEG_INFINITY));
        let keeps = kx.b.i(spans.len() as i32);
        let keeps = kx.b.icmp(ICmp::Lt, lane, keeps);
        kx.for_(here, sums, |kx, b, sums| {
            let s = kx.b.iadd(s0, b);
            let block = kx.b.iadd(self.first, s);
            let key = kx.b.shl(block, 5);
            let key = kx.b.iadd(key, lane);
            // First what is read of all rows, last what is written, so that rows overlap.
            let mut scores = vec![];
            for (r, &[lo, pos]) in spans.iter().enumerate() {
                let row = kx.b.add_c(row0, r as i32);
                let of = kx.b.int_c(IntOp::Rem, row, tile.score_tile() as i32);
                let of = kx.b.int_c(IntOp::Div, of, tile.score_rows as i32);
                let place = tile.place(kx, of, lane);
                let chains = (0..order.dot.lanes).map(|c| {
                    let at = kx.b.mul_c(b, order.dot.lanes as i32);
                    let at = kx.b.add_c(at, c as i32);
                    let at = kx.b.mul_c(at, tile.rows as i32);
                    let at = kx.b.iadd(at, row);
                    let at = kx.b.shl(at, 5);
                    let at = kx.b.iadd(at, place);
                    kx.b.load(self.chains, Elem::F32, at, None)
                });
                let chains = chains.collect();
                let score = join_chains(kx, order.dot.tree, chains);
                let (low, high) = (kx.b.icmp(ICmp::Le, lo, key), kx.b.icmp(ICmp::Le, key, pos));
                let seen = kx.b.bool_op(BoolOp::And, low, high);
                scores.push((seen, kx.b.select(seen, score, ninf)));
            }
            let (mut ms, mut ls, mut ps) = (ninf, f0, vec![]);
            for (r, (seen, score)) in scores.into_iter().enumerate() {
                let m = max_of_lanes(kx, score);
                let rel = kx.b.sub(score, m);
                let p = kx.exp(rel);
                let p = kx.b.select(seen, p, f0);
                let l = kx.join_lanes(order.sum, vec![p]);
                let r = kx.b.i(r as i32);
                let mine = kx.b.icmp(ICmp::Eq, lane, r);
                (ms, ls) = (kx.b.select(mine, m, ms), kx.b.select(mine, l, ls));
                ps.push(p);
            }
            let at = kx.b.shl(b, 5);
            let at = kx.b.iadd(at, lane);
            let at = kx.b.mul_c(at, tile.stride() as i32);
            let at = kx.b.iadd(at, row0);
            for (r, p) in ps.into_iter().enumerate() {
                let at = kx.b.add_c(at, r as i32);
                kx.b.store(self.weights, Elem::F32, at, p, None);
            }
            let (lo, pos) = (kx.b.lshr(of_lane[0], 5), kx.b.lshr(of_lane[1], 5));
            let first = kx.b.icmp(ICmp::Eq, block, lo);
            let (low, high) = (kx.b.icmp(ICmp::Le, lo, block), kx.b.icmp(ICmp::Le, block, pos));
            let seen = kx.b.bool_op(BoolOp::And, low, high);
            let m = max(kx, ms, sums[0]);
            let (old, new) = (kx.b.sub(sums[0], m), kx.b.sub(ms, m));
            let (old, new) = (kx.exp(old), kx.exp(new));
            let lb = kx.b.mul(ls, new);
            let l = kx.b.fma(sums[1], old, lb);
            let l = kx.b.select(first, ls, l);
            let [skip, take, join] = [SKIP, FIRST, JOIN].map(|x| kx.b.i(x));
            let what = kx.b.select(first, take, join);
            let what = kx.b.select(seen, what, skip);
            let at = kx.b.mul_c(b, tile.rows as i32);
            let at = kx.b.iadd(at, row0);
            let at = kx.b.iadd(at, lane);
            for (mem, elem, x) in
                [(self.factors[0], Elem::F32, old), (self.factors[1], Elem::F32, new), (self.factors[2], Elem::I32, what)]
            {
                kx.b.store(mem, elem, at, x, Some(keeps));
            }
            vec![kx.b.select(seen, m, sums[0]), kx.b.select(seen, l, sums[1])]
        })
    }

    /// Weighted values of the blocks, joined to what there was.
    fn values(&self, kx: &mut Kx, s0: V, here: V, total: &[V]) -> Result<Vec<V>> {
        let tile = self.tile;
        let (rows, row, elements) = tile.value_place(kx, self.shape.dim);
        let mut result = Ok(());
        let out = kx.for_(here, total, |kx, b, total| {
            let s = kx.b.iadd(s0, b);
            let (base, first_key) = match self.block(kx, s) {
                Ok(v) => v,
                Err(e) => {
                    result = Err(e);
                    return total.to_vec();
                }
            };
            let end = kx.b.add_c(first_key, KV_BLOCK as i32 - 1);
            let (low, high) = (kx.b.icmp(ICmp::Le, self.all[0], first_key), kx.b.icmp(ICmp::Le, end, self.all[1]));
            let whole = kx.b.bool_op(BoolOp::And, low, high);
            let part = kx.either(
                whole,
                |kx| self.weighted(kx, b, base, row, &elements, None),
                |kx| self.weighted(kx, b, base, row, &elements, Some(first_key)),
            );
            let at = kx.b.mul_c(b, tile.rows as i32);
            let at = kx.b.iadd(at, row);
            let read = |kx: &mut Kx, mem, elem| -> Vec<V> {
                let four = (0..rows).step_by(4).map(|i| {
                    let at = kx.b.add_c(at, i as i32);
                    kx.b.load_n(mem, elem, at, 4, None)
                });
                four.collect::<Vec<_>>().concat()
            };
            let (old, new) = (read(kx, self.factors[0], Elem::F32), read(kx, self.factors[1], Elem::F32));
            let mut joined = vec![];
            for (i, (&x, &y)) in total.iter().zip(&part).enumerate() {
                let row = i / tile.elements as usize;
                let yb = kx.b.mul(y, new[row]);
                joined.push(kx.b.fma(x, old[row], yb));
            }
            // Mostly all rows join.
            let block = kx.b.lshr(first_key, 5);
            let (lo, pos) = (kx.b.lshr(self.all[0], 5), kx.b.lshr(self.all[1], 5));
            let (low, high) = (kx.b.icmp(ICmp::Lt, lo, block), kx.b.icmp(ICmp::Le, block, pos));
            let all = kx.b.bool_op(BoolOp::And, low, high);
            kx.either(
                all,
                |_| joined.clone(),
                |kx| {
                    let what = read(kx, self.factors[2], Elem::I32);
                    let [skip, take] = [SKIP, FIRST].map(|x| kx.b.i(x));
                    let pick = |(i, &j): (usize, &V)| {
                        let what = what[i / tile.elements as usize];
                        let (first, skipped) = (kx.b.icmp(ICmp::Eq, what, take), kx.b.icmp(ICmp::Eq, what, skip));
                        let j = kx.b.select(first, part[i], j);
                        kx.b.select(skipped, total[i], j)
                    };
                    joined.iter().enumerate().map(pick).collect()
                },
            )
        });
        result.map(|()| out)
    }

    /// Weighted values of one block, rows by elements; `first_key`: not every row sees every key.
    fn weighted(&self, kx: &mut Kx, b: V, base: V, row: V, elements: &[V], first_key: Option<V>) -> Vec<V> {
        let (tile, shape) = (self.tile, self.shape);
        let (n, rows) = (tile.vector() as usize, tile.value_rows);
        let vals = kx.arg(ArgKey::Vals(shape.kv), false);
        // The span of each row.
        let spans: Vec<[V; 2]> = match first_key {
            None => vec![],
            Some(_) => (0..rows)
                .map(|i| {
                    let (token, _) = token_of(kx, shape, row, i, rows);
                    self.span(kx, token)
                })
                .collect(),
        };
        let turn = if first_key.is_some() { TURN / 2 } else { TURN };
        let (trip, f0) = (kx.b.i((KV_BLOCK / turn) as i32), kx.b.f(0.0));
        let of_block = kx.b.shl(b, 5);
        kx.for_(trip, &vec![f0; (rows * tile.elements) as usize], |kx, t, o| {
            let mut o = o.to_vec();
            let k0 = kx.b.mul_c(t, turn as i32);
            let mut vs: Vec<Vec<V>> = vec![];
            for u in 0..turn {
                let mut key = kx.b.add_c(k0, u as i32);
                if let Some(first_key) = first_key {
                    // A key behind the last may never have been written.
                    let last = kx.b.isub(self.some[1], first_key);
                    key = kx.b.int(IntOp::Min, key, last);
                }
                let at = kx.b.mul_c(key, shape.dim as i32);
                let at = kx.b.iadd(base, at);
                let read = elements.iter().step_by(n).map(|&e| {
                    let at = kx.b.iadd(at, e);
                    kx.b.load_n(vals, Elem::F32, at, n, None)
                });
                vs.push(read.collect::<Vec<_>>().concat());
            }
            for (u, vs) in vs.iter().enumerate() {
                let key = kx.b.add_c(k0, u as i32);
                let at = kx.b.iadd(of_block, key);
                let at = kx.b.mul_c(at, tile.stride() as i32);
                let at = kx.b.iadd(at, row);
                let mut ps: Vec<V> = vec![];
                for i in (0..rows).step_by(4) {
                    let at = kx.b.add_c(at, i as i32);
                    ps.extend(kx.b.load_n(self.weights, Elem::F32, at, 4, None));
                }
                let key = first_key.map(|first| kx.b.iadd(first, key));
                for (i, (&p, o)) in ps.iter().zip(o.chunks_mut(tile.elements as usize)).enumerate() {
                    let seen = key.map(|key| {
                        let [lo, pos] = spans[i];
                        let (low, high) = (kx.b.icmp(ICmp::Le, lo, key), kx.b.icmp(ICmp::Le, key, pos));
                        kx.b.bool_op(BoolOp::And, low, high)
                    });
                    for (&v, o) in vs.iter().zip(o) {
                        let v = seen.map_or(v, |seen| kx.b.select(seen, v, f0));
                        *o = kx.b.fma(p, v, *o);
                    }
                }
            }
            o
        })
    }
}
