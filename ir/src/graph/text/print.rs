//! Prints graphs.

use crate::graph::op::{EmbedMode, Op};
use crate::graph::{Dtype, Elem, Graph, NodeId, Rows, Type};
use crate::order::{AttentionOrder, ReductionOrder};
use crate::text::name::quote;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elem::F32 => f.write_str("f32"),
            Elem::Bf16 => f.write_str("bf16"),
            Elem::F16 => f.write_str("f16"),
            Elem::I32 => f.write_str("i32"),
            Elem::Affine { bits, group, scales: Dtype::Bf16 } => write!(f, "u{bits}g{group}"),
            Elem::Affine { bits, group, scales } => write!(f, "u{bits}g{group}:{}", scales.elem()),
            Elem::Q24 { group } => write!(f, "q24g{group}"),
            Elem::Route => f.write_str("route"),
            Elem::Kv => f.write_str("kv"),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.elem)?;
        let rows = match self.rows {
            Rows::Once => "",
            Rows::Tokens => "T",
            Rows::Outputs => "O",
        };
        f.write_str(rows)?;
        for (i, d) in self.shape.iter().enumerate() {
            let comma = if i > 0 || !rows.is_empty() { "," } else { "" };
            write!(f, "{comma}{d}")?;
        }
        f.write_str("]")
    }
}

/// The text of a graph.
pub fn print(g: &Graph) -> String {
    let mut s = format!("graph {} {{\n", quote(&g.name));
    let topo = g.topo();
    let done: BTreeSet<NodeId> = topo.iter().copied().collect();
    // What a cycle or a dead operand keeps out of the order still has to be seen.
    let rest = g.ids().filter(|id| !done.contains(id));
    for id in topo.iter().copied().chain(rest) {
        node(&mut s, g, id);
    }
    let last = g.ids().last().map_or(0, |id| id.idx() + 1);
    if g.id_count() > last {
        _ = writeln!(s, "  ids {}", g.id_count());
    }
    for o in &g.outputs {
        _ = writeln!(s, "  output {o}");
    }
    for st in &g.stages {
        _ = writeln!(s, "  stage {} {{{} }} -> {{{} }}", quote(&st.name), list(&st.nodes), list(&st.stores));
    }
    for l in &g.launches {
        _ = writeln!(s, "  launch{}", list(l));
    }
    s.push_str("}\n");
    s
}

/// The attributes of an operation as they stand in braces, and the decimals of those that are printed as bits.
pub fn attributes_of(op: &Op) -> (String, String) {
    let mut comment = vec![];
    let attrs = attributes(op, &mut comment);
    (attrs, comment.join(", "))
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(|i| format!(" {i}")).collect()
}

fn node(s: &mut String, g: &Graph, id: NodeId) {
    let n = g.node(id);
    _ = write!(s, "  {id} = {}{}", n.op.name(), list(&n.inputs));
    let mut comment = vec![];
    let attrs = attributes(&n.op, &mut comment);
    if !attrs.is_empty() {
        _ = write!(s, " {{{attrs}}}");
    }
    _ = write!(s, " : {} {}", n.ty, quote(&n.name));
    if !comment.is_empty() {
        _ = write!(s, " // {}", comment.join(", "));
    }
    s.push('\n');
}

fn f32_bits(x: f32, comment: &mut Vec<String>) -> String {
    comment.push(format!("{x:?}"));
    format!("{:#010x}", x.to_bits())
}

fn f64_bits(x: f64, comment: &mut Vec<String>) -> String {
    comment.push(format!("{x:?}"));
    format!("{:#018x}", x.to_bits())
}

fn order(o: &Option<ReductionOrder>) -> String {
    o.map_or("none".into(), |o| o.to_string())
}

fn attention(o: &Option<AttentionOrder>) -> String {
    o.map_or("none".into(), |o| o.to_string())
}

/// What stands in braces; the decimals of floats go to the comment.
fn attributes(op: &Op, comment: &mut Vec<String>) -> String {
    match op {
        Op::Kv { layer, heads, dim, window } => format!("layer={layer}, heads={heads}, dim={dim}, window={window}"),
        Op::Embed { mode, factor } => {
            let mode = match mode {
                EmbedMode::Exact => "exact",
                EmbedMode::Factor => "factor",
                EmbedMode::Bf16 => "bf16",
            };
            format!("mode={mode}, factor={}", f32_bits(*factor, comment))
        }
        Op::RmsNorm { dim, eps, order: o } => {
            format!("dim={dim}, eps={}, order={}", f32_bits(*eps, comment), order(o))
        }
        Op::Quantize { group } => format!("group={group}"),
        Op::Linear { order: o } | Op::ExpertLinear { order: o } | Op::QLinear { order: o } | Op::QExpertLinear { order: o } => {
            format!("order={}", order(o))
        }
        Op::MulConst { c } => format!("c={}", f32_bits(*c, comment)),
        Op::Rope(p) => {
            let (theta, factor) = (f64_bits(p.theta, comment), f64_bits(p.factor, comment));
            format!("dim={}, rotated={}, theta={theta}, factor={factor}", p.dim, p.rotated)
        }
        Op::Attention { heads, order: o } => format!("heads={heads}, order={}", attention(o)),
        Op::Route { k } => format!("k={k}"),
        Op::Slice { start, len } => format!("start={start}, len={len}"),
        Op::Softcap { cap } => format!("cap={}", f32_bits(*cap, comment)),
        Op::Tokens | Op::Weight | Op::Add | Op::Mul | Op::RoundBf16 | Op::GeluMul => String::new(),
        Op::KvWrite | Op::ExpertSum | Op::Select | Op::Argmax => String::new(),
    }
}
