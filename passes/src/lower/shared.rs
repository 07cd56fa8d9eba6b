//! Shared memory of a block: how much a kernel needs, and one place for arrays of stages that no block runs both of.
//! The budget is a constant, the same for every target, so that all of them get the same plan.

use super::cx::q24_bytes;
use crate::fuse::lang::Kind;
use ir::graph::op::{Op, RopeParams};
use ir::graph::{Elem, Graph, NodeId};
use ir::kernel::{Block, Inst, Kernel, Mem, Op as KOp, Shared};

/// Bytes of shared memory that a kernel may take: what every GPU gives a block without being asked.
pub const SHARED_BUDGET: u32 = 48 * 1024;

/// A node as far as shared memory goes.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// What it is.
    pub kind: Kind,
    /// Bytes of [`own`].
    pub own: u32,
    /// Its first operand, if the same kernel computes it.
    pub input: Option<usize>,
}

/// Bytes that a node's own work takes in a kernel: partial sums, byte planes, a head.
pub fn own(g: &Graph, id: NodeId) -> u32 {
    let n = g.node(id);
    match n.op {
        Op::RmsNorm { dim, .. } if Kind::of(g, id) == Some(Kind::HeadNorm) => 4 * dim,
        Op::RmsNorm { order, .. } => 4 * order.map_or(1024, |o| o.lanes),
        Op::Rope(RopeParams { dim, .. }) | Op::Kv { dim, .. } => 4 * dim,
        Op::KvWrite => own(g, n.inputs[0]),
        Op::Quantize { .. } => match n.ty.elem {
            Elem::Q24 { group } => q24_bytes(n.ty.width(), group),
            _ => 0,
        },
        Op::Attention { .. } | Op::Argmax => 512,
        _ => 0,
    }
}

/// Shared arrays of a kernel over these nodes, at most, by size; rings for asynchronous copies left out.
pub fn arrays(nodes: &[Need], row: impl Fn(usize) -> u32) -> Vec<u32> {
    let matmuls = nodes.iter().filter(|n| n.kind.is_matmul()).count();
    let (mut out, mut rows, mut head) = (vec![], vec![], 0);
    for n in nodes {
        match n.kind {
            Kind::Norm => {
                out.push(n.own);
                rows.extend(n.input);
            }
            Kind::Linear | Kind::ExpertLinear => rows.extend(n.input),
            // Alone it goes to memory at once.
            Kind::Quantize if matmuls > 0 => out.push(n.own),
            Kind::Route => out.extend(n.input.map(&row)),
            Kind::Attention | Kind::Argmax => out.push(n.own),
            k if k.is_head() => head = head.max(n.own),
            _ => {}
        }
    }
    rows.sort_unstable();
    rows.dedup();
    out.extend(rows.into_iter().map(row));
    if head > 0 {
        out.extend(vec![head; matmuls]);
    }
    out.iter_mut().for_each(|b| *b = b.next_multiple_of(16));
    out.sort_unstable_by(|a, b| b.cmp(a));
    out
}

/// Shared arrays of a stage.
pub fn of_stage(g: &Graph, nodes: &[NodeId]) -> Vec<u32> {
    let place = |id: NodeId| nodes.iter().position(|&n| n == id);
    let row = |id: NodeId| super::cx::row_bytes(g, id);
    let needs: Vec<Need> = nodes
        .iter()
        .filter_map(|&id| {
            let input = g.node(id).inputs.first().and_then(|&x| place(x));
            Some(Need { kind: Kind::of(g, id)?, own: own(g, id), input })
        })
        .collect();
    arrays(&needs, |i| row(nodes[i]))
}

/// Bytes of a kernel whose blocks each run one of these parts (arrays by size, the greatest first): the greatest arrays of
/// all share a place, the second greatest too, and so on.
pub fn pooled(parts: &[Vec<u32>]) -> u32 {
    let longest = parts.iter().map(Vec::len).max().unwrap_or(0);
    let slot = |i: usize| parts.iter().filter_map(|p| p.get(i)).max().copied().unwrap_or(0);
    (0..longest).map(slot).fold(0, u32::saturating_add)
}

/// Lays arrays of different parts over each other. `starts`: the first array of each part; a block runs one part only.
pub fn overlay(k: &mut Kernel, starts: &[u32]) {
    if starts.len() < 2 {
        return;
    }
    let ends = starts.iter().skip(1).copied().chain([k.shared.len() as u32]);
    let mut slots: Vec<u32> = vec![];
    let mut to = vec![0; k.shared.len()];
    for (from, end) in starts.iter().zip(ends) {
        let mut part: Vec<u32> = (*from..end).collect();
        part.sort_by_key(|&i| (std::cmp::Reverse(k.shared[i as usize].bytes), i));
        for (slot, i) in part.into_iter().enumerate() {
            if slot == slots.len() {
                slots.push(0);
            }
            slots[slot] = slots[slot].max(k.shared[i as usize].bytes);
            to[i as usize] = slot as u32;
        }
    }
    k.shared = slots.iter().enumerate().map(|(i, &bytes)| Shared { name: format!("s{i}"), bytes }).collect();
    rename(&mut k.body, &to);
}

fn rename(b: &mut Block, to: &[u32]) {
    for Inst { op, .. } in &mut b.insts {
        match op {
            KOp::Load { mem: Mem::Shared(i), .. } | KOp::Store { mem: Mem::Shared(i), .. } | KOp::Copy { dst: i, .. } => {
                *i = to[*i as usize];
            }
            KOp::For { body, .. } => rename(body, to),
            KOp::If { then, els, .. } => {
                rename(then, to);
                rename(els, to);
            }
            KOp::Pipeline { copy, body, .. } => {
                rename(copy, to);
                rename(body, to);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_places() {
        assert_eq!(pooled(&[vec![20, 10], vec![30]]), 40);
        assert_eq!(pooled(&[]), 0);
        let mut b = ir::kernel::build::Builder::new("k", 1);
        let m: Vec<Mem> = [16, 64, 48].iter().map(|&n| b.shared(&format!("a{n}"), n)).collect();
        let i = b.lane();
        let v = b.f(1.0);
        for &m in &m {
            b.store(m, ir::kernel::Elem::F32, i, v, None);
        }
        let mut k = b.finish();
        // Arrays of 16 and 64 bytes belong to one part, that of 48 to the other.
        overlay(&mut k, &[0, 2]);
        assert_eq!(k.shared.iter().map(|s| s.bytes).collect::<Vec<_>>(), [64, 16]);
        let stores: Vec<Mem> = k
            .body
            .insts
            .iter()
            .filter_map(|i| match i.op {
                KOp::Store { mem, .. } => Some(mem),
                _ => None,
            })
            .collect();
        assert_eq!(stores, [Mem::Shared(1), Mem::Shared(0), Mem::Shared(0)]);
    }
}
