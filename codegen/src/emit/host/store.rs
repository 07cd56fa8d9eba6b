//! Stores of a lane vector, and copies. Indices whose lanes differ by known offsets become wide or scalar stores; others
//! scatters where the machine has them, else a walk over the lanes.

use super::memory::{Access, Basic};
use super::*;
use inkwell::{AtomicOrdering, AtomicRMWBinOp};

impl<'c> Emitter<'c, '_> {
    /// Stores one element a lane.
    pub(in crate::emit) fn host_store(
        &mut self,
        mem: Mem,
        elem: Elem,
        (idx, plus): (&Val<'c>, i32),
        val: &Val<'c>,
        pred: Option<Val<'c>>,
    ) -> Res {
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
            return if active == u32::MAX {
                self.scatter(a, elem, val, None)
            } else {
                self.scatter(a, elem, val, Some(self.const_mask(active)))
            };
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
                if self.host()?.isa.masked(a.elem) {
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

    /// Adds to words of a buffer, lane by lane: other blocks may add at the same time.
    pub(in crate::emit) fn host_atomic_add(
        &mut self,
        buf: u32,
        (idx, val): (&Val<'c>, &Val<'c>),
        pred: Option<Val<'c>>,
        float: bool,
    ) -> Res {
        let base = self.host_base(Mem::Buf(buf), 0)?;
        let bits = match &pred {
            None => self.ci(-1),
            Some(Val::Mask(bits, None)) => self.ci(*bits as i32),
            Some(Val::Mask(bits, Some(c))) => self.b.build_select(*c, self.ci(*bits as i32), self.ci(0), "")?.into_int_value(),
            Some(Val::One(c)) => self.b.build_select(c.into_int_value(), self.ci(-1), self.ci(0), "")?.into_int_value(),
            Some(p) => self.mask_bits(self.many(p)?)?,
        };
        let (indices, values) = (self.stash(self.many(idx)?.into())?, self.stash(self.many(val)?.into())?);
        self.for_lanes(bits, |e, l| {
            let i = e.load_at(e.i32().into(), e.element(indices, l, 4)?, 4, false)?.into_int_value();
            let p = e.element(base, i, 4)?;
            let at = e.element(values, l, 4)?;
            if float {
                return e.atomic_float(p, at);
            }
            let x = e.load_at(e.i32().into(), at, 4, false)?.into_int_value();
            e.b.build_atomicrmw(AtomicRMWBinOp::Add, p, x, AtomicOrdering::Monotonic)?;
            Ok(())
        })
    }

    /// Adds the float at `at` to that at `p`: until nobody else has changed it in the meantime.
    fn atomic_float(&mut self, p: PointerValue<'c>, at: PointerValue<'c>) -> Res {
        let x = self.load_at(self.f32().into(), at, 4, false)?.into_float_value();
        let (again, done) = (self.cx.append_basic_block(self.f, "again"), self.cx.append_basic_block(self.f, "added"));
        self.b.build_unconditional_branch(again)?;
        self.b.position_at_end(again);
        let old = self.load_at(self.i32().into(), p, 4, false)?.into_int_value();
        let sum = self.b.build_float_add(self.b.build_bit_cast(old, self.f32(), "")?.into_float_value(), x, "")?;
        let new = self.b.build_bit_cast(sum, self.i32(), "")?.into_int_value();
        let order = AtomicOrdering::Monotonic;
        let seen = self.b.build_cmpxchg(p, old, new, order, order)?;
        let ok = self.b.build_extract_value(seen, 1, "")?.into_int_value();
        self.b.build_conditional_branch(ok, done, again)?;
        self.b.position_at_end(done);
        Ok(())
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
