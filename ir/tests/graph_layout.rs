//! The packed layout of affine weights, read back by a reader that follows the text of `layout.rs`.

mod graph_common;

use graph_common::Rng;
use ir::layout::AffineLayout;
use ir::order::{ReductionOrder, Take, Tree};
use ir::plan::verify::check_layout;

/// A packed weight as a kernel sees it: for every (tile, step) `words + 1` runs of 32 words.
struct Reader<'a> {
    l: AffineLayout,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn word(&self, i: usize) -> u32 {
        u32::from_le_bytes(self.bytes[4 * i..4 * i + 4].try_into().unwrap())
    }

    /// The parameter word and the codes that lane `lane` finds at a (tile, step).
    fn lane(&self, tile: usize, step: usize, lane: usize) -> (u32, Vec<u32>) {
        let (l, words) = (&self.l, (self.l.group * self.l.bits / 32) as usize);
        let base = (tile * l.steps() as usize + step) * (words + 1) * 32;
        let vec = l.vec as usize;
        let mut codes = vec![];
        for j in 0..words {
            // `vec` words per lane together.
            let w = self.word(base + j / vec * 32 * vec + lane * vec + j % vec);
            for e in 0..32 / l.bits as usize {
                codes.push(if l.bits == 8 {
                    // Code - 128, signed.
                    (((w >> (8 * e)) as u8) as i8 as i32 + 128) as u32
                } else if e < 4 {
                    // Element b: low nibble of byte b.
                    w >> (8 * e) & 15
                } else {
                    // Element 4 + b: its high nibble.
                    w >> (8 * (e - 4) + 4) & 15
                });
            }
        }
        (self.word(base + words * 32 + lane), codes)
    }
}

fn check(r: &mut Rng, l: AffineLayout) {
    check_layout(&l).unwrap_or_else(|m| panic!("{m}: {l:?}"));
    let count = (l.stack * l.rows * l.cols) as usize;
    let (groups, all_groups) = ((l.cols / l.group) as usize, count / l.group as usize);
    // No code, scale or offset is zero, so that a hole is told from data.
    let codes: Vec<u32> = (0..count).map(|_| 1 + r.below((1 << l.bits) - 1) as u32).collect();
    let per = 32 / l.bits as usize;
    let words: Vec<u8> = codes
        .chunks(per)
        .map(|c| c.iter().enumerate().fold(0u32, |w, (i, q)| w | q << (l.bits as usize * i)))
        .flat_map(u32::to_le_bytes)
        .collect();
    let params: Vec<(u16, u16)> = (0..all_groups).map(|_| (1 + r.below(65535) as u16, 1 + r.below(65535) as u16)).collect();
    let scales: Vec<u8> = params.iter().flat_map(|p| p.0.to_le_bytes()).collect();
    let biases: Vec<u8> = params.iter().flat_map(|p| p.1.to_le_bytes()).collect();
    let bytes = l.pack(&words, &scales, &biases);
    assert_eq!(bytes.len() as u64, l.bytes());

    let p = Reader { l, bytes: &bytes };
    let mut seen = vec![0; all_groups];
    for e in 0..l.stack as usize {
        for tile in 0..l.tiles() as usize {
            for lane in 0..32 {
                // A tile holds 32 / chain_lanes rows; lanes of one row stand side by side.
                let row = tile * (32 / l.chain_lanes as usize) + lane / l.chain_lanes as usize;
                for k in 0..l.chains_per_lane() as usize {
                    let chain = k * l.chain_lanes as usize + lane % l.chain_lanes as usize;
                    // The groups of the chain, ascending, are what the order gives it: nothing is computed by the layout's
                    // own `group_of`.
                    let own: Vec<usize> =
                        (0..groups).filter(|&g| l.order.lane_of(g as u32, groups as u32) as usize == chain).collect();
                    for t in 0..l.chain_len() as usize {
                        let step = k * l.chain_len() as usize + t;
                        let (param, got) = p.lane(e * l.tiles() as usize + tile, step, lane);
                        let real = own.get(t).filter(|_| row < l.rows as usize);
                        assert_eq!(l.group_of(chain as u32, t as u32), own.get(t).map(|&g| g as u32));
                        let Some(&g) = real else {
                            // Steps without a group, and rows past the end, are zero in memory.
                            let zero = if l.bits == 8 { 128 } else { 0 };
                            assert!(param == 0 && got.iter().all(|&q| q == zero), "{l:?}");
                            continue;
                        };
                        let at = (e * l.rows as usize + row) * groups + g;
                        seen[at] += 1;
                        assert_eq!((param as u16, (param >> 16) as u16), params[at], "{l:?}");
                        assert_eq!(got, codes[at * l.group as usize..][..l.group as usize], "{l:?}");
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|&n| n == 1), "{l:?}");
}

#[test]
fn pack_is_what_the_text_says() {
    let mut r = Rng(1);
    let mut cases = 0;
    for bits in [4, 8] {
        for (group, groups) in [(32, 7), (64, 4), (128, 3), (64, 1), (32, 16)] {
            for chain_lanes in [1, 2, 4] {
                for lanes in [1, 2, 4, 8, 6] {
                    for take in [Take::Strided, Take::Contiguous] {
                        for vec in [1, 2, 4] {
                            let tree = if lanes == 6 { Tree::Fold } else { Tree::Pair };
                            let order = ReductionOrder { lanes, take, tree };
                            let (rows, stack) = (r.pick(&[1, 8, 33, 40]), r.pick(&[1, 3]));
                            let l = AffineLayout { bits, group, stack, rows, cols: group * groups, order, chain_lanes, vec };
                            if check_layout(&l).is_ok() {
                                cases += 1;
                                check(&mut r, l);
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(cases > 600, "{cases}");
}
