//! Which integers count something: built from lane, warp and block numbers, iteration numbers and constants without
//! subtraction, or cut down by a mask. Such an index plus a constant may be addressed as (address of the index) plus
//! (constant bytes): its computation does not pass zero, and if it passed 2^32 the index would be meaningless anyway.

use super::*;

/// For every value: is it such an integer?
pub(super) fn counting(k: &Kernel) -> Vec<bool> {
    let mut known = vec![false; k.types.len()];
    block(&k.body, &mut known);
    known
}

fn block(b: &Block, n: &mut [bool]) {
    for i in &b.insts {
        inst(i, n);
    }
}

/// Carried values are assumed to count until a next value does not.
fn carry(carried: &[(V, V)], yields: &[V], results: &[V], body: &Block, n: &mut [bool]) {
    for (p, init) in carried {
        n[p.idx()] = n[init.idx()];
    }
    loop {
        block(body, n);
        let mut changed = false;
        for ((p, _), y) in carried.iter().zip(yields) {
            if n[p.idx()] && !n[y.idx()] {
                n[p.idx()] = false;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for (r, (p, _)) in results.iter().zip(carried) {
        n[r.idx()] = n[p.idx()];
    }
}

fn inst(i: &Inst, n: &mut [bool]) {
    let is = |v: &V, n: &[bool]| n[v.idx()];
    let r = match &i.op {
        Op::ConstI(x) => *x >= 0,
        Op::Lane | Op::Warp | Op::BlockX | Op::BlockY | Op::Load { elem: Elem::U8, .. } => true,
        Op::Int(op, a, b) => match op {
            IntOp::Add | IntOp::Mul | IntOp::Shl | IntOp::Or | IntOp::Xor | IntOp::Min | IntOp::Lshr | IntOp::Ashr => {
                is(a, n) && is(b, n)
            }
            IntOp::Div | IntOp::Rem => is(a, n) && is(b, n),
            IntOp::And | IntOp::Max => is(a, n) || is(b, n),
            IntOp::Sub => false,
        },
        Op::Select(_, a, b) => is(a, n) && is(b, n),
        Op::ShuffleXor(a, _) | Op::ShuffleIdx(a, _) => is(a, n),
        Op::For { iv, carried, body, yields, .. } => {
            n[iv.idx()] = true;
            return carry(carried, yields, &i.results, body, n);
        }
        Op::Pipeline { copy_iv, copy_slot, copy, iv, slot, carried, body, yields, .. } => {
            for v in [copy_iv, copy_slot, iv, slot] {
                n[v.idx()] = true;
            }
            block(copy, n);
            return carry(carried, yields, &i.results, body, n);
        }
        Op::If { then, els, then_yields, els_yields, .. } => {
            block(then, n);
            block(els, n);
            for (r, (a, b)) in i.results.iter().zip(then_yields.iter().zip(els_yields)) {
                n[r.idx()] = is(a, n) && is(b, n);
            }
            return;
        }
        _ => false,
    };
    for v in &i.results {
        n[v.idx()] = r;
    }
}

impl<'c> Emitter<'c, '_> {
    /// An index as another one plus a constant that can go into the address.
    pub(super) fn index(&self, mem: Mem, idx: V) -> Res<(Val<'c>, i32)> {
        let (mut at, mut plus) = (idx, 0i32);
        // Shared memory of a GPU is addressed in 32 bits, which wrap as the index does.
        let wraps = self.is_gpu() && matches!(mem, Mem::Shared(_));
        while let Some(Op::Int(IntOp::Add, x, c)) = self.defs[at.idx()].map(|i| &i.op)
            && let Some(Op::ConstI(c)) = self.defs[c.idx()].map(|i| &i.op)
            && (wraps || (*c >= 0 && self.counting[x.idx()]))
            && self.vals[x.idx()].is_some()
            && let Some(sum) = plus.checked_add(*c).filter(|s| s.unsigned_abs() < 1 << 20)
        {
            (at, plus) = (*x, sum);
        }
        Ok((self.val(at)?, plus))
    }

    /// The largest value that a byte of `v`, taken as unsigned, can have.
    pub(super) fn max_byte(&self, v: V, depth: u32) -> u32 {
        let max = |x: i32| x.to_le_bytes().into_iter().max().map_or(255, u32::from);
        match self.defs[v.idx()].map(|i| &i.op) {
            Some(Op::ConstI(x)) => max(*x),
            Some(Op::Int(IntOp::And, a, b)) if depth > 0 => self.max_byte(*a, depth - 1).min(self.max_byte(*b, depth - 1)),
            Some(Op::Select(_, a, b)) if depth > 0 => self.max_byte(*a, depth - 1).max(self.max_byte(*b, depth - 1)),
            _ => 255,
        }
    }
}
