//! Rules of fusion: stages (one kernel each) and launches.
//!
//! - a stage names live computing nodes, each once, in topological order, and stores at least one of them; together the
//!   stages compute every node that an output needs;
//! - what a stage reads and does not compute itself is an input, a weight, or stored by an earlier stage; every value is
//!   stored by one stage at most; every output is stored; the stored values of a stage have the same rows (a cache write
//!   counts as one row per token);
//! - a stage that computes a cache write stores it, so no write happens twice; its readers, which need the keys of other
//!   rows too, stand in later stages;
//! - the launches hold each stage once, within a launch in ascending order, and whatever a stage reads was stored by an
//!   earlier launch.

use super::Check;
use crate::diag::Diagnostic;
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId, Rows, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that the outputs need, themselves included.
fn needed(g: &Graph) -> BTreeSet<NodeId> {
    let mut seen = BTreeSet::new();
    let mut todo = g.outputs.clone();
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            todo.extend(&g.node(id).inputs);
        }
    }
    seen
}

/// Rows for which a value is computed.
fn rows_of(g: &Graph, id: NodeId) -> Rows {
    let n = g.node(id);
    if n.op == Op::KvWrite { Rows::Tokens } else { n.ty.rows }
}

pub(super) fn check(c: &mut Check) {
    let g = c.g;
    if g.stages.is_empty() {
        if !g.launches.is_empty() {
            c.errors.push(Diagnostic::new("E0330", "there are launches but no stages"));
        }
        return;
    }
    let mut names = BTreeSet::new();
    // Value -> the stage that stores it.
    let mut stored: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut computed: BTreeSet<NodeId> = BTreeSet::new();
    // Stages that each stage depends on.
    let mut depends: Vec<BTreeSet<usize>> = vec![];
    for (s, stage) in g.stages.iter().enumerate() {
        if stage.name.is_empty() || !names.insert(&stage.name) {
            at_stage(c, stage, "E0301", "the stage's name is empty or that of another stage".into());
        }
        depends.push(one_stage(c, stage, &stored));
        computed.extend(&stage.nodes);
        for &id in &stage.stores {
            if let Some(&other) = stored.get(&id) {
                let first = &g.stages[other].name;
                at_stage(c, stage, "E0324", format!("stores {id}, which stage \"{first}\" stores"));
            } else {
                stored.insert(id, s);
            }
        }
    }
    for id in needed(g) {
        if g.node(id).op.computes() && !computed.contains(&id) {
            c.at_node(id, "E0321", "an output needs it and no stage computes it");
        }
    }
    for &o in &g.outputs {
        if !stored.contains_key(&o) {
            c.at_node(o, "E0326", "an output that no stage stores");
        }
    }
    launches(c, &depends);
}

fn at_stage(c: &mut Check, stage: &Stage, code: &'static str, message: String) {
    c.errors.push(Diagnostic::new(code, message).at(format!("stage \"{}\"", stage.name)));
}

/// Checks a stage by itself and against what earlier ones stored; the stages it depends on.
fn one_stage(c: &mut Check, stage: &Stage, stored: &BTreeMap<NodeId, usize>) -> BTreeSet<usize> {
    let g = c.g;
    let mut depends = BTreeSet::new();
    let all: BTreeSet<NodeId> = stage.nodes.iter().copied().collect();
    let mut done = BTreeSet::new();
    for &id in &stage.nodes {
        if !g.get(id).is_some_and(|n| n.op.computes()) {
            at_stage(c, stage, "E0320", format!("{id} is not a node that computes"));
            continue;
        }
        if done.contains(&id) {
            at_stage(c, stage, "E0320", format!("{id} stands in it twice"));
            continue;
        }
        let n = g.node(id);
        for &i in &n.inputs {
            let input = g.node(i);
            if all.contains(&i) {
                if !done.contains(&i) {
                    at_stage(c, stage, "E0322", format!("{id} stands before its operand {i}"));
                }
                if input.op == Op::KvWrite {
                    at_stage(c, stage, "E0327", format!("{id} reads keys that {i} writes in the same stage"));
                }
            } else if input.op.computes() {
                match stored.get(&i) {
                    Some(&s) => _ = depends.insert(s),
                    None => at_stage(c, stage, "E0323", format!("{id} reads {i}, which no earlier stage stores")),
                }
            }
        }
        if n.op == Op::KvWrite && !stage.stores.contains(&id) {
            at_stage(c, stage, "E0327", format!("computes the cache write {id} without storing it"));
        }
        done.insert(id);
    }
    let mut rows = BTreeSet::new();
    for (i, &id) in stage.stores.iter().enumerate() {
        if !done.contains(&id) {
            at_stage(c, stage, "E0325", format!("stores {id}, which it does not compute"));
        } else {
            rows.insert(rows_of(g, id));
            if stage.stores[..i].contains(&id) {
                at_stage(c, stage, "E0324", format!("stores {id} twice"));
            }
        }
    }
    if rows.len() > 1 || stage.stores.is_empty() {
        at_stage(c, stage, "E0328", "a stage stores something, and all of it with the same rows".into());
    }
    depends
}

fn launches(c: &mut Check, depends: &[BTreeSet<usize>]) {
    let g = c.g;
    if g.launches.is_empty() {
        return;
    }
    let mut launch_of = BTreeMap::new();
    for (l, stages) in g.launches.iter().enumerate() {
        let place = format!("launch {l}");
        let mut error = |code, m: String| c.errors.push(Diagnostic::new(code, m).at(&place));
        if stages.is_empty() {
            error("E0330", "the launch has no stage".into());
        }
        for (i, &s) in stages.iter().enumerate() {
            if s as usize >= g.stages.len() {
                error("E0330", format!("there is no stage {s}"));
            } else if launch_of.insert(s as usize, l).is_some() {
                error("E0330", format!("stage {s} is launched twice"));
            }
            if i > 0 && stages[i - 1] >= s {
                error("E0330", format!("stage {s} does not come after stage {}", stages[i - 1]));
            }
        }
    }
    for (s, stage) in g.stages.iter().enumerate() {
        let Some(&l) = launch_of.get(&s) else {
            at_stage(c, stage, "E0330", format!("stage {s} is in no launch"));
            continue;
        };
        for d in &depends[s] {
            if launch_of.get(d).is_some_and(|&e| e >= l) {
                let other = &g.stages[*d].name;
                at_stage(c, stage, "E0331", format!("launch {l} needs stage \"{other}\" of the same or a later launch"));
            }
        }
    }
}
