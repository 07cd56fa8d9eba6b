//! The textual form of plans. Promises: `parse_whole(print_whole(p)) == p` for every plan whose kernels are numbered as
//! their text numbers them and have names that are symbols; parsing never panics, whatever the text.
//!
//! ```text
//! plan {
//!   arena 2048, outputs 256
//!   k0 = kernel embed
//!   b0 = rows "rows"
//!   b1 = tokens "tokens"
//!   b2 = value "embed" {rows=T, bytes=1024, offset=0}
//!   b3 = keys "kv.0.keys" {layer=0, heads=2, dim=32, window=16}
//!   w0 = affine "embed_tokens" {bits=4, group=64, stack=1, rows=4096, cols=256, order=sum(lanes=1, take=strided, tree=pair), chain_lanes=1, vec=4}
//!   w1 = plain "norm"
//!   w2 = rope "rope.0" {dim=32, rotated=16, theta=0x40c3880000000000, factor=0x3ff0000000000000} // 10000.0, 1.0
//!   launch "embed" k0(b0, b1, w0, b2) {grid_x=1, rows=T} // embed: rows, tokens, embed_tokens, embed
//! }
//! kernel embed warps=4 min_blocks=0 {
//! ...
//! ```
//!
//! One entry a line; kernels, buffers and weights are numbered from 0. Kernels stand by name, their own text follows in
//! the whole form, or is kept elsewhere (`kernels/NAME.kir` in an artifact).

use super::{Arg, Buffer, BufferKind, Launch, Pack, PackedWeight, Plan};
use crate::diag::{Diagnostic, Result};
use crate::graph::Dtype;
use crate::graph::Rows;
use crate::graph::op::RopeParams;
use crate::kernel::Kernel;
use crate::layout::{Format, MatrixLayout};
use crate::text::attr::ReadAttr;
use crate::text::lex::{Cursor, Tok, lex};
use crate::text::name::{quote, string};
use std::fmt::Write;

/// After this many errors the rest of the text is not read.
const MAX_ERRORS: usize = 20;

/// Codes of the parser's diagnostics beside those of [`crate::kernel::text::CODES`].
pub const CODES: &[(&str, &str)] = &[
    ("E0113", "an entry does not have the next number of its kind"),
    ("E0114", "the text of a kernel that the plan names is missing, or one too many"),
];

/// The text of a plan, kernels by name only.
pub fn print(p: &Plan) -> String {
    let mut s = format!("plan {{\n  arena {}, outputs {}\n", p.arena_bytes, p.output_bytes);
    for (i, k) in p.kernels.iter().enumerate() {
        _ = writeln!(s, "  k{i} = kernel {}", k.name);
    }
    for (i, b) in p.buffers.iter().enumerate() {
        let (word, attrs) = buffer(b);
        _ = writeln!(s, "  b{i} = {word} {}{attrs}", quote(&b.name));
    }
    for (i, w) in p.weights.iter().enumerate() {
        let (word, attrs) = weight(&w.pack);
        _ = writeln!(s, "  w{i} = {word} {}{attrs}", quote(&w.tensor));
    }
    for l in &p.launches {
        let args: Vec<String> = l.args.iter().map(arg).collect();
        let (args, rows) = (args.join(", "), rows(l.rows));
        let tokens = if l.tokens == 1 { String::new() } else { format!(", tokens={}", l.tokens) };
        _ = write!(s, "  launch {} k{}({args}) {{grid_x={}, rows={rows}{tokens}}}", quote(&l.name), l.kernel, l.grid_x);
        let kernel = p.kernels.get(l.kernel as usize).map_or("?", |k| &k.name);
        let names: Vec<&str> = l.args.iter().map(|a| arg_name(p, *a)).collect();
        // A name can hold anything, and a comment ends with its line.
        let comment = format!("{kernel}: {}", names.join(", ")).replace(char::is_control, "?");
        _ = writeln!(s, " // {comment}");
    }
    s.push_str("}\n");
    s
}

/// The text of a plan and of its kernels.
pub fn print_whole(p: &Plan) -> String {
    let mut s = print(p);
    for k in &p.kernels {
        s.push_str(&crate::kernel::text::print(k));
        if !s.ends_with('\n') {
            s.push('\n');
        }
    }
    s
}

fn rows(r: Rows) -> &'static str {
    match r {
        Rows::Once => "once",
        Rows::Tokens => "T",
        Rows::Outputs => "O",
    }
}

fn arg(a: &Arg) -> String {
    match a {
        Arg::Buffer(i) => format!("b{i}"),
        Arg::Weight(i) => format!("w{i}"),
    }
}

fn arg_name(p: &Plan, a: Arg) -> &str {
    match a {
        Arg::Buffer(i) => p.buffers.get(i as usize).map_or("?", |b| &b.name),
        Arg::Weight(i) => p.weights.get(i as usize).map_or("?", |w| &w.tensor),
    }
}

fn buffer(b: &Buffer) -> (&'static str, String) {
    let offset = b.offset.map_or("none".into(), |o| o.to_string());
    match &b.kind {
        BufferKind::Value { rows: r, bytes } => ("value", format!(" {{rows={}, bytes={bytes}, offset={offset}}}", rows(*r))),
        BufferKind::Keys { layer, heads, dim, window } => {
            ("keys", format!(" {{layer={layer}, heads={heads}, dim={dim}, window={window}{}}}", stray(b)))
        }
        BufferKind::Values { layer, heads, dim, window } => {
            ("values", format!(" {{layer={layer}, heads={heads}, dim={dim}, window={window}{}}}", stray(b)))
        }
        BufferKind::Parts { rows: r, heads, dim, window } => {
            ("parts", format!(" {{rows={}, heads={heads}, dim={dim}, window={window}{}}}", rows(*r), stray(b)))
        }
        BufferKind::Digests { rows: r } => ("digests", format!(" {{rows={}{}}}", rows(*r), stray(b))),
        BufferKind::Tokens => ("tokens", b.offset.map_or(String::new(), |o| format!(" {{offset={o}}}"))),
        BufferKind::State => ("state", b.offset.map_or(String::new(), |o| format!(" {{offset={o}}}"))),
        BufferKind::Rows => ("rows", b.offset.map_or(String::new(), |o| format!(" {{offset={o}}}"))),
    }
}

/// An offset where none belongs: the verifier's business, not lost here.
fn stray(b: &Buffer) -> String {
    b.offset.map_or(String::new(), |o| format!(", offset={o}"))
}

fn weight(p: &Pack) -> (&'static str, String) {
    match p {
        Pack::Plain => ("plain", String::new()),
        Pack::Matrix(l) => {
            let MatrixLayout { format, stack, rows, cols, order, chain_lanes, vec } = l;
            let (word, format) = match format {
                Format::Affine { bits, group, scales: Dtype::Bf16 } => ("affine", format!("bits={bits}, group={group}")),
                Format::Affine { bits, group, scales } => {
                    ("affine", format!("bits={bits}, group={group}, scales={}", scales.elem()))
                }
                Format::Plain(d) => ("matrix", format!("dtype={}", d.elem())),
            };
            let shape = format!("{format}, stack={stack}, rows={rows}, cols={cols}");
            (word, format!(" {{{shape}, order={order}, chain_lanes={chain_lanes}, vec={vec}}}"))
        }
        Pack::Rope(r) => {
            let (theta, factor) = (r.theta.to_bits(), r.factor.to_bits());
            let s = format!("dim={}, rotated={}, theta={theta:#018x}, factor={factor:#018x}", r.dim, r.rotated);
            ("rope", format!(" {{{s}}} // {:?}, {:?}", r.theta, r.factor))
        }
    }
}

/// The plan of a text, with the kernels that `kernel` gives for their names.
pub fn parse(text: &str, kernel: &mut dyn FnMut(&str) -> Result<Kernel>) -> Result<Plan, Vec<Diagnostic>> {
    let mut p = Parser::new(text);
    p.plan_alone();
    if !matches!(p.c.peek().tok, Tok::End) && p.errors.is_empty() {
        p.errors.push(p.c.unexpected("end of input"));
    }
    let names = std::mem::take(&mut p.kernels);
    for (name, place) in names {
        match kernel(&name) {
            Ok(k) => p.plan.kernels.push(k),
            Err(d) => {
                // One is told; others would cost their reading.
                p.errors.push(if d.place.is_empty() { d.at(place) } else { d });
                break;
            }
        }
    }
    if p.errors.is_empty() { Ok(p.plan) } else { Err(p.errors) }
}

/// The plan of a text in which the kernels follow, in order.
pub fn parse_whole(text: &str) -> Result<Plan, Vec<Diagnostic>> {
    let mut p = Parser::new(text);
    let last = p.plan_alone();
    if !p.errors.is_empty() {
        return Err(p.errors);
    }
    if p.c.peek().tok != Tok::End {
        // The kernels' text, at the lines where it stands.
        let rest: String = text.split_inclusive('\n').skip(last as usize).collect();
        p.plan.kernels = crate::kernel::text::parse_all(&("\n".repeat(last as usize) + &rest))?;
    }
    let found: Vec<&String> = p.plan.kernels.iter().map(|k| &k.name).collect();
    let wanted: Vec<&String> = p.kernels.iter().map(|k| &k.0).collect();
    if found != wanted {
        let m = format!("the plan names the kernels {wanted:?}, their text follows for {found:?}");
        return Err(vec![Diagnostic::new("E0114", m)]);
    }
    Ok(p.plan)
}

struct Parser<'a> {
    c: Cursor<'a>,
    plan: Plan,
    /// Name and place.
    kernels: Vec<(String, String)>,
    errors: Vec<Diagnostic>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let (tokens, errors) = lex(text);
        Parser { c: Cursor::new(tokens), plan: Plan::default(), kernels: vec![], errors }
    }

    /// Reads `plan { ... }`; the line of its last brace.
    fn plan_alone(&mut self) -> u32 {
        match self.entries() {
            Ok(line) => line,
            Err(d) => {
                self.errors.push(d);
                0
            }
        }
    }

    fn entries(&mut self) -> Result<u32> {
        self.c.word("plan")?;
        self.c.punct('{')?;
        loop {
            let t = self.c.peek();
            if self.c.eat('}') {
                if self.c.peek().first {
                    return Ok(t.line);
                }
                return Err(self.c.unexpected("end of line"));
            }
            if t.tok == Tok::End {
                return Err(self.c.unexpected("an entry or `}`"));
            }
            let from = self.c.at();
            let done = self.entry().and_then(|()| {
                let t = self.c.peek();
                if t.first || t.tok == Tok::Punct('}') { Ok(()) } else { Err(self.c.unexpected("end of line")) }
            });
            if let Err(d) = done {
                self.errors.push(d);
                if self.errors.len() >= MAX_ERRORS {
                    return Ok(0);
                }
                self.c.skip_line(from);
            }
        }
    }

    fn entry(&mut self) -> Result<()> {
        let t = self.c.peek();
        let what = "`arena`, `launch`, or an entry like `k0 =`, `b0 =`, `w0 =`";
        match self.c.ident(what)? {
            "arena" => {
                self.plan.arena_bytes = self.u64("arena bytes")?;
                self.c.punct(',')?;
                self.c.word("outputs")?;
                self.plan.output_bytes = self.u64("arena bytes of outputs")?;
            }
            "launch" => return self.launch(),
            word => {
                let counts = [("k", self.kernels.len()), ("b", self.plan.buffers.len()), ("w", self.plan.weights.len())];
                let Some((kind, n)) = counts.into_iter().find(|(k, _)| number(word, k).is_some()) else {
                    let m = format!("expected {what}, found `{word}`");
                    return Err(Diagnostic::new("E0102", m).at(t.place()));
                };
                self.c.punct('=')?;
                // After a faulty line the numbers are off anyway.
                let judge = self.errors.is_empty();
                match kind {
                    "k" => self.kernel(t.place())?,
                    "b" => self.buffer()?,
                    _ => self.weight()?,
                }
                if judge && number(word, kind) != Some(n as u32) {
                    return Err(Diagnostic::new("E0113", format!("expected `{kind}{n}`, found `{word}`")).at(t.place()));
                }
            }
        }
        Ok(())
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        match self.c.peek().tok {
            Tok::Int { neg: false, abs, .. } => {
                self.c.next();
                Ok(abs)
            }
            _ => Err(self.c.unexpected(what)),
        }
    }

    fn kernel(&mut self, place: String) -> Result<()> {
        self.c.word("kernel")?;
        let name = self.c.ident("kernel name")?.to_string();
        self.kernels.push((name, place));
        Ok(())
    }

    fn rows(&mut self) -> Result<Rows> {
        self.c.key("rows")?;
        let r = match self.c.peek().tok {
            Tok::Ident("T") => Rows::Tokens,
            Tok::Ident("O") => Rows::Outputs,
            Tok::Ident("once") => Rows::Once,
            _ => return Err(self.c.unexpected("`T`, `O` or `once`")),
        };
        self.c.next();
        Ok(r)
    }

    fn buffer(&mut self) -> Result<()> {
        let t = self.c.peek();
        let word = self.c.ident("`value`, `keys`, `values`, `parts`, `digests`, `tokens`, `state` or `rows`")?;
        let name = string(&mut self.c, "the buffer's name")?;
        let mut offset = None;
        let kind = match word {
            "value" => {
                self.c.punct('{')?;
                let rows = self.rows()?;
                let bytes = self.c.more_u32("bytes")?;
                self.c.punct(',')?;
                self.c.key("offset")?;
                if !self.c.eat_word("none") {
                    offset = Some(self.u64("an offset or `none`")?);
                }
                self.c.punct('}')?;
                BufferKind::Value { rows, bytes }
            }
            "keys" | "values" => {
                self.c.punct('{')?;
                let layer = self.c.attr_u32("layer")?;
                let heads = self.c.more_u32("heads")?;
                let dim = self.c.more_u32("dim")?;
                let window = self.c.more_u32("window")?;
                if self.c.eat(',') {
                    self.c.key("offset")?;
                    offset = Some(self.u64("an offset")?);
                }
                self.c.punct('}')?;
                if word == "keys" {
                    BufferKind::Keys { layer, heads, dim, window }
                } else {
                    BufferKind::Values { layer, heads, dim, window }
                }
            }
            "parts" => {
                self.c.punct('{')?;
                let rows = self.rows()?;
                let heads = self.c.more_u32("heads")?;
                let dim = self.c.more_u32("dim")?;
                let window = self.c.more_u32("window")?;
                if self.c.eat(',') {
                    self.c.key("offset")?;
                    offset = Some(self.u64("an offset")?);
                }
                self.c.punct('}')?;
                BufferKind::Parts { rows, heads, dim, window }
            }
            "digests" => {
                self.c.punct('{')?;
                let rows = self.rows()?;
                if self.c.eat(',') {
                    self.c.key("offset")?;
                    offset = Some(self.u64("an offset")?);
                }
                self.c.punct('}')?;
                BufferKind::Digests { rows }
            }
            "tokens" | "state" | "rows" => {
                if self.c.eat('{') {
                    self.c.key("offset")?;
                    offset = Some(self.u64("an offset")?);
                    self.c.punct('}')?;
                }
                match word {
                    "tokens" => BufferKind::Tokens,
                    "state" => BufferKind::State,
                    _ => BufferKind::Rows,
                }
            }
            _ => {
                let m = format!(
                    "expected `value`, `keys`, `values`, `parts`, `digests`, `tokens`, `state` or `rows`, found `{word}`"
                );
                return Err(Diagnostic::new("E0102", m).at(t.place()));
            }
        };
        self.plan.buffers.push(Buffer { name, kind, offset });
        Ok(())
    }

    /// `name=bf16, `
    fn dtype(&mut self, name: &str) -> Result<Dtype> {
        self.c.key(name)?;
        let d = match self.c.peek().tok {
            Tok::Ident("bf16") => Dtype::Bf16,
            Tok::Ident("f16") => Dtype::F16,
            Tok::Ident("f32") => Dtype::F32,
            _ => return Err(self.c.unexpected("`bf16`, `f16` or `f32`")),
        };
        self.c.next();
        self.c.punct(',')?;
        Ok(d)
    }

    fn weight(&mut self) -> Result<()> {
        let t = self.c.peek();
        let word = self.c.ident("`plain`, `affine`, `matrix` or `rope`")?;
        let tensor = string(&mut self.c, "the tensor's name")?;
        let pack = match word {
            "plain" => Pack::Plain,
            "affine" | "matrix" => {
                self.c.punct('{')?;
                let format = if word == "affine" {
                    let bits = self.c.attr_u32("bits")?;
                    let group = self.c.more_u32("group")?;
                    self.c.punct(',')?;
                    let scales = if self.c.peek().tok == Tok::Ident("scales") { self.dtype("scales")? } else { Dtype::Bf16 };
                    Format::Affine { bits, group, scales }
                } else {
                    Format::Plain(self.dtype("dtype")?)
                };
                let stack = self.c.attr_u32("stack")?;
                let rows = self.c.more_u32("rows")?;
                let cols = self.c.more_u32("cols")?;
                self.c.punct(',')?;
                self.c.key("order")?;
                let order = self.c.sum_order()?;
                let chain_lanes = self.c.more_u32("chain_lanes")?;
                let vec = self.c.more_u32("vec")?;
                self.c.punct('}')?;
                Pack::Matrix(MatrixLayout { format, stack, rows, cols, order, chain_lanes, vec })
            }
            "rope" => {
                self.c.punct('{')?;
                let dim = self.c.attr_u32("dim")?;
                let rotated = self.c.more_u32("rotated")?;
                let theta = self.c.more_f64("theta")?;
                let factor = self.c.more_f64("factor")?;
                self.c.punct('}')?;
                Pack::Rope(RopeParams { dim, rotated, theta, factor })
            }
            _ => {
                let m = format!("expected `plain`, `affine`, `matrix` or `rope`, found `{word}`");
                return Err(Diagnostic::new("E0102", m).at(t.place()));
            }
        };
        self.plan.weights.push(PackedWeight { tensor, pack });
        Ok(())
    }

    /// `k3`
    fn numbered(&mut self, kinds: &[&'static str], what: &str) -> Result<(&'static str, u32)> {
        if let Tok::Ident(word) = self.c.peek().tok
            && let Some((k, n)) = kinds.iter().find_map(|k| Some((*k, number(word, k)?)))
        {
            self.c.next();
            return Ok((k, n));
        }
        Err(self.c.unexpected(what))
    }

    fn launch(&mut self) -> Result<()> {
        let name = string(&mut self.c, "the launch's name")?;
        let (_, kernel) = self.numbered(&["k"], "a kernel like `k0`")?;
        self.c.punct('(')?;
        let mut args = vec![];
        while !self.c.eat(')') {
            if !args.is_empty() {
                self.c.punct(',')?;
            }
            args.push(match self.numbered(&["b", "w"], "a buffer like `b0`, a weight like `w0`")? {
                ("b", n) => Arg::Buffer(n),
                (_, n) => Arg::Weight(n),
            });
        }
        self.c.punct('{')?;
        let grid_x = self.c.attr_u32("grid_x")?;
        self.c.punct(',')?;
        let rows = self.rows()?;
        let tokens = if self.c.eat(',') { self.c.attr_u32("tokens")? } else { 1 };
        self.c.punct('}')?;
        self.plan.launches.push(Launch { name, kernel, args, grid_x, rows, tokens });
        Ok(())
    }
}

/// The number of `k3`, if `kind` is `k`.
fn number(word: &str, kind: &str) -> Option<u32> {
    let n = word.strip_prefix(kind)?;
    n.bytes().all(|b| b.is_ascii_digit()).then(|| n.parse().ok())?
}
