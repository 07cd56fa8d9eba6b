//! Verifier of kernels. [`verify`] reports every violation, each with the printed line. It promises that a kernel
//! without errors is safe to print, to interpret and to compile:
//!
//! * names: the kernel is a symbol `[a-z_][a-z0-9_]*`, buffers and shared arrays have unique names (E0137, E0138);
//! * sizes: 1 to 32 warps, shared arrays of whole 16 bytes, at most 99 KiB together, nesting at most 32 (E0139 to E0141, E0115);
//! * values: one definition each, before its uses, used only in its block and blocks in it (E0116 to E0118);
//! * types: operands, results and yields fit the operation (E0119 to E0122), loads have 1, 2 or 4 results;
//! * constants: shift amounts below 32, divisors not 0, shuffle masks below 32, 2 to 8 pipeline stages, constant
//!   indices inside shared arrays and aligned (E0123 to E0127);
//! * control: trip counts and conditions are warp-uniform, and block-uniform where a barrier or a pipeline is
//!   inside (E0128, E0129);
//! * pipelines: copies stand only in copy blocks, which hold nothing but pure operations and copies; bodies have no
//!   barrier (E0130 to E0132);
//! * memory: no store to a read-only buffer, no copy from a written one, every memory operand is declared (E0133 to
//!   E0135);
//! * atomic additions: only to a buffer that is written and with which the kernel does nothing else (E0133, E0370);
//! * float: nothing that LLVM would rewrite (E0136).

mod float;
mod sig;

pub(crate) use sig::result_types;

use super::text::{MAX_DEPTH, defined_once, line, renumber, ty_name};
use super::uniform::{Uniform, uniformity};
use super::{Block, Elem, Inst, IntOp, Kernel, Mem, Op, Ty, V};
use crate::diag::Diagnostic;
use std::collections::BTreeSet;

/// Shared memory that every target has for one block.
pub const MAX_SHARED: u32 = 99 * 1024;

/// Codes of the verifier's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0115", "regions are nested deeper than 32"),
    ("E0116", "a value is used before its definition, or has none"),
    ("E0117", "a value is used outside the block that defines it"),
    ("E0118", "a value is defined twice"),
    ("E0119", "an operand has the wrong type"),
    ("E0120", "a result has the wrong type"),
    ("E0121", "an instruction has the wrong number of results"),
    ("E0122", "what a block yields does not fit the instruction's carried values or results"),
    ("E0123", "a constant shift amount is not 0 to 31"),
    ("E0124", "division by the constant 0"),
    ("E0125", "a shuffle mask is not 0 to 31"),
    ("E0126", "a pipeline does not have 2 to 8 stages"),
    ("E0127", "a constant index is outside its shared array, or not a multiple of the vector length"),
    ("E0128", "a trip count or condition differs between the lanes of a warp"),
    ("E0129", "a barrier or pipeline stands in control flow that differs between the warps of a block"),
    ("E0130", "a copy stands outside the copy block of a pipeline"),
    ("E0131", "the copy block of a pipeline has something other than pure operations and copies"),
    ("E0132", "the body of a pipeline has a barrier or a pipeline"),
    ("E0133", "a store to a buffer that is declared read-only"),
    ("E0134", "a copy from a buffer that the kernel may write"),
    ("E0135", "a memory operand is not declared"),
    ("E0136", "a float operation that LLVM rewrites, so that counts of operations would no longer agree"),
    ("E0137", "a kernel, buffer or shared array has a name that is not a symbol"),
    ("E0138", "two buffers or two shared arrays have one name"),
    ("E0139", "the number of warps is not 1 to 32"),
    ("E0140", "a shared array is empty or not a multiple of 16 bytes"),
    ("E0141", "the shared arrays take more than 99 KiB"),
    ("E0370", "a buffer that is added to atomically is also read, stored to or copied from"),
];

/// All violations of the rules above. The diagnostics number values as the printed text does.
pub fn verify(k: &Kernel) -> Result<(), Vec<Diagnostic>> {
    let k = &renumber(k);
    let n = k.types.len();
    let mut cx = Cx {
        k,
        errors: vec![],
        state: vec![State::Undefined; n],
        consts: vec![None; n],
        uniform: None,
        line: String::new(),
        depth: 0,
        place: Place::Plain,
        added: vec![],
    };
    cx.declarations();
    if defined_once(k) && well_counted(&k.body) {
        cx.uniform = Some(uniformity(k));
    }
    let mut scope = vec![];
    let mut uses = vec![[false; 2]; k.bufs.len()];
    buffer_uses(&k.body, &mut uses);
    cx.added = uses.into_iter().map(|[added, other]| added && other).collect();
    cx.insts(&k.body, &mut scope);
    if cx.errors.is_empty() { Ok(()) } else { Err(cx.errors) }
}

/// Of each buffer: is it added to atomically, is it used otherwise?
fn buffer_uses(b: &Block, uses: &mut [[bool; 2]]) {
    for i in &b.insts {
        let (buf, how) = match &i.op {
            Op::AtomicAdd { buf, .. } => (*buf, 0),
            Op::Load { mem: Mem::Buf(buf), .. } | Op::Store { mem: Mem::Buf(buf), .. } | Op::Copy { src: buf, .. } => (*buf, 1),
            Op::For { body, .. } => {
                buffer_uses(body, uses);
                continue;
            }
            Op::If { then, els, .. } => {
                buffer_uses(then, uses);
                buffer_uses(els, uses);
                continue;
            }
            Op::Pipeline { copy, body, .. } => {
                buffer_uses(copy, uses);
                buffer_uses(body, uses);
                continue;
            }
            _ => continue,
        };
        if let Some(u) = uses.get_mut(buf as usize) {
            u[how] = true;
        }
    }
}

/// Are the numbers of results and yields such that the uniformity analysis can run?
fn well_counted(b: &Block) -> bool {
    b.insts.iter().all(|i| {
        let n = result_types(&i.op, &[], i.results.len()).len();
        n == i.results.len()
            && match &i.op {
                Op::For { carried, body, yields, .. } => carried.len() == yields.len() && well_counted(body),
                Op::If { then, els, then_yields, els_yields, .. } => {
                    then_yields.len() == els_yields.len() && well_counted(then) && well_counted(els)
                }
                Op::Pipeline { carried, copy, body, yields, .. } => {
                    carried.len() == yields.len() && well_counted(copy) && well_counted(body)
                }
                _ => true,
            }
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Undefined,
    Visible,
    Left,
}

/// Where an instruction stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Plain,
    CopyBlock,
    PipelineBody,
}

struct Cx<'a> {
    k: &'a Kernel,
    errors: Vec<Diagnostic>,
    state: Vec<State>,
    /// The constant operation that defines a value.
    consts: Vec<Option<&'a Op>>,
    uniform: Option<Vec<Uniform>>,
    /// The instruction at hand, printed.
    line: String,
    depth: usize,
    place: Place,
    /// Buffers that are added to atomically and used otherwise too.
    added: Vec<bool>,
}

impl<'a> Cx<'a> {
    fn error(&mut self, code: &'static str, message: impl Into<String>, hint: &str) {
        let mut place = format!("kernel {}", self.k.name);
        if !self.line.is_empty() {
            place = format!("{place}: `{}`", self.line);
        }
        self.errors.push(Diagnostic::new(code, message).at(place).hint(hint));
    }

    fn declarations(&mut self) {
        let k = self.k;
        let word = |s: &str, upper: bool| {
            let ok = |c: char| c == '_' || c.is_ascii_lowercase() || (upper && c.is_ascii_uppercase());
            s.starts_with(ok) && s.chars().all(|c| ok(c) || c.is_ascii_digit() || (upper && c == '.'))
        };
        if !word(&k.name, false) {
            self.error("E0137", format!("kernel name `{}` is not a symbol", k.name), "use [a-z_][a-z0-9_]*");
        }
        if !(1..=32).contains(&k.warps) {
            self.error("E0139", format!("{} warps", k.warps), "a block has 1 to 32 warps");
        }
        let bufs: Vec<&String> = k.bufs.iter().map(|b| &b.name).collect();
        let shared: Vec<&String> = k.shared.iter().map(|s| &s.name).collect();
        for (what, names) in [("buffer", bufs), ("shared array", shared)] {
            let mut seen = BTreeSet::new();
            for name in names {
                if !word(name, true) {
                    self.error("E0137", format!("{what} name `{name}` is not a symbol"), "use [A-Za-z_][A-Za-z0-9_.]*");
                }
                if !seen.insert(name) {
                    self.error("E0138", format!("{what} name `{name}` is used twice"), "names are unique in a kernel");
                }
            }
        }
        let mut total = 0u64;
        for s in &k.shared {
            total += u64::from(s.bytes);
            if s.bytes == 0 || !s.bytes.is_multiple_of(16) {
                let m = format!("shared array `{}` has {} bytes", s.name, s.bytes);
                self.error("E0140", m, "use a positive multiple of 16");
            }
        }
        if total > u64::from(MAX_SHARED) {
            self.error("E0141", format!("{total} bytes of shared memory"), &format!("at most {MAX_SHARED} fit every target"));
        }
    }

    fn define(&mut self, v: V, scope: &mut Vec<V>) {
        if self.state[v.idx()] != State::Undefined {
            self.error("E0118", format!("%{} is defined twice", v.0), "give each definition its own value");
        }
        self.state[v.idx()] = State::Visible;
        scope.push(v);
    }

    fn used(&mut self, v: V) {
        match self.state[v.idx()] {
            State::Visible => {}
            State::Undefined => self.error("E0116", format!("%{} is used before its definition", v.0), ""),
            State::Left => {
                let m = format!("%{} is used outside the block that defines it", v.0);
                self.error("E0117", m, "yield it from the block");
            }
        }
    }

    /// A block of its own scope: `params` are defined in it, `yields` leave it.
    fn block(&mut self, b: &'a Block, params: &[V], yields: &[V], place: Place) {
        let head = self.line.clone();
        let outer = self.place;
        if outer == Place::Plain {
            self.place = place;
        }
        let mut scope = vec![];
        params.iter().for_each(|v| self.define(*v, &mut scope));
        if self.depth == MAX_DEPTH {
            self.error("E0115", format!("regions are nested deeper than {MAX_DEPTH}"), "");
        } else {
            self.depth += 1;
            self.insts(b, &mut scope);
            self.depth -= 1;
        }
        self.line = head;
        yields.iter().for_each(|v| self.used(*v));
        scope.iter().for_each(|v| self.state[v.idx()] = State::Left);
        self.place = outer;
    }

    fn insts(&mut self, b: &'a Block, scope: &mut Vec<V>) {
        for inst in &b.insts {
            self.line = line(self.k, inst);
            self.operands(inst);
            self.operation(inst);
            match &inst.op {
                Op::For { iv, carried, body, yields, .. } => {
                    let params: Vec<V> = std::iter::once(*iv).chain(carried.iter().map(|c| c.0)).collect();
                    self.block(body, &params, yields, Place::Plain);
                }
                Op::If { then, els, then_yields, els_yields, .. } => {
                    self.block(then, &[], then_yields, Place::Plain);
                    self.block(els, &[], els_yields, Place::Plain);
                }
                Op::Pipeline { copy_iv, copy_slot, copy, iv, slot, carried, body, yields, .. } => {
                    self.block(copy, &[*copy_iv, *copy_slot], &[], Place::CopyBlock);
                    let params: Vec<V> = [*iv, *slot].into_iter().chain(carried.iter().map(|c| c.0)).collect();
                    self.block(body, &params, yields, Place::PipelineBody);
                }
                _ => {}
            }
            self.results(inst, scope);
        }
    }

    fn operands(&mut self, inst: &Inst) {
        let types = &self.k.types;
        for (v, want) in inst.op.operands().into_iter().zip(sig::operand_types(&inst.op, types)) {
            self.used(v);
            let got = types[v.idx()];
            if let Some(want) = want
                && got != want
            {
                self.error("E0119", format!("operand %{} is {}, expected {}", v.0, ty_name(got), ty_name(want)), "");
            }
        }
        let params: &[V] = match &inst.op {
            Op::For { iv, .. } => &[*iv],
            Op::Pipeline { copy_iv, copy_slot, iv, slot, .. } => &[*copy_iv, *copy_slot, *iv, *slot],
            _ => &[],
        };
        for v in params {
            if types[v.idx()] != Ty::I32 {
                self.error("E0120", format!("%{} is {}, expected i32", v.0, ty_name(types[v.idx()])), "");
            }
        }
    }

    fn results(&mut self, inst: &'a Inst, scope: &mut Vec<V>) {
        let types = &self.k.types;
        let (n, want) = (inst.results.len(), result_types(&inst.op, types, inst.results.len()));
        if matches!(inst.op, Op::Load { .. }) && ![1, 2, 4].contains(&n) {
            self.error("E0121", format!("a load of {n} results"), "load 1, 2 or 4 elements");
        }
        if n != want.len() {
            self.error("E0121", format!("{n} results, expected {}", want.len()), "");
        }
        for (r, want) in inst.results.iter().zip(want) {
            let got = types[r.idx()];
            if got != want {
                self.error("E0120", format!("result %{} is {}, expected {}", r.0, ty_name(got), ty_name(want)), "");
            }
        }
        for r in &inst.results {
            self.define(*r, scope);
            if let Op::ConstI(_) | Op::ConstF(_) | Op::ConstB(_) = inst.op {
                self.consts[r.idx()] = Some(&inst.op);
            }
        }
    }

    fn const_i(&self, v: V) -> Option<i32> {
        match self.consts[v.idx()] {
            Some(Op::ConstI(x)) => Some(*x),
            _ => None,
        }
    }

    fn yields_fit(&mut self, what: &str, yields: &[V], want: &[V]) {
        let types = &self.k.types;
        if yields.len() != want.len() {
            let m = format!("{what} yields {} values, expected {}", yields.len(), want.len());
            self.error("E0122", m, "");
        }
        for (y, w) in yields.iter().zip(want) {
            let (got, want) = (types[y.idx()], types[w.idx()]);
            if got != want {
                let m = format!("{what} yields %{} of type {}, expected {}", y.0, ty_name(got), ty_name(want));
                self.error("E0122", m, "");
            }
        }
    }

    /// `barrier`: there is a barrier or pipeline inside.
    fn uniform(&mut self, what: &str, v: V, barrier: bool) {
        let Some(u) = self.uniform.as_ref().map(|u| u[v.idx()]) else { return };
        if u > Uniform::Warp {
            let m = format!("{what} %{} may differ between the lanes of a warp", v.0);
            self.error("E0128", m, "control flow is warp-uniform: use selects and predicates instead");
        } else if barrier && u > Uniform::Block {
            let m = format!("{what} %{} may differ between the warps of a block, and a barrier depends on it", v.0);
            self.error("E0129", m, "let all warps take the same path, or move the barrier out");
        }
    }

    fn in_shared(&mut self, mem: Mem, idx: V, bytes: u32, n: usize) {
        let Some(i) = self.const_i(idx) else { return };
        let i = i as u32;
        if matches!(n, 2 | 4) && !i.is_multiple_of(n as u32) {
            self.error("E0127", format!("index {i} is not a multiple of {n}"), "vector accesses are aligned");
        }
        if let Mem::Shared(s) = mem
            && let Some(s) = self.k.shared.get(s as usize)
            && (u64::from(i) + n as u64) * u64::from(bytes) > u64::from(s.bytes)
        {
            let m = format!("index {i} is outside shared array `{}` of {} elements", s.name, s.bytes / bytes);
            self.error("E0127", m, "");
        }
    }

    fn declared(&mut self, mem: Mem) {
        let (kind, n, len) = match mem {
            Mem::Buf(b) => ("buffer", b, self.k.bufs.len()),
            Mem::Shared(s) => ("shared array", s, self.k.shared.len()),
        };
        if n as usize >= len {
            self.error("E0135", format!("{kind} {n} is not declared"), "");
        }
    }

    fn access(&mut self, mem: Mem, elem: Elem, idx: V, n: usize) {
        self.declared(mem);
        self.in_shared(mem, idx, elem.bytes(), n);
    }

    fn operation(&mut self, inst: &Inst) {
        match (self.place, &inst.op) {
            (Place::CopyBlock, op) if !op.is_pure() && !matches!(op, Op::Copy { .. }) => {
                self.error("E0131", "a copy block has only pure operations and copies", "move it in front of the pipeline");
            }
            (Place::PipelineBody, Op::Barrier | Op::Pipeline { .. }) => {
                self.error("E0132", "a pipeline body has no barrier", "the pipeline already separates its iterations");
            }
            (Place::Plain | Place::PipelineBody, Op::Copy { .. }) => {
                self.error("E0130", "a copy outside the copy block of a pipeline", "use a load and a store");
            }
            _ => {}
        }
        let consts = &self.consts;
        let bits = |v: V| match consts[v.idx()] {
            Some(Op::ConstF(x)) => Some(*x),
            _ => None,
        };
        if let Some((m, hint)) = float::rewritten(&inst.op, bits) {
            self.error("E0136", m, hint);
        }
        match &inst.op {
            Op::Int(op, _, b) => match (op, self.const_i(*b)) {
                (IntOp::Shl | IntOp::Lshr | IntOp::Ashr, Some(x)) if !(0..32).contains(&x) => {
                    self.error("E0123", format!("shift by {x}"), "shift by 0 to 31");
                }
                (IntOp::Div | IntOp::Rem, Some(0)) => self.error("E0124", "division by 0", ""),
                _ => {}
            },
            Op::ShuffleXor(_, mask) if *mask > 31 => {
                self.error("E0125", format!("shuffle mask {mask}"), "a warp has 32 lanes: use 0 to 31");
            }
            Op::Load { mem, elem, idx, .. } => self.access(*mem, *elem, *idx, inst.results.len()),
            Op::Store { mem, elem, idx, .. } => {
                self.access(*mem, *elem, *idx, 1);
                if let Mem::Buf(b) = mem
                    && let Some(b) = self.k.bufs.get(*b as usize)
                    && !b.write
                {
                    self.error("E0133", format!("store to read-only buffer `{}`", b.name), "declare it `write`");
                }
            }
            Op::AtomicAdd { buf, .. } => {
                self.declared(Mem::Buf(*buf));
                let Some(b) = self.k.bufs.get(*buf as usize) else { return };
                if !b.write {
                    self.error("E0133", format!("an addition to read-only buffer `{}`", b.name), "declare it `write`");
                }
                if self.added[*buf as usize] {
                    let m = format!("buffer `{}` is added to atomically, and read or stored to", b.name);
                    self.error("E0370", m, "others may add at the same time: give the sums a buffer of their own");
                }
            }
            Op::Copy { dst, dst_idx, src, .. } => {
                self.declared(Mem::Shared(*dst));
                self.declared(Mem::Buf(*src));
                self.in_shared(Mem::Shared(*dst), *dst_idx, 16, 1);
                if let Some(b) = self.k.bufs.get(*src as usize)
                    && b.write
                {
                    let m = format!("copy from buffer `{}`, which this kernel may write", b.name);
                    self.error("E0134", m, "an asynchronous copy could see either value: use loads");
                }
            }
            Op::For { trip, carried, body, yields, .. } => {
                self.uniform("trip count", *trip, body.has_barrier());
                self.yields_fit("the body", yields, &carried.iter().map(|c| c.0).collect::<Vec<_>>());
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                self.uniform("condition", *cond, then.has_barrier() || els.has_barrier());
                self.yields_fit("the `else` block", els_yields, then_yields);
            }
            Op::Pipeline { stages, trip, carried, yields, .. } => {
                if !(2..=8).contains(stages) {
                    self.error("E0126", format!("{stages} pipeline stages"), "use 2 to 8");
                }
                self.uniform("trip count", *trip, true);
                self.yields_fit("the body", yields, &carried.iter().map(|c| c.0).collect::<Vec<_>>());
            }
            _ => {}
        }
    }
}
