//! Reads Gemma 4 checkpoints (weights, configuration, tokenizer, chat template) and builds the tensor graph.
//!
//! Everything here is a function of the checkpoint's bytes alone: no environment, no clock, no hash order.
//! Every file is untrusted input: a damaged one gives a [`ir::diag::Diagnostic`], never a panic.
#![warn(missing_docs)]

pub mod checkpoint;
pub mod gemma4;
pub mod hash;
mod json;
pub mod quantize;
pub mod random;
pub mod text;

pub use checkpoint::{Checkpoint, Module, Tensor};
pub use gemma4::Config;
pub use text::{Message, Role, Text};
