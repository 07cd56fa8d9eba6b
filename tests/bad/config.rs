//! Configurations that describe no model, or another one.

use super::Case;
use super::model::damaged;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;

const FILE: &str = "config.json";

/// A field of the text decoder set to a JSON text, at the top level as well if it stands there.
fn field(field: &'static str, value: &'static str) -> Case {
    damaged(format!("{field}={value}"), move |m| {
        let value: Value = serde_json::from_str(value).unwrap();
        m.json(FILE, |c| {
            if c.get(field).is_some() {
                c[field] = value.clone();
            }
            c["text_config"][field] = value.clone();
        });
    })
}

/// A field of the text decoder with a text that need not be JSON.
fn raw(name: &str, field: &'static str, text: &'static str) -> Case {
    damaged(name, move |m| {
        m.json(FILE, |c| c["text_config"][field] = json!("@"));
        m.replace(FILE, "\"@\"", text);
    })
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut out = vec![
        damaged("empty", |m| m.put(FILE, "")),
        damaged("no-json", |m| m.put(FILE, "not json")),
        damaged("not-utf8", |m| m.put(FILE, b"{\"model_type\": \"\xff\"}")),
        damaged("a-list", |m| m.put(FILE, "[]")),
        damaged("cut", |m| m.put(FILE, &m.text(FILE)[..4000])),
        damaged("100-MB", |m| {
            m.remove(FILE);
            let mut f = File::create(m.path(FILE)).unwrap();
            for _ in 0..100 {
                f.write_all(&[b' '; 1 << 20]).unwrap();
            }
        }),
        damaged("4-MB-of-numbers", |m| {
            m.remove(FILE);
            let mut f = File::create(m.path(FILE)).unwrap();
            f.write_all(b"{\"a\": [").unwrap();
            for _ in 0..4090 {
                f.write_all("0,".repeat(512).as_bytes()).unwrap();
            }
            f.write_all(b"0]}").unwrap();
        }),
        damaged("nested-10000-lists", |m| m.put(FILE, "[".repeat(10_000) + &"]".repeat(10_000))),
        damaged("nested-10000-objects", |m| m.put(FILE, "{\"text_config\":".repeat(10_000))),
        damaged("a-key-twice", |m| m.put(FILE, m.text(FILE).replacen('{', "{\"model_type\": \"gemma4\", ", 1))),
        damaged("top-level-contradicts", |m| m.json(FILE, |c| c["vocab_size"] = json!(4097))),
        damaged("another-model", |m| m.json(FILE, |c| c["model_type"] = json!("llama"))),
        damaged("text-config-is-a-list", |m| m.json(FILE, |c| c["text_config"] = json!([]))),
        damaged("no-text-config", |m| m.json(FILE, |c| c["text_config"] = Value::Null)),
        raw("eps-NaN", "rms_norm_eps", "NaN"),
        raw("eps-infinite", "rms_norm_eps", "1e999"),
    ];
    let fields = [
        ("hidden_size", "0"),
        ("hidden_size", "-256"),
        ("hidden_size", "2147483648"),
        ("hidden_size", "257"),
        ("hidden_size", "512"),
        ("hidden_size", "256.5"),
        ("hidden_size", "\"256\""),
        ("hidden_size", "null"),
        ("hidden_size", "[256]"),
        ("hidden_size", "1e300"),
        ("hidden_size", "99999999999999999999"),
        ("vocab_size", "0"),
        ("vocab_size", "4097"),
        ("vocab_size", "1099511627776"),
        ("num_hidden_layers", "0"),
        ("num_hidden_layers", "7"),
        ("num_hidden_layers", "9"),
        ("num_hidden_layers", "1000000000"),
        ("num_attention_heads", "0"),
        ("num_attention_heads", "7"),
        ("num_attention_heads", "16777216"),
        ("num_key_value_heads", "0"),
        ("num_key_value_heads", "3"),
        ("num_key_value_heads", "16"),
        ("num_global_key_value_heads", "3"),
        ("head_dim", "0"),
        ("head_dim", "63"),
        ("head_dim", "true"),
        ("global_head_dim", "1"),
        ("intermediate_size", "0"),
        ("intermediate_size", "-1"),
        ("moe_intermediate_size", "0"),
        ("moe_intermediate_size", "63"),
        ("num_experts", "0"),
        ("num_experts", "1000000000"),
        ("num_experts", "17"),
        ("top_k_experts", "0"),
        ("top_k_experts", "17"),
        ("enable_moe_block", "false"),
        ("enable_moe_block", "1"),
        ("sliding_window", "0"),
        ("sliding_window", "-1"),
        ("sliding_window", "\"all\""),
        ("rms_norm_eps", "0"),
        ("rms_norm_eps", "-1e-6"),
        ("rms_norm_eps", "1e300"),
        ("rms_norm_eps", "\"NaN\""),
        ("final_logit_softcapping", "0"),
        ("final_logit_softcapping", "-30"),
        ("max_position_embeddings", "0"),
        ("max_position_embeddings", "4294967296"),
        ("layer_types", "[]"),
        ("layer_types", "[\"full_attention\"]"),
        ("layer_types", "[\"sliding_attention\", \"linear_attention\"]"),
        ("layer_types", "7"),
        ("rope_parameters", "7"),
        ("rope_parameters", "{}"),
        ("hidden_activation", "\"silu\""),
        ("attention_bias", "true"),
        ("attention_k_eq_v", "false"),
        ("num_kv_shared_layers", "8"),
        ("num_kv_shared_layers", "-1"),
        ("hidden_size_per_layer_input", "64"),
        ("eos_token_id", "4096"),
        ("eos_token_id", "-1"),
        ("bos_token_id", "4096"),
        ("bos_token_id", "\"<bos>\""),
        ("tie_word_embeddings", "false"),
        ("tie_word_embeddings", "\"yes\""),
        ("dtype", "\"float8\""),
    ];
    out.extend(fields.map(|(name, value)| field(name, value)));
    let quantized = |name: &str, key: &'static str, value: Value| {
        damaged(name, move |m| {
            m.json(FILE, |c| {
                for block in ["quantization", "quantization_config"] {
                    c[block][key] = value.clone();
                }
            });
        })
    };
    let q = "language_model.model.layers.3.self_attn.q_proj";
    out.extend([
        quantized("bits=7", "bits", json!(7)),
        quantized("bits=-4", "bits", json!(-4)),
        quantized("bits=8-but-the-shapes-say-4", "bits", json!(8)),
        quantized("group=0", "group_size", json!(0)),
        quantized("group=48", "group_size", json!(48)),
        quantized("group=32-but-the-shapes-say-64", "group_size", json!(32)),
        quantized("mode=mxfp4", "mode", json!("mxfp4")),
        quantized("module-of-other-bits-than-its-shapes", q, json!({"bits": 8, "group_size": 64})),
        quantized("module-unquantized-but-has-scales", q, json!(false)),
        quantized("module-is-a-number", q, json!(7)),
        damaged("quantization-blocks-contradict", |m| m.json(FILE, |c| c["quantization"]["bits"] = json!(8))),
        damaged("quantization-method-of-another-program", |m| {
            m.json(FILE, |c| {
                c.as_object_mut().unwrap().remove("quantization");
                c["quantization_config"] = json!({"quant_method": "gptq", "bits": 4, "group_size": 64});
            });
        }),
    ]);
    out
}
