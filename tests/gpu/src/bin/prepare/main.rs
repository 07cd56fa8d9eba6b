//! Emits the bundle: for every case the graph through this project's passes, lowering and code generation, as host objects
//! and as sm_90 PTX in several free schedules. `prepare FOLDER [--only NAME] [--ptx FOLDER]`: the latter also writes
//! PTX of every kernel, one a file, for both GPU targets, for an assembler to check.

mod graphs;

use codegen::{HostIsa, Target, host_object, ptx};
use gpu_check::case::{Case, Tensor};
use graphs::{B, Experts, Heads, VOCAB};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::Op;
use ir::graph::{Elem, Graph};
use ir::kernel::Kernel;
use ir::plan::{Plan, text};
use passes::lower::lower;
use passes::lower::schedule::Schedule;
use passes::{Manager, Module, Options, Pipeline};
use std::path::{Path, PathBuf};

/// Free schedules: warps, lanes of a row, words of a load, tiles, stages, blocks per multiprocessor.
const PLAIN: &[Schedule] = &[Schedule::GPU, schedule(8, 2, 2, 4, 0, 2), schedule(1, 1, 1, 4, 0, 0)];
/// With asynchronous copies of weights.
const COPIES: &[Schedule] = &[schedule(4, 4, 4, 1, 3, 0), schedule(2, 4, 1, 8, 4, 0)];
/// Several heads per block: a barrier in the loop over them.
const LOOPS: &[Schedule] = &[schedule(4, 4, 4, 64, 0, 2), schedule(4, 4, 4, 64, 2, 0)];
/// For the large matrices.
const LARGE: &[Schedule] = &[Schedule::GPU, schedule(8, 4, 4, 4, 0, 2), schedule(2, 4, 4, 4, 4, 0)];

const fn schedule(warps: u32, chain_lanes: u32, vec: u32, tiles: u32, stages: u32, min_blocks: u32) -> Schedule {
    Schedule { warps, chain_lanes, vec, tiles, stages, min_blocks, ..Schedule::GPU }
}

struct Item {
    name: &'static str,
    about: String,
    flags: &'static str,
    graph: Graph,
    steps: Vec<u32>,
    schedules: Vec<Schedule>,
    /// Passes that are switched off.
    off: &'static [&'static str],
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(d) = run(&args) {
        eprintln!("error[{}]: {d}", d.code);
        std::process::exit(1);
    }
}

fn option(args: &[String], name: &str) -> Option<String> {
    args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned()
}

fn run(args: &[String]) -> Result<()> {
    let Some(folder) = args.first().filter(|a| !a.starts_with('-')).map(PathBuf::from) else {
        return Err(Diagnostic::new("E0750", "usage: prepare FOLDER [--only NAME] [--ptx FOLDER]"));
    };
    let only = option(args, "--only").unwrap_or_default();
    let ptx_folder = option(args, "--ptx").map(PathBuf::from);
    let mut index = String::new();
    for item in items().into_iter().filter(|i| i.name.contains(&only)) {
        index.push_str(item.name);
        index.push('\n');
        one(&item, &folder.join(item.name), ptx_folder.as_deref()).map_err(|d| {
            let place = format!("case {}: {}", item.name, d.place);
            d.at(place)
        })?;
    }
    save(&folder.join("index.txt"), index.as_bytes())
}

/// All cases.
fn items() -> Vec<Item> {
    let mut out = vec![];
    let all = || [PLAIN, COPIES].concat();
    let three = || vec![Schedule::GPU, COPIES[0], PLAIN[1]];
    let mut add = |name, about: &str, flags, steps: &[u32], schedules: Vec<Schedule>, graph| {
        out.push(Item { name, about: about.into(), flags, graph, steps: steps.to_vec(), schedules, off: &[] });
    };
    // Exact-integer GEMV with prologue (norm, quantization) and epilogues (gate·up GELU, residual).
    for (name, bits) in [("gemv4-small", 4), ("gemv8-small", 8)] {
        let mut b = B::new(name, bits, 32);
        let h = b.embed(256);
        let y = b.mlp("l", h, 96, bits);
        add(name, &format!("GEMV, {bits}-bit g32, 256 x 96, gate-up GELU, residual"), "small", &[1, 3], all(), b.finish(y));
    }
    for (name, bits, inner) in [("gemv4-2112", 4, 2112), ("gemv8-2112", 8, 2112), ("gemv4-704", 4, 704), ("gemv8-704", 8, 704)] {
        let mut b = B::new(name, bits, 64);
        let h = b.embed(2816);
        let y = b.mlp("l", h, inner, bits);
        let about = format!("GEMV, {bits}-bit g64, 2816 x {inner} and back, gate-up GELU, residual");
        add(name, &about, "time", &[1, 5, 1], all(), b.finish(y));
    }
    for (name, bits) in [("head4", 4), ("head8", 8)] {
        let mut b = B::new(name, bits, 64);
        let h = b.embed(2816);
        let about = format!("GEMV, {bits}-bit g64, 262144 x 2816, softcap, argmax");
        add(name, &about, "time big", &[1], LARGE.to_vec(), b.head(h, 262_144, bits));
    }
    // Attention over a wrapped ring; the kernels before it hold a barrier in a loop over heads.
    let mut b = B::new("attn-small", 4, 32);
    let h = b.embed(128);
    let h = b.attention(0, h, Heads { q: 4, kv: 2, dim: 32, window: 64 });
    add(
        "attn-small",
        "attention, window 64 over a wrapped ring, 4 heads of 32, 2 key heads",
        "small",
        &[32, 32, 32, 31, 1, 1, 20, 1, 1, 32],
        [&all()[..], LOOPS].concat(),
        b.finish(h),
    );
    let mut chunks = vec![64; 9];
    chunks.extend([1, 1, 7, 63, 64, 1, 1]);
    let sliding = Heads { q: 16, kv: 8, dim: 256, window: 128 };
    let full = Heads { q: 16, kv: 2, dim: 512, window: 0 };
    // Merged launches hold the shared arrays of two stages, which leaves little room for copies.
    let merged = vec![Schedule::GPU, PLAIN[1], LOOPS[0], schedule(1, 4, 4, 1, 3, 0)];
    let apart = vec![COPIES[0], LOOPS[0], schedule(4, 4, 4, 64, 3, 0)];
    for (name, a, about, schedules) in [
        ("attn-256", sliding, "window 128 over a ring of 224 wrapped three times, 16 heads of 256, 8 key heads", &merged),
        ("attn-512", full, "full, 16 heads of 512, 2 key heads, K=V", &merged),
        ("attn-256-apart", sliding, "as attn-256, q and kv in launches of their own", &apart),
        ("attn-512-apart", full, "as attn-512, q and kv in launches of their own", &apart),
    ] {
        let mut b = B::new(name, 4, 64);
        let h = b.embed(2816);
        let h = b.attention(0, h, a);
        add(name, &format!("attention, {about}, K=2816"), "time", &chunks, schedules.clone(), b.finish(h));
    }
    // Routed experts.
    let mut b = B::new("moe-small", 4, 32);
    let h = b.embed(128);
    let h = b.moe("l", h, Experts { n: 40, k: 3, width: 96 });
    add("moe-small", "route to 3 of 40 experts 128 x 96, weighted sum", "small", &[1, 4], all(), b.finish(h));
    let mut b = B::new("moe-704", 4, 64);
    let h = b.embed(2816);
    let h = b.moe("l", h, Experts { n: 32, k: 8, width: 704 });
    add("moe-704", "route to 8 of 32 experts 2816 x 704, weighted sum", "time", &[1, 16, 1], three(), b.finish(h));
    let mut b = B::new("moe-128", 4, 64);
    let h = b.embed(2816);
    let h = b.moe("l", h, Experts { n: 128, k: 8, width: 704 });
    add("moe-128", "route to 8 of 128 experts 2816 x 704, weighted sum", "time big", &[1, 16], vec![Schedule::GPU], b.finish(h));
    // A whole model through the session: prefill in chunks, decode.
    let mut b = B::new("model", 4, 64);
    let mut h = b.embed(256);
    for l in 0..4 {
        let full = l % 2 == 1;
        let heads = if full { Heads { q: 8, kv: 1, dim: 64, window: 0 } } else { Heads { q: 8, kv: 2, dim: 32, window: 64 } };
        h = b.attention(l, h, heads);
        h = b.mlp(&format!("layers.{l}"), h, 384, 8);
        h = b.moe(&format!("layers.{l}"), h, Experts { n: 16, k: 4, width: 128 });
    }
    let graph = b.head(h, 4096, 4);
    add(
        "model",
        "4 layers, sliding and full, dense and routed, through a session",
        "session",
        &[64],
        [three(), LOOPS.to_vec()].concat(),
        graph.clone(),
    );
    add("model-unfused", "the same with one kernel per operation", "session", &[64], vec![Schedule::GPU, COPIES[0]], graph);
    for i in &mut out {
        i.off = match i.name.rsplit('-').next() {
            Some("unfused") => &["fuse", "merge-launches"],
            Some("apart") => &["merge-launches"],
            _ => &[],
        };
    }
    out
}

/// The tensors of a graph.
fn tensors(g: &Graph) -> Vec<Tensor> {
    let weights = g.ids().filter(|&id| matches!(g.node(id).op, Op::Weight));
    weights
        .map(|id| {
            let n = g.node(id);
            let name = n.name.clone();
            match (n.ty.elem, &n.ty.shape[..]) {
                (Elem::Affine { bits, group, .. }, &[.., rows, cols]) => {
                    let stack = n.ty.shape[..n.ty.shape.len() - 2].iter().product();
                    Tensor::Affine { name, bits, group, stack, rows, cols }
                }
                _ => Tensor::Plain { name, len: n.ty.width() },
            }
        })
        .collect()
}

fn one(item: &Item, folder: &Path, ptx_folder: Option<&Path>) -> Result<()> {
    let mut module = Module::new(item.graph.clone());
    let mut options = Options::default();
    options.switches.extend(item.off.iter().map(|p| ((*p).to_string(), false)));
    let pipeline = Pipeline::parse(passes::pipeline::GRAPH)?;
    Manager::default().run(&mut module, &pipeline, &options, &mut []).map_err(|f| f.diagnostic)?;
    let session = item.flags.contains("session");
    let plan = |s: &Schedule| -> Result<Plan> {
        let plan = lower(&module.graph, s)?;
        if !session {
            // Every value keeps a place of its own, so that all of them can be compared.
            return Ok(plan);
        }
        let mut m = Module { plan: Some(plan), ..Module::new(module.graph.clone()) };
        Manager::default()
            .run(&mut m, &Pipeline::parse("memory-plan")?, &Options::default(), &mut [])
            .map_err(|f| f.diagnostic)?;
        Ok(m.plan.unwrap_or_default())
    };
    let rows = item.steps.iter().max().copied().unwrap_or(1);
    let window = item.graph.ids().find_map(|id| match item.graph.node(id).op {
        Op::Kv { window, .. } if window > 0 => Some(window),
        _ => None,
    });
    let total: u32 = item.steps.iter().sum();
    let vocab = if session { VOCAB.min(4096) } else { VOCAB };
    let case = Case {
        about: item.about.clone(),
        seed: 2026,
        vocab,
        flags: item.flags.split_whitespace().map(Into::into).collect(),
        steps: item.steps.clone(),
        ring: window.map_or(1, |w| (w + rows).div_ceil(32) + 1),
        full: total.div_ceil(32),
        tensors: tensors(&item.graph),
    };
    std::fs::remove_dir_all(folder).ok();
    save(&folder.join("case.txt"), case.print().as_bytes())?;
    let host = plan(&Schedule::HOST)?;
    let kernels: Vec<&Kernel> = host.kernels.iter().collect();
    save(&folder.join("host.plan"), text::print_whole(&host).as_bytes())?;
    for (isa, file) in [(HostIsa::X86_64V3, "x86-64-v3.o"), (HostIsa::X86_64V4, "x86-64-v4.o")] {
        save(&folder.join(file), &host_object(&kernels, isa)?)?;
    }
    for s in &item.schedules {
        let plan = plan(s).map_err(|d| d.hint(format!("schedule {s}")))?;
        let kernels: Vec<&Kernel> = plan.kernels.iter().collect();
        let name = s.to_string().replace('/', "-");
        save(&folder.join(format!("gpu-{name}.plan")), text::print_whole(&plan).as_bytes())?;
        let texts = ptx(&kernels, Target::Sm90).map_err(|d| d.hint(format!("schedule {s}")))?;
        let framed: String = kernels.iter().zip(&texts).map(|(k, t)| format!("//! kernel {}\n{t}\n", k.name)).collect();
        save(&folder.join(format!("gpu-{name}.ptx")), framed.as_bytes())?;
        if let Some(f) = ptx_folder {
            for (k, t) in kernels.iter().zip(&texts) {
                save(&f.join(format!("sm_90/{}.{name}.{}.ptx", item.name, k.name)), t.as_bytes())?;
            }
            for (k, t) in kernels.iter().zip(&ptx(&kernels, Target::Sm121)?) {
                save(&f.join(format!("sm_121/{}.{name}.{}.ptx", item.name, k.name)), t.as_bytes())?;
            }
        }
    }
    let launches: Vec<&str> = host.launches.iter().map(|l| l.name.as_str()).collect();
    println!("{}: {} launches: {}", item.name, launches.len(), launches.join(", "));
    Ok(())
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Diagnostic::new("E0760", e.to_string()).at(path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, bytes).map_err(failed)
}
