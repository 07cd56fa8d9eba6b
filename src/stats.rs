//! Statistics of a plan: what runs for one token and what it takes.

use crate::options::CompileOptions;
use crate::pipeline::{self, Watch};
use crate::target::Class;
use ir::diag::Result;
use ir::plan::Plan;
use models::Checkpoint;
use runtime::weights::packed_bytes;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Numbers of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStats {
    /// Kernels launched for one token, or for a chunk.
    pub launches: u64,
    /// Distinct kernels.
    pub kernels: u64,
    /// Arena bytes for one row (one token of a chunk).
    pub arena_bytes: u64,
    /// Arena bytes for one row of logits.
    pub output_bytes: u64,
    /// Bytes of the packed weights.
    pub weight_bytes: u64,
}

impl PlanStats {
    /// Of a plan and the checkpoint it was made from.
    pub fn new(plan: &Plan, ck: &Checkpoint) -> PlanStats {
        PlanStats {
            launches: plan.launches.len() as u64,
            kernels: plan.kernels.len() as u64,
            arena_bytes: plan.arena_bytes,
            output_bytes: plan.output_bytes,
            weight_bytes: plan.weights.iter().map(|w| packed_bytes(w, ck).unwrap_or(0)).sum(),
        }
    }
}

/// The table of `isobit compile --stats`: the program as asked for beside the same with fusion on and off.
pub fn table(ck: &Checkpoint, options: &CompileOptions, classes: &[Class]) -> Result<String> {
    let mut out = String::new();
    let on = |(name, on): (String, bool)| format!("{name} {}", if on { "on" } else { "off" });
    let _ = writeln!(out, "switches: {}", options.switches().into_iter().map(on).collect::<Vec<_>>().join(", "));
    let _ = writeln!(out, "options:  {}\n", options.text());
    for &class in classes {
        let numbers = |o: &CompileOptions| -> Result<[Option<PlanStats>; 2]> {
            let planned = pipeline::plan(ck, o, &[class], &mut Watch::default())?;
            let plans = &planned.plans[0].1;
            Ok([Some(PlanStats::new(&plans.decode, ck)), plans.prefill.as_ref().map(|p| PlanStats::new(p, ck))])
        };
        let with = |fusion: bool| {
            let mut o = options.clone();
            o.set_fusion(fusion);
            numbers(&o)
        };
        let columns = [numbers(options)?, with(true)?, with(false)?];
        let _ = writeln!(out, "{:<22} {:>12} {:>12} {:>12}", class.name(), "as asked", "fusion on", "fusion off");
        let mut row = |name: &str, phase: usize, of: fn(&PlanStats) -> u64| {
            let cell = |s: &[Option<PlanStats>; 2]| s[phase].as_ref().map_or("none".into(), |s| of(s).to_string());
            let cells: Vec<String> = columns.iter().map(|s| format!("{:>12}", cell(s))).collect();
            let _ = writeln!(out, "  {name:<20} {}", cells.join(" "));
        };
        row("kernels per token", 0, |s| s.launches);
        row("distinct kernels", 0, |s| s.kernels);
        row("arena bytes per row", 0, |s| s.arena_bytes);
        row("arena bytes per output", 0, |s| s.output_bytes);
        row("kernels per chunk", 1, |s| s.launches);
        row("  distinct", 1, |s| s.kernels);
        row("  arena bytes per row", 1, |s| s.arena_bytes);
        row("weight bytes", 0, |s| s.weight_bytes);
    }
    Ok(out)
}
