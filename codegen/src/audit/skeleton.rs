//! Kernels reduced to what decides where they touch memory: the same control flow and addresses, without the arithmetic on
//! values. Interpreted with shadow memory, a skeleton finds two writers of one location, and touches of shared memory that no
//! barrier parts, over a whole grid and in the time of its stores alone.

use crate::live;
use ir::kernel::*;
use std::collections::BTreeSet;

/// Which memory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Stores to buffers.
    Buffers,
    /// Reads and writes of shared memory, asynchronous copies included.
    Shared,
}

/// What is left of a kernel.
#[derive(Clone, Debug)]
pub struct Skeleton {
    /// Values that are stored are zeros.
    pub kernel: Kernel,
    /// Parameters whose contents decide addresses or control flow.
    pub reads: BTreeSet<u32>,
    /// So does what stands in shared memory, and there are zeros.
    pub shared: bool,
}

/// Reduces a kernel. With a block, the skeleton is that of this block alone, wherever it runs.
pub fn skeleton(k: &Kernel, part: Part, block: Option<[u32; 2]>) -> Skeleton {
    let mut k = k.clone();
    let zero = |k: &mut Kernel, ty, op| {
        let v = V(k.types.len() as u32);
        k.types.push(ty);
        k.body.insts.insert(0, Inst { op, results: vec![v] });
        v
    };
    let zeros = [zero(&mut k, Ty::F32, Op::ConstF(0)), zero(&mut k, Ty::I32, Op::ConstI(0))];
    let mut body = std::mem::take(&mut k.body);
    rewrite(&mut body, &mut k.types, part, block, zeros);
    k.body = body;
    let kernel = live::prune_to(&k, &|op| match (op, part) {
        (Op::Store { mem, .. }, Part::Buffers) => matches!(mem, Mem::Buf(_)),
        (Op::Store { mem, .. } | Op::Load { mem, .. }, Part::Shared) => matches!(mem, Mem::Shared(_)),
        (Op::Barrier, _) | (Op::Copy { .. } | Op::Pipeline { .. }, Part::Shared) => true,
        _ => false,
    });
    let (mut reads, mut loaded, mut used) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    look(&kernel.body, &mut reads, &mut loaded, &mut used);
    Skeleton { shared: loaded.intersection(&used).next().is_some(), kernel, reads }
}

fn rewrite(b: &mut Block, types: &mut Vec<Ty>, part: Part, block: Option<[u32; 2]>, zeros: [V; 2]) {
    let mut out = vec![];
    for mut i in std::mem::take(&mut b.insts) {
        match &mut i.op {
            Op::Store { elem, val, .. } => *val = zeros[usize::from(elem.ty() != Ty::F32)],
            Op::BlockX => i.op = block.map_or(Op::BlockX, |b| Op::ConstI(b[0] as i32)),
            Op::BlockY => i.op = block.map_or(Op::BlockY, |b| Op::ConstI(b[1] as i32)),
            Op::For { body, .. } => rewrite(body, types, part, block, zeros),
            Op::If { then, els, .. } => {
                rewrite(then, types, part, block, zeros);
                rewrite(els, types, part, block, zeros);
            }
            Op::Pipeline { copy, body, .. } if part == Part::Shared => {
                rewrite(copy, types, part, block, zeros);
                rewrite(body, types, part, block, zeros);
            }
            // Without its copies it is a loop.
            Op::Pipeline { stages, trip, iv, slot, carried, body, yields, .. } => {
                rewrite(body, types, part, block, zeros);
                let mut inner = std::mem::take(body);
                let n = V(types.len() as u32);
                types.push(Ty::I32);
                out.push(Inst { op: Op::ConstI(*stages as i32), results: vec![n] });
                inner.insts.insert(0, Inst { op: Op::Int(IntOp::Rem, *iv, n), results: vec![*slot] });
                let (carried, yields) = (std::mem::take(carried), std::mem::take(yields));
                i.op = Op::For { trip: *trip, iv: *iv, carried, body: inner, yields };
            }
            _ => {}
        }
        out.push(i);
    }
    b.insts = out;
}

/// Parameters that are read for their contents, values read from shared memory, and values that are used.
fn look(b: &Block, reads: &mut BTreeSet<u32>, loaded: &mut BTreeSet<V>, used: &mut BTreeSet<V>) {
    for i in &b.insts {
        used.extend(i.op.operands());
        match &i.op {
            Op::Load { mem: Mem::Buf(n), .. } => _ = reads.insert(*n),
            Op::Load { .. } => loaded.extend(i.results.iter().copied()),
            Op::For { body, yields, .. } => {
                used.extend(yields.iter().copied());
                look(body, reads, loaded, used);
            }
            Op::If { then, els, then_yields, els_yields, .. } => {
                used.extend(then_yields.iter().chain(els_yields).copied());
                look(then, reads, loaded, used);
                look(els, reads, loaded, used);
            }
            Op::Pipeline { copy, body, yields, .. } => {
                used.extend(yields.iter().copied());
                look(copy, reads, loaded, used);
                look(body, reads, loaded, used);
            }
            _ => {}
        }
    }
}
