//! A model with mixture-of-experts layers as graph, for tests: the shape of SPEC section 2 with small dimensions.

use crate::sketch::Sketch;
use ir::graph::op::Op;
use ir::graph::{Graph, NodeId};

/// Width of the residual stream.
pub const H: u32 = 256;
/// Head size.
pub const D: u32 = 64;

/// A model of `layers` layers with embedding and head; every second layer has `k_eq_v`.
pub fn moe_model(layers: u32) -> Graph {
    let mut s = Sketch::new("moe");
    s.linear = true;
    let mut h = s.embed("embed", H);
    for l in 0..layers {
        h = moe_layer(&mut s, l, h);
    }
    let x = s.norm("norm", h, H, true);
    let x = s.select("selected", x);
    let z = s.linear("lm_head", x, 512);
    let logits = s.like("logits", Op::Softcap { cap: 30.0 }, &[z]);
    s.unpinned(&[logits])
}

/// One layer.
pub fn moe_layer(s: &mut Sketch, l: u32, h: NodeId) -> NodeId {
    let n = |t: &str| format!("layers.{l}.{t}");
    let x = s.norm(&n("input_layernorm"), h, H, true);
    let q = s.linear(&n("attn.q_raw"), x, 8 * D);
    let k = s.linear(&n("attn.k_raw"), x, 2 * D);
    let v = if l % 2 == 1 { k } else { s.linear(&n("attn.v_raw"), x, 2 * D) };
    let q = s.norm(&n("attn.q_norm"), q, D, true);
    let q = s.rope(&n("attn.q"), q, D);
    let k = s.norm(&n("attn.k_norm"), k, D, true);
    let k = s.rope(&n("attn.k"), k, D);
    let v = s.norm(&n("attn.v"), v, D, false);
    let kv = s.cache(&n("attn."), l, k, v, D);
    let a = s.attention(&n("attn.out"), q, kv, D);
    let o = s.linear(&n("attn.o"), a, H);
    let o = s.norm(&n("post_attention_layernorm"), o, H, true);
    let r = s.add(&n("resid_attn"), h, o);

    let x = s.norm(&n("pre_feedforward_layernorm"), r, H, true);
    let (gate, up) = (s.linear(&n("mlp.gate"), x, 384), s.linear(&n("mlp.up"), x, 384));
    let y = s.like(&n("mlp.act"), Op::GeluMul, &[gate, up]);
    let dense = s.linear(&n("mlp.down"), y, H);
    let dense = s.norm(&n("post_feedforward_layernorm_1"), dense, H, true);

    let x = s.norm(&n("router.norm"), r, H, false);
    let x = s.mul_weight(&n("router.scaled"), x, H);
    let x = s.like(&n("router.in"), Op::MulConst { c: 0.0625 }, &[x]);
    let z = s.linear(&n("router.logits"), x, 16);
    let route = s.route(&n("router.route"), z, 2);

    let x = s.norm(&n("pre_feedforward_layernorm_2"), r, H, true);
    let gate = s.expert_linear(&n("experts.gate"), x, route, 16, 128);
    let up = s.expert_linear(&n("experts.up"), x, route, 16, 128);
    let y = s.like(&n("experts.act"), Op::GeluMul, &[gate, up]);
    let y = s.expert_linear(&n("experts.down"), y, route, 16, H);
    let e = s.expert_sum(&n("experts.sum"), y, route);
    let e = s.norm(&n("post_feedforward_layernorm_2"), e, H, true);

    let m = s.add(&n("moe"), dense, e);
    let m = s.norm(&n("post_feedforward_layernorm"), m, H, true);
    let h = s.add(&n("resid_mlp"), r, m);
    s.mul_weight(&n("out"), h, 1)
}
