//! Softmax attention in blocks of keys and splits of blocks that are aligned to absolute positions.

use crate::math::{Scalar, exp, recip};
use crate::order::{AttentionOrder, KV_BLOCK};

/// Keys and values of one layer, by absolute position; nothing is ever dropped.
pub(super) struct Cache {
    heads: usize,
    dim: usize,
    /// Keys that a query sees, itself included; 0 for all.
    window: usize,
    /// `[position][head][dim]`
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Cache {
    pub fn new(heads: u32, dim: u32, window: u32) -> Self {
        Cache { heads: heads as usize, dim: dim as usize, window: window as usize, keys: vec![], values: vec![] }
    }

    pub fn append(&mut self, k: &[f32], v: &[f32]) {
        self.keys.extend_from_slice(k);
        self.values.extend_from_slice(v);
    }

    fn row<'a>(&self, of: &'a [f32], position: usize, head: usize) -> &'a [f32] {
        let at = (position * self.heads + head) * self.dim;
        &of[at..at + self.dim]
    }
}

/// Running maximum, sum and weighted values.
struct Partial {
    m: f32,
    l: f32,
    o: Vec<f32>,
}

/// Attention of rows of `heads` queries, the first row at position `first`.
pub(super) fn attention(q: &[f32], heads: usize, c: &Cache, first: usize, order: &AttentionOrder) -> Vec<f32> {
    let s = &mut Scalar;
    let split = order.split as usize;
    let mut out = Vec::with_capacity(q.len());
    for (i, q) in q.chunks_exact(c.dim).enumerate() {
        let (p, head) = (first + i / heads, (i % heads) / (heads / c.heads));
        let lo = if c.window == 0 { 0 } else { (p + 1).saturating_sub(c.window) };
        let mut total = one_split(q, c, head, lo, p, lo / split, order);
        for sp in lo / split + 1..=p / split {
            let part = one_split(q, c, head, lo, p, sp, order);
            let m = if part.m > total.m { part.m } else { total.m };
            let (a, b) = (exp(s, total.m - m), exp(s, part.m - m));
            total.l = total.l.mul_add(a, part.l * b);
            for (to, from) in total.o.iter_mut().zip(&part.o) {
                *to = to.mul_add(a, from * b);
            }
            total.m = m;
        }
        let r = recip(s, total.l);
        out.extend(total.o.iter().map(|o| o * r));
    }
    out
}

/// The keys of split `sp` among `lo..=p`.
fn one_split(q: &[f32], c: &Cache, head: usize, lo: usize, p: usize, sp: usize, order: &AttentionOrder) -> Partial {
    let s = &mut Scalar;
    let (block, split) = (KV_BLOCK as usize, order.split as usize);
    let mut t = Partial { m: f32::NEG_INFINITY, l: 0.0, o: vec![0.0; c.dim] };
    let (from, to) = (lo.max(sp * split), p.min((sp + 1) * split - 1));
    for b in from / block..=to / block {
        let visible = |lane: usize| (lo..=p).contains(&(b * block + lane));
        let mut score = [f32::NEG_INFINITY; KV_BLOCK as usize];
        for lane in (0..block).filter(|&l| visible(l)) {
            let k = c.row(&c.keys, b * block + lane, head);
            score[lane] = order.dot.reduce(c.dim as u32, |acc, j| q[j as usize].mul_add(k[j as usize], acc));
        }
        let mb = score.into_iter().reduce(|a, b| if a > b { a } else { b }).unwrap_or(f32::NEG_INFINITY);
        let m = if mb > t.m { mb } else { t.m };
        let alpha = exp(s, t.m - m);
        let mut weight = [0f32; KV_BLOCK as usize];
        for lane in (0..block).filter(|&l| visible(l)) {
            weight[lane] = exp(s, score[lane] - m);
        }
        let sum = order.sum.reduce(KV_BLOCK, |acc, lane| acc + weight[lane as usize]);
        t.l = t.l.mul_add(alpha, sum);
        for o in &mut t.o {
            *o *= alpha;
        }
        for (lane, &weight) in weight.iter().enumerate() {
            // A key that is not visible adds fma(+0, +0, o), which is o unless o is -0: then it is +0.
            let v = if visible(lane) { Some(c.row(&c.values, b * block + lane, head)) } else { None };
            for (j, o) in t.o.iter_mut().enumerate() {
                *o = weight.mul_add(v.map_or(0.0, |v| v[j]), *o);
            }
        }
        t.m = m;
    }
    t
}
