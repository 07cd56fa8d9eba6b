//! What one kernel may be. The rules lead only to such kernels one edge at a time; here a kernel is looked at whole.
//!
//! - rows: row operations only, a block per token;
//! - heads: head operations only;
//! - matmul: row operations that end in one row (in fixed point for affine weights), one or two matmuls of it, then either elementwise operations on
//!   the rows of the matmul, or a sum over experts, or head operations, or a choice of experts;
//! - alone: any single operation.

use super::cost::Bits;
use super::lang::Kind;
use super::region::{Operand, Outer, Problem};
use crate::lower::shared::{Need, SHARED_BUDGET, arrays, pooled};

/// Form of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// One operation.
    Alone,
    /// Row operations.
    Rows,
    /// Head operations.
    Heads,
    /// A matmul with what comes before and after it.
    Matmul,
}

/// Items that follow a matmul inside the kernel, matmuls included.
fn after_matmul(p: &Problem, choice: impl Fn(usize, usize) -> bool, nodes: &Bits) -> Bits {
    let mut after = Bits::new(p.items.len());
    for i in nodes.iter() {
        let follows = p.items[i].operands.iter().enumerate().any(|(s, o)| match *o {
            Operand::Inner(j) => choice(i, s) && after.has(j),
            Operand::Outer(_) => false,
        });
        if follows || p.items[i].kind.is_matmul() {
            after.insert(i);
        }
    }
    after
}

/// Do all rows that its matmuls read lie in memory?
pub fn reads_rows(p: &Problem, choice: &[u32], nodes: &Bits) -> bool {
    let after = after_matmul(p, |i, s| choice[i] >> s & 1 == 1, nodes);
    nodes.iter().all(|i| after.has(i))
}

/// Is operand `s` of item `i` a slice that the kernel reads in place?
fn is_slice(p: &Problem, inline: impl Fn(usize, usize) -> bool, i: usize, s: usize) -> bool {
    let slice = |j: usize| p.items[j].kind == Kind::Slice && !inline(j, 0);
    matches!(p.items[i].operands[s], Operand::Inner(j) if inline(i, s) && slice(j))
}

/// Is this a kernel that can be lowered? Says why not.
pub fn check(p: &Problem, choice: &[u32], nodes: &Bits, root: usize) -> Result<Shape, String> {
    let inline = |i: usize, s: usize| choice[i] >> s & 1 == 1;
    let count = nodes.iter().count();
    if count == 1 {
        return Ok(Shape::Alone);
    }
    if pooled(&[shared(p, nodes)]) > SHARED_BUDGET {
        return Err("it needs more shared memory than a block has".into());
    }
    let kinds = || nodes.iter().map(|i| p.items[i].kind);
    if kinds().all(Kind::is_row) {
        return Ok(Shape::Rows);
    }
    if kinds().all(Kind::is_head) {
        return Ok(Shape::Heads);
    }
    let matmuls: Vec<usize> = nodes.iter().filter(|&i| p.items[i].kind.is_matmul()).collect();
    let Some(&first) = matmuls.first() else { return Err("it mixes operations over rows and over heads".into()) };
    if matmuls.len() > 2 {
        return Err("it has more than two matmuls".into());
    }
    let source = |i: usize| (p.items[i].operands[0], inline(i, 0));
    if matmuls.iter().any(|&i| source(i) != source(first) || p.items[i].kind != p.items[first].kind) {
        return Err("its matmuls differ in kind or in the row they read".into());
    }
    let after = after_matmul(p, inline, nodes);
    if !after.has(root) {
        return Err("its result does not come from its matmul".into());
    }
    let mut joined = 0;
    let mut heads = false;
    for i in nodes.iter() {
        let item = &p.items[i];
        if !after.has(i) {
            if !item.kind.is_row() {
                return Err(format!("`{}` cannot come before a matmul", item.kind.symbol()));
            }
            continue;
        }
        if item.kind.is_matmul() {
            if matches!(item.operands[0], Operand::Inner(j) if inline(i, 0) && after.has(j)) {
                return Err("a matmul reads the result of a matmul of the same kernel".into());
            }
            continue;
        }
        let from_here = |s: usize, o: &Operand| match *o {
            Operand::Inner(j) => inline(i, s) && after.has(j),
            Operand::Outer(x) => matches!(p.outers[x], Outer::Weight | Outer::Cache),
        };
        let all = item.operands.iter().enumerate().all(|(s, o)| from_here(s, o));
        match item.kind {
            Kind::ExpertSum | Kind::Route => joined += 1,
            k if k.is_head() && all => heads = true,
            k if k.is_elementwise() && all => {}
            // The other factor may be a part of a row.
            Kind::Gelu if from_here(0, &item.operands[0]) && is_slice(p, inline, i, 1) => {}
            k => return Err(format!("`{}` cannot follow a matmul here", k.symbol())),
        }
    }
    if joined > 0 && (nodes.iter().filter(|&i| after.has(i)).count() != 2 || joined != 1) {
        return Err("a sum over experts or a choice of experts is the only operation after its matmul".into());
    }
    if heads {
        if nodes.iter().any(|i| after.has(i) && !p.items[i].kind.is_head() && !p.items[i].kind.is_matmul()) {
            return Err("it mixes operations over heads with others".into());
        }
        // A norm over the whole row is a head's only by what follows it.
        let whole = |i: usize| p.items[i].kind == Kind::HeadNorm && !p.items[i].whole;
        let sure = |i: usize| whole(i) || matches!(p.items[i].kind, Kind::Rope | Kind::KvWrite);
        if !nodes.iter().any(sure) {
            return Err("a norm of the whole row cannot follow the matmul that is spread over blocks".into());
        }
    }
    Ok(Shape::Matmul)
}

/// Shared arrays of a kernel over these items, the greatest first.
pub fn shared(p: &Problem, nodes: &Bits) -> Vec<u32> {
    let needs: Vec<Need> = nodes
        .iter()
        .map(|i| {
            let item = &p.items[i];
            let input = match item.operands.first() {
                Some(&Operand::Inner(j)) if nodes.has(j) => Some(j),
                _ => None,
            };
            Need { kind: item.kind, own: item.shared, input }
        })
        .collect();
    arrays(&needs, |i| p.items[i].bytes as u32)
}

/// Can the kernel `nodes` with result `root` store the item `m` of its own on the way?
pub fn can_store(p: &Problem, nodes: &Bits, root: usize, m: usize) -> bool {
    if m == root || !p.items[m].kind.is_matmul() {
        return true;
    }
    // Rows of a matmul pass through registers or shared memory unless what follows is elementwise.
    nodes.iter().filter(|&i| i > m && !p.items[i].kind.is_row()).all(|i| {
        let k = p.items[i].kind;
        k.is_matmul() || k.is_elementwise()
    })
}
