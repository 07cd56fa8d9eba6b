//! Verifies the module before the first pass and after every pass that changed it.

use super::Instrument;
use crate::manager::Step;
use crate::pass::Module;
use ir::diag::Result;

/// The instrument.
pub struct VerifyEach {
    check: fn(&Module) -> Result<()>,
    /// Verifications made.
    pub checks: u64,
}

impl VerifyEach {
    /// With the graph verifier.
    pub fn new() -> Self {
        VerifyEach::with(|m| super::text::verify(&m.graph))
    }

    /// With this verifier.
    pub fn with(check: fn(&Module) -> Result<()>) -> Self {
        VerifyEach { check, checks: 0 }
    }
}

impl Default for VerifyEach {
    fn default() -> Self {
        VerifyEach::new()
    }
}

impl Instrument for VerifyEach {
    fn start(&mut self, m: &Module) -> Result<()> {
        self.checks += 1;
        (self.check)(m)
    }

    fn after(&mut self, step: &Step, m: &Module) -> Result<()> {
        if step.changed {
            self.checks += 1;
            (self.check)(m)?;
        }
        Ok(())
    }
}
