//! The meaning of affine codes, in float64: the reference that faster readings are tested against.

use super::{Dtype, Module};
use crate::gemma4::quant_config::BITS;

/// Code `j` of a row: the row is a stream of bits from the lowest of the first byte on, as little-endian u32 words hold it,
/// so no alignment is needed. `bits` is 2, 3, 4, 5, 6 or 8.
pub fn code(row: &[u8], bits: u32, j: usize) -> Option<u32> {
    if !BITS.contains(&bits) {
        return None;
    }
    let at = j.checked_mul(bits as usize)?;
    let (byte, shift) = (at / 8, (at % 8) as u32);
    let low = u32::from(*row.get(byte)?);
    let high = if shift + bits > 8 { u32::from(*row.get(byte + 1)?) } else { 0 };
    Some((low | high << 8) >> shift & ((1 << bits) - 1))
}

/// Element `i` of little-endian floats, widened exactly; `None` past the end or if the type is none of bf16, f16 and f32.
pub(super) fn float(bytes: &[u8], dtype: Dtype, i: usize) -> Option<f32> {
    let width = if dtype == Dtype::F32 { 4 } else { 2 };
    let at = i.checked_mul(width)?;
    let b = bytes.get(at..at.checked_add(width)?)?;
    match dtype {
        Dtype::F32 => Some(f32::from_le_bytes(b.try_into().ok()?)),
        Dtype::BF16 => Some(f32::from_bits((u16::from_le_bytes(b.try_into().ok()?) as u32) << 16)),
        Dtype::F16 => Some(half::f16::from_le_bytes(b.try_into().ok()?).to_f32()),
        _ => None,
    }
}

/// Row `row` of matrix `matrix` of a module as float64, `scale·code + bias` evaluated exactly once per element.
/// `None` if there is no such row.
pub fn dequant_f64(module: &Module, matrix: usize, row: usize) -> Option<Vec<f64>> {
    let (Module::Affine { stack, rows, .. } | Module::Plain { stack, rows, .. }) = module;
    if matrix >= *stack || row >= *rows {
        return None;
    }
    // The piece that holds the row, and its number there.
    let at = |parts: &[&'_ [u8]]| if parts.len() == 1 { (0, matrix * rows + row) } else { (matrix, row) };
    match module {
        Module::Affine { bits, group, cols, dtype, words, scales, biases, .. } => {
            let row_bytes = cols * *bits as usize / 8;
            let (part, r) = at(words);
            let codes = words.get(part)?.get(r * row_bytes..(r + 1) * row_bytes)?;
            let (part, r) = at(scales);
            let first = r * (cols / *group as usize);
            let mut out = Vec::with_capacity(*cols);
            for j in 0..*cols {
                let g = first + j / *group as usize;
                let s = f64::from(float(scales.get(part)?, *dtype, g)?);
                let b = f64::from(float(biases.get(part)?, *dtype, g)?);
                // A product of 24 and 8 significant bits is exact in float64; the sum is rounded once.
                out.push(s * f64::from(code(codes, *bits, j)?) + b);
            }
            Some(out)
        }
        Module::Plain { dtype, cols, values, .. } => {
            let (part, r) = at(values);
            (r * cols..(r + 1) * cols).map(|i| float(values.get(part)?, *dtype, i).map(f64::from)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn le(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn four_bits_by_hand() {
        // One row of 32: codes 0..7, then 8..15, then the same again; lowest nibble first.
        let codes = le(&[0x76543210, 0xfedcba98, 0x76543210, 0xfedcba98]);
        let (s, b) = (le(&[(-0.5f32).to_bits()]), le(&[3.25f32.to_bits()]));
        let m = Module::Affine {
            bits: 4,
            group: 32,
            stack: 1,
            rows: 1,
            cols: 32,
            dtype: Dtype::F32,
            words: vec![&codes],
            scales: vec![&s],
            biases: vec![&b],
        };
        let row = dequant_f64(&m, 0, 0).unwrap();
        assert_eq!(&row[..4], [3.25, 2.75, 2.25, 1.75]);
        assert_eq!((row[8], row[15], row[16], row[31]), (-0.75, -4.25, 3.25, -4.25));
        assert_eq!((dequant_f64(&m, 0, 1), dequant_f64(&m, 1, 0)), (None, None));
    }

    #[test]
    fn eight_bits_by_hand_stacked() {
        // Two matrices of one row of 64, groups of 32, bf16: scales 1, 2, 4, 0.5; biases 0, -1, 10, 0.125.
        let codes: Vec<u8> = (0..128u32).map(|i| (i * 2) as u8).collect();
        let s: Vec<u8> = [0x3f80u16, 0x4000, 0x4080, 0x3f00].iter().flat_map(|h| h.to_le_bytes()).collect();
        let b: Vec<u8> = [0u16, 0xbf80, 0x4120, 0x3e00].iter().flat_map(|h| h.to_le_bytes()).collect();
        let m = Module::Affine {
            bits: 8,
            group: 32,
            stack: 2,
            rows: 1,
            cols: 64,
            dtype: Dtype::BF16,
            words: vec![&codes],
            scales: vec![&s],
            biases: vec![&b],
        };
        let (first, second) = (dequant_f64(&m, 0, 0).unwrap(), dequant_f64(&m, 1, 0).unwrap());
        assert_eq!((first[0], first[31], first[32], first[63]), (0.0, 62.0, 2.0 * 64.0 - 1.0, 2.0 * 126.0 - 1.0));
        assert_eq!((second[0], second[63]), (4.0 * 128.0 + 10.0, 0.5 * 254.0 + 0.125));
        assert_eq!(
            (code(&codes, 8, 127), code(&codes, 8, 128), code(&codes, 4, 2), code(&codes, 7, 0)),
            (Some(254), None, Some(2), None)
        );
        // The same rows in two pieces.
        let (w, sb, bb) = (codes.split_at(64), s.split_at(4), b.split_at(4));
        let (words, scales, biases) = (vec![w.0, w.1], vec![sb.0, sb.1], vec![bb.0, bb.1]);
        let m = Module::Affine { bits: 8, group: 32, stack: 2, rows: 1, cols: 64, dtype: Dtype::BF16, words, scales, biases };
        assert_eq!((dequant_f64(&m, 0, 0).unwrap(), dequant_f64(&m, 1, 0).unwrap()), (first, second));
    }

    #[test]
    fn widths_that_cross_bytes() {
        // Codes 0, 1, 2, ... as one stream of bits, lowest first.
        for bits in BITS {
            let mut row = vec![0u8; 4 * bits as usize];
            for j in 0..32usize {
                for k in (0..bits as usize).filter(|k| j >> k & 1 == 1) {
                    let at = j * bits as usize + k;
                    row[at / 8] |= 1 << (at % 8);
                }
            }
            let read: Vec<_> = (0..33).map(|j| code(&row, bits, j)).collect();
            let want: Vec<_> = (0..32u32).map(|j| Some(j & ((1 << bits) - 1))).chain([None]).collect();
            assert_eq!(read, want, "{bits} bits");
        }
    }

    #[test]
    fn plain_rows_widen_exactly() {
        let bytes: Vec<u8> = [0x3c00u16, 0xc000, 0x0001, 0x7bff].iter().flat_map(|h| h.to_le_bytes()).collect();
        let m = Module::Plain { dtype: Dtype::F16, stack: 1, rows: 2, cols: 2, values: vec![&bytes] };
        assert_eq!(dequant_f64(&m, 0, 0), Some(vec![1.0, -2.0]));
        assert_eq!(dequant_f64(&m, 0, 1), Some(vec![2f64.powi(-24), 65504.0]));
        assert_eq!(dequant_f64(&m, 0, 2), None);
    }
}
