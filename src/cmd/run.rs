//! `isobit run`: a prompt, or a conversation line by line. Text streams to standard output, a short report follows on
//! standard error.

use super::check::{self, Asked};
use super::load::{self, Loaded};
use super::{Stop, batch};
use crate::args::{ExecArgs, RunArgs};
use crate::digest::{self, Digest, Turn};
use crate::engine::{Engine, EngineOptions, Generation, LogitsSink, Request, Room};
use crate::files::Pending;
use crate::logits::LogitsFile;
use crate::options::CompileOptions;
use crate::pipeline::Program;
use crate::printer::Printer;
use crate::reply::{ReplyStream, Show, text_of};
use crate::source::{Source, model_and_prompt};
use crate::target::Class;
use crate::trace::{Recorder, Subject, Wish};
use ir::diag::{Diagnostic, Result};
use models::{Checkpoint, Message, Role, Text};
use runtime::trace::Mode;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Ends a conversation.
const BYE: &str = "/bye";

/// What is asked.
enum Input {
    Prompt(String),
    Ids(Vec<u32>),
    Lines,
    Batch(OsString),
}

/// What to run and how, if nothing on the command line contradicts itself.
fn parts(args: &RunArgs) -> Result<(Source, Input, CompileOptions)> {
    let (source, prompt) = model_and_prompt("run", args.model.as_deref(), args.prompt.as_deref())?;
    let input = input(args, prompt)?;
    if let Some(list) = &args.check {
        check::parse(list)?;
        if !matches!(input, Input::Prompt(_) | Input::Ids(_)) {
            return Err(
                Diagnostic::new("E0750", "`--check` is for one prompt").hint("give a prompt or `--ids` on the command line")
            );
        }
        // Kernels are interpreted, whatever machine they are for.
        return Ok((source, input, super::resolve(&args.exec.build, vec![])?));
    }
    let mut options = load::check(&args.exec)?;
    if let Some(wish) = wish(args, &input)?
        && wish.mode != Some(Mode::Separate)
    {
        // Kernels that sum up digests are made for it, unless that was said otherwise.
        options.passes.switches.entry(passes::instrument_trace::NAME.into()).or_insert(true);
    }
    Ok((source, input, options))
}

/// What is to be traced.
fn wish(args: &RunArgs, input: &Input) -> Result<Option<Wish>> {
    let Some(_) = &args.trace else { return Ok(None) };
    let refuse = |what: &str| Err(Diagnostic::new("E0805", what.to_string()).at("--trace"));
    let all = args.trace_kv.as_deref() == Some("full");
    let values = !args.trace_values.is_empty();
    if matches!(input, Input::Batch(_)) {
        return refuse("a trace is of one sequence, and `--batch` has many");
    }
    if args.logits.is_some() && args.logits == args.trace {
        return refuse("logits and the trace go to one file");
    }
    if args.trace_mode == Some(Mode::Epilogue) && (all || values) {
        return refuse("kernels sum up digests of what they write: values and whole caches are read by the host");
    }
    // What is added in the order of arrival has no epilogue that could sum up what it became.
    let relaxed = args.exec.build.passes.determinism.as_deref() == Some("off");
    let mode = if all || values || relaxed { Some(Mode::Separate) } else { args.trace_mode };
    Ok(Some(Wish { mode, all, values: args.trace_values.clone() }))
}

/// Refuses a command line that contradicts itself.
pub(super) fn check(args: &RunArgs) -> Result<()> {
    parts(args).map(|_| ())
}

/// Runs it.
pub fn run(args: &RunArgs, p: &mut Printer) -> Result<(), Stop> {
    let (source, input, options) = parts(args)?;
    if let Some(list) = &args.check {
        let asked = match &input {
            Input::Prompt(text) => Asked::Text(text),
            Input::Ids(ids) => Asked::Ids(ids.clone()),
            _ => return Err(Diagnostic::new("E0750", "`--check` is for one prompt").into()),
        };
        return check::run(args, list, &source, &asked, p);
    }
    if let Input::Batch(file) = input {
        return batch::run(args, &file, &source, options, p);
    }
    // What is wrong with the place is told now rather than after the work.
    let logits = args.logits.as_deref().map(Pending::file).transpose()?;
    let wish = wish(args, &input)?;
    if let (Some(path), Some(wish)) = (&args.trace, &wish) {
        Recorder::check(path, wish)?;
    }
    let look = |ck: &Checkpoint, text: Option<&Text>| {
        let room = Room::new(ck, args.exec.context)?;
        match (&input, text) {
            (Input::Ids(ids), _) => room.check(ids).map_err(|d| d.at("--ids")),
            (_, None) => Err(no_tokenizer().at(ck.place())),
            (Input::Prompt(prompt), Some(text)) => room.check(&Form::of(args).first_turn(text, prompt)?),
            // A template that can't do what is asked is told before the work.
            (_, Some(text)) => Form::of(args).first_turn(text, "Hello").map(|_| ()),
        }
    };
    let ids = args.ids.is_some();
    let Loaded { checkpoint, text, program, graph, gpu, origin, time: compile, .. } =
        load::load(&source, &args.exec, ids, args.trace.is_some(), options, &look, p)?;
    let start = Instant::now();
    let options = engine_options(&args.exec, gpu, logits.is_some() || digests(args));
    let mut engine = Engine::open(&checkpoint, &program, &options, &mut |what, done, of| p.progress(what, done, of))?;
    let load = start.elapsed();
    if !args.json {
        p.note(&loaded(&engine, &program, origin, compile, load));
    }
    let stop = stop_ids(args, &checkpoint)?;
    let text = text.map(Rc::new);
    let recorder = match (&args.trace, wish, &graph) {
        (Some(path), Some(wish), Some(graph)) => {
            let launch = (gpu_runs(&program)).then(|| args.exec.launch.unwrap_or_default().name().to_string());
            let subject = Subject { checkpoint: &checkpoint, program: &program, graph, launch };
            Some(Recorder::begin(path, &subject, &mut engine, &wish, text.clone())?)
        }
        _ => None,
    };
    let text = text.as_deref();
    let mut session = Turns {
        args,
        text,
        stop,
        engine,
        logits,
        recorder,
        history: Form::of(args).beginning(),
        asked: vec![],
        turns: vec![],
        quiet: false,
        origin,
        compile,
        load,
    };
    let done = match &input {
        Input::Prompt(prompt) => session.turn(prompt, p),
        Input::Ids(ids) => session.answer(ids, show_of(args, true), p).map(|_| ()),
        _ => session.lines(p),
    };
    let done = if digests(args) && done.is_ok() { session.repeat(&input, args.repeat.unwrap_or(1), p) } else { done };
    let Turns { engine, recorder, .. } = session;
    drop(engine);
    // Also what a run left that failed is worth a look.
    done.and(recorder.map_or(Ok(()), |r| r.finish().map_err(Stop::from)))
}

/// Are digests of logits wanted?
pub(super) fn digests(args: &RunArgs) -> bool {
    args.digest || args.repeat.is_some()
}

fn gpu_runs(program: &Program) -> bool {
    program.target.class() == Class::Gpu
}

/// How the program is run.
pub(super) fn engine_options(args: &ExecArgs, gpu: u32, logits: bool) -> EngineOptions {
    EngineOptions {
        context: args.context,
        chunk: args.prefill_chunk.map(|n| n as usize),
        threads: args.threads.map(|n| n as usize),
        gpu,
        launch: args.launch,
        cubins: args.build.cubin.unwrap_or_default(),
        slots: 1,
        logits,
        poison: args.poison,
    }
}

/// A line on what runs and how long it took to get there.
pub(super) fn loaded(engine: &Engine, program: &Program, origin: &str, compile: Duration, load: Duration) -> String {
    let what = if engine.device_name() == "interpreter" { "kernels" } else { program.target.name() };
    let (device, compile, load) = (engine.device_name(), compile.as_secs_f64(), load.as_secs_f64());
    format!("{what} on {device}; {origin} in {compile:.2} s, loaded in {load:.2} s")
}

/// The ids that end a generation.
pub(super) fn stop_ids(args: &RunArgs, ck: &Checkpoint) -> Result<Vec<u32>> {
    if args.ignore_eos { Ok(vec![]) } else { models::text::stop_ids(ck) }
}

pub(super) fn no_tokenizer() -> Diagnostic {
    Diagnostic::new("E0773", "this model has no tokenizer, so it takes no text").hint("give token ids: `--ids 2,17,4`")
}

/// How a prompt becomes ids.
pub(super) struct Form<'a> {
    /// By the chat template, or as it is.
    pub chat: bool,
    /// Instructions before the conversation.
    pub system: Option<&'a str>,
    /// The model is to think.
    pub thinking: bool,
    /// Control tokens that are spelled out are meant as such.
    pub special: bool,
}

impl<'a> Form<'a> {
    pub fn of(args: &'a RunArgs) -> Form<'a> {
        Form { chat: !args.raw, system: args.system.as_deref(), thinking: args.thinking, special: args.special }
    }

    /// A conversation before its first turn.
    pub fn beginning(&self) -> Vec<Message> {
        self.system.iter().map(|system| Message::new(Role::System, *system)).collect()
    }

    /// The ids of a first turn.
    pub fn first_turn(&self, text: &Text, prompt: &str) -> Result<Vec<u32>> {
        if !self.chat {
            return text.raw_prompt(prompt, self.special);
        }
        let mut history = self.beginning();
        history.push(Message::new(Role::User, prompt));
        text.chat_prompt(&history, self.thinking, self.special)
    }
}

/// How generated text is shown. Ids come without a template, as `--raw` text does.
pub(super) fn show_of(args: &RunArgs, ids: bool) -> Show {
    match (args.raw || ids, args.thinking) {
        (true, _) => Show::Raw,
        (false, true) => Show::Thinking,
        (false, false) => Show::Reply,
    }
}

fn input(args: &RunArgs, prompt: Option<&OsStr>) -> Result<Input> {
    let misfit = |what: &str| Diagnostic::new("E0750", what.to_string());
    if let Some(file) = &args.batch {
        return match (prompt, &args.ids, &args.logits) {
            (None, None, None) => Ok(Input::Batch(file.clone())),
            (_, _, Some(_)) => Err(misfit("`--logits` is for one prompt, and `--batch` has many")
                .hint("run that prompt alone: its logits are the same bits")),
            _ => Err(misfit("a prompt is given both on the command line and by `--batch`")),
        };
    }
    match (&args.ids, prompt) {
        (Some(_), Some(_)) => Err(misfit("a prompt is given both as text and as `--ids`")),
        (Some(ids), None) => Ok(Input::Ids(parse_ids(ids)?)),
        (None, Some(prompt)) => {
            let prompt = utf8(prompt, "the prompt")?;
            if prompt.trim().is_empty() {
                return Err(empty("PROMPT"));
            }
            Ok(Input::Prompt(prompt.to_string()))
        }
        (None, None) if args.logits.is_some() => {
            Err(misfit("`--logits` is for one prompt").hint("give a prompt or `--ids` on the command line"))
        }
        (None, None) => Ok(Input::Lines),
    }
}

/// A word of the command line as text.
pub(super) fn utf8<'a>(word: &'a OsStr, what: &str) -> Result<&'a str> {
    word.to_str().ok_or_else(|| Diagnostic::new("E0755", format!("{what} is not UTF-8")).at(word.to_string_lossy()))
}

fn empty(place: &str) -> Diagnostic {
    Diagnostic::new("E0755", "the prompt is empty").at(place).hint("write something, or give token ids with `--ids`")
}

pub(super) fn parse_ids(list: &str) -> Result<Vec<u32>> {
    list.split(',')
        .map(|word| {
            word.trim().parse::<u32>().map_err(|_| {
                Diagnostic::new("E0756", format!("`{word}` is not a token id")).at("--ids").hint("ids look like `--ids 2,17,4`")
            })
        })
        .collect()
}

/// Turns from standard input, to `/bye` or its end.
pub(super) fn read_turns(p: &mut Printer, turn: &mut dyn FnMut(&str, &mut Printer) -> Result<(), Stop>) -> Result<(), Stop> {
    let stdin = std::io::stdin();
    let person = stdin.is_terminal();
    if person {
        p.note(&format!("a line is a turn; {BYE} or ctrl-d ends the conversation"));
    }
    let (mut number, mut turns) = (0, 0);
    loop {
        if person {
            p.ask("> ");
        }
        let mut bytes = vec![];
        let read = stdin.lock().read_until(b'\n', &mut bytes);
        number += 1;
        let place = format!("line {number} of standard input");
        match read {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) => return Err(Diagnostic::new("E0760", format!("cannot be read: {e}")).at(place).into()),
        }
        let line = String::from_utf8(bytes).map_err(|_| Diagnostic::new("E0755", "the prompt is not UTF-8").at(place))?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim().is_empty() {
            continue;
        }
        if line.trim() == BYE {
            return Ok(());
        }
        turns += 1;
        turn(line, p)?;
    }
    if turns == 0 && !person {
        return Err(empty("standard input").into());
    }
    Ok(())
}

/// A conversation, or prompts one after the other.
struct Turns<'a> {
    args: &'a RunArgs,
    text: Option<&'a Text>,
    stop: Vec<u32>,
    engine: Engine,
    logits: Option<Pending>,
    recorder: Option<Recorder>,
    history: Vec<Message>,
    /// Prompts of a conversation that is held again.
    asked: Vec<String>,
    /// Its turns so far, where their digests are asked for.
    turns: Vec<Turn>,
    /// Nothing is printed: it was before.
    quiet: bool,
    origin: &'static str,
    compile: Duration,
    load: Duration,
}

impl Turns<'_> {
    /// Turns from standard input.
    fn lines(&mut self, p: &mut Printer) -> Result<(), Stop> {
        read_turns(p, &mut |line, p| self.turn(line, p))
    }

    /// Holds the conversation again, until it was held so many times; a repeat that is not the first as bits is an error.
    fn repeat(&mut self, input: &Input, times: u32, p: &mut Printer) -> Result<(), Stop> {
        let (first, asked) = (std::mem::take(&mut self.turns), std::mem::take(&mut self.asked));
        self.quiet = true;
        for number in 2..=times {
            self.engine.session().reset();
            self.history = Form::of(self.args).beginning();
            match input {
                Input::Ids(ids) => _ = self.answer(ids, show_of(self.args, true), p)?,
                _ => asked.iter().try_for_each(|prompt| self.turn(prompt, p))?,
            }
            digest::same(&first, &std::mem::take(&mut self.turns), number, times)?;
            self.asked.clear();
            p.progress("repeats", number as usize, times as usize);
        }
        let digest = digest::of_turns(&first);
        if self.args.json {
            return p.line(&json!({"repeat": times, "logits": digest}).to_string());
        }
        let times = if times == 1 { "once".to_string() } else { format!("{times} times the same") };
        p.note(&format!("{times}; digest of all logits {digest}"));
        Ok(())
    }

    /// One turn: the whole history is rendered again; what it shares with what was computed is not computed again.
    fn turn(&mut self, prompt: &str, p: &mut Printer) -> Result<(), Stop> {
        let text = self.text.ok_or_else(no_tokenizer)?;
        if digests(self.args) {
            self.asked.push(prompt.into());
        }
        if self.args.raw {
            let ids = text.raw_prompt(prompt, self.args.special)?;
            self.answer(&ids, Show::Raw, p)?;
            return Ok(());
        }
        self.history.push(Message::new(Role::User, prompt));
        let ids = text.chat_prompt(&self.history, self.args.thinking, self.args.special)?;
        let g = self.answer(&ids, show_of(self.args, false), p)?;
        self.history.push(Message::new(Role::Model, text.reply(&g.ids)));
        Ok(())
    }

    /// Generates, and prints what comes.
    fn answer(&mut self, prompt: &[u32], show: Show, p: &mut Printer) -> Result<Generation, Stop> {
        let args = self.args;
        let mut file = match self.logits.take() {
            Some(pending) => Some(LogitsFile::begin(pending, self.engine.vocab())?),
            None => None,
        };
        let mut digest = digests(args).then(Digest::default);
        let asked = file.is_some() || digest.is_some();
        let mut row = |r: &[f32]| {
            file.iter_mut().for_each(|f| f.row(r));
            digest.iter_mut().for_each(|d| d.row(r));
        };
        let logits: Option<LogitsSink> = if asked { Some(&mut row) } else { None };
        let mut stream = self.text.map(|text| ReplyStream::new(text, show));
        let (mut first, quiet) = (true, self.quiet);
        let mut broken = None;
        let mut on_token = |id: u32| {
            let piece = match &mut stream {
                Some(s) => s.push(id),
                // Ids as `--ids` takes them.
                None if std::mem::take(&mut first) => id.to_string(),
                None => format!(",{id}"),
            };
            match if args.json || quiet || piece.is_empty() { Ok(()) } else { p.data(&piece) } {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    broken = Some(e);
                    ControlFlow::Break(())
                }
            }
        };
        let g = self.engine.generate(&Request { prompt, max: args.most(), stop: &self.stop }, logits, &mut on_token)?;
        if let Some(r) = &self.recorder {
            r.next_turn();
        }
        if let Some(e) = broken {
            return Err(e);
        }
        if let Some(logits) = digest {
            self.turns.push(Turn { from: g.kept, ids: g.ids.clone(), logits });
        }
        if quiet {
            return Ok(g);
        }
        if !args.json {
            p.line(&stream.map(ReplyStream::finish).unwrap_or_default())?;
        }
        if let Some(f) = file {
            f.finish(&[prompt, &g.ids].concat())?;
        }
        if args.json {
            p.line(&self.json(prompt, &g, show))?;
        } else {
            p.note(&report(prompt.len(), &g));
        }
        Ok(g)
    }

    fn json(&self, prompt: &[u32], g: &Generation, show: Show) -> String {
        json!({
            "prompt_ids": prompt,
            "generated_ids": g.ids,
            "text": self.text.map(|text| text_of(text, &g.ids, show)),
            "stop": g.stop.name(),
            "kept": g.kept,
            "program": self.origin,
            "seconds": {
                "compile": self.compile.as_secs_f64(),
                "load": self.load.as_secs_f64(),
                "prefill": g.prefill.as_secs_f64(),
                "decode": g.decode.as_secs_f64(),
            },
        })
        .to_string()
    }
}

/// One line on what a turn took.
fn report(prompt: usize, g: &Generation) -> String {
    let rate = |n: usize, t: Duration| format!("{:.0} tok/s", n as f64 / t.as_secs_f64().max(1e-9));
    let kept = if g.kept > 0 { format!(" ({} kept)", g.kept) } else { String::new() };
    let prefill = rate(prompt - g.kept, g.prefill);
    // The first token comes with the prompt.
    let decode = if g.ids.len() > 1 { format!(", {}", rate(g.ids.len() - 1, g.decode)) } else { String::new() };
    format!("prompt {prompt} tokens{kept}, {prefill}; generated {} tokens{decode}; {}", g.ids.len(), g.stop.name())
}
