//! `isobit compile`: a checkpoint becomes an artifact; or, without `-o`, something to look at.

use super::{Stop, resolve};
use crate::args::CompileArgs;
use crate::artifact;
use crate::files::{self, Kind, Pending};
use crate::from_ir::{self, Folder};
use crate::options::CompileOptions;
use crate::pipeline::{self, Compiled, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::stats;
use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use std::path::Path;
use std::time::Instant;

/// Is there something to look at?
fn looks(args: &CompileArgs) -> bool {
    args.stats || args.time_passes || args.dump_dir.is_some() || args.print_ir_after.is_some()
}

/// The options, if nothing on the command line contradicts itself.
pub(super) fn check(args: &CompileArgs) -> Result<CompileOptions> {
    let o = resolve(&args.build, Target::parse_list(&args.target)?)?;
    if args.output.is_none() && !looks(args) && !args.print_options {
        return Err(Diagnostic::new("E0750", "there is nothing to do: no output is named")
            .hint("name an artifact to write, `-o NAME.isobit`, or ask for `--stats`"));
    }
    if let Some(pass) = &args.print_ir_after {
        passes::Manager::default().find(pass).map_err(|d| d.at("--print-ir-after"))?;
    }
    Ok(o)
}

/// Runs it.
pub fn run(args: &CompileArgs, p: &mut Printer) -> Result<(), Stop> {
    let o = check(args)?;
    if args.print_options {
        p.data(&super::options::text(&args.build, &o))?;
    }
    if args.output.is_none() && !looks(args) {
        return Ok(());
    }
    if let Some(output) = &args.output {
        artifact::check_place(output)?;
    }
    if let Some(dir) = &args.dump_dir {
        check_dumps(dir)?;
    }
    let reproducer_file = args.reproducer.as_deref().map(Pending::file).transpose()?;
    let source = Source::of(&args.model);
    let start = Instant::now();
    let ck = super::checkpoint(&source, args.build.weights, p)?;
    let classes: Vec<Class> = Class::ALL.into_iter().filter(|c| o.targets.iter().any(|t| t.class() == *c)).collect();

    let mut o = o;
    let edited = match &args.from_ir {
        None => None,
        Some(dir) => {
            let folder = Folder::read(dir)?;
            let mut watch = Watch { dump: true, ..Watch::default() };
            let planned = pipeline::plan(&ck, &o, &classes, &mut watch)?;
            let edits = folder.edits(&watch.dumps)?;
            if edits.is_empty() {
                let same = Diagnostic::new("E0829", "nothing in this folder differs from what the passes make").at(dir.display());
                p.warning(&same.hint("edit a file of it, to see what comes of that"));
            }
            o.edited = edits.hashes();
            Some((edits, planned.graph))
        }
    };
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch {
        edits: edited.as_ref().map(|e| e.0.clone()).unwrap_or_default(),
        dump: args.dump_dir.is_some(),
        print_after: args.print_ir_after.iter().cloned().collect(),
        progress: Some(&mut progress),
        ..Watch::default()
    };
    let result = match &args.output {
        Some(_) => pipeline::compile(&ck, &o, &mut watch),
        None => pipeline::plan(&ck, &o, &classes, &mut watch).map(|planned| Compiled {
            options: o.clone(),
            planned,
            programs: vec![],
        }),
    };
    let last_decision = watch.last_decision();
    let Watch { dumps, printed, times, reproducer, without_cubins, .. } = watch;
    without_cubins.iter().for_each(|d| p.warning(d));
    if let Some(dir) = &args.dump_dir {
        // Also of passes that failed, to see what they made.
        write_dumps(dir, &dumps)?;
        p.message(&format!("wrote {} dumps to {}", dumps.len(), dir.display()));
    }
    let compiled = match result {
        Ok(mut c) => {
            if let Some((_, was)) = &edited {
                c.planned.pinned.extend(from_ir::pinned_by_edit(&c.planned.graph, was));
            }
            c
        }
        Err(d) => {
            if let (Some(file), Some(pending), Some(text)) = (&args.reproducer, reproducer_file, reproducer) {
                files::write(pending.path(), text.as_bytes())?;
                pending.commit()?;
                p.message(&format!("what makes it fail again is in {}", file.display()));
            }
            return Err(d.into());
        }
    };
    for (_, text) in &printed {
        p.data(text)?;
    }
    if args.stats {
        let table = stats::table(&ck, &o, &classes)?;
        p.data(&table)?;
        if o.passes.pass_limit.is_some() {
            p.line(&format!("\n{last_decision}"))?;
        }
    }
    if args.time_passes {
        if o.passes.pass_limit.is_some() && !args.stats {
            p.message(&last_decision);
        }
        let total: u64 = times.iter().map(|(_, t)| t).sum();
        for (what, t) in times.iter().chain(&[("total".to_string(), total)]) {
            p.message(&format!("{:>10.3} ms {:>5.1} % {what}", *t as f64 / 1e6, 100.0 * *t as f64 / total.max(1) as f64));
        }
    }
    if let Some(output) = &args.output {
        let folder = source.folder();
        let manifest =
            artifact::write(output, &compiled, &ck, folder.as_deref(), true, &mut |what, done, of| p.progress(what, done, of))?;
        let seconds = start.elapsed().as_secs_f64();
        for t in &manifest.targets {
            let s = t.decode.stats;
            let assembled = t.assembler.as_ref().map_or(String::new(), |a| format!(", machine code by {a}"));
            p.message(&format!("{:<16} {} kernels per token, {} distinct{assembled}", t.name, s.launches, s.kernels));
        }
        let hash = &manifest.numerics.hash[..16];
        if !o.edited.is_empty() {
            let files: Vec<&str> = o.edited.keys().map(String::as_str).collect();
            p.message(&format!("went on from the edited {}; `isobit audit` judges what came of it", files.join(", ")));
        }
        p.message(&format!("wrote {} in {seconds:.2} s, numerics {hash}", output.display()));
    }
    Ok(())
}

/// Refuses to replace anything but a folder of dumps, or an empty one.
fn check_dumps(dir: &Path) -> Result<()> {
    let dumps = |(path, kind): &(String, Kind)| match kind {
        Kind::File => path.ends_with(".graph") || path.ends_with(".plan") || path.ends_with("index.txt"),
        Kind::Folder => true,
        Kind::Link | Kind::Other => false,
    };
    if files::is_there(dir) && (files::is_link(dir) || !dir.is_dir() || !files::list(dir)?.iter().all(dumps)) {
        return Err(Diagnostic::new("E0761", "this exists and is not a dump folder, so it is not replaced")
            .at(dir.display())
            .hint("choose another name, or remove it first"));
    }
    Pending::folder(dir).map(|_| ())
}

/// Writes a dump folder, new or in place of one that a compilation wrote before.
fn write_dumps(dir: &Path, dumps: &[(String, String)]) -> Result<()> {
    check_dumps(dir)?;
    let folder = Pending::folder(dir)?;
    for (file, text) in dumps {
        files::write(&folder.path().join(file), text.as_bytes()).map_err(|d| folder.tell(d))?;
    }
    folder.commit()
}
