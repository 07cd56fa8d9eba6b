//! Cuts the graph into regions: one per layer, one before and one after. The row operations that end a layer (residual sum,
//! scale) belong to the next region, where they can be computed by the kernels that read them.
//! A region as fusion sees it is a [`Problem`]: no names, no ids, so that equal layers are equal problems.

use super::lang::Kind;
use crate::lower::shared::own;
use crate::options::Options;
use ir::graph::op::Op;
use ir::graph::{Elem, Graph, NodeId, Rows};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that are fused together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// `start`, `layers.N`, `end`.
    pub name: String,
    /// In topological order.
    pub nodes: Vec<NodeId>,
}

/// What an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operand {
    /// An item of the region.
    Inner(usize),
    /// Index into [`Problem::outers`].
    Outer(usize),
}

/// A value from outside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outer {
    /// A tensor of the checkpoint.
    Weight,
    /// A value that an earlier region stores.
    Value {
        /// Bytes of a row.
        bytes: u64,
    },
    /// A cache, written or not.
    Cache,
    /// Token ids.
    Tokens,
}

/// One node of a region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Operands, in order.
    pub operands: Vec<Operand>,
    /// Rows for which it is computed.
    pub rows: u8,
    /// Bytes of a stored row.
    pub bytes: u64,
    /// Bytes of shared memory that its own work takes.
    pub shared: u32,
    /// Bytes of the matrix that it multiplies by, about; 0 where a token chooses among matrices.
    pub weights: u64,
    /// Must be in memory: read by a later region, an output, or kept.
    pub needed: bool,
    /// A head norm over the whole row: only the operations after it say that it is one.
    pub whole: bool,
}

/// A region without names.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Nodes in topological order.
    pub items: Vec<Item>,
    /// Values from outside, in order of first use.
    pub outers: Vec<Outer>,
}

/// Layer in a stable name (`layers.7.attn.q`).
pub fn layer_of(name: &str) -> Option<u32> {
    let rest = &name[name.find("layers.")? + "layers.".len()..];
    rest.split('.').next()?.parse().ok()
}

/// Rows for which a node is computed: a cache write runs once per token.
pub fn rows_of(g: &Graph, id: NodeId) -> Rows {
    let n = g.node(id);
    if n.op == Op::KvWrite { g.node(n.inputs[1]).ty.rows } else { n.ty.rows }
}

/// Cuts the graph.
pub fn cut(g: &Graph) -> Vec<Region> {
    let order: Vec<NodeId> = g.topo().into_iter().filter(|&id| g.node(id).op.computes()).collect();
    let last = order.iter().filter_map(|&id| layer_of(&g.node(id).name)).max();
    let end = last.map_or(0, |l| l + 2);
    // Before the layers 0, layer N is N + 1, after them `end`.
    let mut at: BTreeMap<NodeId, u32> = BTreeMap::new();
    for &id in &order {
        let n = g.node(id);
        let inputs = n.inputs.iter().filter_map(|i| at.get(i)).max().copied().unwrap_or(0);
        let own = match layer_of(&n.name) {
            Some(l) => l + 1,
            None if inputs > 0 => end,
            None => 0,
        };
        at.insert(id, own.max(inputs));
    }
    // Row operations after which nothing else is computed in their region move on to the next.
    let mut tail: BTreeMap<NodeId, bool> = BTreeMap::new();
    for &id in order.iter().rev() {
        let row = Kind::of(g, id).is_some_and(Kind::is_row);
        let stays = g.users(id).into_iter().any(|u| at[&u] == at[&id] && !tail[&u]);
        tail.insert(id, row && !stays && at[&id] < end);
    }
    let mut regions: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for &id in &order {
        regions.entry(at[&id] + u32::from(tail[&id])).or_default().push(id);
    }
    let name = |r: u32| match r {
        _ if r == end => "end".to_string(),
        0 => "start".to_string(),
        r => format!("layers.{}", r - 1),
    };
    regions.into_iter().map(|(r, nodes)| Region { name: name(r), nodes }).collect()
}

/// Bytes that a row of a value takes in memory.
pub fn row_bytes(g: &Graph, id: NodeId) -> u64 {
    let n = g.node(id);
    let w = u64::from(n.ty.width());
    let raw = match n.ty.elem {
        Elem::Q24 { group } => 3 * w + 8 * w.div_ceil(u64::from(group)),
        Elem::Route => 8 * w,
        // A cache write moves the key and the value of a token.
        Elem::Kv => 8 * w,
        _ => 4 * w,
    };
    raw.next_multiple_of(64)
}

/// Bytes of a matrix: its codes or numbers.
fn matrix_bytes(g: &Graph, id: NodeId) -> u64 {
    let ty = &g.node(id).ty;
    let bits = match ty.elem {
        Elem::Affine { bits, .. } => bits,
        Elem::F32 => 32,
        _ => 16,
    };
    ty.shape.iter().fold(u64::from(bits), |n, d| n.saturating_mul(u64::from(*d))) / 8
}

/// The region without names. Values to keep are needed in memory.
pub fn problem(g: &Graph, region: &Region, options: &Options) -> Problem {
    let mut inner: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut outer: BTreeMap<NodeId, usize> = BTreeMap::new();
    let members: BTreeSet<NodeId> = region.nodes.iter().copied().collect();
    let mut p = Problem::default();
    for (i, &id) in region.nodes.iter().enumerate() {
        let n = g.node(id);
        let mut operands = vec![];
        for &x in &n.inputs {
            if let Some(&j) = inner.get(&x) {
                operands.push(Operand::Inner(j));
                continue;
            }
            let next = p.outers.len();
            let k = *outer.entry(x).or_insert(next);
            if k == next {
                let value = g.node(x);
                p.outers.push(match value.op {
                    Op::Weight => Outer::Weight,
                    Op::Tokens => Outer::Tokens,
                    Op::Kv { .. } | Op::KvWrite => Outer::Cache,
                    _ => Outer::Value { bytes: row_bytes(g, x) },
                });
            }
            operands.push(Operand::Outer(k));
        }
        let users = g.users(id);
        let needed = users.is_empty()
            || g.outputs.contains(&id)
            || n.op == Op::KvWrite
            || options.keeps(&n.name)
            || users.iter().any(|u| !members.contains(u));
        let kind = Kind::of(g, id).expect("regions hold computing nodes");
        let whole = kind == Kind::HeadNorm && matches!(n.op, Op::RmsNorm { dim, .. } if dim == n.ty.width());
        let rows = rows_of(g, id) as u8;
        let weights = if matches!(kind, Kind::Matmul | Kind::Linear) { matrix_bytes(g, n.inputs[1]) } else { 0 };
        p.items.push(Item { kind, operands, rows, bytes: row_bytes(g, id), shared: own(g, id), weights, needed, whole });
        inner.insert(id, i);
    }
    p
}
