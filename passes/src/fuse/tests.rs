//! Tests of fusion on a mixture-of-experts model: the expected kernels, what a missing rule or a planted cost changes, and
//! that the choice is the same every time.

use super::*;
use crate::manager::{Manager, Report};
use crate::options::Options;
use crate::pipeline::Pipeline;
use crate::testing::moe_model;
use ir::graph::NodeId;
use std::collections::BTreeSet;

fn compile(g: &Graph, pipeline: &str, o: &Options) -> (Graph, Report) {
    let mut m = Module::new(g.clone());
    let mut verify = crate::instrument::verify::VerifyEach::new();
    let report = Manager::default()
        .run(&mut m, &Pipeline::parse(pipeline).unwrap(), o, &mut [&mut verify])
        .unwrap_or_else(|f| panic!("{}", f.diagnostic));
    (m.graph, report)
}

fn show(g: &Graph) -> Vec<String> {
    g.stages
        .iter()
        .map(|s| {
            let n = |v: &[NodeId]| v.iter().map(|&i| g.node(i).name.clone()).collect::<Vec<_>>().join(" ");
            format!("{} -> {}", n(&s.nodes), n(&s.stores))
        })
        .collect()
}

fn launches(g: &Graph) -> Vec<String> {
    let name = |i: &u32| g.stages[*i as usize].name.as_str();
    g.launches_or_default().iter().map(|l| l.iter().map(name).collect::<Vec<_>>().join(" + ")).collect()
}

/// Stages follow from each other, and everything is stored once.
fn check(g: &Graph) {
    let mut stored = BTreeSet::new();
    for s in &g.stages {
        let mut here = BTreeSet::new();
        for &id in &s.nodes {
            for i in &g.node(id).inputs {
                let fine = here.contains(i) || stored.contains(i) || !g.node(*i).op.computes();
                assert!(fine, "{} reads {}", s.name, g.node(*i).name);
            }
            here.insert(id);
        }
        for &id in &s.stores {
            assert!(here.contains(&id) && stored.insert(id), "{} stores {}", s.name, g.node(id).name);
        }
    }
    assert!(g.outputs.iter().all(|o| stored.contains(o)));
    let mut left: Vec<u32> = g.launches_or_default().concat();
    left.sort_unstable();
    assert_eq!(left, (0..g.stages.len() as u32).collect::<Vec<_>>());
}

#[test]
fn a_moe_layer_takes_six_launches() {
    let (g, report) = compile(&moe_model(3), crate::pipeline::GRAPH, &Options::default());
    check(&g);
    let mut want = vec![];
    for l in 0..3 {
        let n = |t: &str| format!("layers.{l}.{t}");
        want.extend([
            format!("{} + {}", n("attn.q"), n("attn.kv_write")),
            n("attn.out"),
            n("attn.o"),
            format!("{} + {}", n("mlp.act"), n("router.route")),
            format!("{} + {}", n("mlp.down"), n("experts.act")),
            n("experts.sum"),
        ]);
    }
    want.push("logits".into());
    assert_eq!(launches(&g), want);
    // The tail of a layer is computed by both first kernels of the next, stored by one; the experts read the residual.
    let stages = show(&g);
    let tail = "layers.1.post_feedforward_layernorm_1 layers.1.post_feedforward_layernorm_2 layers.1.moe \
                layers.1.post_feedforward_layernorm layers.1.resid_mlp layers.1.out";
    let x = "layers.2.input_layernorm layers.2.input_layernorm.q24";
    for want in [
        format!("{tail} {x} layers.2.attn.q_raw layers.2.attn.q_norm layers.2.attn.q -> layers.1.out layers.2.attn.q"),
        "layers.1.attn.out -> layers.1.attn.out".into(),
        "layers.1.attn.out.q24 layers.1.attn.o -> layers.1.attn.o".into(),
        "layers.1.post_attention_layernorm layers.1.resid_attn layers.1.pre_feedforward_layernorm \
         layers.1.pre_feedforward_layernorm.q24 layers.1.mlp.gate layers.1.mlp.up layers.1.mlp.act -> \
         layers.1.resid_attn layers.1.mlp.act"
            .into(),
        "layers.1.pre_feedforward_layernorm_2 layers.1.pre_feedforward_layernorm_2.q24 layers.1.experts.gate \
         layers.1.experts.up layers.1.experts.act -> layers.1.experts.act"
            .into(),
        "layers.1.experts.act.q24 layers.1.experts.down layers.1.experts.sum -> layers.1.experts.sum".into(),
    ] {
        assert!(stages.contains(&want), "no stage\n{want}\nin\n{}", stages.join("\n"));
    }
    assert_eq!(report.stat("fuse", "stages"), 28);
    assert_eq!(report.stat("merge-launches", "launches"), 19);
    assert_eq!(report.stat("fuse", "used.matmuls-into-gelu"), 3);
    let lines = report.explained.iter().flat_map(|(_, l)| l).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        lines.contains("region layers.1") && lines.contains("without fusion") && lines.contains("norm-into-quantize"),
        "{lines}"
    );
}

#[test]
fn equal_layers_are_solved_once_and_the_choice_is_repeatable() {
    let model = moe_model(5);
    let (g, report) = compile(&model, crate::pipeline::GRAPH, &Options::default());
    assert_eq!(report.stat("fuse", "regions"), 6);
    // The first layer, the two kinds of layer that follow, the end.
    assert_eq!(report.stat("fuse", "regions-solved"), 4);
    assert_eq!(compile(&model, crate::pipeline::GRAPH, &Options::default()), (g, report));
}

#[test]
fn a_missing_rule_changes_the_stages() {
    let model = moe_model(1);
    let all = compile(&model, crate::pipeline::GRAPH, &Options::default()).0;
    for rule in ["norm-into-quantize", "matmuls-into-gelu", "matmul-into-route", "rope-into-cache", "expert-matmul-into-sum"] {
        let o = Options { rules_off: [rule.to_string()].into(), ..Options::default() };
        let (g, report) = compile(&model, crate::pipeline::GRAPH, &o);
        check(&g);
        assert!(g.stages.len() > all.stages.len(), "{rule}");
        assert_eq!(report.stat("fuse", &format!("used.{rule}")), 0);
    }
    let none = Options { rules_off: rules().iter().map(|r| r.name.clone()).collect(), ..Options::default() };
    let (g, _) = compile(&model, crate::pipeline::GRAPH, &none);
    assert!(g.stages.iter().all(|s| s.nodes.len() == 1));
    check(&g);
}

#[test]
fn planted_costs_change_the_plan() {
    let model = moe_model(2);
    let (right, _) = compile(&model, crate::pipeline::GRAPH, &Options::default());
    let (free, _) = compile(&model, crate::pipeline::GRAPH, &Options { launch_cost: 0, ..Options::default() });
    check(&free);
    assert_ne!(right.stages, free.stages);
    assert!(launches(&free).len() > launches(&right).len(), "with free launches, bytes decide");
}

#[test]
fn without_merging_kernels_read_what_their_siblings_store() {
    let o = Options { switches: [("merge-launches".to_string(), false)].into(), ..Options::default() };
    let (g, _) = compile(&moe_model(2), crate::pipeline::GRAPH, &o);
    check(&g);
    assert!(g.launches.is_empty());
    // The tail of a layer is computed once if a second computation saves no launch.
    let of = |name: &str| {
        let id = g.by_name(name).unwrap();
        g.stages.iter().filter(|s| s.nodes.contains(&id)).count()
    };
    assert_eq!(of("layers.0.out"), 1);
}

#[test]
fn kept_values_are_stored() {
    let o = Options { keep: ["layers.*.mlp.gate".to_string(), "layers.1.attn.k_norm".into()].into(), ..Options::default() };
    let (g, _) = compile(&moe_model(2), crate::pipeline::GRAPH, &o);
    check(&g);
    for name in ["layers.0.mlp.gate", "layers.1.mlp.gate", "layers.1.attn.k_norm"] {
        let id = g.by_name(name).unwrap();
        assert!(g.stages.iter().any(|s| s.stores.contains(&id)), "{name}");
    }
}

#[test]
fn every_limit_gives_a_legal_graph_and_numbers_stay() {
    let model = moe_model(2);
    let (full, report) = compile(&model, crate::pipeline::GRAPH, &Options::default());
    let n = report.decisions.len() as u64;
    assert!(n > 12, "{n}");
    for limit in [0, 1, 5, 9, n - 1, n] {
        let (g, r) = compile(&model, crate::pipeline::GRAPH, &Options { pass_limit: Some(limit), ..Options::default() });
        check(&g);
        assert_eq!(r.decisions.iter().filter(|l| l.starts_with("take")).count() as u64, limit.min(r.decisions.len() as u64));
        // Decisions before the limit are the same ones.
        assert_eq!(r.decisions[..limit as usize], report.decisions[..limit as usize]);
        assert_eq!(g == full, limit == n, "{limit}");
    }
}

#[test]
fn every_rule_alone_fuses_its_example() {
    for rule in rules() {
        let g = rule.example();
        crate::instrument::text::verify(&g).unwrap_or_else(|d| panic!("{}: {d}", rule.name));
        let o = Options { rules_off: all_but(&rule.name), ..Options::default() };
        let (fused, report) = compile(&g, "fuse", &o);
        check(&fused);
        assert!(report.stat("fuse", &format!("used.{}", rule.name)) > 0, "{}", rule.name);
        let off = Options { rules_off: [rule.name.clone()].into(), ..Options::default() };
        let (without, report) = compile(&g, "fuse", &off);
        check(&without);
        assert_eq!(report.stat("fuse", &format!("used.{}", rule.name)), 0, "{}", rule.name);
    }
}

#[test]
fn single_headed_values_are_heads() {
    // One key head: its norm spans the row, and still belongs to the head.
    let mut s = crate::sketch::Sketch::new("t");
    let x = s.embed("x", 64);
    let (k, v) = (s.linear("k_raw", x, 64), s.linear("v_raw", x, 64));
    let k = s.norm("k_norm", k, 64, true);
    let k = s.rope("k", k, 64);
    let v = s.norm("v", v, 64, false);
    let kv = s.cache("", 0, k, v, 64);
    let a = s.attention("a", x, kv, 64);
    let (g, _) = compile(&s.finish(&[a]), "fuse", &Options::default());
    let want = "x x.q24 k_raw v_raw k_norm k v kv_write -> x kv_write";
    assert!(show(&g).contains(&want.to_string()), "{:?}", show(&g));
}

#[test]
fn attention_and_rows_after_matmuls_stand_alone() {
    let (g, _) = compile(&moe_model(2), crate::pipeline::GRAPH, &Options::default());
    for s in &g.stages {
        let kinds: Vec<lang::Kind> = s.nodes.iter().filter_map(|&id| lang::Kind::of(&g, id)).collect();
        assert!(kinds.len() == 1 || !kinds.contains(&lang::Kind::Attention));
        let first = kinds.iter().position(|k| k.is_matmul()).unwrap_or(kinds.len());
        assert!(kinds[first..].iter().all(|&k| !matches!(k, lang::Kind::Norm | lang::Kind::Quantize)), "{}", s.name);
    }
}

/// Every kernel that fusion makes has a lowering, and its plan can be placed.
#[test]
fn whatever_is_fused_can_be_lowered() {
    let lowers = |what: &str, g: &Graph| {
        let plan = crate::lower::lower(g, &crate::lower::schedule::Schedule::HOST).unwrap_or_else(|d| panic!("{what}: {d}"));
        assert_eq!(plan.launches.len(), g.launches_or_default().len(), "{what}");
        let mut m = Module { plan: Some(plan), ..Module::new(g.clone()) };
        let placed = crate::pass::run_alone(&crate::place::MemoryPlan, &mut m, &Options::default());
        assert!(placed.unwrap_or_else(|d| panic!("{what}: {d}")).0);
    };
    for rule in rules() {
        let g = rule.example();
        lowers(&rule.name, &g);
        let o = Options { rules_off: all_but(&rule.name), ..Options::default() };
        lowers(&rule.name, &compile(&g, "fuse,merge-launches", &o).0);
        lowers(&rule.name, &compile(&g, "fuse,merge-launches", &Options::default()).0);
    }
    let model = moe_model(2);
    lowers("unfused", &compile(&model, "quant-lower,pin-reductions,merge-launches", &Options::default()).0);
    for launch_cost in [0, cost::LAUNCH] {
        lowers("fused", &compile(&model, crate::pipeline::GRAPH, &Options { launch_cost, ..Options::default() }).0);
    }
    for pass_limit in [Some(3), Some(12)] {
        lowers("limited", &compile(&model, crate::pipeline::GRAPH, &Options { pass_limit, ..Options::default() }).0);
    }
}
