//! Every place where what runs depends on the number of tokens, with the reason why the bits do not.

use ir::graph::Rows;
use ir::kernel::{Block, Op};
use ir::plan::phases::{DECODE_ROWS, Phases};
use ir::plan::{BufferKind, Plan};
use serde::{Deserialize, Serialize};

/// A choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// What depends on the number of tokens.
    pub what: String,
    /// Launches that it is about.
    pub launches: usize,
    /// Why no bit does.
    pub because: String,
}

const ORDERS: &str = "both are lowerings of one graph, on whose nodes the orders stand; a schedule can't name a reduced axis";

/// The choices of a program.
pub fn choices(p: &Phases) -> Vec<Choice> {
    let mut out = vec![];
    let mut add = |what: String, launches: usize, because: &str| {
        if launches > 0 {
            out.push(Choice { what, launches, because: because.into() });
        }
    };
    if let Some(many) = &p.prefill {
        let (a, b) = (p.decode.launches.len(), many.launches.len());
        add(
            format!(
                "a step of more than {DECODE_ROWS} row runs {b} launches of the plan for chunks, not {a} of the plan for one"
            ),
            b,
            ORDERS,
        );
        let of = |f: &dyn Fn(&Plan, usize) -> bool| (0..many.launches.len()).filter(|&i| f(many, i)).count();
        let kernel = |p: &Plan, i: usize| p.launches[i].kernel as usize;
        add(
            "matmuls of chunks multiply tiles of rows on integer matrix units".into(),
            of(&|p, i| any(&p.kernels[kernel(p, i)].body, &|op| matches!(op, Op::Mma { .. }))),
            "sums inside a group are exact integers, rounded once; the groups' results are joined in the order on the node",
        );
        add(
            "blocks compute several rows of a chunk".into(),
            of(&|p, i| p.launches[i].tokens > 1),
            "each row has accumulators of its own, filled in the order on the node; which rows share a block touches none of them",
        );
        add(
            "rows of a chunk that chose one expert are multiplied together".into(),
            of(&|p, i| p.launches[i].args.iter().any(|a| named(p, a, ".lists"))),
            "the lists of rows hold integers in ascending order; each row's sum and its place in the result are its own",
        );
    }
    for (phase, plan) in p.plans() {
        let parts = |a: &ir::plan::Arg| matches!(a, ir::plan::Arg::Buffer(b) if matches!(plan.buffers[*b as usize].kind, BufferKind::Parts { .. }));
        add(
            format!("{phase}: attention over a long context is computed in parts by several blocks, and joined"),
            plan.launches.iter().filter(|l| l.args.iter().any(parts)).count(),
            "a part is one block of 32 keys aligned to absolute positions, and the join takes them in ascending order: a function of the position alone",
        );
        add(
            format!("{phase}: the grid has a row of blocks for every row of the step, or every few"),
            plan.launches.iter().filter(|l| l.rows == Rows::Tokens).count(),
            "positions, lengths and slots are read from the table of rows; no block reads a value of another row but through the caches, whose masks are made of positions",
        );
        add(
            format!("{phase}: only rows whose logits are asked for run"),
            plan.launches.iter().filter(|l| l.rows == Rows::Outputs).count(),
            "each row is computed by itself, by the same kernel",
        );
    }
    out
}

fn named(p: &Plan, a: &ir::plan::Arg, end: &str) -> bool {
    matches!(a, ir::plan::Arg::Buffer(b) if p.buffers[*b as usize].name.ends_with(end))
}

fn any(b: &Block, f: &dyn Fn(&Op) -> bool) -> bool {
    b.insts.iter().any(|i| {
        f(&i.op)
            || match &i.op {
                Op::For { body, .. } => any(body, f),
                Op::If { then, els, .. } => any(then, f) || any(els, f),
                Op::Pipeline { copy, body, .. } => any(copy, f) || any(body, f),
                _ => false,
            }
    })
}
