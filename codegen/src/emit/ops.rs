//! Pure operations, the same for both lowerings but for what has no common form (dot products, shuffles, bf16).

use super::value::{Val, on_both};
use super::*;
use inkwell::FloatPredicate;
use ir::kernel::build::fold_int;

type Basic<'c> = BasicValueEnum<'c>;

impl<'c> Emitter<'c, '_> {
    /// Emits a pure operation.
    pub fn pure(&mut self, op: &Op) -> Res<Val<'c>> {
        Ok(match op {
            Op::ConstI(x) => Val::One(self.ci(*x).into()),
            Op::ConstF(bits) => Val::One(self.const_f(*bits)?),
            Op::ConstB(x) => Val::One(self.i1().const_int(u64::from(*x), false).into()),
            Op::Lane | Op::Warp | Op::BlockX | Op::BlockY => self.place(op)?,
            Op::Int(op, a, b) => self.int(*op, *a, *b)?,
            Op::Float(FloatOp::Mul, x, m) | Op::Float(FloatOp::Mul, m, x) if self.is_gpu() && self.is_minus_two(*m) => {
                // The same bits, in a form that LLVM always treats alike: it would sometimes make `d - (x + x)` of
                // `x * -2 + d`, and the audit could not tell how many multiplications to expect.
                let x = self.first(&self.val(*x)?)?.into_float_value();
                let twice = self.b.build_float_add(x, x, "")?;
                Val::One(self.b.build_float_neg(twice, "")?.into())
            }
            Op::Float(op, a, b) => {
                let [a, b] = self.unify([*a, *b])?;
                let r = match op {
                    FloatOp::Add => on_both!(self, build_float_add, FloatValue, a, b),
                    FloatOp::Sub => on_both!(self, build_float_sub, FloatValue, a, b),
                    FloatOp::Mul => on_both!(self, build_float_mul, FloatValue, a, b),
                };
                if let Some(i) = r.as_instruction_value().filter(|_| self.k.contract) {
                    i.set_fast_math_flags(FastMathFlags::AllowContract)
                        .map_err(|_| Fault("a float operation takes flags".into()))?;
                }
                self.wrap(r)
            }
            Op::Fma(a, b, c) => {
                let args = self.unify([*a, *b, *c])?;
                let r = self.call("llvm.fma", &[args[0].get_type()], &args)?;
                self.wrap(r)
            }
            Op::RoundEven(a) => {
                let [a] = self.unify([*a])?;
                let r = self.call("llvm.roundeven", &[a.get_type()], &[a])?;
                self.wrap(r)
            }
            Op::RoundBf16(a) => {
                let [a] = self.unify([*a])?;
                let bits = self.bf16_bits(a)?;
                let r = self.bitcast(bits, true)?;
                self.wrap(r)
            }
            Op::Approx(op, a) => {
                if !self.is_gpu() {
                    return Err("an approximate function on a processor".into());
                }
                let a = self.first(&self.val(*a)?)?;
                let name = match op {
                    ApproxOp::Exp2 => "ex2",
                    ApproxOp::Rsqrt => "rsqrt",
                };
                let (ty, text) = (self.f32().fn_type(&[self.f32().into()], false), format!("{name}.approx.f32 $0, $1;"));
                let asm = self.cx.create_inline_asm(ty, text, "=f,f".into(), false, false, None, false);
                match self.b.build_indirect_call(ty, asm, &[a.into()], "")?.try_as_basic_value() {
                    ValueKind::Basic(v) => Val::One(v),
                    ValueKind::Instruction(_) => return Err("it returns a float".into()),
                }
            }
            Op::ICmp(op, a, b) => self.icmp(*op, *a, *b)?,
            Op::FCmp(op, a, b) => {
                let [a, b] = self.unify([*a, *b])?;
                let p = match op {
                    FCmp::Eq => FloatPredicate::OEQ,
                    FCmp::Lt => FloatPredicate::OLT,
                    FCmp::Le => FloatPredicate::OLE,
                    FCmp::Nan => FloatPredicate::UNO,
                };
                let r = on_both!(self, build_float_compare, FloatValue, a, b, p);
                self.wrap(r)
            }
            Op::Bool(op, a, b) => self.bool_op(*op, *a, *b)?,
            Op::Select(p, a, b) => self.select(*p, *a, *b)?,
            Op::BitsToF(a) => {
                let [a] = self.unify([*a])?;
                let r = self.bitcast(a, true)?;
                self.wrap(r)
            }
            Op::FToBits(a) => {
                let [a] = self.unify([*a])?;
                let r = self.bitcast(a, false)?;
                self.wrap(r)
            }
            Op::IToF(a) => {
                let [a] = self.unify([*a])?;
                let r = match a {
                    Basic::VectorValue(v) => self.b.build_signed_int_to_float(v, self.f32().vec_type(LANES as u32), "")?.into(),
                    a => self.b.build_signed_int_to_float(a.into_int_value(), self.f32(), "")?.into(),
                };
                self.wrap(r)
            }
            Op::FToI(a) => {
                let [a] = self.unify([*a])?;
                let r = match a {
                    Basic::VectorValue(v) => self.b.build_float_to_signed_int(v, self.i32().vec_type(LANES as u32), "")?.into(),
                    a => self.b.build_float_to_signed_int(a.into_float_value(), self.i32(), "")?.into(),
                };
                self.wrap(r)
            }
            Op::Dp4a { a_signed, b_signed, a, b, acc } => {
                if self.is_gpu() {
                    let name = format!("llvm.nvvm.idp4a.{}.{}", sign(*a_signed), sign(*b_signed));
                    let args = self.unify([*a, *b, *acc])?;
                    Val::One(self.call(&name, &[], &args)?)
                } else {
                    self.host_dot([*a_signed, *b_signed], [*a, *b], *acc)?
                }
            }
            Op::ShuffleXor(a, mask) => {
                let a = self.val(*a)?;
                if self.is_gpu() {
                    Val::One(self.gpu_shuffle("bfly", &a, self.ci(*mask as i32))?)
                } else {
                    self.host_shuffle_xor(&a, *mask)?
                }
            }
            Op::ShuffleIdx(a, src) => {
                let (a, src) = (self.val(*a)?, self.val(*src)?);
                if self.is_gpu() {
                    let src = self.first(&src)?.into_int_value();
                    let src = self.b.build_and(src, self.ci(LANES as i32 - 1), "")?;
                    Val::One(self.gpu_shuffle("idx", &a, src)?)
                } else {
                    self.host_shuffle_idx(&a, &src)?
                }
            }
            _ => return Err("not a pure operation".into()),
        })
    }

    /// A float constant with these bits.
    pub fn const_f(&self, bits: u32) -> Res<Basic<'c>> {
        Ok(self.b.build_bit_cast(self.ci(bits as i32), self.f32(), "")?)
    }

    /// i32 <-> float, scalar or vector.
    pub fn bitcast(&self, x: Basic<'c>, to_float: bool) -> Res<Basic<'c>> {
        let t: BasicTypeEnum = if to_float { self.f32().into() } else { self.i32().into() };
        let t = match x {
            Basic::VectorValue(v) => self.vec_ty(t, v.get_type().get_size() as usize).into(),
            _ => t,
        };
        Ok(self.b.build_bit_cast(x, t, "")?)
    }

    /// A constant of the shape of `like` (i32 or a vector of them).
    pub fn int_like(&self, like: Basic<'c>, x: i32) -> Basic<'c> {
        match like {
            Basic::VectorValue(v) => self.const_i32s(&vec![x; v.get_type().get_size() as usize]).into(),
            _ => self.ci(x).into(),
        }
    }

    /// Integer operation on two scalars or two vectors.
    pub fn int_raw(&self, op: IntOp, a: Basic<'c>, b: Basic<'c>) -> Res<Basic<'c>> {
        Ok(match op {
            IntOp::Add => on_both!(self, build_int_add, IntValue, a, b),
            IntOp::Sub => on_both!(self, build_int_sub, IntValue, a, b),
            IntOp::Mul => on_both!(self, build_int_mul, IntValue, a, b),
            IntOp::And => on_both!(self, build_and, IntValue, a, b),
            IntOp::Or => on_both!(self, build_or, IntValue, a, b),
            IntOp::Xor => on_both!(self, build_xor, IntValue, a, b),
            IntOp::Shl => on_both!(self, build_left_shift, IntValue, a, b),
            IntOp::Lshr | IntOp::Ashr => {
                let signed = op == IntOp::Ashr;
                match (a, b) {
                    (Basic::IntValue(a), Basic::IntValue(b)) => self.b.build_right_shift(a, b, signed, "")?.into(),
                    (a, b) => self.b.build_right_shift(a.into_vector_value(), b.into_vector_value(), signed, "")?.into(),
                }
            }
            IntOp::Max => self.call("llvm.smax", &[a.get_type()], &[a, b])?,
            IntOp::Min => self.call("llvm.smin", &[a.get_type()], &[a, b])?,
            IntOp::Div => on_both!(self, build_int_unsigned_div, IntValue, a, b),
            IntOp::Rem => on_both!(self, build_int_unsigned_rem, IntValue, a, b),
        })
    }

    /// The same with a constant.
    pub fn int_raw_c(&self, op: IntOp, a: Basic<'c>, c: i32) -> Res<Basic<'c>> {
        self.int_raw(op, a, self.int_like(a, c))
    }

    fn int(&self, op: IntOp, a: V, b: V) -> Res<Val<'c>> {
        let (x, y) = (self.val(a)?, self.val(b)?);
        if !self.is_gpu()
            && let Some(v) = self.int_offsets(op, &x, &y)?
        {
            return Ok(v);
        }
        let [a, b] = self.unify([a, b])?;
        let r = self.int_raw(op, a, b)?;
        Ok(self.wrap(r))
    }

    /// Integer operation whose result has offsets known at compile time.
    fn int_offsets(&self, op: IntOp, a: &Val<'c>, b: &Val<'c>) -> Res<Option<Val<'c>>> {
        let parts = |v: &Val<'c>| match v {
            Val::One(Basic::IntValue(x)) => Some((*x, [0; LANES])),
            Val::Offsets(x, o) => Some((*x, **o)),
            _ => None,
        };
        let (Some((xa, oa)), Some((xb, ob))) = (parts(a), parts(b)) else { return Ok(None) };
        if let (Some(x), Some(y)) = (self.known_lanes(a), self.known_lanes(b)) {
            let mut r = [0; LANES];
            for (r, (x, y)) in r.iter_mut().zip(x.into_iter().zip(y)) {
                let Some(v) = fold_int(op, x, y) else { return Ok(None) };
                *r = v;
            }
            return self.lanes(self.ci(0), r).map(Some);
        }
        let map2 = |f: fn(i32, i32) -> i32| std::array::from_fn(|l| f(oa[l], ob[l]));
        Ok(match op {
            IntOp::Add => Some(self.lanes(self.b.build_int_add(xa, xb, "")?, map2(i32::wrapping_add))?),
            IntOp::Sub => Some(self.lanes(self.b.build_int_sub(xa, xb, "")?, map2(i32::wrapping_sub))?),
            IntOp::Mul => {
                let c = self.known(b).map(|c| (c, oa)).or(self.known(a).map(|c| (c, ob)));
                match c {
                    Some((c, o)) => Some(self.lanes(self.b.build_int_mul(xa, xb, "")?, o.map(|o| o.wrapping_mul(c)))?),
                    None => None,
                }
            }
            IntOp::Shl => match self.known(b) {
                Some(c @ 0..32) => Some(self.lanes(self.b.build_left_shift(xa, xb, "")?, oa.map(|o| o.wrapping_shl(c as u32)))?),
                _ => None,
            },
            _ => None,
        })
    }

    fn icmp(&self, op: ICmp, a: V, b: V) -> Res<Val<'c>> {
        let (x, y) = (self.val(a)?, self.val(b)?);
        if !self.is_gpu()
            && let (Some(x), Some(y)) = (self.known_lanes(&x), self.known_lanes(&y))
        {
            let holds = |l: &usize| match op {
                ICmp::Eq => x[*l] == y[*l],
                ICmp::Ne => x[*l] != y[*l],
                ICmp::Lt => x[*l] < y[*l],
                ICmp::Le => x[*l] <= y[*l],
            };
            let bits = (0..LANES).filter(holds).fold(0, |m, l| m | 1 << l);
            return Ok(Val::Mask(bits, None));
        }
        let [a, b] = self.unify([a, b])?;
        let p = match op {
            ICmp::Eq => IntPredicate::EQ,
            ICmp::Ne => IntPredicate::NE,
            ICmp::Lt => IntPredicate::SLT,
            ICmp::Le => IntPredicate::SLE,
        };
        let r = on_both!(self, build_int_compare, IntValue, a, b, p);
        Ok(self.wrap(r))
    }

    fn bool_op(&self, op: BoolOp, a: V, b: V) -> Res<Val<'c>> {
        let (x, y) = (self.val(a)?, self.val(b)?);
        let mask = |v: &Val<'c>| match v {
            Val::One(Basic::IntValue(c)) => Some((u32::MAX, Some(*c))),
            Val::Mask(m, c) => Some((*m, *c)),
            _ => None,
        };
        let masks = matches!(x, Val::Mask(..)) || matches!(y, Val::Mask(..));
        if let (true, Some((m, c)), Some((n, d))) = (masks, mask(&x), mask(&y)) {
            match (op, c, d) {
                (BoolOp::And, Some(c), Some(d)) => return Ok(Val::Mask(m & n, Some(self.b.build_and(c, d, "")?))),
                (BoolOp::And, c, d) => return Ok(Val::Mask(m & n, c.or(d))),
                (BoolOp::Or, None, None) => return Ok(Val::Mask(m | n, None)),
                (BoolOp::Xor, None, None) => return Ok(Val::Mask(m ^ n, None)),
                _ => {}
            }
        }
        let [a, b] = self.unify([a, b])?;
        let r = match op {
            BoolOp::And => on_both!(self, build_and, IntValue, a, b),
            BoolOp::Or => on_both!(self, build_or, IntValue, a, b),
            BoolOp::Xor => on_both!(self, build_xor, IntValue, a, b),
        };
        Ok(self.wrap(r))
    }

    fn select(&self, p: V, a: V, b: V) -> Res<Val<'c>> {
        let (vp, va, vb) = (self.val(p)?, self.val(a)?, self.val(b)?);
        if let (Val::One(p), Val::Offsets(x, o), Val::Offsets(y, q)) = (&vp, &va, &vb)
            && o == q
        {
            let base = self.b.build_select(p.into_int_value(), *x, *y, "")?;
            return Ok(Val::Offsets(base.into_int_value(), o.clone()));
        }
        let r = match (&vp, &va, &vb) {
            (Val::One(p), Val::One(x), Val::One(y)) => self.b.build_select(p.into_int_value(), *x, *y, "")?,
            (Val::One(p), ..) => self.b.build_select(p.into_int_value(), self.many(&va)?, self.many(&vb)?, "")?,
            _ => self.b.build_select(self.many(&vp)?, self.many(&va)?, self.many(&vb)?, "")?,
        };
        Ok(self.wrap(r))
    }

    /// Bits of the nearest bf16, in the upper half of an i32 (scalar or vector); on a NaN those of some NaN.
    pub fn bf16_bits(&self, x: Basic<'c>) -> Res<Basic<'c>> {
        if self.is_gpu() {
            let bf16 = self.cx.bf16_type();
            let h = self.b.build_float_trunc(x.into_float_value(), bf16, "")?;
            // Widened as an integer: from a conversion LLVM makes mixed-precision arithmetic (`sub.rn.f32.bf16`).
            let h = self.b.build_bit_cast(h, self.i16(), "")?.into_int_value();
            let w = self.b.build_int_z_extend(h, self.i32(), "")?;
            return self.int_raw_c(IntOp::Shl, w.into(), 16);
        }
        let bits = self.bitcast(x, false)?;
        let odd = self.int_raw_c(IntOp::And, self.int_raw_c(IntOp::Lshr, bits, 16)?, 1)?;
        let up = self.int_raw(IntOp::Add, odd, self.int_raw_c(IntOp::Add, bits, 0x7fff)?)?;
        let quiet = self.int_raw_c(IntOp::Or, bits, 0x40_0000)?;
        let nan = on_both!(self, build_float_compare, FloatValue, x, x, FloatPredicate::UNO);
        let r = match nan {
            Basic::VectorValue(n) => self.b.build_select(n, quiet.into_vector_value(), up.into_vector_value(), "")?,
            n => self.b.build_select(n.into_int_value(), quiet, up, "")?,
        };
        self.int_raw_c(IntOp::And, r, 0xffff_0000_u32 as i32)
    }

    /// The results of a load, from 32-bit words (or one zero-extended smaller unit), scalar or vector.
    pub fn decode(&self, elem: Elem, n: usize, words: &[Basic<'c>]) -> Res<Vec<Val<'c>>> {
        let vals: Vec<Basic<'c>> = match elem {
            Elem::I32 => words.to_vec(),
            Elem::F32 => words.iter().map(|&w| self.bitcast(w, true)).collect::<Res<_>>()?,
            Elem::Bf16 => (0..n)
                .map(|j| {
                    let w = words[j / 2];
                    let bits = match j % 2 {
                        0 => self.int_raw_c(IntOp::Shl, w, 16)?,
                        _ => self.int_raw_c(IntOp::And, w, 0xffff_0000_u32 as i32)?,
                    };
                    self.bitcast(bits, true)
                })
                .collect::<Res<_>>()?,
            Elem::U8 if n == 1 => words.to_vec(),
            Elem::U8 => (0..n)
                .map(|j| {
                    let w = self.int_raw_c(IntOp::Lshr, words[0], 8 * j as i32)?;
                    if j == 3 { Ok(w) } else { self.int_raw_c(IntOp::And, w, 255) }
                })
                .collect::<Res<_>>()?,
        };
        Ok(vals.into_iter().map(|v| self.wrap(v)).collect())
    }

    /// What is stored for a value: i32, i16 or i8, scalar or vector.
    pub fn encode(&self, elem: Elem, x: Basic<'c>) -> Res<Basic<'c>> {
        let t = match elem {
            Elem::I32 => return Ok(x),
            Elem::F32 => return self.bitcast(x, false),
            Elem::U8 => self.i8(),
            Elem::Bf16 => self.i16(),
        };
        let x = match elem {
            Elem::Bf16 => self.int_raw_c(IntOp::Lshr, self.bf16_bits(x)?, 16)?,
            _ => x,
        };
        Ok(match x {
            Basic::VectorValue(v) => self.b.build_int_truncate(v, t.vec_type(v.get_type().get_size()), "")?.into(),
            x => self.b.build_int_truncate(x.into_int_value(), t, "")?.into(),
        })
    }

    fn is_minus_two(&self, v: V) -> bool {
        matches!(self.defs[v.idx()].map(|i| &i.op), Some(Op::ConstF(bits)) if *bits == (-2.0f32).to_bits())
    }

    fn place(&self, op: &Op) -> Res<Val<'c>> {
        let gpu = |name: &str| self.call(name, &[], &[]);
        match (&self.machine, op) {
            (Machine::Gpu { .. }, Op::Lane) => {
                let t = gpu("llvm.nvvm.read.ptx.sreg.tid.x")?;
                self.int_raw_c(IntOp::And, t, LANES as i32 - 1).map(Val::One)
            }
            (Machine::Gpu { .. }, Op::Warp) => {
                let t = gpu("llvm.nvvm.read.ptx.sreg.tid.x")?;
                let w = Val::One(self.int_raw_c(IntOp::Lshr, t, 5)?);
                // Through a shuffle, as only then the assembler knows that it is the same in the whole warp: where it is not
                // sure it writes every shuffle under a branch on it twice.
                self.gpu_shuffle("idx", &w, self.ci(0)).map(Val::One)
            }
            (Machine::Gpu { .. }, Op::BlockX) => gpu("llvm.nvvm.read.ptx.sreg.ctaid.x").map(Val::One),
            (Machine::Gpu { .. }, _) => gpu("llvm.nvvm.read.ptx.sreg.ctaid.y").map(Val::One),
            (Machine::Host(_), Op::Lane) => self.lanes(self.ci(0), std::array::from_fn(|l| l as i32)),
            (Machine::Host(h), Op::Warp) => Ok(Val::One(h.warp.into())),
            (Machine::Host(h), Op::BlockX) => Ok(Val::One(h.block[0].into())),
            (Machine::Host(h), _) => Ok(Val::One(h.block[1].into())),
        }
    }
}

fn sign(signed: bool) -> char {
    if signed { 's' } else { 'u' }
}
