//! Runs a pipeline: checks it, calls the passes, lets the instruments look, and turns a failure into a reproducer.

use crate::instrument::Instrument;
use crate::instrument::repro::Reproducer;
use crate::options::Options;
use crate::pass::{Decisions, Module, Pass, PassCx};
use crate::pipeline::{Pipeline, registry};
use ir::diag::{Diagnostic, Result, nearest};
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
            Diagnostic::new("E0701", format!("there is no pass `{name}`")).hint(format!("the passes are {}", known.join(", ")))
        })
    }

    /// Are all names known, and does the combination keep the promise of its level?
    pub fn check(&self, pipeline: &Pipeline, options: &Options) -> Result<()> {
        for e in &pipeline.entries {
            let pass = self.find(&e.pass)?;
            for key in e.args.keys() {
                if !pass.args().iter().any(|(k, _)| k == key) {
                    let known: Vec<_> = pass.args().iter().map(|(k, _)| *k).collect();
                    let known = if known.is_empty() { "it takes none".into() } else { format!("it takes {}", known.join(", ")) };
                    return Err(Diagnostic::new("E0705", format!("pass `{}` has no argument `{key}`", e.pass)).hint(known));
                }
            }
        }
        for (name, on) in &options.switches {
            let pass = self.find(name)?;
            if let (false, Some(why)) = (on, pass.required(options)) {
                return Err(refused(pass, options, why));
            }
            if let (true, Some(why)) = (on, pass.forbidden(options)) {
                let level = options.determinism.name();
                return Err(Diagnostic::new(
                    "E0745",
                    format!("pass `{name}` can't be switched on at determinism `{level}`: {why}"),
                )
                .hint("it is a control for experiments: `--determinism off` promises nothing"));
            }
        }
        let rules = crate::fuse::rules();
        if let Some(bad) = options.rules_off.iter().find(|b| !rules.iter().any(|r| r.name == **b)) {
            let near = nearest(rules.iter().map(|r| r.name.as_str()), bad, 5).join(", ");
            return Err(Diagnostic::new("E0703", format!("there is no fusion rule `{bad}`"))
                .hint(format!("of {} rules, these have the nearest names: {near}", rules.len())));
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
    let hint = format!("leave `{}` on", pass.name());
    Diagnostic::new("E0704", format!("pass `{}` can't be switched off at determinism `{}`: {why}", pass.name(), level.name()))
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instrument::dump::Dump;
    use crate::instrument::timing::Timing;
    use crate::instrument::verify::VerifyEach;
    use crate::pass::Effect;
    use crate::testing::moe_model;
    use std::cell::Cell;

    fn run(pipeline: &str, options: &Options, instruments: &mut [&mut dyn Instrument]) -> Result<(Module, Report), Box<Failure>> {
        let mut m = Module::new(moe_model(2));
        let report = Manager::default().run(&mut m, &Pipeline::parse(pipeline).unwrap(), options, instruments)?;
        Ok((m, report))
    }

    #[test]
    fn dumps_hold_what_changed_and_are_repeatable() {
        let dump = || {
            let (mut dump, mut verify) = (Dump::new(), VerifyEach::new());
            run(crate::pipeline::GRAPH, &Options::default(), &mut [&mut verify, &mut dump]).unwrap();
            assert_eq!(verify.checks, 5, "the input and four passes that changed it");
            dump
        };
        let d = dump();
        let names: Vec<String> = d.folder().into_iter().map(|(f, _)| f).collect();
        let want = [
            "000-input.graph",
            "050-quant-lower.graph",
            "060-pin-reductions.graph",
            "070-fuse.graph",
            "090-merge-launches.graph",
            "index.txt",
        ];
        assert_eq!(names, want);
        let index = d.folder().pop().unwrap().1;
        assert!(index.contains("020 fold             unchanged -\n"), "{index}");
        assert!(index.contains("090 merge-launches   changed   launches=13 stages=19\n"), "{index}");
        assert_eq!(d.folder(), dump().folder());
        assert_eq!(d.after_pass("fuse").count(), 1);
        let (_, text) = d.after_pass("merge-launches").next().unwrap();
        assert!(ir::graph::text::parse(text).is_ok());
    }

    #[test]
    fn times_come_from_the_caller() {
        let now = Cell::new(0);
        let clock = || {
            now.set(now.get() + 5);
            now.get()
        };
        let mut t = Timing::new(&clock);
        run("fold,dce", &Options::default(), &mut [&mut t]).unwrap();
        assert_eq!(t.times, [("fold", 5), ("dce", 5)]);
        assert!(t.table().contains("50.0 % dce"), "{}", t.table());
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let f = run("fold,fuze", &Options::default(), &mut []).unwrap_err();
        assert_eq!(f.diagnostic.code, "E0701");
        assert!(f.diagnostic.hint.contains("fuse") && f.diagnostic.hint.contains("merge-launches"));
        let f = run("fold", &Options::parse("switch.fuze=off").unwrap(), &mut []).unwrap_err();
        assert_eq!(f.diagnostic.code, "E0701");
        let f = run("fuse", &Options::parse("rule.norm-into-quantise=off").unwrap(), &mut []).unwrap_err();
        assert!(f.diagnostic.code == "E0703" && f.diagnostic.hint.contains("norm-into-quantize"));
        let f = run("fold(x=1)", &Options::default(), &mut []).unwrap_err();
        assert!(f.diagnostic.code == "E0705" && f.diagnostic.hint.contains("takes none"));
        let f = run("merge-launches(max=0)", &Options::default(), &mut []).unwrap_err();
        assert_eq!(f.diagnostic.code, "E0705");
    }

    #[test]
    fn required_passes_refuse_to_be_off() {
        for (pass, level, code) in [
            ("pin-reductions", "portable", Some("E0704")),
            ("pin-reductions", "run", Some("E0704")),
            ("pin-reductions", "off", None),
            ("quant-lower", "portable", Some("E0704")),
            ("quant-lower", "off", None),
            ("fuse", "portable", None),
        ] {
            let o = Options::parse(&format!("determinism={level} switch.{pass}=off")).unwrap();
            let r = run(pass, &o, &mut []);
            match (r, code) {
                (Ok((_, report)), None) => assert!(!report.steps[0].ran),
                (Err(f), Some(code)) => {
                    assert_eq!(f.diagnostic.code, code);
                    assert!(f.diagnostic.message.contains(level), "{}", f.diagnostic);
                }
                (r, _) => panic!("{pass} at {level}: {:?}", r.map(|(_, r)| r)),
            }
        }
    }

    #[test]
    fn instruments_may_veto_but_not_required_passes() {
        struct Veto;
        impl Instrument for Veto {
            fn should_run(&mut self, pass: &dyn Pass, _: &Options) -> bool {
                pass.name() == "fold"
            }
        }
        let (_, r) = run("fold,dce", &Options::default(), &mut [&mut Veto]).unwrap();
        assert_eq!(r.steps.iter().map(|s| s.ran).collect::<Vec<_>>(), [true, false]);
        let f = run("fold,quant-lower", &Options::default(), &mut [&mut Veto]).unwrap_err();
        assert_eq!((f.diagnostic.code, f.pass.as_str()), ("E0704", "quant-lower"));
    }

    #[test]
    fn a_broken_module_is_blamed_and_can_be_reproduced() {
        struct Breaks;
        impl Pass for Breaks {
            fn name(&self) -> &'static str {
                "breaks"
            }
            fn about(&self) -> &'static str {
                "test"
            }
            fn effect(&self) -> Effect {
                Effect::Exact
            }
            fn run(&self, m: &mut Module, _: &mut PassCx<'_>) -> Result<bool> {
                let id = m.graph.by_name("embed").expect("a model");
                m.graph.node_mut(id).ty.shape[0] += 1;
                Ok(true)
            }
        }
        let mut passes = registry();
        passes.push(Box::new(Breaks));
        let manager = Manager::new(passes);
        let pipeline = Pipeline::parse("fold,breaks,dce").unwrap();
        let options = Options::parse("determinism=run pass-limit=3").unwrap();
        let fail = |g| manager.run(&mut Module::new(g), &pipeline, &options, &mut [&mut VerifyEach::new()]).unwrap_err();
        let f = fail(moe_model(1));
        assert!(f.internal && f.pass == "breaks");
        assert!(f.diagnostic.message.starts_with("pass `breaks` left a broken module: "), "{}", f.diagnostic);
        let text = f.reproducer.unwrap().text();
        let (p, o) = Reproducer::recipe(&text).unwrap();
        assert_eq!((p.to_string().as_str(), &o), ("fold,breaks", &options));
        let again = fail(ir::graph::text::parse(&text).unwrap());
        assert_eq!(again.diagnostic, f.diagnostic);
    }

    #[test]
    fn a_refused_input_names_the_pass_and_a_broken_input_no_pass() {
        let mut m = Module::new(moe_model(1));
        let norm = m.graph.by_name("norm").unwrap();
        let order = Some(ir::order::ReductionOrder { lanes: 3, ..ir::order::ReductionOrder::CHAIN });
        m.graph.node_mut(norm).op = ir::graph::op::Op::RmsNorm { dim: 256, eps: 1e-6, order };
        let manager = Manager::default();
        let f = manager.run(&mut m, &Pipeline::graph(), &Options::default(), &mut []).unwrap_err();
        assert_eq!((f.pass.as_str(), f.internal, f.diagnostic.code), ("pin-reductions", false, "E0713"));
        assert_eq!(f.reproducer.unwrap().pipeline, "order-operands,fold,cse,dce,quant-lower,pin-reductions");
        m.graph.outputs.clear();
        let f = manager.run(&mut m, &Pipeline::graph(), &Options::default(), &mut [&mut VerifyEach::new()]).unwrap_err();
        assert!(f.internal && f.pass.is_empty() && f.diagnostic.message.starts_with("the input is broken"));
    }
}
