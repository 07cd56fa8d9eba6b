//! The language in which a region is given to egg: `(op id operands...)`, with `(mat e)` for "a kernel stores `e` and it is
//! read from memory", and `(weight x)`, `(value x)`, `(cache x)`, `(tokens x)` for what comes from outside.
//! The id keeps equal operations apart: fusion never merges nodes.

use super::region::{Operand, Outer, Problem};
use egg::{EGraph, Id, SymbolLang};
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId};

/// What a node is to fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Norm over a whole row.
    Norm,
    /// Norm over each head: a part of a row, or keys and values that have one head.
    HeadNorm,
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Product with a constant.
    Scale,
    /// Row of the embedding.
    Embed,
    /// Rows whose logits are asked for.
    Select,
    /// A part of a row.
    Slice,
    /// Fixed point.
    Quantize,
    /// Exact-integer matmul.
    Matmul,
    /// Exact-integer matmul of chosen experts.
    ExpertMatmul,
    /// Gated gelu.
    Gelu,
    /// Softcap.
    Softcap,
    /// Weighted sum over experts.
    ExpertSum,
    /// Rotary embedding.
    Rope,
    /// Cache write.
    KvWrite,
    /// Choice of experts.
    Route,
    /// Attention.
    Attention,
    /// Choice of the token.
    Argmax,
    /// Matmul with plain weights.
    Linear,
    /// Matmul of chosen experts with plain weights.
    ExpertLinear,
}

impl Kind {
    /// Kind of a computing node.
    pub fn of(g: &Graph, id: NodeId) -> Option<Kind> {
        let n = g.node(id);
        Some(match n.op {
            Op::Tokens | Op::Weight | Op::Kv { .. } => return None,
            Op::RmsNorm { dim, .. } => {
                let heads = |u: NodeId| matches!(g.node(u).op, Op::Rope(_) | Op::KvWrite);
                if dim != n.ty.width() || g.users(id).into_iter().any(heads) { Kind::HeadNorm } else { Kind::Norm }
            }
            Op::Add => Kind::Add,
            Op::Mul => Kind::Mul,
            // Both compute each element of a row alone.
            Op::MulConst { .. } | Op::RoundBf16 => Kind::Scale,
            Op::Embed { .. } => Kind::Embed,
            Op::Select => Kind::Select,
            Op::Slice { .. } => Kind::Slice,
            Op::Quantize { .. } => Kind::Quantize,
            Op::QLinear { .. } => Kind::Matmul,
            Op::QExpertLinear { .. } => Kind::ExpertMatmul,
            Op::GeluMul => Kind::Gelu,
            Op::Softcap { .. } => Kind::Softcap,
            Op::ExpertSum => Kind::ExpertSum,
            Op::Rope(_) => Kind::Rope,
            Op::KvWrite => Kind::KvWrite,
            Op::Route { .. } => Kind::Route,
            Op::Attention { .. } => Kind::Attention,
            Op::Argmax => Kind::Argmax,
            Op::Linear { .. } => Kind::Linear,
            Op::ExpertLinear { .. } => Kind::ExpertLinear,
        })
    }

    /// The operator in terms and patterns.
    pub fn symbol(self) -> &'static str {
        match self {
            Kind::Norm => "norm",
            Kind::HeadNorm => "head_norm",
            Kind::Add => "add",
            Kind::Mul => "mul",
            Kind::Scale => "scale",
            Kind::Embed => "embed",
            Kind::Select => "select",
            Kind::Slice => "slice",
            Kind::Quantize => "quantize",
            Kind::Matmul => "matmul",
            Kind::ExpertMatmul => "expert_matmul",
            Kind::Gelu => "gelu",
            Kind::Softcap => "softcap",
            Kind::ExpertSum => "expert_sum",
            Kind::Rope => "rope",
            Kind::KvWrite => "kv_write",
            Kind::Route => "route",
            Kind::Attention => "attention",
            Kind::Argmax => "argmax",
            Kind::Linear => "linear",
            Kind::ExpertLinear => "expert_linear",
        }
    }

    /// An operation over the row of one token, which every block that needs it can compute again.
    pub fn is_row(self) -> bool {
        matches!(
            self,
            Kind::Norm | Kind::Add | Kind::Mul | Kind::Scale | Kind::Embed | Kind::Select | Kind::Slice | Kind::Quantize
        )
    }

    /// An operation over one head.
    pub fn is_head(self) -> bool {
        matches!(self, Kind::HeadNorm | Kind::Rope | Kind::KvWrite)
    }

    /// A matmul.
    pub fn is_matmul(self) -> bool {
        matches!(self, Kind::Matmul | Kind::ExpertMatmul | Kind::Linear | Kind::ExpertLinear)
    }

    /// An operation on single elements, which may follow a matmul on the rows that a block computed.
    pub fn is_elementwise(self) -> bool {
        matches!(self, Kind::Gelu | Kind::Softcap | Kind::Add | Kind::Mul | Kind::Scale)
    }

    /// A kernel of this kind shares its launch with no other.
    pub fn is_solo(self) -> bool {
        matches!(self, Kind::Attention | Kind::Argmax)
    }
}

/// The e-graph of a region before any rule, and the class of each item.
pub fn terms(p: &Problem) -> (EGraph<SymbolLang, ()>, Vec<Id>) {
    let mut eg = EGraph::default();
    let mut ids: Vec<Id> = vec![];
    for (i, item) in p.items.iter().enumerate() {
        let mut children = vec![eg.add(SymbolLang::leaf(format!("n{i}")))];
        for o in &item.operands {
            children.push(match *o {
                Operand::Inner(j) => eg.add(SymbolLang::new("mat", vec![ids[j]])),
                Operand::Outer(k) => {
                    let x = eg.add(SymbolLang::leaf(format!("x{k}")));
                    let leaf = match p.outers[k] {
                        Outer::Weight => "weight",
                        Outer::Value { .. } => "value",
                        Outer::Cache => "cache",
                        Outer::Tokens => "tokens",
                    };
                    eg.add(SymbolLang::new(leaf, vec![x]))
                }
            });
        }
        ids.push(eg.add(SymbolLang::new(item.kind.symbol(), children)));
    }
    eg.rebuild();
    (eg, ids)
}
