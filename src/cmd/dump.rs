//! `isobit dump`: the model as the compiler sees it, as text.

use super::{Stop, resolve};
use crate::args::{DumpArgs, Phase, What};
use crate::emit::{self, Listing};
use crate::options::CompileOptions;
use crate::pipeline::{self, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::Target;
use ir::diag::{Diagnostic, Result};

/// The target and the options, if nothing on the command line contradicts itself.
pub(super) fn check(args: &DumpArgs) -> Result<(Target, CompileOptions)> {
    let target = Target::parse(&args.target)?;
    let mut o = resolve(&args.build, vec![target])?;
    if args.phase == Phase::Decode {
        o.prefill = crate::options::PrefillPlan::Off; // nobody asks for it
    }
    if let Some(pass) = &args.after {
        passes::Manager::default().find(pass).map_err(|d| d.at("--after"))?;
    }
    Ok((target, o))
}

/// Runs it.
pub fn run(args: &DumpArgs, p: &mut Printer) -> Result<(), Stop> {
    let (target, o) = check(args)?;
    let ck = super::checkpoint(&Source::of(&args.model), args.build.weights, p)?;
    if let Some(pass) = &args.after {
        let text = pipeline::after(&ck, pass, target.class(), &o)?;
        return p.data(&text);
    }
    if args.what == What::Graph {
        let planned = pipeline::plan(&ck, &o, &[], &mut Watch::default())?;
        return p.data(&ir::graph::text::print(&planned.graph));
    }
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch { progress: Some(&mut progress), ..Watch::default() };
    let planned = pipeline::plan(&ck, &o, &[target.class()], &mut watch)?;
    let plans = &planned.plans[0].1;
    let plan = match args.phase {
        Phase::Decode => &plans.decode,
        Phase::Prefill => plans.prefill.as_ref().ok_or_else(|| {
            Diagnostic::new("E0750", "there is no plan for chunks of many tokens: they run the plan for one")
                .at("--phase")
                .hint("ask for one with `--prefill-plan on`")
        })?,
    };
    let text = match args.what {
        What::Graph | What::Plan => ir::plan::text::print(plan),
        What::Kernels => emit::kernels_text(&plan.kernels),
        What::Asm => emit::listing(plan, target, Listing::Assembly)?,
        What::Ptx => emit::listing(plan, target, Listing::Ptx)?,
        What::Llvm => emit::listing(plan, target, Listing::Llvm)?,
    };
    p.data(&text)
}
