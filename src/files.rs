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

/// A path without a slash or dot at its end: such a path would name what a symbolic link leads to rather than the link.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Is the path itself a symbolic link?
pub fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(plain(path)).is_ok_and(|m| m.is_symlink())
}

/// Is there anything at this path, be it a link that leads nowhere?
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(plain(path)).is_ok()
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
        Pending::begin(&plain(target), |temporary| fs::create_dir(temporary))
    }

    /// A new, empty file that is to become `target`, or what `target` leads to if it is a symbolic link. Only a regular file
    /// is ever replaced.
    pub fn file(target: &Path) -> Result<Pending> {
        let mut place = target.to_path_buf();
        if is_link(target) {
            place = fs::canonicalize(target).map_err(|e| failed("this symbolic link leads nowhere", target, &e))?;
        }
        if fs::symlink_metadata(&place).is_ok_and(|m| !m.is_file()) {
            return Err(Diagnostic::new("E0760", "this exists and is not a regular file, so it is not replaced")
                .at(target.display())
                .hint("choose another name"));
        }
        Pending::begin(&place, |temporary| fs::File::create_new(temporary).map(|_| ()))
    }

    fn begin(target: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<Pending> {
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !parent.is_dir() {
            return Err(Diagnostic::new("E0760", "the folder to write to does not exist").at(parent.display()));
        }
        loop {
            let temporary = beside(target, "tmp")?;
            match make(&temporary) {
                Ok(()) => return Ok(Pending { temporary, target: target.to_path_buf(), done: false }),
                // Left behind by a killed process of our number: numbers come again, in containers nearly always.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed("cannot write to this folder", parent, &e)),
            }
        }
    }

    /// Where it is written.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// A diagnostic about what is being written: a person knows it by the name that it is to get.
    pub fn tell(&self, mut d: Diagnostic) -> Diagnostic {
        d.place = d.place.replace(&self.temporary.display().to_string(), &self.target.display().to_string());
        d
    }

    /// Gives it its name. What had the name before is replaced.
    pub fn commit(mut self) -> Result<()> {
        let cannot = |e: io::Error| failed("cannot be put in place", &self.target, &e);
        if self.target.is_dir() && self.temporary.is_dir() {
            let old = loop {
                let old = beside(&self.target, "old")?;
                if !is_there(&old) {
                    break old;
                }
            };
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

/// What stands in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link; it is not followed.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

/// Everything below a folder, with `/` between the parts of a path, sorted.
pub fn list(dir: &Path) -> Result<Vec<(String, Kind)>> {
    let mut out = vec![];
    let mut todo = vec![(dir.to_path_buf(), String::new())];
    while let Some((dir, prefix)) = todo.pop() {
        let unreadable = |e: io::Error| failed("cannot be read", &dir, &e);
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().map_err(unreadable)?;
            let kind = match () {
                () if kind.is_file() => Kind::File,
                () if kind.is_dir() => Kind::Folder,
                () if kind.is_symlink() => Kind::Link,
                () => Kind::Other,
            };
            if kind == Kind::Folder {
                todo.push((entry.path(), format!("{path}/")));
            }
            out.push((path, kind));
        }
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(out)
}
