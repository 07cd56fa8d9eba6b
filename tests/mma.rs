//! Matmuls of many tokens on integer matrix units: the bits of the interpreter of graphs in every weight format, tile and
//! order, for chunks that fill tiles and that do not, in the interpreter of kernels and as host code.
#![cfg(feature = "llvm")]

mod common;

use common::formats::{FORMATS, Format, VOCAB, small_model};
use common::run::{Place, joined, step};
use common::weights::{Kind, Made};
use common::*;
use ir::graph::Graph;
use ir::graph::interp::Session;
use ir::graph::op::Op;
use ir::kernel::{Block, Kernel, Op as KOp};
use ir::order::{ReductionOrder, Take, Tree};
use ir::plan::Plan;
use passes::Options;
use passes::lower::schedule::Schedule;

const OUT: [(&str, usize); 1] = [("logits", VOCAB as usize)];

fn tokens(n: usize) -> Vec<u32> {
    (0..n).map(|i| (i * i + 7 * i + 3) as u32 % VOCAB).collect()
}

fn meant(g: &Graph, source: &Made, ids: &[u32], from: usize) -> Vec<f32> {
    let mut s = Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(ids, from).unwrap_or_else(|d| panic!("{d}"));
    s.value("logits").and_then(|v| v.f32s()).expect("floats").to_vec()
}

fn planned(g: &Graph, mma: u32) -> Plan {
    prefill(g, &Options { schedule: Schedule { mma, grouped: 1, ..Schedule::GPU_PREFILL }, ..Options::default() })
}

fn products(b: &Block) -> usize {
    let of = |op: &KOp| match op {
        KOp::Mma { .. } => 1,
        KOp::For { body, .. } => products(body),
        KOp::If { then, els, .. } => products(then) + products(els),
        KOp::Pipeline { body, .. } => products(body),
        _ => 0,
    };
    b.insts.iter().map(|i| of(&i.op)).sum()
}

/// Launches whose kernels multiply on matrix units.
fn on_units(p: &Plan) -> Vec<&str> {
    let on = |k: &Kernel| products(&k.body) > 0;
    p.launches.iter().filter(|l| on(&p.kernels[l.kernel as usize])).map(|l| l.name.as_str()).collect()
}

/// The small model with every matmul's order replaced.
fn ordered(f: Format, order: ReductionOrder) -> Graph {
    let mut g = through_passes(small_model(f), &Options::default());
    for id in g.topo() {
        if let Op::QLinear { order: o } | Op::QExpertLinear { order: o } = &mut g.node_mut(id).op {
            *o = Some(order);
        }
    }
    g
}

#[test]
fn every_format_and_tile_has_the_bits_of_one_token() {
    let formats: Vec<Format> = FORMATS.into_iter().filter(|f| matches!(f, Format::Affine(..))).collect();
    let jobs: Vec<(usize, u32)> = (0..formats.len()).flat_map(|f| [16, 32, 64].map(|m| (f, m))).collect();
    let counts = on_two_threads(&jobs, |&(f, mma)| {
        let g = through_passes(small_model(formats[f]), &Options::default());
        let source = Made::of(&g, Kind::Random, 1);
        let plan = planned(&g, mma);
        // A tile that is not full, or more than one.
        let n = [5, 70, 37][(f + mma as usize / 16) % 3];
        let ids = tokens(n);
        let want = meant(&g, &source, &ids, n - 3);
        let got = step(&plan, &Place::Checked, &source, &ids, n - 3, &OUT).remove(0);
        same_bits(&format!("{:?}, tiles of {mma}, {n} tokens", formats[f]), &want, &got, VOCAB as usize);
        on_units(&plan).len()
    });
    println!("launches on matrix units: {counts:?}");
    // Two slots of 64 rows of long groups find no room.
    let long = |f: usize| matches!(formats[f], Format::Affine(_, 128, _));
    assert!(jobs.iter().zip(&counts).all(|(&(f, mma), &n)| (n >= 8) != (mma == 64 && long(f))), "{counts:?}");
}

#[test]
fn orders_are_kept() {
    let order = |lanes, take, tree| ReductionOrder { lanes, take, tree };
    let f = Format::Affine(4, 32, ir::graph::Dtype::Bf16);
    let mut seen = vec![];
    for (order, on) in [
        (order(4, Take::Contiguous, Tree::Pair), true),
        (order(4, Take::Strided, Tree::Pair), true),
        (order(4, Take::Contiguous, Tree::Fold), true),
        (order(8, Take::Contiguous, Tree::Pair), true),
        // More chains than groups.
        (order(16, Take::Strided, Tree::Fold), true),
        (order(16, Take::Contiguous, Tree::Pair), true),
        (order(12, Take::Contiguous, Tree::Fold), true),
        // No four lanes share a row.
        (order(2, Take::Contiguous, Tree::Pair), false),
        (order(1, Take::Contiguous, Tree::Pair), false),
    ] {
        let g = ordered(f, order);
        let plan = planned(&g, 16);
        assert_eq!(!on_units(&plan).is_empty(), on, "{order}: {:?}", on_units(&plan));
        let source = Made::of(&g, Kind::Random, 1);
        let ids = tokens(20);
        let want = meant(&g, &source, &ids, 18);
        let got = step(&plan, &Place::Checked, &source, &ids, 18, &OUT).remove(0);
        same_bits(&format!("{order}"), &want, &got, VOCAB as usize);
        seen.push(want);
    }
    seen.dedup_by(|a, b| difference(a, b, VOCAB as usize).is_none());
    println!("{} orders give other bits than the one before", seen.len());
    assert!(seen.len() > 3, "orders show in bits");
}

#[test]
fn host_code_has_the_same_bits() {
    let f = Format::Affine(6, 64, ir::graph::Dtype::Bf16);
    let g = through_passes(small_model(f), &Options::default());
    let source = Made::of(&g, Kind::Special, 2);
    let mut plan = planned(&g, 16);
    joined(&mut [&mut plan]);
    let code = object(&plan, best_target());
    let ids = tokens(20);
    let want = meant(&g, &source, &ids, 0);
    let got = step(&plan, &Place::Host(&code, 2), &source, &ids, 0, &OUT).remove(0);
    same_bits("host code", &want, &got, VOCAB as usize);
}

/// Most loops that lie around a product, pipelines left out.
fn loops(b: &Block) -> usize {
    let of = |op: &KOp| match op {
        KOp::For { body, .. } if products(body) > 0 => 1 + loops(body),
        KOp::If { then, els, .. } => loops(then).max(loops(els)),
        _ => 0,
    };
    b.insts.iter().map(|i| of(&i.op)).max().unwrap_or(0)
}

/// A block does its work once: experts walk over tiles of rows, others over nothing. (One that went on from row to row had the
/// right bits, 256 times.)
#[test]
fn work_is_done_once() {
    let mut depths: Vec<usize> = vec![];
    for f in FORMATS.into_iter().filter(|f| matches!(f, Format::Affine(..))) {
        let plan = planned(&through_passes(small_model(f), &Options::default()), 32);
        for k in plan.kernels.iter().filter(|k| products(&k.body) > 0) {
            assert!(loops(&k.body) <= 1, "{f:?}, {}: {} loops around its products", k.name, loops(&k.body));
            depths.push(loops(&k.body));
        }
    }
    assert!(depths.contains(&0) && depths.contains(&1), "{depths:?}");
}
