//! Control: blocks in an order, between two barriers the warps of a block one after the other in an order, loops and
//! conditions around barriers in lockstep.

use super::decode::{Code, Fixed, Loop, Node, Program, S};
use super::exec::{Exec, executor};
use super::fault::{Check, Fault};
use super::mem::{Ctx, Reg, land};
use super::shadow::Shadow;
use super::{Arg, Order, RunOptions, Stats};
use crate::diag::Result;
use crate::kernel::text::line_at;
use crate::kernel::{Kernel, LANES};

pub(super) fn run(k: &Kernel, p: &Program, grid: [u32; 2], args: &mut [Arg<'_>], o: &RunOptions) -> Result<Stats> {
    let (offsets, total) = k.shared_layout();
    let warps = k.warps as usize;
    let cx = Ctx {
        k,
        args,
        shared: vec![0; total as usize],
        offsets,
        shadow: o.shadow.then(|| Box::new(Shadow::new(k))),
        warp: 0,
        block: 0,
        iteration: 0,
    };
    let mut w = Walker {
        p,
        cx,
        exec: executor(),
        regs: vec![[0; LANES]; warps * p.slots],
        warps,
        order: Shuffler::new(o.warp_order),
        scratch: vec![],
        insts: 0,
        steps: 0,
        max_steps: if o.max_steps == 0 { u64::MAX } else { o.max_steps },
    };
    w.fill_fixed();
    let blocks = grid[0].saturating_mul(grid[1]);
    let mut order = vec![];
    Shuffler::new(o.block_order).fill(&mut order, blocks);
    for b in order {
        let at = [b % grid[0], b / grid[0]];
        w.cx.block = b;
        w.cx.shared.fill(if o.poison { 0xff } else { 0 });
        if let Some(s) = &mut w.cx.shadow {
            s.next_block();
        }
        w.fill_block(at);
        if let Err(fault) = w.all(&p.root) {
            let line = fault.at.map(|at| line_at(k, p.ordinal[at as usize]));
            return Err(fault.diagnose(k, at, line));
        }
    }
    Ok(Stats { warp_insts: w.insts })
}

/// Orders in which things run.
struct Shuffler {
    order: Order,
    state: u64,
}

impl Shuffler {
    fn new(order: Order) -> Self {
        let state = if let Order::Shuffled(seed) = order { seed } else { 0 };
        Shuffler { order, state }
    }

    /// splitmix64
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, out: &mut Vec<u32>, n: u32) {
        out.clear();
        out.extend(0..n);
        match self.order {
            Order::InOrder => {}
            Order::Reverse => out.reverse(),
            Order::Shuffled(_) => {
                for i in (1..out.len()).rev() {
                    let j = (self.random() % (i as u64 + 1)) as usize;
                    out.swap(i, j);
                }
            }
        }
    }
}

struct Walker<'a, 'b> {
    p: &'a Program,
    cx: Ctx<'a, 'b>,
    exec: Exec,
    /// The registers of all warps, one warp after the other.
    regs: Vec<Reg>,
    warps: usize,
    order: Shuffler,
    scratch: Vec<Reg>,
    insts: u64,
    steps: u64,
    max_steps: u64,
}

impl<'a> Walker<'a, '_> {
    fn regs(&mut self, warp: usize) -> &mut [Reg] {
        let n = self.p.slots;
        &mut self.regs[warp * n..(warp + 1) * n]
    }

    fn fill_fixed(&mut self) {
        let p = self.p;
        for w in 0..self.warps {
            for (s, what) in &p.fixed {
                self.regs(w)[*s as usize] = match what {
                    Fixed::Bits(x) => [*x; LANES],
                    Fixed::Lane => std::array::from_fn(|i| i as u32),
                    Fixed::Warp => [w as u32; LANES],
                    Fixed::BlockX | Fixed::BlockY => continue,
                };
            }
        }
    }

    fn fill_block(&mut self, at: [u32; 2]) {
        let p = self.p;
        for w in 0..self.warps {
            for (s, what) in &p.fixed {
                let x = match what {
                    Fixed::BlockX => at[0],
                    Fixed::BlockY => at[1],
                    _ => continue,
                };
                self.regs(w)[*s as usize] = [x; LANES];
            }
        }
    }

    fn tick(&mut self, n: u64) -> Check {
        self.steps += n;
        if self.steps > self.max_steps {
            return Err(Fault::new("E0162", format!("more than {} steps", self.max_steps)));
        }
        Ok(())
    }

    fn barrier(&mut self) {
        if let Some(s) = &mut self.cx.shadow {
            s.barrier();
        }
    }

    /// A value that is the same in all lanes.
    fn uniform(&self, warp: usize, s: S) -> Check<u32> {
        let r = &self.regs[warp * self.p.slots + s as usize];
        match r.iter().position(|x| *x != r[0]) {
            None => Ok(r[0]),
            Some(lane) => {
                let m = format!("control depends on {} in lane 0 and {} in lane {lane}", r[0], r[lane]);
                let mut f = Fault::lane("E0155", lane, m);
                f.warp = Some(warp as u32);
                Err(f)
            }
        }
    }

    /// A value that is the same in all warps.
    fn block_uniform(&self, s: S) -> Check<u32> {
        let first = self.uniform(0, s)?;
        for w in 1..self.warps {
            let x = self.uniform(w, s)?;
            if x != first {
                let mut f = Fault::new("E0155", format!("control depends on {first} in warp 0 and {x} in warp {w}"));
                f.warp = Some(w as u32);
                return Err(f);
            }
        }
        Ok(first)
    }

    /// A block for all warps.
    fn all(&mut self, c: &'a Code) -> Check {
        let mut nodes = &c.nodes[..];
        let mut order = vec![];
        while let Some((node, sync)) = nodes.first() {
            if *sync {
                self.lockstep(node)?;
                nodes = &nodes[1..];
                continue;
            }
            let n = nodes.iter().take_while(|n| !n.1).count();
            self.order.fill(&mut order, self.warps as u32);
            for w in &order {
                for (node, _) in &nodes[..n] {
                    self.one(node, *w as usize)?;
                }
            }
            nodes = &nodes[n..];
        }
        Ok(())
    }

    /// A node without barriers for one warp.
    fn one(&mut self, node: &'a Node, w: usize) -> Check {
        match node {
            Node::Run(from, to) => {
                let n = u64::from(to - from);
                self.insts += n;
                self.tick(n)?;
                self.cx.warp = w as u32;
                let slots = self.p.slots;
                let regs = &mut self.regs[w * slots..(w + 1) * slots];
                (self.exec)(&self.p.code[*from as usize..*to as usize], *from, regs, &mut self.cx)
            }
            Node::For(l) => {
                let trip = (self.uniform(w, l.trip)? as i32).max(0) as u32;
                self.enter(l, w);
                for i in 0..trip {
                    self.tick(1)?;
                    self.regs(w)[l.iv as usize] = [i; LANES];
                    for (node, _) in &l.body.nodes {
                        self.one(node, w)?;
                    }
                    self.next(l, w);
                }
                Ok(())
            }
            Node::If { cond, then, els, results, then_yields, els_yields } => {
                let taken = self.uniform(w, *cond)? != 0;
                let (code, yields) = if taken { (then, then_yields) } else { (els, els_yields) };
                for (node, _) in &code.nodes {
                    self.one(node, w)?;
                }
                self.give(*results, yields, w);
                Ok(())
            }
            Node::Barrier | Node::Pipeline { .. } => unreachable!("a barrier in code without barriers"),
        }
    }

    /// Carried values get their initial ones.
    fn enter(&mut self, l: &Loop, w: usize) {
        let r = self.regs(w);
        for (s, init) in &l.carried {
            r[*s as usize] = r[*init as usize];
        }
    }

    /// Carried values get their next ones, all at once.
    fn next(&mut self, l: &Loop, w: usize) {
        let n = self.p.slots;
        let r = &mut self.regs[w * n..(w + 1) * n];
        match (&l.carried[..], &l.yields[..]) {
            ([], _) => {}
            ([(s, _)], [y]) => r[*s as usize] = r[*y as usize],
            (carried, yields) => {
                self.scratch.clear();
                self.scratch.extend(yields.iter().map(|y| r[*y as usize]));
                for ((s, _), v) in carried.iter().zip(&self.scratch) {
                    r[*s as usize] = *v;
                }
            }
        }
    }

    fn give(&mut self, results: S, yields: &[S], w: usize) {
        let r = self.regs(w);
        for (s, y) in (results..).zip(yields) {
            r[s as usize] = r[*y as usize];
        }
    }

    /// A node with barriers for all warps.
    fn lockstep(&mut self, node: &'a Node) -> Check {
        match node {
            Node::Barrier => self.barrier(),
            Node::For(l) => {
                let trip = (self.block_uniform(l.trip)? as i32).max(0) as u32;
                (0..self.warps).for_each(|w| self.enter(l, w));
                for i in 0..trip {
                    self.tick(1)?;
                    for w in 0..self.warps {
                        self.regs(w)[l.iv as usize] = [i; LANES];
                    }
                    self.all(&l.body)?;
                    (0..self.warps).for_each(|w| self.next(l, w));
                }
            }
            Node::If { cond, then, els, results, then_yields, els_yields } => {
                let taken = self.block_uniform(*cond)? != 0;
                let (code, yields) = if taken { (then, then_yields) } else { (els, els_yields) };
                self.all(code)?;
                (0..self.warps).for_each(|w| self.give(*results, yields, w));
            }
            Node::Pipeline { stages, copy_iv, copy_slot, copy, slot, body: l } => {
                let trip = (self.block_uniform(l.trip)? as i32).max(0) as u32;
                (0..self.warps).for_each(|w| self.enter(l, w));
                // With shadow memory copies are issued as early as on a GPU, else when they are needed.
                let ahead = if self.cx.shadow.is_some() { stages - 1 } else { 0 };
                let issue = |me: &mut Self, i: u32| {
                    me.cx.iteration = i;
                    for w in 0..me.warps {
                        me.regs(w)[*copy_iv as usize] = [i; LANES];
                        me.regs(w)[*copy_slot as usize] = [i % stages; LANES];
                    }
                    me.all(copy)
                };
                for i in 0..ahead.min(trip) {
                    issue(self, i)?;
                }
                for i in 0..trip {
                    self.tick(1)?;
                    if ahead == 0 {
                        issue(self, i)?;
                    }
                    self.land(i);
                    self.barrier();
                    if ahead != 0 && i.checked_add(ahead).is_some_and(|j| j < trip) {
                        issue(self, i + ahead)?;
                    }
                    for w in 0..self.warps {
                        self.regs(w)[l.iv as usize] = [i; LANES];
                        self.regs(w)[*slot as usize] = [i % stages; LANES];
                    }
                    self.all(&l.body)?;
                    (0..self.warps).for_each(|w| self.next(l, w));
                }
                if trip > 0 {
                    self.barrier();
                }
            }
            Node::Run(..) => unreachable!("straight code runs warp by warp"),
        }
        Ok(())
    }

    fn land(&mut self, iteration: u32) {
        let landed = self.cx.shadow.as_mut().map(|s| s.land(iteration)).unwrap_or_default();
        for p in &landed {
            land(&mut self.cx, p);
        }
    }
}
