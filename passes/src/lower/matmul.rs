//! Matrix products. Affine weights (DESIGN section 3): within a group the integer sums of three byte planes, joined and
//! rounded once; between groups chains of fma in the pinned order. Plain weights: chains of fma over the elements of a
//! float row, in the pinned order over units. How rows and chains are spread over lanes is the schedule's.

use super::cx::{ArgKey, Kx};
use super::rows::{QRow, XRow};
use ir::diag::Result;
use ir::graph::Dtype;
use ir::graph::NodeId;
use ir::kernel::build::Builder;
use ir::kernel::{Elem, ICmp, IntOp, Mem, Op as KOp, Ty, V};
use ir::layout::{Format, MatrixLayout};
use ir::math::{self, Arith};
use ir::order::{ReductionOrder, Take, Tree};
use ir::plan::Pack;

/// A matrix bound to a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Packed weights.
    pub mem: Mem,
    /// Their layout.
    pub l: MatrixLayout,
}

/// A warp's place among those that compute a tile together.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its number.
    pub number: V,
    /// How many they are.
    pub of: u32,
}

impl Matrix {
    /// Binds the weight node.
    pub fn bind(kx: &mut Kx, weight: NodeId, order: ReductionOrder) -> Result<Matrix> {
        let l = kx.layout(weight, order)?;
        let mem = kx.arg(ArgKey::Weight(weight, Pack::Matrix(l)), false);
        Ok(Matrix { mem, l })
    }

    /// Row (of one matrix) that this lane computes in tile `tile`, and whether it exists and is this lane's to store.
    pub fn row(&self, kx: &mut Kx, tile: V) -> (V, Option<V>) {
        let lane = kx.b.lane();
        let sub = kx.b.int_c(IntOp::Rem, lane, self.l.tile_rows() as i32);
        let first = kx.b.mul_c(tile, self.l.tile_rows() as i32);
        let row = kx.b.iadd(first, sub);
        let exists = (!self.l.rows.is_multiple_of(self.l.tile_rows())).then(|| {
            let lim = kx.b.i(self.l.rows as i32);
            kx.b.icmp(ICmp::Lt, row, lim)
        });
        let mine = (self.l.chain_lanes > 1).then(|| {
            let c = kx.b.int_c(IntOp::Div, lane, self.l.tile_rows() as i32);
            kx.is_zero(c)
        });
        let pred = kx.and(exists, mine);
        (row, pred)
    }

    /// This lane's row of `tile` (counted over the whole stack) times each of the rows `xs`, whose first unit is `unit0`.
    /// Every lane that shares the row gets the results. Weights are read once for all of `xs`. Block-uniform.
    pub fn dots(&self, kx: &mut Kx, xs: &[XRow], tile: V, unit0: V) -> Vec<V> {
        let l = &self.l;
        let lane = kx.b.lane();
        let sub = kx.b.int_c(IntOp::Div, lane, l.tile_rows() as i32);
        let tile_words = (l.steps() * l.step_words()) as i32;
        let base = kx.b.mul_c(tile, tile_words);
        let mut accs = vec![];
        for k in 0..l.chains_per_lane() {
            let first_step = k * l.chain_len();
            // With one lane per row the chain is known, and so is its length.
            let len = if l.chain_lanes == 1 {
                (0..l.chain_len()).filter(|&t| l.unit_of(k, t).is_some()).count() as u32
            } else {
                l.chain_len()
            };
            let chain = kx.b.add_c(sub, (k * l.chain_lanes) as i32);
            let zero = kx.b.f(0.0);
            let step_base = kx.b.add_c(base, (first_step * l.step_words()) as i32);
            accs.push(self.chain(kx, xs, len, chain, step_base, unit0, zero));
        }
        (0..xs.len()).map(|t| self.join(kx, accs.iter().map(|of_chain| of_chain[t]).collect())).collect()
    }

    /// One chain for each row: its units in ascending order.
    #[allow(clippy::too_many_arguments)]
    fn chain(&self, kx: &mut Kx, xs: &[XRow], len: u32, chain: V, base: V, unit0: V, init: V) -> Vec<V> {
        let l = self.l;
        let trip = kx.b.i(len as i32);
        let unit_step = |kx: &mut Kx, t: V, unit: &Unit, accs: &[V]| self.step(kx, xs, chain, t, unit0, unit, accs);
        let inits = vec![init; xs.len()];
        let (stages, warps) = (kx.s.stages, kx.b.warps());
        let bytes = 4 * l.step_words() * stages * warps;
        // A schedule is free: where the ring has no room, weights are read where they lie.
        if stages < 2 || len == 0 || !(kx.rings.contains_key(&bytes) || kx.take_room(bytes)) {
            // Units whose words are read before the first of them is used.
            let most = (kx.s.ahead / self.words()).clamp(1, len.max(1));
            let ahead = len.div_ceil(len.div_ceil(most).max(1)).max(1);
            let turn = |kx: &mut Kx, t0: V, n: u32, accs: &[V]| {
                let steps: Vec<V> = (0..n).map(|i| kx.b.add_c(t0, i as i32)).collect();
                let load = |kx: &mut Kx, t: V| {
                    let off = kx.b.mul_c(t, l.step_words() as i32);
                    let at = kx.b.iadd(base, off);
                    Unit::load(kx, &l, self.mem, at)
                };
                let units: Vec<Unit> = steps.iter().map(|&t| load(kx, t)).collect();
                steps.iter().zip(&units).fold(accs.to_vec(), |accs, (&t, unit)| unit_step(kx, t, unit, &accs))
            };
            let (turns, rest) = (len / ahead, len % ahead);
            let trip = kx.b.i(turns as i32);
            let accs = kx.for_(trip, &inits, |kx, t, accs| {
                let t0 = kx.b.mul_c(t, ahead as i32);
                turn(kx, t0, ahead, accs)
            });
            let t0 = kx.b.i((turns * ahead) as i32);
            return turn(kx, t0, rest, &accs);
        }
        // Weights of a step are copied to shared memory some steps ahead, each warp its own.
        let (warp, lane, slot_words) = (kx.b.warp(), kx.b.lane(), l.step_words());
        let sh = match kx.rings.get(&bytes) {
            Some(m) => *m,
            None => {
                let m = kx.shared("ring", bytes);
                kx.rings.insert(bytes, m);
                m
            }
        };
        let slot_at = move |kx: &mut Kx, slot: V| {
            let s = kx.b.mul_c(slot, warps as i32);
            let s = kx.b.iadd(s, warp);
            kx.b.mul_c(s, slot_words as i32)
        };
        let [copy_iv, copy_slot, iv, slot] = [(); 4].map(|()| kx.b.fresh(Ty::I32));
        let accs: Vec<V> = xs.iter().map(|_| kx.b.fresh(Ty::F32)).collect();
        kx.b.begin();
        let off = kx.b.mul_c(copy_iv, slot_words as i32);
        let from = kx.b.iadd(base, off);
        let to = slot_at(kx, copy_slot);
        let units = slot_words / 4;
        for c in 0..units.div_ceil(32) {
            let u = kx.b.add_c(lane, (c * 32) as i32);
            let pred = ((c + 1) * 32 > units).then(|| {
                let lim = kx.b.i(units as i32);
                kx.b.icmp(ICmp::Lt, u, lim)
            });
            let (f4, t4) = (kx.b.lshr(from, 2), kx.b.lshr(to, 2));
            let (f4, t4) = (kx.b.iadd(f4, u), kx.b.iadd(t4, u));
            kx.b.copy(sh, t4, self.mem, f4, pred);
        }
        let copy = kx.b.end();
        kx.b.begin();
        let at = slot_at(kx, slot);
        let unit = Unit::load(kx, &l, sh, at);
        let yields = unit_step(kx, iv, &unit, &accs);
        let body = kx.b.end();
        let tys = vec![Ty::F32; accs.len()];
        let carried = accs.into_iter().zip(inits).collect();
        kx.b.structured(KOp::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields }, &tys)
    }

    /// Words of weights of a unit that a lane reads.
    fn words(&self) -> u32 {
        self.l.words() + self.l.format.params()
    }

    /// Each `acc` after the `t`-th unit of chain `chain`, or as it was if the chain has no such unit.
    #[allow(clippy::too_many_arguments)]
    fn step(&self, kx: &mut Kx, xs: &[XRow], chain: V, t: V, unit0: V, unit: &Unit, accs: &[V]) -> Vec<V> {
        let l = self.l;
        let (g, valid) = self.unit_at(kx, chain, t);
        let g = kx.b.iadd(g, unit0);
        let next = match l.format {
            Format::Affine { .. } => {
                let terms = groups(kx, &l, xs, unit, g);
                terms.into_iter().zip(accs).map(|([scale, u], &acc)| kx.b.fma(scale, u, acc)).collect()
            }
            Format::Plain(dtype) => plain_units(kx, &l, dtype, xs, unit, g, accs),
        };
        match valid {
            Some(p) => next.into_iter().zip(accs).map(|(n, &acc)| kx.b.select(p, n, acc)).collect(),
            None => next,
        }
    }

    /// The `t`-th unit of a chain, and whether there is one, unless that is certain; if there is none, the first of all.
    fn unit_at(&self, kx: &mut Kx, chain: V, t: V) -> (V, Option<V>) {
        let l = self.l;
        let ragged = l.chain_lanes > 1 && l.units() != l.chain_len() * l.order.lanes;
        let g = match l.order.take {
            Take::Contiguous => {
                let first = kx.b.mul_c(chain, l.order.run(l.units()) as i32);
                kx.b.iadd(first, t)
            }
            Take::Strided => {
                let far = kx.b.mul_c(t, l.order.lanes as i32);
                kx.b.iadd(chain, far)
            }
        };
        let valid = ragged.then(|| {
            let lim = kx.b.i(l.units() as i32);
            kx.b.icmp(ICmp::Lt, g, lim)
        });
        let g = match valid {
            Some(p) => {
                let z = kx.b.i(0);
                kx.b.select(p, g, z)
            }
            None => g,
        };
        (g, valid)
    }

    /// May warps compute a tile together? Groups are summed exactly, each on its own; only what is made of their sums is a chain.
    pub fn in_terms(&self, kx: &Kx) -> bool {
        matches!(self.l.format, Format::Affine { .. }) && self.l.chains_per_lane() == 1 && kx.s.stages == 0
    }

    /// Bytes of a tile's terms.
    pub fn terms_bytes(&self) -> u32 {
        self.l.chain_len() * 32 * 8
    }

    /// The steps of a chain that are a member's, with whether they exist, unless that is certain.
    fn steps(&self, kx: &mut Kx, member: Member) -> Vec<(V, Option<V>)> {
        let len = self.l.chain_len();
        (0..len.div_ceil(member.of))
            .map(|i| {
                let t = kx.b.add_c(member.number, (i * member.of) as i32);
                super::clip(kx, t, len, (i + 1) * member.of <= len)
            })
            .collect()
    }

    /// Reads the groups of `tile` (counted over the whole stack) that are a member's.
    pub fn load(&self, kx: &mut Kx, tile: V, member: Member) -> Loaded {
        let l = self.l;
        let base = kx.b.mul_c(tile, (l.steps() * l.step_words()) as i32);
        let steps = self.steps(kx, member);
        let load = |(t, _): (V, Option<V>)| {
            let off = kx.b.mul_c(t, l.step_words() as i32);
            let at = kx.b.iadd(base, off);
            Unit::load(kx, &l, self.mem, at)
        };
        Loaded(steps.into_iter().map(load).collect())
    }

    /// Leaves the terms of a member's groups in shared memory, from float `at` on: `fold` makes a chain of them.
    pub fn terms(&self, kx: &mut Kx, loaded: &Loaded, x: XRow, unit0: V, member: Member, (mem, at): (Mem, V)) {
        let lane = kx.b.lane();
        let chain = kx.b.int_c(IntOp::Div, lane, self.l.tile_rows() as i32);
        let first = kx.b.iadd(at, lane);
        for ((t, exists), unit) in self.steps(kx, member).into_iter().zip(&loaded.0) {
            let (g, _) = self.unit_at(kx, chain, t);
            let g = kx.b.iadd(g, unit0);
            for term in groups(kx, &self.l, &[x], unit, g) {
                let here = super::scaled(kx, t, 64, first);
                for (i, v) in term.into_iter().enumerate() {
                    let at = kx.b.add_c(here, 32 * i as i32);
                    kx.b.store(mem, Elem::F32, at, v, exists);
                }
            }
        }
    }

    /// This lane's row of a tile, of the terms that all members have left.
    pub fn fold(&self, kx: &mut Kx, (mem, at): (Mem, V)) -> V {
        let lane = kx.b.lane();
        let chain = kx.b.int_c(IntOp::Div, lane, self.l.tile_rows() as i32);
        let first = kx.b.iadd(at, lane);
        let terms: Vec<[V; 2]> = (0..self.l.chain_len())
            .map(|t| {
                [0, 32].map(|i| {
                    let at = kx.b.add_c(first, (t * 64 + i) as i32);
                    kx.b.load(mem, Elem::F32, at, None)
                })
            })
            .collect();
        let mut acc = kx.b.f(0.0);
        for (t, [scale, u]) in terms.into_iter().enumerate() {
            let t = kx.b.i(t as i32);
            let (_, valid) = self.unit_at(kx, chain, t);
            let next = kx.b.fma(scale, u, acc);
            acc = valid.map_or(next, |p| kx.b.select(p, next, acc));
        }
        self.join(kx, vec![acc])
    }

    /// This lane's row of a tile, by one warp that has read all of it.
    pub fn finish(&self, kx: &mut Kx, loaded: &Loaded, x: XRow, unit0: V) -> V {
        let lane = kx.b.lane();
        let chain = kx.b.int_c(IntOp::Div, lane, self.l.tile_rows() as i32);
        let mut acc = vec![kx.b.f(0.0)];
        for (t, unit) in loaded.0.iter().enumerate() {
            let t = kx.b.i(t as i32);
            acc = self.step(kx, &[x], chain, t, unit0, unit, &acc);
        }
        self.join(kx, acc)
    }

    /// Joins the chains: chain `c` is accumulator `c / chain_lanes` of the `c % chain_lanes`-th of the row's lanes.
    fn join(&self, kx: &mut Kx, mut accs: Vec<V>) -> V {
        let l = &self.l;
        match l.order.tree {
            Tree::Pair => {
                while accs.len() > 1 {
                    let half = accs.len() / 2;
                    for k in 0..half {
                        accs[k] = kx.b.add(accs[k], accs[k + half]);
                    }
                    accs.truncate(half);
                }
                let mut x = accs[0];
                let mut m = l.chain_lanes / 2;
                while m > 0 {
                    let y = kx.b.shuffle_xor(x, m * l.tile_rows());
                    x = kx.b.add(x, y);
                    m /= 2;
                }
                x
            }
            Tree::Fold => {
                let lane = kx.b.lane();
                let first = kx.b.int_c(IntOp::Rem, lane, l.tile_rows() as i32);
                let mut sum = None;
                for c in 0..l.order.lanes {
                    let x = accs[(c / l.chain_lanes) as usize];
                    let x = if l.chain_lanes == 1 {
                        x
                    } else {
                        let src = kx.b.add_c(first, (c % l.chain_lanes * l.tile_rows()) as i32);
                        kx.b.shuffle_idx(x, src)
                    };
                    sum = Some(match sum {
                        None => x,
                        Some(s) => kx.b.add(s, x),
                    });
                }
                sum.unwrap_or(accs[0])
            }
        }
    }
}

/// What a lane needs of a tile.
pub struct Loaded(Vec<Unit>);

/// A lane's unit as it is packed.
struct Unit {
    words: Vec<V>,
    /// Words of parameters, of groups only.
    params: Vec<V>,
}

impl Unit {
    /// This lane's unit at word `at` of `mem`.
    fn load(kx: &mut Kx, l: &MatrixLayout, mem: Mem, at: V) -> Unit {
        let words = unit_words(kx, l, mem, at);
        let lane = kx.b.lane();
        Unit { words, params: param_words(&mut kx.b, l, mem, at, lane) }
    }
}

/// The words of this lane's unit at word `at` of `mem`.
fn unit_words(kx: &mut Kx, l: &MatrixLayout, mem: Mem, at: V) -> Vec<V> {
    let vec = l.vec as usize;
    let lane = kx.b.lane();
    let mine = kx.b.mul_c(lane, l.vec as i32);
    let first = kx.b.iadd(at, mine);
    let mut words = vec![];
    for j in (0..l.words()).step_by(vec) {
        let w = kx.b.add_c(first, (j * 32) as i32);
        words.extend(kx.b.load_n(mem, Elem::I32, w, vec, None));
    }
    words
}

/// The numbers of a packed word, in ascending order.
pub(super) fn numbers(b: &mut Builder, dtype: Dtype, word: V) -> Vec<V> {
    match dtype {
        Dtype::F32 => vec![b.float(word)],
        Dtype::F16 => vec![math::f16_low(b, word), math::f16_high(b, word)],
        Dtype::Bf16 => {
            let low = b.shl(word, 16);
            let high = b.int_c(IntOp::And, word, 0xffff_0000u32 as i32);
            vec![b.float(low), b.float(high)]
        }
    }
}

/// Each `acc` after one unit of plain weights, elements of unit `u` of each x.
fn plain_units(kx: &mut Kx, l: &MatrixLayout, dtype: Dtype, xs: &[XRow], unit: &Unit, u: V, accs: &[V]) -> Vec<V> {
    let mut weights = vec![];
    for &w in &unit.words {
        weights.extend(numbers(&mut kx.b, dtype, w));
    }
    let element = kx.b.mul_c(u, l.unit() as i32);
    let mut out = accs.to_vec();
    for (x, acc) in xs.iter().zip(&mut out) {
        let XRow::Floats(x) = x else { continue };
        let first = kx.b.iadd(x.base, element);
        for (i, weights) in weights.chunks(l.vec as usize).enumerate() {
            let at = kx.b.add_c(first, (i * l.vec as usize) as i32);
            let x = kx.b.load_n(x.mem, Elem::F32, at, l.vec as usize, None);
            for (&w, x) in weights.iter().zip(x) {
                *acc = kx.b.fma(w, x, *acc);
            }
        }
    }
    out
}

/// Words of parameters of the group at word `at` of `mem` that `lane` owns.
fn param_words(b: &mut Builder, l: &MatrixLayout, mem: Mem, at: V, lane: V) -> Vec<V> {
    let first = b.iadd(at, lane);
    (0..l.format.params())
        .map(|p| {
            let at = b.add_c(first, ((l.words() + p) * 32) as i32);
            b.load(mem, Elem::I32, at, None)
        })
        .collect()
}

/// Scale and offset of a group.
fn scale_and_offset(b: &mut Builder, l: &MatrixLayout, params: &[V]) -> [V; 2] {
    let Format::Affine { scales, .. } = l.format else { return [params[0]; 2] };
    let all: Vec<V> = params.iter().flat_map(|&w| numbers(b, scales, w)).collect();
    [all[0], all[1]]
}

/// What one group of codes and the activations of group `g` of each x give: a scale, and what a chain adds times it.
fn groups(kx: &mut Kx, l: &MatrixLayout, xs: &[XRow], unit: &Unit, g: V) -> Vec<[V; 2]> {
    let (vec, place) = (l.vec as usize, l.format.place());
    let words = &unit.words;
    let [s, beta] = scale_and_offset(&mut kx.b, l, &unit.params);
    let rows: Vec<QRow> = xs.iter().filter_map(|x| if let XRow::Fixed(q) = x { Some(*q) } else { None }).collect();
    let zero = kx.b.i(0);
    let mut sums = vec![[zero; 3]; rows.len()];
    let first: Vec<V> = rows
        .iter()
        .map(|x| {
            let (x0, group) = (kx.b.lshr(x.base, 2), kx.b.mul_c(g, (x.group / 4) as i32));
            kx.b.iadd(x0, group)
        })
        .collect();
    // A few words at a time: what is unpacked of them serves all rows.
    let per_word = if place == 4 { 2 } else { 1 };
    for m in (0..words.len() * per_word).step_by(vec) {
        let codes: Vec<[V; 2]> = (m..m + vec).map(|i| codes(&mut kx.b, place, words[i / per_word], i % per_word)).collect();
        for ((x, &x0), sums) in rows.iter().zip(&first).zip(&mut sums) {
            for (p, sum) in sums.iter_mut().enumerate() {
                let at = kx.b.add_c(x0, (p as u32 * x.width / 4) as i32 + m as i32);
                let planes = kx.b.load_n(x.mem, Elem::I32, at, vec, None);
                for (plane, [high, low]) in planes.into_iter().zip(&codes) {
                    // Nibbles are the same signed or not; each plane gets the pairing that has one instruction everywhere.
                    *sum = if p == 0 {
                        kx.b.dp4a(true, false, plane, *high, *sum)
                    } else {
                        kx.b.dp4a(false, true, plane, *low, *sum)
                    };
                }
            }
        }
    }
    let rows = rows.iter().zip(sums);
    rows.map(|(x, mut sums)| {
        let [scale, s_x] = [0, 1].map(|k| {
            let i = x.meta(kx, k, g);
            kx.b.load(x.mem, Elem::F32, i, None)
        });
        if place == 8 {
            // Codes are stored less 128: what the low planes lack is 128 times their sum.
            let i = x.meta(kx, 2, g);
            let c = kx.b.load(x.mem, Elem::I32, i, None);
            sums[2] = kx.b.iadd(sums[2], c);
        }
        let p = math::quant::join(&mut kx.b, sums[0], sums[1], sums[2]);
        let bs = kx.b.mul(beta, s_x);
        [scale, kx.b.fma(s, p, bs)]
    })
    .collect()
}

/// Four codes of a packed word: as the high plane takes them (unsigned), and as the low ones do (signed).
fn codes(b: &mut Builder, place: u32, word: V, half: usize) -> [V; 2] {
    if place == 8 {
        return [b.int_c(IntOp::Xor, word, 0x8080_8080u32 as i32), word];
    }
    let word = if half == 0 { word } else { b.lshr(word, 4) };
    [b.int_c(IntOp::And, word, 0x0f0f_0f0f); 2]
}

/// Element `i` of row `row` of a single matrix: the number, or `fma(s, q, β)`.
pub fn element(kx: &mut Kx, l: &MatrixLayout, mem: Mem, row: V, i: V) -> V {
    let b = &mut kx.b;
    let g = b.int_c(IntOp::Div, i, l.unit() as i32);
    let within = b.int_c(IntOp::Rem, i, l.unit() as i32);
    let (n, op_c, op_t) = match l.order.take {
        Take::Contiguous => (l.order.run(l.units()), IntOp::Div, IntOp::Rem),
        Take::Strided => (l.order.lanes, IntOp::Rem, IntOp::Div),
    };
    let (c, t) = (b.int_c(op_c, g, n as i32), b.int_c(op_t, g, n as i32));
    let k = b.int_c(IntOp::Div, c, l.chain_lanes as i32);
    let step = b.mul_c(k, l.chain_len() as i32);
    let step = b.iadd(step, t);
    let tile = b.int_c(IntOp::Div, row, l.tile_rows() as i32);
    let in_tile = b.int_c(IntOp::Rem, row, l.tile_rows() as i32);
    let sub = b.int_c(IntOp::Rem, c, l.chain_lanes as i32);
    let lane = b.mul_c(sub, l.tile_rows() as i32);
    let lane = b.iadd(lane, in_tile);
    let at = b.mul_c(tile, l.steps() as i32);
    let at = b.iadd(at, step);
    let at = b.mul_c(at, l.step_words() as i32);
    let place = l.format.place();
    let per_word = (32 / place) as i32;
    let j = b.int_c(IntOp::Div, within, per_word);
    let run = b.int_c(IntOp::Div, j, l.vec as i32);
    let run = b.mul_c(run, (32 * l.vec) as i32);
    let word = b.iadd(at, run);
    let mine = b.mul_c(lane, l.vec as i32);
    let word = b.iadd(word, mine);
    let sub = b.int_c(IntOp::Rem, j, l.vec as i32);
    let word = b.iadd(word, sub);
    let w = b.load(mem, Elem::I32, word, None);
    let e = b.int_c(IntOp::Rem, within, per_word);
    if let Format::Plain(dtype) = l.format {
        let both = numbers(b, dtype, w);
        let [low, high] = both[..] else { return both[0] };
        let zero = b.i(0);
        let first = b.icmp(ICmp::Eq, e, zero);
        return b.select(first, low, high);
    }
    let byte = b.int_c(IntOp::And, e, 3);
    let shift = b.mul_c(byte, 8);
    let q = if place == 4 {
        let half = b.int_c(IntOp::Lshr, e, 2);
        let half = b.mul_c(half, 4);
        let shift = b.iadd(shift, half);
        let q = b.int(IntOp::Lshr, w, shift);
        b.int_c(IntOp::And, q, 15)
    } else {
        let q = b.int(IntOp::Lshr, w, shift);
        let q = b.int_c(IntOp::And, q, 255);
        b.int_c(IntOp::Xor, q, 128)
    };
    let q = b.i_to_f(q);
    let params = param_words(b, l, mem, at, lane);
    let [s, beta] = scale_and_offset(b, l, &params);
    b.fma(s, q, beta)
}
