//! Gemma 4: its configuration, and (in `layers.rs`) its layers as a tensor graph.

pub mod config;
pub(crate) mod fields;
pub mod layers;
mod parts;
pub(crate) mod quant_config;
mod source;

pub use config::{Config, Experts, LayerKind, PerLayerEmbedding, Rope, StoredFloat};
pub use quant_config::QuantConfig;
