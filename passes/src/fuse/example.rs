//! A tiny graph for every rule, whose unfused form the rule matches: the material for bitwise comparison of fused and
//! unfused kernels.

use super::lang::Kind;
use super::rules::Rule;
use crate::sketch::Sketch;
use ir::graph::op::Op;
use ir::graph::{Dtype, Graph, NodeId, Rows};

const W: u32 = 64;
const HEAD: u32 = 32;
const EXPERTS: u32 = 8;

impl Rule {
    /// A tiny graph in which this rule, alone, fuses something. Orders are pinned; outputs are f32.
    pub fn example(&self) -> Graph {
        let mut s = Sketch::new(&self.name);
        let mut outputs = vec![];
        let (consumer, _, producer) = self.edges[0];
        let plain = |k: Kind| matches!(k, Kind::Linear | Kind::ExpertLinear);
        if plain(consumer) || plain(producer) {
            s.plain = Some(Dtype::Bf16);
        }
        if (consumer, producer) == (Kind::Gelu, Kind::Slice) {
            outputs.push(sliced(&mut s, "affine"));
            s.plain = Some(Dtype::F16);
            outputs.push(sliced(&mut s, "plain"));
        } else if (consumer.is_row() || plain(consumer)) && producer.is_row() {
            for &(c, slot, p) in &self.edges {
                let out = rows(&mut s, c, slot, p);
                outputs.push(out);
            }
        } else if consumer.is_head() {
            outputs.push(heads(&mut s, consumer, producer));
        } else {
            outputs.push(matmuls(&mut s, consumer, producer));
        }
        s.finish(&outputs)
    }
}

/// `consumer(.., producer, ..)` over rows of tokens.
fn rows(s: &mut Sketch, consumer: Kind, slot: usize, producer: Kind) -> NodeId {
    let at = |n: &str| format!("{n}{slot}");
    let x = if matches!(producer, Kind::Embed | Kind::Slice) { None } else { Some(s.embed(&at("x"), W)) };
    let p = match (producer, x) {
        (Kind::Norm, Some(x)) => s.norm(&at("norm_p"), x, W, true),
        (Kind::Add, Some(x)) => {
            let y = s.embed(&at("x2_"), W);
            s.add(&at("add_p"), x, y)
        }
        (Kind::Mul, Some(x)) => s.mul_weight(&at("mul_p"), x, W),
        (Kind::Scale, Some(x)) => s.like(&at("scale_p"), Op::MulConst { c: 0.3 }, &[x]),
        (Kind::Select, Some(x)) => s.select(&at("select_p"), x),
        (Kind::Slice, _) => {
            let wide = s.embed(&at("wide"), 2 * W);
            s.slice(&at("slice_p"), wide, 40, W)
        }
        _ => s.embed(&at("embed_p"), W),
    };
    let other = |s: &mut Sketch| {
        let y = s.embed(&at("y"), W);
        if s.ty(p).rows == Rows::Outputs { s.select(&at("select_y"), y) } else { y }
    };
    let pair = |p, y| if slot == 0 { [p, y] } else { [y, p] };
    match consumer {
        Kind::Norm => s.norm(&at("norm_c"), p, W, true),
        Kind::Add => {
            let y = other(s);
            s.like(&at("add_c"), Op::Add, &pair(p, y))
        }
        Kind::Mul => {
            let y = other(s);
            s.like(&at("mul_c"), Op::Mul, &pair(p, y))
        }
        Kind::Scale => s.like(&at("scale_c"), Op::MulConst { c: -1.7 }, &[p]),
        Kind::Select => s.select(&at("select_c"), p),
        Kind::ExpertLinear => {
            let x = s.embed(&at("router_x"), W);
            let x = if s.ty(p).rows == Rows::Outputs { s.select(&at("router_select"), x) } else { x };
            let z = s.linear(&at("logits"), x, EXPERTS);
            let r = s.route(&at("route"), z, 2);
            s.expert_linear(&at("out"), p, r, EXPERTS, W)
        }
        // A matmul. Fixed point is no output: a matmul reads it.
        _ => s.linear(&at("out"), p, W),
    }
}

/// A key and a value on their way from a matmul to the cache, and attention over them.
fn heads(s: &mut Sketch, consumer: Kind, producer: Kind) -> NodeId {
    let x = s.embed("x", W);
    if consumer == Kind::HeadNorm && producer.is_matmul() {
        let y = s.linear("y", x, W);
        return s.norm("norm", y, HEAD, true);
    }
    if consumer == Kind::Rope {
        let n = s.norm("norm", x, HEAD, true);
        return s.rope("rope", n, HEAD);
    }
    let q = s.embed("q", W);
    let (k, v) = (s.embed("k", W), s.embed("v", W));
    let (k, v) = if producer == Kind::Rope { (s.rope("rope", k, HEAD), v) } else { (k, s.norm("norm", v, HEAD, false)) };
    let kv = s.cache("", 0, k, v, HEAD);
    s.attention("attn", q, kv, HEAD)
}

/// A gate and a part of a row.
fn sliced(s: &mut Sketch, tag: &str) -> NodeId {
    let at = |n: &str| format!("{n}_{tag}");
    let (x, wide) = (s.embed(&at("x"), W), s.embed(&at("wide"), 3 * W));
    let (gate, part) = (s.linear(&at("gate"), x, W), s.slice(&at("part"), wide, W, W));
    s.like(&at("gelu"), Op::GeluMul, &[gate, part])
}

/// A matmul with what the rule puts before or after it.
fn matmuls(s: &mut Sketch, consumer: Kind, producer: Kind) -> NodeId {
    let x = s.embed("x", W);
    let route = |s: &mut Sketch| {
        let x = s.embed("router_x", W);
        let z = s.linear("logits", x, EXPERTS);
        s.route("route", z, 2)
    };
    match (consumer, producer) {
        (Kind::ExpertMatmul, _) => {
            let r = route(s);
            s.expert_linear("y", x, r, EXPERTS, W)
        }
        (Kind::Gelu, Kind::ExpertMatmul | Kind::ExpertLinear) => {
            let r = route(s);
            let (a, b) = (s.expert_linear("gate", x, r, EXPERTS, W), s.expert_linear("up", x, r, EXPERTS, W));
            s.like("gelu", Op::GeluMul, &[a, b])
        }
        (Kind::ExpertSum, _) => {
            let r = route(s);
            let y = s.expert_linear("down", x, r, EXPERTS, W);
            s.expert_sum("sum", y, r)
        }
        (Kind::Gelu | Kind::Add, _) => {
            let (a, b) = (s.linear("a", x, W), s.linear("b", x, W));
            let op = if consumer == Kind::Gelu { Op::GeluMul } else { Op::Add };
            s.like("joined", op, &[a, b])
        }
        (Kind::Route, _) => {
            // What is chosen shows in the sum of the chosen experts.
            let r = route(s);
            let y = s.expert_linear("down", x, r, EXPERTS, W);
            s.expert_sum("sum", y, r)
        }
        _ => {
            let y = s.linear("y", x, W);
            match consumer {
                Kind::Softcap => s.like("softcap", Op::Softcap { cap: 30.0 }, &[y]),
                Kind::Scale => s.like("scale", Op::MulConst { c: 0.125 }, &[y]),
                Kind::Mul => s.mul_weight("mul", y, W),
                _ => y,
            }
        }
    }
}
