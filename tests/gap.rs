//! `isobit gap` from inside: the near ties that the golden transcripts record, with their distances; noise that flips them;
//! modules taken from another checkpoint; and that a wrong constant in kernels is told from jitter.
#![cfg(feature = "llvm")]

mod common;

use common::fixture::{Fixture, error_of};
use common::golden::{Transcript, transcript};
use common::*;
use ir::graph::op::{EmbedMode, Op};
use ir::graph::truth::{Truth, Value};
use ir::graph::{Graph, Node};
use isobit::emit::Code;
use isobit::engine::{Engine, EngineOptions, Request};
use isobit::gap::flip::{Flip, Noise, median, radii};
use isobit::gap::replace::{Override, Replaced};
use isobit::gap::report::{Near, Report};
use isobit::gap::{Judge, Token, Turn, plot};
use isobit::pipeline::Program;
use isobit::target::Target;
use models::gemma4::layers::LOGITS;
use passes::Options;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Gaps agree with the recorded ones within this.
const NEAR: f64 = 1e-4;

/// Kernels of a graph, ready to run.
fn engine(g: Graph) -> Engine {
    let plan = plan(&through_passes(g, &Options::default()), &Options::default());
    let code = Code::Host(object(&plan, best_target()));
    let program = Program { target: Target::host().unwrap(), plans: Arc::new(plan.into()), code };
    let options = EngineOptions { logits: true, threads: Some(2), ..EngineOptions::default() };
    Engine::open(checkpoint(), &program, &options, &mut |_, _, _| {}).unwrap_or_else(|d| panic!("{d}"))
}

fn judge(g: &Graph) -> Judge<'_> {
    Judge::new(g, checkpoint(), 2).unwrap_or_else(|d| panic!("{d}"))
}

/// What the kernels generate after a recorded prompt.
fn turn(e: &mut Engine, t: &Transcript) -> Turn {
    let (first, mut row, mut tokens) = (t.prompt.len(), 0, vec![]);
    let mut sink = |z: &[f32]| {
        row += 1;
        if row >= first {
            tokens.push(Token::new(0, row - first, row, z));
        }
    };
    let request = Request { prompt: &t.prompt, max: t.generated.len(), stop: &[] };
    e.session().reset();
    let g = e.generate(&request, Some(&mut sink), &mut |_| ControlFlow::Continue(())).unwrap_or_else(|d| panic!("{d}"));
    tokens.truncate(g.ids.len());
    assert_eq!(tokens.iter().map(Token::chosen).collect::<Vec<_>>(), g.ids);
    Turn { prompt: t.prompt.clone(), generated: g.ids, tokens }
}

fn nearest(turn: &Turn) -> &Token {
    turn.tokens.iter().min_by(|a, b| a.gap().total_cmp(&b.gap())).unwrap()
}

fn report(turns: &[Turn], near: &[Near]) -> String {
    plot::svg(&Report { turns, near, judges: &["float64"], text: None, seed: 1 })
}

fn error(turns: &[Turn]) -> f64 {
    Report { turns, near: &[], judges: &["float64"], text: None, seed: 1 }.error()
}

#[test]
fn the_near_ties_that_are_recorded() {
    let ids: &[&str] = match cfg!(feature = "full-tests") {
        true => &["repro/1", "repro/2", "repro/3", "repro/4", "repro/5", "b3-raw-completion", "b4-one-token", "b5-bytes"],
        false => &["repro/1", "repro/2", "b3-raw-completion", "b4-one-token"],
    };
    let g = model();
    let (mut e, mut j) = (engine(g.clone()), judge(&g));
    for id in ids {
        let want = transcript(id);
        let mut turn = turn(&mut e, want);
        j.judge(&mut turn).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(turn.generated, want.generated, "{id}");
        for (t, &(a, b, za, zb)) in turn.tokens.iter().zip(&want.top2) {
            let s = t.judged[0];
            assert_eq!((t.chosen(), t.second(), s.best), (a, b, a), "{id} token {}", t.index);
            assert!((t.gap() - (za - zb)).abs() < NEAR, "{id} token {}: {} against {}", t.index, t.gap(), za - zb);
            // Float64 against float64.
            assert!((s.gap - (za - zb)).abs() < 1e-9, "{id} token {}: {} against {}", t.index, s.gap, za - zb);
        }
        let least = want.top2.iter().map(|t| t.2 - t.3).enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert_eq!(nearest(&turn).index, least.0, "{id}");
        println!("{id:>17}: nearest tie {:.6} at token {}, logits within {:.1e}", least.1, least.0, error(&[turn]));
    }
}

#[test]
fn a_wrong_constant_in_kernels_is_no_jitter() {
    let g = model();
    let want = transcript("b1-short-question");
    let run = |kernels: Graph| {
        let mut turn = turn(&mut engine(kernels), want);
        judge(&g).judge(&mut turn).unwrap_or_else(|d| panic!("{d}"));
        turn
    };
    let right = run(g.clone());
    assert!(error(&[right]) < 1e-4);
    let mut wrong = g.clone();
    for id in wrong.ids().collect::<Vec<_>>() {
        if let Op::RmsNorm { eps, .. } = &mut wrong.node_mut(id).op {
            *eps = 1e-3;
        }
    }
    let turn = run(wrong);
    assert!(error(std::slice::from_ref(&turn)) > 1e-3);
}

#[test]
fn noise_flips_a_near_tie_before_it_flips_a_clear_choice() {
    let g = model();
    let mut j = judge(&g);
    let want = transcript("b3-raw-completion");
    let order = |at: &usize| want.top2[*at].2 - want.top2[*at].3;
    let mut places: Vec<usize> = (0..want.top2.len()).collect();
    places.sort_by(|a, b| order(a).total_cmp(&order(b)));
    let noises: Vec<Noise> = (0..4).map(|trial| Noise { trial, layer: None }).collect();
    let mut flips = |at: usize, chosen: u32, noises: &[Noise]| -> Vec<Flip> {
        let ids = [&want.prompt[..], &want.generated[..at]].concat();
        radii(&mut j, &ids, chosen, 1, noises).unwrap_or_else(|d| panic!("{d}"))
    };
    let (near, clear) = (places[0], places[places.len() - 1]);
    let (id, second) = (want.top2[near].0, want.top2[near].1);
    let tie = flips(near, id, &noises);
    let radius = median(&tie).expect("a near tie flips");
    let far = median(&flips(clear, want.top2[clear].0, &noises)).unwrap_or(f64::INFINITY);
    println!("gap {:.6}: flips at {radius:.1e}; gap {:.2}: at {far:.1e}", order(&near), order(&clear));
    assert!(radius > 0.0 && radius < 0.01 && far > 10.0 * radius, "{radius:e} {far:e}");
    assert!(tie.iter().any(|f| f.to == second), "the second token never wins: {tie:?}");
    // The same noise again, alone or among others, is the same noise.
    assert_eq!(flips(near, id, &noises[1..2]), tie[1..2]);
    // In one layer alone it takes more than in all.
    let one: Vec<Noise> = (0..4).map(|trial| Noise { trial, layer: Some(7) }).collect();
    assert!(median(&flips(near, id, &one)).unwrap_or(f64::INFINITY) >= radius);
    // What float64 does not choose needs no noise.
    assert_eq!(flips(near, second, &noises), [Flip { radius: Some(0.0), to: id }; 4]);
}

fn logits(g: &Graph, source: &dyn ir::graph::interp::WeightSource, ids: &[u32]) -> Vec<f64> {
    let mut out = vec![];
    let mut look = |n: &Node, v: &mut Value| {
        if let (LOGITS, Value::Floats(z)) = (n.name.as_str(), v) {
            out.extend_from_slice(z);
        }
    };
    Truth::new(g, source, 2).unwrap_or_else(|e| panic!("{e:?}")).run(ids, 0, &mut look).unwrap_or_else(|d| panic!("{d}"));
    out
}

/// With every module taken from the unquantized checkpoint, the quantized model is that one.
#[test]
fn overrides_take_modules_from_another_checkpoint() {
    for model in ["tiny-moe", "tiny-dense", "tiny-ple"] {
        let (a, b) = (Fixture::load(model, "mlx"), Fixture::load(model, "hf"));
        let g = a.graph(EmbedMode::Exact);
        let over = |list: &[&str]| {
            let list: Vec<Override> = list.iter().map(|o| Override::parse(o).unwrap()).collect();
            let (g, weights) = Replaced::new(&a.ck, &g, &b.ck, &list).unwrap_or_else(|d| panic!("{d}"));
            logits(&g, &weights, &b.prompt)
        };
        let want = b.want("logits_f64");
        let none = error_of(&over(&[]), want);
        let head = error_of(&over(&["lm_head=bf16"]), want);
        let all = error_of(&over(&["*=bf16"]), want);
        println!("{model:>10}: from the unquantized model by {none:.1e}, with its lm_head {head:.1e}, with all of it {all:.1e}");
        assert!(none > 1e-3 && head != none && all < 1e-12, "{model}: {none:e} {head:e} {all:e}");
        // One tensor serves as both, yet each is a module of its own.
        let (table, both) =
            (error_of(&over(&["embed_tokens=bf16"]), want), error_of(&over(&["embed_tokens=bf16", "lm_head=bf16"]), want));
        assert!(table != head && table != none && both != table && both != head, "{model}");
    }
    let f = Fixture::load("tiny-dense", "mlx");
    let wrong = Override::parse("lm_heat=bf16").unwrap();
    let d = Replaced::new(&f.ck, &f.graph(EmbedMode::Exact), &f.ck, &[wrong]).err().unwrap();
    assert!(d.code == "E0813" && d.hint.contains("lm_head"), "{d}");
    assert!(["lm_head", "=bf16", "lm_head=int4", "a b=f32"].iter().all(|o| Override::parse(o).is_err()));
}

#[test]
fn a_row_keeps_its_greatest_logits_in_order() {
    let mut row: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32).collect();
    row[5] = row[27]; // a tie at the top goes to the lower id
    let t = Token::new(0, 0, 0, &row);
    assert_eq!((t.chosen(), t.second(), t.gap(), t.top.len()), (5, 27, 0.0, 16));
    assert!(t.top.windows(2).all(|w| w[0].1 > w[1].1 || w[0].1 == w[1].1 && w[0].0 < w[1].0));
}

#[test]
fn the_plot_is_one_document_and_the_same_each_time() {
    let rows = [[3.0f32, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 5.0, 4.9]];
    let tokens = rows.iter().enumerate().map(|(i, r)| Token::new(0, i, i + 1, r)).collect();
    let turns = [Turn { prompt: vec![0], generated: vec![0, 0, 1], tokens }];
    let near = [Near { at: (0, 1), flips: vec![], layers: vec![], after: [vec![], vec![]] }];
    let svg = report(&turns, &near);
    assert_eq!(svg, report(&turns, &near));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    assert_eq!((svg.matches("class=\"p\"").count(), svg.matches("class=\"n\"").count()), (3, 2));
    // Even of nothing.
    assert!(report(&[], &[]).ends_with("</svg>\n"));
}
