//! PTX: what it holds, and refusal of anything that the `portable` numerics forbid.

use super::{Breaks, Counts, Finding, float_counts};
use ir::diag::{Diagnostic, Result};
use ir::kernel::Kernel;

/// Instructions of a PTX text: opcode (with all its suffixes) and line number.
pub fn instructions(ptx: &str) -> impl Iterator<Item = (usize, &str)> {
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

/// Why an instruction may not be in a `portable` kernel, and which promise it breaks.
fn forbidden(op: &str) -> Option<(&'static str, Breaks)> {
    let parts: Vec<&str> = op.split('.').collect();
    let has = |s: &str| parts.contains(&s);
    let float = ["f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32"].iter().any(|t| has(t))
        || parts.iter().any(|p| p.starts_with("e4m3") || p.starts_with("e5m2") || p.starts_with("e2m1"));
    let why = match parts[0] {
        "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rsqrt" => "an approximate function",
        _ if has("approx") => "an approximate operation",
        "call" => "a call",
        _ if has("local") => "local memory",
        _ if has("ftz") => "subnormals are flushed",
        "atom" | "red" | "redux" | "multimem" if float => return Some(("a float atomic", Breaks::Run)),
        "mma" | "wgmma" | "wmma" | "tcgen05" if float => "a float matrix operation",
        "min" | "max" if float => "a float minimum or maximum",
        "mad" if float => "a multiply-add without a rounding mode",
        "div" | "sqrt" | "rcp" if float => "a division or square root, which assemblers expand as they like",
        "add" | "sub" | "mul" | "fma" if float && !has("rn") => "a float operation without .rn",
        "add" | "sub" | "mul" | "fma" if has("f32") && parts.last() != Some(&"f32") => "mixed-precision arithmetic",
        "add" | "sub" | "mul" | "fma" if has("sat") => "a saturating float operation",
        "add" | "sub" | "mul" | "fma" if float && !has("f32") && !has("f32x2") => "arithmetic of other floats than f32",
        "cvt" if float && ["rz", "rm", "rp", "rna", "sat"].iter().any(|m| has(m)) => {
            "a conversion that does not round to nearest"
        }
        _ => return None,
    };
    Some((why, Breaks::Portable))
}

/// Everything in a PTX text whose result is not fixed by IEEE 754, and calls, functions and local memory.
pub fn ptx_findings(ptx: &str) -> Vec<Finding> {
    let found = |line, text: &str, (why, breaks)| Finding { line, text: text.into(), why, breaks };
    let mut out: Vec<Finding> = instructions(ptx).filter_map(|(line, op)| forbidden(op).map(|f| found(line, op, f))).collect();
    for (n, line) in ptx.lines().enumerate() {
        let line = line.split("//").next().unwrap_or("").trim();
        if line.starts_with(".local") || line.contains("%SPL") {
            out.push(found(n + 1, line, ("local memory", Breaks::Portable)));
        }
        if line.starts_with(".extern .func") || line.starts_with(".func") {
            out.push(found(n + 1, line, ("a function", Breaks::Portable)));
        }
    }
    out
}

/// Refuses a PTX text with any of [`ptx_findings`].
pub fn ptx_audit(ptx: &str) -> Result<()> {
    match ptx_findings(ptx).into_iter().next() {
        Some(f) => Err(Diagnostic::new("E0506", format!("PTX line {}: {}: {}", f.line, f.why, f.text))),
        None => Ok(()),
    }
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
