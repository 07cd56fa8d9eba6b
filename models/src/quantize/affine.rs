//! MLX's affine quantizer, to the bit: the float steps of `quantize` in MLX's `mlx/backend/cpu/quantized.cpp`.
//!
//! All arithmetic is float32 on the widened input. Codes come from the float32 scale and bias; both are rounded to the
//! input's type (to nearest, ties to even) only when they are stored. MLX's Metal kernel is another function: it lets the
//! largest value start at 0 and rounds ties away from zero, so a few of its codes differ from these.

use crate::checkpoint::Dtype;

/// Smallest step between two codes.
const EPS: f32 = 1e-7;
/// Largest group.
const MAX_GROUP: usize = 128;

/// Why a group has no affine form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// A value is infinite or not a number.
    NotFinite,
    /// The distance from the smallest to the largest value is no float32.
    Spread,
}

/// Bytes of one element; `None` if the type is none of bf16, f16 and f32.
pub fn width(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::BF16 | Dtype::F16 => Some(2),
        Dtype::F32 => Some(4),
        _ => None,
    }
}

/// Quantizes whole groups. `input` holds little-endian elements of `dtype`; `codes` takes `group * bits / 8` bytes a group,
/// `scales` and `biases` one element of `dtype` each. `bits` is 2, 3, 4, 5, 6 or 8; `group` 32, 64 or 128.
/// Where there is no affine form: the index of the first such element, or of its group's first element.
pub fn quantize(
    dtype: Dtype,
    bits: u32,
    group: usize,
    input: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
) -> Result<(), (usize, Bad)> {
    let width = width(dtype).unwrap_or(4);
    let mut values = [0f32; MAX_GROUP];
    let mut small = [0u8; MAX_GROUP];
    let (values, small) = (&mut values[..group], &mut small[..group]);
    let inputs = input.chunks_exact(group * width);
    let outputs = codes.chunks_exact_mut(group * bits as usize / 8);
    let stored = scales.chunks_exact_mut(width).zip(biases.chunks_exact_mut(width));
    for (i, ((input, codes), (scale_at, bias_at))) in inputs.zip(outputs).zip(stored).enumerate() {
        widen(dtype, input, values);
        let n = ((1u32 << bits) - 1) as f32;
        let (scale, bias) = scale_and_bias(values, n).map_err(|bad| {
            let first = values.iter().position(|v| !v.is_finite()).unwrap_or(0);
            (i * group + first, bad)
        })?;
        for (code, v) in small.iter_mut().zip(values.iter()) {
            let x = (v - bias) / scale;
            let x = if x > 0.0 { x } else { 0.0 };
            let x = if x < n { x } else { n };
            // 2^23 + x is rounded to a whole number, ties to even, which is then the low byte.
            *code = (x + 8388608.0).to_bits() as u8;
        }
        pack(bits, small, codes);
        narrow(dtype, scale, scale_at);
        narrow(dtype, bias, bias_at);
    }
    Ok(())
}

/// The first element that is infinite or not a number.
pub fn first_not_finite(dtype: Dtype, input: &[u8]) -> Option<usize> {
    let step = 4 * MAX_GROUP * width(dtype)?;
    let mut values = [0f32; 4 * MAX_GROUP];
    input.chunks(step).enumerate().find_map(|(i, part)| {
        let values = &mut values[..part.len() / width(dtype)?];
        widen(dtype, part, values);
        values.iter().position(|v| !v.is_finite()).map(|at| i * 4 * MAX_GROUP + at)
    })
}

/// Step and offset of a group; `n` is the largest code.
fn scale_and_bias(values: &[f32], n: f32) -> Result<(f32, f32), Bad> {
    // Eight lanes, so that they fit a vector. Their order could only change the sign of a zero, which changes nothing below.
    let (mut low, mut high, mut finite) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8], [true; 8]);
    for part in values.chunks_exact(8) {
        for l in 0..8 {
            let v = part[l];
            low[l] = if v < low[l] { v } else { low[l] };
            high[l] = if v > high[l] { v } else { high[l] };
            finite[l] &= v.abs() < f32::INFINITY;
        }
    }
    if finite.contains(&false) {
        return Err(Bad::NotFinite);
    }
    let low = low.into_iter().fold(f32::INFINITY, f32::min);
    let high = high.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let step = (high - low) / n;
    if !step.is_finite() {
        return Err(Bad::Spread);
    }
    let step = if step < EPS { EPS } else { step };
    // The end of larger magnitude is represented exactly.
    let (step, edge) = if low.abs() > high.abs() { (step, low) } else { (-step, high) };
    let code = (edge / step).round_ties_even();
    Ok(if code == 0.0 { (step, 0.0) } else { (edge / code, edge) })
}

/// Codes as little-endian words, the first in the lowest bits: a stream of bits, whatever their number.
fn pack(bits: u32, codes: &[u8], out: &mut [u8]) {
    match bits {
        8 => out.copy_from_slice(codes),
        4 => {
            for (o, c) in out.iter_mut().zip(codes.chunks_exact(2)) {
                *o = c[0] | c[1] << 4;
            }
        }
        _ => {
            // Eight codes are `bits` bytes.
            for (o, c) in out.chunks_exact_mut(bits as usize).zip(codes.chunks_exact(8)) {
                let word = c.iter().rev().fold(0u64, |w, c| w << bits | u64::from(*c));
                o.copy_from_slice(&word.to_le_bytes()[..bits as usize]);
            }
        }
    }
}

fn widen(dtype: Dtype, input: &[u8], out: &mut [f32]) {
    let halves = input.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        Dtype::BF16 => out.iter_mut().zip(halves).for_each(|(o, h)| *o = f32::from_bits(u32::from(h) << 16)),
        Dtype::F16 => out.iter_mut().zip(halves).for_each(|(o, h)| *o = half::f16::from_bits(h).to_f32()),
        _ => {
            let words = input.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            out.iter_mut().zip(words).for_each(|(o, w)| *o = w);
        }
    }
}

fn narrow(dtype: Dtype, value: f32, out: &mut [u8]) {
    match dtype {
        Dtype::BF16 => out.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
        Dtype::F16 => out.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
        _ => out.copy_from_slice(&value.to_le_bytes()),
    }
}
