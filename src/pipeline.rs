//! The compiler from end to end: checkpoint, graph, passes, per class of targets a plan of kernels, per target code.
//!
//! Lowering differs between host and GPU in the free schedule only, so the graph is compiled once. A class of targets gets two
//! plans of it: one for one token, and one for chunks of many, for which fusion is chosen anew. A [`Watch`] looks on: it
//! collects dumps and times and is told of progress, and nothing that it does can change the result.

use crate::audit::reductions::{self, Pinned};
use crate::emit::{self, Code};
use crate::from_ir::Edits;
use crate::options::{CompileOptions, PrefillPlan};
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
use passes::{Failure, Level, Manager, Module, Options, Pass, Pipeline, Report, Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// One target's program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What the code is for.
    pub target: Target,
    /// Kernels and launches. Kernels of an artifact that is run by its code have no bodies.
    pub plans: Arc<Phases>,
    /// Their code.
    pub code: Code,
}

/// The checkpoint as a program, before code is made.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The graph after all passes, with its fusion decisions.
    pub graph: Graph,
    /// Values whose order stood before any pass.
    pub pinned: BTreeMap<String, Pinned>,
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
    /// Prints the module after these passes.
    pub print_after: Vec<String>,
    /// Is told what is being done.
    pub progress: Option<Progress<'a>>,
    /// Files of a dump folder (filled if `dump`).
    pub dumps: Vec<(String, String)>,
    /// Passes that `print_after` names, and the modules after them (filled).
    pub printed: Vec<(String, String)>,
    /// Nanoseconds of each step (filled).
    pub times: Vec<(String, u64)>,
    /// The text that makes a failure happen again (filled by failing passes).
    pub reproducer: Option<String>,
    /// What a person edited of dumps, to go on from.
    pub edits: Edits,
    /// Why there is no machine code though there is an assembler (filled).
    pub without_cubins: Vec<Diagnostic>,
    /// Numbered decisions of the passes, with the class of a pass over plans in front (filled).
    pub decisions: Vec<Decision>,
}

/// One optional decision of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// As `--pass-limit` counts.
    pub number: u64,
    /// Was it taken?
    pub taken: bool,
    /// The pass and what it decided; for passes over plans also the class of targets.
    pub what: String,
}

impl Decision {
    /// From a line of a report, `take (7) fuse: ...`; `before` decisions came before the first of the report.
    fn of(line: &str, before: u64, class: &str) -> Option<Decision> {
        let (verb, rest) = line.split_once(" (")?;
        let (number, what) = rest.split_once(") ")?;
        let what = if class.is_empty() { what.to_string() } else { format!("{class} {what}") };
        Some(Decision { number: before + number.parse::<u64>().ok()?, taken: verb == "take", what })
    }
}

impl Watch<'_> {
    /// The last decision that was taken, and how many there were: for a person who looks for the one that made a fault.
    pub fn last_decision(&self) -> String {
        let all = self.decisions.iter().map(|d| d.number).max().unwrap_or(0);
        match self.decisions.iter().rev().find(|d| d.taken) {
            Some(d) => format!("last decision taken: {} of {all}, {}", d.number, d.what),
            None => format!("last decision taken: none of {all}"),
        }
    }

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
    let mut programs: Vec<Program> = vec![];
    for &target in &options.targets {
        let plans = planned.plans.iter().find(|(c, _)| *c == target.class()).map(|(_, p)| p.clone()).unwrap_or_default();
        let since = Instant::now();
        let what = format!("code for {}", target.name());
        let made = programs.iter().find(|p| p.target.class() == target.class()).map(|p| (p.target, &p.code));
        let mut code = emit::code(&plans.kernels(), target, made, &mut |done, of| watch.tell(&what, done, of))?;
        watch.time(format!("code {}", target.name()), since);
        if target.class() == Class::Gpu {
            let (since, what) = (Instant::now(), format!("assembling for {}", target.name()));
            let tell = &mut |done, of| watch.tell(&what, done, of);
            let failed = emit::assemble(&mut code, &plans.kernels(), target, options.cubins, tell)?;
            watch.without_cubins.extend(failed);
            watch.time(format!("assembler {}", target.name()), since);
        }
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
    let named: Vec<String> = computed(&graph).map(String::from).collect();
    let pinned = reductions::pinned(&graph);
    let mut module = Module::new(graph);
    let pipeline = match options.passes.is_on(passes::round_activations::NAME) {
        true => Pipeline::graph().rounded(),
        false => Pipeline::graph(),
    };
    let relaxed;
    let options = if options.passes.is_on(passes::relax::UNORDERED) {
        // What is added in the order of arrival is a launch of its own.
        let rules = passes::fuse::rules().iter().map(|r| r.name.clone()).filter(|n| n.ends_with("-into-sum"));
        let mut passes = options.passes.clone();
        passes.rules_off.extend(rules);
        relaxed = CompileOptions { passes, ..options.clone() };
        &relaxed
    } else {
        options
    };
    let report = run(&mut module, &pipeline, &options.passes, "", 0, watch)?;
    check_keep(&options.passes, &named, &module.graph)?;
    let mut plans = vec![];
    for &class in classes {
        let mut taken = report.decisions.len() as u64;
        let decode = place(&module.graph, class, false, &mut taken, options, watch)?;
        let prefill = match options.prefill.wanted(class) {
            true => Some(place(&module.graph, class, true, &mut taken, options, watch)?),
            false => None,
        };
        plans.push((class, Arc::new(Phases::join(decode, prefill))));
    }
    Ok(Planned { graph: module.graph, pinned, report, plans })
}

/// Names of the values that a graph computes.
pub fn computed(graph: &Graph) -> impl Iterator<Item = &str> {
    graph.ids().map(|id| graph.node(id)).filter(|n| n.op.computes()).map(|n| n.name.as_str())
}

/// Refuses a `--keep` that keeps nothing: it is a slip of the pen. `before` are the names before all passes.
pub fn check_keep(options: &Options, before: &[String], graph: &Graph) -> Result<()> {
    for pattern in &options.keep {
        let this = Options { keep: [pattern.clone()].into(), ..Options::default() };
        if computed(graph).any(|n| this.keeps(n)) {
            continue;
        }
        let d = Diagnostic::new("E0770", format!("no value has a name like `{pattern}`")).at("--keep");
        return Err(match before.iter().find(|n| this.keeps(n)) {
            Some(gone) => d.hint(format!("a pass took {gone} out, since its bits are those of another value")),
            None => d.hint("`isobit dump MODEL` shows the names, in quotes at the end of a line"),
        });
    }
    Ok(())
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
    let mut passes = Options { schedule: options.schedule(class, prefill), ..options.passes.clone() };
    // The numbers of decisions go on from those of the passes before.
    passes.pass_limit = passes.pass_limit.map(|l| l.saturating_sub(*taken));
    let mut module = Module::new(graph.clone());
    let mut of = (Pipeline::plan(), class.name().to_string());
    if prefill {
        of.1 = format!("{}/prefill", class.name());
        passes.rows = PREFILL_ROWS;
    }
    if prefill || !class.rules_off().is_empty() {
        of.0 = Pipeline::fusing_anew();
        passes.rules_off.extend(class.rules_off().iter().map(|r| r.to_string()));
        module.graph.stages.clear();
        module.graph.launches.clear();
    }
    if passes.is_on(passes::instrument_trace::NAME) {
        of.0 = of.0.traced();
    }
    if passes.determinism == Level::Off {
        of.0 = of.0.relaxed();
    }
    let report = run(&mut module, &of.0, &passes, &of.1, *taken, watch)?;
    *taken += report.decisions.len() as u64;
    module.plan.ok_or_else(|| Diagnostic::new("E0768", "the passes left no plan"))
}

/// The module after one pass of the pipeline over the graph, or, for a pass over plans, of this class.
pub fn after(ck: &Checkpoint, pass: &str, class: Class, options: &CompileOptions) -> Result<String> {
    Manager::default().find(pass)?;
    let mut watch = Watch { print_after: vec![pass.into()], ..Watch::default() };
    plan(ck, &CompileOptions { prefill: PrefillPlan::Off, ..options.clone() }, &[class], &mut watch)?;
    Ok(watch.printed.pop().map(|(_, text)| text).unwrap_or_default())
}

/// Runs passes under the instruments that the watch asks for; `class` is empty for passes over the graph, `before` the
/// number of decisions that earlier passes took. Modules are printed for one token only.
fn run(
    module: &mut Module,
    pipeline: &Pipeline,
    options: &Options,
    class: &str,
    before: u64,
    watch: &mut Watch,
) -> Result<Report> {
    let start = Instant::now();
    let clock = || start.elapsed().as_nanos() as u64;
    let mut pipeline = pipeline.clone();
    watch.edits.apply(class, module, &mut pipeline).map_err(first)?;
    let mut verify = VerifyEach::with(verify);
    let mut dump = Dump::with(print);
    let prefill = class.ends_with("/prefill");
    let printed: &[String] = if prefill { &[] } else { &watch.print_after };
    let mut print_after = PrintAfter::new(printed);
    let mut timing = Timing::new(&clock);
    let mut told = Told { watch: &mut watch.progress, of: pipeline.entries.len() };
    let mut looks: Vec<&mut dyn Instrument> = vec![];
    if watch.dump {
        looks.push(&mut dump); // before the verifier, so that a broken module is dumped too
    }
    looks.push(&mut verify);
    looks.push(&mut print_after);
    looks.push(&mut told);
    looks.push(&mut timing);
    let result = Manager::default().run(module, &pipeline, options, &mut looks);
    watch.printed.extend(print_after.printed);
    let at = |name: &str| if class.is_empty() { name.to_string() } else { format!("{class} {name}") };
    watch.times.extend(timing.times.iter().map(|(pass, t)| (at(pass), *t)));
    if watch.dump {
        let folder = if class.is_empty() { String::new() } else { format!("{class}/") };
        // The graph that lowering begins with is in the folder above, unless it was fused anew.
        let files = dump.folder().into_iter().filter(|(f, _)| class.is_empty() || prefill || !f.ends_with(".graph"));
        watch.dumps.extend(files.map(|(file, text)| (format!("{folder}{file}"), text)));
    }
    let decisions = match &result {
        Ok(report) => &report.decisions,
        Err(failure) => &failure.report.decisions,
    };
    watch.decisions.extend(decisions.iter().filter_map(|line| Decision::of(line, before, class)));
    result.map_err(|failure| {
        watch.reproducer = failure.reproducer.as_ref().map(|r| r.text());
        blame(*failure)
    })
}

/// What a person is told of a failure.
pub fn blame(failure: Failure) -> Diagnostic {
    let d = failure.diagnostic;
    if failure.internal && !failure.pass.is_empty() {
        d.hint("this is a bug in isobit: please report it with the file that `isobit compile --reproducer FILE` writes")
    } else {
        d
    }
}

/// A module as the parts of a dump: the graph until there is a plan, then the plan.
pub fn print(m: &Module) -> Vec<(&'static str, String)> {
    match &m.plan {
        Some(plan) => vec![("plan", ir::plan::text::print_whole(plan))],
        None => vec![("graph", text::print(&m.graph))],
    }
}

/// The graph verifier, and the plan verifier once there is a plan.
pub fn verify(m: &Module) -> Result<()> {
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
        None => Diagnostic::new("E0768", "refused without a reason"),
    }
}

/// Prints the module after some passes, changed or not.
pub struct PrintAfter<'a> {
    passes: &'a [String],
    /// Pass and text, in order.
    pub printed: Vec<(String, String)>,
}

impl PrintAfter<'_> {
    /// Prints after these passes.
    pub fn new(passes: &[String]) -> PrintAfter<'_> {
        PrintAfter { passes, printed: vec![] }
    }
}

impl Instrument for PrintAfter<'_> {
    fn after(&mut self, step: &Step, m: &Module) -> Result<()> {
        if self.passes.iter().any(|p| p == step.pass) {
            self.printed.extend(print(m).into_iter().map(|(_, text)| (step.pass.to_string(), text)));
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

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "graph \"t\" {\n  %0 = tokens : i32[T] \"tokens\"\n  %1 = weight : u4g32[64,64] \"w\"\n  \
         %2 = embed %1 %0 {mode=factor, factor=8} : f32[T,64] \"x\"\n  %3 = mul_const %2 {c=1} : f32[T,64] \"y\"\n  \
         %4 = mul_const %3 {c=2} : f32[T,64] \"z\"\n  output %4\n}\n";

    #[test]
    fn a_failing_pass_keeps_dumps_decisions_and_a_reproducer() {
        let mut module = Module::new(ir::graph::text::parse(GRAPH).unwrap());
        let mut watch = Watch { dump: true, ..Watch::default() };
        let pipeline = Pipeline::parse("fold,dce,memory-plan").unwrap();
        let d = run(&mut module, &pipeline, &Options::default(), "", 10, &mut watch).unwrap_err();
        assert_eq!(d.code, "E0721");
        let names: Vec<&str> = watch.dumps.iter().map(|(f, _)| f.as_str()).collect();
        assert_eq!(names, ["000-input.graph", "010-fold.graph", "index.txt"]);
        assert!(watch.reproducer.as_ref().unwrap().contains("// pipeline: fold,dce,memory-plan\n"));
        let decision = Decision { number: 11, taken: true, what: watch.decisions[0].what.clone() };
        assert_eq!(watch.decisions, [decision]);
        assert!(watch.last_decision().starts_with("last decision taken: 11 of 11, fold: "), "{}", watch.last_decision());
    }

    #[test]
    fn a_limit_names_the_last_decision_that_was_taken() {
        let mut watch = Watch::default();
        for (line, before) in [("take (1) fold: a", 0), ("take (2) cse: b", 0), ("skip (1) lower: c", 2), ("nonsense", 0)] {
            watch.decisions.extend(Decision::of(line, before, if before > 0 { "host" } else { "" }));
        }
        assert_eq!(watch.last_decision(), "last decision taken: 2 of 3, cse: b");
        assert_eq!(watch.decisions[2].what, "host lower: c");
        assert_eq!(Watch::default().last_decision(), "last decision taken: none of 0");
    }

    #[test]
    fn a_keep_of_nothing_is_refused_and_what_a_pass_took_out_is_named() {
        let graph = ir::graph::text::parse(GRAPH).unwrap();
        let keep = |p: &str| Options { keep: [p.to_string()].into(), ..Options::default() };
        let gone = ["x".to_string(), "old".to_string()];
        assert!(check_keep(&keep("*"), &gone, &graph).is_ok() && check_keep(&keep("z"), &gone, &graph).is_ok());
        let d = check_keep(&keep("o*"), &gone, &graph).unwrap_err();
        assert!(d.code == "E0770" && d.hint.contains("took old out"), "{d}");
        assert!(check_keep(&keep("w"), &gone, &graph).unwrap_err().hint.contains("isobit dump"), "a weight is no value");
    }
}
