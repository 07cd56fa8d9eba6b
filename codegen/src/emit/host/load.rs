//! Loads of a lane vector. Indices whose lanes differ by known offsets become wide loads and constant shuffles; others
//! gathers where the machine has them, else a walk over the lanes.

use super::memory::{Access, Basic};
use super::*;

/// More wide loads than this for one access: go lane by lane instead.
const MAX_CHUNKS: usize = 16;

/// How far ahead of a stream of weights the cache is asked for it, in bytes. A processor's own prefetcher stops at every
/// page; this does not. What it asks for may lie past the end of the buffer, which a prefetch may do.
const AHEAD: u64 = 4096;

impl<'c> Emitter<'c, '_> {
    /// Loads `n` consecutive elements a lane.
    pub(in crate::emit) fn host_load(
        &mut self,
        mem: Mem,
        elem: Elem,
        (idx, plus): (&Val<'c>, i32),
        pred: Option<&Val<'c>>,
        n: usize,
    ) -> Res<Vec<Val<'c>>> {
        let e = elem.bytes();
        let a = Access {
            base: self.host_base(mem, plus as u32 * e)?,
            idx: idx.clone(),
            elem: e,
            size: e * n as u32,
            fixed: self.is_fixed(mem),
        };
        let words = self.load_words(&a, pred)?;
        self.decode(elem, n, &words)
    }

    /// The 32-bit words (or one zero-extended smaller unit) of a load; zeros where the predicate is false.
    fn load_words(&mut self, a: &Access<'c>, pred: Option<&Val<'c>>) -> Res<Vec<Basic<'c>>> {
        let count = a.size.div_ceil(4) as usize;
        if let Val::One(i) = a.idx {
            return self.load_uniform(a, i.into_int_value(), pred, count);
        }
        let zeros: Vec<Basic<'c>> = vec![self.const_i32s(&[0; LANES]).into(); count];
        match pred {
            None => self.load_active(a, u32::MAX),
            Some(Val::One(c)) => self.guarded(c.into_int_value(), &zeros, |s| s.load_active(a, u32::MAX)),
            Some(Val::Mask(bits, None)) => self.load_active(a, *bits),
            Some(Val::Mask(bits, Some(c))) => self.guarded(*c, &zeros, |s| s.load_active(a, *bits)),
            Some(p) => {
                let m = self.many(p)?;
                let masked = self.host()?.isa.masked(a.size);
                let Val::Offsets(base, offs) = &a.idx else { return self.gather(a, Some(m)) };
                let in_a_row = a.size == a.elem && (0..LANES).all(|l| offs[l] == l as i32);
                if in_a_row && masked {
                    let p = self.first_active(a, *base, self.mask_bits(m)?)?;
                    let ty: BasicTypeEnum = self.vec_ty(self.unit(a.size), LANES).into();
                    let zero = ty.const_zero();
                    let name = "llvm.masked.load";
                    let call = self.call_any(name, &[ty, p.get_type().into()], &[p.into(), m.into(), zero])?;
                    call.add_attribute(
                        AttributeLoc::Param(0),
                        self.cx.create_enum_attribute(Attribute::get_named_enum_kind_id("align"), u64::from(a.size)),
                    );
                    let ValueKind::Basic(v) = call.try_as_basic_value() else { return Err("a load without a value".into()) };
                    return Ok(vec![self.widen(v.into_vector_value())?.into()]);
                }
                // Mostly all lanes take part: then the fast way.
                let all = self.is_int(IntPredicate::EQ, self.mask_bits(m)?, -1)?;
                self.branch(all, |s| s.load_active(a, u32::MAX), |s| s.gather(a, Some(m)))
            }
        }
    }

    fn load_uniform(&mut self, a: &Access<'c>, idx: IntValue<'c>, pred: Option<&Val<'c>>, count: usize) -> Res<Vec<Basic<'c>>> {
        let (any, lanes) = match pred {
            None => (None, None),
            Some(Val::One(c)) => (Some(c.into_int_value()), None),
            Some(p) => {
                let m = self.many(p)?;
                let any = match p {
                    Val::Mask(_, c) => *c,
                    _ => Some(self.is_int(IntPredicate::NE, self.mask_bits(m)?, 0)?),
                };
                (any, Some(m))
            }
        };
        let p = self.or_else(any, self.element(a.base, idx, a.elem)?, self.host()?.zero)?;
        // Where the address may be the zero slot the memory is not constant.
        let fixed = a.fixed && any.is_none();
        let part = self.unit(a.size.min(4));
        let mut out = vec![];
        for j in 0..count {
            let p = self.offset(p, self.i64().const_int(4 * j as u64, false))?;
            let mut x = self.load_at(part, p, a.size.min(4), fixed)?;
            if a.size < 4 {
                x = self.b.build_int_z_extend(x.into_int_value(), self.i32(), "")?.into();
            }
            out.push(match lanes {
                None => x,
                Some(m) => self.b.build_select(m, self.splat(x, LANES)?, self.const_i32s(&[0; LANES]), "")?,
            });
        }
        Ok(out)
    }

    /// To 32 bits a lane.
    fn widen(&self, v: VectorValue<'c>) -> Res<VectorValue<'c>> {
        let to = self.i32().vec_type(v.get_type().get_size());
        if v.get_type() == to { Ok(v) } else { Ok(self.b.build_int_z_extend(v, to, "")?) }
    }

    /// Loads of the lanes whose bit is set.
    fn load_active(&mut self, a: &Access<'c>, active: u32) -> Res<Vec<Basic<'c>>> {
        let mask = (active != u32::MAX).then(|| self.const_mask(active));
        let Val::Offsets(base, offs) = &a.idx else { return self.gather(a, mask) };
        // Lane 0 need not take part, and then its index may be anything: start from one that does.
        let start = active.trailing_zeros() as usize;
        let first = self.lane_of(&a.idx, start)?.into_int_value();
        let p = self.element(a.base, if start == 0 { *base } else { first }, a.elem)?;
        let at = offs.map(|o| i64::from(o.wrapping_sub(offs[start])) * i64::from(a.elem));
        match self.load_offsets(p, &at, active, a)? {
            Some(v) => Ok(v),
            None if self.host()?.isa.wide() && matches!(a.size, 4 | 8) => self.gather(a, mask),
            None => {
                let slot = self.slot_array(a.size, active != u32::MAX)?;
                for l in (0..LANES).filter(|l| active >> l & 1 == 1) {
                    let from = self.offset(p, self.i64().const_int(at[l] as u64, true))?;
                    let x = self.load_at(self.unit(a.size), from, a.elem, a.fixed)?;
                    let to = self.offset(slot, self.i64().const_int(l as u64 * u64::from(a.size), false))?;
                    self.store_at(to, x, a.size)?;
                }
                self.load_array(slot, a.size)
            }
        }
    }

    /// Wide loads that cover all lanes' units, and the shuffles that sort them; `None` if that takes too many.
    fn load_offsets(&self, p: PointerValue<'c>, at: &[i64; LANES], active: u32, a: &Access<'c>) -> Res<Option<Vec<Basic<'c>>>> {
        let grain = a.size.min(4);
        let count = i64::from(a.size.div_ceil(4));
        let on = |l: usize| active >> l & 1 == 1;
        let pos = |l: usize, j: i64| at[l] / i64::from(grain) + j;
        if count == 1 && active == u32::MAX && (0..LANES).all(|l| pos(l, 0) == l as i64) {
            let ty = self.vec_ty(self.unit(grain), LANES);
            if a.fixed && a.size == 4 {
                for line in [AHEAD, AHEAD + 64] {
                    let q = self.offset(p, self.i64().const_int(line, false))?;
                    // Read, keep in all caches, data.
                    let how = [0, 3, 1].map(|x| self.ci(x).into());
                    self.call_any("llvm.prefetch", &[q.get_type().into()], &[q.into(), how[0], how[1], how[2]])?;
                }
            }
            let v = self.load_at(ty.into(), p, a.elem, a.fixed)?.into_vector_value();
            return Ok(Some(vec![self.widen(v)?.into()]));
        }
        let mut want: Vec<i64> = (0..LANES).filter(|&l| on(l)).flat_map(|l| (0..count).map(move |j| pos(l, j))).collect();
        want.sort_unstable();
        want.dedup();
        let (Some(&low), Some(&high)) = (want.first(), want.last()) else { return Ok(None) };
        let len = i64::from(64 / grain).min(high - low + 1);
        let mut starts: Vec<i64> = vec![];
        for &w in &want {
            if starts.last().is_none_or(|s| w >= s + len) {
                starts.push(w.min(high - len + 1));
                if starts.len() > MAX_CHUNKS {
                    return Ok(None);
                }
            }
        }
        let ty = self.vec_ty(self.unit(grain), len as usize);
        let chunks: Vec<VectorValue<'c>> = starts
            .iter()
            .map(|s| {
                let q = self.offset(p, self.i64().const_int((s * i64::from(grain)) as u64, true))?;
                Ok(self.load_at(ty.into(), q, a.elem.min(grain), a.fixed)?.into_vector_value())
            })
            .collect::<Res<_>>()?;
        let chunk_of = |w: i64| starts.iter().rposition(|&s| s <= w).unwrap_or(0);
        let mut out = vec![];
        for j in 0..count {
            let mut halves = vec![];
            for lanes in [0..16usize, 16..32] {
                let from: Vec<Option<(usize, i64)>> = lanes
                    .map(|l| {
                        let c = chunk_of(pos(l, j));
                        on(l).then(|| (c, pos(l, j) - starts[c]))
                    })
                    .collect();
                halves.push(self.collect(&chunks, len, &from)?);
            }
            let v = self.widen(self.concat(halves)?)?;
            out.push(match active {
                u32::MAX => v.into(),
                _ => self.b.build_select(self.const_mask(active), v, self.const_i32s(&[0; LANES]), "")?,
            });
        }
        Ok(Some(out))
    }

    /// A vector whose lanes come from (chunk, place in it).
    fn collect(&self, chunks: &[VectorValue<'c>], len: i64, from: &[Option<(usize, i64)>]) -> Res<VectorValue<'c>> {
        let mut used: Vec<usize> = from.iter().flatten().map(|f| f.0).collect();
        used.sort_unstable();
        used.dedup();
        let Some(&any) = used.first() else {
            return self.shuffle(chunks[0], chunks[0], &vec![0; from.len()]);
        };
        // Pairs of chunks first, then the pieces blend; lanes not yet known take what is nearest to the identity.
        let mut pieces: Vec<(VectorValue<'c>, Vec<usize>)> = vec![];
        for pair in used.chunks(2) {
            let (x, y) = (pair[0], *pair.last().unwrap_or(&any));
            let mask: Vec<i32> = from
                .iter()
                .map(|f| match f {
                    Some((c, o)) if *c == x => *o as i32,
                    Some((c, o)) if *c == y => (*o + len) as i32,
                    _ => -1,
                })
                .collect();
            pieces.push((self.shuffle_some(chunks[x], chunks[y], &mask)?, pair.to_vec()));
        }
        while pieces.len() > 1 {
            let mut next = vec![];
            for two in pieces.chunks(2) {
                let [(a, ca), (b, cb)] = two else {
                    next.push(two[0].clone());
                    continue;
                };
                let n = from.len() as i32;
                let mask: Vec<i32> = (0..n)
                    .map(|l| match from[l as usize] {
                        Some((c, _)) if ca.contains(&c) => l,
                        Some((c, _)) if cb.contains(&c) => l + n,
                        _ => -1,
                    })
                    .collect();
                next.push((self.shuffle_some(*a, *b, &mask)?, [ca.clone(), cb.clone()].concat()));
            }
            pieces = next;
        }
        pieces.pop().map(|p| p.0).ok_or_else(|| "nothing collected".into())
    }

    /// A shuffle in which lanes of -1 do not matter.
    fn shuffle_some(&self, a: VectorValue<'c>, b: VectorValue<'c>, mask: &[i32]) -> Res<VectorValue<'c>> {
        let lanes: Vec<IntValue> = mask.iter().map(|&m| if m < 0 { self.i32().get_poison() } else { self.ci(m) }).collect();
        Ok(self.b.build_shuffle_vector(a, b, VectorType::const_vector(&lanes), "")?)
    }

    /// A stack array of 32 units.
    fn slot_array(&self, size: u32, zero: bool) -> Res<PointerValue<'c>> {
        let ty: BasicTypeEnum = self.i8().vec_type(64).into();
        let p = self.alloca(self.i8().array_type(LANES as u32 * size).into(), 64)?;
        if zero {
            for at in (0..LANES as u32 * size).step_by(64) {
                let q = self.offset(p, self.i64().const_int(u64::from(at), false))?;
                // The last store may be half a vector.
                let half = LANES as u32 * size - at < 64;
                let ty: BasicTypeEnum = if half { self.i8().vec_type(32).into() } else { ty };
                self.store_at(q, ty.const_zero(), 32)?;
            }
        }
        Ok(p)
    }

    /// Words of a stack array of units.
    fn load_array(&self, p: PointerValue<'c>, size: u32) -> Res<Vec<Basic<'c>>> {
        let at = std::array::from_fn(|l| l as i64 * i64::from(size));
        let a = Access { base: p, idx: Val::One(self.ci(0).into()), elem: size.min(4), size, fixed: false };
        self.load_offsets(p, &at, u32::MAX, &a)?.ok_or_else(|| "a stack array loads in a few chunks".into())
    }

    /// Loads at indices of any kind.
    fn gather(&mut self, a: &Access<'c>, mask: Option<VectorValue<'c>>) -> Res<Vec<Basic<'c>>> {
        let idx = self.many(&a.idx)?;
        if self.host()?.isa.wide() && matches!(a.size, 4 | 8) {
            let m = mask.unwrap_or(self.const_mask(u32::MAX));
            let mut out = vec![];
            for j in 0..a.size / 4 {
                let ps = self.pointers(a, idx, 4 * j)?;
                let ty: BasicTypeEnum = self.i32().vec_type(LANES as u32).into();
                let args = [ps.into(), m.into(), ty.const_zero()];
                out.push(self.call("llvm.masked.gather", &[ty, ps.get_type().into()], &args)?);
            }
            return Ok(out);
        }
        let indices = self.stash(idx.into())?;
        let slot = self.slot_array(a.size, mask.is_some())?;
        let one = |s: &mut Self, l: IntValue<'c>| {
            let i = s.load_at(s.i32().into(), s.element(indices, l, 4)?, 4, false)?.into_int_value();
            let x = s.load_at(s.unit(a.size), s.element(a.base, i, a.elem)?, a.elem, a.fixed)?;
            s.store_at(s.element(slot, l, a.size)?, x, a.size)
        };
        match mask {
            None => (0..LANES).try_for_each(|l| one(self, self.ci(l as i32)))?,
            Some(m) => {
                let bits = self.mask_bits(m)?;
                self.for_lanes(bits, one)?;
            }
        }
        self.load_array(slot, a.size)
    }
}
