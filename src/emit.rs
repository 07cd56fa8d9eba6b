//! Code of a program's kernels for one target. The only file that names the code generator; without the feature `llvm` it refuses.

use crate::target::Target;
use ir::diag::{Diagnostic, Result};
use ir::kernel::Kernel;
use ir::plan::Plan;
use runtime::assembler::{Assembler, Cubins};

/// Code of all kernels of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// One ELF object.
    Host(Vec<u8>),
    /// Of GPUs.
    Gpu(GpuCode),
    /// The kernels themselves, for the interpreter.
    Kernels,
}

/// Code of kernels for a GPU, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCode {
    /// A PTX text each.
    pub ptx: Vec<String>,
    /// Machine code, if there is some.
    pub machine: Option<Machine>,
}

/// Machine code of kernels for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The assembler that made it.
    pub assembler: String,
    /// A cubin each.
    pub cubins: Vec<Vec<u8>>,
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
pub fn kernels_text<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> String {
    kernels.into_iter().map(|k| ir::kernel::text::print(k) + "\n").collect()
}

#[cfg(feature = "llvm")]
mod with_llvm {
    use super::{Code, GpuCode, Listing, Made};
    use crate::target::{Class, Target};
    use ir::diag::{Diagnostic, Result};
    use ir::kernel::Kernel;
    use ir::plan::Plan;

    /// Code of all kernels; `progress(done, of)` counts kernels.
    pub fn code(kernels: &[&Kernel], target: Target, made: Made, progress: &mut dyn FnMut(usize, usize)) -> Result<Code> {
        match (target.class(), codegen::Target::parse(target.name())?) {
            (Class::Host, codegen::Target::Host(isa)) => {
                progress(0, 0); // one object: LLVM does not tell how far it is
                Ok(Code::Host(codegen::host_object(kernels, isa)?))
            }
            (_, gpu) => {
                if let Some((other, Code::Gpu(code))) = made {
                    let other = codegen::Target::parse(other.name())?;
                    let ptx = code.ptx.iter().map(|p| codegen::ptx_for(p, other, gpu)).collect::<Result<_>>()?;
                    return Ok(Code::Gpu(GpuCode { ptx, machine: None }));
                }
                progress(0, kernels.len());
                let mut out = vec![];
                for (i, k) in kernels.iter().enumerate() {
                    out.extend(codegen::ptx(&[*k], gpu)?);
                    progress(i + 1, kernels.len());
                }
                Ok(Code::Gpu(GpuCode { ptx: out, machine: None }))
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
    use super::{Code, Listing, Made};
    use crate::target::Target;
    use ir::diag::{Diagnostic, Result};
    use ir::kernel::Kernel;
    use ir::plan::Plan;

    fn refuse(target: Target) -> Diagnostic {
        Diagnostic::new("E0753", "this build of isobit cannot generate code: it was built without LLVM")
            .at(target.name())
            .hint("run an artifact that was compiled elsewhere, use `--target interp` (slow), or build with the feature `llvm`")
    }

    /// Refuses.
    pub fn code(_: &[&Kernel], target: Target, _: Made, _: &mut dyn FnMut(usize, usize)) -> Result<Code> {
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

/// Code of the same kernels that was made for another target of the class.
pub type Made<'a> = Option<(Target, &'a Code)>;

/// Code of these kernels; `progress(done, of)` counts them. What was made already spares work: GPUs share all but a few lines.
pub fn code(kernels: &[&Kernel], target: Target, made: Made, progress: &mut dyn FnMut(usize, usize)) -> Result<Code> {
    how::code(kernels, target, made, progress)
}

/// Adds machine code to code for a GPU, if it is wanted and there is an assembler; with what was in its way, if it was not
/// insisted on. `progress(done, of)` counts kernels.
pub fn assemble(
    code: &mut Code,
    kernels: &[&Kernel],
    target: Target,
    wanted: Cubins,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<Diagnostic>> {
    let Code::Gpu(gpu) = code else { return Ok(None) };
    if wanted == Cubins::Off {
        return Ok(None);
    }
    let named: Vec<(&str, &str)> = kernels.iter().map(|k| k.name.as_str()).zip(gpu.ptx.iter().map(String::as_str)).collect();
    let mut failed = None;
    for assembler in Assembler::all() {
        match assembler.assemble_all(&named, target.name(), progress) {
            Ok(cubins) => {
                gpu.machine = Some(Machine { assembler: assembler.name, cubins });
                return Ok(None);
            }
            Err(d) => failed = failed.or(Some(d)),
        }
    }
    match (failed, wanted) {
        (d, Cubins::On) => Err(d.unwrap_or_else(|| Assembler::none().at("--cubin"))),
        (d, _) => Ok(d),
    }
}

/// Code of a plan's kernels as text, to look at.
pub fn listing(plan: &Plan, target: Target, form: Listing) -> Result<String> {
    how::listing(plan, target, form)
}
