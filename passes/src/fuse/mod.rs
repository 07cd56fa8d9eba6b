//! Fusion by equality saturation, one region (layer) at a time. Rules say which operation may compute its operand itself
//! ([`rules`](mod@rules)); extraction then chooses what one kernel computes, by launches and memory traffic of the region as
//! a whole ([`cost`]), and who stores a value that several kernels compute. Equal regions are solved once.
//! The result is [`Graph::stages`](ir::graph::Graph::stages). egg is used here and nowhere else.

pub mod cost;
mod example;
pub mod explain;
pub mod extract;
pub mod lang;
pub mod region;
pub mod rules;
pub mod shape;
#[cfg(test)]
mod tests;

pub use rules::{Rule, all_but, rules};

use crate::merge_launches::per_launch;
use crate::pass::{Effect, Module, Pass, PassCx};
use cost::{Solution, Weights, evaluate};
use extract::{Found, solve};
use ir::diag::{Diagnostic, Result};
use ir::graph::{Graph, Stage};
use region::{Problem, Region, cut, problem};
use std::collections::BTreeMap;

/// The pass.
pub struct Fuse;

impl Pass for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }
    fn about(&self) -> &'static str {
        "Chooses what one kernel computes. Named exact rules inline a producer into its consumer; an integer cost of launches \
         and memory traffic, over a layer as a whole, picks among them. A value that several kernels compute is stored by \
         one of them. Off: one kernel per operation."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let o = cx.options;
        let off = rules::off(o);
        let w = Weights::new(o.launch_cost, o.rows, o.schedule.tokens, per_launch(o));
        let mut solved: BTreeMap<Problem, (String, Found)> = BTreeMap::new();
        let mut stages = vec![];
        for region in cut(&m.graph) {
            let p = problem(&m.graph, &region, cx.options);
            if p.items.iter().any(|i| i.operands.len() > 32) {
                return Err(Diagnostic::new("E0743", "an operation has more than 32 operands").at(&region.name));
            }
            let same_as = solved.get(&p).map(|(name, _)| name.clone());
            if same_as.is_none() {
                let found = solve(&p, &w, &off)?;
                cx.stat("regions-solved", 1);
                cx.stat("choices-evaluated", found.evaluated);
                cx.stat("enodes", found.offer.enodes);
                for (rule, n) in &found.offer.matches {
                    cx.stat(&format!("matches.{rule}"), *n);
                }
                solved.insert(p.clone(), (region.name.clone(), found));
            }
            let found = &solved[&p].1;
            let chosen = decide(&m.graph, &region, &p, &found.best, &w, cx);
            cx.stat("regions", 1);
            cx.stat("stages", chosen.kernels.len() as u64);
            cx.stat("nodes", region.nodes.len() as u64);
            for (rule, n) in explain::used(&p, &chosen, &off) {
                cx.stat(&format!("used.{rule}"), n);
            }
            for line in explain::region(&m.graph, &region, &p, found, &chosen, same_as.as_deref(), &off) {
                cx.explain(line);
            }
            stages.extend(to_stages(&m.graph, &region, &chosen));
        }
        let changed = stages != m.graph.stages_or_default() || !m.graph.launches.is_empty();
        m.graph.stages = stages;
        m.graph.launches = vec![];
        Ok(changed)
    }
}

/// Numbers every fused kernel as a decision; what is refused falls back to kernels of single operations.
fn decide(g: &Graph, r: &Region, p: &Problem, best: &Solution, w: &Weights, cx: &mut PassCx<'_>) -> Solution {
    let mut choice = vec![0; p.items.len()];
    let mut all = true;
    for k in best.kernels.iter().filter(|k| k.nodes.len() > 1) {
        let ops: Vec<&str> = k.nodes.iter().map(|&i| p.items[i].kind.symbol()).collect();
        if cx.decide(format!("fuse {} = {}", g.node(r.nodes[k.root]).name, ops.join(" + "))) {
            for &i in &k.nodes {
                choice[i] = best.choice[i];
            }
        } else {
            all = false;
        }
    }
    if all {
        return best.clone();
    }
    // Parts of legal kernels are legal kernels.
    evaluate(p, &choice, w).unwrap_or_else(|| evaluate(p, &vec![0; p.items.len()], w).expect("solved before"))
}

fn to_stages(g: &Graph, r: &Region, s: &Solution) -> Vec<Stage> {
    let ids = |v: &[usize]| v.iter().map(|&i| r.nodes[i]).collect();
    s.kernels
        .iter()
        .map(|k| Stage { name: g.node(r.nodes[k.root]).name.clone(), nodes: ids(&k.nodes), stores: ids(&k.stores) })
        .collect()
}
