//! Attention in all its forms gives the bits of the graph interpreter: a warp a head, parts and their join, tiles of tokens;
//! for heads, groups and windows of the released models and odd ones, in the interpreter of kernels under its checks and in host
//! code. A row of chunk computes what a token alone does.
#![cfg(feature = "llvm")]

mod common;

use common::fault;
use common::formats::{Format, sketch};
use common::run::{Place, joined, step};
use common::weights::{Kind, Made};
use common::*;
use ir::graph::interp::Session;
use ir::graph::op::Op;
use ir::graph::{Dtype, Graph, NodeId};
use ir::kernel::Kernel;
use ir::plan::{Arg, BufferKind, Plan};
use passes::Options;
use passes::lower::schedule::Schedule;
use passes::sketch::Sketch;
use std::collections::BTreeSet;

/// Query heads, key heads, elements of a head, window, tokens of a tile in a plan for chunks on GPUs (1: none fits).
const SHAPES: [(u32, u32, u32, u32, u32); 8] = [
    (8, 1, 512, 0, 4),
    (4, 2, 256, 40, 32),
    (16, 1, 512, 0, 2),
    (8, 1, 256, 33, 8),
    (4, 4, 64, 1, 32),
    (4, 2, 96, 64, 32),
    (6, 2, 64, 50, 1),
    (2, 1, 32, 0, 32),
];

const WIDE: Schedule = Schedule { warps: 8, min_blocks: 0, ..Schedule::GPU };
const NARROW: Schedule = Schedule { warps: 2, min_blocks: 0, ..Schedule::GPU };
const SCHEDULES: [Schedule; 4] = [Schedule::HOST, Schedule::GPU, NARROW, WIDE];

const TOKENS: usize = 101;

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).map(|i| (i * 37 + 11) % 64).collect()
}

fn graph(shape: (u32, u32, u32, u32, u32)) -> Graph {
    let (mut s, a) = sketched(shape, Format::Plain(Dtype::F32));
    s.g.outputs = vec![a];
    through_passes(s.g, &Options::default())
}

fn sketched((heads, kv_heads, dim, window, _): (u32, u32, u32, u32, u32), f: Format) -> (Sketch, NodeId) {
    let mut s = sketch("attention", f);
    let x = s.embed("embed", 64);
    let table = s.g.node(x).inputs[0];
    s.g.node_mut(table).ty.shape[0] = 64;
    let q = s.linear("q", x, heads * dim);
    let q = s.rope("q.turned", q, dim);
    let (k, v) = (s.linear("k", x, kv_heads * dim), s.linear("v", x, kv_heads * dim));
    let k = s.rope("k.turned", k, dim);
    let kv = s.cache("attn.", 0, k, v, dim);
    let cache = s.g.node(kv).inputs[0];
    if let Op::Kv { window: w, .. } = &mut s.g.node_mut(cache).op {
        *w = window;
    }
    let a = s.attention("attn.out", q, kv, dim);
    (s, a)
}

fn meant(g: &Graph, source: &Made, name: &str) -> Vec<f32> {
    let mut s = Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(&tokens(), 0).unwrap_or_else(|d| panic!("{d}"));
    s.value(name).and_then(|v| v.f32s()).expect("floats").to_vec()
}

fn got(plan: &Plan, place: &Place, source: &Made, n: usize, width: usize) -> Vec<f32> {
    step(plan, place, source, &tokens()[..n], 0, &[("attn.out", width)]).remove(0)
}

/// Plans of a shape: for a token with every schedule, and for chunks on GPUs.
fn plans(g: &Graph) -> Vec<(String, Plan)> {
    let mut out = vec![];
    for s in SCHEDULES {
        out.push((format!("{s}"), plan(g, &Options { schedule: s, ..Options::default() })));
        if s.warps > 1 {
            let chunks = Schedule { tokens: 4, ..s };
            out.push((format!("{chunks}"), prefill(g, &Options { schedule: chunks, ..Options::default() })));
        }
    }
    out
}

#[test]
fn all_forms_have_the_same_bits() {
    let graphs: Vec<Graph> = SHAPES.map(graph).into();
    let mut all: Vec<Vec<(String, Plan)>> = graphs.iter().map(plans).collect();
    let kernels: Vec<Vec<Kernel>> =
        all.iter_mut().map(|plans| joined(&mut plans.iter_mut().map(|(_, p)| p).collect::<Vec<_>>())).collect();
    println!("kernels {:?}", kernels.iter().map(Vec::len).collect::<Vec<_>>());
    let jobs: Vec<usize> = (0..SHAPES.len()).collect();
    on_two_threads(&jobs, |&i| {
        let (shape, g) = (SHAPES[i], &graphs[i]);
        let code = object_of(&kernels[i].iter().collect::<Vec<_>>(), best_target());
        let (width, source) = ((shape.0 * shape.2) as usize, Made::of(g, Kind::Random, 5 + i as u64));
        let want = meant(g, &source, "attn.out");
        assert!(want.iter().all(|x| x.is_finite()) && want.iter().any(|x| x.abs() > 1e-3), "nothing to compare");
        for (name, plan) in &all[i] {
            let parts = plan.buffers.iter().any(|b| matches!(b.kind, BufferKind::Parts { .. }));
            let tokens = plan.launches.iter().find(|l| l.name == "attn.out").map(|l| l.tokens);
            println!("{shape:?}, {name}: {}, {tokens:?} tokens a block", if parts { "in parts" } else { "whole" });
            if *name == format!("{}", Schedule::GPU) {
                assert!(parts, "{shape:?} is not in parts");
            }
            if *name == format!("{}", Schedule::GPU_PREFILL) {
                assert_eq!(tokens, Some(shape.4), "{shape:?}");
            }
            let n = TOKENS;
            same_bits(&format!("{shape:?}, {name}, host"), &want, &got(plan, &Place::Host(&code, 1), &source, n, width), width);
            if !name.starts_with("4/") {
                continue;
            }
            // Under all checks: no race, no read of what nothing wrote.
            let n = if width > 512 { 35 } else { 67 };
            let by_interpreter = got(plan, &Place::Checked, &source, n, width);
            same_bits(&format!("{shape:?}, {name}, interpreter"), &want[..n * width], &by_interpreter, width);
        }
    });
}

/// A fault in any of the forms is noticed.
#[test]
fn planted_faults_are_noticed() {
    let shape = SHAPES[1];
    let g = graph(shape);
    let (width, source) = ((shape.0 * shape.2) as usize, Made::of(&g, Kind::Random, 6));
    let want = meant(&g, &source, "attn.out");
    for (name, plan) in plans(&g).into_iter().take(3) {
        for launch in ["attn.out.parts", "attn.out"] {
            let Some(l) = plan.launches.iter().find(|l| l.name == launch) else { continue };
            let mut wrong = plan.clone();
            assert!(fault::plant(&mut wrong.kernels[l.kernel as usize], fault::contractions), "{name}: nothing to change");
            let bad = got(&wrong, &Place::Interpreter, &source, TOKENS, width);
            let d = difference(&want, &bad, width).unwrap_or_else(|| panic!("not noticed: a fault in {launch}, {name}"));
            println!("{name}, {launch}: {d}");
        }
    }
}

/// The launch that joins leaves fixed point for the matmul that follows, and floats only where they are asked for.
#[test]
fn the_join_quantizes() {
    let (mut s, a) = sketched(SHAPES[1], Format::Affine(4, 64, Dtype::Bf16));
    let o = s.linear("o", a, 96);
    s.g.outputs = vec![o];
    let g = through_passes(s.g, &Options::default());
    let source = Made::of(&g, Kind::Random, 7);
    let want = meant(&g, &source, "o");
    for keep in [false, true] {
        let keep: BTreeSet<String> = keep.then(|| "attn.out".to_string()).into_iter().collect();
        let floats = !keep.is_empty();
        let plan = plan(&g, &Options { schedule: Schedule::GPU, keep, ..Options::default() });
        let written = |name: &str| {
            let l = plan.launches.iter().find(|l| l.name == "attn.out").expect("a join");
            l.args.iter().any(|a| matches!(a, Arg::Buffer(i) if plan.buffers[*i as usize].name == name))
        };
        assert!(written("attn.out.q24") && written("attn.out") == floats);
        let got = step(&plan, &Place::Checked, &source, &tokens()[..67], 0, &[("o", 96)]).remove(0);
        same_bits("o", &want[..67 * 96], &got, 96);
    }
}

/// Parts that no launch left are not joined.
#[test]
fn parts_are_written_before_they_are_read() {
    let mut plan = plan(&graph(SHAPES[4]), &Options { schedule: Schedule::GPU, ..Options::default() });
    ir::plan::verify::verify(&plan, &[]).unwrap_or_else(|e| panic!("{e:#?}"));
    plan.launches.retain(|l| l.name != "attn.out.parts");
    let errors = ir::plan::verify::verify(&plan, &[]).expect_err("nothing leaves parts");
    assert!(errors.iter().any(|d| d.code == "E0355" && d.message.contains("parts")), "{errors:#?}");
}
