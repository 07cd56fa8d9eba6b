//! LLVM modules from kernels to text and objects.

use crate::audit::Counts;
use crate::audit::host::llvm_results;
use crate::disassemble::host_scan;
use crate::emit::{self, Res};
use crate::target::{HostIsa, Target};
use crate::{audit, check, live};
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple};
use ir::diag::{Diagnostic, Result};
use ir::kernel::Kernel;

/// Passes on host code. Only merges and simplifications that cannot change a rounding; addresses profit.
const HOST_PASSES: &str = "function(early-cse)";

fn internal(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new("E0590", format!("LLVM: {what}"))
}

/// Switches off the machine combiner, once per process: it regroups long sums of integers for short latency, at the price
/// of so many live values that the inner loops spill. (It never touches floats without fast-math flags.)
fn configure() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let args = [c"isobit".as_ptr(), c"-x86-machine-combiner=0".as_ptr()];
        // SAFETY: two NUL-terminated strings that live forever, and their number.
        unsafe { LLVMParseCommandLineOptions(2, args.as_ptr(), std::ptr::null()) };
    });
}

fn machine(target: Target) -> Result<TargetMachine> {
    configure();
    let (triple, reloc) = match target {
        Target::Host(isa) => (isa.triple(), RelocMode::PIC),
        _ => ("nvptx64-nvidia-cuda", RelocMode::Default),
    };
    match target {
        Target::Host(isa) if isa.arm() => LlvmTarget::initialize_aarch64(&InitializationConfig::default()),
        Target::Host(_) => LlvmTarget::initialize_x86(&InitializationConfig::default()),
        _ => LlvmTarget::initialize_nvptx(&InitializationConfig::default()),
    }
    let triple = TargetTriple::create(triple);
    let t = LlvmTarget::from_triple(&triple).map_err(|e| internal(e.to_string_lossy()))?;
    let (cpu, features) = target.llvm();
    t.create_target_machine(&triple, cpu, &features, OptimizationLevel::Default, reloc, CodeModel::Default)
        .ok_or_else(|| internal(format!("no target machine for {}", target.name())))
}

/// A verified module with these kernels.
fn build<'c>(cx: &'c Context, kernels: &[&Kernel], target: Target, tm: &TargetMachine) -> Result<Module<'c>> {
    let m = cx.create_module("isobit");
    m.set_source_file_name("isobit");
    m.set_triple(&tm.get_triple());
    m.set_data_layout(&tm.get_target_data().get_data_layout());
    for k in kernels {
        let k = &live::prune(k);
        let done: Res = match target {
            Target::Host(isa) => emit::host::function(cx, &m, k, isa),
            _ => emit::gpu_function(cx, &m, k),
        };
        done.map_err(|f| f.diagnostic(&k.name))?;
    }
    m.verify().map_err(|e| internal(e.to_string_lossy()).at(names(kernels)))?;
    if matches!(target, Target::Host(_)) {
        m.run_passes(HOST_PASSES, tm, PassBuilderOptions::create()).map_err(|e| internal(e.to_string_lossy()))?;
    }
    Ok(m)
}

fn names(kernels: &[&Kernel]) -> String {
    kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn text(m: &Module, tm: &TargetMachine) -> Result<String> {
    let buf = tm.write_to_memory_buffer(m, FileType::Assembly).map_err(|e| internal(e.to_string_lossy()))?;
    Ok(String::from_utf8_lossy(buf.as_slice()).trim_end_matches('\0').to_string())
}

/// One PTX text per kernel, audited: it has the float operations of the kernel, and none of those that the `portable`
/// numerics forbid.
pub fn ptx(kernels: &[&Kernel], target: Target) -> Result<Vec<String>> {
    target.ptx_head()?;
    check::set(kernels)?;
    let tm = machine(target)?;
    kernels
        .iter()
        .map(|k| {
            let cx = Context::create();
            let m = build(&cx, &[k], target, &tm)?;
            let ptx = ptx_for(&text(&m, &tm)?, Target::Sm90, target)?;
            if !relaxed(k) {
                audit::check(k, &ptx).map_err(|d| d.at(&k.name))?;
            }
            Ok(ptx)
        })
        .collect()
}

/// Does the kernel leave its bits to the machine? Then its code is what `isobit audit` reports, not what is refused.
fn relaxed(k: &Kernel) -> bool {
    k.contract || !k.relaxed().is_empty()
}

/// The PTX text that [`ptx`] made for one GPU as it makes it for another: all but the head is the same.
pub fn ptx_for(ptx: &str, made_for: Target, target: Target) -> Result<String> {
    let head = made_for.ptx_head()?;
    match ptx.split_once(head) {
        Some((before, after)) => Ok(format!("{before}{}{after}", target.ptx_head()?)),
        None => Err(internal(format!("PTX without its head: {head:?}"))),
    }
}

/// One relocatable ELF object with all kernels. It refers to no other symbol.
pub fn host_object(kernels: &[&Kernel], isa: HostIsa) -> Result<Vec<u8>> {
    let (tm, cx) = (machine(Target::Host(isa.resolve()?))?, Context::create());
    let m = host_module(&cx, kernels, isa, &tm)?;
    if kernels.iter().any(|k| relaxed(k)) {
        let buf = tm.write_to_memory_buffer(&m, FileType::Object).map_err(|e| internal(e.to_string_lossy()))?;
        return Ok(buf.as_slice()[..buf.get_size()].to_vec());
    }
    // Codegen rewrites the module, so its operations are counted before.
    let want = llvm_results(&m.print_to_string().to_string_lossy())
        .map_err(|l| Diagnostic::new("E0531", format!("LLVM may round as it likes in `{l}`")))?;
    let buf = tm.write_to_memory_buffer(&m, FileType::Object).map_err(|e| internal(e.to_string_lossy()))?;
    let object = buf.as_slice()[..buf.get_size()].to_vec();
    check_host(&object, isa, &want)?;
    Ok(object)
}

/// Reads an object back, and refuses it if it holds an instruction that kernels are not made of, or rounds more results of a
/// kind than the LLVM IR that it was made of: then operations were contracted or split.
fn check_host(object: &[u8], isa: HostIsa, want: &[(String, Counts)]) -> Result<()> {
    for (name, scan) in host_scan(object, isa)? {
        if let Some(f) = scan.findings.first() {
            let m = format!("instruction {} of its machine code: {}: {}", f.line, f.why, f.text);
            return Err(Diagnostic::new("E0532", m).at(&name));
        }
        let want = want.iter().find(|(n, _)| *n == name).map(|w| w.1).unwrap_or_default();
        let got = scan.results;
        // `x * 2` may become `x + x`.
        if got.fma > want.fma || got.mul > want.mul || got.mul + got.add > want.mul + want.add {
            return Err(Diagnostic::new("E0533", format!("the LLVM IR rounds {want} results, its machine code {got}"))
                .at(&name)
                .hint("a float operation was merged or split on the way; this is a bug in isobit"));
        }
    }
    Ok(())
}

/// The same as assembly, to look at.
pub fn host_assembly(kernels: &[&Kernel], isa: HostIsa) -> Result<String> {
    let (tm, cx) = (machine(Target::Host(isa.resolve()?))?, Context::create());
    text(&host_module(&cx, kernels, isa, &tm)?, &tm)
}

fn host_module<'c>(cx: &'c Context, kernels: &[&Kernel], isa: HostIsa, tm: &TargetMachine) -> Result<Module<'c>> {
    check::set(kernels)?;
    if kernels.is_empty() {
        return Err(Diagnostic::new("E0505", "an object of no kernels"));
    }
    build(cx, kernels, Target::Host(isa.resolve()?), tm)
}

/// The LLVM IR of a kernel, for dumps.
pub fn llvm_ir(kernel: &Kernel, target: Target) -> Result<String> {
    check::kernel(kernel)?;
    let target = match target {
        Target::Host(isa) => Target::Host(isa.resolve()?),
        t => t,
    };
    let (tm, cx) = (machine(target)?, Context::create());
    Ok(build(&cx, &[kernel], target, &tm)?.print_to_string().to_string())
}

/// The version of LLVM that generates code: major, minor, patch.
pub fn llvm_version() -> (u32, u32, u32) {
    inkwell::support::get_llvm_version()
}
