//! One stage: which family of kernel it is, how many blocks it takes, and its program.

use super::attention::tiles::{self, Tile};
use super::attention::{self, Shape, parts};
use super::cx::{Kx, chain_lanes, is_row_op, pinned};
use super::heads::{HeadCx, head_dim};
use super::matmul::Matrix;
use super::rows::{RowCx, XRow};
use super::schedule::Schedule;
use super::units::{self, OnUnits};
use super::{blocks, clip, mma, products, route, scaled, stage_rows};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Rows, Stage};
use ir::kernel::{Elem, IntOp, Mem, V};
use ir::math::Arith;
use ir::order::ReductionOrder;
use std::collections::{BTreeMap, BTreeSet};

/// Family of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) enum Family {
    /// Rows only: a block per token.
    Rows,
    /// Heads only, or after a matmul: a block per few heads.
    Heads { dim: u32, heads: u32, per_block: u32 },
    /// Rows of a matmul with elementwise work after it; `ranks` experts one after the other along x.
    Matmul { tiles: u32, per_block: u32, ranks: u32 },
    /// Rows of a matmul for many tokens, on matrix units.
    Mma(OnUnits),
    /// All experts' logits, then the choice: one block.
    Route,
    /// A block per query head.
    Attention(Shape),
    /// Blocks per key head and key block, for one row, and what joins them.
    Parts(Shape, parts::Out),
    /// That.
    Join(Shape, parts::Out),
    /// A block per key head, for some tokens.
    Tiles(Shape, Tile),
    /// One block.
    Argmax,
}

/// A stage with its place in a launch.
pub struct Part<'a> {
    /// The stage.
    pub stage: &'a Stage,
    /// Blocks along x.
    pub grid_x: u32,
    /// Warps it wants.
    pub warps: u32,
    /// Rows along y.
    pub rows: Rows,
    /// Its blocks compute several rows with the weights that they read once. All its rows come from memory: one that it
    /// computed itself would take shared memory for each.
    pub tiled: bool,
    pub(super) family: Family,
    /// Row operations before the matmul.
    prologue: Vec<NodeId>,
    /// Matmuls.
    pub(super) matmuls: Vec<NodeId>,
    /// What follows them.
    pub(super) epilogue: Vec<NodeId>,
    /// Warps that compute a tile of its matmuls together.
    pub(super) share: u32,
}

fn is_matmul(g: &Graph, id: NodeId) -> bool {
    is_expert_matmul(g, id) || matches!(g.node(id).op, Op::QLinear { .. } | Op::Linear { .. })
}

pub(super) fn is_expert_matmul(g: &Graph, id: NodeId) -> bool {
    matches!(g.node(id).op, Op::QExpertLinear { .. } | Op::ExpertLinear { .. })
}

/// The order of a matmul.
pub fn order_of(g: &Graph, id: NodeId) -> Result<ReductionOrder> {
    match g.node(id).op {
        Op::QLinear { order } | Op::QExpertLinear { order } | Op::Linear { order } | Op::ExpertLinear { order } => {
            pinned(g, id, order)
        }
        _ => Err(Diagnostic::new("E0604", "not a matmul").at(&g.node(id).name)),
    }
}

impl<'a> Part<'a> {
    /// Sorts a stage's nodes into prologue, matmuls and epilogue, and chooses its grid.
    pub fn new(g: &Graph, s: &Schedule, stage: &'a Stage) -> Result<Self> {
        let (mut prologue, mut matmuls, mut epilogue) = (vec![], vec![], vec![]);
        let mut after: BTreeSet<NodeId> = BTreeSet::new();
        for &id in &stage.nodes {
            if is_matmul(g, id) {
                matmuls.push(id);
                after.insert(id);
            } else if g.node(id).inputs.iter().any(|i| after.contains(i)) {
                epilogue.push(id);
                after.insert(id);
            } else {
                prologue.push(id);
            }
        }
        let unsupported = |what: &str| {
            Err(Diagnostic::new("E0604", format!("no kernel for this stage: {what}"))
                .at(&stage.name)
                .hint("compile with --fuse off, or report the stage"))
        };
        let tail = if matmuls.is_empty() { &prologue } else { &epilogue };
        let head = tail.iter().find_map(|&id| head_dim(g, id));
        let routes = tail.iter().any(|&id| matches!(g.node(id).op, Op::Route { .. }));
        let mut lanes: Vec<u32> = vec![];
        for &id in &matmuls {
            lanes.push(chain_lanes(s, order_of(g, id)?));
        }
        lanes.dedup();
        if lanes.len() > 1 {
            return unsupported("the orders of its matmuls share rows among different numbers of lanes");
        }
        let lanes = lanes.first().copied().unwrap_or(s.chain_lanes);
        let tile_rows = 32 / lanes;
        let mut warps = s.warps;
        let rows = stage_rows(g, &stage.stores);
        let on_units = units::fits(g, s, stage, rows)?;
        let family = if let Some(on) = on_units {
            warps = mma::WARPS;
            Family::Mma(on)
        } else if let Some(dim) = head {
            let width = tail
                .iter()
                .map(|&id| match g.node(id).op {
                    Op::KvWrite => g.node(g.node(id).inputs[1]).ty.width(),
                    _ => g.node(id).ty.width(),
                })
                .max()
                .unwrap_or(dim);
            if matmuls.is_empty() {
                warps = 1;
            }
            let heads = width / dim;
            let want = (s.tiles * s.warps * tile_rows / dim).max(1);
            let per_block = (1..=want.min(heads)).rev().find(|n| heads % n == 0).unwrap_or(1);
            Family::Heads { dim, heads, per_block }
        } else if routes {
            if stage.nodes.iter().filter(|&&id| matches!(g.node(id).op, Op::Route { .. })).count() != 1 {
                return unsupported("several routes");
            }
            Family::Route
        } else if !matmuls.is_empty() {
            let w = g.node(matmuls[0]).inputs[1];
            let [.., rows, _] = g.node(w).ty.shape[..] else { return unsupported("a matmul without a matrix") };
            let tiles = rows.div_ceil(tile_rows);
            let summed = epilogue.iter().any(|&id| matches!(g.node(id).op, Op::ExpertSum));
            let ranks = match g.node(matmuls[0]).op {
                Op::QExpertLinear { .. } | Op::ExpertLinear { .. } if !summed => g.node(g.node(matmuls[0]).inputs[2]).ty.width(),
                _ => 1,
            };
            Family::Matmul { tiles, per_block: products::per_block(s, tiles, ranks, 1), ranks }
        } else {
            match &stage.nodes[..] {
                [id, rest @ ..] if matches!(g.node(*id).op, Op::Attention { .. }) => {
                    let shape = Shape::of(g, *id)?;
                    let floats = stage.stores.contains(id);
                    match (Tile::of(&shape, s), rest.first().map(|&q| (q, &g.node(q).op))) {
                        (None, Some((q, &Op::Quantize { group }))) if shape.in_parts(s) && rest.len() == 1 => {
                            warps = parts::warps(s);
                            Family::Parts(shape, parts::Out { floats, fixed: Some((q, group)) })
                        }
                        (_, Some(_)) => return unsupported("something follows an attention"),
                        (Some(tile), None) => {
                            warps = tiles::warps(s);
                            Family::Tiles(shape, tile)
                        }
                        (None, None) if shape.in_parts(s) => {
                            warps = parts::warps(s);
                            Family::Parts(shape, parts::Out { floats, fixed: None })
                        }
                        (None, None) => {
                            warps = 1;
                            Family::Attention(shape)
                        }
                    }
                }
                [id] if matches!(g.node(*id).op, Op::Argmax) => {
                    // One block reads all logits: on a GPU of as many warps as a block may have.
                    warps = if s.warps > 1 { 32 } else { 1 };
                    Family::Argmax
                }
                nodes if nodes.iter().all(|&id| is_row_op(g, id)) => {
                    warps = s.row_warps;
                    Family::Rows
                }
                _ => return unsupported("it mixes operations that have no common kernel"),
            }
        };
        if !matmuls.is_empty() && prologue.iter().any(|&id| !is_row_op(g, id)) {
            return unsupported("something before the matmul is not an operation over rows");
        }
        let grid_x = match family {
            Family::Rows | Family::Route | Family::Argmax => 1,
            Family::Heads { heads, per_block, .. } => heads / per_block,
            Family::Matmul { tiles, per_block, ranks } => blocks(tiles, per_block) * ranks,
            Family::Mma(on) => on.grid(),
            Family::Attention(shape) => shape.heads,
            Family::Parts(shape, _) => parts::grid(&shape),
            Family::Join(shape, out) => out.grid(s, &shape),
            Family::Tiles(shape, _) => shape.kv_heads,
        };
        let tiled = matches!(family, Family::Tiles(..) | Family::Mma(..))
            || !matmuls.is_empty() && prologue.is_empty() && !matmuls.iter().any(|&id| is_expert_matmul(g, id));
        Ok(Part { stage, grid_x, warps, rows, tiled, family, prologue, matmuls, epilogue, share: 1 })
    }

    /// Rows of a block, if it is no choice.
    pub fn tile_rows(&self) -> Option<u32> {
        let Family::Tiles(_, tile) = self.family else { return None };
        Some(tile.tokens)
    }

    /// What joins the parts that this leaves.
    pub fn join(&self, s: &Schedule) -> Option<Part<'a>> {
        let Family::Parts(shape, out) = self.family else { return None };
        let (family, none) = (Family::Join(shape, out), Vec::new);
        let grid_x = out.grid(s, &shape);
        let (prologue, matmuls, epilogue) = (none(), none(), none());
        Some(Part {
            stage: self.stage,
            grid_x,
            warps: s.warps,
            rows: self.rows,
            tiled: false,
            family,
            prologue,
            matmuls,
            epilogue,
            share: 1,
        })
    }

    /// Rows of a block on matrix units, and the shared memory that it needs, if it computes there.
    pub fn on_matrix_units(&self) -> Option<(u32, [u32; 2])> {
        match self.family {
            Family::Mma(on) => Some((on.rows(), on.tile.bytes(&on.l))),
            _ => None,
        }
    }

    /// The route whose lists of rows by expert it reads.
    pub fn lists(&self) -> Option<NodeId> {
        match self.family {
            Family::Mma(on) => on.route,
            _ => None,
        }
    }

    fn stored(&self, among: &[NodeId]) -> Vec<NodeId> {
        self.stage.stores.iter().copied().filter(|s| among.contains(s)).collect()
    }

    /// The program of one block, numbered `bx` within the stage.
    pub fn emit(&self, kx: &mut Kx, bx: V) -> Result<()> {
        kx.rows_differ = matches!(self.family, Family::Mma(_) | Family::Tiles(..));
        if self.tiled || kx.tile() == 1 {
            return self.emit_rows(kx, bx);
        }
        let mut r = Ok(());
        kx.each_row(|kx, _| {
            r = self.emit_rows(kx, bx);
            // The next row's work takes the same places in shared memory.
            kx.b.barrier();
        });
        r
    }

    /// The program for the row at which it stands, or, tiled, for all rows of the block.
    fn emit_rows(&self, kx: &mut Kx, bx: V) -> Result<()> {
        let first = kx.is_zero(bx);
        match self.family {
            Family::Attention(shape) => return attention::attention(kx, &shape, bx),
            Family::Parts(shape, _) => return parts::parts(kx, &shape, bx),
            Family::Join(shape, out) => return parts::join(kx, &shape, out, bx),
            Family::Tiles(shape, tile) => return tiles::tiles(kx, &shape, tile, bx),
            Family::Argmax => return route::argmax(kx, self.stage.nodes[0]),
            Family::Mma(on) => return on.emit(kx, self.matmuls[0], bx),
            Family::Rows => {
                let t = kx.b.b(true);
                return RowCx::new(&self.prologue, false, &[]).run(kx, &self.stored(&self.prologue), t);
            }
            Family::Heads { dim, per_block, .. } if self.matmuls.is_empty() => {
                return self.heads(kx, bx, dim, per_block, &BTreeMap::new(), |_, _| Ok(()));
            }
            Family::Route if self.matmuls.is_empty() => {
                return self.on_warps(kx, |kx, _| route::route(kx, self.stage.nodes[0], None));
            }
            _ => {}
        }
        let plain = |id: &&NodeId| matches!(kx.g.node(**id).op, Op::Linear { .. } | Op::ExpertLinear { .. });
        let mut floats: Vec<NodeId> = self.matmuls.iter().filter(plain).map(|&id| kx.g.node(id).inputs[0]).collect();
        floats.dedup();
        let mut rows = RowCx::new(&self.prologue, true, &floats);
        rows.run(kx, &self.stored(&self.prologue), first)?;
        let mats: Vec<Matrix> = self.matmuls.iter().map(|&id| self.matrix(kx, id)).collect::<Result<_>>()?;
        match self.family {
            Family::Matmul { tiles, per_block, ranks } => self.tiles(kx, &mut rows, &mats, bx, tiles, per_block, ranks),
            Family::Heads { dim, per_block, .. } => {
                let bytes = 4 * dim * self.tile(kx);
                let arrays: BTreeMap<_, _> = self.matmuls.iter().map(|&id| (id, kx.shared("head", bytes))).collect();
                self.heads(kx, bx, dim, per_block, &arrays, |kx, head| {
                    for (id, mat) in self.matmuls.iter().zip(&mats) {
                        let xs = self.xrows(kx, &mut rows, *id)?;
                        let n = dim / mat.l.tile_rows();
                        let zero = kx.b.i(0);
                        let first_tile = scaled(kx, head, n, zero);
                        self.each_tile(kx, n, |kx, t, valid| {
                            let tile = kx.b.iadd(first_tile, t);
                            let ys = mat.dots(kx, &xs, tile, zero);
                            let (row, pred) = mat.row(kx, t);
                            let p = kx.and(pred, valid);
                            store_rows(kx, arrays[id], dim, row, &ys, p);
                            Ok(())
                        })?;
                    }
                    kx.b.barrier();
                    Ok(())
                })
            }
            Family::Route => {
                let (id, mat) = (self.matmuls[0], mats[0]);
                let xs = self.xrows(kx, &mut rows, id)?;
                let mem = kx.shared("logits", 4 * mat.l.rows * self.tile(kx));
                let zero = kx.b.i(0);
                self.each_tile(kx, mat.l.tiles(), |kx, t, valid| {
                    let ys = mat.dots(kx, &xs, t, zero);
                    let (row, pred) = mat.row(kx, t);
                    let p = kx.and(pred, valid);
                    store_rows(kx, mem, mat.l.rows, row, &ys, p);
                    Ok(())
                })?;
                kx.b.barrier();
                let last = self.epilogue[0];
                self.on_warps(kx, |kx, r| {
                    let first = kx.b.mul_c(r, mat.l.rows as i32);
                    route::route(kx, last, Some((mem, first)))
                })
            }
            _ => Ok(()),
        }
    }

    fn matrix(&self, kx: &mut Kx, id: NodeId) -> Result<Matrix> {
        let order = order_of(kx.g, id)?;
        Matrix::bind(kx, kx.g.node(id).inputs[1], order)
    }

    /// Rows that it computes at once.
    pub(super) fn tile(&self, kx: &Kx) -> u32 {
        if self.tiled { kx.tile() } else { 1 }
    }

    /// The rows that a matmul reads.
    pub(super) fn xrows(&self, kx: &mut Kx, rows: &mut RowCx, matmul: NodeId) -> Result<Vec<XRow>> {
        if self.tile(kx) == 1 {
            return Ok(vec![rows.xrow(kx, matmul)?]);
        }
        (0..kx.tile())
            .map(|r| {
                let r = kx.b.i(r as i32);
                kx.go_to(r);
                rows.xrow(kx, matmul)
            })
            .collect()
    }

    /// Runs `f(row)`, the work of one warp, for each row that it computes at once: row `r` on warp `r % warps`.
    fn on_warps(&self, kx: &mut Kx, f: impl FnOnce(&mut Kx, V) -> Result<()>) -> Result<()> {
        let (warps, warp) = (kx.b.warps(), kx.b.warp());
        let mut result = Ok(());
        if self.tile(kx) == 1 {
            let zero = kx.b.i(0);
            if warps == 1 {
                return f(kx, zero);
            }
            let first = kx.is_zero(warp);
            kx.when(first, |kx| result = f(kx, zero));
            return result;
        }
        let here = kx.rows_here();
        let up = kx.b.add_c(here, warps as i32 - 1);
        let mine = kx.b.isub(up, warp);
        let trip = kx.b.int_c(IntOp::Div, mine, warps as i32);
        kx.for_(trip, &[], |kx, t, _| {
            let r = scaled(kx, t, warps, warp);
            kx.go_to(r);
            result = f(kx, r);
            vec![]
        });
        result
    }

    /// Runs `f(tile, valid)` for tiles `warp, warp + warps, ...` of `count`, as often in every warp; a tile past the end is
    /// replaced by the last, with `valid` false.
    fn each_tile(&self, kx: &mut Kx, count: u32, mut f: impl FnMut(&mut Kx, V, Option<V>) -> Result<()>) -> Result<()> {
        let (warps, warp) = (kx.b.warps(), kx.b.warp());
        let trip = kx.b.i(count.div_ceil(warps) as i32);
        let mut r = Ok(());
        kx.for_(trip, &[], |kx, t, _| {
            let tile = scaled(kx, t, warps, warp);
            let (tile, valid) = clip(kx, tile, count, count.is_multiple_of(warps));
            r = f(kx, tile, valid);
            vec![]
        });
        r
    }

    /// Runs the head operations for this block's heads; `rows` computes the matmul rows of a head into the `arrays` of
    /// shared memory, `dim` elements for each row of the block.
    fn heads(
        &self,
        kx: &mut Kx,
        bx: V,
        dim: u32,
        per_block: u32,
        arrays: &BTreeMap<NodeId, Mem>,
        mut rows: impl FnMut(&mut Kx, V) -> Result<()>,
    ) -> Result<()> {
        let nodes: Vec<NodeId> = if self.matmuls.is_empty() { self.prologue.clone() } else { self.epilogue.clone() };
        let trip = kx.b.i(per_block as i32);
        let mut r = Ok(());
        kx.for_(trip, &[], |kx, t, _| {
            let head = scaled(kx, bx, per_block, t);
            r = (|| {
                rows(kx, head)?;
                self.on_warps(kx, |kx, r| {
                    let first = kx.b.mul_c(r, dim as i32);
                    let here = arrays.iter().map(|(&id, &mem)| (id, (mem, first))).collect();
                    HeadCx::new(dim, head, here)?.run(kx, &nodes, &self.stage.stores)
                })?;
                if !arrays.is_empty() && per_block > 1 {
                    kx.b.barrier();
                }
                Ok(())
            })();
            vec![]
        });
        r
    }
}

/// Stores one element of each row of the block into an array of `width` elements a row.
fn store_rows(kx: &mut Kx, mem: Mem, width: u32, at: V, ys: &[V], pred: Option<V>) {
    for (r, &y) in ys.iter().enumerate() {
        let at = kx.b.add_c(at, (r as u32 * width) as i32);
        kx.b.store(mem, Elem::F32, at, y, pred);
    }
}
