//! Where values lie.

mod memory_plan;

pub use memory_plan::{MemoryPlan, place};
