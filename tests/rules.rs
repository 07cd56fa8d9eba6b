//! Fusion changes kernels and never a bit: every rule alone on a graph of its own, with random and special values; and every
//! rule that the demo model uses, taken away.
#![cfg(feature = "llvm")]

mod common;

use common::fault::{self, Fault};
use common::golden::transcript;
use common::run::{Place, joined, step};
use common::weights::{Kind, Made};
use common::*;
use ir::graph::{Graph, Stage};
use ir::plan::Plan;
use passes::fuse::{all_but, rules};
use passes::{Manager, Module, Options, Pipeline};
use runtime::session::Limits;

/// Seven tokens, some of them twice; outputs are asked for from the third on.
const TOKENS: [u32; 7] = [3, 60, 17, 3, 0, 41, 63];
const FROM: usize = 2;

/// A rule's example, fused by it alone and not fused.
struct Case {
    rule: String,
    graph: Graph,
    fused: Plan,
    unfused: Plan,
}

fn cases() -> Vec<Case> {
    let apply = |g: &Graph, options: &Options| {
        let mut m = Module::new(g.clone());
        let done = Manager::default().run(&mut m, &Pipeline::of(&["fuse"]), options, &mut []);
        done.unwrap_or_else(|f| panic!("{}", f.diagnostic));
        m.graph
    };
    let case = |r: &passes::fuse::Rule| {
        let graph = r.example();
        let fused = apply(&graph, &Options { rules_off: all_but(&r.name), ..Options::default() });
        let unfused = apply(&graph, &without(&["fuse"]));
        let count = |g: &Graph| g.stages_or_default().len();
        assert!(count(&fused) < count(&unfused), "{} fuses nothing in its example", r.name);
        let plan = |g| plan(g, &Options::default());
        Case { rule: r.name.clone(), fused: plan(&fused), unfused: plan(&unfused), graph }
    };
    rules().iter().map(case).collect()
}

fn outputs(g: &Graph) -> Vec<(&str, usize)> {
    g.outputs.iter().map(|&o| (g.node(o).name.as_str(), g.node(o).ty.width() as usize)).collect()
}

/// The outputs by the interpreter of graphs.
fn meant(g: &Graph, source: &Made) -> Vec<Vec<f32>> {
    let mut s = ir::graph::interp::Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(&TOKENS, FROM).unwrap_or_else(|d| panic!("{d}"));
    outputs(g).iter().map(|(n, _)| s.value(n).and_then(|v| v.f32s()).expect("floats").to_vec()).collect()
}

#[test]
fn every_rule_alone_keeps_every_bit() {
    let mut cases = cases();
    let mut plans: Vec<&mut Plan> = cases.iter_mut().flat_map(|c| [&mut c.fused, &mut c.unfused]).collect();
    let kernels = joined(&mut plans);
    let all = Plan { kernels, ..Plan::default() };
    let isas = host_targets();
    let objects = on_two_threads(&isas, |isa| object(&all, *isa));
    println!("{} rules, {} distinct kernels", cases.len(), all.kernels.len());
    let counts = on_two_threads(&cases, |c| {
        let (mut finite, mut not) = (0, 0);
        for seed in 1..=8 {
            let kind = [Kind::Random, Kind::Special, Kind::Wild][2.min(seed - 1)];
            let source = Made::of(&c.graph, kind, seed as u64);
            let want = meant(&c.graph, &source);
            let names = outputs(&c.graph);
            let check = |what: &str, got: Vec<Vec<f32>>| {
                for (((name, width), w), g) in names.iter().zip(&want).zip(&got) {
                    same_bits(&format!("{}, {kind:?} {seed}, {what}, {name}", c.rule), w, g, *width);
                }
            };
            for (form, plan) in [("fused", &c.fused), ("unfused", &c.unfused)] {
                check(&format!("{form}, interpreter"), step(plan, &Place::Checked, &source, &TOKENS, FROM, &names));
                for (isa, o) in isas.iter().zip(&objects) {
                    check(&format!("{form}, {}", isa.name()), step(plan, &Place::Host(o, 1), &source, &TOKENS, FROM, &names));
                }
            }
            for x in want.concat() {
                *(if x.is_finite() { &mut finite } else { &mut not }) += 1;
            }
        }
        (finite, not)
    });
    for (c, (finite, not)) in cases.iter().zip(&counts) {
        assert!(*finite > 100, "{}: {finite} finite outputs only", c.rule);
        println!("{}: {finite} finite outputs, {not} others", c.rule);
    }
    assert!(counts.iter().filter(|c| c.1 > 0).count() * 10 > counts.len() * 9, "wild values did not reach outputs: {counts:?}");
}

/// A rule that moved a rounding would be noticed.
#[test]
fn a_wrong_rule_is_noticed() {
    let faults: [(&str, Fault); 5] = [
        ("norm-into-quantize", fault::tree),
        ("norm-into-norm", fault::tree),
        ("matmuls-into-gelu", fault::contractions),
        ("expert-matmul-into-sum", fault::contractions),
        ("matmul-into-head-norm", fault::tree),
    ];
    let cases = cases();
    for (rule, fault) in faults {
        let c = cases.iter().find(|c| c.rule == rule).unwrap_or_else(|| panic!("no rule {rule}"));
        let source = Made::of(&c.graph, Kind::Random, 1);
        let (names, want) = (outputs(&c.graph), meant(&c.graph, &source));
        // In the first kernel where it shows: a product may be exact, and its rounding no fault.
        let in_kernel = |k: usize| {
            let mut wrong = c.fused.clone();
            if !fault::plant(&mut wrong.kernels[k], fault) {
                return None;
            }
            let got = step(&wrong, &Place::Checked, &source, &TOKENS, FROM, &names);
            want.iter().zip(&got).zip(&names).find_map(|((w, g), n)| difference(w, g, n.1))
        };
        let d = (0..c.fused.kernels.len()).find_map(in_kernel);
        println!("{rule}: {}", d.unwrap_or_else(|| panic!("{rule}: not noticed")));
    }
}

#[test]
fn without_a_rule_the_demo_model_has_another_plan_and_the_same_bits() {
    let fuse = |off: &[&str]| {
        let mut m = Module::new(model());
        let options = Options { rules_off: off.iter().map(|r| r.to_string()).collect(), ..Options::default() };
        let report = Manager::default().run(&mut m, &Pipeline::graph(), &options, &mut []);
        (m.graph, report.unwrap_or_else(|f| panic!("{}", f.diagnostic)))
    };
    let (whole, report) = fuse(&[]);
    let used = |r: &&passes::fuse::Rule| report.stat("fuse", &format!("used.{}", r.name)) > 0;
    let used: Vec<&str> = rules().iter().filter(used).map(|r| r.name.as_str()).collect();
    println!("the demo model uses {} of {} rules: {}", used.len(), rules().len(), used.join(", "));
    assert!(used.len() >= 10);
    let mut off: Vec<Vec<&str>> = used.iter().map(|r| vec![*r]).collect();
    off.push(used.clone());
    let graphs: Vec<Graph> = on_two_threads(&off, |o| fuse(o).0);
    let mut plans: Vec<Plan> = [&whole].into_iter().chain(&graphs).map(|g| plan(g, &Options::default())).collect();
    let kernels = joined(&mut plans.iter_mut().collect::<Vec<_>>());
    println!("{} plans, {} distinct kernels", plans.len(), kernels.len());
    let code = object(&Plan { kernels, ..Plan::default() }, best_target());
    let (ids, limits) = (&transcript("repro/1").prompt[..5], Limits { slots: 1, context: 32, chunk: 3, slack: 0, outputs: 3 });
    let run = |plan: &Plan| {
        let host = logits(&mut on_host(plan, &code, threads(1), limits, checkpoint()), ids, 3).0;
        let interpreter = logits(&mut on_interpreter(plan, limits, checkpoint()), ids, 5).0;
        (host, interpreter)
    };
    let all = on_two_threads(&plans, run);
    let names = |g: &Graph, s: &Stage| -> Vec<String> { s.nodes.iter().map(|&n| g.node(n).name.clone()).collect() };
    let stages = |g: &Graph| -> Vec<Vec<String>> { g.stages_or_default().iter().map(|s| names(g, s)).collect() };
    for (i, (host, interpreter)) in all.iter().enumerate() {
        let what = if i == 0 { "all rules".into() } else { format!("without {}", off[i - 1].join(", ")) };
        same_bits(&format!("{what}, host"), &all[0].0, host, 4096);
        same_bits(&format!("{what}, interpreter"), &all[0].0, interpreter, 4096);
        if i > 0 {
            assert_ne!(stages(&whole), stages(&graphs[i - 1]), "{what}: the same stages");
            assert_ne!(plans[0].launches, plans[i].launches, "{what}: the same launches");
            println!("{what}: {} stages, {} launches", stages(&graphs[i - 1]).len(), plans[i].launches.len());
        }
    }
}
