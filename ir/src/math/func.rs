//! The one-argument functions as a table, for tests and kernels that run over all of them.

use super::{Arith, cos, exp, gelu, log, recip, rsqrt, sin, tanh};

/// How many float operations of each kind a function is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ops {
    /// fma.
    pub fma: u32,
    /// mul.
    pub mul: u32,
    /// add and sub.
    pub add: u32,
}

/// A function of one float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Func {
    /// [`exp`].
    Exp,
    /// [`tanh`].
    Tanh,
    /// [`gelu`].
    Gelu,
    /// [`sin`].
    Sin,
    /// [`cos`].
    Cos,
    /// [`log`].
    Log,
    /// [`recip`].
    Recip,
    /// [`rsqrt`].
    Rsqrt,
}

impl Func {
    /// All of them.
    pub const ALL: [Func; 8] = [Func::Exp, Func::Tanh, Func::Gelu, Func::Sin, Func::Cos, Func::Log, Func::Recip, Func::Rsqrt];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Func::Exp => "exp",
            Func::Tanh => "tanh",
            Func::Gelu => "gelu",
            Func::Sin => "sin",
            Func::Cos => "cos",
            Func::Log => "log",
            Func::Recip => "recip",
            Func::Rsqrt => "rsqrt",
        }
    }

    /// The float operations that [`Func::apply`] issues (sin and cos: those of both).
    pub const fn ops(self) -> Ops {
        let (fma, mul, add) = match self {
            Func::Exp => (9, 2, 1),
            Func::Tanh => (20, 2, 3),
            Func::Gelu => (16, 3, 1),
            Func::Sin | Func::Cos => (11, 2, 1),
            Func::Log => (10, 2, 1),
            Func::Recip => (5, 2, 0),
            Func::Rsqrt => (6, 7, 0),
        };
        Ops { fma, mul, add }
    }

    /// The function of x.
    pub fn apply<A: Arith>(self, a: &mut A, x: A::F) -> A::F {
        match self {
            Func::Exp => exp(a, x),
            Func::Tanh => tanh(a, x),
            Func::Gelu => gelu(a, x),
            Func::Sin => sin(a, x),
            Func::Cos => cos(a, x),
            Func::Log => log(a, x),
            Func::Recip => recip(a, x),
            Func::Rsqrt => rsqrt(a, x),
        }
    }
}
