//! One set of bits: the logits of a text are the same at every position whatever the target, the free schedule, fusion, the
//! memory plan, chunks, threads, order of blocks and what memory held before; in every process, and in the interpreters.
//! A set that covers every pair of choices is run; with the feature `full-tests` every combination too.
#![cfg(feature = "llvm")]

mod common;

use common::fault::{self, Fault};
use common::golden::transcript;
use common::pairwise::{cover, covered, product};
use common::*;
use ir::graph::Graph;
use ir::kernel::interp::RunOptions;
use ir::plan::phases::Phases;
use ir::plan::{BufferKind, Plan};
use passes::lower::schedule::Schedule;
use passes::{Manager, Options, Pipeline};
use runtime::cpu::CpuOptions;
use runtime::cpu::pool::Order;
use runtime::session::{Limits, Session};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;

/// Digest of the logits of [`text`], the same on every machine. Where numerics were changed on purpose, the new one goes here.
const DIGEST: &str = "b116a502f0d62762f706e6bf46ecf8fdd3fc967b69383affe2e87029e112663c";

/// warps / lanes a row / words a load / tiles a warp / stages of copies / blocks wished for / tokens of a block in prefill.
const SCHEDULES: [&str; 6] = [
    "1/1/1/4/0/0/2/0/1/1/0/0/0",
    "4/4/4/1/0/0/8/80/16/4/0/0/0",
    "2/2/2/1/0/0/1/40/4/2/64/0/0",
    "4/1/2/2/0/0/1/20/1/4/0/0/0",
    "2/4/2/1/3/0/4/0/32/2/0/0/0",
    "8/2/4/16/0/2/2/256/8/4/32/0/0",
];

/// Passes that are off.
const FUSION: [(&str, &[&str]); 3] =
    [("fused", &[]), ("fused, launches apart", &["merge-launches"]), ("unfused", &["fuse", "merge-launches"])];

/// How tokens come.
#[derive(Clone, Copy, Debug)]
enum Feed {
    /// In chunks of so many.
    Chunks(usize),
    /// One step a token, after so many in chunks of 128.
    Decode(usize),
}

const FEEDS: [Feed; 10] = {
    use Feed::*;
    [Chunks(1), Chunks(2), Chunks(5), Chunks(64), Chunks(127), Chunks(128), Chunks(129), Chunks(600), Decode(0), Decode(301)]
};

const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Shuffled(7)];

/// 600 tokens of prose: past the window of 128 four times, past two splits of attention.
fn text() -> &'static [u32] {
    &transcript("b2-long-prose").prompt[..600]
}

fn limits(chunk: usize) -> Limits {
    Limits { slots: 1, context: 608, chunk, slack: 0, outputs: chunk }
}

fn fused(fusion: usize) -> &'static Graph {
    static GRAPHS: [OnceLock<Graph>; 3] = [const { OnceLock::new() }; 3];
    GRAPHS[fusion].get_or_init(|| through_passes(model(), &without(FUSION[fusion].1)))
}

fn planned(fusion: usize, schedule: &str, memory_plan: bool) -> Phases {
    let schedule = Schedule::parse(schedule).unwrap_or_else(|| panic!("{schedule}"));
    let mut options = without(FUSION[fusion].1);
    options.switches.insert("memory-plan".into(), memory_plan);
    phases(fused(fusion), &Options { schedule, ..options })
}

/// The default program with its code.
fn default_program() -> &'static (Phases, Vec<u8>) {
    static P: OnceLock<(Phases, Vec<u8>)> = OnceLock::new();
    P.get_or_init(|| {
        let plan = planned(0, SCHEDULES[0], true);
        let code = object_of(&plan.kernels(), best_target());
        (plan, code)
    })
}

/// The logits that all others are compared with: the plan for one token, host, one thread, chunks of 128.
fn wanted() -> &'static [f32] {
    static W: OnceLock<Vec<f32>> = OnceLock::new();
    W.get_or_init(|| {
        let (plan, code) = default_program();
        logits(&mut on_host(&plan.decode, code, threads(1), limits(128), checkpoint()), text(), 128).0
    })
}

fn fed(s: &mut Session, ids: &[u32], feed: Feed) -> Vec<f32> {
    let mut out = vec![];
    let mut run = |ids: &[u32], chunk| {
        _ = s.run(ids, chunk, ids.len(), &mut |row| out.extend_from_slice(row)).unwrap_or_else(|d| panic!("{d}"));
    };
    match feed {
        Feed::Chunks(n) => run(ids, n),
        Feed::Decode(first) => {
            let (prefill, decode) = ids.split_at(first);
            if !prefill.is_empty() {
                run(prefill, 128);
            }
            decode.chunks(1).for_each(|t| run(t, 128));
        }
    }
    out
}

/// Numbers of levels: target, schedule, fusion (these three make the code), feed, threads, memory plan, poison, order of blocks,
/// a plan for chunks.
fn levels() -> [usize; 9] {
    [host_targets().len(), SCHEDULES.len(), FUSION.len(), FEEDS.len(), 2, 2, 2, ORDERS.len(), 2]
}

#[test]
fn whatever_the_choices() {
    let levels = levels();
    // Code is dear, that of fused kernels for old processors most: first the fewest programs, then runs of them.
    let mut programs = product(&levels[..3]);
    programs.sort_by_key(|p| (levels[0] - 1 - p[0]) * (FUSION.len() - 1 - p[2]));
    let programs = cover(&levels[..3], &programs);
    let rest = product(&levels[3..]);
    let all: Vec<Vec<usize>> = programs.iter().flat_map(|p| rest.iter().map(|r| [&p[..], r].concat())).collect();
    let rows = cover(&levels, &all);
    let (pairs, held) = covered(&levels, &rows);
    println!("{} runs of {} possible hold {held} of {pairs} pairs of choices", rows.len(), levels.iter().product::<usize>());
    assert_eq!(held, pairs);
    same_bits_in(rows);
}

/// The full product, a test for each program.
#[cfg(feature = "full-tests")]
mod full {
    use super::*;

    fn program(isa: &str, fusion: usize, schedule: usize) {
        match host_targets().iter().position(|i| i.name() == isa) {
            Some(isa) => same_bits_in(product(&levels()).into_iter().filter(|r| r[..3] == [isa, schedule, fusion]).collect()),
            None => println!("NOT RUN: this machine does not run {isa}"),
        }
    }

    macro_rules! programs {
        ($($name:ident $isa:literal $fusion:literal)*) => { $(
            mod $name {
                programs!($isa $fusion: schedule_0 0, schedule_1 1, schedule_2 2, schedule_3 3, schedule_4 4, schedule_5 5);
            }
        )* };
        ($isa:literal $fusion:literal: $($name:ident $schedule:literal),*) => { $(
            #[test]
            fn $name() {
                super::program($isa, $fusion, $schedule);
            }
        )* };
    }
    programs! {
        v3_fused "x86-64-v3" 0
        v3_launches_apart "x86-64-v3" 1
        v3_unfused "x86-64-v3" 2
        v4_fused "x86-64-v4" 0
        v4_launches_apart "x86-64-v4" 1
        v4_unfused "x86-64-v4" 2
        vnni_fused "x86-64-v4+vnni" 0
        vnni_launches_apart "x86-64-v4+vnni" 1
        vnni_unfused "x86-64-v4+vnni" 2
    }
    const _: () = assert!(SCHEDULES.len() == 6 && FUSION.len() == 3);
}

/// Runs the choices `rows`, each one level for each of [`levels`], and compares.
fn same_bits_in(rows: Vec<Vec<usize>>) {
    let isas = host_targets();
    let runs = rows.len();
    let mut programs: BTreeMap<Vec<usize>, Vec<Vec<usize>>> = BTreeMap::new();
    for r in rows {
        programs.entry(r[..3].to_vec()).or_default().push(r);
    }
    let (start, width) = (Instant::now(), 4096);
    let programs: Vec<_> = programs.into_iter().collect();
    let bad: Vec<String> = on_two_threads(&programs, |(p, rows)| {
        let plans = [true, false].map(|memory| planned(p[2], SCHEDULES[p[1]], memory));
        assert_eq!(plans[0].kernels(), plans[1].kernels(), "places are no business of kernels");
        for ((_, a), (_, b)) in plans[0].plans().zip(plans[1].plans()) {
            assert!(a.arena_bytes < b.arena_bytes, "the memory plan shares nothing");
        }
        let code = object_of(&plans[0].kernels(), isas[p[0]]);
        let (mut bad, name) = (vec![], format!("{}, schedule {}, {}", isas[p[0]].name(), SCHEDULES[p[1]], FUSION[p[2]].0));
        for r in rows {
            let feed = FEEDS[r[3]];
            let chunk = if let Feed::Chunks(n) = feed { n } else { 128 };
            let cpu = CpuOptions { threads: r[4] + 1, poison: r[6] == 1, order: ORDERS[r[7]] };
            let mut plans = plans[r[5]].clone();
            if r[8] == 1 {
                plans.prefill = None;
            }
            let got = fed(&mut on_host(&plans, &code, cpu, limits(chunk), checkpoint()), text(), feed);
            if let Some(d) = difference(wanted(), &got, width) {
                bad.push(format!("{name}, {feed:?}, {cpu:?}, memory plan {}, prefill plan {}: {d}", r[5] == 0, r[8] == 0));
            }
        }
        println!("{name}: {} runs, {} differ, {:.0} s", rows.len(), bad.len(), start.elapsed().as_secs_f64());
        bad
    })
    .concat();
    println!("{:.0} s", start.elapsed().as_secs_f64());
    assert!(bad.is_empty(), "{} of {runs} runs have other bits:\n{}", bad.len(), bad.join("\n"));
}

/// Across machines and compilers too.
#[test]
fn digest_is_the_known_one() {
    assert!(wanted().iter().all(|x| x.is_finite()), "not a text to compare");
    assert_eq!(digest(wanted()), DIGEST, "the numerics changed: if on purpose, write the new digest into this file");
}

#[test]
fn logits_not_asked_for_change_nothing() {
    let (plan, code) = default_program();
    for (chunk, outputs) in [(128, 1), (128, 89), (600, 37), (7, 300), (1, 2)] {
        let mut s = on_host(plan, code, threads(2), limits(chunk), checkpoint());
        let mut got = vec![];
        let next = s.run(text(), chunk, outputs, &mut |row| got.extend_from_slice(row)).unwrap_or_else(|d| panic!("{d}"));
        let want = &wanted()[(600 - outputs) * 4096..];
        same_bits(&format!("chunk {chunk}, the last {outputs}"), want, &got, 4096);
        let best = (0..4096).rev().max_by(|&a, &b| want[want.len() - 4096 + a].total_cmp(&want[want.len() - 4096 + b]));
        assert_eq!(Some(next as usize), best);
    }
}

#[test]
fn every_optional_pass_may_be_off() {
    let all = Manager::default();
    let optional = all.passes().filter(|p| p.required(&Options::default()).is_none()).map(|p| p.name());
    let optional: Vec<&str> = optional.collect();
    let known: Vec<String> = Pipeline::full().entries.into_iter().map(|e| e.pass).collect();
    println!("optional: {optional:?} of {known:?}");
    assert!(optional.len() >= 6);
    on_two_threads(&optional, |pass| {
        let options = Options { schedule: Schedule::GPU_PREFILL, ..without(&[pass]) };
        let plan = phases(&through_passes(model(), &options), &options);
        let code = object_of(&plan.kernels(), best_target());
        let mut s = on_host(&plan, &code, threads(1), limits(128), checkpoint());
        same_bits(&format!("without {pass}"), wanted(), &logits(&mut s, text(), 128).0, 4096);
    });
}

#[test]
fn interpreters_agree() {
    // Past the window, so that rings wrap.
    let ids = &text()[..170];
    let want = &wanted()[..170 * 4096];
    let cases = [(0, SCHEDULES[0]), (2, SCHEDULES[0]), (0, SCHEDULES[1]), (0, SCHEDULES[4])];
    on_two_threads(&cases, |&(fusion, schedule)| {
        let plan = planned(fusion, schedule, true);
        let (got, _) = logits(&mut on_interpreter(&plan, limits(64), checkpoint()), ids, 50);
        same_bits(&format!("interpreter of kernels, {}, {schedule}", FUSION[fusion].0), want, &got, 4096);
        // Eleven tokens and one under all its checks: no race, no uninitialised read, no read of a copy in flight.
        let mut s = on_device_of_kernels(&plan, RunOptions::checked(3), limits(12), checkpoint());
        let (got, _) = logits(&mut s, &ids[..12], 11);
        same_bits(&format!("checked interpreter, {}, {schedule}", FUSION[fusion].0), &want[..12 * 4096], &got, 4096);
    });
    for (fusion, (name, _)) in FUSION.iter().enumerate().filter(|(i, _)| *i != 1) {
        let got = reference(fused(fusion), checkpoint(), ids, "logits");
        same_bits(&format!("interpreter of graphs, {name}"), want, &got, 4096);
    }
}

/// Everything a compilation leaves, as bytes.
fn compiled() -> Vec<(String, Vec<u8>)> {
    let mut m = passes::Module::new(model());
    let mut dump = passes::instrument::dump::Dump::new();
    let report = Manager::default().run(&mut m, &Pipeline::full(), &Options::default(), &mut [&mut dump]);
    let report = report.unwrap_or_else(|f| panic!("{}", f.diagnostic));
    let plan = m.plan.expect("a plan");
    let mut out: Vec<(String, Vec<u8>)> = dump.folder().into_iter().map(|(f, t)| (format!("dump/{f}"), t.into_bytes())).collect();
    out.push(("plan".into(), ir::plan::text::print_whole(&plan).into_bytes()));
    out.push(("report".into(), format!("{report:?}").into_bytes()));
    out.push(("kernels".into(), kernel_text(&plan)));
    out.push(("object".into(), object(&plan, codegen::HostIsa::X86_64V4Vnni)));
    let both = planned(0, SCHEDULES[0], true);
    for (phase, plan) in both.plans() {
        out.push((format!("{phase} of two"), ir::plan::text::print_whole(plan).into_bytes()));
    }
    let gpu = planned(0, SCHEDULES[1], true);
    let kernels = gpu.kernels();
    for target in [codegen::Target::Sm90, codegen::Target::Sm121] {
        let ptx = codegen::ptx(&kernels, target).unwrap_or_else(|d| panic!("{d}"));
        out.push((target.name(), ptx.concat().into_bytes()));
    }
    out
}

#[test]
fn two_compiles_and_two_processes() {
    const CHILD: &str = "ISOBIT_TEST_DIGESTS";
    let mut lines: Vec<String> =
        compiled().into_iter().map(|(name, bytes)| format!("digest {} {name}", blake3::hash(&bytes).to_hex())).collect();
    lines.push(format!("digest {} logits", digest(wanted())));
    if std::env::var_os(CHILD).is_some() {
        return lines.iter().for_each(|l| println!("{l}"));
    }
    let again: Vec<_> = compiled().into_iter().map(|(n, b)| format!("digest {} {n}", blake3::hash(&b).to_hex())).collect();
    assert_eq!(lines[..again.len()], again, "compiled twice in one process");
    let exe = std::env::current_exe().expect("this program");
    let args = ["--exact", "two_compiles_and_two_processes", "--nocapture", "--test-threads=1"];
    let child = std::process::Command::new(exe).args(args).env(CHILD, "1").output().expect("it starts");
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}{}", String::from_utf8_lossy(&child.stderr));
    // The harness may print the test's name in front of the first line.
    let theirs: Vec<String> = text.lines().filter_map(|l| Some(l[l.find("digest ")?..].to_string())).collect();
    assert_eq!(lines, theirs, "another process");
    println!("{} digests are the same in another process", lines.len());
}

/// The comparison notices small faults in one kernel: a constant one ulp off, a tree in the other order, a product rounded
/// before it is added, a store left out.
#[test]
fn planted_faults_in_a_kernel_are_caught() {
    let (ids, want) = (&text()[..40], &wanted()[..40 * 4096]);
    let right = planned(2, SCHEDULES[0], true).decode;
    let faults = [
        ("the constant 1/256 one ulp off", "layers.3.mlp.norm", fault::constant as Fault),
        ("a tree in the other order", "layers.0.attn.norm", fault::tree),
        ("a product rounded before the sum", "layers.7.attn.out", fault::contraction),
        ("a store left out", "layers.2.attn.q", fault::store),
    ];
    // All in one object: the right kernels are compiled once.
    let mut every = right.clone();
    let wrong = faults.map(|(what, launch, fault)| {
        let mut wrong = right.clone();
        let at = wrong.launches.iter().position(|l| l.name == launch).unwrap_or_else(|| panic!("no launch {launch}"));
        let kernel = wrong.launches[at].kernel as usize;
        // A kernel of its own, so that one launch of one layer is wrong.
        let mut k = wrong.kernels[kernel].clone();
        k.name += &format!("_wrong_{}", every.kernels.len());
        assert!(fault::plant(&mut k, fault), "{what}: nothing to change in {launch}");
        every.kernels.push(k.clone());
        wrong.kernels.push(k);
        wrong.launches[at].kernel = wrong.kernels.len() as u32 - 1;
        (what, launch, wrong)
    });
    let code = object(&every, best_target());
    for (what, launch, wrong) in wrong {
        let cpu = CpuOptions { poison: true, ..threads(1) };
        let got = logits(&mut on_host(&wrong, &code, cpu, limits(40), checkpoint()), ids, 40).0;
        let d = difference(want, &got, 4096).unwrap_or_else(|| panic!("not noticed: {what} in {launch}"));
        println!("{what}, in {launch}: {d}");
    }
}

/// The comparison notices what an order of blocks or a place in memory may spoil.
#[test]
fn planted_faults_in_a_plan_are_caught() {
    let (ids, want) = (&text()[..40], &wanted()[..40 * 4096]);
    let run = |plan: &Plan, code: &[u8], order| {
        let cpu = CpuOptions { order, ..threads(1) };
        logits(&mut on_host(plan, code, cpu, limits(40), checkpoint()), ids, 40).0
    };
    // Two values that live at once in one place.
    let mut wrong = planned(2, SCHEDULES[0], true).decode;
    let code = object(&wrong, best_target());
    same_bits("before the fault", want, &run(&wrong, &code, Order::Forward), 4096);
    let at = |name: &str| wrong.buffer(name).unwrap_or_else(|| panic!("no {name}"));
    let (a, b) = (at("layers.1.attn.resid"), at("layers.1.mlp.gate"));
    assert!(matches!(wrong.buffers[a].kind, BufferKind::Value { .. }));
    wrong.buffers[a].offset = wrong.buffers[b].offset;
    let d = difference(want, &run(&wrong, &code, Order::Forward), 4096).expect("not noticed: one place for two values");
    println!("one place for two values: {d}");
    // A launch whose second stage reads what its first stage writes: right in one order of blocks.
    let mut g = fused(1).clone();
    let at = |name: &str| g.stages.iter().position(|s| s.name == name).unwrap_or_else(|| panic!("no stage {name}")) as u32;
    let (first, second) = (at("layers.1.attn.out"), at("layers.1.attn.o_proj"));
    g.launches = g.launches_or_default();
    g.launches.retain(|l| l[..] != [second]);
    let place = g.launches.iter().position(|l| l[..] == [first]).expect("a launch of its own");
    g.launches[place] = vec![first, second];
    let wrong = plan(&g, &Options::default());
    let code = object(&wrong, best_target());
    same_bits("dependent blocks in order", want, &run(&wrong, &code, Order::Forward), 4096);
    for order in [Order::Reverse, Order::Shuffled(7)] {
        let d = difference(want, &run(&wrong, &code, order), 4096);
        println!("dependent blocks, {order:?}: {}", d.unwrap_or_else(|| panic!("not noticed: dependent blocks, {order:?}")));
    }
}
