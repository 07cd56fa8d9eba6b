//! Machine code of processors as text, as LLVM prints it (AT&T on x86-64): which float instructions stand there, how many
//! results they round, and whether each is one of those that kernels are made of. What is not known is refused.

use super::{Breaks, Counts, Finding};

/// What a kernel's machine code holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Instructions.
    pub instructions: usize,
    /// Results of float operations, not instructions: a vector of eight counts as eight.
    pub results: Counts,
    /// What should not be there.
    pub findings: Vec<Finding>,
}

/// Float instructions of x86-64 without their `v` and operands' type, that round nothing or are exactly specified.
const X86: &str = "mova movu mov movsh movsl movd movl movh movhl movlh movnt movmsk broadcast insert extract shuf perm permil permt2 permi2 \
    unpckl unpckh blend blendv blendm and andn or xor cmp ucomi comi maskmov gather compress expand align test max min";

/// Float instructions of aarch64 that round nothing or are exactly specified.
const ARM: &str = "fmov fneg fabs fcmp fcmpe fccmp fcmeq fcmgt fcmge fcmlt fcmle fcsel frintn fcvtzs scvtf ucvtf";

/// Reads the text of one kernel's code; `arm` says of which processor. Lines are counted from 1.
pub fn scan<'a>(lines: impl IntoIterator<Item = &'a str>, arm: bool) -> Scan {
    let mut out = Scan::default();
    for (n, line) in lines.into_iter().enumerate() {
        let code = line.split(if arm { "//" } else { "#" }).next().unwrap_or("").trim();
        let (op, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        if op.is_empty() || op.starts_with('.') || op.ends_with(':') {
            continue;
        }
        out.instructions += 1;
        let kind = if arm { of_arm(op) } else { of_x86(op, operands) };
        let results = if arm { lanes_of_arm(operands) } else { lanes_of_x86(op, operands) };
        match kind {
            Kind::Other => {}
            Kind::Fma => out.results.fma += results,
            Kind::Mul => out.results.mul += results,
            Kind::Add => out.results.add += results,
            Kind::Refused(why) => {
                out.findings.push(Finding { line: n + 1, text: code.replace('\t', " "), why, breaks: Breaks::Portable });
            }
        }
    }
    out
}

enum Kind {
    Other,
    Fma,
    Mul,
    Add,
    Refused(&'static str),
}

fn of_x86(op: &str, operands: &str) -> Kind {
    if operands.contains("-sae}") {
        return Kind::Refused("a rounding mode of its own");
    }
    let name = op.strip_prefix('v').unwrap_or(op);
    match name {
        "ldmxcsr" | "stmxcsr" => return Kind::Refused("a change of the rounding mode"),
        _ if op.starts_with("call") => return Kind::Refused("a call"),
        _ if op.starts_with('f') => return Kind::Refused("x87 arithmetic"),
        _ if name.starts_with("cvt") || name.starts_with("round") || name.starts_with("rndscale") => {
            let fine = ["cvtdq2ps", "cvttps2dq", "cvtsi2ss", "cvtsi2ssl", "cvttss2si"].contains(&name)
                // To nearest, ties to even, whatever the mode of the processor.
                || ["roundps", "roundss", "rndscaleps", "rndscaless"].contains(&name) && operands.starts_with("$8,");
            return if fine { Kind::Other } else { Kind::Refused("a conversion that kernels do not have") };
        }
        _ if ["bf16", "ph", "sh", "bf8", "hf8"].iter().any(|t| name.ends_with(t)) && !name.starts_with('p') => {
            return Kind::Refused("arithmetic of other floats than f32");
        }
        _ => {}
    }
    let Some(stem) = name.strip_suffix("ps").or(name.strip_suffix("ss")) else {
        // Doubles are moved about, two words at a time, and never computed with.
        let Some(stem) = name.strip_suffix("pd").or(name.strip_suffix("sd")) else { return Kind::Other };
        let moved = known(X86, stem) && !["cmp", "ucomi", "comi", "max", "min"].contains(&stem)
            || name.starts_with('p')
            || stem == "movdd";
        return if moved || name == "movsd" { Kind::Other } else { Kind::Refused("arithmetic of other floats than f32") };
    };
    match stem {
        "add" | "sub" | "hadd" | "hsub" | "addsub" => Kind::Add,
        "mul" => Kind::Mul,
        _ if ["fmadd", "fmsub", "fnmadd", "fnmsub"].iter().any(|f| stem.strip_prefix(f).is_some_and(|r| r.len() == 3)) => {
            Kind::Fma
        }
        _ if name.starts_with('p') || known(X86, stem) || stem.starts_with("cmp") => Kind::Other,
        "div" | "sqrt" => Kind::Refused("a division or square root"),
        _ if stem.starts_with("rcp") || stem.starts_with("rsqrt") || stem.starts_with("exp2") => {
            Kind::Refused("an approximate operation")
        }
        _ => Kind::Refused("a float instruction that kernels are not made of"),
    }
}

fn known(table: &str, stem: &str) -> bool {
    // `vinsertf32x4`, `vshuff64x2`, `vbroadcastf128` have no suffix of a type and need no entry.
    table.split_whitespace().any(|s| s == stem)
}

fn lanes_of_x86(op: &str, operands: &str) -> u32 {
    match () {
        _ if op.ends_with("ss") => 1,
        _ if operands.contains("%zmm") => 16,
        _ if operands.contains("%ymm") => 8,
        _ => 4,
    }
}

fn of_arm(op: &str) -> Kind {
    match op {
        "fadd" | "fsub" | "faddp" => Kind::Add,
        "fmul" | "fnmul" => Kind::Mul,
        "fmla" | "fmls" | "fmadd" | "fmsub" | "fnmadd" | "fnmsub" => Kind::Fma,
        "bl" | "blr" => Kind::Refused("a call"),
        "msr" => Kind::Refused("a change of the rounding mode"),
        "fdiv" | "fsqrt" => Kind::Refused("a division or square root"),
        "frecpe" | "frecps" | "frecpx" | "frsqrte" | "frsqrts" => Kind::Refused("an approximate operation"),
        _ if known(ARM, op) => Kind::Other,
        _ if op.starts_with('f') || op.starts_with("bf") && op != "bfi" && op != "bfxil" && op != "bfc" && op != "bfm" => {
            Kind::Refused("a float instruction that kernels are not made of")
        }
        _ => Kind::Other,
    }
}

fn lanes_of_arm(operands: &str) -> u32 {
    let to = operands.split(',').next().unwrap_or("");
    match () {
        _ if to.contains(".4s") => 4,
        _ if to.contains(".2s") => 2,
        _ => 1,
    }
}

/// Results of float operations in LLVM IR, per function: the machine code has no more of a kind. The error says which
/// operation carries a flag that lets LLVM round as it likes.
pub fn llvm_results(ir: &str) -> Result<Vec<(String, Counts)>, String> {
    let mut out: Vec<(String, Counts)> = vec![];
    for line in ir.lines() {
        let line = line.trim_start();
        if let Some(name) = line.strip_prefix("define ").and_then(|l| l.split_once('@')).and_then(|l| l.1.split('(').next()) {
            out.push((name.trim_matches('"').into(), Counts::default()));
            continue;
        }
        let Some((_, op)) = line.split_once(" = ") else { continue };
        let op = op.trim_start_matches("tail ");
        let (what, rest) = op.split_once(' ').unwrap_or((op, ""));
        let fma = what == "call" && op.contains("@llvm.fma.");
        if !(fma || ["fadd", "fsub", "fmul", "fdiv", "frem", "fcmp", "fneg"].contains(&what)) {
            continue;
        }
        let flag = rest.split(' ').next().unwrap_or("");
        if ["fast", "contract", "reassoc", "nnan", "ninf", "nsz", "arcp", "afn"].contains(&flag)
            || what == "fdiv"
            || what == "frem"
        {
            return Err(line.into());
        }
        let lanes = rest.strip_prefix('<').and_then(|r| r.split(' ').next()).and_then(|n| n.parse().ok()).unwrap_or(1);
        let Some((_, n)) = out.last_mut() else { continue };
        match what {
            "call" => n.fma += lanes,
            "fmul" => n.mul += lanes,
            "fadd" | "fsub" => n.add += lanes,
            _ => {}
        }
    }
    Ok(out)
}
