//! The tensors of a text decoder, as its configuration asks for them: one table for building the graph, finding what a
//! checkpoint lacks or has too much, and counting parameters.

use super::Config;

/// What a tensor is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A table of which rows are looked up, `[rows, width]`; may be quantized.
    Table,
    /// The weight of a linear module, `[out, in]`; may be quantized.
    Matrix,
    /// One matrix an expert, `[experts, out, in]`; may be quantized.
    Experts,
    /// Scales, `[n]`; never quantized.
    Vector,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The name without prefix and `.weight`, which is also that of the graph's weight node. The experts' matrices have the
    /// names of MLX's layout, whichever layout the checkpoint has.
    pub name: String,
    /// Row major, logical: not that of the words that hold codes.
    pub shape: Vec<usize>,
    /// What it is.
    pub role: Role,
    /// The field of config.json because of which it must exist.
    pub field: &'static str,
}

impl Expected {
    /// Number of elements; below 2^60.
    pub fn count(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }
}

/// All tensors of a text decoder, in the order of their use. With a tied output projection the embedding stands for it.
pub fn tensors(c: &Config) -> Vec<Expected> {
    let mut t = Table { out: vec![], field: "vocab_size" };
    let h = c.hidden_size;
    t.add("embed_tokens", &[c.vocab_size, h], Role::Table);
    if let Some(p) = c.per_layer {
        t.field = "hidden_size_per_layer_input";
        let all = c.layers.len() * p.width;
        t.add("embed_tokens_per_layer", &[p.vocab_size, all], Role::Table);
        t.add("per_layer_model_projection", &[all, h], Role::Matrix);
        t.add("per_layer_projection_norm", &[p.width], Role::Vector);
    }
    for i in 0..c.layers.len() {
        layer(&mut t, c, i);
    }
    t.field = "hidden_size";
    t.add("norm", &[h], Role::Vector);
    if !c.tied {
        t.field = "tie_word_embeddings";
        t.add("lm_head", &[c.vocab_size, h], Role::Matrix);
    }
    t.out
}

struct Table {
    out: Vec<Expected>,
    field: &'static str,
}

impl Table {
    fn add(&mut self, name: impl Into<String>, shape: &[usize], role: Role) {
        self.out.push(Expected { name: name.into(), shape: shape.to_vec(), role, field: self.field });
    }
}

fn layer(t: &mut Table, c: &Config, i: usize) {
    let (l, h) = (&c.layers[i], c.hidden_size);
    let n = |s: &str| format!("layers.{i}.{s}");
    let (q, kv) = (l.heads * l.head_dim, l.kv_heads * l.head_dim);
    t.field = "num_hidden_layers";
    t.add(n("input_layernorm"), &[h], Role::Vector);
    t.add(n("self_attn.q_proj"), &[q, h], Role::Matrix);
    t.add(n("self_attn.q_norm"), &[l.head_dim], Role::Vector);
    if l.kv_from.is_none() {
        t.field = "num_kv_shared_layers";
        t.add(n("self_attn.k_proj"), &[kv, h], Role::Matrix);
        t.add(n("self_attn.k_norm"), &[l.head_dim], Role::Vector);
        if !l.k_eq_v {
            t.field = "attention_k_eq_v";
            t.add(n("self_attn.v_proj"), &[kv, h], Role::Matrix);
        }
        t.field = "num_hidden_layers";
    }
    t.add(n("self_attn.o_proj"), &[h, q], Role::Matrix);
    t.add(n("post_attention_layernorm"), &[h], Role::Vector);
    t.add(n("pre_feedforward_layernorm"), &[h], Role::Vector);
    t.add(n("mlp.gate_proj"), &[l.mlp_width, h], Role::Matrix);
    t.add(n("mlp.up_proj"), &[l.mlp_width, h], Role::Matrix);
    t.add(n("mlp.down_proj"), &[h, l.mlp_width], Role::Matrix);
    if let Some(e) = c.experts {
        t.field = "enable_moe_block";
        t.add(n("router.scale"), &[h], Role::Vector);
        t.add(n("router.proj"), &[e.count, h], Role::Matrix);
        t.add(n("router.per_expert_scale"), &[e.count], Role::Vector);
        t.add(n("pre_feedforward_layernorm_2"), &[h], Role::Vector);
        t.add(n("experts.switch_glu.gate_proj"), &[e.count, e.width, h], Role::Experts);
        t.add(n("experts.switch_glu.up_proj"), &[e.count, e.width, h], Role::Experts);
        t.add(n("experts.switch_glu.down_proj"), &[e.count, h, e.width], Role::Experts);
        t.add(n("post_feedforward_layernorm_1"), &[h], Role::Vector);
        t.add(n("post_feedforward_layernorm_2"), &[h], Role::Vector);
        t.field = "num_hidden_layers";
    }
    t.add(n("post_feedforward_layernorm"), &[h], Role::Vector);
    if let Some(p) = c.per_layer {
        t.field = "hidden_size_per_layer_input";
        t.add(n("per_layer_input_gate"), &[p.width, h], Role::Matrix);
        t.add(n("per_layer_projection"), &[h, p.width], Role::Matrix);
        t.add(n("post_per_layer_input_norm"), &[h], Role::Vector);
        t.field = "num_hidden_layers";
    }
    t.add(n("layer_scalar"), &[1], Role::Vector);
}
