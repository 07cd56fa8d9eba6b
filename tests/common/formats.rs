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

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Name.
    pub name: &'static str,
    /// Residual stream.
    pub hidden: u32,
    /// Elements of a head, query heads, key heads.
    pub heads: (u32, u32, u32),
    /// Dense MLP.
    pub mlp: u32,
    /// Experts and their width; 0 experts for none.
    pub experts: (u32, u32),
    /// Elements of a per-layer embedding; 0 for none.
    pub ple: u32,
    /// Tokens.
    pub vocab: u32,
}

/// Tokens of the small model.
pub const VOCAB: u32 = 64;

/// The small model.
pub const SMALL: Sizes =
    Sizes { name: "small", hidden: 128, heads: (32, 4, 2), mlp: 256, experts: (8, 128), ple: 128, vocab: VOCAB };

/// Layers of the released models.
pub const REAL: [Sizes; 5] = [
    Sizes { name: "26b-a4b", hidden: 2816, heads: (512, 16, 2), mlp: 2112, experts: (128, 704), ple: 0, vocab: 262144 },
    Sizes { name: "31b", hidden: 5376, heads: (512, 32, 4), mlp: 21504, experts: (0, 0), ple: 0, vocab: 262144 },
    Sizes { name: "12b", hidden: 3840, heads: (512, 16, 1), mlp: 15360, experts: (0, 0), ple: 0, vocab: 262144 },
    Sizes { name: "e4b", hidden: 2560, heads: (256, 8, 2), mlp: 10240, experts: (0, 0), ple: 256, vocab: 262144 },
    Sizes { name: "e2b", hidden: 1536, heads: (256, 8, 1), mlp: 12288, experts: (0, 0), ple: 256, vocab: 262144 },
];

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

/// The small model in this format.
pub fn small_model(f: Format) -> Graph {
    model(f, SMALL)
}

/// Two layers, the second of which attends over the cache of the first.
pub fn model(f: Format, z: Sizes) -> Graph {
    let mut s = sketch(z.name, f);
    let (hidden, (dim, heads, kv_heads)) = (z.hidden, z.heads);
    let mut h = embed(&mut s, "embed", z.vocab, hidden);
    let ple = (z.ple > 0).then(|| per_layer(&mut s, h, 2, z));
    let mut cache = None;
    for l in 0..2 {
        let n = |t: &str| format!("layers.{l}.{t}");
        let x = s.norm(&n("attn.norm"), h, hidden, true);
        let q = s.linear(&n("attn.q_proj"), x, heads * dim);
        let q = s.norm(&n("attn.q_norm"), q, dim, true);
        let q = s.rope(&n("attn.q"), q, dim);
        let kv = *cache.get_or_insert_with(|| {
            let (k, v) = (s.linear(&n("attn.k_proj"), x, kv_heads * dim), s.linear(&n("attn.v_proj"), x, kv_heads * dim));
            let k = s.norm(&n("attn.k_norm"), k, dim, true);
            let k = s.rope(&n("attn.k"), k, dim);
            let v = s.norm(&n("attn.v"), v, dim, false);
            s.cache(&n("attn."), 0, k, v, dim)
        });
        let a = s.attention(&n("attn.out"), q, kv, dim);
        let o = s.linear(&n("attn.o"), a, hidden);
        let o = s.norm(&n("attn.post_norm"), o, hidden, true);
        h = s.add(&n("attn.resid"), h, o);
        h = mlp(&mut s, l, h, z);
        if let Some(ple) = ple {
            h = gated(&mut s, l, h, ple, z);
        }
        h = s.mul_weight(&n("out"), h, 1);
    }
    let x = s.select("selected", h);
    let x = s.norm("norm", x, hidden, true);
    let table = s.g.by_name("embed.table").expect("an embedding");
    let ty = Type { shape: vec![z.vocab], ..s.ty(x) };
    let z = s.g.add("logits.raw", Op::Linear { order: None }, &[x, table], ty);
    let logits = s.like("logits", Op::Softcap { cap: 30.0 }, &[z]);
    s.unpinned(&[logits])
}

fn embed(s: &mut Sketch, name: &str, vocab: u32, width: u32) -> NodeId {
    let e = s.embed(name, width);
    let table = s.g.node(e).inputs[0];
    s.g.node_mut(table).ty.shape[0] = vocab;
    e
}

/// Per-layer embeddings of all layers: looked up, and projected from the embedding.
fn per_layer(s: &mut Sketch, h: NodeId, layers: u32, z: Sizes) -> NodeId {
    let e = embed(s, "ple.embed", z.vocab, layers * z.ple);
    let y = s.linear("ple.proj", h, layers * z.ple);
    let y = s.like("ple.scaled", Op::MulConst { c: 0.0884 }, &[y]);
    let y = s.norm("ple.norm", y, z.ple, true);
    let y = s.add("ple.sum", y, e);
    s.like("ple.out", Op::MulConst { c: std::f32::consts::FRAC_1_SQRT_2 }, &[y])
}

/// A layer's part of them, gated by the residual stream.
fn gated(s: &mut Sketch, l: u32, h: NodeId, ple: NodeId, z: Sizes) -> NodeId {
    let n = |t: &str| format!("layers.{l}.{t}");
    let gate = s.linear(&n("ple.gate"), h, z.ple);
    let part = s.slice(&n("ple.part"), ple, l * z.ple, z.ple);
    let y = s.like(&n("ple.act"), Op::GeluMul, &[gate, part]);
    let y = s.linear(&n("ple.out"), y, z.hidden);
    let y = s.norm(&n("ple.norm"), y, z.hidden, true);
    s.add(&n("ple.resid"), h, y)
}

/// The dense MLP, and beside it in the first layer the experts.
fn mlp(s: &mut Sketch, l: u32, h: NodeId, z: Sizes) -> NodeId {
    let n = |t: &str| format!("layers.{l}.{t}");
    let x = s.norm(&n("mlp.norm"), h, z.hidden, true);
    let (gate, up) = (s.linear(&n("mlp.gate"), x, z.mlp), s.linear(&n("mlp.up"), x, z.mlp));
    let y = s.like(&n("mlp.act"), Op::GeluMul, &[gate, up]);
    let y = s.linear(&n("mlp.down"), y, z.hidden);
    let mut y = s.norm(&n("mlp.post_norm"), y, z.hidden, true);
    let (experts, width) = z.experts;
    if l == 0 && experts > 0 {
        let x = s.norm(&n("router.norm"), h, z.hidden, false);
        let x = s.mul_weight(&n("router.scaled"), x, z.hidden);
        let x = s.like(&n("router.in"), Op::MulConst { c: 0.0884 }, &[x]);
        let logits = s.linear(&n("router.logits"), x, experts);
        let r = s.route(&n("router.route"), logits, 2);
        let x = s.norm(&n("experts.norm"), h, z.hidden, true);
        let gate = s.expert_linear(&n("experts.gate"), x, r, experts, width);
        let up = s.expert_linear(&n("experts.up"), x, r, experts, width);
        let e = s.like(&n("experts.act"), Op::GeluMul, &[gate, up]);
        let e = s.expert_linear(&n("experts.down"), e, r, experts, z.hidden);
        let e = s.expert_sum(&n("experts.sum"), e, r);
        let e = s.norm(&n("experts.post_norm"), e, z.hidden, true);
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
