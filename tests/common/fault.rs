//! Faults to plant in kernels, so that a comparison can be seen to fail.
#![allow(clippy::ptr_arg)] // all faults are of one type

use ir::kernel::{Block, FCmp, FloatOp, Inst, Kernel, Mem, Op, Ty, V};

/// A small change of some list of instructions; false if there is nothing to change in it.
pub type Fault = fn(&mut Vec<Inst>, &mut Vec<Ty>) -> bool;

/// Plants a fault in the first place that has room for it, if there is any.
pub fn plant(k: &mut Kernel, fault: Fault) -> bool {
    let mut types = std::mem::take(&mut k.types);
    let done = edit(&mut k.body, &mut |insts| fault(insts, &mut types));
    k.types = types;
    ir::kernel::verify::verify(k).unwrap_or_else(|e| panic!("{}: {e:?}", k.name));
    done
}

/// Calls `f` on every list of instructions, outer ones first, until it says that it is done.
fn edit(b: &mut Block, f: &mut dyn FnMut(&mut Vec<Inst>) -> bool) -> bool {
    f(&mut b.insts)
        || b.insts.iter_mut().any(|i| match &mut i.op {
            Op::For { body, .. } | Op::Pipeline { body, .. } => edit(body, f),
            Op::If { then, els, .. } => edit(then, f) || edit(els, f),
            _ => false,
        })
}

/// The constant 1/256 (of a mean) one ulp off.
pub fn constant(insts: &mut Vec<Inst>, _: &mut Vec<Ty>) -> bool {
    let mut found = insts.iter_mut().filter_map(|i| match &mut i.op {
        Op::ConstF(bits) if *bits == (1.0f32 / 256.0).to_bits() => Some(bits),
        _ => None,
    });
    found.next().map(|bits| *bits += 1).is_some()
}

/// A butterfly of float sums whose masks ascend instead of descending: the same lanes, another tree.
pub fn tree(insts: &mut Vec<Inst>, _: &mut Vec<Ty>) -> bool {
    let added = |v: V| insts.iter().any(|i| matches!(i.op, Op::Float(FloatOp::Add, a, b) if a == v || b == v));
    let found: Vec<bool> = insts.iter().map(|i| matches!(i.op, Op::ShuffleXor(..)) && added(i.results[0])).collect();
    let masks = insts.iter_mut().zip(found).filter(|(_, f)| *f).filter_map(|(i, _)| match &mut i.op {
        Op::ShuffleXor(_, m) => Some(m),
        _ => None,
    });
    let mut next = 1;
    masks.take(5).for_each(|m| (*m, next) = (next, next * 2));
    next == 32
}

/// A product rounded before it is added: the first one that can be.
pub fn contraction(insts: &mut Vec<Inst>, types: &mut Vec<Ty>) -> bool {
    let at = insts.iter().position(|i| matches!(i.op, Op::Fma(..)));
    at.is_some_and(|at| split(insts, types, at))
}

/// The same with the last one.
pub fn last_contraction(insts: &mut Vec<Inst>, types: &mut Vec<Ty>) -> bool {
    let at = insts.iter().rposition(|i| matches!(i.op, Op::Fma(..)));
    at.is_some_and(|at| split(insts, types, at))
}

/// The same with all of one list.
pub fn contractions(insts: &mut Vec<Inst>, types: &mut Vec<Ty>) -> bool {
    let all: Vec<usize> = (0..insts.len()).filter(|&i| matches!(insts[i].op, Op::Fma(..))).collect();
    // The last one first, so that places stay.
    all.iter().rev().for_each(|&at| _ = split(insts, types, at));
    !all.is_empty()
}

fn split(insts: &mut Vec<Inst>, types: &mut Vec<Ty>, at: usize) -> bool {
    let Op::Fma(a, b, c) = insts[at].op else { return false };
    types.push(Ty::F32);
    let product = V(types.len() as u32 - 1);
    insts[at].op = Op::Float(FloatOp::Add, product, c);
    insts.insert(at, Inst { op: Op::Float(FloatOp::Mul, a, b), results: vec![product] });
    true
}

/// Tests for what is not finite, `x - x` against NaN, that only see NaN.
pub fn infinities(insts: &mut Vec<Inst>, _: &mut Vec<Ty>) -> bool {
    let less_itself = |v: V| {
        insts.iter().find_map(|i| match i.op {
            Op::Float(FloatOp::Sub, a, b) if a == b && i.results[0] == v => Some(a),
            _ => None,
        })
    };
    let tests: Vec<(usize, V)> = (insts.iter().enumerate())
        .filter_map(|(at, i)| match i.op {
            Op::FCmp(FCmp::Nan, a, _) => less_itself(a).map(|x| (at, x)),
            _ => None,
        })
        .collect();
    tests.iter().for_each(|&(at, x)| insts[at].op = Op::FCmp(FCmp::Nan, x, x));
    !tests.is_empty()
}

/// A store left out.
pub fn store(insts: &mut Vec<Inst>, _: &mut Vec<Ty>) -> bool {
    let at = insts.iter().position(|i| matches!(i.op, Op::Store { mem: Mem::Buf(_), .. }));
    at.map(|at| insts.remove(at)).is_some()
}
