//! One model in every layout: the graph interpreter's logits are the same bits, whatever the prefix, the stored type, the
//! number of files, the place of the experts, and what else lies in the folder.

mod common;

use common::says;
use common::tiny::*;
use ir::graph::interp::Session;
use ir::graph::op::EmbedMode;
use models::gemma4::layers::{LOGITS, graph};
use models::{Checkpoint, checkpoint::Why};
use serde_json::json;
use std::borrow::Cow;

const IDS: [u32; 7] = [2, 17, 5, 40, 5, 33, 1];

fn open(files: Vec<(String, Cow<'static, [u8]>)>) -> Checkpoint {
    Checkpoint::from_memory(files).unwrap_or_else(|d| panic!("{d}"))
}

fn logits(ck: &Checkpoint) -> Vec<f32> {
    let g = graph(ck, EmbedMode::Exact).unwrap_or_else(|d| panic!("{d}"));
    let mut s = Session::new(&g, ck).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(&IDS, 0).unwrap_or_else(|d| panic!("{d}"));
    let z = s.value(LOGITS).and_then(|v| v.f32s()).unwrap().to_vec();
    assert!(z.len() == IDS.len() * 64 && z.iter().all(|x| x.is_finite()));
    z
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn error(files: Vec<(String, Cow<'static, [u8]>)>) -> String {
    Checkpoint::from_memory(files).and_then(|ck| graph(&ck, EmbedMode::Exact)).expect_err("must be refused").to_string()
}

#[test]
fn unquantized() {
    for kind in KINDS {
        let t = Tiny::new(kind, None);
        let want = bits(&logits(&open(t.files(&HF))));
        for layout in [
            Layout { dtype: "F16", ..HF },
            Layout { dtype: "F32", ..HF },
            Layout { shards: 3, ..HF },
            Layout { prefix: "model.language_model.", multimodal: true, ..HF },
            Layout { prefix: "model.language_model.", multimodal: true, shards: 2, dtype: "F32", ..HF },
            Layout { experts: Experts::Single, ..HF },
            MLX,
            Layout { multimodal: true, ..MLX },
            Layout { prefix: "model.", dtype: "F16", ..MLX },
            Layout { experts: Experts::Single, shards: 4, ..MLX },
        ] {
            let ck = open(t.files(&layout));
            assert_eq!(bits(&logits(&ck)), want, "{kind:?} {layout:?}");
            assert_eq!((ck.prefix(), ck.warnings()), (layout.prefix, &[][..]), "{layout:?}");
        }
    }
}

#[test]
fn quantized() {
    let all: &[u32] = &[2, 3, 4, 5, 6, 8];
    for (kind, group, widths) in
        [(Kind::Moe, 32, all), (Kind::Moe, 64, all), (Kind::Moe, 128, all), (Kind::Dense, 64, &[4, 5]), (Kind::Ple, 32, &[3, 8])]
    {
        for &width in widths {
            let t = Tiny::new(kind, Some((width, group)));
            let one = logits(&open(t.files(&MLX)));
            let layouts = [
                Layout { dtype: "F32", experts: Experts::Fused, ..MLX },
                Layout { prefix: "model.", ..MLX },
                Layout { dtype: "F16", experts: Experts::Single, shards: 2, ..MLX },
                Layout { multimodal: true, ..MLX },
            ];
            // Each width in two of the layouts; every layout with several widths.
            for layout in layouts.into_iter().skip(width as usize % 2).step_by(2) {
                assert_eq!(bits(&logits(&open(t.files(&layout)))), bits(&one), "{kind:?} {width} bits by {group} {layout:?}");
            }
            // The same numbers without codes: another sum of the same products.
            let plain = logits(&open(t.dequantized().files(&Layout { dtype: "F32", ..HF })));
            let worst = one.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let size = plain.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!(worst < 3e-5 * size, "{kind:?} {width} bits by {group}: off by {worst} of {size}");
        }
    }
}

/// The comparison sees halves of a fused tensor that are swapped, and rows that belong to another expert.
#[test]
fn mistakes_are_seen() {
    let t = Tiny::new(Kind::Moe, None);
    let want = bits(&logits(&open(t.files(&HF))));
    let mut swapped = t.stored(&HF);
    let (_, _, bytes) = swapped.get_mut("model.layers.0.experts.gate_up_proj").unwrap();
    let half = bytes.len() / 8;
    for expert in bytes.chunks_exact_mut(2 * half) {
        expert.rotate_left(half);
    }
    assert_ne!(bits(&logits(&open(files(&t.config(&HF), &swapped, 1)))), want);
    let mut turned = t.stored(&HF);
    let (_, _, bytes) = turned.get_mut("model.layers.1.experts.down_proj").unwrap();
    let one = bytes.len() / 4;
    bytes.rotate_left(one);
    assert_ne!(bits(&logits(&open(files(&t.config(&HF), &turned, 1)))), want);
}

#[test]
fn what_is_not_read_is_listed() {
    let t = Tiny::new(Kind::Ple, Some((4, 32)));
    let ck = open(t.files(&Layout { multimodal: true, ..MLX }));
    let of = |why: Why| ck.skipped().filter(|(_, w)| *w == why).map(|(t, _)| t.name.to_string()).collect::<Vec<_>>();
    assert_eq!(of(Why::Tower), ["audio_tower.conv.weight", "embed_vision.weight", "vision_tower.encoder.layers.0.weight"]);
    assert_eq!(of(Why::HeadCopy).len(), 3);
    assert_eq!(of(Why::HeadCopy)[0], "language_model.lm_head.biases");
    let keys = of(Why::SharedKeys);
    assert_eq!((keys.len(), keys[0].as_str()), (6, "language_model.model.layers.2.self_attn.k_norm.weight"));
    assert!(of(Why::Outside).is_empty() && ck.warnings().is_empty());

    let mut more = t.stored(&MLX);
    more.insert("optimizer.step".into(), ("F32", vec![1], vec![0; 4]));
    let ck = open(files(&t.config(&MLX), &more, 1));
    says(
        ck.warnings()[0].to_string(),
        "1 tensors are neither of the text decoder nor of a known tower, optimizer.step the first",
    );
    graph(&ck, EmbedMode::Exact).unwrap();
}

#[test]
fn output_projections() {
    let t = Tiny::new(Kind::Dense, None);
    let (tied, mut config) = (bits(&logits(&open(t.files(&HF)))), t.config(&HF));
    let mut copy = t.stored(&HF);
    copy.insert("lm_head.weight".into(), copy["model.embed_tokens.weight"].clone());
    config["tie_word_embeddings"] = json!(false);
    // A matrix of its own that happens to be the same.
    assert_eq!(bits(&logits(&open(files(&config, &copy, 1)))), tied);
    copy.get_mut("lm_head.weight").unwrap().2.rotate_left(256);
    let other = bits(&logits(&open(files(&config, &copy, 1))));
    assert_ne!(other, tied);
    // Row k of the projection gives logit k: rows were moved up by one.
    assert_eq!(other[..63], tied[1..64]);
    says(error(files(&config, &t.stored(&HF), 1)), "a tensor is missing:\n  lm_head.weight [64, 128] (`tie_word_embeddings`)");
    let e = error(files(&t.config(&HF), &copy, 1));
    says(e, "model.safetensors: lm_head.weight: lm_head differs from embed_tokens, but `tie_word_embeddings` is true");
}

#[test]
fn missing_and_surplus_tensors() {
    let t = Tiny::new(Kind::Moe, None);
    let mut fewer = t.stored(&HF);
    fewer.retain(|name, _| !name.contains("layers.1.router") && !name.contains("layers.0.experts"));
    assert_eq!(
        error(files(&t.config(&HF), &fewer, 1)),
        "built-in checkpoint: 6 tensors are missing:
  model.layers.0.experts.switch_glu.gate_proj.weight [4, 128, 128] (`enable_moe_block`)
  model.layers.0.experts.switch_glu.up_proj.weight [4, 128, 128] (`enable_moe_block`)
  model.layers.0.experts.switch_glu.down_proj.weight [4, 128, 128] (`enable_moe_block`)
  model.layers.1.router.scale [128] (`enable_moe_block`)
  model.layers.1.router.proj.weight [4, 128] (`enable_moe_block`)
  model.layers.1.router.per_expert_scale [4] (`enable_moe_block`)
hint: a shard seems missing, or config.json belongs to another model; experts may also be stored as experts.gate_up_proj and \
         experts.down_proj, or one by one as experts.0.gate_proj and so on"
    );
    // One shard of two, and the index that knows of the other.
    let mut files_there = t.files(&Layout { shards: 2, ..HF });
    files_there.remove(1);
    let e = error(files_there);
    says(e.clone(), "built-in checkpoint: 25 tensors are missing:\n  model.embed_tokens.weight [64, 128] (`vocab_size`)");
    says(e.clone(), "\n  and 5 more\nhint: the index names shards that are not here: model-00001-of-00002.safetensors");
    assert_eq!(e.lines().count(), 23);
    // One expert of four.
    let single = Layout { experts: Experts::Single, ..HF };
    let mut fewer = t.stored(&single);
    fewer.remove("model.layers.0.experts.3.up_proj.weight").unwrap();
    let e = error(files(&t.config(&single), &fewer, 1));
    says(e, "a tensor is missing:\n  model.layers.0.experts.3.up_proj.weight [128, 128] (`enable_moe_block`)");
    // An expert too many, and a layer too many.
    for (name, shape) in
        [("model.layers.0.experts.4.up_proj.weight", &[128usize, 128][..]), ("model.layers.2.layer_scalar", &[1])]
    {
        let mut more = t.stored(&single);
        more.insert(name.into(), ("BF16", shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()]));
        let name = name.strip_prefix("model.").unwrap();
        says(error(files(&t.config(&single), &more, 1)), &format!("no place for 1 tensors of the checkpoint, {name} the first"));
    }
}

#[test]
fn experts_in_two_layouts_or_formats() {
    let t = Tiny::new(Kind::Moe, Some((4, 32)));
    let single = Layout { experts: Experts::Single, ..MLX };
    let mut both = t.stored(&single);
    both.extend(t.stored(&MLX));
    says(
        error(files(&t.config(&MLX), &both, 1)),
        "the same experts are stored as layers.0.experts.switch_glu.gate_proj and as layers.0.experts.0.gate_proj",
    );
    let mut mixed = t.stored(&single);
    let eight = Tiny::new(Kind::Moe, Some((8, 32))).stored(&single);
    for part in ["weight", "scales", "biases"] {
        let name = format!("language_model.model.layers.1.experts.2.up_proj.{part}");
        mixed.insert(name.clone(), eight[&name].clone());
    }
    let mut config = t.config(&MLX);
    let e = error(files(&config, &mixed, 1));
    says(
        e,
        "model.safetensors: language_model.model.layers.1.experts.2.up_proj.weight: config.json says 4 bits in groups of 32 for \
         layers.1.experts.2.up_proj, the tensors say 8 bits in groups of 32\nhint: look at `quantization` in built-in checkpoint/config.json",
    );
    config["quantization"]["language_model.model.layers.1.experts.2.up_proj"] = json!({"bits": 8, "group_size": 32});
    says(error(files(&config, &mixed, 1)), "up_proj.weight: this expert has 8 bits in groups of 32 with scales of BF16, but");
}

#[test]
fn silent_configurations_and_stale_indexes_are_warnings() {
    let t = Tiny::new(Kind::Moe, Some((5, 64)));
    let want = bits(&logits(&open(t.files(&MLX))));
    let mut config = t.config(&MLX);
    config.as_object_mut().unwrap().remove("quantization");
    let ck = open(files(&config, &t.stored(&MLX), 1));
    assert_eq!(bits(&logits(&ck)), want);
    says(ck.warnings()[0].to_string(), "config.json says nothing of quantization, but");

    let index = |text: String| {
        let mut f = t.files(&Layout { shards: 2, ..MLX });
        f.last_mut().unwrap().1 = Cow::Owned(text.into_bytes());
        let ck = open(f);
        assert_eq!(bits(&logits(&ck)), want);
        ck.warnings().iter().map(|d| d.to_string()).collect::<Vec<_>>().join("\n")
    };
    let good = String::from_utf8(t.files(&Layout { shards: 2, ..MLX }).pop().unwrap().1.into_owned()).unwrap();
    assert_eq!(index(good.clone()), "");
    let place = "built-in checkpoint/model.safetensors.index.json: ";
    let tail = "; tensors are found by the headers of the shards instead\nhint: the index is of another state of this checkpoint: download it again";
    let moved = good.replace("model-00002-of-00002", "model-00002-of-00003");
    let n = good.matches("model-00002-of-00002").count();
    let first = "language_model.model.embed_tokens.scales";
    assert_eq!(
        index(moved),
        format!(
            "{place}this index is stale: it names 1 shard that is not here (model-00002-of-00003.safetensors), puts {n} tensors in the wrong file ({first}){tail}"
        )
    );
    let renamed = good.replace("layers.0.layer_scalar", "layers.9.layer_scalar");
    says(
        index(renamed.clone()),
        "lists 1 tensors that no shard holds (language_model.model.layers.9.layer_scalar), leaves out 1 tensors (",
    );
    says(index("{".into()), "this index cannot be read (damaged JSON: EOF");
    says(index("[]".into()), "this index is not an object");
    says(index(r#"{"weight_map": {"a": 1}}"#.into()), "this index has no `weight_map` from tensors to files");
}
