//! `isobit gap`: how near the ties of a generation are, what float64 says of them, and how little noise flips them.

use super::Stop;
use super::load::{self, Loaded};
use super::run::{Form, engine_options, loaded, no_tokenizer, parse_ids, read_turns, stop_ids, utf8};
use crate::args::GapArgs;
use crate::engine::{Engine, Request, Room};
use crate::files::Pending;
use crate::gap::flip::{self, Noise};
use crate::gap::replace::Replaced;
use crate::gap::report::{Near, Report};
use crate::gap::{Judge, Token, Turn, plot};
use crate::options::CompileOptions;
use crate::printer::Printer;
use crate::source::{Source, model_and_prompt};
use ir::diag::{Diagnostic, Result};
use models::gemma4::layers::graph;
use models::{Checkpoint, Message, Role, Text};
use std::ops::ControlFlow;

/// Logits further from float64 than this part of their range are no rounding errors.
const FAULT: f64 = 3e-5;
/// The range of logits where nothing caps them.
const RANGE: f64 = 30.0;

/// What is asked.
enum Input {
    Ids(Vec<u32>),
    Prompt(String),
    Lines,
}

fn parts(args: &GapArgs) -> Result<(Source, Input, CompileOptions)> {
    let run = &args.run;
    let misfit = |what: &str, place: &str| Err(Diagnostic::new("E0810", what).at(place));
    if run.batch.is_some() || run.slots.is_some() {
        return misfit("gaps are of one conversation, not of many prompts at once", "--batch");
    }
    if run.logits.is_some() {
        return misfit("`isobit gap` keeps no logits: `isobit run --logits` does", "--logits");
    }
    if run.trace.is_some() || run.digest || run.repeat.is_some() || run.check.is_some() {
        return misfit(
            "`isobit gap` makes no traces, digests and checks: `isobit run` does",
            "--trace, --digest, --repeat, --check",
        );
    }
    if run.n == Some(0) {
        return misfit("gaps are of generated tokens, and none is to be generated", "-n");
    }
    if args.from.is_some() && args.overrides.is_empty() {
        return misfit("`--from` says where `--override` takes weights from, and there is none", "--from");
    }
    let (source, prompt) = model_and_prompt("gap", run.model.as_deref(), run.prompt.as_deref())?;
    let input = match (&run.ids, prompt) {
        (Some(_), Some(_)) => return Err(Diagnostic::new("E0750", "a prompt is given both as text and as `--ids`")),
        (Some(ids), None) => Input::Ids(parse_ids(ids)?),
        (None, Some(prompt)) => match utf8(prompt, "the prompt")? {
            empty if empty.trim().is_empty() => return Err(Diagnostic::new("E0755", "the prompt is empty").at("PROMPT")),
            prompt => Input::Prompt(prompt.to_string()),
        },
        (None, None) => Input::Lines,
    };
    Ok((source, input, load::check(&run.exec)?))
}

/// Refuses a command line that contradicts itself.
pub(super) fn check(args: &GapArgs) -> Result<()> {
    parts(args).map(|_| ())
}

/// Another checkpoint, which has to read the same ids.
fn other(word: &std::ffi::OsStr, option: &str, ck: &Checkpoint, p: &mut Printer) -> Result<Checkpoint> {
    let other = match Source::of(word) {
        // Judged in float64, so nothing of what was compiled counts.
        Source::Artifact(dir) => crate::artifact::Artifact::open(&dir)?.checkpoint(&mut |_, _, _| {})?,
        source => super::checkpoint(&source, None, p)?,
    };
    let (a, b) = (ck.config().vocab_size, other.config().vocab_size);
    if a != b {
        return Err(Diagnostic::new("E0811", format!("it has {b} tokens and the model {a}, so its ids mean something else"))
            .at(option)
            .hint("compare checkpoints of one model: quantized otherwise, or not at all"));
    }
    Ok(other)
}

/// Runs it.
pub fn run(args: &GapArgs, p: &mut Printer) -> Result<(), Stop> {
    let (source, input, options) = parts(args)?;
    let svg = args.svg.as_deref().map(Pending::file).transpose()?;
    let form = Form::of(&args.run);
    let look = |ck: &Checkpoint, text: Option<&Text>| {
        let room = Room::new(ck, args.run.exec.context)?;
        match (&input, text) {
            (Input::Ids(ids), _) => room.check(ids).map_err(|d| d.at("--ids")),
            (_, None) => Err(no_tokenizer().at(ck.place())),
            (Input::Prompt(prompt), Some(text)) => room.check(&form.first_turn(text, prompt)?),
            (Input::Lines, Some(text)) => form.first_turn(text, "Hello").map(|_| ()),
        }
    };
    let ids = args.run.ids.is_some();
    let Loaded { checkpoint: ck, text, program, gpu, embed, origin, time, .. } =
        load::load(&source, &args.run.exec, ids, false, options, &look, p)?;
    if ck.config().vocab_size < 2 {
        return Err(Diagnostic::new("E0811", "a vocabulary of one token has no second choice").at(ck.place()).into());
    }
    let against = args.against.as_deref().map(|word| other(word, "--against", &ck, p)).transpose()?;
    let from = args.from.as_deref().map(|word| other(word, "--from", &ck, p)).transpose()?;
    let from = from.as_ref().or(against.as_ref()).unwrap_or(&ck);
    // All graphs and weights first: judges only borrow them.
    let base = graph(&ck, embed)?;
    let mut judged = vec![];
    if let Some(other) = &against {
        judged.push(("against", Replaced::new(other, &graph(other, embed)?, other, &[])?));
    }
    if !args.overrides.is_empty() {
        judged.push(("override", Replaced::new(&ck, &base, from, &args.overrides)?));
    }
    let threads = args.run.exec.threads.map_or(runtime::cpu::CpuOptions::default().threads, |n| n as usize);
    let mut judges = vec![Judge::new(&base, &ck, threads)?];
    for (name, (g, weights)) in &judged {
        judges.push(Judge::new(g, weights, threads).map_err(|d| Diagnostic { place: format!("--{name}: {}", d.place), ..d })?);
    }
    let names: Vec<&'static str> = ["float64"].into_iter().chain(judged.iter().map(|j| j.0)).collect();

    let start = std::time::Instant::now();
    let options = engine_options(&args.run.exec, gpu, true);
    let engine = Engine::open(&ck, &program, &options, &mut |what, done, of| p.progress(what, done, of))?;
    p.note(&loaded(&engine, &program, origin, time, start.elapsed()));
    let stop = stop_ids(&args.run, &ck)?;
    let layers = if args.each_layer { ck.config().layers.len() as u32 } else { 0 };
    let mut work = Work { args, layers, stop, engine, judges, turns: vec![] };
    match input {
        Input::Ids(ids) => work.turn(ids, p)?,
        Input::Prompt(prompt) => {
            let ids = form.first_turn(text.as_ref().ok_or_else(no_tokenizer)?, &prompt)?;
            work.turn(ids, p)?;
        }
        Input::Lines => {
            let text = text.as_ref().ok_or_else(no_tokenizer)?;
            let mut history = form.beginning();
            read_turns(p, &mut |line, p| {
                if args.run.raw {
                    return work.turn(text.raw_prompt(line, args.run.special)?, p);
                }
                history.push(Message::new(Role::User, line));
                work.turn(text.chat_prompt(&history, args.run.thinking, args.run.special)?, p)?;
                let said = work.turns.last().map(|t| text.reply(&t.generated)).unwrap_or_default();
                history.push(Message::new(Role::Model, said));
                Ok(())
            })?;
        }
    }
    let near = work.nearest(p)?;
    let report = Report { turns: &work.turns, near: &near, judges: &names, text: text.as_ref(), seed: args.seed };
    if let Some(pending) = svg {
        std::fs::write(pending.path(), plot::svg(&report))
            .map_err(|e| pending.tell(crate::files::failed("cannot be written", pending.path(), &e)))?;
        pending.commit()?;
    }
    p.data(&if args.run.json { format!("{}\n", report.json()) } else { report.table(args.all) })?;
    let bound = FAULT * ck.config().softcap.unwrap_or(RANGE);
    if report.error() > bound {
        let what = format!("a logit is {:.1e} from float64, more than rounding explains", report.error());
        p.warning(&Diagnostic::new("E0814", what).hint(
            "a near tie between experts can do it; otherwise it is a fault of the kernels: look for the first value that is wrong",
        ));
    }
    Ok(())
}

/// The generation under way.
struct Work<'a> {
    args: &'a GapArgs,
    /// Layers to disturb alone.
    layers: u32,
    stop: Vec<u32>,
    engine: Engine,
    judges: Vec<Judge<'a>>,
    turns: Vec<Turn>,
}

impl Work<'_> {
    /// Generates after a prompt, and judges every token.
    fn turn(&mut self, prompt: Vec<u32>, p: &mut Printer) -> Result<(), Stop> {
        let (number, first) = (self.turns.len(), prompt.len());
        let (mut tokens, mut row) = (vec![], 0);
        let mut sink = |z: &[f32]| {
            row += 1;
            if row >= first {
                tokens.push(Token::new(number, row - first, row, z));
            }
        };
        let mut done = 0;
        let max = self.args.run.most();
        let mut heard = |_: u32| {
            done += 1;
            p.progress("generating", done, max);
            ControlFlow::Continue(())
        };
        let request = Request { prompt: &prompt, max, stop: &self.stop };
        // Rows come for what is computed: of a kept prompt there would be none, and they could not be counted.
        self.engine.session().reset();
        let g = self.engine.generate(&request, Some(&mut sink), &mut heard)?;
        tokens.truncate(g.ids.len());
        if tokens.len() != g.ids.len() || tokens.iter().zip(&g.ids).any(|(t, id)| t.chosen() != *id) {
            return Err(Diagnostic::new("E0812", "the rows of logits are not those that chose the tokens").into());
        }
        let mut turn = Turn { prompt, generated: g.ids, tokens };
        for (i, judge) in self.judges.iter_mut().enumerate() {
            p.progress("float64", i, 0);
            judge.judge(&mut turn)?;
        }
        self.turns.push(turn);
        Ok(())
    }

    /// The nearest ties, with what follows either choice, and the noise that flips them.
    fn nearest(&mut self, p: &mut Printer) -> Result<Vec<Near>, Stop> {
        let mut all: Vec<&Token> = self.turns.iter().flat_map(|t| &t.tokens).collect();
        all.sort_by(|a, b| a.gap().total_cmp(&b.gap()).then((a.turn, a.index).cmp(&(b.turn, b.index))));
        let nearest: Vec<Token> = all.into_iter().take(self.args.top).cloned().collect();
        let mut out = vec![];
        for (i, t) in nearest.iter().enumerate() {
            p.progress("noise", i, nearest.len());
            let (ids, trials) = (self.turns[t.turn].context(t.index), self.args.trials);
            let mut noises: Vec<Noise> = (0..trials).map(|trial| Noise { trial, layer: None }).collect();
            for layer in 0..self.layers {
                noises.extend((0..trials).map(|trial| Noise { trial, layer: Some(layer) }));
            }
            let mut flips = match noises.is_empty() {
                true => vec![],
                false => flip::radii(&mut self.judges[0], &ids, t.chosen(), self.args.seed, &noises)?,
            };
            let single = flips.split_off(flips.len().min(trials as usize));
            let layers = (0..self.layers).zip(single.chunks(trials.max(1) as usize).map(flip::median)).collect();
            let said = &self.turns[t.turn].generated[t.index + 1..];
            // What was generated, or, where that ended for want of room, what would have been.
            let chosen = match said.get(..self.args.after) {
                Some(said) => said.to_vec(),
                None => self.after([&ids[..], &[t.chosen()]].concat())?,
            };
            let second = self.after([&ids[..], &[t.second()]].concat())?;
            out.push(Near { at: (t.turn, t.index), flips, layers, after: [chosen, second] });
        }
        Ok(out)
    }

    /// What the model says after these ids.
    fn after(&mut self, ids: Vec<u32>) -> Result<Vec<u32>> {
        let ended = ids.last().is_some_and(|id| self.stop.contains(id));
        if ended || self.args.after == 0 || ids.len() > self.engine.context() {
            return Ok(vec![]);
        }
        let request = Request { prompt: &ids, max: self.args.after, stop: &self.stop };
        Ok(self.engine.generate(&request, None, &mut |_| ControlFlow::Continue(()))?.ids)
    }
}
