//! Prints kernels. The text of a kernel depends on nothing but the kernel.

use super::{BOOL, FCMP, FLOAT, ICMP, INT, elem_name, name_of, renumber, ty_name};
use crate::kernel::verify::result_types;
use crate::kernel::{Block, Inst, Kernel, Mem, Op, Ty, V};
use std::fmt::{self, Write};

/// The text of a kernel; values are renumbered (see [`renumber`]).
pub fn print(k: &Kernel) -> String {
    let k = &renumber(k);
    let mut p = Printer { k, out: String::new() };
    let contract = if k.contract { " contract" } else { "" };
    let _ = writeln!(p.out, "kernel {} warps={} min_blocks={}{contract} {{", k.name, k.warps, k.min_blocks);
    for b in &k.bufs {
        let _ = writeln!(
            p.out,
            "  buf {} {}",
            b.name,
            match (b.write, b.fixed) {
                (true, _) => "write",
                (_, true) => "fixed",
                _ => "read",
            }
        );
    }
    for s in &k.shared {
        let _ = writeln!(p.out, "  shared {} {}", s.name, s.bytes);
    }
    p.block(&k.body, &[], 1);
    p.out.push_str("}\n");
    p.out
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

/// One instruction as it stands in the text, without the blocks in it, under the kernel's own numbering.
pub fn line(k: &Kernel, inst: &Inst) -> String {
    let mut p = Printer { k, out: String::new() };
    p.head(inst);
    p.out
}

/// The line of the `n`th instruction of a kernel, counted as they stand in the text.
pub(crate) fn line_at(k: &Kernel, n: u32) -> String {
    fn find<'a>(b: &'a Block, n: &mut u32) -> Option<&'a Inst> {
        for inst in &b.insts {
            if *n == 0 {
                return Some(inst);
            }
            *n -= 1;
            let inner = match &inst.op {
                Op::For { body, .. } => find(body, n),
                Op::If { then, els, .. } => find(then, n).or_else(|| find(els, n)),
                Op::Pipeline { copy, body, .. } => find(copy, n).or_else(|| find(body, n)),
                _ => None,
            };
            if inner.is_some() {
                return inner;
            }
        }
        None
    }
    find(&k.body, &mut { n }).map_or_else(String::new, |i| line(k, i))
}

struct Printer<'a> {
    k: &'a Kernel,
    out: String,
}

impl Printer<'_> {
    fn put(&mut self, args: fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(args);
    }

    /// The definition of `v`, with its type where that is not the one that follows.
    fn def(&mut self, v: V, follows: Ty) {
        self.put(format_args!("%{}", v.0));
        if let Some(&t) = self.k.types.get(v.idx())
            && t != follows
        {
            self.put(format_args!(":{}", ty_name(t)));
        }
    }

    fn uses(&mut self, vs: &[V]) {
        for v in vs {
            self.put(format_args!(" %{}", v.0));
        }
    }

    fn pred(&mut self, p: Option<V>) {
        if let Some(p) = p {
            self.put(format_args!(" if %{}", p.0));
        }
    }

    fn mem(&mut self, m: Mem, idx: V) {
        let (kind, name, n) = match m {
            Mem::Buf(b) => ("buf", self.k.bufs.get(b as usize).map(|b| b.name.as_str()), b),
            Mem::Shared(s) => ("shared", self.k.shared.get(s as usize).map(|s| s.name.as_str()), s),
        };
        match name {
            Some(name) => self.put(format_args!(" {kind}.{name}[%{}]", idx.0)),
            None => self.put(format_args!(" {kind}.?{n}[%{}]", idx.0)),
        }
    }

    fn carry(&mut self, carried: &[(V, V)]) {
        for (i, (p, init)) in carried.iter().enumerate() {
            self.out.push_str(if i == 0 { " carry " } else { ", " });
            self.def(*p, self.k.types.get(init.idx()).copied().unwrap_or(Ty::I32));
            self.put(format_args!(" = %{}", init.0));
        }
    }

    fn block(&mut self, b: &Block, yields: &[V], depth: usize) {
        let indent = "  ".repeat(depth);
        for inst in &b.insts {
            self.out.push_str(&indent);
            self.head(inst);
            match &inst.op {
                Op::ConstF(x) => self.put(format_args!(" // {:?}", f32::from_bits(*x))),
                Op::For { body, yields, .. } => {
                    self.out.push('\n');
                    self.block(body, yields, depth + 1);
                    self.put(format_args!("{indent}}}"));
                }
                Op::If { then, els, then_yields, els_yields, .. } => {
                    self.out.push('\n');
                    self.block(then, then_yields, depth + 1);
                    if !els.insts.is_empty() || !els_yields.is_empty() {
                        self.put(format_args!("{indent}}} else {{\n"));
                        self.block(els, els_yields, depth + 1);
                    }
                    self.put(format_args!("{indent}}}"));
                }
                Op::Pipeline { copy, iv, slot, carried, body, yields, .. } => {
                    self.out.push('\n');
                    self.block(copy, &[], depth + 1);
                    self.put(format_args!("{indent}}} body "));
                    self.def(*iv, Ty::I32);
                    self.out.push(' ');
                    self.def(*slot, Ty::I32);
                    self.carry(carried);
                    self.out.push_str(" {\n");
                    self.block(body, yields, depth + 1);
                    self.put(format_args!("{indent}}}"));
                }
                _ => {}
            }
            self.out.push('\n');
        }
        if !yields.is_empty() {
            self.put(format_args!("{indent}yield"));
            self.uses(yields);
            self.out.push('\n');
        }
    }

    fn head(&mut self, inst: &Inst) {
        let follows = result_types(&inst.op, &self.k.types, inst.results.len());
        for (i, r) in inst.results.iter().enumerate() {
            self.def(*r, follows.get(i).copied().unwrap_or(Ty::I32));
            self.out.push(' ');
        }
        if !inst.results.is_empty() {
            self.out.push_str("= ");
        }
        match &inst.op {
            Op::ConstI(x) => self.put(format_args!("iconst {x}")),
            Op::ConstF(x) => self.put(format_args!("fconst {x:#010x}")),
            Op::ConstB(x) => self.put(format_args!("bconst {x}")),
            Op::Lane => self.out.push_str("lane"),
            Op::Warp => self.out.push_str("warp"),
            Op::BlockX => self.out.push_str("block.x"),
            Op::BlockY => self.out.push_str("block.y"),
            Op::Int(op, ..) => self.out.push_str(name_of(&INT, *op)),
            Op::Float(op, ..) => self.out.push_str(name_of(&FLOAT, *op)),
            Op::Fma(..) => self.out.push_str("fma"),
            Op::RoundEven(_) => self.out.push_str("roundeven"),
            Op::RoundBf16(_) => self.out.push_str("round.bf16"),
            Op::Approx(op, _) => self.out.push_str(op.name()),
            Op::ICmp(op, ..) => self.out.push_str(name_of(&ICMP, *op)),
            Op::FCmp(op, ..) => self.out.push_str(name_of(&FCMP, *op)),
            Op::Bool(op, ..) => self.out.push_str(name_of(&BOOL, *op)),
            Op::Select(..) => self.out.push_str("select"),
            Op::BitsToF(_) => self.out.push_str("bitcast.f32"),
            Op::FToBits(_) => self.out.push_str("bitcast.i32"),
            Op::IToF(_) => self.out.push_str("itof"),
            Op::FToI(_) => self.out.push_str("ftoi"),
            Op::Dp4a { a_signed, b_signed, .. } => {
                let sign = |s: bool| if s { 's' } else { 'u' };
                self.put(format_args!("dp4a.{}{}", sign(*a_signed), sign(*b_signed)));
            }
            Op::Mma { a_signed, b_signed, .. } => {
                let sign = |s: bool| if s { 's' } else { 'u' };
                self.put(format_args!("mma.{}{}", sign(*a_signed), sign(*b_signed)));
            }
            Op::ShuffleXor(a, mask) => {
                self.put(format_args!("shuffle.xor %{} {mask}", a.0));
                return;
            }
            Op::ShuffleIdx(..) => self.out.push_str("shuffle.idx"),
            Op::Barrier => self.out.push_str("barrier"),
            Op::Load { mem, elem, idx, pred } => {
                self.put(format_args!("load.{}", elem_name(*elem)));
                self.mem(*mem, *idx);
                self.pred(*pred);
                return;
            }
            Op::Store { mem, elem, idx, val, pred } => {
                self.put(format_args!("store.{}", elem_name(*elem)));
                self.mem(*mem, *idx);
                self.put(format_args!(" = %{}", val.0));
                self.pred(*pred);
                return;
            }
            Op::AtomicAdd { buf, idx, val, pred, float } => {
                self.out.push_str(if *float { "atomic.fadd" } else { "atomic.add" });
                self.mem(Mem::Buf(*buf), *idx);
                self.put(format_args!(" = %{}", val.0));
                self.pred(*pred);
                return;
            }
            Op::Copy { dst, dst_idx, src, src_idx, pred } => {
                self.out.push_str("copy");
                self.mem(Mem::Shared(*dst), *dst_idx);
                self.out.push_str(" =");
                self.mem(Mem::Buf(*src), *src_idx);
                self.pred(*pred);
                return;
            }
            Op::For { trip, iv, carried, .. } => {
                self.out.push_str("for ");
                self.def(*iv, Ty::I32);
                self.put(format_args!(" in %{}", trip.0));
                self.carry(carried);
                self.out.push_str(" {");
                return;
            }
            Op::If { cond, .. } => {
                self.put(format_args!("if %{} {{", cond.0));
                return;
            }
            Op::Pipeline { stages, trip, copy_iv, copy_slot, .. } => {
                self.put(format_args!("pipeline stages={stages} in %{} copy ", trip.0));
                self.def(*copy_iv, Ty::I32);
                self.out.push(' ');
                self.def(*copy_slot, Ty::I32);
                self.out.push_str(" {");
                return;
            }
        }
        self.uses(&inst.op.operands());
    }
}
