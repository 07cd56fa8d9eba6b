//! Operand and result types per operation, in one place for verifier, printer and parser.

use crate::kernel::{Op, Ty, V};

/// Types of the results of `op`, given the types of all values; `n` is the number of results the instruction has
/// (only loads have a choice). Unknown operands count as i32.
pub(crate) fn result_types(op: &Op, types: &[Ty], n: usize) -> Vec<Ty> {
    let ty = |v: V| types.get(v.idx()).copied().unwrap_or(Ty::I32);
    match op {
        Op::ConstI(_) | Op::Lane | Op::Warp | Op::BlockX | Op::BlockY => vec![Ty::I32],
        Op::ConstF(_) | Op::Float(..) | Op::Fma(..) | Op::RoundEven(_) | Op::RoundBf16(_) | Op::Approx(..) => vec![Ty::F32],
        Op::BitsToF(_) | Op::IToF(_) => vec![Ty::F32],
        Op::ConstB(_) | Op::ICmp(..) | Op::FCmp(..) | Op::Bool(..) => vec![Ty::Bool],
        Op::Int(..) | Op::FToBits(_) | Op::FToI(_) | Op::Dp4a { .. } => vec![Ty::I32],
        Op::Mma { .. } => vec![Ty::I32; 4],
        Op::Select(_, a, _) | Op::ShuffleXor(a, _) | Op::ShuffleIdx(a, _) => vec![ty(*a)],
        Op::Load { elem, .. } => vec![elem.ty(); n],
        Op::Store { .. } | Op::AtomicAdd { .. } | Op::Barrier | Op::Copy { .. } => vec![],
        Op::For { carried, .. } | Op::Pipeline { carried, .. } => carried.iter().map(|c| ty(c.0)).collect(),
        Op::If { then_yields, .. } => then_yields.iter().map(|v| ty(*v)).collect(),
    }
}

/// Type that each operand must have, in the order of [`Op::operands`]; `None` where any will do.
pub(super) fn operand_types(op: &Op, types: &[Ty]) -> Vec<Option<Ty>> {
    use Ty::{Bool, F32, I32};
    let ty = |v: V| types.get(v.idx()).copied();
    let some = |ts: &[Ty]| ts.iter().map(|t| Some(*t)).collect();
    match op {
        Op::ConstI(_) | Op::ConstF(_) | Op::ConstB(_) | Op::Barrier => vec![],
        Op::Lane | Op::Warp | Op::BlockX | Op::BlockY => vec![],
        Op::Int(..) | Op::ICmp(..) => some(&[I32, I32]),
        Op::Float(..) | Op::FCmp(..) => some(&[F32, F32]),
        Op::Bool(..) => some(&[Bool, Bool]),
        Op::Fma(..) => some(&[F32, F32, F32]),
        Op::RoundEven(_) | Op::RoundBf16(_) | Op::Approx(..) | Op::FToBits(_) | Op::FToI(_) => some(&[F32]),
        Op::BitsToF(_) | Op::IToF(_) => some(&[I32]),
        Op::Select(_, a, _) => vec![Some(Bool), None, ty(*a)],
        Op::Dp4a { .. } => some(&[I32, I32, I32]),
        Op::Mma { .. } => some(&[I32; 10]),
        Op::ShuffleXor(..) => vec![None],
        Op::ShuffleIdx(..) => vec![None, Some(I32)],
        Op::Load { .. } => some(&[I32, Bool]),
        Op::Store { elem, .. } => some(&[I32, elem.ty(), Bool]),
        Op::AtomicAdd { float, .. } => some(&[I32, if *float { F32 } else { I32 }, Bool]),
        Op::Copy { .. } => some(&[I32, I32, Bool]),
        Op::For { carried, .. } | Op::Pipeline { carried, .. } => {
            std::iter::once(Some(I32)).chain(carried.iter().map(|c| ty(c.0))).collect()
        }
        Op::If { .. } => some(&[Bool]),
    }
}
