//! Says in text what fusion did to a region and why.

use super::cost::Solution;
use super::extract::Found;
use super::region::{Operand, Problem, Region};
use super::rules::rule_of;
use ir::graph::Graph;
use std::collections::{BTreeMap, BTreeSet};

/// How often each rule stands in the chosen kernels.
pub fn used(p: &Problem, s: &Solution, off: &BTreeSet<String>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for k in &s.kernels {
        for &i in &k.nodes {
            let names: BTreeSet<&str> = p.items[i]
                .operands
                .iter()
                .enumerate()
                .filter_map(|(slot, o)| match *o {
                    Operand::Inner(j) if s.choice[i] >> slot & 1 == 1 => {
                        rule_of(p.items[i].kind, slot, p.items[j].kind, off).map(|r| r.name.as_str())
                    }
                    _ => None,
                })
                .collect();
            for n in names {
                *out.entry(n.to_string()).or_default() += 1;
            }
        }
    }
    out
}

/// Lines about one region.
pub fn region(
    g: &Graph,
    r: &Region,
    p: &Problem,
    found: &Found,
    s: &Solution,
    same_as: Option<&str>,
    off: &BTreeSet<String>,
) -> Vec<String> {
    let mut out = vec![];
    let name = |i: usize| g.node(r.nodes[i]).name.as_str();
    let same = same_as.map_or(String::new(), |n| format!(", solved as {n}"));
    let stop = if found.offer.saturated { "saturated" } else { "stopped at a limit" };
    out.push(format!("region {} ({} operations{same}): {} e-nodes, {stop}", r.name, p.items.len(), found.offer.enodes));
    let line = |what: &str, s: &Solution| {
        let (k, l, n) = (s.kernels.len(), s.launches, s.narrow);
        format!("  {what}: {k} kernels, {l} launches ({n} narrow), {} bytes a token, cost {}", s.bytes, s.cost)
    };
    out.push(line("without fusion", &found.plain));
    out.push(line("chosen", s));
    let rules: Vec<String> = used(p, s, off).iter().map(|(n, c)| format!("{n} x{c}")).collect();
    out.push(format!("  rules: {}", if rules.is_empty() { "none".into() } else { rules.join(", ") }));
    for k in &s.kernels {
        let nodes: Vec<&str> = k.nodes.iter().map(|&i| p.items[i].kind.symbol()).collect();
        let stores: Vec<&str> = k.stores.iter().map(|&i| name(i)).collect();
        out.push(format!("  kernel {}: {}; stores {}", name(k.root), nodes.join(" + "), stores.join(", ")));
    }
    out
}
