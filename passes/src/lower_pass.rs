//! The pass that turns stages into kernels and a launch plan; the work is in [`crate::lower`].

use crate::options::Options;
use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;

/// The pass.
pub struct Lower;

impl Pass for Lower {
    fn name(&self) -> &'static str {
        "lower"
    }
    fn about(&self) -> &'static str {
        "Makes a kernel of every launch's stages, merges equal kernels, and binds their parameters to buffers and packed \
         weights."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }
    fn required(&self, _: &Options) -> Option<&'static str> {
        Some("without it there is nothing to run")
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        let options = cx.options;
        let keep = |name: &str| options.keeps(name);
        let plan = crate::lower::lower_keeping(&m.graph, &m.schedule.unwrap_or(options.schedule), &keep, m.traced, &m.relaxed)?;
        cx.stat("launches", plan.launches.len() as u64);
        cx.stat("kernels", plan.kernels.len() as u64);
        cx.stat("weights", plan.weights.len() as u64);
        m.plan = Some(plan);
        Ok(true)
    }
}
