//! Speed as ratios, measured side by side in one run: decode GEMV against the machine's own read bandwidth, and decode of
//! the demo model in tokens per second. Prints a table; asserts nothing, since a timed test would be a coin toss.
//! `cargo bench`, or `cargo bench -- gemv` / `-- demo` for one part.

use codegen::HostIsa;
use ir::graph::op::{EmbedMode, Op};
use ir::graph::{Elem, Graph, NodeId, Rows, Stage, Type, verify};
use ir::order::ReductionOrder;
use ir::plan::{Arg, BufferKind, Pack, Plan};
use passes::lower::{lower, schedule::Schedule};
use passes::{Manager, Module, Options, Pipeline};
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{Device, KernelNames, KernelSig, LaunchDesc};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const MATRICES: [(u32, u32); 2] = [(262_144, 2816), (2816, 2112)];

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| name.contains(o.as_str()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let isas = [HostIsa::X86_64V3, HostIsa::X86_64V4, HostIsa::X86_64V4Vnni];
    if wanted("gemv") {
        println!("{threads} threads; best of several passes; bytes are codes, scales and offsets");
        println!("{:<28} {:>7} {:>14} {:>10} {:>10} {:>7}", "matrix", "bits", "target", "GEMV GB/s", "read GB/s", "share");
        for (rows, cols) in MATRICES {
            for bits in [4, 8] {
                for isa in isas {
                    if isa.runs_here() {
                        gemv(rows, cols, bits, isa, threads);
                    } else {
                        println!(
                            "{:<28} {bits:>7} {:>14} NOT RUN: this processor lacks it",
                            format!("{rows}x{cols}"),
                            isa.name()
                        );
                    }
                }
            }
        }
    }
    if wanted("demo") {
        demo(&isas, threads);
    }
}

/// Bytes per second that `threads` threads read of a buffer of this size.
fn read_bandwidth(words: &[u64], threads: usize, turns: usize) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..turns {
        let t = Instant::now();
        std::thread::scope(|s| {
            for part in words.chunks(words.len().div_ceil(threads)) {
                s.spawn(move || {
                    let mut sums = [0u64; 32];
                    for c in part.chunks_exact(32) {
                        for (s, w) in sums.iter_mut().zip(c) {
                            *s = s.wrapping_add(*w);
                        }
                    }
                    black_box(sums);
                });
            }
        });
        best = best.min(t.elapsed().as_secs_f64());
    }
    words.len() as f64 * 8.0 / best
}

/// embed -> quantize -> qlinear, the last two in one stage.
fn graph(rows: u32, cols: u32, bits: u32) -> Graph {
    let mut g = Graph::new("gemv");
    let once = |elem, shape: &[u32]| Type { elem, rows: Rows::Once, shape: shape.to_vec() };
    let affine = Elem::Affine { bits, group: 64, scales: ir::graph::Dtype::Bf16 };
    let ids = g.add("tokens", Op::Tokens, &[], Type { elem: Elem::I32, rows: Rows::Tokens, shape: vec![] });
    let table = g.add("table", Op::Weight, &[], once(affine, &[32, cols]));
    let x = g.add("x", Op::Embed { mode: EmbedMode::Exact, factor: 3.0 }, &[table, ids], Type::tokens(&[cols]));
    let xq = g.add("xq", Op::Quantize { group: 64 }, &[x], Type::tokens(&[cols]).with(Elem::Q24 { group: 64 }));
    let w = g.add("w", Op::Weight, &[], once(affine, &[rows, cols]));
    let order = Some(ReductionOrder::contiguous(4));
    let y = g.add("y", Op::QLinear { order }, &[xq, w], Type::tokens(&[rows]));
    g.outputs = vec![y];
    let stage = |name: &str, nodes: &[NodeId], store| Stage { name: name.into(), nodes: nodes.to_vec(), stores: vec![store] };
    g.stages = vec![stage("x", &[x], x), stage("y", &[xq, y], y)];
    verify::verify(&g).expect("a sound graph");
    g
}

fn object(plan: &Plan, isa: HostIsa) -> Vec<u8> {
    let kernels: Vec<_> = plan.kernels.iter().collect();
    codegen::host_object(&kernels, isa).expect("code")
}

/// Packed weights of random codes with small scales.
fn random_weights(pack: &Pack) -> Vec<u8> {
    let Pack::Matrix(l) = pack else { return vec![0; 64] };
    let mut words = vec![0u32; l.bytes() as usize / 4];
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let step = l.step_words() as usize;
    for block in words.chunks_exact_mut(step) {
        let codes = l.words() as usize * 32;
        for w in &mut block[..codes] {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *w = (x >> 32) as u32;
        }
        block[codes..].fill(0xbc80_3b80); // scale 1/256, offset -1/64
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn gemv(rows: u32, cols: u32, bits: u32, isa: HostIsa, threads: usize) {
    let g = graph(rows, cols, bits);
    let plan = lower(&g, &Schedule::HOST).expect("a plan");
    let mut dev = CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() }).expect("threads");
    let sigs: Vec<_> = plan.kernels.iter().map(|k| KernelSig { name: &k.name, bufs: k.bufs.len() as u32 }).collect();
    let kernels = dev.load_module(&object(&plan, isa), &KernelNames { place: "bench", kernels: &sigs }).expect("code");
    // Small matrices are copied, so that each pass reads from memory and not from a cache.
    let matrix_bytes = plan
        .weights
        .iter()
        .filter(|w| w.tensor == "w")
        .map(|w| if let Pack::Matrix(l) = w.pack { l.bytes() } else { 0 })
        .sum::<u64>();
    let copies = (1u64 << 30).div_ceil(matrix_bytes).min(64) as usize;
    let buffers: Vec<_> = plan
        .buffers
        .iter()
        .map(|b| match b.kind {
            BufferKind::Value { bytes, .. } => dev.alloc(u64::from(bytes)).expect("memory"),
            _ => dev.alloc(64).expect("memory"),
        })
        .collect();
    let mut lists = vec![];
    let packed: Vec<_> = plan.weights.iter().map(|w| random_weights(&w.pack)).collect();
    for _ in 0..copies {
        let weights: Vec<_> = packed
            .iter()
            .map(|bytes| {
                let b = dev.alloc(bytes.len() as u64).expect("memory");
                dev.write(b, 0, bytes).expect("in range");
                b
            })
            .collect();
        for l in &plan.launches {
            let k = &plan.kernels[l.kernel as usize];
            let args = l
                .args
                .iter()
                .map(|a| match a {
                    Arg::Buffer(i) => (buffers[*i as usize], 0),
                    Arg::Weight(i) => (weights[*i as usize], 0),
                })
                .collect();
            let kernel = kernels[l.kernel as usize];
            lists.push(LaunchDesc { kernel, args, grid: [l.grid_x, 1], warps: k.warps, shared_bytes: k.shared_layout().1 });
        }
    }
    let (embeds, gemvs): (Vec<_>, Vec<_>) = lists.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let strip = |v: Vec<(usize, LaunchDesc)>| v.into_iter().map(|x| x.1).collect::<Vec<_>>();
    let (embeds, gemvs) = (strip(embeds), strip(gemvs));
    // SAFETY: launches of a lowered plan with buffers of its sizes.
    unsafe { dev.launch(&embeds).expect("run") };
    let list = dev.prepare(&gemvs).expect("a list");
    let words = vec![1u64; (copies as u64 * matrix_bytes / 8) as usize];
    let (mut best, mut read) = (f64::MAX, 0f64);
    // Taken in turns, so that both see the same machine.
    for _ in 0..7 {
        let t = Instant::now();
        // SAFETY: as above.
        unsafe { dev.run(list, &[]).expect("run") };
        best = best.min(t.elapsed().as_secs_f64());
        read = read.max(read_bandwidth(&words, threads, 1));
    }
    let speed = copies as f64 * matrix_bytes as f64 / best;
    println!(
        "{:<28} {bits:>7} {:>14} {:>10.1} {:>10.1} {:>6.0}%",
        format!("{rows}x{cols} ({copies} copies)"),
        isa.name(),
        speed / 1e9,
        read / 1e9,
        100.0 * speed / read
    );
}

fn demo(isas: &[HostIsa], threads: usize) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit");
    let ck = models::Checkpoint::open(&dir).expect("the demo model");
    let prompt: Vec<u32> = models::Text::load(&ck)
        .and_then(|t| t.raw_prompt("The little lighthouse stood at the end of a long wall of black stone, and", false))
        .expect("a prompt");
    println!(
        "\n{:<10} {:>14} {:>8} {:>9} {:>15} {:>14}",
        "demo", "target", "threads", "launches", "prefill tok/s", "decode tok/s"
    );
    for fuse in [true, false] {
        let mut m = Module::new(models::gemma4::layers::graph(&ck, EmbedMode::Factor).expect("a graph"));
        let mut o = Options::default();
        for pass in ["fuse", "merge-launches"] {
            o.switches.insert(pass.into(), fuse);
        }
        for p in [Pipeline::graph(), Pipeline::plan()] {
            if let Err(f) = Manager::default().run(&mut m, &p, &o, &mut []) {
                panic!("{}", f.diagnostic);
            }
        }
        let plan = m.plan.expect("a plan");
        for &isa in isas.iter().filter(|i| i.runs_here()) {
            let code = object(&plan, isa);
            for n in [1, threads] {
                let dev = CpuDevice::new(CpuOptions { threads: n, ..CpuOptions::default() }).expect("threads");
                let limits = runtime::session::Limits::default();
                let mut s = runtime::session::Session::new(Box::new(dev), plan.clone(), &code, &ck, limits, &mut |_, _| {})
                    .expect("a session");
                let (mut best_prefill, mut best_decode) = (0f64, 0f64);
                for _ in 0..5 {
                    s.reset();
                    let long: Vec<u32> = prompt.iter().cycle().take(256).copied().collect();
                    let t = Instant::now();
                    let mut next = s.run(&long, 128, 0, &mut |_| {}).expect("prefill");
                    best_prefill = best_prefill.max(long.len() as f64 / t.elapsed().as_secs_f64());
                    let t = Instant::now();
                    for _ in 0..200 {
                        next = s.run(&[next], 1, 0, &mut |_| {}).expect("decode");
                    }
                    best_decode = best_decode.max(200.0 / t.elapsed().as_secs_f64());
                }
                println!(
                    "{:<10} {:>14} {n:>8} {:>9} {best_prefill:>15.0} {best_decode:>14.0}",
                    if fuse { "fused" } else { "unfused" },
                    isa.name(),
                    plan.launches.len()
                );
            }
        }
    }
}
