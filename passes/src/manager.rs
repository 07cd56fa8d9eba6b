//! Runs a pipeline: checks it, calls the passes, lets the instruments look, and turns a failure into a reproducer.

use crate::instrument::repro::Reproducer;
use crate::instrument::Instrument;
use crate::options::{Level, Options};
use crate::pass::{Decisions, Effect, Module, Pass, PassCx};
use crate::pipeline::{Pipeline, registry};
use ir::diag::{Diagnostic, Result};
use std::collections::BTreeMap;

/// One pass of a finished (or failed) run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// 1 for the first pass of the pipeline.
    pub index: usize,
    /// The pass.
    pub pass: &'static str,
    /// False if it was switched off or vetoed.
    pub ran: bool,
    /// Did the module change?
    pub changed: bool,
    /// Counters of the pass.
    pub stats: BTreeMap<String, u64>,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In order of execution.
    pub steps: Vec<Step>,
    /// One line for each numbered decision.
    pub decisions: Vec<String>,
    /// Why, line by line, for each pass that says so.
    pub explained: Vec<(&'static str, Vec<String>)>,
}

impl Report {
    /// A counter of a pass, summed over its runs.
    pub fn stat(&self, pass: &str, name: &str) -> u64 {
        self.steps.iter().filter(|s| s.pass == pass).filter_map(|s| s.stats.get(name)).sum()
    }
}

/// A run that stopped.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What is wrong.
    pub diagnostic: Diagnostic,
    /// The pass that refused, or that left a broken module; empty if the pipeline itself is wrong.
    pub pass: String,
    /// An instrument found the module broken: an error of isobit, not of its input.
    pub internal: bool,
    /// Enough to run it again.
    pub reproducer: Option<Reproducer>,
    /// What was done before.
    pub report: Report,
}

/// Knows the passes and runs pipelines.
pub struct Manager {
    passes: Vec<Box<dyn Pass>>,
}

impl Default for Manager {
    fn default() -> Self {
        Manager::new(registry())
    }
}

impl Manager {
    /// A manager of these passes.
    pub fn new(passes: Vec<Box<dyn Pass>>) -> Self {
        Manager { passes }
    }

    /// The passes, in order.
    pub fn passes(&self) -> impl Iterator<Item = &dyn Pass> {
        self.passes.iter().map(|p| &**p)
    }

    /// The pass of this name.
    pub fn find(&self, name: &str) -> Result<&dyn Pass> {
        self.passes().find(|p| p.name() == name).ok_or_else(|| {
            let known: Vec<_> = self.passes().map(|p| p.name()).collect();
            Diagnostic::new("E0301", format!("there is no pass `{name}`"))
                .hint(format!("the passes are {}", known.join(", ")))
        })
    }

    /// Are all names known, and does the combination keep the promise of its level?
    pub fn check(&self, pipeline: &Pipeline, options: &Options) -> Result<()> {
        for e in &pipeline.entries {
            let pass = self.find(&e.pass)?;
            for key in e.args.keys() {
                if !pass.args().iter().any(|(k, _)| k == key) {
                    let known: Vec<_> = pass.args().iter().map(|(k, _)| *k).collect();
                    let known =
                        if known.is_empty() { "it takes none".into() } else { format!("it takes {}", known.join(", ")) };
                    return Err(Diagnostic::new("E0305", format!("pass `{}` has no argument `{key}`", e.pass)).hint(known));
                }
            }
        }
        for (name, on) in &options.switches {
            let pass = self.find(name)?;
            if let (false, Some(why)) = (on, pass.required(options)) {
                return Err(refused(pass, options, why));
            }
        }
        for rule in &options.rules_off {
            if !crate::fuse::rules().iter().any(|r| r.name == rule) {
                let known: Vec<_> = crate::fuse::rules().iter().map(|r| r.name.as_str()).collect();
                return Err(Diagnostic::new("E0303", format!("there is no fusion rule `{rule}`"))
                    .hint(format!("the rules are {}", known.join(", "))));
            }
        }
        Ok(())
    }

    /// Runs the pipeline. The module is left as far as it came if a pass fails.
    pub fn run(
        &self,
        m: &mut Module,
        pipeline: &Pipeline,
        options: &Options,
        instruments: &mut [&mut dyn Instrument],
    ) -> Result<Report, Box<Failure>> {
        let mut report = Report::default();
        let mut decisions = Decisions::new(options.pass_limit);
        if let Err(diagnostic) = self.check(pipeline, options) {
            let failure = Failure { diagnostic, pass: String::new(), internal: false, reproducer: None, report };
            return Err(Box::new(failure));
        }
        let input = m.graph.clone();
        let fail = |diagnostic: Diagnostic, done: usize, pass: &str, internal, report: Report, log: &[String]| {
            let part = Pipeline { entries: pipeline.entries[..done].to_vec() };
            let reproducer = Reproducer::new(pass, &diagnostic, &part, options, &input);
            let report = Report { decisions: log.to_vec(), ..report };
            Box::new(Failure { diagnostic, pass: pass.into(), internal, reproducer: Some(reproducer), report })
        };
        for i in instruments.iter_mut() {
            if let Err(d) = i.start(m) {
                let d = Diagnostic { message: format!("the input is broken: {}", d.message), ..d };
                return Err(fail(d, 0, "", true, report, &decisions.log));
            }
        }
        for (k, entry) in pipeline.entries.iter().enumerate() {
            let pass = self.find(&entry.pass).expect("checked");
            let vetoed = instruments.iter_mut().fold(false, |v, i| v | !i.should_run(pass, options));
            if let (true, Some(why)) = (vetoed, pass.required(options)) {
                return Err(fail(refused(pass, options, why), k, pass.name(), false, report, &decisions.log));
            }
            for i in instruments.iter_mut() {
                i.before(pass, m);
            }
            let ran = options.is_on(pass.name()) && !vetoed;
            let mut cx = PassCx::new(pass.name(), options, &entry.args, &mut decisions);
            let result = if ran { pass.run(m, &mut cx) } else { pass.off(m, &mut cx) };
            let (stats, explained) = (cx.stats, cx.explained);
            let changed = match result {
                Ok(c) => c,
                Err(d) => return Err(fail(d, k + 1, pass.name(), false, report, &decisions.log)),
            };
            if !explained.is_empty() {
                report.explained.push((pass.name(), explained));
            }
            report.steps.push(Step { index: k + 1, pass: pass.name(), ran, changed, stats });
            let step = &report.steps[k];
            for i in instruments.iter_mut() {
                if let Err(d) = i.after(step, m) {
                    let message = format!("pass `{}` left a broken module: {}", pass.name(), d.message);
                    let d = Diagnostic { message, ..d };
                    return Err(fail(d, k + 1, pass.name(), true, report, &decisions.log));
                }
            }
        }
        report.decisions = decisions.log;
        Ok(report)
    }
}

fn refused(pass: &dyn Pass, options: &Options, why: &str) -> Diagnostic {
    let level = options.determinism;
    let hint = if pass.effect() == Effect::Rounding && level > Level::Off {
        format!("leave `{}` on, or ask for `--determinism off`", pass.name())
    } else {
        format!("leave `{}` on", pass.name())
    };
    Diagnostic::new("E0304", format!("pass `{}` can't be switched off at determinism `{}`: {why}", pass.name(), level.name()))
        .hint(hint)
}
