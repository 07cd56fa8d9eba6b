//! Every weight format through every kind of kernel: a small model in plain bf16, f16 and f32 weights, in codes of 2 to 8
//! bits, groups of 32 to 128 and scales of each format gives the same bits in the interpreter of graphs, the interpreter of
//! kernels and host code, fused and unfused, on several schedules, from stacks in one part or in many. Rows that are too
//! long for a block's shared memory are read from memory.
#![cfg(feature = "llvm")]

mod common;

use common::formats::{FORMATS, Format, VOCAB, small_model, wide_mlp, wide_row};
use common::run::{Place, joined, step};
use common::weights::{Kind, Made};
use common::*;
use ir::graph::interp::Session;
use ir::graph::{Dtype, Graph};
use ir::plan::Plan;
use passes::Options;
use passes::lower::schedule::Schedule;
use passes::lower::shared::{SHARED_BUDGET, of_stage, pooled};

const TOKENS: [u32; 9] = [3, 60, 17, 3, 0, 41, 63, 5, 9];
const FROM: usize = 2;

const SCHEDULES: [Schedule; 4] = [
    Schedule::HOST,
    Schedule::GPU,
    Schedule { warps: 2, chain_lanes: 2, vec: 2, tiles: 2, stages: 0, min_blocks: 0 },
    Schedule { warps: 4, chain_lanes: 4, vec: 4, tiles: 1, stages: 3, min_blocks: 0 },
];

fn meant(g: &Graph, source: &Made) -> Vec<f32> {
    let mut s = Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(&TOKENS, FROM).unwrap_or_else(|d| panic!("{d}"));
    let out = &g.node(g.outputs[0]).name;
    s.value(out).and_then(|v| v.f32s()).expect("floats").to_vec()
}

/// Fused and unfused.
fn forms(g: Graph) -> Vec<(&'static str, Graph)> {
    let plain = without(&["fuse", "merge-launches"]);
    vec![("fused", through_passes(g.clone(), &Options::default())), ("unfused", through_passes(g, &plain))]
}

fn plans(g: &Graph) -> Vec<Plan> {
    SCHEDULES.iter().map(|&schedule| plan(g, &Options { schedule, ..Options::default() })).collect()
}

#[test]
fn every_format_has_the_same_bits_everywhere() {
    let graphs: Vec<Vec<(&str, Graph)>> = FORMATS.iter().map(|&f| forms(small_model(f))).collect();
    let mut all: Vec<Vec<Vec<Plan>>> = graphs.iter().map(|f| f.iter().map(|(_, g)| plans(g)).collect()).collect();
    let kernels = joined(&mut all.iter_mut().flatten().flatten().collect::<Vec<_>>());
    println!("{} formats, {} distinct kernels", FORMATS.len(), kernels.len());
    let whole = Plan { kernels, ..Plan::default() };
    let isas = host_targets();
    let objects = on_two_threads(&isas, |isa| object(&whole, *isa));
    let jobs: Vec<usize> = (0..FORMATS.len()).collect();
    let differ = on_two_threads(&jobs, |&f| {
        let (mut finite, mut others) = (0, 0);
        for (seed, kind) in [(1, Kind::Random), (2, Kind::Special), (3, Kind::Special)] {
            let whole = Made::of(&graphs[f][0].1, kind, seed);
            let want = meant(&graphs[f][0].1, &whole);
            let source = Made::of(&graphs[f][0].1, kind, seed).in_parts();
            for (form, (name, g)) in graphs[f].iter().enumerate() {
                let what = |s: &str| format!("{:?}, {name}, {kind:?} {seed}, {s}", FORMATS[f]);
                same_bits(&what("interpreter of graphs"), &want, &meant(g, &source), VOCAB as usize);
                for (i, plan) in all[f][form].iter().enumerate() {
                    let check = |place: &str, got: Vec<Vec<f32>>| {
                        same_bits(&what(&format!("{place}, {}", SCHEDULES[i])), &want, &got[0], VOCAB as usize);
                    };
                    let out = [("logits", VOCAB as usize)];
                    if kind == Kind::Random {
                        check("interpreter of kernels", step(plan, &Place::Checked, &source, &TOKENS, FROM, &out));
                    }
                    for (isa, o) in isas.iter().zip(&objects) {
                        let source = if i % 2 == 0 { &whole } else { &source };
                        check(isa.name(), step(plan, &Place::Host(o, 1), source, &TOKENS, FROM, &out));
                    }
                }
            }
            for x in want {
                *(if x.is_finite() { &mut finite } else { &mut others }) += 1;
            }
        }
        (finite, others)
    });
    println!("finite and other logits: {differ:?}");
    assert!(differ.iter().all(|&(finite, _)| finite >= VOCAB as usize * (TOKENS.len() - FROM)));
}

/// Plain weights against float64: what a chain of fma may lose, and nothing more.
#[test]
fn a_wrong_bit_of_a_weight_is_noticed() {
    for f in [Format::Plain(Dtype::F16), Format::Affine(3, 64, Dtype::F16), Format::Affine(5, 32, Dtype::F32)] {
        let g = through_passes(small_model(f), &Options::default());
        let p = plan(&g, &Options::default());
        let source = Made::of(&g, Kind::Random, 1);
        let want = meant(&g, &source);
        let out = [("logits", VOCAB as usize)];
        let run = |s: &Made| step(&p, &Place::Interpreter, s, &TOKENS, FROM, &out).remove(0);
        same_bits("right", &want, &run(&source), VOCAB as usize);
        for name in ["layers.0.experts.down_proj", "layers.1.mlp.down_proj"] {
            let wrong = Made::of(&g, Kind::Random, 1).with_one_bit_flipped(name);
            let d = difference(&want, &run(&wrong), VOCAB as usize);
            println!("{f:?}, {name}: {}", d.unwrap_or_else(|| panic!("{f:?}, {name}: not noticed")));
        }
    }
}

/// A row of 21504 elements takes 64.5 KB as byte planes and 84 KB as floats: neither is kept in a block.
#[test]
fn long_rows_are_read_from_memory() {
    const LONG: u32 = 21504;
    for f in [Format::Affine(8, 64, Dtype::Bf16), Format::Plain(Dtype::Bf16)] {
        for (what, g) in [("mlp", wide_mlp(f, 128, LONG)), ("row", wide_row(f, LONG)), ("long norm", wide_mlp(f, 12288, 64))] {
            let fused = through_passes(g, &Options::default());
            let source = Made::of(&fused, Kind::Random, 5);
            let want = meant(&fused, &source);
            let name = fused.node(fused.outputs[0]).name.clone();
            for s in fused.stages_or_default() {
                assert!(pooled(&[of_stage(&fused, &s.nodes)]) <= SHARED_BUDGET, "{}", s.name);
            }
            for (plan, schedule) in plans(&fused).iter().zip(SCHEDULES) {
                for k in &plan.kernels {
                    assert!(k.shared_layout().1 <= SHARED_BUDGET, "{what}, {f:?}, {schedule}: {}", k.name);
                }
                let o = object(plan, best_target());
                let got = step(plan, &Place::Host(&o, 2), &source, &TOKENS, 0, &[(&name, 64)]);
                same_bits(&format!("{what}, {f:?}, {schedule}"), &want, &got[0], 64);
            }
        }
    }
    // The plant: a kernel that keeps such a row is refused by the code generator.
    let mut g = through_passes(wide_row(Format::Plain(Dtype::Bf16), LONG), &Options::default());
    let at = |n: &str| g.by_name(n).unwrap();
    let nodes = vec![at("scaled"), at("a"), at("b"), at("y")];
    assert!(pooled(&[of_stage(&g, &nodes)]) > SHARED_BUDGET);
    let stores = vec![at("y")];
    let norm = vec![at("x"), at("norm")];
    g.stages = vec![
        ir::graph::Stage { name: "norm".into(), nodes: norm[..1].to_vec(), stores: norm[..1].to_vec() },
        ir::graph::Stage { name: "norm2".into(), nodes: norm[1..].to_vec(), stores: norm[1..].to_vec() },
        ir::graph::Stage { name: "y".into(), nodes, stores },
    ];
    g.launches = vec![];
    let p = plan(&g, &Options::default());
    let kernels: Vec<_> = p.kernels.iter().collect();
    assert_eq!(codegen::host_object(&kernels, best_target()).unwrap_err().code, "E0504");
}

/// What fusion thinks a kernel needs of shared memory is what it takes, or more.
#[test]
fn shared_memory_is_never_underestimated() {
    let mut seen = 0;
    for f in FORMATS {
        for (form, g) in forms(small_model(f)) {
            for schedule in SCHEDULES {
                let p = plan(&g, &Options { schedule, ..Options::default() });
                let stages = g.stages_or_default();
                for (l, launch) in g.launches_or_default().iter().zip(&p.launches) {
                    let parts: Vec<_> = l.iter().map(|&i| of_stage(&g, &stages[i as usize].nodes)).collect();
                    let taken = p.kernels[launch.kernel as usize].shared_layout().1;
                    let limit = if schedule.stages == 0 { pooled(&parts) } else { SHARED_BUDGET };
                    assert!(taken <= limit, "{f:?}, {form}, {schedule}, {}: {taken} of {limit}", launch.name);
                    seen += usize::from(taken > 0);
                }
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

/// Rows of weights that are no multiple of eight have no kernel, and the message says whose they are.
#[test]
fn odd_rows_are_refused_by_name() {
    let mut s = common::formats::sketch("odd", Format::Plain(Dtype::F32));
    let x = s.embed("x", 64);
    let x = s.slice("part", x, 0, 60);
    let y = s.linear("y", x, 8);
    let g = through_passes(s.unpinned(&[y]), &Options::default());
    let d = passes::lower::lower(&g, &Schedule::HOST).unwrap_err();
    assert_eq!((d.code, d.place.as_str()), ("E0617", "y_proj"), "{d}");
}
