//! `isobit doctor`: what this machine can compile and run, part by part, with a hint where something is missing.

use super::Stop;
use crate::args::DoctorArgs;
use crate::cache::Cache;
use crate::files;
use crate::gpu;
use crate::printer::Printer;
use crate::target::{Class, Target};
use ir::diag::Diagnostic;
use runtime::assembler::Assembler;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is found of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    Missing,
    TooOld,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Missing => "missing",
            State::TooOld => "too old",
        }
    }
}

struct Check {
    part: &'static str,
    state: State,
    found: String,
    hint: String,
    /// isobit does not work without it.
    needed: bool,
}

impl Check {
    fn new(part: &'static str, state: State, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { part, state, found: found.into(), hint: hint.into(), needed: false }
    }

    fn needed(self) -> Check {
        Check { needed: true, ..self }
    }
}

/// Runs it.
pub fn run(args: &DoctorArgs, p: &mut Printer) -> Result<(), Stop> {
    let checks = [processor(), target(), memory(), compiler(), gpu(), assembler(), linker(), cache()];
    if args.json {
        let all: Vec<Value> = checks
            .iter()
            .map(|c| json!({"part": c.part, "state": c.state.name(), "needed": c.needed, "found": c.found, "hint": c.hint}))
            .collect();
        let fit = checks.iter().all(works);
        p.line(&json!({"works": fit, "checks": all}).to_string())?;
    } else {
        for c in &checks {
            p.line(&format!("{:<8} {:<10} {}", c.state.name(), c.part, c.found))?;
            if !c.hint.is_empty() {
                p.line(&format!("{:<19} hint: {}", "", c.hint))?;
            }
        }
    }
    match checks.iter().find(|c| !works(c)) {
        None => Ok(()),
        Some(bad) => {
            let message = format!("isobit cannot compile and run here: {} is {}", bad.part, bad.state.name());
            Err(Diagnostic::new("E0772", message).at(&bad.found).into())
        }
    }
}

/// Nothing here keeps isobit from compiling and running.
fn works(c: &Check) -> bool {
    c.state == State::Ok || !c.needed
}

/// The value of the first line `key : value` of a file of the system.
fn fact(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Features of the processor that targets ask for, with whether they are here.
fn features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        vec![
            ("avx2", has!("avx2")),
            ("fma", has!("fma")),
            ("bmi1", has!("bmi1")),
            ("bmi2", has!("bmi2")),
            ("f16c", has!("f16c")),
            ("lzcnt", has!("lzcnt")),
            ("movbe", has!("movbe")),
            ("avx512f", has!("avx512f")),
            ("avx512bw", has!("avx512bw")),
            ("avx512cd", has!("avx512cd")),
            ("avx512dq", has!("avx512dq")),
            ("avx512vl", has!("avx512vl")),
            ("avx512vnni", has!("avx512vnni")),
        ]
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        vec![("neon", has!("neon")), ("dotprod", has!("dotprod")), ("i8mm", has!("i8mm")), ("fp16", has!("fp16"))]
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    vec![]
}

fn names(has: bool) -> String {
    features().into_iter().filter(|f| f.1 == has).map(|f| f.0).collect::<Vec<_>>().join(" ")
}

fn processor() -> Check {
    let model = fact("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    Check::new("processor", State::Ok, format!("{model}, {cores} processors to use; {}", names(true)), "")
}

fn target() -> Check {
    match Target::host() {
        Err(d) => Check::new("target", State::TooOld, d.message, d.hint).needed(),
        Ok(best) => {
            let here = |t: &Target| t.class() == Class::Host && t.architecture() == best.architecture();
            let hosts: Vec<Target> = Target::ALL.into_iter().filter(here).collect();
            let beyond: Vec<&str> = hosts.iter().skip_while(|t| **t != best).skip(1).map(|t| t.name()).collect();
            let hint = match (beyond.is_empty(), names(false)) {
                (true, _) => String::new(),
                (false, lacks) => format!("for {} the processor lacks {lacks}", beyond.join(", ")),
            };
            Check::new("target", State::Ok, format!("{}, the best that runs here", best.name()), hint)
        }
    }
}

fn memory() -> Check {
    let kib = |key| fact("/proc/meminfo", key).and_then(|v| v.split(' ').next()?.parse::<f64>().ok());
    let gib = |kib: f64| format!("{:.1} GiB", kib / f64::from(1 << 20));
    match (kib("MemTotal"), kib("MemAvailable")) {
        (Some(total), Some(free)) => Check::new("memory", State::Ok, format!("{} of {} available", gib(free), gib(total)), ""),
        _ => Check::new("memory", State::Missing, "unknown", ""),
    }
}

#[cfg(feature = "llvm")]
fn compiler() -> Check {
    let (major, minor, patch) = codegen::llvm_version();
    let names: Vec<&str> = Target::ALL.into_iter().map(Target::name).collect();
    Check::new("compiler", State::Ok, format!("LLVM {major}.{minor}.{patch}; targets {}", names.join(", ")), "")
}

#[cfg(not(feature = "llvm"))]
fn compiler() -> Check {
    let hint = "artifacts that were compiled elsewhere run; build with the feature `llvm` to compile";
    Check::new("compiler", State::Missing, "this build has no LLVM", hint).needed()
}

fn gpu() -> Check {
    let about = match gpu::look(0) {
        Ok(about) => about,
        Err(d) => return Check::new("GPU", State::Missing, d.message, "code for GPUs can be compiled all the same"),
    };
    let found = format!("{}, driver of CUDA {}", about.name, about.driver);
    match about.best(&Target::ALL) {
        Ok(best) => Check::new("GPU", State::Ok, format!("{found}; runs {}", best.name()), ""),
        Err(d) => Check::new("GPU", State::TooOld, found, d.hint),
    }
}

/// A program of this name in a folder of PATH, or in `.tools/bin`, where `make assembler` puts it.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain([PathBuf::from(".tools/bin")]);
    dirs.map(|d| d.join(name)).find(|p| p.is_file())
}

fn assembler() -> Check {
    let hint = "`make assembler` fetches it; machine code for GPUs and checks of PTX need it";
    let Some(path) = program("ptxas") else { return Check::new("assembler", State::Missing, "no ptxas", hint) };
    let out = Command::new(&path).arg("--version").output().ok();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let version = text.split("release ").nth(1).and_then(|t| t.split(',').next()).unwrap_or("?").to_string();
    let number = |part: usize| version.split('.').nth(part).and_then(|n| n.parse::<u32>().ok());
    // sm_121 is known from 12.9 on.
    let old = (number(0), number(1)) < (Some(12), Some(9));
    let found = format!("ptxas {version} at {}", path.display());
    if old { Check::new("assembler", State::TooOld, found, hint) } else { Check::new("assembler", State::Ok, found, "") }
}

/// NVIDIA's linker of compiled PTX, which assembles too.
fn linker() -> Check {
    match Assembler::all().into_iter().find(|a| a.name.starts_with("nvJitLink")) {
        Some(a) => Check::new("nvJitLink", State::Ok, a.name, ""),
        None => Check::new(
            "nvJitLink",
            State::Missing,
            "not found",
            "nothing needs it: a driver compiles PTX by itself, and ptxas does as well",
        ),
    }
}

fn cache() -> Check {
    let hint = "`--cache-dir` names another folder, `--no-cache` none";
    let Some(cache) = Cache::locate(None) else {
        return Check::new("cache", State::Missing, "no home folder, so nothing is kept", hint);
    };
    let dir = cache.dir();
    let above = dir.ancestors().find(|d| files::is_there(d)).unwrap_or(Path::new("/"));
    // Asked by doing it: rights alone do not tell.
    let writable = files::Pending::file(&above.join("isobit-doctor")).is_ok();
    if !writable {
        return Check::new("cache", State::Missing, format!("{} cannot be written", dir.display()), hint);
    }
    let entries = std::fs::read_dir(dir).map_or(0, |d| d.flatten().filter(|e| e.path().is_dir()).count());
    let bytes: u64 = files::list(dir)
        .unwrap_or_default()
        .iter()
        .filter_map(|(path, _)| std::fs::symlink_metadata(dir.join(path)).ok())
        .filter(|m| m.is_file())
        .map(|m| m.len())
        .sum();
    let found = format!("{}: {entries} compiled models, {:.1} MiB", dir.display(), bytes as f64 / f64::from(1 << 20));
    Check::new("cache", State::Ok, found, "")
}
