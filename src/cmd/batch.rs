//! `isobit run --batch FILE`: a prompt a line, many together. What they say comes in the order of the lines.

use super::Stop;
use super::load::{self, Loaded};
use super::run::{self, Form};
use crate::args::RunArgs;
use crate::batch::{self, Batch, Finished, Report};
use crate::engine::{Engine, EngineOptions, Room};
use crate::options::CompileOptions;
use crate::printer::Printer;
use crate::reply::{Show, text_of};
use crate::source::Source;
use ir::diag::{Diagnostic, Result};
use models::{Checkpoint, Text};
use serde_json::json;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::Instant;

/// Sequences that run together unless `--slots` says otherwise.
const SLOTS: usize = 16;

/// Prompts of a file.
struct Prompts {
    file: String,
    /// Number of the line, and what stands there; blank lines are none.
    lines: Vec<(usize, String)>,
}

impl Prompts {
    /// Reads all of a file, or of standard input for `-`.
    fn read(file: &OsStr) -> Result<Prompts> {
        let stdin = file == "-";
        let name = if stdin { "standard input".to_string() } else { file.to_string_lossy().into_owned() };
        let mut bytes = vec![];
        let read = if stdin {
            std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
        } else {
            std::fs::read(file).map(|b| bytes = b)
        };
        read.map_err(|e| Diagnostic::new("E0760", format!("cannot be read: {e}")).at(&name))?;
        let mut prompts = Prompts { file: name, lines: vec![] };
        for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let text = std::str::from_utf8(line)
                .map_err(|_| Diagnostic::new("E0755", "the prompt is not UTF-8").at(format!("{}:{}", prompts.file, i + 1)))?;
            if !text.trim().is_empty() {
                prompts.lines.push((i + 1, text.to_string()));
            }
        }
        if prompts.lines.is_empty() {
            return Err(Diagnostic::new("E0755", "there is no prompt").at(&prompts.file).hint("write one a line"));
        }
        Ok(prompts)
    }

    /// Where a prompt stands.
    fn place(&self, i: usize) -> String {
        format!("{}:{}", self.file, self.lines[i].0)
    }

    /// Ids of all, and the context: what they take, if none is asked for.
    fn ids(&self, args: &RunArgs, ck: &Checkpoint, text: Option<&Text>) -> Result<(Vec<Vec<u32>>, usize)> {
        let mut all = vec![];
        for (i, (_, line)) in self.lines.iter().enumerate() {
            let ids = match text {
                Some(text) => Form::of(args).first_turn(text, line),
                None => run::parse_ids(line).map_err(|_| run::no_tokenizer()),
            };
            all.push(ids.map_err(|d| d.at(self.place(i)))?);
        }
        let most = ck.config().max_position_embeddings.max(1);
        let longest = all.iter().map(Vec::len).max().unwrap_or(1);
        let context = args.exec.context.unwrap_or_else(|| longest.saturating_add(args.most()).clamp(1, most));
        let room = Room::new(ck, Some(context))?;
        for (i, ids) in all.iter().enumerate() {
            room.check(ids).map_err(|d| d.at(self.place(i)))?;
        }
        Ok((all, context))
    }
}

/// Runs them.
pub(super) fn run(args: &RunArgs, file: &OsStr, source: &Source, o: CompileOptions, p: &mut Printer) -> Result<(), Stop> {
    let prompts = Prompts::read(file)?;
    let ids = OnceCell::new();
    // What is wrong with a prompt is told before the work.
    let look = |ck: &Checkpoint, text: Option<&Text>| prompts.ids(args, ck, text).map(|found| _ = ids.set(found));
    let Loaded { checkpoint, text, program, gpu, origin, time: compile, .. } =
        load::load(source, &args.exec, true, false, o, &look, p)?;
    let Some((ids, context)) = ids.into_inner() else { return Err(run::no_tokenizer().into()) };
    let start = Instant::now();
    let slots = args.slots.map_or(SLOTS, |n| n as usize).min(ids.len());
    let options = EngineOptions { context: Some(context), slots, ..run::engine_options(&args.exec, gpu, args.digest) };
    let mut engine = Engine::open(&checkpoint, &program, &options, &mut |what, done, of| p.progress(what, done, of))?;
    if !args.json {
        p.note(&run::loaded(&engine, &program, origin, compile, start.elapsed()));
    }
    let stop = run::stop_ids(args, &checkpoint)?;
    let show = run::show_of(args, false);
    // What ended before one of an earlier line.
    let mut held: BTreeMap<usize, String> = BTreeMap::new();
    let (mut next, mut failed) = (0, None);
    let mut on_end = |i: usize, end: Result<Finished>| {
        let ended = match end {
            Ok(f) => {
                held.insert(i, line(args, prompts.lines[i].0, i, &ids[i], &f, text.as_ref(), show));
                Ok(())
            }
            Err(d) => {
                let message = format!("{}: {}", prompts.place(i), d.message);
                Err(Stop::from(Diagnostic { message, ..d }))
            }
        };
        let printed = ended.and_then(|()| {
            while let Some(line) = held.remove(&next) {
                p.line(&line)?;
                next += 1;
            }
            p.progress("prompts", next, prompts.lines.len());
            Ok(())
        });
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(stop) => {
                failed = Some(stop);
                ControlFlow::Break(())
            }
        }
    };
    let report =
        batch::run(&mut engine, &Batch { prompts: &ids, max: args.most(), stop: &stop, digest: args.digest }, &mut on_end)?;
    if let Some(stop) = failed {
        return Err(stop);
    }
    p.note(&summary(&ids, &report));
    Ok(())
}

/// The line of one prompt.
fn line(args: &RunArgs, number: usize, index: usize, prompt: &[u32], f: &Finished, text: Option<&Text>, show: Show) -> String {
    let said = text.map(|text| text_of(text, &f.ids, show));
    if !args.json {
        let ids = || f.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        return format!("{number}\t{}", said.map_or_else(ids, |s| on_one_line(&s)));
    }
    let mut out = json!({
        "index": index,
        "line": number,
        "prompt_ids": prompt,
        "generated_ids": f.ids,
        "text": said,
        "stop": f.stop.name(),
        "kept": f.kept,
    });
    if let Some(digest) = &f.digest {
        out["logits"] = digest.as_str().into();
    }
    out.to_string()
}

/// Text whose ends of lines, tabs and backslashes are spelled out.
fn on_one_line(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out
}

/// One line on what all took.
fn summary(ids: &[Vec<u32>], r: &Report) -> String {
    let (prompts, tokens) = (ids.len(), ids.iter().map(Vec::len).sum::<usize>());
    let rate = r.run as f64 / r.time.as_secs_f64().max(1e-9);
    let kept = if r.kept > 0 { format!(" ({} kept)", r.kept) } else { String::new() };
    format!(
        "prompts {prompts} of {tokens} tokens{kept}, up to {} together; generated {} tokens; steps {}, {rate:.0} tok/s in all",
        r.together, r.generated, r.steps
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_stands_on_one_line() {
        assert_eq!(on_one_line("a\n\tb\\n\r☕"), "a\\n\\tb\\\\n\\r☕");
    }
}
