//! Rows of matmuls with elementwise work after them: a block has some tiles of rows. Where there are few tiles, the warps of a
//! block compute a tile together: sums within a group are exact, so each warp leaves the terms of its groups in shared memory,
//! and one makes the chains of them, in their order.

use super::cx::{Kx, Memo, layout};
use super::matmul::{Loaded, Matrix, Member};
use super::rows::{RowCx, XRow};
use super::schedule::Schedule;
use super::stage::{Family, Part, is_expert_matmul, order_of};
use super::{blocks, clip, scaled};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId};
use ir::kernel::{Elem, IntOp, Mem, V};
use ir::layout::Format;
use ir::math::{self, Arith};
use std::collections::BTreeMap;

/// Tiles of a block, of which `share` warps compute one together: as many blocks as that takes, and as even as can be.
pub fn per_block(s: &Schedule, tiles: u32, ranks: u32, share: u32) -> u32 {
    let round = s.warps / share;
    let most = if s.most_blocks == 0 { u32::MAX } else { (s.most_blocks / ranks).max(1) };
    let per_block = tiles.div_ceil(blocks(tiles, s.tiles * round).min(most)).next_multiple_of(round);
    per_block.min(tiles)
}

/// Lets the warps of each block share tiles, as far as there is room for more warps.
pub fn share(g: &Graph, s: &Schedule, parts: &mut [Part]) -> Result<()> {
    let mut most = vec![];
    for p in parts.iter() {
        most.push(p.most_warps(g, s)?);
    }
    let warps = |share: u32| -> u32 {
        let of = |(p, most): (&Part, &u32)| match p.family {
            Family::Matmul { tiles, ranks, .. } => tiles * ranks * share.min(*most),
            _ => 0,
        };
        parts.iter().zip(&most).map(of).fold(0, u32::saturating_add)
    };
    let fits = |share: &u32| s.most_blocks == 0 || warps(*share) <= s.most_blocks * s.warps;
    let share = [8, 4, 2].into_iter().filter(|n| *n <= s.share).find(fits).unwrap_or(1);
    for (p, most) in parts.iter_mut().zip(most) {
        if let Family::Matmul { tiles, per_block: block, ranks } = &mut p.family {
            p.share = share.min(most);
            *block = per_block(s, *tiles, *ranks, p.share);
            p.grid_x = blocks(*tiles, *block) * *ranks;
        }
    }
    Ok(())
}

/// Where what warps leave for each other lies, if they share tiles.
struct Team {
    /// Shared memory.
    mem: Mem,
    /// First float of this team's.
    at: V,
    member: Member,
}

impl Part<'_> {
    fn sum(&self, g: &Graph) -> Option<NodeId> {
        self.epilogue.iter().copied().find(|&id| matches!(g.node(id).op, Op::ExpertSum))
    }

    /// Warps that can compute a tile together: each has at least a step of every chain, or a rank of an expert sum.
    fn most_warps(&self, g: &Graph, s: &Schedule) -> Result<u32> {
        let Family::Matmul { .. } = self.family else { return Ok(1) };
        let mut most = s.warps.min(s.share);
        if s.tokens > 1 || s.stages > 0 {
            return Ok(1);
        }
        for &id in &self.matmuls {
            let l = layout(g, s, g.node(id).inputs[1], order_of(g, id)?)?;
            if !matches!(l.format, Format::Affine { .. }) || l.chains_per_lane() > 1 {
                return Ok(1);
            }
            most = most.min(match self.sum(g) {
                Some(sum) => g.node(g.node(sum).inputs[1]).ty.width(),
                None => l.chain_len(),
            });
        }
        Ok(1 << most.max(1).ilog2())
    }

    /// All tiles of the block.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn tiles(
        &self,
        kx: &mut Kx,
        rows: &mut RowCx,
        mats: &[Matrix],
        bx: V,
        tiles: u32,
        per_block: u32,
        ranks: u32,
    ) -> Result<()> {
        let per_rank = blocks(tiles, per_block);
        let (rank, block) = if ranks == 1 {
            (kx.b.i(0), bx)
        } else {
            (kx.b.int_c(IntOp::Div, bx, per_rank as i32), kx.b.int_c(IntOp::Rem, bx, per_rank as i32))
        };
        let sum = self.sum(kx.g);
        let team = self.team(kx, mats, sum);
        let teams = kx.b.warps() / team.as_ref().map_or(1, |t| t.member.of);
        let warp = kx.b.warp();
        let first = kx.b.int_c(IntOp::Div, warp, (kx.b.warps() / teams) as i32);
        let exact = tiles.is_multiple_of(per_block) && per_block.is_multiple_of(teams);
        let turns = per_block.div_ceil(teams);
        let trip = kx.b.i(turns as i32);
        let locate = |kx: &mut Kx, t: V| {
            let tile = scaled(kx, t, teams, first);
            // A warp past its block's tiles must not compute the next block's.
            let (tile, in_block) = clip(kx, tile, per_block, per_block.is_multiple_of(teams));
            let tile = scaled(kx, block, per_block, tile);
            let (tile, in_matrix) = clip(kx, tile, tiles, exact || tiles.is_multiple_of(per_block));
            (tile, kx.and(in_block, in_matrix))
        };
        // Weights are on their way before the row is looked at, which may not be there yet.
        let mut early = None;
        if let (Some(team), 1) = (&team, turns) {
            let zero = kx.b.i(0);
            let (tile, _) = locate(kx, zero);
            early = Some(self.load(kx, mats, sum, tile, rank, team));
        }
        let mut xs = BTreeMap::new();
        for &id in &self.matmuls {
            xs.insert(id, self.xrows(kx, rows, id)?);
        }
        let mut r = Ok(());
        kx.for_(trip, &[], |kx, t, _| {
            let (tile, valid) = locate(kx, t);
            let place = Tile { tile, valid, rank: (ranks > 1).then_some(rank) };
            r = match &team {
                None => self.alone(kx, rows, mats, &xs, sum, &place),
                Some(team) => {
                    let loaded = early.take().unwrap_or_else(|| self.load(kx, mats, sum, tile, rank, team));
                    self.together(kx, rows, mats, &xs, sum, &place, team, &loaded, turns > 1)
                }
            };
            vec![]
        });
        r
    }

    /// The warp's team, if warps share tiles and there is room for what they leave for each other.
    fn team(&self, kx: &mut Kx, mats: &[Matrix], sum: Option<NodeId>) -> Option<Team> {
        let warps = kx.b.warps();
        if self.share == 1 || !mats.iter().all(|m| m.in_terms(kx)) {
            return None;
        }
        let bytes = match sum {
            Some(sum) => 128 * ranks_of(kx.g, sum),
            None => mats.iter().map(Matrix::terms_bytes).sum(),
        };
        let all = bytes * (warps / self.share);
        if !kx.take_room(all) {
            return None;
        }
        let (mem, warp) = (kx.shared("terms", all), kx.b.warp());
        let team = kx.b.int_c(IntOp::Div, warp, self.share as i32);
        let at = kx.b.mul_c(team, (bytes / 4) as i32);
        let number = kx.b.int_c(IntOp::Rem, warp, self.share as i32);
        Some(Team { mem, at, member: Member { number, of: self.share } })
    }

    /// Reads this warp's weights of a tile: of its groups in each matrix, or of its ranks.
    fn load(&self, kx: &mut Kx, mats: &[Matrix], sum: Option<NodeId>, tile: V, rank: V, team: &Team) -> Vec<Loaded> {
        let Some(sum) = sum else {
            let of = self.matmuls.iter().zip(mats);
            return of
                .map(|(&id, mat)| {
                    let (tile, _) = place(kx, id, mat, tile, rank);
                    mat.load(kx, tile, team.member)
                })
                .collect();
        };
        let alone = Member { number: kx.b.i(0), of: 1 };
        let mine = ranks_of_member(kx, sum, team.member);
        let load = |(rank, _): (V, Option<V>)| {
            let (tile, _) = place(kx, self.matmuls[0], &mats[0], tile, rank);
            mats[0].load(kx, tile, alone)
        };
        mine.into_iter().map(load).collect()
    }

    /// A tile by one warp, for each row of the block.
    fn alone(
        &self,
        kx: &mut Kx,
        rows: &RowCx,
        mats: &[Matrix],
        xs: &BTreeMap<NodeId, Vec<XRow>>,
        sum: Option<NodeId>,
        at: &Tile,
    ) -> Result<()> {
        let mut results: Vec<(NodeId, Vec<V>)> = vec![];
        if let Some(sum) = sum {
            let (id, mat) = (self.matmuls[0], &mats[0]);
            let (zero, ranks) = (kx.b.f(0.0), kx.b.i(ranks_of(kx.g, sum) as i32));
            let y = kx.for_(ranks, &[zero], |kx, rank, acc| {
                let v = products(kx, id, mat, &xs[&id][..1], at.tile, rank)[0];
                vec![weighted(kx, sum, rank, v, acc[0])]
            });
            results.push((sum, y));
        } else {
            let zero = kx.b.i(0);
            for (id, mat) in self.matmuls.iter().zip(mats) {
                results.push((*id, products(kx, *id, mat, &xs[id], at.tile, at.rank.unwrap_or(zero))));
            }
        }
        self.after(kx, rows, &mats[0], &results, at)
    }

    /// A tile by all warps of a team.
    #[allow(clippy::too_many_arguments)]
    fn together(
        &self,
        kx: &mut Kx,
        rows: &RowCx,
        mats: &[Matrix],
        xs: &BTreeMap<NodeId, Vec<XRow>>,
        sum: Option<NodeId>,
        at: &Tile,
        team: &Team,
        loaded: &[Loaded],
        again: bool,
    ) -> Result<()> {
        let (lane, zero) = (kx.b.lane(), kx.b.i(0));
        let here = kx.b.iadd(team.at, lane);
        match sum {
            Some(sum) => {
                let (id, mat) = (self.matmuls[0], &mats[0]);
                for ((rank, exists), loaded) in ranks_of_member(kx, sum, team.member).into_iter().zip(loaded) {
                    let (_, unit0) = place(kx, id, mat, at.tile, rank);
                    let y = mat.finish(kx, loaded, xs[&id][0], unit0);
                    let slot = scaled(kx, rank, 32, here);
                    kx.b.store(team.mem, Elem::F32, slot, y, exists);
                }
            }
            None => {
                let mut first = team.at;
                for ((id, mat), loaded) in self.matmuls.iter().zip(mats).zip(loaded) {
                    let (_, unit0) = place(kx, *id, mat, at.tile, at.rank.unwrap_or(zero));
                    mat.terms(kx, loaded, xs[id][0], unit0, team.member, (team.mem, first));
                    first = kx.b.add_c(first, (mat.terms_bytes() / 4) as i32);
                }
            }
        }
        kx.b.barrier();
        let leads = kx.is_zero(team.member.number);
        let mut r = Ok(());
        kx.when(leads, |kx| {
            let mut results = vec![];
            if let Some(sum) = sum {
                let ys: Vec<V> = (0..ranks_of(kx.g, sum))
                    .map(|rank| {
                        let slot = kx.b.add_c(here, (rank * 32) as i32);
                        kx.b.load(team.mem, Elem::F32, slot, None)
                    })
                    .collect();
                let mut acc = kx.b.f(0.0);
                for (rank, y) in ys.into_iter().enumerate() {
                    let rank = kx.b.i(rank as i32);
                    acc = weighted(kx, sum, rank, y, acc);
                }
                results.push((sum, vec![acc]));
            } else {
                let mut first = team.at;
                for (id, mat) in self.matmuls.iter().zip(mats) {
                    results.push((*id, vec![mat.fold(kx, (team.mem, first))]));
                    first = kx.b.add_c(first, (mat.terms_bytes() / 4) as i32);
                }
            }
            r = self.after(kx, rows, &mats[0], &results, at);
        });
        if again {
            // The next tile's terms take the same places.
            kx.b.barrier();
        }
        r
    }

    /// What follows the matmuls' rows of a tile, of which each node has one for every row of the block.
    fn after(&self, kx: &mut Kx, rows: &RowCx, mat: &Matrix, results: &[(NodeId, Vec<V>)], at: &Tile) -> Result<()> {
        let (row, pred) = mat.row(kx, at.tile);
        let pred = kx.and(pred, at.valid);
        let column = at.rank.map_or(row, |rank| scaled(kx, rank, mat.l.rows, row));
        let summed = self.sum(kx.g).is_some();
        for r in 0..self.tile(kx) {
            let there = if self.tile(kx) == 1 {
                None
            } else {
                let r = kx.b.i(r as i32);
                kx.go_to(r)
            };
            let pred = kx.and(pred, there);
            let mut memo: Memo = results.iter().map(|(id, of)| (*id, of[r as usize])).collect();
            for &id in self.matmuls.iter().chain(&self.epilogue) {
                let v = match memo.get(&id) {
                    Some(v) => *v,
                    None if summed && self.matmuls.contains(&id) => continue,
                    None => elementwise(kx, rows, id, row, &memo)?,
                };
                memo.insert(id, v);
                if self.stage.stores.contains(&id) {
                    kx.store_value(id, column, v, pred);
                }
            }
        }
        Ok(())
    }
}

/// A tile of a block.
struct Tile {
    tile: V,
    /// Whether it exists, unless that is certain.
    valid: Option<V>,
    /// Rank of the expert whose matrix it is of, if the stage computes one for each.
    rank: Option<V>,
}

/// One elementwise operation after a matmul, of row `row`.
fn elementwise(kx: &mut Kx, rows: &RowCx, id: NodeId, row: V, memo: &Memo) -> Result<V> {
    let n = kx.g.node(id);
    let get = |kx: &mut Kx, i: NodeId| -> Result<V> {
        if let Some(v) = memo.get(&i) {
            return Ok(*v);
        }
        if matches!(kx.g.node(i).op, Op::Weight) {
            let at = if kx.g.node(i).ty.width() == 1 { kx.b.i(0) } else { row };
            return kx.load_plain(i, at);
        }
        // A row value of this block, or one in memory.
        rows.eval(kx, i, row, &mut Memo::new())
    };
    Ok(match n.op {
        Op::GeluMul => {
            let (g, u) = (get(kx, n.inputs[0])?, get(kx, n.inputs[1])?);
            let y = math::gelu(&mut kx.b, g);
            kx.b.mul(y, u)
        }
        Op::Softcap { cap } => {
            let x = get(kx, n.inputs[0])?;
            super::rows::softcap(kx, x, cap)
        }
        Op::Add => {
            let (a, b) = (get(kx, n.inputs[0])?, get(kx, n.inputs[1])?);
            kx.b.add(a, b)
        }
        Op::Mul => {
            let (a, b) = (get(kx, n.inputs[0])?, get(kx, n.inputs[1])?);
            kx.b.mul(a, b)
        }
        Op::MulConst { c } => {
            let (a, c) = (get(kx, n.inputs[0])?, kx.b.f(c));
            kx.b.mul(a, c)
        }
        Op::RoundBf16 => {
            let a = get(kx, n.inputs[0])?;
            kx.b.round_bf16(a)
        }
        _ => {
            return Err(Diagnostic::new("E0604", format!("`{}` cannot follow a matmul in its kernel", n.op.name())).at(&n.name));
        }
    })
}

/// Ranks of an expert sum.
fn ranks_of(g: &Graph, sum: NodeId) -> u32 {
    g.node(g.node(sum).inputs[1]).ty.width()
}

/// The ranks that are a member's, with whether they exist, unless that is certain.
fn ranks_of_member(kx: &mut Kx, sum: NodeId, member: Member) -> Vec<(V, Option<V>)> {
    let ranks = ranks_of(kx.g, sum);
    (0..ranks.div_ceil(member.of))
        .map(|i| {
            let rank = kx.b.add_c(member.number, (i * member.of) as i32);
            clip(kx, rank, ranks, (i + 1) * member.of <= ranks)
        })
        .collect()
}

/// `acc` plus the weight of a rank times what its expert gives.
fn weighted(kx: &mut Kx, sum: NodeId, rank: V, v: V, acc: V) -> V {
    let w = kx.expert_weight(kx.g.node(sum).inputs[1], rank);
    kx.b.fma(w, v, acc)
}

/// One matmul's row of `tile` times each of `xs`: of the matrix, or of the expert of `rank`.
fn products(kx: &mut Kx, id: NodeId, mat: &Matrix, xs: &[XRow], tile: V, rank: V) -> Vec<V> {
    let (tile, unit0) = place(kx, id, mat, tile, rank);
    mat.dots(kx, xs, tile, unit0)
}

/// The tile in the whole stack of matrices, and the first unit of the row that it is multiplied by.
fn place(kx: &mut Kx, id: NodeId, mat: &Matrix, tile: V, rank: V) -> (V, V) {
    let n = kx.g.node(id);
    let zero = kx.b.i(0);
    if !is_expert_matmul(kx.g, id) {
        return (tile, zero);
    }
    let e = kx.expert(n.inputs[2], rank);
    let tile = scaled(kx, e, mat.l.tiles(), tile);
    // One row of activations for all ranks, or one for each.
    let unit0 = if kx.g.node(n.inputs[0]).ty.width() == mat.l.cols { zero } else { scaled(kx, rank, mat.l.units(), zero) };
    (tile, unit0)
}
