//! Gemma 4: its configuration, and (in `layers.rs`) its layers as a tensor graph.

pub mod config;
pub mod layers;
mod source;
pub(crate) mod fields;
pub(crate) mod quant_config;

pub use config::{Config, Experts, LayerKind, PerLayerEmbedding, Rope, StoredFloat};
pub use quant_config::QuantConfig;
