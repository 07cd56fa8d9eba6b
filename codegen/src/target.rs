//! What code is generated for. Every target has one fixed feature string, so that output is a function of its name alone.

use ir::diag::{Diagnostic, Result};

/// Instruction set of a host object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostIsa {
    /// AVX2 and FMA.
    X86_64V3,
    /// AVX-512 F, BW, CD, DQ, VL.
    X86_64V4,
    /// The same with VNNI (`vpdpbusd`).
    X86_64V4Vnni,
    /// The best of the others that runs on this machine.
    Native,
}

/// The feature sets that have a name, least first.
const ISAS: [HostIsa; 3] = [HostIsa::X86_64V3, HostIsa::X86_64V4, HostIsa::X86_64V4Vnni];

const V3: &str = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave";
const V4: &str = ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,+evex512";

impl HostIsa {
    /// The concrete instruction set: `Native` becomes the best that runs here.
    pub fn resolve(self) -> Result<HostIsa> {
        if self != HostIsa::Native {
            return Ok(self);
        }
        ISAS.into_iter().rev().find(|i| i.runs_here()).ok_or_else(|| {
            Diagnostic::new("E0502", "this machine's processor is older than x86-64-v3")
                .hint("name an instruction set instead of 'host' to compile for another machine")
        })
    }

    /// Can the machine that runs this program execute such code?
    pub fn runs_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let v3 =
                has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("lzcnt") && has!("movbe");
            let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
            match self {
                HostIsa::X86_64V3 | HostIsa::Native => v3,
                HostIsa::X86_64V4 => v4,
                HostIsa::X86_64V4Vnni => v4 && has!("avx512vnni"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The name, as [`Target::parse`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            HostIsa::X86_64V3 => "x86-64-v3",
            HostIsa::X86_64V4 => "x86-64-v4",
            HostIsa::X86_64V4Vnni => "x86-64-v4+vnni",
            HostIsa::Native => "host",
        }
    }

    /// Does it have 512-bit registers?
    pub(crate) fn wide(self) -> bool {
        matches!(self, HostIsa::X86_64V4 | HostIsa::X86_64V4Vnni)
    }

    /// Does it have byte dot products?
    pub(crate) fn vnni(self) -> bool {
        self == HostIsa::X86_64V4Vnni
    }

    /// LLVM processor and features of a concrete instruction set.
    pub(crate) fn llvm(self) -> (&'static str, String) {
        let cpu = if self.wide() { "x86-64-v4" } else { "x86-64-v3" };
        let vnni = if self.vnni() { ",+avx512vnni" } else { "" };
        (cpu, format!("{V3}{}{vnni}", if self.wide() { V4 } else { "" }))
    }
}

/// A target of compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// NVIDIA H100, H200.
    Sm90,
    /// NVIDIA GB10.
    Sm121,
    /// The processor.
    Host(HostIsa),
}

impl Target {
    /// Names that [`Target::parse`] knows.
    pub const NAMES: [&str; 6] = ["sm_90", "sm_121", "host", "x86-64-v3", "x86-64-v4", "x86-64-v4+vnni"];

    /// The target of that name; `host` becomes a concrete instruction set.
    pub fn parse(name: &str) -> Result<Target> {
        match name {
            "sm_90" => return Ok(Target::Sm90),
            "sm_121" => return Ok(Target::Sm121),
            "host" => return Ok(Target::Host(HostIsa::Native.resolve()?)),
            _ => {}
        }
        ISAS.into_iter().find(|i| i.name() == name).map(Target::Host).ok_or_else(|| {
            Diagnostic::new("E0501", format!("unknown target '{name}'"))
                .hint(format!("known targets: {}", Self::NAMES.join(", ")))
        })
    }

    /// The name, as [`Target::parse`] reads it.
    pub fn name(&self) -> String {
        match self {
            Target::Sm90 => "sm_90".into(),
            Target::Sm121 => "sm_121".into(),
            Target::Host(isa) => isa.name().into(),
        }
    }

    /// LLVM processor and features.
    pub(crate) fn llvm(&self) -> (&'static str, String) {
        match self {
            Target::Sm90 => ("sm_90", "+ptx80".into()),
            Target::Sm121 => ("sm_121", "+ptx88".into()),
            Target::Host(isa) => isa.llvm(),
        }
    }
}
