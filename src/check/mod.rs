//! Checks of a program by running it in the interpreter of kernels: `isobit run --check`.
//!
//! | check | looks for |
//! |---|---|
//! | `races` | two warps or blocks on one location without a barrier between, copies that have not landed |
//! | `init` | reads of what nobody wrote: in shared memory each, in buffers by filling them with other bytes before |
//! | `order` | bits that depend on the order in which warps and blocks run |
//! | `parity` | launches that give other bits than their operations one by one on the same inputs; both against float64 |

pub mod float64;
pub mod parity;
pub mod record;

use crate::emit::kernels_text;
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::kernel::interp::{Order, RunOptions, Trouble, trouble};
use ir::plan::phases::Phases;
use models::Checkpoint;
use record::{Log, Recorder, SharedLog};
use runtime::session::{Limits, Session};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// The code of what a check finds beside faults of the interpreter.
pub const PARITY: &str = "E0827";

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Two on one location.
    Races,
    /// Reads of what nobody wrote.
    Init,
    /// Orders of warps and blocks.
    Order,
    /// Fused against unfused against float64.
    Parity,
}

impl Check {
    /// All.
    pub const ALL: [Check; 4] = [Check::Races, Check::Init, Check::Order, Check::Parity];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Check::Races => "races",
            Check::Init => "init",
            Check::Order => "order",
            Check::Parity => "parity",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Check> {
        Check::ALL.into_iter().find(|c| c.name() == name)
    }
}

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Diagnostic code.
    pub code: String,
    /// Value or kernel, position, launch.
    pub place: String,
    /// In words.
    pub what: String,
}

/// What a check did.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Which.
    pub check: Check,
    /// What it looked at.
    pub looked: String,
    /// What it found.
    pub findings: Vec<Finding>,
}

/// What is run.
pub struct Job<'a> {
    /// Plans with their kernels.
    pub phases: &'a Phases,
    /// The graph that they were lowered from.
    pub graph: &'a Graph,
    /// Weights.
    pub checkpoint: &'a Checkpoint,
    /// Prompt.
    pub prompt: &'a [u32],
    /// Tokens to generate, the prompt's own choice included.
    pub tokens: usize,
    /// Tokens of the prompt that run together.
    pub chunk: usize,
}

/// Seeds of the orders that are tried.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Runs checks, in order.
pub fn run(job: &Job, checks: &[Check], progress: &mut dyn FnMut(&str, usize, usize)) -> Result<Vec<Outcome>> {
    let asked = |c: Check| checks.contains(&c);
    let mut out = vec![];
    // What the others are compared with; races are seen without.
    let (plain, failed) = if checks == [Check::Races] {
        (Log::default(), None)
    } else {
        progress("run", 0, 0);
        job.record(RunOptions::default())?
    };
    let count = |log: &Log| {
        let end = if log.steps.len() == 1 { "" } else { "s" };
        format!("{} launches in {} step{end}", log.records.len(), log.steps.len())
    };
    let of = count(&plain);
    let failed: Vec<Finding> = failed.iter().map(finding).collect();
    if asked(Check::Races) || asked(Check::Init) {
        progress("races and reads of what nobody wrote", 0, 0);
        let (log, fault) = job.record(RunOptions::checked(SEEDS[0]))?;
        // A missing barrier shows as either, depending on the order; so what is found is told, whichever was asked for.
        let home = |d: &Diagnostic| {
            let race = trouble(d.code).is_some_and(|t| t != Trouble::Unwritten);
            if race && asked(Check::Races) || !asked(Check::Init) { Check::Races } else { Check::Init }
        };
        let found = |c: Check| fault.iter().filter(|d| home(d) == c).map(finding).collect::<Vec<_>>();
        if asked(Check::Races) {
            let before = if fault.is_some() { ", to the fault" } else { "" };
            let looked = format!("{} with shadow memory{before}", count(&log));
            out.push(Outcome { check: Check::Races, looked, findings: [failed.clone(), found(Check::Races)].concat() });
        }
        if asked(Check::Init) {
            let why = "memory that nobody wrote held NaNs, and bits changed";
            let findings = differs(job.graph, &plain, &log, fault.is_some(), why).into_iter().chain(found(Check::Init)).collect();
            let looked = format!("{of} with shadow memory, and with memory full of NaNs");
            out.push(Outcome { check: Check::Init, looked, findings });
        }
    }
    if asked(Check::Order) {
        let mut findings = vec![];
        for (i, seed) in SEEDS.into_iter().enumerate() {
            progress("orders of warps and blocks", i, SEEDS.len());
            let order = Order::Shuffled(seed);
            let (log, fault) = job.record(RunOptions { warp_order: order, block_order: order, ..RunOptions::default() })?;
            findings.extend(fault.iter().map(finding));
            let why = format!("warps and blocks ran in the order of seed {seed}, and bits changed");
            findings.extend(differs(job.graph, &plain, &log, fault.is_some(), &why));
        }
        let looked = format!("{of} in order, and in {} random orders of warps and blocks", SEEDS.len());
        out.push(Outcome { check: Check::Order, looked, findings });
    }
    if asked(Check::Parity) {
        progress("operations one by one", 0, 0);
        let p = parity::parity(&plain, job.graph, job.checkpoint)?;
        let far: Vec<String> = distances(&p.distance);
        let looked =
            format!("{} values of {of} against their operations one by one; farthest from float64: {}", p.sites, far.join(", "));
        out.push(Outcome { check: Check::Parity, looked, findings: [failed, p.findings].concat() });
    }
    Ok(out)
}

/// The greatest distances, by operation.
fn distances(all: &BTreeMap<String, (f64, String)>) -> Vec<String> {
    let mut far: Vec<(&String, &(f64, String))> = all.iter().collect();
    far.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    far.iter().take(3).map(|(op, (d, place))| format!("{op} {d:.1e} ({place})")).collect()
}

fn finding(d: &Diagnostic) -> Finding {
    Finding { code: d.code.into(), place: d.place.clone(), what: d.message.clone() }
}

/// The first launch that made other bits; a run that stopped early is compared up to there.
fn differs(g: &Graph, a: &Log, b: &Log, stopped: bool, why: &str) -> Option<Finding> {
    let found = |place: String, what: String| Some(Finding { code: PARITY.into(), place, what });
    for (x, y) in a.records.iter().zip(&b.records) {
        let value = x.writes.iter().zip(&y.writes).find(|(x, y)| x != y).map(|(x, _)| g.node(x.0).name.clone());
        let cache = x.caches.iter().zip(&y.caches).find(|(x, y)| x != y).map(|(x, _)| format!("kv.{}", x.layer));
        if let Some(name) = value.or(cache) {
            let position = a.steps.get(x.step).map_or(0, |s| s.position);
            return found(format!("{name}, position {position}, launch {} of {}", x.launch, x.phase), why.into());
        }
    }
    if a.records.len() != b.records.len() && !stopped {
        return found("the run".into(), format!("{why}: {} launches became {}", a.records.len(), b.records.len()));
    }
    None
}

impl Job<'_> {
    /// Runs prompt and tokens; the log, and what stopped it.
    fn record(&self, options: RunOptions) -> Result<(Log, Option<Diagnostic>)> {
        let log = SharedLog::default();
        let device = Box::new(Recorder::new(options, self.phases, self.graph, log.clone()));
        let chunk = self.chunk.clamp(1, self.prompt.len().max(1));
        let limits = Limits { slots: 1, context: self.prompt.len() + self.tokens + 1, chunk, outputs: 1, ..Limits::default() };
        let code = kernels_text(self.phases.kernels()).into_bytes();
        let mut session = Session::new(device, self.phases.clone(), &code, self.checkpoint, limits, &mut |_, _| {})?;
        let mut all = || -> Result<()> {
            let mut next = session.run(self.prompt, chunk, 1, &mut |_| {})?;
            for _ in 1..self.tokens {
                next = session.run(&[next], 1, 1, &mut |_| {})?;
            }
            Ok(())
        };
        let fault = all().err();
        let log = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((log, fault))
    }
}
