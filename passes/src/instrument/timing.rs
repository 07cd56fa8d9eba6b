//! Times of passes. The clock comes from the caller; times are kept apart from everything that must be repeatable.

use super::Instrument;
use crate::manager::Step;
use crate::options::Options;
use crate::pass::{Module, Pass};
use ir::diag::Result;
use std::fmt::Write;

/// The instrument; put it last, so that it does not time the others.
pub struct Timing<'a> {
    clock: &'a dyn Fn() -> u64,
    since: u64,
    /// Nanoseconds of each pass, in order.
    pub times: Vec<(&'static str, u64)>,
}

impl<'a> Timing<'a> {
    /// `clock` gives nanoseconds from any fixed moment.
    pub fn new(clock: &'a dyn Fn() -> u64) -> Self {
        Timing { clock, since: 0, times: vec![] }
    }

    /// As a table with percentages.
    pub fn table(&self) -> String {
        let total: u64 = self.times.iter().map(|(_, t)| t).sum();
        let mut out = String::new();
        for (pass, t) in &self.times {
            let _ = writeln!(out, "{:>10.3} ms {:>5.1} % {pass}", *t as f64 / 1e6, percent(*t, total));
        }
        let _ = writeln!(out, "{:>10.3} ms 100.0 % total", total as f64 / 1e6);
        out
    }
}

fn percent(t: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { 100.0 * t as f64 / total as f64 }
}

impl Instrument for Timing<'_> {
    fn should_run(&mut self, _: &dyn Pass, _: &Options) -> bool {
        true
    }

    fn before(&mut self, _: &dyn Pass, _: &Module) {
        self.since = (self.clock)();
    }

    fn after(&mut self, step: &Step, _: &Module) -> Result<()> {
        self.times.push((step.pass, (self.clock)().saturating_sub(self.since)));
        Ok(())
    }
}
