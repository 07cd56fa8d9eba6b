//! Parses graphs. Errors of several lines are reported together; each names line and column.

use super::MAX_IDS;
use crate::diag::{Diagnostic, Result};
use crate::graph::op::{EmbedMode, Op, RopeParams};
use crate::graph::{Dtype, Elem, Graph, NodeId, Rows, Stage, Type};
use crate::order::AttentionOrder;
use crate::text::attr::{ReadAttr, U32};
use crate::text::lex::{Cursor, Tok, lex};
use crate::text::name::string;
use std::collections::BTreeMap;

/// After this many errors the rest of the text is not read.
const MAX_ERRORS: usize = 20;

/// A node as it was read.
struct Entry {
    name: String,
    op: Op,
    inputs: Vec<NodeId>,
    ty: Type,
    place: String,
}

/// The graph of a text.
pub fn parse(text: &str) -> Result<Graph, Vec<Diagnostic>> {
    let (tokens, errors) = lex(text);
    let mut p = Parser { c: Cursor::new(tokens), nodes: BTreeMap::new(), ids: 0, g: Graph::default(), errors };
    if let Err(d) = p.graph() {
        p.errors.push(d);
    }
    p.build()
}

struct Parser<'a> {
    c: Cursor<'a>,
    nodes: BTreeMap<u32, Entry>,
    ids: usize,
    /// Everything but the nodes.
    g: Graph,
    errors: Vec<Diagnostic>,
}

impl Parser<'_> {
    fn graph(&mut self) -> Result<()> {
        self.c.word("graph")?;
        self.g.name = string(&mut self.c, "the graph's name")?;
        self.c.punct('{')?;
        while !self.c.eat('}') {
            if self.c.peek().tok == Tok::End {
                return Err(self.c.unexpected("a statement or `}`"));
            }
            let from = self.c.at();
            let done = self.statement().and_then(|()| {
                let t = self.c.peek();
                if t.first || t.tok == Tok::Punct('}') { Ok(()) } else { Err(self.c.unexpected("end of line")) }
            });
            if let Err(d) = done {
                self.errors.push(d);
                if self.errors.len() >= MAX_ERRORS {
                    return Ok(());
                }
                // Statements are lines, so braces need no counting.
                self.c.skip_line(from);
            }
        }
        if self.c.peek().tok == Tok::End { Ok(()) } else { Err(self.c.unexpected("end of input")) }
    }

    fn statement(&mut self) -> Result<()> {
        match self.c.peek().tok {
            Tok::Value(_) => return self.node(),
            Tok::Ident("ids") => {
                self.c.next();
                let n = self.c.int("number of ids", 0, MAX_IDS as i64)?;
                self.ids = self.ids.max(n as usize);
            }
            Tok::Ident("output") => {
                self.c.next();
                let id = self.value()?;
                self.g.outputs.push(id);
            }
            Tok::Ident("stage") => {
                self.c.next();
                let name = string(&mut self.c, "the stage's name")?;
                let nodes = self.braced_values()?;
                if self.c.peek().tok != Tok::Arrow {
                    return Err(self.c.unexpected("`->`"));
                }
                self.c.next();
                let stores = self.braced_values()?;
                self.g.stages.push(Stage { name, nodes, stores });
            }
            Tok::Ident("launch") => {
                self.c.next();
                let mut stages = vec![];
                while matches!(self.c.peek().tok, Tok::Int { .. }) && !self.c.peek().first {
                    stages.push(self.c.int("stage number", 0, U32)? as u32);
                }
                self.g.launches.push(stages);
            }
            _ => return Err(self.c.unexpected("a node, `ids`, `output`, `stage`, `launch` or `}`")),
        }
        Ok(())
    }

    fn value(&mut self) -> Result<NodeId> {
        let Tok::Value(n) = self.c.peek().tok else { return Err(self.c.unexpected("a value like `%1`")) };
        self.c.next();
        Ok(NodeId(n))
    }

    /// Values of this line.
    fn values(&mut self) -> Result<Vec<NodeId>> {
        let mut out = vec![];
        while matches!(self.c.peek().tok, Tok::Value(_)) && !self.c.peek().first {
            out.push(self.value()?);
        }
        Ok(out)
    }

    fn braced_values(&mut self) -> Result<Vec<NodeId>> {
        self.c.punct('{')?;
        let out = self.values()?;
        self.c.punct('}')?;
        Ok(out)
    }

    fn node(&mut self) -> Result<()> {
        let at = self.c.peek();
        let id = self.value()?;
        self.c.punct('=')?;
        let op_at = self.c.peek();
        let word = self.c.ident("an operation")?;
        let inputs = self.values()?;
        let op = match operation(&mut self.c, word)? {
            Some(op) => op,
            None => {
                let m = format!("expected an operation, found `{word}`");
                return Err(Diagnostic::new("E0102", m).at(op_at.place()));
            }
        };
        self.c.punct(':')?;
        let ty = read_type(&mut self.c)?;
        let name = string(&mut self.c, "the node's name")?;
        let place = at.place();
        if id.idx() >= MAX_IDS {
            return Err(Diagnostic::new("E0110", format!("{id} is too large: ids are below {MAX_IDS}")).at(place));
        }
        if let Some(first) = self.nodes.get(&id.0) {
            let m = format!("{id} is defined already, at {}", first.place);
            return Err(Diagnostic::new("E0110", m).at(place));
        }
        self.ids = self.ids.max(id.idx() + 1);
        self.nodes.insert(id.0, Entry { name, op, inputs, ty, place });
        Ok(())
    }

    fn build(mut self) -> Result<Graph, Vec<Diagnostic>> {
        // A line that could not be read may be the one that is missed.
        if self.errors.is_empty() {
            for e in self.nodes.values() {
                for i in e.inputs.iter().filter(|i| i.idx() >= self.ids) {
                    self.errors.push(Diagnostic::new("E0111", format!("operand {i} is no value")).at(&e.place));
                }
            }
        }
        if !self.errors.is_empty() {
            self.errors.truncate(MAX_ERRORS);
            return Err(self.errors);
        }
        let mut inputs = vec![];
        for id in 0..self.ids as u32 {
            match self.nodes.remove(&id) {
                Some(e) => {
                    self.g.add(&e.name, e.op, &[], e.ty);
                    inputs.push((NodeId(id), e.inputs));
                }
                None => self.g.add_hole(),
            }
        }
        for (id, inputs) in inputs {
            self.g.set_inputs(id, &inputs);
        }
        Ok(self.g)
    }
}

/// The operation of that name with its attributes, which stand in braces in the order of printing.
fn operation(c: &mut Cursor, word: &str) -> Result<Option<Op>> {
    let op = match word {
        "tokens" => Op::Tokens,
        "weight" => Op::Weight,
        "add" => Op::Add,
        "mul" => Op::Mul,
        "round_bf16" => Op::RoundBf16,
        "gelu_mul" => Op::GeluMul,
        "kv_write" => Op::KvWrite,
        "expert_sum" => Op::ExpertSum,
        "select" => Op::Select,
        "argmax" => Op::Argmax,
        "kv" | "embed" | "rmsnorm" | "quantize" | "linear" | "expert_linear" | "qlinear" | "qexpert_linear" | "mul_const"
        | "rope" | "attention" | "route" | "softcap" | "slice" => {
            c.punct('{')?;
            let op = with_attributes(c, word)?;
            c.punct('}')?;
            op
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn with_attributes(c: &mut Cursor, word: &str) -> Result<Op> {
    Ok(match word {
        "kv" => {
            let layer = c.attr_u32("layer")?;
            let heads = c.more_u32("heads")?;
            let dim = c.more_u32("dim")?;
            Op::Kv { layer, heads, dim, window: c.more_u32("window")? }
        }
        "embed" => {
            c.key("mode")?;
            let mode = match c.peek().tok {
                Tok::Ident("exact") => EmbedMode::Exact,
                Tok::Ident("factor") => EmbedMode::Factor,
                Tok::Ident("bf16") => EmbedMode::Bf16,
                _ => return Err(c.unexpected("`exact`, `factor` or `bf16`")),
            };
            c.next();
            Op::Embed { mode, factor: c.more_f32("factor")? }
        }
        "rmsnorm" => {
            let dim = c.attr_u32("dim")?;
            let eps = c.more_f32("eps")?;
            c.punct(',')?;
            Op::RmsNorm { dim, eps, order: c.attr_order("order")? }
        }
        "quantize" => Op::Quantize { group: c.attr_u32("group")? },
        "linear" => Op::Linear { order: c.attr_order("order")? },
        "expert_linear" => Op::ExpertLinear { order: c.attr_order("order")? },
        "qlinear" => Op::QLinear { order: c.attr_order("order")? },
        "qexpert_linear" => Op::QExpertLinear { order: c.attr_order("order")? },
        "mul_const" => Op::MulConst { c: c.attr_f32("c")? },
        "rope" => {
            let dim = c.attr_u32("dim")?;
            let rotated = c.more_u32("rotated")?;
            let theta = c.more_f64("theta")?;
            Op::Rope(RopeParams { dim, rotated, theta, factor: c.more_f64("factor")? })
        }
        "attention" => {
            let heads = c.attr_u32("heads")?;
            c.punct(',')?;
            Op::Attention { heads, order: attention_order(c)? }
        }
        "route" => Op::Route { k: c.attr_u32("k")? },
        "slice" => {
            let start = c.attr_u32("start")?;
            Op::Slice { start, len: c.more_u32("len")? }
        }
        "softcap" => Op::Softcap { cap: c.attr_f32("cap")? },
        _ => return Err(c.unexpected("an operation with attributes")),
    })
}

fn attention_order(c: &mut Cursor) -> Result<Option<AttentionOrder>> {
    c.key("order")?;
    if c.eat_word("none") {
        return Ok(None);
    }
    c.word("attention")?;
    c.punct('(')?;
    let split = c.attr_u32("split")?;
    c.punct(',')?;
    c.key("dot")?;
    let dot = c.sum_order()?;
    c.punct(',')?;
    c.key("sum")?;
    let sum = c.sum_order()?;
    c.punct(')')?;
    Ok(Some(AttentionOrder { split, dot, sum }))
}

fn element(word: &str) -> Option<Elem> {
    let number = |s: &str| -> Option<u32> {
        if !s.bytes().all(|b| b.is_ascii_digit()) || (s.len() > 1 && s.starts_with('0')) {
            return None;
        }
        s.parse().ok()
    };
    Some(match word {
        "f32" => Elem::F32,
        "bf16" => Elem::Bf16,
        "f16" => Elem::F16,
        "i32" => Elem::I32,
        "route" => Elem::Route,
        "kv" => Elem::Kv,
        _ => {
            if let Some(group) = word.strip_prefix("q24g") {
                return Some(Elem::Q24 { group: number(group)? });
            }
            let (bits, group) = word.strip_prefix('u')?.split_once('g')?;
            Elem::Affine { bits: number(bits)?, group: number(group)?, scales: Dtype::Bf16 }
        }
    })
}

/// `f32[T,256]`
fn read_type(c: &mut Cursor) -> Result<Type> {
    let expected = "an element type (f32, bf16, f16, i32, u4g64, u4g64:f16, q24g64, route or kv)";
    let elem = match c.peek().tok {
        Tok::Ident(word) => element(word),
        _ => None,
    };
    let Some(mut elem) = elem else { return Err(c.unexpected(expected)) };
    c.next();
    if let Elem::Affine { scales, .. } = &mut elem
        && c.eat(':')
    {
        *scales = match c.peek().tok {
            Tok::Ident("bf16") => Dtype::Bf16,
            Tok::Ident("f16") => Dtype::F16,
            Tok::Ident("f32") => Dtype::F32,
            _ => return Err(c.unexpected("the format of scales: bf16, f16 or f32")),
        };
        c.next();
    }
    c.punct('[')?;
    let mut t = Type { elem, rows: Rows::Once, shape: vec![] };
    if c.eat(']') {
        return Ok(t);
    }
    if c.eat_word("T") {
        t.rows = Rows::Tokens;
    } else if c.eat_word("O") {
        t.rows = Rows::Outputs;
    } else {
        t.shape.push(c.int("`T`, `O` or a dimension", 0, U32)? as u32);
    }
    while c.eat(',') {
        t.shape.push(c.int("a dimension", 0, U32)? as u32);
    }
    c.punct(']')?;
    Ok(t)
}
