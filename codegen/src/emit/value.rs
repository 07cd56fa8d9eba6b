//! What a value of the kernel is in LLVM.

use super::*;
use std::rc::Rc;

/// Offsets of the 32 lanes from the first, which is 0.
pub(crate) type Offs = Rc<[i32; LANES]>;

/// A value. On a GPU always `One`.
#[derive(Clone, Debug)]
pub(crate) enum Val<'c> {
    /// The thread's value (GPU), or the same in all lanes (host).
    One(BasicValueEnum<'c>),
    /// Integers `base + offset[lane]`, offsets known at compile time and not all 0.
    Offsets(IntValue<'c>, Offs),
    /// Truth values: a lane is true if its bit is set and the condition, if any, holds.
    Mask(u32, Option<IntValue<'c>>),
    /// `<32 x T>`
    Many(VectorValue<'c>),
}

/// What kind of [`Val`] flows through a place where control flow meets, or through memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    One,
    Offsets(Offs),
    Many,
}

/// A float or integer operation on two scalars or two vectors.
macro_rules! on_both {
    ($s:expr, $build:ident, $kind:ident, $a:expr, $b:expr $(, $pre:expr)?) => {
        match ($a, $b) {
            (BasicValueEnum::$kind(a), BasicValueEnum::$kind(b)) => {
                BasicValueEnum::from($s.b.$build($($pre,)? a, b, "")?)
            }
            (BasicValueEnum::VectorValue(a), BasicValueEnum::VectorValue(b)) => {
                BasicValueEnum::from($s.b.$build($($pre,)? a, b, "")?)
            }
            _ => return Err("operands of different shapes".into()),
        }
    };
}
pub(crate) use on_both;

impl<'c> Emitter<'c, '_> {
    /// The value of `v`, which must have been emitted.
    pub fn val(&self, v: V) -> Res<Val<'c>> {
        self.vals[v.idx()].clone().ok_or_else(|| Fault(format!("value {} is not at hand", v.0)))
    }

    /// Defines `v`. What the analysis calls uniform becomes a scalar.
    pub fn set(&mut self, v: V, val: Val<'c>) -> Res {
        let val = match (&val, self.uni[v.idx()]) {
            (Val::Many(_), Uniform::Block | Uniform::Warp) => Val::One(self.first(&val)?),
            _ => val,
        };
        self.vals[v.idx()] = Some(val);
        Ok(())
    }

    /// An integer constant of a `One`.
    pub fn known(&self, v: &Val<'c>) -> Option<i32> {
        match v {
            Val::One(BasicValueEnum::IntValue(i)) if i.get_type().get_bit_width() == 32 => {
                i.get_sign_extended_constant().map(|x| x as i32)
            }
            _ => None,
        }
    }

    /// All 32 integers, if they are known.
    pub fn known_lanes(&self, v: &Val<'c>) -> Option<[i32; LANES]> {
        match v {
            Val::One(_) => self.known(v).map(|x| [x; LANES]),
            Val::Offsets(base, offs) => {
                let b = base.get_sign_extended_constant()? as i32;
                Some(offs.map(|o| b.wrapping_add(o)))
            }
            _ => None,
        }
    }

    /// The simplest value with these lanes.
    pub fn lanes(&self, base: IntValue<'c>, offs: [i32; LANES]) -> Res<Val<'c>> {
        let first = offs[0];
        let base = if first == 0 { base } else { self.b.build_int_add(base, self.ci(first), "")? };
        if offs.iter().all(|&o| o == first) {
            return Ok(Val::One(base.into()));
        }
        Ok(Val::Offsets(base, Rc::new(offs.map(|o| o.wrapping_sub(first)))))
    }

    /// `<n x i32>` constant.
    pub fn const_i32s(&self, xs: &[i32]) -> VectorValue<'c> {
        VectorType::const_vector(&xs.iter().map(|&x| self.ci(x)).collect::<Vec<_>>())
    }

    /// `<32 x i1>` constant.
    pub fn const_mask(&self, bits: u32) -> VectorValue<'c> {
        let bit = |l| self.i1().const_int(u64::from(bits >> l & 1), false);
        VectorType::const_vector(&(0..LANES).map(bit).collect::<Vec<_>>())
    }

    /// `<n x T>` with `x` everywhere.
    pub fn splat(&self, x: BasicValueEnum<'c>, n: usize) -> Res<VectorValue<'c>> {
        let ty = self.vec_ty(x.get_type(), n);
        let constant = match x {
            BasicValueEnum::IntValue(i) if i.is_const() => Some(VectorType::const_vector(&vec![i; n])),
            BasicValueEnum::FloatValue(f) if f.is_const() => Some(VectorType::const_vector(&vec![f; n])),
            _ => None,
        };
        if let Some(c) = constant {
            return Ok(c);
        }
        let one = self.b.build_insert_element(ty.get_poison(), x, self.ci(0), "")?;
        self.shuffle(one, one, &vec![0; n])
    }

    /// `shufflevector`
    pub fn shuffle(&self, a: VectorValue<'c>, b: VectorValue<'c>, mask: &[i32]) -> Res<VectorValue<'c>> {
        Ok(self.b.build_shuffle_vector(a, b, self.const_i32s(mask), "")?)
    }

    /// Lanes `from..from + n` of a vector.
    pub fn part(&self, v: VectorValue<'c>, from: usize, n: usize) -> Res<VectorValue<'c>> {
        self.shuffle(v, v, &(from as i32..(from + n) as i32).collect::<Vec<_>>())
    }

    /// Concatenates vectors of one length, a power of two of them.
    pub fn concat(&self, mut vs: Vec<VectorValue<'c>>) -> Res<VectorValue<'c>> {
        while vs.len() > 1 {
            let n = vs[0].get_type().get_size() as i32;
            let mask: Vec<i32> = (0..2 * n).collect();
            vs = vs.chunks(2).map(|p| self.shuffle(p[0], p[1], &mask)).collect::<Res<_>>()?;
        }
        vs.pop().ok_or_else(|| "nothing to concatenate".into())
    }

    /// As a `<32 x T>`.
    pub fn many(&self, v: &Val<'c>) -> Res<VectorValue<'c>> {
        match v {
            Val::One(x) => self.splat(*x, LANES),
            Val::Offsets(base, offs) => {
                let s = self.splat((*base).into(), LANES)?;
                Ok(self.b.build_int_add(s, self.const_i32s(&offs[..]), "")?)
            }
            Val::Mask(bits, None) => Ok(self.const_mask(*bits)),
            Val::Mask(bits, Some(c)) => {
                let s = self.splat((*c).into(), LANES)?;
                if *bits == u32::MAX { Ok(s) } else { Ok(self.b.build_and(s, self.const_mask(*bits), "")?) }
            }
            Val::Many(x) => Ok(*x),
        }
    }

    /// The value in lane 0; for values that are the same in all lanes.
    pub fn first(&self, v: &Val<'c>) -> Res<BasicValueEnum<'c>> {
        match v {
            Val::One(x) => Ok(*x),
            Val::Offsets(base, _) => Ok((*base).into()),
            _ => self.lane_of(v, 0),
        }
    }

    /// The value in a lane known at compile time.
    pub fn lane_of(&self, v: &Val<'c>, lane: usize) -> Res<BasicValueEnum<'c>> {
        Ok(match v {
            Val::One(x) => *x,
            Val::Offsets(base, offs) if offs[lane] == 0 => (*base).into(),
            Val::Offsets(base, offs) => self.b.build_int_add(*base, self.ci(offs[lane]), "")?.into(),
            Val::Mask(bits, c) if bits >> lane & 1 == 1 => c.unwrap_or(self.i1().const_int(1, false)).into(),
            Val::Mask(..) => self.i1().const_zero().into(),
            Val::Many(x) => self.b.build_extract_element(*x, self.ci(lane as i32), "")?,
        })
    }

    /// An integer that the contract says is the same in all lanes.
    pub fn uniform_int(&self, v: V) -> Res<IntValue<'c>> {
        Ok(self.first(&self.val(v)?)?.into_int_value())
    }

    /// Operands as scalars if all are, else as vectors.
    pub fn unify<const N: usize>(&self, vs: [V; N]) -> Res<[BasicValueEnum<'c>; N]> {
        let vals = vs.map(|v| self.val(v));
        let mut out = [BasicValueEnum::from(self.ci(0)); N];
        let scalar = vals.iter().all(|v| matches!(v, Ok(Val::One(_))));
        for (o, v) in out.iter_mut().zip(vals) {
            *o = match v? {
                Val::One(x) if scalar => x,
                v => self.many(&v)?.into(),
            };
        }
        Ok(out)
    }

    /// A result of an operation on unified operands.
    pub fn wrap(&self, x: BasicValueEnum<'c>) -> Val<'c> {
        match x {
            BasicValueEnum::VectorValue(v) => Val::Many(v),
            x => Val::One(x),
        }
    }

    /// LLVM type of what [`Emitter::pack`] gives.
    pub fn shape_ty(&self, s: &Shape, ty: Ty) -> BasicTypeEnum<'c> {
        let t = self.scalar_ty(ty);
        if *s == Shape::Many { self.vec_ty(t, LANES).into() } else { t }
    }

    /// The one LLVM value that stands for `v` in a place of this shape.
    pub fn pack(&self, v: &Val<'c>, s: &Shape) -> Res<BasicValueEnum<'c>> {
        match s {
            Shape::One | Shape::Offsets(_) => self.first(v),
            Shape::Many => Ok(self.many(v)?.into()),
        }
    }

    /// The inverse of [`Emitter::pack`].
    pub fn unpack(&self, x: BasicValueEnum<'c>, s: &Shape) -> Val<'c> {
        match s {
            Shape::Offsets(o) => Val::Offsets(x.into_int_value(), o.clone()),
            _ => self.wrap(x),
        }
    }

    /// The shape of `v`, given what the analysis says and, for a carried value, its start and its next value.
    pub fn shape(&self, v: V, carried: Option<(&Val<'c>, V)>) -> Shape {
        if self.is_gpu() {
            return Shape::One;
        }
        match (self.uni[v.idx()], carried) {
            (Uniform::Block | Uniform::Warp, _) => Shape::One,
            (Uniform::Affine(s), _) => Shape::Offsets(Rc::new(std::array::from_fn(|l| s.wrapping_mul(l as i32)))),
            (_, Some((Val::Offsets(_, o), next))) if self.keeps_offsets(v, next) => Shape::Offsets(o.clone()),
            _ => Shape::Many,
        }
    }

    /// Is `next` = `v` plus something uniform?
    fn keeps_offsets(&self, v: V, next: V) -> bool {
        let uniform = |u: V| matches!(self.uni[u.idx()], Uniform::Block | Uniform::Warp);
        next == v
            || match self.defs[next.idx()].map(|i| &i.op) {
                Some(Op::Int(IntOp::Add, a, b)) => {
                    (uniform(*b) && self.keeps_offsets(v, *a)) || (uniform(*a) && self.keeps_offsets(v, *b))
                }
                Some(Op::Int(IntOp::Sub, a, b)) => uniform(*b) && self.keeps_offsets(v, *a),
                _ => false,
            }
    }
}
