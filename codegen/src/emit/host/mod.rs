//! The host lowering: a function runs one block, `void name(u8 **bufs, u32 block_x, u32 block_y, u8 *shared)`.
//!
//! A lane vector is `<32 x T>` in registers. Blocks of several warps are cut at barriers ([`segments`]).

mod dot;
mod dot_arm;
mod load;
mod memory;
mod plan;
mod segments;
mod shuffle;
mod store;

use super::value::Val;
use super::*;

/// Emits a kernel.
pub(crate) fn function<'c>(cx: &'c Context, m: &Module<'c>, k: &Kernel, isa: HostIsa) -> Res {
    let (ptr, i32t) = (cx.ptr_type(AddressSpace::default()), cx.i32_type());
    let mut e = Emitter::new(cx, m, k, &[ptr.into(), i32t.into(), i32t.into(), ptr.into()]);
    let (cpu, features) = isa.llvm();
    let mut attributes = vec![("target-cpu", cpu), ("target-features", &features), ("no-builtins", "")];
    if !isa.arm() {
        let width = if isa.wide() { "512" } else { "256" };
        attributes.extend([("prefer-vector-width", width), ("min-legal-vector-width", width)]);
    }
    for (n, v) in attributes {
        e.f.add_attribute(AttributeLoc::Function, cx.create_string_attribute(n, v));
    }
    let param = |i| e.f.get_nth_param(i).ok_or(Fault("no such parameter".into()));
    let table = param(0)?.into_pointer_value();
    let (x, y) = (param(1)?.into_int_value(), param(2)?.into_int_value());
    let shared = param(3)?.into_pointer_value();
    let mut bufs = vec![];
    for i in 0..k.bufs.len() {
        let at = e.offset(table, e.i64().const_int(8 * i as u64, false))?;
        bufs.push(e.load_at(ptr.into(), at, 8, true)?.into_pointer_value());
    }
    let scratch: BasicTypeEnum = e.i32().vec_type(16).into();
    let (zero, sink) = (e.alloca(scratch, 64)?, e.alloca(scratch, 64)?);
    e.store_at(zero, scratch.const_zero(), 64)?;
    e.machine = Machine::Host(HostState { isa, bufs, shared, block: [x, y], warp: i32t.const_zero(), zero, sink });
    if k.warps == 1 {
        e.body(&k.body)?;
    } else {
        e.segmented(&k.body)?;
    }
    e.b.build_return(None)?;
    Ok(())
}

impl<'c, 'k> Emitter<'c, 'k> {
    /// A pipeline in a block of one warp: copies, then the body, in turn.
    pub(super) fn host_pipeline(&mut self, inst: &'k Inst) -> Res {
        let Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields } = &inst.op else {
            return Err("not a pipeline".into());
        };
        let trip = self.uniform_int(*trip)?;
        let shapes = self.shapes(carried, yields)?;
        let init = carried.iter().zip(&shapes).map(|((_, i), s)| self.pack(&self.val(*i)?, s)).collect::<Res<_>>()?;
        let out = self.counted(trip, init, |s, i, now| {
            let at = s.slot_of(i, *stages)?;
            for (v, x) in [(copy_iv, i), (copy_slot, at), (iv, i), (slot, at)] {
                s.set(*v, Val::One(x.into()))?;
            }
            s.body(copy)?;
            s.carry_in(carried, &shapes, &now)?;
            s.body(body)?;
            s.carry_out(yields, &shapes)
        })?;
        self.results(inst, &shapes, &out)
    }

    /// `i % stages`
    fn slot_of(&self, i: IntValue<'c>, stages: u32) -> Res<IntValue<'c>> {
        Ok(self.b.build_int_unsigned_rem(i, self.ci(stages as i32), "")?)
    }
}
