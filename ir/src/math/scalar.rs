//! The plain f32 executor of [`Arith`](super::Arith): what an operation means.

use super::Arith;

/// Executes each operation in Rust on one value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

impl Arith for Scalar {
    type F = f32;
    type I = i32;
    type B = bool;

    fn cf(&mut self, x: f32) -> f32 {
        x
    }
    fn ci(&mut self, x: i32) -> i32 {
        x
    }
    fn add(&mut self, a: f32, b: f32) -> f32 {
        a + b
    }
    fn sub(&mut self, a: f32, b: f32) -> f32 {
        a - b
    }
    fn mul(&mut self, a: f32, b: f32) -> f32 {
        a * b
    }
    fn fma(&mut self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    fn round_even(&mut self, a: f32) -> f32 {
        a.round_ties_even()
    }
    fn f_to_i(&mut self, a: f32) -> i32 {
        a as i32
    }
    fn i_to_f(&mut self, a: i32) -> f32 {
        a as f32
    }
    fn bits(&mut self, a: f32) -> i32 {
        a.to_bits() as i32
    }
    fn float(&mut self, a: i32) -> f32 {
        f32::from_bits(a as u32)
    }
    fn iadd(&mut self, a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    fn isub(&mut self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    fn iand(&mut self, a: i32, b: i32) -> i32 {
        a & b
    }
    fn ior(&mut self, a: i32, b: i32) -> i32 {
        a | b
    }
    fn shl(&mut self, a: i32, by: u32) -> i32 {
        a << by
    }
    fn lshr(&mut self, a: i32, by: u32) -> i32 {
        ((a as u32) >> by) as i32
    }
    fn ashr(&mut self, a: i32, by: u32) -> i32 {
        a >> by
    }
    fn ilt(&mut self, a: i32, b: i32) -> bool {
        a < b
    }
    fn ieq(&mut self, a: i32, b: i32) -> bool {
        a == b
    }
    fn flt(&mut self, a: f32, b: f32) -> bool {
        a < b
    }
    fn is_nan(&mut self, a: f32) -> bool {
        a.is_nan()
    }
    fn sel(&mut self, p: bool, a: f32, b: f32) -> f32 {
        if p { a } else { b }
    }
    fn isel(&mut self, p: bool, a: i32, b: i32) -> i32 {
        if p { a } else { b }
    }
}
