//! What looks on while passes run: verifier, dumps, times, statistics, reproducers. Instruments belong to the manager's
//! caller; passes know nothing of them.

pub mod dump;
pub mod repro;
pub mod stats;
pub mod text;
pub mod timing;
pub mod verify;

use crate::manager::Step;
use crate::options::Options;
use crate::pass::{Module, Pass};
use ir::diag::Result;

/// Looks on while a pipeline runs.
pub trait Instrument {
    /// Before the first pass.
    fn start(&mut self, m: &Module) -> Result<()> {
        let _ = m;
        Ok(())
    }

    /// A veto: false leaves the pass out. A required pass that is vetoed ends the run.
    fn should_run(&mut self, pass: &dyn Pass, options: &Options) -> bool {
        let _ = (pass, options);
        true
    }

    /// Before a pass.
    fn before(&mut self, pass: &dyn Pass, m: &Module) {
        let _ = (pass, m);
    }

    /// After a pass, also if it was switched off. An error ends the run and blames the pass.
    fn after(&mut self, step: &Step, m: &Module) -> Result<()> {
        let _ = (step, m);
        Ok(())
    }
}
