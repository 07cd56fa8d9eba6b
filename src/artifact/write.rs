//! Writing an artifact.

use super::manifest::{FileEntry, Manifest, ModelEntry, NumericsEntry, OptionsEntry, PlanEntry, TargetEntry};
use super::{FORMAT, GRAPH, MANIFEST, MODEL, plan_file, read};
use crate::VERSION;
use crate::audit::{self, Audit, Subject};
use crate::emit::Code;
use crate::files::{self, Kind, Pending};
use crate::pipeline::{Compiled, Program, Progress};
use crate::stats::PlanStats;
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::plan::Plan;
use models::Checkpoint;
use passes::Pipeline;
use std::collections::BTreeMap;
use std::path::Path;

/// Meaning of the operations of a graph; another number, other bits.
const NUMERICS: u32 = 1;

/// Hash of what decides bits: the graph with its orders, without its stages and launches. Kernels that a person edited may compute
/// anything, so they count too.
pub fn numerics_hash(graph: &Graph, edited: &BTreeMap<String, String>) -> String {
    let mut g = graph.clone();
    g.stages.clear();
    g.launches.clear();
    let mut text = format!("isobit numerics {NUMERICS}\n{}", ir::graph::text::print(&g));
    for (path, hash) in edited.iter().filter(|(path, _)| path.ends_with(".plan")) {
        text += &format!("{path} {hash}\n");
    }
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Writes an artifact. `model` is the folder of the checkpoint's files, to be linked; without `with_model` they are left out.
/// An artifact that stands there already is replaced, anything else is not touched.
pub fn write(
    target: &Path,
    compiled: &Compiled,
    ck: &Checkpoint,
    model: Option<&Path>,
    with_model: bool,
    progress: Progress,
) -> Result<Manifest> {
    check_place(target)?;
    let folder = Pending::folder(target)?;
    let manifest = fill(folder.path(), compiled, ck, model, with_model, progress).map_err(|d| folder.tell(d))?;
    check_place(target)?; // again: time has passed
    folder.commit()?;
    Ok(manifest)
}

/// Writes the files of an artifact to a folder.
fn fill(
    folder: &Path,
    compiled: &Compiled,
    ck: &Checkpoint,
    model: Option<&Path>,
    with_model: bool,
    progress: Progress,
) -> Result<Manifest> {
    let mut entries = BTreeMap::new();
    let mut parts = parts(compiled);
    if with_model {
        // Entries of the cache are looked at by nobody.
        parts.insert(audit::FILE.to_string(), Audit::of(&Subject::of(compiled))?.json().into_bytes());
    }
    for (path, bytes) in parts {
        files::write(&folder.join(&path), &bytes)?;
        entries.insert(path, FileEntry::of(&bytes));
    }
    let mut inputs = BTreeMap::new();
    if with_model {
        let count = ck.files().count();
        for (i, (name, bytes, blake3)) in ck.file_hashes().enumerate() {
            progress("checkpoint", i, count);
            let to = folder.join(MODEL).join(name);
            if i == 0 {
                files::write(&to, &[])?; // makes the folder
                std::fs::remove_file(&to).map_err(|e| files::failed("cannot be removed", &to, &e))?;
            }
            files::link_or_write(model.map(|m| m.join(name)).as_deref(), ck.file(name).unwrap_or_default(), &to)?;
            let entry = FileEntry { bytes, blake3 };
            entries.insert(format!("{MODEL}/{name}"), entry.clone());
            inputs.insert(name.to_string(), entry);
        }
    }
    let hashes = || inputs.iter().map(|(name, f)| (name, f.bytes, &f.blake3));
    let model = ModelEntry {
        family: "gemma4".into(),
        weights: ModelEntry::weights_of(ck.random()),
        table_hash: ck.table_hash(),
        content_hash: with_model.then(|| models::checkpoint::content_hash(hashes())),
        files: inputs.clone(),
        included: with_model,
    };
    let stats = |p: &Program| {
        let entry = |plan: &Plan, prefill| PlanEntry {
            schedule: compiled.options.schedule(p.target.class(), prefill).to_string(),
            stats: PlanStats::new(plan, ck),
        };
        TargetEntry {
            name: p.target.name().into(),
            folder: p.target.folder(),
            assembler: match &p.code {
                Code::Gpu(code) => code.machine.as_ref().map(|m| m.assembler.clone()),
                _ => None,
            },
            decode: entry(&p.plans.decode, false),
            prefill: p.plans.prefill.as_ref().map(|plan| entry(plan, true)),
        }
    };
    let manifest = Manifest {
        format: FORMAT,
        isobit: VERSION.into(),
        model,
        options: OptionsEntry::of(&compiled.options),
        pipeline: Pipeline::full().to_string(),
        numerics: NumericsEntry::of(&compiled.options, numerics_hash(&compiled.planned.graph, &compiled.options.edited)),
        targets: compiled.programs.iter().map(stats).collect(),
        files: entries,
        checksum: String::new(),
    };
    files::write(&folder.join(MANIFEST), manifest.text().as_bytes())?;
    Ok(manifest)
}

/// Everything but the checkpoint and the manifest, by path.
fn parts(compiled: &Compiled) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    out.insert(GRAPH.to_string(), ir::graph::text::print(&compiled.planned.graph).into_bytes());
    for p in &compiled.programs {
        let folder = p.target.folder();
        for (phase, plan) in p.plans.plans() {
            out.insert(format!("{folder}/{}", plan_file(phase)), ir::plan::text::print(plan).into_bytes());
        }
        for (i, k) in p.plans.kernels().into_iter().enumerate() {
            out.insert(format!("{folder}/kernels/{}.kir", k.name), ir::kernel::text::print(k).into_bytes());
            if let Code::Gpu(code) = &p.code {
                out.insert(format!("{folder}/kernels/{}.ptx", k.name), code.ptx[i].clone().into_bytes());
                if let Some(m) = &code.machine {
                    out.insert(format!("{folder}/kernels/{}.cubin", k.name), m.cubins[i].clone());
                }
            }
        }
        if let Code::Host(object) = &p.code {
            out.insert(format!("{folder}/kernels.o"), object.clone());
        }
    }
    out
}

/// Refuses to replace anything but an artifact with nothing else in its folder, and to write where that is not possible.
pub fn check_place(target: &Path) -> Result<()> {
    let refused = |what: &str, at: &Path| {
        Err(Diagnostic::new("E0761", what).at(at.display()).hint("choose another name, or remove it first"))
    };
    if files::is_link(target) {
        return refused("this is a symbolic link, so it is not replaced", target);
    }
    if files::is_there(target) {
        let Some(listed) = read::listed(target) else {
            return refused("this exists and is not an artifact, so it is not replaced", target);
        };
        let ours = |(path, kind): &(String, Kind)| match kind {
            Kind::File => path == MANIFEST || listed.contains(path),
            Kind::Folder => read::holds(&listed, path),
            Kind::Link | Kind::Other => false,
        };
        if let Some((foreign, _)) = files::list(target)?.iter().find(|e| !ours(e)) {
            return refused("this does not belong to the artifact, so the folder is not replaced", &target.join(foreign));
        }
    }
    // Told now rather than after the work.
    Pending::folder(target).map(|_| ())
}
