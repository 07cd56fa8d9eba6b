//! Speed as ratios, measured side by side in one run: decode GEMV against the machine's own read bandwidth, matmuls of many
//! tokens against its own integer dot products, and the demo model in tokens per second. Prints tables; asserts nothing, since
//! a timed test would be a coin toss. `cargo bench`, or `cargo bench -- gemv` / `-- gemm` / `-- demo` for one part.

use codegen::HostIsa;
use ir::graph::op::{EmbedMode, Op};
use ir::graph::{Elem, Graph, NodeId, Rows, Stage, Type, verify};
use ir::order::ReductionOrder;
use ir::plan::phases::Phases;
use ir::plan::{Arg, BufferKind, Pack, Plan, state};
use isobit::bandwidth;
use isobit::emit::Code;
use isobit::options::CompileOptions;
use isobit::pipeline::{self, Watch};
use isobit::target::Target;
use passes::lower::{lower, schedule::Schedule};
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{Device, KernelNames, KernelSig, LaunchDesc, PreparedId};
use runtime::session::{Limits, Session};
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
    if wanted("gemm") {
        gemms(&isas);
    }
    if wanted("demo") {
        demo(&isas, threads);
    }
}

/// embed -> quantize -> qlinear, the last two in one stage or apart.
fn graph(rows: u32, cols: u32, bits: u32, together: bool) -> Graph {
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
    g.stages = match together {
        true => vec![stage("x", &[x], x), stage("y", &[xq, y], y)],
        false => vec![stage("x", &[x], x), stage("xq", &[xq], xq), stage("y", &[y], y)],
    };
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
    let g = graph(rows, cols, bits, true);
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
        read = read.max(bandwidth::once(&words, threads));
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

/// Tokens of a matmul of many.
const TOKENS: u32 = 64;

/// A matmul of [`TOKENS`] tokens, its rows quantized before, on one device.
struct Gemm {
    dev: CpuDevice,
    list: PreparedId,
    grid: u32,
    best: f64,
}

impl Gemm {
    /// In blocks of `tile` tokens; 0: one, which is quantized by every block.
    fn new(rows: u32, cols: u32, bits: u32, isa: HostIsa, threads: usize, tile: u32) -> Gemm {
        let together = tile == 0;
        let tile = tile.max(1);
        let plan = lower(&graph(rows, cols, bits, together), &Schedule { tokens: tile, ..Schedule::HOST }).expect("a plan");
        let mut dev = CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() }).expect("threads");
        let sigs: Vec<_> = plan.kernels.iter().map(|k| KernelSig { name: &k.name, bufs: k.bufs.len() as u32 }).collect();
        let kernels = dev.load_module(&object(&plan, isa), &KernelNames { place: "bench", kernels: &sigs }).expect("code");
        let mut state = [0i32; state::WORDS as usize];
        state[state::TOKENS as usize] = TOKENS as i32;
        let mut buffer = |bytes: &[u8]| {
            let b = dev.alloc(bytes.len() as u64).expect("memory");
            dev.write(b, 0, bytes).expect("in range");
            b
        };
        let mut buffers = vec![];
        for b in &plan.buffers {
            buffers.push(match b.kind {
                BufferKind::Value { bytes, .. } => buffer(&vec![0; (bytes * TOKENS) as usize]),
                BufferKind::State => buffer(&state.map(i32::to_le_bytes).concat()),
                _ => buffer(&(0..TOKENS).flat_map(|t| (t % 32).to_le_bytes()).collect::<Vec<_>>()),
            });
        }
        let weights: Vec<_> = plan.weights.iter().map(|w| buffer(&random_weights(&w.pack))).collect();
        let launch = |l: &ir::plan::Launch| {
            let k = &plan.kernels[l.kernel as usize];
            let arg = |a: &Arg| match a {
                Arg::Buffer(i) => (buffers[*i as usize], 0),
                Arg::Weight(i) => (weights[*i as usize], 0),
            };
            let grid = [l.grid_x, l.grid_y(TOKENS as usize, TOKENS as usize)];
            let args = l.args.iter().map(arg).collect();
            LaunchDesc { kernel: kernels[l.kernel as usize], args, grid, warps: k.warps, shared_bytes: k.shared_layout().1 }
        };
        let mut launches: Vec<_> = plan.launches.iter().map(launch).collect();
        let last = launches.split_off(launches.len() - 1);
        // SAFETY: launches of a lowered plan with buffers of its sizes.
        unsafe { dev.launch(&launches).expect("run") };
        let grid = last[0].grid[1];
        Gemm { list: dev.prepare(&last).expect("a list"), dev, grid, best: f64::MAX }
    }

    fn turn(&mut self) {
        let t = Instant::now();
        // SAFETY: as above.
        unsafe { self.dev.run(self.list, &[self.grid]).expect("run") };
        self.best = self.best.min(t.elapsed().as_secs_f64());
    }
}

/// Products of bytes per second in a loop of `vpdpbusd` on registers alone.
#[cfg(target_arch = "x86_64")]
fn dot_peak(threads: usize) -> f64 {
    use std::arch::x86_64::*;
    const SUMS: usize = 16;
    const TURNS: usize = 100_000;
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn spin(seed: i32) -> i32 {
        let (a, b) = (_mm512_set1_epi32(seed), _mm512_set1_epi32(seed ^ 0x0102_0304));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..TURNS {
            for s in &mut sums {
                *s = _mm512_dpbusd_epi32(*s, a, b);
            }
        }
        sums.into_iter().map(|s| _mm512_reduce_add_epi32(s)).fold(0, i32::wrapping_add)
    }
    let t = Instant::now();
    std::thread::scope(|s| {
        for i in 0..threads {
            // SAFETY: the caller asked the processor.
            s.spawn(move || black_box(unsafe { spin(black_box(i as i32 + 3)) }));
        }
    });
    (threads * SUMS * TURNS * 64) as f64 / t.elapsed().as_secs_f64()
}

/// Matmuls of many tokens by tile, against integer dot products on registers alone. On one thread: two would wait for each
/// other when the machine has other work.
fn gemms(isas: &[HostIsa]) {
    let threads = 1;
    const TILES: [u32; 5] = [0, 1, 2, 4, 8];
    println!("\n{TOKENS} tokens, one thread; tera products of bytes per second (three for a weight), and the share of what");
    println!("`vpdpbusd` does on registers alone in the same run");
    println!(
        "{:<12} {:>5} {:>15} {:>17} {:>17} {:>17} {:>17} {:>17} {:>6}",
        "matrix", "bits", "target", "quantized inside", "tile 1", "2", "4", "8", "peak"
    );
    let (rows, cols) = (2816, 2112);
    for bits in [4, 8] {
        for &isa in isas.iter().filter(|i| i.runs_here()) {
            let mut all: Vec<Gemm> = TILES.iter().map(|&t| Gemm::new(rows, cols, bits, isa, threads, t)).collect();
            let mut peak = 0f64;
            for _ in 0..20 {
                for g in &mut all {
                    g.turn();
                    #[cfg(target_arch = "x86_64")]
                    if HostIsa::X86_64V4Vnni.runs_here() {
                        peak = peak.max(dot_peak(threads));
                    }
                }
            }
            let work = f64::from(rows) * f64::from(cols) * f64::from(TOKENS) * 3.0;
            let cells: Vec<String> =
                all.iter().map(|g| format!("{:>10.3} {:>4.0} %", work / g.best / 1e12, 100.0 * work / g.best / peak)).collect();
            println!("{:<12} {bits:>5} {:>15} {} {:>6.3}", format!("{rows}x{cols}"), isa.name(), cells.join(" "), peak / 1e12);
        }
    }
}

fn demo(isas: &[HostIsa], threads: usize) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit");
    let ck = models::Checkpoint::open(&dir).expect("the demo model");
    let prompt: Vec<u32> = models::Text::load(&ck)
        .and_then(|t| t.raw_prompt("The little lighthouse stood at the end of a long wall of black stone, and", false))
        .expect("a prompt");
    let long: Vec<u32> = prompt.iter().cycle().take(256).copied().collect();
    println!(
        "\n{:<10} {:>14} {:>8} {:>9} {:>16} {:>18} {:>14}",
        "demo", "target", "threads", "launches", "prefill tok/s", "without its plan", "decode tok/s"
    );
    for fuse in [true, false] {
        for &isa in isas.iter().filter(|i| i.runs_here()) {
            let mut options = CompileOptions { targets: vec![target(isa)], ..CompileOptions::default() };
            options.set_fusion(fuse);
            let compiled = pipeline::compile(&ck, &options, &mut Watch::default()).expect("a program");
            let program = &compiled.programs[0];
            let Code::Host(code) = &program.code else { panic!("no code for the host") };
            for n in [1, threads] {
                let open = |plans: Phases| {
                    let dev = CpuDevice::new(CpuOptions { threads: n, ..CpuOptions::default() }).expect("threads");
                    Session::new(Box::new(dev), plans, code, &ck, Limits::default(), &mut |_, _| {}).expect("a session")
                };
                let plans = (*program.plans).clone();
                let mut sessions = [open(plans.clone()), open(Phases { prefill: None, ..plans })];
                let (mut prefill, mut decode) = ([0f64; 2], 0f64);
                for _ in 0..7 {
                    let mut next = 0;
                    for (s, best) in sessions.iter_mut().zip(&mut prefill).rev() {
                        s.reset();
                        let t = Instant::now();
                        next = s.run(&long, 128, 0, &mut |_| {}).expect("prefill");
                        *best = best.max(long.len() as f64 / t.elapsed().as_secs_f64());
                    }
                    let t = Instant::now();
                    for _ in 0..200 {
                        next = sessions[0].run(&[next], 1, 0, &mut |_| {}).expect("decode");
                    }
                    decode = decode.max(200.0 / t.elapsed().as_secs_f64());
                }
                println!(
                    "{:<10} {:>14} {n:>8} {:>9} {:>16.0} {:>18.0} {decode:>14.0}",
                    if fuse { "fused" } else { "unfused" },
                    isa.name(),
                    program.plans.decode.launches.len(),
                    prefill[0],
                    prefill[1]
                );
            }
        }
    }
}

fn target(isa: HostIsa) -> Target {
    Target::parse(isa.name()).expect("a target")
}
