//! Weight formats, and a small model in any of them: attention with a shared cache, a dense and an expert MLP, per-layer
//! embeddings, a tied head.

use ir::graph::op::Op;
use ir::graph::{Dtype, Graph, NodeId, Type};
use passes::sketch::Sketch;

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Numbers.
    Plain(Dtype),
    /// Bits, elements of a group, format of scales.
    Affine(u32, u32, Dtype),
}

/// Every size of a code, every group size, every format of numbers.
pub const FORMATS: [Format; 10] = [
    Format::Plain(Dtype::Bf16),
    Format::Plain(Dtype::F16),
    Format::Plain(Dtype::F32),
    Format::Affine(2, 32, Dtype::Bf16),
    Format::Affine(3, 64, Dtype::F16),
    Format::Affine(4, 128, Dtype::F32),
    Format::Affine(4, 64, Dtype::F16),
    Format::Affine(5, 32, Dtype::F32),
    Format::Affine(6, 64, Dtype::Bf16),
    Format::Affine(8, 128, Dtype::F16),
];

/// Width of the residual stream, of a head, of a per-layer embedding; tokens of the vocabulary; experts.
pub const H: u32 = 128;
const D: u32 = 32;
const P: u32 = 128;
/// Tokens.
pub const VOCAB: u32 = 64;
const EXPERTS: u32 = 8;

/// A builder for this format.
pub fn sketch(name: &str, f: Format) -> Sketch {
    let mut s = Sketch::new(name);
    s.linear = true;
    match f {
        Format::Plain(d) => s.plain = Some(d),
        Format::Affine(bits, group, scales) => (s.bits, s.group, s.scales) = (bits, group, scales),
    }
    s
}

/// Two layers, the second of which attends over the cache of the first.
pub fn small_model(f: Format) -> Graph {
    let mut s = sketch("small", f);
    let mut h = s.embed("embed", H);
    let ple = per_layer(&mut s, h, 2);
    let mut cache = None;
    for l in 0..2 {
        let n = |t: &str| format!("layers.{l}.{t}");
        let x = s.norm(&n("attn.norm"), h, H, true);
        let q = s.linear(&n("attn.q_proj"), x, 4 * D);
        let q = s.norm(&n("attn.q_norm"), q, D, true);
        let q = s.rope(&n("attn.q"), q, D);
        let kv = *cache.get_or_insert_with(|| {
            let (k, v) = (s.linear(&n("attn.k_proj"), x, 2 * D), s.linear(&n("attn.v_proj"), x, 2 * D));
            let k = s.norm(&n("attn.k_norm"), k, D, true);
            let k = s.rope(&n("attn.k"), k, D);
            let v = s.norm(&n("attn.v"), v, D, false);
            s.cache(&n("attn."), 0, k, v, D)
        });
        let a = s.attention(&n("attn.out"), q, kv, D);
        let o = s.linear(&n("attn.o"), a, H);
        let o = s.norm(&n("attn.post_norm"), o, H, true);
        h = s.add(&n("attn.resid"), h, o);
        h = mlp(&mut s, l, h);
        h = gated(&mut s, l, h, ple);
        h = s.mul_weight(&n("out"), h, 1);
    }
    let x = s.select("selected", h);
    let x = s.norm("norm", x, H, true);
    let table = s.g.by_name("embed.table").expect("an embedding");
    let ty = Type { shape: vec![VOCAB], ..s.ty(x) };
    let z = s.g.add("logits.raw", Op::Linear { order: None }, &[x, table], ty);
    let logits = s.like("logits", Op::Softcap { cap: 30.0 }, &[z]);
    s.unpinned(&[logits])
}

/// Per-layer embeddings of all layers: looked up, and projected from the embedding.
pub fn per_layer(s: &mut Sketch, h: NodeId, layers: u32) -> NodeId {
    let e = s.embed("ple.embed", layers * P);
    let y = s.linear("ple.proj", h, layers * P);
    let y = s.like("ple.scaled", Op::MulConst { c: 0.0884 }, &[y]);
    let y = s.norm("ple.norm", y, P, true);
    let y = s.add("ple.sum", y, e);
    s.like("ple.out", Op::MulConst { c: std::f32::consts::FRAC_1_SQRT_2 }, &[y])
}

/// A layer's part of them, gated by the residual stream.
fn gated(s: &mut Sketch, l: u32, h: NodeId, ple: NodeId) -> NodeId {
    let n = |t: &str| format!("layers.{l}.{t}");
    let gate = s.linear(&n("ple.gate"), h, P);
    let part = s.slice(&n("ple.part"), ple, l * P, P);
    let y = s.like(&n("ple.act"), Op::GeluMul, &[gate, part]);
    let y = s.linear(&n("ple.out"), y, H);
    let y = s.norm(&n("ple.norm"), y, H, true);
    s.add(&n("ple.resid"), h, y)
}

/// The dense MLP, and beside it in the first layer the experts.
fn mlp(s: &mut Sketch, l: u32, h: NodeId) -> NodeId {
    let n = |t: &str| format!("layers.{l}.{t}");
    let x = s.norm(&n("mlp.norm"), h, H, true);
    let (gate, up) = (s.linear(&n("mlp.gate"), x, 256), s.linear(&n("mlp.up"), x, 256));
    let y = s.like(&n("mlp.act"), Op::GeluMul, &[gate, up]);
    let y = s.linear(&n("mlp.down"), y, H);
    let mut y = s.norm(&n("mlp.post_norm"), y, H, true);
    if l == 0 {
        let x = s.norm(&n("router.norm"), h, H, false);
        let x = s.mul_weight(&n("router.scaled"), x, H);
        let x = s.like(&n("router.in"), Op::MulConst { c: 0.0884 }, &[x]);
        let z = s.linear(&n("router.logits"), x, EXPERTS);
        let r = s.route(&n("router.route"), z, 2);
        let x = s.norm(&n("experts.norm"), h, H, true);
        let gate = s.expert_linear(&n("experts.gate"), x, r, EXPERTS, 128);
        let up = s.expert_linear(&n("experts.up"), x, r, EXPERTS, 128);
        let e = s.like(&n("experts.act"), Op::GeluMul, &[gate, up]);
        let e = s.expert_linear(&n("experts.down"), e, r, EXPERTS, H);
        let e = s.expert_sum(&n("experts.sum"), e, r);
        let e = s.norm(&n("experts.post_norm"), e, H, true);
        y = s.add(&n("moe"), y, e);
    }
    s.add(&n("mlp.resid"), h, y)
}

/// A gated MLP of `width`, from an embedding of `h` elements; the row that the last matmul reads is large.
pub fn wide_mlp(f: Format, h: u32, width: u32) -> Graph {
    let mut s = sketch("wide", f);
    let x = s.embed("x", h);
    let n = s.norm("norm", x, h, true);
    let (gate, up) = (s.linear("gate", n, width), s.linear("up", n, width));
    let y = s.like("act", Op::GeluMul, &[gate, up]);
    let y = s.linear("down", y, 64);
    s.unpinned(&[y])
}

/// A row of `width` elements that a matmul could compute itself, if a block had room for it.
pub fn wide_row(f: Format, width: u32) -> Graph {
    let mut s = sketch("row", f);
    let x = s.embed("x", width);
    let x = s.norm("norm", x, width, true);
    let x = s.like("scaled", Op::MulConst { c: 0.3 }, &[x]);
    let (a, b) = (s.linear("a", x, 64), s.linear("b", x, 64));
    let y = s.add("y", a, b);
    s.unpinned(&[y])
}
