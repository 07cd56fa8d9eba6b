//! Stages on integer matrix units: a quantized matmul of many tokens, or of the experts that they chose, alone in its kernel.

use super::cx::{Kx, layout};
use super::matmul::Matrix;
use super::rows::RowCx;
use super::schedule::Schedule;
use super::stage::order_of;
use super::{blocks, dispatch, mma, scaled};
use ir::diag::Result;
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Rows, Stage};
use ir::kernel::{ICmp, IntOp, V};
use ir::layout::MatrixLayout;
use ir::math::Arith;
use ir::plan::state;
use std::collections::BTreeMap;

/// How a stage computes on matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnUnits {
    /// How its work is cut.
    pub tile: mma::Tile,
    /// Layout of the matrix.
    pub l: MatrixLayout,
    /// For a matmul of chosen experts, the choice.
    pub route: Option<NodeId>,
}

/// How a stage computes on matrix units, if it can: one quantized matmul of tokens whose rows lie in memory.
pub fn fits(g: &Graph, s: &Schedule, stage: &Stage, rows: Rows) -> Result<Option<OnUnits>> {
    let [id] = stage.nodes[..] else { return Ok(None) };
    let n = g.node(id);
    let route = match n.op {
        Op::QLinear { .. } => None,
        Op::QExpertLinear { .. } => Some(n.inputs[2]),
        _ => return Ok(None),
    };
    if s.mma == 0 || rows != Rows::Tokens || route.is_some() && s.grouped == 0 {
        return Ok(None);
    }
    let l = layout(g, s, n.inputs[1], order_of(g, id)?)?;
    Ok(mma::Tile::of(&l, s).map(|tile| OnUnits { tile, l, route }))
}

impl OnUnits {
    /// Blocks along x.
    pub fn grid(&self) -> u32 {
        blocks(self.l.tiles(), self.tile.tiles()) * self.l.stack
    }

    /// Rows of a chunk that count for one block along y.
    pub fn rows(&self) -> u32 {
        if self.route.is_some() { dispatch::ROWS } else { self.tile.rows }
    }

    /// The program of block `bx`.
    pub fn emit(&self, kx: &mut Kx, id: NodeId, bx: V) -> Result<()> {
        let mat = Matrix::bind(kx, kx.g.node(id).inputs[1], order_of(kx.g, id)?)?;
        match self.route {
            None => self.products(kx, &mat, id, bx),
            Some(route) => self.expert_products(kx, &mat, id, bx, route),
        }
    }

    /// The matmul of a block on matrix units.
    fn products(&self, kx: &mut Kx, mat: &Matrix, id: NodeId, bx: V) -> Result<()> {
        let tile = self.tile;
        let first = kx.b.mul_c(bx, tile.tiles() as i32);
        let base = kx.b.i(0);
        let x = |kx: &mut Kx, row: V| {
            kx.go_to(row);
            let row = RowCx::default().qrow(kx, kx.g.node(id).inputs[0])?;
            Ok(mma::Source { row, first: base })
        };
        for p in (mma::Block { tile, mat, first, base }).products(kx, x)? {
            let there = kx.go_to(p.row);
            let pred = kx.and(there, p.exists);
            kx.store_value(id, p.column, p.value, pred);
        }
        Ok(())
    }

    /// The same for one expert: the rows of the chunk that chose it, some tiles of them.
    fn expert_products(&self, kx: &mut Kx, mat: &Matrix, id: NodeId, bx: V, route: NodeId) -> Result<()> {
        let (tile, l) = (self.tile, self.l);
        let across = blocks(l.tiles(), tile.tiles());
        let (expert, first) = (kx.b.int_c(IntOp::Div, bx, across as i32), kx.b.int_c(IntOp::Rem, bx, across as i32));
        let (first, base) = (kx.b.mul_c(first, tile.tiles() as i32), kx.b.mul_c(expert, l.tiles() as i32));
        let (begin, end) = dispatch::list(kx, route, expert);
        // This block takes tile y, and every one that is as many farther as there are blocks along y.
        let blocks = |kx: &mut Kx| {
            let tokens = kx.state(state::TOKENS);
            let step = kx.b.add_c(tokens, dispatch::ROWS as i32 - 1);
            kx.b.int_c(IntOp::Div, step, dispatch::ROWS as i32)
        };
        let step = blocks(kx);
        let (y, zero) = (kx.b.block_y(), kx.b.i(0));
        let pairs = kx.b.isub(end, begin);
        let tiles = kx.b.add_c(pairs, tile.rows as i32 - 1);
        let tiles = kx.b.int_c(IntOp::Div, tiles, tile.rows as i32);
        let left = kx.b.isub(tiles, y);
        let left = kx.b.iadd(left, step);
        let left = kx.b.add_c(left, -1);
        let left = kx.b.int(IntOp::Max, left, zero);
        let trip = kx.b.int(IntOp::Div, left, step);
        let x = kx.g.node(id).inputs[0];
        let one_row = kx.g.node(x).ty.width() == l.cols;
        let top = scaled(kx, y, tile.rows, begin);
        let mut result = Ok(());
        kx.for_(trip, &[top], |kx, _, top| {
            let top = top[0];
            // An entry that is not there is replaced by the last.
            let entry = |kx: &mut Kx, row: V, end: V| {
                let at = kx.b.iadd(top, row);
                let (there, last) = (kx.b.icmp(ICmp::Lt, at, end), kx.b.add_c(end, -1));
                let at = kx.b.int(IntOp::Min, at, last);
                let (row, rank) = dispatch::pair(kx, route, at);
                kx.stand_at(row);
                (rank, there)
            };
            // Read again where it is used again: a register is dearer.
            let (_, end) = dispatch::list(kx, route, expert);
            let source = |kx: &mut Kx, row: V| {
                let (rank, _) = entry(kx, row, end);
                let row = RowCx::default().qrow(kx, x)?;
                // One row of activations for all ranks, or one for each.
                let first = if one_row { zero } else { kx.b.mul_c(rank, l.units() as i32) };
                Ok(mma::Source { row, first })
            };
            result = (|| {
                let products = mma::Block { tile, mat, first, base }.products(kx, source)?;
                let (_, end) = dispatch::list(kx, route, expert);
                let mut rows: BTreeMap<V, (V, V, V)> = BTreeMap::new();
                for p in products {
                    let (row, rank, there) = *rows.entry(p.row).or_insert_with(|| {
                        let (rank, there) = entry(kx, p.row, end);
                        (kx.tok, rank, there)
                    });
                    kx.stand_at(row);
                    let pred = kx.and(Some(there), p.exists);
                    let column = scaled(kx, rank, l.rows, p.column);
                    kx.store_value(id, column, p.value, pred);
                }
                Ok(())
            })();
            let step = blocks(kx);
            vec![scaled(kx, step, tile.rows, top)]
        });
        result
    }
}
