//! Executes kernels lane by lane, in plain Rust. Warps run in turn between barriers.

use ir::kernel::build::fold_int;
use ir::kernel::*;

struct Block<'k> {
    k: &'k Kernel,
    at: [u32; 2],
    bufs: Vec<Vec<u8>>,
    shared: Vec<Vec<u8>>,
    /// Bits by warp, value, lane.
    vals: Vec<Vec<[u32; LANES]>>,
}

/// Runs all blocks of a grid in order.
pub fn run(k: &Kernel, grid: [u32; 2], bufs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut bufs = bufs.to_vec();
    for y in 0..grid[1] {
        for x in 0..grid[0] {
            let shared = k.shared.iter().map(|s| vec![0xcd; s.bytes as usize]).collect();
            let vals = vec![vec![[0; LANES]; k.types.len()]; k.warps as usize];
            let mut b = Block { k, at: [x, y], bufs, shared, vals };
            b.all(&k.body);
            bufs = b.bufs;
        }
    }
    bufs
}

fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

/// Nearest bf16, upper half.
pub fn bf16(x: f32) -> u32 {
    if x.is_nan() {
        return (x.to_bits() | 0x40_0000) & 0xffff_0000;
    }
    let b = x.to_bits();
    (b.wrapping_add(0x7fff + (b >> 16 & 1))) & 0xffff_0000
}

impl Block<'_> {
    /// Runs instructions in all warps, in step at barriers.
    fn all(&mut self, b: &ir::kernel::Block) {
        for i in &b.insts {
            let single = ir::kernel::Block { insts: vec![i.clone()] };
            match &i.op {
                Op::Barrier => {}
                Op::For { trip, iv, carried, body, yields } if single.has_barrier() => {
                    let n = self.vals[0][trip.idx()][0] as i32;
                    self.enter(None, carried);
                    for t in 0..n.max(0) {
                        self.each(None, |v| v[iv.idx()] = [t as u32; LANES]);
                        self.all(body);
                        self.next(None, carried, yields);
                    }
                    self.leave(None, &i.results, carried);
                }
                Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields } => {
                    let n = self.vals[0][trip.idx()][0] as i32;
                    self.enter(None, carried);
                    for t in 0..n.max(0) as u32 {
                        self.each(None, |v| {
                            v[copy_iv.idx()] = [t; LANES];
                            v[iv.idx()] = [t; LANES];
                            v[copy_slot.idx()] = [t % stages; LANES];
                            v[slot.idx()] = [t % stages; LANES];
                        });
                        self.all(copy);
                        self.all(body);
                        self.next(None, carried, yields);
                    }
                    self.leave(None, &i.results, carried);
                }
                Op::If { cond, then, els, then_yields, els_yields } if single.has_barrier() => {
                    let c = self.vals[0][cond.idx()][0] != 0;
                    self.all(if c { then } else { els });
                    let ys = if c { then_yields } else { els_yields };
                    self.each(None, |v| i.results.iter().zip(ys).for_each(|(r, y)| v[r.idx()] = v[y.idx()]));
                }
                _ => (0..self.k.warps as usize).for_each(|w| self.one(w, i)),
            }
        }
    }

    fn each(&mut self, w: Option<usize>, mut g: impl FnMut(&mut Vec<[u32; LANES]>)) {
        match w {
            Some(w) => g(&mut self.vals[w]),
            None => self.vals.iter_mut().for_each(g),
        }
    }

    fn enter(&mut self, w: Option<usize>, carried: &[(V, V)]) {
        self.next(w, carried, &carried.iter().map(|c| c.1).collect::<Vec<_>>());
    }

    fn next(&mut self, w: Option<usize>, carried: &[(V, V)], ys: &[V]) {
        self.each(w, |v| {
            let new: Vec<_> = ys.iter().map(|y| v[y.idx()]).collect();
            carried.iter().zip(new).for_each(|((p, _), x)| v[p.idx()] = x);
        });
    }

    fn leave(&mut self, w: Option<usize>, results: &[V], carried: &[(V, V)]) {
        self.each(w, |v| results.iter().zip(carried).for_each(|(r, (p, _))| v[r.idx()] = v[p.idx()]));
    }

    fn one(&mut self, w: usize, i: &Inst) {
        match &i.op {
            Op::For { trip, iv, carried, body, yields } => {
                let n = self.vals[w][trip.idx()][0] as i32;
                self.enter(Some(w), carried);
                for t in 0..n.max(0) {
                    self.vals[w][iv.idx()] = [t as u32; LANES];
                    body.insts.iter().for_each(|i| self.one(w, i));
                    self.next(Some(w), carried, yields);
                }
                self.leave(Some(w), &i.results, carried);
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                let c = self.vals[w][cond.idx()][0] != 0;
                assert!(self.vals[w][cond.idx()].iter().all(|x| (*x != 0) == c), "a condition differs between lanes");
                let (b, ys) = if c { (then, then_yields) } else { (els, els_yields) };
                b.insts.iter().for_each(|i| self.one(w, i));
                self.each(Some(w), |v| i.results.iter().zip(ys).for_each(|(r, y)| v[r.idx()] = v[y.idx()]));
            }
            Op::Load { mem, elem, idx, pred } => {
                for l in 0..LANES {
                    let on = pred.is_none_or(|p| self.vals[w][p.idx()][l] != 0);
                    for (j, r) in i.results.iter().enumerate() {
                        let at = (self.vals[w][idx.idx()][l] as usize + j) * elem.bytes() as usize;
                        let x = if on { self.read(*mem, at, elem.bytes() as usize) } else { 0 };
                        self.vals[w][r.idx()][l] = if *elem == Elem::Bf16 { x << 16 } else { x };
                    }
                }
            }
            Op::Store { mem, elem, idx, val, pred } => {
                for l in 0..LANES {
                    if pred.is_none_or(|p| self.vals[w][p.idx()][l] != 0) {
                        let at = self.vals[w][idx.idx()][l] as usize * elem.bytes() as usize;
                        let x = self.vals[w][val.idx()][l];
                        let x = if *elem == Elem::Bf16 { bf16(f(x)) >> 16 } else { x };
                        let n = elem.bytes() as usize;
                        self.mem(*mem)[at..at + n].copy_from_slice(&x.to_le_bytes()[..n]);
                    }
                }
            }
            Op::AtomicAdd { buf, idx, val, pred, .. } => {
                for l in 0..LANES {
                    if pred.is_none_or(|p| self.vals[w][p.idx()][l] != 0) {
                        let at = self.vals[w][idx.idx()][l] as usize * 4;
                        let x = self.read(Mem::Buf(*buf), at, 4).wrapping_add(self.vals[w][val.idx()][l]);
                        self.mem(Mem::Buf(*buf))[at..at + 4].copy_from_slice(&x.to_le_bytes());
                    }
                }
            }
            Op::Copy { dst, dst_idx, src, src_idx, pred } => {
                for l in 0..LANES {
                    if pred.is_none_or(|p| self.vals[w][p.idx()][l] != 0) {
                        let (d, s) = (self.vals[w][dst_idx.idx()][l] as usize * 16, self.vals[w][src_idx.idx()][l] as usize * 16);
                        let x = self.bufs[*src as usize][s..s + 16].to_vec();
                        self.shared[*dst as usize][d..d + 16].copy_from_slice(&x);
                    }
                }
            }
            Op::Mma { a_signed, b_signed, a, b, acc } => {
                // Out of whole matrices: rows of A, columns of B.
                let vals = &self.vals[w];
                let byte = |x: u32, i: usize, s: bool| {
                    if s { i64::from(x.to_le_bytes()[i] as i8) } else { i64::from(x.to_le_bytes()[i]) }
                };
                let at =
                    |row: usize, k: usize| byte(vals[a[row / 8 + k / 16 * 2].idx()][row % 8 * 4 + k % 16 / 4], k % 4, *a_signed);
                let bt = |k: usize, col: usize| byte(vals[b[k / 16].idx()][col * 4 + k % 16 / 4], k % 4, *b_signed);
                let mut out = [[0u32; LANES]; 4];
                for row in 0..16 {
                    for col in 0..8 {
                        let (i, l) = (row / 8 * 2 + col % 2, row % 8 * 4 + col / 2);
                        let sum: i64 = (0..32).map(|k| at(row, k) * bt(k, col)).sum();
                        out[i][l] = vals[acc[i].idx()][l].wrapping_add(sum as u32);
                    }
                }
                i.results.iter().zip(out).for_each(|(r, x)| self.vals[w][r.idx()] = x);
            }
            op => {
                let r = std::array::from_fn(|l| self.pure(w, l, op));
                self.vals[w][i.results[0].idx()] = r;
            }
        }
    }

    fn mem(&mut self, m: Mem) -> &mut Vec<u8> {
        match m {
            Mem::Buf(b) => &mut self.bufs[b as usize],
            Mem::Shared(s) => &mut self.shared[s as usize],
        }
    }

    fn read(&mut self, m: Mem, at: usize, n: usize) -> u32 {
        self.mem(m)[at..at + n].iter().rev().fold(0, |x, b| x << 8 | u32::from(*b))
    }

    fn pure(&self, w: usize, l: usize, op: &Op) -> u32 {
        let g = |v: &V| self.vals[w][v.idx()][l];
        let fl = |v: &V| f(g(v));
        match op {
            Op::ConstI(x) => *x as u32,
            Op::ConstF(x) => *x,
            Op::ConstB(x) => u32::from(*x),
            Op::Lane => l as u32,
            Op::Warp => w as u32,
            Op::BlockX => self.at[0],
            Op::BlockY => self.at[1],
            Op::Int(op, a, b) => fold_int(*op, g(a) as i32, g(b) as i32).expect("an undefined operation") as u32,
            Op::Float(FloatOp::Add, a, b) => (fl(a) + fl(b)).to_bits(),
            Op::Float(FloatOp::Sub, a, b) => (fl(a) - fl(b)).to_bits(),
            Op::Float(FloatOp::Mul, a, b) => (fl(a) * fl(b)).to_bits(),
            Op::Fma(a, b, c) => fl(a).mul_add(fl(b), fl(c)).to_bits(),
            Op::RoundEven(a) => fl(a).round_ties_even().to_bits(),
            Op::RoundBf16(a) => bf16(fl(a)),
            Op::ICmp(c, a, b) => {
                let (a, b) = (g(a) as i32, g(b) as i32);
                u32::from(match c {
                    ICmp::Eq => a == b,
                    ICmp::Ne => a != b,
                    ICmp::Lt => a < b,
                    ICmp::Le => a <= b,
                })
            }
            Op::FCmp(c, a, b) => {
                let (a, b) = (fl(a), fl(b));
                u32::from(match c {
                    FCmp::Eq => a == b,
                    FCmp::Lt => a < b,
                    FCmp::Le => a <= b,
                    FCmp::Nan => a.is_nan() || b.is_nan(),
                })
            }
            Op::Bool(c, a, b) => match c {
                BoolOp::And => g(a) & g(b),
                BoolOp::Or => g(a) | g(b),
                BoolOp::Xor => g(a) ^ g(b),
            },
            Op::Select(p, a, b) => {
                if g(p) != 0 {
                    g(a)
                } else {
                    g(b)
                }
            }
            Op::BitsToF(a) | Op::FToBits(a) => g(a),
            Op::IToF(a) => (g(a) as i32 as f32).to_bits(),
            Op::FToI(a) => fl(a) as i32 as u32,
            Op::Dp4a { a_signed, b_signed, a, b, acc } => {
                let byte = |x: u32, i: usize, s: bool| {
                    let b = x.to_le_bytes()[i];
                    if s { i32::from(b as i8) } else { i32::from(b) }
                };
                let sum: i32 = (0..4).map(|i| byte(g(a), i, *a_signed) * byte(g(b), i, *b_signed)).sum();
                (g(acc) as i32).wrapping_add(sum) as u32
            }
            Op::ShuffleXor(a, m) => self.vals[w][a.idx()][l ^ *m as usize],
            Op::ShuffleIdx(a, s) => self.vals[w][a.idx()][(g(s) & 31) as usize],
            _ => unreachable!("not pure"),
        }
    }
}
