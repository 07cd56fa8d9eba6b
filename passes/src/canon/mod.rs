//! Canonical form: the same values from fewer nodes, bit for bit.

mod cse;
mod dce;
mod fold;
mod order_operands;

pub use cse::Cse;
pub use dce::Dce;
pub use fold::Fold;
pub use order_operands::OrderOperands;
