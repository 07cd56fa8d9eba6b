//! Files and folders that appear whole or not at all: written beside their place under another name, then renamed.

use ir::diag::{Diagnostic, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An error of the file system as a diagnostic.
pub fn failed(what: &str, path: &Path, e: &io::Error) -> Diagnostic {
    Diagnostic::new("E0760", format!("{what}: {e}")).at(path.display())
}

/// A name beside `path` that nobody else uses.
fn beside(path: &Path, tag: &str) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Some(name) = path.file_name() else {
        return Err(Diagnostic::new("E0760", "this path has no last part that could be a name").at(path.display()));
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{tag}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(hidden))
}

/// What is written before it gets its name; removed if it never does.
pub struct Pending {
    temporary: PathBuf,
    target: PathBuf,
    done: bool,
}

impl Pending {
    /// A new folder that is to become `target`.
    pub fn folder(target: &Path) -> Result<Pending> {
        let p = Pending::file(target)?;
        fs::create_dir(&p.temporary).map_err(|e| failed("cannot make a folder", &p.temporary, &e))?;
        Ok(p)
    }

    /// The name of a file, not made yet, that is to become `target`.
    pub fn file(target: &Path) -> Result<Pending> {
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !parent.is_dir() {
            return Err(Diagnostic::new("E0760", "the folder to write to does not exist").at(parent.display()));
        }
        Ok(Pending { temporary: beside(target, "tmp")?, target: target.to_path_buf(), done: false })
    }

    /// Where it is written.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Gives it its name. What had the name before is replaced.
    pub fn commit(mut self) -> Result<()> {
        let cannot = |e: io::Error| failed("cannot be put in place", &self.target, &e);
        if self.target.is_dir() && self.temporary.is_dir() {
            let old = beside(&self.target, "old")?;
            fs::rename(&self.target, &old).map_err(cannot)?;
            if let Err(e) = fs::rename(&self.temporary, &self.target) {
                // Put it back; the error that counts is the first.
                let _ = fs::rename(&old, &self.target);
                return Err(cannot(e));
            }
            let _ = fs::remove_dir_all(&old);
        } else {
            fs::rename(&self.temporary, &self.target).map_err(cannot)?;
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            let _ = if self.temporary.is_dir() { fs::remove_dir_all(&self.temporary) } else { fs::remove_file(&self.temporary) };
        }
    }
}

/// Writes a file, and the folders above it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|e| failed("cannot make a folder", parent, &e))?;
    }
    fs::write(path, bytes).map_err(|e| failed("cannot be written", path, &e))
}

/// Writes a file whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let pending = Pending::file(path)?;
    write(pending.path(), bytes)?;
    pending.commit()
}

/// Puts `bytes`, the contents of the file `from` if there is one, at `to`: as a hard link where that is possible.
pub fn link_or_write(from: Option<&Path>, bytes: &[u8], to: &Path) -> Result<()> {
    // A link to a symbolic link would be one itself.
    if let Some(from) = from.and_then(|f| fs::canonicalize(f).ok())
        && fs::hard_link(from, to).is_ok()
    {
        return Ok(());
    }
    write(to, bytes)
}

/// Paths of all files below a folder with `/` between their parts, sorted. Names that begin with a dot are left out.
pub fn list(dir: &Path) -> Result<Vec<String>> {
    let mut out = vec![];
    let mut todo = vec![(dir.to_path_buf(), String::new())];
    while let Some((dir, prefix)) = todo.pop() {
        let unreadable = |e: io::Error| failed("cannot be read", &dir, &e);
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') {
                continue;
            }
            let path = format!("{prefix}{name}");
            if entry.path().is_dir() {
                todo.push((entry.path(), format!("{path}/")));
            } else {
                out.push(path);
            }
        }
    }
    out.sort();
    Ok(out)
}
