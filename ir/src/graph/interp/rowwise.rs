//! Operations on rows of activations: norms, rotary embedding, routing and what is done element by element.

use crate::graph::op::RopeParams;
use crate::math::{Arith, Scalar, exp, gelu, recip, rsqrt, sincos_pos, tanh};
use crate::order::ReductionOrder;

/// A chosen expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its index.
    pub expert: u32,
    /// Weight of its output.
    pub weight: f32,
}

/// Element by element.
pub(super) fn zip(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

/// `x · rsqrt(fma(Σx², 1/dim, eps)) [· w]` over runs of `dim`.
pub(super) fn rms_norm(x: &[f32], w: Option<&[f32]>, dim: u32, eps: f32, order: ReductionOrder) -> Vec<f32> {
    let a = &mut Scalar;
    let inv = 1.0 / dim as f32;
    let mut out = Vec::with_capacity(x.len());
    for run in x.chunks_exact(dim as usize) {
        let s = order.reduce(dim, |acc, i| run[i as usize].mul_add(run[i as usize], acc));
        let mean = a.fma(s, inv, eps);
        let r = rsqrt(a, mean);
        out.extend(run.iter().enumerate().map(|(i, x)| {
            let y = x * r;
            w.map_or(y, |w| y * w[i])
        }));
    }
    out
}

/// `gelu(g) · u`
pub(super) fn gelu_mul(g: f32, u: f32) -> f32 {
    gelu(&mut Scalar, g) * u
}

/// `cap · tanh(x · (1/cap))`, NaN where x is not finite.
pub(super) fn softcap(x: f32, cap: f32) -> f32 {
    let inv = 1.0 / cap;
    let y = cap * tanh(&mut Scalar, x * inv);
    // tanh turns infinity into the cap: an infinity must stay visible.
    if x.is_finite() { y } else { f32::NAN }
}

/// Rotates every head of every row; row 0 has position `first`.
pub(super) fn rope(x: &[f32], width: usize, p: &RopeParams, first: usize) -> Vec<f32> {
    let s = &mut Scalar;
    let half = p.dim as usize / 2;
    let frequencies: Vec<_> = (0..p.dim / 2).map(|j| p.frequency(j)).collect();
    let mut out = x.to_vec();
    for (t, row) in out.chunks_exact_mut(width).enumerate() {
        for (j, &(hi, lo)) in frequencies.iter().enumerate() {
            let (sin, cos) = sincos_pos(s, (first + t) as i32, hi, lo);
            for head in row.chunks_exact_mut(2 * half) {
                let (a, b) = (head[j], head[j + half]);
                head[j] = a.mul_add(cos, -(b * sin));
                head[j + half] = b.mul_add(cos, a * sin);
            }
        }
    }
    out
}

/// The `k` highest logits with their weights; `k` is at most the number of logits. A logit that is not finite
/// makes all weights NaN.
pub(super) fn route(z: &[f32], k: usize, scale: &[f32]) -> Vec<Choice> {
    let s = &mut Scalar;
    // What is not finite is chosen first, and then `inf - inf` makes all weights NaN.
    let z: Vec<f32> = z.iter().map(|v| if v.is_finite() { *v } else { f32::INFINITY }).collect();
    let mut best: Vec<(usize, f32)> = vec![];
    for _ in 0..k {
        let left = z.iter().copied().enumerate().filter(|(i, _)| best.iter().all(|(b, _)| b != i));
        best.extend(left.reduce(|a, b| if b.1 > a.1 { b } else { a }));
    }
    let m = best[0].1;
    let e: Vec<f32> = best.iter().map(|&(_, v)| exp(s, v - m)).collect();
    let sum = e.iter().fold(0.0, |acc, e| acc + e);
    let inv = recip(s, sum);
    best.iter().zip(&e).map(|(&(i, _), e)| Choice { expert: i as u32, weight: (e * inv) * scale[i] }).collect()
}

/// Weighted sum of the experts' rows of `width`, in rank order.
pub(super) fn expert_sum(y: &[f32], route: &[Choice], width: usize, rows: usize) -> Vec<f32> {
    let k = route.len() / rows.max(1);
    let mut out = vec![0f32; rows * width];
    for (r, c) in route.iter().enumerate() {
        for i in 0..width {
            let o = &mut out[r / k * width + i];
            *o = c.weight.mul_add(y[r * width + i], *o);
        }
    }
    out
}

/// Index of the greatest, ties to the lowest; -1 if there is a NaN.
pub(super) fn argmax(z: &[f32]) -> i32 {
    if z.iter().any(|v| v.is_nan()) {
        return -1;
    }
    let mut best = 0;
    for (i, v) in z.iter().enumerate() {
        if *v > z[best] {
            best = i;
        }
    }
    best as i32
}
