//! Random valid kernels (cargo feature `testgen`), for differential tests of interpreter, host code and PTX. A seed gives
//! one case on every machine: a kernel that the verifier accepts, free of races by construction, whose runs are free of
//! errors, with its grid and memory. NaNs are made the one NaN before their bits can be seen.

use super::build::Builder;
use super::{BoolOp, Elem, FCmp, FloatOp, ICmp, IntOp, Kernel, Mem, V};
use crate::math::Arith;

/// A kernel and what to run it on.
pub struct Case {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks along x and y.
    pub grid: [u32; 2],
    /// Bytes behind each parameter.
    pub bufs: Vec<Vec<u8>>,
}

/// Numbers that look random (splitmix64), the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// One of `xs`.
    pub fn pick<T: Copy>(&mut self, xs: &[T]) -> T {
        xs[self.below(xs.len())]
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Elements (of 4 bytes) of an input buffer; a power of two.
const INPUT: usize = 256;
/// Words that each warp has in the scratch array.
const SCRATCH: i32 = 64;

/// The case of a seed.
pub fn case(seed: u64) -> Case {
    let mut rng = Rng(seed);
    let warps = rng.pick(&[1, 1, 2, 3, 4]);
    let grid = [1 + rng.below(3) as u32, 1 + rng.below(2) as u32];
    let mut g = Gen::new(rng, warps, grid);
    g.prologue();
    let n = 4 + g.rng.below(24);
    g.statements(n, 0, Reach::Block);
    g.epilogue();
    let outs = g.outs as usize;
    let Gen { mut rng, b, .. } = g;
    let words = (grid[0] * grid[1] * warps) as usize * 32 * outs;
    let mut bufs: Vec<Vec<u8>> = (0..4).map(|_| input(&mut rng)).collect();
    bufs.extend([vec![0; words * 4], vec![0; words * 4], vec![0; words * 2], vec![0; words]]);
    Case { kernel: b.finish(), grid, bufs }
}

/// Bytes that hold floats of all kinds, of which most are ordinary.
fn input(rng: &mut Rng) -> Vec<u8> {
    let special = [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 1, 0x8000_0001, 0x7f7f_ffff, 0x3f80_0000];
    let word = |rng: &mut Rng| match rng.below(12) {
        0 => rng.pick(&special),
        1 => rng.bits() as u32 & 0xff7f_ffff,
        _ => (rng.bits() as u32 & 0x80ff_ffff) | 0x3e00_0000 | (rng.below(4) as u32) << 24,
    };
    (0..INPUT).flat_map(|_| word(rng).to_le_bytes()).collect()
}

/// Who shares the control flow at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All warps: barriers may stand here.
    Block,
    /// One warp.
    Warp,
    /// The body of a pipeline.
    Body,
}

/// Values at hand. Floats never are constants, so that no operation is one that LLVM rewrites.
#[derive(Clone)]
struct Pool {
    ints: Vec<V>,
    floats: Vec<V>,
    bools: Vec<V>,
    /// Integers that are the same in a warp.
    warp: Vec<V>,
    /// Integers that are the same in a block.
    block: Vec<V>,
}

struct Gen {
    rng: Rng,
    b: Builder,
    pool: Pool,
    ins: [Mem; 4],
    out: [Mem; 4],
    scratch: Mem,
    copies: Mem,
    /// Index of the warp's first output word, plus lane.
    at: V,
    /// Outputs per lane so far.
    outs: i32,
    grid: [u32; 2],
    pipelines: u32,
}

const STAGES: u32 = 4;

impl Gen {
    fn new(rng: Rng, warps: u32, grid: [u32; 2]) -> Gen {
        let mut b = Builder::new("random", warps);
        let ins = [b.buf("a", false), b.buf("b", false), b.buf("c", false), b.buf("d", false)];
        let out = [b.buf("out_f", true), b.buf("out_i", true), b.buf("out_h", true), b.buf("out_b", true)];
        let scratch = b.shared("scratch", warps * SCRATCH as u32 * 4);
        let copies = b.shared("copies", STAGES * warps * 512);
        let at = b.i(0);
        let pool = Pool { ints: vec![], floats: vec![], bools: vec![], warp: vec![], block: vec![] };
        Gen { rng, b, pool, ins, out, scratch, copies, at, outs: 0, grid, pipelines: 0 }
    }

    fn prologue(&mut self) {
        let (lane, warp) = (self.b.lane(), self.b.warp());
        let (x, y) = (self.b.block_x(), self.b.block_y());
        let row = self.b.mul_c(y, self.grid[0] as i32);
        let block = self.b.int(IntOp::Add, row, x);
        let blocks = self.b.mul_c(block, self.b.warps() as i32);
        let unit = self.b.int(IntOp::Add, blocks, warp);
        let words = self.b.mul_c(unit, 32);
        self.at = self.b.int(IntOp::Add, words, lane);
        self.pool.block = vec![x, y, block];
        self.pool.warp = vec![warp, unit];
        self.pool.ints = vec![lane, self.at, unit];
        let (ins, at) = (self.ins, self.at);
        for m in ins {
            let idx = self.b.int_c(IntOp::And, at, INPUT as i32 - 1);
            let f = self.b.load(m, Elem::F32, idx, None);
            let i = self.b.load(m, Elem::I32, idx, None);
            self.pool.floats.push(f);
            self.pool.ints.push(i);
        }
        for c in [1, 3, -7, 0x00ff_00ff] {
            let c = self.b.i(c);
            self.pool.ints.push(c);
            self.pool.block.push(c);
        }
        let (i, j) = (self.pool.ints[4], self.pool.ints[5]);
        self.pool.bools = vec![self.b.icmp(ICmp::Lt, i, j), self.b.icmp(ICmp::Ne, lane, block)];
        // All shared memory has a value before anything reads it.
        for (mem, words) in [(self.scratch, SCRATCH), (self.copies, STAGES as i32 * 128)] {
            let base = self.b.mul_c(warp, words);
            let base = self.b.int(IntOp::Add, base, lane);
            let trip = self.b.i(words / 32);
            self.b.for_(trip, &[], |b, k, _| {
                let k = b.mul_c(k, 32);
                let idx = b.int(IntOp::Add, base, k);
                b.store(mem, Elem::I32, idx, idx, None);
                vec![]
            });
        }
        self.b.barrier();
    }

    fn int(&mut self) -> V {
        let n = self.pool.ints.len();
        // Younger values are likelier.
        let k = self.rng.below(n).max(self.rng.below(n));
        self.pool.ints[k]
    }

    fn float(&mut self) -> V {
        let n = self.pool.floats.len();
        let k = self.rng.below(n).max(self.rng.below(n));
        self.pool.floats[k]
    }

    fn bool(&mut self) -> V {
        self.rng.pick(&self.pool.bools)
    }

    fn pred(&mut self) -> Option<V> {
        if self.rng.one_in(3) { Some(self.bool()) } else { None }
    }

    /// A float whose NaN is the one NaN.
    fn canon(&mut self, x: V) -> V {
        let nan = self.b.fcmp(FCmp::Nan, x, x);
        let one = self.b.f(f32::from_bits(0x7fc0_0000));
        self.b.select(nan, one, x)
    }

    /// Control value of at least that reach, in `0..=max`; `max` is one less than a power of two.
    fn control(&mut self, reach: Reach, max: i32) -> V {
        let from_warp = reach != Reach::Block && self.rng.one_in(2);
        let v = if from_warp { self.rng.pick(&self.pool.warp) } else { self.rng.pick(&self.pool.block) };
        let c = self.rng.below(4) as i32;
        let v = self.b.add_c(v, c);
        self.b.int_c(IntOp::And, v, max)
    }

    fn statements(&mut self, n: usize, depth: usize, reach: Reach) {
        for _ in 0..n {
            match self.rng.below(24) {
                0 | 1 if depth < 3 => self.loop_(depth, reach),
                2 if depth < 3 => self.if_(depth, reach),
                3 if reach == Reach::Block => self.exchange(),
                4 if reach == Reach::Block && self.pipelines < 3 => self.pipeline(depth),
                5..=8 => self.load(),
                9 | 10 => self.shuffle(),
                11..=16 => self.float_op(),
                17 if reach == Reach::Block && depth == 0 => self.output(),
                _ => self.int_op(),
            }
        }
    }

    fn int_op(&mut self) {
        use IntOp::*;
        let (a, b) = (self.int(), self.int());
        match self.rng.below(9) {
            0 => {
                let op = self.rng.pick(&[Shl, Lshr, Ashr]);
                let amount = if self.rng.one_in(2) {
                    self.b.int_c(And, b, 31)
                } else {
                    let c = self.rng.below(32) as i32;
                    self.b.i(c)
                };
                let v = self.b.int(op, a, amount);
                self.pool.ints.push(v);
            }
            1 => {
                let op = self.rng.pick(&[Div, Rem]);
                let b = self.b.int_c(Or, b, 1);
                let v = self.b.int(op, a, b);
                self.pool.ints.push(v);
            }
            2 => {
                let (s, t) = (self.rng.one_in(2), self.rng.one_in(2));
                let c = self.int();
                let v = self.b.dp4a(s, t, a, b, c);
                self.pool.ints.push(v);
                if self.rng.one_in(3) {
                    let args = [(); 7].map(|()| self.int());
                    let [d, e, f, g, h, i, j] = args;
                    let all = self.b.mma(s, t, [a, b, c, d], [e, f], [g, h, i, j]);
                    self.pool.ints.extend(all);
                }
            }
            3 => {
                let op = self.rng.pick(&[ICmp::Eq, ICmp::Ne, ICmp::Lt, ICmp::Le]);
                let v = self.b.icmp(op, a, b);
                self.pool.bools.push(v);
            }
            4 => {
                let op = self.rng.pick(&[BoolOp::And, BoolOp::Or, BoolOp::Xor]);
                let (p, q) = (self.bool(), self.bool());
                let v = self.b.bool_op(op, p, q);
                self.pool.bools.push(v);
            }
            5 => {
                let p = self.bool();
                let v = self.b.select(p, a, b);
                self.pool.ints.push(v);
            }
            _ => {
                let op = self.rng.pick(&[Add, Sub, Mul, And, Or, Xor, Max, Min]);
                let v = self.b.int(op, a, b);
                self.pool.ints.push(v);
            }
        }
    }

    fn float_op(&mut self) {
        let (x, y, z) = (self.float(), self.float(), self.float());
        let v = match self.rng.below(13) {
            0 => {
                let p = self.bool();
                self.b.select(p, x, y)
            }
            1 => self.b.round_even(x),
            2 => self.b.round_bf16(x),
            3 => {
                // Not a constant: those would fold.
                let at = self.at_masked();
                let i = self.b.load(self.ins[0], Elem::U8, at, None);
                let j = self.int();
                let i = self.b.dp4a(true, false, i, j, i);
                self.b.i_to_f(i)
            }
            4 => {
                let x = self.canon(x);
                let bits = self.b.bits(x);
                self.pool.ints.push(bits);
                let c = self.rng.pick(&[1, 0x10_0000, i32::MIN]);
                let bits = self.b.int_c(IntOp::Xor, bits, c);
                self.b.float(bits)
            }
            5 => {
                let big = self.b.f(1.5e9);
                let small = self.b.f(-1.5e9);
                let (lo, hi) = (self.b.fcmp(FCmp::Lt, small, x), self.b.fcmp(FCmp::Le, x, big));
                let fits = self.b.bool_op(BoolOp::And, lo, hi);
                let x = self.b.select(fits, x, big);
                let i = self.b.f_to_i(x);
                self.pool.ints.push(i);
                return;
            }
            6 => {
                let op = self.rng.pick(&[FCmp::Eq, FCmp::Lt, FCmp::Le, FCmp::Nan]);
                let v = self.b.fcmp(op, x, y);
                self.pool.bools.push(v);
                return;
            }
            7 => {
                let c = self.rng.pick(&[0.5f32, -3.25, 1e-30, 7.0]);
                let c = self.b.f(c);
                let op = self.rng.pick(&[FloatOp::Add, FloatOp::Sub, FloatOp::Mul]);
                self.b.float_op(op, x, c)
            }
            8 | 9 => self.b.fma(x, y, z),
            _ => {
                let op = self.rng.pick(&[FloatOp::Add, FloatOp::Sub, FloatOp::Mul]);
                self.b.float_op(op, x, y)
            }
        };
        self.pool.floats.push(v);
    }

    fn at_masked(&mut self) -> V {
        let at = self.at;
        self.b.int_c(IntOp::And, at, INPUT as i32 - 1)
    }

    fn load(&mut self) {
        let elem = self.rng.pick(&[Elem::F32, Elem::I32, Elem::U8, Elem::Bf16]);
        let n = self.rng.pick(&[1, 1, 2, 4]);
        let mem = self.rng.pick(&self.ins);
        let elems = (INPUT as i32 * 4) / elem.bytes() as i32;
        let uniform = self.rng.one_in(6);
        let idx = match self.rng.below(3) {
            _ if uniform => self.rng.pick(&self.pool.block),
            0 => self.at,
            _ => self.int(),
        };
        let idx = if self.rng.one_in(2) { self.b.mul_c(idx, n) } else { idx };
        let idx = self.b.int_c(IntOp::And, idx, (elems - 1) & !(n - 1));
        let pred = self.pred();
        // A predicate that is false gives 0: a value that is not a constant all the same.
        let vs = self.b.load_n(mem, elem, idx, n as usize, pred);
        match elem {
            Elem::F32 | Elem::Bf16 => self.pool.floats.extend(vs),
            Elem::I32 | Elem::U8 => {
                if uniform && pred.is_none() {
                    self.pool.block.push(vs[0]);
                }
                self.pool.ints.extend(vs);
            }
        }
    }

    fn shuffle(&mut self) {
        let mask = 1 + self.rng.below(31) as u32;
        match self.rng.below(4) {
            0 => {
                let a = self.int();
                let v = self.b.shuffle_xor(a, mask);
                self.pool.ints.push(v);
            }
            1 => {
                let (a, s) = (self.float(), self.int());
                let v = self.b.shuffle_idx(a, s);
                self.pool.floats.push(v);
            }
            2 => {
                let (a, s) = (self.int(), self.rng.pick(&self.pool.block));
                let v = self.b.shuffle_idx(a, s);
                self.pool.warp.push(v);
                self.pool.ints.push(v);
            }
            _ => {
                let a = self.float();
                let v = self.b.shuffle_xor(a, mask);
                self.pool.floats.push(v);
            }
        }
    }

    /// Every warp writes its words of the scratch array, then all read any.
    fn exchange(&mut self) {
        let (lane, warp) = (self.b.lane(), self.b.warp());
        let base = self.b.mul_c(warp, SCRATCH);
        let own = self.b.int(IntOp::Add, base, lane);
        let half = self.rng.below(2) as i32 * 32;
        let own = self.b.add_c(own, half);
        let (val, pred) = (self.int(), self.pred());
        self.b.store(self.scratch, Elem::I32, own, val, pred);
        self.b.barrier();
        let words = self.b.warps() as i32 * SCRATCH;
        let idx = self.int();
        let idx = self.b.int_c(IntOp::Rem, idx, words);
        let v = self.b.load(self.scratch, Elem::I32, idx, None);
        let bytes = self.b.load(self.scratch, Elem::U8, own, None);
        self.pool.ints.extend([v, bytes]);
        self.b.barrier();
    }

    /// Runs `f` on a pool that is forgotten afterwards, and gives an int, two floats and a bool of it.
    fn region(&mut self, b: &mut Builder, f: impl FnOnce(&mut Self)) -> Vec<V> {
        let outer = self.pool.clone();
        std::mem::swap(&mut self.b, b);
        f(self);
        let out = vec![self.int(), self.float(), self.float(), self.bool()];
        std::mem::swap(&mut self.b, b);
        self.pool = outer;
        out
    }

    fn take(&mut self, vs: &[V]) {
        self.pool.ints.push(vs[0]);
        self.pool.floats.extend(&vs[1..3]);
        self.pool.bools.push(vs[3]);
    }

    /// Calls a method of the builder whose closures need both the builder and `self`.
    fn with<R>(&mut self, f: impl FnOnce(&mut Builder, &mut Self) -> R) -> R {
        let mut b = std::mem::replace(&mut self.b, Builder::new("hole", 1));
        let r = f(&mut b, self);
        self.b = b;
        r
    }

    fn loop_(&mut self, depth: usize, reach: Reach) {
        let inner = if reach == Reach::Block && self.rng.one_in(2) { Reach::Warp } else { reach };
        let trip = self.control(inner, 3);
        let init = [self.int(), self.float(), self.float(), self.bool()];
        let n = 1 + self.rng.below(6);
        let out = self.with(|b, me| {
            b.for_(trip, &init, |b, iv, carried| {
                me.region(b, |me| {
                    me.pool.warp.push(iv);
                    if inner == Reach::Block {
                        me.pool.block.push(iv);
                    }
                    me.pool.ints.push(iv);
                    me.take(carried);
                    me.statements(n, depth + 1, inner);
                })
            })
        });
        self.take(&out);
    }

    fn if_(&mut self, depth: usize, reach: Reach) {
        let inner = if reach == Reach::Block && self.rng.one_in(2) { Reach::Warp } else { reach };
        let v = self.control(inner, 3);
        let c = self.b.i(1);
        let cond = self.b.icmp(ICmp::Le, v, c);
        let (n, m) = (self.rng.below(6), self.rng.below(4));
        let me = std::cell::RefCell::new(self);
        let mut b = std::mem::replace(&mut me.borrow_mut().b, Builder::new("hole", 1));
        let arm = |b: &mut Builder, n| {
            let mut me = me.borrow_mut();
            me.region(b, |me| me.statements(n, depth + 1, inner))
        };
        let out = b.if_(cond, |b| arm(b, n), |b| arm(b, m));
        let me = me.into_inner();
        me.b = b;
        me.take(&out);
    }

    fn pipeline(&mut self, depth: usize) {
        self.pipelines += 1;
        let stages = 2 + self.rng.below(STAGES as usize - 1) as u32;
        let trip = self.control(Reach::Block, 7);
        let init = [self.int(), self.float(), self.float(), self.bool()];
        let (mem, src, at) = (self.copies, self.rng.pick(&self.ins), self.at);
        let pred = self.pred();
        let n = 1 + self.rng.below(5);
        let warps = self.b.warps() as i32;
        let out = self.with(|b, me| {
            let copy = |b: &mut Builder, iv: V, slot: V| {
                let (lane, warp) = (b.lane(), b.warp());
                let to = b.mul_c(slot, warps);
                let to = b.int(IntOp::Add, to, warp);
                let to = b.mul_c(to, 32);
                let to = b.int(IntOp::Add, to, lane);
                let from = b.mul_c(iv, 3);
                let from = b.int(IntOp::Add, from, at);
                let from = b.int_c(IntOp::And, from, INPUT as i32 / 4 - 1);
                b.copy(mem, to, src, from, pred);
            };
            b.pipeline(stages, trip, &init, copy, |b, iv, slot, carried| {
                me.region(b, |me| {
                    me.pool.block.push(iv);
                    me.pool.ints.push(slot);
                    me.take(carried);
                    let any = me.int();
                    let any = me.b.int_c(IntOp::Rem, any, warps * 128);
                    let base = me.b.mul_c(slot, warps * 128);
                    let idx = me.b.int(IntOp::Add, base, any);
                    let (i, f) = (me.b.load(mem, Elem::I32, idx, None), me.b.load(mem, Elem::F32, idx, None));
                    me.pool.ints.push(i);
                    me.pool.floats.push(f);
                    me.statements(n, depth + 1, Reach::Body);
                })
            })
        });
        self.take(&out);
    }

    /// Stores one value of each type at places that no other warp touches.
    fn output(&mut self) {
        let step = (self.grid[0] * self.grid[1] * self.b.warps()) as i32 * 32 * self.outs;
        self.outs += 1;
        let idx = self.b.add_c(self.at, step);
        let f = self.float();
        let (f, i) = (self.canon(f), self.int());
        let (h, u) = (self.float(), self.int());
        let h = self.canon(h);
        let [out_f, out_i, out_h, out_b] = self.out;
        let pred = self.pred();
        self.b.store(out_f, Elem::F32, idx, f, pred);
        self.b.store(out_i, Elem::I32, idx, i, None);
        self.b.store(out_h, Elem::Bf16, idx, h, pred);
        self.b.store(out_b, Elem::U8, idx, u, None);
    }

    fn epilogue(&mut self) {
        self.output();
        self.output();
    }
}
