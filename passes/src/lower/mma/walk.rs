//! In which order a matmul on matrix units walks over the chains of a row, and where sums wait until the tree joins them.

use super::super::cx::Kx;
use super::WARPS;
use ir::kernel::{Elem, ICmp, IntOp, Mem, V};
use ir::layout::MatrixLayout;
use ir::math::Arith;
use ir::order::{Take, Tree};

/// One chain of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Which chain.
    pub chain: u32,
    /// Its first step of the walk.
    pub first: u32,
    /// How many steps.
    pub len: u32,
    /// How many waiting sums it is joined with after them.
    pub joins: usize,
}

/// The chains in the order in which the tree joins them.
pub fn walk(l: &MatrixLayout) -> Vec<Leg> {
    fn pairs(chain: u32, apart: u32, n: u32, out: &mut Vec<(u32, usize)>) {
        if apart == n {
            return out.push((chain, 0));
        }
        pairs(chain, 2 * apart, n, out);
        pairs(chain + apart, 2 * apart, n, out);
        if let Some(last) = out.last_mut() {
            last.1 += 1;
        }
    }
    let n = l.order.lanes;
    let mut chains = vec![];
    match l.order.tree {
        Tree::Pair => pairs(0, 1, n, &mut chains),
        Tree::Fold => chains.extend((0..n).map(|c| (c, usize::from(c > 0)))),
    }
    let mut first = 0;
    let leg = |(chain, joins)| {
        let len = (0..l.chain_len()).filter(|&t| l.unit_of(chain, t).is_some()).count() as u32;
        first += len;
        Leg { chain, first: first - len, len, joins }
    };
    chains.into_iter().map(leg).collect()
}

/// Where a chain of the walk ends, with those after it that have no groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Steps of the walk until here.
    pub at: u32,
    /// How many waiting sums each of the chains is joined with.
    joins: Vec<usize>,
    /// Sums that wait before.
    before: usize,
    /// Sums that wait after.
    pub after: usize,
}

/// Where the chains of a walk end.
pub fn ends(legs: &[Leg]) -> Vec<End> {
    let mut out: Vec<End> = vec![];
    let mut waiting = 0;
    for leg in legs {
        match out.last_mut() {
            Some(end) if leg.len == 0 => end.joins.push(leg.joins),
            _ => out.push(End { at: leg.first + leg.len, joins: vec![leg.joins], before: waiting, after: 0 }),
        }
        waiting = waiting + 1 - leg.joins;
        if let Some(end) = out.last_mut() {
            end.after = waiting;
        }
    }
    out
}

/// Sums that wait for the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// In registers.
    Here(Vec<V>),
    /// In shared memory from this array of the block on.
    Parked(u32),
}

/// A step of the walk as values of the program.
pub struct Step {
    /// The group of a row.
    pub group: V,
    /// Step of the layout.
    pub step: V,
    /// Lane of the row's four.
    pub lane: V,
}

/// Which group step `i` of the walk takes.
pub fn locate(kx: &mut Kx, l: &MatrixLayout, legs: &[Leg], i: V) -> Step {
    let legs: Vec<&Leg> = legs.iter().filter(|leg| leg.len > 0).collect();
    let (mut chain, mut first) = (kx.b.i(legs[0].chain as i32), kx.b.i(0));
    for leg in &legs[1..] {
        let (c, f) = (kx.b.i(leg.chain as i32), kx.b.i(leg.first as i32));
        let before = kx.b.icmp(ICmp::Lt, i, f);
        (chain, first) = (kx.b.select(before, chain, c), kx.b.select(before, first, f));
    }
    let t = kx.b.isub(i, first);
    let group = match l.order.take {
        Take::Contiguous => {
            let c = kx.b.mul_c(chain, l.order.run(l.units()) as i32);
            kx.b.iadd(c, t)
        }
        Take::Strided => {
            let far = kx.b.mul_c(t, l.order.lanes as i32);
            kx.b.iadd(chain, far)
        }
    };
    let k = kx.b.int_c(IntOp::Div, chain, l.chain_lanes as i32);
    let k = kx.b.mul_c(k, l.chain_len() as i32);
    let step = kx.b.iadd(k, t);
    let lane = kx.b.int_c(IntOp::Rem, chain, l.chain_lanes as i32);
    Step { group, step, lane }
}

/// Where sums wait: the first levels in shared memory, each thread's for itself, the others in registers.
pub struct Park {
    /// Shared memory, if there are such levels.
    pub mem: Option<Mem>,
    /// Thread of the block.
    pub thread: V,
    /// Sums of a level.
    pub outputs: usize,
    /// Levels in shared memory.
    pub levels: usize,
}

impl Park {
    fn at(&self, kx: &mut Kx, level: usize, k: usize) -> V {
        kx.b.add_c(self.thread, ((level * self.outputs + k) as u32 * 32 * WARPS) as i32)
    }

    /// Stores the sums of a level in shared memory.
    pub fn put(&self, kx: &mut Kx, level: usize, sums: &[V]) {
        let Some(mem) = self.mem else { return };
        for (k, &v) in sums.iter().enumerate() {
            let at = self.at(kx, level, k);
            kx.b.store(mem, Elem::F32, at, v, None);
        }
    }

    fn get(&self, kx: &mut Kx, w: Waiting) -> Vec<V> {
        match (w, self.mem) {
            (Waiting::Parked(level), Some(mem)) => {
                let of = |k| {
                    let at = self.at(kx, level as usize, k);
                    kx.b.load(mem, Elem::F32, at, None)
                };
                (0..self.outputs).map(of).collect()
            }
            (Waiting::Here(sums), _) => sums,
            _ => vec![],
        }
    }

    /// The sums that wait after a chain whose sums are `accs`; `levels` are those in registers before.
    pub fn joined(&self, kx: &mut Kx, end: &End, accs: &[V], levels: &[Vec<V>]) -> Vec<Waiting> {
        let here = |d: usize| match d.checked_sub(self.levels) {
            None => Waiting::Parked(d as u32),
            Some(d) => Waiting::Here(levels[d].clone()),
        };
        let mut waiting: Vec<Waiting> = (0..end.before).map(here).collect();
        for (i, &joins) in end.joins.iter().enumerate() {
            let zero = kx.b.f(0.0);
            let mut sums = if i == 0 { accs.to_vec() } else { vec![zero; accs.len()] };
            for w in (0..joins).filter_map(|_| waiting.pop()).collect::<Vec<_>>() {
                let before = self.get(kx, w);
                sums = before.into_iter().zip(sums).map(|(a, b)| kx.b.add(a, b)).collect();
            }
            waiting.push(Waiting::Here(sums));
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::graph::Dtype;
    use ir::layout::Format;
    use ir::order::ReductionOrder;

    fn layout(units: u32, order: ReductionOrder) -> MatrixLayout {
        let format = Format::Affine { bits: 4, group: 64, scales: Dtype::Bf16 };
        MatrixLayout { format, stack: 1, rows: 8, cols: 64 * units, order, chain_lanes: 4, vec: 4 }
    }

    #[test]
    fn chains_are_walked_as_the_tree_joins_them() {
        let legs = |units, order| -> Vec<(u32, u32, u32, usize)> {
            walk(&layout(units, order)).iter().map(|l| (l.chain, l.first, l.len, l.joins)).collect()
        };
        // (c0 + c2) + (c1 + c3), the last chain shorter.
        assert_eq!(legs(11, ReductionOrder::contiguous(4)), [(0, 0, 3, 0), (2, 3, 3, 1), (1, 6, 3, 0), (3, 9, 2, 2)]);
        assert_eq!(legs(3, ReductionOrder::strided(4)), [(0, 0, 1, 0), (2, 1, 1, 1), (1, 2, 1, 0), (3, 3, 0, 2)]);
        let fold = ReductionOrder { tree: Tree::Fold, ..ReductionOrder::contiguous(4) };
        assert_eq!(legs(4, fold), [(0, 0, 1, 0), (1, 1, 1, 1), (2, 2, 1, 1), (3, 3, 1, 1)]);
    }

    /// Every order gives the sum that it means: of one number a unit, in plain arithmetic.
    #[test]
    fn walks_give_the_sums_of_their_orders() {
        let number = |u: u32| (u as f32 + 0.7).sqrt() * 1e-3 + 1.0;
        for tree in [Tree::Pair, Tree::Fold] {
            for take in [Take::Contiguous, Take::Strided] {
                for (lanes, units) in [(4, 44), (4, 11), (4, 2), (8, 33), (16, 5), (1, 7)] {
                    let l = layout(units, ReductionOrder { lanes, take, tree });
                    let (legs, mut waiting) = (walk(&l), vec![]);
                    for leg in &legs {
                        let units = (0..leg.len).filter_map(|t| l.unit_of(leg.chain, t));
                        let mut sum = units.fold(0f32, |acc, u| number(u).mul_add(1.25, acc));
                        for _ in 0..leg.joins {
                            sum += waiting.pop().unwrap_or(f32::NAN);
                        }
                        waiting.push(sum);
                    }
                    let want = l.order.reduce(units, |acc, u| number(u).mul_add(1.25, acc));
                    assert_eq!(waiting.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [want.to_bits()], "{:?}", l.order);
                    assert_eq!(ends(&legs).last().map(|e| (e.at, e.after)), Some((units, 1)));
                }
            }
        }
    }
}
