//! What a model holds and takes: parameters, stored bytes and bytes read for one token, for each part of the model, from its
//! graph, or without tensors from its configuration; and the memory of a context, from its plan.

use ir::graph::op::Op;
use ir::graph::{Dtype, Elem, Graph, NodeId};
use ir::plan::{BufferKind, Plan};
use models::gemma4::tensors::{Role, tensors};
use models::gemma4::{Config, StoredFloat};

/// A part of the model, in the order of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The rows that token ids choose.
    Embedding,
    /// Tables and projections of the inputs of single layers.
    PerLayer,
    /// Projections of queries, keys, values and outputs.
    Attention,
    /// The MLP that every token takes.
    Dense,
    /// What chooses experts.
    Router,
    /// The MLPs of which a token takes some.
    Experts,
    /// Norms and other vectors.
    Norms,
    /// The projection to logits.
    Head,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 8] =
        [Part::Embedding, Part::PerLayer, Part::Attention, Part::Dense, Part::Router, Part::Experts, Part::Norms, Part::Head];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => "embedding",
            Part::PerLayer => "per-layer embeddings",
            Part::Attention => "attention",
            Part::Dense => "dense MLP",
            Part::Router => "router",
            Part::Experts => "experts",
            Part::Norms => "norms and scales",
            Part::Head => "lm_head",
        }
    }
}

/// One weight, or all of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Numbers in it.
    pub parameters: u64,
    /// Of those, what one token uses: of a table one row, of experts the chosen ones.
    pub active: u64,
    /// Bytes in the checkpoint's format, scales and offsets included.
    pub bytes: u64,
    /// Of those, what is read for one token.
    pub read: u64,
}

impl Amount {
    /// Together.
    pub fn plus(self, o: Amount) -> Amount {
        Amount {
            parameters: self.parameters + o.parameters,
            active: self.active + o.active,
            bytes: self.bytes + o.bytes,
            read: self.read + o.read,
        }
    }

    /// Stored bits of one parameter, scales and offsets included.
    pub fn bits(self) -> f64 {
        if self.parameters == 0 { 0.0 } else { self.bytes as f64 * 8.0 / self.parameters as f64 }
    }
}

/// Bytes of `n` elements. All products of shapes that a verified graph has fit 64 bits.
fn bytes(elem: Elem, n: u64) -> u64 {
    match elem {
        Elem::Affine { bits, group, scales } => {
            (n * u64::from(bits)).div_ceil(8) + n / u64::from(group) * 2 * scales.bytes() as u64
        }
        Elem::Bf16 | Elem::F16 => n * 2,
        _ => n * 4,
    }
}

/// Which part a weight belongs to, by who reads it and by its name.
fn part(g: &Graph, id: NodeId, user: &Op) -> Part {
    let n = g.node(id);
    let has = |s: &str| n.name.contains(s);
    match user {
        _ if has("per_layer") => {
            if n.ty.shape.len() > 1 {
                Part::PerLayer
            } else {
                Part::Norms
            }
        }
        Op::Embed { .. } => Part::Embedding,
        Op::ExpertLinear { .. } | Op::QExpertLinear { .. } => Part::Experts,
        _ if has("router.") => Part::Router,
        _ if n.ty.shape.len() < 2 => Part::Norms,
        _ if has("self_attn.") => Part::Attention,
        _ if n.name.starts_with("layers.") => Part::Dense,
        _ => Part::Head,
    }
}

/// What one operation uses of a weight for one token, as `taken` of `of`.
fn share(g: &Graph, id: NodeId, user: NodeId) -> (u64, u64) {
    let first = u64::from(g.node(id).ty.shape.first().copied().unwrap_or(1)).max(1);
    match &g.node(user).op {
        Op::Embed { .. } => (1, first),
        Op::ExpertLinear { .. } | Op::QExpertLinear { .. } => {
            let route = g.node(user).inputs.get(2).map(|&r| &g.node(r).op);
            let Some(Op::Route { k }) = route else { return (1, 1) };
            (u64::from(*k).min(first), first)
        }
        _ => (1, 1),
    }
}

/// The amounts of each part, of a graph before or after passes. A tensor that two operations read in different ways, such as
/// a tied embedding, is stored with the first part and read for both.
pub fn parts(g: &Graph) -> Vec<(Part, Amount)> {
    let mut out: Vec<(Part, Amount)> = Part::ALL.map(|p| (p, Amount::default())).into();
    for id in g.ids().filter(|&id| matches!(g.node(id).op, Op::Weight)) {
        let ty = &g.node(id).ty;
        let n: u64 = ty.shape.iter().map(|&d| u64::from(d)).product();
        let mut seen: Vec<Part> = vec![];
        let mut users = g.users(id);
        users.sort_by_key(|&u| part(g, id, &g.node(u).op));
        for user in users {
            let p = part(g, id, &g.node(user).op);
            if seen.contains(&p) {
                continue;
            }
            let (taken, of) = share(g, id, user);
            let used = n / of * taken;
            let stored = if seen.is_empty() { (n, bytes(ty.elem, n)) } else { (0, 0) };
            let this = Amount { parameters: stored.0, active: used, bytes: stored.1, read: bytes(ty.elem, used) };
            seen.push(p);
            if let Some((_, a)) = out.iter_mut().find(|(q, _)| *q == p) {
                *a = a.plus(this);
            }
        }
    }
    out.retain(|(_, a)| *a != Amount::default());
    out
}

/// The amounts of each part as a configuration describes them, with the formats that it declares: what [`parts`] gives for a
/// checkpoint that holds just that, in scales of the type of its plain tensors.
pub fn parts_of_config(c: &Config) -> Vec<(Part, Amount)> {
    let (plain, scales) = match c.dtype {
        StoredFloat::Bf16 => (Elem::Bf16, Dtype::Bf16),
        StoredFloat::F16 => (Elem::F16, Dtype::F16),
        StoredFloat::F32 => (Elem::F32, Dtype::F32),
    };
    let mut out: Vec<(Part, Amount)> = Part::ALL.map(|p| (p, Amount::default())).into();
    let mut add = |part: Part, a: Amount| {
        if let Some((_, sum)) = out.iter_mut().find(|(p, _)| *p == part) {
            *sum = sum.plus(a);
        }
    };
    for e in tensors(c) {
        let n = e.count();
        let declared = c.quantization.as_ref().filter(|_| e.role != Role::Vector).and_then(|q| q.of(&e.name));
        let elem = declared.map_or(plain, |(bits, group)| Elem::Affine { bits, group, scales });
        let has = |s: &str| e.name.contains(s);
        let part = match e.role {
            Role::Vector if has("router.") => Part::Router,
            Role::Vector => Part::Norms,
            Role::Experts => Part::Experts,
            _ if has("per_layer") => Part::PerLayer,
            Role::Table => Part::Embedding,
            Role::Matrix if has("router.") => Part::Router,
            Role::Matrix if has("self_attn.") => Part::Attention,
            Role::Matrix if e.name.starts_with("layers.") => Part::Dense,
            Role::Matrix => Part::Head,
        };
        let first = e.shape.first().map_or(1, |&d| d as u64).max(1);
        let used = match (e.role, c.experts) {
            (Role::Table, _) => n / first,
            (Role::Experts, Some(x)) => n / first * (x.top_k as u64).min(first),
            _ => n,
        };
        add(part, Amount { parameters: n, active: used, bytes: bytes(elem, n), read: bytes(elem, used) });
        if c.tied && e.name == "embed_tokens" {
            add(Part::Head, Amount { active: n, read: bytes(elem, n), ..Amount::default() });
        }
    }
    out.retain(|(_, a)| *a != Amount::default());
    out
}

/// Bytes of keys and values of one token, in layers that see everything and in those that see a window.
pub fn token_bytes(plan: &Plan) -> (u64, u64) {
    let mut sum = (0, 0);
    for b in &plan.buffers {
        if let BufferKind::Keys { heads, dim, window, .. } | BufferKind::Values { heads, dim, window, .. } = b.kind {
            let bytes = u64::from(heads) * u64::from(dim) * 4;
            if window == 0 { sum.0 += bytes } else { sum.1 += bytes }
        }
    }
    sum
}
