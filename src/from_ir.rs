//! Going on from an edited dump: `isobit compile MODEL --from-ir FOLDER`. The model is compiled anew to see which files of the
//! folder a person has changed; each stands for the module behind its pass, and the passes after it run on that. So a graph
//! is lowered anew, and kernels go straight to codegen. Nothing is taken that the verifiers refuse.

use crate::audit::reductions::{Pinned, pinned};
use crate::files::{self, Kind};
use crate::opt::{self, Input};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use passes::{Module, Pipeline};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Larger folders are no dumps.
const MOST: u64 = 1 << 30;

/// A folder of dumps.
pub struct Folder {
    dir: PathBuf,
    /// By path.
    texts: BTreeMap<String, String>,
}

/// What was edited of a folder.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    dir: PathBuf,
    texts: BTreeMap<String, String>,
}

impl Folder {
    /// Reads the graphs and plans of a folder.
    pub fn read(dir: &Path) -> Result<Folder> {
        if !dir.is_dir() {
            return Err(Diagnostic::new("E0829", "there is no folder of dumps")
                .at(dir.display())
                .hint("`isobit compile MODEL --dump-dir FOLDER` writes one"));
        }
        let (mut texts, mut bytes) = (BTreeMap::new(), 0);
        for (path, kind) in files::list(dir)? {
            if kind != Kind::File || !(path.ends_with(".graph") || path.ends_with(".plan")) {
                continue;
            }
            let full = dir.join(&path);
            bytes += full.metadata().map_or(0, |m| m.len());
            if bytes > MOST {
                return Err(Diagnostic::new("E0829", format!("more than {MOST} bytes; no dumps are so large")).at(dir.display()));
            }
            let read = std::fs::read(&full).map_err(|e| files::failed("cannot be read", &full, &e))?;
            let text =
                String::from_utf8(read).map_err(|_| Diagnostic::new("E0829", "this dump is not UTF-8").at(full.display()))?;
            texts.insert(path, text);
        }
        if texts.is_empty() {
            return Err(Diagnostic::new("E0829", "no dump is in this folder")
                .at(dir.display())
                .hint("dumps are files like 060-pin-reductions.graph and host/020-lower.plan"));
        }
        Ok(Folder { dir: dir.into(), texts })
    }

    /// What differs from the dumps that this compilation writes.
    pub fn edits(self, fresh: &[(String, String)]) -> Result<Edits> {
        let fresh: BTreeMap<&str, &str> = fresh.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        let mut out = Edits { dir: self.dir, texts: BTreeMap::new() };
        for (path, text) in self.texts {
            match fresh.get(path.as_str()) {
                Some(f) if *f == text => {}
                Some(_) => _ = out.texts.insert(path, text),
                None => {
                    return Err(Diagnostic::new("E0829", "no pass of this compilation writes this file")
                        .at(out.dir.join(path).display())
                        .hint("give the options and targets with which it was dumped; new files can't be added"));
                }
            }
        }
        // A pass runs over one module: an edit before another would be lost.
        let paths: Vec<&String> = out.texts.keys().collect();
        for (i, a) in paths.iter().enumerate() {
            let folder = |p: &str| p.rsplit_once('/').map_or(String::new(), |(f, _)| format!("{f}/"));
            let graphs = folder(a).is_empty();
            if let Some(b) = paths[i + 1..].iter().find(|b| graphs || folder(a) == folder(b)) {
                return Err(Diagnostic::new(
                    "E0829",
                    format!("{a} and {b} differ from what the passes make, and one follows from the other"),
                )
                .at(out.dir.display())
                .hint("edit one of them; if many differ, give the options with which the folder was dumped"));
            }
        }
        Ok(out)
    }
}

impl Edits {
    /// Texts by path, for modules of the passes that wrote files of these names; `dir` is where errors say that they are.
    pub fn of(dir: &Path, texts: BTreeMap<String, String>) -> Edits {
        Edits { dir: dir.into(), texts }
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Paths and hashes of what was edited, for the manifest.
    pub fn hashes(&self) -> BTreeMap<String, String> {
        self.texts.iter().map(|(p, t)| (p.clone(), blake3::hash(t.as_bytes()).to_hex().to_string())).collect()
    }

    /// Puts an edited module in place of the one that a pipeline begins with, and drops the passes before it. `class` is that of
    /// passes over plans. All faults of the text, in order.
    pub fn apply(&self, class: &str, module: &mut Module, pipeline: &mut Pipeline) -> Result<(), Vec<Diagnostic>> {
        let folder = if class.is_empty() { String::new() } else { format!("{class}/") };
        let ours =
            |path: &str| path.strip_prefix(&folder).filter(|f| !f.contains('/')).and_then(|f| f.get(..3)?.parse::<usize>().ok());
        let Some((path, text, number)) = self.texts.iter().find_map(|(p, t)| Some((p, t, ours(p)?))) else { return Ok(()) };
        let file = self.dir.join(path).display().to_string();
        match opt::read(text, &file)? {
            Input::Graph(g) => *module = Module::new(g),
            Input::Plan(p) => module.plan = Some(p),
            Input::Kernels(_) => return Err(vec![Diagnostic::new("E0829", "these are kernels without a plan").at(file)]),
        }
        pipeline.entries.drain(..(number / 10).min(pipeline.entries.len()));
        Ok(())
    }
}

/// Who fixed the orders of a graph that was edited: where they differ from those of the graph as it was, the edited dump.
pub fn pinned_by_edit(edited: &Graph, was: &Graph) -> BTreeMap<String, Pinned> {
    let order = |g: &Graph, name: &str| g.by_name(name).map(|id| g.node(id).op.clone());
    pinned(edited).into_keys().filter(|n| order(edited, n) != order(was, n)).map(|n| (n, Pinned::EditedDump)).collect()
}
