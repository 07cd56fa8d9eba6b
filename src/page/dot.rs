//! A graph for Graphviz: a box a stage, inside of a box a launch; weights are grey, values that reach memory are filled.

use super::attributes;
use ir::graph::{Graph, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The text; with `only`, the values of which that says yes, and what they read.
pub fn dot(g: &Graph, only: &dyn Fn(&str) -> bool) -> String {
    let wanted: BTreeSet<NodeId> = g.ids().filter(|&id| only(&g.node(id).name)).collect();
    let read: BTreeSet<NodeId> = wanted.iter().flat_map(|&id| g.node(id).inputs.clone()).collect();
    let stored: BTreeSet<NodeId> = g.stages.iter().flat_map(|s| s.stores.clone()).collect();
    // A node that several stages compute stands in the one that stores it, else in the first.
    let mut home: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (i, s) in g.stages.iter().enumerate() {
        s.nodes.iter().for_each(|id| _ = home.entry(*id).or_insert(i));
    }
    for (i, s) in g.stages.iter().enumerate() {
        s.stores.iter().for_each(|id| _ = home.insert(*id, i));
    }
    let mut o = format!(
        "digraph {} {{\n  rankdir=TB; node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=11]; edge [color=gray40];\n",
        quote(&g.name)
    );
    let node = |o: &mut String, id: NodeId, pad: &str| {
        let n = g.node(id);
        let (attrs, order) = attributes(g, id);
        let lines = [n.name.clone(), format!("{} : {}", n.op.name(), n.ty), attrs, order];
        let label = lines.into_iter().filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
        let look = match (n.op.computes(), stored.contains(&id)) {
            (false, _) => ", style=filled, fillcolor=gray92, color=gray70",
            (true, true) => ", style=\"rounded,filled\", fillcolor=\"#dbeafe\"",
            (true, false) => "",
        };
        let _ = writeln!(o, "{pad}n{} [label={}{look}];", id.0, quote(&label));
    };
    for (l, stages) in g.launches_or_default().iter().enumerate().filter(|_| !g.stages.is_empty()) {
        let mut inner = String::new();
        for &s in stages {
            let Some(stage) = g.stages.get(s as usize) else { continue };
            let here: Vec<NodeId> =
                stage.nodes.iter().copied().filter(|id| wanted.contains(id) && home.get(id) == Some(&(s as usize))).collect();
            if here.is_empty() {
                continue;
            }
            let _ = writeln!(inner, "    subgraph cluster_s{s} {{\n      label={}; color=gray60;", quote(&stage.name));
            here.into_iter().for_each(|id| node(&mut inner, id, "      "));
            inner.push_str("    }\n");
        }
        if !inner.is_empty() {
            let _ = write!(o, "  subgraph cluster_l{l} {{\n    label=\"launch {l}\"; style=dashed; color=gray70;\n{inner}  }}\n");
        }
    }
    for id in g.topo().into_iter().filter(|id| wanted.contains(id) && !home.contains_key(id)) {
        node(&mut o, id, "  ");
    }
    for &id in read.difference(&wanted) {
        node(&mut o, id, "  ");
    }
    for &id in &wanted {
        g.node(id).inputs.iter().for_each(|i| _ = writeln!(o, "  n{} -> n{};", i.0, id.0));
    }
    o.push_str("}\n");
    o
}
