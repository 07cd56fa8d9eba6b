//! Tensors that any two programs dumped: names matched by a file, types widened, errors in the order of A's file. The first
//! tensor whose error stands out from those before it is named: what came before is rounding, what comes after follows from it.

use super::Verdict;
use super::elements::{Elements, compare};
use ir::diag::{Diagnostic, Result};
use models::checkpoint::TensorFile;
use std::collections::BTreeMap;
use std::fmt::Write;

/// An error stands out if it is so many times that of any tensor before it.
const JUMP: f64 = 10.0;
/// Smaller errors never stand out.
const FLOOR: f64 = 1e-6;

/// Names of A and of B from a file of two columns; `#` begins a comment.
pub fn map_of(text: &str, place: &str) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        let fits = match words[..] {
            [] => true,
            [a, b] => out.insert(a.to_string(), b.to_string()).is_none(),
            _ => false,
        };
        if !fits {
            let m = format!("line {} is not a name of A and one of B, or names one of A again", i + 1);
            return Err(Diagnostic::new("E0809", m).at(place).hint("a line looks like `layers.0.resid  model.layers.0.output`"));
        }
    }
    Ok(out)
}

/// Compares.
pub fn diff(a: &TensorFile, b: &TensorFile, names: &BTreeMap<String, String>) -> Result<Verdict> {
    let mut all: Vec<(String, String, Elements)> = vec![];
    let mut alone = 0;
    if let Some((of_a, _)) = names.iter().find(|(of_a, of_b)| a.tensor(of_a).is_none() || b.tensor(of_b).is_none()) {
        let m = format!("`{of_a}` and `{}` are matched, and one of them is not in its file", names[of_a]);
        return Err(Diagnostic::new("E0809", m).at("--map").hint("each line has the name of a tensor of A and that of one of B"));
    }
    for t in a.tensors() {
        let other = names.get(t.name).map_or(t.name, String::as_str);
        match b.tensor(other) {
            Some(u) => all.push((t.name.into(), other.into(), compare(&t, &u)?)),
            None => alone += 1,
        }
    }
    if all.is_empty() {
        return Err(Diagnostic::new("E0806", "the files have no tensor in common")
            .hint("`--map FILE` says which name of A is which of B, two columns a line"));
    }
    let of_b = b.tensors().count() - all.len();
    let (mut worst, mut jump) = (0f64, None);
    for (i, (.., e)) in all.iter().enumerate() {
        let error = e.relative_error.unwrap_or(0.0);
        if jump.is_none() && i > 0 && error > FLOOR && error > JUMP * worst {
            jump = Some(i);
        }
        worst = worst.max(error);
    }
    let equal = all.iter().all(|(.., e)| e.differ == 0);
    let wide = all.iter().map(|t| t.0.len()).max().unwrap_or(0);
    let mut s = format!("{:<wide$}  elements     differ  relative error  farthest\n", "tensor of A");
    for (i, (name, other, e)) in all.iter().enumerate() {
        let error = e.relative_error.map_or("-".into(), |x| format!("{x:.3e}"));
        let far = e.largest.as_ref().map_or(String::new(), |p| match p.ulps {
            Some(u) => format!("{u} ulp at {}", p.index),
            None => format!("NaN at {}", p.index),
        });
        let mark = if jump == Some(i) { "  <- stands out" } else { "" };
        let is = if name == other { String::new() } else { format!("  ({other})") };
        let line = format!("{name:<wide$}  {:>8}  {:>9}  {error:>14}  {far}{is}{mark}", e.count, e.differ);
        _ = writeln!(s, "{}", line.trim_end());
    }
    if alone + of_b > 0 {
        _ = writeln!(s, "only in A: {alone} tensors, only in B: {of_b}");
    }
    match jump {
        _ if equal => s.push_str("equal\n"),
        Some(i) => _ = writeln!(s, "the first error that stands out from those before it: {}", all[i].0),
        None => s.push_str("no error stands out from those before it\n"),
    }
    let json = serde_json::json!({
        "equal": equal,
        "tensors": all.iter().map(|(a, b, e)| serde_json::json!({"a": a, "b": b, "elements": e})).collect::<Vec<_>>(),
        "only": [alone, of_b],
        "stands_out": jump.map(|i| &all[i].0),
    });
    Ok(Verdict { equal, text: s, json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps() {
        let m = map_of("# a comment\na  x.a\n\nb\ty # its end\n", "m").unwrap();
        assert_eq!(m.into_iter().collect::<Vec<_>>(), [("a".into(), "x.a".into()), ("b".into(), "y".into())]);
        for bad in ["a", "a b c", "a b\na c"] {
            assert_eq!(map_of(bad, "m").unwrap_err().code, "E0809", "{bad}");
        }
    }
}
