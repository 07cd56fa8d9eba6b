//! The code of a program: PTX is read anywhere; machine code of processors is read where LLVM is, which leaves what it found
//! beside the hash of what it read.

use super::{Found, Kind};
use crate::emit::Code;
use crate::target::Target;
use codegen::audit::{Breaks, Counts, Finding, float_counts, ptx};
use ir::diag::{Diagnostic, Result};
use ir::kernel::Kernel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the code of a kernel holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Instructions.
    pub instructions: usize,
    /// Fused multiply-adds: instructions of PTX, results of machine code.
    pub fma: u32,
    /// Multiplications.
    pub mul: u32,
    /// Additions and subtractions.
    pub add: u32,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeAudit {
    /// `ptx`, `machine code`, or `none`.
    pub form: String,
    /// Hash of what was read: BLAKE3 of the object, or of all PTX texts in order.
    pub blake3: String,
    /// By kernel.
    pub kernels: BTreeMap<String, Held>,
    /// Instructions that do not belong there.
    pub findings: Vec<Found>,
}

impl CodeAudit {
    /// Instructions of all kernels.
    pub fn instructions(&self) -> usize {
        self.kernels.values().map(|h| h.instructions).sum()
    }
}

fn held(instructions: usize, c: Counts) -> Held {
    Held { instructions, fma: c.fma, mul: c.mul, add: c.add }
}

/// As a finding of the audit.
pub fn found(place: &str, f: &Finding) -> Found {
    let breaks = if f.breaks == Breaks::Run { "run" } else { "portable" };
    Found {
        kind: Kind::Instruction,
        breaks: breaks.into(),
        place: format!("{place}, line {}", f.line),
        what: format!("{}: {}", f.why, f.text),
    }
}

/// Reads PTX of one kernel, against the kernel if it is known.
pub fn ptx_text(name: &str, text: &str, kernel: Option<&Kernel>) -> (Held, Vec<Found>) {
    let counts = ptx::ptx_counts(text);
    let mut all: Vec<Found> = ptx::ptx_findings(text).iter().map(|f| found(&format!("{name}.ptx"), f)).collect();
    if let Some(want) = kernel.map(float_counts)
        && (counts.fma > want.fma || counts.mul > want.mul || counts.add > want.add)
    {
        let what = format!("the kernel has {want}, its PTX {counts}: an operation was contracted or split");
        all.push(Found { kind: Kind::Counts, breaks: "portable".into(), place: format!("{name}.ptx"), what });
    }
    (held(ptx::instructions(text).count(), counts), all)
}

/// Reads the code of a program. `recorded` is what was found where there was LLVM.
pub fn code(code: &Code, kernels: &[&Kernel], target: Target, recorded: Option<&CodeAudit>) -> Result<CodeAudit> {
    let mut out = CodeAudit::default();
    match code {
        Code::Kernels => out.form = "none".into(),
        Code::Gpu(gpu) => {
            let mut hash = blake3::Hasher::new();
            out.form = "ptx".into();
            for (k, text) in kernels.iter().zip(&gpu.ptx) {
                hash.update(text.as_bytes());
                let (h, findings) = ptx_text(&k.name, text, Some(k));
                out.kernels.insert(k.name.clone(), h);
                out.findings.extend(findings);
            }
            out.blake3 = hash.finalize().to_hex().to_string();
        }
        Code::Host(object) => {
            let hash = blake3::hash(object).to_hex().to_string();
            match (scan(object, target)?, recorded) {
                (Some(scanned), _) => out = scanned,
                (None, Some(r)) if r.blake3 == hash => out = r.clone(),
                (None, _) => {
                    return Err(Diagnostic::new(
                        "E0825",
                        "nobody has read this machine code, and this build of isobit can't: it has no LLVM",
                    )
                    .at(format!("{}/kernels.o", target.folder()))
                    .hint("audit it where LLVM is; `isobit compile` leaves what it read in audit.json"));
                }
            }
            out.form = "machine code".into();
            out.blake3 = hash;
        }
    }
    Ok(out)
}

#[cfg(feature = "llvm")]
fn scan(object: &[u8], target: Target) -> Result<Option<CodeAudit>> {
    let codegen::Target::Host(isa) = codegen::Target::parse(target.name())? else { return Ok(None) };
    let mut out = CodeAudit::default();
    for (name, s) in codegen::host_scan(object, isa)? {
        out.findings.extend(s.findings.iter().map(|f| found(&name, f)));
        out.kernels.insert(name, held(s.instructions, s.results));
    }
    Ok(Some(out))
}

#[cfg(not(feature = "llvm"))]
fn scan(_: &[u8], _: Target) -> Result<Option<CodeAudit>> {
    Ok(None)
}

/// Reads assembly of processors, of whichever its comments say.
pub fn assembly(name: &str, text: &str) -> (Held, Vec<Found>) {
    // Registers of x86-64 have a percent sign.
    let scan = codegen::audit::host::scan(text.lines(), !text.contains('%'));
    (held(scan.instructions, scan.results), scan.findings.iter().map(|f| found(&format!("{name}.s"), f)).collect())
}
