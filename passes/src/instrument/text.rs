//! The printer and the verifier of graphs, behind two small functions.

use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;

/// The graph as text.
pub fn print(g: &Graph) -> String {
    ir::graph::text::print(g)
}

/// Is the graph well formed? All violations in one diagnostic, the first with its code and place.
pub fn verify(g: &Graph) -> Result<()> {
    ir::graph::verify::verify(g).map_err(|all| join(&all))
}

fn join(all: &[Diagnostic]) -> Diagnostic {
    let Some(first) = all.first() else { return Diagnostic::new("E0714", "the verifier failed without saying why") };
    let rest: String = all[1..].iter().take(9).map(|d| format!("; {} {}: {}", d.code, d.place, d.message)).collect();
    let more = if all.len() > 10 { format!("; and {} more", all.len() - 10) } else { String::new() };
    Diagnostic { message: format!("{}{rest}{more}", first.message), ..first.clone() }
}
