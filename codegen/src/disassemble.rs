//! Host objects back to text, to be audited: what is read is the code that will run, not a listing beside it.

use crate::audit::host::{Scan, scan};
use crate::target::HostIsa;
use inkwell::llvm_sys::disassembler::{LLVMCreateDisasmCPUFeatures, LLVMDisasmDispose, LLVMDisasmInstruction};
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{InitializationConfig, Target as LlvmTarget};
use ir::diag::{Diagnostic, Result};
use std::ffi::CString;

/// Reads the machine code of each kernel of an object, in the order of their places.
pub fn host_scan(object: &[u8], isa: HostIsa) -> Result<Vec<(String, Scan)>> {
    let isa = isa.resolve()?;
    let functions = disassemble(object, isa)?;
    Ok(functions.into_iter().map(|(name, text)| (name, scan(text.lines(), isa.arm()))).collect())
}

fn bad(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new("E0530", format!("the machine code cannot be read back: {what}")).at("kernels.o")
}

/// The functions of an object with their instructions, one a line; each with the padding up to the next one, so that no byte
/// of code is left out.
fn disassemble(object: &[u8], isa: HostIsa) -> Result<Vec<(String, String)>> {
    match isa.arm() {
        true => LlvmTarget::initialize_aarch64(&InitializationConfig::default()),
        false => LlvmTarget::initialize_x86(&InitializationConfig::default()),
    }
    let buffer = MemoryBuffer::create_from_memory_range_copy(object, "kernels");
    let file = buffer.create_binary_file(None).map_err(|e| bad(e.to_string_lossy()))?;
    let text = |e: Option<&std::ffi::CStr>| e.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut sections = file.get_sections().ok_or_else(|| bad("it has no sections"))?;
    let mut code: Option<Vec<u8>> = None;
    while let Some(s) = sections.next_section() {
        let name = text(s.get_name());
        if name == ".text" {
            code = Some(s.get_contents().to_vec());
        } else if name.starts_with(".text") && s.get_size() > 0 {
            return Err(bad(format!("a section {name}")));
        }
    }
    let code = code.ok_or_else(|| bad("it has no section .text"))?;
    let mut starts: Vec<(u64, String)> = vec![];
    let mut symbols = file.get_symbols().ok_or_else(|| bad("it has no symbols"))?;
    while let Some(s) = symbols.next_symbol() {
        let mut of = file.get_sections().ok_or_else(|| bad("it has no sections"))?;
        of.move_to_containing_section(&s);
        let inside = s.get_size() > 0 && of.next_section().is_some_and(|s| s.get_name() == Some(c".text"));
        if inside {
            starts.push((s.get_address(), text(s.get_name())));
        }
    }
    starts.sort();
    if starts.first().is_none_or(|s| s.0 != 0) {
        return Err(bad("code stands before the first function"));
    }
    let ends: Vec<u64> = starts.iter().skip(1).map(|s| s.0).chain([code.len() as u64]).collect();
    starts
        .into_iter()
        .zip(ends)
        .map(|((from, name), to)| {
            let bytes = code.get(from as usize..to as usize).ok_or_else(|| bad("a function ends behind its section"))?;
            Ok((name, instructions(bytes, isa)?))
        })
        .collect()
}

/// Instructions of these bytes, one a line.
fn instructions(bytes: &[u8], isa: HostIsa) -> Result<String> {
    let (cpu, features) = isa.llvm();
    let c = |s: &str| CString::new(s).unwrap_or_default();
    let (triple, cpu, features) = (c(isa.triple()), c(cpu), c(&features));
    // SAFETY: three NUL-terminated strings that outlive the call; no callbacks.
    let cx = unsafe {
        LLVMCreateDisasmCPUFeatures(triple.as_ptr(), cpu.as_ptr(), features.as_ptr(), std::ptr::null_mut(), 0, None, None)
    };
    if cx.is_null() {
        return Err(bad("LLVM has no disassembler for this target"));
    }
    let (mut bytes, mut at, mut out) = (bytes.to_vec(), 0, String::new());
    let mut line = [0u8; 256];
    while at < bytes.len() {
        let rest = &mut bytes[at..];
        // SAFETY: `rest` and `line` are as long as is said; LLVM only reads the one and ends the other with a NUL.
        let n = unsafe {
            LLVMDisasmInstruction(cx, rest.as_mut_ptr(), rest.len() as u64, at as u64, line.as_mut_ptr().cast(), line.len())
        };
        if n == 0 {
            // SAFETY: made above, and not used again.
            unsafe { LLVMDisasmDispose(cx) };
            return Err(bad(format!("no instruction at byte {at}")));
        }
        let end = line.iter().position(|b| *b == 0).unwrap_or(line.len());
        out.push_str(String::from_utf8_lossy(&line[..end]).trim());
        out.push('\n');
        at += n;
    }
    // SAFETY: as above.
    unsafe { LLVMDisasmDispose(cx) };
    Ok(out)
}
