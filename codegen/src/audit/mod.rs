//! What code may hold, and how many float operations: [`ptx`] reads PTX, [`host`] the machine code of processors as text.
//! Nothing here needs LLVM, so an artifact is audited where there is none.

pub mod host;
pub mod ptx;
pub mod skeleton;

pub use ptx::{check, ptx_audit, ptx_counts};

use crate::live;
use ir::kernel::*;

/// What a finding does away with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breaks {
    /// One set of bits on all machines.
    Portable,
    /// The same bits in every run.
    Run,
}

/// An instruction that should not be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Line of the text, from 1.
    pub line: usize,
    /// The instruction.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
    /// Which promise it breaks.
    pub breaks: Breaks,
}

/// How many float instructions there are. Subtractions count as additions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fused multiply-adds.
    pub fma: u32,
    /// Multiplications.
    pub mul: u32,
    /// Additions and subtractions.
    pub add: u32,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} fma, {} mul, {} add", self.fma, self.mul, self.add)
    }
}

/// The float instructions that a kernel must become: one for each operation that has an effect, but for those with a constant that LLVM
/// or the emitter replaces by something with the same bits (`x * 2` is `x + x`, `x * 1` is `x`, `fma(x, 1, y)` is `x + y`).
pub fn float_counts(kernel: &Kernel) -> Counts {
    let mut consts = vec![None; kernel.types.len()];
    let mut counts = Counts::default();
    count(&live::prune_to(kernel, &live::effect).body, &mut consts, &mut counts);
    counts
}

fn count(b: &Block, consts: &mut [Option<f32>], n: &mut Counts) {
    for i in &b.insts {
        match &i.op {
            Op::ConstF(bits) => consts[i.results[0].idx()] = Some(f32::from_bits(*bits)),
            Op::Float(op, x, y) => {
                let c = [consts[x.idx()], consts[y.idx()]];
                match (op, c) {
                    // Folded.
                    (_, [Some(_), Some(_)]) => {}
                    (FloatOp::Mul, c) => match c[0].or(c[1]) {
                        Some(c) if c.abs() == 1.0 => {}
                        Some(c) if c.abs() == 2.0 => n.add += 1,
                        _ => n.mul += 1,
                    },
                    // x + -0 and x - 0 are x; x + 0 is not.
                    (FloatOp::Add, c) if c.iter().flatten().any(|c| is(*c, -0.0)) => {}
                    (FloatOp::Sub, [_, Some(c)]) if is(c, 0.0) => {}
                    // -0 - x is -x.
                    (FloatOp::Sub, [Some(c), _]) if is(c, -0.0) => {}
                    _ => n.add += 1,
                }
            }
            Op::Fma(x, y, z) => match [x, y, z].map(|v| consts[v.idx()]) {
                [Some(_), Some(_), Some(_)] => {}
                [Some(c), _, z] | [_, Some(c), z] if c.abs() == 1.0 => match z {
                    Some(z) if is(z, -0.0) => {}
                    _ => n.add += 1,
                },
                _ => n.fma += 1,
            },
            Op::For { body, .. } => count(body, consts, n),
            Op::If { then, els, .. } => {
                count(then, consts, n);
                count(els, consts, n);
            }
            Op::Pipeline { copy, body, .. } => {
                // The copies are written down twice: before the loop and in it.
                count(copy, consts, n);
                count(copy, consts, n);
                count(body, consts, n);
            }
            _ => {}
        }
    }
}

fn is(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits()
}
