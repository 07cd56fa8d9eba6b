//! `isobit dump`: the model as the compiler sees it, as text, for Graphviz, or as a page.

use super::{Stop, opt, resolve};
use crate::args::{DumpArgs, Format, Phase, What};
use crate::emit::{self, Listing};
use crate::files::{self, Pending};
use crate::opt::Input;
use crate::options::CompileOptions;
use crate::page::{self, Side, dot::dot};
use crate::pipeline::{self, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::Target;
use ir::diag::{Diagnostic, Result};
use std::ffi::OsStr;
use std::path::Path;

/// The pass after which a graph says what one launch runs.
const LAUNCHES: &str = "merge-launches";

/// The target and the options, if nothing on the command line contradicts itself.
pub(super) fn check(args: &DumpArgs) -> Result<(Target, CompileOptions)> {
    let target = Target::parse(&args.target)?;
    let mut o = resolve(&args.build, vec![target])?;
    if args.phase == Phase::Decode || args.format != Format::Text {
        o.prefill = crate::options::PrefillPlan::Off; // nobody asks for it
    }
    if let Some(pass) = &args.after {
        passes::Manager::default().find(pass).map_err(|d| d.at("--after"))?;
    }
    let misfit = |what: &str, place: &str| Err(Diagnostic::new("E0815", what).at(place));
    if args.format != Format::Text {
        if args.what != What::Graph || args.phase != Phase::Decode {
            return misfit("pages and pictures are of the graph, and of the plan for one token", "--format");
        }
        if args.after.as_ref().is_some_and(|p| passes::Pipeline::plan().entries.iter().any(|e| e.pass == *p)) {
            return misfit("pages and pictures are of a graph, and after this pass there is a plan", "--after");
        }
    }
    if args.with.is_some() && args.format != Format::Html {
        return misfit("only a page shows two dumps side by side", "--with");
    }
    if !args.only.is_empty() && args.format != Format::Dot {
        return misfit("only a picture is cut down to some values: in a page, search for them", "--only");
    }
    Ok((target, o))
}

/// Runs it.
pub fn run(args: &DumpArgs, p: &mut Printer) -> Result<(), Stop> {
    let (target, o) = check(args)?;
    let output = args.output.as_deref().map(Pending::file).transpose()?;
    let text = match args.format {
        Format::Text => text(args, target, &o, p)?,
        Format::Dot => {
            let s = side(&args.model, args, target, &o, p)?;
            let only = passes::Options { keep: args.only.iter().cloned().collect(), ..passes::Options::default() };
            dot(&s.graph, &|name| args.only.is_empty() || only.keeps(name))
        }
        Format::Html => {
            let mut sides = vec![side(&args.model, args, target, &o, p)?];
            if let Some(with) = &args.with {
                sides.push(side(with, args, target, &o, p)?);
            }
            page::html(&sides)
        }
    };
    let Some(pending) = output else { return p.data(&text) };
    files::write(pending.path(), text.as_bytes()).map_err(|d| pending.tell(d))?;
    Ok(pending.commit()?)
}

/// A graph to look at: what the passes make of a model, or the text of a graph in a file.
fn side(word: &OsStr, args: &DumpArgs, target: Target, o: &CompileOptions, p: &mut Printer) -> Result<Side, Stop> {
    let path = Path::new(word);
    let name = path.file_name().unwrap_or(word).to_string_lossy().into_owned();
    let digests = Default::default();
    if path.is_file() {
        let file = path.display().to_string();
        let text = opt::read_text(word, &file)?;
        return match crate::opt::read(&text, &file).map_err(pipeline::first)? {
            Input::Graph(graph) => Ok(Side { title: name, graph, plan: None, digests }),
            _ => Err(Diagnostic::new("E0815", "pages and pictures are of a graph, and this is the text of a plan or of kernels")
                .at(file)
                .into()),
        };
    }
    let ck = super::checkpoint(&Source::of(word), args.build.weights, p)?;
    if let Some(pass) = &args.after {
        let text = pipeline::after(&ck, pass, target.class(), o)?;
        let graph = ir::graph::text::parse(&text).map_err(pipeline::first)?;
        return Ok(Side { title: format!("{name}, after {pass}"), graph, plan: None, digests });
    }
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch { progress: Some(&mut progress), print_after: vec![LAUNCHES.into()], ..Watch::default() };
    let mut planned = pipeline::plan(&ck, o, &[target.class()], &mut watch)?;
    // A class of targets may have fused anew: its graph is the one that was printed last.
    let graph = match watch.printed.pop() {
        Some((_, text)) => ir::graph::text::parse(&text).map_err(pipeline::first)?,
        None => planned.graph,
    };
    let plan = planned.plans.pop().map(|(_, plans)| plans.decode.clone());
    Ok(Side { title: format!("{name}, for {}", target.name()), graph, plan, digests })
}

fn text(args: &DumpArgs, target: Target, o: &CompileOptions, p: &mut Printer) -> Result<String> {
    let ck = super::checkpoint(&Source::of(&args.model), args.build.weights, p)?;
    if let Some(pass) = &args.after {
        return pipeline::after(&ck, pass, target.class(), o);
    }
    if args.what == What::Graph {
        let planned = pipeline::plan(&ck, o, &[], &mut Watch::default())?;
        return Ok(ir::graph::text::print(&planned.graph));
    }
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch { progress: Some(&mut progress), ..Watch::default() };
    let planned = pipeline::plan(&ck, o, &[target.class()], &mut watch)?;
    let plans = &planned.plans[0].1;
    let plan = match args.phase {
        Phase::Decode => &plans.decode,
        Phase::Prefill => plans.prefill.as_ref().ok_or_else(|| {
            Diagnostic::new("E0750", "there is no plan for chunks of many tokens: they run the plan for one")
                .at("--phase")
                .hint("ask for one with `--prefill-plan on`")
        })?,
    };
    match args.what {
        What::Graph | What::Plan => Ok(ir::plan::text::print(plan)),
        What::Kernels => Ok(emit::kernels_text(&plan.kernels)),
        What::Asm => emit::listing(plan, target, Listing::Assembly),
        What::Ptx => emit::listing(plan, target, Listing::Ptx),
        What::Llvm => emit::listing(plan, target, Listing::Llvm),
    }
}
