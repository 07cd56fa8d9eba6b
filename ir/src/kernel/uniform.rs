//! Which values are the same in all lanes of a warp, and in all warps of a block.

use super::*;

/// How far a value is known to be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Uniform {
    /// Equal in the whole block.
    Block,
    /// Equal in a warp.
    Warp,
    /// `u + lane * stride` with `u` warp-uniform and a constant stride, not 0.
    Affine(i32),
    /// May differ from lane to lane in any way.
    Lane,
}

/// Uniformity of every value (values that are never defined are [`Uniform::Lane`]).
pub fn uniformity(k: &Kernel) -> Vec<Uniform> {
    let n = k.types.len();
    let mut cx = Cx { k, u: vec![Uniform::Lane; n], c: vec![None; n], entered: vec![false; n] };
    cx.block(&k.body);
    cx.u
}

struct Cx<'a> {
    k: &'a Kernel,
    u: Vec<Uniform>,
    c: Vec<Option<i32>>,
    /// By iteration number: the loop was analysed before, in an earlier round of a loop around it.
    entered: Vec<bool>,
}

impl Cx<'_> {
    fn set(&mut self, v: V, u: Uniform) {
        self.u[v.idx()] = u;
    }

    fn block(&mut self, b: &Block) {
        for inst in &b.insts {
            self.inst(inst);
        }
    }

    /// The join of the operands; an affine operand of an operation without a rule becomes `Lane`.
    fn join(&self, vs: &[V]) -> Uniform {
        vs.iter().map(|v| self.u[v.idx()]).fold(Uniform::Block, |a, b| match (a, b) {
            (Uniform::Affine(_) | Uniform::Lane, _) | (_, Uniform::Affine(_) | Uniform::Lane) => Uniform::Lane,
            (a, b) => a.max(b),
        })
    }

    fn inst(&mut self, inst: &Inst) {
        use Uniform::*;
        let u = match &inst.op {
            Op::ConstI(x) => {
                self.c[inst.results[0].idx()] = Some(*x);
                Block
            }
            Op::ConstF(_) | Op::ConstB(_) | Op::BlockX | Op::BlockY => Block,
            Op::Lane => Affine(1),
            Op::Warp => {
                if self.k.warps == 1 {
                    Block
                } else {
                    Warp
                }
            }
            Op::Int(op, a, b) => {
                let (ua, ub, ca, cb) = (self.u[a.idx()], self.u[b.idx()], self.c[a.idx()], self.c[b.idx()]);
                let stride = |u: Uniform| match u {
                    Block | Warp => Some(0),
                    Affine(s) => Some(s),
                    Lane => None,
                };
                let s = match (op, stride(ua), stride(ub)) {
                    (IntOp::Add, Some(x), Some(y)) => x.checked_add(y),
                    (IntOp::Sub, Some(x), Some(y)) => x.checked_sub(y),
                    (IntOp::Mul, Some(x), Some(0)) if x != 0 => cb.and_then(|c| x.checked_mul(c)),
                    (IntOp::Mul, Some(0), Some(y)) if y != 0 => ca.and_then(|c| y.checked_mul(c)),
                    (IntOp::Shl, Some(x), Some(0)) if x != 0 => {
                        cb.filter(|c| (0..31).contains(c)).and_then(|c| x.checked_mul(1 << c))
                    }
                    _ => None,
                };
                match s {
                    Some(s) if s != 0 => Affine(s),
                    // Strides that cancel leave a uniform value of unknown reach.
                    Some(_) if matches!(ua, Affine(_)) => Warp,
                    _ => self.join(&[*a, *b]),
                }
            }
            Op::Mma { .. } => Lane,
            Op::ShuffleXor(a, _) => match self.u[a.idx()] {
                Affine(_) => Lane,
                u => u,
            },
            Op::ShuffleIdx(a, s) => match (self.u[a.idx()], self.u[s.idx()]) {
                (Block, _) => Block,
                (Warp, _) => Warp,
                (_, Block | Warp) => Warp,
                _ => Lane,
            },
            Op::Load { mem, .. } => {
                let j = self.join(&inst.op.operands());
                // Shared memory, and a buffer that is written, may change between two warps' reads.
                let stable = matches!(mem, Mem::Buf(b) if !self.k.bufs.get(*b as usize).is_some_and(|b| b.write));
                if j == Block && !stable && self.k.warps > 1 { Warp } else { j }
            }
            Op::For { trip, iv, carried, body, yields } => {
                self.loop_(*trip, &[*iv], carried, yields, |cx| cx.block(body));
                for (r, (p, _)) in inst.results.iter().zip(carried) {
                    let u = self.u[p.idx()];
                    self.set(*r, u);
                }
                return;
            }
            Op::Pipeline { trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields, .. } => {
                let t = self.u[trip.idx()];
                self.set(*copy_iv, t);
                self.set(*copy_slot, t);
                self.block(copy);
                self.loop_(*trip, &[*iv, *slot], carried, yields, |cx| cx.block(body));
                for (r, (p, _)) in inst.results.iter().zip(carried) {
                    let u = self.u[p.idx()];
                    self.set(*r, u);
                }
                return;
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                self.block(then);
                self.block(els);
                for (r, (a, b)) in inst.results.iter().zip(then_yields.iter().zip(els_yields)) {
                    let u = self.join(&[*cond, *a, *b]);
                    self.set(*r, u);
                }
                return;
            }
            op => self.join(&op.operands()),
        };
        for r in &inst.results {
            self.set(*r, u);
        }
    }

    /// Carried values start optimistic and are widened until nothing changes (at most three steps each).
    fn loop_(&mut self, trip: V, ivs: &[V], carried: &[(V, V)], yields: &[V], body: impl Fn(&mut Self)) {
        let t = self.u[trip.idx()];
        ivs.iter().for_each(|v| self.set(*v, t));
        // A second visit goes on from the first: that keeps nested loops linear, not exponential in their depth.
        let again = ivs.first().is_some_and(|iv| std::mem::replace(&mut self.entered[iv.idx()], true));
        for (p, init) in carried {
            let u = self.u[init.idx()];
            let u = if again && u != self.u[p.idx()] { self.join(&[*p, *init]) } else { u };
            self.set(*p, u);
        }
        loop {
            body(self);
            let mut changed = false;
            for ((p, init), y) in carried.iter().zip(yields) {
                let (a, b, i) = (self.u[p.idx()], self.u[y.idx()], self.u[init.idx()]);
                let w = if a == b && i == b && matches!(a, Uniform::Affine(_)) { a } else { self.join(&[*p, *y, trip]) };
                let w = if matches!(a, Uniform::Affine(_)) && w != a { Uniform::Lane } else { w };
                if w != a {
                    self.set(*p, w);
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }
}
