//! The program `ptxas`, from a folder of PATH.

use ir::diag::{Diagnostic, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The program.
pub struct Program {
    /// `ptxas 13.5`.
    pub name: String,
    path: PathBuf,
}

/// The version in what `ptxas --version` prints: `... release 13.5, V13.5.37`.
fn version(text: &str) -> Option<&str> {
    let v = text.split("release ").nth(1)?.split(',').next()?.trim();
    (!v.is_empty() && v.bytes().all(|b| b.is_ascii_digit() || b == b'.')).then_some(v)
}

impl Program {
    /// The first one of PATH that runs.
    pub fn find() -> Option<Program> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|d| d.join("ptxas")).filter(|p| p.is_file()).find_map(|p| Program::at(&p))
    }

    /// This one, if it runs.
    pub fn at(path: &Path) -> Option<Program> {
        let out = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        Some(Program { name: format!("ptxas {}", version(&text)?), path: path.into() })
    }

    /// Machine code.
    pub fn assemble(&self, ptx: &str, architecture: &str) -> Result<Vec<u8>> {
        let folder = Folder::new()?;
        // The same names everywhere, relative ones, in case they enter the code.
        let failed = |what: &str, e: std::io::Error| Diagnostic::new("E0470", format!("{what}: {e}"));
        std::fs::write(folder.0.join("k.ptx"), ptx).map_err(|e| failed("a file for ptxas cannot be written", e))?;
        let out = Command::new(&self.path)
            .args(["-arch", architecture, "-O3", "-o", "k.cubin", "k.ptx"])
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| failed("ptxas cannot be run", e))?;
        if !out.status.success() {
            let log = [out.stderr, out.stdout].concat();
            let message = format!("ptxas refused a kernel ({})\n{}", out.status, String::from_utf8_lossy(&log).trim());
            return Err(Diagnostic::new("E0471", message.trim_end().to_string()));
        }
        std::fs::read(folder.0.join("k.cubin")).map_err(|e| failed("what ptxas wrote cannot be read", e))
    }
}

/// A folder for one assembly, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("isobit-ptxas-{}-{n}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Folder(path)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {} // of a process that was killed
                Err(e) => {
                    return Err(Diagnostic::new("E0470", format!("a folder for ptxas cannot be made: {e}")).at(path.display()));
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read() {
        let text = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 13.5, V13.5.37\nBuild x\n";
        assert_eq!(version(text), Some("13.5"));
        for bad in ["", "release ", "release x, 1", "ptxas 13.5"] {
            assert_eq!(version(bad), None, "{bad}");
        }
    }
}
