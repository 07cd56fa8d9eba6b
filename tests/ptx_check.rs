//! Every kernel of the demo model, of a small model in each weight format, fused and unfused, and of the released sizes (two of
//! them, all with `--features full-tests`), through NVIDIA's assembler for sm_121 and sm_90: it assembles, it spills nothing, and
//! the float operations of the kernel are those of the PTX and of the machine code, one for one.
//! Needs the public wheels that `make assembler` puts under `.tools`; without them it fails, it does not skip.

mod common;

use codegen::Target;
use codegen::audit::{Counts, float_counts, ptx_audit, ptx_counts};
use common::formats::{FORMATS, Format, small_model};
use common::prefill;
use ir::graph::Graph;
use ir::graph::op::EmbedMode;
use ir::kernel::build::Builder;
use ir::kernel::{Elem, Kernel};
use ir::math::Arith;
use passes::lower::schedule::Schedule;
use passes::{Manager, Module, Options, Pipeline};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn tool(name: &str) -> PathBuf {
    let p = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin").join(name);
    assert!(p.exists(), "{name} is missing: run `make assembler`");
    p
}

fn kernels(ck: &models::Checkpoint, fuse: bool, schedule: Schedule) -> Vec<Kernel> {
    kernels_of(models::gemma4::layers::graph(ck, EmbedMode::Factor).unwrap(), fuse, schedule)
}

fn kernels_of(graph: Graph, fuse: bool, schedule: Schedule) -> Vec<Kernel> {
    let mut m = Module::new(graph);
    let mut o = Options { schedule, ..Options::default() };
    for pass in ["fuse", "merge-launches"] {
        o.switches.insert(pass.into(), fuse);
    }
    let manager = Manager::default();
    let run = |m: &mut Module, p: Pipeline, o: &Options| {
        manager.run(m, &p, o, &mut []).unwrap_or_else(|f| panic!("{}", f.diagnostic));
    };
    run(&mut m, Pipeline::graph(), &o);
    if schedule.tokens == 1 {
        // Fused as programs for GPUs are.
        o.rules_off.extend(isobit::target::Class::Gpu.rules_off().iter().map(|r| r.to_string()));
        (m.graph.stages, m.graph.launches) = (vec![], vec![]);
        run(&mut m, Pipeline::fusing_anew(), &o);
        return m.plan.unwrap().kernels;
    }
    // Of a plan for chunks what has tiles; fused as for the host, where most matmuls of small models have them.
    let plan = prefill(&m.graph, &o);
    let tiled = |i: &usize| plan.launches.iter().any(|l| l.tokens > 1 && l.kernel as usize == *i);
    (0..plan.kernels.len()).filter(tiled).map(|i| plan.kernels[i].clone()).collect()
}

/// Float operations in lines of a disassembly, by the first word of each instruction (uniform and packed forms too).
fn sass_counts<'a>(lines: impl IntoIterator<Item = &'a str>) -> Counts {
    let mut n = Counts::default();
    for line in lines {
        // `        /*0a30*/                   @P0 FFMA R7, R8, R9, R7 ;`
        let Some((_, rest)) = line.split_once("*/") else { continue };
        let mut words = rest.split_whitespace().skip_while(|w| w.starts_with('@'));
        let op = words.next().unwrap_or("").trim_end_matches(';').split('.').next().unwrap_or("");
        match op {
            "FFMA" | "UFFMA" | "FFMA32I" => n.fma += 1,
            "FMUL" | "UFMUL" | "FMUL32I" => n.mul += 1,
            "FADD" | "UFADD" | "FADD32I" => n.add += 1,
            "FFMA2" => n.fma += 2,
            "FMUL2" => n.mul += 2,
            "FADD2" => n.add += 2,
            _ => {}
        }
    }
    n
}

/// What the assembler makes of one kernel.
struct Assembled {
    /// Instructions.
    code: Vec<u8>,
    registers: u32,
    spilled: u32,
    shared: u32,
}

fn assemble(ptx: &str, target: Target, at: &Path) -> Result<Assembled, String> {
    let (src, bin) = (at.with_extension("ptx"), at.with_extension("cubin"));
    std::fs::write(&src, ptx).map_err(|e| e.to_string())?;
    let out = Command::new(tool("ptxas"))
        .args(["-arch", &target.name(), "-O3", "-v", "-o"])
        .args([&bin, &src])
        .output()
        .map_err(|e| e.to_string())?;
    let log = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(log);
    }
    let number = |before: &str| -> u32 {
        log.match_indices(before)
            .filter_map(|(i, _)| log[..i].trim_end().rsplit([' ', ',']).next().and_then(|w| w.parse::<u32>().ok()))
            .sum()
    };
    let code = instructions(&std::fs::read(&bin).map_err(|e| e.to_string())?);
    Ok(Assembled {
        code: code.ok_or("the assembler wrote no code that can be found")?,
        registers: number("registers"),
        spilled: number("bytes spill stores") + number("bytes spill loads") + number("bytes stack frame"),
        shared: number("bytes smem"),
    })
}

/// The sections `.text.*` of an ELF file, one after the other.
fn instructions(elf: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize, n: usize| {
        let bytes = elf.get(at..at.checked_add(n)?)?;
        Some(bytes.iter().rev().fold(0usize, |x, b| x << 8 | usize::from(*b)))
    };
    let (table, size, count, names) = (word(0x28, 8)?, word(0x3a, 2)?, word(0x3c, 2)?, word(0x3e, 2)?);
    let names = word(table + names * size + 24, 8)?;
    let mut code = vec![];
    for section in (0..count).map(|i| table + i * size) {
        if elf.get(names + word(section, 4)?..)?.starts_with(b".text.") {
            let from = word(section + 24, 8)?;
            code.extend_from_slice(elf.get(from..from.checked_add(word(section + 32, 8)?)?)?);
        }
    }
    (!code.is_empty()).then_some(code)
}

/// Float operations of each of some kernels. The disassembler takes half a second to start, so it gets them all at once.
fn disassemble(code: &[&[u8]], target: Target, at: &Path) -> Result<Vec<Counts>, String> {
    const BYTES: usize = 16; // of an instruction
    let raw = at.with_extension("raw");
    std::fs::write(&raw, code.concat()).map_err(|e| e.to_string())?;
    let machine = target.name().replace("sm_", "SM");
    let dis = Command::new(tool("nvdisasm")).args(["-b", &machine]).arg(&raw).output().map_err(|e| e.to_string())?;
    if !dis.status.success() {
        return Err(String::from_utf8_lossy(&dis.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&dis.stdout).into_owned();
    let mut lines = text.lines().filter_map(|l| Some((l.trim_start().strip_prefix("/*")?.split_once("*/")?.0, l))).peekable();
    let mut start = 0;
    let mut counts = vec![];
    for kernel in code {
        let (mut of_kernel, end) = (vec![], start + kernel.len());
        let mut next = start;
        while let Some((at, line)) = lines.next_if(|(at, _)| usize::from_str_radix(at, 16).is_ok_and(|at| at < end)) {
            if usize::from_str_radix(at, 16) != Ok(next) {
                return Err(format!("instruction {next:x} is not disassembled"));
            }
            next += BYTES;
            of_kernel.push(line);
        }
        if next != end {
            return Err(format!("the disassembly ends at {next:x}, the kernel at {end:x}"));
        }
        counts.push(sass_counts(of_kernel));
        start = end;
    }
    Ok(counts)
}

#[test]
fn every_kernel_assembles_without_spills_and_with_the_same_float_operations() {
    let mut all: BTreeMap<String, Kernel> = BTreeMap::new();
    // The same kernel in two programs is assembled once.
    let mut known = BTreeSet::new();
    let mut add = |name: String, mut k: Kernel| {
        k.name = "k".into();
        if known.insert(ir::kernel::text::print(&k)) {
            all.insert(name, k);
        }
    };
    let staged = Schedule { stages: 3, ..Schedule::GPU };
    let tiles = Schedule::GPU_PREFILL;
    let eight = Schedule { stages: 3, tokens: 8, ..tiles };
    for (tag, fuse, schedule) in [
        ("fused", true, Schedule::GPU),
        ("single", false, Schedule::GPU),
        ("staged", true, staged),
        ("tiles", true, tiles),
        ("single-tiles", false, tiles),
        ("staged-tiles", true, eight),
    ] {
        for k in kernels(common::checkpoint(), fuse, schedule) {
            add(format!("{tag}.{}", k.name), k);
        }
    }
    // Codes of 2 and 3 bits are read as those of 4, codes of 5 and 6 as those of 8, which the demo model has with bf16 scales.
    for f in [FORMATS[0], FORMATS[1], FORMATS[2], FORMATS[4], FORMATS[7]] {
        let plain = matches!(f, Format::Plain(_));
        for (fuse, schedule) in [(true, Schedule::GPU), (false, Schedule::GPU), (true, staged), (true, tiles)] {
            if !plain && !fuse || f != FORMATS[0] && schedule == staged {
                continue;
            }
            for k in kernels_of(small_model(f), fuse, schedule) {
                add(format!("{f:?}.{fuse}.{schedule}.{}", k.name), k);
            }
        }
    }
    assert!(check_all("demo", &all) >= 250, "too few kernels");
}

/// Kernels that sum up digests, of both plans for a GPU: nothing is spilled for it, and what is added are integers.
#[test]
fn kernels_that_sum_up_digests_assemble() {
    let mut all = BTreeMap::new();
    let of = |ck| {
        let graph = models::gemma4::layers::graph(ck, EmbedMode::Factor).unwrap();
        common::through_passes(graph, &Options::default())
    };
    let demo = of(common::checkpoint());
    let mut cases = vec![("decode", Schedule::GPU, demo.clone()), ("prefill", Schedule::GPU_PREFILL, demo)];
    if cfg!(feature = "full-tests") {
        // Decode only: attention of chunks has no registers left at these sizes, and spills seven to nine words for it.
        cases.push(("26b-decode", Schedule::GPU, of(&common::sizes::whole("26b-a4b-mlx-4bit"))));
    }
    for (tag, schedule, graph) in cases {
        let mut o = Options { schedule, ..Options::default() };
        o.switches.insert(passes::instrument_trace::NAME.into(), true);
        o.rules_off.extend(isobit::target::Class::Gpu.rules_off().iter().map(|r| r.to_string()));
        if schedule.tokens > 1 {
            (o.rows, o.launch_cost) = (128, 1 << 14);
        }
        let mut m = Module::new(graph.clone());
        (m.graph.stages, m.graph.launches) = (vec![], vec![]);
        let done = Manager::default().run(&mut m, &Pipeline::fusing_anew().traced(), &o, &mut []);
        done.unwrap_or_else(|f| panic!("{}", f.diagnostic));
        for k in m.plan.unwrap().kernels {
            let ptx = codegen::ptx(&[&k], Target::Sm90).unwrap().remove(0);
            let sums = ir::kernel::text::print(&k).contains("atomic.add");
            assert_eq!(ptx.contains("red.global.add.u32"), sums, "{}", k.name);
            assert!(sums || k.name.contains("lists") || k.name.contains("parts"), "{} sums up nothing", k.name);
            all.insert(format!("traced-{tag}.{}", k.name), k);
        }
    }
    assert!(check_all("traced", &all) >= 40, "too few kernels");
}

/// Kernels of the released sizes, each distinct one once; without `full-tests`, one of those that differ in numbers only.
#[test]
fn kernels_of_the_released_sizes_assemble() {
    let full = cfg!(feature = "full-tests");
    let some = if full { common::sizes::SIZES.len() } else { 2 };
    let (mut all, mut texts): (BTreeMap<String, Kernel>, Vec<String>) = (BTreeMap::new(), vec![]);
    for size in &common::sizes::SIZES[..some] {
        for k in kernels(&common::sizes::whole(size), true, Schedule::GPU) {
            let mut text = ir::kernel::text::print(&k).replace(&k.name, "kernel");
            text.retain(|c| full || !c.is_ascii_digit());
            if !texts.contains(&text) {
                texts.push(text);
                all.insert(format!("{size}.{}", k.name), k);
            }
        }
    }
    assert!(check_all("sizes", &all) >= 20 * some, "too few kernels: {}", all.len());
}

/// Checks kernels for both architectures; returns how many checks were made.
fn check_all(tag: &str, all: &BTreeMap<String, Kernel>) -> usize {
    let dir = std::env::temp_dir().join(format!("isobit-ptx-{tag}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let kernels: Vec<(&String, &Kernel)> = all.iter().collect();
    let batches: Vec<_> =
        [Target::Sm121, Target::Sm90].into_iter().flat_map(|t| kernels.chunks(16).map(move |c| (t, c))).collect();
    let numbered: Vec<_> = batches.iter().enumerate().collect();
    let rows =
        common::on_two_threads(&numbered, |(i, (target, batch))| check(batch, *target, &dir.join(format!("b{i}")))).concat();
    std::fs::remove_dir_all(&dir).unwrap();
    let mut bad = vec![];
    for row in &rows {
        match row {
            Ok(line) => println!("{line}"),
            Err(e) => bad.push(e.clone()),
        }
    }
    assert!(bad.is_empty(), "{} of {} kernels:\n{}", bad.len(), rows.len(), bad.join("\n"));
    rows.len()
}

/// Checks some kernels for one architecture.
fn check(kernels: &[(&String, &Kernel)], target: Target, at: &Path) -> Vec<Result<String, String>> {
    let place = |name: &str| format!("{name} on {}", target.name());
    let made: Vec<_> = kernels.iter().map(|(name, k)| made(k, target, at).map_err(|e| format!("{}: {e}", place(name)))).collect();
    let code: Vec<&[u8]> = made.iter().flatten().map(|(_, a)| &a.code[..]).collect();
    let mut counts = match disassemble(&code, target, at) {
        Ok(counts) => counts.into_iter(),
        Err(e) => return vec![Err(format!("{}: {e}", place(kernels[0].0)))],
    };
    let judge = |((name, k), made): (&(&String, &Kernel), Made)| {
        let (text, a) = made?;
        let sass = counts.next().ok_or_else(|| format!("{}: no disassembly", place(name)))?;
        verdict(k, text, &a, sass).map_err(|e| format!("{}: {e}", place(name))).map(|line| format!("{}: {line}", place(name)))
    };
    kernels.iter().zip(made).map(judge).collect()
}

/// A kernel's code with the float operations of its PTX.
type Made = Result<(Counts, Assembled), String>;

/// Compiles and assembles a kernel; the float operations of its PTX.
fn made(k: &Kernel, target: Target, at: &Path) -> Result<(Counts, Assembled), String> {
    let ptx = codegen::ptx(&[k], target).map_err(|e| e.to_string())?.remove(0);
    ptx_audit(&ptx).map_err(|e| e.to_string())?;
    Ok((ptx_counts(&ptx), assemble(&ptx, target, at)?))
}

fn verdict(k: &Kernel, text: Counts, a: &Assembled, sass: Counts) -> Result<String, String> {
    if a.spilled > 0 {
        return Err(format!("{} bytes spilled", a.spilled));
    }
    let ir = float_counts(k);
    // An expression that a kernel repeats LLVM may compute once: then there is less of everything. A contraction is one fma
    // more, and the assembler may change nothing at all.
    let once = text.fma <= ir.fma && text.mul <= ir.mul && text.add <= ir.add;
    if !once || text != sass {
        return Err(format!("float operations differ: kernel {ir:?}, PTX {text:?}, machine code {sass:?}"));
    }
    let repeated = if ir == text { "" } else { ", repeated expressions computed once" };
    let (registers, shared, Counts { fma, mul, add }) = (a.registers, a.shared, text);
    Ok(format!("{registers} registers, {shared} bytes shared, fma {fma} mul {mul} add {add}{repeated}"))
}

/// The plants: what the check is for must be seen.
#[test]
fn contraction_and_forbidden_forms_are_seen() {
    let mut b = Builder::new("plant", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let v = b.load(x, Elem::F32, lane, None);
    let square = b.mul(v, v);
    let sum = b.add(square, v);
    b.store(y, Elem::F32, lane, sum, None);
    let k = b.finish();
    let ptx = codegen::ptx(&[&k], Target::Sm121).unwrap().remove(0);
    let at = std::env::temp_dir().join(format!("isobit-plant-{}", std::process::id()));
    let code = |ptx: &str| assemble(ptx, Target::Sm121, &at).unwrap().code;
    let right = code(&ptx);
    // Without `.rn` the assembler fuses: the audit refuses the text, and the counts of the machine code give it away.
    let loose = ptx.replace("mul.rn.f32", "mul.f32").replace("add.rn.f32", "add.f32");
    assert!(ptx_audit(&loose).is_err());
    let fused = code(&loose);
    let want = float_counts(&k);
    // One after the other, each kernel has its own counts.
    let counts = disassemble(&[&right, &fused, &right], Target::Sm121, &at).unwrap();
    assert_eq!(counts, [want, Counts { fma: 1, mul: 0, add: 0 }, want]);
    // What is no code, or is cut inside an instruction, is not counted at all.
    assert!(disassemble(&[&right, &[0xff; 64]], Target::Sm121, &at).is_err());
    assert!(disassemble(&[&right, &right[..100]], Target::Sm121, &at).is_err());
    assert!(instructions(b"garbage").is_none());
    // An assembler's complaint is an error, too.
    assert!(assemble("garbage", Target::Sm121, &at).is_err());
    for ext in ["ptx", "cubin", "raw"] {
        let _ = std::fs::remove_file(at.with_extension(ext));
    }
}

/// The kernel that measures bandwidth does its reads, eight of 16 bytes a thread, and spills nothing.
#[test]
fn the_kernel_that_only_reads_assembles() {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("read");
    let ptx = isobit::bandwidth::ptx();
    assert_eq!(ptx.matches("ld.global.v4.u32").count(), 8);
    for target in [Target::Sm90, Target::Sm121] {
        let a = assemble(&ptx, target, &at).unwrap_or_else(|e| panic!("{}: {e}", target.name()));
        assert!(a.spilled == 0 && a.registers <= 64, "{}: {} registers", target.name(), a.registers);
        let raw = at.with_extension("bin");
        std::fs::write(&raw, &a.code).unwrap();
        let machine = target.name().replace("sm_", "SM");
        let out = Command::new(tool("nvdisasm")).args(["-b", &machine]).arg(&raw).output().unwrap();
        let reads = String::from_utf8_lossy(&out.stdout).matches("LDG.E.128").count();
        assert_eq!(reads, 8, "{}", target.name());
    }
}
