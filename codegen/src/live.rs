//! Drops what has no effect, carried values of loops included: LLVM would drop some of it and keep the rest, and the
//! counts of the audit would be about different programs.

use ir::kernel::*;

/// What has an effect: stays even if no value of it is used.
pub(crate) type Roots<'a> = &'a dyn Fn(&Op) -> bool;

/// The kernel without dead operations.
#[cfg(feature = "llvm")]
pub(crate) fn prune(k: &Kernel) -> Kernel {
    prune_to(k, &effect)
}

/// Stores, copies and barriers.
pub(crate) fn effect(op: &Op) -> bool {
    matches!(op, Op::Store { .. } | Op::AtomicAdd { .. } | Op::Copy { .. } | Op::Barrier | Op::Pipeline { .. })
}

/// The kernel with these operations and what they need alone.
pub(crate) fn prune_to(k: &Kernel, roots: Roots) -> Kernel {
    let mut live = vec![false; k.types.len()];
    loop {
        let before = live.iter().filter(|l| **l).count();
        mark(&k.body, &mut live, roots);
        if live.iter().filter(|l| **l).count() == before {
            break;
        }
    }
    let mut out = k.clone();
    sweep(&mut out.body, &live, roots);
    out
}

/// Must the instruction stay?
fn needed(i: &Inst, live: &[bool], roots: Roots) -> bool {
    let inside = |b: &Block| b.insts.iter().any(|i| needed(i, live, roots));
    i.results.iter().any(|r| live[r.idx()])
        || match &i.op {
            op if roots(op) => true,
            Op::For { body, .. } => inside(body),
            Op::If { then, els, .. } => inside(then) || inside(els),
            _ => false,
        }
}

/// One round: marks what live instructions read, from the last to the first.
fn mark(b: &Block, live: &mut [bool], roots: Roots) {
    for i in b.insts.iter().rev() {
        if !needed(i, live, roots) {
            continue;
        }
        match &i.op {
            Op::For { trip, carried, body, yields, .. } => {
                live[trip.idx()] = true;
                carry(i, carried, yields, live);
                mark(body, live, roots);
                carry(i, carried, yields, live);
            }
            Op::Pipeline { trip, copy, carried, body, yields, .. } => {
                live[trip.idx()] = true;
                carry(i, carried, yields, live);
                mark(body, live, roots);
                mark(copy, live, roots);
                carry(i, carried, yields, live);
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                live[cond.idx()] = true;
                for (r, (a, b)) in i.results.iter().zip(then_yields.iter().zip(els_yields)) {
                    if live[r.idx()] {
                        live[a.idx()] = true;
                        live[b.idx()] = true;
                    }
                }
                mark(then, live, roots);
                mark(els, live, roots);
            }
            op => op.operands().iter().for_each(|v| live[v.idx()] = true),
        }
    }
}

fn carry(i: &Inst, carried: &[(V, V)], yields: &[V], live: &mut [bool]) {
    for (r, ((p, init), y)) in i.results.iter().zip(carried.iter().zip(yields)) {
        if live[r.idx()] || live[p.idx()] {
            // One stands for all: they are one variable.
            for v in [r, p, init, y] {
                live[v.idx()] = true;
            }
        }
    }
}

fn sweep(b: &mut Block, live: &[bool], roots: Roots) {
    b.insts.retain(|i| needed(i, live, roots));
    for i in &mut b.insts {
        let keep: Vec<bool> = i.results.iter().map(|r| live[r.idx()]).collect();
        fn only<T>(v: &mut Vec<T>, keep: &[bool]) {
            let mut k = keep.iter();
            v.retain(|_| *k.next().unwrap_or(&true));
        }
        match &mut i.op {
            Op::For { carried, body, yields, .. } => {
                only(carried, &keep);
                only(yields, &keep);
                only(&mut i.results, &keep);
                sweep(body, live, roots);
            }
            Op::Pipeline { copy, carried, body, yields, .. } => {
                only(carried, &keep);
                only(yields, &keep);
                only(&mut i.results, &keep);
                sweep(copy, live, roots);
                sweep(body, live, roots);
            }
            Op::If { then, els, then_yields, els_yields, .. } => {
                only(then_yields, &keep);
                only(els_yields, &keep);
                only(&mut i.results, &keep);
                sweep(then, live, roots);
                sweep(els, live, roots);
            }
            _ => {}
        }
    }
}
