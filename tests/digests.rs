//! Digests of all values of a step: kernels that sum them up and the host that reads memory find the same; they are the same for
//! every chunk, schedule, device and fusion that stores the value; and summing them up changes no bit of the model.
#![cfg(feature = "llvm")]

mod common;

use common::golden::transcript;
use common::*;
use ir::graph::Graph;
use ir::plan::Plan;
use ir::plan::phases::Phases;
use passes::lower::schedule::Schedule;
use passes::{Manager, Module, Options, Pipeline};
use runtime::session::{Limits, Session};
use runtime::trace::{Mode, Request, traced};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Position and value -> digest.
type Digests = BTreeMap<(usize, String), u64>;

fn ids() -> &'static [u32] {
    &transcript("b2-long-prose").prompt[..44]
}

fn limits() -> Limits {
    Limits { slots: 1, context: 64, chunk: 44, slack: 0, outputs: 44 }
}

/// A plan whose kernels sum up digests, or not.
fn lowered(graph: &Graph, options: &Options, prefill: bool, sums: bool) -> Plan {
    let mut m = Module::new(graph.clone());
    let mut options = options.clone();
    options.switches.insert("instrument-trace".into(), sums);
    let mut pipeline = Pipeline::plan();
    if prefill {
        (m.graph.stages, m.graph.launches) = (vec![], vec![]);
        (options.rows, options.launch_cost, pipeline) = (128, 1 << 14, Pipeline::fusing_anew());
    }
    let done = Manager::default().run(&mut m, &pipeline.traced(), &options, &mut []);
    done.unwrap_or_else(|f| panic!("pass {}: {}", f.pass, f.diagnostic));
    let plan = m.plan.expect("a plan");
    for k in &plan.kernels {
        ir::kernel::verify::verify(k).unwrap_or_else(|e| panic!("{e:#?}"));
    }
    ir::plan::verify::verify(&plan, &[]).unwrap_or_else(|e| panic!("{e:#?}"));
    plan
}

fn both(graph: &Graph, schedule: Schedule, sums: bool) -> Phases {
    let one = Options { schedule: Schedule { tokens: 1, mma: 0, ..schedule }, ..Options::default() };
    let many = Options { schedule, ..Options::default() };
    Phases::join(lowered(graph, &one, false, sums), Some(lowered(graph, &many, true, sums)))
}

/// Digests and logits of tokens in chunks, of which the last few come one by one.
fn run(mut s: Session, graph: &Graph, mode: Mode, chunk: usize, ids: &[u32]) -> (Digests, Vec<f32>) {
    let got: Rc<RefCell<Digests>> = Rc::default();
    let out = got.clone();
    // The values of each plan.
    let names: Vec<Vec<String>> = s.plans().map(|p| traced(p, graph, false).into_iter().map(|t| t.name).collect()).collect();
    let request = Request {
        mode,
        all: false,
        wanted: Box::new(|_| false),
        sink: Box::new(move |row| {
            assert_eq!((row.slot, row.digests.len()), (0, names[row.plan].len()));
            for (name, d) in names[row.plan].iter().zip(row.digests) {
                if let Some(d) = d {
                    out.borrow_mut().insert((row.position, name.clone()), *d);
                }
            }
            Ok(())
        }),
    };
    s.trace(graph, request).unwrap_or_else(|d| panic!("{d}"));
    let mut logits = vec![];
    let (first, rest) = ids.split_at(ids.len() - 5);
    s.run(first, chunk, first.len(), &mut |row| logits.extend_from_slice(row)).unwrap();
    rest.chunks(1).for_each(|t| _ = s.run(t, 1, 1, &mut |row| logits.extend_from_slice(row)).unwrap());
    drop(s);
    (got.take(), logits)
}

/// Fails at the first value that both have and whose digests differ; says how many both have.
#[track_caller]
fn agree(what: &str, a: &Digests, b: &Digests) -> usize {
    let mut n = 0;
    for (k, x) in a {
        if let Some(y) = b.get(k) {
            assert_eq!(x, y, "{what}: {} at position {}", k.1, k.0);
            n += 1;
        }
    }
    n
}

#[test]
fn kernels_and_host_find_the_same_whatever_the_plan() {
    let fused = through_passes(model(), &Options::default());
    let unfused = through_passes(model(), &without(&["fuse", "merge-launches"]));
    let isa = best_target();
    let mut all: Vec<(String, Digests, Vec<f32>)> = vec![];
    let one = |graph: &Graph, sums| Phases::from(lowered(graph, &Options::default(), false, sums));
    // The program that the host looks at sums up nothing in the first case.
    let cases = [
        ("host", &fused, one(&fused, true), Some(one(&fused, false))),
        ("unfused", &unfused, one(&unfused, true), None),
        ("gpu", &fused, both(&fused, Schedule::GPU_PREFILL, true), None),
    ];
    for (name, graph, with, plain) in cases {
        let code = object_of(&with.kernels(), isa);
        let plain = plain.map(|p| (object_of(&p.kernels(), isa), p));
        for (chunk, threads) in [(44, 2), (7, 1), (1, 1)] {
            let on = |phases: &Phases, code: &[u8]| on_host(phases, code, common::threads(threads), limits(), checkpoint());
            let (sums, logits) = run(on(&with, &code), graph, Mode::Epilogue, chunk, ids());
            let (code, phases) = plain.as_ref().map_or((&code, &with), |(code, p)| (code, p));
            let (read, same) = run(on(phases, code), graph, Mode::Separate, chunk, ids());
            same_bits(name, &logits, &same, ids().len());
            assert_eq!(sums.len(), read.len(), "{name}");
            assert_eq!(agree(&format!("{name}, chunks of {chunk}: kernels against host"), &sums, &read), sums.len());
            all.push((format!("{name}, chunks of {chunk}"), sums, logits));
        }
    }
    let (_, first, logits) = &all[0];
    for (name, digests, other) in &all[1..] {
        same_bits(name, logits, other, ids().len());
        let common = agree(name, first, digests);
        println!("{name}: {} digests, {common} in common with the first", digests.len());
        assert!(common > 44 * 30);
    }
}

#[test]
fn the_interpreter_finds_the_same() {
    let fused = through_passes(model(), &Options::default());
    let ids = &ids()[..7];
    let phases = both(&fused, Schedule::GPU_PREFILL, true);
    let code = object_of(&phases.kernels(), best_target());
    let (host, _) = run(on_host(&phases, &code, threads(2), limits(), checkpoint()), &fused, Mode::Epilogue, 7, ids);
    for mode in [Mode::Epilogue, Mode::Separate] {
        let (interpreted, _) = run(on_interpreter(&phases, limits(), checkpoint()), &fused, mode, 7, ids);
        assert_eq!(interpreted.len(), host.len());
        assert_eq!(agree(mode.name(), &interpreted, &host), host.len());
    }
}

#[test]
fn a_program_without_sums_is_refused_by_name() {
    let fused = through_passes(model(), &Options::default());
    let plan = lowered(&fused, &Options::default(), false, false);
    assert_eq!(Mode::of(&plan), Mode::Separate);
    let code = object(&plan, best_target());
    let mut s = on_host(&plan, &code, threads(1), limits(), checkpoint());
    let sink = Box::new(|_: &runtime::trace::Row| Ok(()));
    let request = Request { mode: Mode::Epilogue, all: false, wanted: Box::new(|_| false), sink };
    let d = s.trace(&fused, request).unwrap_err();
    assert_eq!(d.code, "E0493");
}
