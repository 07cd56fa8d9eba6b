//! Refuses kernels that LLVM would abort on: names, arities, types, scopes. Semantics (races, uniformity of barriers)
//! are the verifier's business, not this file's.

use ir::diag::{Diagnostic, Result};
use ir::kernel::*;
use std::collections::BTreeSet;

/// Checks one kernel.
pub(crate) fn kernel(k: &Kernel) -> Result<()> {
    let fail = |m: String| Err(Diagnostic::new("E0503", m).at(&k.name));
    if !is_symbol(&k.name) {
        return fail(format!("'{}' is not a kernel name ([a-z_][a-z0-9_]*)", k.name));
    }
    if !(1..=32).contains(&k.warps) {
        return fail(format!("a block has 1 to 32 warps, not {}", k.warps));
    }
    let mut names = BTreeSet::new();
    for n in k.bufs.iter().map(|b| &b.name).chain(k.shared.iter().map(|s| &s.name)) {
        if n.is_empty() || !names.insert(n) {
            return fail(format!("the name '{n}' of a buffer or shared array is empty or used twice"));
        }
    }
    if let Some(s) = k.shared.iter().find(|s| s.bytes % 16 != 0) {
        return fail(format!("shared array '{}' is not a multiple of 16 bytes", s.name));
    }
    let total: u64 = k.shared.iter().map(|s| u64::from(s.bytes)).sum();
    if total > 48 * 1024 {
        return Err(Diagnostic::new("E0504", format!("{total} bytes of shared memory, more than 49152")).at(&k.name));
    }
    let mut cx = Check { k, defined: vec![false; k.types.len()], visible: vec![false; k.types.len()] };
    cx.block(&k.body, false).or_else(fail)
}

/// Checks that the kernels can stand in one object.
pub(crate) fn set(kernels: &[&Kernel]) -> Result<()> {
    let mut names = BTreeSet::new();
    for k in kernels {
        kernel(k)?;
        if !names.insert(&k.name) {
            return Err(Diagnostic::new("E0505", format!("two kernels are named '{}'", k.name)));
        }
    }
    Ok(())
}

fn is_symbol(s: &str) -> bool {
    let mut c = s.bytes();
    c.next().is_some_and(|c| c == b'_' || c.is_ascii_lowercase())
        && c.all(|c| c == b'_' || c.is_ascii_lowercase() || c.is_ascii_digit())
}

struct Check<'a> {
    k: &'a Kernel,
    defined: Vec<bool>,
    visible: Vec<bool>,
}

type Res<T = ()> = std::result::Result<T, String>;

impl Check<'_> {
    fn ty(&self, v: V) -> Res<Ty> {
        match self.visible.get(v.idx()) {
            Some(true) => Ok(self.k.ty(v)),
            Some(false) => Err(format!("value {} is used where it is not defined", v.0)),
            None => Err(format!("value {} does not exist", v.0)),
        }
    }

    fn want(&self, v: V, ty: Ty) -> Res {
        let t = self.ty(v)?;
        if t == ty { Ok(()) } else { Err(format!("value {} is {t:?} where {ty:?} is wanted", v.0)) }
    }

    fn wants(&self, ty: Ty, vs: &[V]) -> Res {
        vs.iter().try_for_each(|&v| self.want(v, ty))
    }

    fn define(&mut self, v: V, ty: Ty) -> Res {
        if v.idx() >= self.defined.len() {
            return Err(format!("value {} does not exist", v.0));
        }
        if std::mem::replace(&mut self.defined[v.idx()], true) {
            return Err(format!("value {} is defined twice", v.0));
        }
        if self.k.ty(v) != ty {
            return Err(format!("value {} is declared {:?} but defined as {ty:?}", v.0, self.k.ty(v)));
        }
        self.visible[v.idx()] = true;
        Ok(())
    }

    /// Checks a block; what it defines is invisible afterwards. `end` checks what the block yields.
    fn scope(&mut self, b: &Block, copy: bool, end: impl FnOnce(&mut Self) -> Res) -> Res {
        let before = self.visible.clone();
        self.block(b, copy)?;
        end(self)?;
        self.visible = before;
        Ok(())
    }

    fn block(&mut self, b: &Block, copy: bool) -> Res {
        b.insts.iter().try_for_each(|i| self.inst(i, copy))
    }

    fn mem(&self, mem: Mem) -> Res {
        let ok = match mem {
            Mem::Buf(i) => (i as usize) < self.k.bufs.len(),
            Mem::Shared(i) => (i as usize) < self.k.shared.len(),
        };
        if ok { Ok(()) } else { Err(format!("{mem:?} does not exist")) }
    }

    fn carried(&mut self, carried: &[(V, V)], yields: &[V]) -> Res<Vec<Ty>> {
        if carried.len() != yields.len() {
            return Err("carried and yielded values differ in number".into());
        }
        carried.iter().map(|(_, i)| self.ty(*i)).collect()
    }

    fn inst(&mut self, inst: &Inst, copy: bool) -> Res {
        let op = &inst.op;
        if copy && !op.is_pure() && !matches!(op, Op::Copy { .. }) {
            return Err("a pipeline's copy block has something other than pure operations and copies".into());
        }
        let results: Vec<Ty> = match op {
            Op::ConstI(_) | Op::Lane | Op::Warp | Op::BlockX | Op::BlockY => vec![Ty::I32],
            Op::ConstF(_) => vec![Ty::F32],
            Op::ConstB(_) => vec![Ty::Bool],
            Op::Int(_, a, b) => {
                self.wants(Ty::I32, &[*a, *b])?;
                vec![Ty::I32]
            }
            Op::Float(_, a, b) => {
                self.wants(Ty::F32, &[*a, *b])?;
                vec![Ty::F32]
            }
            Op::Fma(a, b, c) => {
                self.wants(Ty::F32, &[*a, *b, *c])?;
                vec![Ty::F32]
            }
            Op::RoundEven(a) | Op::RoundBf16(a) | Op::Approx(_, a) => {
                self.want(*a, Ty::F32)?;
                vec![Ty::F32]
            }
            Op::ICmp(_, a, b) => {
                self.wants(Ty::I32, &[*a, *b])?;
                vec![Ty::Bool]
            }
            Op::FCmp(_, a, b) => {
                self.wants(Ty::F32, &[*a, *b])?;
                vec![Ty::Bool]
            }
            Op::Bool(_, a, b) => {
                self.wants(Ty::Bool, &[*a, *b])?;
                vec![Ty::Bool]
            }
            Op::Select(p, a, b) => {
                self.want(*p, Ty::Bool)?;
                let t = self.ty(*a)?;
                self.want(*b, t)?;
                vec![t]
            }
            Op::BitsToF(a) | Op::IToF(a) => {
                self.want(*a, Ty::I32)?;
                vec![Ty::F32]
            }
            Op::FToBits(a) | Op::FToI(a) => {
                self.want(*a, Ty::F32)?;
                vec![Ty::I32]
            }
            Op::Dp4a { a, b, acc, .. } => {
                self.wants(Ty::I32, &[*a, *b, *acc])?;
                vec![Ty::I32]
            }
            Op::Mma { .. } => {
                self.wants(Ty::I32, &op.operands())?;
                vec![Ty::I32; 4]
            }
            Op::Load { mem, elem, idx, pred } => {
                self.mem(*mem)?;
                self.want(*idx, Ty::I32)?;
                pred.map_or(Ok(()), |p| self.want(p, Ty::Bool))?;
                if !matches!(inst.results.len(), 1 | 2 | 4) {
                    return Err(format!("a load has 1, 2 or 4 results, not {}", inst.results.len()));
                }
                vec![elem.ty(); inst.results.len()]
            }
            Op::Store { mem, elem, idx, val, pred } => {
                self.mem(*mem)?;
                if let Mem::Buf(b) = mem
                    && !self.k.bufs[*b as usize].write
                {
                    return Err(format!("a store to the read-only buffer '{}'", self.k.bufs[*b as usize].name));
                }
                self.want(*idx, Ty::I32)?;
                self.want(*val, elem.ty())?;
                pred.map_or(Ok(()), |p| self.want(p, Ty::Bool))?;
                vec![]
            }
            Op::AtomicAdd { buf, idx, val, pred, float } => {
                self.mem(Mem::Buf(*buf))?;
                if !self.k.bufs[*buf as usize].write {
                    return Err(format!("an addition to the read-only buffer '{}'", self.k.bufs[*buf as usize].name));
                }
                self.want(*idx, Ty::I32)?;
                self.want(*val, if *float { Ty::F32 } else { Ty::I32 })?;
                pred.map_or(Ok(()), |p| self.want(p, Ty::Bool))?;
                vec![]
            }
            Op::ShuffleXor(a, mask) => {
                if *mask >= LANES as u32 {
                    return Err(format!("shuffle mask {mask} is not below 32"));
                }
                vec![self.ty(*a)?]
            }
            Op::ShuffleIdx(a, s) => {
                self.want(*s, Ty::I32)?;
                vec![self.ty(*a)?]
            }
            Op::Barrier => vec![],
            Op::For { trip, iv, carried, body, yields } => {
                self.want(*trip, Ty::I32)?;
                let tys = self.carried(carried, yields)?;
                let before = self.visible.clone();
                self.define(*iv, Ty::I32)?;
                carried.iter().zip(&tys).try_for_each(|((p, _), &t)| self.define(*p, t))?;
                self.scope(body, false, |s| yields.iter().zip(&tys).try_for_each(|(&y, &t)| s.want(y, t)))?;
                self.visible = before;
                tys
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                self.want(*cond, Ty::Bool)?;
                let mut tys = vec![];
                self.scope(then, false, |s| {
                    tys = then_yields.iter().map(|&y| s.ty(y)).collect::<Res<_>>()?;
                    Ok(())
                })?;
                if els_yields.len() != tys.len() {
                    return Err("the arms of an if yield different numbers of values".into());
                }
                self.scope(els, false, |s| els_yields.iter().zip(&tys).try_for_each(|(&y, &t)| s.want(y, t)))?;
                tys
            }
            Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields } => {
                if !(2..=8).contains(stages) {
                    return Err(format!("a pipeline has 2 to 8 stages, not {stages}"));
                }
                if body.has_barrier() {
                    return Err("a barrier inside a pipeline".into());
                }
                self.want(*trip, Ty::I32)?;
                let tys = self.carried(carried, yields)?;
                let before = self.visible.clone();
                for v in [copy_iv, copy_slot] {
                    self.define(*v, Ty::I32)?;
                }
                self.scope(copy, true, |_| Ok(()))?;
                self.visible.clone_from(&before);
                for v in [iv, slot] {
                    self.define(*v, Ty::I32)?;
                }
                carried.iter().zip(&tys).try_for_each(|((p, _), &t)| self.define(*p, t))?;
                self.scope(body, false, |s| yields.iter().zip(&tys).try_for_each(|(&y, &t)| s.want(y, t)))?;
                self.visible = before;
                tys
            }
            Op::Copy { dst, dst_idx, src, src_idx, pred } => {
                if !copy {
                    return Err("a copy outside a pipeline's copy block".into());
                }
                self.mem(Mem::Shared(*dst))?;
                self.mem(Mem::Buf(*src))?;
                if self.k.bufs[*src as usize].write {
                    return Err(format!("an asynchronous copy from '{}', which is written", self.k.bufs[*src as usize].name));
                }
                self.wants(Ty::I32, &[*dst_idx, *src_idx])?;
                pred.map_or(Ok(()), |p| self.want(p, Ty::Bool))?;
                vec![]
            }
        };
        if results.len() != inst.results.len() {
            return Err(format!("{} results where {} are wanted", inst.results.len(), results.len()));
        }
        inst.results.iter().zip(results).try_for_each(|(&r, t)| self.define(r, t))
    }
}
