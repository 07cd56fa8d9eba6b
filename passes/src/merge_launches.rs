//! Horizontal fusion: stages that do not depend on each other share a launch. Stages are reordered where they are
//! independent, and each launch becomes a run of consecutive stages.

use crate::fuse::region::rows_of;
use crate::lower::shared::{SHARED_BUDGET, of_stage, pooled};
use crate::options::Options;
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId, Stage};
use std::collections::BTreeMap;

/// Stages of one launch at most.
pub const MAX_STAGES: usize = 3;

/// A stage as grouping sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Stages that must run in an earlier launch; all before this one.
    pub waits: Vec<usize>,
    /// Leading rows; only equal ones share a launch.
    pub rows: u8,
    /// Shares with none.
    pub solo: bool,
    /// Nodes it computes, ascending: stages that compute common ones are preferred as partners.
    pub nodes: Vec<u32>,
    /// Shared arrays, the greatest first.
    pub shared: Vec<u32>,
}

/// Groups stages into launches, in order of execution. Greedy: the ready stage with the longest way to the end opens a
/// launch, then ready partners join while shared memory lasts, those with the most common nodes first; ties go to the lower index.
pub fn group(stages: &[Candidate], max: usize) -> Vec<Vec<usize>> {
    if max <= 1 {
        return (0..stages.len()).map(|i| vec![i]).collect();
    }
    let mut height = vec![0usize; stages.len()];
    for i in (0..stages.len()).rev() {
        for &w in &stages[i].waits {
            height[w] = height[w].max(height[i] + 1);
        }
    }
    let mut done = vec![false; stages.len()];
    let mut out: Vec<Vec<usize>> = vec![];
    let mut left = stages.len();
    while left > 0 {
        let ready: Vec<usize> = (0..stages.len()).filter(|&i| !done[i] && stages[i].waits.iter().all(|&w| done[w])).collect();
        let Some(&seed) = ready.iter().min_by_key(|&&i| (std::cmp::Reverse(height[i]), i)) else { return out };
        let mut launch = vec![seed];
        if !stages[seed].solo {
            let mut partners: Vec<usize> =
                ready.into_iter().filter(|&i| i != seed && !stages[i].solo && stages[i].rows == stages[seed].rows).collect();
            let rank = |&i: &usize| {
                let common = common(&stages[i].nodes, &stages[seed].nodes);
                (std::cmp::Reverse(common), std::cmp::Reverse(height[i]), i)
            };
            partners.sort_by_key(rank);
            for p in partners {
                let parts: Vec<Vec<u32>> = launch.iter().chain([&p]).map(|&i| stages[i].shared.clone()).collect();
                if launch.len() < max && pooled(&parts) <= SHARED_BUDGET {
                    launch.push(p);
                }
            }
        }
        launch.sort_unstable();
        for &i in &launch {
            done[i] = true;
        }
        left -= launch.len();
        out.push(launch);
    }
    out
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().filter(|x| b.binary_search(x).is_ok()).count()
}

/// The stages of a graph as candidates. `apart`: an exact matmul has a launch of its own.
pub fn candidates(g: &Graph, stages: &[Stage], apart: bool) -> Vec<Candidate> {
    let mut stored = BTreeMap::new();
    for (i, s) in stages.iter().enumerate() {
        for &id in &s.stores {
            stored.insert(id, i);
        }
    }
    stages
        .iter()
        .map(|s| {
            let reads = s.nodes.iter().flat_map(|&n| &g.node(n).inputs).filter(|x| !s.nodes.contains(x));
            let mut waits: Vec<usize> = reads.filter_map(|x| stored.get(x).copied()).collect();
            waits.sort_unstable();
            waits.dedup();
            let mut nodes: Vec<u32> = s.nodes.iter().map(|n| n.0).collect();
            nodes.sort_unstable();
            let solo = s.nodes.iter().any(|&n| matches!(g.node(n).op, Op::Attention { .. } | Op::Argmax));
            let exact = |&n: &NodeId| matches!(g.node(n).op, Op::QLinear { .. } | Op::QExpertLinear { .. });
            let solo = solo || apart && s.nodes.iter().any(exact);
            let rows = s.stores.iter().map(|&n| rows_of(g, n) as u8).max().unwrap_or(0);
            Candidate { waits, rows, solo, nodes, shared: of_stage(g, &s.nodes) }
        })
        .collect()
}

/// Stages of a launch under these options, for the cost of fusion.
pub fn per_launch(options: &Options) -> usize {
    if options.is_on("merge-launches") { MAX_STAGES } else { 1 }
}

/// The pass.
pub struct MergeLaunches;

impl Pass for MergeLaunches {
    fn name(&self) -> &'static str {
        "merge-launches"
    }
    fn about(&self) -> &'static str {
        "Stages that do not depend on each other and run over the same rows share one launch, each with blocks of its own. \
         Attention and argmax stay alone. Greedy along the longest chain of stages; partners with a common prologue first. \
         `max=N` (default 3) limits the stages of a launch."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }
    fn args(&self) -> &'static [(&'static str, &'static str)] {
        &[("max", "stages of one launch at most (default 3)")]
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let max =
            match cx.args.get("max") {
                None => MAX_STAGES,
                Some(t) => t.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| {
                    Diagnostic::new("E0705", format!("`max={t}` is not a number of stages")).hint("use 1 to 64")
                })?,
            };
        let g = &mut m.graph;
        let stages = g.stages_or_default();
        let (mut order, mut launches) = (vec![], vec![]);
        for launch in group(&candidates(g, &stages, cx.options.schedule.mma > 0), max) {
            let names: Vec<&str> = launch.iter().map(|&i| stages[i].name.as_str()).collect();
            let take = launch.len() == 1 || cx.decide(format!("launch {} together", names.join(" + ")));
            for (k, i) in launch.into_iter().enumerate() {
                if k == 0 || !take {
                    launches.push(vec![]);
                }
                launches.last_mut().expect("just pushed").push(order.len() as u32);
                order.push(i);
            }
        }
        cx.stat("stages", stages.len() as u64);
        cx.stat("launches", launches.len() as u64);
        if launches.len() == stages.len() {
            return Ok(false);
        }
        g.stages = order.into_iter().map(|i| stages[i].clone()).collect();
        g.launches = launches;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(waits: &[usize], rows: u8, solo: bool, nodes: &[u32]) -> Candidate {
        Candidate { waits: waits.to_vec(), rows, solo, nodes: nodes.to_vec(), shared: vec![] }
    }

    #[test]
    fn independent_stages_share_partners_with_common_nodes_first() {
        let s = [c(&[], 1, false, &[1]), c(&[], 1, false, &[2]), c(&[], 1, false, &[1, 3]), c(&[], 1, false, &[1, 4])];
        assert_eq!(group(&s, 3), [vec![0, 2, 3], vec![1]]);
        assert_eq!(group(&s, 1).len(), 4);
    }

    #[test]
    fn shared_memory_limits_a_launch() {
        let mut s = vec![c(&[], 1, false, &[]); 3];
        let k = 1024;
        (s[0].shared, s[1].shared, s[2].shared) = (vec![30 * k, k], vec![20 * k, 20 * k], vec![28 * k, 10 * k]);
        assert_eq!(group(&s, 3), [vec![0, 2], vec![1]], "30 + 20 KB are too much, 30 + 10 are not");
    }

    #[test]
    fn rows_and_solo_stages_keep_apart_and_the_longest_chain_goes_first() {
        let s =
            [c(&[], 2, false, &[]), c(&[], 1, true, &[]), c(&[], 1, false, &[]), c(&[2], 1, false, &[]), c(&[], 1, false, &[])];
        assert_eq!(group(&s, 3), [vec![2, 4], vec![0], vec![1], vec![3]]);
    }
}
