//! Statistics: the counters of a run as text.

use crate::manager::Report;
use std::collections::BTreeMap;
use std::fmt::Write;

/// `a=1 b=2`, or `-` if there are none.
pub fn counters(stats: &BTreeMap<String, u64>) -> String {
    if stats.is_empty() {
        return "-".into();
    }
    stats.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
}

/// One line per counter of the whole run.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    for s in &report.steps {
        for (name, n) in &s.stats {
            let _ = writeln!(out, "{n:>8} {:<16} {name}", s.pass);
        }
    }
    out
}
