//! Runs a bundle: host objects on the CPU, PTX on the GPU (or the kernels in the interpreter), and compares every output
//! buffer as bits, often. Exit code 0 only if everything that was asked for ran and agreed.

#[cfg(feature = "cuda")]
mod device;
mod program;
mod report;
mod run;
mod session;

use ir::diag::{Diagnostic, Result};
use runtime::device::LaunchMode;

/// What is asked for.
pub struct Options {
    /// Folder of the bundle.
    pub bundle: String,
    /// `cuda`, `cpu` (the host objects among themselves) or `interp`.
    pub device: String,
    /// Repeats of every program.
    pub repeat: u32,
    /// Only cases whose name contains one of these.
    pub only: Vec<String>,
    /// Leave out cases that have one of these flags, or whose name contains one of them.
    pub skip: Vec<String>,
    /// Only schedules whose name contains this.
    pub schedule: String,
    /// Buffers hold what was there, and nothing is read back: for a checker of uninitialised reads.
    pub no_fill: bool,
    /// Time launches.
    pub time: bool,
    /// How the GPU is given launches.
    pub launch: LaunchMode,
    /// Kernels that wait by themselves start early.
    pub dependent: bool,
}

const USAGE: &str = "usage: check BUNDLE [--device cuda|cpu|interp] [--repeat N] [--only NAME] [--skip NAME-OR-FLAG]
             [--schedule TEXT] [--no-fill] [--time] [--launch stream|graph] [--dependent]
       check device
  --only and --skip may be given several times";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.as_slice() {
        [one] if one == "device" => device(),
        _ => parse(&args).and_then(|o| run::all(&o)),
    };
    match result {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(d) => {
            eprintln!("error[{}]: {d}", d.code);
            std::process::exit(if d.code == "E0750" { 2 } else { 1 });
        }
    }
}

#[cfg(feature = "cuda")]
fn device() -> Result<bool> {
    device::all()
}

#[cfg(not(feature = "cuda"))]
fn device() -> Result<bool> {
    Err(Diagnostic::new("E0440", "this `check` was built without the feature `cuda`"))
}

fn parse(args: &[String]) -> Result<Options> {
    let mut o = Options {
        bundle: String::new(),
        device: "cuda".into(),
        repeat: 100,
        only: vec![],
        skip: vec![],
        schedule: String::new(),
        no_fill: false,
        time: false,
        launch: LaunchMode::default(),
        dependent: false,
    };
    let wrong = |what: String| Diagnostic::new("E0750", what).hint(USAGE);
    let mut it = args.iter();
    while let Some(a) = it.next() {
        let mut value = || it.next().cloned().ok_or_else(|| wrong(format!("{a} needs a value")));
        match a.as_str() {
            "--device" => o.device = value()?,
            "--repeat" => {
                let v = value()?;
                o.repeat = v
                    .parse()
                    .ok()
                    .filter(|n| *n > 0)
                    .ok_or_else(|| wrong(format!("--repeat takes a number above 0, not `{v}`")))?;
            }
            "--only" => o.only.push(value()?),
            "--skip" => o.skip.push(value()?),
            "--schedule" => o.schedule = value()?,
            "--no-fill" => o.no_fill = true,
            "--time" => o.time = true,
            "--dependent" => o.dependent = true,
            "--launch" => {
                let v = value()?;
                o.launch = LaunchMode::parse(&v).ok_or_else(|| wrong(format!("--launch takes stream or graph, not `{v}`")))?;
            }
            _ if a.starts_with('-') => return Err(wrong(format!("unknown option `{a}`"))),
            _ if o.bundle.is_empty() => o.bundle = a.clone(),
            _ => return Err(wrong(format!("what is `{a}`?"))),
        }
    }
    if o.bundle.is_empty() {
        return Err(wrong("no bundle is named".into()));
    }
    if !["cuda", "cpu", "interp"].contains(&o.device.as_str()) {
        return Err(wrong(format!("there is no device `{}`", o.device)));
    }
    Ok(o)
}
