//! The type rules of the graph's operations: what each takes and what it gives. [`infer`] never panics, whatever the
//! attributes and operand types.

use crate::diag::{Diagnostic, Result};
use crate::graph::op::{Op, RopeParams};
use crate::graph::{Elem, Rows, Type};

/// Most experts that a route can choose from.
pub const MAX_EXPERTS: u32 = 1024;
/// Most elements of one row of a value.
pub const MAX_WIDTH: u64 = 1 << 31;
/// Most elements of a weight.
pub const MAX_WEIGHT: u64 = 1 << 40;
/// Largest head size.
pub const MAX_HEAD: u32 = 1 << 16;
/// Largest window.
pub const MAX_WINDOW: u32 = 1 << 24;
/// Sizes of affine codes.
pub const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
/// Sizes of a group whose exact sums fit the arithmetic of DESIGN section 3.
pub const GROUPS: [u32; 3] = [32, 64, 128];

fn err<T>(code: &'static str, message: String) -> Result<T> {
    Err(Diagnostic::new(code, message))
}

/// Least and largest number of operands.
pub fn arity(op: &Op) -> (usize, usize) {
    match op {
        Op::Tokens | Op::Weight | Op::Kv { .. } => (0, 0),
        Op::RmsNorm { .. } => (1, 2),
        Op::Slice { .. }
        | Op::Quantize { .. }
        | Op::MulConst { .. }
        | Op::RoundBf16
        | Op::Rope(_)
        | Op::Select
        | Op::Softcap { .. }
        | Op::Argmax => (1, 1),
        Op::Embed { .. }
        | Op::Linear { .. }
        | Op::QLinear { .. }
        | Op::Add
        | Op::Mul
        | Op::GeluMul
        | Op::Attention { .. }
        | Op::Route { .. }
        | Op::ExpertSum => (2, 2),
        Op::ExpertLinear { .. } | Op::QExpertLinear { .. } | Op::KvWrite => (3, 3),
    }
}

/// A type by itself: dimensions from 1 to a product of [`MAX_WIDTH`], at most three of them, legal formats, groups that
/// divide the last dimension.
pub fn well_formed(t: &Type) -> Result<()> {
    let mut width = 1u64;
    for &d in &t.shape {
        width = width.saturating_mul(u64::from(d));
    }
    let limit = if t.rows == Rows::Once { MAX_WEIGHT } else { MAX_WIDTH };
    if width == 0 || width > limit || t.shape.len() > 3 {
        return err("E0307", format!("{t} is no legal shape: at most 3 dimensions, none zero, none too large"));
    }
    let group = match t.elem {
        Elem::Affine { bits, group, .. } => {
            if !BITS.contains(&bits) {
                return err("E0309", format!("affine codes have 2, 3, 4, 5, 6 or 8 bits, not {bits}"));
            }
            if t.rows != Rows::Once || t.shape.len() < 2 {
                return err("E0306", format!("{t}: affine codes are matrices of weights"));
            }
            group
        }
        Elem::Q24 { group } => {
            if t.rows == Rows::Once || t.shape.is_empty() {
                return err("E0306", format!("{t}: fixed point is a form of activations"));
            }
            group
        }
        _ => return Ok(()),
    };
    if !GROUPS.contains(&group) {
        return err("E0309", format!("a group has 32, 64 or 128 elements, not {group}"));
    }
    match t.shape.last() {
        Some(n) if n % group == 0 => Ok(()),
        _ => err("E0307", format!("{t}: groups of {group} do not divide the last dimension")),
    }
}

fn width(t: &Type) -> u64 {
    t.shape.iter().map(|&d| u64::from(d)).fold(1, u64::saturating_mul)
}

fn is_plain_weight(t: &Type) -> bool {
    t.rows == Rows::Once && matches!(t.elem, Elem::F32 | Elem::Bf16 | Elem::F16)
}

/// An f32 value with rows.
fn activation(what: &str, t: &Type) -> Result<()> {
    if t.elem != Elem::F32 || t.rows == Rows::Once {
        return err("E0306", format!("{what} must be f32 with a row per token, found {t}"));
    }
    Ok(())
}

fn fixed_point(t: &Type) -> Result<u32> {
    match t.elem {
        Elem::Q24 { group } => Ok(group),
        _ => err("E0306", format!("x must be fixed point (q24gN), found {t}")),
    }
}

fn vector(what: &str, t: &Type, len: u64) -> Result<()> {
    if !is_plain_weight(t) {
        return err("E0306", format!("{what} must be a weight in f32, bf16 or f16, found {t}"));
    }
    if width(t) != len {
        return err("E0307", format!("{what} must have {len} elements, found {t}"));
    }
    Ok(())
}

fn same(a: &Type, b: &Type) -> Result<()> {
    activation("a", a)?;
    if a != b {
        return err("E0307", format!("operands must have one type, found {a} and {b}"));
    }
    Ok(())
}

fn dims<const N: usize>(what: &str, t: &Type) -> Result<[u32; N]> {
    match <[u32; N]>::try_from(t.shape.as_slice()) {
        Ok(d) => Ok(d),
        Err(_) => err("E0307", format!("{what} must have {N} dimensions, found {t}")),
    }
}

/// The dimensions of a weight matrix (or stack) that is affine or plain.
fn matrix<const N: usize>(t: &Type) -> Result<[u32; N]> {
    if !is_plain_weight(t) && !matches!(t.elem, Elem::Affine { .. }) {
        return err("E0306", format!("w must be a weight, found {t}"));
    }
    dims("w", t)
}

/// The dimensions of an affine weight whose groups are those of `x`.
fn affine<const N: usize>(t: &Type, group: u32) -> Result<[u32; N]> {
    match t.elem {
        Elem::Affine { group: g, .. } if g == group => dims("w", t),
        Elem::Affine { group: g, .. } => err("E0306", format!("x is in groups of {group}, the weight in groups of {g}")),
        _ => err("E0306", format!("w must be affine codes, found {t}")),
    }
}

fn columns(x: &Type, k: u32) -> Result<()> {
    if width(x) != u64::from(k) {
        return err("E0307", format!("x must have the {k} elements of a weight row, found {x}"));
    }
    Ok(())
}

fn route(t: &Type, rows: Rows) -> Result<u32> {
    if t.elem != Elem::Route || t.rows != rows {
        return err("E0306", format!("route must be a choice of experts for the same rows, found {t}"));
    }
    dims::<1>("route", t).map(|[k]| k)
}

/// One row for all ranks, or one for each.
fn expert_columns(x: &Type, ranks: u32, k: u32) -> Result<()> {
    if x.shape != [ranks, k] && x.shape != [k] {
        return err("E0307", format!("x must have shape [{k}] or [{ranks},{k}], found {x}"));
    }
    Ok(())
}

fn finite(what: &str, x: f64, positive: bool) -> Result<()> {
    if !x.is_finite() || (positive && x <= 0.0) {
        let want = if positive { "finite and positive" } else { "finite" };
        return err("E0309", format!("{what} must be {want}, found {x}"));
    }
    Ok(())
}

fn f32_of(rows: Rows, shape: &[u32]) -> Type {
    Type { elem: Elem::F32, rows, shape: shape.to_vec() }
}

/// Type of the value that `op` makes of operands of these (well-formed) types. `declared` is the type that the node
/// states: it decides for a weight, and nowhere else.
pub fn infer(op: &Op, x: &[&Type], declared: &Type) -> Result<Type> {
    let (lo, hi) = arity(op);
    if x.len() < lo || x.len() > hi {
        let want = if lo == hi { format!("{lo}") } else { format!("{lo} or {hi}") };
        return err("E0305", format!("{} takes {want} operands, found {}", op.name(), x.len()));
    }
    match op {
        Op::Tokens => Ok(Type { elem: Elem::I32, rows: Rows::Tokens, shape: vec![] }),
        Op::Weight => {
            if !is_plain_weight(declared) && !matches!(declared.elem, Elem::Affine { .. }) {
                return err("E0306", format!("a weight is f32, bf16, f16 or affine codes without rows, found {declared}"));
            }
            Ok(declared.clone())
        }
        Op::Kv { heads, dim, window, .. } => {
            if *heads == 0 || *dim == 0 || *dim > MAX_HEAD || *window > MAX_WINDOW {
                return err("E0309", format!("no cache has {heads} heads of {dim}, window {window}"));
            }
            Ok(Type { elem: Elem::Kv, rows: Rows::Once, shape: vec![*heads, *dim] })
        }
        Op::Embed { factor, .. } => {
            finite("factor", f64::from(*factor), false)?;
            let [_, h] = matrix::<2>(x[0])?;
            if x[1].elem != Elem::I32 || x[1].rows == Rows::Once || !x[1].shape.is_empty() {
                return err("E0306", format!("ids must be i32, one a token, found {}", x[1]));
            }
            Ok(f32_of(x[1].rows, &[h]))
        }
        Op::RmsNorm { dim, eps, .. } => {
            activation("x", x[0])?;
            finite("eps", f64::from(*eps), false)?;
            if *eps < 0.0 || *dim == 0 || !width(x[0]).is_multiple_of(u64::from(*dim)) {
                return err("E0309", format!("runs of dim={dim} (eps={eps}) do not divide {}", x[0]));
            }
            if let Some(w) = x.get(1) {
                vector("w", w, u64::from(*dim))?;
            }
            Ok(x[0].clone())
        }
        Op::Linear { .. } => {
            activation("x", x[0])?;
            let [r, k] = matrix::<2>(x[1])?;
            columns(x[0], k)?;
            Ok(f32_of(x[0].rows, &[r]))
        }
        Op::ExpertLinear { .. } => {
            activation("x", x[0])?;
            let [_, r, k] = matrix::<3>(x[1])?;
            let n = route(x[2], x[0].rows)?;
            expert_columns(x[0], n, k)?;
            Ok(f32_of(x[0].rows, &[n, r]))
        }
        Op::Quantize { group } => {
            activation("x", x[0])?;
            let t = x[0].with(Elem::Q24 { group: *group });
            well_formed(&t)?;
            Ok(t)
        }
        Op::QLinear { .. } => {
            let [r, k] = affine::<2>(x[1], fixed_point(x[0])?)?;
            columns(x[0], k)?;
            Ok(f32_of(x[0].rows, &[r]))
        }
        Op::QExpertLinear { .. } => {
            let [_, r, k] = affine::<3>(x[1], fixed_point(x[0])?)?;
            let n = route(x[2], x[0].rows)?;
            expert_columns(x[0], n, k)?;
            Ok(f32_of(x[0].rows, &[n, r]))
        }
        Op::Add | Op::GeluMul => {
            same(x[0], x[1])?;
            Ok(x[0].clone())
        }
        Op::Mul => {
            activation("a", x[0])?;
            if is_plain_weight(x[1]) {
                if width(x[1]) != 1 {
                    vector("b", x[1], width(x[0]))?;
                }
            } else {
                same(x[0], x[1])?;
            }
            Ok(x[0].clone())
        }
        Op::MulConst { c } => {
            activation("x", x[0])?;
            finite("c", f64::from(*c), false)?;
            Ok(x[0].clone())
        }
        Op::RoundBf16 => {
            activation("x", x[0])?;
            Ok(x[0].clone())
        }
        Op::Rope(p) => rope(p, x[0]),
        Op::KvWrite => {
            let [heads, dim] = cache(x[0])?;
            for (what, t) in [("k", x[1]), ("v", x[2])] {
                activation(what, t)?;
                if t.rows != Rows::Tokens || width(t) != u64::from(heads) * u64::from(dim) {
                    return err("E0307", format!("{what} must hold {heads} heads of {dim} for every token, found {t}"));
                }
            }
            Ok(x[0].clone())
        }
        Op::Attention { heads, .. } => {
            activation("q", x[0])?;
            let [kv, dim] = cache(x[1])?;
            if *heads == 0 || heads % kv != 0 {
                return err("E0309", format!("{heads} query heads do not share {kv} key heads evenly"));
            }
            if width(x[0]) != u64::from(*heads) * u64::from(dim) {
                return err("E0307", format!("q must hold {heads} heads of {dim}, found {}", x[0]));
            }
            Ok(x[0].clone())
        }
        Op::Route { k } => {
            activation("logits", x[0])?;
            let [e] = dims::<1>("logits", x[0])?;
            if *k == 0 || *k > e || e > MAX_EXPERTS {
                return err("E0309", format!("cannot choose k={k} of {e} experts: 1 to k to {MAX_EXPERTS}"));
            }
            vector("scale", x[1], u64::from(e))?;
            Ok(Type { elem: Elem::Route, rows: x[0].rows, shape: vec![*k] })
        }
        Op::ExpertSum => {
            activation("y", x[0])?;
            let [n, r] = dims::<2>("y", x[0])?;
            if route(x[1], x[0].rows)? != n {
                return err("E0307", format!("y must have a row per chosen expert, found {} and {}", x[0], x[1]));
            }
            Ok(f32_of(x[0].rows, &[r]))
        }
        Op::Select => {
            activation("x", x[0])?;
            if x[0].rows != Rows::Tokens {
                return err("E0306", format!("x must have a row per token, found {}", x[0]));
            }
            Ok(Type { rows: Rows::Outputs, ..x[0].clone() })
        }
        Op::Slice { start, len } => {
            activation("x", x[0])?;
            if *len == 0 || u64::from(*start) + u64::from(*len) > width(x[0]) {
                return err("E0309", format!("there are no {len} elements from {start} on in {}", x[0]));
            }
            Ok(f32_of(x[0].rows, &[*len]))
        }
        Op::Softcap { cap } => {
            activation("x", x[0])?;
            finite("cap", f64::from(*cap), true)?;
            Ok(x[0].clone())
        }
        Op::Argmax => {
            activation("logits", x[0])?;
            Ok(Type { elem: Elem::I32, rows: x[0].rows, shape: vec![] })
        }
    }
}

fn rope(p: &RopeParams, x: &Type) -> Result<Type> {
    activation("x", x)?;
    finite("theta", p.theta, true)?;
    finite("factor", p.factor, true)?;
    if p.dim == 0 || p.dim > MAX_HEAD || !p.dim.is_multiple_of(2) || p.rotated > p.dim / 2 {
        return err("E0309", format!("a head of dim={} has no {} pairs that turn", p.dim, p.rotated));
    }
    if !width(x).is_multiple_of(u64::from(p.dim)) {
        return err("E0307", format!("heads of {} do not divide {x}", p.dim));
    }
    Ok(x.clone())
}

fn cache(t: &Type) -> Result<[u32; 2]> {
    if t.elem != Elem::Kv || t.rows != Rows::Once {
        return err("E0306", format!("kv must be a key/value cache, found {t}"));
    }
    dims("kv", t)
}
