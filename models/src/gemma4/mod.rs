//! Gemma 4: its configuration, and (in `layers.rs`) its layers as a tensor graph.

pub mod config;
pub(crate) mod fields;
mod layer;
pub mod layers;
mod parts;
pub(crate) mod quant_config;
mod rope;
mod source;
pub mod tensors;

pub use config::{Config, Experts, Layer, LayerKind, PerLayerEmbedding, Rope, StoredFloat};
pub use quant_config::QuantConfig;
