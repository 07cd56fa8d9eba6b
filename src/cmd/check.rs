//! `isobit run --check`: a prompt in the interpreter of kernels, looked at from all sides. Exit code 1 if something was found.

use super::run::Form;
use super::{Stop, audit, resolve};
use crate::args::RunArgs;
use crate::artifact::Artifact;
use crate::check::{self, Check, Job};
use crate::options::CompileOptions;
use crate::pipeline::{self, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::plan::phases::Phases;
use models::{Checkpoint, Text};
use serde_json::json;
use std::sync::Arc;

/// Tokens that are generated unless `-n` says otherwise.
pub const TOKENS: usize = 4;

/// The checks of a list.
pub fn parse(list: &str) -> Result<Vec<Check>> {
    let one = |name: &str| {
        Check::parse(name).ok_or_else(|| {
            Diagnostic::new("E0750", format!("there is no check `{name}`"))
                .at("--check")
                .hint("checks are races, init, order, parity, or all")
        })
    };
    let mut out = if list == "all" { Check::ALL.to_vec() } else { list.split(',').map(one).collect::<Result<Vec<_>>>()? };
    out.sort();
    out.dedup();
    Ok(out)
}

/// The target whose kernels are interpreted; none for the host's.
fn target(args: &RunArgs) -> Result<Option<Target>> {
    match args.exec.target.as_deref() {
        None | Some("interp") => Ok(None),
        Some(name) => Target::parse(name).map(Some),
    }
}

/// What is asked: text, or ids.
pub enum Asked<'a> {
    /// To be tokenized.
    Text(&'a str),
    /// As they are.
    Ids(Vec<u32>),
}

/// Runs it.
pub fn run(args: &RunArgs, list: &str, source: &Source, asked: &Asked, p: &mut Printer) -> Result<(), Stop> {
    let checks = parse(list)?;
    let (checkpoint, graph, phases) = load(source, args, p)?;
    let prompt = match asked {
        Asked::Ids(ids) => ids.clone(),
        Asked::Text(text) => Form::of(args).first_turn(&Text::load(&checkpoint)?, text)?,
    };
    let tokens = args.n.unwrap_or(TOKENS).max(1);
    let room = crate::engine::Room::new(&checkpoint, Some(prompt.len() + tokens))?;
    room.check(&prompt)?;
    let chunk = args.exec.prefill_chunk.map_or(runtime::session::Limits::default().chunk, |n| n as usize);
    let job = Job { phases: &phases, graph: &graph, checkpoint: &checkpoint, prompt: &prompt, tokens, chunk };
    let outcomes = check::run(&job, &checks, &mut |what, done, of| p.progress(what, done, of))?;
    let found: usize = outcomes.iter().map(|o| o.findings.len()).sum();
    if args.json {
        p.line(&json!({"prompt_ids": prompt, "checks": outcomes}).to_string())?;
    } else {
        for o in &outcomes {
            let verdict = match o.findings.len() {
                0 => "nothing found".to_string(),
                1 => "1 finding".into(),
                n => format!("{n} findings"),
            };
            p.line(&format!("{}: {verdict}; {}", o.check.name(), o.looked))?;
            for f in &o.findings {
                p.line(&format!("  {} {}: {}", f.code, f.place, f.what))?;
            }
        }
    }
    if found == 0 {
        return Ok(());
    }
    let things = if found == 1 { "a check found something".into() } else { format!("checks found {found} things") };
    Err(Diagnostic::new(audit::BROKEN, things).hint("`isobit explain CODE` says what each means").into())
}

/// The model, its graph and the plans that are interpreted.
fn load(source: &Source, args: &RunArgs, p: &mut Printer) -> Result<(Checkpoint, Graph, Arc<Phases>)> {
    let named = target(args)?;
    if let Source::Artifact(dir) = source {
        let artifact = Artifact::open(dir)?;
        let program = match named {
            Some(t) => artifact.any_program(t)?,
            None => artifact.interpreted()?,
        };
        return Ok((artifact.checkpoint(&mut |what, done, of| p.progress(what, done, of))?, artifact.graph()?, program.plans));
    }
    let class = named.map_or(Class::Host, Target::class);
    let o: CompileOptions = resolve(&args.exec.build, vec![])?;
    let ck = super::checkpoint(source, args.exec.build.weights, p)?;
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch { progress: Some(&mut progress), ..Watch::default() };
    let mut planned = pipeline::plan(&ck, &o, &[class], &mut watch)?;
    ck.fits()?;
    let (_, plans) = planned.plans.remove(0);
    Ok((ck, planned.graph, plans))
}
