//! Counts float operations in kernels and in PTX, and refuses PTX with anything that the `portable` numerics forbid.

use crate::live;
use ir::diag::{Diagnostic, Result};
use ir::kernel::*;

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
    count(&live::prune(kernel).body, &mut consts, &mut counts);
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

/// Instructions of a PTX text: opcode (with all its suffixes) and line number.
fn instructions(ptx: &str) -> impl Iterator<Item = (usize, &str)> {
    ptx.lines().enumerate().filter_map(|(n, line)| {
        let line = line.split("//").next().unwrap_or("").trim();
        let line = match line.strip_prefix('@') {
            Some(rest) => rest.split_once(char::is_whitespace).map_or("", |r| r.1.trim()),
            None => line,
        };
        let line = line.trim_start_matches(['{', ' ', '\t']);
        let op = line.split([' ', '\t', ';']).next().unwrap_or("");
        let is_op = op.starts_with(|c: char| c.is_ascii_lowercase()) && !op.ends_with(':');
        is_op.then_some((n + 1, op))
    })
}

/// The float instructions of a PTX text.
pub fn ptx_counts(ptx: &str) -> Counts {
    let mut n = Counts::default();
    for (_, op) in instructions(ptx) {
        let parts: Vec<&str> = op.split('.').collect();
        // A packed instruction is two.
        let width = match (parts.contains(&"f32"), parts.contains(&"f32x2")) {
            (true, _) => 1,
            (_, true) => 2,
            _ => continue,
        };
        match parts[0] {
            "fma" | "mad" => n.fma += width,
            "mul" => n.mul += width,
            "add" | "sub" => n.add += width,
            _ => {}
        }
    }
    n
}

/// Why an instruction may not be in a `portable` kernel.
fn forbidden(op: &str) -> Option<&'static str> {
    let parts: Vec<&str> = op.split('.').collect();
    let has = |s: &str| parts.contains(&s);
    let float = ["f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32"].iter().any(|t| has(t))
        || parts.iter().any(|p| p.starts_with("e4m3") || p.starts_with("e5m2") || p.starts_with("e2m1"));
    match parts[0] {
        "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rsqrt" => return Some("an approximate function"),
        _ if has("approx") => return Some("an approximate operation"),
        "call" => return Some("a call"),
        _ if has("local") => return Some("local memory"),
        _ if has("ftz") => return Some("subnormals are flushed"),
        "atom" | "red" | "redux" | "multimem" if float => return Some("a float atomic"),
        "mma" | "wgmma" | "wmma" | "tcgen05" if float => return Some("a float matrix operation"),
        "min" | "max" if float => return Some("a float minimum or maximum"),
        "mad" if float => return Some("a multiply-add without a rounding mode"),
        "add" | "sub" | "mul" | "fma" | "div" | "sqrt" | "rcp" if float && !has("rn") => {
            return Some("a float operation without .rn");
        }
        "add" | "sub" | "mul" | "fma" if has("f32") && parts.last() != Some(&"f32") => {
            return Some("mixed-precision arithmetic");
        }
        "add" | "sub" | "mul" | "fma" if has("sat") => return Some("a saturating float operation"),
        _ => {}
    }
    None
}

/// Refuses a PTX text with an operation whose result is not fixed by IEEE 754, with a call, or with local memory.
pub fn ptx_audit(ptx: &str) -> Result<()> {
    for (line, op) in instructions(ptx) {
        if let Some(why) = forbidden(op) {
            return Err(Diagnostic::new("E0506", format!("PTX line {line}: {why}: {op}")));
        }
    }
    for (n, line) in ptx.lines().enumerate() {
        let line = line.split("//").next().unwrap_or("");
        if line.trim_start().starts_with(".local") || line.contains("%SPL") {
            return Err(Diagnostic::new("E0506", format!("PTX line {}: local memory: {}", n + 1, line.trim())));
        }
        if line.trim_start().starts_with(".extern .func") || line.trim_start().starts_with(".func") {
            return Err(Diagnostic::new("E0506", format!("PTX line {}: a function: {}", n + 1, line.trim())));
        }
    }
    Ok(())
}

/// Everything about one kernel and its PTX. LLVM may find an operation without effect that [`float_counts`] does not see
/// through (`(8 * int(x)) & 7`); but more operations of a kind than the kernel has mean that some were merged or split.
pub fn check(kernel: &Kernel, ptx: &str) -> Result<()> {
    ptx_audit(ptx)?;
    let (want, got) = (float_counts(kernel), ptx_counts(ptx));
    if got.fma > want.fma || got.mul > want.mul || got.add > want.add {
        return Err(Diagnostic::new("E0507", format!("the kernel has {want}, its PTX {got}"))
            .at(&kernel.name)
            .hint("a float operation was merged or split on the way; this is a bug in isobit"));
    }
    Ok(())
}
