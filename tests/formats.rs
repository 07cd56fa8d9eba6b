//! Every weight format through every kind of kernel: a small model in plain bf16, f16 and f32 weights, in codes of 2 to 8
//! bits, groups of 32 to 128 and scales of each format gives the same bits in the interpreter of graphs, the interpreter of
//! kernels and host code, fused and unfused, on several schedules, from stacks in one part or in many. Rows that are too
//! long for a block's shared memory are read from memory.
#![cfg(feature = "llvm")]

mod common;

use common::fault;
use common::formats::{FORMATS, Format, REAL, VOCAB, sketch, small_model, wide_mlp, wide_row};
use common::run::{Place, joined, step};
use common::weights::{Kind, Made};
use common::*;
use ir::graph::interp::{Session, Value};
use ir::graph::{Dtype, Graph};
use ir::kernel::Kernel;
use ir::order::{ReductionOrder, Take, Tree};
use ir::plan::Plan;
use passes::Options;
use passes::lower::schedule::Schedule;
use passes::lower::shared::{SHARED_BUDGET, of_stage, pooled};

const TOKENS: [u32; 9] = [3, 60, 17, 3, 0, 41, 63, 5, 9];
const FROM: usize = 2;

const SCHEDULES: [Schedule; 4] = [
    Schedule::HOST,
    Schedule::GPU,
    Schedule {
        warps: 2,
        chain_lanes: 2,
        vec: 2,
        tiles: 2,
        stages: 0,
        min_blocks: 0,
        tokens: 4,
        ahead: 40,
        row_warps: 8,
        share: 2,
        most_blocks: 0,
        mma: 0,
        grouped: 0,
    },
    Schedule {
        warps: 4,
        chain_lanes: 4,
        vec: 4,
        tiles: 1,
        stages: 3,
        min_blocks: 0,
        tokens: 2,
        ahead: 0,
        row_warps: 2,
        share: 4,
        most_blocks: 32,
        mma: 0,
        grouped: 0,
    },
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

fn planned(g: &Graph, schedule: usize) -> Plan {
    plan(g, &Options { schedule: SCHEDULES[schedule], ..Options::default() })
}

/// What runs of format number `f`: form and schedule. All runs in the interpreter.
fn chosen(f: usize) -> [(usize, usize); 3] {
    [(0, 0), (0, 1 + f % 3), (1, f % 4)]
}

/// Does case `c` of format `f` run as host code on target `i` of `n`? The host's own schedule does on all of them; of the
/// others, whose code for the host is long, those of one format do, each on one.
fn on_host(f: usize, c: usize, schedule: usize, i: usize, n: usize) -> bool {
    if c == 0 { true } else { (f + c) % n == i && (schedule == 0 || FORMATS[f] == Format::Plain(Dtype::Bf16)) }
}

#[test]
fn every_format_has_the_same_bits_everywhere() {
    let graphs: Vec<Vec<(&str, Graph)>> = FORMATS.iter().map(|&f| forms(small_model(f))).collect();
    let cases = |f: usize| chosen(f).map(|(form, s)| planned(&graphs[f][form].1, s));
    let mut all: Vec<[Plan; 3]> = (0..FORMATS.len()).map(cases).collect();
    let isas = host_targets();
    // What several programs have alike is compiled once.
    joined(&mut all.iter_mut().flatten().collect::<Vec<_>>());
    let mut kernels: Vec<Vec<Kernel>> = vec![vec![]; isas.len()];
    for (f, plans) in all.iter().enumerate() {
        for (c, (plan, (_, s))) in plans.iter().zip(chosen(f)).enumerate() {
            for (_, to) in kernels.iter_mut().enumerate().filter(|(i, _)| on_host(f, c, s, *i, isas.len())) {
                let new: Vec<Kernel> = plan.kernels.iter().filter(|k| to.iter().all(|t| t.name != k.name)).cloned().collect();
                to.extend(new);
            }
        }
    }
    println!("{} formats, kernels {:?}", FORMATS.len(), kernels.iter().map(Vec::len).collect::<Vec<_>>());
    let numbers: Vec<usize> = (0..isas.len()).collect();
    let objects = on_two_threads(&numbers, |&i| object(&Plan { kernels: kernels[i].clone(), ..Plan::default() }, isas[i]));
    let jobs: Vec<usize> = (0..FORMATS.len()).collect();
    let counts = on_two_threads(&jobs, |&f| {
        let mut telling = [0, 0, 0];
        for (seed, kind) in [(0, Kind::Random), (1, Kind::Special), (2, Kind::Wild)] {
            let whole = Made::of(&graphs[f][0].1, kind, seed);
            let want = meant(&graphs[f][0].1, &whole);
            let source = Made::of(&graphs[f][0].1, kind, seed).in_parts();
            for (c, (plan, (form, s))) in all[f].iter().zip(chosen(f)).enumerate() {
                let (name, g) = &graphs[f][form];
                let check = |place: &str, got: &[f32]| {
                    let what = format!("{:?}, {name}, {kind:?} {seed}, {place}, {}", FORMATS[f], SCHEDULES[s]);
                    same_bits(&what, &want, got, VOCAB as usize);
                };
                check("interpreter of graphs", &meant(g, &source));
                let out = [("logits", VOCAB as usize)];
                if kind == Kind::Random {
                    check("interpreter of kernels", &step(plan, &Place::Checked, &source, &TOKENS, FROM, &out)[0]);
                }
                for (i, (isa, o)) in isas.iter().zip(&objects).enumerate().filter(|(i, _)| on_host(f, c, s, *i, isas.len())) {
                    let source = if i == 0 { &whole } else { &source };
                    check(isa.name(), &step(plan, &Place::Host(o, 1), source, &TOKENS, FROM, &out)[0]);
                }
            }
            // The softcap of 30 hides what is greater.
            telling[seed as usize] = want.iter().filter(|x| x.abs() < 29.9).count();
        }
        telling
    });
    let all_logits = VOCAB as usize * (TOKENS.len() - FROM);
    println!("logits that show a difference, of {all_logits}, for each kind of weights: {counts:?}");
    assert!(counts.iter().all(|n| n[0] == all_logits && n[1] > all_logits / 2));
}

/// The comparison notices one bit of one code, or of a number.
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

/// Numbers that are not finite among the router's logits: kernels and interpreter choose the same experts, and every weight is
/// NaN just where a NaN or an infinity is among the logits.
#[test]
fn routing_of_what_is_not_finite() {
    const K: usize = 3;
    for width in [32, 40, 128] {
        let mut s = sketch("route", Format::Plain(Dtype::Bf16));
        let x = s.embed("x", width);
        let r = s.route("route", x, K as u32);
        let g = through_passes(s.unpinned(&[x, r]), &without(&["fuse", "merge-launches"]));
        let tokens: Vec<u32> = (0..64).collect();
        let source = Made::of(&g, Kind::Wild, 4);
        let mut s = Session::new(&g, &source).unwrap_or_else(|e| panic!("{e:#?}"));
        s.step(&tokens, 0).unwrap_or_else(|d| panic!("{d}"));
        let logits = s.value("x").and_then(|v| v.f32s()).expect("floats").to_vec();
        let Some(Value::Route(choices)) = s.value("route") else { panic!("no route") };
        let want: Vec<f32> = choices
            .chunks(K)
            .flat_map(|c| c.iter().map(|c| f32::from_bits(c.expert)).chain(c.iter().map(|c| c.weight)))
            .collect();
        let (mut clean, mut poisoned, mut only_minus) = (0, 0, 0);
        for (z, w) in logits.chunks(width as usize).zip(want.chunks(2 * K)) {
            if z.iter().any(|z| !z.is_finite()) {
                assert!(w[K..].iter().all(|w| w.is_nan()), "{z:?}: {w:?}");
                poisoned += 1;
                only_minus += usize::from(z.iter().all(|z| z.is_finite() || *z == f32::NEG_INFINITY));
            } else {
                clean += usize::from(w[K..].iter().all(|w| w.is_finite()));
            }
        }
        let counts = format!("{width}: {clean} clean rows, {poisoned} poisoned, of them {only_minus} by -inf alone");
        assert!(clean > 5 && poisoned > 5 && only_minus > 2, "{counts}");
        for (i, schedule) in SCHEDULES.into_iter().enumerate() {
            let plan = planned(&g, i);
            let o = object(&plan, best_target());
            for (name, place) in [("interpreter of kernels", Place::Checked), ("host", Place::Host(&o, 1))] {
                let got = step(&plan, &place, &source, &tokens, 0, &[("route", 2 * K)]);
                same_bits(&format!("{width}, {schedule}, {name}"), &want, &got[0], 2 * K);
            }
            // The plant: kernels that let -inf through.
            let mut wrong = plan.clone();
            assert_eq!(wrong.kernels.iter_mut().map(|k| usize::from(fault::plant(k, fault::infinities))).sum::<usize>(), 1);
            let got = step(&wrong, &Place::Interpreter, &source, &tokens, 0, &[("route", 2 * K)]);
            assert!(difference(&want, &got[0], 2 * K).is_some(), "{width}, {schedule}: -inf is let through unnoticed");
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
            for (i, schedule) in SCHEDULES.into_iter().enumerate() {
                let plan = planned(&fused, i);
                for k in &plan.kernels {
                    assert!(k.shared_layout().1 <= SHARED_BUDGET, "{what}, {f:?}, {schedule}: {}", k.name);
                }
                if i > 1 {
                    continue;
                }
                let o = object(&plan, best_target());
                let got = step(&plan, &Place::Host(&o, 2), &source, &TOKENS, 0, &[(&name, 64)]);
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
    let norm = [at("x"), at("norm")];
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
                let launches = g.launches_or_default();
                let name = |l: &Vec<u32>| l.iter().map(|&i| stages[i as usize].name.as_str()).collect::<Vec<_>>().join("+");
                for launch in &p.launches {
                    let taken = p.kernels[launch.kernel as usize].shared_layout().1;
                    // Attention chooses its own form, and no other stage shares its launch. Blocks of several warps keep
                    // activations and rings there as long as there is room.
                    let l = launches.iter().find(|l| name(l) == launch.name && !launch.name.ends_with("attn.out"));
                    let parts: Vec<_> = l.into_iter().flatten().map(|&i| of_stage(&g, &stages[i as usize].nodes)).collect();
                    let limit =
                        if schedule.stages == 0 && schedule.warps == 1 && l.is_some() { pooled(&parts) } else { SHARED_BUDGET };
                    assert!(l.is_some() || launch.name.contains("attn.out"), "{}", launch.name);
                    assert!(taken <= limit, "{f:?}, {form}, {schedule}, {}: {taken} of {limit}", launch.name);
                    seen += usize::from(taken > 0);
                }
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

/// Layers of the released sizes have kernels on every schedule, fused and unfused, and a block has room for what they keep.
#[test]
fn real_sizes_have_room() {
    let formats = [Format::Plain(Dtype::Bf16), Format::Affine(4, 64, Dtype::Bf16), Format::Affine(8, 64, Dtype::Bf16)];
    let cases: Vec<_> = REAL.iter().flat_map(|&z| formats.map(|f| (z, f))).collect();
    let most = on_two_threads(&cases, |&(z, f)| {
        let mut most = 0;
        for (form, g) in forms(common::formats::model(f, z)) {
            for (i, schedule) in SCHEDULES.iter().enumerate() {
                for k in planned(&g, i).kernels {
                    let bytes = k.shared_layout().1;
                    assert!(bytes <= SHARED_BUDGET, "{}, {f:?}, {form}, {schedule}: {} takes {bytes}", z.name, k.name);
                    most = most.max(bytes);
                }
            }
            if form == "fused" {
                // What a layer needs (ARCHITECTURE), two more for per-layer embeddings; the logits, and what comes before the
                // first layer. Fixed point of 16384 attention values or 21504 of the MLP is no part of a matmul's kernel.
                let want = match (z.name, f) {
                    ("26b-a4b", _) => 6 + 5 + 1,
                    ("31b", Format::Affine(..)) => 7 + 7 + 1,
                    ("e4b" | "e2b", _) => 1 + 7 + 7 + 1,
                    _ => 5 + 5 + 1,
                };
                assert_eq!(g.launches_or_default().len(), want, "{} {f:?}", z.name);
            }
        }
        most
    });
    println!("{most:?} bytes at most");
    assert!(most.iter().any(|&m| m > SHARED_BUDGET / 2), "nothing comes near the budget: {most:?}");
}

/// The order on a node decides the bits of a matmul with plain weights, in every place alike.
#[test]
fn orders_of_plain_weights_are_obeyed() {
    let mut s = common::formats::sketch("orders", Format::Plain(Dtype::Bf16));
    let x = s.embed("x", 128);
    // Thirteen units: chains of different lengths, or none at all.
    let x = s.slice("part", x, 16, 104);
    let y = s.linear("y", x, 64);
    let g = through_passes(s.unpinned(&[y]), &Options::default());
    let source = Made::of(&g, Kind::Random, 9);
    let order = |lanes, take, tree| ReductionOrder { lanes, take, tree };
    let orders = [
        ReductionOrder::CHAIN,
        ReductionOrder::contiguous(8),
        ReductionOrder::contiguous(16),
        ReductionOrder::strided(4),
        order(6, Take::Contiguous, Tree::Fold),
        order(4, Take::Contiguous, Tree::Fold),
        order(3, Take::Strided, Tree::Fold),
    ];
    let mut seen: Vec<Vec<f32>> = vec![];
    for order in orders {
        let mut g = g.clone();
        g.node_mut(y).op = ir::graph::op::Op::Linear { order: Some(order) };
        let want = meant(&g, &source);
        assert!(seen.iter().all(|s| difference(s, &want, 64).is_some()), "{order} shows");
        let mut plans: Vec<Plan> = (0..SCHEDULES.len()).map(|i| planned(&g, i)).collect();
        let kernels = joined(&mut plans.iter_mut().collect::<Vec<_>>());
        let o = object(&Plan { kernels, ..Plan::default() }, best_target());
        for (plan, schedule) in plans.iter().zip(SCHEDULES) {
            ir::plan::verify::verify(plan, &["y"]).unwrap_or_else(|e| panic!("{order}, {schedule}: {e:?}"));
            for place in [Place::Checked, Place::Host(&o, 1)] {
                let got = step(plan, &place, &source, &TOKENS, 0, &[("y", 64)]);
                same_bits(&format!("{order}, {schedule}"), &want, &got[0], 64);
            }
        }
        seen.push(want);
    }
}

/// Matmuls of one stage share their rows among one number of lanes; orders that forbid it are refused by the stage's name.
#[test]
fn orders_that_part_rows_differently_are_refused() {
    let mut s = sketch("parted", Format::Plain(Dtype::Bf16));
    let x = s.embed("x", 128);
    let (a, b) = (s.linear("a", x, 64), s.linear("b", x, 64));
    let y = s.add("y", a, b);
    let mut g = through_passes(s.unpinned(&[y]), &Options::default());
    let stage = g.stages.iter().find(|s| s.nodes.contains(&a)).expect("a stage").clone();
    assert!(stage.nodes.contains(&b), "{stage:?}");
    let mut order = |id, order| g.node_mut(id).op = ir::graph::op::Op::Linear { order: Some(order) };
    order(a, ReductionOrder::contiguous(8));
    order(b, ReductionOrder::CHAIN);
    // One lane a row suits every order, four only the first.
    assert_eq!((Schedule::HOST.chain_lanes, Schedule::GPU.chain_lanes), (1, 4));
    passes::lower::lower(&g, &Schedule::HOST).unwrap_or_else(|d| panic!("{d}"));
    let d = passes::lower::lower(&g, &Schedule::GPU).unwrap_err();
    assert_eq!((d.code, &d.place), ("E0604", &stage.name), "{d}");
    assert!(d.message.contains("different numbers of lanes"), "{d}");
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
