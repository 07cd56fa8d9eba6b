//! Subcommands, one file each, and what they share.

pub mod audit;
mod batch;
pub mod bench;
pub mod bisect;
mod check;
pub mod compile;
pub mod diff;
pub mod doctor;
pub mod dump;
pub mod explain;
pub mod gap;
pub mod inspect;
mod load;
pub mod opt;
pub mod options;
pub mod quantize;
pub mod run;
pub mod tokenize;
pub mod verify;

use crate::args::{BuildArgs, PassArgs};
use crate::options::{CompileOptions, embed_mode};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::Target;
use ir::diag::{Diagnostic, Result};
use models::Checkpoint;
use passes::Level;
use std::io;

/// Why a command ended early.
#[derive(Debug)]
pub enum Stop {
    /// Something to say.
    Failed(Diagnostic),
    /// What was compared differs: it was said, and is the exit code.
    Differs,
    /// The reader of our output went away: there is nobody to say anything to.
    BrokenPipe,
}

impl From<Diagnostic> for Stop {
    fn from(d: Diagnostic) -> Stop {
        Stop::Failed(d)
    }
}

impl Stop {
    /// Standard output failed.
    pub fn output(e: &io::Error) -> Stop {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Stop::BrokenPipe,
            _ => Stop::Failed(Diagnostic::new("E0760", format!("cannot be written: {e}")).at("standard output")),
        }
    }
}

/// Runs the command of a command line.
pub fn dispatch(command: &crate::args::Command, p: &mut Printer) -> Result<(), Stop> {
    match command {
        crate::args::Command::Compile(a) => compile::run(a, p),
        crate::args::Command::Audit(a) => audit::run(a, p),
        crate::args::Command::Run(a) => run::run(a, p),
        crate::args::Command::Bench(a) => bench::run(a, p),
        crate::args::Command::Diff(a) => diff::run(a, p),
        crate::args::Command::Bisect(a) => bisect::run(a, p),
        crate::args::Command::Verify(a) => verify::run(a, p),
        crate::args::Command::Dump(a) => dump::run(a, p),
        crate::args::Command::Gap(a) => gap::run(a, p),
        crate::args::Command::Opt(a) => opt::run(a, p),
        crate::args::Command::Inspect(a) => inspect::run(a, p),
        crate::args::Command::Options(a) => options::run(a, p),
        crate::args::Command::Explain(a) => explain::run(a, p),
        crate::args::Command::Doctor(a) => doctor::run(a, p),
        crate::args::Command::Tokenize(a) => tokenize::run(a, p),
        crate::args::Command::Quantize(a) => quantize::run(a, p),
    }
}

/// The exit code of a command that failed: 2 if the command line is wrong, or where 1 says that something differs.
pub fn exit_code(command: &crate::args::Command, d: &Diagnostic) -> u8 {
    use crate::args::Command;
    // A comparison or an audit that says no is not one that failed.
    let failed = match command {
        Command::Diff(_) | Command::Bisect(_) | Command::Verify(_) => true,
        Command::Audit(_) => d.code != audit::BROKEN,
        _ => false,
    };
    if failed || crate::explain::is_usage(d) { 2 } else { 1 }
}

/// The checkpoint that a command reads, with a seed with weights made from that; what its user should know of it is told.
fn checkpoint(source: &Source, weights: Option<u64>, p: &mut Printer) -> Result<Checkpoint> {
    let ck = source.with_weights(weights)?;
    ck.warnings().iter().for_each(|d| p.warning(d));
    Ok(ck)
}

/// Refuses a command line for what can be known of it without a model.
pub fn check(command: &crate::args::Command) -> Result<()> {
    match command {
        crate::args::Command::Compile(a) => compile::check(a).map(|_| ()),
        crate::args::Command::Audit(a) => audit::check(a).map(|_| ()),
        crate::args::Command::Run(a) => run::check(a),
        crate::args::Command::Bench(a) => bench::check(a),
        crate::args::Command::Bisect(a) => bisect::check(a),
        crate::args::Command::Dump(a) => dump::check(a).map(|_| ()),
        crate::args::Command::Gap(a) => gap::check(a),
        crate::args::Command::Tokenize(a) => tokenize::check(a),
        // Their arguments fit each other by their types, or can't be judged without a file.
        _ => Ok(()),
    }
}

/// The options of a compilation for these targets.
fn resolve(args: &BuildArgs, targets: Vec<Target>) -> Result<CompileOptions> {
    let mut o = CompileOptions { targets, ..CompileOptions::default() };
    if let Some(mode) = &args.embed {
        o.embed = embed_mode(mode).unwrap_or(o.embed);
    }
    if let Some(kept) = &args.activations {
        o.passes.switches.insert(passes::round_activations::NAME.into(), kept == "bf16");
    }
    o.prefill = args.prefill_plan.unwrap_or(o.prefill);
    o.cubins = args.cubin.unwrap_or(o.cubins);
    o.schedules = args.schedule.clone();
    resolve_passes(&args.passes, &mut o)?;
    Ok(o)
}

/// What the command line asks of passes, on top of what is there. The whole is checked before any file is read.
fn resolve_passes(args: &PassArgs, o: &mut CompileOptions) -> Result<()> {
    if let Some(level) = &args.determinism {
        o.passes.determinism = Level::parse(level).ok_or_else(|| {
            Diagnostic::new("E0750", format!("there is no determinism level `{level}`"))
                .at("--determinism")
                .hint("levels are off, run, portable")
        })?;
    }
    if let Some(on) = args.fusion {
        o.set_fusion(on);
    }
    // A pass's own switch is the last word.
    o.passes.switches.extend(args.switches.0.clone());
    o.passes.rules_off.extend(args.disable_rule.iter().cloned());
    o.passes.keep.extend(args.keep.iter().cloned());
    if let Some(bad) = o.passes.keep.iter().find(|k| k.is_empty() || k.contains(char::is_whitespace)) {
        return Err(Diagnostic::new("E0750", format!("no value has the name {bad:?}")).at("--keep"));
    }
    o.passes.pass_limit = args.pass_limit.or(o.passes.pass_limit);
    o.check()?;
    // Unknown rules and refused switches are told before a model is read.
    passes::Manager::default().check(&passes::Pipeline::full(), &o.passes)
}
