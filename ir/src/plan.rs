//! The launch plan: which kernels run in which order on which buffers, everything but addresses known.
//! What changes from step to step is read by the kernels from the state buffer ([`state`]), so a plan never goes stale.

pub mod phases;
pub mod text;
pub mod verify;

use crate::graph::Rows;
use crate::kernel::Kernel;
use crate::layout::MatrixLayout;

/// Words of the state buffer (i32 each).
pub mod state {
    /// Absolute position of the chunk's first token.
    pub const POSITION: u32 = 0;
    /// Tokens of the chunk.
    pub const TOKENS: u32 = 1;
    /// First token of the chunk whose logits are asked for.
    pub const OUTPUT_FROM: u32 = 2;
    /// Key blocks that sliding layers have room for.
    pub const RING_BLOCKS: u32 = 3;
    /// Key blocks that full layers have room for.
    pub const FULL_BLOCKS: u32 = 4;
    /// Number of words.
    pub const WORDS: u32 = 8;
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
    /// Keys of a layer: f32 `[heads][blocks][dim][32]`.
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
    /// Values of a layer: f32 `[heads][blocks][32][dim]`.
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
        /// Rows: as many as a step has, or one ([`Rows::Once`]) where longer chunks have another plan.
        rows: Rows,
        /// Query heads.
        heads: u32,
        /// Head size.
        dim: u32,
        /// Window, 0 for all.
        window: u32,
    },
    /// Token ids of the chunk.
    Tokens,
    /// The step's state.
    State,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name of the graph value, or `kv.N.keys`, `kv.N.values`, `tokens`, `state`.
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
