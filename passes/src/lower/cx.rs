//! What all kernel generators share: the builder, parameters bound to graph values, rows, reductions within a warp.

use super::schedule::Schedule;
use super::shared::{SHARED_BUDGET, pooled};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::{Op, RopeParams};
use ir::graph::{Dtype, Elem as GElem, Graph, NodeId, Rows};
use ir::kernel::build::Builder;
use ir::kernel::{ApproxOp, Block, BoolOp, Elem, ICmp, IntOp, Kernel, Mem, Op as KOp, Ty, V};
use ir::layout::{Format, MatrixLayout};
use ir::math::{self, Arith};
use ir::order::{ReductionOrder, Tree};
use ir::plan::{DIGEST_BYTES, Pack, row, state};
use std::collections::BTreeMap;

/// What a parameter is bound to, before buffers are numbered.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgKey {
    /// A value of the graph in memory.
    Value(NodeId),
    /// A packed weight: the node (for its tensor), and how it is packed.
    Weight(NodeId, Pack),
    /// Rotary frequencies.
    Rope(RopeParams),
    /// Keys of a layer's cache (the `kv` node).
    Keys(NodeId),
    /// Values of a layer's cache.
    Vals(NodeId),
    /// Parts of an attention over heads like these.
    Parts {
        /// Query heads.
        heads: u32,
        /// Head size.
        dim: u32,
        /// Window.
        window: u32,
    },
    /// Which rows chose which expert, by a route.
    Lists(NodeId),
    /// Digests of what is written: a value, or a cache (the `kv` node).
    Digests(Written, NodeId),
    /// Token ids.
    Tokens,
    /// State words.
    State,
    /// The table of rows.
    Rows,
}

/// What a store writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// A value.
    Value,
    /// Keys of a cache.
    Keys,
    /// Values of a cache.
    Vals,
}

/// An element whose mix is to be added to the digest of a row, a lane each.
struct Mixed {
    of: (Written, NodeId),
    row: V,
    words: [V; 2],
}

/// A kernel under construction.
pub struct Kx<'a> {
    /// The builder.
    pub b: Builder,
    /// The graph.
    pub g: &'a Graph,
    /// The schedule.
    pub s: Schedule,
    /// Parameters so far.
    pub args: Vec<(ArgKey, Mem)>,
    /// Row of values per token, at which the program stands.
    pub tok: V,
    /// Row of values per output, at which the program stands.
    pub out: V,
    /// Rows of this block.
    tile: u32,
    /// First of them, and how many the step has, if a block has more than one.
    rows: Option<(V, V)>,
    /// Rows are outputs.
    outputs: bool,
    /// Rings for asynchronous copies, by size: a pipeline drains, so the next one may use its ring.
    pub rings: BTreeMap<u32, Mem>,
    shared_names: u32,
    /// First shared array of each part of the launch.
    pub starts: Vec<u32>,
    /// What each part needs of shared memory; rings are added as they are made.
    needs: Vec<Vec<u32>>,
    /// Digests of what is stored are wanted.
    pub traced: bool,
    /// Exponentials and roots are those of the machine.
    pub approximate: bool,
    /// The lanes of a warp stand at different rows.
    pub rows_differ: bool,
    /// What the regions that are open have stored and not yet added to digests.
    mixed: Vec<Mixed>,
    /// The first of them that belongs to the innermost region.
    region: usize,
}

/// Bytes of one element run of a quantized row: three planes, then scales, sums and corrections per group.
pub fn q24_bytes(width: u32, group: u32) -> u32 {
    3 * width + 12 * (width / group)
}

/// Bytes of one row of a value in memory.
pub fn row_bytes(g: &Graph, id: NodeId) -> u32 {
    let ty = &g.node(id).ty;
    let raw = match ty.elem {
        GElem::Q24 { group } => q24_bytes(ty.width(), group),
        GElem::Route => 8 * ty.width(),
        _ => 4 * ty.width(),
    };
    raw.next_multiple_of(64)
}

/// Lanes that share a row of a matrix: as many as the schedule wishes, if they share the order's chains evenly.
pub fn chain_lanes(s: &Schedule, order: ReductionOrder) -> u32 {
    [4, 2].into_iter().find(|&n| n <= s.chain_lanes && order.lanes.is_multiple_of(n)).unwrap_or(1)
}

/// How a target with this schedule packs a matrix whose units are summed in `order`.
pub fn layout(g: &Graph, s: &Schedule, weight: NodeId, order: ReductionOrder) -> Result<MatrixLayout> {
    let n = g.node(weight);
    let format = match n.ty.elem {
        GElem::Affine { bits, group, scales } => Some(Format::Affine { bits, group, scales }),
        _ => n.ty.dtype().map(Format::Plain),
    };
    let (Some(format), [.., rows, cols]) = (format, n.ty.shape.as_slice()) else {
        return Err(Diagnostic::new("E0611", "expected a matrix of weights").at(&n.name));
    };
    if !cols.is_multiple_of(format.unit()) {
        let m = format!("no kernel for rows of {cols} weights: they are read {} at a time", format.unit());
        return Err(Diagnostic::new("E0617", m).at(&n.name));
    }
    let stack = if n.ty.shape.len() == 3 { n.ty.shape[0] } else { 1 };
    // Lanes that share a row have equally many chains.
    let chain_lanes = chain_lanes(s, order);
    Ok(MatrixLayout { format, stack, rows: *rows, cols: *cols, order, chain_lanes, vec: s.vec })
}

impl<'a> Kx<'a> {
    /// Starts a kernel whose blocks compute `tile` rows each; the table of rows says of which row an output is.
    pub fn new(g: &'a Graph, s: Schedule, name: &str, warps: u32, rows: Rows, tile: u32, needs: Vec<Vec<u32>>) -> Self {
        let mut b = Builder::new(name, warps);
        // The wish is for blocks of matmuls; larger ones would have too few registers.
        b.min_blocks(if warps > s.warps { (s.min_blocks * s.warps / warps).max(s.min_blocks.min(1)) } else { s.min_blocks });
        let (args, rings, starts) = (vec![], BTreeMap::new(), vec![]);
        let out = b.block_y();
        let mut kx = Kx {
            b,
            g,
            s,
            args,
            tok: out,
            out,
            tile,
            rows: None,
            outputs: rows == Rows::Outputs,
            rings,
            shared_names: 0,
            starts,
            needs,
            traced: false,
            approximate: false,
            rows_differ: false,
            mixed: vec![],
            region: 0,
        };
        if tile > 1 {
            let count = kx.state(if kx.outputs { state::OUTPUTS } else { state::TOKENS });
            let first = kx.b.mul_c(out, tile as i32);
            kx.rows = Some((first, count));
        }
        kx.stand_at(out);
        kx
    }

    /// Goes to a row of the chunk.
    pub fn stand_at(&mut self, row: V) {
        self.out = row;
        self.tok = if self.outputs { self.of_row(row, row::OUTPUT) } else { row };
    }

    /// Rows of this block.
    pub fn tile(&self) -> u32 {
        self.tile
    }

    /// Lets the first block along y compute the last rows.
    pub fn last_rows_first(&mut self) {
        let Some((_, count)) = self.rows else { return };
        let up = self.b.add_c(count, self.tile as i32 - 1);
        let blocks = self.b.int_c(IntOp::Div, up, self.tile as i32);
        let (last, y) = (self.b.add_c(blocks, -1), self.b.block_y());
        let y = self.b.isub(last, y);
        self.rows = Some((self.b.mul_c(y, self.tile as i32), count));
    }

    /// How many rows of this block the step has, at least 1.
    pub fn rows_here(&mut self) -> V {
        match self.rows {
            None => self.b.i(1),
            Some((first, count)) => {
                let (left, tile) = (self.b.isub(count, first), self.b.i(self.tile as i32));
                self.b.int(IntOp::Min, left, tile)
            }
        }
    }

    /// Goes to row `r` of this block, and says whether the step has it, unless that is certain. If it does not, the program
    /// stands at the last row that there is: what is read is sound and must not be stored.
    pub fn go_to(&mut self, r: V) -> Option<V> {
        let (first, count) = self.rows?;
        let row = self.b.iadd(first, r);
        let there = self.b.icmp(ICmp::Lt, row, count);
        let last = self.b.add_c(count, -1);
        let row = self.b.select(there, row, last);
        self.stand_at(row);
        Some(there)
    }

    /// Runs `f` for the rows of this block that the step has, one after the other; `f` stands at the row `r` that it gets.
    pub fn each_row(&mut self, f: impl FnOnce(&mut Self, V)) {
        let trip = self.rows_here();
        self.for_(trip, &[], |kx, r, _| {
            kx.go_to(r);
            f(kx, r);
            vec![]
        });
    }

    /// The parameter bound to `key`, made at first use.
    pub fn arg(&mut self, key: ArgKey, write: bool) -> Mem {
        if let Some((_, m)) = self.args.iter().find(|(k, _)| *k == key) {
            return *m;
        }
        let role = match &key {
            ArgKey::Value(_) => "v",
            ArgKey::Weight(..) => "w",
            ArgKey::Rope(_) => "rope",
            ArgKey::Keys(_) => "keys",
            ArgKey::Vals(_) => "vals",
            ArgKey::Parts { .. } => "parts",
            ArgKey::Lists(_) => "lists",
            ArgKey::Digests(..) => "digests",
            ArgKey::Tokens => "tokens",
            ArgKey::State => "state",
            ArgKey::Rows => "rows",
        };
        let name = format!("{role}{}", self.args.len());
        let fixed = matches!(key, ArgKey::Weight(..) | ArgKey::Rope(_));
        let m = if fixed { self.b.fixed(&name) } else { self.b.buf(&name, write) };
        self.args.push((key, m));
        m
    }

    /// Begins the next part: a stage whose blocks run nothing else.
    pub fn begin_part(&mut self) {
        self.starts.push(self.shared_names);
        self.rings.clear();
    }

    /// Takes room in shared memory beside what the launch needs anyway, if there is any.
    pub fn take_room(&mut self, bytes: u32) -> bool {
        let Some(part) = self.starts.len().checked_sub(1).filter(|&p| p < self.needs.len()) else { return false };
        let mut needs = self.needs.clone();
        needs[part].push(bytes);
        needs[part].sort_unstable_by(|a, b| b.cmp(a));
        let fits = pooled(&needs) <= SHARED_BUDGET;
        if fits {
            self.needs = needs;
        }
        fits
    }

    /// A shared array.
    pub fn shared(&mut self, role: &str, bytes: u32) -> Mem {
        self.shared_names += 1;
        self.b.shared(&format!("{role}{}", self.shared_names - 1), bytes)
    }

    /// A word of the step's state.
    pub fn state(&mut self, word: u32) -> V {
        let m = self.arg(ArgKey::State, false);
        let i = self.b.i(word as i32);
        self.b.load(m, Elem::I32, i, None)
    }

    /// A word of an entry of the table of rows.
    fn of_row(&mut self, entry: V, word: u32) -> V {
        let m = self.arg(ArgKey::Rows, false);
        let at = self.b.mul_c(entry, row::WORDS as i32);
        let at = self.b.add_c(at, word as i32);
        self.b.load(m, Elem::I32, at, None)
    }

    /// Absolute position of the token.
    pub fn position(&mut self) -> V {
        self.of_row(self.tok, row::POSITION)
    }

    /// Slot of the caches that holds the token's sequence.
    pub fn slot(&mut self) -> V {
        self.of_row(self.tok, row::SLOT)
    }

    /// The row index to use for a value.
    pub fn row_of(&mut self, id: NodeId) -> V {
        if self.g.node(id).ty.rows == Rows::Outputs { self.out } else { self.tok }
    }

    /// First 4-byte element of the value's row.
    pub fn row_base(&mut self, id: NodeId) -> V {
        let stride = row_bytes(self.g, id) / 4;
        let r = self.row_of(id);
        self.b.mul_c(r, stride as i32)
    }

    /// Reads f32 element `i` of a value in memory.
    pub fn load_value(&mut self, id: NodeId, i: V, pred: Option<V>) -> V {
        let m = self.arg(ArgKey::Value(id), false);
        let base = self.row_base(id);
        let at = self.b.iadd(base, i);
        self.b.load(m, Elem::F32, at, pred)
    }

    /// Writes f32 element `i` of a value to memory.
    pub fn store_value(&mut self, id: NodeId, i: V, v: V, pred: Option<V>) {
        self.store_word(id, Elem::F32, i, v, pred);
    }

    /// Writes word `i` of a value's row to memory.
    pub fn store_word(&mut self, id: NodeId, elem: Elem, i: V, v: V, pred: Option<V>) {
        let m = self.arg(ArgKey::Value(id), true);
        let base = self.row_base(id);
        let at = self.b.iadd(base, i);
        self.b.store(m, elem, at, v, pred);
        self.witness((Written::Value, id), elem, i, v, pred);
    }

    /// Notes for the digest of the row at which it stands what was stored as its element `i`, counted in elements of this size.
    /// No two lanes may have stored one element.
    pub fn witness(&mut self, of: (Written, NodeId), elem: Elem, i: V, v: V, pred: Option<V>) {
        if !self.traced {
            return;
        }
        let row = if of.0 == Written::Value { self.row_of(of.1) } else { self.tok };
        // Lanes at different rows add one by one: nothing is gained by waiting, and registers are lost.
        if self.rows_differ && self.mixed[self.region..].iter().any(|m| m.row != row) {
            self.settle();
        }
        let bits = match elem {
            Elem::F32 => self.b.bits(v),
            Elem::I32 => v,
            Elem::U8 => self.b.int_c(IntOp::And, v, 0xff),
            Elem::Bf16 => {
                let v = self.b.round_bf16(v);
                let v = self.b.bits(v);
                self.b.lshr(v, 16)
            }
        };
        let place = self.b.mul_c(i, elem.bytes() as i32);
        let mut words = ir::digest::mix(&mut self.b, place, bits);
        if let Some(p) = pred {
            let zero = self.b.i(0);
            words = words.map(|w| self.b.select(p, w, zero));
        }
        self.mixed.push(Mixed { of, row, words });
    }

    /// Adds to the digests what the innermost region has stored: one atomic addition for each row of a value, or one a lane where lanes
    /// stand at different rows.
    fn settle(&mut self) {
        if self.mixed.len() == self.region {
            return;
        }
        let mut sums: Vec<Mixed> = vec![];
        for m in self.mixed.split_off(self.region) {
            match sums.iter_mut().find(|s| s.of == m.of && s.row == m.row) {
                Some(s) => s.words = [0, 1].map(|i| self.b.iadd(s.words[i], m.words[i])),
                None => sums.push(m),
            }
        }
        let (lane, zero) = (self.b.lane(), self.b.i(0));
        for Mixed { of, row, words } in sums {
            let mem = self.arg(ArgKey::Digests(of.0, of.1), true);
            let first = self.b.mul_c(row, (DIGEST_BYTES / 4) as i32);
            if self.rows_differ {
                for (i, w) in words.into_iter().enumerate() {
                    let (at, some) = (self.b.add_c(first, i as i32), self.b.icmp(ICmp::Ne, w, zero));
                    self.b.atomic_add(mem, at, w, Some(some));
                }
                continue;
            }
            let [low, high] = words.map(|w| self.butterfly(w, |b, x, y| b.iadd(x, y)));
            // Lane 0 adds one, lane 1 the other. Warps that stored nothing add nothing.
            let (two, is_low) = (self.b.i(2), self.is_zero(lane));
            let (lanes, any) = (self.b.icmp(ICmp::Lt, lane, two), self.b.ior(low, high));
            let some = self.b.icmp(ICmp::Ne, any, zero);
            let pred = self.b.bool_op(BoolOp::And, lanes, some);
            let (at, w) = (self.b.iadd(first, lane), self.b.select(is_low, low, high));
            self.b.atomic_add(mem, at, w, Some(pred));
        }
    }

    /// The finished kernel and what its parameters are bound to.
    pub fn finish(mut self) -> (Kernel, Vec<ArgKey>) {
        self.settle();
        let args = self.args.into_iter().map(|(k, _)| k).collect();
        (self.b.finish(), args)
    }

    /// Reads element `i` of a plain weight.
    pub fn load_plain(&mut self, id: NodeId, i: V) -> Result<V> {
        let n = self.g.node(id);
        let Some(dtype) = n.ty.dtype() else {
            return Err(Diagnostic::new("E0610", format!("{} is no vector of numbers", n.ty)).at(&n.name));
        };
        let m = self.arg(ArgKey::Weight(id, Pack::Plain), false);
        Ok(match dtype {
            Dtype::F32 => self.b.load(m, Elem::F32, i, None),
            Dtype::Bf16 => self.b.load(m, Elem::Bf16, i, None),
            Dtype::F16 => {
                let at = self.b.mul_c(i, 2);
                let bytes = self.b.load_n(m, Elem::U8, at, 2, None);
                let high = self.b.shl(bytes[1], 8);
                let bits = self.b.iadd(high, bytes[0]);
                math::f16_low(&mut self.b, bits)
            }
        })
    }

    /// How this target packs a matrix whose units are summed in `order`.
    pub fn layout(&self, weight: NodeId, order: ReductionOrder) -> Result<MatrixLayout> {
        layout(self.g, &self.s, weight, order)
    }

    /// Is this block the first of its stage (the one that stores values computed by all)?
    pub fn is_zero(&mut self, v: V) -> V {
        let z = self.b.i(0);
        self.b.icmp(ICmp::Eq, v, z)
    }

    /// A loop with carried values whose body sees the whole context; none and one known iterations are written out.
    pub fn for_(&mut self, trip: V, init: &[V], f: impl FnOnce(&mut Self, V, &[V]) -> Vec<V>) -> Vec<V> {
        match self.b.as_const(trip) {
            Some(n) if n <= 0 => return init.to_vec(),
            Some(1) => {
                let zero = self.b.i(0);
                return f(self, zero, init);
            }
            _ => {}
        }
        let tys: Vec<Ty> = init.iter().map(|&v| self.b.ty(v)).collect();
        let iv = self.b.fresh(Ty::I32);
        let params: Vec<V> = tys.iter().map(|&t| self.b.fresh(t)).collect();
        let (body, yields) = self.in_region(|kx| f(kx, iv, &params));
        let carried = params.into_iter().zip(init.iter().copied()).collect();
        self.b.structured(KOp::For { trip, iv, carried, body, yields }, &tys)
    }

    /// A loop whose body does several turns at once, whose numbers it gets: as many as the schedule allows where `words` are read
    /// in each, so that all reads are under way before the first is used. A trip that is not known is done one by one.
    pub fn for_together(
        &mut self,
        trip: V,
        words: u32,
        init: &[V],
        mut f: impl FnMut(&mut Self, &[V], &[V]) -> Vec<V>,
    ) -> Vec<V> {
        let n = self.b.as_const(trip).map_or(1, |n| n.max(1) as u32);
        let most = (self.s.ahead / words.max(1)).clamp(1, n);
        let together = n.div_ceil(n.div_ceil(most));
        let Some(n) = self.b.as_const(trip).filter(|_| together > 1) else {
            return self.for_(trip, init, |kx, t, acc| f(kx, &[t], acc));
        };
        let turns = |kx: &mut Self, first: V, n: u32| (0..n).map(|i| kx.b.add_c(first, i as i32)).collect::<Vec<V>>();
        let (whole, rest) = (n as u32 / together, n as u32 % together);
        let times = self.b.i(whole as i32);
        let acc = self.for_(times, init, |kx, t, acc| {
            let first = kx.b.mul_c(t, together as i32);
            let ts = turns(kx, first, together);
            f(kx, &ts, acc)
        });
        if rest == 0 {
            return acc;
        }
        let first = self.b.i((whole * together) as i32);
        let ts = turns(self, first, rest);
        f(self, &ts, &acc)
    }

    /// A region, and what `f` gives that emits it.
    fn in_region<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> (Block, R) {
        self.b.begin();
        let outer = std::mem::replace(&mut self.region, self.mixed.len());
        let r = f(self);
        self.settle();
        self.region = outer;
        (self.b.end(), r)
    }

    /// Runs `then` where the uniform condition holds.
    pub fn when(&mut self, cond: V, then: impl FnOnce(&mut Self)) {
        let then = self.in_region(then).0;
        let op = KOp::If { cond, then, els: Block::default(), then_yields: vec![], els_yields: vec![] };
        self.b.structured(op, &[]);
    }

    /// One of two, whose values are of the same types; the condition is uniform.
    pub fn either(&mut self, cond: V, then: impl FnOnce(&mut Self) -> Vec<V>, els: impl FnOnce(&mut Self) -> Vec<V>) -> Vec<V> {
        let (then, then_yields) = self.in_region(then);
        let (els, els_yields) = self.in_region(els);
        let tys: Vec<Ty> = then_yields.iter().map(|&v| self.b.ty(v)).collect();
        self.b.structured(KOp::If { cond, then, els, then_yields, els_yields }, &tys)
    }

    /// Both, where present.
    pub fn and(&mut self, a: Option<V>, b: Option<V>) -> Option<V> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.b.bool_op(BoolOp::And, a, b)),
            (a, b) => a.or(b),
        }
    }

    /// `e^x`: exactly specified, or as the machine has it.
    pub fn exp(&mut self, x: V) -> V {
        if !self.approximate {
            return math::exp(&mut self.b, x);
        }
        let log2_e = self.b.f(std::f32::consts::LOG2_E);
        let x = self.b.mul(x, log2_e);
        self.b.approx(ApproxOp::Exp2, x)
    }

    /// `1/sqrt(x)`, likewise.
    pub fn rsqrt(&mut self, x: V) -> V {
        if self.approximate { self.b.approx(ApproxOp::Rsqrt, x) } else { math::rsqrt(&mut self.b, x) }
    }

    /// `-x`, exactly.
    pub fn neg(&mut self, x: V) -> V {
        let bits = self.b.bits(x);
        let flipped = self.b.int_c(IntOp::Xor, bits, i32::MIN);
        self.b.float(flipped)
    }

    /// Joins `parts[k]`, lane `l` of which is lane `k * 32 + l` of the order, to a sum in every lane.
    pub fn join_lanes(&mut self, order: ReductionOrder, mut parts: Vec<V>) -> V {
        match order.tree {
            Tree::Pair => {
                while parts.len() > 1 {
                    let half = parts.len() / 2;
                    for k in 0..half {
                        parts[k] = self.b.add(parts[k], parts[k + half]);
                    }
                    parts.truncate(half);
                }
                let mut x = parts[0];
                let mut m = order.lanes.min(32) / 2;
                while m > 0 {
                    let y = self.b.shuffle_xor(x, m);
                    x = self.b.add(x, y);
                    m /= 2;
                }
                x
            }
            Tree::Fold => {
                let mut sum = None;
                for l in 0..order.lanes {
                    let i = self.b.i((l % 32) as i32);
                    let x = self.b.shuffle_idx(parts[(l / 32) as usize], i);
                    sum = Some(match sum {
                        None => x,
                        Some(s) => self.b.add(s, x),
                    });
                }
                sum.unwrap_or(parts[0])
            }
        }
    }

    /// Integer or float combination of all 32 lanes, the same in every lane; for operations whose order cannot show.
    pub fn butterfly(&mut self, mut x: V, mut f: impl FnMut(&mut Builder, V, V) -> V) -> V {
        for m in [16, 8, 4, 2, 1] {
            let y = self.b.shuffle_xor(x, m);
            x = f(&mut self.b, x, y);
        }
        x
    }

    /// The chosen expert of a rank.
    pub fn expert(&mut self, route: NodeId, rank: V) -> V {
        let m = self.arg(ArgKey::Value(route), false);
        let base = self.row_base(route);
        let at = self.b.iadd(base, rank);
        self.b.load(m, Elem::I32, at, None)
    }

    /// The weight of a rank.
    pub fn expert_weight(&mut self, route: NodeId, rank: V) -> V {
        let k = self.g.node(route).ty.width();
        let at = self.b.add_c(rank, k as i32);
        self.load_value(route, at, None)
    }
}

/// The order of a reduction, which must have been pinned.
pub fn pinned<T: Copy>(g: &Graph, id: NodeId, order: Option<T>) -> Result<T> {
    order.ok_or_else(|| {
        Diagnostic::new("E0612", "a reduction has no pinned order")
            .at(&g.node(id).name)
            .hint("run the pass pin-reductions before lowering")
    })
}

/// Ops over whole rows that a block computes before its matmul.
pub fn is_row_op(g: &Graph, id: NodeId) -> bool {
    let n = g.node(id);
    match n.op {
        Op::RmsNorm { dim, .. } => dim == n.ty.width(),
        Op::Add | Op::Mul | Op::MulConst { .. } | Op::Embed { .. } | Op::Select | Op::Slice { .. } | Op::Quantize { .. } => true,
        Op::RoundBf16 | Op::GeluMul | Op::Softcap { .. } | Op::ExpertSum => true,
        _ => false,
    }
}

/// A cache of values already computed, by node.
pub type Memo = BTreeMap<NodeId, V>;
