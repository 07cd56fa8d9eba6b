//! The GPU lowering: one lane is one thread.

use super::value::Val;
use super::*;
use inkwell::module::Linkage;

/// Call-convention number of `ptx_kernel`.
const PTX_KERNEL: u32 = 71;

/// Emits a kernel.
pub(super) fn function<'c>(cx: &'c Context, m: &Module<'c>, k: &Kernel) -> Res {
    let ptr = cx.ptr_type(AddressSpace::from(1u16)).into();
    let mut e = Emitter::new(cx, m, k, &vec![ptr; k.bufs.len()]);
    e.f.set_call_conventions(PTX_KERNEL);
    let flag = |n: &str, v| cx.create_enum_attribute(Attribute::get_named_enum_kind_id(n), v);
    for (i, buf) in k.bufs.iter().enumerate() {
        let at = AttributeLoc::Param(i as u32);
        e.f.add_attribute(at, flag("noalias", 0));
        e.f.add_attribute(at, flag("align", 16));
        if buf.fixed {
            e.f.add_attribute(at, flag("readonly", 0));
        }
    }
    let text = |n: &str, v: String| e.f.add_attribute(AttributeLoc::Function, cx.create_string_attribute(n, &v));
    text("nvvm.maxntid", format!("{},1,1", k.warps * LANES as u32));
    if k.min_blocks > 0 {
        text("nvvm.minctasm", k.min_blocks.to_string());
    }
    let (_, total) = k.shared_layout();
    if total > 0 {
        let ty = cx.i8_type().array_type(total);
        let g = m.add_global(ty, Some(AddressSpace::from(3u16)), &format!("{}_shared", k.name));
        g.set_linkage(Linkage::Internal);
        g.set_initializer(&ty.get_undef());
        g.set_alignment(16);
        e.machine = Machine::Gpu { shared: Some(g.as_pointer_value()) };
    }
    // The next kernel may take what room there is, and read its weights.
    e.call_any("llvm.nvvm.griddepcontrol.launch.dependents", &[], &[])?;
    e.body(&k.body)?;
    // Every thread waits before it ends: who waits for this kernel also waits for all in front of it.
    e.await_earlier()?;
    e.b.build_return(None)?;
    Ok(())
}

impl<'c, 'k> Emitter<'c, 'k> {
    /// Keeps the assembler from unrolling the loop whose first block this is.
    pub(super) fn no_unroll(&self) -> Res {
        if self.is_gpu() {
            let ty = self.cx.void_type().fn_type(&[], false);
            let asm = self.cx.create_inline_asm(ty, ".pragma \"nounroll\";".into(), String::new(), true, false, None, false);
            self.b.build_indirect_call(ty, asm, &[], "")?;
        }
        Ok(())
    }

    /// Address of element `idx + plus`.
    fn gpu_at(&self, mem: Mem, idx: IntValue<'c>, plus: i32, size: u32) -> Res<PointerValue<'c>> {
        let plus = plus * size as i32;
        match mem {
            Mem::Buf(b) => {
                let p = self.f.get_nth_param(b).ok_or("no such parameter")?.into_pointer_value();
                self.offset(self.element(p, idx, size)?, self.i64().const_int(plus as u64, true))
            }
            Mem::Shared(s) => {
                // Shared addresses have 32 bits.
                let Machine::Gpu { shared: Some(p) } = self.machine else { return Err("no shared memory".into()) };
                let at = self.b.build_int_mul(idx, self.ci(size as i32), "")?;
                self.offset(self.offset(p, at)?, self.ci(plus + self.shared_at[s as usize] as i32))
            }
        }
    }

    /// Waits for all earlier launches, unless that was done on the way here.
    fn await_earlier(&mut self) -> Res {
        if self.is_gpu() && !self.waited {
            self.call_any("llvm.nvvm.griddepcontrol.wait", &[], &[])?;
            self.waited = true;
        }
        Ok(())
    }

    /// The same before anything that earlier launches may write, or may still read.
    pub(super) fn await_memory(&mut self, mem: Mem) -> Res {
        match mem {
            Mem::Buf(b) if !self.k.bufs[b as usize].fixed => self.await_earlier(),
            _ => Ok(()),
        }
    }

    /// The same before a loop whose body needs it.
    pub(super) fn await_block(&mut self, block: &Block) -> Res {
        if self.touches(block) { self.await_earlier() } else { Ok(()) }
    }

    /// Does it read or write buffers other than weights?
    fn touches(&self, block: &Block) -> bool {
        block.insts.iter().any(|i| match &i.op {
            Op::Load { mem: Mem::Buf(b), .. }
            | Op::Store { mem: Mem::Buf(b), .. }
            | Op::AtomicAdd { buf: b, .. }
            | Op::Copy { src: b, .. } => !self.k.bufs[*b as usize].fixed,
            Op::For { body, .. } => self.touches(body),
            Op::If { then, els, .. } => self.touches(then) || self.touches(els),
            Op::Pipeline { copy, body, .. } => self.touches(copy) || self.touches(body),
            _ => false,
        })
    }

    /// Loads; a lane whose predicate is false branches around.
    pub(super) fn gpu_load(
        &mut self,
        mem: Mem,
        elem: Elem,
        (idx, plus): (&Val<'c>, i32),
        pred: Option<&Val<'c>>,
        n: usize,
    ) -> Res<Vec<Val<'c>>> {
        self.await_memory(mem)?;
        let idx = self.first(idx)?.into_int_value();
        let bytes = elem.bytes() * n as u32;
        let words = (bytes as usize).div_ceil(4);
        let fixed = self.is_fixed(mem);
        let read = |s: &mut Self| {
            let p = s.gpu_at(mem, idx, plus, elem.bytes())?;
            Ok(match bytes {
                1 | 2 => {
                    let t = if bytes == 1 { s.i8() } else { s.i16() };
                    let x = s.load_at(t.into(), p, bytes, fixed)?.into_int_value();
                    vec![s.b.build_int_z_extend(x, s.i32(), "")?.into()]
                }
                4 => vec![s.load_at(s.i32().into(), p, 4, fixed)?],
                _ => {
                    let v = s.load_at(s.i32().vec_type(words as u32).into(), p, bytes, fixed)?.into_vector_value();
                    (0..words).map(|j| s.b.build_extract_element(v, s.ci(j as i32), "")).collect::<Result<_, _>>()?
                }
            })
        };
        let words = match pred {
            None => read(self)?,
            Some(p) => {
                let p = self.first(p)?.into_int_value();
                self.guarded(p, &vec![self.ci(0).into(); words], read)?
            }
        };
        self.decode(elem, n, &words)
    }

    /// Stores; a lane whose predicate is false branches around.
    pub(super) fn gpu_store(
        &mut self,
        mem: Mem,
        elem: Elem,
        (idx, plus): (&Val<'c>, i32),
        val: &Val<'c>,
        pred: Option<&Val<'c>>,
    ) -> Res {
        self.await_memory(mem)?;
        let (idx, val) = (self.first(idx)?.into_int_value(), self.first(val)?);
        let write = |s: &mut Self| {
            let x = s.encode(elem, val)?;
            let p = s.gpu_at(mem, idx, plus, elem.bytes())?;
            s.store_at(p, x, elem.bytes())?;
            Ok(vec![])
        };
        match pred {
            None => write(self)?,
            Some(p) => {
                let p = self.first(p)?.into_int_value();
                self.guarded(p, &[], write)?
            }
        };
        Ok(())
    }

    /// `red.global.add`: one word or float a lane, without an answer.
    pub(super) fn gpu_atomic_add(
        &mut self,
        buf: u32,
        (idx, val): (&Val<'c>, &Val<'c>),
        pred: Option<&Val<'c>>,
        float: bool,
    ) -> Res {
        self.await_memory(Mem::Buf(buf))?;
        let (idx, val) = (self.first(idx)?.into_int_value(), self.first(val)?);
        let add = |s: &mut Self| {
            let p = s.gpu_at(Mem::Buf(buf), idx, 0, 4)?;
            let (of, suffix, register): (BasicTypeEnum, _, _) =
                if float { (s.f32().into(), "f32", "f") } else { (s.i32().into(), "u32", "r") };
            let ty = s.cx.void_type().fn_type(&[p.get_type().into(), of.into()], false);
            let text = format!("red.global.add.{suffix} [$0], $1;");
            let asm = s.cx.create_inline_asm(ty, text, format!("l,{register},~{{memory}}"), true, false, None, false);
            s.b.build_indirect_call(ty, asm, &[p.into(), val.into()], "")?;
            Ok(vec![])
        };
        match pred {
            None => add(self)?,
            Some(p) => {
                let p = self.first(p)?.into_int_value();
                self.guarded(p, &[], add)?
            }
        };
        Ok(())
    }

    /// `shfl.sync`
    pub(super) fn gpu_shuffle(&self, how: &str, a: &Val<'c>, by: IntValue<'c>) -> Res<BasicValueEnum<'c>> {
        let a = self.first(a)?;
        let (name, x) = match a {
            BasicValueEnum::FloatValue(_) => ("f32", a),
            a if a.into_int_value().get_type() == self.i1() => {
                ("i32", self.b.build_int_z_extend(a.into_int_value(), self.i32(), "")?.into())
            }
            a => ("i32", a),
        };
        let all = self.ci(-1).into();
        let name = format!("llvm.nvvm.shfl.sync.{how}.{name}");
        let r = self.call(&name, &[], &[all, x, by.into(), self.ci(31).into()])?;
        if a.get_type() == self.i1().into() {
            return Ok(self.b.build_int_truncate(r.into_int_value(), self.i1(), "")?.into());
        }
        Ok(r)
    }

    /// `mma.sync` on bytes.
    pub(super) fn gpu_mma(&self, signed: [bool; 2], a: &[V; 4], b: &[V; 2], acc: &[V; 4]) -> Res<[Val<'c>; 4]> {
        let kinds = match signed {
            [true, true] => "s8",
            [true, false] => "s8.u8",
            [false, true] => "u8.s8",
            [false, false] => "u8",
        };
        let name = format!("llvm.nvvm.mma.m16n8k32.row.col.{kinds}");
        let args = a.iter().chain(b).chain(acc).map(|&v| self.first(&self.val(v)?)).collect::<Res<Vec<_>>>()?;
        let all = self.call_any(&name, &[], &args)?.try_as_basic_value();
        let ValueKind::Basic(BasicValueEnum::StructValue(all)) = all else { return Err("a matrix product gives four".into()) };
        let part = |i| -> Res<Val<'c>> { Ok(Val::One(self.b.build_extract_value(all, i, "")?)) };
        Ok([part(0)?, part(1)?, part(2)?, part(3)?])
    }

    /// `bar.sync 0`
    pub(super) fn gpu_barrier(&self) -> Res {
        self.call_any("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[self.ci(0).into()])?;
        Ok(())
    }

    /// One 16-byte `cp.async`.
    pub(super) fn gpu_copy(&mut self, dst: u32, d: &Val<'c>, src: u32, s: &Val<'c>, pred: Option<&Val<'c>>) -> Res {
        self.await_memory(Mem::Buf(src))?;
        let (d, s) = (self.first(d)?.into_int_value(), self.first(s)?.into_int_value());
        let issue = |e: &mut Self| {
            let to = e.gpu_at(Mem::Shared(dst), d, 0, 16)?.into();
            let from = e.gpu_at(Mem::Buf(src), s, 0, 16)?.into();
            e.call_any("llvm.nvvm.cp.async.cg.shared.global.16", &[], &[to, from])?;
            Ok(vec![])
        };
        match pred {
            None => issue(self)?,
            Some(p) => {
                let p = self.first(p)?.into_int_value();
                self.guarded(p, &[], issue)?
            }
        };
        Ok(())
    }

    fn commit(&self) -> Res {
        self.call_any("llvm.nvvm.cp.async.commit.group", &[], &[])?;
        Ok(())
    }

    fn wait(&self, groups: u32) -> Res {
        self.call_any("llvm.nvvm.cp.async.wait.group", &[], &[self.ci(groups as i32).into()])?;
        self.gpu_barrier()
    }

    /// `(slot + 1) % stages`
    fn next_slot(&self, slot: IntValue<'c>, stages: u32) -> Res<IntValue<'c>> {
        let next = self.b.build_int_add(slot, self.ci(1), "")?;
        let wraps = self.b.build_int_compare(IntPredicate::EQ, next, self.ci(stages as i32), "")?;
        Ok(self.b.build_select(wraps, self.ci(0), next, "")?.into_int_value())
    }

    /// A pipeline over `cp.async`. Iteration i waits for its own slot, passes a barrier (everybody has left the body of
    /// i - 1, and sees slot i), issues the copies of i + stages - 1 into the slot that i - 1 read, and runs the body. A
    /// group is committed for every iteration, also where nothing is left to copy, so that one count of groups fits all.
    pub(super) fn gpu_pipeline(&mut self, inst: &'k Inst) -> Res {
        let Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields } = &inst.op else {
            return Err("not a pipeline".into());
        };
        let stages = *stages;
        let trip = self.uniform_int(*trip)?;
        let issue = |s: &mut Self, i: IntValue<'c>, at: IntValue<'c>| -> Res {
            let some = s.b.build_int_compare(IntPredicate::SLT, i, trip, "")?;
            s.guarded(some, &[], |s| {
                s.set(*copy_iv, Val::One(i.into()))?;
                s.set(*copy_slot, Val::One(at.into()))?;
                s.body(copy)?;
                Ok(vec![])
            })?;
            s.commit()
        };
        // Slots of earlier shared uses must be free before the first copy lands in them.
        self.gpu_barrier()?;
        if stages == 2 {
            issue(self, self.ci(0), self.ci(0))?;
        } else {
            self.counted(self.ci(stages as i32 - 1), vec![], |s, i, _| {
                issue(s, i, i)?;
                Ok(vec![])
            })?;
        }
        let shapes = self.shapes(carried, yields)?;
        let mut init = carried.iter().zip(&shapes).map(|((_, i), s)| self.pack(&self.val(*i)?, s)).collect::<Res<Vec<_>>>()?;
        init.push(self.ci(0).into());
        init.push(self.ci(stages as i32 - 1).into());
        let mut out = self.counted(trip, init, |s, i, now| {
            let (now, slots) = now.split_at(carried.len());
            let [here, there] = [slots[0].into_int_value(), slots[1].into_int_value()];
            s.wait(stages - 2)?;
            let ahead = s.b.build_int_add(i, s.ci(stages as i32 - 1), "")?;
            issue(s, ahead, there)?;
            s.set(*iv, Val::One(i.into()))?;
            s.set(*slot, Val::One(here.into()))?;
            s.carry_in(carried, &shapes, now)?;
            s.body(body)?;
            let mut next = s.carry_out(yields, &shapes)?;
            next.push(s.next_slot(here, stages)?.into());
            next.push(s.next_slot(there, stages)?.into());
            Ok(next)
        })?;
        self.wait(0)?;
        out.truncate(carried.len());
        self.results(inst, &shapes, &out)
    }
}
