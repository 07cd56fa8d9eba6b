//! The audit of a program: can it give other bits from run to run, or on another machine, and where? It reads the graph for
//! the orders of reductions, the plans for who writes what, the kernels for what barriers part ([`kernels`]), the code for
//! instructions that do not belong there ([`code`]), and says what depends on the number of tokens ([`choices`]). An artifact
//! carries its own as `audit.json`.

pub mod choices;
pub mod code;
pub mod kernels;
pub mod reductions;
pub mod text;

use crate::artifact::OptionsEntry;
use crate::pipeline::Program;
use choices::Choice;
use code::CodeAudit;
use ir::diag::Result;
use ir::graph::Graph;
use ir::kernel::interp::{Trouble, trouble};
use ir::plan::{self, BufferKind, Plan};
use kernels::{KernelAudit, Verdict};
use passes::Level;
use reductions::{Pinned, Reduction};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the audit in an artifact.
pub const FILE: &str = "audit.json";
/// The form of the file.
const FORMAT: u32 = 1;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A reduction has no order.
    Order,
    /// Two write one location.
    Writers,
    /// Shared memory is read and written without a barrier between, before it is written, or while a copy is in flight.
    Shared,
    /// An instruction that kernels are not made of.
    Instruction,
    /// More float operations of a kind than the kernel has.
    Counts,
}

impl Kind {
    /// The diagnostic code.
    pub fn code(self) -> &'static str {
        match self {
            Kind::Order => "E0820",
            Kind::Writers => "E0821",
            Kind::Shared => "E0822",
            Kind::Instruction => "E0823",
            Kind::Counts => "E0824",
        }
    }

    /// What a fault that the interpreter of kernels found is; none if it is about values.
    pub fn of_interpreter(code: &str) -> Option<Kind> {
        trouble(code).map(|t| if t == Trouble::Writers { Kind::Writers } else { Kind::Shared })
    }
}

/// Something that breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// What is wrong.
    pub kind: Kind,
    /// The weakest level whose promise it breaks.
    pub breaks: String,
    /// Where.
    pub place: String,
    /// In words.
    pub what: String,
}

/// The audit of one plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanAudit {
    /// Launches of a step.
    pub launches: usize,
    /// Kernels, each once.
    pub kernels: Vec<KernelAudit>,
    /// The launch that writes each value and cache.
    pub writers: BTreeMap<String, String>,
}

/// The audit of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramAudit {
    /// Its target.
    pub target: String,
    /// The plan for one token.
    pub decode: PlanAudit,
    /// The plan for chunks of many, if there is one.
    pub prefill: Option<PlanAudit>,
    /// What depends on the number of tokens.
    pub choices: Vec<Choice>,
    /// The code.
    pub code: CodeAudit,
}

/// The whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// The form of this file.
    pub format: u32,
    /// Hash of the numerics.
    pub numerics: String,
    /// Level and switches in effect.
    pub options: OptionsEntry,
    /// Sums, maxima and choices.
    pub reductions: Vec<Reduction>,
    /// Programs.
    pub programs: Vec<ProgramAudit>,
    /// What breaks a promise.
    pub findings: Vec<Found>,
}

/// What is audited.
pub struct Subject<'a> {
    /// The graph after all passes.
    pub graph: &'a Graph,
    /// Values whose order stood before any pass.
    pub pinned: &'a BTreeMap<String, Pinned>,
    /// Options in effect.
    pub options: OptionsEntry,
    /// Programs.
    pub programs: &'a [Program],
    /// What an artifact says of itself.
    pub recorded: Option<&'a Audit>,
}

impl Audit {
    /// Audits a program. The error is that something could not be looked at.
    pub fn of(s: &Subject) -> Result<Audit> {
        let mut findings = vec![];
        let mut reductions = reductions::reductions(s.graph, s.pinned);
        // What a program adds by float atomics is in no order, whatever the graph says.
        let unordered = unordered(s.programs);
        for r in reductions.iter_mut().filter(|r| r.op == "expert_sum" && unordered.contains(&r.value)) {
            (r.order, r.pinned_by) = ("as they arrive".into(), Pinned::Nobody);
        }
        for r in reductions.iter().filter(|r| r.pinned_by == Pinned::Nobody) {
            findings.push(Found {
                kind: Kind::Order,
                breaks: "run".into(),
                place: r.value.clone(),
                what: format!("nobody has fixed in which order {} are summed", r.over),
            });
        }
        let mut programs = vec![];
        // Programs of one class share plans.
        let mut looked: Vec<(&Program, PlanAudit, Option<PlanAudit>)> = vec![];
        for p in s.programs {
            let known = looked.iter().find(|(q, ..)| q.plans == p.plans);
            let (decode, prefill) = match known {
                Some((_, d, m)) => (d.clone(), m.clone()),
                None => {
                    let common = p.plans.common();
                    let of = |phase: &str, plan: &Plan, many: bool, findings: &mut Vec<Found>| {
                        plan_audit(plan, &common, many, &format!("{} {phase}", p.target.class().name()), findings)
                    };
                    let decode = of("decode", &p.plans.decode, p.plans.prefill.is_none(), &mut findings);
                    let prefill = p.plans.prefill.as_ref().map(|m| of("prefill", m, true, &mut findings));
                    looked.push((p, decode.clone(), prefill.clone()));
                    (decode, prefill)
                }
            };
            let recorded = s.recorded.and_then(|a| a.programs.iter().find(|q| q.target == p.target.name())).map(|q| &q.code);
            let mut code = code::code(&p.code, &p.plans.kernels(), p.target, recorded)?;
            for f in &mut code.findings {
                f.place = format!("{}: {}", p.target.name(), f.place);
            }
            findings.extend(code.findings.iter().cloned());
            programs.push(ProgramAudit {
                target: p.target.name().into(),
                decode,
                prefill,
                choices: choices::choices(&p.plans),
                code,
            });
        }
        let numerics = crate::artifact::numerics_hash(s.graph, &s.options.edited);
        Ok(Audit { format: FORMAT, numerics, options: s.options.clone(), reductions, programs, findings })
    }

    /// What breaks the promise of a level.
    pub fn broken(&self, level: Level) -> impl Iterator<Item = &Found> {
        self.findings.iter().filter(move |f| Level::parse(&f.breaks).is_some_and(|l| l <= level))
    }

    /// The text of the file.
    pub fn json(&self) -> String {
        // Maps have text keys, so nothing can fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Values that kernels add to by float atomics.
fn unordered(programs: &[Program]) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for plan in programs.iter().flat_map(|p| p.plans.plans()).map(|(_, plan)| plan) {
        for l in &plan.launches {
            let k = &plan.kernels[l.kernel as usize];
            if k.relaxed().iter().any(|(_, runs)| *runs) {
                let written = l.args.iter().zip(&k.bufs).filter(|(_, b)| b.write);
                out.extend(written.filter_map(|(a, _)| match *a {
                    plan::Arg::Buffer(i) => Some(plan.buffers[i as usize].name.clone()),
                    plan::Arg::Weight(_) => None,
                }));
            }
        }
    }
    out
}

/// Audits one plan.
fn plan_audit(plan: &Plan, common: &Plan, many: bool, place: &str, findings: &mut Vec<Found>) -> PlanAudit {
    let mut writers: BTreeMap<String, String> = BTreeMap::new();
    for l in &plan.launches {
        for (a, b) in l.args.iter().zip(&plan.kernels[l.kernel as usize].bufs) {
            let plan::Arg::Buffer(i) = *a else { continue };
            let buffer = &plan.buffers[i as usize];
            // Parts are joined by the next launch, and then free for another layer.
            if !b.write || matches!(buffer.kind, BufferKind::Parts { .. }) {
                continue;
            }
            // What is added to what an earlier launch wrote: the atomic itself is a finding.
            let adds = plan.kernels[l.kernel as usize].relaxed().iter().any(|(_, runs)| *runs);
            if let (true, Some(first)) = (adds, writers.get_mut(&buffer.name)) {
                *first = l.name.clone();
                continue;
            }
            if let Some(first) = writers.insert(buffer.name.clone(), l.name.clone()) {
                findings.push(Found {
                    kind: Kind::Writers,
                    breaks: "run".into(),
                    place: format!("{place}: {}", buffer.name),
                    what: format!("launches {first} and {} both write it", l.name),
                });
            }
        }
    }
    for k in &plan.kernels {
        let place = format!("{place}: {}", k.name);
        if k.contract {
            let what = "products and sums may be contracted, as code generators like".to_string();
            findings.push(Found { kind: Kind::Counts, breaks: "portable".into(), place: place.clone(), what });
        }
        for (line, runs) in k.relaxed() {
            let (breaks, why) = if runs { ("run", "a float atomic") } else { ("portable", "an approximate function") };
            let what = format!("{why}: {line}");
            findings.push(Found { kind: Kind::Instruction, breaks: breaks.into(), place: place.clone(), what });
        }
    }
    let kernels = kernels::kernels(plan, common, many);
    for k in &kernels {
        for (kind, v) in [(Kind::Writers, &k.writers), (Kind::Shared, &k.shared)] {
            if let Verdict::Broken(what) = v {
                findings.push(Found { kind, breaks: "run".into(), place: format!("{place}: {}", k.name), what: what.clone() });
            }
        }
    }
    PlanAudit { launches: plan.launches.len(), kernels, writers }
}
