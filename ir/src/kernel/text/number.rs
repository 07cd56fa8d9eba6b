//! Canonical numbering of values: densely, in the order of their definitions in the text.

use crate::kernel::{Block, Kernel, Op, Ty, V};

/// Is a mention of a value its definition or a use?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Def,
    Use,
}

/// Visits every mention of a value in textual order.
fn visit(b: &mut Block, f: &mut impl FnMut(&mut V, Role)) {
    use Role::{Def, Use};
    for inst in &mut b.insts {
        inst.results.iter_mut().for_each(|v| f(v, Def));
        match &mut inst.op {
            Op::ConstI(_) | Op::ConstF(_) | Op::ConstB(_) | Op::Lane | Op::Warp | Op::BlockX | Op::BlockY | Op::Barrier => {}
            Op::Int(_, a, b)
            | Op::Float(_, a, b)
            | Op::ICmp(_, a, b)
            | Op::FCmp(_, a, b)
            | Op::Bool(_, a, b)
            | Op::ShuffleIdx(a, b) => [a, b].into_iter().for_each(|v| f(v, Use)),
            Op::Fma(a, b, c) | Op::Select(a, b, c) | Op::Dp4a { a, b, acc: c, .. } => {
                [a, b, c].into_iter().for_each(|v| f(v, Use));
            }
            Op::Mma { a, b, acc, .. } => a.iter_mut().chain(b).chain(acc).for_each(|v| f(v, Use)),
            Op::RoundEven(a)
            | Op::RoundBf16(a)
            | Op::Approx(_, a)
            | Op::BitsToF(a)
            | Op::FToBits(a)
            | Op::IToF(a)
            | Op::FToI(a)
            | Op::ShuffleXor(a, _) => f(a, Use),
            Op::Load { idx, pred, .. } => {
                f(idx, Use);
                pred.iter_mut().for_each(|v| f(v, Use));
            }
            Op::Store { idx, val, pred, .. } | Op::AtomicAdd { idx, val, pred, .. } => {
                f(idx, Use);
                f(val, Use);
                pred.iter_mut().for_each(|v| f(v, Use));
            }
            Op::Copy { dst_idx, src_idx, pred, .. } => {
                f(dst_idx, Use);
                f(src_idx, Use);
                pred.iter_mut().for_each(|v| f(v, Use));
            }
            Op::For { trip, iv, carried, body, yields } => {
                f(iv, Def);
                f(trip, Use);
                for (p, init) in carried {
                    f(p, Def);
                    f(init, Use);
                }
                visit(body, f);
                yields.iter_mut().for_each(|v| f(v, Use));
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                f(cond, Use);
                visit(then, f);
                then_yields.iter_mut().for_each(|v| f(v, Use));
                visit(els, f);
                els_yields.iter_mut().for_each(|v| f(v, Use));
            }
            Op::Pipeline { trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields, .. } => {
                f(trip, Use);
                f(copy_iv, Def);
                f(copy_slot, Def);
                visit(copy, f);
                f(iv, Def);
                f(slot, Def);
                for (p, init) in carried {
                    f(p, Def);
                    f(init, Use);
                }
                visit(body, f);
                yields.iter_mut().for_each(|v| f(v, Use));
            }
        }
    }
}

/// The kernel with its values numbered densely in the order of their definitions; values that are used but never
/// defined come after them, values that are neither are gone. Works on any kernel, valid or not.
pub fn renumber(k: &Kernel) -> Kernel {
    let mut k = k.clone();
    let mut body = std::mem::take(&mut k.body);
    // Of values that have a type; only faulty kernels have others.
    let mut known: Vec<Option<V>> = vec![None; k.types.len()];
    let mut others = std::collections::BTreeMap::new();
    let mut types = vec![];
    for role in [Role::Def, Role::Use] {
        visit(&mut body, &mut |v, r| {
            if r == role {
                let new = match known.get_mut(v.idx()) {
                    Some(new) => new,
                    None => others.entry(*v).or_insert(None),
                };
                if new.is_none() {
                    types.push(k.types.get(v.idx()).copied().unwrap_or(Ty::I32));
                    *new = Some(V(types.len() as u32 - 1));
                }
            }
        });
    }
    visit(&mut body, &mut |v, _| *v = known.get(v.idx()).or(others.get(v)).copied().flatten().unwrap_or(*v));
    k.types = types;
    k.body = body;
    k
}

/// Is every value defined at most once?
pub(crate) fn defined_once(k: &Kernel) -> bool {
    let mut known = vec![false; k.types.len()];
    let mut others = std::collections::BTreeSet::new();
    let mut first = |v: V| match known.get_mut(v.idx()) {
        Some(seen) => !std::mem::replace(seen, true),
        None => others.insert(v),
    };
    let mut once = true;
    visit(&mut k.body.clone(), &mut |v, r| once &= r == Role::Use || first(*v));
    once
}
