//! Every released configuration parses; every planted fault is refused by name.

use super::*;
use crate::gemma4::tensors::{Role, tensors};
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
    assert_eq!((c.vocab_size, c.hidden_size, c.layers.len()), (4096, 256, 8));
    let sliding = Layer {
        kind: LayerKind::Sliding,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        window: 128,
        mlp_width: 256,
        k_eq_v: false,
        kv_from: None,
    };
    let full = Layer { kind: LayerKind::Full, kv_heads: 2, head_dim: 64, window: 0, k_eq_v: true, ..sliding };
    assert_eq!((c.layers[0], c.layers[7]), (sliding, full));
    assert_eq!(c.layers.iter().filter(|l| l.kind == LayerKind::Full).count(), 2);
    assert_eq!(c.experts, Some(Experts { count: 16, top_k: 4, width: 64 }));
    assert_eq!((c.eos.as_slice(), c.bos, c.pad), ([1, 106].as_slice(), 2, Some(0)));
    assert_eq!(c.rope_full, Rope { theta: 1e6, partial_rotary_factor: 0.25, factor: 1.0 });
    assert_eq!((c.softcap, c.dtype), (Some(30.0), StoredFloat::Bf16));
    let q = c.quantization.as_ref().unwrap();
    assert_eq!((q.of("layers.0.router.proj"), q.of("embed_tokens")), (Some((8, 64)), Some((4, 64))));
    assert_eq!(q.overrides.len(), 32);
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
    assert!(e.message.contains("`vocab_size` in text_config is 4096 but `vocab_size` at the top level is 262144"));
    let mut c = demo();
    c["quantization_config"]["bits"] = json!(8);
    assert!(parse(&c).unwrap_err().message.contains("`quantization` and `quantization_config` differ"));
    // One copy will do, also in text_config.
    let mut c = demo();
    let section = c.as_object_mut().unwrap().remove("quantization").unwrap();
    c["text_config"]["quantization"] = section;
    assert_eq!(parse(&c).unwrap(), parse(&demo()).unwrap());
    c.as_object_mut().unwrap().remove("quantization_config");
    assert_eq!(parse(&c).unwrap(), parse(&demo()).unwrap());
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
    assert!(quant("bits", json!(7)).contains("`quantization.bits` is 7, only 2, 3, 4, 5, 6 and 8"));
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

/// A configuration of the folder of fixtures.
fn released(folder: &str, name: &str) -> Value {
    let path = format!("{}/../tests/fixtures/{folder}/{name}/config.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))).unwrap()
}

/// Parameters in millions, all and those that one token uses.
fn parameters(c: &Config) -> (u64, u64) {
    let (mut all, mut active) = (0, 0);
    for t in tensors(c) {
        all += t.count();
        active += match (t.role, c.experts) {
            (Role::Experts, Some(e)) => t.count() * e.top_k as u64 / e.count as u64,
            _ => t.count(),
        };
    }
    ((all + 500_000) / 1_000_000, (active + 500_000) / 1_000_000)
}

#[test]
fn released_configurations() {
    // Parameters in millions, layers, full ones among them, and the layers that sharing ones read.
    for (name, millions, layers, full, shared) in [
        ("26b-a4b", 25233, 30, 5, vec![]),
        ("26b-a4b-mlx-4bit", 25233, 30, 5, vec![]),
        ("31b", 30697, 60, 10, vec![]),
        ("12b", 11907, 48, 8, vec![]),
        ("e4b", 7463, 42, 7, vec![22, 23]),
        ("e2b", 4629, 35, 7, vec![13, 14]),
    ] {
        let c = parse(&released("configs", name)).unwrap_or_else(|d| panic!("{name}: {d}"));
        let found = parameters(&c);
        assert_eq!(found.0, millions, "{name}");
        assert_eq!(found.1, if layers == 30 { 3823 } else { millions }, "{name}");
        assert_eq!(c.layers.len(), layers, "{name}");
        assert_eq!(c.layers.iter().filter(|l| l.kind == LayerKind::Full).count(), full, "{name}");
        let mut from: Vec<usize> = c.layers.iter().filter_map(|l| l.kv_from).collect();
        from.sort_unstable();
        from.dedup();
        assert_eq!(from, shared, "{name}");
        for l in &c.layers {
            let full = l.kind == LayerKind::Full;
            assert_eq!(
                (l.head_dim, l.window == 0, l.k_eq_v),
                (if full { 512 } else { 256 }, full, full && shared.is_empty()),
                "{name}"
            );
        }
    }
    let c = parse(&released("configs", "e2b")).unwrap();
    assert_eq!((c.layers[14].mlp_width, c.layers[15].mlp_width, c.layers[34].mlp_width), (6144, 12288, 12288));
}

/// transformers rewrites configurations: the sizes of full layers go to `per_layer_config`.
#[test]
fn saved_configurations_mean_the_same() {
    for name in ["26b-a4b", "31b", "12b", "e4b", "e2b"] {
        let (old, new) = (released("configs", name), released("configs-saved", name));
        assert!(new["text_config"].get("global_head_dim").is_none() && new["text_config"]["per_layer_config"].is_object());
        assert_eq!(parse(&old).unwrap(), parse(&new).unwrap_or_else(|d| panic!("{name}: {d}")), "{name}");
        // Both spellings at once agree; a lie in one of them is seen.
        let mut both = new.clone();
        both["text_config"]["global_head_dim"] = json!(512);
        assert_eq!(parse(&old).unwrap(), parse(&both).unwrap(), "{name}");
        both["text_config"]["global_head_dim"] = json!(256);
        let e = parse(&both).unwrap_err().to_string();
        assert!(e.contains("`global_head_dim` is 256 but `per_layer_config.0"), "{e}");
    }
}

/// The error of the demo configuration with this `per_layer_config`, or its layers.
fn overridden(section: Value) -> Result<Vec<Layer>, String> {
    let mut c = demo();
    c["text_config"]["per_layer_config"] = section;
    parse(&c).map(|c| c.layers).map_err(|d| d.to_string())
}

#[test]
fn layers_of_their_own_sizes() {
    let base = parse(&demo()).unwrap().layers;
    let l = overridden(json!({"2": {"intermediate_size": 512, "num_key_value_heads": 8, "skip": []},
        "005": {"head_dim": 16}, "sliding_attention": {"num_attention_heads": 16}, "full_attention": null}))
    .unwrap();
    assert_eq!(l[2], Layer { mlp_width: 512, kv_heads: 8, heads: 16, ..base[2] });
    assert_eq!(l[5], Layer { head_dim: 16, heads: 16, ..base[5] });
    assert_eq!((l[0], l[7]), (Layer { heads: 16, ..base[0] }, base[7]));
    // What a layer repeats, it does not change.
    assert_eq!(
        overridden(json!({"1": {"hidden_size": 256, "sliding_window": 128}, "7": {"sliding_window": 128}})).unwrap(),
        base
    );

    let fails = |v: Value, part: &str| {
        let e = overridden(v).expect_err(part);
        assert!(e.contains(part), "expected {part} in {e}");
    };
    fails(json!([]), "`per_layer_config` is [], expected an object");
    fails(json!({"8": {}}), "`per_layer_config.8` names no layer: expected 0 to 7, or a layer type");
    fails(json!({"-1": {}}), "`per_layer_config.-1` names no layer");
    fails(json!({"linear_attention": {}}), "`per_layer_config.linear_attention` names no layer");
    fails(json!({"1": 4}), "`per_layer_config.1` is 4, expected an object");
    fails(json!({"1": {"head_dim": 0}}), "`per_layer_config.1.head_dim` is 0, expected an integer from 1");
    fails(json!({"1": {"head_dim": 33}}), "`per_layer_config.1.head_dim` is 33, expected an even number");
    fails(
        json!({"1": {"hidden_size": 512}}),
        "`per_layer_config.1.hidden_size` is 512, but this cannot differ by layer\nhint: a layer can",
    );
    fails(json!({"1": {"skip": ["mlp"]}}), "`per_layer_config.1.skip` is [\"mlp\"], but this cannot");
    fails(json!({"7": {"sliding_window": 64}}), "`per_layer_config.7.sliding_window` is 64, but layer 7 sees every position");
    fails(json!({"1": {"num_key_value_heads": 3}}), "= 8 is not a multiple of `per_layer_config.1.num_key_value_heads` = 3");
    fails(
        json!({"1": {"head_dim": 16}, "01": {"head_dim": 64}}),
        "`per_layer_config.1.head_dim` is 16 but `per_layer_config.01.head_dim` is 64, and both mean layer 1",
    );
    fails(json!({"7": {"head_dim": 128}}), "`global_head_dim` is 64 but `");
    let mut c = demo();
    c["text_config"]["num_kv_shared_layers"] = json!(2);
    c["text_config"]["use_double_wide_mlp"] = json!(true);
    assert_eq!(parse(&c).unwrap().layers[7].mlp_width, 512);
    c["text_config"]["per_layer_config"] = json!({"7": {"intermediate_size": 300}});
    assert!(parse(&c).unwrap_err().message.contains("`use_double_wide_mlp` doubles layer 7"));
    c["text_config"]["per_layer_config"] = json!({"6": {"head_dim": 64}});
    assert!(parse(&c).unwrap_err().message.contains("layer 6 reads the keys of layer 5, which has 4 heads of 32"));
}

#[test]
fn two_spellings() {
    // (as it is, other spelling, value, another value)
    for (name, other, good, bad) in [
        ("num_experts", "num_local_experts", json!(16), json!(8)),
        ("top_k_experts", "num_experts_per_tok", json!(4), json!(2)),
        ("moe_intermediate_size", "expert_intermediate_size", json!(64), json!(128)),
        ("hidden_activation", "hidden_act", json!("gelu_pytorch_tanh"), json!("silu")),
        ("dtype", "torch_dtype", json!("bfloat16"), json!("float32")),
    ] {
        let want = parse(&demo()).unwrap();
        let mut c = demo();
        c["text_config"][other] = good.clone();
        assert_eq!(parse(&c).unwrap(), want, "{other} beside {name}");
        c["text_config"][other] = bad.clone();
        let e = parse(&c).unwrap_err().to_string();
        let part = format!("`{name}` in text_config is {good} but `{other}` in text_config is {bad}");
        assert!(e.contains(&part), "{e}");
        for place in [true, false] {
            c["text_config"].as_object_mut().unwrap().remove(name);
            c.as_object_mut().unwrap().remove(name);
            c["text_config"].as_object_mut().unwrap().remove(other);
            let map = if place { &mut c["text_config"] } else { &mut c };
            map[other] = good.clone();
            assert_eq!(parse(&c).unwrap(), want, "{other} alone");
        }
    }
    // Numbers are compared by value.
    let s = demo().to_string().replacen("{", "{\"rms_norm_eps\":0.000001,\"hidden_size\":256,", 1);
    assert_eq!(Config::parse(&s, "config.json").unwrap(), parse(&demo()).unwrap());
}

#[test]
fn old_rotary_spellings() {
    let want = parse(&demo()).unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut c = demo();
        change(&mut c["text_config"]);
        parse(&c).map_err(|d| d.to_string())
    };
    let flat = |t: &mut Value| {
        t.as_object_mut().unwrap().remove("rope_parameters");
        t["rope_theta"] = json!(1000000);
        t["rope_local_base_freq"] = json!(10000.0);
        t["rope_scaling"] = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25});
    };
    assert_eq!(with(&flat).unwrap(), want);
    let nested = |t: &mut Value| {
        let sections = t.as_object_mut().unwrap().remove("rope_parameters").unwrap();
        t["rope_scaling"] = sections;
    };
    assert_eq!(with(&nested).unwrap(), want);
    let both = |t: &mut Value| {
        t["rope_theta"] = json!(1000000);
        t["rope_scaling"] = t["rope_parameters"].clone();
        t["partial_rotary_factor"] = json!(0.25);
    };
    assert_eq!(with(&both).unwrap(), want);
    let e = with(&|t| t["rope_theta"] = json!(10000.0)).unwrap_err();
    assert!(e.contains("`rope_parameters.full_attention.rope_theta` is 1000000.0 but `rope_theta` is 10000.0"), "{e}");
    let e = with(&|t| t["rope_local_base_freq"] = json!(5)).unwrap_err();
    assert!(e.contains("`rope_parameters.sliding_attention.rope_theta` is 10000.0 but `rope_local_base_freq` is 5"), "{e}");
    let e = with(&|t| {
        flat(t);
        t["rope_scaling"] = json!({"rope_type": "proportional"});
    });
    assert!(e.unwrap_err().contains("`rope_parameters.full_attention.partial_rotary_factor` is missing"));
    let e = with(&|t| {
        flat(t);
        t["rope_scaling"] = Value::Null;
    });
    assert!(e.unwrap_err().contains("`rope_parameters.full_attention.rope_type` is missing"));
    let e = with(&|t| _ = t.as_object_mut().unwrap().remove("rope_parameters")).unwrap_err();
    assert!(e.contains("`rope_parameters.sliding_attention` is missing"), "{e}");
}

#[test]
fn per_layer_tables_must_know_every_token() {
    let with = |v: Value| {
        let mut c = demo();
        c["text_config"]["hidden_size_per_layer_input"] = json!(32);
        c["text_config"]["vocab_size_per_layer_input"] = v;
        parse(&c).map(|c| c.per_layer).map_err(|d| d.to_string())
    };
    assert_eq!(with(json!(5000)), Ok(Some(PerLayerEmbedding { width: 32, vocab_size: 5000 })));
    assert!(with(json!(4095)).unwrap_err().contains("`vocab_size_per_layer_input` = 4095 is less than `vocab_size` = 4096"));
    assert!(with(Value::Null).unwrap_err().contains("`vocab_size_per_layer_input` is missing"));
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
