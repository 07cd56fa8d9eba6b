//! How packed weights lie in memory: a free choice per target, made by the pass `weight-layout`, never visible in a bit.
//!
//! An affine matrix of `rows × cols` in groups of `group` is cut into tiles of `32 / chain_lanes` rows. A lane of a warp
//! owns one row and `chains / chain_lanes` of the chains over groups; `steps` is the number of (chain, group) pairs a lane
//! walks. For every (tile, step) there are `words + 1` runs of 32 words: the codes of the lane's group, `vec` words per
//! lane together, then one word per lane with the bf16 offset in the high and the bf16 scale in the low half.
//! Steps without a group, and rows past the end, are zero. Codes: a 4-bit word holds elements `b` (low nibble of byte b) and
//! `4 + b` (high nibble) of its eight; an 8-bit word holds four elements as code - 128, signed.

use crate::order::{ReductionOrder, Take};

/// Layout of one affine matrix (or a stack of them, each padded to whole tiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AffineLayout {
    /// 4 or 8.
    pub bits: u32,
    /// Elements of a group.
    pub group: u32,
    /// Matrices in the stack.
    pub stack: u32,
    /// Rows of one matrix.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Order over groups: decides which groups a chain owns.
    pub order: ReductionOrder,
    /// Lanes that share a row: 1, 2, 4, ..., at most `order.lanes`.
    pub chain_lanes: u32,
    /// Consecutive words of one lane: 1, 2 or 4.
    pub vec: u32,
}

impl AffineLayout {
    /// Groups of a row.
    pub fn groups(&self) -> u32 {
        self.cols / self.group
    }
    /// Words of codes in a group.
    pub fn words(&self) -> u32 {
        self.group * self.bits / 32
    }
    /// Rows of a tile.
    pub fn tile_rows(&self) -> u32 {
        32 / self.chain_lanes
    }
    /// Tiles of one matrix.
    pub fn tiles(&self) -> u32 {
        self.rows.div_ceil(self.tile_rows())
    }
    /// Chains that one lane walks, one after the other.
    pub fn chains_per_lane(&self) -> u32 {
        self.order.lanes / self.chain_lanes
    }
    /// Groups of the longest chain.
    pub fn chain_len(&self) -> u32 {
        self.groups().div_ceil(self.order.lanes)
    }
    /// The group that chain `c` consumes as its `t`-th, if it has so many.
    pub fn group_of(&self, c: u32, t: u32) -> Option<u32> {
        let g = match self.order.take {
            Take::Contiguous => {
                let run = self.order.run(self.groups());
                (t < run).then_some(c * run + t)?
            }
            Take::Strided => c + t * self.order.lanes,
        };
        (g < self.groups()).then_some(g)
    }
    /// Steps of a lane: `chains_per_lane × chain_len`; step `k * chain_len + t` is the `t`-th group of the lane's chain `k`.
    pub fn steps(&self) -> u32 {
        self.chains_per_lane() * self.chain_len()
    }
    /// 32-bit words of one (tile, step).
    pub fn step_words(&self) -> u32 {
        (self.words() + 1) * 32
    }
    /// Bytes of the whole stack.
    pub fn bytes(&self) -> u64 {
        u64::from(self.stack) * u64::from(self.tiles()) * u64::from(self.steps()) * u64::from(self.step_words()) * 4
    }
    /// Word index, within a (tile, step), of code word `j` of lane `lane`.
    pub fn code_word(&self, j: u32, lane: u32) -> u32 {
        (j / self.vec) * 32 * self.vec + lane * self.vec + j % self.vec
    }

    /// Packs MLX words (row-major, lowest element in the lowest bits), scales and biases (bf16 bits) into this layout.
    /// Lengths: `stack*rows*cols*bits/32` words, `stack*rows*groups` scales and biases.
    pub fn pack(&self, words: &[u8], scales: &[u8], biases: &[u8]) -> Vec<u8> {
        let (g_words, groups) = (self.words() as usize, self.groups() as usize);
        let row_words = g_words * groups;
        let mut out = vec![0u8; self.bytes() as usize];
        let word = |i: usize| u32::from_le_bytes([words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]]);
        let step_bytes = self.step_words() as usize * 4;
        for (block, chunk) in out.chunks_exact_mut(step_bytes).enumerate() {
            let (step, tile_all) = (block as u32 % self.steps(), block as u32 / self.steps());
            let (tile, e) = (tile_all % self.tiles(), tile_all / self.tiles());
            for lane in 0..32 {
                let row = tile * self.tile_rows() + lane / self.chain_lanes;
                // A lane's chains are c, c + chain_lanes, ...: the k-th of them in step order.
                let chain = (step / self.chain_len()) * self.chain_lanes + lane % self.chain_lanes;
                let Some(g) = self.group_of(chain, step % self.chain_len()) else { continue };
                if row >= self.rows {
                    continue;
                }
                let r = e as usize * self.rows as usize + row as usize;
                for j in 0..self.words() {
                    let w = repack_word(word(r * row_words + g as usize * g_words + j as usize), self.bits);
                    let at = 4 * self.code_word(j, lane) as usize;
                    chunk[at..at + 4].copy_from_slice(&w.to_le_bytes());
                }
                let at = 4 * (self.words() * 32 + lane) as usize;
                let sb = 2 * (r * groups + g as usize);
                chunk[at..at + 2].copy_from_slice(&scales[sb..sb + 2]);
                chunk[at + 2..at + 4].copy_from_slice(&biases[sb..sb + 2]);
            }
        }
        out
    }
}

/// One code word in the order the kernels unpack it.
fn repack_word(w: u32, bits: u32) -> u32 {
    if bits == 8 {
        return w ^ 0x8080_8080;
    }
    (0..4).fold(0, |acc, b| {
        let (lo, hi) = ((w >> (4 * b)) & 15, (w >> (16 + 4 * b)) & 15);
        acc | (lo | hi << 4) << (8 * b)
    })
}
