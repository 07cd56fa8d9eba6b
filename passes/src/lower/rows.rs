//! Operations over a token's whole row, computed by every block that needs them: norms, sums, products, embedding,
//! quantization. Elementwise nodes are evaluated where they are read; a reduction makes one pass over the row and leaves
//! what it read in shared memory; quantization leaves byte planes for the matmul.

use super::cx::{ArgKey, Kx, Memo, Written, pinned};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::{EmbedMode, Op};
use ir::graph::{Elem as GElem, NodeId};
use ir::kernel::{Elem, ICmp, IntOp, Mem, V};
use ir::math::{self, Arith};
use ir::order::{ReductionOrder, Take};
use std::collections::BTreeMap;

/// A quantized row: where its planes lie (bytes), and its dimensions.
#[derive(Clone, Copy, Debug)]
pub struct QRow {
    /// Memory.
    pub mem: Mem,
    /// First byte of the row, a multiple of 4.
    pub base: V,
    /// Elements of the row.
    pub width: u32,
    /// Elements of a group.
    pub group: u32,
}

/// A row of floats: where it lies, in elements.
#[derive(Clone, Copy, Debug)]
pub struct FRow {
    /// Memory.
    pub mem: Mem,
    /// First element of the row, a multiple of 4.
    pub base: V,
}

/// What a matmul reads.
#[derive(Clone, Copy, Debug)]
pub enum XRow {
    /// Fixed point, for affine weights.
    Fixed(QRow),
    /// Floats, for plain weights.
    Floats(FRow),
}

/// Row values of one block.
#[derive(Default)]
pub struct RowCx {
    nodes: Vec<NodeId>,
    planes_here: bool,
    /// Rows that a matmul of this block reads as floats.
    floats: Vec<NodeId>,
    shared: BTreeMap<NodeId, Mem>,
    norm: BTreeMap<NodeId, V>,
    quant: BTreeMap<NodeId, QRow>,
}

impl RowCx {
    /// Row values over `nodes` (in topological order); others are read from memory. `planes_here`: a matmul of this block
    /// reads the quantized rows, so they are kept in shared memory even where they are stored too. So are `floats`, rows that
    /// a matmul of this block reads as they are.
    pub fn new(nodes: &[NodeId], planes_here: bool, floats: &[NodeId]) -> Self {
        RowCx { nodes: nodes.to_vec(), planes_here, floats: floats.to_vec(), ..RowCx::default() }
    }

    /// Computes reductions and quantizations, and stores `stores` in the lanes where `owner` holds.
    pub fn run(&mut self, kx: &mut Kx, stores: &[NodeId], owner: V) -> Result<()> {
        for id in self.nodes.clone() {
            let n = kx.g.node(id);
            match n.op {
                Op::RmsNorm { dim, eps, order } => {
                    let order = pinned(kx.g, id, order)?;
                    let x = n.inputs[0];
                    let store = stores.contains(&x).then_some(owner);
                    let sum = self.sum_of_squares(kx, x, dim, order, store)?;
                    let (inv, eps) = (kx.b.f(1.0 / dim as f32), kx.b.f(eps));
                    let mean = kx.b.fma(sum, inv, eps);
                    let r = kx.rsqrt(mean);
                    self.norm.insert(id, r);
                }
                Op::Quantize { group } => {
                    let q = self.quantize(kx, id, n.inputs[0], group, stores.contains(&id).then_some(owner))?;
                    self.quant.insert(id, q);
                }
                _ => {}
            }
        }
        for id in self.floats.clone() {
            if !self.nodes.contains(&id) {
                continue;
            }
            match self.shared.get(&id) {
                // Kept by a reduction, for the lanes that wrote it.
                Some(_) => kx.b.barrier(),
                None => self.keep_row(kx, id, stores.contains(&id).then_some(owner))?,
            }
        }
        for &id in stores {
            let done = self.shared.contains_key(&id) || matches!(kx.g.node(id).op, Op::Quantize { .. });
            if !done && self.nodes.contains(&id) {
                self.store_row(kx, id, owner)?;
            }
        }
        Ok(())
    }

    /// The row that a matmul reads: of this block, or from memory.
    pub fn xrow(&mut self, kx: &mut Kx, matmul: NodeId) -> Result<XRow> {
        let n = kx.g.node(matmul);
        let x = n.inputs[0];
        if !matches!(n.op, Op::Linear { .. } | Op::ExpertLinear { .. }) {
            return self.qrow(kx, x).map(XRow::Fixed);
        }
        if kx.g.node(n.inputs[1]).ty.dtype().is_none() {
            return Err(Diagnostic::new("E0604", "a matmul with affine weights has no kernel as it is")
                .at(&n.name)
                .hint("run the pass quant-lower before lowering"));
        }
        if let Some(&mem) = self.shared.get(&x) {
            let base = kx.b.i(0);
            return Ok(XRow::Floats(FRow { mem, base }));
        }
        let mem = kx.arg(ArgKey::Value(x), false);
        let base = kx.row_base(x);
        Ok(XRow::Floats(FRow { mem, base }))
    }

    /// Computes a row into shared memory, where all lanes can read it.
    fn keep_row(&mut self, kx: &mut Kx, id: NodeId, store: Option<V>) -> Result<()> {
        let width = kx.g.node(id).ty.width();
        let mem = kx.shared("row", 4 * width);
        self.row_elements(kx, id, |kx, i, v, pred| {
            kx.b.store(mem, Elem::F32, i, v, pred);
            if let Some(owner) = store {
                let p = kx.and(Some(owner), pred);
                kx.store_value(id, i, v, p);
            }
        })?;
        kx.b.barrier();
        self.shared.insert(id, mem);
        Ok(())
    }

    /// The planes of a quantized node: of this block, or from memory.
    pub fn qrow(&mut self, kx: &mut Kx, id: NodeId) -> Result<QRow> {
        if let Some(q) = self.quant.get(&id) {
            return Ok(*q);
        }
        let ty = &kx.g.node(id).ty;
        let GElem::Q24 { group } = ty.elem else {
            return Err(Diagnostic::new("E0613", "expected a quantized value").at(&kx.g.node(id).name));
        };
        let width = ty.width();
        let mem = kx.arg(ArgKey::Value(id), false);
        let words = kx.row_base(id);
        let base = kx.b.mul_c(words, 4);
        let bytes = super::cx::q24_bytes(width, group);
        if kx.s.warps == 1 || kx.tile() > 1 || !kx.take_room(bytes) {
            return Ok(QRow { mem, base, width, group });
        }
        // All warps read it again and again: from shared memory.
        let here = kx.shared("q24", bytes);
        self.units(kx, (bytes / 4).div_ceil(32), 5, |_, kx, units| {
            let mut all = vec![];
            for &(unit, exists) in units {
                let (i, pred) = element(kx, unit, 0, bytes / 4);
                let pred = kx.and(exists, pred);
                let at = kx.b.iadd(words, i);
                all.push((i, kx.b.load(mem, Elem::I32, at, pred), pred));
            }
            all.into_iter().for_each(|(i, v, pred)| kx.b.store(here, Elem::I32, i, v, pred));
            Ok(())
        })?;
        kx.b.barrier();
        let row = QRow { mem: here, base: kx.b.i(0), width, group };
        self.quant.insert(id, row);
        Ok(row)
    }

    /// Element `i` of a row.
    pub fn eval(&self, kx: &mut Kx, id: NodeId, i: V, memo: &mut Memo) -> Result<V> {
        if let Some(v) = memo.get(&id) {
            return Ok(*v);
        }
        let v = self.eval_new(kx, id, i, memo)?;
        memo.insert(id, v);
        Ok(v)
    }

    fn eval_new(&self, kx: &mut Kx, id: NodeId, i: V, memo: &mut Memo) -> Result<V> {
        if let Some(&m) = self.shared.get(&id) {
            return Ok(kx.b.load(m, Elem::F32, i, None));
        }
        if !self.nodes.contains(&id) {
            return Ok(kx.load_value(id, i, None));
        }
        let n = kx.g.node(id);
        let input = |k: usize| n.inputs[k];
        Ok(match n.op {
            Op::Add => {
                let (a, b) = (self.eval(kx, input(0), i, memo)?, self.eval(kx, input(1), i, memo)?);
                kx.b.add(a, b)
            }
            Op::Mul => {
                let a = self.eval(kx, input(0), i, memo)?;
                let b = self.factor(kx, input(1), i, memo)?;
                kx.b.mul(a, b)
            }
            Op::MulConst { c } => {
                let a = self.eval(kx, input(0), i, memo)?;
                let c = kx.b.f(c);
                kx.b.mul(a, c)
            }
            Op::RoundBf16 => {
                let a = self.eval(kx, input(0), i, memo)?;
                kx.b.round_bf16(a)
            }
            Op::RmsNorm { .. } => {
                let x = self.eval(kx, input(0), i, memo)?;
                let y = kx.b.mul(x, self.norm[&id]);
                if n.inputs.len() == 2 {
                    let w = kx.load_plain(input(1), i)?;
                    kx.b.mul(y, w)
                } else {
                    y
                }
            }
            Op::GeluMul => {
                let (g, u) = (self.eval(kx, input(0), i, memo)?, self.eval(kx, input(1), i, memo)?);
                let y = math::gelu(&mut kx.b, g);
                kx.b.mul(y, u)
            }
            Op::Softcap { cap } => {
                let x = self.eval(kx, input(0), i, memo)?;
                softcap(kx, x, cap)
            }
            Op::ExpertSum => {
                let (k, width) = (kx.g.node(input(1)).ty.width(), n.ty.width());
                let mut acc = kx.b.f(0.0);
                for r in 0..k {
                    let rank = kx.b.i(r as i32);
                    let w = kx.expert_weight(input(1), rank);
                    let at = kx.b.add_c(i, (r * width) as i32);
                    let y = kx.load_value(input(0), at, None);
                    acc = kx.b.fma(w, y, acc);
                }
                acc
            }
            Op::Select => self.eval(kx, input(0), i, memo)?,
            Op::Slice { start, .. } => {
                let at = kx.b.add_c(i, start as i32);
                self.eval(kx, input(0), at, &mut Memo::new())?
            }
            Op::Embed { mode, factor } => embed(kx, id, mode, factor, i)?,
            _ => return Err(Diagnostic::new("E0614", format!("`{}` is not an operation over rows", n.op.name())).at(&n.name)),
        })
    }

    /// Second operand of a product: a weight as long as the row, one number, or another value.
    fn factor(&self, kx: &mut Kx, id: NodeId, i: V, memo: &mut Memo) -> Result<V> {
        let n = kx.g.node(id);
        if !matches!(n.op, Op::Weight) {
            return self.eval(kx, id, i, memo);
        }
        let at = if n.ty.width() == 1 { kx.b.i(0) } else { i };
        kx.load_plain(id, at)
    }

    /// Runs `f` for the units that this warp owns, several at once, each with so many words in registers: warp `w` of `warps` takes `w, w + warps, ...`. A unit past the
    /// end is replaced by the last, and comes with what says so.
    fn units(
        &self,
        kx: &mut Kx,
        count: u32,
        words: u32,
        mut f: impl FnMut(&Self, &mut Kx, &[(V, Option<V>)]) -> Result<()>,
    ) -> Result<()> {
        let (warps, warp) = (kx.b.warps(), kx.b.warp());
        let trip = kx.b.i(count.div_ceil(warps) as i32);
        let mut result = Ok(());
        kx.for_together(trip, words, &[], |kx, ts, _| {
            let units: Vec<_> = ts
                .iter()
                .map(|&t| {
                    let at = kx.b.mul_c(t, warps as i32);
                    let unit = kx.b.iadd(at, warp);
                    super::clip(kx, unit, count, count.is_multiple_of(warps))
                })
                .collect();
            if result.is_ok() {
                result = f(self, kx, &units);
            }
            vec![]
        });
        result
    }

    fn store_row(&mut self, kx: &mut Kx, id: NodeId, owner: V) -> Result<()> {
        self.row_elements(kx, id, |kx, i, v, pred| {
            let p = kx.and(Some(owner), pred);
            kx.store_value(id, i, v, p);
        })
    }

    /// Computes all elements of a row, and gives each with its index, where the predicate holds, to `to`.
    fn row_elements(&self, kx: &mut Kx, id: NodeId, mut to: impl FnMut(&mut Kx, V, V, Option<V>)) -> Result<()> {
        let width = kx.g.node(id).ty.width();
        self.units(kx, width.div_ceil(32), 8, |this, kx, units| {
            let mut all = vec![];
            for &(unit, exists) in units {
                let (i, pred) = element(kx, unit, 0, width);
                let at = clamp(kx, i, pred);
                let v = this.eval(kx, id, at, &mut Memo::new())?;
                all.push((i, v, kx.and(exists, pred)));
            }
            all.into_iter().for_each(|(i, v, pred)| to(kx, i, v, pred));
            Ok(())
        })
    }

    /// Σ x² in the given order; leaves x in shared memory unless it is a value in memory anyway.
    fn sum_of_squares(&mut self, kx: &mut Kx, x: NodeId, dim: u32, order: ReductionOrder, store: Option<V>) -> Result<V> {
        let name = &kx.g.node(x).name;
        // As many warps as there are get chains.
        let unit = if order.lanes / 64 < kx.b.warps() { 32 } else { order.lanes.min(64) };
        if order.take != Take::Strided || order.lanes < 32 || !order.lanes.is_multiple_of(unit) || !dim.is_multiple_of(unit) {
            return Err(Diagnostic::new("E0615", format!("no kernel for the norm of {dim} elements in order {order}"))
                .at(name)
                .hint("use take=strided and 32, 64, 128, 256 or 512 lanes that divide into the row"));
        }
        let (vecs, runs, units) = (unit / 32, order.lanes / unit, dim / unit);
        let keep = self.nodes.contains(&x) && !self.shared.contains_key(&x);
        let keep = keep.then(|| kx.shared("row", 4 * dim));
        let (warps, warp) = (kx.b.warps(), kx.b.warp());
        let zero = kx.b.f(0.0);
        let mut err = Ok(());
        // Chain `run` takes units run, run + runs, ...
        let mut chains = |kx: &mut Kx, run: V| {
            let trip = share(kx, units, runs, run);
            kx.for_together(trip, 8 * vecs, &vec![zero; vecs as usize], |kx, ts, acc| {
                let mut all = vec![];
                for &t in ts {
                    let at = kx.b.mul_c(t, runs as i32);
                    let u = kx.b.iadd(at, run);
                    let at = kx.b.mul_c(u, unit as i32);
                    let lane = kx.b.lane();
                    let at = kx.b.iadd(at, lane);
                    for h in 0..vecs {
                        let i = kx.b.add_c(at, (h * 32) as i32);
                        match self.eval(kx, x, i, &mut Memo::new()) {
                            Ok(v) => all.push((h as usize, i, v)),
                            Err(e) => err = Err(e),
                        }
                    }
                }
                let mut next = acc.to_vec();
                for (h, i, v) in all {
                    if let Some(m) = keep {
                        kx.b.store(m, Elem::F32, i, v, None);
                    }
                    if let (Some(owner), true) = (store, keep.is_some()) {
                        kx.store_value(x, i, v, Some(owner));
                    }
                    next[h] = kx.b.fma(v, v, next[h]);
                }
                next
            })
        };
        let parts = if warps == 1 {
            (0..runs)
                .flat_map(|run| {
                    let run = kx.b.i(run as i32);
                    chains(kx, run)
                })
                .collect()
        } else {
            let m = kx.shared("sum", 4 * 32 * runs * vecs);
            for j in 0..runs.div_ceil(warps) {
                let run = kx.b.add_c(warp, (j * warps) as i32);
                let mut work = |kx: &mut Kx| {
                    let accs = chains(kx, run);
                    let at = kx.b.mul_c(run, (vecs * 32) as i32);
                    let lane = kx.b.lane();
                    let at = kx.b.iadd(at, lane);
                    for (h, &a) in accs.iter().enumerate() {
                        let at = kx.b.add_c(at, (h * 32) as i32);
                        kx.b.store(m, Elem::F32, at, a, None);
                    }
                };
                if (j + 1) * warps <= runs {
                    work(kx);
                } else {
                    let lim = kx.b.i(runs as i32);
                    let has_one = kx.b.icmp(ICmp::Lt, run, lim);
                    kx.when(has_one, work);
                }
            }
            kx.b.barrier();
            let lane = kx.b.lane();
            let load = |k: u32| {
                let at = kx.b.add_c(lane, (k * 32) as i32);
                kx.b.load(m, Elem::F32, at, None)
            };
            (0..runs * vecs).map(load).collect()
        };
        err?;
        if let Some(m) = keep {
            // Read back by the lane that wrote it (an index keeps its lane in every pass), or after the barrier.
            self.shared.insert(x, m);
        }
        Ok(kx.join_lanes(order, parts))
    }

    fn quantize(&mut self, kx: &mut Kx, id: NodeId, x: NodeId, group: u32, store: Option<V>) -> Result<QRow> {
        let width = kx.g.node(x).ty.width();
        if !group.is_multiple_of(32) || !width.is_multiple_of(group) {
            return Err(Diagnostic::new("E0616", format!("no kernel quantizes {width} elements in groups of {group}"))
                .at(&kx.g.node(id).name));
        }
        let mut dst = vec![];
        if self.planes_here || store.is_none() {
            let (mem, base) = (kx.shared("q24", super::cx::q24_bytes(width, group)), kx.b.i(0));
            dst.push(Dest { row: QRow { mem, base, width, group }, pred: None, value: None });
        }
        if let Some(owner) = store {
            let mem = kx.arg(ArgKey::Value(id), true);
            let words = kx.row_base(id);
            let base = kx.b.mul_c(words, 4);
            dst.push(Dest { row: QRow { mem, base, width, group }, pred: Some(owner), value: Some(id) });
        }
        let first = dst[0].row;
        let vecs = group / 32;
        // What is computed of a group waits in a dozen registers for each 32 elements.
        self.units(kx, width / group, 12 * vecs, |this, kx, units| {
            let mut groups = vec![];
            for &(unit, exists) in units {
                let mut vals = vec![];
                for h in 0..vecs {
                    let at = kx.b.mul_c(unit, group as i32);
                    let lane = kx.b.lane();
                    let at = kx.b.iadd(at, lane);
                    let i = kx.b.add_c(at, (h * 32) as i32);
                    vals.push((i, this.eval(kx, x, i, &mut Memo::new())?));
                }
                groups.push((unit, exists, vals));
            }
            quantize_groups(kx, &dst, groups);
            Ok(())
        })?;
        kx.b.barrier();
        Ok(first)
    }
}

impl QRow {
    /// Index (in words) of scale (0), sum (1) or correction (2) of a group.
    pub fn meta(&self, kx: &mut Kx, k: u32, group: V) -> V {
        let base = kx.b.lshr(self.base, 2);
        let at = kx.b.iadd(base, group);
        kx.b.add_c(at, self.metas(k))
    }

    /// The same from the start of the row.
    fn meta_at(&self, kx: &mut Kx, k: u32, group: V) -> V {
        kx.b.add_c(group, self.metas(k))
    }

    fn metas(&self, k: u32) -> i32 {
        (3 * self.width / 4 + k * (self.width / self.group)) as i32
    }
}

/// A group to quantize: its number, whether it exists (unless that is certain), elements with their indices, a lane each.
pub type Group = (V, Option<V>, Vec<(V, V)>);

/// A place for a quantized row.
pub struct Dest {
    /// Where it lies.
    pub row: QRow,
    /// Where it is stored at all.
    pub pred: Option<V>,
    /// The value whose row it is, if it is one in memory.
    pub value: Option<NodeId>,
}

/// Quantizes groups of a row to all of `dst`.
pub fn quantize_groups(kx: &mut Kx, dst: &[Dest], groups: Vec<Group>) {
    let width = dst[0].row.width;
    // All is computed before anything is stored: groups do not wait for each other.
    let mut bytes = vec![];
    let mut metas = vec![];
    for (unit, exists, vals) in groups {
        let sizes = vals.iter().map(|&(_, v)| {
            let bits = kx.b.bits(v);
            kx.b.int_c(IntOp::And, bits, i32::MAX)
        });
        let sizes: Vec<V> = sizes.collect();
        let amax = sizes[1..].iter().fold(sizes[0], |m, &a| kx.b.int(IntOp::Max, m, a));
        let amax = kx.butterfly(amax, |b, p, q| b.int(IntOp::Max, p, q));
        let math::quant::Group { scale, inv, ok, .. } = math::quant::group_exponent(&mut kx.b, amax);
        let (mut sum, mut low) = (None, None);
        for (i, v) in vals {
            let q = math::quant::quantize(&mut kx.b, v, inv, ok);
            let (hi, mid, lo) = math::quant::planes(&mut kx.b, q);
            let low16 = kx.b.int_c(IntOp::And, q, 0xffff);
            sum = Some(sum.map_or(q, |s| kx.b.iadd(s, q)));
            low = Some(low.map_or(low16, |s| kx.b.iadd(s, low16)));
            bytes.push((i, [hi, mid, lo], exists));
        }
        let sum = kx.butterfly(sum.unwrap_or(unit), |b, p, q| b.iadd(p, q));
        let low = kx.butterfly(low.unwrap_or(unit), |b, p, q| b.iadd(p, q));
        let s = kx.b.i_to_f(sum);
        let corr = kx.b.mul_c(low, 128);
        metas.push((unit, [(scale, Elem::F32), (s, Elem::F32), (corr, Elem::I32)], exists));
    }
    let lane = kx.b.lane();
    let lane0 = kx.is_zero(lane);
    for Dest { row: d, pred, value } in dst {
        let of = value.map(|id| (Written::Value, id));
        for &(i, planes, exists) in &bytes {
            let (at, p) = (kx.b.iadd(d.base, i), kx.and(*pred, exists));
            for (k, byte) in planes.into_iter().enumerate() {
                let plane = (k as u32 * width) as i32;
                let at = kx.b.add_c(at, plane);
                kx.b.store(d.mem, Elem::U8, at, byte, p);
                if let Some(of) = of {
                    let i = kx.b.add_c(i, plane);
                    kx.witness(of, Elem::U8, i, byte, p);
                }
            }
        }
        for &(unit, values, exists) in &metas {
            let p = kx.and(Some(lane0), *pred);
            let p = kx.and(p, exists);
            for (k, (v, elem)) in values.into_iter().enumerate() {
                let at = d.meta(kx, k as u32, unit);
                kx.b.store(d.mem, elem, at, v, p);
                if let Some(of) = of {
                    let i = d.meta_at(kx, k as u32, unit);
                    kx.witness(of, elem, i, v, p);
                }
            }
        }
    }
}

/// Iterations of worker `w` of `n` over `count` items: `ceil((count - w) / n)`.
fn share(kx: &mut Kx, count: u32, n: u32, w: V) -> V {
    if count.is_multiple_of(n) {
        return kx.b.i((count / n) as i32);
    }
    let top = kx.b.i((count + n - 1) as i32);
    let left = kx.b.isub(top, w);
    kx.b.int_c(IntOp::Div, left, n as i32)
}

fn element(kx: &mut Kx, unit: V, h: u32, width: u32) -> (V, Option<V>) {
    let at = kx.b.mul_c(unit, 32);
    let lane = kx.b.lane();
    let at = kx.b.iadd(at, lane);
    let i = kx.b.add_c(at, (h * 32) as i32);
    let pred = (!width.is_multiple_of(32)).then(|| {
        let lim = kx.b.i(width as i32);
        kx.b.icmp(ICmp::Lt, i, lim)
    });
    (i, pred)
}

fn clamp(kx: &mut Kx, i: V, pred: Option<V>) -> V {
    match pred {
        None => i,
        Some(p) => {
            let z = kx.b.i(0);
            kx.b.select(p, i, z)
        }
    }
}

/// `cap * tanh(x * (1/cap))`; NaN for an infinity, which must stay visible.
pub fn softcap(kx: &mut Kx, x: V, cap: f32) -> V {
    let inv = kx.b.f(1.0 / cap);
    let t = kx.b.mul(x, inv);
    let t = math::tanh(&mut kx.b, t);
    let c = kx.b.f(cap);
    let y = kx.b.mul(t, c);
    let bits = kx.b.bits(x);
    let size = kx.b.int_c(IntOp::And, bits, i32::MAX);
    let inf = kx.b.i(0x7f80_0000);
    let finite = kx.b.icmp(ICmp::Lt, size, inf);
    let nan = kx.b.f(f32::NAN);
    kx.b.select(finite, y, nan)
}

/// A token, or 0 for what is none: after a NaN the chosen token is -1, and a step that was queued before anybody looked reads it.
fn known(kx: &mut Kx, t: V, vocab: u32) -> V {
    let (zero, end) = (kx.b.i(0), kx.b.i(vocab as i32));
    let below = kx.b.icmp(ICmp::Lt, t, zero);
    let inside = kx.b.icmp(ICmp::Lt, t, end);
    let t = kx.b.select(below, zero, t);
    kx.b.select(inside, t, zero)
}

/// Element `i` of the token's embedding row.
fn embed(kx: &mut Kx, id: NodeId, mode: EmbedMode, factor: f32, i: V) -> Result<V> {
    let table = kx.g.node(id).inputs[0];
    let l = super::table_layout(kx, table)?;
    let m = kx.arg(ArgKey::Weight(table, ir::plan::Pack::Matrix(l)), false);
    let tokens = kx.arg(ArgKey::Tokens, false);
    let tok = kx.tok;
    let t = kx.b.load(tokens, Elem::I32, tok, None);
    let t = known(kx, t, l.rows);
    let w = super::matmul::element(kx, &l, m, t, i);
    let round = |kx: &mut Kx, v| if mode == EmbedMode::Bf16 { kx.b.round_bf16(v) } else { v };
    let w = round(kx, w);
    let f = kx.b.f(factor);
    let y = kx.b.mul(w, f);
    Ok(round(kx, y))
}
