//! Assemblers of PTX: NVIDIA's library nvJitLink or its program ptxas, where one of them is. Nothing needs them: a driver
//! compiles PTX by itself. They do it once, when a model is compiled, so that loading does not have to.

mod jitlink;
mod ptxas;

use ir::diag::{Diagnostic, Result};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Is there to be machine code for GPUs (cubins)? It changes no result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cubins {
    /// If an assembler is found; and it is run where it fits the GPU.
    #[default]
    Auto,
    /// Yes, or it is an error.
    On,
    /// No: only PTX.
    Off,
}

impl Cubins {
    /// All of them.
    pub const ALL: [Cubins; 3] = [Cubins::Auto, Cubins::On, Cubins::Off];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Cubins::Auto => "auto",
            Cubins::On => "on",
            Cubins::Off => "off",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Cubins> {
        Cubins::ALL.into_iter().find(|c| c.name() == name)
    }
}

/// An assembler.
pub struct Assembler {
    /// What it is: `nvJitLink 13.5`, `ptxas 13.5`.
    pub name: String,
    how: How,
}

enum How {
    Library(jitlink::Library),
    Program(ptxas::Program),
}

impl Assembler {
    /// Those of this machine. The program comes first: PATH is a person's choice, and it can't take us down with it.
    pub fn all() -> Vec<Assembler> {
        let library = jitlink::Library::find().map(|l| Assembler { name: l.name.clone(), how: How::Library(l) });
        let program = ptxas::Program::find().map(|p| Assembler { name: p.name.clone(), how: How::Program(p) });
        program.into_iter().chain(library).collect()
    }

    /// The one at this path, a library or a program, if it works.
    pub fn at(path: &Path) -> Option<Assembler> {
        let library = path.file_name()?.to_str()?.starts_with("libnvJitLink");
        Some(if library {
            let l = jitlink::Library::at(path)?;
            Assembler { name: l.name.clone(), how: How::Library(l) }
        } else {
            let p = ptxas::Program::at(path)?;
            Assembler { name: p.name.clone(), how: How::Program(p) }
        })
    }

    /// What is said where there is none.
    pub fn none() -> Diagnostic {
        Diagnostic::new("E0470", "there is no assembler for GPUs: neither libnvJitLink.so nor a program `ptxas` was found")
            .hint("they are parts of the CUDA toolkit; without them a driver compiles PTX when a model is loaded")
    }

    /// Machine code of one kernel.
    pub fn assemble(&self, kernel: &str, ptx: &str, architecture: &str) -> Result<Vec<u8>> {
        let code = match &self.how {
            How::Library(l) => l.assemble(ptx, architecture),
            How::Program(p) => p.assemble(ptx, architecture),
        };
        let code = code.and_then(|c| is_code(&c).map(|()| c));
        code.map_err(|d| d.at(format!("{}, kernel `{kernel}`, {architecture}", self.name)))
    }

    /// Machine code of many kernels, given by name and PTX, on all cores; `progress(done, of)` counts them. The first kernel
    /// that is refused is the error.
    pub fn assemble_all(
        &self,
        kernels: &[(&str, &str)],
        architecture: &str,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Vec<u8>>> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(kernels.len());
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<Option<Result<Vec<u8>>>>> = Mutex::new(kernels.iter().map(|_| None).collect());
        let (tell, told) = std::sync::mpsc::channel();
        progress(0, kernels.len());
        std::thread::scope(|s| {
            for _ in 0..cores {
                let (tell, next, done) = (tell.clone(), &next, &done);
                s.spawn(move || {
                    while let Some((i, (name, ptx))) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, kernels.get(i)?)))
                    {
                        let code = self.assemble(name, ptx, architecture);
                        let failed = code.is_err();
                        if let Ok(mut done) = done.lock() {
                            done[i] = Some(code);
                        }
                        if failed {
                            next.store(kernels.len(), Ordering::Relaxed); // no more are begun
                        }
                        _ = tell.send(());
                    }
                });
            }
            drop(tell);
            for (n, ()) in told.into_iter().enumerate() {
                progress(n + 1, kernels.len());
            }
        });
        let done = done.into_inner().unwrap_or_default();
        if let Some(d) = done.iter().flatten().find_map(|r| r.as_ref().err()) {
            return Err(d.clone());
        }
        let code: Vec<Vec<u8>> = done.into_iter().flatten().flatten().collect();
        if code.len() == kernels.len() { Ok(code) } else { Err(Diagnostic::new("E0471", "an assembler left kernels out")) }
    }
}

/// Refuses what is no machine code: an assembler may say that all went well and leave an empty file.
fn is_code(code: &[u8]) -> Result<()> {
    use object::read::elf::{ElfFile64, SectionHeader};
    let bad = |what: &str| Err(Diagnostic::new("E0471", format!("what the assembler left is no machine code: {what}")));
    let Ok(elf) = ElfFile64::<object::Endianness>::parse(code) else { return bad("it is not an ELF file") };
    let e = elf.endian();
    let table = elf.elf_section_table();
    let text = |s: &object::elf::SectionHeader64<object::Endianness>| {
        table.section_name(e, s).is_ok_and(|n| n.starts_with(b".text.")) && s.sh_size(e) > 0
    };
    if table.iter().any(text) { Ok(()) } else { bad("it holds no kernel") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_code_is_refused() {
        for bad in [&b""[..], b"\x7fELF", b"// PTX", &[0; 1500]] {
            assert_eq!(is_code(bad).unwrap_err().code, "E0471");
        }
    }
}
