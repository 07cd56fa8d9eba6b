//! Loops and branches of one warp: control flow on a scalar condition, values merged by phi nodes.

use super::value::{Shape, Val};
use super::*;

impl<'c, 'k> Emitter<'c, 'k> {
    /// Emits the instructions of a block.
    pub fn body(&mut self, b: &'k Block) -> Res {
        b.insts.iter().try_for_each(|i| self.inst(i))
    }

    /// Emits one instruction.
    pub fn inst(&mut self, inst: &'k Inst) -> Res {
        match &inst.op {
            Op::For { trip, iv, carried, body, yields } => {
                self.await_block(body)?;
                let trip = self.uniform_int(*trip)?;
                let shapes = self.shapes(carried, yields)?;
                let init = carried.iter().zip(&shapes).map(|((_, i), s)| self.pack(&self.val(*i)?, s)).collect::<Res<_>>()?;
                let out = self.counted(trip, init, |s, i, now| {
                    s.set(*iv, Val::One(i.into()))?;
                    s.carry_in(carried, &shapes, &now)?;
                    s.body(body)?;
                    s.carry_out(yields, &shapes)
                })?;
                self.results(inst, &shapes, &out)
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                let cond = self.uniform_int(*cond)?;
                let shapes: Vec<Shape> = inst.results.iter().map(|&r| self.shape(r, None)).collect();
                // Each way waits where it must; behind them nothing is known.
                let waited = self.waited;
                let out = self.branch(
                    cond,
                    |s| {
                        s.body(then)?;
                        s.carry_out(then_yields, &shapes)
                    },
                    |s| {
                        s.waited = waited;
                        s.body(els)?;
                        s.carry_out(els_yields, &shapes)
                    },
                )?;
                self.waited = waited;
                self.results(inst, &shapes, &out)
            }
            Op::Pipeline { copy, body, .. } => {
                self.await_block(copy)?;
                self.await_block(body)?;
                self.pipeline(inst)
            }
            Op::Barrier => self.barrier(),
            Op::Load { .. } => self.load(inst),
            Op::Store { .. } => self.store(inst),
            Op::AtomicAdd { .. } => self.atomic_add(inst),
            Op::Copy { .. } => self.copy(inst),
            Op::Mma { .. } => self.mma(inst),
            op => {
                let v = self.pure(op)?;
                self.set(inst.results[0], v)
            }
        }
    }

    /// Shapes of carried values.
    pub fn shapes(&self, carried: &[(V, V)], yields: &[V]) -> Res<Vec<Shape>> {
        carried.iter().zip(yields).map(|((p, i), y)| Ok(self.shape(*p, Some((&self.val(*i)?, *y))))).collect()
    }

    /// Names the carried values of this iteration.
    pub fn carry_in(&mut self, carried: &[(V, V)], shapes: &[Shape], now: &[BasicValueEnum<'c>]) -> Res {
        for ((p, _), (s, x)) in carried.iter().zip(shapes.iter().zip(now)) {
            let v = self.unpack(*x, s);
            self.set(*p, v)?;
        }
        Ok(())
    }

    /// The values that a block yields.
    pub fn carry_out(&mut self, yields: &[V], shapes: &[Shape]) -> Res<Vec<BasicValueEnum<'c>>> {
        yields.iter().zip(shapes).map(|(y, s)| self.pack(&self.val(*y)?, s)).collect()
    }

    /// Names the results of a loop or branch.
    pub fn results(&mut self, inst: &Inst, shapes: &[Shape], out: &[BasicValueEnum<'c>]) -> Res {
        for (r, (s, x)) in inst.results.iter().zip(shapes.iter().zip(out)) {
            let v = self.unpack(*x, s);
            self.set(*r, v)?;
        }
        Ok(())
    }

    /// A loop of `trip` iterations, tested at its end.
    pub fn counted(
        &mut self,
        trip: IntValue<'c>,
        init: Vec<BasicValueEnum<'c>>,
        body: impl FnOnce(&mut Self, IntValue<'c>, Vec<BasicValueEnum<'c>>) -> Res<Vec<BasicValueEnum<'c>>>,
    ) -> Res<Vec<BasicValueEnum<'c>>> {
        let positive = self.positive(trip)?;
        let looping = |s: &mut Self| {
            let from = s.block_here()?;
            let head = s.cx.append_basic_block(s.f, "loop");
            let exit = s.cx.append_basic_block(s.f, "exit");
            s.b.build_unconditional_branch(head)?;
            s.b.position_at_end(head);
            let iv = s.b.build_phi(s.i32(), "iv")?;
            let phis: Vec<PhiValue> = init.iter().map(|i| s.b.build_phi(i.get_type(), "")).collect::<Result<_, _>>()?;
            s.no_unroll()?;
            let i = iv.as_basic_value().into_int_value();
            let next = body(s, i, phis.iter().map(|p| p.as_basic_value()).collect())?;
            let last = s.block_here()?;
            let i = s.b.build_int_add(i, s.ci(1), "")?;
            iv.add_incoming(&[(&s.ci(0), from), (&i, last)]);
            for (p, (a, b)) in phis.iter().zip(init.iter().zip(&next)) {
                p.add_incoming(&[(a, from), (b, last)]);
            }
            let more = s.b.build_int_compare(IntPredicate::SLT, i, trip, "")?;
            s.b.build_conditional_branch(more, head, exit)?;
            s.b.position_at_end(exit);
            Ok(next)
        };
        match positive {
            None => looping(self),
            Some(p) => self.guarded(p, &init, looping),
        }
    }

    /// One of two blocks; their values merge.
    pub fn branch(
        &mut self,
        cond: IntValue<'c>,
        then: impl FnOnce(&mut Self) -> Res<Vec<BasicValueEnum<'c>>>,
        els: impl FnOnce(&mut Self) -> Res<Vec<BasicValueEnum<'c>>>,
    ) -> Res<Vec<BasicValueEnum<'c>>> {
        let [a, b, after] = ["then", "else", "after"].map(|n| self.cx.append_basic_block(self.f, n));
        self.b.build_conditional_branch(cond, a, b)?;
        self.b.position_at_end(a);
        let xs = then(self)?;
        let a = self.block_here()?;
        self.b.build_unconditional_branch(after)?;
        self.b.position_at_end(b);
        let ys = els(self)?;
        let b = self.block_here()?;
        self.b.build_unconditional_branch(after)?;
        self.b.position_at_end(after);
        xs.iter()
            .zip(&ys)
            .map(|(x, y)| {
                let phi = self.b.build_phi(x.get_type(), "")?;
                phi.add_incoming(&[(x, a), (y, b)]);
                Ok(phi.as_basic_value())
            })
            .collect()
    }

    fn barrier(&mut self) -> Res {
        if self.is_gpu() { self.gpu_barrier() } else { Ok(()) }
    }

    fn pipeline(&mut self, inst: &'k Inst) -> Res {
        if self.is_gpu() { self.gpu_pipeline(inst) } else { self.host_pipeline(inst) }
    }

    fn mma(&mut self, inst: &Inst) -> Res {
        let Op::Mma { a_signed, b_signed, a, b, acc } = &inst.op else { return Err("not a matrix product".into()) };
        let signed = [*a_signed, *b_signed];
        let out = if self.is_gpu() { self.gpu_mma(signed, a, b, acc)? } else { self.host_mma(signed, a, b, acc)? };
        inst.results.iter().zip(out).try_for_each(|(&r, v)| self.set(r, v))
    }

    fn load(&mut self, inst: &Inst) -> Res {
        let Op::Load { mem, elem, idx, pred } = inst.op else { return Err("not a load".into()) };
        let ((idx, plus), pred) = (self.index(mem, idx)?, self.predicate(pred)?);
        let n = inst.results.len();
        let vs = if let Some(Val::Mask(0, _)) = pred {
            let zero = match elem.ty() {
                Ty::F32 => self.f32().const_zero().into(),
                _ => self.ci(0).into(),
            };
            vec![Val::One(zero); n]
        } else if self.is_gpu() {
            self.gpu_load(mem, elem, (&idx, plus), pred.as_ref(), n)?
        } else {
            self.host_load(mem, elem, (&idx, plus), pred.as_ref(), n)?
        };
        inst.results.iter().zip(vs).try_for_each(|(&r, v)| self.set(r, v))
    }

    fn store(&mut self, inst: &Inst) -> Res {
        let Op::Store { mem, elem, idx, val, pred } = inst.op else { return Err("not a store".into()) };
        let ((idx, plus), val, pred) = (self.index(mem, idx)?, self.val(val)?, self.predicate(pred)?);
        match pred {
            Some(Val::Mask(0, _)) => Ok(()),
            pred if self.is_gpu() => self.gpu_store(mem, elem, (&idx, plus), &val, pred.as_ref()),
            pred => self.host_store(mem, elem, (&idx, plus), &val, pred),
        }
    }

    fn atomic_add(&mut self, inst: &Inst) -> Res {
        let Op::AtomicAdd { buf, idx, val, pred, float } = inst.op else { return Err("not an atomic addition".into()) };
        let (idx, val, pred) = (self.val(idx)?, self.val(val)?, self.predicate(pred)?);
        match pred {
            Some(Val::Mask(0, _)) => Ok(()),
            pred if self.is_gpu() => self.gpu_atomic_add(buf, (&idx, &val), pred.as_ref(), float),
            pred => self.host_atomic_add(buf, (&idx, &val), pred, float),
        }
    }

    fn copy(&mut self, inst: &Inst) -> Res {
        let Op::Copy { dst, dst_idx, src, src_idx, pred } = inst.op else { return Err("not a copy".into()) };
        let (d, s, pred) = (self.val(dst_idx)?, self.val(src_idx)?, self.predicate(pred)?);
        match pred {
            Some(Val::Mask(0, _)) => Ok(()),
            pred if self.is_gpu() => self.gpu_copy(dst, &d, src, &s, pred.as_ref()),
            pred => self.host_copy(dst, &d, src, &s, pred),
        }
    }

    /// A predicate; `None` if it is true everywhere, an empty mask if it is false everywhere.
    fn predicate(&self, pred: Option<V>) -> Res<Option<Val<'c>>> {
        let Some(p) = pred else { return Ok(None) };
        Ok(match self.val(p)? {
            Val::One(x) => match x.into_int_value().get_zero_extended_constant() {
                Some(0) => Some(Val::Mask(0, None)),
                Some(_) => None,
                None => Some(Val::One(x)),
            },
            Val::Mask(u32::MAX, None) => None,
            v => Some(v),
        })
    }
}
