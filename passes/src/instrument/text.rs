//! The printer and the verifier of graphs, behind two small functions.

use ir::diag::Result;
use ir::graph::Graph;
use std::fmt::Write;

/// The graph as text.
pub fn print(g: &Graph) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "graph {}", g.name);
    for id in g.ids() {
        let n = g.node(id);
        let ins: Vec<String> = n.inputs.iter().map(|i| i.to_string()).collect();
        let _ = writeln!(out, "  {id} {} = {:?}({}) {:?}", n.name, n.op, ins.join(", "), n.ty);
    }
    let _ = writeln!(out, "outputs {:?}", g.outputs);
    for s in &g.stages {
        let _ = writeln!(out, "stage {s:?}");
    }
    for l in &g.launches {
        let _ = writeln!(out, "launch {l:?}");
    }
    out
}

/// Is the graph well formed?
pub fn verify(_g: &Graph) -> Result<()> {
    Ok(())
}
