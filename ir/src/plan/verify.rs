//! The plan verifier. It collects every violation; a plan that passes can be loaded and run without a further check of
//! its structure. Invariants:
//!
//! - kernels, buffers and launches have unique names; indices are in range; sizes, layouts and grids are legal;
//! - a launch binds every parameter of its kernel; a parameter that is written is bound to a buffer, never to a weight,
//!   and to a buffer that the launch binds once only;
//! - a launch reads no value that it writes (of a key/value cache it may read other positions);
//! - every value, and what attention leaves for the launch that joins, is written by an earlier launch than any that reads it; a value that a launch writes has the launch's
//!   rows;
//! - once offsets are set: every value in use has one, it lies in its arena (one for values per
//!   token, one for values per output), and no two values that are live at one launch
//!   overlap. A value is live from the first launch that writes it to the last that touches it; to the end if nobody
//!   reads it after it was written, or if it is among the kept ones (the graph's outputs).

use super::{Arg, BufferKind, Launch, Pack, Plan};
use crate::diag::Diagnostic;
use crate::graph::Rows::Outputs;
use crate::graph::verify::types::MAX_HEAD;
use crate::graph::verify::types::{BITS, GROUPS};
use crate::kernel::{Block, Kernel, Mem, Op};
use crate::layout::{Format, MatrixLayout};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that rows and offsets are multiples of.
pub const ALIGN: u64 = 64;

/// Rows that one block may compute.
pub const MAX_TOKENS: u32 = 256;

/// Codes of the plan verifier's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0351", "two kernels, buffers or launches have one name, or a name is empty"),
    ("E0352", "a launch names a kernel, buffer or weight that the plan does not have"),
    ("E0353", "a launch does not bind the parameters of its kernel"),
    ("E0354", "a launch writes to a weight"),
    ("E0355", "a value is read before it is written"),
    ("E0356", "a launch reads a value that it writes, or binds it twice"),
    ("E0357", "a buffer's size, rows or offset is not legal"),
    ("E0358", "a weight's layout is not legal"),
    ("E0359", "a value has no place in the arena, or not all of one"),
    ("E0360", "two values that are live together overlap in the arena"),
    ("E0361", "a grid is empty or too large"),
    ("E0362", "a launch writes a value with other rows than its own"),
    ("E0364", "a parameter that nobody writes is bound to a buffer"),
];

/// Checks a plan. Values that are never read after they are written live to the end, and so do those named in `keep`.
pub fn verify(p: &Plan, keep: &[&str]) -> Result<(), Vec<Diagnostic>> {
    let mut c = Check { p, errors: vec![] };
    c.names();
    c.buffers();
    c.weights();
    let uses: Vec<Vec<Use>> = p.launches.iter().map(|l| c.launch(l)).collect();
    let spans = c.flow(&uses, keep);
    c.arena(&spans);
    if c.errors.is_empty() { Ok(()) } else { Err(c.errors) }
}

/// How a launch uses a buffer.
#[derive(Clone, Copy)]
struct Use {
    buffer: usize,
    read: bool,
    write: bool,
}

/// For each parameter of a kernel: is it read, is it written?
pub fn accesses(k: &Kernel) -> Vec<(bool, bool)> {
    // What is bound and not written counts as read.
    let mut a: Vec<(bool, bool)> = k.bufs.iter().map(|b| (!b.write, b.write)).collect();
    scan(&k.body, &mut a);
    a
}

fn scan(b: &Block, a: &mut [(bool, bool)]) {
    for i in &b.insts {
        match &i.op {
            Op::Load { mem: Mem::Buf(n), .. } | Op::Copy { src: n, .. } => {
                if let Some(a) = a.get_mut(*n as usize) {
                    a.0 = true;
                }
            }
            Op::Store { mem: Mem::Buf(n), .. } | Op::AtomicAdd { buf: n, .. } => {
                if let Some(a) = a.get_mut(*n as usize) {
                    a.1 = true;
                }
            }
            Op::For { body, .. } => scan(body, a),
            Op::If { then, els, .. } => {
                scan(then, a);
                scan(els, a);
            }
            Op::Pipeline { copy, body, .. } => {
                scan(copy, a);
                scan(body, a);
            }
            _ => {}
        }
    }
}

struct Check<'a> {
    p: &'a Plan,
    errors: Vec<Diagnostic>,
}

impl Check<'_> {
    fn error(&mut self, code: &'static str, place: String, message: String) {
        self.errors.push(Diagnostic::new(code, message).at(place));
    }

    fn names(&mut self) {
        let p = self.p;
        let kinds: [(&str, Vec<&String>); 3] = [
            ("kernel", p.kernels.iter().map(|k| &k.name).collect()),
            ("buffer", p.buffers.iter().map(|b| &b.name).collect()),
            ("launch", p.launches.iter().map(|l| &l.name).collect()),
        ];
        for (kind, names) in kinds {
            let mut seen = BTreeSet::new();
            for n in names {
                if n.is_empty() || !seen.insert(n) {
                    self.error("E0351", format!("{kind} \"{n}\""), format!("the {kind}'s name is empty or taken"));
                }
            }
        }
    }

    fn buffers(&mut self) {
        for b in &self.p.buffers {
            let place = format!("buffer \"{}\"", b.name);
            let fits = |n: u64| n > 0 && n.is_multiple_of(ALIGN);
            match b.kind {
                BufferKind::Value { bytes, .. } => {
                    if !fits(u64::from(bytes)) || b.offset.is_some_and(|o| !o.is_multiple_of(ALIGN)) {
                        let at = b.offset.map_or("no offset yet".into(), |o| format!("offset {o}"));
                        let m = format!("a row of {bytes} bytes at {at}: not multiples of {ALIGN}");
                        self.error("E0357", place, m);
                    }
                }
                BufferKind::Keys { heads, dim, .. }
                | BufferKind::Values { heads, dim, .. }
                | BufferKind::Parts { heads, dim, .. } => {
                    if heads == 0 || dim == 0 || b.offset.is_some() {
                        self.error("E0357", place, "a cache has heads and elements, and no offset".into());
                    }
                }
                BufferKind::Digests { .. } | BufferKind::Tokens | BufferKind::State | BufferKind::Rows => {
                    if b.offset.is_some() {
                        self.error("E0357", place, "only values lie in the arena".into());
                    }
                }
            }
        }
    }

    fn weights(&mut self) {
        for w in &self.p.weights {
            let fine = match &w.pack {
                Pack::Matrix(l) => check_layout(l),
                Pack::Rope(r) if r.dim == 0 || r.dim > MAX_HEAD || r.dim % 2 == 1 || r.rotated > r.dim / 2 => {
                    Err(format!("a head of {} has no {} pairs that turn", r.dim, r.rotated))
                }
                Pack::Rope(_) | Pack::Plain => Ok(()),
            };
            if let Err(m) = fine {
                self.error("E0358", format!("weight \"{}\"", w.tensor), m);
            }
        }
    }

    /// Checks a launch by itself; the buffers it uses, each once.
    fn launch(&mut self, l: &Launch) -> Vec<Use> {
        let p = self.p;
        let place = || format!("launch \"{}\"", l.name);
        if l.grid_x == 0 || l.grid_x > i32::MAX as u32 {
            self.error("E0361", place(), format!("a grid of {} blocks", l.grid_x));
        }
        if l.tokens == 0 || l.tokens > MAX_TOKENS {
            self.error("E0361", place(), format!("a block computes {} rows, not 1 to {MAX_TOKENS}", l.tokens));
        }
        let Some(k) = p.kernels.get(l.kernel as usize) else {
            self.error("E0352", place(), format!("there is no kernel k{}", l.kernel));
            return vec![];
        };
        if l.args.len() != k.bufs.len() {
            let m = format!("kernel {} has {} parameters, {} are bound", k.name, k.bufs.len(), l.args.len());
            self.error("E0353", place(), m);
            return vec![];
        }
        let mut uses: BTreeMap<usize, (Use, usize)> = BTreeMap::new();
        for ((a, (read, write)), param) in l.args.iter().zip(accesses(k)).zip(&k.bufs) {
            match *a {
                Arg::Weight(w) if w as usize >= p.weights.len() => {
                    self.error("E0352", place(), format!("there is no weight w{w}"));
                }
                Arg::Weight(w) => {
                    if write {
                        let t = &p.weights[w as usize].tensor;
                        self.error("E0354", place(), format!("parameter {} is written and bound to weight \"{t}\"", param.name));
                    }
                }
                Arg::Buffer(b) if b as usize >= p.buffers.len() => {
                    self.error("E0352", place(), format!("there is no buffer b{b}"));
                }
                Arg::Buffer(b) => {
                    if param.fixed {
                        let m = format!(
                            "parameter {} is never written and bound to buffer \"{}\"",
                            param.name, p.buffers[b as usize].name
                        );
                        self.error("E0364", place(), m);
                    }
                    let new = Use { buffer: b as usize, read: false, write: false };
                    let (u, times) = uses.entry(b as usize).or_insert((new, 0));
                    u.read |= read;
                    u.write |= write;
                    *times += 1;
                }
            }
        }
        for (u, times) in uses.values() {
            let b = &p.buffers[u.buffer];
            let cache = matches!(b.kind, BufferKind::Keys { .. } | BufferKind::Values { .. });
            if u.write && (*times > 1 || (u.read && !cache)) {
                let what = if *times > 1 { "binds it to two parameters" } else { "reads it" };
                self.error("E0356", place(), format!("writes \"{}\" and {what}", b.name));
            }
            if let BufferKind::Value { rows, .. } | BufferKind::Digests { rows } = b.kind
                && u.write
                && rows != l.rows
            {
                let m = format!("runs for rows {:?} and writes \"{}\", which has rows {rows:?}", l.rows, b.name);
                self.error("E0362", place(), m);
            }
        }
        uses.into_values().map(|(u, _)| u).collect()
    }

    /// Checks that values are written before they are read; the launches between which each is live.
    fn flow(&mut self, uses: &[Vec<Use>], keep: &[&str]) -> BTreeMap<usize, (usize, usize)> {
        let p = self.p;
        // Buffer -> first write, last write, last read.
        let mut spans: BTreeMap<usize, (usize, usize, Option<usize>)> = BTreeMap::new();
        for (i, uses) in uses.iter().enumerate() {
            let made = |u: &&Use| matches!(p.buffers[u.buffer].kind, BufferKind::Value { .. } | BufferKind::Parts { .. });
            let values = uses.iter().filter(made);
            for u in values {
                if u.read && !u.write {
                    match spans.get_mut(&u.buffer) {
                        Some(s) => s.2 = Some(i),
                        None => {
                            let m = format!("reads \"{}\" before any launch has written it", p.buffers[u.buffer].name);
                            self.error("E0355", format!("launch \"{}\"", p.launches[i].name), m);
                        }
                    }
                }
                if u.write {
                    spans.entry(u.buffer).or_insert((i, i, None)).1 = i;
                }
            }
        }
        let end = p.launches.len();
        let live = |(b, (first, written, read)): (usize, (usize, usize, Option<usize>))| {
            let kept = keep.contains(&p.buffers[b].name.as_str());
            let last = if kept { end } else { read.filter(|r| *r > written).unwrap_or(end) };
            (b, (first, last))
        };
        spans.into_iter().map(live).collect()
    }

    fn arena(&mut self, spans: &BTreeMap<usize, (usize, usize)>) {
        let p = self.p;
        if p.arena_bytes == 0 && p.output_bytes == 0 && p.buffers.iter().all(|b| b.offset.is_none()) {
            return;
        }
        // Buffer, first byte, end, first launch, last launch.
        let mut placed: Vec<(usize, u64, u64, usize, usize)> = vec![];
        for (&b, &(first, last)) in spans {
            let buffer = &p.buffers[b];
            let BufferKind::Value { bytes, rows } = buffer.kind else { continue };
            let place = format!("buffer \"{}\"", buffer.name);
            let Some(from) = buffer.offset else {
                self.error("E0359", place, "is used and has no offset".into());
                continue;
            };
            let to = from.saturating_add(u64::from(bytes));
            if to > p.arena(rows) {
                self.error("E0359", place, format!("ends at {to} in an arena of {} bytes", p.arena(rows)));
            }
            let same =
                |b: usize| matches!(p.buffers[b].kind, BufferKind::Value { rows: r, .. } if (r == Outputs) == (rows == Outputs));
            for &(other, f, t, a, z) in placed.iter().filter(|o| same(o.0)) {
                if from < t && f < to && first <= z && a <= last {
                    let (m, n) = (first.max(a), &p.buffers[other].name);
                    let launch = p.launches.get(m).map_or("", |l| &l.name);
                    let m = format!("overlaps \"{n}\" ({from}..{to} and {f}..{t}), both are live at launch \"{launch}\"");
                    self.error("E0360", format!("buffer \"{}\"", buffer.name), m);
                }
            }
            placed.push((b, from, to, first, last));
        }
    }
}

/// Is a layout one that [`MatrixLayout::pack_matrix`] can fill and a kernel can read?
pub fn check_layout(l: &MatrixLayout) -> Result<(), String> {
    l.order.check()?;
    if let Format::Affine { bits, group, .. } = l.format {
        if !BITS.contains(&bits) {
            return Err(format!("codes have 2, 3, 4, 5, 6 or 8 bits, not {bits}"));
        }
        if !GROUPS.contains(&group) {
            return Err(format!("a group has 32, 64 or 128 elements, not {group}"));
        }
    }
    if l.cols == 0 || !l.cols.is_multiple_of(l.unit()) {
        return Err(format!("units of {} do not divide {} columns", l.unit(), l.cols));
    }
    if l.rows == 0 || l.stack == 0 {
        return Err("a matrix has rows".into());
    }
    if !l.chain_lanes.is_power_of_two() || l.chain_lanes > 32 || !l.order.lanes.is_multiple_of(l.chain_lanes) {
        return Err(format!("{} lanes cannot share the {} chains of a row", l.chain_lanes, l.order.lanes));
    }
    if ![1, 2, 4].contains(&l.vec) || !l.words().is_multiple_of(l.vec) {
        return Err(format!("a unit's {} words are not read {} at a time", l.words(), l.vec));
    }
    Ok(())
}
