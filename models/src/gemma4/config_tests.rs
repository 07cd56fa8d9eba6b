//! Every released configuration parses; every planted fault is refused by name.

use super::*;
use serde_json::json;

fn demo() -> Value {
    serde_json::from_slice(include_bytes!("../../demo/mlx-4bit/config.json")).unwrap()
}

fn parse(v: &Value) -> Result<Config> {
    Config::parse(&v.to_string(), "config.json")
}

/// Puts a value into text_config and returns the error's text.
fn text(field: &str, value: Value) -> String {
    let mut c = demo();
    c["text_config"][field] = value;
    for key in ["vocab_size", "dtype", "bos_token_id", "pad_token_id"] {
        if key == field {
            c.as_object_mut().unwrap().remove(field);
        }
    }
    parse(&c).expect_err(field).to_string()
}

#[test]
fn the_demo_model() {
    let c = parse(&demo()).unwrap();
    assert_eq!((c.vocab_size, c.hidden_size, c.layers.len(), c.heads), (4096, 256, 8, 8));
    assert_eq!((c.kv_heads, c.global_kv_heads, c.head_dim, c.global_head_dim), (4, 2, 32, 64));
    assert_eq!(c.layers.iter().filter(|k| **k == LayerKind::Full).count(), 2);
    assert_eq!(c.experts, Some(Experts { count: 16, top_k: 4, width: 64 }));
    assert_eq!((c.eos.as_slice(), c.bos, c.pad), ([1, 106].as_slice(), 2, Some(0)));
    assert_eq!(c.rope_full, Rope { theta: 1e6, partial_rotary_factor: 0.25, factor: 1.0 });
    assert_eq!((c.softcap, c.dtype, c.k_eq_v), (Some(30.0), StoredFloat::Bf16, true));
    let q = c.quantization.as_ref().unwrap();
    assert_eq!((q.of("layers.0.router.proj"), q.of("embed_tokens")), (Some((8, 64)), Some((4, 64))));
    assert_eq!(q.overrides.len(), 32);
    c.supported().unwrap();
}

#[test]
fn sizes_are_checked() {
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-256)),
        ("hidden_size", json!(1u64 << 40)),
        ("hidden_size", json!(256.0)),
        ("hidden_size", json!("256")),
        ("vocab_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(5000)),
        ("sliding_window", json!(0)),
        ("max_position_embeddings", json!(1u64 << 31)),
        ("intermediate_size", json!([1])),
        ("num_experts", json!(0)),
    ] {
        let e = text(field, value.clone());
        assert!(e.starts_with(&format!("config.json: `{field}` is {value}, expected an integer from 1 to")), "{e}");
    }
    assert!(text("head_dim", json!(33)).contains("`head_dim` is 33, expected an even number"));
    assert!(text("num_key_value_heads", json!(3)).contains("= 8 is not a multiple of `num_key_value_heads` = 3"));
    assert!(text("num_global_key_value_heads", json!(5)).contains("multiple of `num_global_key_value_heads` = 5"));
    assert!(text("top_k_experts", json!(17)).contains("`top_k_experts` = 17 exceeds `num_experts` = 16"));
    assert!(text("num_kv_shared_layers", json!(8)).contains("leaves none of 8 layers"));
    assert!(text("num_kv_shared_layers", json!(5)).contains("no earlier layer is Full"));
    assert!(text("bos_token_id", json!(4096)).contains("`bos_token_id` is 4096, expected an integer from 0 to 4095"));
    assert!(text("eos_token_id", json!([1, -1])).contains("`eos_token_id` is -1"));
}

#[test]
fn numbers_and_names_are_checked() {
    for bad in [json!(0.0), json!(-1e-6), json!("1e-6"), json!(3)] {
        assert!(text("rms_norm_eps", bad).contains("expected a number above 0 and at most 1"));
    }
    for bad in ["NaN", "1e999", "Infinity"] {
        let s = demo().to_string().replace("1e-6", bad);
        assert_ne!(s, demo().to_string());
        assert_eq!(Config::parse(&s, "c").unwrap_err().code, "E0204", "{bad}");
    }
    assert!(text("final_logit_softcapping", json!(0)).contains("`final_logit_softcapping` is 0"));
    assert!(text("hidden_activation", json!("relu")).contains("only \"gelu_pytorch_tanh\" is known"));
    assert!(text("attention_bias", json!(true)).contains("no biases"));
    assert!(text("use_bidirectional_attention", json!("all")).contains("is \"all\", only null"));
    assert!(text("model_type", json!("llama")).contains("the model is of type \"llama\"\nhint: isobit builds Gemma 4"));
    assert!(text("dtype", json!("int8")).contains("`dtype` is \"int8\", expected bfloat16"));
    assert!(text("attention_k_eq_v", json!(1)).contains("`attention_k_eq_v` is 1, expected true or false"));
    assert!(text("rope_parameters", json!({})).contains("`rope_parameters.sliding_attention` is missing"));
    let yarn = json!({"sliding_attention": {"rope_type": "yarn", "rope_theta": 1e4}});
    assert!(text("rope_parameters", yarn).contains("rope_type` is \"yarn\", only \"default\""));
    let factor = json!({"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 1.5}});
    assert!(text("rope_parameters", factor).contains("partial_rotary_factor` is 1.5, expected"));
}

#[test]
fn layer_types_are_checked() {
    let mut kinds = vec!["sliding_attention"; 8];
    assert!(text("layer_types", json!(kinds)).contains("last entry of `layer_types`"));
    kinds[2] = "linear_attention";
    assert!(text("layer_types", json!(kinds)).contains("`layer_types[2]` is \"linear_attention\""));
    kinds.pop();
    assert!(text("layer_types", json!(kinds)).contains("has 7 entries, but `num_hidden_layers` is 8"));
    assert!(text("layer_types", Value::Null).contains("`layer_types` is missing"));
}

#[test]
fn duplicates_must_agree() {
    let mut c = demo();
    c["vocab_size"] = json!(262144);
    let e = parse(&c).unwrap_err();
    assert_eq!(e.code, "E0207");
    assert!(e.message.contains("`vocab_size` is 4096 in text_config but 262144 at the top level"));
    let mut c = demo();
    c["quantization_config"]["bits"] = json!(8);
    assert!(parse(&c).unwrap_err().message.contains("`quantization` and `quantization_config` differ"));
    // eos ids may differ: they are joined.
    let mut c = demo();
    c["text_config"]["eos_token_id"] = json!(7);
    assert_eq!(parse(&c).unwrap().eos, [1, 7, 106]);
}

#[test]
fn quantization_is_checked() {
    let quant = |key: &str, value: Value| {
        let mut c = demo();
        c.as_object_mut().unwrap().remove("quantization_config");
        c["quantization"][key] = value;
        parse(&c).expect_err(key).to_string()
    };
    assert!(quant("bits", json!(3)).contains("`quantization.bits` is 3, only 4 and 8"));
    assert!(quant("group_size", json!(0)).contains("`quantization.group_size` is 0"));
    assert!(quant("group_size", json!(48)).contains("only groups of 32, 64 and 128"));
    assert!(quant("mode", json!("mxfp4")).contains("`quantization.mode` is \"mxfp4\", only \"affine\""));
    assert!(quant("quant_method", json!("gptq")).contains("method \"gptq\" is not supported"));
    assert!(quant("norm", json!(4)).contains("`quantization.norm` is 4, expected false or"));
    let other = json!({"bits": 4, "group_size": 64});
    assert!(quant("model.layers.0.router.proj", other).contains("two different entries of `quantization` mean"));
    let mut c = demo();
    c.as_object_mut().unwrap().remove("quantization_config");
    c["quantization"]["language_model.model.layers.0.router.proj"] = json!(false);
    assert_eq!(parse(&c).unwrap().quantization.unwrap().of("layers.0.router.proj"), None);
}

#[test]
fn unbuildable_kinds_parse_and_are_refused() {
    let mut c = demo();
    c["text_config"]["hidden_size_per_layer_input"] = json!(256);
    let e = parse(&c).unwrap().supported().unwrap_err();
    assert_eq!((e.code, e.message.as_str()), ("E0209", "per-layer embeddings (E2B, E4B) are not supported yet"));
    let mut c = demo();
    c["text_config"]["num_kv_shared_layers"] = json!(2);
    assert!(parse(&c).unwrap().supported().unwrap_err().message.contains("share keys and values"));
    let mut c = demo();
    c["tie_word_embeddings"] = json!(false);
    c["text_config"]["tie_word_embeddings"] = json!(false);
    assert!(parse(&c).unwrap().supported().unwrap_err().message.contains("tie_word_embeddings"));
}

#[test]
fn the_top_level_alone_will_do() {
    let full = demo();
    let mut flat = full["text_config"].clone();
    flat["quantization"] = full["quantization"].clone();
    assert_eq!(parse(&flat).unwrap(), parse(&full).unwrap());
}

#[test]
fn damaged_files() {
    let e = Config::parse("[]", "c.json").unwrap_err().to_string();
    assert!(e.contains("c.json: `config.json` is [], expected an object"), "{e}");
    assert_eq!(Config::parse(&"{\"a\":".repeat(5000), "c").unwrap_err().code, "E0204");
    assert_eq!(Config::parse(&" ".repeat(17 << 20), "c").unwrap_err().code, "E0203");
    assert!(Config::parse("{}", "c").unwrap_err().message.contains("`model_type` is missing"));
}
