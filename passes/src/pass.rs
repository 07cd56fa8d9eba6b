//! What a pass is, and what it is given.

use crate::lower::schedule::Schedule;
use crate::options::Options;
use ir::diag::Result;
use ir::graph::Graph;
use ir::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// What is compiled: the graph, and the plan once the graph has been lowered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// The tensor graph with its fusion decisions.
    pub graph: Graph,
    /// Kernels and launches.
    pub plan: Option<Plan>,
    /// The free schedule, with the layout of weights, once it is chosen.
    pub schedule: Option<Schedule>,
    /// Kernels are to sum up digests of what they store.
    pub traced: bool,
    /// What is left to the machine; only at `--determinism off`.
    pub relaxed: Relaxed,
}

impl Module {
    /// A module that holds a graph only.
    pub fn new(graph: Graph) -> Self {
        Module { graph, ..Module::default() }
    }
}

/// Values that are not computed as their nodes say, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relaxed {
    /// Their exponentials and roots are those of the machine.
    pub approximate: BTreeSet<String>,
    /// Their terms are added in the order in which they arrive.
    pub unordered: BTreeSet<String>,
}

/// What a pass may do to bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The same bits as without it.
    Exact,
    /// It chooses the arithmetic: other bits than without it. All such choices are part of the numerics.
    Rounding,
}

impl Effect {
    /// As text.
    pub fn name(self) -> &'static str {
        match self {
            Effect::Exact => "exact",
            Effect::Rounding => "rounding",
        }
    }
}

/// A pass.
pub trait Pass {
    /// Unique name, as it stands in pipelines and switches.
    fn name(&self) -> &'static str;

    /// What it does, in a few sentences for `isobit explain`.
    fn about(&self) -> &'static str;

    /// What it may do to bits.
    fn effect(&self) -> Effect;

    /// Why the pass may not be switched off under these options; `None` if it is optional.
    fn required(&self, options: &Options) -> Option<&'static str> {
        let _ = options;
        None
    }

    /// Why the pass may not be switched on under these options; `None` if it may.
    fn forbidden(&self, options: &Options) -> Option<&'static str> {
        let _ = options;
        None
    }

    /// Arguments it takes in a pipeline, as (name, meaning).
    fn args(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Does the work; says whether anything changed.
    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool>;

    /// What is done instead when the pass is switched off; usually nothing.
    fn off(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let _ = (m, cx);
        Ok(false)
    }
}

/// Numbers optional decisions over a whole pipeline. Decisions above the limit are not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The last decision that is taken; no limit if absent.
    pub limit: Option<u64>,
    /// Decisions asked for so far.
    pub count: u64,
    /// One line for each.
    pub log: Vec<String>,
}

impl Decisions {
    /// Starts at one.
    pub fn new(limit: Option<u64>) -> Self {
        Decisions { limit, ..Decisions::default() }
    }

    fn ask(&mut self, pass: &str, what: &str) -> bool {
        self.count += 1;
        let take = self.limit.is_none_or(|l| self.count <= l);
        self.log.push(format!("{} ({}) {pass}: {what}", if take { "take" } else { "skip" }, self.count));
        take
    }
}

/// What a pass is given beside the module.
pub struct PassCx<'a> {
    /// Options of the compilation.
    pub options: &'a Options,
    /// Arguments from the pipeline text.
    pub args: &'a BTreeMap<String, String>,
    pass: &'static str,
    decisions: &'a mut Decisions,
    /// Counters, by name.
    pub(crate) stats: BTreeMap<String, u64>,
    /// Lines for a person who asks why.
    pub(crate) explained: Vec<String>,
}

impl<'a> PassCx<'a> {
    /// The context of one run of `pass`.
    pub fn new(
        pass: &'static str,
        options: &'a Options,
        args: &'a BTreeMap<String, String>,
        decisions: &'a mut Decisions,
    ) -> Self {
        PassCx { options, args, pass, decisions, stats: BTreeMap::new(), explained: vec![] }
    }

    /// Adds to a counter.
    pub fn stat(&mut self, name: &str, n: u64) {
        if n > 0 {
            *self.stats.entry(name.into()).or_default() += n;
        }
    }

    /// Asks whether an optional change may be made. Every call has a number; its line goes to the log.
    pub fn decide(&mut self, what: impl AsRef<str>) -> bool {
        self.decisions.ask(self.pass, what.as_ref())
    }

    /// Adds a line to the explanation of this run.
    pub fn explain(&mut self, line: impl Into<String>) {
        self.explained.push(line.into());
    }
}

/// Runs one pass by itself, without instruments; gives what changed and the counters.
pub fn run_alone(pass: &dyn Pass, m: &mut Module, options: &Options) -> Result<(bool, BTreeMap<String, u64>)> {
    let args = BTreeMap::new();
    let mut decisions = Decisions::new(options.pass_limit);
    let mut cx = PassCx::new(pass.name(), options, &args, &mut decisions);
    let changed = pass.run(m, &mut cx)?;
    Ok((changed, cx.stats))
}
