//! Weights as kernels read them: packed from the checkpoint's own bytes into device buffers, one at a time.

use crate::device::{BufferId, Device};
use ir::diag::{Diagnostic, Result};
use ir::graph::interp::{Parts, WeightSource, matrix};
use ir::layout::{Format, MatrixLayout};
use ir::plan::{Pack, PackedWeight};

/// The bytes of one packed weight.
pub fn pack(w: &PackedWeight, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let missing = || Diagnostic::new("E0430", "the checkpoint lacks a tensor that the program reads").at(&w.tensor);
    let mut bytes = match &w.pack {
        Pack::Plain => source.plain(&w.tensor).ok_or_else(missing)?.parts.concat(),
        Pack::Matrix(l) => matrices(&w.tensor, l, source)?,
        Pack::Rope(p) => {
            let pairs = (0..p.dim / 2).map(|j| p.frequency(j));
            let (hi, lo): (Vec<f32>, Vec<f32>) = pairs.unzip();
            hi.into_iter().chain(lo).flat_map(f32::to_le_bytes).collect()
        }
    };
    bytes.resize(bytes.len().next_multiple_of(64).max(64), 0);
    Ok(bytes)
}

/// A matrix, or a stack of them, in its layout; each is read where it lies in the checkpoint.
fn matrices(name: &str, l: &MatrixLayout, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let missing = || Diagnostic::new("E0430", "the checkpoint lacks a tensor that the program reads").at(name);
    let (found, fits, elements, scales, offsets) = match l.format {
        Format::Affine { .. } => {
            let a = source.affine(name).ok_or_else(missing)?;
            let fits = a.fits();
            let format = Format::Affine { bits: a.bits, group: a.group, scales: a.scale_dtype };
            (MatrixLayout { format, stack: a.stack, rows: a.rows, cols: a.cols, ..*l }, fits, a.words, a.scales, a.biases)
        }
        Format::Plain(_) => {
            let p = source.plain(name).ok_or_else(missing)?;
            let fits = p.fits();
            let (rows, cols) = match p.shape[..] {
                [.., rows, cols] => (rows, cols),
                _ => (0, 0),
            };
            (MatrixLayout { format: Format::Plain(p.dtype), stack: p.stack(), rows, cols, ..*l }, fits, p.parts, vec![], vec![])
        }
    };
    if found != *l || !fits {
        let say = |l: &MatrixLayout| format!("{:?}, {} of {} rows and {} columns", l.format, l.stack, l.rows, l.cols);
        let size = if fits { "" } else { " with another number of bytes" };
        let m = format!("the program was compiled for another tensor: it is {}{size}, expected {}", say(&found), say(l));
        return Err(Diagnostic::new("E0431", m).at(name));
    }
    let mut out = vec![0u8; l.bytes() as usize];
    for (m, out) in out.chunks_exact_mut(l.matrix_bytes() as usize).enumerate() {
        let m = m as u32;
        l.pack_matrix(out, part(&elements, l.stack, m), part(&scales, l.stack, m), part(&offsets, l.stack, m));
    }
    Ok(out)
}

/// Bytes of matrix `m`, none where there are no parts.
fn part<'b>(parts: &'b Parts<'_>, stack: u32, m: u32) -> &'b [u8] {
    if parts.is_empty() { &[] } else { matrix(parts, stack, m) }
}

/// Packs and uploads all weights of a plan; `progress(done, of)` is told after each, in bytes.
pub fn upload(
    device: &mut dyn Device,
    weights: &[PackedWeight],
    source: &dyn WeightSource,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<BufferId>> {
    let mut out = vec![];
    for (i, w) in weights.iter().enumerate() {
        let bytes = pack(w, source)?;
        let b = device.alloc(bytes.len() as u64)?;
        device.write(b, 0, &bytes)?;
        out.push(b);
        progress(i + 1, weights.len());
    }
    Ok(out)
}
