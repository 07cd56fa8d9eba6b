//! What the whole-system tests share: programs of the demo model built straight from the library crates, sessions on every
//! device, comparison of floats as bits, random numbers. Not every test uses all of it.
#![allow(dead_code)]

pub mod fault;
pub mod fixture;
pub mod formats;
pub mod golden;
pub mod pairwise;
pub mod random;
pub mod run;
pub mod sizes;
#[path = "../../models/tests/common/tiny.rs"]
pub mod tiny;
pub mod weights;

use codegen::{HostIsa, Target};
use ir::graph::Graph;
use ir::graph::interp::WeightSource;
use ir::graph::op::EmbedMode;
use ir::kernel::Kernel;
use ir::kernel::interp::RunOptions;
use ir::plan::Plan;
use ir::plan::phases::Phases;
use models::Checkpoint;
use passes::lower::schedule::Schedule;
use passes::{Manager, Module, Options, Pipeline};
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use runtime::session::{Limits, Session};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

/// The demo checkpoint.
pub fn checkpoint() -> &'static Checkpoint {
    static CK: OnceLock<Checkpoint> = OnceLock::new();
    CK.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit");
        Checkpoint::open(&dir).unwrap_or_else(|d| panic!("{d}"))
    })
}

/// The demo model as a graph, nothing rounded on entry.
pub fn model() -> Graph {
    models::gemma4::layers::graph(checkpoint(), EmbedMode::Exact).unwrap_or_else(|d| panic!("{d}"))
}

/// Options with these passes switched off.
pub fn without(passes: &[&str]) -> Options {
    Options { switches: passes.iter().map(|p| (p.to_string(), false)).collect(), ..Options::default() }
}

/// A graph after the passes that need no plan.
pub fn through_passes(graph: Graph, options: &Options) -> Graph {
    let mut m = Module::new(graph);
    let done = Manager::default().run(&mut m, &Pipeline::graph(), options, &mut []);
    done.unwrap_or_else(|f| panic!("pass {}: {}", f.pass, f.diagnostic));
    ir::graph::verify::verify(&m.graph).unwrap_or_else(|e| panic!("{e:#?}"));
    m.graph
}

/// Kernels, launches and places of a graph that went through the passes, for the schedule of the options.
pub fn plan(graph: &Graph, options: &Options) -> Plan {
    let mut m = Module::new(graph.clone());
    let done = Manager::default().run(&mut m, &Pipeline::plan(), options, &mut []);
    done.unwrap_or_else(|f| panic!("pass {}, schedule {}: {}", f.pass, options.schedule, f.diagnostic));
    m.plan.expect("the passes leave a plan")
}

/// The plan for chunks of many tokens, in tiles of the schedule: fusion is chosen anew. Launches are cheap, so that matmuls as
/// small as the demo model's have tiles.
pub fn prefill(graph: &Graph, options: &Options) -> Plan {
    let mut m = Module::new(graph.clone());
    (m.graph.stages, m.graph.launches) = (vec![], vec![]);
    let options = Options { rows: 128, launch_cost: 1 << 14, ..options.clone() };
    let done = Manager::default().run(&mut m, &Pipeline::fusing_anew(), &options, &mut []);
    done.unwrap_or_else(|f| panic!("pass {}, schedule {}: {}", f.pass, options.schedule, f.diagnostic));
    m.plan.expect("the passes leave a plan")
}

/// Both plans; that for one token has no tiles.
pub fn phases(graph: &Graph, options: &Options) -> Phases {
    let one = Options { schedule: Schedule { tokens: 1, mma: 0, ..options.schedule }, ..options.clone() };
    Phases::join(plan(graph, &one), Some(prefill(graph, options)))
}

/// The demo model as a plan.
pub fn program(options: &Options) -> Plan {
    plan(&through_passes(model(), options), options)
}

/// One object with all kernels of a plan.
pub fn object(plan: &Plan, isa: HostIsa) -> Vec<u8> {
    object_of(&plan.kernels.iter().collect::<Vec<_>>(), isa)
}

/// One object with these kernels.
pub fn object_of(kernels: &[&Kernel], isa: HostIsa) -> Vec<u8> {
    codegen::host_object(kernels, isa).unwrap_or_else(|d| panic!("{}: {d}", isa.name()))
}

/// The kernels as the interpreter loads them.
pub fn kernel_text(plan: &Plan) -> Vec<u8> {
    plan.kernels.iter().map(|k| ir::kernel::text::print(k) + "\n").collect::<String>().into_bytes()
}

/// The host targets that this machine can run; says of each other one that it was not run.
pub fn host_targets() -> Vec<HostIsa> {
    let all = ["x86-64-v3", "x86-64-v4", "x86-64-v4+vnni"];
    let parse = |name| match Target::parse(name) {
        Ok(Target::Host(isa)) => isa,
        other => panic!("{name}: {other:?}"),
    };
    let (here, not): (Vec<HostIsa>, Vec<HostIsa>) = all.into_iter().map(parse).partition(|i| i.runs_here());
    for isa in not {
        eprintln!("NOT RUN: this machine can't run {}", isa.name());
    }
    assert!(!here.is_empty(), "no host target runs on this machine: nothing would be tested");
    here
}

/// The best host target of this machine.
pub fn best_target() -> HostIsa {
    host_targets().pop().expect("one at least")
}

/// A session on host code.
pub fn on_host(
    plans: &(impl Clone + Into<Phases>),
    code: &[u8],
    cpu: CpuOptions,
    limits: Limits,
    source: &dyn WeightSource,
) -> Session {
    let device = CpuDevice::new(cpu).unwrap_or_else(|d| panic!("{d}"));
    session(Box::new(device), plans.clone().into(), code, limits, source)
}

/// A session on the interpreter of kernels, that poisons memory and shuffles warps and blocks.
pub fn on_interpreter(plans: &(impl Clone + Into<Phases>), limits: Limits, source: &dyn WeightSource) -> Session {
    on_device_of_kernels(plans, RunOptions { shadow: false, ..RunOptions::checked(11) }, limits, source)
}

/// A session on the interpreter of kernels.
pub fn on_device_of_kernels(
    plans: &(impl Clone + Into<Phases>),
    options: RunOptions,
    limits: Limits,
    source: &dyn WeightSource,
) -> Session {
    let plans: Phases = plans.clone().into();
    let text: String = plans.kernels().into_iter().map(|k| ir::kernel::text::print(k) + "\n").collect();
    session(Box::new(InterpDevice::new(options)), plans, text.as_bytes(), limits, source)
}

fn session(device: Box<dyn Device>, plans: Phases, code: &[u8], limits: Limits, source: &dyn WeightSource) -> Session {
    Session::new(device, plans, code, source, limits, &mut |_, _| {}).unwrap_or_else(|d| panic!("{d}"))
}

/// CPU options with this many threads.
pub fn threads(threads: usize) -> CpuOptions {
    CpuOptions { threads, ..CpuOptions::default() }
}

/// Logits of all positions of a fresh sequence, row after row, and the choice after the last.
pub fn logits(s: &mut Session, ids: &[u32], chunk: usize) -> (Vec<f32>, u32) {
    let mut out = vec![];
    s.reset();
    let next = s.run(ids, chunk, ids.len(), &mut |row| out.extend_from_slice(row)).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(out.len(), ids.len() * s.logits_width());
    (out, next)
}

/// The same from the interpreter of graphs, in one step.
pub fn reference(g: &Graph, source: &dyn WeightSource, ids: &[u32], output: &str) -> Vec<f32> {
    let mut s = ir::graph::interp::Session::new(g, source).unwrap_or_else(|e| panic!("{e:#?}"));
    s.step(ids, 0).unwrap_or_else(|d| panic!("{d}"));
    s.value(output).and_then(|v| v.f32s()).unwrap_or_else(|| panic!("no floats named {output}")).to_vec()
}

/// Digest of floats as bits.
pub fn digest(x: &[f32]) -> String {
    let mut h = blake3::Hasher::new();
    x.iter().for_each(|x| _ = h.update(&x.to_bits().to_le_bytes()));
    h.finalize().to_hex().to_string()
}

/// Where two runs differ first as bits, and in how many places; rows are `width` long. NaNs are one class: targets differ in
/// their payload.
pub fn difference(a: &[f32], b: &[f32], width: usize) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} floats against {}", a.len(), b.len()));
    }
    let differ = |(x, y): &(&f32, &f32)| x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan());
    let i = a.iter().zip(b).position(|p| differ(&p))?;
    let n = a.iter().zip(b).filter(differ).count();
    let (x, y) = (a[i], b[i]);
    Some(format!(
        "{n} of {} floats differ, first row {} element {}: {x:e} {:08x} against {y:e} {:08x}",
        a.len(),
        i / width,
        i % width,
        x.to_bits(),
        y.to_bits()
    ))
}

/// Fails where two runs differ as bits.
#[track_caller]
pub fn same_bits(what: &str, a: &[f32], b: &[f32], width: usize) {
    if let Some(d) = difference(a, b, width) {
        panic!("{what}: {d}");
    }
}

/// The greatest error, relative to the greatest magnitude wanted.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let max = |it: &mut dyn Iterator<Item = f64>| it.fold(0.0, |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x) });
    let diff = max(&mut got.iter().zip(want).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()));
    diff / max(&mut want.iter().map(|x| f64::from(*x).abs()))
}

/// Runs `f` over items on two threads; the order of results is that of the items.
pub fn on_two_threads<T: Send + Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (Mutex::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let i = {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        *next - 1
                    };
                    let Some(item) = items.get(i) else { break };
                    let r = f(item);
                    done.lock().unwrap().push((i, r));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, r)| r).collect()
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(n)) >> 32) as u32
    }
    /// In -1..1.
    pub fn unit(&mut self) -> f32 {
        self.word() as i32 as f32 / 2147483648.0
    }
}

/// Nearest bf16, as its bits.
pub fn bf16(x: f32) -> u16 {
    let b = x.to_bits();
    if x.is_nan() { 0x7fc0 } else { ((b + 0x7fff + (b >> 16 & 1)) >> 16) as u16 }
}
