//! Every released kind of Gemma 4 in little, unquantized and quantized, against float64: logits at every position of the prompt
//! and of greedy decoding, and what every layer computes on the way. Then one set of bits: fused and unfused code, any chunk,
//! the interpreter of kernels. Mistakes that were once made in public are planted, and seen.
#![cfg(feature = "llvm")]

mod common;

use common::fixture::{FIXTURES, Fixture, Trace, greedy, relative_error_f64, trace};
use common::tiny::{Kind, MLX, Tiny};
use common::*;
use ir::graph::op::{EmbedMode, Op};
use ir::graph::{Graph, NodeId};
use models::Checkpoint;
use models::gemma4::layers::{LOGITS, PER_LAYER, graph};
use passes::Options;
use runtime::session::{Limits, Session};

/// What is demanded of logits and values: error over greatest magnitude.
const BOUND: f64 = 3e-5;
const LIMITS: Limits = Limits { slots: 1, context: 160, chunk: 64, slack: 32, outputs: 64 };

fn all() -> Vec<Fixture> {
    FIXTURES.iter().map(|(model, layout)| Fixture::load(model, layout)).collect()
}

/// The graph that kernels are made from.
fn lowered(g: Graph) -> Graph {
    through_passes(g, &Options::default())
}

/// The worst error, and the name of the value.
fn worst(f: &Fixture, t: &Trace) -> (String, f64) {
    f.errors(t).into_iter().fold((String::new(), 0.0), |m, e| if e.1 > m.1 { e } else { m })
}

#[test]
fn every_value_against_float64() {
    for f in all() {
        let g = lowered(f.graph(EmbedMode::Exact));
        let errors = f.errors(&trace(&g, &f.ck, &f.prompt));
        assert!(errors.len() >= f.ck.config().layers.len() + 3, "{}: {errors:?}", f.name);
        let (name, e) = errors.iter().fold(("", 0.0), |m, (n, e)| if *e > m.1 { (n, *e) } else { m });
        println!("{:>14}: {} values, worst {name} {e:.1e}, logits {:.1e}", f.name, errors.len(), errors["logits"]);
        for (name, e) in errors {
            assert!(e <= BOUND, "{}: {name} off by {e:e}", f.name);
        }
        let rounded = trace(&lowered(f.graph(EmbedMode::Bf16)), &f.ck, &f.prompt);
        let e = relative_error_f64(&rounded.floats[LOGITS], f.want("logits_bf16embed"));
        println!("{:>14}: logits with the embedding in bf16 {e:.1e}", f.name);
        assert!(e <= BOUND, "{}: with the embedding in bf16 off by {e:e}", f.name);
    }
}

#[test]
fn greedy_decoding_against_float64() {
    let all = all();
    on_two_threads(&all, |f| {
        let g = lowered(f.graph(EmbedMode::Exact));
        let (ids, rows) = greedy(&g, &f.ck, &f.prompt, f.greedy.len());
        assert_eq!(ids, f.greedy, "{}", f.name);
        let width = rows.len() / ids.len();
        let (best, logits) = (f.want("greedy_top8_ids"), f.want("greedy_top8_logits_f64"));
        let mut worst = relative_error_f64(&rows[rows.len() - width..], f.want("greedy_last_logits_f64"));
        for (row, (ids, want)) in rows.chunks_exact(width).zip(best.chunks_exact(8).zip(logits.chunks_exact(8))) {
            let got: Vec<f32> = ids.iter().map(|i| row[*i as usize]).collect();
            worst = worst.max(relative_error_f64(&got, want));
        }
        println!("{:>14}: {} tokens, the eight best logits of each within {worst:.1e}", f.name, ids.len());
        assert!(worst <= BOUND, "{}: off by {worst:e}", f.name);
    });
}

/// Sessions on host code: with and without fusion.
fn sessions(f: &Fixture, g: &Graph) -> Vec<(&'static str, Session, ir::plan::Plan)> {
    let keep: Vec<String> = f.traced();
    let fused = Options { keep: keep.into_iter().collect(), ..Options::default() };
    let unfused = Options { switches: without(&["fuse"]).switches, ..fused.clone() };
    [("fused", Options::default()), ("fused, values kept", fused), ("unfused", unfused)]
        .into_iter()
        .map(|(what, options)| {
            let p = plan(&through_passes(g.clone(), &options), &options);
            let s = on_host(&p, &object(&p, best_target()), threads(2), LIMITS, &f.ck);
            (what, s, p)
        })
        .collect()
}

#[test]
fn one_set_of_bits() {
    on_two_threads(&all(), |f| {
        let g = f.graph(EmbedMode::Exact);
        let want = trace(&lowered(g.clone()), &f.ck, &f.prompt);
        let (ids, rows) = greedy(&lowered(g.clone()), &f.ck, &f.prompt, f.greedy.len());
        let width = rows.len() / ids.len();
        for (what, mut s, p) in sessions(f, &g) {
            let name = format!("{} {what}", f.name);
            for chunk in [1, 3, 7, 16, 17, 33, f.prompt.len()] {
                let (z, next) = logits(&mut s, &f.prompt, chunk);
                same_bits(&format!("{name}, chunks of {chunk}"), &z, &want.floats[LOGITS], width);
                assert_eq!(next, f.greedy[0], "{name}, chunks of {chunk}");
            }
            if what != "fused" {
                for value in f.traced() {
                    let want = &want.floats[&value];
                    let one = want.len() / f.prompt.len();
                    let got: Vec<f32> = (0..f.prompt.len())
                        .flat_map(|r| s.row(&value, r).unwrap_or_else(|d| panic!("{name}: {d}"))[..one].to_vec())
                        .collect();
                    same_bits(&format!("{name}, {value}"), &got, want, one);
                }
            }
            // The cache holds the whole prompt: decode goes on from it.
            let (mut input, mut steps) = (f.greedy[0], vec![]);
            for id in &f.greedy[1..] {
                let next = s.run(&[input], 1, 1, &mut |row| steps.extend_from_slice(row)).unwrap_or_else(|d| panic!("{d}"));
                assert_eq!(next, *id, "{name}");
                input = next;
            }
            same_bits(&format!("{name}, decoding"), &steps, &rows[width..], width);
            if what != "fused, values kept" {
                let mut k = on_interpreter(&p, LIMITS, &f.ck);
                for chunk in [7, 33] {
                    let (z, _) = logits(&mut k, &f.prompt, chunk);
                    same_bits(&format!("{name}, kernel interpreter, chunks of {chunk}"), &z, &want.floats[LOGITS], width);
                }
            }
        }
        println!("{:>14}: the same bits everywhere", f.name);
    });
}

/// Sliding layers of a model may see windows of their own: a ring of the first one's size would lose keys of the second.
#[test]
fn layers_with_windows_of_their_own() {
    let t = Tiny::new(Kind::Dense, Some((4, 32)));
    let mut config = t.config(&MLX);
    config["per_layer_config"] = serde_json::json!({"1": {"sliding_window": 100}});
    let ck = Checkpoint::from_memory(tiny::files(&config, &t.stored(&MLX), 1)).unwrap_or_else(|d| panic!("{d}"));
    let g = graph(&ck, EmbedMode::Exact).unwrap_or_else(|d| panic!("{d}"));
    let ids: Vec<u32> = (0..150).map(|i| (i * i + 3) % 64).collect();
    let want = trace(&lowered(g.clone()), &ck, &ids);
    let p = plan(&lowered(g), &Options::default());
    let limits = Limits { slots: 1, context: 160, chunk: 4, slack: 0, outputs: 4 };
    let mut s = on_host(&p, &object(&p, best_target()), threads(1), limits, &ck);
    for chunk in [1, 4] {
        same_bits("two windows", &logits(&mut s, &ids, chunk).0, &want.floats[LOGITS], 64);
    }
}

fn node(g: &Graph, name: &str) -> NodeId {
    g.by_name(name).unwrap_or_else(|| panic!("no {name}"))
}

/// Layer 4 of the fixture reads the keys of layer 3. Layer 1 has as many, of the same size.
#[test]
fn keys_of_the_wrong_layer_are_seen() {
    let f = Fixture::load("tiny-ple", "hf");
    let mut g = f.graph(EmbedMode::Exact);
    let (out, q, right, wrong) =
        (node(&g, "layers.4.attn.out"), node(&g, "layers.4.attn.q"), node(&g, "layers.3.attn.kv"), node(&g, "layers.1.attn.kv"));
    assert_eq!(g.node(out).inputs, [q, right]);
    g.set_inputs(out, &[q, wrong]);
    let t = trace(&lowered(g), &f.ck, &f.prompt);
    let errors = f.errors(&t);
    assert!(errors["resid_out.3"] <= BOUND, "layers before the mistake are right");
    for value in ["attn_out.4", "resid_out.4", "logits"] {
        assert!(errors[value] > 100.0 * BOUND, "{value} is off by {:e} only", errors[value]);
    }
}

/// The norm that follows hides this factor from the logits: that is why the value itself is judged.
#[test]
fn a_missing_factor_of_the_per_layer_inputs_is_seen() {
    let f = Fixture::load("tiny-ple", "hf");
    let mut g = f.graph(EmbedMode::Exact);
    let id = node(&g, PER_LAYER);
    assert_eq!(g.node(id).op, Op::MulConst { c: std::f32::consts::FRAC_1_SQRT_2 });
    g.node_mut(id).op = Op::MulConst { c: 1.0 };
    let keep = Options { keep: [PER_LAYER.to_string()].into(), ..Options::default() };
    let errors = f.errors(&trace(&through_passes(g, &keep), &f.ck, &f.prompt));
    assert!(errors["per_layer_inputs"] > 0.1, "{:e}", errors["per_layer_inputs"]);
    assert!(errors["logits"] <= BOUND, "the logits do show it, by {:e}: judge them instead", errors["logits"]);
}

/// Experts' weights divided by their sum after the scale of each expert instead of before: again a norm hides it.
#[test]
fn weights_renormalized_after_their_scale_are_seen() {
    let f = Fixture::load("tiny-moe", "hf");
    let g = lowered(f.graph(EmbedMode::Exact));
    let mut t = trace(&g, &f.ck, &f.prompt);
    assert!(worst(&f, &t).1 <= BOUND);
    for (_, weights) in t.routes.values_mut() {
        for w in weights.chunks_exact_mut(2) {
            let sum = w[0] + w[1];
            w.iter_mut().for_each(|w| *w /= sum);
        }
    }
    let errors = f.errors(&t);
    for layer in 0..5 {
        let e = errors[&format!("router_w.{layer}")];
        assert!(e > 100.0 * BOUND, "layer {layer}: {e:e}");
    }
}

/// A choice of experts in another order, and a value of another position, are seen by the judge.
#[test]
fn the_judge_is_not_lenient() {
    let f = Fixture::load("tiny-moe", "mlx");
    let g = lowered(f.graph(EmbedMode::Exact));
    let mut t = trace(&g, &f.ck, &f.prompt);
    t.routes.get_mut(&2).unwrap().0.swap(0, 1);
    assert_eq!(worst(&f, &t), ("router_w.2".to_string(), f64::INFINITY));
    let mut t = trace(&g, &f.ck, &f.prompt);
    t.floats.get_mut("layers.3.resid").unwrap().rotate_left(64);
    assert_eq!(worst(&f, &t).0, "resid_out.3");
    assert!(worst(&f, &t).1 > 0.1);
}
