//! Weights that a seed makes: a checkpoint of any size without its files, to compile, run and measure with.
//!
//! Every number is a function of (seed, tensor, index) in integers and single roundings, the same everywhere, and simple
//! enough for any device:
//!
//! ```text
//! mix(z)        = splitmix64's finalizer: z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27;
//!                 z *= 0x94d049bb133111eb; z ^= z >> 31
//! key(part)     = mix(seed + 0x9e3779b97f4a7c15 * part ^ fnv1a64(name))     name of the graph's weight node; part 1: numbers
//!                                                                           or codes, part 2: scales
//! h(part, i)    = mix(key(part) + 0x9e3779b97f4a7c15 * i)                   i counts over the whole stack, row-major
//! t(part, i)    = sum of the four bytes of half i % 2 of h(part, i / 2), less 510       roughly normal, deviation 147.8
//! number i      = RN(f32(t(1, i)) * c)            of a matrix of K columns: c = f32(1 / (147.8 * sqrt(K)))
//!               = RN(center * (1 + t(1, i) / 2048))                          of a vector; see `center`
//! block n       = floor_avg(ceil_avg(h(1, 4n), h(1, 4n + 1)), ceil_avg(h(1, 4n + 2), h(1, 4n + 3))), on fields of w = 4
//!                 bits for codes of 2 to 4 bits, of w = 8 bits for 5 to 8
//! code i        = field i % (64 / w) of block i / (64 / w), its upper bits
//! scale g       = RN(base * f32(192 + t(2, g) / 8)),    base = f32(1 / (192 * 0.1443 * 2^bits * sqrt(K)))
//! offset g      = RN(-scale g * (2^bits - 1) / 2)
//! ```
//!
//! RN rounds to the stored format, the product is an f32, `t / 8` truncates. So a matrix has entries of mean 0 and deviation
//! about 1/sqrt(K), which keeps every value of the decoder near 1: norms are near 1, `k_norm` is near 2/sqrt(d) (scores are not scaled
//! otherwise), `router.scale` near sqrt(H) (its product is divided by that), the last norm has random signs (else a model with a
//! tied projection repeats its input), `layer_scalar` is near 15/16.

use crate::checkpoint::Checkpoint;
use crate::gemma4::tensors::{Expected, Role};
use crate::gemma4::{Config, StoredFloat};
use ir::graph::interp::pieces::{Head, Piece, Tensor};
use ir::graph::interp::{Affine, Plain};
use ir::graph::{Dtype, Elem};
use std::borrow::Cow;
use std::ops::Range;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn key(seed: u64, name: &str, part: u64) -> u64 {
    let name = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    mix(seed.wrapping_add(STEP.wrapping_mul(part)) ^ name)
}

fn hash(key: u64, i: u64) -> u64 {
    mix(key.wrapping_add(STEP.wrapping_mul(i)))
}

/// The sums of the four bytes of each half, less their mean.
fn pair(h: u64) -> [i32; 2] {
    let low = 0x00ff_00ff_00ff_00ff;
    let twos = (h & low) + (h >> 8 & low);
    let fours = twos + (twos >> 16);
    [(fours & 0xffff) as i32 - 510, (fours >> 32 & 0xffff) as i32 - 510]
}

fn normal(key: u64, i: u64) -> i32 {
    pair(hash(key, i / 2))[(i % 2) as usize]
}

/// Averages of all fields of two words, rounded up.
fn ceil_avg(x: u64, y: u64, low: u64) -> u64 {
    (x | y) - (((x ^ y) >> 1) & low)
}

/// Rounded down. `low` has all bits of a field but its highest.
fn floor_avg(x: u64, y: u64, low: u64) -> u64 {
    (x & y) + (((x ^ y) >> 1) & low)
}

/// Fields of one block of codes.
fn block(key: u64, n: u64, width: u32) -> u64 {
    let low = if width == 4 { 0x7777_7777_7777_7777 } else { 0x7f7f_7f7f_7f7f_7f7f };
    let h = |k| hash(key, 4 * n + k);
    floor_avg(ceil_avg(h(0), h(1), low), ceil_avg(h(2), h(3), low), low)
}

/// Token ids at these positions of a text without sense, below `vocab`: to measure with.
pub fn tokens(seed: u64, positions: Range<u64>, vocab: u32) -> Vec<u32> {
    let key = key(seed, "tokens", 1);
    positions.map(|i| (hash(key, i) % u64::from(vocab.max(1))) as u32).collect()
}

/// A finite number as bf16, to nearest even.
fn bf16(x: f32) -> u16 {
    let b = x.to_bits();
    ((b + 0x7fff + (b >> 16 & 1)) >> 16) as u16
}

/// A number in a stored format.
fn put(out: &mut Vec<u8>, dtype: Dtype, x: f32) {
    match dtype {
        Dtype::Bf16 => out.extend_from_slice(&bf16(x).to_le_bytes()),
        Dtype::F16 => out.extend(half::f16::from_f32(x).to_le_bytes()),
        Dtype::F32 => out.extend(x.to_le_bytes()),
    }
}

/// A number after the rounding of a stored format.
fn rounded(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::Bf16 => f32::from_bits(u32::from(bf16(x)) << 16),
        Dtype::F16 => half::f16::from_f32(x).to_f32(),
        Dtype::F32 => x,
    }
}

fn stored(c: &Config) -> Dtype {
    match c.dtype {
        StoredFloat::Bf16 => Dtype::Bf16,
        StoredFloat::F16 => Dtype::F16,
        StoredFloat::F32 => Dtype::F32,
    }
}

/// The format that a configuration gives a tensor. As in MLX, rows that groups do not divide are not quantized.
pub fn format(c: &Config, e: &Expected) -> Elem {
    let scales = stored(c);
    let quantized = if e.role == Role::Vector { None } else { c.quantization.as_ref().and_then(|q| q.of(&e.name)) };
    match (quantized, e.shape.last()) {
        (Some((bits, group)), Some(cols)) if cols.is_multiple_of(group as usize) => Elem::Affine { bits, group, scales },
        _ => scales.elem(),
    }
}

/// What the numbers of a vector are near to.
fn center(name: &str, len: usize) -> f32 {
    if name.ends_with(".k_norm") {
        (2.0 / (len as f64).sqrt()) as f32
    } else if name.ends_with("router.scale") {
        (len as f64).sqrt() as f32
    } else if name.ends_with(".layer_scalar") {
        0.9375
    } else {
        1.0
    }
}

/// One tensor, made when it is read.
struct Made {
    head: Head,
    dtype: Dtype,
    /// Keys of numbers or codes, and of scales.
    keys: [u64; 2],
    /// Of a vector; otherwise 0.
    center: f32,
    /// The last norm.
    signs: bool,
}

impl Made {
    fn new(seed: u64, c: &Config, e: &Expected) -> Made {
        let (stack, rows, cols) = match e.shape[..] {
            [stack, rows, cols] => (stack, rows, cols),
            [rows, cols] => (1, rows, cols),
            [cols] => (1, 1, cols),
            _ => (1, 1, 1),
        };
        let head = Head { elem: format(c, e), stack: stack as u32, rows: rows as u32, cols: cols as u32, fits: true };
        Made {
            head,
            dtype: stored(c),
            keys: [key(seed, &e.name, 1), key(seed, &e.name, 2)],
            center: if e.role == Role::Vector { center(&e.name, cols) } else { 0.0 },
            signs: e.name == "norm",
        }
    }

    /// Numbers `range` of the whole stack.
    fn numbers(&self, range: Range<u64>) -> Vec<u8> {
        let mut out = Vec::with_capacity((range.end - range.start) as usize * self.dtype.bytes());
        if self.center > 0.0 {
            for i in range {
                let x = self.center * (1.0 + normal(self.keys[0], i) as f32 / 2048.0);
                let negative = self.signs && hash(self.keys[1], i) & 1 == 1;
                put(&mut out, self.dtype, if negative { -x } else { x });
            }
            return out;
        }
        let c = (1.0 / (147.8 * f64::from(self.head.cols).sqrt())) as f32;
        // Two numbers a hash.
        let mut i = range.start;
        while i < range.end {
            let (t, n) = match i % 2 {
                0 => (pair(hash(self.keys[0], i / 2)), (range.end - i).min(2)),
                _ => ([normal(self.keys[0], i); 2], 1),
            };
            t[..n as usize].iter().for_each(|&t| put(&mut out, self.dtype, t as f32 * c));
            i += n;
        }
        out
    }

    /// Codes `range` of the whole stack, whole bytes.
    fn codes(&self, bits: u32, range: Range<u64>) -> Vec<u8> {
        let width = if bits <= 4 { 4 } else { 8 };
        let fields = u64::from(64 / width);
        let mut out = Vec::with_capacity(((range.end - range.start) * u64::from(bits)).div_ceil(8) as usize);
        // Rows are multiples of 32 elements, so ranges of rows are whole blocks and whole bytes.
        for n in range.start / fields..range.end.div_ceil(fields) {
            let b = block(self.keys[0], n, width);
            if bits == width {
                out.extend(b.to_le_bytes());
                continue;
            }
            let (mut window, mut have) = (0u64, 0);
            for f in 0..64 / width {
                let field = (b >> (f * width)) & ((1 << width) - 1);
                window |= (field >> (width - bits)) << have;
                have += bits;
            }
            out.extend(&window.to_le_bytes()[..have as usize / 8]);
        }
        out
    }

    /// Scales and offsets of groups `range` of the whole stack.
    fn params(&self, bits: u32, range: Range<u64>) -> (Vec<u8>, Vec<u8>) {
        let levels = f64::from(1u32 << bits);
        let base = (1.0 / (192.0 * 0.1443 * levels * f64::from(self.head.cols).sqrt())) as f32;
        let (mut scales, mut biases) = (vec![], vec![]);
        for g in range {
            let s = rounded(self.dtype, base * (192 + normal(self.keys[1], g) / 8) as f32);
            put(&mut scales, self.dtype, s);
            put(&mut biases, self.dtype, -s * ((levels - 1.0) / 2.0) as f32);
        }
        (scales, biases)
    }
}

impl Tensor for Made {
    fn head(&self) -> Head {
        self.head
    }

    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_> {
        let h = self.head;
        let first = u64::from(m) * u64::from(h.rows);
        let at = |r: u32| (first + u64::from(r)) * u64::from(h.cols);
        let range = at(rows.start)..at(rows.end);
        let Elem::Affine { bits, group, .. } = h.elem else {
            let none: Cow<'_, [u8]> = Cow::Borrowed(&[]);
            return Piece { elements: self.numbers(range).into(), scales: none.clone(), biases: none };
        };
        let group = u64::from(group);
        let (scales, biases) = self.params(bits, range.start / group..range.end / group);
        Piece { elements: self.codes(bits, range).into(), scales: scales.into(), biases: biases.into() }
    }
}

/// The whole tensor of a name: for small models and the interpreter.
pub(crate) fn affine(seed: u64, ck: &Checkpoint, name: &str) -> Option<Affine<'static>> {
    let made = made(seed, ck, name)?;
    let Elem::Affine { bits, group, scales: scale_dtype } = made.head.elem else { return None };
    let Head { stack, rows, cols, .. } = made.head;
    let all = whole(&made);
    let part = |f: fn(Piece<'static>) -> Cow<'static, [u8]>| all.iter().cloned().map(f).collect();
    let (words, scales, biases) = (part(|p| p.elements), part(|p| p.scales), part(|p| p.biases));
    Some(Affine { bits, group, stack, rows, cols, scale_dtype, words, scales, biases })
}

/// The same of unquantized ones.
pub(crate) fn plain(seed: u64, ck: &Checkpoint, name: &str) -> Option<Plain<'static>> {
    let made = made(seed, ck, name)?;
    if matches!(made.head.elem, Elem::Affine { .. }) {
        return None;
    }
    let shape = ck.expected(name)?.shape.iter().map(|&d| d as u32).collect();
    let parts = whole(&made).into_iter().map(|p| p.elements).collect();
    Some(Plain { dtype: made.dtype, shape, parts })
}

/// A tensor to be made piece by piece.
pub(crate) fn open(seed: u64, ck: &Checkpoint, name: &str) -> Option<Box<dyn Tensor>> {
    Some(Box::new(made(seed, ck, name)?))
}

fn made(seed: u64, ck: &Checkpoint, name: &str) -> Option<Made> {
    ck.expected(name).map(|e| Made::new(seed, ck.config(), e))
}

fn whole(made: &Made) -> Vec<Piece<'static>> {
    let own = |c: Cow<'_, [u8]>| Cow::Owned(c.into_owned());
    (0..made.head.stack)
        .map(|m| made.rows(m, 0..made.head.rows))
        .map(|p| Piece { elements: own(p.elements), scales: own(p.scales), biases: own(p.biases) })
        .collect()
}
