//! The textual form of graphs. Promises: `parse(print(g)) == g` for every graph of at most [`MAX_IDS`] ids, faulty ones
//! included (ids, holes, stages and launches are kept); parsing never panics, whatever the text.
//!
//! ```text
//! graph "gemma4" {
//!   %0 = tokens : i32[T] "tokens"
//!   %1 = weight : u4g64[4096,256] "embed_tokens"
//!   %2 = embed %1 %0 {mode=factor, factor=0x41800000} : f32[T,256] "embed" // 16.0
//!   %4 = weight : bf16[256] "layers.0.input_layernorm"
//!   %5 = rmsnorm %2 %4 {dim=256, eps=0x358637bd, order=sum(lanes=32, take=strided, tree=pair)} : f32[T,256] "norm" // 1e-6
//!   output %5
//!   stage "norm" { %2 %5 } -> { %5 }
//!   launch 0
//! }
//! ```
//!
//! Affine codes are `uBITSgGROUP`, with `:f16` or `:f32` after it where scales and offsets are not bf16. One statement a line. Nodes are printed in topological order and may be written in any; an id that no node has is
//! a hole, and `ids N` states how many ids were given out if the last ones are holes. Rows are `T` (per token), `O` (per
//! token whose logits are asked for) or absent. Floats are bits, with the shortest decimal that gives them in a comment;
//! a decimal in quotes or a whole number is read too. A reduction that has no order yet says `order=none`.

mod parse;
mod print;

pub use parse::parse;
pub use print::{attributes_of, print};

/// Ids of the largest graph that is read.
pub const MAX_IDS: usize = 1 << 18;

/// Codes of the parser's diagnostics beside those of [`crate::kernel::text::CODES`].
pub const CODES: &[(&str, &str)] = &[
    ("E0110", "two nodes have one id, or an id is too large"),
    ("E0111", "an operand is no value of the graph"),
    ("E0112", "a name has an unknown escape (only `\\u{hex}` is known)"),
];
