//! Digests of values, for traces: of each row of a value the sum, over its elements, of a mix of where the element lies in the
//! row and of its bits. Two wrapping sums of 32 bits make the 64 of a digest, so it is the same in whatever order elements are
//! added, and one changed element always changes it: for a place, the first mix is a bijection of the bits.
//!
//! The mix is written once, over [`Words`]: kernels build it, the host computes it.

use crate::graph::{Elem, Type};
use crate::kernel::build::Builder;
use crate::kernel::{IntOp, V};

/// What computes with words of 32 bits.
pub trait Words {
    /// A word.
    type W: Copy;
    /// A constant.
    fn word(&mut self, x: u32) -> Self::W;
    /// A wrapping operation.
    fn op(&mut self, op: IntOp, a: Self::W, b: Self::W) -> Self::W;
}

impl Words for Builder {
    type W = V;
    fn word(&mut self, x: u32) -> V {
        self.i(x as i32)
    }
    fn op(&mut self, op: IntOp, a: V, b: V) -> V {
        self.int(op, a, b)
    }
}

/// The host.
struct Host;

impl Words for Host {
    type W = u32;
    fn word(&mut self, x: u32) -> u32 {
        x
    }
    #[inline(always)]
    fn op(&mut self, op: IntOp, a: u32, b: u32) -> u32 {
        match op {
            IntOp::Add => a.wrapping_add(b),
            IntOp::Mul => a.wrapping_mul(b),
            IntOp::Lshr => a >> b,
            _ => a ^ b,
        }
    }
}

/// Mixes the place of an element, in bytes from the start of its row, with its bits (of shorter elements, with zeros above).
#[inline(always)]
pub fn mix<M: Words>(m: &mut M, place: M::W, bits: M::W) -> [M::W; 2] {
    // Finalizers of well-known hashes: murmur3's, and one of Wellons' with less bias.
    let ways = [
        (IntOp::Xor, 0x9e37_79b1, [16, 13, 16], [0x85eb_ca6b, 0xc2b2_ae35]),
        (IntOp::Add, 0xc2b2_ae3d, [16, 15, 16], [0x21f0_aaad, 0x735a_2d97]),
    ];
    ways.map(|(join, factor, shifts, factors)| {
        let factor = m.word(factor);
        let place = m.op(IntOp::Mul, place, factor);
        let mut x = m.op(join, bits, place);
        for (i, by) in shifts.into_iter().enumerate() {
            let by = m.word(by);
            let high = m.op(IntOp::Lshr, x, by);
            x = m.op(IntOp::Xor, x, high);
            if let Some(&f) = factors.get(i) {
                let f = m.word(f);
                x = m.op(IntOp::Mul, x, f);
            }
        }
        x
    })
}

/// Consecutive elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes of an element: 1 or 4.
    pub bytes: u32,
    /// How many.
    pub count: u32,
}

/// What a row of a value holds in memory, padding left out; none for what is no value of a step.
pub fn runs(ty: &Type) -> Option<Vec<Run>> {
    let w = ty.width();
    let words = |count| Run { bytes: 4, count };
    Some(match ty.elem {
        Elem::F32 | Elem::I32 => vec![words(w)],
        // Index and weight.
        Elem::Route => vec![words(2 * w)],
        // Three planes, then scale, sum and correction of each group.
        Elem::Q24 { group } => vec![Run { bytes: 1, count: 3 * w }, words(3 * (w / group.max(1)))],
        _ => return None,
    })
}

/// The digest of a row that is summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest([u32; 2]);

impl Digest {
    /// Adds an element.
    #[inline(always)]
    pub fn add(&mut self, place: u32, bits: u32) {
        let [a, b] = mix(&mut Host, place, bits);
        self.0 = [self.0[0].wrapping_add(a), self.0[1].wrapping_add(b)];
    }

    /// Adds the elements of a row of memory; what is missing at its end is left out.
    pub fn add_row(&mut self, runs: &[Run], row: &[u8]) {
        let mut at = 0usize;
        for r in runs {
            let end = (at + (r.bytes * r.count) as usize).min(row.len());
            let part = row.get(at..end).unwrap_or_default();
            match r.bytes {
                1 => part.iter().enumerate().for_each(|(i, &b)| self.add((at + i) as u32, u32::from(b))),
                _ => {
                    let words = part.as_chunks::<4>().0;
                    words.iter().enumerate().for_each(|(i, &w)| self.add((at + 4 * i) as u32, u32::from_le_bytes(w)));
                }
            }
            at = end;
        }
    }

    /// From the sums of a kernel.
    pub fn of_words(words: [u32; 2]) -> Digest {
        Digest(words)
    }

    /// What was added since it was `before`.
    pub fn since(self, before: Digest) -> Digest {
        Digest([self.0[0].wrapping_sub(before.0[0]), self.0[1].wrapping_sub(before.0[1])])
    }

    /// As one number.
    pub fn value(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(row: &[u32]) -> u64 {
        let mut d = Digest::default();
        d.add_row(&[Run { bytes: 4, count: row.len() as u32 }], &row.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>());
        d.value()
    }

    #[test]
    fn the_order_of_additions_does_not_show_and_every_bit_does() {
        let row = [0x3f80_0000, 0, 0x8000_0000, 0x7fc0_0000, 5, 5];
        let whole = of(&row);
        let mut back = Digest::default();
        (0..row.len()).rev().for_each(|i| back.add(4 * i as u32, row[i]));
        assert_eq!(back.value(), whole);
        for i in 0..row.len() {
            for bit in 0..32 {
                let mut other = row;
                other[i] ^= 1 << bit;
                let d = of(&other);
                assert!(d as u32 != whole as u32 && d >> 32 != whole >> 32, "element {i}, bit {bit}");
            }
        }
        let mut swapped = row;
        swapped.swap(1, 2);
        assert_ne!(of(&swapped), whole, "places count");
        assert_ne!(of(&row[..5]), whole);
    }

    #[test]
    fn the_numbers_of_the_documented_mix_stay() {
        // docs/trace.md states the mix; traces of different builds are compared.
        assert_eq!(mix(&mut Host, 0, 0), [0, 0]);
        let got = [mix(&mut Host, 4, 0x3f80_0000), mix(&mut Host, 0, 1)];
        assert_eq!(got, PINNED);
    }

    const PINNED: [[u32; 2]; 2] = [[3_650_856_382, 414_552_527], [1_364_076_727, 2_262_003_975]];

    #[test]
    fn rows_of_fixed_point_are_bytes_and_words() {
        let ty = Type { elem: Elem::Q24 { group: 32 }, rows: crate::graph::Rows::Tokens, shape: vec![64] };
        let runs = runs(&ty).unwrap();
        assert_eq!(runs, [Run { bytes: 1, count: 192 }, Run { bytes: 4, count: 6 }]);
        let row: Vec<u8> = (0..216).map(|i| i as u8).collect();
        let mut d = Digest::default();
        d.add_row(&runs, &row);
        let mut e = Digest::default();
        (0..192).for_each(|i| e.add(i, i));
        (0..6).for_each(|i| e.add(192 + 4 * i, u32::from_le_bytes([0, 1, 2, 3].map(|b| (192 + 4 * i + b) as u8))));
        assert_eq!(d, e);
        // Too short a row is no fault.
        d.add_row(&runs, &row[..3]);
        d.add_row(&runs, &[]);
    }
}
