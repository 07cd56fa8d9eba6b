//! How packed weights lie in memory: a free choice per target, made by the pass `weight-layout`, never visible in a bit.
//!
//! A matrix of `rows × cols` is read in units: a group of affine codes, or [`LINEAR_UNIT`] plain numbers. It is cut into tiles
//! of `32 / chain_lanes` rows. A lane of a warp owns one row and `chains / chain_lanes` of the chains over units: lane
//! `c * tile_rows + r` has row `r`, so that what one chain reads of a tile's rows lies together; `steps` is
//! the number of (chain, unit) pairs a lane walks. For every (tile, step) there are `words + params` runs of 32 words: the
//! elements of the lane's unit, `vec` words per lane together, then the parameters of a group, one word per lane at a time.
//! Steps without a unit, and rows past the end, are zero.
//!
//! Elements: plain numbers as they are, two 16-bit ones in a word, the first in the low half. Codes of 2 and 3 bits lie in 4,
//! those of 5 and 6 in 8: a code is an integer, so its place can't be seen in a bit. A word of 4-bit places holds elements `b`
//! (low nibble of byte b) and `4 + b` (high nibble) of its eight; a word of 8-bit places holds four elements as
//! code - 128, signed. Parameters: the scale in the low and the offset in the high half of one word, or a word of each
//! if they are f32.

use crate::graph::Dtype;
use crate::order::{LINEAR_UNIT, ReductionOrder, Take};

/// What the elements of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Affine codes with a scale and an offset per group.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Elements of a group.
        group: u32,
        /// Format of scales and offsets.
        scales: Dtype,
    },
    /// Numbers.
    Plain(Dtype),
}

impl Format {
    /// Elements of a unit: what a chain takes at a time.
    pub fn unit(self) -> u32 {
        match self {
            Format::Affine { group, .. } => group,
            Format::Plain(_) => LINEAR_UNIT,
        }
    }
    /// Bits of one element in packed words.
    pub fn place(self) -> u32 {
        match self {
            Format::Affine { bits: 0..=4, .. } => 4,
            Format::Affine { .. } => 8,
            Format::Plain(d) => 8 * d.bytes() as u32,
        }
    }
    /// Words of parameters of a unit.
    pub fn params(self) -> u32 {
        match self {
            Format::Affine { scales: Dtype::F32, .. } => 2,
            Format::Affine { .. } => 1,
            Format::Plain(_) => 0,
        }
    }
}

/// Layout of one matrix (or a stack of them, each padded to whole tiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixLayout {
    /// Elements.
    pub format: Format,
    /// Matrices in the stack.
    pub stack: u32,
    /// Rows of one matrix.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Order over units: decides which units a chain owns.
    pub order: ReductionOrder,
    /// Lanes that share a row: 1, 2, 4, ..., at most `order.lanes`.
    pub chain_lanes: u32,
    /// Consecutive words of one lane: 1, 2 or 4.
    pub vec: u32,
}

impl MatrixLayout {
    /// Elements of a unit.
    pub fn unit(&self) -> u32 {
        self.format.unit()
    }
    /// Units of a row.
    pub fn units(&self) -> u32 {
        self.cols / self.unit()
    }
    /// Words of elements in a unit.
    pub fn words(&self) -> u32 {
        self.unit() * self.format.place() / 32
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
    /// Units of the longest chain.
    pub fn chain_len(&self) -> u32 {
        self.units().div_ceil(self.order.lanes)
    }
    /// The unit that chain `c` consumes as its `t`-th, if it has so many.
    pub fn unit_of(&self, c: u32, t: u32) -> Option<u32> {
        let g = match self.order.take {
            Take::Contiguous => {
                let run = self.order.run(self.units());
                (t < run).then_some(c * run + t)?
            }
            Take::Strided => c + t * self.order.lanes,
        };
        (g < self.units()).then_some(g)
    }
    /// Steps of a lane: `chains_per_lane × chain_len`; step `k * chain_len + t` is the `t`-th unit of the lane's chain `k`.
    pub fn steps(&self) -> u32 {
        self.chains_per_lane() * self.chain_len()
    }
    /// 32-bit words of one (tile, step).
    pub fn step_words(&self) -> u32 {
        (self.words() + self.format.params()) * 32
    }
    /// Bytes of one matrix of the stack.
    pub fn matrix_bytes(&self) -> u64 {
        u64::from(self.tiles()) * u64::from(self.steps()) * u64::from(self.step_words()) * 4
    }
    /// Bytes of the whole stack.
    pub fn bytes(&self) -> u64 {
        u64::from(self.stack) * self.matrix_bytes()
    }
    /// Word index, within a (tile, step), of word `j` of lane `lane`.
    pub fn code_word(&self, j: u32, lane: u32) -> u32 {
        (j / self.vec) * 32 * self.vec + lane * self.vec + j % self.vec
    }

    /// Packs one matrix into `out`, which is [`matrix_bytes`](Self::matrix_bytes) long and zero. `elements`: the numbers, row-major and
    /// little-endian, or the codes, each row a stream of bits over bytes, the first code in the lowest bits (as MLX has
    /// them). `scales` and `offsets`: one number per group, empty for plain numbers.
    pub fn pack_matrix(&self, out: &mut [u8], elements: &[u8], scales: &[u8], offsets: &[u8]) {
        let (words, units) = (self.words() as usize, self.units() as usize);
        let stored = match self.format {
            Format::Affine { bits, .. } => bits,
            Format::Plain(_) => self.format.place(),
        };
        let unit_bytes = (self.unit() * stored / 8) as usize;
        let mut unit = vec![0u32; words];
        for (block, chunk) in out.chunks_exact_mut(self.step_words() as usize * 4).enumerate() {
            let (step, tile) = (block as u32 % self.steps(), block as u32 / self.steps());
            for lane in 0..32 {
                let row = tile * self.tile_rows() + lane % self.tile_rows();
                // A lane's chains are c, c + chain_lanes, ...: the k-th of them in step order.
                let chain = (step / self.chain_len()) * self.chain_lanes + lane / self.tile_rows();
                let Some(u) = self.unit_of(chain, step % self.chain_len()) else { continue };
                if row >= self.rows {
                    continue;
                }
                let at = row as usize * units + u as usize;
                self.unit_words(&elements[at * unit_bytes..(at + 1) * unit_bytes], &mut unit);
                for (j, w) in unit.iter().enumerate() {
                    let at = 4 * self.code_word(j as u32, lane) as usize;
                    chunk[at..at + 4].copy_from_slice(&w.to_le_bytes());
                }
                if let Format::Affine { scales: format, .. } = self.format {
                    let (n, first) = (format.bytes(), 4 * (words * 32 + lane as usize));
                    // The offset is the next half word, or lies a run of words farther.
                    let second = first + if n == 2 { 2 } else { 128 };
                    chunk[first..first + n].copy_from_slice(&scales[n * at..n * (at + 1)]);
                    chunk[second..second + n].copy_from_slice(&offsets[n * at..n * (at + 1)]);
                }
            }
        }
    }

    /// The words of one unit as kernels unpack them, from its bytes in the checkpoint.
    fn unit_words(&self, bytes: &[u8], out: &mut [u32]) {
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let Format::Affine { bits, .. } = self.format else {
            out.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(o, b)| *o = word(b));
            return;
        };
        match bits {
            8 => out.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(o, b)| *o = word(b) ^ 0x8080_8080),
            4 => out.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(o, b)| *o = interleave(word(b))),
            _ => {
                let (place, mask) = (self.format.place(), (1 << bits) - 1);
                let (mut window, mut have, mut from) = (0u32, 0, bytes.iter());
                for o in out {
                    let mut w = 0;
                    for k in 0..32 / place {
                        if have < bits {
                            window |= u32::from(from.next().copied().unwrap_or(0)) << have;
                            have += 8;
                        }
                        w |= (window & mask) << (place * k);
                        window >>= bits;
                        have -= bits;
                    }
                    *o = if place == 8 { w ^ 0x8080_8080 } else { interleave(w) };
                }
            }
        }
    }
}

/// Eight nibbles in ascending order, in the order the kernels unpack them.
fn interleave(w: u32) -> u32 {
    // Each nibble of a half to a byte of its own.
    let spread = |h: u32| {
        let pairs = (h | h << 8) & 0x00ff_00ff;
        (pairs | pairs << 4) & 0x0f0f_0f0f
    };
    spread(w & 0xffff) | spread(w >> 16) << 4
}
