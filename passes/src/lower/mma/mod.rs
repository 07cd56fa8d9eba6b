//! Matrix products of many tokens on integer matrix units ([`ir::kernel::Op::Mma`]), over the same group tree as one token's.
//!
//! A block computes `rows` rows of a chunk times some tiles of eight rows of the matrix. What a group needs of both is copied
//! to shared memory some groups ahead. The sums of a group's planes are exact, so how its elements are spread over the lanes of
//! a product is free: a lane takes of its row of x a run of words as they lie, and of its row of the matrix the words with the
//! same elements. Groups are rounded and added as they are for one token ([`super::matmul`]); the chains are walked one after
//! the other, in the order in which the tree joins them, so that few sums are live.

mod walk;

use super::cx::Kx;
use super::matmul::{Matrix, numbers};
use super::rows::QRow;
use super::scaled;
use super::schedule::Schedule;
use super::shared::SHARED_BUDGET;
use ir::diag::Result;
use ir::graph::Dtype;
use ir::kernel::{Elem, ICmp, IntOp, Mem, Op as KOp, Ty, V};
use ir::layout::{Format, MatrixLayout};
use ir::math::{self, Arith};
use walk::{Park, Waiting, ends, locate, walk};

/// Warps of a block.
pub const WARPS: u32 = 8;
/// Blocks for which the registers of a multiprocessor shall suffice.
pub const BLOCKS: u32 = 2;
/// Chains at most: sums that wait for the tree take registers.
const MAX_CHAINS: u32 = 16;
/// Slots of the ring at most.
const MAX_STAGES: u32 = 4;

/// How a block's work and its shared memory are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of the chunk.
    pub rows: u32,
    /// Tiles of eight rows of the matrix that a warp computes.
    per_warp: u32,
    /// Slots of the ring.
    stages: u32,
    /// Elements that are multiplied together: 32 or 64.
    run: u32,
    /// Runs of a group.
    runs: u32,
    /// Words of a lane's row of the matrix in a run.
    words: u32,
    /// Waiting sums of an output that lie in shared memory.
    parked: u32,
}

impl Tile {
    /// The tile for a matrix of this layout, if there is one.
    pub fn of(l: &MatrixLayout, s: &Schedule) -> Option<Tile> {
        let Format::Affine { group, .. } = l.format else { return None };
        let chains = l.order.lanes;
        if s.mma == 0 || (l.chain_lanes, l.vec) != (4, 4) || chains > MAX_CHAINS || !group.is_multiple_of(32) {
            return None;
        }
        let run = group.min(64);
        let words = run * l.format.place() / 128;
        let t = Tile { rows: s.mma, per_warp: 4, stages: 0, run, runs: group / run, words, parked: 0 };
        let staged = |t: Tile| Tile { stages: MAX_STAGES.min((SHARED_BUDGET - t.parked_bytes()) / t.slot(l)), ..t };
        let deep = ends(&walk(l)).iter().any(|e| e.after > 1);
        let tiles = [4, 2].map(|per_warp| Tile { per_warp, ..t });
        // Experts walk over tiles of rows, the planes of a long group and words of groups of 64 are many: all that takes registers.
        let narrow = usize::from(l.stack > 1 || t.runs > 1 || words > 1);
        let parked = staged(Tile { parked: 1, ..tiles[narrow] });
        if deep && t.runs == 1 && parked.stages >= 2 {
            return Some(parked);
        }
        tiles[narrow..].iter().map(|&t| staged(t)).find(|t| t.stages >= 2)
    }

    /// Warps side by side along the matrix; the others are side by side along the chunk.
    fn across(&self) -> u32 {
        WARPS / (self.rows / 16)
    }

    /// Tiles of eight rows of the matrix of a block.
    pub fn tiles(&self) -> u32 {
        self.across() * self.per_warp
    }

    /// Bytes of the planes of a slot.
    fn planes(&self) -> u32 {
        3 * self.rows * self.run * self.runs
    }

    /// Bytes from four words of all rows of the matrix to the next four: lanes that load together meet no bank twice.
    fn stride(&self) -> u32 {
        128 * self.tiles() + [0, 0, 64, 0, 32][self.words as usize]
    }

    /// Bytes of the codes of a slot.
    fn codes(&self) -> u32 {
        self.runs * self.words * self.stride()
    }

    /// Bytes of a slot: planes, codes, parameters of groups.
    fn slot(&self, l: &MatrixLayout) -> u32 {
        self.planes() + self.codes() + 32 * l.format.params() * self.tiles()
    }

    /// Bytes of shared memory: the ring, and sums that wait.
    pub fn bytes(&self, l: &MatrixLayout) -> [u32; 2] {
        [self.stages * self.slot(l), self.parked_bytes()]
    }

    fn parked_bytes(&self) -> u32 {
        4 * 4 * self.per_warp * 32 * WARPS * self.parked
    }
}

/// A row of activations.
pub struct Source {
    /// Where it lies.
    pub row: QRow,
    /// Its first group.
    pub first: V,
}

/// What the products of one block are made of.
pub struct Block<'m> {
    /// How they are cut.
    pub tile: Tile,
    /// The matrix.
    pub mat: &'m Matrix,
    /// First tile of eight rows of the block, within a matrix.
    pub first: V,
    /// First tile of the matrix, of a stack of them.
    pub base: V,
}

/// One value of a tile: row of the block, row of the matrix, whether that exists, the value.
pub struct Product {
    /// Row of the block, of the chunk's.
    pub row: V,
    /// Row of the matrix.
    pub column: V,
    /// Whether that row of the matrix exists, if it is not certain.
    pub exists: Option<V>,
    /// The value.
    pub value: V,
}

/// A copy that every thread of the block makes in every step: 16 bytes from `from` (which a step adds to) to `to` of a slot.
struct Copied {
    mem: Mem,
    from: V,
    to: V,
    pred: Option<V>,
    /// What a lane of the row's four adds to `from`.
    per_lane: u32,
}

impl Block<'_> {
    /// All products of the block. `x(row)` gives the row of activations of row `row` of the block (any row that lies in memory
    /// where there is none).
    pub fn products(&self, kx: &mut Kx, mut x: impl FnMut(&mut Kx, V) -> Result<Source>) -> Result<Vec<Product>> {
        let (t, l) = (self.tile, self.mat.l);
        let legs = walk(&l);
        let ring = kx.shared("ring", t.bytes(&l)[0]);
        let parked = (t.parked > 0).then(|| kx.shared("parked", t.parked_bytes()));
        let (slot_bytes, planes, codes) = (t.slot(&l), t.planes(), t.codes());
        let (lane, warp) = (kx.b.lane(), kx.b.warp());
        let (quad, g) = (kx.b.int_c(IntOp::And, lane, 3), kx.b.lshr(lane, 2));
        let down = t.rows / 16;
        let (at_m, at_n) = (kx.b.int_c(IntOp::Rem, warp, down as i32), kx.b.int_c(IntOp::Div, warp, down as i32));
        let row0 = kx.b.mul_c(at_m, 16);
        // Rows of the results of this lane: two of each eight.
        let pair = kx.b.mul_c(quad, 2);
        let first = kx.b.iadd(row0, pair);
        let rows = [0, 1, 8, 9].map(|r| kx.b.add_c(first, r));
        let xs = rows.iter().map(|&r| x(kx, r)).collect::<Result<Vec<_>>>()?;
        let row0 = kx.b.iadd(row0, g);
        let thread = kx.b.mul_c(warp, 32);
        let thread = kx.b.iadd(thread, lane);
        let from_planes = self.plane_copies(kx, thread, &mut x)?;
        let from_matrix = self.matrix_copies(kx, thread);

        let words = |bytes: u32| (bytes / 4) as i32;
        let (run, half) = match t.words {
            1 => (kx.b.i(0), quad),
            2 => (kx.b.lshr(quad, 1), {
                let low = kx.b.int_c(IntOp::And, quad, 1);
                kx.b.mul_c(low, 2)
            }),
            _ => (quad, kx.b.i(0)),
        };
        let run = kx.b.mul_c(run, words(t.stride()));
        let of_row = kx.b.mul_c(g, 4);
        let code_at = kx.b.iadd(run, of_row);
        let code_at = kx.b.iadd(code_at, half);
        let tile0 = kx.b.mul_c(at_n, t.per_warp as i32);
        let of_tile = kx.b.mul_c(tile0, 32);
        let code_at = kx.b.iadd(code_at, of_tile);
        let code_at = kx.b.add_c(code_at, words(planes));
        let params = l.format.params() as i32;
        let param_at = kx.b.mul_c(tile0, 8 * params);
        let param_at = kx.b.iadd(param_at, g);
        let param_at = kx.b.add_c(param_at, words(planes + codes));
        let plane_at = kx.b.mul_c(row0, words(t.run));
        let of_lane = kx.b.mul_c(quad, words(t.run / 4));
        let plane_at = kx.b.iadd(plane_at, of_lane);

        let steps = legs.iter().map(|leg| leg.len).sum::<u32>();
        let trip = kx.b.i(steps as i32);
        let (zero, none) = (kx.b.f(0.0), kx.b.i(0));
        let outputs = 4 * t.per_warp as usize;
        let ends = ends(&legs);
        let depth = ends.iter().map(|e| e.after).max().unwrap_or(0);
        let kept = depth - depth.min(t.parked as usize);
        let place = l.format.place();
        let meta = |kx: &mut Kx, i: V| -> Vec<V> {
            let group = locate(kx, &l, &legs, i).group;
            let of = |kx: &mut Kx, x: &Source, k: u32, elem| {
                let group = kx.b.iadd(group, x.first);
                let at = x.row.meta(kx, k, group);
                kx.b.load(x.row.mem, elem, at, None)
            };
            let mut out = vec![];
            for x in &xs {
                out.extend([of(kx, x, 0, Elem::F32), of(kx, x, 1, Elem::F32)]);
                out.push(if place == 8 { of(kx, x, 2, Elem::I32) } else { none });
            }
            out
        };
        let inits = vec![zero; outputs * (1 + kept)];
        let tys: Vec<Ty> = inits.iter().map(|&v| kx.b.ty(v)).collect();
        let [copy_iv, copy_slot, iv, slot] = [(); 4].map(|()| kx.b.fresh(Ty::I32));
        let params_in: Vec<V> = tys.iter().map(|&ty| kx.b.fresh(ty)).collect();
        kx.b.begin();
        let at = locate(kx, &l, &legs, copy_iv);
        let to = kx.b.mul_c(copy_slot, (slot_bytes / 16) as i32);
        let plane_off = kx.b.mul_c(at.group, (l.unit() / 16) as i32);
        let step_off = kx.b.mul_c(at.step, (l.step_words() / 4) as i32);
        for c in &from_planes {
            issue(kx, ring, c, plane_off, to);
        }
        for c in &from_matrix {
            let off = scaled(kx, at.lane, c.per_lane, step_off);
            issue(kx, ring, c, off, to);
        }
        let copy = kx.b.end();

        kx.b.begin();
        let rest = meta(kx, iv);
        let base = kx.b.mul_c(slot, words(slot_bytes));
        let planes_at = kx.b.iadd(base, plane_at);
        let mut a = vec![];
        for p in 0..3 {
            for r in 0..t.runs {
                let both = [0, 8].map(|row| {
                    let at = kx.b.add_c(planes_at, words(((p * t.runs + r) * t.rows + row) * t.run));
                    kx.b.load_n(ring, Elem::I32, at, (t.run / 16) as usize, None)
                });
                a.push(both);
            }
        }
        let (codes_at, params_at) = (kx.b.iadd(base, code_at), kx.b.iadd(base, param_at));
        let mut accs = params_in[..outputs].to_vec();
        let meta = |r: usize| [rest[3 * r], rest[3 * r + 1], rest[3 * r + 2]];
        for (j, accs) in (0..).zip(accs.chunks_mut(8)) {
            let sums = self.group(kx, ring, codes_at, j, &a, [0, 1, 2, 3].map(|r| meta(r)[2]));
            let s = self.scales(kx, ring, params_at, j);
            for (i, p) in sums.into_iter().flatten().enumerate() {
                let [scale, s_x, _] = meta(i / 4 * 2 + i % 2);
                let (s, beta) = s[i % 4 / 2];
                let bs = kx.b.mul(beta, s_x);
                let u = kx.b.fma(s, p, bs);
                accs[i] = kx.b.fma(scale, u, accs[i]);
            }
        }
        let park = Park { mem: parked, thread, outputs, levels: t.parked as usize };
        let mut levels: Vec<Vec<V>> = params_in[outputs..].chunks(outputs).map(<[V]>::to_vec).collect();
        for end in ends.iter().filter(|e| e.at < steps) {
            let e = kx.b.i(end.at as i32 - 1);
            let here = kx.b.icmp(ICmp::Eq, iv, e);
            kx.b.begin();
            let after = park.joined(kx, end, &accs, &levels);
            let (mut then_yields, mut els_yields, mut changed) = (vec![zero; outputs], accs, vec![]);
            for (d, sums) in after.into_iter().enumerate() {
                let Waiting::Here(sums) = sums else { continue };
                match d.checked_sub(park.levels) {
                    None => park.put(kx, d, &sums),
                    Some(d) if sums != levels[d] => {
                        then_yields.extend(sums);
                        els_yields.extend(&levels[d]);
                        changed.push(d);
                    }
                    Some(_) => {}
                }
            }
            let then = kx.b.end();
            let tys = vec![Ty::F32; then_yields.len()];
            let op = KOp::If { cond: here, then, els: Default::default(), then_yields, els_yields };
            let out = kx.b.structured(op, &tys);
            accs = out[..outputs].to_vec();
            for (d, sums) in changed.into_iter().zip(out[outputs..].chunks(outputs)) {
                levels[d] = sums.to_vec();
            }
        }
        let yields: Vec<V> = accs.into_iter().chain(levels.into_iter().flatten()).collect();
        let body = kx.b.end();
        let carried = params_in.iter().copied().zip(inits).collect();
        let op = KOp::Pipeline { stages: t.stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields };
        let out = kx.b.structured(op, &tys);
        let levels: Vec<Vec<V>> = out[outputs..].chunks(outputs).map(<[V]>::to_vec).collect();
        let all = ends.last().map(|end| park.joined(kx, end, &out[..outputs], &levels)).unwrap_or_default();
        let Some(Waiting::Here(values)) = all.into_iter().next() else { return Ok(vec![]) };

        let first = kx.b.iadd(self.first, tile0);
        let first = kx.b.mul_c(first, 8);
        let first = kx.b.iadd(first, g);
        let mut all = vec![];
        for (k, value) in values.into_iter().enumerate() {
            let column = kx.b.add_c(first, (k / 8 * 16 + k % 4 / 2 * 8) as i32);
            let exists = (!l.rows.is_multiple_of(8 * t.tiles())).then(|| {
                let lim = kx.b.i(l.rows as i32);
                kx.b.icmp(ICmp::Lt, column, lim)
            });
            all.push(Product { row: rows[k / 4 % 2 * 2 + k % 2], column, exists, value });
        }
        Ok(all)
    }
    /// Copies of the planes; a step adds the place of its group.
    fn plane_copies(&self, kx: &mut Kx, thread: V, x: &mut impl FnMut(&mut Kx, V) -> Result<Source>) -> Result<Vec<Copied>> {
        let t = self.tile;
        let per_row = t.run * t.runs / 16;
        let (per_plane, per_run) = (t.rows * per_row, t.run / 16);
        let copies = (3 * per_plane).div_ceil(32 * WARPS);
        let of = |k: u32| {
            let i = kx.b.add_c(thread, (32 * WARPS * k) as i32);
            let pred = below(kx, i, 3 * per_plane, 32 * WARPS * (k + 1));
            let (plane, in_plane) = divided(kx, i, per_plane);
            let (row, chunk) = divided(kx, in_plane, per_row);
            let (run, within) = divided(kx, chunk, per_run);
            let x = x(kx, row)?;
            let to = if t.runs == 1 {
                i
            } else {
                let to = scaled(kx, plane, t.runs, run);
                let to = scaled(kx, to, t.rows, row);
                scaled(kx, to, per_run, within)
            };
            let (x, first) = (x.row, x.first);
            let from = kx.b.lshr(x.base, 4);
            let from = scaled(kx, first, t.run * t.runs / 16, from);
            let plane = kx.b.mul_c(plane, (x.width / 16) as i32);
            let from = kx.b.iadd(from, plane);
            let from = kx.b.iadd(from, chunk);
            Ok(Copied { mem: x.mem, from, to, pred, per_lane: 0 })
        };
        (0..copies).map(of).collect()
    }

    /// Copies of codes and parameters; a step adds its place in a tile of the matrix.
    fn matrix_copies(&self, kx: &mut Kx, thread: V) -> Vec<Copied> {
        let (t, l) = (self.tile, self.mat.l);
        let (runs, params) = (t.runs * t.words, l.format.params());
        let from = |kx: &mut Kx, tile: V| {
            let tile = kx.b.iadd(self.first, tile);
            let last = kx.b.i(l.tiles() as i32 - 1);
            let tile = kx.b.int(IntOp::Min, tile, last);
            let tile = kx.b.iadd(self.base, tile);
            kx.b.mul_c(tile, (l.steps() * l.step_words() / 4) as i32)
        };
        let codes = runs * t.tiles() * 8;
        let mut out = vec![];
        for k in 0..codes.div_ceil(32 * WARPS) {
            let i = kx.b.add_c(thread, (32 * WARPS * k) as i32);
            let pred = below(kx, i, codes, 32 * WARPS * (k + 1));
            let (run, in_run) = divided(kx, i, 8 * t.tiles());
            let (tile, row) = divided(kx, in_run, 8);
            let at = from(kx, tile);
            let at = kx.b.iadd(at, row);
            let from = scaled(kx, run, 32, at);
            let to = scaled(kx, run, t.stride() / 16 - 8 * t.tiles(), i);
            let to = kx.b.add_c(to, (t.planes() / 16) as i32);
            out.push(Copied { mem: self.mat.mem, from, to, pred, per_lane: 8 });
        }
        // Parameters by the last warps, which have less to do.
        let thread = kx.b.int_c(IntOp::Xor, thread, 32 * (WARPS as i32 - 1));
        let all = 2 * params * t.tiles();
        for k in 0..all.div_ceil(32 * WARPS) {
            let i = kx.b.add_c(thread, (32 * WARPS * k) as i32);
            let pred = below(kx, i, all, 32 * WARPS * (k + 1));
            let (tile, of_tile) = divided(kx, i, 2 * params);
            let (param, half) = divided(kx, of_tile, 2);
            let at = from(kx, tile);
            let at = kx.b.iadd(at, half);
            let at = scaled(kx, param, 8, at);
            let from = kx.b.add_c(at, 32 * runs as i32);
            let to = kx.b.add_c(i, ((t.planes() + t.codes()) / 16) as i32);
            out.push(Copied { mem: self.mat.mem, from, to, pred, per_lane: 2 });
        }
        out
    }

    /// The rounded sums of a group for two tiles of the warp from `2j` on, of its first eight rows and of the others: codes lie
    /// at word `at` of the ring, planes are in `x`. The matrix is the left factor: what is unpacked may lie in any registers, and
    /// what is read of a row of x lies in consecutive ones, as the right factor does.
    fn group(&self, kx: &mut Kx, ring: Mem, at: V, j: u32, x: &[[Vec<V>; 2]], corrections: [V; 4]) -> [[V; 4]; 2] {
        let (t, place) = (self.tile, self.mat.l.format.place());
        let none = kx.b.i(0);
        let mut sums = [[[none; 4]; 3]; 2];
        if place == 8 {
            // Codes are stored less 128: what the low planes lack is 128 times their sum.
            let [a, b, c, d] = corrections;
            (sums[0][2], sums[1][2]) = ([a, b, a, b], [c, d, c, d]);
        }
        for r in 0..t.runs {
            let tiles = [0, 1].map(|h| {
                let at = kx.b.add_c(at, (r * t.words * t.stride() / 4 + (2 * j + h) * 32) as i32);
                kx.b.load_n(ring, Elem::I32, at, t.words as usize, None)
            });
            for i in 0..(t.run / 32) as usize {
                let [v, w] = &tiles;
                let (high, low) = if place == 8 {
                    let low = [v[2 * i], w[2 * i], v[2 * i + 1], w[2 * i + 1]];
                    (low.map(|w| kx.b.int_c(IntOp::Xor, w, 0x8080_8080u32 as i32)), low)
                } else {
                    let up = [v[i], w[i]].map(|w| kx.b.lshr(w, 4));
                    let both = [v[i], w[i], up[0], up[1]].map(|w| kx.b.int_c(IntOp::And, w, 0x0f0f_0f0f));
                    (both, both)
                };
                for p in 0..3 {
                    for (sums, x) in sums.iter_mut().zip(&x[p * t.runs as usize + r as usize]) {
                        let x = [x[2 * i], x[2 * i + 1]];
                        sums[p] = match p {
                            0 => kx.b.mma(false, true, high, x, sums[p]),
                            _ => kx.b.mma(place == 8, false, low, x, sums[p]),
                        };
                    }
                }
            }
        }
        sums.map(|of| std::array::from_fn(|i| math::quant::join(&mut kx.b, of[0][i], of[1][i], of[2][i])))
    }

    /// Scale and offset of a group for this lane's row of each of two tiles of the warp from `2j` on.
    fn scales(&self, kx: &mut Kx, ring: Mem, at: V, j: u32) -> [(V, V); 2] {
        let Format::Affine { scales, .. } = self.mat.l.format else { return [(at, at); 2] };
        let params = self.mat.l.format.params();
        [0, 1].map(|h| {
            let at = kx.b.add_c(at, (8 * params * (2 * j + h)) as i32);
            if scales == Dtype::F32 {
                let far = kx.b.add_c(at, 8);
                return (kx.b.load(ring, Elem::F32, at, None), kx.b.load(ring, Elem::F32, far, None));
            }
            let word = kx.b.load(ring, Elem::I32, at, None);
            let both = numbers(&mut kx.b, scales, word);
            (both[0], both[1])
        })
    }
}

/// Copies what `c` says, `off` farther, into the slot that begins at `to`.
fn issue(kx: &mut Kx, ring: Mem, c: &Copied, off: V, to: V) {
    let (from, to) = (kx.b.iadd(c.from, off), kx.b.iadd(c.to, to));
    kx.b.copy(ring, to, c.mem, from, c.pred);
}

/// `i < n`, if some thread's `i`, all of them below `most`, is not.
fn below(kx: &mut Kx, i: V, n: u32, most: u32) -> Option<V> {
    (n < most).then(|| {
        let lim = kx.b.i(n as i32);
        kx.b.icmp(ICmp::Lt, i, lim)
    })
}

/// Quotient and remainder.
fn divided(kx: &mut Kx, i: V, n: u32) -> (V, V) {
    (kx.b.int_c(IntOp::Div, i, n as i32), kx.b.int_c(IntOp::Rem, i, n as i32))
}
