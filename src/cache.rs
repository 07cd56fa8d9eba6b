//! The cache of compiled models: `isobit run MODEL` compiles once. An entry is an artifact without its checkpoint, under a
//! key of everything that decides its contents: the checkpoint's configuration and table of tensors, the options, the target,
//! and the build of isobit. No program depends on the numbers in the tensors, so they are not read for it.

use crate::artifact::{self, Artifact};
use crate::options::CompileOptions;
use crate::pipeline::{Compiled, Progress};
use crate::target::Target;
use crate::{VERSION, files};
use ir::diag::{Diagnostic, Result};
use models::Checkpoint;
use std::path::{Path, PathBuf};

/// Names this build: a hash over all sources.
const BUILD: &str = env!("ISOBIT_BUILD");

/// A folder of entries.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// What a cache says of a key.
pub enum Lookup {
    /// An entry; its files are checked as they are read.
    Hit(Box<Artifact>),
    /// Nothing is there.
    Miss,
    /// Something is there and cannot be used.
    Damaged(Diagnostic),
}

impl Cache {
    /// The user's cache, or this folder. None if the user has no home.
    pub fn locate(dir: Option<&Path>) -> Option<Cache> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let dir = match dir {
            Some(d) => d.to_path_buf(),
            None => absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|h| h.join(".cache")))?.join("isobit"),
        };
        Some(Cache { dir })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The key of a program.
    pub fn key(table_hash: &str, options: &CompileOptions, target: Target) -> String {
        let format = artifact::FORMAT;
        let text = format!("{table_hash}\n{VERSION} {BUILD} {format}\n{}\n{}\n", options.text(), target.name());
        blake3::hash(text.as_bytes()).to_hex()[..40].to_string()
    }

    fn entry(&self, key: &str) -> PathBuf {
        self.dir.join(key)
    }

    /// Looks for an entry.
    pub fn get(&self, key: &str) -> Lookup {
        let path = self.entry(key);
        if !path.exists() {
            return Lookup::Miss;
        }
        match Artifact::open(&path) {
            Ok(a) => Lookup::Hit(Box::new(a)),
            Err(d) => Lookup::Damaged(d),
        }
    }

    /// Writes an entry, in place of a damaged one if there is any.
    pub fn put(&self, key: &str, compiled: &Compiled, ck: &Checkpoint, progress: Progress) -> Result<()> {
        std::fs::create_dir_all(&self.dir).map_err(|e| files::failed("cannot make the cache folder", &self.dir, &e))?;
        let path = self.entry(key);
        if files::is_there(&path) && artifact::check_place(&path).is_err() {
            // Nobody else writes names like this one: it is an entry that was damaged.
            let folder = path.is_dir() && !files::is_link(&path);
            let removed = if folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(|e| files::failed("cannot be removed", &path, &e))?;
        }
        artifact::write(&path, compiled, ck, None, false, progress).map(|_| ())
    }
}
