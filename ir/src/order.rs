//! Reduction orders: the part of a program that fixes bits. A [`ReductionOrder`] stands on the graph node, is printed in
//! every dump, and is obeyed by the interpreter and by every lowering; a free schedule cannot mention it.

use std::fmt;

/// Which elements a lane consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Take {
    /// Lane `l` of `n` takes `l, l + n, l + 2n, ...`
    Strided,
    /// Lane `l` takes the `l`-th run of `ceil(count / n)` elements (later lanes may get none).
    Contiguous,
}

/// How the lanes' partial results are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// Halving: lane `l` adds lane `l + n/2`, then `l + n/4`, ...; `n` is a power of two.
    Pair,
    /// Lane 0, plus lane 1, plus lane 2, ...
    Fold,
}

/// A pinned order of one sum: each lane runs a chain from +0 over its elements in ascending order, then the tree joins
/// the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReductionOrder {
    /// Number of chains; a power of two for [`Tree::Pair`].
    pub lanes: u32,
    /// Which elements a lane takes.
    pub take: Take,
    /// How lanes are joined.
    pub tree: Tree,
}

impl ReductionOrder {
    /// One chain in ascending order.
    pub const CHAIN: ReductionOrder = ReductionOrder { lanes: 1, take: Take::Strided, tree: Tree::Pair };

    /// Lanes that take strided elements, joined in pairs.
    pub const fn strided(lanes: u32) -> Self {
        ReductionOrder { lanes, take: Take::Strided, tree: Tree::Pair }
    }

    /// Lanes that take contiguous runs, joined in pairs.
    pub const fn contiguous(lanes: u32) -> Self {
        ReductionOrder { lanes, take: Take::Contiguous, tree: Tree::Pair }
    }

    /// Is it meaningful? 1 to 1024 lanes, a power of two for pairs.
    pub fn check(&self) -> Result<(), String> {
        if self.lanes == 0 || self.lanes > 1024 {
            return Err(format!("an order has 1 to 1024 lanes, not {}", self.lanes));
        }
        if self.tree == Tree::Pair && !self.lanes.is_power_of_two() {
            return Err(format!("tree=pair needs a power of two of lanes, not {}", self.lanes));
        }
        Ok(())
    }

    /// Elements in one contiguous run.
    pub fn run(&self, count: u32) -> u32 {
        count.div_ceil(self.lanes).max(1)
    }

    /// The lane that consumes element `i` of `count`.
    pub fn lane_of(&self, i: u32, count: u32) -> u32 {
        match self.take {
            Take::Strided => i % self.lanes,
            Take::Contiguous => i / self.run(count),
        }
    }

    /// Runs the order: `step(acc, i)` continues a chain with element `i`.
    pub fn reduce(&self, count: u32, mut step: impl FnMut(f32, u32) -> f32) -> f32 {
        let mut acc = vec![0f32; self.lanes as usize];
        for i in 0..count {
            let l = self.lane_of(i, count) as usize;
            acc[l] = step(acc[l], i);
        }
        self.join(acc)
    }

    /// Joins the lanes' partial sums.
    pub fn join(&self, mut acc: Vec<f32>) -> f32 {
        match self.tree {
            Tree::Pair => {
                let mut half = acc.len() / 2;
                while half > 0 {
                    for l in 0..half {
                        acc[l] += acc[l + half];
                    }
                    half /= 2;
                }
                acc[0]
            }
            Tree::Fold => acc.into_iter().reduce(|a, b| a + b).unwrap_or(0.0),
        }
    }
}

impl fmt::Display for ReductionOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let take = match self.take {
            Take::Strided => "strided",
            Take::Contiguous => "contiguous",
        };
        let tree = match self.tree {
            Tree::Pair => "pair",
            Tree::Fold => "fold",
        };
        write!(f, "sum(lanes={}, take={take}, tree={tree})", self.lanes)
    }
}

/// Elements of a unit of a matmul with plain weights: what a lane takes at a time. A constant of the numerics.
pub const LINEAR_UNIT: u32 = 8;

/// Positions of one block of the key axis: one key a lane. A constant of the numerics.
pub const KV_BLOCK: u32 = 32;

/// The pinned order of attention over the key axis. Keys are taken in blocks of [`KV_BLOCK`] aligned to absolute positions;
/// within a split the online softmax runs over blocks in ascending order; splits are joined in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionOrder {
    /// Positions of a split, a multiple of [`KV_BLOCK`].
    pub split: u32,
    /// The dot product of query and key over the head's elements.
    pub dot: ReductionOrder,
    /// The sum of a block's 32 weights.
    pub sum: ReductionOrder,
}

impl AttentionOrder {
    /// Is it meaningful?
    pub fn check(&self) -> Result<(), String> {
        if self.split == 0 || !self.split.is_multiple_of(KV_BLOCK) || self.split > 1 << 20 {
            return Err(format!("split is a multiple of {KV_BLOCK} up to 2^20, not {}", self.split));
        }
        self.dot.check()?;
        self.sum.check()
    }
}

impl fmt::Display for AttentionOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attention(split={}, dot={}, sum={})", self.split, self.dot, self.sum)
    }
}
