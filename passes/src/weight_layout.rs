//! Weight layout: how packed matrices lie in memory, from the target's schedule (see [`ir::layout`]).

use crate::lower::schedule::Schedule;
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;

/// The pass.
pub struct WeightLayout;

impl Pass for WeightLayout {
    fn name(&self) -> &'static str {
        "weight-layout"
    }
    fn about(&self) -> &'static str {
        "Chooses for the target how many lanes share a row of a matrix and how many words a lane loads together; weights \
         are packed accordingly when they are loaded. Off: one lane a row, one word a load."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        set(m, cx, cx.options.schedule)
    }

    fn off(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        set(m, cx, Schedule { chain_lanes: 1, vec: 1, ..cx.options.schedule })
    }
}

fn set(m: &mut Module, cx: &mut PassCx<'_>, s: Schedule) -> Result<bool> {
    cx.stat("lanes-per-row", u64::from(s.chain_lanes));
    cx.stat("words-per-load", u64::from(s.vec));
    m.schedule = Some(s);
    Ok(false)
}
