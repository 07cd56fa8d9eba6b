//! The released sizes with random weights: all of them compile for every class of targets in reasonable time, and few layers
//! of each run on the CPU, with finite logits that do not depend on the chunks in which tokens come.
//! `--features full-tests` runs every size with its whole vocabulary; without it one of each kind runs with a smaller one.

mod common;

use common::sizes::{self, SIZES};
use isobit::engine::{Engine, EngineOptions};
use isobit::options::CompileOptions;
use isobit::pipeline::{self, Watch};
use isobit::target::Target;
use models::Checkpoint;
use runtime::assembler::Cubins;
use std::time::Instant;

/// Seconds that this thread has computed: what else the machine does takes no part.
fn seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() as f64 / 1e9
}

/// A line of /proc/self/status in MiB.
fn mib(line: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = text.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    kib.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap() >> 10
}

/// Compiles a size for host, sm_90 and sm_121; 20 seconds are enough.
fn compiles(size: &str) {
    let ck = sizes::whole(size);
    let targets = Target::parse_list("host,sm_90,sm_121").unwrap();
    let o = CompileOptions { targets, cubins: Cubins::Off, ..CompileOptions::default() };
    let start = seconds();
    let mut watch = Watch::default();
    let c = pipeline::compile(&ck, &o, &mut watch).unwrap_or_else(|d| panic!("{size}: {d}"));
    let took = seconds() - start;
    for (what, ns) in watch.times.iter().filter(|t| t.1 > 200_000_000) {
        println!("  {:8.2} s (wall) {what}", *ns as f64 / 1e9);
    }
    let counts: Vec<_> = c.programs.iter().map(|p| (p.plans.decode.launches.len(), p.plans.decode.kernels.len())).collect();
    println!("{size}: {took:.2} s, launches and kernels {counts:?}");
    assert_eq!(c.programs.len(), 3);
    assert!(took < 20.0, "{size}: {took:.2} s");
}

#[test]
fn every_size_compiles_in_20_seconds() {
    SIZES.iter().for_each(|s| compiles(s));
}

/// Runs prompts and a few steps of decode: logits as bits, of all positions.
fn logits(engine: &mut Engine, chunk: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let prompt: Vec<u32> = (0..9).map(|i| 2 + i * 211).collect();
    let s = engine.session();
    s.reset();
    let mut rows: Vec<Vec<u32>> = vec![];
    let mut sink = |r: &[f32]| {
        assert!(r.iter().all(|x| x.is_finite()), "not finite");
        rows.push(r.iter().map(|x| x.to_bits()).collect());
    };
    let mut next = s.run(&prompt, chunk, prompt.len(), &mut sink).unwrap_or_else(|d| panic!("{d}"));
    let mut ids = vec![next];
    for _ in 0..3 {
        next = s.run(&[next], 1, 1, &mut sink).unwrap_or_else(|d| panic!("{d}"));
        ids.push(next);
    }
    (ids, rows)
}

/// Runs few layers of a size.
fn runs(size: &str, ck: &Checkpoint) {
    let target = Target::host().unwrap();
    let o = CompileOptions { targets: vec![target], ..CompileOptions::default() };
    let start = Instant::now();
    let mut c = pipeline::compile(ck, &o, &mut Watch::default()).unwrap_or_else(|d| panic!("{size}: {d}"));
    let compiled = start.elapsed().as_secs_f64();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = mib("VmHWM");
    let options = EngineOptions { context: Some(64), chunk: Some(4), logits: true, ..EngineOptions::default() };
    let mut engine =
        Engine::open(ck, &c.programs.remove(0), &options, &mut |_, _, _| {}).unwrap_or_else(|d| panic!("{size}: {d}"));
    let loaded = start.elapsed().as_secs_f64() - compiled;
    let by_4 = logits(&mut engine, 4);
    let by_1 = logits(&mut engine, 1);
    let ran = start.elapsed().as_secs_f64() - compiled - loaded;
    let took = mib("VmHWM") - before;
    println!("{size}: compiled in {compiled:.1} s, loaded in {loaded:.1} s, 24 tokens in {ran:.1} s; {took} MiB; {:?}", by_4.0);
    assert!(by_4 == by_1, "{size}: chunks of 1 and of 4 differ");
    assert_eq!(by_4.1.len(), 12);
    // The random model says something: choices differ, and logits are not at their cap.
    let vocab = ck.config().vocab_size;
    let best: Vec<usize> = by_4
        .1
        .iter()
        .map(|r| (0..vocab).max_by(|a, b| f32::from_bits(r[*a]).total_cmp(&f32::from_bits(r[*b]))).unwrap())
        .collect();
    assert!(best.iter().any(|b| *b != best[0]), "{size}: always token {}", best[0]);
    for r in &by_4.1 {
        let most = r[..vocab].iter().map(|x| f32::from_bits(*x).abs()).fold(0.0, f32::max);
        assert!((1.0..25.0).contains(&most), "{size}: the largest logit is {most}");
    }
    assert!(took < 24 << 10);
}

#[cfg(not(feature = "full-tests"))]
#[test]
fn few_layers_of_each_kind_run() {
    for size in ["e2b", "26b-a4b-mlx-4bit"] {
        runs(size, &sizes::cut(size, Some(4096)));
    }
}

#[cfg(feature = "full-tests")]
#[test]
fn few_layers_of_every_size_run() {
    for size in SIZES {
        runs(size, &sizes::cut(size, None));
    }
}
