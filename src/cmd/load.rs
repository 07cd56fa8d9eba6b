//! From what `isobit run` and `isobit bench` are given to a program that can run: an artifact, an entry of the cache, or a compilation.

use super::{Stop, options, resolve};
use crate::args::{BuildArgs, ExecArgs};
use crate::artifact::{Artifact, Manifest, TargetEntry};
use crate::cache::{Cache, Lookup};
use crate::emit::Code;
use crate::gpu::{self, Choice, Place};
use crate::options::{CompileOptions, FUSING, embed_mode};
use crate::pipeline::{self, Program, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::graph::op::EmbedMode;
use models::{Checkpoint, Text};
use std::time::{Duration, Instant};

/// What to do without a cache.
const NO_CACHE: &str = "`--cache-dir` names another folder, `--no-cache` none";

/// A program with its model.
pub struct Loaded {
    /// The model.
    pub checkpoint: Checkpoint,
    /// Its tokenizer, unless it has none and needs none.
    pub text: Option<Text>,
    /// What runs.
    pub program: Program,
    /// The graph that it was lowered from, if the run is traced.
    pub graph: Option<Graph>,
    /// Number of the GPU that it runs on, if it is a program for one.
    pub gpu: u32,
    /// Its free schedules: for a token, and for chunks of many if they have a plan of their own.
    pub schedules: (String, Option<String>),
    /// How its embedding is rounded.
    pub embed: EmbedMode,
    /// Where the program came from, for the report.
    pub origin: &'static str,
    /// Time it took to get the program.
    pub time: Duration,
}

/// What is to run the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runner {
    Best,
    Named(Target),
    Interpreter,
}

/// Checks the options before any file is read.
pub fn check(args: &ExecArgs) -> Result<CompileOptions> {
    let runner = runner(args)?;
    fits(runner, args)?;
    let targets = match runner {
        Runner::Best | Runner::Interpreter => vec![],
        Runner::Named(t) if t.class() == Class::Host && !t.runs_here() => {
            return Err(t.refused_here().at("--target"));
        }
        Runner::Named(t) => vec![t],
    };
    resolve(&args.build, targets)
}

fn runner(args: &ExecArgs) -> Result<Runner> {
    Ok(match args.target.as_deref() {
        None => Runner::Best,
        Some("interp") => Runner::Interpreter,
        Some(name) => Runner::Named(Target::parse(name)?),
    })
}

/// Refuses a target that the device cannot be for, and ways of launching for what is launched by nobody.
fn fits(runner: Runner, args: &ExecArgs) -> Result<()> {
    let on_gpu = match runner {
        Runner::Best => args.device != Choice::Cpu,
        Runner::Named(t) => t.class() == Class::Gpu,
        Runner::Interpreter => false,
    };
    let target = args.target.as_deref().unwrap_or("host");
    match args.device {
        Choice::Cpu if matches!(runner, Runner::Named(t) if t.class() == Class::Gpu) => {
            Err(Diagnostic::new("E0795", format!("the processor runs no program for `{target}`"))
                .at("--device")
                .hint("leave one of `--device` and `--target` out"))
        }
        Choice::Cuda(_) if !on_gpu => Err(Diagnostic::new("E0795", format!("a GPU runs no program for `{target}`"))
            .at("--device")
            .hint("leave one of `--device` and `--target` out")),
        _ if !on_gpu => launches(args),
        _ => Ok(()),
    }
}

/// Refuses `--launch` where no GPU runs the program.
fn launches(args: &ExecArgs) -> Result<()> {
    match args.launch {
        None => Ok(()),
        Some(_) => Err(Diagnostic::new("E0797", "`--launch` is for GPUs: on the processor a list of launches is one call")
            .at("--launch")
            .hint("leave it out, or name a GPU with `--device cuda`")),
    }
}

/// Looks at a model before the work.
pub type Look<'a> = &'a dyn Fn(&Checkpoint, Option<&Text>) -> Result<()>;

/// Gets the program, unless `look` finds that it could not be used. A model that is given `ids` needs no tokenizer; a run that is
/// `traced` needs the graph.
pub fn load(
    source: &Source,
    args: &ExecArgs,
    ids: bool,
    traced: bool,
    mut o: CompileOptions,
    look: Look,
    p: &mut Printer,
) -> Result<Loaded, Stop> {
    let start = Instant::now();
    let runner = runner(args)?;
    let embed = o.embed;
    let done = |checkpoint, text, program, graph, gpu, schedules, origin| {
        Ok(Loaded { checkpoint, text, program, graph, gpu, schedules, embed, origin, time: start.elapsed() })
    };
    // Where it runs, if it is made or exists for these targets.
    let place = |of: &[Target], p: &mut Printer| -> Result<Place> {
        let named = if let Runner::Named(t) = runner { Some(t) } else { None };
        let place = match runner {
            Runner::Interpreter => Place { target: None, gpu: 0, why: "interpreter".into() },
            _ => gpu::place(args.device, named, of, &gpu::look)?,
        };
        if args.print_options {
            p.message(&format!("device: {}", place.why));
        }
        if place.target.is_none_or(|t| t.class() != Class::Gpu) {
            launches(args)?;
        }
        Ok(place)
    };
    if let Source::Artifact(dir) = source {
        let artifact = Artifact::open(dir)?;
        agree(&args.build, artifact.manifest()).map_err(|d| d.at(dir.display()))?;
        if args.print_options {
            p.message(options::of_artifact(artifact.manifest()).trim_end());
        }
        let targets = artifact.targets();
        if let Runner::Named(t) = runner
            && !targets.contains(&t)
        {
            artifact.program(Some(t))?; // says what there is
        }
        let place = place(&targets, p)?;
        let program = match runner {
            Runner::Interpreter => artifact.interpreted()?,
            _ => artifact.program(place.target)?,
        };
        // A trace names the program by all of it.
        let program = if traced { artifact.any_program(program.target)? } else { program };
        let ck = artifact.checkpoint(&mut |what, done, of| p.progress(what, done, of))?;
        let text = tokenizer(&ck, ids)?;
        look(&ck, text.as_ref())?;
        let schedules = artifact.manifest().schedules(program.target);
        let graph = traced.then(|| artifact.graph()).transpose()?;
        let embed = embed_mode(&artifact.manifest().numerics.embed).unwrap_or(embed);
        return done(ck, text, program, graph, place.gpu, schedules, "artifact").map(|l| Loaded { embed, ..l });
    }
    if args.print_options {
        p.message(options::text(&args.build, &o).trim_end());
    }
    let place = place(if cfg!(feature = "llvm") { &Target::ALL } else { &[] }, p)?;
    let ck = super::checkpoint(source, args.build.weights, p)?;
    let text = tokenizer(&ck, ids)?; // its faults are told before the work
    look(&ck, text.as_ref())?;
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    if runner == Runner::Interpreter {
        let mut watch = Watch { progress: Some(&mut progress), ..Watch::default() };
        let mut planned = pipeline::plan(&ck, &o, &[Class::Host], &mut watch)?;
        let (_, plans) = planned.plans.remove(0);
        let schedules = o.schedules_of(Class::Host, &plans);
        let program = Program { target: Target::X86V3, plans, code: Code::Kernels };
        return done(ck, text, program, Some(planned.graph), 0, schedules, "compiled");
    }
    let target = place.target.map_or_else(Target::host, Ok)?;
    o.targets = vec![target];
    let cache = if args.no_cache { None } else { Cache::locate(args.cache_dir.as_deref()) };
    let key = cache.as_ref().map(|_| Cache::key(&ck.table_hash(), &o, target));
    let mut damaged = None;
    if let (Some(cache), Some(key)) = (&cache, &key) {
        let found = match cache.get(key) {
            Lookup::Hit(artifact) if traced => artifact.any_program(target).and_then(|p| Ok(Some((p, Some(artifact.graph()?))))),
            Lookup::Hit(artifact) => artifact.program(Some(target)).map(|p| Some((p, None))),
            Lookup::Miss => Ok(None),
            Lookup::Damaged(d) => Err(d),
        };
        match found {
            Ok(Some((program, graph))) => {
                ck.fits()?; // what compiling would have looked at
                let schedules = o.schedules_of(target.class(), &program.plans);
                return done(ck, text, program, graph, place.gpu, schedules, "cached");
            }
            Ok(None) => {}
            Err(d) => damaged = Some(d),
        }
    }
    if let Some(d) = damaged {
        let message = format!("an entry of the cache is damaged, so the model is compiled again: {}", d.message);
        p.warning(&Diagnostic { message, hint: String::new(), ..d });
    }
    let mut progress = |what: &str, done, of| p.progress(what, done, of);
    let mut watch = Watch { progress: Some(&mut progress), ..Watch::default() };
    let mut compiled = pipeline::compile(&ck, &o, &mut watch)?;
    if let (Some(cache), Some(key)) = (&cache, &key)
        && let Err(d) = cache.put(key, &compiled, &ck, &mut progress)
    {
        let message = format!("the compiled model is not kept in the cache: {}", d.message);
        p.warning(&Diagnostic { message, hint: NO_CACHE.into(), ..d });
    }
    if cache.is_none() && !args.no_cache {
        let message = "the compiled model is not kept in the cache: there is no home folder";
        p.warning(&Diagnostic::new("E0760", message).at("$XDG_CACHE_HOME, $HOME").hint(NO_CACHE));
    }
    let graph = Some(compiled.planned.graph);
    let program = compiled.programs.remove(0);
    let schedules = o.schedules_of(target.class(), &program.plans);
    done(ck, text, program, graph, place.gpu, schedules, "compiled")
}

/// The tokenizer of a model. Random weights, and ids in place of text, do without one.
fn tokenizer(ck: &Checkpoint, ids: bool) -> Result<Option<Text>> {
    if ck.file("tokenizer.json").is_none() && (ck.random().is_some() || ids) {
        return models::text::stop_ids(ck).map(|_| None); // for its faults
    }
    Text::load(ck).map(Some)
}

/// An artifact was compiled with options of its own; those on the command line may only say the same.
fn agree(args: &BuildArgs, m: &Manifest) -> Result<()> {
    let differs = |what: String, is: &str| {
        Err(Diagnostic::new("E0767", format!("the artifact was compiled with {what} {is}"))
            .hint("leave the option out, or compile the model anew with it"))
    };
    let on = |b: bool| if b { "on" } else { "off" };
    if args.weights.is_some() && args.weights != m.model.seed() {
        return differs("--weights".into(), &m.model.weights);
    }
    let list = |names: &[String]| if names.is_empty() { "nothing".into() } else { names.join(", ") };
    if args.embed.as_ref().is_some_and(|e| *e != m.numerics.embed) {
        return differs("--embed".into(), &m.numerics.embed);
    }
    if args.passes.determinism.as_ref().is_some_and(|l| *l != m.options.determinism) {
        return differs("--determinism".into(), &m.options.determinism);
    }
    let fusing = args.passes.fusion.into_iter().flat_map(|f| FUSING.map(|pass| (pass.to_string(), f)));
    let rounding = args.activations.iter().map(|a| (passes::round_activations::NAME.to_string(), a == "bf16"));
    let asked = fusing.chain(rounding).chain(args.passes.switches.0.clone()).collect::<std::collections::BTreeMap<_, _>>();
    for (pass, want) in asked {
        let is =
            m.options.switches.get(&pass).copied().unwrap_or_else(|| {
                passes::on_by_default(&pass, passes::Level::parse(&m.options.determinism).unwrap_or_default())
            });
        if is != want {
            return differs(format!("--{pass}"), on(is));
        }
    }
    if args.prefill_plan.is_some_and(|p| p.name() != m.options.prefill_plan) {
        return differs("--prefill-plan".into(), &m.options.prefill_plan);
    }
    for s in &args.schedule {
        let is = |t: &TargetEntry| Target::parse(&t.name).is_ok_and(|t| t.class() == s.class);
        let of = |t: &TargetEntry| {
            if s.prefill { t.prefill.as_ref().map(|p| p.schedule.clone()) } else { Some(t.decode.schedule.clone()) }
        };
        if let Some(other) = m.targets.iter().filter(|t| is(t)).filter_map(of).find(|o| *o != s.schedule.to_string()) {
            return differs(format!("--schedule {}=", s.kind()), &other);
        }
    }
    if args.passes.pass_limit.is_some() && args.passes.pass_limit != m.options.pass_limit {
        return differs("another --pass-limit".into(), &m.options.pass_limit.map_or("(none)".into(), |n| format!("({n})")));
    }
    if args.passes.disable_rule.iter().any(|r| !m.options.rules_off.contains(r)) {
        return differs("other rules: --disable-rule".into(), &list(&m.options.rules_off));
    }
    if args.passes.keep.iter().any(|k| !m.options.keep.contains(k)) {
        return differs("other values kept: --keep".into(), &list(&m.options.keep));
    }
    Ok(())
}
