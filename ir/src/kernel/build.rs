//! Builds kernels: allocates values, folds constants, merges equal pure operations (value numbering per scope) and
//! applies the few integer identities that keep addresses short. What it returns is what codegen emits: counts of float
//! operations in the kernel, the PTX and the machine code are compared, so nothing may be left for LLVM to merge.

use super::*;
use crate::math::Arith;
use std::collections::BTreeMap;

/// Key of a pure operation for value numbering.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Key(u8, u8, Vec<u32>);

/// Builder of one kernel.
pub struct Builder {
    k: Kernel,
    scopes: Vec<(Block, BTreeMap<Key, V>)>,
    consts: Vec<Option<Op>>,
}

impl Builder {
    /// An empty kernel of `warps` warps a block.
    pub fn new(name: &str, warps: u32) -> Self {
        let k = Kernel {
            name: name.into(),
            warps,
            min_blocks: 0,
            contract: false,
            bufs: vec![],
            shared: vec![],
            types: vec![],
            body: Block::default(),
        };
        Builder { k, scopes: vec![(Block::default(), BTreeMap::new())], consts: vec![] }
    }

    /// A parameter that nobody writes while the program runs.
    pub fn fixed(&mut self, name: &str) -> Mem {
        self.k.bufs.push(Buf { name: name.into(), write: false, fixed: true });
        Mem::Buf(self.k.bufs.len() as u32 - 1)
    }

    /// Declares a parameter.
    pub fn buf(&mut self, name: &str, write: bool) -> Mem {
        self.k.bufs.push(Buf { name: name.into(), write, fixed: false });
        Mem::Buf(self.k.bufs.len() as u32 - 1)
    }

    /// Declares a shared array of at least `bytes` bytes.
    pub fn shared(&mut self, name: &str, bytes: u32) -> Mem {
        self.k.shared.push(Shared { name: name.into(), bytes: bytes.next_multiple_of(16) });
        Mem::Shared(self.k.shared.len() as u32 - 1)
    }

    /// Free-schedule wish: blocks per multiprocessor.
    pub fn min_blocks(&mut self, n: u32) {
        self.k.min_blocks = n;
    }

    /// Warps of a block.
    pub fn warps(&self) -> u32 {
        self.k.warps
    }

    /// Type of a value.
    pub fn ty(&self, v: V) -> Ty {
        self.k.types[v.idx()]
    }

    /// The finished kernel, without operations whose results nobody reads.
    pub fn finish(mut self) -> Kernel {
        assert_eq!(self.scopes.len(), 1, "unfinished region");
        self.k.body = self.scopes.pop().unwrap_or_default().0;
        dead_code(&mut self.k);
        self.k
    }

    /// The value of an integer constant.
    pub fn as_const(&self, v: V) -> Option<i32> {
        self.const_i(v)
    }

    /// Opens a region: what follows goes into it until [`Builder::end`]. For callers that need more than the builder in a
    /// loop's body; else use [`Builder::for_`] and [`Builder::if_`].
    pub fn begin(&mut self) {
        self.scopes.push((Block::default(), BTreeMap::new()));
    }

    /// Closes the region.
    pub fn end(&mut self) -> Block {
        assert!(self.scopes.len() > 1, "no open region");
        self.scopes.pop().unwrap_or_default().0
    }

    /// Appends an instruction made of regions; results have these types.
    pub fn structured(&mut self, op: Op, tys: &[Ty]) -> Vec<V> {
        self.push(op, tys)
    }

    /// A new value, to be defined by a region's parameter.
    pub fn fresh(&mut self, ty: Ty) -> V {
        self.k.types.push(ty);
        self.consts.push(None);
        V(self.k.types.len() as u32 - 1)
    }

    fn push(&mut self, op: Op, tys: &[Ty]) -> Vec<V> {
        let results: Vec<V> = tys.iter().map(|&t| self.fresh(t)).collect();
        if let (Op::ConstI(_) | Op::ConstF(_) | Op::ConstB(_), Some(r)) = (&op, results.first()) {
            self.consts[r.idx()] = Some(op.clone());
        }
        let (block, _) = self.scopes.last_mut().expect("a scope is open");
        block.insts.push(Inst { op, results: results.clone() });
        results
    }

    fn pure(&mut self, tag: u8, sub: u8, args: &[u32], op: Op, ty: Ty) -> V {
        let key = Key(tag, sub, args.to_vec());
        if let Some(v) = self.scopes.iter().rev().find_map(|(_, m)| m.get(&key)) {
            return *v;
        }
        let v = self.push(op, &[ty])[0];
        self.scopes.last_mut().expect("a scope is open").1.insert(key, v);
        v
    }

    fn const_i(&self, v: V) -> Option<i32> {
        match self.consts[v.idx()] {
            Some(Op::ConstI(x)) => Some(x),
            _ => None,
        }
    }

    fn const_f(&self, v: V) -> Option<f32> {
        match self.consts[v.idx()] {
            Some(Op::ConstF(x)) => Some(f32::from_bits(x)),
            _ => None,
        }
    }

    /// Integer constant.
    pub fn i(&mut self, x: i32) -> V {
        self.pure(0, 0, &[x as u32], Op::ConstI(x), Ty::I32)
    }
    /// Float constant.
    pub fn f(&mut self, x: f32) -> V {
        self.pure(0, 1, &[x.to_bits()], Op::ConstF(x.to_bits()), Ty::F32)
    }
    /// Truth constant.
    pub fn b(&mut self, x: bool) -> V {
        self.pure(0, 2, &[x as u32], Op::ConstB(x), Ty::Bool)
    }
    /// Lane number.
    pub fn lane(&mut self) -> V {
        self.pure(1, 0, &[], Op::Lane, Ty::I32)
    }
    /// Warp number; the constant 0 in a block of one warp.
    pub fn warp(&mut self) -> V {
        if self.k.warps == 1 {
            return self.i(0);
        }
        self.pure(1, 1, &[], Op::Warp, Ty::I32)
    }
    /// Block number along x.
    pub fn block_x(&mut self) -> V {
        self.pure(1, 2, &[], Op::BlockX, Ty::I32)
    }
    /// Block number along y.
    pub fn block_y(&mut self) -> V {
        self.pure(1, 3, &[], Op::BlockY, Ty::I32)
    }

    /// Integer operation, folded where it can be.
    pub fn int(&mut self, op: IntOp, a: V, b: V) -> V {
        use IntOp::*;
        let (ca, cb) = (self.const_i(a), self.const_i(b));
        if let (Some(x), Some(y)) = (ca, cb)
            && let Some(r) = fold_int(op, x, y)
        {
            return self.i(r);
        }
        match (op, ca, cb) {
            (Add | Or | Xor, Some(0), _) => return b,
            (Add | Sub | Or | Xor | Shl | Lshr | Ashr, _, Some(0)) => return a,
            (Mul | Div, _, Some(1)) => return a,
            (Mul, Some(1), _) => return b,
            (Mul | And, Some(0), _) | (Mul | And, _, Some(0)) => return self.i(0),
            (And, _, Some(-1)) => return a,
            (Mul, _, Some(y)) if y > 0 && y.count_ones() == 1 => {
                let s = self.i(y.trailing_zeros() as i32);
                return self.int(Shl, a, s);
            }
            (Div, _, Some(y)) if y > 0 && y.count_ones() == 1 => {
                let s = self.i(y.trailing_zeros() as i32);
                return self.int(Lshr, a, s);
            }
            (Rem, _, Some(y)) if y > 0 && y.count_ones() == 1 => {
                let m = self.i(y - 1);
                return self.int(And, a, m);
            }
            // Constants to the right, so that equal sums meet.
            (Add | Mul | And | Or | Xor | Max | Min, Some(_), None) => return self.int(op, b, a),
            _ => {}
        }
        self.pure(2, op as u8, &[a.0, b.0], Op::Int(op, a, b), Ty::I32)
    }
    /// Integer operation with a constant.
    pub fn int_c(&mut self, op: IntOp, a: V, c: i32) -> V {
        let c = self.i(c);
        self.int(op, a, c)
    }
    /// `a + c`
    pub fn add_c(&mut self, a: V, c: i32) -> V {
        self.int_c(IntOp::Add, a, c)
    }
    /// `a * c`
    pub fn mul_c(&mut self, a: V, c: i32) -> V {
        self.int_c(IntOp::Mul, a, c)
    }

    /// Float operation of two operands.
    pub fn float_op(&mut self, op: FloatOp, a: V, b: V) -> V {
        if let (Some(x), Some(y)) = (self.const_f(a), self.const_f(b)) {
            return self.f(match op {
                FloatOp::Add => x + y,
                FloatOp::Sub => x - y,
                FloatOp::Mul => x * y,
            });
        }
        if op == FloatOp::Mul {
            // What LLVM would write for these factors; the same bits.
            for (x, y) in [(a, b), (b, a)] {
                match self.const_f(y) {
                    Some(1.0) => return x,
                    Some(2.0) => return self.float_op(FloatOp::Add, x, x),
                    _ => {}
                }
            }
        }
        let (a, b) = if op != FloatOp::Sub && a > b { (b, a) } else { (a, b) };
        self.pure(3, op as u8, &[a.0, b.0], Op::Float(op, a, b), Ty::F32)
    }
    /// Nearest bf16 value.
    pub fn round_bf16(&mut self, a: V) -> V {
        self.pure(5, 1, &[a.0], Op::RoundBf16(a), Ty::F32)
    }
    /// Integer comparison.
    pub fn icmp(&mut self, op: ICmp, a: V, b: V) -> V {
        if let (Some(x), Some(y)) = (self.const_i(a), self.const_i(b)) {
            return self.b(match op {
                ICmp::Eq => x == y,
                ICmp::Ne => x != y,
                ICmp::Lt => x < y,
                ICmp::Le => x <= y,
            });
        }
        self.pure(6, op as u8, &[a.0, b.0], Op::ICmp(op, a, b), Ty::Bool)
    }
    /// Float comparison.
    pub fn fcmp(&mut self, op: FCmp, a: V, b: V) -> V {
        self.pure(7, op as u8, &[a.0, b.0], Op::FCmp(op, a, b), Ty::Bool)
    }
    /// Operation on truth values.
    pub fn bool_op(&mut self, op: BoolOp, a: V, b: V) -> V {
        for (x, y) in [(a, b), (b, a)] {
            match (op, &self.consts[x.idx()]) {
                (BoolOp::And, Some(Op::ConstB(true))) | (BoolOp::Or | BoolOp::Xor, Some(Op::ConstB(false))) => return y,
                (BoolOp::And, Some(Op::ConstB(false))) | (BoolOp::Or, Some(Op::ConstB(true))) => return x,
                _ => {}
            }
        }
        self.pure(8, op as u8, &[a.0, b.0], Op::Bool(op, a, b), Ty::Bool)
    }
    /// `p ? a : b`
    pub fn select(&mut self, p: V, a: V, b: V) -> V {
        if a == b {
            return a;
        }
        match self.consts[p.idx()] {
            Some(Op::ConstB(true)) => return a,
            Some(Op::ConstB(false)) => return b,
            _ => {}
        }
        let t = self.ty(a);
        self.pure(9, 0, &[p.0, a.0, b.0], Op::Select(p, a, b), t)
    }
    /// `acc + Σ a.byte[i] * b.byte[i]`
    pub fn dp4a(&mut self, a_signed: bool, b_signed: bool, a: V, b: V, acc: V) -> V {
        let op = Op::Dp4a { a_signed, b_signed, a, b, acc };
        self.pure(10, a_signed as u8 * 2 + b_signed as u8, &[a.0, b.0, acc.0], op, Ty::I32)
    }
    /// `acc + A · B` of a warp (see [`Op::Mma`]).
    pub fn mma(&mut self, a_signed: bool, b_signed: bool, a: [V; 4], b: [V; 2], acc: [V; 4]) -> [V; 4] {
        let r = self.push(Op::Mma { a_signed, b_signed, a, b, acc }, &[Ty::I32; 4]);
        [r[0], r[1], r[2], r[3]]
    }
    /// The value of lane `lane ^ mask`.
    pub fn shuffle_xor(&mut self, a: V, mask: u32) -> V {
        let t = self.ty(a);
        self.pure(11, 0, &[a.0, mask], Op::ShuffleXor(a, mask), t)
    }
    /// The value of lane `src & 31`.
    pub fn shuffle_idx(&mut self, a: V, src: V) -> V {
        let t = self.ty(a);
        self.pure(12, 0, &[a.0, src.0], Op::ShuffleIdx(a, src), t)
    }

    /// Reads one element.
    pub fn load(&mut self, mem: Mem, elem: Elem, idx: V, pred: Option<V>) -> V {
        self.load_n(mem, elem, idx, 1, pred)[0]
    }
    /// Reads `n` (1, 2, 4) consecutive elements.
    pub fn load_n(&mut self, mem: Mem, elem: Elem, idx: V, n: usize, pred: Option<V>) -> Vec<V> {
        self.push(Op::Load { mem, elem, idx, pred }, &vec![elem.ty(); n])
    }
    /// Writes one element.
    pub fn store(&mut self, mem: Mem, elem: Elem, idx: V, val: V, pred: Option<V>) {
        self.push(Op::Store { mem, elem, idx, val, pred }, &[]);
    }
    /// Adds to a word of a buffer that is used for nothing else.
    pub fn atomic_add(&mut self, mem: Mem, idx: V, val: V, pred: Option<V>) {
        let Mem::Buf(buf) = mem else { panic!("only words of a buffer are added to atomically") };
        self.push(Op::AtomicAdd { buf, idx, val, pred, float: false }, &[]);
    }
    /// Adds to a float of a buffer that is used for nothing else, in the order of arrival.
    pub fn atomic_fadd(&mut self, mem: Mem, idx: V, val: V, pred: Option<V>) {
        let Mem::Buf(buf) = mem else { panic!("only words of a buffer are added to atomically") };
        self.push(Op::AtomicAdd { buf, idx, val, pred, float: true }, &[]);
    }
    /// A function as the machine computes it.
    pub fn approx(&mut self, op: ApproxOp, a: V) -> V {
        self.pure(13, op as u8, &[a.0], Op::Approx(op, a), Ty::F32)
    }
    /// Block barrier; nothing in a block of one warp is visible to others before it either, so it is always kept.
    pub fn barrier(&mut self) {
        self.push(Op::Barrier, &[]);
    }
    /// Copy of 16 bytes per lane, in the copy block of a pipeline.
    pub fn copy(&mut self, dst: Mem, dst_idx: V, src: Mem, src_idx: V, pred: Option<V>) {
        let (Mem::Shared(dst), Mem::Buf(src)) = (dst, src) else { panic!("copies go from a buffer to shared memory") };
        self.push(Op::Copy { dst, dst_idx, src, src_idx, pred }, &[]);
    }

    fn region<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> (Block, R) {
        self.scopes.push((Block::default(), BTreeMap::new()));
        let r = f(self);
        let (b, _) = self.scopes.pop().expect("a scope is open");
        (b, r)
    }

    /// `trip` iterations with carried values; the closure gets (builder, iteration, carried) and returns the next ones.
    pub fn for_(&mut self, trip: V, init: &[V], f: impl FnOnce(&mut Self, V, &[V]) -> Vec<V>) -> Vec<V> {
        let tys: Vec<Ty> = init.iter().map(|&v| self.ty(v)).collect();
        let iv = self.fresh(Ty::I32);
        let params: Vec<V> = tys.iter().map(|&t| self.fresh(t)).collect();
        let (body, yields) = self.region(|b| f(b, iv, &params));
        let carried = params.into_iter().zip(init.iter().copied()).collect();
        self.push(Op::For { trip, iv, carried, body, yields }, &tys)
    }
    /// `n` iterations, `n` known: none and one are written out.
    pub fn for_n(&mut self, n: u32, init: &[V], f: impl FnOnce(&mut Self, V, &[V]) -> Vec<V>) -> Vec<V> {
        let trip = self.i(n as i32);
        match n {
            0 => init.to_vec(),
            1 => {
                let zero = self.i(0);
                f(self, zero, init)
            }
            _ => self.for_(trip, init, f),
        }
    }
    /// Both arms return values of the same types.
    pub fn if_(&mut self, cond: V, then: impl FnOnce(&mut Self) -> Vec<V>, els: impl FnOnce(&mut Self) -> Vec<V>) -> Vec<V> {
        match self.consts[cond.idx()] {
            Some(Op::ConstB(true)) => return then(self),
            Some(Op::ConstB(false)) => return els(self),
            _ => {}
        }
        let (then, then_yields) = self.region(then);
        let (els, els_yields) = self.region(els);
        let tys: Vec<Ty> = then_yields.iter().map(|&v| self.ty(v)).collect();
        self.push(Op::If { cond, then, els, then_yields, els_yields }, &tys)
    }
    /// A pipeline (see [`Op::Pipeline`]); `copy` gets (builder, iteration, slot), `body` also the carried values.
    pub fn pipeline(
        &mut self,
        stages: u32,
        trip: V,
        init: &[V],
        copy: impl FnOnce(&mut Self, V, V),
        body: impl FnOnce(&mut Self, V, V, &[V]) -> Vec<V>,
    ) -> Vec<V> {
        let tys: Vec<Ty> = init.iter().map(|&v| self.ty(v)).collect();
        let [copy_iv, copy_slot, iv, slot] = [(); 4].map(|()| self.fresh(Ty::I32));
        let params: Vec<V> = tys.iter().map(|&t| self.fresh(t)).collect();
        let (copy, ()) = self.region(|b| copy(b, copy_iv, copy_slot));
        let (body, yields) = self.region(|b| body(b, iv, slot, &params));
        let carried = params.into_iter().zip(init.iter().copied()).collect();
        self.push(Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields }, &tys)
    }
}

/// `op` on constants; `None` where the operation is an error.
pub fn fold_int(op: IntOp, x: i32, y: i32) -> Option<i32> {
    let sh = y as u32;
    Some(match op {
        IntOp::Add => x.wrapping_add(y),
        IntOp::Sub => x.wrapping_sub(y),
        IntOp::Mul => x.wrapping_mul(y),
        IntOp::And => x & y,
        IntOp::Or => x | y,
        IntOp::Xor => x ^ y,
        IntOp::Shl => x.checked_shl(sh)?,
        IntOp::Lshr => (x as u32).checked_shr(sh)? as i32,
        IntOp::Ashr => x.checked_shr(sh)?,
        IntOp::Max => x.max(y),
        IntOp::Min => x.min(y),
        IntOp::Div => (x as u32).checked_div(y as u32)? as i32,
        IntOp::Rem => (x as u32).checked_rem(y as u32)? as i32,
    })
}

/// Removes operations without effect whose results are not read.
pub fn dead_code(k: &mut Kernel) {
    fn sweep(b: &mut Block, live: &mut [bool]) {
        let mut kept = vec![];
        for mut inst in std::mem::take(&mut b.insts).into_iter().rev() {
            let needed = inst.results.iter().any(|r| live[r.idx()]);
            let effect = match &inst.op {
                Op::Load { .. } => false,
                op => !op.is_pure(),
            };
            if !needed && !effect {
                continue;
            }
            match &mut inst.op {
                Op::For { body, yields, .. } => {
                    yields.iter().for_each(|v| live[v.idx()] = true);
                    sweep(body, live);
                }
                Op::If { then, els, then_yields, els_yields, .. } => {
                    then_yields.iter().chain(els_yields.iter()).for_each(|v| live[v.idx()] = true);
                    sweep(then, live);
                    sweep(els, live);
                }
                Op::Pipeline { copy, body, yields, .. } => {
                    yields.iter().for_each(|v| live[v.idx()] = true);
                    sweep(body, live);
                    sweep(copy, live);
                }
                _ => {}
            }
            inst.op.operands().iter().for_each(|v| live[v.idx()] = true);
            kept.push(inst);
        }
        kept.reverse();
        b.insts = kept;
    }
    let mut live = vec![false; k.types.len()];
    let mut body = std::mem::take(&mut k.body);
    sweep(&mut body, &mut live);
    k.body = body;
}

impl Arith for Builder {
    type F = V;
    type I = V;
    type B = V;

    fn cf(&mut self, x: f32) -> V {
        self.f(x)
    }
    fn ci(&mut self, x: i32) -> V {
        self.i(x)
    }
    fn add(&mut self, a: V, b: V) -> V {
        self.float_op(FloatOp::Add, a, b)
    }
    fn sub(&mut self, a: V, b: V) -> V {
        self.float_op(FloatOp::Sub, a, b)
    }
    fn mul(&mut self, a: V, b: V) -> V {
        self.float_op(FloatOp::Mul, a, b)
    }
    fn fma(&mut self, a: V, b: V, c: V) -> V {
        if let (Some(x), Some(y), Some(z)) = (self.const_f(a), self.const_f(b), self.const_f(c)) {
            return self.f(x.mul_add(y, z));
        }
        let (a, b) = if a > b { (b, a) } else { (a, b) };
        self.pure(4, 0, &[a.0, b.0, c.0], Op::Fma(a, b, c), Ty::F32)
    }
    fn round_even(&mut self, a: V) -> V {
        self.pure(5, 0, &[a.0], Op::RoundEven(a), Ty::F32)
    }
    fn f_to_i(&mut self, a: V) -> V {
        self.pure(5, 2, &[a.0], Op::FToI(a), Ty::I32)
    }
    fn i_to_f(&mut self, a: V) -> V {
        self.pure(5, 3, &[a.0], Op::IToF(a), Ty::F32)
    }
    fn bits(&mut self, a: V) -> V {
        if let Some(Op::ConstF(x)) = self.consts[a.idx()] {
            return self.i(x as i32);
        }
        self.pure(5, 4, &[a.0], Op::FToBits(a), Ty::I32)
    }
    fn float(&mut self, a: V) -> V {
        if let Some(x) = self.const_i(a) {
            return self.f(f32::from_bits(x as u32));
        }
        self.pure(5, 5, &[a.0], Op::BitsToF(a), Ty::F32)
    }
    fn iadd(&mut self, a: V, b: V) -> V {
        self.int(IntOp::Add, a, b)
    }
    fn isub(&mut self, a: V, b: V) -> V {
        self.int(IntOp::Sub, a, b)
    }
    fn iand(&mut self, a: V, b: V) -> V {
        self.int(IntOp::And, a, b)
    }
    fn ior(&mut self, a: V, b: V) -> V {
        self.int(IntOp::Or, a, b)
    }
    fn shl(&mut self, a: V, by: u32) -> V {
        self.int_c(IntOp::Shl, a, by as i32)
    }
    fn lshr(&mut self, a: V, by: u32) -> V {
        self.int_c(IntOp::Lshr, a, by as i32)
    }
    fn ashr(&mut self, a: V, by: u32) -> V {
        self.int_c(IntOp::Ashr, a, by as i32)
    }
    fn ilt(&mut self, a: V, b: V) -> V {
        self.icmp(ICmp::Lt, a, b)
    }
    fn ieq(&mut self, a: V, b: V) -> V {
        self.icmp(ICmp::Eq, a, b)
    }
    fn flt(&mut self, a: V, b: V) -> V {
        self.fcmp(FCmp::Lt, a, b)
    }
    fn is_nan(&mut self, a: V) -> V {
        self.fcmp(FCmp::Nan, a, a)
    }
    fn sel(&mut self, p: V, a: V, b: V) -> V {
        self.select(p, a, b)
    }
    fn isel(&mut self, p: V, a: V, b: V) -> V {
        self.select(p, a, b)
    }
}
