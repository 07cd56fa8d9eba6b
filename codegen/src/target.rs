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
    /// Armv8-A with NEON.
    Aarch64,
    /// The same with byte dot products (`sdot`, `udot`).
    Aarch64DotProd,
    /// The same with byte dot products of mixed signs (`usdot`).
    Aarch64I8mm,
    /// The best of the others that runs on this machine.
    Native,
}

const V3: &str = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave";
const V4: &str = ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,+evex512";

impl HostIsa {
    /// Those that have a name, of each architecture the least first.
    pub const ALL: [HostIsa; 6] = [
        HostIsa::X86_64V3,
        HostIsa::X86_64V4,
        HostIsa::X86_64V4Vnni,
        HostIsa::Aarch64,
        HostIsa::Aarch64DotProd,
        HostIsa::Aarch64I8mm,
    ];

    /// The concrete instruction set: `Native` becomes the best that runs here.
    pub fn resolve(self) -> Result<HostIsa> {
        if self != HostIsa::Native {
            return Ok(self);
        }
        Self::ALL.into_iter().rev().find(|i| i.runs_here()).ok_or_else(|| {
            Diagnostic::new("E0502", "this machine's processor has neither x86-64-v3 nor aarch64")
                .hint("name an instruction set instead of 'host' to compile for another machine")
        })
    }

    /// Can the machine that runs this program execute such code?
    pub fn runs_here(self) -> bool {
        match self {
            HostIsa::Native => Self::ALL.into_iter().any(HostIsa::runs_here),
            isa => isa.is_detected(),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_detected(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let v3 = has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("lzcnt") && has!("movbe");
        let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        match self {
            HostIsa::X86_64V3 => v3,
            HostIsa::X86_64V4 => v4,
            HostIsa::X86_64V4Vnni => v4 && has!("avx512vnni"),
            _ => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_detected(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        let (neon, dots) = (has!("neon"), has!("dotprod"));
        match self {
            HostIsa::Aarch64 => neon,
            HostIsa::Aarch64DotProd => neon && dots,
            HostIsa::Aarch64I8mm => neon && dots && has!("i8mm"),
            _ => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_detected(self) -> bool {
        false
    }

    /// The name, as [`Target::parse`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            HostIsa::X86_64V3 => "x86-64-v3",
            HostIsa::X86_64V4 => "x86-64-v4",
            HostIsa::X86_64V4Vnni => "x86-64-v4+vnni",
            HostIsa::Aarch64 => "aarch64",
            HostIsa::Aarch64DotProd => "aarch64+dotprod",
            HostIsa::Aarch64I8mm => "aarch64+i8mm",
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

    /// Does it have loads and stores under a mask, of elements of that many bytes?
    pub(crate) fn masked(self, bytes: u32) -> bool {
        self.wide() || !self.arm() && bytes == 4
    }

    /// Is it of the Arm architecture?
    pub(crate) fn arm(self) -> bool {
        matches!(self, HostIsa::Aarch64 | HostIsa::Aarch64DotProd | HostIsa::Aarch64I8mm)
    }

    /// LLVM triple.
    pub(crate) fn triple(self) -> &'static str {
        if self.arm() { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" }
    }

    /// LLVM processor and features of a concrete instruction set.
    pub(crate) fn llvm(self) -> (&'static str, String) {
        let (cpu, features) = match self {
            HostIsa::Aarch64 => ("generic", ["+fp-armv8,+neon", "", ""]),
            HostIsa::Aarch64DotProd => ("generic", ["+fp-armv8,+neon", ",+dotprod", ""]),
            HostIsa::Aarch64I8mm => ("generic", ["+fp-armv8,+neon", ",+dotprod", ",+i8mm"]),
            HostIsa::X86_64V3 | HostIsa::Native => ("x86-64-v3", [V3, "", ""]),
            HostIsa::X86_64V4 => ("x86-64-v4", [V3, V4, ""]),
            HostIsa::X86_64V4Vnni => ("x86-64-v4", [V3, V4, ",+avx512vnni"]),
        };
        (cpu, features.concat())
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
    pub const NAMES: [&str; 9] =
        ["sm_90", "sm_121", "host", "x86-64-v3", "x86-64-v4", "x86-64-v4+vnni", "aarch64", "aarch64+dotprod", "aarch64+i8mm"];

    /// The target of that name; `host` becomes a concrete instruction set.
    pub fn parse(name: &str) -> Result<Target> {
        match name {
            "sm_90" => return Ok(Target::Sm90),
            "sm_121" => return Ok(Target::Sm121),
            "host" => return Ok(Target::Host(HostIsa::Native.resolve()?)),
            _ => {}
        }
        HostIsa::ALL.into_iter().find(|i| i.name() == name).map(Target::Host).ok_or_else(|| {
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

    /// The lines of a PTX text that name its version and its GPU.
    pub(crate) fn ptx_head(&self) -> Result<&'static str> {
        match self {
            Target::Sm90 => Ok(".version 8.0\n.target sm_90\n"),
            Target::Sm121 => Ok(".version 8.8\n.target sm_121\n"),
            Target::Host(_) => Err(Diagnostic::new("E0501", format!("{} has no PTX", self.name()))),
        }
    }

    /// LLVM processor and features. All GPUs get what LLVM makes for the oldest of them, under a head of their own.
    pub(crate) fn llvm(&self) -> (&'static str, String) {
        match self {
            Target::Sm90 | Target::Sm121 => ("sm_90", "+ptx80".into()),
            Target::Host(isa) => isa.llvm(),
        }
    }
}
