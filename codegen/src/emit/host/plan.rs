//! Decides for a block of several warps which values are computed once, repeated, or stored per warp (see
//! [`segments`](super::segments)).

use super::super::value::Shape;
use super::*;
use std::collections::BTreeSet;

/// Longest integer computation that is repeated rather than stored.
const REPEAT: u32 = 8;

/// Per-warp storage of a value.
#[derive(Clone)]
pub(super) struct Slot<'c> {
    pub shape: Shape,
    pub at: PointerValue<'c>,
}

/// What is known about values before emission.
pub(super) struct Plan<'c> {
    /// Computed once per block.
    pub outer: Vec<bool>,
    /// Operations to repeat, if it can be.
    pub repeat: Vec<Option<u32>>,
    /// Segment that defines the value, and is it used elsewhere?
    home: Vec<u32>,
    pub cross: Vec<bool>,
    segment: u32,
    /// Carried values that turned out not to be outer.
    demoted: BTreeSet<V>,
    pub slots: Vec<Option<Slot<'c>>>,
}

/// Where a value is used or defined: in block-level control flow.
const BLOCK: u32 = 0;

/// Does the instruction stand outside of the loops over warps?
pub(super) fn cuts(i: &Inst) -> bool {
    match &i.op {
        Op::Barrier | Op::Pipeline { .. } => true,
        Op::For { body, .. } => body.has_barrier(),
        Op::If { then, els, .. } => then.has_barrier() || els.has_barrier(),
        _ => false,
    }
}

/// All values read in an instruction, nested blocks included, and all defined there.
pub(super) fn touched(i: &Inst, used: &mut Vec<V>, made: &mut BTreeSet<V>) {
    used.extend(i.op.operands());
    made.extend(&i.results);
    let mut block = |b: &Block, used: &mut Vec<V>| b.insts.iter().for_each(|i| touched(i, used, made));
    match &i.op {
        Op::For { iv, carried, body, yields, .. } => {
            block(body, used);
            used.extend(yields);
            made.insert(*iv);
            made.extend(carried.iter().map(|c| c.0));
        }
        Op::If { then, els, then_yields, els_yields, .. } => {
            block(then, used);
            block(els, used);
            used.extend(then_yields.iter().chain(els_yields));
        }
        _ => {}
    }
}

impl<'c> Plan<'c> {
    /// Decides for a kernel.
    pub fn new(k: &Kernel) -> Self {
        let n = k.types.len();
        let mut demoted = BTreeSet::new();
        loop {
            let mut p = Plan {
                outer: vec![false; n],
                repeat: vec![None; n],
                home: vec![BLOCK; n],
                cross: vec![false; n],
                segment: BLOCK,
                demoted: demoted.clone(),
                slots: vec![None; n],
            };
            p.block(k, &k.body);
            if p.demoted == demoted {
                return p;
            }
            demoted = p.demoted;
        }
    }

    fn block(&mut self, k: &Kernel, b: &Block) {
        let mut open = false;
        for i in &b.insts {
            if cuts(i) {
                open = false;
                self.control(k, i);
                continue;
            }
            if self.is_outer(k, i) {
                i.results.iter().for_each(|r| self.outer[r.idx()] = true);
                continue;
            }
            if !open {
                open = true;
                self.segment += 1;
            }
            let (mut used, mut made) = (vec![], BTreeSet::new());
            touched(i, &mut used, &mut made);
            let here = self.segment;
            made.iter().for_each(|v| self.home[v.idx()] = here);
            used.iter().for_each(|&v| self.used(v, here));
            if let [r] = i.results[..] {
                self.repeat[r.idx()] = self.cost(k, &i.op);
            }
        }
    }

    fn used(&mut self, v: V, here: u32) {
        if !self.outer[v.idx()] && self.home[v.idx()] != here {
            self.cross[v.idx()] = true;
        }
    }

    fn is_outer(&self, k: &Kernel, i: &Inst) -> bool {
        let kept = match &i.op {
            Op::Warp => false,
            Op::Load { mem: Mem::Buf(b), .. } => !k.bufs[*b as usize].write,
            op => op.is_pure(),
        };
        kept && i.op.operands().iter().all(|v| self.outer[v.idx()])
    }

    /// Operations to compute an integer again from what is at hand in every segment.
    fn cost(&self, k: &Kernel, op: &Op) -> Option<u32> {
        let own = match op {
            Op::Warp => return Some(0),
            Op::Int(IntOp::Div | IntOp::Rem, ..) => return None,
            Op::Int(..) | Op::ICmp(..) | Op::Bool(..) => 1,
            Op::Select(_, a, _) if k.ty(*a) != Ty::F32 => 1,
            _ => return None,
        };
        let mut sum = own;
        for v in op.operands() {
            if !self.outer[v.idx()] {
                sum += self.repeat[v.idx()]?;
            }
        }
        (sum <= REPEAT).then_some(sum)
    }

    /// Block-level control flow.
    fn control(&mut self, k: &Kernel, i: &Inst) {
        i.op.operands().iter().for_each(|&v| self.used(v, BLOCK));
        let carry = |p: &mut Self, carried: &[(V, V)], ivs: &[V]| {
            ivs.iter().for_each(|v| p.outer[v.idx()] = true);
            for (v, init) in carried {
                if p.outer[init.idx()] && !p.demoted.contains(v) {
                    p.outer[v.idx()] = true;
                } else {
                    p.demoted.insert(*v);
                    p.cross[v.idx()] = true;
                }
            }
        };
        let leave = |p: &mut Self, carried: &[(V, V)], yields: &[V]| {
            for ((v, _), (y, r)) in carried.iter().zip(yields.iter().zip(&i.results)) {
                p.used(*y, BLOCK);
                if !p.outer[y.idx()] {
                    p.demoted.insert(*v);
                }
                p.outer[r.idx()] = !p.demoted.contains(v);
                p.cross[r.idx()] = true;
            }
        };
        match &i.op {
            Op::For { iv, carried, body, yields, .. } => {
                carry(self, carried, &[*iv]);
                self.block(k, body);
                leave(self, carried, yields);
            }
            Op::Pipeline { copy_iv, copy_slot, copy, iv, slot, carried, body, yields, .. } => {
                self.outer[copy_iv.idx()] = true;
                self.outer[copy_slot.idx()] = true;
                self.block(k, copy);
                carry(self, carried, &[*iv, *slot]);
                self.block(k, body);
                leave(self, carried, yields);
            }
            Op::If { then, els, then_yields, els_yields, .. } => {
                self.block(k, then);
                self.block(k, els);
                for (r, (a, b)) in i.results.iter().zip(then_yields.iter().zip(els_yields)) {
                    self.used(*a, BLOCK);
                    self.used(*b, BLOCK);
                    self.outer[r.idx()] = self.outer[a.idx()] && self.outer[b.idx()];
                    self.cross[r.idx()] = true;
                }
            }
            _ => {}
        }
    }
}

impl Plan<'_> {
    /// A stand-in.
    pub fn empty() -> Self {
        Plan {
            outer: vec![],
            repeat: vec![],
            home: vec![],
            cross: vec![],
            segment: BLOCK,
            demoted: BTreeSet::new(),
            slots: vec![],
        }
    }
}
