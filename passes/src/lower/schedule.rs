//! Free schedules: how work is spread over blocks, warps and lanes. Nothing here can change a bit; tests try several.

/// Schedule of all kernels of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Warps of a matmul block: 1, 2, 4 or 8.
    pub warps: u32,
    /// Lanes that share a row of a matmul: 1, 2 or 4.
    pub chain_lanes: u32,
    /// Words that a lane loads together: 1, 2 or 4.
    pub vec: u32,
    /// Row tiles that one warp of a matmul block computes, about.
    pub tiles: u32,
    /// Stages of asynchronous weight copies; 0 for plain loads.
    pub stages: u32,
    /// Blocks per multiprocessor to ask for; 0 for no wish.
    pub min_blocks: u32,
    /// Rows of a chunk (tokens) that a matmul block computes with the weights that it reads once: 1, 2, 4 or 8.
    pub tokens: u32,
    /// Words of weights that a lane of a matmul reads before it uses the first of them, about; 0 for one unit at a time.
    pub ahead: u32,
    /// Warps of a block that has a row to itself: norms, sums, quantization.
    pub row_warps: u32,
    /// Warps that compute a tile of a quantized matmul with few tiles together, at most: 1, 2, 4 or 8.
    pub share: u32,
    /// Blocks of a matmul, at most, each with more tiles; 0 for no limit.
    pub most_blocks: u32,
    /// Rows of a chunk that a block of 8 warps multiplies on integer matrix units, where a matrix lies so that it can: 16, 32 or
    /// 64; 0 for none. Matmuls then stand alone in their kernels.
    pub mma: u32,
    /// 1: matmuls of experts are computed there too, all rows that chose one together; 0: row by row.
    pub grouped: u32,
}

impl Schedule {
    /// One lane per row in SIMD registers; one warp per block.
    pub const HOST: Schedule = Schedule {
        warps: 1,
        chain_lanes: 1,
        vec: 1,
        tiles: 16,
        stages: 0,
        min_blocks: 0,
        tokens: 1,
        ahead: 0,
        row_warps: 1,
        share: 1,
        most_blocks: 0,
        mma: 0,
        grouped: 0,
    };
    /// Four lanes per row, 16-byte loads; at most three blocks a multiprocessor, so that all have a place at once.
    pub const GPU: Schedule = Schedule {
        warps: 8,
        chain_lanes: 4,
        vec: 4,
        tiles: 1,
        stages: 0,
        min_blocks: 3,
        tokens: 1,
        ahead: 80,
        row_warps: 16,
        share: 4,
        most_blocks: 396,
        mma: 0,
        grouped: 0,
    };

    /// The same for chunks of many tokens: the sums of two rows fit the registers beside what is unpacked for them.
    pub const HOST_PREFILL: Schedule = Schedule { tokens: 2, ..Schedule::HOST };
    /// The same for chunks of many tokens.
    pub const GPU_PREFILL: Schedule =
        Schedule { tokens: 4, min_blocks: 1, ahead: 0, share: 1, mma: 32, grouped: 1, ..Schedule::GPU };

    /// Is every field in range?
    pub fn check(&self) -> Result<(), String> {
        let ok = [1, 2, 4, 8].contains(&self.warps)
            && [1, 2, 4].contains(&self.chain_lanes)
            && [1, 2, 4].contains(&self.vec)
            && (1..=64).contains(&self.tiles)
            && (self.stages == 0 || (2..=8).contains(&self.stages))
            && [1, 2, 4, 8].contains(&self.tokens)
            && self.ahead <= 256
            && [1, 2, 4, 8].contains(&self.share)
            && [1, 2, 4, 8, 16, 32].contains(&self.row_warps)
            && (self.most_blocks == 0 || (32..=1 << 16).contains(&self.most_blocks))
            && [0, 16, 32, 64].contains(&self.mma)
            && self.grouped <= 1;
        if ok { Ok(()) } else { Err(format!("not a schedule: {self:?}")) }
    }
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Schedule {
            warps,
            chain_lanes,
            vec,
            tiles,
            stages,
            min_blocks,
            tokens,
            ahead,
            row_warps,
            share,
            most_blocks,
            mma,
            grouped,
        } = self;
        write!(
            f,
            "{warps}/{chain_lanes}/{vec}/{tiles}/{stages}/{min_blocks}/{tokens}/{ahead}/{row_warps}/{share}/{most_blocks}/{mma}/{grouped}"
        )
    }
}

impl Schedule {
    /// Reads what `Display` writes: warps/chain_lanes/vec/tiles/stages/min_blocks/tokens/ahead/row_warps/share/most_blocks/mma/grouped.
    pub fn parse(text: &str) -> Option<Schedule> {
        let n: Vec<u32> = text.split('/').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [warps, chain_lanes, vec, tiles, stages, min_blocks, tokens, ahead, row_warps, share, most_blocks, mma, grouped] =
            n[..]
        else {
            return None;
        };
        let s = Schedule {
            warps,
            chain_lanes,
            vec,
            tiles,
            stages,
            min_blocks,
            tokens,
            ahead,
            row_warps,
            share,
            most_blocks,
            mma,
            grouped,
        };
        s.check().is_ok().then_some(s)
    }
}
