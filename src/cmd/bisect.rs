//! `isobit bisect`: runs two configurations, compares the bits of their logits, and says where they part: position, value, kernel;
//! and with `--passes` which options make the difference. Exit code 0: all logits are the same bits, 1: some differ, 2: it could
//! not be done.

use super::Stop;
use super::load::{self, Loaded};
use super::run::{Form, engine_options, no_tokenizer, parse_ids, utf8};
use crate::args::{BisectArgs, ExecArgs};
use crate::bisect::deltas::{Setup, deltas};
use crate::bisect::{Run, Tally, minimal, odds};
use crate::diff::{Verdict, traces};
use crate::digest::Digest;
use crate::engine::{Engine, Request, Room};
use crate::files::{self, Pending};
use crate::pipeline::{self, Watch};
use crate::printer::Printer;
use crate::source::{Source, model_and_prompt};
use crate::target::Class;
use crate::trace::{Recorder, Subject, Trace, Wish};
use clap::Parser;
use ir::diag::{Diagnostic, Result};
use models::{Checkpoint, Text};
use passes::{Manager, Pipeline};
use runtime::trace::Mode;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

/// A configuration as it is written.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Flags {
    model: Option<OsString>,
    #[command(flatten)]
    exec: ExecArgs,
}

/// A configuration.
struct Config {
    letter: &'static str,
    flags: String,
    source: Source,
    setup: Setup,
}

enum Asked {
    Text(String),
    Ids(Vec<u32>),
}

/// Words of a configuration; quotes keep blanks together.
fn words(text: &str) -> Vec<String> {
    let (mut out, mut word, mut quote) = (vec![], None::<String>, None);
    for c in text.chars() {
        match (c, quote) {
            (c, Some(q)) if c == q => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => out.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    out.extend(word);
    out
}

fn config(letter: &'static str, flags: &str, model: &Source) -> Result<Config> {
    let option = if letter == "A" { "--a" } else { "--b" };
    let parsed = Flags::try_parse_from(words(flags)).map_err(|e| {
        let text = e.to_string();
        let why = text.lines().next().unwrap_or("").trim_start_matches("error: ").to_string();
        Diagnostic::new("E0830", why)
            .at(option)
            .hint("it takes the options of compilation and execution of `isobit run`, as one quoted word")
    })?;
    let source = parsed.model.as_deref().map_or_else(|| model.clone(), Source::of);
    let options = load::check(&parsed.exec).map_err(|d| {
        let place = if d.place.is_empty() { option.to_string() } else { format!("{option}: {}", d.place) };
        Diagnostic { place, ..d }
    })?;
    Ok(Config { letter, flags: flags.trim().into(), source, setup: Setup { exec: parsed.exec, options } })
}

fn parts(args: &BisectArgs) -> Result<(Asked, [Config; 2])> {
    let (source, prompt) = model_and_prompt("bisect", args.model.as_deref(), args.prompt.as_deref())?;
    let asked = match (&args.ids, prompt) {
        (Some(_), Some(_)) => return Err(Diagnostic::new("E0750", "a prompt is given both as text and as `--ids`")),
        (Some(ids), None) => Asked::Ids(parse_ids(ids)?),
        (None, Some(prompt)) => Asked::Text(utf8(prompt, "the prompt")?.into()),
        (None, None) => {
            return Err(Diagnostic::new("E0831", "there is nothing to run").hint("give a prompt or `--ids` on the command line"));
        }
    };
    let both = [config("A", &args.a, &source)?, config("B", &args.b, &source)?];
    if args.passes {
        let fixed = both.iter().any(|c| matches!(c.source, Source::Artifact(_)));
        let why = match () {
            () if fixed => "an artifact has been compiled already: options of its passes can't be tried",
            () if both[0].source != both[1].source => "the two configurations are of different models",
            () => return Ok((asked, both)),
        };
        return Err(Diagnostic::new("E0831", why).at("--passes").hint("name one checkpoint, and the options in --a and --b"));
    }
    Ok((asked, both))
}

/// Refuses a command line that contradicts itself.
pub(super) fn check(args: &BisectArgs) -> Result<()> {
    parts(args).map(|_| ())
}

fn ids_of(asked: &Asked, raw: bool, text: Option<&Text>) -> Result<Vec<u32>> {
    match (asked, text) {
        (Asked::Ids(ids), _) => Ok(ids.clone()),
        (Asked::Text(_), None) => Err(no_tokenizer()),
        (Asked::Text(prompt), Some(text)) => {
            Form { chat: !raw, system: None, thinking: false, special: false }.first_turn(text, prompt)
        }
    }
}

/// A configuration that can run.
struct Ready<'a> {
    args: &'a BisectArgs,
    exec: ExecArgs,
    loaded: Loaded,
    text: Option<Rc<Text>>,
    ids: Vec<u32>,
    stop: Vec<u32>,
}

/// What is written to it is kept.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl io::Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Ready<'a> {
    fn load(args: &'a BisectArgs, asked: &Asked, source: &Source, setup: &Setup, p: &mut Printer) -> Result<Ready<'a>, Stop> {
        let Setup { exec, options } = setup;
        let look = |ck: &Checkpoint, text: Option<&Text>| Room::new(ck, exec.context)?.check(&ids_of(asked, args.raw, text)?);
        let only_ids = matches!(asked, Asked::Ids(_));
        let mut loaded = load::load(source, exec, only_ids, true, options.clone(), &look, p)?;
        let text = loaded.text.take().map(Rc::new);
        let ids = ids_of(asked, args.raw, text.as_deref())?;
        let stop = models::text::stop_ids(&loaded.checkpoint)?;
        Ok(Ready { args, exec: exec.clone(), loaded, text, ids, stop })
    }

    fn engine(&self, p: &mut Printer) -> Result<Engine> {
        let (l, options) = (&self.loaded, engine_options(&self.exec, self.loaded.gpu, true));
        Engine::open(&l.checkpoint, &l.program, &options, &mut |what, done, of| p.progress(what, done, of))
    }

    fn once(&self, engine: &mut Engine) -> Result<Run> {
        engine.session().reset();
        let mut logits = Digest::default();
        let request = Request { prompt: &self.ids, max: self.args.n, stop: &self.stop };
        let g = engine.generate(&request, Some(&mut |row| logits.row(row)), &mut |_| ControlFlow::Continue(()))?;
        Ok(Run { logits, ids: g.ids })
    }

    /// Runs it as often as is asked; with what runs it.
    fn runs(&self, p: &mut Printer) -> Result<(Tally, String), Stop> {
        let mut engine = self.engine(p)?;
        let device = engine.device_name();
        let what = if device == "interpreter" { "kernels" } else { self.loaded.program.target.name() };
        let (mut tally, of) = (Tally::default(), self.args.repeat);
        for n in 0..of {
            tally.add(self.once(&mut engine)?);
            p.progress("runs", n as usize + 1, of as usize);
        }
        Ok((tally, format!("{what} on {device}")))
    }

    /// Runs it traced until logits come that are wanted, at most as often as is asked.
    fn traced(&self, wanted: &dyn Fn(&Run) -> bool, p: &mut Printer) -> Result<Option<(Run, Vec<u8>)>, Stop> {
        let Some(graph) = &self.loaded.graph else { return Ok(None) };
        let mut engine = self.engine(p)?;
        let memory = Memory::default();
        let wish = Wish { mode: Some(Mode::Separate), all: false, values: vec![] };
        let l = &self.loaded;
        let launch = (l.program.target.class() == Class::Gpu).then(|| self.exec.launch.unwrap_or_default().name().to_string());
        let subject = Subject { checkpoint: &l.checkpoint, program: &l.program, graph, launch };
        let sink = memory.clone();
        let open = move || Ok(sink);
        let recorder = Recorder::begin_to(open, Path::new("trace"), &subject, &mut engine, &wish, self.text.clone())?;
        let header = memory.0.borrow().len();
        let mut found = None;
        for n in 0..self.args.repeat {
            memory.0.borrow_mut().truncate(header);
            let run = self.once(&mut engine)?;
            p.progress("traced runs", n as usize + 1, self.args.repeat as usize);
            if wanted(&run) {
                found = Some((run, memory.0.borrow().clone()));
                break;
            }
        }
        drop(engine);
        recorder.finish()?;
        Ok(found)
    }

    /// The kernel and the launch that wrote a value, as text.
    fn writer(&self, writer: &Value) -> Option<(String, String)> {
        let word = |key: &str| writer[key].as_str().map(String::from);
        let (phase, launch, kernel) = (word("phase")?, word("launch")?, word("kernel")?);
        let (_, plan) = self.loaded.program.plans.plans().find(|(name, _)| *name == phase)?;
        let k = plan.kernels.iter().find(|k| k.name == kernel)?;
        let text = ir::plan::text::print(plan);
        let start = format!("launch {launch:?} ");
        let line = text.lines().map(str::trim).find(|l| l.starts_with(&start))?;
        Some((line.into(), ir::kernel::text::print(k)))
    }

    /// Files for a person to look at.
    fn write(&self, dir: &Path, trace: Option<&[u8]>, kernel: Option<&str>) -> Result<()> {
        if let Some(graph) = &self.loaded.graph {
            files::write(&dir.join("model.graph"), passes::instrument::text::print(graph).as_bytes())?;
        }
        for (phase, plan) in self.loaded.program.plans.plans() {
            files::write(&dir.join(format!("{phase}.plan")), ir::plan::text::print_whole(plan).as_bytes())?;
        }
        for (name, bytes) in [("run.trace", trace), ("kernel.kir", kernel.map(str::as_bytes))] {
            bytes.map_or(Ok(()), |bytes| files::write(&dir.join(name), bytes))?;
        }
        Ok(())
    }
}

/// Runs it.
pub fn run(args: &BisectArgs, p: &mut Printer) -> Result<(), Stop> {
    let (asked, configs) = parts(args)?;
    let out = args.out.as_deref().map(Pending::folder).transpose()?;
    let load = |c: &Config, p: &mut Printer| Ready::load(args, &asked, &c.source, &c.setup, p);
    let ready = [load(&configs[0], p)?, load(&configs[1], p)?];
    if ready[0].ids != ready[1].ids {
        return Err(Diagnostic::new("E0832", "the two models make other tokens of the prompt").hint("give `--ids`").into());
    }
    let ((a, on_a), (b, on_b)) = (ready[0].runs(p)?, ready[1].runs(p)?);
    let Some(reference) = a.usual() else { return Ok(()) };
    let mut text = String::new();
    let mut json = json!({"prompt_ids": ready[0].ids, "repeat": args.repeat});
    for (c, tally, on) in [(&configs[0], &a, &on_a), (&configs[1], &b, &on_b)] {
        let flags = if c.flags.is_empty() { "no flags" } else { &c.flags };
        _ = writeln!(text, "{} {flags}: {on}; {}", c.letter, tally.line(reference));
        let mut side = tally.json(reference);
        (side["flags"], side["on"]) = (json!(c.flags), json!(on));
        json[c.letter.to_lowercase()] = side;
    }
    // Where both of A's results and B's differ, it is B that is looked at.
    let [(faults_a, other_a), (faults_b, other_b)] = [a.others(reference), b.others(reference)];
    let (faults, other, odd) = if faults_b > 0 { (faults_b, other_b, 1) } else { (faults_a, other_a, 0) };
    let said = odds::line(faults, args.repeat);
    said.iter().for_each(|l| _ = writeln!(text, "{l}"));
    json["confidence"] = json!({"needed": odds::needed(faults, args.repeat), "said": said});
    json["equal"] = json!(other.is_none());
    let rows = reference.logits.rows();
    let Some(other) = other else {
        _ = writeln!(
            text,
            "equal: logits of {rows} positions are the same bits, and so are {} chosen tokens",
            reference.ids.len()
        );
        return tell(args, &text, &json, true, p);
    };
    place(&ready[0], reference, other, &mut text, &mut json);
    // A run that is traced, and then others until one differs from it: tracing changes times, so these need not be those above.
    let one = ready[0].traced(&|_| true, p)?;
    let two = match &one {
        Some((one, _)) => ready[odd].traced(&|run| run.parts_from(one).is_some(), p)?,
        None => None,
    };
    let mut kernels = [None, None];
    match (&one, &two) {
        (Some((_, one)), Some((_, two))) => {
            let (x, y) = (Trace::read(&one[..], "A")?, Trace::read(&two[..], "B")?);
            let side = |name: &str, trace| traces::Side { name: name.into(), trace, values: None };
            match traces::diff(&side("A", &x), &side("B", &y)) {
                Ok(Verdict { text: said, json: found, .. }) => {
                    let from = said.find("in both: ").unwrap_or(0);
                    // Values are not stored, as it would say.
                    let lines = said[from..].lines().filter(|l| !l.starts_with("  elements unknown"));
                    lines.for_each(|l| _ = writeln!(text, "{l}"));
                    let writers = &found["difference"]["writers"];
                    kernels = [ready[0].writer(&writers[0]), ready[odd].writer(&writers[1])];
                    json["first"] = found["difference"].clone();
                }
                Err(d) => _ = writeln!(text, "the values can't be compared: {}", d.message),
            }
        }
        _ => {
            let m = "no two traced runs differ: the fault is rare, or tracing changes its timing; raise --repeat";
            _ = writeln!(text, "{m}");
        }
    }
    show(&kernels, &mut text);
    if args.passes {
        let found = search(args, &asked, &configs, &ready[1], reference, p)?;
        found["text"].as_str().into_iter().for_each(|t| text.push_str(t));
        json["passes"] = found;
    }
    if let Some(out) = out {
        for (i, (ready, traced)) in [(&ready[0], &one), (&ready[odd], &two)].into_iter().enumerate() {
            let (trace, kernel) = (traced.as_ref().map(|t| &t.1[..]), kernels[i].as_ref().map(|k| k.1.as_str()));
            ready.write(&out.path().join(["a", "b"][i]), trace, kernel).map_err(|d| out.tell(d))?;
        }
        out.commit()?;
        let dir = args.out.as_deref().unwrap_or(Path::new("")).display();
        _ = writeln!(text, "both are in {dir}/a and {dir}/b: graph, plans, the kernel and the trace");
    }
    tell(args, &text, &json, false, p)
}

fn tell(args: &BisectArgs, text: &str, json: &Value, equal: bool, p: &mut Printer) -> Result<(), Stop> {
    if args.json {
        p.line(&json.to_string())?
    } else {
        p.data(text)?
    }
    if equal { Ok(()) } else { Err(Stop::Differs) }
}

/// The first position, and the first chosen token, that differ.
fn place(ready: &Ready, a: &Run, b: &Run, text: &mut String, json: &mut Value) {
    let (ids, first) = (&ready.ids, a.parts_from(b).unwrap_or(0));
    let word = |id: u32| match ready.text.as_ref().and_then(|t| t.token(id)) {
        Some(t) => format!("{id} {:?}", t.replace('\u{2581}', " ")),
        None => id.to_string(),
    };
    let token = ids.iter().chain(&a.ids).nth(first).copied();
    let at = token.map_or(String::new(), |t| format!(" (after token {})", word(t)));
    let (differing, rows) = (a.logits.differing(&b.logits), a.logits.rows().min(b.logits.rows()));
    _ = writeln!(text, "logits differ first at position {first}{at}, and at {differing} of {rows} positions");
    let flip = a.ids.iter().zip(&b.ids).position(|(x, y)| x != y);
    _ = match flip {
        Some(i) => writeln!(
            text,
            "chosen tokens differ first at the {}. generated: {} in A, {} in B",
            i + 1,
            word(a.ids[i]),
            word(b.ids[i])
        ),
        None => writeln!(text, "no chosen token differs ({} generated)", a.ids.len()),
    };
    json["position"] = json!(first);
    json["positions"] = json!({"differ": differing, "of": rows});
    json["token"] = json!(token);
    json["first_flip"] = json!(flip.map(|i| json!({"generated": i, "a": a.ids[i], "b": b.ids[i]})));
}

/// The launches and kernels that wrote the first value that differs, shortly.
fn show(kernels: &[Option<(String, String)>; 2], text: &mut String) {
    let [Some((la, ka)), Some((lb, kb))] = kernels else { return };
    // The names behind an argument list are those of the graph: too many to be short.
    let short = |l: &'_ str| l.split(" // ").next().unwrap_or(l).trim_start_matches("launch ").to_string();
    let (la, lb) = (short(la), short(lb));
    if la == lb {
        _ = writeln!(text, "  launch   {la}");
    } else {
        _ = writeln!(text, "  launch A {la}\n  launch B {lb}");
    }
    match ka.lines().zip(kb.lines()).position(|(x, y)| x != y) {
        // A name that follows from fusion is no difference.
        _ if ka == kb => _ = writeln!(text, "  kernels  the same text, {} lines", ka.lines().count()),
        None => _ = writeln!(text, "  kernels  {} lines of A begin as {} of B", ka.lines().count(), kb.lines().count()),
        Some(i) => {
            let line = |k: &str| k.lines().nth(i).unwrap_or("").trim().to_string();
            _ = writeln!(text, "  kernels  differ first in line {}\n    A      {}\n    B      {}", i + 1, line(ka), line(kb));
        }
    }
}

/// The smallest set of options, and the decision of a pass, that make the difference.
fn search(
    args: &BisectArgs,
    asked: &Asked,
    configs: &[Config; 2],
    b: &Ready,
    reference: &Run,
    p: &mut Printer,
) -> Result<Value, Stop> {
    let all = deltas(&configs[0].setup, &configs[1].setup);
    if all.is_empty() {
        let text = "options  the two configurations are the same: one program gives other bits from run to run\n";
        return Ok(json!({"options": [], "text": text}));
    }
    let (mut trials, mut refused) = (0, 0);
    // Does a configuration differ from A? One that can't be tried does not.
    let mut differs = |setup: &Setup, p: &mut Printer| -> Result<bool, Stop> {
        trials += 1;
        p.progress("trials", trials, 0);
        let sound = setup.options.check().and_then(|()| Manager::default().check(&Pipeline::full(), &setup.options.passes));
        let ready = match sound.map_err(Stop::from).and_then(|()| Ready::load(args, asked, &configs[1].source, setup, p)) {
            Ok(ready) => ready,
            Err(Stop::Failed(_)) => {
                refused += 1;
                return Ok(false);
            }
            Err(stop) => return Err(stop),
        };
        Ok(ready.runs(p)?.0.others(reference).0 > 0)
    };
    // A level alone is to switch no pass: passes are tried one by one.
    let mut start = configs[0].setup.clone();
    start.options.passes.switches = start.options.switches();
    let with = |part: &[usize]| {
        let mut setup = start.clone();
        part.iter().for_each(|&i| all[i].apply(&mut setup));
        setup
    };
    let set = minimal::set(all.len(), &mut |part| differs(&with(part), p))?;
    let found = with(&set);
    let names: Vec<&str> = set.iter().map(|&i| all[i].name.as_str()).collect();
    // The decisions of the passes under these options, with their numbers.
    let mut watch = Watch::default();
    let class = b.loaded.program.target.class();
    pipeline::plan(&b.loaded.checkpoint, &found.options, &[class], &mut watch)?;
    let limit = found.options.passes.pass_limit.unwrap_or(u64::MAX);
    let last = watch.decisions.iter().map(|d| d.number).max().unwrap_or(0).min(limit);
    let number = match last {
        0 => 0,
        _ => minimal::number(last, &mut |n| {
            let mut setup = found.clone();
            setup.options.passes.pass_limit = Some(n);
            differs(&setup, p)
        })?,
    };
    let what = watch.decisions.iter().find(|d| d.number == number).map(|d| d.what.clone());
    let mut text =
        format!("options  of {} that differ, the smallest set that makes the difference: {}\n", all.len(), names.join(" "));
    _ = match &what {
        Some(what) => writeln!(
            text,
            "decision {number} of {last} makes it (--pass-limit {number} differs, {} does not): {what}",
            number - 1
        ),
        None => writeln!(text, "decision none of {last} of the passes makes it: it differs with --pass-limit 0"),
    };
    let could_not = if refused > 0 { format!(", {refused} of them refused and taken as no difference") } else { String::new() };
    _ = writeln!(text, "trials   {trials}{could_not}");
    Ok(json!({
        "options": names,
        "of": all.iter().map(|d| &d.name).collect::<Vec<_>>(),
        "decision": what.map(|what| json!({"number": number, "what": what})),
        "decisions": last,
        "trials": trials,
        "refused": refused,
        "text": text,
    }))
}
