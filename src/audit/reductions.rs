//! Every sum, maximum and choice of a graph: over what, in which order, and who fixed the order.

use ir::graph::op::Op;
use ir::graph::{Elem, Graph, NodeId};
use ir::order::{KV_BLOCK, LINEAR_UNIT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who fixed an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinned {
    /// It stood on the graph before any pass.
    Model,
    /// A person, in the dump that the program was compiled from.
    EditedDump,
    /// The pass.
    PinReductions,
    /// The operation has no other.
    Operation,
    /// The sum is exact, or the result the same in any order.
    OrderFree,
    /// Nobody.
    Nobody,
}

impl Pinned {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Pinned::Model => "the model",
            Pinned::EditedDump => "an edited dump",
            Pinned::PinReductions => "pass pin-reductions",
            Pinned::Operation => "its operation",
            Pinned::OrderFree => "order-free",
            Pinned::Nobody => "nobody",
        }
    }
}

/// One reduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduction {
    /// Name of the value.
    pub value: String,
    /// Operation.
    pub op: String,
    /// Over what.
    pub over: String,
    /// In which order.
    pub order: String,
    /// Who fixed it.
    pub pinned_by: Pinned,
}

/// The reductions of a graph, in the order of their nodes. `before` are the values whose order stood before any pass.
pub fn reductions(g: &Graph, before: &BTreeMap<String, Pinned>) -> Vec<Reduction> {
    g.ids().flat_map(|id| of(g, id, before)).collect()
}

/// Values that have an order already.
pub fn pinned(g: &Graph) -> BTreeMap<String, Pinned> {
    g.ids()
        .filter(|&id| order(&g.node(id).op).is_some_and(|o| o.is_some()))
        .map(|id| (g.node(id).name.clone(), Pinned::Model))
        .collect()
}

/// The order of an operation that takes one; `Some(None)` if nobody has fixed it.
fn order(op: &Op) -> Option<Option<String>> {
    match op {
        Op::RmsNorm { order, .. }
        | Op::Linear { order }
        | Op::ExpertLinear { order }
        | Op::QLinear { order }
        | Op::QExpertLinear { order } => Some(order.map(|o| o.to_string())),
        Op::Attention { order, .. } => Some(order.map(|o| o.to_string())),
        _ => None,
    }
}

fn of(g: &Graph, id: NodeId, before: &BTreeMap<String, Pinned>) -> Option<Reduction> {
    let n = g.node(id);
    let input = |i: usize| n.inputs.get(i).map(|&x| &g.node(x).ty);
    let last = |i: usize| input(i).and_then(|t| t.shape.last().copied()).unwrap_or(0);
    let units = |cols: u32, unit: u32, what: &str| format!("{} {what}", cols.div_ceil(unit.max(1)));
    let over = match &n.op {
        Op::RmsNorm { dim, .. } => format!("the squares of {dim} elements"),
        Op::Linear { .. } | Op::ExpertLinear { .. } => units(last(1), LINEAR_UNIT, "units of 8 elements, each a chain"),
        Op::QLinear { .. } | Op::QExpertLinear { .. } => match input(1).map(|t| t.elem) {
            Some(Elem::Affine { group, .. }) => units(last(1), group, &format!("groups of {group}, each an exact integer sum")),
            _ => return None,
        },
        Op::Attention { .. } => format!("the visible keys in blocks of {KV_BLOCK} by position"),
        Op::Quantize { group } => format!("the largest of {group} magnitudes, and their exact integer sum"),
        Op::Route { k } => format!("the {k} highest of {} logits, their weights", last(0)),
        Op::ExpertSum => "the chosen experts' rows".into(),
        Op::Argmax => format!("{} logits", last(0)),
        _ => return None,
    };
    let fixed = |order: &str, by| (order.to_string(), by);
    let (order, pinned_by) = match (&n.op, order(&n.op)) {
        (Op::Quantize { .. }, _) => fixed("any: integers", Pinned::OrderFree),
        (Op::Route { .. }, _) => fixed("ties to the lower index; weights summed in rank order", Pinned::Operation),
        (Op::ExpertSum, _) => fixed("a chain of fma in rank order", Pinned::Operation),
        (Op::Argmax, _) => fixed("ties to the lowest index", Pinned::Operation),
        (_, Some(Some(order))) => (order, before.get(&n.name).copied().unwrap_or(Pinned::PinReductions)),
        _ => fixed("none", Pinned::Nobody),
    };
    Some(Reduction { value: n.name.clone(), op: n.op.name().into(), over, order, pinned_by })
}
