//! Operations over one head of one token: head norm, rotary embedding, cache write. A head of `dim` elements is `dim / 32`
//! lane vectors in the registers of one warp.

use super::cx::{ArgKey, Kx, Written, pinned};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::{Op, RopeParams};
use ir::graph::{Graph, NodeId};
use ir::kernel::{Elem, ICmp, IntOp, Mem, V};
use ir::math::{self, Arith};
use ir::order::Take;
use ir::plan::state;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Head size of an op over heads.
pub fn head_dim(g: &Graph, id: NodeId) -> Option<u32> {
    let n = g.node(id);
    match n.op {
        Op::RmsNorm { dim, .. } if dim != n.ty.width() => Some(dim),
        Op::Rope(RopeParams { dim, .. }) => Some(dim),
        Op::KvWrite => match g.node(n.inputs[0]).op {
            Op::Kv { dim, .. } => Some(dim),
            _ => None,
        },
        _ => None,
    }
}

/// One head's values.
pub struct HeadCx {
    /// Head size.
    pub dim: u32,
    /// Head number.
    pub head: V,
    /// Matmul results of this head in shared memory (f32) from an element on, by node.
    pub rows: BTreeMap<NodeId, (Mem, V)>,
    vals: BTreeMap<NodeId, Vec<V>>,
}

impl HeadCx {
    /// A head; `rows` holds what a matmul of this block left in shared memory.
    pub fn new(dim: u32, head: V, rows: BTreeMap<NodeId, (Mem, V)>) -> Result<Self> {
        if !dim.is_multiple_of(32) || dim > 1024 {
            return Err(Diagnostic::new("E0618", format!("no kernel for heads of {dim} elements"))
                .hint("a head is a multiple of 32 elements, at most 1024"));
        }
        Ok(HeadCx { dim, head, rows, vals: BTreeMap::new() })
    }

    /// Computes `nodes`, and stores those in `stores`.
    pub fn run(&mut self, kx: &mut Kx, nodes: &[NodeId], stores: &[NodeId]) -> Result<()> {
        for &id in nodes {
            let n = kx.g.node(id);
            match n.op {
                Op::KvWrite => {
                    let (k, v) = (self.get(kx, n.inputs[1]), self.get(kx, n.inputs[2]));
                    self.write(kx, n.inputs[0], &k, &v)?;
                }
                Op::RmsNorm { eps, order, .. } => {
                    let x = self.get(kx, n.inputs[0]);
                    let y = self.norm(kx, id, &x, eps, pinned(kx.g, id, order)?, n.inputs.get(1).copied())?;
                    self.vals.insert(id, y);
                }
                Op::Rope(p) => {
                    let x = self.get(kx, n.inputs[0]);
                    let y = self.rope(kx, &x, p);
                    self.vals.insert(id, y);
                }
                _ => {
                    return Err(Diagnostic::new("E0619", format!("`{}` is not an operation over heads", n.op.name())).at(&n.name));
                }
            }
            if stores.contains(&id) && !matches!(n.op, Op::KvWrite) {
                for (k, v) in self.vals[&id].clone().into_iter().enumerate() {
                    let i = self.index(kx, k as u32);
                    let at = kx.b.mul_c(self.head, self.dim as i32);
                    let i = kx.b.iadd(at, i);
                    kx.store_value(id, i, v, None);
                }
            }
        }
        Ok(())
    }

    /// Element `k * 32 + lane` of the head.
    fn index(&self, kx: &mut Kx, k: u32) -> V {
        let lane = kx.b.lane();
        kx.b.add_c(lane, (k * 32) as i32)
    }

    fn get(&mut self, kx: &mut Kx, id: NodeId) -> Vec<V> {
        if let Some(v) = self.vals.get(&id) {
            return v.clone();
        }
        let shared = self.rows.get(&id).copied();
        let v: Vec<V> = (0..self.dim / 32)
            .map(|k| {
                let i = self.index(kx, k);
                match shared {
                    Some((m, first)) => {
                        let i = kx.b.iadd(first, i);
                        kx.b.load(m, Elem::F32, i, None)
                    }
                    None => {
                        let at = kx.b.mul_c(self.head, self.dim as i32);
                        let i = kx.b.iadd(at, i);
                        kx.load_value(id, i, None)
                    }
                }
            })
            .collect();
        self.vals.insert(id, v.clone());
        v
    }

    fn norm(
        &self,
        kx: &mut Kx,
        id: NodeId,
        x: &[V],
        eps: f32,
        order: ir::order::ReductionOrder,
        w: Option<NodeId>,
    ) -> Result<Vec<V>> {
        let lanes = (order.lanes / 32) as usize;
        if order.take != Take::Strided || !order.lanes.is_multiple_of(32) || lanes > x.len() {
            return Err(Diagnostic::new("E0615", format!("no kernel for the norm of {} elements in order {order}", self.dim))
                .at(&kx.g.node(id).name)
                .hint("use take=strided and 32, 64, 128, 256 or 512 lanes, at most the head size"));
        }
        let zero = kx.b.f(0.0);
        let mut parts = vec![zero; lanes];
        for (k, &v) in x.iter().enumerate() {
            parts[k % lanes] = kx.b.fma(v, v, parts[k % lanes]);
        }
        let sum = kx.join_lanes(order, parts);
        let (inv, eps) = (kx.b.f(1.0 / self.dim as f32), kx.b.f(eps));
        let mean = kx.b.fma(sum, inv, eps);
        let r = kx.rsqrt(mean);
        x.iter()
            .enumerate()
            .map(|(k, &v)| {
                let y = kx.b.mul(v, r);
                let Some(w) = w else { return Ok(y) };
                let i = self.index(kx, k as u32);
                let w = kx.load_plain(w, i)?;
                Ok(kx.b.mul(y, w))
            })
            .collect()
    }

    /// Pair `j` is elements `j` and `j + dim/2`. In an even number of vectors that is a lane of two vectors; in an odd number it is
    /// lanes that are 16 apart, and the vector in the middle holds elements of both kinds.
    fn rope(&self, kx: &mut Kx, x: &[V], p: RopeParams) -> Vec<V> {
        let table = kx.arg(ArgKey::Rope(p), false);
        let pos = kx.position();
        let half = self.dim as usize / 2;
        let angle = |kx: &mut Kx, j: V| {
            let hi = kx.b.load(table, Elem::F32, j, None);
            let lo = kx.b.add_c(j, half as i32);
            let lo = kx.b.load(table, Elem::F32, lo, None);
            math::sincos_pos(&mut kx.b, pos, hi, lo)
        };
        let h = x.len() / 2;
        if x.len() % 2 == 1 {
            let lane = kx.b.lane();
            let lim = kx.b.i(16);
            let left = kx.b.icmp(ICmp::Lt, lane, lim);
            let across: Vec<V> = x.iter().map(|&v| kx.b.shuffle_xor(v, 16)).collect();
            let turn = |kx: &mut Kx, k: usize| {
                // The vectors that hold the other elements of the left 16 lanes and of the right ones.
                let (l, r) = (if k <= h { k + h } else { k - h - 1 }, if k < h { k + h + 1 } else { k - h });
                let other = if l == r { across[l] } else { kx.b.select(left, across[l], across[r]) };
                let j = match k.cmp(&h) {
                    Ordering::Less => self.index(kx, k as u32),
                    Ordering::Equal => {
                        let within = kx.b.int_c(IntOp::And, lane, 15);
                        if h == 0 {
                            within
                        } else {
                            let (first, zero) = (kx.b.i((h * 32) as i32), kx.b.i(0));
                            let first = kx.b.select(left, first, zero);
                            kx.b.iadd(first, within)
                        }
                    }
                    Ordering::Greater => kx.b.add_c(lane, (k * 32 - half) as i32),
                };
                let (sin, cos) = angle(kx, j);
                let minus = kx.neg(sin);
                let s = match k.cmp(&h) {
                    Ordering::Less => minus,
                    Ordering::Equal => kx.b.select(left, minus, sin),
                    Ordering::Greater => sin,
                };
                let t = kx.b.mul(other, s);
                kx.b.fma(x[k], cos, t)
            };
            return (0..x.len()).map(|k| turn(kx, k)).collect();
        }
        let mut out = x.to_vec();
        for k in 0..h {
            let j = self.index(kx, k as u32);
            let (sin, cos) = angle(kx, j);
            let (a, b) = (x[k], x[k + h]);
            let minus = kx.neg(sin);
            let t = kx.b.mul(b, minus);
            out[k] = kx.b.fma(a, cos, t);
            let t = kx.b.mul(a, sin);
            out[k + h] = kx.b.fma(b, cos, t);
        }
        out
    }

    /// Writes the head's key and value at the token's position.
    fn write(&self, kx: &mut Kx, kv: NodeId, k: &[V], v: &[V]) -> Result<()> {
        let (keys, vals) = (kx.arg(ArgKey::Keys(kv), true), kx.arg(ArgKey::Vals(kv), true));
        let pos = kx.position();
        let (block, within) = (kx.b.lshr(pos, 5), kx.b.int_c(IntOp::And, pos, 31));
        let first = cache_block(kx, kv, self.head, block)?;
        let first = kx.b.mul_c(first, (32 * self.dim) as i32);
        for (c, (&k, &v)) in k.iter().zip(v).enumerate() {
            let j = self.index(kx, c as u32);
            let at = kx.b.mul_c(j, 32);
            let at = kx.b.iadd(at, first);
            let at = kx.b.iadd(at, within);
            kx.b.store(keys, Elem::F32, at, k, None);
            let of_head = kx.b.mul_c(self.head, self.dim as i32);
            let element = kx.b.iadd(of_head, j);
            kx.witness((Written::Keys, kv), Elem::F32, element, k, None);
            let at = kx.b.mul_c(within, self.dim as i32);
            let at = kx.b.iadd(at, first);
            let at = kx.b.iadd(at, j);
            kx.b.store(vals, Elem::F32, at, v, None);
            kx.witness((Written::Vals, kv), Elem::F32, element, v, None);
        }
        Ok(())
    }
}

/// Number (over slots and heads) of the cache block that holds key block `block` of a head of the token's sequence.
pub fn cache_block(kx: &mut Kx, kv: NodeId, head: V, block: V) -> Result<V> {
    let slot = kx.slot();
    cache_block_of(kx, kv, slot, head, block)
}

/// The same for the sequence of a slot.
pub fn cache_block_of(kx: &mut Kx, kv: NodeId, slot: V, head: V, block: V) -> Result<V> {
    let Op::Kv { window, heads, .. } = kx.g.node(kv).op else {
        return Err(Diagnostic::new("E0620", "expected a cache").at(&kx.g.node(kv).name));
    };
    let word = if window == 0 { state::FULL_BLOCKS } else { state::RING_BLOCKS };
    let room = kx.state(word);
    let within = kx.b.int(IntOp::Rem, block, room);
    let of_slot = kx.b.mul_c(slot, heads as i32);
    let head = kx.b.iadd(of_slot, head);
    let first = kx.b.int(IntOp::Mul, head, room);
    Ok(kx.b.iadd(first, within))
}
