//! The textual form of kernels. Promises: `parse(print(k)) == renumber(k)`, and `print(parse(t)) == t` for printed `t`;
//! values are numbered densely in the order of their definitions in the text; parsing never panics.
//!
//! ```text
//! kernel gemv warps=4 min_blocks=0 {
//!   buf x read
//!   buf y write
//!   shared sx 1024
//!   %0 = lane
//!   %1 = iconst 5
//!   %2 = fconst 0x3fc00000 // 1.5
//!   %3 %4 = load.f32 buf.x[%0]
//!   %5 = for %6 in %1 carry %7 = %2 {
//!     %8 = fma %7 %3 %4
//!     yield %8
//!   }
//!   store.f32 buf.y[%0] = %5
//! }
//! ```
//! One instruction a line. Types follow from the operations; `%3:f32` states one that does not (in faulty kernels).

mod number;
mod parse;
mod print;

pub(crate) use number::defined_once;
pub use number::renumber;
pub use parse::{parse, parse_all, parse_head};
pub(crate) use print::line_at;
pub use print::{line, print};

use super::{BoolOp, Elem, FCmp, FloatOp, ICmp, IntOp, Ty};

/// Regions may nest this deep.
pub const MAX_DEPTH: usize = 32;

/// Codes of the parser's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0101", "text that is no token: a stray character, an unclosed string, a malformed number"),
    ("E0102", "the text does not follow the grammar; the message names what was expected and found"),
    ("E0103", "a number is outside the range of its place"),
    ("E0104", "regions are nested deeper than 32"),
    ("E0105", "a memory operand names no declared buffer or shared array"),
];

const INT: [(IntOp, &str); 13] = [
    (IntOp::Add, "iadd"),
    (IntOp::Sub, "isub"),
    (IntOp::Mul, "imul"),
    (IntOp::And, "iand"),
    (IntOp::Or, "ior"),
    (IntOp::Xor, "ixor"),
    (IntOp::Shl, "shl"),
    (IntOp::Lshr, "lshr"),
    (IntOp::Ashr, "ashr"),
    (IntOp::Max, "smax"),
    (IntOp::Min, "smin"),
    (IntOp::Div, "udiv"),
    (IntOp::Rem, "urem"),
];
const FLOAT: [(FloatOp, &str); 3] = [(FloatOp::Add, "fadd"), (FloatOp::Sub, "fsub"), (FloatOp::Mul, "fmul")];
const ICMP: [(ICmp, &str); 4] = [(ICmp::Eq, "icmp.eq"), (ICmp::Ne, "icmp.ne"), (ICmp::Lt, "icmp.lt"), (ICmp::Le, "icmp.le")];
const FCMP: [(FCmp, &str); 4] = [(FCmp::Eq, "fcmp.eq"), (FCmp::Lt, "fcmp.lt"), (FCmp::Le, "fcmp.le"), (FCmp::Nan, "fcmp.nan")];
const BOOL: [(BoolOp, &str); 3] = [(BoolOp::And, "band"), (BoolOp::Or, "bor"), (BoolOp::Xor, "bxor")];
const ELEM: [(Elem, &str); 4] = [(Elem::F32, "f32"), (Elem::I32, "i32"), (Elem::U8, "u8"), (Elem::Bf16, "bf16")];
const TYPE: [(Ty, &str); 3] = [(Ty::I32, "i32"), (Ty::F32, "f32"), (Ty::Bool, "bool")];

/// Name of `x` in its table.
fn name_of<T: PartialEq + Copy>(table: &[(T, &'static str)], x: T) -> &'static str {
    table.iter().find(|e| e.0 == x).map_or("?", |e| e.1)
}

/// The entry of that name.
fn named<T: Copy>(table: &[(T, &'static str)], name: &str) -> Option<T> {
    table.iter().find(|e| e.1 == name).map(|e| e.0)
}

/// Name of a type.
pub(crate) fn ty_name(t: Ty) -> &'static str {
    name_of(&TYPE, t)
}

/// Name of an element type.
pub(crate) fn elem_name(e: Elem) -> &'static str {
    name_of(&ELEM, e)
}
