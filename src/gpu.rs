//! GPUs of this machine: what `--device` asks for, what is there and what it can run, and opening one. The only file that
//! names the GPU runtime; without the feature `cuda` it refuses.

use crate::engine::EngineOptions;
use crate::pipeline::Program;
use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use runtime::device::Device;

/// What `--device` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// A GPU if there is one that the program can run on, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
}

impl Choice {
    /// `cpu`, `cuda`, `cuda:N` or `auto`.
    pub fn parse(text: &str) -> Result<Choice, String> {
        match text {
            "auto" => Ok(Choice::Auto),
            "cpu" => Ok(Choice::Cpu),
            "cuda" => Ok(Choice::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(n)) => Ok(Choice::Cuda(n)),
                Some(Err(_)) => Err("the number of a GPU is as in `cuda:1`".into()),
                None => Err("it is cpu, cuda, cuda:N or auto".into()),
            },
        }
    }

    /// As on the command line.
    pub fn name(self) -> String {
        match self {
            Choice::Auto => "auto".into(),
            Choice::Cpu => "cpu".into(),
            Choice::Cuda(n) => format!("cuda:{n}"),
        }
    }
}

/// A GPU, looked at and not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Product and architecture: `NVIDIA H200 (sm_90)`.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Version of CUDA that its driver has: `13.0`.
    pub driver: String,
}

impl About {
    /// The best of these targets that it runs.
    pub fn best(&self, of: &[Target]) -> Result<Target> {
        let found = of.iter().rev().find(|t| t.runs_on(self.capability));
        found.copied().ok_or_else(|| {
            let gpus: Vec<&str> = of.iter().filter(|t| t.class() == Class::Gpu).map(|t| t.name()).collect();
            let known = Target::ALL.into_iter().filter(|t| t.class() == Class::Gpu).map(Target::name);
            let message = match gpus.is_empty() {
                true => format!("there is no program for a GPU, and the GPU is {}", self.name),
                false => format!("the GPU is {}, and the programs are for {}", self.name, gpus.join(", ")),
            };
            Diagnostic::new("E0796", message).hint(format!(
                "code for an architecture runs on it and on later ones; isobit makes code for {}",
                known.collect::<Vec<_>>().join(" and ")
            ))
        })
    }
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use super::*;
    use crate::emit::Code;
    use runtime::assembler::Cubins;
    use runtime::cuda;

    /// Looks at GPU number `ordinal`.
    pub fn look(ordinal: u32) -> Result<About> {
        let a = cuda::about(ordinal)?;
        Ok(About { name: a.name, capability: a.capability, driver: cuda::cuda_version(a.driver) })
    }

    /// A GPU, and the module of a program's kernels.
    pub fn open(program: &Program, options: &EngineOptions) -> Result<(Box<dyn Device>, Vec<u8>)> {
        let Code::Gpu(code) = &program.code else {
            return Err(Diagnostic::new("E0754", format!("`{}` is no program for a GPU", program.target.name())));
        };
        let device = cuda::CudaDevice::new(cuda::CudaOptions {
            ordinal: options.gpu,
            launch: options.launch.unwrap_or_default(),
            cubins: options.cubins,
            dependent: true,
            fill: if options.poison { cuda::Fill::Poison } else { cuda::Fill::Zero },
        })?;
        let machine = code.machine.as_ref().filter(|_| options.cubins != Cubins::Off);
        let kernels = program.plans.kernels();
        let module = cuda::frame(kernels.iter().zip(&code.ptx).enumerate().map(|(i, (k, ptx))| {
            let cubin = machine.and_then(|m| m.cubins.get(i)).map(|c| (program.target.name(), c.as_slice()));
            cuda::Part { name: &k.name, ptx, cubin }
        }));
        Ok((Box::new(device), module))
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use super::*;

    fn refuse() -> Diagnostic {
        Diagnostic::new("E0754", "this build of isobit runs nothing on GPUs: it was built without CUDA")
            .hint("run on the processor, or build with the feature `cuda`")
    }

    /// Refuses.
    pub fn look(_: u32) -> Result<About> {
        Err(refuse())
    }

    /// Refuses.
    pub fn open(_: &Program, _: &EngineOptions) -> Result<(Box<dyn Device>, Vec<u8>)> {
        Err(refuse())
    }
}

#[cfg(feature = "cuda")]
use with_cuda as how;
#[cfg(not(feature = "cuda"))]
use without_cuda as how;

/// Looks at GPU number `ordinal`; an error says why there is none.
pub fn look(ordinal: u32) -> Result<About> {
    how::look(ordinal)
}

/// Opens the GPU that the options name, and makes a module of a program's kernels.
pub fn open(program: &Program, options: &EngineOptions) -> Result<(Box<dyn Device>, Vec<u8>)> {
    how::open(program, options)
}

/// Where a program runs, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The target whose program it is; none for the best of the processor.
    pub target: Option<Target>,
    /// Number of the GPU.
    pub gpu: u32,
    /// For people: `cuda:0, NVIDIA H200 (sm_90), runs sm_90`.
    pub why: String,
}

/// Chooses the place of a program that exists, or could be made, for these targets. A named target has been checked against
/// the choice; `look` tells of a GPU.
pub fn place(choice: Choice, named: Option<Target>, of: &[Target], look: &dyn Fn(u32) -> Result<About>) -> Result<Place> {
    let on_gpu = |n: u32, target: Target, about: &str| Place {
        target: Some(target),
        gpu: n,
        why: format!("cuda:{n}, {about}, program for {}", target.name()),
    };
    let number = if let Choice::Cuda(n) = choice { n } else { 0 };
    match (choice, named) {
        (_, Some(t)) if t.class() == Class::Gpu => {
            let about = look(number)?;
            Ok(on_gpu(number, about.best(&[t])?, &about.name))
        }
        (_, Some(t)) => Ok(Place { target: Some(t), gpu: 0, why: "cpu, as `--target` says".into() }),
        (Choice::Cpu, None) => Ok(Place { target: None, gpu: 0, why: "cpu, as `--device` says".into() }),
        (Choice::Cuda(n), None) => {
            let about = look(n).map_err(|d| d.at("--device"))?;
            Ok(on_gpu(n, about.best(of)?, &about.name))
        }
        (Choice::Auto, None) => {
            let cpu = |why: String| Place { target: None, gpu: 0, why: format!("cpu: {why}") };
            if !of.iter().any(|t| t.class() == Class::Gpu) {
                return Ok(cpu("there is no program for a GPU".into()));
            }
            Ok(match look(0).and_then(|about| Ok((about.best(of)?, about))) {
                Ok((target, about)) => on_gpu(0, target, &about.name),
                Err(d) => cpu(d.message),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(major: u32, minor: u32) -> impl Fn(u32) -> Result<About> {
        move |n| {
            let none = Diagnostic::new("E0757", format!("there is no GPU number {n}: the driver knows 2"));
            let about = About { name: format!("GPU (sm_{major}{minor})"), capability: (major, minor), driver: "13.0".into() };
            if n < 2 { Ok(about) } else { Err(none) }
        }
    }

    #[test]
    fn a_choice_is_read() {
        for (text, choice) in
            [("auto", Choice::Auto), ("cpu", Choice::Cpu), ("cuda", Choice::Cuda(0)), ("cuda:12", Choice::Cuda(12))]
        {
            assert_eq!(Choice::parse(text), Ok(choice));
        }
        for bad in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda:99999999999"] {
            assert!(Choice::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn code_for_an_architecture_runs_on_later_ones() {
        for (capability, best) in [
            ((9, 0), Target::Sm90),
            ((10, 0), Target::Sm90),
            ((12, 0), Target::Sm90),
            ((12, 1), Target::Sm121),
            ((13, 0), Target::Sm121),
        ] {
            assert_eq!(gpu(capability.0, capability.1)(0).unwrap().best(&Target::ALL), Ok(best));
        }
        let d = gpu(8, 9)(0).unwrap().best(&Target::ALL).unwrap_err();
        assert!(d.code == "E0796" && d.message.contains("sm_89") && d.hint.contains("sm_90 and sm_121"), "{d}");
        let d = gpu(12, 0)(0).unwrap().best(&[Target::X86V3, Target::Sm121]).unwrap_err();
        assert!(d.message.contains("sm_120") && d.message.contains("are for sm_121"), "{d}");
        assert!(gpu(9, 0)(0).unwrap().best(&[Target::X86V3]).unwrap_err().message.contains("no program for a GPU"));
    }

    #[test]
    fn a_place_is_chosen_and_said_why() {
        let (h200, all) = (gpu(9, 0), &Target::ALL[..]);
        let none = |_| Err(Diagnostic::new("E0754", "there is no CUDA driver on this machine"));
        let at = |p: Result<Place>| p.map(|p| (p.target, p.gpu, p.why)).unwrap();
        let (auto, cpu, second) = (Choice::Auto, Choice::Cpu, Choice::Cuda(1));
        assert_eq!(at(place(auto, None, all, &h200)), (Some(Target::Sm90), 0, "cuda:0, GPU (sm_90), program for sm_90".into()));
        assert_eq!(at(place(auto, None, all, &none)), (None, 0, "cpu: there is no CUDA driver on this machine".into()));
        assert_eq!(at(place(auto, None, &[Target::X86V3], &h200)), (None, 0, "cpu: there is no program for a GPU".into()));
        assert!(at(place(auto, None, &[Target::Sm121], &h200)).2.contains("the programs are for sm_121"));
        assert_eq!(at(place(cpu, None, all, &h200)), (None, 0, "cpu, as `--device` says".into()));
        assert_eq!(at(place(second, None, all, &h200)).0, Some(Target::Sm90));
        assert_eq!(at(place(second, Some(Target::Sm90), all, &gpu(12, 1))).0, Some(Target::Sm90), "another than the best");
        assert_eq!(at(place(auto, Some(Target::X86V3), all, &h200)).0, Some(Target::X86V3));
        // What is asked for and not there is an error, never another place.
        assert_eq!(place(second, None, all, &none).unwrap_err().code, "E0754");
        assert_eq!(place(Choice::Cuda(2), None, all, &h200).unwrap_err().code, "E0757");
        assert_eq!(place(second, None, &[Target::Sm121], &h200).unwrap_err().code, "E0796");
        assert_eq!(place(auto, Some(Target::Sm121), all, &h200).unwrap_err().code, "E0796");
        assert_eq!(place(auto, Some(Target::Sm90), all, &none).unwrap_err().code, "E0754");
    }
}
