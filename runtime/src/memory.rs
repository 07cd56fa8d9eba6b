//! What a session needs and what there is: known before anything is allocated.

use crate::session::Limits;
use crate::weights::packed_bytes;
use ir::diag::{Diagnostic, Result};
use ir::graph::Rows;
use ir::graph::interp::WeightSource;
use ir::order::KV_BLOCK;
use ir::plan::phases::DECODE_ROWS;
use ir::plan::{BufferKind, DIGEST_BYTES, Plan, row};

/// Sizes that limits give the buffers of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences that the caches have room for.
    pub slots: usize,
    /// The widest window of sliding layers, 0 without any.
    pub window: usize,
    /// Key blocks of a sequence in full layers.
    pub full_blocks: usize,
    /// Key blocks of a sequence in sliding layers: rings.
    pub ring_blocks: usize,
    /// Rows of values of a step's tokens.
    pub tokens: u64,
    /// Rows of values of the tokens whose logits are asked for.
    pub outputs: u64,
}

impl Sizes {
    /// Of a plan.
    pub fn of(plan: &Plan, limits: &Limits) -> Sizes {
        let block = KV_BLOCK as usize;
        let windows = plan.buffers.iter().filter_map(|b| match b.kind {
            BufferKind::Keys { window, .. } => Some(window as usize),
            _ => None,
        });
        let window = windows.max().unwrap_or(0);
        let full_blocks = limits.context.div_ceil(block);
        let ring = if window == 0 { 1 } else { (window + limits.chunk + limits.slack).div_ceil(block) + 1 };
        Sizes {
            slots: limits.slots,
            window,
            full_blocks,
            ring_blocks: ring.min(full_blocks + 1),
            tokens: limits.chunk as u64,
            outputs: limits.outputs.clamp(1, limits.chunk.max(1)) as u64,
        }
    }

    /// Rows of a value.
    pub fn rows(&self, rows: Rows) -> u64 {
        if rows == Rows::Outputs { self.outputs } else { self.tokens }
    }

    /// Bytes of a buffer that lies in no arena; `None` if it does.
    pub fn bytes(&self, kind: &BufferKind, offset: Option<u64>) -> Option<u64> {
        Some(match *kind {
            BufferKind::Value { rows, bytes } if offset.is_none() => u64::from(bytes) * self.rows(rows),
            BufferKind::Value { .. } => return None,
            BufferKind::Keys { heads, dim, window, .. } | BufferKind::Values { heads, dim, window, .. } => {
                let blocks = if window == 0 { self.full_blocks } else { self.ring_blocks };
                (self.slots as u64) * u64::from(heads) * u64::from(dim) * 4 * (blocks * KV_BLOCK as usize) as u64
            }
            BufferKind::Parts { rows, heads, dim, window } => {
                let blocks = if window == 0 { self.full_blocks } else { self.ring_blocks };
                let rows = if rows == Rows::Once { DECODE_ROWS as u64 } else { self.rows(rows) };
                (u64::from(heads) * (u64::from(dim) + 2) * 4 * blocks as u64 * rows).next_multiple_of(64)
            }
            BufferKind::Digests { rows } => digest_bytes(self, rows == Rows::Once),
            BufferKind::Tokens => 4 * self.tokens.next_multiple_of(16),
            BufferKind::State => 64,
            BufferKind::Rows => u64::from(4 * row::WORDS) * self.tokens.next_multiple_of(4),
        })
    }
}

/// Bytes of the digests of a value, in a plan for few rows or in one for as many as a step may have.
pub(crate) fn digest_bytes(sizes: &Sizes, few: bool) -> u64 {
    u64::from(DIGEST_BYTES) * if few { DECODE_ROWS as u64 } else { sizes.tokens }
}

/// Bytes of memory for the sequences of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Weights as kernels read them.
    pub weights: u64,
    /// Keys and values of layers that see everything.
    pub full: u64,
    /// Keys and values of layers that see a window: rings.
    pub sliding: u64,
    /// Values between kernels.
    pub workspace: u64,
    /// Code.
    pub code: u64,
}

impl Needs {
    /// Of a session.
    pub fn of(plan: &Plan, limits: &Limits, source: &dyn WeightSource, code: u64) -> Result<Needs> {
        let mut n = Needs { code, ..Needs::default() };
        for w in &plan.weights {
            n.weights += packed_bytes(w, source)?;
        }
        n.caches(plan, limits);
        Ok(n)
    }

    fn caches(&mut self, plan: &Plan, limits: &Limits) {
        let sizes = Sizes::of(plan, limits);
        (self.full, self.sliding) = (0, 0);
        self.workspace = plan.arena_bytes * sizes.tokens + plan.output_bytes * sizes.outputs;
        for b in &plan.buffers {
            let bytes = sizes.bytes(&b.kind, b.offset).unwrap_or(0);
            match b.kind {
                BufferKind::Keys { window: 0, .. } | BufferKind::Values { window: 0, .. } => self.full += bytes,
                BufferKind::Keys { .. } | BufferKind::Values { .. } => self.sliding += bytes,
                _ => self.workspace += bytes,
            }
        }
    }

    /// Together.
    pub fn total(&self) -> u64 {
        self.weights + self.full + self.sliding + self.workspace + self.code
    }

    /// The same for another number of sequences.
    pub fn with_slots(mut self, plan: &Plan, limits: &Limits, slots: usize) -> Needs {
        self.caches(plan, &Limits { slots, ..*limits });
        self
    }

    /// The same for another context.
    pub fn with_context(mut self, plan: &Plan, limits: &Limits, context: usize) -> Needs {
        self.caches(plan, &Limits { context, chunk: limits.chunk.min(context * limits.slots), ..*limits });
        self
    }
}

/// Memory that can be had, and what sets this limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes.
    pub bytes: u64,
    /// For people: `free memory of this machine`.
    pub limit: &'static str,
}

/// Refuses caches whose elements kernels could not number.
pub fn addressable(plan: &Plan, sizes: &Sizes) -> Result<()> {
    for b in plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Keys { .. } | BufferKind::Values { .. })) {
        let elements = sizes.bytes(&b.kind, b.offset).unwrap_or(0) / 4;
        if elements > i32::MAX as u64 {
            let m = format!("a layer's cache for {} sequences has {elements} elements, kernels number {}", sizes.slots, i32::MAX);
            return Err(Diagnostic::new("E0491", m).at(&b.name).hint("ask for fewer --slots, or a smaller --context"));
        }
    }
    Ok(())
}

/// Refuses what does not fit, with numbers, and says which context would.
pub fn check(needs: &Needs, available: &Available, plan: &Plan, limits: &Limits) -> Result<()> {
    if needs.total() <= available.bytes {
        return Ok(());
    }
    let mib = |bytes: u64| format!("{:>9} MiB", bytes.div_ceil(1 << 20));
    let context = limits.context;
    let sequences = if limits.slots == 1 { String::new() } else { format!(" for {} sequences", limits.slots) };
    let mut m = format!("a context of {context} positions{sequences} does not fit into memory");
    for (what, bytes) in [
        ("weights", needs.weights),
        ("keys and values of full layers", needs.full),
        ("keys and values of sliding layers", needs.sliding),
        ("values between kernels", needs.workspace),
        ("code", needs.code),
        ("together", needs.total()),
        (available.limit, available.bytes),
    ] {
        m += &format!("\n  {what:<36}{}", mib(bytes));
    }
    // The largest that fits: what is needed grows with the context, and with the sequences.
    let largest = |most: usize, needs: &dyn Fn(usize) -> Needs| {
        let (mut yes, mut no) = (0, most);
        while no - yes > 1 {
            let middle = yes + (no - yes) / 2;
            if needs(middle).total() <= available.bytes { yes = middle } else { no = middle }
        }
        yes
    };
    let d = Diagnostic::new("E0437", m);
    match largest(limits.slots, &|slots| needs.with_slots(plan, limits, slots)) {
        0 => {}
        n => return Err(d.hint(format!("so many sequences of this context fit: --slots {n}"))),
    }
    let yes = largest(context, &|context| needs.with_context(plan, limits, context));
    Err(match yes {
        0 => d.hint("not even one position fits: take a smaller model, or one quantized to fewer bits"),
        n => d.hint(format!("the largest context that fits is --context {n}")),
    })
}
