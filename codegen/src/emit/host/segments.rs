//! Blocks of several warps on one core. The kernel is cut at its barriers into segments; each runs in a loop over the
//! warps. Control flow that contains a barrier stands outside of these loops, as scalar code of the block.
//!
//! - What depends on no warp number and on no memory that is written (*outer* values) is computed once, outside.
//! - Short integer computations are repeated in every segment that needs them.
//! - Everything else that crosses from one segment to another lives in a stack array with one entry per warp.

use super::super::value::Shape;
use super::plan::{Plan, Slot, cuts, touched};
use super::*;
use std::collections::BTreeSet;

/// Emits the segments of one function.
struct Segments<'e, 'c, 'k> {
    e: &'e mut Emitter<'c, 'k>,
    plan: Plan<'c>,
}

impl<'c, 'k> Emitter<'c, 'k> {
    /// Emits the body of a block of several warps.
    pub(super) fn segmented(&mut self, body: &'k Block) -> Res {
        let plan = Plan::new(self.k);
        Segments { e: self, plan }.block(body, &[])
    }
}

impl<'c, 'k> Segments<'_, 'c, 'k> {
    /// A block-level block; at its end, `tail` copies values into slots.
    fn block(&mut self, b: &'k Block, tail: &[(V, Slot<'c>)]) -> Res {
        let mut at = 0;
        let mut tail = tail;
        while at < b.insts.len() {
            let len = b.insts[at..].iter().take_while(|i| !cuts(i)).count();
            if len == 0 {
                self.control(&b.insts[at])?;
                at += 1;
                continue;
            }
            let last = at + len == b.insts.len();
            self.segment(&b.insts[at..at + len], if last { std::mem::take(&mut tail) } else { &[] })?;
            at += len;
        }
        if tail.is_empty() { Ok(()) } else { self.segment(&[], tail) }
    }

    /// Instructions without barriers: outer ones, then the others in a loop over the warps.
    fn segment(&mut self, insts: &'k [Inst], tail: &[(V, Slot<'c>)]) -> Res {
        let mut inner = vec![];
        for i in insts {
            let outer = !i.results.is_empty() && i.results.iter().all(|r| self.plan.outer[r.idx()]);
            if outer { self.e.inst(i)? } else { inner.push(i) }
        }
        if inner.is_empty() && tail.is_empty() {
            return Ok(());
        }
        // What is only repeated elsewhere need not be computed here, but is cheap.
        let (mut used, mut made) = (vec![], BTreeSet::new());
        inner.iter().for_each(|i| touched(i, &mut used, &mut made));
        used.extend(tail.iter().map(|t| t.0));
        let from_outside: BTreeSet<V> = used.into_iter().filter(|v| !made.contains(v) && !self.plan.outer[v.idx()]).collect();
        let warps = self.e.ci(self.e.k.warps as i32);
        let saved = self.e.host()?.warp;
        let e = &mut *self.e;
        let plan = &mut self.plan;
        e.counted(warps, vec![], |e, warp, _| {
            if let Machine::Host(h) = &mut e.machine {
                h.warp = warp;
            }
            let before = e.vals.clone();
            for v in from_outside {
                fetch(e, plan, v)?;
            }
            for i in inner {
                e.inst(i)?;
                for &r in &i.results {
                    if plan.cross[r.idx()] && plan.repeat[r.idx()].is_none() {
                        let shape = shape_of(&e.val(r)?);
                        let slot = slot(e, plan, r, shape)?;
                        let x = e.val(r)?;
                        put(e, &slot, &x)?;
                    }
                }
            }
            let xs = tail.iter().map(|(v, _)| e.val(*v)).collect::<Res<Vec<_>>>()?;
            for (x, (_, slot)) in xs.iter().zip(tail) {
                put(e, slot, x)?;
            }
            e.vals = before;
            Ok(vec![])
        })?;
        if let Machine::Host(h) = &mut self.e.machine {
            h.warp = saved;
        }
        Ok(())
    }

    /// The value of a scalar that block-level control flow depends on.
    fn scalar(&mut self, v: V) -> Res<IntValue<'c>> {
        if self.plan.outer[v.idx()] {
            return self.e.uniform_int(v);
        }
        // It is the same in all warps: take the first one's.
        let before = self.e.vals.clone();
        fetch(self.e, &mut self.plan, v)?;
        let x = self.e.uniform_int(v)?;
        self.e.vals = before;
        Ok(x)
    }

    /// Carried values: (outer ones: index), (others: index, slot), their initial values stored.
    fn enter(&mut self, carried: &[(V, V)], yields: &[V]) -> Res<Carried<'c>> {
        let mut c = Carried { phis: vec![], shapes: vec![], slots: vec![] };
        let mut start = vec![];
        for (n, ((p, init), y)) in carried.iter().zip(yields).enumerate() {
            if self.plan.outer[p.idx()] {
                c.shapes.push(self.e.shape(*p, Some((&self.e.val(*init)?, *y))));
                c.phis.push(n);
            } else {
                let shape = self.e.shape(*p, None);
                let s = slot(self.e, &mut self.plan, *p, shape)?;
                start.push((*init, s.clone()));
                c.slots.push((n, s));
            }
        }
        if !start.is_empty() {
            self.segment(&[], &start)?;
        }
        Ok(c)
    }

    fn control(&mut self, i: &'k Inst) -> Res {
        match &i.op {
            Op::For { trip, iv, carried, body, yields } => self.looped(i, *trip, carried, yields, |s, n, tail| {
                s.e.set(*iv, Val::One(n.into()))?;
                s.block(body, tail)
            }),
            Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields } => {
                self.looped(i, *trip, carried, yields, |s, n, tail| {
                    let at = s.e.slot_of(n, *stages)?;
                    for (v, x) in [(copy_iv, n), (copy_slot, at), (iv, n), (slot, at)] {
                        s.e.set(*v, Val::One(x.into()))?;
                    }
                    s.block(copy, &[])?;
                    s.block(body, tail)
                })
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                let cond = self.scalar(*cond)?;
                let mut tails = [vec![], vec![]];
                let mut outer = vec![];
                for (n, &r) in i.results.iter().enumerate() {
                    let shape = self.e.shape(r, None);
                    if self.plan.outer[r.idx()] {
                        outer.push((n, shape));
                    } else {
                        let s = slot(self.e, &mut self.plan, r, shape)?;
                        tails[0].push((then_yields[n], s.clone()));
                        tails[1].push((els_yields[n], s));
                    }
                }
                let packs = |e: &Emitter<'c, 'k>, ys: &[V]| {
                    outer.iter().map(|(n, s)| e.pack(&e.val(ys[*n])?, s)).collect::<Res<Vec<_>>>()
                };
                let [a, b, after] = ["then", "else", "after"].map(|n| self.e.cx.append_basic_block(self.e.f, n));
                self.e.b.build_conditional_branch(cond, a, b)?;
                let mut arms = vec![];
                for (at, (body, (ys, tail))) in [(a, (then, (then_yields, &tails[0]))), (b, (els, (els_yields, &tails[1])))] {
                    self.e.b.position_at_end(at);
                    self.block(body, tail)?;
                    let xs = packs(self.e, ys)?;
                    arms.push((xs, self.e.block_here()?));
                    self.e.b.build_unconditional_branch(after)?;
                }
                self.e.b.position_at_end(after);
                for (m, (n, shape)) in outer.iter().enumerate() {
                    let phi = self.e.b.build_phi(arms[0].0[m].get_type(), "")?;
                    phi.add_incoming(&[(&arms[0].0[m], arms[0].1), (&arms[1].0[m], arms[1].1)]);
                    let v = self.e.unpack(phi.as_basic_value(), shape);
                    self.e.set(i.results[*n], v)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A block-level loop.
    fn looped(
        &mut self,
        i: &'k Inst,
        trip: V,
        carried: &'k [(V, V)],
        yields: &'k [V],
        body: impl FnOnce(&mut Segments<'_, 'c, 'k>, IntValue<'c>, &[(V, Slot<'c>)]) -> Res,
    ) -> Res {
        let trip = self.scalar(trip)?;
        let c = self.enter(carried, yields)?;
        let init =
            c.phis.iter().zip(&c.shapes).map(|(&n, s)| self.e.pack(&self.e.val(carried[n].1)?, s)).collect::<Res<Vec<_>>>()?;
        let tail: Vec<(V, Slot<'c>)> = c.slots.iter().map(|(n, s)| (yields[*n], s.clone())).collect();
        // `Emitter::counted` lends the emitter to a closure; the plan goes along through a cell.
        let plan = std::mem::replace(&mut self.plan, Plan::empty());
        let mut back = None;
        let out = self.e.counted(trip, init, |e, n, now| {
            let mut s = Segments { e, plan };
            for ((&m, shape), x) in c.phis.iter().zip(&c.shapes).zip(now) {
                let v = s.e.unpack(x, shape);
                s.e.set(carried[m].0, v)?;
            }
            body(&mut s, n, &tail)?;
            let next = c.phis.iter().zip(&c.shapes).map(|(&m, sh)| s.e.pack(&s.e.val(yields[m])?, sh)).collect();
            back = Some(s.plan);
            next
        })?;
        self.plan = back.ok_or("a loop without a body")?;
        for ((&m, shape), x) in c.phis.iter().zip(&c.shapes).zip(out) {
            let v = self.e.unpack(x, shape);
            self.e.set(i.results[m], v)?;
        }
        // The results of the others are where their carried values are.
        for (m, s) in c.slots {
            self.plan.slots[i.results[m].idx()] = Some(s);
        }
        Ok(())
    }
}

/// How the carried values of a block-level loop are kept.
struct Carried<'c> {
    phis: Vec<usize>,
    shapes: Vec<Shape>,
    slots: Vec<(usize, Slot<'c>)>,
}

fn shape_of(v: &Val) -> Shape {
    match v {
        Val::One(_) => Shape::One,
        Val::Offsets(_, o) => Shape::Offsets(o.clone()),
        _ => Shape::Many,
    }
}

/// The slot of a value, made if there is none.
fn slot<'c>(e: &Emitter<'c, '_>, plan: &mut Plan<'c>, v: V, shape: Shape) -> Res<Slot<'c>> {
    if let Some(s) = &plan.slots[v.idx()] {
        return Ok(s.clone());
    }
    let size = 4 * if shape == Shape::Many { LANES as u32 } else { 1 };
    let at = e.alloca(e.i8().array_type(size * e.k.warps).into(), 64)?;
    let s = Slot { shape, at };
    plan.slots[v.idx()] = Some(s.clone());
    Ok(s)
}

/// Address and stored type of this warp's entry.
fn entry<'c>(e: &Emitter<'c, '_>, s: &Slot<'c>) -> Res<(PointerValue<'c>, u32)> {
    let size = if s.shape == Shape::Many { 4 * LANES as u32 } else { 4 };
    let warp = e.host()?.warp;
    Ok((e.element(s.at, warp, size)?, size.min(64)))
}

/// Stores this warp's value. Truth values are stored as 32-bit integers.
fn put<'c>(e: &Emitter<'c, '_>, s: &Slot<'c>, v: &Val<'c>) -> Res {
    let x = e.pack(v, &s.shape)?;
    let x = match x {
        BasicValueEnum::IntValue(i) if i.get_type() == e.i1() => e.b.build_int_z_extend(i, e.i32(), "")?.into(),
        BasicValueEnum::VectorValue(v) if v.get_type().get_element_type() == e.i1().into() => {
            e.b.build_int_z_extend(v, e.i32().vec_type(LANES as u32), "")?.into()
        }
        x => x,
    };
    let (p, align) = entry(e, s)?;
    e.store_at(p, x, align)
}

/// Makes a value of another segment available: computes it again, or reads its slot.
fn fetch<'c>(e: &mut Emitter<'c, '_>, plan: &mut Plan<'c>, v: V) -> Res {
    if plan.outer[v.idx()] || e.vals[v.idx()].is_some() {
        return Ok(());
    }
    if plan.repeat[v.idx()].is_some()
        && let Some(i) = e.defs[v.idx()]
    {
        for o in i.op.operands() {
            fetch(e, plan, o)?;
        }
        return e.inst(i);
    }
    let s = plan.slots[v.idx()].clone().ok_or_else(|| Fault(format!("value {} has no place", v.0)))?;
    let (p, align) = entry(e, &s)?;
    let bools = e.k.ty(v) == Ty::Bool;
    let ty = e.shape_ty(&s.shape, if bools { Ty::I32 } else { e.k.ty(v) });
    let x = e.load_at(ty, p, align, false)?;
    let x = match x {
        BasicValueEnum::IntValue(i) if bools => e.b.build_int_truncate(i, e.i1(), "")?.into(),
        BasicValueEnum::VectorValue(w) if bools => e.b.build_int_truncate(w, e.i1().vec_type(LANES as u32), "")?.into(),
        x => x,
    };
    let val = e.unpack(x, &s.shape);
    e.set(v, val)
}
