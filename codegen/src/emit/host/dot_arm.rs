//! Byte dot products on Arm. All sums wrap at 32 bits.
//!
//! Operands of one sign are `sdot` or `udot`; without those instructions `smull`/`umull` to 16 bits and pairwise sums: to
//! 16 bits where two products provably fit, else to 32. Operands of two signs are `usdot`, or the unsigned one is shifted
//! by 128 to a signed one and the difference, 128 times the sum of the other's bytes, is added: in scalar code if that
//! sum is uniform.

use super::dot::FLIP;
use super::*;

/// Lanes of one register.
const N: usize = 4;

impl<'c> Emitter<'c, '_> {
    /// `acc + Σ a.byte[i] * b.byte[i]`; `max` bounds the bytes taken as unsigned.
    pub(super) fn dot_arm(
        &mut self,
        signed: [bool; 2],
        max: [u32; 2],
        ops: [Val<'c>; 2],
        acc: VectorValue<'c>,
    ) -> Res<VectorValue<'c>> {
        let isa = self.host()?.isa;
        // Bytes below 128 may be taken either way.
        let can_unsigned = [!signed[0] || max[0] < 128, !signed[1] || max[1] < 128];
        let can_signed = [signed[0] || max[0] < 128, signed[1] || max[1] < 128];
        // As signed bytes; as unsigned ones.
        let size = |k: usize, as_signed: bool| if as_signed && max[k] >= 128 { 128 } else { max[k] };
        if can_unsigned == [true; 2] {
            let fits = 2 * size(0, false) * size(1, false) <= u32::from(u16::MAX);
            return self.same_sign(false, fits, ops, acc);
        }
        if can_signed == [true; 2] {
            let fits = 2 * size(0, true) * size(1, true) <= i16::MAX as u32;
            return self.same_sign(true, fits, ops, acc);
        }
        // One is unsigned and has bytes above 127; the other is signed and may be negative.
        let [a, b] = ops;
        let (u, s) = if signed[0] { (b, a) } else { (a, b) };
        if isa == HostIsa::Aarch64I8mm {
            return self.each_register(acc, |e, from, acc| {
                let (u, s) = (e.register(&u, from)?, e.register(&s, from)?);
                e.call_dot("llvm.aarch64.neon.usdot", acc, u, s)
            });
        }
        // u = flip + 128: Σ u·s = Σ flip·s + 128 Σ s.
        let flip = self.flipped(&u)?;
        let acc = match &s {
            Val::One(x) => {
                let sum = self.dot_scalar([true, false], [x.into_int_value(), self.ci(0x0101_0101)])?;
                let sum = self.b.build_left_shift(sum, self.ci(7), "")?;
                self.b.build_int_add(acc, self.splat(sum.into(), LANES)?, "")?
            }
            s => {
                // -128 in every byte.
                let minus = Val::One(self.ci(FLIP).into());
                let less = self.same_sign(true, false, [s.clone(), minus], self.const_i32s(&[0; LANES]))?;
                self.b.build_int_sub(acc, less, "")?
            }
        };
        self.same_sign(true, false, [flip, s], acc)
    }

    /// Both signed or both unsigned; `fits`: two products in 16 bits.
    fn same_sign(&self, signed: bool, fits: bool, [a, b]: [Val<'c>; 2], acc: VectorValue<'c>) -> Res<VectorValue<'c>> {
        let dots = self.host()?.isa != HostIsa::Aarch64;
        let sign = if signed { 's' } else { 'u' };
        self.each_register(acc, |e, from, acc| {
            let (a, b) = (e.register(&a, from)?, e.register(&b, from)?);
            if dots {
                return e.call_dot(&format!("llvm.aarch64.neon.{sign}dot"), acc, a, b);
            }
            let (words, ints): (BasicTypeEnum, BasicTypeEnum) = (e.i16().vec_type(8).into(), e.i32().vec_type(4).into());
            let mut products = vec![];
            for half in [0, 8] {
                let (a, b) = (e.part(a, half, 8)?.into(), e.part(b, half, 8)?.into());
                products.push(e.call(&format!("llvm.aarch64.neon.{sign}mull"), &[words], &[a, b])?);
            }
            // Sums of two neighbours, as 32 bits.
            let widen = |x| e.call(&format!("llvm.aarch64.neon.{sign}addlp"), &[ints, words], &[x]);
            let join = |x, y, ty| e.call("llvm.aarch64.neon.addp", &[ty], &[x, y]);
            let [low, high] = [products[0], products[1]];
            let sum = if fits { widen(join(low, high, words)?)? } else { join(widen(low)?, widen(high)?, ints)? };
            Ok(e.b.build_int_add(acc, sum.into_vector_value(), "")?)
        })
    }

    fn call_dot(&self, name: &str, acc: VectorValue<'c>, a: VectorValue<'c>, b: VectorValue<'c>) -> Res<VectorValue<'c>> {
        let over = [acc.get_type().into(), a.get_type().into()];
        Ok(self.call(name, &over, &[acc.into(), a.into(), b.into()])?.into_vector_value())
    }

    /// Four lanes as 16 bytes.
    fn register(&self, v: &Val<'c>, from: usize) -> Res<VectorValue<'c>> {
        let bytes = self.i8().vec_type(4 * N as u32);
        Ok(self.b.build_bit_cast(self.piece(v, from, N)?, bytes, "")?.into_vector_value())
    }

    /// `f` on every four lanes of the accumulator.
    fn each_register(
        &self,
        acc: VectorValue<'c>,
        f: impl Fn(&Self, usize, VectorValue<'c>) -> Res<VectorValue<'c>>,
    ) -> Res<VectorValue<'c>> {
        let pieces = (0..LANES).step_by(N).map(|from| f(self, from, self.part(acc, from, N)?)).collect::<Res<_>>()?;
        self.concat(pieces)
    }
}
