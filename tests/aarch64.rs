//! aarch64 from end to end: artifacts compiled here run under QEMU's user emulator by the program that was built for aarch64
//! without LLVM, and give the bits that this machine gives. Needs what `make aarch64` builds; without it it fails, it does
//! not skip.

mod common;

use codegen::HostIsa;
use common::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

/// The arguments of a run that writes its logits.
fn run<'a>(artifact: &'a str, logits: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["run", artifact, "--ids", IDS, "-n", "24", "--ignore-eos", "--json", "--logits", logits];
    [&all[..], more].concat()
}

fn same_bits(fusion: &str) {
    let dir = scratch(fusion);
    let targets = format!("host,{}", TARGETS.join(","));
    ok(here(&dir, &["compile", "demo", "-o", "all.isobit", "--fusion", fusion, "--target", &targets]));
    let want = ok(here(&dir, &run("all.isobit", "want", &[])));
    let bits = std::fs::read(dir.join("want")).unwrap();
    assert!(bits.len() > 60 * 4096 * 4, "40 positions and 23 more");
    for t in TARGETS {
        for more in [&["--threads", "2"][..], &["--threads", "1", "--prefill-chunk", "17"]] {
            let got = ok(there("max", &dir, &run("all.isobit", "got", &[&["--target", t], more].concat())));
            assert_eq!(text(&got.stdout), text(&want.stdout), "{t} {more:?}");
            assert!(std::fs::read(dir.join("got")).unwrap() == bits, "{t} {more:?}: other logits than here");
        }
    }
}

#[test]
fn logits_are_the_same_bits_fused() {
    same_bits("on");
}

#[test]
fn logits_are_the_same_bits_unfused() {
    same_bits("off");
}

#[test]
fn the_best_program_that_runs_is_taken_and_others_are_refused() {
    let dir = scratch("choice");
    ok(here(&dir, &["compile", "demo", "-o", "arm.isobit", "--target", &TARGETS.join(",")]));
    for (cpu, best) in [("cortex-a57", "aarch64"), ("cortex-a76", "aarch64+dotprod"), ("max", "aarch64+i8mm")] {
        let o = ok(there(cpu, &dir, &["run", "arm.isobit", "--ids", "2,3", "-n", "1"]));
        assert!(text(&o.stderr).contains(&format!("{best} on cpu")), "{cpu}: {}", text(&o.stderr));
    }
    let refused = |o: Output, why: &str| {
        assert_eq!(o.status.code(), Some(1));
        assert!(text(&o.stderr).contains(why), "{}", text(&o.stderr));
    };
    let args = ["run", "arm.isobit", "--ids", "2,3", "-n", "1", "--target", "aarch64+i8mm"];
    refused(there("cortex-a76", &dir, &args), "cannot run `aarch64+i8mm`: it lacks some of the instructions");
    let x86 = ["run", "arm.isobit", "--ids", "2,3", "-n", "1", "--target", "x86-64-v3"];
    refused(there("max", &dir, &x86), "cannot run `x86-64-v3`: it is code for x86_64, this machine is aarch64");
    if cfg!(target_arch = "x86_64") {
        refused(here(&dir, &args), "cannot run `aarch64+i8mm`: it is code for aarch64, this machine is x86_64");
        refused(here(&dir, &args[..6]), "no program in this artifact runs on this machine (x86_64)");
    }
}

/// The interpreter of kernels needs no code for the machine: the program for aarch64 runs a model as it is.
#[test]
fn the_interpreter_gives_the_same_bits_there() {
    let dir = scratch("interp");
    ok(here(&dir, &["run", "demo", "--ids", "2,105", "-n", "2", "--logits", "want"]));
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

#[test]
fn no_float_operation_is_made_or_merged() {
    let mut sums = vec![];
    for options in [without(&[]), without(&["fuse", "merge-launches"])] {
        let plan = program(&options);
        for isa in [HostIsa::Aarch64, HostIsa::Aarch64DotProd, HostIsa::Aarch64I8mm] {
            let mut sum = Lanes::default();
            for k in &plan.kernels {
                let ir = ir_lanes(&codegen::llvm_ir(k, codegen::Target::Host(isa)).unwrap());
                let asm = codegen::host_assembly(&[k], isa).unwrap();
                let got = asm_lanes(&asm);
                assert!(got == ir, "{} on {}: {ir:?} became {got:?}", k.name, isa.name());
                sum = Lanes { fma: sum.fma + got.fma, mul: sum.mul + got.mul, add: sum.add + got.add };
                // A contraction, planted.
                if let Some(at) = asm.find("\tfmul\t") {
                    let planted = format!("{}\tfmla\t{}", &asm[..at], &asm[at + 6..]);
                    assert_ne!(asm_lanes(&planted), ir);
                }
                for bad in ["\tbl\t", "\tblr\t", ":got", "mulx"] {
                    assert!(!asm.contains(bad), "{bad} in {}", k.name);
                }
            }
            sums.push(sum);
        }
    }
    assert!(sums.iter().all(|s| s.fma > 1000 && s.mul > 1000 && s.add > 1000), "{sums:?}");
}
