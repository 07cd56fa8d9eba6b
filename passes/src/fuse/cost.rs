//! What a choice of fusions costs per token, as one integer: launches, more for one that leaves the device idle, and bytes
//! that kernels read and write. Weights are left out where every choice reads them once for each token (embedding rows are
//! not: a kernel that computes one again reads it again). In a plan for many tokens a launch is shared by the rows of a chunk,
//! and weights count: a matmul whose rows lie in memory reads them once for a tile of tokens, one that computes its row itself
//! for every token. An operation counts one, so that of equal choices the one that computes less wins. Also decides who stores
//! a value that several kernels compute.

use super::lang::Kind;
use super::region::{Operand, Outer, Problem};
use super::shape::{self, Shape};
use crate::merge_launches::{Candidate, group};

/// Cost of one launch in bytes: a few microseconds of memory traffic.
pub const LAUNCH: u64 = 4 << 20;

/// The cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Cost of a launch.
    pub launch: u64,
    /// What one that has but one block per row (no matmul, no heads) costs beside that: nothing hides its latency.
    pub narrow: u64,
    /// Tokens that a matmul block computes with weights that it reads once, where its rows lie in memory.
    pub tokens: u64,
    /// Stages that may share a launch; 1 if launches are not merged.
    pub per_launch: usize,
}

impl Weights {
    /// For launches over so many rows, in blocks of so many tokens.
    pub fn new(launch: u64, rows: u32, tokens: u32, per_launch: usize) -> Weights {
        let launch = launch / u64::from(rows.max(1));
        let narrow = if rows > 1 { 0 } else { launch / 2 };
        Weights { launch, narrow, tokens: u64::from(tokens.max(1)), per_launch }
    }
}

/// Set of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// The empty set of numbers below `n`.
    pub fn new(n: usize) -> Self {
        Bits(vec![0; n.div_ceil(64)])
    }
    /// Adds one.
    pub fn insert(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }
    /// Is it in?
    pub fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }
    /// Adds all of another.
    pub fn union(&mut self, o: &Bits) {
        for (a, b) in self.0.iter_mut().zip(&o.0) {
            *a |= b;
        }
    }
    /// Members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(w, &bits)| (0..64).filter(move |b| bits >> b & 1 == 1).map(move |b| w * 64 + b))
    }
}

/// One kernel of a solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPlan {
    /// The item it is named for.
    pub root: usize,
    /// Items it computes, ascending.
    pub nodes: Vec<usize>,
    /// Items it stores, ascending.
    pub stores: Vec<usize>,
    /// Items it reads from memory, ascending.
    pub reads: Vec<usize>,
    /// Its form.
    pub shape: Shape,
    /// Its shared arrays, the greatest first.
    pub shared: Vec<u32>,
    /// Bytes of weights that it reads per token, if choices differ in it.
    pub weights: u64,
}

/// A legal choice with its kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// For each item the operands it computes itself, as a bit mask.
    pub choice: Vec<u32>,
    /// In order of execution.
    pub kernels: Vec<KernelPlan>,
    /// Launches after merging.
    pub launches: usize,
    /// Launches with one block per row.
    pub narrow: usize,
    /// Bytes read and written per token.
    pub bytes: u64,
    /// Operations computed, repeated ones included.
    pub work: u64,
    /// What the launches cost, and `bytes + work`.
    pub cost: u64,
}

/// The kernels that a choice makes, and their cost; `None` if one of them is none that can be lowered.
pub fn evaluate(p: &Problem, choice: &[u32], w: &Weights) -> Option<Solution> {
    let n = p.items.len();
    let inner = |i: usize| {
        p.items[i].operands.iter().enumerate().filter_map(move |(s, o)| match *o {
            Operand::Inner(j) => Some((j, choice[i] >> s & 1 == 1)),
            Operand::Outer(_) => None,
        })
    };
    // Which values must be in memory, which are computed inside a reader.
    let mut memory: Vec<bool> = p.items.iter().map(|i| i.needed).collect();
    let mut inlined = vec![false; n];
    for i in (0..n).rev() {
        if memory[i] || inlined[i] {
            for (j, inline) in inner(i) {
                if inline { inlined[j] = true } else { memory[j] = true }
            }
        }
    }
    // What a kernel at each item would compute and read.
    let mut closure: Vec<Bits> = Vec::with_capacity(n);
    let mut reads: Vec<Bits> = Vec::with_capacity(n);
    for i in 0..n {
        let (mut c, mut r) = (Bits::new(n), Bits::new(n));
        c.insert(i);
        for (j, inline) in inner(i) {
            if inline {
                c.union(&closure[j]);
                r.union(&reads[j]);
            } else {
                r.insert(j);
            }
        }
        closure.push(c);
        reads.push(r);
    }
    // A value that a later kernel computes anyway is stored by it, unless its readers would come too early.
    let mut store: Vec<usize> = (0..n).collect();
    let mut is_root = memory.clone();
    for m in (0..n).rev() {
        if !memory[m] || !inlined[m] {
            continue;
        }
        for r in m + 1..n {
            let host = is_root[r] && closure[r].has(m) && p.items[r].rows == p.items[m].rows;
            if !host || !shape::can_store(p, &closure[r], r, m) {
                continue;
            }
            store[m] = r;
            if acyclic_from(r, &reads, &store, n) {
                is_root[m] = false;
                break;
            }
            store[m] = m;
        }
    }
    let roots: Vec<usize> = (0..n).filter(|&i| is_root[i]).collect();
    let mut kernels = vec![];
    for &r in &roots {
        if reads[r].iter().any(|x| closure[r].has(x)) {
            return None;
        }
        let shape = shape::check(p, choice, &closure[r], r).ok()?;
        kernels.push(KernelPlan {
            root: r,
            nodes: closure[r].iter().collect(),
            stores: (0..n).filter(|&m| memory[m] && store[m] == r).collect(),
            reads: reads[r].iter().collect(),
            shape,
            shared: shape::shared(p, &closure[r]),
            weights: weights(p, choice, &closure[r], w.tokens),
        });
    }
    let kernels = in_order(kernels, &store)?;
    let groups = group(&candidates(p, &kernels, &store), w.per_launch);
    let launches = groups.len();
    let narrow = groups.iter().filter(|l| l.iter().all(|&k| is_narrow(p, &kernels[k]))).count();
    let bytes: u64 = kernels.iter().map(|k| traffic(p, k) + k.weights).sum();
    let work: u64 = kernels.iter().map(|k| k.nodes.len() as u64).sum();
    let cost = (launches as u64).saturating_mul(w.launch).saturating_add(narrow as u64 * w.narrow).saturating_add(bytes + work);
    Some(Solution { choice: choice.to_vec(), kernels, launches, narrow, bytes, work, cost })
}

/// Bytes of weights per token, if a block may compute several tokens.
fn weights(p: &Problem, choice: &[u32], nodes: &Bits, tokens: u64) -> u64 {
    if tokens == 1 {
        return 0;
    }
    let all: u64 = nodes.iter().map(|i| p.items[i].weights).sum();
    if shape::reads_rows(p, choice, nodes) { all / tokens } else { all }
}

/// Does it run in one block per row?
fn is_narrow(p: &Problem, k: &KernelPlan) -> bool {
    let root = p.items[k.root].kind;
    matches!(root, Kind::Route | Kind::Argmax) || k.nodes.iter().all(|&i| p.items[i].kind.is_row())
}

/// Does no kernel that `r` waits for wait for `r`?
fn acyclic_from(r: usize, reads: &[Bits], store: &[usize], n: usize) -> bool {
    let mut seen = Bits::new(n);
    let mut todo = vec![r];
    while let Some(k) = todo.pop() {
        for x in reads[k].iter() {
            let s = store[x];
            if s == r {
                return false;
            }
            if !seen.has(s) {
                seen.insert(s);
                todo.push(s);
            }
        }
    }
    true
}

/// Kernels in order of execution: the lowest root of those that are ready.
fn in_order(mut left: Vec<KernelPlan>, store: &[usize]) -> Option<Vec<KernelPlan>> {
    let mut done = Bits::new(store.len());
    let mut out = vec![];
    while !left.is_empty() {
        let next = left.iter().position(|k| k.reads.iter().all(|&x| done.has(store[x])))?;
        let k = left.remove(next);
        done.insert(k.root);
        out.push(k);
    }
    Some(out)
}

/// The kernels as candidates for shared launches.
fn candidates(p: &Problem, kernels: &[KernelPlan], store: &[usize]) -> Vec<Candidate> {
    let mut place = vec![usize::MAX; p.items.len()];
    for (i, k) in kernels.iter().enumerate() {
        place[k.root] = i;
    }
    kernels
        .iter()
        .map(|k| {
            let mut waits: Vec<usize> = k.reads.iter().map(|&x| place[store[x]]).collect();
            waits.sort_unstable();
            waits.dedup();
            let root = &p.items[k.root];
            Candidate {
                waits,
                rows: root.rows,
                solo: root.kind.is_solo(),
                nodes: k.nodes.iter().map(|&i| i as u32).collect(),
                shared: k.shared.clone(),
            }
        })
        .collect()
}

/// Bytes per token that a kernel reads and writes.
fn traffic(p: &Problem, k: &KernelPlan) -> u64 {
    let mut outer: Vec<usize> = k
        .nodes
        .iter()
        .flat_map(|&i| &p.items[i].operands)
        .filter_map(|o| match *o {
            Operand::Outer(x) => Some(x),
            Operand::Inner(_) => None,
        })
        .collect();
    outer.sort_unstable();
    outer.dedup();
    let outside: u64 = outer
        .into_iter()
        .map(|x| match p.outers[x] {
            Outer::Value { bytes } => bytes,
            _ => 0,
        })
        .sum();
    let read: u64 = k.reads.iter().filter(|&&x| p.items[x].kind != Kind::KvWrite).map(|&x| p.items[x].bytes).sum();
    let written: u64 = k.stores.iter().map(|&x| p.items[x].bytes).sum();
    let rows: u64 = k.nodes.iter().filter(|&&x| p.items[x].kind == Kind::Embed).map(|&x| p.items[x].bytes).sum();
    outside + read + written + rows
}
