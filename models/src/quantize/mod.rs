//! Quantizing: a Hugging Face checkpoint of bf16, f16 or f32 becomes a folder in MLX's affine layout that mlx-lm loads.
//!
//! Every code, scale and bias is the one that MLX's own quantizer gives on a CPU ([`affine`]); names, shapes and what is
//! quantized are those of mlx-lm's conversion, or of mlx-vlm's where [`Recipe::Mixed`] is asked for. [`Plan`] decides all
//! that from headers and configuration alone, and refuses what does not fit; [`Plan::write`] then streams the weights in
//! blocks of rows, so memory is bounded whatever the model's size. The same input gives the same bytes.

pub mod affine;
mod config;
mod plan;
mod report;
mod write;

pub use plan::Plan;
pub use report::{FormatRow, Report, Skipped};
pub use write::Progress;

use ir::diag::Diagnostic;

/// Which modules get how many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// As mlx-lm: every linear module and embedding alike, the router at 8 bits in groups of 64.
    Uniform,
    /// As mlx-vlm and the published 4-bit conversions: router and dense MLP at 8 bits in groups of 64, the rest alike.
    Mixed,
}

impl Recipe {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Recipe::Uniform => "uniform",
            Recipe::Mixed => "mixed",
        }
    }

    /// Bits and group of the module at a canonical path where they are not the general ones.
    pub fn exception(self, path: &str) -> Option<(u32, usize)> {
        let eight = match self {
            Recipe::Uniform => path.ends_with("router.proj"),
            Recipe::Mixed => {
                path.contains("router") || ["gate", "up", "down"].iter().any(|p| path.ends_with(&format!("mlp.{p}_proj")))
            }
        };
        eight.then_some((8, 64))
    }
}

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Elements that share a scale and a bias: 32, 64 or 128.
    pub group: usize,
    /// Exceptions from that.
    pub recipe: Recipe,
    /// Most bytes of tensors in one file; a larger tensor gets a file of its own.
    pub shard_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { bits: 4, group: 64, recipe: Recipe::Mixed, shard_bytes: 5_000_000_000 }
    }
}

/// Several errors as one, each on its line; `what` says what they have in common.
fn together(code: &'static str, what: &str, place: &str, errors: Vec<(String, String)>) -> Option<Diagnostic> {
    match errors.as_slice() {
        [] => None,
        [(place, message)] => Some(Diagnostic::new(code, message.as_str()).at(place)),
        many => {
            let lines: String = many.iter().map(|(place, message)| format!("\n  {place}: {message}")).collect();
            Some(Diagnostic::new(code, format!("{} tensors {what}:{lines}", many.len())).at(place))
        }
    }
}
