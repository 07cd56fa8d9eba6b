//! The compiler from end to end: checkpoint, graph, passes, per class of targets a plan of kernels, per target code.
//!
//! Lowering differs between host and GPU in the free schedule only, so the graph is compiled once. A class of targets gets two
//! plans of it: one for one token, and one for chunks of many, for which fusion is chosen anew. A [`Watch`] looks on: it
//! collects dumps and times and is told of progress, and nothing that it does can change the result.

use crate::emit::{self, Code};
use crate::options::CompileOptions;
use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::plan::Plan;
use ir::plan::phases::Phases;
use models::Checkpoint;
use passes::instrument::dump::Dump;
use passes::instrument::timing::Timing;
use passes::instrument::verify::VerifyEach;
use passes::instrument::{Instrument, text};
use passes::{Manager, Module, Options, Pass, Pipeline, Report, Step};
use std::sync::Arc;
use std::time::Instant;

/// One target's program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What the code is for.
    pub target: Target,
    /// Kernels and launches.
    pub plans: Arc<Phases>,
    /// Their code.
    pub code: Code,
}

/// The checkpoint as a program, before code is made.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The graph after all passes, with its fusion decisions.
    pub graph: Graph,
    /// What the passes did.
    pub report: Report,
    /// The plans for each class of targets that was asked for.
    pub plans: Vec<(Class, Arc<Phases>)>,
}

/// The checkpoint as a program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The options it was made with.
    pub options: CompileOptions,
    /// Everything but the code.
    pub planned: Planned,
    /// One program a target, in order.
    pub programs: Vec<Program>,
}

/// Is told what is being done: what, how much is done, of how much (0 if nobody knows).
pub type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// Looks on. Nothing here can change what is compiled.
#[derive(Default)]
pub struct Watch<'a> {
    /// Collects dumps.
    pub dump: bool,
    /// Prints the module after this pass.
    pub print_after: Option<String>,
    /// Is told what is being done.
    pub progress: Option<Progress<'a>>,
    /// Files of a dump folder (filled if `dump`).
    pub dumps: Vec<(String, String)>,
    /// Modules after the pass that `print_after` names (filled).
    pub printed: Vec<String>,
    /// Nanoseconds of each step (filled).
    pub times: Vec<(String, u64)>,
    /// The text that makes a failure happen again (filled by failing passes).
    pub reproducer: Option<String>,
}

impl Watch<'_> {
    /// Tells of progress.
    pub fn tell(&mut self, what: &str, done: usize, of: usize) {
        if let Some(p) = &mut self.progress {
            p(what, done, of);
        }
    }

    fn time(&mut self, what: impl Into<String>, since: Instant) {
        self.times.push((what.into(), since.elapsed().as_nanos() as u64));
    }
}

/// Compiles a checkpoint for all targets of the options.
pub fn compile(ck: &Checkpoint, options: &CompileOptions, watch: &mut Watch) -> Result<Compiled> {
    let classes: Vec<Class> = Class::ALL.into_iter().filter(|c| options.targets.iter().any(|t| t.class() == *c)).collect();
    let planned = plan(ck, options, &classes, watch)?;
    let mut programs = vec![];
    for &target in &options.targets {
        let plans = planned.plans.iter().find(|(c, _)| *c == target.class()).map(|(_, p)| p.clone()).unwrap_or_default();
        let since = Instant::now();
        let what = format!("code for {}", target.name());
        let code = emit::code(&plans.kernels(), target, &mut |done, of| watch.tell(&what, done, of))?;
        watch.time(format!("code {}", target.name()), since);
        programs.push(Program { target, plans, code });
    }
    Ok(Compiled { options: options.clone(), planned, programs })
}

/// Compiles a checkpoint to plans for these classes of targets: everything that needs no LLVM.
pub fn plan(ck: &Checkpoint, options: &CompileOptions, classes: &[Class], watch: &mut Watch) -> Result<Planned> {
    options.check()?;
    let since = Instant::now();
    let graph = models::gemma4::layers::graph(ck, options.embed)?;
    watch.time("graph", since);
    let mut module = Module::new(graph);
    let report = run(&mut module, &Pipeline::graph(), &options.passes, "", watch)?;
    let mut plans = vec![];
    for &class in classes {
        let mut taken = report.decisions.len() as u64;
        let decode = place(&module.graph, class, false, &mut taken, options, watch)?;
        let prefill = match options.prefill {
            true => Some(place(&module.graph, class, true, &mut taken, options, watch)?),
            false => None,
        };
        plans.push((class, Arc::new(Phases::join(decode, prefill))));
    }
    Ok(Planned { graph: module.graph, report, plans })
}

/// Rows of a launch for which the fusion of prefill plans is chosen.
const PREFILL_ROWS: u32 = 128;

/// The graph as kernels, launches and a memory plan, for one class of targets: only the free schedule differs, and for chunks
/// of many tokens fusion.
fn place(
    graph: &Graph,
    class: Class,
    prefill: bool,
    taken: &mut u64,
    options: &CompileOptions,
    watch: &mut Watch,
) -> Result<Plan> {
    let mut passes = Options { schedule: class.schedule(prefill), ..options.passes.clone() };
    // The numbers of decisions go on from those of the passes before.
    passes.pass_limit = passes.pass_limit.map(|l| l.saturating_sub(*taken));
    let mut module = Module::new(graph.clone());
    let mut of = (Pipeline::plan(), class.name().to_string());
    if prefill {
        of = (Pipeline::prefill(), format!("{}/prefill", class.name()));
        passes.rows = PREFILL_ROWS;
        passes.launch_cost = class.launch_cost(passes.launch_cost);
        module.graph.stages.clear();
        module.graph.launches.clear();
    }
    let report = run(&mut module, &of.0, &passes, &of.1, watch)?;
    *taken += report.decisions.len() as u64;
    module.plan.ok_or_else(|| Diagnostic::new("E0768", "the passes left no plan"))
}

/// The module after one pass of the pipeline over the graph, or, for a pass over plans, of this class.
pub fn after(ck: &Checkpoint, pass: &str, class: Class, options: &CompileOptions) -> Result<String> {
    Manager::default().find(pass)?;
    let mut watch = Watch { print_after: Some(pass.into()), ..Watch::default() };
    plan(ck, &CompileOptions { prefill: false, ..options.clone() }, &[class], &mut watch)?;
    Ok(watch.printed.pop().unwrap_or_default())
}

/// Runs passes under the instruments that the watch asks for; `class` is empty for passes over the graph. Modules are printed
/// for one token only.
fn run(module: &mut Module, pipeline: &Pipeline, options: &Options, class: &str, watch: &mut Watch) -> Result<Report> {
    let start = Instant::now();
    let clock = || start.elapsed().as_nanos() as u64;
    let mut verify = VerifyEach::with(verify);
    let mut dump = Dump::with(print);
    let prefill = class.ends_with("/prefill");
    let mut print_after = PrintAfter { pass: watch.print_after.as_deref().filter(|_| !prefill), printed: vec![] };
    let mut timing = Timing::new(&clock);
    let mut told = Told { watch: &mut watch.progress, of: pipeline.entries.len() };
    let mut looks: Vec<&mut dyn Instrument> = vec![&mut verify, &mut print_after, &mut told];
    if watch.dump {
        looks.push(&mut dump);
    }
    looks.push(&mut timing);
    let result = Manager::default().run(module, pipeline, options, &mut looks);
    watch.printed.extend(print_after.printed);
    let at = |name: &str| if class.is_empty() { name.to_string() } else { format!("{class} {name}") };
    watch.times.extend(timing.times.iter().map(|(pass, t)| (at(pass), *t)));
    if watch.dump {
        let folder = if class.is_empty() { String::new() } else { format!("{class}/") };
        // The graph that lowering begins with is in the folder above, unless it was fused anew.
        let files = dump.folder().into_iter().filter(|(f, _)| class.is_empty() || prefill || !f.ends_with(".graph"));
        watch.dumps.extend(files.map(|(file, text)| (format!("{folder}{file}"), text)));
    }
    result.map_err(|failure| {
        watch.reproducer = failure.reproducer.as_ref().map(|r| r.text());
        let d = failure.diagnostic;
        if failure.internal {
            d.hint("this is a bug in isobit: please report it with the file that `--reproducer FILE` writes")
        } else {
            d
        }
    })
}

/// A module as the parts of a dump: the graph until there is a plan, then the plan.
fn print(m: &Module) -> Vec<(&'static str, String)> {
    match &m.plan {
        Some(plan) => vec![("plan", ir::plan::text::print_whole(plan))],
        None => vec![("graph", text::print(&m.graph))],
    }
}

/// The graph verifier, and the plan verifier once there is a plan.
fn verify(m: &Module) -> Result<()> {
    text::verify(&m.graph)?;
    let keep: Vec<&str> = m.graph.outputs.iter().map(|&o| m.graph.node(o).name.as_str()).collect();
    match &m.plan {
        Some(plan) => ir::plan::verify::verify(plan, &keep).map_err(first),
        None => Ok(()),
    }
}

/// The first of many diagnostics, with their number.
pub fn first(all: Vec<Diagnostic>) -> Diagnostic {
    let more = all.len().saturating_sub(1);
    match all.into_iter().next() {
        Some(d) if more > 0 => Diagnostic { message: format!("{} (and {more} more)", d.message), ..d },
        Some(d) => d,
        None => Diagnostic::new("E0766", "refused without a reason"),
    }
}

/// Prints the module after one pass, changed or not.
struct PrintAfter<'a> {
    pass: Option<&'a str>,
    printed: Vec<String>,
}

impl Instrument for PrintAfter<'_> {
    fn after(&mut self, step: &Step, m: &Module) -> Result<()> {
        if self.pass == Some(step.pass) {
            self.printed.extend(print(m).into_iter().map(|(_, text)| text));
        }
        Ok(())
    }
}

/// Tells of progress.
struct Told<'w, 'a> {
    watch: &'w mut Option<Progress<'a>>,
    of: usize,
}

impl Instrument for Told<'_, '_> {
    fn before(&mut self, pass: &dyn Pass, _: &Module) {
        if let Some(p) = self.watch {
            p(&format!("pass {}", pass.name()), 0, 1);
        }
    }
    fn after(&mut self, step: &Step, _: &Module) -> Result<()> {
        if let Some(p) = self.watch {
            p("passes", step.index, self.of);
        }
        Ok(())
    }
}
