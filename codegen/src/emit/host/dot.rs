//! Byte dot products as SIMD integers. All sums wrap at 32 bits, so corrections may be added in any order.
//!
//! With VNNI everything is `vpdpbusd` (unsigned × signed bytes). Where the operands' signs do not fit, one of them is
//! shifted by 128 and the difference, 128 times the sum of the other's bytes, is added: in scalar code if it is uniform.
//! Without VNNI: `vpmaddubsw` + `vpmaddwd` where products of pairs provably fit 16 bits, else two `vpmaddwd` on the even
//! and odd bytes. Arm has its own forms ([`dot_arm`](super::dot_arm)).

use super::*;

pub(super) const FLIP: i32 = 0x8080_8080_u32 as i32;

impl<'c> Emitter<'c, '_> {
    /// `acc + Σ a.byte[i] * b.byte[i]`
    pub(in crate::emit) fn host_dot(&mut self, signed: [bool; 2], ops: [V; 2], acc: V) -> Res<Val<'c>> {
        let (a, b, acc) = (self.val(ops[0])?, self.val(ops[1])?, self.val(acc)?);
        self.dot_of(signed, ops, [a, b], acc)
    }

    /// `acc + A · B` of the warp: every lane's four sums, eight words each, out of what other lanes have.
    pub(in crate::emit) fn host_mma(&mut self, signed: [bool; 2], a: &[V; 4], b: &[V; 2], acc: &[V; 4]) -> Res<[Val<'c>; 4]> {
        let mut out = [0; 4].map(|_| Val::One(self.ci(0).into()));
        for (i, out) in out.iter_mut().enumerate() {
            let mut sum = self.val(acc[i])?;
            for k in 0..8 {
                let ops = [a[i / 2 + k / 4 * 2], b[k / 4]];
                let x = self.permuted(&self.val(ops[0])?, std::array::from_fn(|l| l / 4 * 4 + k % 4))?;
                let y = self.permuted(&self.val(ops[1])?, std::array::from_fn(|l| 4 * (2 * (l % 4) + i % 2) + k % 4))?;
                sum = self.dot_of(signed, ops, [x, y], sum)?;
            }
            *out = Val::Many(self.many(&sum)?);
        }
        Ok(out)
    }

    /// The dot product of words that are those of `ops`, perhaps of other lanes.
    fn dot_of(&mut self, signed: [bool; 2], ops: [V; 2], [a, b]: [Val<'c>; 2], acc: Val<'c>) -> Res<Val<'c>> {
        if let (Val::One(x), Val::One(y)) = (&a, &b) {
            let dot = self.dot_scalar(signed, [x.into_int_value(), y.into_int_value()])?;
            return Ok(match acc {
                Val::One(z) => Val::One(self.b.build_int_add(dot, z.into_int_value(), "")?.into()),
                acc => {
                    let dot = self.splat(dot.into(), LANES)?;
                    Val::Many(self.b.build_int_add(dot, self.many(&acc)?, "")?)
                }
            });
        }
        // Bytes below 128 may be taken either way.
        let max = ops.map(|v| self.max_byte(v, 4));
        let acc = self.many(&acc)?;
        let isa = self.host()?.isa;
        match isa {
            _ if isa.arm() => self.dot_arm(signed, max, [a, b], acc),
            _ if isa.vnni() => self.dot_vnni(signed, max, [a, b], acc),
            _ => self.dot_madd(signed, max, [a, b], acc),
        }
        .map(Val::Many)
    }

    /// Sum of products of two scalars' bytes.
    pub(super) fn dot_scalar(&self, signed: [bool; 2], ops: [IntValue<'c>; 2]) -> Res<IntValue<'c>> {
        let byte = |k: usize, i: i32| -> Res<IntValue<'c>> {
            let up = self.b.build_left_shift(ops[k], self.ci(24 - 8 * i), "")?;
            Ok(self.b.build_right_shift(up, self.ci(24), signed[k], "")?)
        };
        let mut sum = self.ci(0);
        for i in 0..4 {
            let p = self.b.build_int_mul(byte(0, i)?, byte(1, i)?, "")?;
            sum = self.b.build_int_add(sum, p, "")?;
        }
        Ok(sum)
    }

    /// Lanes `from..from + n` of a value.
    pub(super) fn piece(&self, v: &Val<'c>, from: usize, n: usize) -> Res<VectorValue<'c>> {
        match v {
            Val::One(x) => self.splat(*x, n),
            v => self.part(self.many(v)?, from, n),
        }
    }

    /// The same with `c` xored to every word.
    pub(super) fn flipped(&self, v: &Val<'c>) -> Res<Val<'c>> {
        let x = match v {
            Val::One(x) => *x,
            v => self.many(v)?.into(),
        };
        Ok(self.wrap(self.int_raw_c(IntOp::Xor, x, FLIP)?))
    }

    fn dot_vnni(&self, signed: [bool; 2], max: [u32; 2], ops: [Val<'c>; 2], acc: VectorValue<'c>) -> Res<VectorValue<'c>> {
        let [a, b] = ops;
        let can_unsigned = [!signed[0] || max[0] < 128, !signed[1] || max[1] < 128];
        let can_signed = [signed[0] || max[0] < 128, signed[1] || max[1] < 128];
        if can_unsigned[0] && can_signed[1] {
            return self.dpbusd(&a, &b, acc);
        }
        if can_unsigned[1] && can_signed[0] {
            return self.dpbusd(&b, &a, acc);
        }
        // Both are unsigned, or both signed. `keep` is the uniform one, so that its byte sum is scalar.
        let (keep, flip) = if matches!(a, Val::One(_)) { (a, b) } else { (b, a) };
        let flip = self.flipped(&flip)?;
        let both_signed = signed[0];
        let sum = match &keep {
            Val::One(k) => {
                let ones = self.ci(0x0101_0101);
                let s = self.dot_scalar([both_signed, false], [k.into_int_value(), ones])?;
                let s = self.b.build_left_shift(s, self.ci(7), "")?;
                self.splat(s.into(), LANES)?
            }
            keep if both_signed => self.dpbusd(&Val::One(self.ci(FLIP).into()), keep, self.const_i32s(&[0; LANES]))?,
            keep => {
                let half = Val::One(self.ci(0x4040_4040).into());
                let once = self.dpbusd(keep, &half, self.const_i32s(&[0; LANES]))?;
                self.dpbusd(keep, &half, once)?
            }
        };
        if both_signed {
            // flip = f + 128 as unsigned: f·k = flip·k - 128 Σk.
            let acc = self.b.build_int_sub(acc, sum, "")?;
            self.dpbusd(&flip, &keep, acc)
        } else {
            // flip = f - 128 as signed: k·f = k·flip + 128 Σk.
            let acc = self.b.build_int_add(acc, sum, "")?;
            self.dpbusd(&keep, &flip, acc)
        }
    }

    /// `vpdpbusd` on both halves of the warp.
    fn dpbusd(&self, unsigned: &Val<'c>, signed: &Val<'c>, acc: VectorValue<'c>) -> Res<VectorValue<'c>> {
        let bytes = self.i8().vec_type(64);
        let mut halves = vec![];
        for from in [0, 16] {
            let acc = self.part(acc, from, 16)?.into();
            let u = self.b.build_bit_cast(self.piece(unsigned, from, 16)?, bytes, "")?;
            let s = self.b.build_bit_cast(self.piece(signed, from, 16)?, bytes, "")?;
            halves.push(self.call("llvm.x86.avx512.vpdpbusd.512", &[], &[acc, u, s])?.into_vector_value());
        }
        self.concat(halves)
    }

    fn dot_madd(&self, signed: [bool; 2], max: [u32; 2], ops: [Val<'c>; 2], acc: VectorValue<'c>) -> Res<VectorValue<'c>> {
        let wide = self.host()?.isa.wide();
        let (n, madd, maddubs) = if wide {
            (16, "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx512.pmaddubs.w.512")
        } else {
            (8, "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx2.pmadd.ub.sw")
        };
        let (bytes, words) = (self.i8().vec_type(4 * n as u32), self.i16().vec_type(2 * n as u32));
        // (unsigned operand, signed operand) if pairs of products fit 16 bits.
        let fits = |u: usize, s: usize| {
            let is_u = !signed[u] || max[u] < 128;
            let is_s = signed[s] || max[s] < 128;
            let s_max = if signed[s] { max[s].clamp(1, 128) } else { max[s] };
            is_u && is_s && 2 * max[u] * s_max <= i16::MAX as u32
        };
        let order = [(0, 1), (1, 0)].into_iter().find(|&(u, s)| fits(u, s));
        // Even and odd bytes as 16-bit words; uniform operands are split once, in scalar code.
        let split = |k: usize, odd: bool| -> Res<Val<'c>> {
            let x: BasicValueEnum<'c> = match &ops[k] {
                Val::One(x) => *x,
                v => self.many(v)?.into(),
            };
            let even_mask = 0x00ff_00ff;
            let r = match (signed[k], &ops[k]) {
                (false, _) => {
                    let x = if odd { self.int_raw_c(IntOp::Lshr, x, 8)? } else { x };
                    self.int_raw_c(IntOp::And, x, even_mask)?
                }
                (true, Val::One(x)) => {
                    let x = x.into_int_value();
                    let (lo, hi) = if odd { (16, 0) } else { (24, 8) };
                    let byte = |up: i32| -> Res<IntValue<'c>> {
                        let t = self.b.build_left_shift(x, self.ci(up), "")?;
                        Ok(self.b.build_right_shift(t, self.ci(24), true, "")?)
                    };
                    let low = self.b.build_and(byte(lo)?, self.ci(0xffff), "")?;
                    let high = self.b.build_left_shift(byte(hi)?, self.ci(16), "")?;
                    self.b.build_or(low, high, "")?.into()
                }
                (true, _) => {
                    let t = self.i16().vec_type(2 * LANES as u32);
                    let w = self.b.build_bit_cast(x, t, "")?.into_vector_value();
                    let eight = VectorType::const_vector(&[self.i16().const_int(8, false); 2 * LANES]);
                    let w = if odd { w } else { self.b.build_left_shift(w, eight, "")? };
                    let w = self.b.build_right_shift(w, eight, true, "")?;
                    self.b.build_bit_cast(w, self.i32().vec_type(LANES as u32), "")?
                }
            };
            Ok(self.wrap(r))
        };
        let parts: Vec<[Val<'c>; 2]> = match order {
            Some((u, s)) => vec![[ops[u].clone(), ops[s].clone()]],
            None => vec![[split(0, false)?, split(1, false)?], [split(0, true)?, split(1, true)?]],
        };
        let ones = VectorType::const_vector(&vec![self.i16().const_int(1, false); 2 * n]);
        let mut pieces = vec![];
        for from in (0..LANES).step_by(n) {
            let mut sum = self.part(acc, from, n)?;
            for [x, y] in &parts {
                let (x, y) = (self.piece(x, from, n)?, self.piece(y, from, n)?);
                let (x, y) = if order.is_some() {
                    let x = self.b.build_bit_cast(x, bytes, "")?;
                    let y = self.b.build_bit_cast(y, bytes, "")?;
                    (self.call(maddubs, &[], &[x, y])?, ones.into())
                } else {
                    (self.b.build_bit_cast(x, words, "")?, self.b.build_bit_cast(y, words, "")?)
                };
                let p = self.call(madd, &[], &[x, y])?.into_vector_value();
                sum = self.b.build_int_add(sum, p, "")?;
            }
            pieces.push(sum);
        }
        self.concat(pieces)
    }
}
