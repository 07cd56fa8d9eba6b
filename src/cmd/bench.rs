//! `isobit bench`: speed of prompts and of generation, beside the machine's own read bandwidth measured in the same run, and
//! with the digests of the logits that were computed at that speed.

use super::Stop;
use super::load::{self, Loaded};
use super::run::{engine_options, loaded};
use crate::args::BenchArgs;
use crate::bandwidth;
use crate::bench::{Bench, Measured, cache_bytes};
use crate::emit::Code;
use crate::engine::{Engine, EngineOptions, Room};
use crate::inventory;
use crate::options::CompileOptions;
use crate::printer::Printer;
use crate::source::Source;
use ir::diag::{Diagnostic, Result};
use models::{Checkpoint, Text};
use runtime::cpu::CpuOptions;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Instant;

/// What to run and how, if nothing on the command line contradicts itself.
fn parts(args: &BenchArgs) -> Result<(Source, CompileOptions, usize)> {
    let source = match (&args.config, &args.model) {
        (Some(folder), _) => Source::Folder(folder.clone()),
        (None, Some(model)) => Source::of(model),
        (None, None) => Source::Demo,
    };
    let deepest = args.depth.iter().copied().max().unwrap_or(0) as usize + args.n as usize;
    let needed = deepest.max(args.prefill.iter().copied().max().unwrap_or(1) as usize);
    match args.exec.context {
        Some(context) if context < needed => {
            let message = format!("what is to be measured takes a context of {needed}, not {context}");
            Err(Diagnostic::new("E0750", message).at("--context"))
        }
        given => Ok((source, load::check(&args.exec)?, given.unwrap_or(needed))),
    }
}

/// Refuses a command line that contradicts itself.
pub(super) fn check(args: &BenchArgs) -> Result<()> {
    parts(args).map(|_| ())
}

/// All that is told.
struct Report {
    head: Vec<(&'static str, String)>,
    json: Value,
    bandwidth: f64,
    weights: u64,
    prefill: Vec<Measured>,
    /// With the bytes of keys and values of a token.
    decode: Vec<(Measured, u64)>,
}

/// Runs it.
pub fn run(args: &BenchArgs, p: &mut Printer) -> Result<(), Stop> {
    let (source, o, context) = parts(args)?;
    let look = |ck: &Checkpoint, _: Option<&Text>| Room::new(ck, Some(context)).map(|_| ());
    let Loaded { checkpoint, program, gpu, schedules, origin, time: compile, .. } =
        load::load(&source, &args.exec, true, false, o, &look, p)?;
    let start = Instant::now();
    let options = EngineOptions { context: Some(context), ..engine_options(&args.exec, gpu, false) };
    let mut engine = Engine::open(&checkpoint, &program, &options, &mut |what, done, of| p.progress(what, done, of))?;
    let load = start.elapsed();
    if !args.json {
        p.note(&loaded(&engine, &program, origin, compile, load));
    }
    let on_gpu = matches!(program.code, Code::Gpu(_));
    let bandwidth = match on_gpu {
        true => bandwidth::gpu(engine.session().device())?,
        false => bandwidth::host(options.threads.unwrap_or(CpuOptions::default().threads))?,
    };
    let seed = args.seed.or(checkpoint.random()).unwrap_or(1);
    let bench = Bench { seed, n: args.n as usize, repeat: args.repeat as usize };
    let (mut done, of) = (0, args.prefill.len() + args.depth.len());
    let mut tell = |p: &mut Printer| {
        p.progress("measurements", done, of);
        done += 1;
    };
    let (mut prefill, mut decode) = (vec![], vec![]);
    for &len in &args.prefill {
        tell(p);
        prefill.push(bench.prefill(&mut engine, len as usize)?);
    }
    for &depth in &args.depth {
        tell(p);
        let m = bench.decode(&mut engine, depth as usize)?;
        decode.push((m, cache_bytes(&program.plans.decode, depth as usize, bench.n)));
    }
    let weights = inventory::parts_of_config(checkpoint.config()).iter().map(|(_, a)| a.read).sum();
    let launch = on_gpu.then(|| options.launch.unwrap_or_default().name());
    let weights_of = checkpoint.random().map_or("the checkpoint's".to_string(), |seed| format!("random:{seed}"));
    let (needs, kernels) = (engine.session().needs(), engine.session().launches());
    let mib = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
    let head = vec![
        ("weights", weights_of.clone()),
        ("program", format!("{} on {}", program.target.name(), engine.device_name())),
        ("launch", format!("{}, {kernels} kernels a token", launch.unwrap_or("direct"))),
        ("schedule", format!("{}, chunks {}", schedules.0, schedules.1.as_deref().unwrap_or("alike"))),
        ("chunk, context", format!("{}, {context}", engine.chunk())),
        (
            "memory",
            format!(
                "{}: weights {}, caches {}, workspace {}",
                mib(needs.total()),
                mib(needs.weights),
                mib(needs.full + needs.sliding),
                mib(needs.workspace)
            ),
        ),
        ("read bandwidth", format!("{:.1} GB/s", bandwidth / 1e9)),
    ];
    let json = json!({
        "weights": weights_of,
        "target": program.target.name(),
        "device": engine.device_name(),
        "launch": launch,
        "kernels": kernels,
        "schedule": {"token": schedules.0, "chunk": schedules.1},
        "poison": args.exec.poison,
        "chunk": engine.chunk(),
        "context": context,
        "n": args.n,
        "repeat": args.repeat,
        "seed": seed,
        "memory": {
            "weights": needs.weights, "kv_full": needs.full, "kv_sliding": needs.sliding, "workspace": needs.workspace,
            "code": needs.code, "total": needs.total(),
        },
        "read_bandwidth": bandwidth,
        "seconds": {"compile": compile.as_secs_f64(), "load": load.as_secs_f64()},
    });
    let report = Report { head, json, bandwidth, weights, prefill, decode };
    if args.json { p.line(&report.json().to_string()) } else { p.data(&report.text()) }
}

impl Report {
    /// Bytes per second of a token's bytes, and their share of the bandwidth.
    fn speed(&self, m: &Measured, kv: u64) -> (f64, f64) {
        let speed = (self.weights + kv) as f64 * m.rates()[0];
        (speed, speed / self.bandwidth)
    }

    fn json(&self) -> Value {
        let rates = |m: &Measured| {
            let [median, low, high] = m.rates();
            json!({"median": median, "low": low, "high": high})
        };
        let prefill: Vec<Value> = (self.prefill.iter())
            .map(|m| json!({"tokens": m.at, "tok_s": rates(m), "seconds": m.seconds, "logits": m.digest}))
            .collect();
        let decode = self.decode.iter().map(|(m, kv)| {
            let (speed, share) = self.speed(m, *kv);
            json!({
                "depth": m.at, "tok_s": rates(m), "seconds": m.seconds, "ms": 1e3 / m.rates()[0],
                "bytes": {"weights": self.weights, "kv": kv}, "bytes_s": speed, "share": share, "logits": m.digest,
            })
        });
        let mut out = self.json.clone();
        out["prefill"] = prefill.into();
        out["decode"] = decode.collect::<Vec<_>>().into();
        out
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.head {
            let _ = writeln!(out, "{name:<15} {value}");
        }
        let _ = writeln!(out, "\n{:>7} {:>9} {:>21}  logits", "prompt", "tok/s", "slowest to fastest");
        for m in &self.prefill {
            let [median, low, high] = m.rates();
            let _ = writeln!(out, "{:>7} {median:>9.1} {low:>10.1} {high:>10.1}  {}", m.at, &m.digest[..16]);
        }
        let (mb, gb, share) = ("MB/tok", "GB/s", "share");
        let _ = writeln!(
            out,
            "\n{:>7} {:>9} {:>21} {:>8} {mb:>9} {gb:>7} {share:>6}  logits",
            "depth", "tok/s", "slowest to fastest", "ms/tok"
        );
        for (m, kv) in &self.decode {
            let ([median, low, high], (speed, share)) = (m.rates(), self.speed(m, *kv));
            let _ = writeln!(
                out,
                "{:>7} {median:>9.1} {low:>10.1} {high:>10.1} {:>8.3} {:>9.1} {:>7.1} {:>5.1}%  {}",
                m.at,
                1e3 / median,
                (self.weights + kv) as f64 / 1e6,
                speed / 1e9,
                100.0 * share,
                &m.digest[..16]
            );
        }
        out
    }
}
