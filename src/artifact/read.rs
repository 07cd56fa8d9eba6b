//! Opening an artifact: its manifest, and that the files that it lists are there and no others. A file's hash is looked at when the
//! file is read, so a run pays for what it uses: its own target's program, and the checkpoint. [`Artifact::check`] looks at all.

use super::manifest::{FileEntry, Manifest};
use super::{FORMAT, GRAPH, MANIFEST, MODEL, plan_file};
use crate::VERSION;
use crate::emit::{Code, GpuCode, Machine};
use crate::files::{self, Kind};
use crate::pipeline::{Program, Progress, first};
use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use ir::plan::phases::Phases;
use models::Checkpoint;
use models::hash::hash_file;
use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// An opened artifact.
#[derive(Clone, Debug)]
pub struct Artifact {
    dir: PathBuf,
    manifest: Manifest,
}

/// Are the bodies of kernels read? Only who interprets or judges them needs more than what a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Yes, and verified.
    Read,
    /// Kernels have none.
    Left,
}

const OTHER_HASH: &str = "its hash is another";

/// Is there an artifact here, damaged or not? A checkpoint may have a manifest of its own.
pub fn is_artifact(dir: &Path) -> bool {
    let has = |name: &str| files::is_there(&dir.join(name));
    dir.is_dir()
        && (listed(dir).is_some()
            || !has("config.json") && (has(MANIFEST) || has(GRAPH) || dir.extension().is_some_and(|e| e == "isobit")))
}

/// Paths of the files that the manifest in this folder lists, if it is one of isobit, of whatever version.
pub(super) fn listed(dir: &Path) -> Option<BTreeSet<String>> {
    let path = dir.join(MANIFEST);
    if !fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
        return None;
    }
    let value: serde_json::Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
    value.get("format")?.as_u64()?;
    value.get("isobit")?.as_str()?;
    Some(value.get("files")?.as_object()?.keys().cloned().collect())
}

/// Is one of these paths in this folder?
pub(super) fn holds(listed: &BTreeSet<String>, folder: &str) -> bool {
    let below = format!("{folder}/");
    listed.range(below.clone()..).next().is_some_and(|first| first.starts_with(&below))
}

impl Artifact {
    /// Opens an artifact: the manifest is checked, and of every file that it is there and has its length.
    pub fn open(dir: &Path) -> Result<Artifact> {
        let manifest = manifest(dir)?;
        let listed: BTreeSet<String> = manifest.files.keys().cloned().collect();
        let looked_at = |path: &str| !path.split('/').any(|part| part.starts_with('.'));
        for (path, kind) in files::list(dir)?.into_iter().filter(|(path, _)| looked_at(path)) {
            let (ours, what) = match kind {
                Kind::Folder => (holds(&listed, &path), "folder"),
                // A link in place of a folder of ours is no folder.
                Kind::Link if holds(&listed, &path) => return Err(changed(&dir.join(path), "it is a symbolic link")),
                _ => (path == MANIFEST || listed.contains(&path), "file"),
            };
            if !ours {
                return Err(Diagnostic::new("E0765", format!("this {what} does not belong to the artifact"))
                    .at(dir.join(path).display())
                    .hint("remove it, or compile the model again"));
            }
        }
        for (path, entry) in &manifest.files {
            present(&dir.join(path), path, entry)?;
        }
        Ok(Artifact { dir: dir.into(), manifest })
    }

    /// Checks every file.
    pub fn check(&self, progress: Progress) -> Result<()> {
        self.hashes("", progress)
    }

    /// Checks the files whose paths begin like this.
    fn hashes(&self, start: &str, progress: Progress) -> Result<()> {
        let files: Vec<_> = self.manifest.files.iter().filter(|(path, _)| path.starts_with(start)).collect();
        for (i, (path, entry)) in files.iter().enumerate() {
            progress("checking the artifact", i, files.len());
            hash_is(&self.dir.join(path), entry)?;
        }
        progress("checking the artifact", files.len(), files.len());
        Ok(())
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The checkpoint inside, its files checked.
    pub fn checkpoint(&self, progress: Progress) -> Result<Checkpoint> {
        if !self.manifest.model.included {
            return Err(Diagnostic::new("E0762", "this artifact holds no checkpoint: it is an entry of a cache")
                .at(self.dir.display())
                .hint("run the model itself"));
        }
        self.hashes(&format!("{MODEL}/"), progress)?;
        let dir = self.dir.join(MODEL);
        match self.manifest.model.seed() {
            Some(seed) => Checkpoint::with_random_weights(&dir, seed),
            None => Checkpoint::open(&dir),
        }
    }

    /// Targets of the programs inside, in order.
    pub fn targets(&self) -> Vec<Target> {
        self.manifest.targets.iter().filter_map(|t| Target::parse(&t.name).ok()).collect()
    }

    /// The program for this machine: of this target, or the best that runs here. Its code is what runs, so its kernels have no
    /// bodies.
    pub fn program(&self, target: Option<Target>) -> Result<Program> {
        let have: Vec<&str> = self.manifest.targets.iter().map(|t| t.name.as_str()).collect();
        let hint = format!("it holds {}; compile it with another `--target`", have.join(", "));
        let found = match target {
            Some(t) => self.targets().into_iter().find(|x| *x == t),
            None => self.targets().into_iter().rev().find(|t| t.runs_here()),
        };
        match (found, target) {
            (Some(t), _) if t.class() == Class::Host && !t.runs_here() => Err(t.refused_here().hint(hint)),
            (Some(t), _) => self.load(t, Bodies::Left),
            (None, Some(t)) => Err(Diagnostic::new("E0754", format!("there is no program for `{}` in this artifact", t.name()))
                .at(self.dir.display())
                .hint(hint)),
            (None, None) => Err(Diagnostic::new("E0754", format!("no program in this artifact runs on this machine ({ARCH})"))
                .at(self.dir.display())
                .hint(hint)),
        }
    }

    /// The kernels of any program, to be interpreted.
    pub fn interpreted(&self) -> Result<Program> {
        let all = self.targets();
        let Some(&target) = all.iter().find(|t| t.class() == Class::Host).or(all.first()) else {
            return Err(Diagnostic::new("E0754", "there is no program in this artifact").at(self.dir.display()));
        };
        Ok(Program { target, plans: Arc::new(self.plans(target, Bodies::Read)?), code: Code::Kernels })
    }

    /// The program for a target, be it for this machine or not: to be looked at.
    pub fn any_program(&self, target: Target) -> Result<Program> {
        if self.targets().contains(&target) { self.load(target, Bodies::Read) } else { self.program(Some(target)) }
    }

    fn load(&self, target: Target, bodies: Bodies) -> Result<Program> {
        let plans = Arc::new(self.plans(target, bodies)?);
        let folder = target.folder();
        let code = match target.class() {
            Class::Host => Code::Host(self.read(&format!("{folder}/kernels.o"))?),
            Class::Gpu => {
                let kernels = plans.kernels();
                let file = |k: &ir::kernel::Kernel, end: &str| format!("{folder}/kernels/{}.{end}", k.name);
                let ptx = kernels.iter().map(|k| self.text(&file(k, "ptx"))).collect::<Result<_>>()?;
                let assembler = self.manifest.targets.iter().find(|t| t.name == target.name()).and_then(|t| t.assembler.clone());
                let machine = match assembler {
                    Some(assembler) => {
                        let cubins = kernels.iter().map(|k| self.read(&file(k, "cubin"))).collect::<Result<_>>()?;
                        Some(Machine { assembler, cubins })
                    }
                    None => None,
                };
                Code::Gpu(GpuCode { ptx, machine })
            }
        };
        Ok(Program { target, plans, code })
    }

    /// The graph after all passes over graphs, verified.
    pub fn graph(&self) -> Result<ir::graph::Graph> {
        let broken = |all: Vec<Diagnostic>| {
            let d = first(all);
            let place = format!("{}: {}", self.dir.join(GRAPH).display(), d.place);
            Diagnostic::new("E0766", format!("{} {}", d.code, d.message)).at(place).hint("compile the model again")
        };
        let graph = ir::graph::text::parse(&self.text(GRAPH)?).map_err(broken)?;
        ir::graph::verify::verify(&graph).map_err(broken)?;
        Ok(graph)
    }

    /// The plans of a program, verified: a device runs them as they are.
    pub fn plans(&self, target: Target, bodies: Bodies) -> Result<Phases> {
        let entry = self.manifest.targets.iter().find(|t| t.name == target.name());
        let prefill = entry.is_some_and(|t| t.prefill.is_some()).then(|| self.plan(target, "prefill", bodies)).transpose()?;
        let plans = Phases { decode: self.plan(target, "decode", bodies)?, prefill };
        plans.check().map_err(|d| {
            Diagnostic::new("E0766", format!("{} {}", d.code, d.message)).at(self.dir.display()).hint("compile the model again")
        })?;
        Ok(plans)
    }

    /// A plan with its kernels, verified.
    fn plan(&self, target: Target, phase: &str, bodies: Bodies) -> Result<ir::plan::Plan> {
        let folder = target.folder();
        let path = format!("{folder}/{}", plan_file(phase));
        let broken = |all: Vec<Diagnostic>, path: &str| {
            let d = first(all);
            if d.code.starts_with("E07") {
                return d; // about a kernel's file, whose place it names
            }
            let place = self.dir.join(path).display().to_string();
            let place = if d.place.is_empty() { place } else { format!("{place}: {}", d.place) };
            Diagnostic::new("E0766", format!("{} {}", d.code, d.message)).at(place).hint("compile the model again")
        };
        let mut kernel = |name: &str| -> Result<ir::kernel::Kernel> {
            let path = format!("{folder}/kernels/{name}.kir");
            let text = self.text(&path)?;
            let parse = match bodies {
                Bodies::Read => ir::kernel::text::parse,
                Bodies::Left => ir::kernel::text::parse_head,
            };
            let k = parse(&text).map_err(|e| broken(e, &path))?;
            ir::kernel::verify::verify(&k).map_err(|e| broken(e, &path))?;
            Ok(k)
        };
        let plan = ir::plan::text::parse(&self.text(&path)?, &mut kernel).map_err(|e| broken(e, &path))?;
        ir::plan::verify::verify(&plan, &[]).map_err(|e| broken(e, &path))?;
        Ok(plan)
    }

    /// A file that the manifest lists, with its hash.
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let full = self.dir.join(path);
        let Some(entry) = self.manifest.files.get(path) else {
            return Err(Diagnostic::new("E0765", "the manifest does not list this file").at(full.display()));
        };
        let bytes = fs::read(&full).map_err(|e| files::failed("cannot be read", &full, &e))?;
        if FileEntry::of(&bytes) != *entry {
            return Err(changed(&full, OTHER_HASH));
        }
        Ok(bytes)
    }

    /// The same, as text.
    pub fn text(&self, path: &str) -> Result<String> {
        String::from_utf8(self.read(path)?)
            .map_err(|_| Diagnostic::new("E0766", "this file is not text").at(self.dir.join(path).display()))
    }
}

/// The manifest, if its version is ours and nothing in it was changed.
fn manifest(dir: &Path) -> Result<Manifest> {
    let path = dir.join(MANIFEST);
    regular(&path)?;
    let text = match fs::read_to_string(&path) {
        Ok(t) => t,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Diagnostic::new("E0762", "this is not an artifact: it has no manifest.json")
                .at(dir.display())
                .hint("compile the model again"));
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(changed(&path, "it is not UTF-8")),
        Err(e) => return Err(files::failed("cannot be read", &path, &e)),
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| changed(&path, &e.to_string()))?;
    let again = "compile the model again with this version";
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(f) if f == u64::from(FORMAT) => {}
        Some(f) => {
            let message = format!("the artifact has format {f}, this isobit reads format {FORMAT}");
            return Err(Diagnostic::new("E0763", message).at(path.display()).hint(again));
        }
        None => {
            return Err(
                Diagnostic::new("E0762", "this is not the manifest of an artifact: it has no `format`").at(path.display())
            );
        }
    }
    let m = Manifest::parse(&text).map_err(|e| changed(&path, &e))?;
    if m.isobit != VERSION {
        let message = format!("the artifact was made by isobit {}, this is {VERSION}", m.isobit);
        return Err(Diagnostic::new("E0763", message).at(path.display()).hint(again));
    }
    let normal = |p: &String| !p.is_empty() && Path::new(p).components().all(|c| matches!(c, Component::Normal(_)));
    if let Some(bad) = m.files.keys().find(|p| !normal(p)) {
        return Err(changed(&path, &format!("it lists the path {bad:?}")));
    }
    Ok(m)
}

fn changed(path: &Path, why: &str) -> Diagnostic {
    Diagnostic::new("E0764", format!("this file is not what isobit wrote: {why}"))
        .at(path.display())
        .hint("it was changed or damaged: compile the model again")
}

/// Refuses what is there and is no file: a link may lead anywhere, and a pipe may never end.
fn regular(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_symlink() => Err(changed(path, "it is a symbolic link")),
        Ok(m) if !m.is_file() => Err(changed(path, "it is not a regular file")),
        _ => Ok(()),
    }
}

/// Refuses a file that is not there or has another length.
fn present(full: &Path, path: &str, entry: &FileEntry) -> Result<()> {
    regular(full)?;
    let found = fs::symlink_metadata(full).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Diagnostic::new("E0765", format!("the artifact lacks its file {path}"))
            .at(full.display())
            .hint("compile the model again"),
        _ => files::failed("cannot be read", full, &e),
    })?;
    if found.len() != entry.bytes {
        return Err(changed(full, &format!("it has {} bytes, expected {}", found.len(), entry.bytes)));
    }
    Ok(())
}

/// Refuses a file that has another hash.
fn hash_is(full: &Path, entry: &FileEntry) -> Result<()> {
    let found = fs::File::open(full).and_then(|file| hash_file(&file));
    let (_, hash) = found.map_err(|e| files::failed("cannot be read", full, &e))?;
    if hash != entry.blake3 { Err(changed(full, OTHER_HASH)) } else { Ok(()) }
}
