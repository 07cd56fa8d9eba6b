//! Targets by name, and which of them this machine can run. This list is complete without LLVM: artifacts run without it.

use ir::diag::{Diagnostic, Result};
use passes::lower::schedule::Schedule;

/// What code is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// AVX2 and FMA.
    X86V3,
    /// AVX-512.
    X86V4,
    /// AVX-512 with byte dot products.
    X86V4Vnni,
    /// Armv8-A with NEON.
    Aarch64,
    /// Armv8-A with byte dot products.
    Aarch64DotProd,
    /// Armv8-A with byte dot products, those of mixed signs among them.
    Aarch64I8mm,
    /// NVIDIA H100, H200.
    Sm90,
    /// NVIDIA GB10.
    Sm121,
}

/// Targets that share a lowering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The processor.
    Host,
    /// NVIDIA GPUs.
    Gpu,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 2] = [Class::Host, Class::Gpu];

    /// Name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Class::Host => "host",
            Class::Gpu => "gpu",
        }
    }

    /// Fusion rules that do not pay on such targets: there a matmul whose rows one block must have together leaves most
    /// processors idle, and a row that every block computes again costs more than a launch.
    pub fn rules_off(self) -> &'static [&'static str] {
        match self {
            Class::Host => &[],
            Class::Gpu => &[
                "matmul-into-head-norm",
                "linear-into-head-norm",
                "matmul-into-route",
                "linear-into-route",
                "quantize-into-matmul",
                "quantize-into-expert-matmul",
            ],
        }
    }

    /// How work is spread for one token, or for chunks of many; the only thing in which lowerings differ.
    pub fn schedule(self, prefill: bool) -> Schedule {
        match (self, prefill) {
            (Class::Host, false) => Schedule::HOST,
            (Class::Host, true) => Schedule::HOST_PREFILL,
            (Class::Gpu, false) => Schedule::GPU,
            (Class::Gpu, true) => Schedule::GPU_PREFILL,
        }
    }
}

impl Target {
    /// All targets; of those that a machine can run, the last is the best.
    pub const ALL: [Target; 8] = [
        Target::X86V3,
        Target::X86V4,
        Target::X86V4Vnni,
        Target::Aarch64,
        Target::Aarch64DotProd,
        Target::Aarch64I8mm,
        Target::Sm90,
        Target::Sm121,
    ];

    /// The name on the command line and in artifacts.
    pub fn name(self) -> &'static str {
        match self {
            Target::X86V3 => "x86-64-v3",
            Target::X86V4 => "x86-64-v4",
            Target::X86V4Vnni => "x86-64-v4+vnni",
            Target::Aarch64 => "aarch64",
            Target::Aarch64DotProd => "aarch64+dotprod",
            Target::Aarch64I8mm => "aarch64+i8mm",
            Target::Sm90 => "sm_90",
            Target::Sm121 => "sm_121",
        }
    }

    /// Its class.
    pub fn class(self) -> Class {
        match self {
            Target::Sm90 | Target::Sm121 => Class::Gpu,
            _ => Class::Host,
        }
    }

    /// Its folder in an artifact.
    pub fn folder(self) -> String {
        format!("{}/{}", self.class().name(), self.name())
    }

    /// Can this machine's processor run it?
    #[cfg(target_arch = "x86_64")]
    pub fn runs_here(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let v3 = has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2");
        let v3 = v3 && has!("f16c") && has!("lzcnt") && has!("movbe");
        let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        match self {
            Target::X86V3 => v3,
            Target::X86V4 => v4,
            Target::X86V4Vnni => v4 && has!("avx512vnni"),
            _ => false,
        }
    }

    /// Can this machine's processor run it?
    #[cfg(target_arch = "aarch64")]
    pub fn runs_here(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        let (neon, dots) = (has!("neon"), has!("dotprod"));
        match self {
            Target::Aarch64 => neon,
            Target::Aarch64DotProd => neon && dots,
            Target::Aarch64I8mm => neon && dots && has!("i8mm"),
            _ => false,
        }
    }

    /// Can this machine's processor run it?
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn runs_here(self) -> bool {
        false
    }

    /// The compute capability that GPU code is for.
    pub fn capability(self) -> Option<(u32, u32)> {
        match self {
            Target::Sm90 => Some((9, 0)),
            Target::Sm121 => Some((12, 1)),
            _ => None,
        }
    }

    /// Can a GPU of this capability run it? Code for one runs on all later ones.
    pub fn runs_on(self, capability: (u32, u32)) -> bool {
        self.capability().is_some_and(|c| c <= capability)
    }

    /// The architecture of a host target.
    pub fn architecture(self) -> Option<&'static str> {
        match self {
            Target::X86V3 | Target::X86V4 | Target::X86V4Vnni => Some("x86_64"),
            Target::Aarch64 | Target::Aarch64DotProd | Target::Aarch64I8mm => Some("aarch64"),
            Target::Sm90 | Target::Sm121 => None,
        }
    }

    /// Why this machine's processor cannot run it.
    pub fn refused_here(self) -> Diagnostic {
        let here = std::env::consts::ARCH;
        let why = match self.architecture() {
            Some(a) if a != here => format!("it is code for {a}, this machine is {here}"),
            _ => "it lacks some of the instructions".into(),
        };
        Diagnostic::new("E0754", format!("this machine's processor cannot run `{}`: {why}", self.name()))
    }

    /// The best target that this machine's processor runs.
    pub fn host() -> Result<Target> {
        Target::ALL.into_iter().rev().find(|t| t.runs_here()).ok_or_else(|| {
            Diagnostic::new("E0754", "this machine's processor has neither x86-64-v3 nor aarch64")
                .hint("name a target to compile for another machine, or run with `--target interp` (slow)")
        })
    }

    /// The target of this name; `host` is the best of this machine.
    pub fn parse(name: &str) -> Result<Target> {
        if name == "host" {
            return Target::host();
        }
        Target::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| unknown(name))
    }

    /// Targets of a comma-separated list, in the order of [`Target::ALL`], each once.
    pub fn parse_list(list: &str) -> Result<Vec<Target>> {
        let mut out = list.split(',').map(Target::parse).collect::<Result<Vec<_>>>()?;
        out.sort();
        out.dedup();
        Ok(out)
    }
}

fn unknown(name: &str) -> Diagnostic {
    let names: Vec<&str> = ["host"].into_iter().chain(Target::ALL.into_iter().map(Target::name)).collect();
    let known = format!("targets are {}", names.join(", "));
    let near = names.iter().find(|n| n.eq_ignore_ascii_case(name.trim()));
    let hint = near.map_or(known.clone(), |n| format!("did you mean `{n}`? {known}"));
    let message = if name.is_empty() { "a target's name is empty".into() } else { format!("there is no target `{name}`") };
    Diagnostic::new("E0751", message).at("--target").hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_faults_named() {
        assert_eq!(Target::parse_list("sm_121,x86-64-v3,sm_121").unwrap(), [Target::X86V3, Target::Sm121]);
        for bad in ["sm_999", "", "SM_90", "sm_90,", " sm_90", "x86-64-v4+avx", "aarch64+", "arm64"] {
            assert_eq!(Target::parse_list(bad).unwrap_err().code, "E0751", "{bad}");
        }
        assert!(Target::parse("SM_90").unwrap_err().hint.starts_with("did you mean `sm_90`?"));
    }

    #[cfg(feature = "llvm")]
    #[test]
    fn codegen_knows_the_same_targets() {
        for t in Target::ALL {
            let c = codegen::Target::parse(t.name()).unwrap();
            assert_eq!(c.name(), t.name());
            if let codegen::Target::Host(isa) = c {
                assert_eq!(isa.runs_here(), t.runs_here());
            }
        }
        assert_eq!(codegen::Target::NAMES.len(), Target::ALL.len() + 1);
    }
}
