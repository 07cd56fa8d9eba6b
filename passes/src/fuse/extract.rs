//! Runs the rules on a region and chooses from what they made: equality saturation within limits that are counts, then a
//! search over the alternatives of each item, whose cost is that of the whole region (shared values count once).
//!
//! egg's own extractor charges a shared value once per use and its runner stops after seconds of wall clock; neither is
//! used here. Alternatives are sorted, ties keep what was found first, and nothing depends on a hash.

use super::cost::{Solution, Weights, evaluate};
use super::lang::terms;
use super::region::{Operand, Problem};
use super::rules::rewrites;
use egg::{Rewrite, Runner, SimpleScheduler, StopReason, SymbolLang};
use ir::diag::{Diagnostic, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Iterations of equality saturation.
const ITERATIONS: usize = 64;
/// Nodes of the e-graph.
const NODES: usize = 200_000;
/// Alternatives of one item.
const ALTERNATIVES: usize = 64;

/// What the rules made of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternatives {
    /// For each item the masks of operands that it may compute itself, ascending; the first is 0.
    pub masks: Vec<Vec<u32>>,
    /// Matches by rule.
    pub matches: BTreeMap<String, u64>,
    /// Nodes of the e-graph at the end.
    pub enodes: u64,
    /// Did the rules run dry (rather than reach a limit)?
    pub saturated: bool,
}

/// Runs the rules.
pub fn saturate(p: &Problem, rules: &[Rewrite<SymbolLang, ()>]) -> Result<Alternatives> {
    let (eg, ids) = terms(p);
    let mut matches: BTreeMap<String, u64> = BTreeMap::new();
    // Years: the limits are the counts.
    let runner = Runner::<SymbolLang, (), ()>::new(())
        .with_egraph(eg)
        .with_iter_limit(ITERATIONS)
        .with_node_limit(NODES)
        .with_time_limit(Duration::from_secs(1 << 32))
        .with_scheduler(SimpleScheduler)
        .run(rules);
    let saturated = match runner.stop_reason {
        Some(StopReason::Saturated) => true,
        Some(StopReason::IterationLimit(_) | StopReason::NodeLimit(_)) => false,
        other => {
            return Err(Diagnostic::new("E0741", format!("fusion stopped for a reason that is no count: {other:?}"))
                .hint("this is an error of isobit; `--fuse off` avoids it"));
        }
    };
    for it in &runner.iterations {
        for (name, n) in &it.applied {
            let name = name.as_str();
            *matches.entry(name.split('/').next().unwrap_or(name).into()).or_default() += *n as u64;
        }
    }
    let eg = runner.egraph;
    let mut masks = vec![];
    for (i, item) in p.items.iter().enumerate() {
        let own = eg.lookup(SymbolLang::leaf(format!("n{i}"))).map(|id| eg.find(id));
        let mut found = BTreeSet::new();
        for node in eg[eg.find(ids[i])].nodes.iter() {
            if node.children.first().map(|&c| eg.find(c)) != own || node.op.as_str() != item.kind.symbol() {
                continue;
            }
            let mut mask = 0;
            for (s, o) in item.operands.iter().enumerate() {
                if let Operand::Inner(j) = *o
                    && eg.find(node.children[s + 1]) == eg.find(ids[j])
                {
                    mask |= 1 << s;
                }
            }
            found.insert(mask);
        }
        masks.push(found.into_iter().take(ALTERNATIVES).collect());
    }
    Ok(Alternatives { masks, matches, enodes: eg.total_number_of_nodes() as u64, saturated })
}

/// The best choice found, and the cost of no fusion at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the rules offered.
    pub offer: Alternatives,
    /// Without fusion.
    pub plain: Solution,
    /// The choice.
    pub best: Solution,
    /// Choices looked at.
    pub evaluated: u64,
}

/// Solves a region.
pub fn solve(p: &Problem, w: &Weights, off: &BTreeSet<String>) -> Result<Found> {
    let offer = saturate(p, &rewrites(off))?;
    let none = vec![0; p.items.len()];
    let plain = evaluate(p, &none, w).ok_or_else(|| {
        Diagnostic::new("E0742", "a region cannot be lowered even without fusion").hint("this is an error of isobit")
    })?;
    let mut s = Search { p, w, masks: &offer.masks, near: near(p), evaluated: 1 };
    let small = s.climb(plain.clone());
    // From the other end: everything inlined that can be.
    let mut full = plain.clone();
    for i in (0..p.items.len()).rev() {
        for &mask in offer.masks[i].iter().rev() {
            if let Some(next) = s.with(&full.choice, &[(i, mask)]) {
                full = next;
                break;
            }
        }
    }
    let full = s.climb(full);
    let evaluated = s.evaluated;
    let best = if full.cost < small.cost { full } else { small };
    Ok(Found { offer, plain, best, evaluated })
}

struct Search<'a> {
    p: &'a Problem,
    w: &'a Weights,
    masks: &'a [Vec<u32>],
    near: Vec<BTreeSet<usize>>,
    evaluated: u64,
}

/// Items at most three edges apart (a key and a value on their way to the cache): changes of others do not depend on each
/// other.
fn near(p: &Problem) -> Vec<BTreeSet<usize>> {
    let mut edge = vec![BTreeSet::new(); p.items.len()];
    for (i, item) in p.items.iter().enumerate() {
        for o in &item.operands {
            if let Operand::Inner(j) = *o {
                edge[i].insert(j);
                edge[j].insert(i);
            }
        }
    }
    let farther = |from: &BTreeSet<usize>| from.iter().flat_map(|&j| edge[j].iter().copied().chain([j])).collect();
    edge.iter().map(|e| farther(&farther(e))).collect()
}

impl Search<'_> {
    fn with(&mut self, choice: &[u32], change: &[(usize, u32)]) -> Option<Solution> {
        self.evaluated += 1;
        let mut c = choice.to_vec();
        for &(i, m) in change {
            c[i] = m;
        }
        evaluate(self.p, &c, self.w)
    }

    /// Takes the best change of one item, or else of two near ones, until none lowers the cost.
    fn climb(&mut self, mut now: Solution) -> Solution {
        loop {
            let moves: Vec<(usize, u32)> = (0..self.p.items.len())
                .flat_map(|i| self.masks[i].iter().map(move |&m| (i, m)))
                .filter(|&(i, m)| now.choice[i] != m)
                .collect();
            let mut best: Option<Solution> = None;
            for &m in &moves {
                self.keep_lower(&now, &[m], &mut best);
            }
            if best.is_none() {
                for (k, &a) in moves.iter().enumerate() {
                    for &b in moves[k + 1..].iter().filter(|b| b.0 != a.0) {
                        if !self.near[a.0].contains(&b.0) {
                            continue;
                        }
                        self.keep_lower(&now, &[a, b], &mut best);
                    }
                }
            }
            match best {
                Some(b) => now = b,
                None => return now,
            }
        }
    }

    fn keep_lower(&mut self, now: &Solution, change: &[(usize, u32)], best: &mut Option<Solution>) {
        let limit = best.as_ref().map_or(now.cost, |b| b.cost);
        if let Some(s) = self.with(&now.choice, change)
            && s.cost < limit
        {
            *best = Some(s);
        }
    }
}
