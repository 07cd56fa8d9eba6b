//! The packed layout of weights, read back by a reader that follows the text of `layout.rs`; codes as MLX packs them.

mod graph_common;

use graph_common::Rng;
use ir::graph::Dtype;
use ir::layout::{Format, MatrixLayout};
use ir::order::{ReductionOrder, Take, Tree};
use ir::plan::verify::check_layout;

/// A packed weight as a kernel sees it: for every (tile, step) `words + params` runs of 32 words.
struct Reader<'a> {
    l: MatrixLayout,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn word(&self, i: usize) -> u32 {
        u32::from_le_bytes(self.bytes[4 * i..4 * i + 4].try_into().unwrap())
    }

    /// Parameters (scale and offset as bits) and elements (codes, or numbers as bits) that lane `lane` finds at a (tile, step).
    fn lane(&self, tile: usize, step: usize, lane: usize) -> (Option<(u32, u32)>, Vec<u32>) {
        let l = &self.l;
        let (place, params) = match l.format {
            Format::Affine { bits, scales, .. } => (if bits <= 4 { 4 } else { 8 }, if scales == Dtype::F32 { 2 } else { 1 }),
            Format::Plain(Dtype::F32) => (32, 0),
            Format::Plain(_) => (16, 0),
        };
        let words = l.unit() as usize * place / 32;
        let base = (tile * l.steps() as usize + step) * (words + params) * 32;
        let vec = l.vec as usize;
        let mut elements = vec![];
        for j in 0..words {
            // `vec` words per lane together.
            let w = self.word(base + j / vec * 32 * vec + lane * vec + j % vec);
            for e in 0..32 / place {
                elements.push(match place {
                    // Code - 128, signed.
                    8 => (((w >> (8 * e)) as u8) as i8 as i32 + 128) as u32,
                    // Element b: low nibble of byte b.
                    4 if e < 4 => w >> (8 * e) & 15,
                    // Element 4 + b: its high nibble.
                    4 => w >> (8 * (e - 4) + 4) & 15,
                    16 => w >> (16 * e) & 0xffff,
                    _ => w,
                });
            }
        }
        let param = |k: usize| self.word(base + (words + k) * 32 + lane);
        let params = match params {
            0 => None,
            1 => Some((param(0) & 0xffff, param(0) >> 16)),
            _ => Some((param(0), param(1))),
        };
        (params, elements)
    }
}

fn check(r: &mut Rng, l: MatrixLayout) {
    check_layout(&l).unwrap_or_else(|m| panic!("{m}: {l:?}"));
    let count = (l.rows * l.cols) as usize;
    let (units, all_units) = ((l.cols / l.unit()) as usize, count / l.unit() as usize);
    let (stored, param_bytes) = match l.format {
        Format::Affine { bits, scales, .. } => (bits as usize, scales.bytes()),
        Format::Plain(d) => (8 * d.bytes(), 0),
    };
    // No element, scale or offset is zero, so that a hole is told from data.
    let some = |r: &mut Rng, bits: usize| (1 + r.next() % ((1u64 << bits) - 1)) as u32;
    for _ in 0..l.stack {
        let elements: Vec<u32> = (0..count).map(|_| some(r, stored)).collect();
        // A stream of bits, the first element in the lowest bits.
        let mut stream = vec![0u8; count * stored / 8];
        for (i, e) in elements.iter().enumerate() {
            for k in 0..stored {
                stream[(i * stored + k) / 8] |= ((e >> k & 1) as u8) << ((i * stored + k) % 8);
            }
        }
        let params: Vec<(u32, u32)> = match param_bytes {
            0 => vec![],
            n => (0..all_units).map(|_| (some(r, 8 * n), some(r, 8 * n))).collect(),
        };
        let scales: Vec<u8> = params.iter().flat_map(|p| p.0.to_le_bytes()[..param_bytes].to_vec()).collect();
        let offsets: Vec<u8> = params.iter().flat_map(|p| p.1.to_le_bytes()[..param_bytes].to_vec()).collect();
        let mut bytes = vec![0; l.matrix_bytes() as usize];
        l.pack_matrix(&mut bytes, &stream, &scales, &offsets);

        let p = Reader { l, bytes: &bytes };
        let mut seen = vec![0; all_units];
        for tile in 0..l.tiles() as usize {
            for lane in 0..32 {
                // A tile holds 32 / chain_lanes rows; lanes of one chain stand side by side.
                let row = tile * (32 / l.chain_lanes as usize) + lane % (32 / l.chain_lanes as usize);
                for k in 0..l.chains_per_lane() as usize {
                    let chain = k * l.chain_lanes as usize + lane / (32 / l.chain_lanes as usize);
                    // The units of the chain, ascending, are what the order gives it: nothing is computed by the layout's
                    // own `unit_of`.
                    let own: Vec<usize> =
                        (0..units).filter(|&g| l.order.lane_of(g as u32, units as u32) as usize == chain).collect();
                    for t in 0..l.chain_len() as usize {
                        let step = k * l.chain_len() as usize + t;
                        let (param, got) = p.lane(tile, step, lane);
                        let real = own.get(t).filter(|_| row < l.rows as usize);
                        assert_eq!(l.unit_of(chain as u32, t as u32), own.get(t).map(|&g| g as u32));
                        let Some(&u) = real else {
                            // Steps without a unit, and rows past the end, are zero in memory.
                            let zero = if matches!(l.format, Format::Affine { bits: 5.., .. }) { 128 } else { 0 };
                            assert!(param.unwrap_or((0, 0)) == (0, 0) && got.iter().all(|&q| q == zero), "{l:?}");
                            continue;
                        };
                        let at = row * units + u;
                        seen[at] += 1;
                        assert_eq!(param, params.get(at).copied(), "{l:?}");
                        assert_eq!(got, elements[at * l.unit() as usize..][..l.unit() as usize], "{l:?}");
                    }
                }
            }
        }
        assert!(seen.iter().all(|&n| n == 1), "{l:?}");
    }
}

#[test]
fn pack_is_what_the_text_says() {
    let mut r = Rng(1);
    let mut cases = 0;
    let all = [Dtype::Bf16, Dtype::F16, Dtype::F32];
    let mut formats: Vec<Format> = all.map(Format::Plain).into();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            formats.push(Format::Affine { bits, group, scales: all[(bits + group / 32) as usize % 3] });
        }
    }
    for format in formats {
        for units in [7, 4, 3, 1, 16] {
            for chain_lanes in [1, 2, 4] {
                for lanes in [1, 2, 4, 8, 6] {
                    for take in [Take::Strided, Take::Contiguous] {
                        for vec in [1, 2, 4] {
                            let tree = if lanes == 6 { Tree::Fold } else { Tree::Pair };
                            let order = ReductionOrder { lanes, take, tree };
                            let (rows, stack) = (r.pick(&[1, 8, 33, 40]), r.pick(&[1, 3]));
                            let cols = format.unit() * units;
                            let l = MatrixLayout { format, stack, rows, cols, order, chain_lanes, vec };
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
    assert!(cases > 3000, "{cases}");
}

/// What `mlx.core.quantize` makes of one row of 64 numbers, by `graph_layout_mlx.py`: bits, words, codes.
const MLX: &str = include_str!("graph_layout_mlx.txt");

#[test]
fn codes_are_packed_as_mlx_packs_them() {
    let mut lines = MLX.lines().filter(|l| !l.starts_with('#'));
    let mut seen = vec![];
    while let Some(head) = lines.next() {
        let bits: u32 = head.strip_prefix("bits ").unwrap().parse().unwrap();
        let hex = |l: &str| l.split(' ').map(|w| u32::from_str_radix(w, 16).unwrap()).collect::<Vec<u32>>();
        let words: Vec<u8> = hex(lines.next().unwrap()).into_iter().flat_map(u32::to_le_bytes).collect();
        let codes: Vec<u32> = lines.next().unwrap().split(' ').map(|w| w.parse().unwrap()).collect();
        let format = Format::Affine { bits, group: 64, scales: Dtype::Bf16 };
        let order = ReductionOrder::contiguous(1);
        let l = MatrixLayout { format, stack: 1, rows: 1, cols: 64, order, chain_lanes: 1, vec: 1 };
        let mut bytes = vec![0; l.bytes() as usize];
        l.pack_matrix(&mut bytes, &words, &[1, 2], &[3, 4]);
        assert_eq!(Reader { l, bytes: &bytes }.lane(0, 0, 0), (Some((0x0201, 0x0403)), codes), "{bits} bits");
        seen.push(bits);
    }
    assert_eq!(seen, [2, 3, 4, 5, 6, 8]);
}
