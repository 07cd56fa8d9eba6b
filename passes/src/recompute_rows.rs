//! On a GPU a launch is a wait for the whole machine. A row (a norm, a residual sum) is cheap: a stage over rows that waits for
//! one only because it reads what that has stored computes it again, and both share a launch.

use crate::lower::is_row_op;
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;
use ir::graph::{Graph, NodeId, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// The pass.
pub struct RecomputeRows;

impl Pass for RecomputeRows {
    fn name(&self) -> &'static str {
        "recompute-rows"
    }
    fn about(&self) -> &'static str {
        "On GPUs, for one token: a stage over rows computes again what another such stage has stored, instead of waiting for it, \
         so that both share a launch"
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let s = cx.options.schedule;
        if s.row_warps == 1 || s.tokens > 1 || m.graph.stages.is_empty() {
            return Ok(false);
        }
        let stages = m.graph.stages.clone();
        let mut out = stages.clone();
        let mut all: Vec<Vec<NodeId>> = stages.iter().map(|s| again(&m.graph, &stages, s)).collect();
        // A value that nobody would read any more is read: otherwise this would be fusion, which has rules and switches of its own.
        let unread = |all: &[Vec<NodeId>], id: &NodeId| {
            let readers = m.graph.users(*id);
            let reads = |i: usize| stages[i].nodes.iter().any(|n| readers.contains(n)) && !stages[i].nodes.contains(id);
            !m.graph.outputs.contains(id) && !(0..stages.len()).any(|i| reads(i) && !all[i].contains(id))
        };
        let stored = |id: &NodeId| stages.iter().any(|s| s.stores.contains(id));
        for i in 0..stages.len() {
            if all[i].iter().any(|id| stored(id) && unread(&all, id)) {
                all[i].clear();
            }
        }
        for (i, (stage, again)) in stages.iter().zip(all).enumerate() {
            if again.is_empty() || !cx.decide(format!("compute rows again in {}", stage.name)) {
                continue;
            }
            cx.stat("nodes", again.len() as u64);
            out[i].nodes = again.into_iter().chain(stage.nodes.iter().copied()).collect();
        }
        let changed = out != m.graph.stages;
        m.graph.stages = out;
        Ok(changed)
    }
}

/// Nodes that a stage over rows would compute again, operands first, so that it waits for what the stages that stored them wait
/// for and no more; none where it waits for others too.
fn again(g: &Graph, stages: &[Stage], stage: &Stage) -> Vec<NodeId> {
    let rows_only = |s: &Stage| s.nodes.iter().all(|&id| is_row_op(g, id));
    if !rows_only(stage) {
        return vec![];
    }
    let owner: BTreeMap<NodeId, &Stage> = stages.iter().flat_map(|s| s.stores.iter().map(move |&id| (id, s))).collect();
    let mut out = vec![];
    let mut seen: BTreeSet<NodeId> = stage.nodes.iter().copied().collect();
    for input in stage.nodes.iter().flat_map(|&id| &g.node(id).inputs) {
        match owner.get(input) {
            Some(_) if seen.contains(input) => {}
            Some(of) if rows_only(of) => needed(g, of, *input, &mut seen, &mut out),
            // It waits for this anyway.
            Some(_) => return vec![],
            None => {}
        }
    }
    out
}

/// Adds a value of a stage and what that computes for it.
fn needed(g: &Graph, of: &Stage, id: NodeId, seen: &mut BTreeSet<NodeId>, out: &mut Vec<NodeId>) {
    if !of.nodes.contains(&id) || !seen.insert(id) {
        return;
    }
    for &input in &g.node(id).inputs {
        needed(g, of, input, seen, out);
    }
    out.push(id);
}
