//! Tracing inside of kernels: asks lowering for kernels that sum up a digest of every value that they store (see
//! [`ir::digest`]). It adds integer operations behind stores and touches no other one, so no bit of any value changes.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::Result;

/// The pass.
pub struct InstrumentTrace;

/// Its name.
pub const NAME: &str = "instrument-trace";

impl Pass for InstrumentTrace {
    fn name(&self) -> &'static str {
        NAME
    }
    fn about(&self) -> &'static str {
        "Lets every kernel sum up digests of the values that it stores, for `run --trace`. Each warp mixes place and bits of \
         what it stores, adds the mixes of its lanes, and adds the sum to the digest of the row with an integer atomic; the \
         order of these additions cannot be seen."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, _: &mut PassCx<'_>) -> Result<bool> {
        m.traced = true;
        Ok(false)
    }
}
