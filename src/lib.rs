//! isobit compiles Gemma 4 to kernels whose results are the same bits everywhere, and runs them.
//!
//! This package is the only one that sees all the others. Read [`pipeline`] first: it is the compiler from end to end.
//! Then [`artifact`] (what a compilation leaves on disk), [`cache`], [`engine`] (what runs it), and [`cmd`], one file per
//! subcommand. Results go to standard output, messages to standard error ([`printer`]). Clocks, the environment and the
//! file system are used here and nowhere else, but for the reading of checkpoints.
#![warn(missing_docs)]

pub mod args;
pub mod artifact;
pub mod audit;
pub mod bandwidth;
pub mod batch;
pub mod bench;
pub mod bisect;
pub mod cache;
pub mod check;
pub mod cmd;
pub mod diff;
pub mod digest;
pub mod emit;
pub mod engine;
pub mod explain;
pub mod files;
pub mod from_ir;
pub mod gap;
pub mod gpu;
pub mod inventory;
pub mod logits;
pub mod opt;
pub mod options;
pub mod page;
pub mod pipeline;
pub mod printer;
pub mod reply;
pub mod source;
pub mod stats;
pub mod switches;
pub mod target;
pub mod trace;

pub use ir::diag::{Diagnostic, Result};

/// The version that artifacts carry.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
