//! Random kernels that are right by construction: no races, indices in range, uniform conditions.

use super::Rng;
use ir::kernel::build::Builder;
use ir::kernel::*;
use ir::math::Arith;

/// Elements of the input buffers.
pub const INPUT: i32 = 1024;
/// Blocks of the grid.
pub const GRID: [u32; 2] = [2, 2];

/// Makes one kernel.
pub struct Gen {
    pub b: Builder,
    pub(super) r: Rng,
    /// Values in scope: (value, same in all lanes, same in the block).
    pub(super) ints: Vec<(V, bool, bool)>,
    pub(super) floats: Vec<V>,
    pub(super) bools: Vec<(V, bool, bool)>,
    pub(super) ins: [Mem; 4],
    pub(super) outs: [Mem; 4],
    shared: Mem,
    pub(super) slots: Vec<usize>,
    pub(super) warps: u32,
    pub(super) stores: [u32; 4],
}

pub(super) const ELEMS: [Elem; 4] = [Elem::I32, Elem::F32, Elem::U8, Elem::Bf16];

/// A kernel, and how many store slots of each element it has.
pub fn kernel(seed: u64, warps: u32, size: usize) -> (Kernel, [u32; 4]) {
    let mut b = Builder::new(&format!("random_{seed}"), warps);
    let ins = ["a", "b", "c", "d"].map(|n| b.buf(n, false));
    let outs = ["w", "x", "y", "z"].map(|n| b.buf(n, true));
    let shared = b.shared("s", warps * 128 * 2);
    let mut g = Gen {
        b,
        r: Rng(seed),
        ints: vec![],
        floats: vec![],
        bools: vec![],
        ins,
        outs,
        shared,
        slots: vec![],
        warps,
        stores: [0; 4],
    };
    g.start();
    g.block(size, 0, true);
    for e in 0..4 {
        for _ in 0..3 {
            g.store(e);
        }
    }
    let n = g.stores;
    (g.b.finish(), n)
}

/// Inputs and outputs for a kernel.
pub fn buffers(r: &mut Rng, stores: [u32; 4], warps: u32) -> Vec<Vec<u8>> {
    let n = INPUT as usize;
    let mut v = vec![r.words(n), r.floats(n), r.words(n / 4), vec![]];
    v[3] = r.floats(n).chunks(4).flat_map(|c| [c[2], c[3]]).collect();
    for (e, s) in ELEMS.iter().zip(stores) {
        v.push(vec![0xee; (slot_size(warps) * s * e.bytes()) as usize]);
    }
    v
}

/// Elements that one store statement may write: 4 per lane of the grid.
pub(super) fn slot_size(warps: u32) -> u32 {
    GRID[0] * GRID[1] * warps * 32 * 4
}

impl Gen {
    fn start(&mut self) {
        let b = &mut self.b;
        let (l, w, x, y) = (b.lane(), b.warp(), b.block_x(), b.block_y());
        let c = b.i(5);
        self.ints = vec![(l, false, false), (w, true, self.warps == 1), (x, true, true), (y, true, true), (c, true, true)];
        let (f, g) = (b.f(1.5), b.i_to_f(l));
        self.floats = vec![f, g];
        let t = b.icmp(ICmp::Lt, l, c);
        let u = b.icmp(ICmp::Eq, x, y);
        self.bools = vec![(t, false, false), (u, true, true)];
    }

    pub(super) fn int(&mut self) -> (V, bool, bool) {
        let n = self.ints.len();
        // Recent ones more often.
        let back = self.r.below(n as u32).min(self.r.below(n as u32)) as usize;
        self.ints[n - 1 - back]
    }
    pub(super) fn float(&mut self) -> V {
        let n = self.floats.len();
        let back = self.r.below(n as u32).min(self.r.below(n as u32)) as usize;
        self.floats[n - 1 - back]
    }
    pub(super) fn bool(&mut self) -> (V, bool, bool) {
        let i = self.r.below(self.bools.len() as u32) as usize;
        self.bools[i]
    }
    pub(super) fn uniform_bool(&mut self, block: bool) -> V {
        let us: Vec<V> = self.bools.iter().filter(|b| b.1 && (b.2 || !block)).map(|b| b.0).collect();
        us[self.r.below(us.len() as u32) as usize]
    }

    fn block(&mut self, size: usize, depth: u32, blockwide: bool) {
        for _ in 0..size {
            match self.r.below(24) {
                0..=5 => self.int_op(),
                6..=9 => self.float_op(),
                10 | 11 => self.bool_op(),
                12..=14 => self.load(),
                15 => {
                    let e = self.r.below(4) as usize;
                    self.store(e);
                }
                16 => self.shuffle(),
                17 => self.dot(),
                18 if depth < 2 => self.for_(size / 2, depth, blockwide),
                19 if depth < 2 => self.if_(size / 2, depth, blockwide),
                20 | 21 if blockwide => self.exchange(),
                22 if blockwide && depth == 0 => self.pipeline(),
                _ => self.convert(),
            }
        }
    }

    fn int_op(&mut self) {
        use IntOp::*;
        let ((a, u, v), (c, w, x)) = (self.int(), self.int());
        let op = [Add, Sub, Mul, And, Or, Xor, Max, Min, Shl, Lshr, Ashr, Div, Rem, Add, Mul][self.r.below(15) as usize];
        let k = self.r.below(7) as i32 + 1;
        let b = &mut self.b;
        let (c, w, x) = match self.r.below(3) {
            0 => (b.i(k), true, true),
            _ => (c, w, x),
        };
        let c = match op {
            Shl | Lshr | Ashr => b.int_c(And, c, 31),
            Div | Rem => b.int_c(Or, c, 1),
            _ => c,
        };
        let r = b.int(op, a, c);
        self.ints.push((r, u && w, v && x));
    }

    fn float_op(&mut self) {
        let (x, y, z) = (self.float(), self.float(), self.float());
        let p = self.bool().0;
        let n = self.r.below(8);
        let b = &mut self.b;
        let v = match n {
            0 => b.add(x, y),
            1 => b.sub(x, y),
            2 | 3 => b.mul(x, y),
            4 => b.fma(x, y, z),
            5 => b.round_even(x),
            6 => b.round_bf16(x),
            _ => b.sel(p, x, y),
        };
        self.floats.push(v);
    }

    fn bool_op(&mut self) {
        let ((p, u, v), (q, w, x)) = (self.bool(), self.bool());
        let ((i, iu, iv), (j, ju, jv)) = (self.int(), self.int());
        let (f, g) = (self.float(), self.float());
        let n = self.r.below(10);
        let b = &mut self.b;
        let r = match n {
            0 => (b.bool_op(BoolOp::And, p, q), u && w, v && x),
            1 => (b.bool_op(BoolOp::Or, p, q), u && w, v && x),
            2 => (b.bool_op(BoolOp::Xor, p, q), u && w, v && x),
            3 => (b.fcmp(FCmp::Lt, f, g), false, false),
            4 => (b.fcmp(FCmp::Nan, f, g), false, false),
            5 => (b.icmp(ICmp::Ne, i, j), iu && ju, iv && jv),
            6 => (b.icmp(ICmp::Le, i, j), iu && ju, iv && jv),
            7 => {
                let (l, c) = (b.lane(), b.i((f.0 % 32) as i32));
                (b.icmp(ICmp::Eq, l, c), false, false)
            }
            8 => {
                let (s, t) = (b.select(p, i, j), b.i(3));
                (b.icmp(ICmp::Lt, s, t), u && iu && ju, v && iv && jv)
            }
            _ => (b.icmp(ICmp::Lt, i, j), iu && ju, iv && jv),
        };
        self.bools.push(r);
    }

    /// A float that is no NaN.
    pub(super) fn no_nan(&mut self, v: V) -> V {
        let b = &mut self.b;
        let bad = b.is_nan(v);
        let fixed = b.cf(-7.0);
        b.sel(bad, fixed, v)
    }

    fn convert(&mut self) {
        let (x, i) = (self.float(), self.int());
        let ((p, u, v), (j, ju, jv)) = (self.bool(), self.int());
        match self.r.below(5) {
            0 => {
                let x = self.no_nan(x);
                let r = self.b.bits(x);
                self.ints.push((r, false, false));
            }
            1 => {
                let b = &mut self.b;
                let m = b.int_c(IntOp::And, i.0, 0x3fff_ffff);
                let r = b.float(m);
                self.floats.push(r);
            }
            2 => {
                let r = self.b.i_to_f(i.0);
                self.floats.push(r);
            }
            3 => {
                let x = self.no_nan(x);
                let b = &mut self.b;
                let (hi, lo) = (b.cf(1e6), b.cf(-1e6));
                let (p, q) = (b.flt(x, hi), b.flt(lo, x));
                let ok = b.bool_op(BoolOp::And, p, q);
                let zero = b.cf(0.0);
                let s = b.sel(ok, x, zero);
                let r = b.f_to_i(s);
                self.ints.push((r, false, false));
            }
            _ => {
                let r = self.b.select(p, i.0, j);
                self.ints.push((r, u && i.1 && ju, v && i.2 && jv));
            }
        }
    }

    fn shuffle(&mut self) {
        let (x, i, s, p) = (self.float(), self.int().0, self.int().0, self.bool().0);
        let m = self.r.below(32);
        match self.r.below(5) {
            0 => {
                let v = self.b.shuffle_xor(x, m);
                self.floats.push(v);
            }
            1 => {
                let v = self.b.shuffle_xor(i, m);
                self.ints.push((v, false, false));
            }
            2 => {
                let v = self.b.shuffle_idx(x, s);
                self.floats.push(v);
            }
            3 => {
                let c = self.b.i(m as i32);
                let v = self.b.shuffle_idx(i, c);
                self.ints.push((v, true, false));
            }
            _ => {
                let v = self.b.shuffle_idx(p, s);
                self.bools.push((v, false, false));
            }
        }
    }

    fn dot(&mut self) {
        let ((x, u, v), (y, w, z), (acc, a, c)) = (self.int(), self.int(), self.int());
        let (s, t) = (self.r.below(2) == 0, self.r.below(2) == 0);
        let small = self.r.below(2) == 0;
        let b = &mut self.b;
        let y = if small { b.int_c(IntOp::And, y, 0x0f0f_0f0f) } else { y };
        let r = b.dp4a(s, t, x, y, acc);
        self.ints.push((r, u && w && a, v && z && c));
        if self.r.below(3) == 0 {
            let [d, e, f, g, h] = [(); 5].map(|()| self.int().0);
            let all = self.b.mma(s, t, [x, d, y, e], [y, f], [acc, g, h, r]);
            self.ints.extend(all.map(|v| (v, false, false)));
        }
    }

    fn scoped<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let keep = (self.ints.len(), self.floats.len(), self.bools.len());
        let r = f(self);
        self.ints.truncate(keep.0);
        self.floats.truncate(keep.1);
        self.bools.truncate(keep.2);
        r
    }

    /// Runs `f` inside a region of the builder: the generator moves in for that time.
    fn inside<R>(&mut self, b: &mut Builder, f: impl FnOnce(&mut Self) -> R) -> R {
        std::mem::swap(&mut self.b, b);
        let r = self.scoped(f);
        std::mem::swap(&mut self.b, b);
        r
    }

    fn for_(&mut self, size: usize, depth: u32, blockwide: bool) {
        let fixed = self.r.below(3) as i32 + 1;
        let (u, ..) = self.ints.iter().rev().copied().find(|i| i.1 && (i.2 || !blockwide)).expect("a uniform integer");
        let run_time = self.r.below(2) == 0;
        let trip = if run_time { self.b.int_c(IntOp::And, u, 3) } else { self.b.i(fixed) };
        let (x, i, (p, ..)) = (self.float(), self.int(), self.bool());
        let lane = self.b.lane();
        let mut b = std::mem::replace(&mut self.b, Builder::new("none", 1));
        let out = b.for_(trip, &[x, i.0, lane, p], |b, iv, c| {
            self.inside(b, |g| {
                g.ints.push((iv, true, blockwide));
                g.ints.push((c[1], false, false));
                g.ints.push((c[2], false, false));
                g.floats.push(c[0]);
                g.bools.push((c[3], false, false));
                g.block(size, depth + 1, blockwide);
                let s = g.b.add_c(c[2], 3);
                let (f, i, p) = (g.float(), g.int().0, g.bool().0);
                let f = g.no_nan(f);
                vec![f, i, s, p]
            })
        });
        self.b = b;
        self.floats.push(out[0]);
        self.ints.push((out[1], false, false));
        self.ints.push((out[2], false, false));
        self.bools.push((out[3], false, false));
    }

    fn if_(&mut self, size: usize, depth: u32, blockwide: bool) {
        let cond = self.uniform_bool(blockwide);
        let mut b = std::mem::replace(&mut self.b, Builder::new("none", 1));
        let gen_ = std::cell::RefCell::new(&mut *self);
        let arm = |b: &mut Builder| {
            let mut g = gen_.borrow_mut();
            g.inside(b, |g| {
                g.block(size, depth + 1, blockwide);
                vec![g.float(), g.int().0]
            })
        };
        let out = b.if_(cond, arm, arm);
        self.b = b;
        self.floats.push(out[0]);
        self.ints.push((out[1], false, false));
    }

    /// Through shared memory to another warp.
    fn exchange(&mut self) {
        let (x, i) = (self.float(), self.int().0);
        let kind = self.r.below(3);
        let flip = self.r.below(32) as i32;
        let turn = self.r.below(4) as i32;
        let warps = self.warps as i32;
        let b = &mut self.b;
        let (lane, w) = (b.lane(), b.warp());
        let row = b.mul_c(w, 32);
        let at = b.int(IntOp::Add, row, lane);
        b.barrier();
        if kind == 0 {
            b.store(self.shared, Elem::I32, at, i, None);
        } else {
            b.store(self.shared, Elem::F32, at, x, None);
        }
        b.barrier();
        let w = b.add_c(w, turn);
        let w = b.int_c(IntOp::Rem, w, warps);
        let row = b.mul_c(w, 32);
        let l = if kind == 1 { b.i(flip) } else { b.int_c(IntOp::Xor, lane, flip) };
        let at = b.int(IntOp::Add, row, l);
        if kind == 0 {
            let v = b.load(self.shared, Elem::I32, at, None);
            self.ints.push((v, false, false));
        } else {
            let v = b.load(self.shared, Elem::F32, at, None);
            self.floats.push(v);
        }
    }

    /// Copies of input rows, summed.
    fn pipeline(&mut self) {
        let stages = self.r.below(3) + 2;
        let trip = self.r.below(6) as i32 + 1;
        let name = format!("p{}", self.ints.len() + self.floats.len() * 100);
        let warps = self.warps as i32;
        let pred = self.r.below(3);
        let x = self.float();
        let b = &mut self.b;
        let ring = b.shared(&name, stages * self.warps * 512);
        let src = self.ins[0];
        let (lane, w) = (b.lane(), b.warp());
        let trip = b.i(trip);
        let at = b.mul_c(w, 32);
        let at = b.int(IntOp::Add, at, lane);
        let zero = b.i(0);
        b.barrier();
        let out = b.pipeline(
            stages,
            trip,
            &[zero, x],
            |b, i, slot| {
                let from = b.mul_c(i, 7);
                let from = b.int(IntOp::Add, from, at);
                let from = b.int_c(IntOp::And, from, INPUT / 4 - 1);
                let from = if pred == 2 { b.int(IntOp::Add, i, at) } else { from };
                let from = b.int_c(IntOp::And, from, INPUT / 4 - 1);
                let to = b.mul_c(slot, 32 * warps);
                let to = b.int(IntOp::Add, to, at);
                b.copy(ring, to, src, from, None);
            },
            |b, i, slot, c| {
                let w = b.add_c(w, 1);
                let w = b.int_c(IntOp::Rem, w, warps);
                let row = b.mul_c(w, 32);
                let to = b.mul_c(slot, 32 * warps);
                let to = b.int(IntOp::Add, to, row);
                let to = b.int(IntOp::Add, to, lane);
                let to = b.mul_c(to, 4);
                let v = b.load_n(ring, Elem::I32, to, 4, None);
                let m = b.int(IntOp::Mul, v[0], v[3]);
                let s = b.int(IntOp::Xor, c[0], m);
                let s = b.int(IntOp::Add, s, v[1]);
                let s = b.int(IntOp::Sub, s, v[2]);
                let f = b.i_to_f(i);
                vec![s, b.add(c[1], f)]
            },
        );
        self.ints.push((out[0], false, false));
        self.floats.push(out[1]);
    }
}
