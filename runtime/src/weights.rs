//! Weights as kernels read them: packed from the checkpoint's own bytes into device buffers, one at a time.

use crate::device::{BufferId, Device};
use ir::diag::{Diagnostic, Result};
use ir::graph::interp::WeightSource;
use ir::plan::{Pack, PackedWeight};

/// The bytes of one packed weight.
pub fn pack(w: &PackedWeight, source: &dyn WeightSource) -> Result<Vec<u8>> {
    let missing = || Diagnostic::new("E0430", "the checkpoint lacks a tensor that the program reads").at(&w.tensor);
    let mut bytes = match &w.pack {
        Pack::Plain => source.plain(&w.tensor).ok_or_else(missing)?.parts.concat(),
        Pack::Affine(l) => {
            let a = source.affine(&w.tensor).ok_or_else(missing)?;
            let (found, wanted) = ([a.bits, a.group, a.stack, a.rows, a.cols], [l.bits, l.group, l.stack, l.rows, l.cols]);
            if found != wanted {
                return Err(Diagnostic::new(
                    "E0431",
                    format!("the program was compiled for another tensor: bits, group, stack, rows, columns are {found:?}, expected {wanted:?}"),
                )
                .at(&w.tensor));
            }
            l.pack(&a.words.concat(), &a.scales.concat(), &a.biases.concat())
        }
        Pack::Rope(p) => {
            let pairs = (0..p.dim / 2).map(|j| p.frequency(j));
            let (hi, lo): (Vec<f32>, Vec<f32>) = pairs.unzip();
            hi.into_iter().chain(lo).flat_map(f32::to_le_bytes).collect()
        }
    };
    bytes.resize(bytes.len().next_multiple_of(64).max(64), 0);
    Ok(bytes)
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
