//! `isobit audit`: can a program give other bits, and where? Of an artifact, of a checkpoint that is compiled for it, or of a
//! text of code. Exit code 0: the promise holds; 1: it does not; 2: something could not be looked at.

use super::{Stop, resolve};
use crate::args::AuditArgs;
use crate::artifact::{Artifact, OptionsEntry};
use crate::audit::{Audit, FILE, Subject, code, reductions::Pinned, text};
use crate::pipeline::{self, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::Target;
use ir::diag::{Diagnostic, Result};
use passes::Level;
use runtime::assembler::Cubins;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// The code of the diagnostic that a promise does not hold, for which the exit code is 1.
pub const BROKEN: &str = "E0826";

/// Checks the options before any file is read.
pub(super) fn check(args: &AuditArgs) -> Result<Option<Level>> {
    resolve(&args.build, targets(args)?)?;
    let level = |name: &String| {
        Level::parse(name).ok_or_else(|| {
            Diagnostic::new("E0750", format!("there is no level `{name}`")).at("--level").hint("levels are off, run, portable")
        })
    };
    args.level.as_ref().map(level).transpose()
}

fn targets(args: &AuditArgs) -> Result<Vec<Target>> {
    args.target.as_deref().map_or(Ok(vec![]), Target::parse_list)
}

/// Runs it.
pub fn run(args: &AuditArgs, p: &mut Printer) -> Result<(), Stop> {
    let level = check(args)?;
    let path = Path::new(&args.model);
    match path.extension().and_then(|e| e.to_str()) {
        Some(form @ ("ptx" | "s")) if path.is_file() => return listing(path, form, level.unwrap_or_default(), args, p),
        _ => {}
    }
    let (audit, compiled_for) = match Source::of(&args.model) {
        Source::Artifact(dir) => artifact(&dir, args, p)?,
        source => model(&source, args, p)?,
    };
    let level = level.unwrap_or(compiled_for);
    let show = text::Show { verbose: args.verbose, only: args.only.clone() };
    if args.json {
        p.data(&audit.json())?
    } else {
        p.data(&text::text(&audit, level, &show))?
    }
    end(level, audit.broken(level).count())
}

/// The end, as an exit code.
fn end(level: Level, broken: usize) -> Result<(), Stop> {
    if broken == 0 {
        return Ok(());
    }
    let things = if broken == 1 { "one thing breaks".into() } else { format!("{broken} things break") };
    Err(Diagnostic::new(BROKEN, format!("{things} the promise of `{}`", level.name())).into())
}

/// A program that stands in an artifact.
fn artifact(dir: &Path, args: &AuditArgs, p: &mut Printer) -> Result<(Audit, Level)> {
    let artifact = Artifact::open(dir)?;
    artifact.check(&mut |what, done, of| p.progress(what, done, of))?;
    let m = artifact.manifest();
    let recorded: Audit = serde_json::from_str(&artifact.text(FILE)?).map_err(|e| {
        Diagnostic::new("E0828", format!("this is not the audit of an artifact: {e}"))
            .at(dir.join(FILE).display())
            .hint("compile the model again")
    })?;
    let asked = targets(args)?;
    let all = if asked.is_empty() { artifact.targets() } else { asked };
    let programs = all.into_iter().map(|t| artifact.any_program(t)).collect::<Result<Vec<_>>>()?;
    let pinned: BTreeMap<String, Pinned> = recorded
        .reductions
        .iter()
        .filter(|r| matches!(r.pinned_by, Pinned::Model | Pinned::EditedDump))
        .map(|r| (r.value.clone(), r.pinned_by))
        .collect();
    let graph = artifact.graph()?;
    let audit = Audit::of(&Subject {
        graph: &graph,
        pinned: &pinned,
        options: m.options.clone(),
        programs: &programs,
        recorded: Some(&recorded),
    })?;
    if audit.numerics != m.numerics.hash {
        return Err(Diagnostic::new("E0828", "the numerics of the graph are not those that the manifest names")
            .at(dir.display())
            .hint("compile the model again"));
    }
    Ok((audit, Level::parse(&m.options.determinism).unwrap_or_default()))
}

/// A checkpoint, compiled for it.
fn model(source: &Source, args: &AuditArgs, p: &mut Printer) -> Result<(Audit, Level)> {
    let mut wanted = targets(args)?;
    if wanted.is_empty() {
        wanted.push(Target::host()?);
    }
    let mut o = resolve(&args.build, wanted)?;
    o.cubins = Cubins::Off; // what assemblers make of PTX is another program's work
    let ck = super::checkpoint(source, args.build.weights, p)?;
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch { progress: Some(&mut progress), ..Watch::default() };
    let compiled = pipeline::compile(&ck, &o, &mut watch)?;
    Ok((Audit::of(&Subject::of(&compiled))?, o.passes.determinism))
}

/// A text of code: PTX, with the kernel of its name beside it if there is one, or assembly.
fn listing(path: &Path, form: &str, level: Level, args: &AuditArgs, p: &mut Printer) -> Result<(), Stop> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| crate::files::failed("cannot be read", path, &e));
    let text = read(path)?;
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let beside = path.with_extension("kir");
    let (held, findings) = if form == "ptx" {
        let kernel = match beside.is_file() {
            true => Some(ir::kernel::text::parse(&read(&beside)?).map_err(|all| pipeline::first(all).at(beside.display()))?),
            false => None,
        };
        code::ptx_text(&name, &text, kernel.as_ref())
    } else {
        code::assembly(&name, &text)
    };
    // A kernel beside it says that this is all of its code.
    let cut = beside.is_file() && text.matches('{').count() != text.matches('}').count();
    if held.instructions == 0 || form == "ptx" && cut {
        return Err(Diagnostic::new("E0839", "this is not the code of a kernel, or not all of it")
            .at(path.display())
            .hint("`isobit dump MODEL --what ptx` and `--what asm` print whole code")
            .into());
    }
    let broken: Vec<_> = findings.iter().filter(|f| Level::parse(&f.breaks).is_some_and(|l| l <= level)).collect();
    if args.json {
        p.line(&json!({"code": held, "findings": findings}).to_string())?;
    } else {
        p.line(&format!("{} instructions; float: {} fma, {} mul, {} add", held.instructions, held.fma, held.mul, held.add))?;
        for f in &broken {
            p.line(&format!("  {} {}: {}", f.kind.code(), f.place, f.what))?;
        }
    }
    end(level, broken.len())
}

impl<'a> Subject<'a> {
    /// What a compilation made.
    pub fn of(c: &'a pipeline::Compiled) -> Subject<'a> {
        Subject {
            graph: &c.planned.graph,
            pinned: &c.planned.pinned,
            options: OptionsEntry::of(&c.options),
            programs: &c.programs,
            recorded: None,
        }
    }
}
