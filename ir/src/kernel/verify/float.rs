//! Float operations that LLVM rewrites even without fast-math flags. The bits would stay the same, but the counts of
//! float operations in kernel, PTX and machine code would no longer agree, and the audit rests on them.

use crate::kernel::{FloatOp, Op, V};

const ONE: u32 = 0x3f80_0000;
const TWO: u32 = 0x4000_0000;
const SIGN: u32 = 0x8000_0000;

/// What is wrong with `op` and what to write instead; `bits` gives the bits of a float constant.
pub(super) fn rewritten(op: &Op, bits: impl Fn(V) -> Option<u32>) -> Option<(String, &'static str)> {
    let bad = |what: &str, fix| Some((format!("{what}, which LLVM rewrites"), fix));
    match op {
        Op::Float(_, a, b) if bits(*a).is_some() && bits(*b).is_some() => {
            bad("float operation on constants only", "compute the constant where the kernel is built")
        }
        Op::Float(FloatOp::Mul, a, b) => match bits(*a).or(bits(*b))? {
            TWO => bad("multiplication by 2.0", "write `fadd %x %x`"),
            ONE => bad("multiplication by 1.0", "leave it out"),
            x if x == ONE | SIGN => bad("multiplication by -1.0", "flip the sign bit: bitcast.i32, ixor, bitcast.f32"),
            x if x & !SIGN == 0 => bad("multiplication by zero", "write the constant, or a select"),
            _ => None,
        },
        Op::Float(FloatOp::Add, a, b) if bits(*a).or(bits(*b))? == SIGN => bad("addition of -0.0", "leave it out"),
        Op::Float(FloatOp::Sub, _, b) if bits(*b) == Some(0) => bad("subtraction of 0.0", "leave it out"),
        Op::Float(FloatOp::Sub, a, _) if bits(*a) == Some(SIGN) => {
            bad("subtraction from -0.0", "flip the sign bit: bitcast.i32, ixor, bitcast.f32")
        }
        Op::Fma(a, b, _) if bits(*a).is_some() && bits(*b).is_some() => {
            bad("fma with two constant factors", "write `fadd` of their product")
        }
        Op::Fma(_, _, c) if bits(*c) == Some(SIGN) => bad("fma with the addend -0.0", "write `fmul`"),
        Op::Fma(a, b, _) => match bits(*a).or(bits(*b))? {
            ONE => bad("fma with the factor 1.0", "write `fadd`"),
            x if x == ONE | SIGN => bad("fma with the factor -1.0", "write `fsub`"),
            x if x & !SIGN == 0 => bad("fma with a zero factor", "leave the product out, or write a select"),
            _ => None,
        },
        Op::RoundEven(a) | Op::RoundBf16(a) if bits(*a).is_some() => {
            bad("rounding of a constant", "compute the constant where the kernel is built")
        }
        _ => None,
    }
}
