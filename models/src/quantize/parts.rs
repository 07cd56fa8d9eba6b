//! The tensors of a text decoder by their canonical names, as the configuration says they are (SPEC of the layout: HF's and
//! MLX's names differ only for the experts).

use crate::gemma4::{Config, LayerKind};

/// One tensor, or one linear module's weight.
pub(super) struct Part {
    /// Canonical path in the result, without prefix; of a module without `.weight`.
    pub(super) path: String,
    /// Shape; the last dimension is the input features of a module.
    pub(super) shape: Vec<usize>,
    /// Whether it is a module that can be quantized.
    pub(super) module: bool,
}

/// All parts, in the order of the model.
pub(super) fn parts(c: &Config) -> Vec<Part> {
    let mut out = List(vec![]);
    let h = c.hidden_size;
    out.module("embed_tokens", &[c.vocab_size, h]);
    if let Some(p) = c.per_layer {
        let all = c.layers.len() * p.width;
        out.module("embed_tokens_per_layer", &[p.vocab_size, all]);
        out.module("per_layer_model_projection", &[all, h]);
        out.vector("per_layer_projection_norm.weight", p.width);
    }
    for (i, &kind) in c.layers.iter().enumerate() {
        layer(&mut out, c, i, kind);
    }
    out.vector("norm.weight", h);
    out.0
}

struct List(Vec<Part>);

impl List {
    fn module(&mut self, path: impl Into<String>, shape: &[usize]) {
        self.0.push(Part { path: path.into(), shape: shape.to_vec(), module: true });
    }
    fn vector(&mut self, path: impl Into<String>, n: usize) {
        self.0.push(Part { path: path.into(), shape: vec![n], module: false });
    }
}

fn layer(out: &mut List, c: &Config, i: usize, kind: LayerKind) {
    let at = |name: &str| format!("layers.{i}.{name}");
    let (h, d) = (c.hidden_size, c.head_dim_of(kind));
    let (q, kv) = (c.heads * d, c.kv_heads_of(kind) * d);
    let first_sharing = c.layers.len() - c.num_kv_shared_layers;
    let sharing = i >= first_sharing;
    out.vector(at("input_layernorm.weight"), h);
    out.module(at("self_attn.q_proj"), &[q, h]);
    out.vector(at("self_attn.q_norm.weight"), d);
    if !sharing {
        out.module(at("self_attn.k_proj"), &[kv, h]);
        out.vector(at("self_attn.k_norm.weight"), d);
        if !(c.k_eq_v && kind == LayerKind::Full) {
            out.module(at("self_attn.v_proj"), &[kv, h]);
        }
    }
    out.module(at("self_attn.o_proj"), &[h, q]);
    out.vector(at("post_attention_layernorm.weight"), h);
    out.vector(at("pre_feedforward_layernorm.weight"), h);
    let m = c.intermediate_size * if c.double_wide && sharing { 2 } else { 1 };
    out.module(at("mlp.gate_proj"), &[m, h]);
    out.module(at("mlp.up_proj"), &[m, h]);
    out.module(at("mlp.down_proj"), &[h, m]);
    if let Some(e) = c.experts {
        out.vector(at("post_feedforward_layernorm_1.weight"), h);
        out.module(at("router.proj"), &[e.count, h]);
        out.vector(at("router.scale"), h);
        out.vector(at("router.per_expert_scale"), e.count);
        out.vector(at("pre_feedforward_layernorm_2.weight"), h);
        out.module(at("experts.switch_glu.gate_proj"), &[e.count, e.width, h]);
        out.module(at("experts.switch_glu.up_proj"), &[e.count, e.width, h]);
        out.module(at("experts.switch_glu.down_proj"), &[e.count, h, e.width]);
        out.vector(at("post_feedforward_layernorm_2.weight"), h);
    }
    out.vector(at("post_feedforward_layernorm.weight"), h);
    if let Some(p) = c.per_layer {
        out.module(at("per_layer_input_gate"), &[p.width, h]);
        out.module(at("per_layer_projection"), &[h, p.width]);
        out.vector(at("post_per_layer_input_norm.weight"), h);
    }
    out.vector(at("layer_scalar"), 1);
}
