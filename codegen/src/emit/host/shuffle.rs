//! Shuffles between the lanes of a vector.

use super::*;

impl<'c> Emitter<'c, '_> {
    /// The value of lane `lane ^ mask`.
    pub(in crate::emit) fn host_shuffle_xor(&self, a: &Val<'c>, mask: u32) -> Res<Val<'c>> {
        self.permuted(a, std::array::from_fn(|l| l ^ mask as usize))
    }

    /// Lane l gets what lane `from[l]` has.
    pub(super) fn permuted(&self, a: &Val<'c>, from: [usize; LANES]) -> Res<Val<'c>> {
        Ok(match a {
            Val::One(_) => a.clone(),
            Val::Offsets(base, offs) => self.lanes(*base, from.map(|f| offs[f]))?,
            Val::Mask(m, c) => Val::Mask((0..LANES).fold(0, |r, l| r | (m >> from[l] & 1) << l), *c),
            Val::Many(v) => Val::Many(self.shuffle(*v, *v, &from.map(|f| f as i32))?),
        })
    }

    /// The value of lane `src & 31`.
    pub(in crate::emit) fn host_shuffle_idx(&mut self, a: &Val<'c>, src: &Val<'c>) -> Res<Val<'c>> {
        if let Val::One(_) = a {
            return Ok(a.clone());
        }
        if let Some(from) = self.known_lanes(src) {
            let from = from.map(|f| f as usize % LANES);
            if from.iter().all(|&f| f == from[0]) {
                return Ok(Val::One(self.lane_of(a, from[0])?));
            }
            return self.permuted(a, from);
        }
        let v = self.many(a)?;
        if v.get_type().get_element_type().into_int_type_or_none() == Some(self.i1()) {
            // Truth values travel as integers.
            let wide = self.b.build_int_z_extend(v, self.i32().vec_type(LANES as u32), "")?;
            let r = match self.host_shuffle_idx(&Val::Many(wide), src)? {
                Val::One(x) => self.b.build_int_truncate(x.into_int_value(), self.i1(), "")?.into(),
                x => self.b.build_int_truncate(self.many(&x)?, self.i1().vec_type(LANES as u32), "")?.into(),
            };
            return Ok(self.wrap(r));
        }
        if let Val::One(s) = src {
            // Through memory: one store, one load.
            let s = self.b.build_and(s.into_int_value(), self.ci(LANES as i32 - 1), "")?;
            let slot = self.stash(v.into())?;
            let elem = v.get_type().get_element_type();
            return Ok(Val::One(self.load_at(elem, self.element(slot, s, 4)?, 4, false)?));
        }
        let s = self.int_raw_c(IntOp::And, self.many(src)?.into(), LANES as i32 - 1)?.into_vector_value();
        if self.host()?.isa.wide() {
            let float = matches!(v.get_type().get_element_type(), BasicTypeEnum::FloatType(_));
            let bits = self.bitcast(v.into(), false)?.into_vector_value();
            let (lo, hi) = (self.part(bits, 0, 16)?, self.part(bits, 16, 16)?);
            let halves = [0, 16].map(|from| {
                let s = self.part(s, from, 16)?;
                self.call("llvm.x86.avx512.vpermi2var.d.512", &[], &[lo.into(), s.into(), hi.into()])
            });
            let [x, y] = halves;
            let r = self.concat(vec![x?.into_vector_value(), y?.into_vector_value()])?;
            return Ok(Val::Many(if float { self.bitcast(r.into(), true)?.into_vector_value() } else { r }));
        }
        // Without such an instruction: lane by lane through memory.
        let slot = self.stash(v.into())?;
        let mut r = v.get_type().get_poison();
        for l in 0..LANES {
            let l = self.ci(l as i32);
            let i = self.b.build_extract_element(s, l, "")?.into_int_value();
            let x = self.load_at(v.get_type().get_element_type(), self.element(slot, i, 4)?, 4, false)?;
            r = self.b.build_insert_element(r, x, l, "")?;
        }
        Ok(Val::Many(r))
    }

    /// A copy on the stack.
    pub(super) fn stash(&self, v: BasicValueEnum<'c>) -> Res<PointerValue<'c>> {
        let p = self.alloca(v.get_type(), 64)?;
        self.store_at(p, v, 64)?;
        Ok(p)
    }
}

/// `into_int_type` that may fail.
trait IntTypeOrNone<'c> {
    fn into_int_type_or_none(self) -> Option<IntType<'c>>;
}

impl<'c> IntTypeOrNone<'c> for BasicTypeEnum<'c> {
    fn into_int_type_or_none(self) -> Option<IntType<'c>> {
        match self {
            BasicTypeEnum::IntType(t) => Some(t),
            _ => None,
        }
    }
}
