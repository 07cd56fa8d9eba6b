//! aarch64 from end to end: artifacts compiled here run under QEMU's user emulator by the program that was built for aarch64
//! without LLVM, and give the bits that this machine gives. Needs what `make aarch64` builds; without it it fails, it does
//! not skip.

mod common;

use codegen::HostIsa;
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::{Elem, Kernel};
use ir::math::Arith;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const TARGETS: [&str; 3] = ["aarch64", "aarch64+dotprod", "aarch64+i8mm"];

/// 40 tokens: more than a chunk of 17, more than a key block.
const IDS: &str = "2,105,911,17,4000,23,7,1024,333,2048,77,3071,19,512,640,1,4095,88,3,1500,250,2999,61,12,3500,700,8,1999,42,5,\
                   2222,1111,3333,64,999,21,180,3600,451,10";

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aarch64").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn here(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_isobit")).args(args).current_dir(dir).output().unwrap()
}

/// Runs the program built for aarch64, on a processor of this name.
fn there(cpu: &str, dir: &Path, args: &[&str]) -> Output {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("aarch64-unknown-linux-gnu/release/isobit");
    assert!(program.exists(), "{} is missing: run `make aarch64`", program.display());
    let mut c = Command::new("qemu-aarch64");
    c.args(["-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]).arg(program).args(args).current_dir(dir);
    c.output().unwrap_or_else(|e| panic!("qemu-aarch64: {e}: run `make aarch64`"))
}

fn text(b: &[u8]) -> String {
    String::from_utf8_lossy(b).into_owned()
}

fn ok(o: Output) -> Output {
    assert!(o.status.success(), "{}: {}", o.status, text(&o.stderr));
    o
}

/// The targets that run the model unfused: the others run it fused, and targets differ in the byte dot products alone.
const UNFUSED: &[&str] = if cfg!(feature = "full-tests") { &TARGETS } else { &[TARGETS[1]] };

/// The demo model for this machine and for the targets here, compiled once.
fn artifact(fusion: &'static str) -> PathBuf {
    static DONE: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
    let make = || {
        let dir = scratch(&format!("fusion-{fusion}"));
        let targets = if fusion == "on" { &TARGETS } else { UNFUSED };
        let targets = format!("host,{}", targets.join(","));
        ok(here(&dir, &["compile", "demo", "-o", "all.isobit", "--fusion", fusion, "--target", &targets]));
        dir.join("all.isobit")
    };
    DONE[usize::from(fusion == "on")].get_or_init(make).clone()
}

/// The logits of a run over all positions of the prompt and of 7 more tokens.
fn logits(run: impl Fn(&[&str]) -> Output, file: &Path, artifact: &Path, more: &[&str]) -> Vec<u8> {
    let (file, artifact) = (file.display().to_string(), artifact.display().to_string());
    let all = ["run", &artifact, "--ids", IDS, "-n", "8", "--ignore-eos", "--json", "--logits", &file];
    ok(run(&[&all[..], more].concat()));
    let bits = std::fs::read(&file).unwrap();
    assert!(bits.len() > 47 * 4096 * 4, "40 positions and 7 more");
    bits
}

fn same_bits(fusion: &'static str, runs: &[(&str, &str, &str)]) {
    let (artifact, dir) = (artifact(fusion), scratch(&format!("bits-{fusion}")));
    let want = logits(|a| here(&dir, a), &dir.join("want"), &artifact, &[]);
    for (t, chunk, threads) in runs {
        let more = ["--target", t, "--prefill-chunk", chunk, "--threads", threads];
        let got = logits(|a| there("max", &dir, a), &dir.join("got"), &artifact, &more);
        assert!(got == want, "{more:?}: other logits than here");
    }
}

#[test]
fn logits_are_the_same_bits_fused() {
    let [plain, dotprod, i8mm] = TARGETS;
    let mut runs = vec![(plain, "17", "1"), (i8mm, "1", "1")];
    if cfg!(feature = "full-tests") {
        runs.push((dotprod, "128", "2"));
    }
    same_bits("on", &runs);
}

#[test]
fn logits_are_the_same_bits_unfused() {
    let runs: Vec<_> = UNFUSED.iter().map(|t| (*t, "7", "2")).collect();
    same_bits("off", &runs);
}

#[test]
fn the_best_program_that_runs_is_taken_and_others_are_refused() {
    let (path, dir) = (artifact("on").display().to_string(), scratch("choice"));
    let run = |more: &[&'static str]| [&["run", path.as_str(), "--ids", "2,3", "-n", "1"][..], more].concat();
    for (cpu, best) in [("cortex-a57", "aarch64"), ("cortex-a76", "aarch64+dotprod"), ("max", "aarch64+i8mm")] {
        let o = ok(there(cpu, &dir, &run(&[])));
        assert!(text(&o.stderr).contains(&format!("{best} on cpu")), "{cpu}: {}", text(&o.stderr));
    }
    let refused = |o: Output, why: &str| {
        assert_ne!(o.status.code(), Some(0));
        assert!(text(&o.stderr).contains(why), "{}", text(&o.stderr));
    };
    let i8mm = run(&["--target", "aarch64+i8mm"]);
    refused(there("cortex-a76", &dir, &i8mm), "cannot run `aarch64+i8mm`: it lacks some of the instructions");
    let v3 = run(&["--target", "x86-64-v3"]);
    refused(there("max", &dir, &v3), "cannot run `x86-64-v3`: it is code for x86_64, this machine is aarch64");
    if cfg!(target_arch = "x86_64") {
        refused(here(&dir, &i8mm), "cannot run `aarch64+i8mm`: it is code for aarch64, this machine is x86_64");
    }
}

/// The interpreter of kernels needs no code for the machine: the program for aarch64 runs a model as it is.
#[test]
fn the_interpreter_gives_the_same_bits_there() {
    let dir = scratch("interp");
    ok(here(&dir, &["run", "demo", "--no-cache", "--ids", "2,105", "-n", "2", "--logits", "want"]));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit").display().to_string();
    let args = ["run", &model, "--target", "interp", "--ids", "2,105", "-n", "2", "--logits", "got"];
    ok(there("max", &dir, &args));
    assert!(std::fs::read(dir.join("want")).unwrap() == std::fs::read(dir.join("got")).unwrap());
}

/// Float operations, each lane counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lanes {
    fma: u32,
    mul: u32,
    add: u32,
}

/// Of LLVM IR, before instructions are chosen.
fn ir_lanes(ir: &str) -> Lanes {
    let mut n = Lanes::default();
    for line in ir.lines().filter(|l| l.starts_with(' ')) {
        let Some((_, op)) = line.split_once(" = ") else { continue };
        let op = op.trim_start_matches("tail ");
        let (to, rest) = match op.split_once(' ') {
            Some(("fmul", rest)) => (&mut n.mul, rest),
            Some(("fadd" | "fsub", rest)) => (&mut n.add, rest),
            Some(("call", rest)) if rest.contains("@llvm.fma.") => (&mut n.fma, rest),
            _ => continue,
        };
        *to += match rest.strip_prefix('<') {
            Some(v) => v.split(' ').next().unwrap().parse::<u32>().unwrap(),
            None => 1,
        };
    }
    n
}

/// Of aarch64 assembly; an instruction that no list has fails.
fn asm_lanes(asm: &str) -> Lanes {
    let mut n = Lanes::default();
    for line in asm.lines() {
        let mut words = line.split_whitespace();
        let (op, first) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let lanes = match first.split_once('.').map(|x| x.1.trim_end_matches(',')) {
            Some("4s") => 4,
            Some("2s") => 2,
            _ => 1,
        };
        match op {
            "fmla" | "fmls" | "fmadd" | "fmsub" | "fnmadd" | "fnmsub" => n.fma += lanes,
            "fmul" | "fnmul" => n.mul += lanes,
            "fadd" | "fsub" => n.add += lanes,
            "fabs" | "fneg" | "fmov" | "fcsel" | "frintn" | "scvtf" | "fcvtzs" => {}
            _ if op.starts_with("fcm") => {}
            _ => assert!(!op.starts_with('f') || op.contains(':'), "unknown: {line}"),
        }
    }
    n
}

/// No operation is made: code has at most the lanes that LLVM IR has (fewer where a lane's value is not used). None may be
/// merged: nothing in the IR allows it.
fn sound(ir: &str, asm: &str) -> Result<(), String> {
    let (n, got) = (ir_lanes(ir), asm_lanes(asm));
    if got.fma > n.fma || got.mul > n.mul || got.add > n.add {
        return Err(format!("{n:?} became {got:?}"));
    }
    for word in [" fast ", " contract ", " reassoc ", " afn ", " nnan ", " ninf ", " nsz ", "fmuladd", "\"unsafe-fp-math\""] {
        if ir.contains(word) {
            return Err(format!("{word} in the IR"));
        }
    }
    match ["\tbl\t", "\tblr\t", ":got"].into_iter().find(|bad| asm.contains(bad)) {
        Some(bad) => Err(format!("{} in the code", bad.trim())),
        None => Ok(()),
    }
}

#[test]
fn no_float_operation_is_made_or_merged() {
    for (options, isa) in [(without(&[]), HostIsa::Aarch64I8mm), (without(&["fuse", "merge-launches"]), HostIsa::Aarch64)] {
        for k in &program(&options).kernels {
            let ir = codegen::llvm_ir(k, codegen::Target::Host(isa)).unwrap();
            let asm = codegen::host_assembly(&[k], isa).unwrap();
            sound(&ir, &asm).unwrap_or_else(|e| panic!("{} on {}: {e}", k.name, isa.name()));
        }
    }
}

/// `x·y + z` in two roundings, and `fma(x, y, z)`.
fn two_and_one(name: &str) -> Kernel {
    let mut b = Builder::new(name, 1);
    let (x, out) = (b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let [x, y, z] = [0, 32, 64].map(|o| {
        let at = b.add_c(lane, o);
        b.load(x, Elem::F32, at, None)
    });
    let p = b.mul(x, y);
    let (two, one) = (b.add(p, z), b.fma(x, y, z));
    for (o, v) in [(0, two), (32, one)] {
        let at = b.add_c(lane, o);
        b.store(out, Elem::F32, at, v, None);
    }
    b.finish()
}

#[test]
fn a_contraction_would_be_seen() {
    let k = two_and_one("both");
    for isa in [HostIsa::Aarch64, HostIsa::Aarch64DotProd, HostIsa::Aarch64I8mm] {
        let ir = codegen::llvm_ir(&k, codegen::Target::Host(isa)).unwrap();
        let asm = codegen::host_assembly(&[&k], isa).unwrap();
        let all = Lanes { fma: 32, mul: 32, add: 32 };
        assert_eq!((ir_lanes(&ir), asm_lanes(&asm)), (all, all));
        sound(&ir, &asm).unwrap();
        // Planted: a sum that became an fma; a flag that allows it; a call.
        let planted = asm.replacen("\tfadd\t", "\tfmla\t", 1);
        assert!(sound(&ir, &planted).is_err());
        assert!(sound(&ir.replacen("fadd <", "fadd contract <", 1), &asm).is_err());
        assert!(sound(&ir, &(asm.clone() + "\tbl\tfmaf\n")).is_err());
        assert!(sound(&ir.replacen("fmul <32", "fmul <16", 1), &asm).is_err());
    }
}
