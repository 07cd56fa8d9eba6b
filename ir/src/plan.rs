//! The launch plan: which kernels run in which order on which buffers, everything but addresses known.
//! What changes from step to step is read by the kernels from the state buffer ([`state`]) and from the table of rows
//! ([`row`]), so a plan never goes stale. Rows are independent: each has its own sequence and its own position in it, so one
//! step may hold a token each of many sequences, a chunk of a prompt, or both.

pub mod phases;
pub mod text;
pub mod verify;

use crate::graph::Rows;
use crate::kernel::Kernel;
use crate::layout::MatrixLayout;

/// Words of the state buffer (i32 each).
pub mod state {
    /// Rows of the step: tokens.
    pub const TOKENS: u32 = 0;
    /// Outputs of the step: rows whose logits are asked for.
    pub const OUTPUTS: u32 = 1;
    /// Key blocks that a sequence has room for in sliding layers.
    pub const RING_BLOCKS: u32 = 2;
    /// Key blocks that a sequence has room for in full layers.
    pub const FULL_BLOCKS: u32 = 3;
    /// Number of words.
    pub const WORDS: u32 = 8;
}

/// Words of an entry of the table of rows (i32 each): entry `r` begins at word `r * WORDS`.
pub mod row {
    /// Absolute position of row `r`'s token in its sequence.
    pub const POSITION: u32 = 0;
    /// Slot of the caches that holds its sequence.
    pub const SLOT: u32 = 1;
    /// The row whose logits are output `r`.
    pub const OUTPUT: u32 = 2;
    /// Number of words.
    pub const WORDS: u32 = 4;
}

/// What a buffer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// A value of the graph: `bytes` for each row.
    Value {
        /// Leading dimension.
        rows: Rows,
        /// Bytes of one row, a multiple of 64.
        bytes: u32,
    },
    /// Keys of a layer: f32 `[slots][heads][blocks][dim][32]`.
    Keys {
        /// Layer.
        layer: u32,
        /// Key heads.
        heads: u32,
        /// Head size.
        dim: u32,
        /// Window, 0 for all.
        window: u32,
    },
    /// Values of a layer: f32 `[slots][heads][blocks][32][dim]`.
    Values {
        /// Layer.
        layer: u32,
        /// Key heads.
        heads: u32,
        /// Head size.
        dim: u32,
        /// Window, 0 for all.
        window: u32,
    },
    /// What attention leaves of the key blocks that a row sees, for the launch that joins them, for each row: f32
    /// `[blocks][heads][dim]` weighted values, then `[heads][blocks]` maxima, then as many sums.
    Parts {
        /// Rows: as many as a step has, or [`phases::DECODE_ROWS`] ([`Rows::Once`]) where longer steps have another plan.
        rows: Rows,
        /// Query heads.
        heads: u32,
        /// Head size.
        dim: u32,
        /// Window, 0 for all.
        window: u32,
    },
    /// Digests of a value, or of what is written to a cache, summed up by its writer (pass `instrument-trace`): for each row
    /// [`DIGEST_BYTES`], the two words of [`crate::digest`] first.
    Digests {
        /// Rows of the value.
        rows: Rows,
    },
    /// Token ids of the step's rows.
    Tokens,
    /// The step's state.
    State,
    /// The step's table of rows.
    Rows,
}

/// Bytes of the digest of a row: what an argument is aligned to.
pub const DIGEST_BYTES: u32 = 16;

/// What stands before the name of a value in that of the buffer of its digests.
pub const DIGEST: &str = "digest.";

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name of the graph value, or `kv.N.keys`, `kv.N.values`, `digest.NAME`, `tokens`, `state`, `rows`.
    pub name: String,
    /// What it holds.
    pub kind: BufferKind,
    /// Offset in bytes per row in the arena of its kind of rows (values only; set by the pass `memory-plan`): a value lies
    /// at `offset * rows` of an arena for that many rows.
    pub offset: Option<u64>,
}

/// How a tensor of the checkpoint is packed.
#[derive(Clone, Debug, PartialEq)]
pub enum Pack {
    /// As it is in the file (bf16, f16 or f32 vectors), padded with zeros to a multiple of 64 bytes.
    Plain,
    /// A matrix, or a stack of them, in a kernel layout.
    Matrix(MatrixLayout),
    /// No tensor of the checkpoint: f32 `[dim/2]` frequencies, then `[dim/2]` of what the rounding left.
    Rope(crate::graph::op::RopeParams),
}

/// A weight as the kernels read it.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedWeight {
    /// Canonical name of the tensor (no prefix, no `.weight`).
    pub tensor: String,
    /// Packing.
    pub pack: Pack,
}

/// What a kernel parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arg {
    /// Index into [`Plan::buffers`].
    Buffer(u32),
    /// Index into [`Plan::weights`].
    Weight(u32),
}

/// One launch: grid `grid_x × ceil(rows / tokens)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Names of the stages it computes, joined by `+`.
    pub name: String,
    /// Index into [`Plan::kernels`].
    pub kernel: u32,
    /// Bound parameters, in the kernel's order.
    pub args: Vec<Arg>,
    /// Blocks along x.
    pub grid_x: u32,
    /// Rows along y.
    pub rows: Rows,
    /// Rows that one block computes, one after the other in the chunk.
    pub tokens: u32,
}

impl Launch {
    /// Blocks along y in a step of so many tokens, with so many outputs.
    pub fn grid_y(&self, tokens: usize, outputs: usize) -> u32 {
        let rows = if self.rows == Rows::Outputs { outputs } else { tokens };
        rows.div_ceil(self.tokens.max(1) as usize) as u32
    }
}

/// A plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Distinct kernels.
    pub kernels: Vec<Kernel>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Weights.
    pub weights: Vec<PackedWeight>,
    /// In order of execution.
    pub launches: Vec<Launch>,
    /// Bytes of the arena of values per token, for each of them (set by `memory-plan`).
    pub arena_bytes: u64,
    /// Bytes of the arena of values per token whose logits are asked for, for each of them.
    pub output_bytes: u64,
}

impl Plan {
    /// Bytes of the arena of values with these rows, for each row.
    pub fn arena(&self, rows: Rows) -> u64 {
        if rows == Rows::Outputs { self.output_bytes } else { self.arena_bytes }
    }

    /// Index of the buffer of this name.
    pub fn buffer(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|b| b.name == name)
    }
}
