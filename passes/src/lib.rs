//! Passes over the graph, the only home of egg.
//!
//! [`Pipeline`] names passes in order, [`Manager`] runs them under [`instrument`]s, every pass is a [`Pass`] with a name, a
//! switch and an effect. A pass changes a [`Module`] through a [`PassCx`], which numbers optional decisions (so that a
//! bisection can stop after any of them) and counts what was done. No clock, no files, no environment, no hashing order.
#![warn(missing_docs)]

pub mod canon;
pub mod fuse;
pub mod instrument;
pub mod instrument_trace;
pub mod lower;
pub mod lower_pass;
pub mod manager;
pub mod merge_launches;
pub mod options;
pub mod pass;
pub mod pin_reductions;
pub mod pipeline;
pub mod place;
pub mod quant_lower;
pub mod recompute_rows;
pub mod relax;
pub mod round_activations;
pub mod sketch;
#[cfg(test)]
mod testing;
pub mod weight_layout;

pub use manager::{Failure, Manager, Report, Step};
pub use options::{Level, OFF, Options, RELAXED, on_by_default};
pub use pass::{Decisions, Effect, Module, Pass, PassCx};
pub use pipeline::Pipeline;
