//! All cases of a bundle: the reference on the CPU, then every other program against it.

use crate::Options;
use crate::program::Program;
use crate::report::{Digest, Line, forms};
use crate::session;
use gpu_check::case::Case;
use gpu_check::random::RandomWeights;
use ir::diag::{Diagnostic, Result};
use ir::kernel::interp::RunOptions;
use ir::plan::Plan;
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names of host objects and whether this processor runs them; the first is the reference.
pub fn host_objects() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let v3 = has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("lzcnt") && has!("movbe");
        let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        vec![("x86-64-v3", v3), ("x86-64-v4", v4)]
    }
    #[cfg(not(target_arch = "x86_64"))]
    vec![("x86-64-v3", false), ("x86-64-v4", false)]
}

/// A file as bytes.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Diagnostic::new("E0760", e.to_string()).at(path.display()))
}

/// A file as text.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|_| Diagnostic::new("E0760", "not text").at(path.display()))
}

/// A plan with its kernels.
pub fn plan(path: &Path) -> Result<Plan> {
    ir::plan::text::parse_whole(&text(path)?).map_err(|mut all| all.swap_remove(0))
}

/// The CPU, poisoned.
pub fn cpu() -> Result<Box<dyn Device>> {
    Ok(Box::new(CpuDevice::new(CpuOptions { poison: true, ..CpuOptions::default() })?))
}

/// The GPU; an error says why there is none.
pub fn gpu(o: &Options) -> Result<Box<dyn Device>> {
    #[cfg(feature = "cuda")]
    {
        use runtime::cuda::{CudaDevice, CudaOptions, Fill};
        let fill = if o.no_fill { Fill::Nothing } else { Fill::Poison };
        Ok(Box::new(CudaDevice::new(CudaOptions { fill, launch: o.launch, dependent: o.dependent, ..CudaOptions::default() })?))
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = o;
        Err(Diagnostic::new("E0440", "this `check` was built without the feature `cuda`"))
    }
}

/// Step, buffer and bytes of every output, in order.
pub type Outputs = Vec<(usize, String, Vec<u8>)>;

/// A program to compare: its name, plan and code, and the device it runs on.
pub struct Other {
    /// Name in the table.
    pub name: String,
    /// File of the plan.
    pub plan: PathBuf,
    /// File of the code.
    pub code: PathBuf,
    /// Kind of its device.
    pub kind: Kind,
}

/// Kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CPU.
    Cpu,
    /// GPU.
    Cuda,
    /// Interpreter.
    Interp,
}

impl Other {
    /// Its plan, code and device.
    pub fn open(&self, o: &Options) -> Result<(Box<dyn Device>, Plan, Vec<u8>)> {
        let p = plan(&self.plan)?;
        let code = match self.kind {
            Kind::Interp => p.kernels.iter().map(ir::kernel::text::print).collect::<String>().into_bytes(),
            _ => bytes(&self.code)?,
        };
        let device: Box<dyn Device> = match self.kind {
            Kind::Cpu => cpu()?,
            Kind::Cuda => gpu(o)?,
            Kind::Interp => Box::new(InterpDevice::new(RunOptions::checked(7))),
        };
        Ok((device, p, code))
    }
}

/// The programs of a case that are compared with the reference.
pub fn others(o: &Options, folder: &Path, reference: &str) -> Result<Vec<Other>> {
    let mut out = vec![];
    for (isa, here) in host_objects().into_iter().filter(|(isa, _)| *isa != reference) {
        if here {
            let name = format!("cpu {isa}");
            out.push(Other { name, plan: folder.join("host.plan"), code: folder.join(format!("{isa}.o")), kind: Kind::Cpu });
        }
    }
    let kind = match o.device.as_str() {
        "cuda" => Kind::Cuda,
        "interp" => Kind::Interp,
        _ => return Ok(out),
    };
    if kind == Kind::Interp {
        out.push(Other { name: "interp host".into(), plan: folder.join("host.plan"), code: PathBuf::new(), kind });
    }
    let failed = |e: std::io::Error| Diagnostic::new("E0760", e.to_string()).at(folder.display());
    let mut names = vec![];
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".plan").filter(|n| n.starts_with("gpu-") && n.contains(&o.schedule)).map(String::from));
    }
    names.sort();
    for n in names {
        let (plan, code) = (folder.join(format!("{n}.plan")), folder.join(format!("{n}.ptx")));
        out.push(Other { name: n.replace("gpu-", if kind == Kind::Cuda { "cuda " } else { "interp " }), plan, code, kind });
    }
    Ok(out)
}

/// Runs everything; true if all agreed.
pub fn all(o: &Options) -> Result<bool> {
    let bundle = Path::new(&o.bundle);
    let index = text(&bundle.join("index.txt"))?;
    let Some((reference, _)) = host_objects().into_iter().find(|(_, here)| *here) else {
        return Err(Diagnostic::new("E0754", "this processor runs none of the bundle's host objects"));
    };
    println!("reference: {}, host object {reference}", cpu()?.name());
    for (isa, here) in host_objects() {
        if !here {
            println!("NOT RUN: host object {isa}: this processor lacks it");
        }
    }
    // Held to the end, so that the GPU's context is made once.
    let held = if o.device == "cuda" { Some(gpu(o)?) } else { None };
    if let Some(device) = &held {
        println!("device: {}", device.name());
    }
    println!("repeats: {}{}\n{}", o.repeat, if o.no_fill { "; nothing filled, nothing compared" } else { "" }, Line::header());
    let (mut cases, mut lines, mut bad, mut gpu_lines) = (0, 0, 0, 0);
    for name in index.lines() {
        let folder = bundle.join(name);
        let case = Case::parse(&text(&folder.join("case.txt"))?).map_err(|m| Diagnostic::new("E0760", m).at(name))?;
        let wanted = o.only.is_empty() || o.only.iter().any(|n| name.contains(n.as_str()));
        if !wanted || o.skip.iter().any(|s| name.contains(s.as_str()) || case.is(s)) {
            continue;
        }
        if o.device == "interp" && !case.is("small") {
            println!("NOT RUN: {name}: too large for the interpreter");
            continue;
        }
        cases += 1;
        println!("# {name}: {}", case.about);
        let source = RandomWeights::new(case.seed, &case.tensors);
        let found = if case.is("session") {
            session::case(o, name, &folder, &case, reference, &source)?
        } else {
            one(o, name, &folder, &case, reference, &source)?
        };
        lines += found.len();
        bad += found.iter().filter(|l| l.mismatches > 0).count();
        gpu_lines += found.iter().filter(|l| l.program.starts_with(&o.device)).count();
    }
    println!("{cases} cases, {lines} programs compared, {bad} with mismatches");
    if gpu_lines == 0 {
        println!("FAILED: no program of device `{}` was compared", o.device);
    }
    Ok(bad == 0 && gpu_lines > 0)
}

/// One case: the reference's outputs, then every program against them.
fn one(o: &Options, name: &str, folder: &Path, case: &Case, reference: &str, source: &RandomWeights) -> Result<Vec<Line>> {
    let expected = {
        let p = plan(&folder.join("host.plan"))?;
        let code = bytes(&folder.join(format!("{reference}.o")))?;
        let mut program = Program::new(cpu()?, p, &code, reference, case, source)?;
        program.check()?;
        program.poison()?;
        let mut out: Outputs = vec![];
        program.steps(case, true, &mut |step, buffer, bytes| {
            out.push((step, buffer.into(), bytes.to_vec()));
            Ok(())
        })?;
        out
    };
    alive(&expected)?;
    let mut lines = vec![];
    for other in others(o, folder, reference)? {
        let mut line = Line::new(name, &other.name);
        let result = compare(o, &other, case, &expected, source, &mut line);
        line.close(result);
        lines.push(line);
    }
    Ok(lines)
}

/// One program against the reference's outputs.
fn compare(o: &Options, other: &Other, case: &Case, expected: &Outputs, source: &RandomWeights, line: &mut Line) -> Result<()> {
    let (device, p, code) = other.open(o)?;
    (line.kernels, line.launches, line.forms) = (p.kernels.len(), p.launches.len(), forms(&p));
    let mut program = Program::new(device, p, &code, &format!("{}, {}", line.case, line.program), case, source)?;
    let repeat = if other.kind == Kind::Cuda { o.repeat } else { 1 };
    let no_fill = o.no_fill && other.kind == Kind::Cuda;
    for r in 0..repeat {
        if !no_fill {
            program.poison()?;
        }
        let mut digest = Digest::new();
        let mut seen: BTreeSet<(usize, String)> = BTreeSet::new();
        let names = program.names();
        program.steps(case, !no_fill, &mut |step, buffer, got| {
            // Parts of an attention, and rows that one launch quantizes at once, are a GPU's alone.
            let Some((_, _, want)) = expected.iter().find(|(s, b, _)| *s == step && b == buffer) else { return Ok(()) };
            if want.len() != got.len() {
                return Err(Diagnostic::new(
                    "E0424",
                    format!("output `{buffer}` has {} bytes, the reference {}", got.len(), want.len()),
                ));
            }
            seen.insert((step, buffer.to_string()));
            line.buffers += 1;
            line.bytes += got.len() as u64;
            if r == 0 {
                digest.add(got);
            }
            if got != &want[..] {
                line.mismatches += 1;
                if line.mismatches <= 4 {
                    println!(
                        "MISMATCH {} {} repeat {r} step {step} `{buffer}`: {}",
                        line.case,
                        line.program,
                        difference(want, got)
                    );
                }
            }
            Ok(())
        })?;
        // What is quantized at once is not stored itself.
        let missing =
            |(s, b, _): &&(usize, String, Vec<u8>)| !seen.contains(&(*s, b.clone())) && !names.contains(&format!("{b}.q24"));
        if let Some((_, b, _)) = expected.iter().find(missing).filter(|_| !no_fill) {
            return Err(Diagnostic::new("E0424", format!("no output `{b}`")));
        }
        if r == 0 {
            line.digest = digest.0;
        }
    }
    if o.time && case.is("time") && other.kind == Kind::Cuda {
        for t in program.time(case, 100)? {
            let rate = t.bytes as f64 / t.us / 1e3;
            println!("    time {:>8.1} us {:>9.2} MB {:>7.0} GB/s  {}", t.us, t.bytes as f64 / 1e6, rate, t.name);
        }
    }
    Ok(())
}

/// Refuses a reference that proves nothing: a buffer that nothing wrote, or whose floats are all alike.
fn alive(expected: &Outputs) -> Result<()> {
    for (step, name, bytes) in expected {
        let first = &bytes[..4];
        let width = bytes.len() / 4;
        if width > 16 && bytes.chunks_exact(4).all(|w| w == first) {
            return Err(Diagnostic::new("E0424", format!("the reference left `{name}` constant in step {step}")));
        }
    }
    Ok(())
}

/// Where two buffers differ.
fn difference(want: &[u8], got: &[u8]) -> String {
    let words = |b: &[u8]| -> Vec<u32> { b.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect() };
    let (want, got) = (words(want), words(got));
    let wrong: Vec<usize> = (0..want.len()).filter(|&i| want[i] != got[i]).collect();
    let i = wrong.first().copied().unwrap_or(0);
    format!(
        "{} of {} words differ, first at {i}: expected {:08x} ({}), found {:08x} ({})",
        wrong.len(),
        want.len(),
        want[i],
        f32::from_bits(want[i]),
        got[i],
        f32::from_bits(got[i])
    )
}
