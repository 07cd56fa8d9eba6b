//! Loads, stores and copies of a lane vector. Indices whose lanes differ by known offsets become wide loads and constant
//! shuffles, or scalar stores; others gathers and scatters where the machine has them, else a walk over the lanes.

use super::*;

type Basic<'c> = BasicValueEnum<'c>;

/// More wide loads than this for one access: go lane by lane instead.
const MAX_CHUNKS: usize = 16;

/// A place that 32 lanes read or write: `size`-byte units.
struct Access<'c> {
    base: PointerValue<'c>,
    idx: Val<'c>,
    /// Bytes of one index step.
    elem: u32,
    /// Bytes of a lane's access.
    size: u32,
    fixed: bool,
}

impl<'c> Emitter<'c, '_> {
    /// Where a memory begins, plus some bytes.
    fn host_base(&self, mem: Mem, plus: u32) -> Res<PointerValue<'c>> {
        let h = self.host()?;
        let (p, at) = match mem {
            Mem::Buf(b) => (h.bufs[b as usize], plus),
            Mem::Shared(s) => (h.shared, plus + self.shared_at[s as usize]),
        };
        self.offset(p, self.i64().const_int(u64::from(at), false))
    }

    /// The type of a unit of that many bytes.
    fn unit(&self, size: u32) -> BasicTypeEnum<'c> {
        match size {
            1 => self.i8().into(),
            2 => self.i16().into(),
            4 => self.i32().into(),
            _ => self.i32().vec_type(size / 4).into(),
        }
    }

    /// Bits of a `<32 x i1>`.
    fn mask_bits(&self, m: VectorValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_bit_cast(m, self.i32(), "")?.into_int_value())
    }

    fn is_int(&self, op: IntPredicate, a: IntValue<'c>, c: i32) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_compare(op, a, self.ci(c), "")?)
    }

    /// `p` if the condition holds, else an address that may be used freely.
    fn or_else(&self, c: Option<IntValue<'c>>, p: PointerValue<'c>, other: PointerValue<'c>) -> Res<PointerValue<'c>> {
        match c {
            None => Ok(p),
            Some(c) => Ok(self.b.build_select(c, p, other, "")?.into_pointer_value()),
        }
    }

    /// Runs `f` for every lane whose bit is set.
    fn for_lanes(&mut self, bits: IntValue<'c>, f: impl FnOnce(&mut Self, IntValue<'c>) -> Res) -> Res {
        let from = self.block_here()?;
        let [head, body, exit] = ["lanes", "lane", "done"].map(|n| self.cx.append_basic_block(self.f, n));
        self.b.build_unconditional_branch(head)?;
        self.b.position_at_end(head);
        let phi = self.b.build_phi(self.i32(), "")?;
        let left = phi.as_basic_value().into_int_value();
        self.b.build_conditional_branch(self.is_int(IntPredicate::EQ, left, 0)?, exit, body)?;
        self.b.position_at_end(body);
        let lane = self.first_lane(left)?;
        f(self, lane)?;
        let less = self.b.build_int_sub(left, self.ci(1), "")?;
        let less = self.b.build_and(left, less, "")?;
        phi.add_incoming(&[(&bits, from), (&less, self.block_here()?)]);
        self.b.build_unconditional_branch(head)?;
        self.b.position_at_end(exit);
        Ok(())
    }

    /// The lowest set bit's number; 32 if there is none.
    fn first_lane(&self, bits: IntValue<'c>) -> Res<IntValue<'c>> {
        let f = self.i1().const_zero().into();
        Ok(self.call("llvm.cttz", &[self.i32().into()], &[bits.into(), f])?.into_int_value())
    }

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
        let a = Access { base: self.host_base(mem, plus as u32 * e)?, idx: idx.clone(), elem: e, size: e * n as u32, fixed: self.is_fixed(mem) };
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
                let wide = self.host()?.isa.wide();
                let Val::Offsets(base, offs) = &a.idx else { return self.gather(a, Some(m)) };
                let in_a_row = a.size == a.elem && (0..LANES).all(|l| offs[l] == l as i32);
                if in_a_row && (a.size == 4 || wide) {
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

    /// Address of lane 0, computed from a lane that takes part: other lanes' indices may lie outside of the memory.
    fn first_active(&self, a: &Access<'c>, base: IntValue<'c>, bits: IntValue<'c>) -> Res<PointerValue<'c>> {
        let lane = self.first_lane(bits)?;
        let p = self.element(a.base, self.b.build_int_add(base, lane, "")?, a.elem)?;
        let back = self.b.build_int_mul(lane, self.ci(-(a.elem as i32)), "")?;
        self.offset(p, self.b.build_int_s_extend(back, self.i64(), "")?)
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
    fn load_offsets(
        &self,
        p: PointerValue<'c>,
        at: &[i64; LANES],
        active: u32,
        a: &Access<'c>,
    ) -> Res<Option<Vec<Basic<'c>>>> {
        let grain = a.size.min(4);
        let count = i64::from(a.size.div_ceil(4));
        let on = |l: usize| active >> l & 1 == 1;
        let pos = |l: usize, j: i64| at[l] / i64::from(grain) + j;
        if count == 1 && active == u32::MAX && (0..LANES).all(|l| pos(l, 0) == l as i64) {
            let ty = self.vec_ty(self.unit(grain), LANES);
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
        let lanes: Vec<IntValue> =
            mask.iter().map(|&m| if m < 0 { self.i32().get_poison() } else { self.ci(m) }).collect();
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

    /// Addresses of all lanes, plus some bytes.
    fn pointers(&self, a: &Access<'c>, idx: VectorValue<'c>, plus: u32) -> Res<VectorValue<'c>> {
        let wide = self.i64().vec_type(LANES as u32);
        let i = self.b.build_int_z_extend(idx, wide, "")?;
        let size = self.splat(self.i64().const_int(u64::from(a.elem), false).into(), LANES)?;
        let i = self.b.build_int_mul(i, size, "")?;
        let base = self.offset(a.base, self.i64().const_int(u64::from(plus), false))?;
        let base = self.b.build_ptr_to_int(base, self.i64(), "")?;
        let sum = self.b.build_int_add(self.splat(base.into(), LANES)?, i, "")?;
        let ptr = self.cx.ptr_type(AddressSpace::default()).vec_type(LANES as u32);
        Ok(self.b.build_int_to_ptr(sum, ptr, "")?)
    }

    /// Stores one element a lane.
    pub(in crate::emit) fn host_store(&mut self, mem: Mem, elem: Elem, (idx, plus): (&Val<'c>, i32), val: &Val<'c>, pred: Option<Val<'c>>) -> Res {
        let e = elem.bytes();
        let a = Access { base: self.host_base(mem, plus as u32 * e)?, idx: idx.clone(), elem: e, size: e, fixed: false };
        match pred {
            None => self.store_active(&a, elem, val, u32::MAX, None),
            Some(Val::One(c)) => self.store_active(&a, elem, val, u32::MAX, Some(c.into_int_value())),
            Some(Val::Mask(bits, c)) => self.store_active(&a, elem, val, bits, c),
            Some(p) => {
                let m = self.many(&p)?;
                self.store_masked(&a, elem, val, m)
            }
        }
    }

    /// One scalar, if the condition holds.
    fn store_scalar(&self, a: &Access<'c>, elem: Elem, idx: IntValue<'c>, x: Basic<'c>, cond: Option<IntValue<'c>>) -> Res {
        let p = self.or_else(cond, self.element(a.base, idx, a.elem)?, self.host()?.sink)?;
        self.store_at(p, self.encode(elem, x)?, a.elem)
    }

    /// Stores of the lanes whose bit is set, if the condition holds.
    fn store_active(&mut self, a: &Access<'c>, elem: Elem, val: &Val<'c>, active: u32, cond: Option<IntValue<'c>>) -> Res {
        let start = active.trailing_zeros() as usize;
        if active.count_ones() == 1 || matches!(a.idx, Val::One(_)) {
            // One address: one value, by contract.
            let idx = self.lane_of(&a.idx, start)?.into_int_value();
            return self.store_scalar(a, elem, idx, self.lane_of(val, start)?, cond);
        }
        if let Some(c) = cond {
            self.guarded(c, &[], |s| {
                s.store_active(a, elem, val, active, None)?;
                Ok(vec![])
            })?;
            return Ok(());
        }
        let Val::Offsets(_, offs) = &a.idx else {
            return if active == u32::MAX { self.scatter(a, elem, val, None) } else { self.scatter(a, elem, val, Some(self.const_mask(active))) };
        };
        let end = LANES - active.leading_zeros() as usize;
        let p = self.element(a.base, self.lane_of(&a.idx, start)?.into_int_value(), a.elem)?;
        let run = (start..end).all(|l| offs[l].wrapping_sub(offs[start]) == (l - start) as i32);
        if run && active.count_ones() as usize == end - start {
            let v = self.part(self.many(val)?, start, end - start)?;
            let v = self.encode(elem, v.into())?;
            return self.store_at(p, v, a.elem);
        }
        let whole = match val {
            Val::Many(v) => Some(self.encode(elem, (*v).into())?.into_vector_value()),
            _ => None,
        };
        let mut seen = vec![];
        for l in (0..LANES).filter(|l| active >> l & 1 == 1) {
            if seen.contains(&offs[l]) {
                continue;
            }
            seen.push(offs[l]);
            let x = match whole {
                Some(v) => self.b.build_extract_element(v, self.ci(l as i32), "")?,
                None => self.encode(elem, self.lane_of(val, l)?)?,
            };
            let at = i64::from(offs[l].wrapping_sub(offs[start])) * i64::from(a.elem);
            self.store_at(self.offset(p, self.i64().const_int(at as u64, true))?, x, a.elem)?;
        }
        Ok(())
    }

    /// Stores under a mask known only at run time.
    fn store_masked(&mut self, a: &Access<'c>, elem: Elem, val: &Val<'c>, m: VectorValue<'c>) -> Res {
        let bits = self.mask_bits(m)?;
        match &a.idx {
            Val::One(i) => {
                let any = self.is_int(IntPredicate::NE, bits, 0)?;
                let x = match val {
                    Val::One(x) => *x,
                    val => {
                        let lane = self.b.build_and(self.first_lane(bits)?, self.ci(LANES as i32 - 1), "")?;
                        let v = self.many(val)?;
                        let slot = self.stash(v.into())?;
                        self.load_at(v.get_type().get_element_type(), self.element(slot, lane, 4)?, 4, false)?
                    }
                };
                self.store_scalar(a, elem, i.into_int_value(), x, Some(any))
            }
            Val::Offsets(base, offs) if (0..LANES).all(|l| offs[l] == l as i32) => {
                if a.elem == 4 || self.host()?.isa.wide() {
                    let v = self.encode(elem, self.many(val)?.into())?;
                    let p = self.first_active(a, *base, bits)?;
                    let over = [v.get_type(), p.get_type().into()];
                    let call = self.call_any("llvm.masked.store", &over, &[v, p.into(), m.into()])?;
                    call.add_attribute(
                        AttributeLoc::Param(1),
                        self.cx.create_enum_attribute(Attribute::get_named_enum_kind_id("align"), u64::from(a.elem)),
                    );
                    return Ok(());
                }
                let all = self.is_int(IntPredicate::EQ, bits, -1)?;
                self.branch(
                    all,
                    |s| {
                        s.store_active(a, elem, val, u32::MAX, None)?;
                        Ok(vec![])
                    },
                    |s| {
                        s.scatter(a, elem, val, Some(m))?;
                        Ok(vec![])
                    },
                )?;
                Ok(())
            }
            _ => self.scatter(a, elem, val, Some(m)),
        }
    }

    /// Stores at indices of any kind.
    fn scatter(&mut self, a: &Access<'c>, elem: Elem, val: &Val<'c>, mask: Option<VectorValue<'c>>) -> Res {
        let v = self.encode(elem, self.many(val)?.into())?;
        let idx = self.many(&a.idx)?;
        if self.host()?.isa.wide() && a.elem == 4 {
            let ps = self.pointers(a, idx, 0)?;
            let m = mask.unwrap_or(self.const_mask(u32::MAX));
            let over = [v.get_type(), ps.get_type().into()];
            self.call_any("llvm.masked.scatter", &over, &[v, ps.into(), m.into()])?;
            return Ok(());
        }
        let (indices, values) = (self.stash(idx.into())?, self.stash(v)?);
        let part = self.unit(a.elem);
        let one = |s: &mut Self, l: IntValue<'c>| {
            let i = s.load_at(s.i32().into(), s.element(indices, l, 4)?, 4, false)?.into_int_value();
            let x = s.load_at(part, s.element(values, l, a.elem)?, a.elem, false)?;
            s.store_at(s.element(a.base, i, a.elem)?, x, a.elem)
        };
        match mask {
            None => (0..LANES).try_for_each(|l| one(self, self.ci(l as i32))),
            Some(m) => {
                let bits = self.mask_bits(m)?;
                self.for_lanes(bits, one)
            }
        }
    }

    /// Copies 16 bytes a lane.
    pub(in crate::emit) fn host_copy(&mut self, dst: u32, d: &Val<'c>, src: u32, s: &Val<'c>, pred: Option<Val<'c>>) -> Res {
        let (to, from) = (self.host_base(Mem::Shared(dst), 0)?, self.host_base(Mem::Buf(src), 0)?);
        if let Some(Val::One(c)) = pred {
            self.guarded(c.into_int_value(), &[], |e| {
                e.host_copy(dst, d, src, s, None)?;
                Ok(vec![])
            })?;
            return Ok(());
        }
        let unit = self.unit(16);
        let row = |v: &Val<'c>| match v {
            Val::Offsets(base, o) if (0..LANES).all(|l| o[l] == l as i32) => Some(*base),
            _ => None,
        };
        if let (None, Some(d), Some(s)) = (&pred, row(d), row(s)) {
            let (p, q) = (self.element(to, d, 16)?, self.element(from, s, 16)?);
            let line: BasicTypeEnum = self.i32().vec_type(16).into();
            for at in (0..LANES as u64 * 16).step_by(64) {
                let at = self.i64().const_int(at, false);
                let x = self.load_at(line, self.offset(q, at)?, 16, true)?;
                self.store_at(self.offset(p, at)?, x, 16)?;
            }
            return Ok(());
        }
        let active = match &pred {
            None => self.ci(-1),
            Some(p) => self.mask_bits(self.many(p)?)?,
        };
        let (ds, ss) = (self.stash(self.many(d)?.into())?, self.stash(self.many(s)?.into())?);
        self.for_lanes(active, |e, l| {
            let d = e.load_at(e.i32().into(), e.element(ds, l, 4)?, 4, false)?.into_int_value();
            let s = e.load_at(e.i32().into(), e.element(ss, l, 4)?, 4, false)?.into_int_value();
            let x = e.load_at(unit, e.element(from, s, 16)?, 16, true)?;
            e.store_at(e.element(to, d, 16)?, x, 16)
        })
    }
}
