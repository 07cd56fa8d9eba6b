//! Code of a plan for one target. The only file that names the code generator; without the feature `llvm` it refuses.

use crate::target::Target;
use ir::diag::Result;
use ir::plan::Plan;

/// Code of all kernels of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// One ELF object.
    Host(Vec<u8>),
    /// One PTX text per kernel, in the plan's order.
    Ptx(Vec<String>),
    /// The kernels themselves, for the interpreter.
    Kernels,
}

/// Forms of code to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Host assembly.
    Assembly,
    /// PTX.
    Ptx,
    /// LLVM IR.
    Llvm,
}

/// Kernels as the interpreter loads them.
pub fn kernels_text(plan: &Plan) -> String {
    plan.kernels.iter().map(|k| ir::kernel::text::print(k) + "\n").collect()
}

#[cfg(feature = "llvm")]
mod with_llvm {
    use super::{Code, Listing};
    use crate::target::{Class, Target};
    use ir::diag::{Diagnostic, Result};
    use ir::kernel::Kernel;
    use ir::plan::Plan;

    /// Code of all kernels; `progress(done, of)` counts kernels.
    pub fn code(plan: &Plan, target: Target, progress: &mut dyn FnMut(usize, usize)) -> Result<Code> {
        let kernels: Vec<&Kernel> = plan.kernels.iter().collect();
        match (target.class(), codegen::Target::parse(target.name())?) {
            (Class::Host, codegen::Target::Host(isa)) => {
                progress(0, 0); // one object: LLVM does not tell how far it is
                Ok(Code::Host(codegen::host_object(&kernels, isa)?))
            }
            (_, gpu) => {
                progress(0, kernels.len());
                let mut out = vec![];
                for (i, k) in kernels.iter().enumerate() {
                    out.extend(codegen::ptx(&[k], gpu)?);
                    progress(i + 1, kernels.len());
                }
                Ok(Code::Ptx(out))
            }
        }
    }

    /// Code as text.
    pub fn listing(plan: &Plan, target: Target, form: Listing) -> Result<String> {
        let kernels: Vec<&Kernel> = plan.kernels.iter().collect();
        let wrong = |what: &str| {
            Diagnostic::new("E0750", format!("target `{}` has no {what}", target.name()))
                .hint("`asm` is for host targets, `ptx` for sm_90 and sm_121, `llvm` for all")
        };
        let parsed = codegen::Target::parse(target.name())?;
        match (form, parsed) {
            (Listing::Assembly, codegen::Target::Host(isa)) => codegen::host_assembly(&kernels, isa),
            (Listing::Assembly, _) => Err(wrong("assembly")),
            (Listing::Ptx, codegen::Target::Host(_)) => Err(wrong("PTX")),
            (Listing::Ptx, gpu) => Ok(codegen::ptx(&kernels, gpu)?.join("\n")),
            (Listing::Llvm, t) => {
                kernels.iter().map(|k| codegen::llvm_ir(k, t)).collect::<Result<Vec<_>>>().map(|v| v.join("\n"))
            }
        }
    }
}

#[cfg(not(feature = "llvm"))]
mod without_llvm {
    use super::{Code, Listing};
    use crate::target::Target;
    use ir::diag::{Diagnostic, Result};
    use ir::plan::Plan;

    fn refuse(target: Target) -> Diagnostic {
        Diagnostic::new("E0753", "this build of isobit cannot generate code: it was built without LLVM")
            .at(target.name())
            .hint("run an artifact that was compiled elsewhere, use `--target interp` (slow), or build with the feature `llvm`")
    }

    /// Refuses.
    pub fn code(_: &Plan, target: Target, _: &mut dyn FnMut(usize, usize)) -> Result<Code> {
        Err(refuse(target))
    }

    /// Refuses.
    pub fn listing(_: &Plan, target: Target, _: Listing) -> Result<String> {
        Err(refuse(target))
    }
}

#[cfg(feature = "llvm")]
use with_llvm as how;
#[cfg(not(feature = "llvm"))]
use without_llvm as how;

/// Code of all kernels of a plan; `progress(done, of)` counts kernels.
pub fn code(plan: &Plan, target: Target, progress: &mut dyn FnMut(usize, usize)) -> Result<Code> {
    how::code(plan, target, progress)
}

/// The same as text, to look at.
pub fn listing(plan: &Plan, target: Target, form: Listing) -> Result<String> {
    how::listing(plan, target, form)
}
