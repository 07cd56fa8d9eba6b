//! Decodes a verified kernel: values become slots of a warp's register file, constants and numbers of lane, warp and
//! block live in slots of their own that are filled once, straight code becomes one array.

use crate::kernel::{ApproxOp, Block, BoolOp, Elem, FCmp, FloatOp, ICmp, Inst, IntOp, Kernel, Mem, Op, V};
use std::collections::BTreeMap;

/// A register slot: 32 lanes of 32 bits.
pub(super) type S = u32;

/// No predicate.
pub(super) const NONE: S = u32::MAX;

/// A decoded straight-line instruction. Results of one instruction lie in consecutive slots.
#[derive(Clone, Copy, Debug)]
pub(super) enum D {
    Int(IntOp, S, S, S),
    Float(FloatOp, S, S, S),
    Fma(S, S, S, S),
    RoundEven(S, S),
    RoundBf16(S, S),
    Approx(ApproxOp, S, S),
    ICmp(ICmp, S, S, S),
    FCmp(FCmp, S, S, S),
    Bool(BoolOp, S, S, S),
    Select(S, S, S, S),
    IToF(S, S),
    FToI(S, S),
    Dp4a { signs: u8, d: S, a: S, b: S, acc: S },
    Mma { signs: u8, d: S, a: [S; 4], b: [S; 2], acc: [S; 4] },
    ShuffleXor(S, S, u8),
    ShuffleIdx(S, S, S),
    Load { mem: Mem, elem: Elem, n: u8, d: S, idx: S, pred: S },
    Store { mem: Mem, elem: Elem, idx: S, val: S, pred: S },
    AtomicAdd { buf: u32, idx: S, val: S, pred: S, float: bool },
    Copy { dst: u32, src: u32, dst_idx: S, src_idx: S, pred: S },
}

/// A loop or pipeline body and its values.
pub(super) struct Loop {
    pub trip: S,
    pub iv: S,
    /// (slot of the carried value, which is also the result; slot of its initial value)
    pub carried: Vec<(S, S)>,
    pub yields: Vec<S>,
    pub body: Code,
}

pub(super) enum Node {
    /// Range of the code array.
    Run(u32, u32),
    Barrier,
    For(Loop),
    If {
        cond: S,
        then: Code,
        els: Code,
        results: S,
        then_yields: Vec<S>,
        els_yields: Vec<S>,
    },
    Pipeline {
        stages: u32,
        copy_iv: S,
        copy_slot: S,
        copy: Code,
        slot: S,
        body: Loop,
    },
}

/// A block: nodes, and which contain barriers.
pub(super) struct Code {
    pub nodes: Vec<(Node, bool)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fixed {
    Bits(u32),
    Lane,
    Warp,
    BlockX,
    BlockY,
}

pub(super) struct Program {
    pub code: Vec<D>,
    /// For each entry of `code`: the number of the instruction in the text.
    pub ordinal: Vec<u32>,
    pub root: Code,
    pub slots: usize,
    /// Slots that are filled before a block runs.
    pub fixed: Vec<(S, Fixed)>,
}

pub(super) fn decode(k: &Kernel) -> Program {
    let mut fixed = BTreeMap::new();
    fixed_slots(&k.body, &mut fixed);
    let n = fixed.len() as u32;
    let mut cx = Cx { k, slot: vec![NONE; k.types.len()], next: n, max: n, fixed, code: vec![], ordinal: vec![], at: 0 };
    let root = cx.block(&k.body);
    let fixed = cx.fixed.into_iter().map(|(f, s)| (s, f)).collect();
    Program { code: cx.code, ordinal: cx.ordinal, root, slots: cx.max as usize, fixed }
}

fn fixed(k: &Op) -> Option<Fixed> {
    Some(match k {
        Op::ConstI(x) => Fixed::Bits(*x as u32),
        Op::ConstF(x) => Fixed::Bits(*x),
        Op::ConstB(x) => Fixed::Bits(u32::from(*x)),
        Op::Lane => Fixed::Lane,
        Op::Warp => Fixed::Warp,
        Op::BlockX => Fixed::BlockX,
        Op::BlockY => Fixed::BlockY,
        _ => return None,
    })
}

fn fixed_slots(b: &Block, out: &mut BTreeMap<Fixed, S>) {
    for inst in &b.insts {
        match &inst.op {
            Op::For { body, .. } => fixed_slots(body, out),
            Op::If { then, els, .. } => {
                fixed_slots(then, out);
                fixed_slots(els, out);
            }
            Op::Pipeline { copy, body, .. } => {
                fixed_slots(copy, out);
                fixed_slots(body, out);
            }
            op => {
                if let Some(f) = fixed(op) {
                    let n = out.len() as u32;
                    out.entry(f).or_insert(n);
                }
            }
        }
    }
}

struct Cx<'a> {
    k: &'a Kernel,
    /// Slot of each value.
    slot: Vec<S>,
    /// Slots are a stack: those of a block are free again after it.
    next: S,
    max: S,
    fixed: BTreeMap<Fixed, S>,
    code: Vec<D>,
    ordinal: Vec<u32>,
    /// Instructions seen, in textual order.
    at: u32,
}

impl Cx<'_> {
    fn s(&self, v: V) -> S {
        self.slot[v.idx()]
    }

    fn p(&self, v: Option<V>) -> S {
        v.map_or(NONE, |v| self.s(v))
    }

    fn many(&self, vs: &[V]) -> Vec<S> {
        vs.iter().map(|v| self.s(*v)).collect()
    }

    fn new_slot(&mut self, v: V) -> S {
        let s = self.next;
        self.next += 1;
        self.max = self.max.max(self.next);
        self.slot[v.idx()] = s;
        s
    }

    fn new_slots(&mut self, vs: &[V]) -> S {
        let first = self.next;
        vs.iter().for_each(|v| {
            self.new_slot(*v);
        });
        first
    }

    /// Runs `f` with slots that are free again afterwards.
    fn scope<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let next = self.next;
        let r = f(self);
        self.next = next;
        r
    }

    fn block(&mut self, b: &Block) -> Code {
        let mut nodes = vec![];
        let mut start = self.code.len() as u32;
        let flush = |cx: &Self, nodes: &mut Vec<(Node, bool)>, start: u32| {
            let end = cx.code.len() as u32;
            if end > start {
                nodes.push((Node::Run(start, end), false));
            }
        };
        for inst in &b.insts {
            let ordinal = self.at;
            self.at += 1;
            if let Some(d) = self.plain(inst) {
                self.code.extend(d);
                self.ordinal.resize(self.code.len(), ordinal);
                continue;
            }
            flush(self, &mut nodes, start);
            let node = self.node(inst);
            nodes.push(node);
            start = self.code.len() as u32;
        }
        flush(self, &mut nodes, start);
        Code { nodes }
    }

    /// Carried values get the slots of the results, which outlive the body.
    fn carried(&mut self, inst: &Inst, carried: &[(V, V)]) -> Vec<(S, S)> {
        let first = self.new_slots(&inst.results);
        carried
            .iter()
            .zip(first..)
            .map(|((p, init), s)| {
                self.slot[p.idx()] = s;
                (s, self.s(*init))
            })
            .collect()
    }

    fn node(&mut self, inst: &Inst) -> (Node, bool) {
        match &inst.op {
            Op::For { trip, iv, carried, body, yields } => {
                let carried = self.carried(inst, carried);
                let trip = self.s(*trip);
                let l = self.scope(|cx| {
                    let iv = cx.new_slot(*iv);
                    let body = cx.block(body);
                    Loop { trip, iv, carried, yields: cx.many(yields), body }
                });
                (Node::For(l), body.has_barrier())
            }
            Op::If { cond, then, els, then_yields, els_yields } => {
                let results = self.new_slots(&inst.results);
                let sync = then.has_barrier() || els.has_barrier();
                let cond = self.s(*cond);
                let mut arm = |b: &Block, yields: &[V]| {
                    self.scope(|cx| {
                        let code = cx.block(b);
                        (code, cx.many(yields))
                    })
                };
                let (then, then_yields) = arm(then, then_yields);
                let (els, els_yields) = arm(els, els_yields);
                (Node::If { cond, then, els, results, then_yields, els_yields }, sync)
            }
            Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields } => {
                let carried = self.carried(inst, carried);
                let trip = self.s(*trip);
                // Copies run while values of the body live: no slot is shared between the two.
                self.scope(|cx| {
                    let (copy_iv, copy_slot) = (cx.new_slot(*copy_iv), cx.new_slot(*copy_slot));
                    let copy = cx.block(copy);
                    let (iv, slot) = (cx.new_slot(*iv), cx.new_slot(*slot));
                    let body = cx.block(body);
                    let body = Loop { trip, iv, carried, yields: cx.many(yields), body };
                    (Node::Pipeline { stages: *stages, copy_iv, copy_slot, copy, slot, body }, true)
                })
            }
            _ => (Node::Barrier, true),
        }
    }

    /// Code of an instruction without blocks (none for constants); `None` for the others.
    fn plain(&mut self, inst: &Inst) -> Option<Option<D>> {
        if let Some(f) = fixed(&inst.op) {
            self.slot[inst.results[0].idx()] = self.fixed[&f];
            return Some(None);
        }
        if let Op::BitsToF(a) | Op::FToBits(a) = &inst.op {
            // The same bits: the same slot.
            self.slot[inst.results[0].idx()] = self.s(*a);
            return Some(None);
        }
        let s = |v: &V| self.slot[v.idx()];
        // Results get their slots last: they never share one with an operand.
        let d = self.next;
        let code = match &inst.op {
            Op::Int(op, a, b) => D::Int(*op, d, s(a), s(b)),
            Op::Float(op, a, b) => D::Float(*op, d, s(a), s(b)),
            Op::Fma(a, b, c) => D::Fma(d, s(a), s(b), s(c)),
            Op::RoundEven(a) => D::RoundEven(d, s(a)),
            Op::RoundBf16(a) => D::RoundBf16(d, s(a)),
            Op::Approx(op, a) => D::Approx(*op, d, s(a)),
            Op::ICmp(op, a, b) => D::ICmp(*op, d, s(a), s(b)),
            Op::FCmp(op, a, b) => D::FCmp(*op, d, s(a), s(b)),
            Op::Bool(op, a, b) => D::Bool(*op, d, s(a), s(b)),
            Op::Select(p, a, b) => D::Select(d, s(p), s(a), s(b)),
            Op::IToF(a) => D::IToF(d, s(a)),
            Op::FToI(a) => D::FToI(d, s(a)),
            Op::Dp4a { a_signed, b_signed, a, b, acc } => {
                let signs = u8::from(*a_signed) * 2 + u8::from(*b_signed);
                D::Dp4a { signs, d, a: s(a), b: s(b), acc: s(acc) }
            }
            Op::Mma { a_signed, b_signed, a, b, acc } => {
                let signs = u8::from(*a_signed) * 2 + u8::from(*b_signed);
                D::Mma { signs, d, a: a.each_ref().map(s), b: b.each_ref().map(s), acc: acc.each_ref().map(s) }
            }
            Op::ShuffleXor(a, mask) => D::ShuffleXor(d, s(a), *mask as u8),
            Op::ShuffleIdx(a, src) => D::ShuffleIdx(d, s(a), s(src)),
            Op::Load { mem, elem, idx, pred } => {
                D::Load { mem: *mem, elem: *elem, n: inst.results.len() as u8, d, idx: s(idx), pred: self.p(*pred) }
            }
            Op::Store { mem, elem, idx, val, pred } => {
                D::Store { mem: *mem, elem: *elem, idx: s(idx), val: s(val), pred: self.p(*pred) }
            }
            Op::AtomicAdd { buf, idx, val, pred, float } => {
                D::AtomicAdd { buf: *buf, idx: s(idx), val: s(val), pred: self.p(*pred), float: *float }
            }
            Op::Copy { dst, dst_idx, src, src_idx, pred } => {
                D::Copy { dst: *dst, src: *src, dst_idx: s(dst_idx), src_idx: s(src_idx), pred: self.p(*pred) }
            }
            _ => return None,
        };
        self.new_slots(&inst.results);
        debug_assert!(inst.results.iter().all(|r| r.idx() < self.k.types.len()));
        Some(Some(code))
    }
}
