//! Arithmetic that both an f32 executor and the kernel builder implement, so that every elementary
//! function is written once (DESIGN section 3: only exactly specified operations).

mod exp;
mod func;
mod gelu;
mod half;
mod log;
pub mod quant;
mod recip;
mod rsqrt;
mod scalar;
mod tanh;
mod trig;
mod util;

pub use exp::{EXP_ULP, exp};
pub use func::{Func, Ops};
pub use gelu::{GELU_ABS, GELU_REL, GELU_TAIL, gelu};
pub use half::{f16_high, f16_low};
pub use log::{LOG_ULP, log};
pub use recip::{RECIP_ULP, recip};
pub use rsqrt::{RSQRT_ULP, rsqrt};
pub use scalar::Scalar;
pub use tanh::{TANH_ULP, tanh};
pub use trig::{COS_ULP, SIN_ULP, SINCOS_LIMIT, SINCOS_POS_ABS, SINCOS_POS_LIMIT, cos, sin, sincos, sincos_pos};

/// Exactly specified operations over one lane: IEEE-754 binary32 to nearest even with subnormals kept,
/// and wrapping 32-bit integers. Implemented by [`Scalar`] (plain Rust) and by the kernel builder.
pub trait Arith {
    /// A binary32 value.
    type F: Copy;
    /// A 32-bit integer.
    type I: Copy;
    /// A truth value.
    type B: Copy;

    /// Float constant.
    fn cf(&mut self, x: f32) -> Self::F;
    /// Integer constant.
    fn ci(&mut self, x: i32) -> Self::I;
    /// `a + b`, rounded once.
    fn add(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`, rounded once.
    fn sub(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`, rounded once.
    fn mul(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(&mut self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Nearest integer, ties to even, as a float.
    fn round_even(&mut self, a: Self::F) -> Self::F;
    /// Float that holds an integer in the i32 range -> that integer. Anything else is an error.
    fn f_to_i(&mut self, a: Self::F) -> Self::I;
    /// Signed integer to the nearest float.
    fn i_to_f(&mut self, a: Self::I) -> Self::F;
    /// The bits of a float.
    fn bits(&mut self, a: Self::F) -> Self::I;
    /// The float with these bits.
    fn float(&mut self, a: Self::I) -> Self::F;
    /// Wrapping add.
    fn iadd(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping subtract.
    fn isub(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn iand(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn ior(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Shift left by a constant below 32.
    fn shl(&mut self, a: Self::I, by: u32) -> Self::I;
    /// Logical shift right by a constant below 32.
    fn lshr(&mut self, a: Self::I, by: u32) -> Self::I;
    /// Arithmetic shift right by a constant below 32.
    fn ashr(&mut self, a: Self::I, by: u32) -> Self::I;
    /// Signed `a < b`.
    fn ilt(&mut self, a: Self::I, b: Self::I) -> Self::B;
    /// `a == b`.
    fn ieq(&mut self, a: Self::I, b: Self::I) -> Self::B;
    /// Ordered `a < b` (false on NaN).
    fn flt(&mut self, a: Self::F, b: Self::F) -> Self::B;
    /// `a` is NaN.
    fn is_nan(&mut self, a: Self::F) -> Self::B;
    /// `p ? a : b` on floats.
    fn sel(&mut self, p: Self::B, a: Self::F, b: Self::F) -> Self::F;
    /// `p ? a : b` on integers.
    fn isel(&mut self, p: Self::B, a: Self::I, b: Self::I) -> Self::I;
}
