//! Products with weights: embedding rows, exact-integer matrix products (DESIGN section 3), chains of fma over plain
//! weights, and the f64 products that stand for exact integers before the lowering.

use super::rowwise::Choice;
use super::weights::{Affine, Row, Tensor};
use crate::graph::op::EmbedMode;
use crate::math::quant::{group_exponent, quantize as fixed_point};
use crate::math::{Arith, Scalar, quant::magnitude_bits};
use crate::order::{LINEAR_UNIT, ReductionOrder};

/// Rows in 24-bit fixed point: `x ≈ scale·X`.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// Elements of a group.
    pub group: usize,
    /// X, row after row.
    pub x: Vec<i32>,
    /// `2^e` per group, NaN if the group holds an infinity or NaN.
    pub scale: Vec<f32>,
    /// ΣX per group, rounded once.
    pub sum: Vec<f32>,
}

/// Quantizes rows whose length is a multiple of `group`.
pub(super) fn quantize(x: &[f32], group: usize) -> Fixed {
    let a = &mut Scalar;
    let mut q = Fixed { group, x: Vec::with_capacity(x.len()), scale: vec![], sum: vec![] };
    for run in x.chunks_exact(group) {
        let amax = run.iter().map(|&v| magnitude_bits(a, v)).max().unwrap_or(0);
        let g = group_exponent(a, amax);
        let from = q.x.len();
        q.x.extend(run.iter().map(|&v| fixed_point(a, v, g.inv, g.ok)));
        // At most 128·2^23: the sum is exact.
        let sum: i32 = q.x[from..].iter().sum();
        q.scale.push(g.scale);
        q.sum.push(sum as f32);
    }
    q
}

/// One row of weights with one row of x, which starts at group `at`.
fn dot(x: &Fixed, at: usize, w: &Row, order: ReductionOrder) -> f32 {
    order.reduce(w.params.len() as u32, |acc, g| {
        let g = g as usize;
        let codes = &w.codes[g * x.group..(g + 1) * x.group];
        let xs = &x.x[(at + g) * x.group..(at + g + 1) * x.group];
        let p: i64 = codes.iter().zip(xs).map(|(&q, &x)| i64::from(q) * i64::from(x)).sum();
        let (s, beta) = w.params[g];
        let u = s.mul_add(p as f32, beta * x.sum[at + g]);
        x.scale[at + g].mul_add(u, acc)
    })
}

/// `rows` rows of x with every row of w.
pub(super) fn qlinear(x: &Fixed, rows: usize, w: &Affine, order: ReductionOrder) -> Vec<f32> {
    let (r, groups) = (w.rows as usize, (w.cols / w.group) as usize);
    let mut out = vec![0.0; rows * r];
    let mut row = Row::default();
    for i in 0..r {
        w.read(i, &mut row);
        for t in 0..rows {
            out[t * r + i] = dot(x, t * groups, &row, order);
        }
    }
    out
}

/// For each choice the expert's rows; x has a row per choice, or one for all choices of a token.
pub(super) fn qexpert_linear(x: &Fixed, route: &[Choice], w: &Affine, order: ReductionOrder) -> Vec<f32> {
    let (r, groups) = (w.rows as usize, (w.cols / w.group) as usize);
    let mut out = Vec::with_capacity(route.len() * r);
    let mut row = Row::default();
    let share = share(route.len(), x.scale.len() / groups);
    for (i, c) in route.iter().enumerate() {
        for j in 0..r {
            w.read(c.expert as usize * r + j, &mut row);
            out.push(dot(x, i / share * groups, &row, order));
        }
    }
    out
}

/// How many choices have one row of x in common.
fn share(choices: usize, rows: usize) -> usize {
    (choices / rows.max(1)).max(1)
}

/// One row of a weight: the numbers of a plain one, the products of an affine one.
enum Weights {
    Plain(Vec<f32>),
    Affine(Vec<f64>),
}

impl Weights {
    /// Row `r` of the stack.
    fn row(w: &Tensor, r: usize, cols: usize) -> Weights {
        match w {
            Tensor::Plain(t) => Weights::Plain((r * cols..(r + 1) * cols).map(|i| t.at(i)).collect()),
            Tensor::Affine(t) => {
                let mut row = Row::default();
                t.read(r, &mut row);
                let value = |(i, &q): (usize, &i32)| {
                    let (s, beta) = row.params[i / t.group as usize];
                    f64::from(s) * f64::from(q) + f64::from(beta)
                };
                Weights::Affine(row.codes.iter().enumerate().map(value).collect())
            }
        }
    }

    /// Plain: chains of fma in `order`. Affine: the sum in f64, rounded once.
    fn dot(&self, x: &[f32], order: ReductionOrder) -> f32 {
        match self {
            Weights::Plain(w) => {
                let (unit, n) = (LINEAR_UNIT as usize, x.len());
                order.reduce(n.div_ceil(unit) as u32, |acc, u| {
                    let from = u as usize * unit;
                    (from..n.min(from + unit)).fold(acc, |acc, i| w[i].mul_add(x[i], acc))
                })
            }
            Weights::Affine(w) => x.iter().zip(w).map(|(&x, w)| f64::from(x) * w).sum::<f64>() as f32,
        }
    }
}

/// `r` rows of w.
pub(super) fn linear(x: &[f32], rows: usize, w: &Tensor, r: usize, order: ReductionOrder) -> Vec<f32> {
    let cols = x.len() / rows.max(1);
    let mut out = vec![0.0; rows * r];
    for i in 0..r {
        if rows > 0 {
            let row = Weights::row(w, i, cols);
            for t in 0..rows {
                out[t * r + i] = row.dot(&x[t * cols..(t + 1) * cols], order);
            }
        }
    }
    out
}

/// As [`qexpert_linear`], with x and w as in [`linear`]; experts have `r` rows of `cols`.
pub(super) fn expert_linear(
    x: &[f32],
    route: &[Choice],
    w: &Tensor,
    (r, cols): (usize, usize),
    order: ReductionOrder,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(route.len() * r);
    let share = share(route.len(), x.len() / cols);
    for (i, c) in route.iter().enumerate() {
        let x = &x[i / share * cols..(i / share + 1) * cols];
        for j in 0..r {
            out.push(Weights::row(w, c.expert as usize * r + j, cols).dot(x, order));
        }
    }
    out
}

/// Nearest bf16 value.
pub(super) fn round_bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// The rows of a table of `width` columns, times the factor.
pub(super) fn embed(table: &Tensor, ids: &[i32], width: usize, mode: EmbedMode, factor: f32) -> Vec<f32> {
    let a = &mut Scalar;
    let mut out = Vec::with_capacity(ids.len() * width);
    let mut row = Row::default();
    for &id in ids {
        let r = id as usize;
        if let Tensor::Affine(t) = table {
            t.read(r, &mut row);
        }
        for i in 0..width {
            let w = match table {
                Tensor::Plain(t) => t.at(r * width + i),
                Tensor::Affine(t) => {
                    let (s, beta) = row.params[i / t.group as usize];
                    a.fma(s, row.codes[i] as f32, beta)
                }
            };
            out.push(match mode {
                EmbedMode::Exact | EmbedMode::Factor => w * factor,
                EmbedMode::Bf16 => round_bf16(round_bf16(w) * factor),
            });
        }
    }
    out
}
