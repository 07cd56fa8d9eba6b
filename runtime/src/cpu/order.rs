//! Which thread runs which block, and in which order. Every block runs exactly once whatever is chosen.

/// Order of the blocks of a launch. Results must not depend on it; tests check that they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By number: x * height + y. Blocks of all rows that read the same weights follow each other, so the weights come from
    /// a cache for all but the first.
    #[default]
    Forward,
    /// Last block first.
    Reverse,
    /// A permutation that depends on the seed and on the launch's place in its list.
    Shuffled(u64),
}

/// The contiguous part of `blocks` places that thread `thread` of `threads` runs: first place and count.
/// The parts cover all places, earlier threads have at most one more; a single block is thread 0's.
pub(super) fn part(blocks: u64, thread: usize, threads: usize) -> (u64, u64) {
    let (thread, threads) = (thread as u64, threads as u64);
    let (each, rest) = (blocks / threads, blocks % threads);
    (thread * each + thread.min(rest), each + u64::from(thread < rest))
}

impl Order {
    /// The block at a place of the order, `place < blocks`.
    pub(super) fn block(self, place: u64, blocks: u64, launch: u64) -> u64 {
        match self {
            Order::Forward => place,
            Order::Reverse => blocks - 1 - place,
            Order::Shuffled(seed) => shuffled(place, blocks, seed ^ launch.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
    }
}

/// A permutation of `0..blocks`: one of the next power of two, walked until it comes back inside.
fn shuffled(place: u64, blocks: u64, seed: u64) -> u64 {
    let bits = u64::BITS - (blocks - 1).leading_zeros();
    let mask = if bits == u64::BITS { u64::MAX } else { (1 << bits) - 1 };
    let shift = (bits / 2).max(1);
    let mut value = place;
    loop {
        // Each step is a bijection of `0..=mask`.
        for round in 0..3u32 {
            let key = seed.rotate_left(21 * round).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = value.wrapping_add(key ^ (key >> 32)) & mask;
            value = value.wrapping_mul((key >> 16) | 1) & mask;
            value ^= value >> shift;
        }
        if value < blocks {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_once() {
        for threads in 1..10 {
            for blocks in 0..50 {
                let mut next = 0;
                for thread in 0..threads {
                    let (first, count) = part(blocks, thread, threads);
                    assert_eq!(first, next);
                    next += count;
                }
                assert_eq!(next, blocks);
            }
        }
        assert_eq!(part(1, 0, 8), (0, 1));
        assert_eq!(part(u64::MAX, 4095, 4096), (u64::MAX - (u64::MAX >> 12), u64::MAX >> 12));
    }

    #[test]
    fn orders_are_permutations() {
        for blocks in [1u64, 2, 3, 4, 5, 7, 8, 9, 31, 64, 100, 1000] {
            for order in [Order::Forward, Order::Reverse, Order::Shuffled(0), Order::Shuffled(7), Order::Shuffled(u64::MAX)] {
                for launch in 0..3 {
                    let mut seen: Vec<u64> = (0..blocks).map(|p| order.block(p, blocks, launch)).collect();
                    seen.sort_unstable();
                    assert!(seen.into_iter().eq(0..blocks), "{order:?} of {blocks}");
                }
            }
        }
        let list = |seed, launch| (0..64).map(|p| Order::Shuffled(seed).block(p, 64, launch)).collect::<Vec<_>>();
        assert_ne!(list(1, 0), list(2, 0));
        assert_ne!(list(1, 0), list(1, 1));
        assert_eq!(list(5, 3), list(5, 3));
    }
}
