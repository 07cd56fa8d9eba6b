//! Loads and stores of random kernels.

use super::random::{ELEMS, GRID, Gen, INPUT, slot_size};
use ir::kernel::*;
use ir::math::Arith;

impl Gen {
    pub(super) fn load(&mut self) {
        let e = self.r.below(4) as usize;
        let n = 1 << self.r.below(3);
        let (i, p) = (self.int().0, self.bool().0);
        let kind = self.r.below(9);
        let stride = self.r.below(4) as i32 + 1;
        let base = self.r.below(64) as i32;
        let with = self.r.below(2) == 0;
        let b = &mut self.b;
        let lane = b.lane();
        let room = INPUT / n - 1;
        let (idx, pred) = match kind {
            // Rows and strides.
            0..=2 => {
                let at = b.mul_c(lane, if kind == 0 { 1 } else { stride });
                (b.add_c(at, base), None)
            }
            // A tile of rows.
            3 => {
                let (lo, hi) = (b.int_c(IntOp::And, lane, 7), b.lshr(lane, 3));
                let hi = b.mul_c(hi, 24);
                let at = b.int(IntOp::Add, lo, hi);
                (b.add_c(at, base), None)
            }
            // Uniform.
            4 => {
                let x = b.block_x();
                let w = b.warp();
                let at = b.int(IntOp::Add, x, w);
                (b.add_c(at, base), None)
            }
            // Partly out of range.
            5 => {
                let at = b.add_c(lane, base - 40);
                let m1 = b.i(-1);
                (at, Some(b.icmp(ICmp::Lt, m1, at)))
            }
            6 => {
                let back = b.i(base);
                let at = b.int(IntOp::Sub, back, lane);
                let m1 = b.i(-1);
                (at, Some(b.icmp(ICmp::Lt, m1, at)))
            }
            // Anywhere.
            _ => {
                let at = b.int_c(IntOp::And, i, 0x7fff);
                let r = b.i(room);
                (b.int(IntOp::Rem, at, r), None)
            }
        };
        let moves = b.block_y();
        let idx = if kind < 5 { b.int(IntOp::Add, idx, moves) } else { idx };
        let at = b.mul_c(idx, n);
        let pred = match pred {
            Some(q) if with => Some(b.bool_op(BoolOp::And, q, p)),
            None if with => Some(p),
            q => q,
        };
        let vs = b.load_n(self.ins[e], ELEMS[e], at, n as usize, pred);
        for v in vs {
            if ELEMS[e].ty() == Ty::F32 { self.floats.push(v) } else { self.ints.push((v, false, false)) }
        }
    }

    /// Every store statement outside of loops has its own part of the buffer; each lane its own place there.
    pub(super) fn store(&mut self, e: usize) {
        if self.slots.len() > 40 {
            return;
        }
        let (i, x, p, u) = (self.int().0, self.float(), self.bool().0, self.uniform_bool(false));
        let x = self.no_nan(x);
        let kind = self.r.below(7);
        let stride = self.r.below(4) as i32 + 1;
        let flip = self.r.below(32) as i32;
        let with = self.r.below(3);
        let b = &mut self.b;
        let (lane, w, bx, by) = (b.lane(), b.warp(), b.block_x(), b.block_y());
        let row = b.mul_c(by, GRID[0] as i32);
        let row = b.int(IntOp::Add, row, bx);
        let row = b.mul_c(row, self.warps as i32);
        let row = b.int(IntOp::Add, row, w);
        let row = b.mul_c(row, 128);
        let row = b.add_c(row, (self.stores[e] * slot_size(self.warps)) as i32);
        let at = match kind {
            0 | 1 => lane,
            2 => b.mul_c(lane, stride),
            3 => b.int_c(IntOp::Xor, lane, flip),
            4 => {
                let (lo, hi) = (b.int_c(IntOp::And, lane, 3), b.lshr(lane, 2));
                let lo = b.mul_c(lo, 8);
                b.int(IntOp::Add, lo, hi)
            }
            5 => {
                let u = b.int_c(IntOp::And, row, 31);
                let f = b.add_c(u, flip);
                let f = b.int_c(IntOp::And, f, 31);
                b.int(IntOp::Xor, lane, f)
            }
            _ => {
                let last = b.i(31);
                b.int(IntOp::Sub, last, lane)
            }
        };
        let at = b.int(IntOp::Add, row, at);
        let c = b.i(flip);
        let pred = match (with, kind) {
            (0, _) => None,
            (1, 0) => Some(b.icmp(ICmp::Eq, lane, c)),
            (1, 1) => {
                let q = b.icmp(ICmp::Lt, lane, c);
                Some(b.bool_op(BoolOp::And, q, u))
            }
            (1, 2) => Some(u),
            _ => Some(p),
        };
        let val = if ELEMS[e].ty() == Ty::F32 { x } else { i };
        b.store(self.outs[e], ELEMS[e], at, val, pred);
        self.stores[e] += 1;
        self.slots.push(e);
    }
}
