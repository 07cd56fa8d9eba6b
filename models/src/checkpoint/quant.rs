//! The meaning of affine codes, in float64: the reference that faster readings are tested against.

use super::Module;

/// Code `j` of a row of little-endian u32 words, the first code in the lowest bits; `bits` is 4 or 8.
/// On a little-endian row both are a matter of bytes, so no alignment is needed.
pub fn code(row: &[u8], bits: u32, j: usize) -> Option<u32> {
    match bits {
        8 => row.get(j).map(|b| *b as u32),
        4 => row.get(j / 2).map(|b| (*b as u32 >> (4 * (j % 2))) & 15),
        _ => None,
    }
}

/// Row `row` of matrix `matrix` of a module as float64, `scale·code + bias` evaluated exactly once per element.
/// `None` if there is no such row.
pub fn dequant_f64(module: &Module, matrix: usize, row: usize) -> Option<Vec<f64>> {
    match *module {
        Module::Affine { bits, group, stack, rows, cols, weight, scales, biases } => {
            if matrix >= stack || row >= rows {
                return None;
            }
            let at = matrix * rows + row;
            let row_bytes = cols * bits as usize / 8;
            let codes = weight.bytes.get(at * row_bytes..(at + 1) * row_bytes)?;
            let groups = cols / group as usize;
            let mut out = Vec::with_capacity(cols);
            for j in 0..cols {
                let g = at * groups + j / group as usize;
                let (s, b) = (scales.float(g)? as f64, biases.float(g)? as f64);
                // A product of 24 and 8 significant bits is exact in float64; the sum is rounded once.
                out.push(s * code(codes, bits, j)? as f64 + b);
            }
            Some(out)
        }
        Module::Plain(t) => {
            let (cols, lead) = t.shape.split_last()?;
            let (rows, stack) = match lead {
                [rows] => (*rows, 1),
                [stack, rows] => (*rows, *stack),
                _ => return None,
            };
            if matrix >= stack || row >= rows {
                return None;
            }
            let at = (matrix * rows + row) * cols;
            (at..at + cols).map(|i| t.float(i).map(f64::from)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dtype, Tensor};
    use super::*;

    fn tensor<'a>(dtype: Dtype, shape: &'a [usize], bytes: &'a [u8]) -> Tensor<'a> {
        Tensor { name: "t", dtype, shape, bytes, file: "f" }
    }

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
            weight: tensor(Dtype::U32, &[1, 4], &codes),
            scales: tensor(Dtype::F32, &[1, 1], &s),
            biases: tensor(Dtype::F32, &[1, 1], &b),
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
            weight: tensor(Dtype::U32, &[2, 1, 16], &codes),
            scales: tensor(Dtype::BF16, &[2, 1, 2], &s),
            biases: tensor(Dtype::BF16, &[2, 1, 2], &b),
        };
        let (first, second) = (dequant_f64(&m, 0, 0).unwrap(), dequant_f64(&m, 1, 0).unwrap());
        assert_eq!((first[0], first[31], first[32], first[63]), (0.0, 62.0, 2.0 * 64.0 - 1.0, 2.0 * 126.0 - 1.0));
        assert_eq!((second[0], second[63]), (4.0 * 128.0 + 10.0, 0.5 * 254.0 + 0.125));
        assert_eq!(
            (code(&codes, 8, 127), code(&codes, 8, 128), code(&codes, 4, 2), code(&codes, 3, 0)),
            (Some(254), None, Some(2), None)
        );
    }

    #[test]
    fn plain_rows_widen_exactly() {
        let bytes: Vec<u8> = [0x3c00u16, 0xc000, 0x0001, 0x7bff].iter().flat_map(|h| h.to_le_bytes()).collect();
        let m = Module::Plain(tensor(Dtype::F16, &[2, 2], &bytes));
        assert_eq!(dequant_f64(&m, 0, 0), Some(vec![1.0, -2.0]));
        assert_eq!(dequant_f64(&m, 0, 1), Some(vec![2f64.powi(-24), 65504.0]));
        assert_eq!(dequant_f64(&m, 0, 2), None);
    }
}
