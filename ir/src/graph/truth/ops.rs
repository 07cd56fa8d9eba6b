//! Operations in float64, each written from its definition.

use super::weights::{Weight, dot};
use crate::graph::op::{EmbedMode, RopeParams};
use std::collections::BTreeMap;

/// Keys and values of one layer, by position.
pub struct Cache {
    heads: usize,
    dim: usize,
    /// Keys that a query sees, itself included; 0 for all.
    window: usize,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl Cache {
    pub fn new(heads: u32, dim: u32, window: u32) -> Cache {
        Cache { heads: heads as usize, dim: dim as usize, window: window as usize, keys: vec![], values: vec![] }
    }

    pub fn append(&mut self, k: &[f64], v: &[f64]) {
        self.keys.extend_from_slice(k);
        self.values.extend_from_slice(v);
    }

    pub fn truncate(&mut self, positions: usize) {
        self.keys.truncate(positions * self.heads * self.dim);
        self.values.truncate(positions * self.heads * self.dim);
    }
}

/// The nearest bf16.
fn bf16(x: f64) -> f64 {
    half::bf16::from_f64(x).to_f64()
}

/// Rows of the table times the factor.
pub fn embed(table: &Weight, ids: &[u32], mode: EmbedMode, factor: f32) -> Vec<f64> {
    // A factor that was rounded on purpose is the number itself.
    let c = if mode == EmbedMode::Exact { super::meant::factor(factor) } else { f64::from(factor) };
    let row = |id: &u32| {
        table.row(0, *id).into_iter().map(|w| if mode == EmbedMode::Bf16 { bf16(bf16(w) * c) } else { w * c }).collect::<Vec<_>>()
    };
    ids.iter().flat_map(row).collect()
}

/// `x / √(mean x² + eps) · w` over runs of `dim`.
pub fn rms_norm(x: &[f64], w: Option<&[f64]>, dim: usize, eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for run in x.chunks_exact(dim.max(1)) {
        let r = (dot(run, run) / dim as f64 + eps).sqrt();
        out.extend(run.iter().enumerate().map(|(i, x)| x / r * w.map_or(1.0, |w| w[i])));
    }
    out
}

/// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`
pub fn gelu(x: f64) -> f64 {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    0.5 * x * (1.0 + libm::tanh(root * (x + 0.044715 * x * x * x)))
}

/// Pair `j` of each head turns by `position · theta^(-2j/dim) / factor`.
pub fn rope(x: &[f64], width: usize, p: &RopeParams, position: &dyn Fn(usize) -> usize) -> Vec<f64> {
    let half = p.dim as usize / 2;
    let speeds: Vec<f64> =
        (0..p.rotated).map(|j| libm::pow(p.theta, -2.0 * f64::from(j) / f64::from(p.dim)) / p.factor).collect();
    let mut out = x.to_vec();
    for (row, values) in out.chunks_exact_mut(width.max(1)).enumerate() {
        for (j, speed) in speeds.iter().enumerate() {
            let angle = position(row) as f64 * speed;
            let (sin, cos) = (libm::sin(angle), libm::cos(angle));
            for head in values.chunks_exact_mut(2 * half.max(1)) {
                let (a, b) = (head[j], head[j + half]);
                head[j] = a * cos - b * sin;
                head[j + half] = b * cos + a * sin;
            }
        }
    }
    out
}

/// Softmax attention of rows of `heads` queries. With a branch, a row's own key and value are in it and the cache ends before
/// its position.
pub fn attention(
    q: &[f64],
    heads: usize,
    c: &Cache,
    branch: Option<(&[f64], &[f64])>,
    position: &(dyn Fn(usize) -> usize + Sync),
    threads: usize,
) -> Vec<f64> {
    let width = (heads * c.dim).max(1);
    let rows = q.len() / width;
    let one = |row: usize, out: &mut [f64]| {
        let p = position(row);
        let low = if c.window == 0 { 0 } else { (p + 1).saturating_sub(c.window) };
        for (head, (q, out)) in q[row * width..].chunks_exact(c.dim).zip(out.chunks_exact_mut(c.dim)).enumerate() {
            let head = head / (heads / c.heads);
            let at = |t: usize| -> (&[f64], &[f64]) {
                let (keys, values, t) = match branch {
                    Some((k, v)) if t == p => (k, v, row),
                    _ => (c.keys.as_slice(), c.values.as_slice(), t),
                };
                let i = (t * c.heads + head) * c.dim;
                (&keys[i..i + c.dim], &values[i..i + c.dim])
            };
            let scores: Vec<f64> = (low..=p).map(|t| dot(q, at(t).0)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| libm::exp(s - max)).collect();
            let sum: f64 = weights.iter().sum();
            for (t, w) in (low..=p).zip(&weights) {
                out.iter_mut().zip(at(t).1).for_each(|(o, v)| *o += w / sum * v);
            }
        }
    };
    let mut out = vec![0.0; q.len()];
    let share = rows.div_ceil(threads).max(8);
    if share >= rows {
        out.chunks_exact_mut(width).enumerate().for_each(|(row, out)| one(row, out));
    } else {
        let one = &one;
        std::thread::scope(|scope| {
            for (i, part) in out.chunks_mut(share * width).enumerate() {
                scope.spawn(move || part.chunks_exact_mut(width).enumerate().for_each(|(r, out)| one(i * share + r, out)));
            }
        });
    }
    out
}

/// The `k` highest of each row of logits, ties to the lower index; their softmax times each expert's scale.
pub fn route(z: &[f64], experts: usize, k: usize, scale: &[f64]) -> Vec<(u32, f64)> {
    let mut out = vec![];
    for z in z.chunks_exact(experts.max(1)) {
        let mut ids: Vec<usize> = (0..experts).collect();
        // All are finite.
        ids.sort_by(|&a, &b| z[b].partial_cmp(&z[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b)));
        ids.truncate(k);
        let e: Vec<f64> = ids.iter().map(|&i| libm::exp(z[i] - z[ids[0]])).collect();
        let sum: f64 = e.iter().sum();
        out.extend(ids.iter().zip(e).map(|(&i, e)| (i as u32, e / sum * scale[i])));
    }
    out
}

/// For each rank of each row the chosen expert's `x Wᵀ`; x is one row, or one row per rank. An expert's weights are read
/// once, for all that chose it.
pub fn experts(w: &Weight, x: &[f64], route: &[(u32, f64)], (r, cols): (usize, usize), threads: usize) -> Vec<f64> {
    let share = (route.len() / (x.len() / cols.max(1)).max(1)).max(1);
    let mut chosen: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, (expert, _)) in route.iter().enumerate() {
        chosen.entry(*expert).or_default().push(i);
    }
    let mut out = vec![0.0; route.len() * r];
    for (expert, slots) in chosen {
        let xs: Vec<&[f64]> = slots.iter().map(|i| &x[i / share * cols..][..cols]).collect();
        w.product(expert, &xs, threads, &mut |row, i, y| out[slots[i] * r + row] = y);
    }
    out
}

/// Sum of the experts' rows by weight.
pub fn expert_sum(y: &[f64], route: &[(u32, f64)], width: usize, rows: usize) -> Vec<f64> {
    let k = (route.len() / rows.max(1)).max(1);
    let mut out = vec![0.0; rows * width];
    for (i, ((_, w), y)) in route.iter().zip(y.chunks_exact(width.max(1))).enumerate() {
        out[i / k * width..][..width].iter_mut().zip(y).for_each(|(o, y)| *o += w * y);
    }
    out
}
