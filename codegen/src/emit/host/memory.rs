//! Addresses, masks and walks over lanes, for loads and stores.

use super::*;

pub(super) type Basic<'c> = BasicValueEnum<'c>;

/// A place that 32 lanes read or write: `size`-byte units.
pub(super) struct Access<'c> {
    pub base: PointerValue<'c>,
    pub idx: Val<'c>,
    /// Bytes of one index step.
    pub elem: u32,
    /// Bytes of a lane's access.
    pub size: u32,
    pub fixed: bool,
}

impl<'c> Emitter<'c, '_> {
    /// Where a memory begins, plus some bytes.
    pub(super) fn host_base(&self, mem: Mem, plus: u32) -> Res<PointerValue<'c>> {
        let h = self.host()?;
        let (p, at) = match mem {
            Mem::Buf(b) => (h.bufs[b as usize], plus),
            Mem::Shared(s) => (h.shared, plus + self.shared_at[s as usize]),
        };
        self.offset(p, self.i64().const_int(u64::from(at), false))
    }

    /// The type of a unit of that many bytes.
    pub(super) fn unit(&self, size: u32) -> BasicTypeEnum<'c> {
        match size {
            1 => self.i8().into(),
            2 => self.i16().into(),
            4 => self.i32().into(),
            _ => self.i32().vec_type(size / 4).into(),
        }
    }

    /// Bits of a `<32 x i1>`.
    pub(super) fn mask_bits(&self, m: VectorValue<'c>) -> Res<IntValue<'c>> {
        Ok(self.b.build_bit_cast(m, self.i32(), "")?.into_int_value())
    }

    pub(super) fn is_int(&self, op: IntPredicate, a: IntValue<'c>, c: i32) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_compare(op, a, self.ci(c), "")?)
    }

    /// `p` if the condition holds, else an address that may be used freely.
    pub(super) fn or_else(&self, c: Option<IntValue<'c>>, p: PointerValue<'c>, other: PointerValue<'c>) -> Res<PointerValue<'c>> {
        match c {
            None => Ok(p),
            Some(c) => Ok(self.b.build_select(c, p, other, "")?.into_pointer_value()),
        }
    }

    /// Runs `f` for every lane whose bit is set.
    pub(super) fn for_lanes(&mut self, bits: IntValue<'c>, f: impl FnOnce(&mut Self, IntValue<'c>) -> Res) -> Res {
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
    pub(super) fn first_lane(&self, bits: IntValue<'c>) -> Res<IntValue<'c>> {
        let f = self.i1().const_zero().into();
        Ok(self.call("llvm.cttz", &[self.i32().into()], &[bits.into(), f])?.into_int_value())
    }

    /// Address of lane 0, computed from a lane that takes part: other lanes' indices may lie outside of the memory.
    pub(super) fn first_active(&self, a: &Access<'c>, base: IntValue<'c>, bits: IntValue<'c>) -> Res<PointerValue<'c>> {
        let lane = self.first_lane(bits)?;
        let p = self.element(a.base, self.b.build_int_add(base, lane, "")?, a.elem)?;
        let back = self.b.build_int_mul(lane, self.ci(-(a.elem as i32)), "")?;
        self.offset(p, self.b.build_int_s_extend(back, self.i64(), "")?)
    }

    /// Addresses of all lanes, plus some bytes.
    pub(super) fn pointers(&self, a: &Access<'c>, idx: VectorValue<'c>, plus: u32) -> Res<VectorValue<'c>> {
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
}
