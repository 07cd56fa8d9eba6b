//! Parses kernels. Several errors of one text are reported together; each names line and column.

use super::{BOOL, ELEM, FCMP, FLOAT, ICMP, INT, MAX_DEPTH, TYPE, named, renumber};
use crate::diag::{Diagnostic, Result};
use crate::kernel::verify::result_types;
use crate::kernel::{ApproxOp, Block, Buf, Inst, Kernel, Mem, Op, Shared, Ty, V};
use crate::text::lex::{Cursor, Tok, lex};
use std::collections::BTreeMap;

/// After this many errors the rest of the text is not read.
const MAX_ERRORS: usize = 20;

/// The one kernel of a text.
pub fn parse(text: &str) -> Result<Kernel, Vec<Diagnostic>> {
    let mut ks = parse_all(text)?;
    match (ks.pop(), ks.is_empty()) {
        (Some(k), true) => Ok(k),
        _ => Err(vec![Diagnostic::new("E0102", format!("expected one kernel, found {}", ks.len() + 1))]),
    }
}

/// The kernel of a text without its body: what a launch of compiled code needs. The body is not read, and may be anything.
pub fn parse_head(text: &str) -> Result<Kernel, Vec<Diagnostic>> {
    let of_head = |line: &str| {
        let word = line.split_whitespace().next().unwrap_or_default();
        word.is_empty() || word.starts_with("//") || word.starts_with(';') || ["kernel", "buf", "shared"].contains(&word)
    };
    // The first line belongs to it whatever it says, so that its faults are told.
    let end =
        text.split_inclusive('\n').enumerate().take_while(|(i, line)| *i == 0 || of_head(line)).map(|(_, line)| line.len()).sum();
    parse(&format!("{}\n}}", text.get(..end).unwrap_or(text)))
}

/// The kernels of a text, at least one.
pub fn parse_all(text: &str) -> Result<Vec<Kernel>, Vec<Diagnostic>> {
    let (tokens, errors) = lex(text);
    let mut p = Parser { c: Cursor::new(tokens), k: empty(), names: BTreeMap::new(), errors, depth: 0 };
    let mut kernels = vec![];
    loop {
        match p.kernel() {
            Ok(()) => {
                p.names.clear();
                kernels.push(renumber(&std::mem::replace(&mut p.k, empty())));
            }
            Err(Stop(d)) => {
                p.errors.extend(d);
                break;
            }
        }
        if p.c.peek().tok == Tok::End {
            break;
        }
    }
    if p.errors.is_empty() { Ok(kernels) } else { Err(p.errors) }
}

fn empty() -> Kernel {
    Kernel {
        name: String::new(),
        warps: 1,
        min_blocks: 0,
        contract: false,
        bufs: vec![],
        shared: vec![],
        types: vec![],
        body: Block::default(),
    }
}

/// The rest of the text cannot be read; the diagnostic is absent if it was recorded already.
struct Stop(Option<Diagnostic>);

impl From<Diagnostic> for Stop {
    fn from(d: Diagnostic) -> Self {
        Stop(Some(d))
    }
}

struct Parser<'a> {
    c: Cursor<'a>,
    k: Kernel,
    /// Value numbers of the text.
    names: BTreeMap<u32, V>,
    errors: Vec<Diagnostic>,
    depth: usize,
}

/// A definition and the type stated for it.
type Def = (V, Option<Ty>);

impl Parser<'_> {
    fn kernel(&mut self) -> Result<(), Stop> {
        self.c.word("kernel")?;
        self.k.name = self.c.ident("kernel name")?.to_string();
        self.k.warps = self.setting("warps", u32::MAX)?;
        self.k.min_blocks = self.setting("min_blocks", u32::MAX)?;
        self.k.contract = self.c.eat_word("contract");
        self.c.punct('{')?;
        self.line_end()?;
        loop {
            let from = self.c.at();
            match self.declaration() {
                Ok(true) => {}
                Ok(false) => break,
                Err(d) => self.recover(d, from)?,
            }
        }
        let (body, yields) = self.block()?;
        if !yields.is_empty() {
            return Err(Stop(Some(Diagnostic::new("E0102", "a kernel yields nothing").at(self.c.peek().place()))));
        }
        self.k.body = body;
        self.c.punct('}')?;
        Ok(())
    }

    /// `name=N`
    fn setting(&mut self, name: &str, max: u32) -> Result<u32> {
        self.c.word(name)?;
        self.c.punct('=')?;
        Ok(self.c.int(name, 0, i64::from(max))? as u32)
    }

    fn declaration(&mut self) -> Result<bool> {
        if self.c.eat_word("buf") {
            let name = self.c.ident("buffer name")?.to_string();
            let (write, fixed) = match self.c.peek().tok {
                Tok::Ident("read") => (false, false),
                Tok::Ident("fixed") => (false, true),
                Tok::Ident("write") => (true, false),
                _ => return Err(self.c.unexpected("`read`, `fixed` or `write`")),
            };
            self.c.next();
            self.k.bufs.push(Buf { name, write, fixed });
        } else if self.c.eat_word("shared") {
            let name = self.c.ident("array name")?.to_string();
            let bytes = self.c.int("size in bytes", 0, i64::from(u32::MAX))? as u32;
            self.k.shared.push(Shared { name, bytes });
        } else {
            return Ok(false);
        }
        self.line_end()?;
        Ok(true)
    }

    /// Records an error and goes on with the next line, if the braces allow it.
    fn recover(&mut self, d: Diagnostic, from: usize) -> Result<(), Stop> {
        let fatal = d.code == "E0104";
        self.errors.push(d);
        if self.c.skip_line(from) || fatal || self.errors.len() >= MAX_ERRORS {
            return Err(Stop(None));
        }
        Ok(())
    }

    fn line_end(&self) -> Result<()> {
        if self.c.peek().first { Ok(()) } else { Err(self.c.unexpected("end of line")) }
    }

    /// Instructions up to `}` (not taken), and what they yield.
    fn block(&mut self) -> Result<(Block, Vec<V>), Stop> {
        let mut b = Block::default();
        let mut yields = vec![];
        loop {
            match self.c.peek().tok {
                Tok::Punct('}') => return Ok((b, yields)),
                Tok::End => return Err(self.c.unexpected("an instruction or `}`").into()),
                _ => {}
            }
            let from = self.c.at();
            let r = if self.c.eat_word("yield") {
                self.uses_to_line_end(&mut yields)
            } else {
                match self.inst() {
                    Ok(i) => {
                        b.insts.push(i);
                        Ok(())
                    }
                    Err(Stop(None)) => return Err(Stop(None)),
                    Err(Stop(Some(d))) => Err(d),
                }
            };
            if let Err(d) = r.and_then(|()| self.line_end()) {
                self.recover(d, from)?;
            }
        }
    }

    fn uses_to_line_end(&mut self, out: &mut Vec<V>) -> Result<()> {
        while !self.c.peek().first {
            out.push(self.value()?);
        }
        if out.is_empty() || self.c.peek().tok != Tok::Punct('}') {
            return Err(self.c.unexpected(if out.is_empty() { "a value" } else { "`}` after `yield`" }));
        }
        Ok(())
    }

    /// `{ block }`, one level deeper.
    fn region(&mut self) -> Result<(Block, Vec<V>), Stop> {
        let place = self.c.peek().place();
        self.c.punct('{')?;
        self.line_end()?;
        if self.depth >= MAX_DEPTH {
            return Err(Diagnostic::new("E0104", format!("regions are nested deeper than {MAX_DEPTH}")).at(place).into());
        }
        self.depth += 1;
        let r = self.block();
        self.depth -= 1;
        let r = r?;
        self.c.punct('}')?;
        Ok(r)
    }

    fn value(&mut self) -> Result<V> {
        let Tok::Value(n) = self.c.peek().tok else { return Err(self.c.unexpected("a value like `%1`")) };
        self.c.next();
        Ok(*self.names.entry(n).or_insert_with(|| {
            self.k.types.push(Ty::I32);
            V(self.k.types.len() as u32 - 1)
        }))
    }

    fn def(&mut self) -> Result<Def> {
        let v = self.value()?;
        if !self.c.eat(':') {
            return Ok((v, None));
        }
        let t = match self.c.peek().tok {
            Tok::Ident(s) => named(&TYPE, s),
            _ => None,
        };
        if t.is_none() {
            return Err(self.c.unexpected("a type (i32, f32, bool)"));
        }
        self.c.next();
        Ok((v, t))
    }

    fn set(&mut self, (v, stated): Def, follows: Ty) -> V {
        self.k.types[v.idx()] = stated.unwrap_or(follows);
        v
    }

    /// A definition whose type is i32 unless stated.
    fn def_i32(&mut self) -> Result<V> {
        let d = self.def()?;
        Ok(self.set(d, Ty::I32))
    }

    fn inst(&mut self) -> Result<Inst, Stop> {
        let mut defs = vec![];
        while let Tok::Value(_) = self.c.peek().tok {
            defs.push(self.def()?);
        }
        if !defs.is_empty() {
            self.c.punct('=')?;
        }
        let t = self.c.peek();
        let name = self.c.ident("an instruction")?;
        let op = match name {
            "for" => self.for_()?,
            "if" => self.if_()?,
            "pipeline" => self.pipeline()?,
            _ => match self.plain(name)? {
                Some(op) => op,
                None => {
                    return Err(Diagnostic::new("E0102", format!("unknown instruction `{name}`")).at(t.place()).into());
                }
            },
        };
        let follows = result_types(&op, &self.k.types, defs.len());
        let results =
            defs.into_iter().enumerate().map(|(i, d)| self.set(d, follows.get(i).copied().unwrap_or(Ty::I32))).collect();
        Ok(Inst { op, results })
    }

    fn carry(&mut self) -> Result<Vec<(V, V)>> {
        let mut out = vec![];
        if self.c.eat_word("carry") {
            loop {
                let d = self.def()?;
                self.c.punct('=')?;
                let init = self.value()?;
                let t = self.k.types[init.idx()];
                out.push((self.set(d, t), init));
                if !self.c.eat(',') {
                    break;
                }
            }
        }
        Ok(out)
    }

    fn for_(&mut self) -> Result<Op, Stop> {
        let iv = self.def_i32()?;
        self.c.word("in")?;
        let trip = self.value()?;
        let carried = self.carry()?;
        let (body, yields) = self.region()?;
        Ok(Op::For { trip, iv, carried, body, yields })
    }

    fn if_(&mut self) -> Result<Op, Stop> {
        let cond = self.value()?;
        let (then, then_yields) = self.region()?;
        let (els, els_yields) = if self.c.eat_word("else") { self.region()? } else { Default::default() };
        Ok(Op::If { cond, then, els, then_yields, els_yields })
    }

    fn pipeline(&mut self) -> Result<Op, Stop> {
        let stages = self.setting("stages", u32::MAX)?;
        self.c.word("in")?;
        let trip = self.value()?;
        self.c.word("copy")?;
        let (copy_iv, copy_slot) = (self.def_i32()?, self.def_i32()?);
        let (copy, none) = self.region()?;
        if !none.is_empty() {
            return Err(Diagnostic::new("E0102", "a copy block yields nothing").at(self.c.peek().place()).into());
        }
        self.c.word("body")?;
        let (iv, slot) = (self.def_i32()?, self.def_i32()?);
        let carried = self.carry()?;
        let (body, yields) = self.region()?;
        Ok(Op::Pipeline { stages, trip, copy_iv, copy_slot, copy, iv, slot, carried, body, yields })
    }

    fn mem(&mut self) -> Result<(Mem, V)> {
        let t = self.c.peek();
        let s = self.c.ident("`buf.NAME` or `shared.NAME`")?;
        let pos = |p: Option<usize>| p.map(|i| i as u32);
        let mem = if let Some(n) = s.strip_prefix("buf.") {
            pos(self.k.bufs.iter().position(|b| b.name == n)).map(Mem::Buf)
        } else if let Some(n) = s.strip_prefix("shared.") {
            pos(self.k.shared.iter().position(|b| b.name == n)).map(Mem::Shared)
        } else {
            None
        };
        let Some(mem) = mem else {
            let m = format!("`{s}` is no declared buffer or shared array");
            return Err(Diagnostic::new("E0105", m)
                .at(t.place())
                .hint("declare `buf NAME read|fixed|write` or `shared NAME BYTES`, use `buf.NAME` or `shared.NAME`"));
        };
        self.c.punct('[')?;
        let idx = self.value()?;
        self.c.punct(']')?;
        Ok((mem, idx))
    }

    fn pred(&mut self) -> Result<Option<V>> {
        if !self.c.peek().first && self.c.eat_word("if") { self.value().map(Some) } else { Ok(None) }
    }

    /// An instruction without blocks.
    fn plain(&mut self, name: &str) -> Result<Option<Op>> {
        if let Some(op) = named(&INT, name) {
            return Ok(Some(Op::Int(op, self.value()?, self.value()?)));
        }
        if let Some(op) = named(&FLOAT, name) {
            return Ok(Some(Op::Float(op, self.value()?, self.value()?)));
        }
        if let Some(op) = named(&ICMP, name) {
            return Ok(Some(Op::ICmp(op, self.value()?, self.value()?)));
        }
        if let Some(op) = named(&FCMP, name) {
            return Ok(Some(Op::FCmp(op, self.value()?, self.value()?)));
        }
        if let Some(op) = named(&BOOL, name) {
            return Ok(Some(Op::Bool(op, self.value()?, self.value()?)));
        }
        if let Some(elem) = name.strip_prefix("load.").and_then(|s| named(&ELEM, s)) {
            let (mem, idx) = self.mem()?;
            return Ok(Some(Op::Load { mem, elem, idx, pred: self.pred()? }));
        }
        if let Some(elem) = name.strip_prefix("store.").and_then(|s| named(&ELEM, s)) {
            let (mem, idx) = self.mem()?;
            self.c.punct('=')?;
            let val = self.value()?;
            return Ok(Some(Op::Store { mem, elem, idx, val, pred: self.pred()? }));
        }
        Ok(Some(match name {
            "iconst" => Op::ConstI(self.c.int("integer constant", i64::from(i32::MIN), i64::from(i32::MAX))? as i32),
            "fconst" => match self.c.peek().tok {
                Tok::Int { hex: true, neg: false, .. } => {
                    Op::ConstF(self.c.int("bits of the constant", 0, i64::from(u32::MAX))? as u32)
                }
                _ => return Err(self.c.unexpected("the bits of the constant (like 0x3f800000)")),
            },
            "bconst" => {
                let t = self.c.eat_word("true");
                if !t && !self.c.eat_word("false") {
                    return Err(self.c.unexpected("`true` or `false`"));
                }
                Op::ConstB(t)
            }
            "lane" => Op::Lane,
            "warp" => Op::Warp,
            "block.x" => Op::BlockX,
            "block.y" => Op::BlockY,
            "fma" => Op::Fma(self.value()?, self.value()?, self.value()?),
            "roundeven" => Op::RoundEven(self.value()?),
            "round.bf16" => Op::RoundBf16(self.value()?),
            "exp2.approx" => Op::Approx(ApproxOp::Exp2, self.value()?),
            "rsqrt.approx" => Op::Approx(ApproxOp::Rsqrt, self.value()?),
            "select" => Op::Select(self.value()?, self.value()?, self.value()?),
            "bitcast.f32" => Op::BitsToF(self.value()?),
            "bitcast.i32" => Op::FToBits(self.value()?),
            "itof" => Op::IToF(self.value()?),
            "ftoi" => Op::FToI(self.value()?),
            "dp4a.ss" | "dp4a.su" | "dp4a.us" | "dp4a.uu" => Op::Dp4a {
                a_signed: name.as_bytes()[5] == b's',
                b_signed: name.as_bytes()[6] == b's',
                a: self.value()?,
                b: self.value()?,
                acc: self.value()?,
            },
            "mma.ss" | "mma.su" | "mma.us" | "mma.uu" => Op::Mma {
                a_signed: name.as_bytes()[4] == b's',
                b_signed: name.as_bytes()[5] == b's',
                a: [self.value()?, self.value()?, self.value()?, self.value()?],
                b: [self.value()?, self.value()?],
                acc: [self.value()?, self.value()?, self.value()?, self.value()?],
            },
            "shuffle.xor" => {
                let a = self.value()?;
                Op::ShuffleXor(a, self.c.int("mask", 0, i64::from(u32::MAX))? as u32)
            }
            "shuffle.idx" => Op::ShuffleIdx(self.value()?, self.value()?),
            "barrier" => Op::Barrier,
            "atomic.add" | "atomic.fadd" => {
                let float = name == "atomic.fadd";
                let place = self.c.peek().place();
                let (mem, idx) = self.mem()?;
                let Mem::Buf(buf) = mem else {
                    return Err(Diagnostic::new("E0102", "only words of a buffer are added to atomically").at(place));
                };
                self.c.punct('=')?;
                let val = self.value()?;
                Op::AtomicAdd { buf, idx, val, pred: self.pred()?, float }
            }
            "copy" => {
                let place = self.c.peek().place();
                let (dst, dst_idx) = self.mem()?;
                self.c.punct('=')?;
                let (src, src_idx) = self.mem()?;
                let (Mem::Shared(dst), Mem::Buf(src)) = (dst, src) else {
                    return Err(Diagnostic::new("E0102", "a copy goes from a buffer to a shared array").at(place));
                };
                Op::Copy { dst, dst_idx, src, src_idx, pred: self.pred()? }
            }
            _ => return Ok(None),
        }))
    }
}
