//! Weights as kernels read them: packed from the checkpoint's own bytes straight into device buffers, in pieces. A weight is
//! never held twice: a piece takes at most [`PIECE`] bytes, and a source that maps files gives their pages back behind it.

use crate::device::{BufferId, Device};
use ir::diag::{Diagnostic, Result};
use ir::graph::Elem;
use ir::graph::interp::WeightSource;
use ir::graph::interp::pieces::Head;
use ir::layout::{Format, MatrixLayout};
use ir::plan::{Pack, PackedWeight};
use std::ops::Range;

/// Most bytes of packed weights that are made at a time, but for tiles that are larger.
pub const PIECE: u64 = 32 << 20;
/// Of those, what one core packs at a time.
const RUN: u64 = 1 << 20;

/// Bytes of a weight's buffer.
pub fn packed_bytes(w: &PackedWeight, source: &dyn WeightSource) -> Result<u64> {
    let bytes = match &w.pack {
        Pack::Matrix(l) => l.bytes(),
        Pack::Rope(p) => u64::from(p.dim) * 4,
        Pack::Plain => {
            let h = source.open(&w.tensor).ok_or_else(|| missing(&w.tensor))?.head();
            u64::from(h.stack) * u64::from(h.rows) * row_bytes(&h)
        }
    };
    Ok(bytes.next_multiple_of(64).max(64))
}

/// Bytes of a row of plain numbers.
fn row_bytes(h: &Head) -> u64 {
    u64::from(h.cols) * if h.elem == Elem::F32 { 4 } else { 2 }
}

fn missing(tensor: &str) -> Diagnostic {
    Diagnostic::new("E0430", "the checkpoint lacks a tensor that the program reads").at(tensor)
}

/// The bytes of one packed weight, at once: for small ones.
pub fn pack(w: &PackedWeight, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let mut out = vec![0u8; packed_bytes(w, source)? as usize];
    pieces(w, source, &mut |at, len, fill| {
        fill(&mut out[at as usize..][..len]);
        Ok(())
    })?;
    Ok(out)
}

/// Packs all weights of a plan into buffers of a device; `progress(done, of)` is told after each.
pub fn upload(
    device: &mut dyn Device,
    weights: &[PackedWeight],
    source: &dyn WeightSource,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<BufferId>> {
    let mut out = vec![];
    for (i, w) in weights.iter().enumerate() {
        let b = device.alloc(packed_bytes(w, source)?)?;
        pieces(w, source, &mut |at, len, fill| device.write_with(b, at, len, fill))?;
        out.push(b);
        progress(i + 1, weights.len());
    }
    Ok(out)
}

/// Takes a place, a length, and what fills that many bytes.
type Put<'a> = &'a mut dyn FnMut(u64, usize, &mut dyn FnMut(&mut [u8])) -> Result<()>;

/// Hands out a packed weight piece by piece.
fn pieces(w: &PackedWeight, source: &dyn WeightSource, put: Put) -> Result<()> {
    let open = || source.open(&w.tensor).ok_or_else(|| missing(&w.tensor));
    match &w.pack {
        Pack::Plain => {
            let t = open()?;
            let h = t.head();
            if !h.fits || matches!(h.elem, Elem::Affine { .. }) {
                let m = format!("the program was compiled for another tensor: it is {}, expected numbers", say(&h));
                return Err(Diagnostic::new("E0431", m).at(&w.tensor));
            }
            let fill = |m, rows: Range<u32>, out: &mut [u8]| {
                let p = t.rows(m, rows);
                out.copy_from_slice(&p.elements);
                source.done(&p.elements);
            };
            in_pieces(&Items { stack: h.stack, each: h.rows, bytes: row_bytes(&h) }, put, &fill)
        }
        Pack::Matrix(l) => {
            let t = open()?;
            let h = t.head();
            let elem = match l.format {
                Format::Affine { bits, group, scales } => Elem::Affine { bits, group, scales },
                Format::Plain(d) => d.elem(),
            };
            let expected = Head { elem, stack: l.stack, rows: l.rows, cols: l.cols, fits: true };
            if h != expected {
                let m = format!("the program was compiled for another tensor: it is {}, expected {}", say(&h), say(&expected));
                return Err(Diagnostic::new("E0431", m).at(&w.tensor));
            }
            let fill = |m, tiles: Range<u32>, out: &mut [u8]| {
                let at = |tile: u32| (tile * l.tile_rows()).min(l.rows);
                let rows = at(tiles.start)..at(tiles.end);
                // Tiles do not depend on each other, so some of them are a smaller matrix of their own.
                let part = MatrixLayout { stack: 1, rows: rows.end - rows.start, ..*l };
                let p = t.rows(m, rows);
                part.pack_matrix(out, &p.elements, &p.scales, &p.biases);
                [&p.elements, &p.scales, &p.biases].into_iter().for_each(|bytes| source.done(bytes));
            };
            in_pieces(&Items { stack: l.stack, each: l.tiles(), bytes: l.matrix_bytes() / u64::from(l.tiles()) }, put, &fill)
        }
        Pack::Rope(p) => {
            let (hi, lo): (Vec<f32>, Vec<f32>) = (0..p.dim / 2).map(|j| p.frequency(j)).unzip();
            let bytes: Vec<u8> = hi.into_iter().chain(lo).flat_map(f32::to_le_bytes).collect();
            put(0, bytes.len(), &mut |out| out.copy_from_slice(&bytes))
        }
    }
}

/// A tensor for people.
fn say(h: &Head) -> String {
    let size = if h.fits { "" } else { " with another number of bytes" };
    format!("{}, {} of {} rows and {} columns{size}", h.elem, h.stack, h.rows, h.cols)
}

/// What a packed stack consists of: rows or tiles of equal size, one after the other, matrix after matrix.
struct Items {
    /// Matrices.
    stack: u32,
    /// Items of one matrix.
    each: u32,
    /// Bytes of an item.
    bytes: u64,
}

/// Fills items of one matrix, which are zeros before.
type Fill<'a> = &'a (dyn Fn(u32, Range<u32>, &mut [u8]) + Sync);

/// All items, in pieces of which each core fills a part.
fn in_pieces(items: &Items, put: Put, fill: Fill) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    let size = items.bytes.max(1);
    let (count, most) = (u64::from(items.stack) * u64::from(items.each), (PIECE / size).max(1));
    let mut at = 0;
    while at < count {
        let n = most.min(count - at);
        let share = n.div_ceil(cores);
        put(at * size, (n * size) as usize, &mut |out| {
            std::thread::scope(|s| {
                for (k, part) in out.chunks_mut((share * size) as usize).enumerate() {
                    let from = at + k as u64 * share;
                    let mut all = move || runs(items, from, part, fill);
                    // A thread costs more than a small vector.
                    if n * size < RUN { all() } else { _ = s.spawn(all) }
                }
            });
        })?;
        at += n;
    }
    Ok(())
}

/// Fills items from `from` on, matrix by matrix, a few at a time: what a source makes for them stays small.
fn runs(items: &Items, mut from: u64, mut out: &mut [u8], fill: Fill) {
    let (each, size) = (u64::from(items.each.max(1)), items.bytes.max(1));
    while !out.is_empty() {
        let first = from % each;
        let n = (out.len() as u64 / size).min(each - first).min((RUN / size).max(1));
        let (part, rest) = out.split_at_mut((n * size) as usize);
        part.fill(0); // by the core that packs it
        fill((from / each) as u32, first as u32..(first + n) as u32, part);
        (from, out) = (from + n, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn pieces_cover_everything_once() {
        for (stack, each, bytes) in [(1, 1, 64), (3, 5, 1 << 20), (128, 1, 1 << 20), (2, 100_000, 1000), (1, 3, PIECE + 64)] {
            let items = Items { stack, each, bytes };
            let seen = Mutex::new(vec![]);
            let (mut end, mut largest) = (0, 0);
            let mut put = |at: u64, len: usize, fill: &mut dyn FnMut(&mut [u8])| {
                assert_eq!(at, end);
                (end, largest) = (at + len as u64, largest.max(len as u64));
                fill(&mut vec![0; len]);
                Ok(())
            };
            let fill = |m: u32, range: Range<u32>, out: &mut [u8]| {
                assert_eq!(out.len() as u64, u64::from(range.end - range.start) * bytes);
                let mut s = seen.lock().unwrap();
                s.extend(range.map(|i| m * each + i));
            };
            in_pieces(&items, &mut put, &fill).unwrap();
            assert_eq!(end, u64::from(stack) * u64::from(each) * bytes);
            assert!(largest <= PIECE.max(bytes));
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..stack * each));
        }
    }
}
