//! `isobit opt`: passes over a graph in text form, from a dump or a reproducer.

use super::{Stop, resolve_passes};
use crate::args::OptArgs;
use crate::files::{self, Pending};
use crate::opt::{self, Input, Outcome, Task};
use crate::options::CompileOptions;
use crate::printer::Printer;
use crate::target::Target;
use ir::diag::{Diagnostic, Result};
use passes::{Manager, Pipeline};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;

/// Larger texts are not read.
const MOST: u64 = 1 << 30;

/// Runs it.
pub fn run(args: &OptArgs, p: &mut Printer) -> Result<(), Stop> {
    // What is wrong with the command line is told before a file is read.
    let given = args.passes.as_deref().map(Pipeline::parse).transpose()?;
    let mut o = CompileOptions::default();
    resolve_passes(&args.build, &mut o)?;
    let schedule = args.target.as_deref().map(Target::parse).transpose()?.map(|t| t.class().schedule(false));
    let output = args.output.as_deref().map(Pending::file).transpose()?;
    let reproducer = args.reproducer.as_deref().map(Pending::file).transpose()?;
    let file = if args.file == "-" { "standard input".to_string() } else { Path::new(&args.file).display().to_string() };
    let text = read_text(&args.file, &file)?;
    let recipe = opt::recipe(&text)?;
    let mut task = Task { verify_each: args.verify_each, after: args.after.clone(), ..Task::default() };
    match (given, recipe) {
        (given, Some((pipeline, options))) => {
            task.pipeline = given.unwrap_or(pipeline);
            o.passes = options;
            resolve_passes(&args.build, &mut o)?;
        }
        (Some(given), None) => task.pipeline = given,
        (None, None) => {
            return Err(Diagnostic::new("E0750", "no passes are named, and the text is no reproducer, which brings its own")
                .hint("name them with `--passes fold,cse`; `--passes ''` only reads and verifies")
                .into());
        }
    }
    o.passes.schedule = schedule.unwrap_or(o.passes.schedule);
    task.options = o.passes;
    Manager::default().check(&task.pipeline, &task.options)?;
    if let Some(bad) = task.after.iter().find(|a| !task.pipeline.entries.iter().any(|e| e.pass == **a)) {
        return Err(Diagnostic::new("E0750", format!("`{bad}` is none of the passes that run")).at("--after").into());
    }
    let input = opt::read(&text, &file).map_err(|all| report(all, p))?;
    let (result, stats) = match input {
        Input::Graph(g) => {
            let done = match opt::run(g, &task) {
                Ok(done) => done,
                Err(stopped) => {
                    if let (Some(pending), Some(text)) = (reproducer, stopped.reproducer) {
                        files::write(pending.path(), text.as_bytes())?;
                        pending.commit()?;
                    }
                    return Err(stopped.diagnostic.into());
                }
            };
            (shown(&done, &task), stats(&done))
        }
        other if task.pipeline.entries.is_empty() => (opt::print(&other), json!({"passes": [], "decisions": []})),
        _ => {
            return Err(Diagnostic::new("E0750", "passes run over a graph, and this is the text of a plan or of kernels")
                .at(file)
                .hint("`--passes ''` reads and verifies it")
                .into());
        }
    };
    match output {
        Some(pending) => {
            files::write(pending.path(), result.as_bytes())?;
            pending.commit()?;
        }
        None if !args.json => p.data(&result)?,
        None => {}
    }
    if args.json { p.line(&stats.to_string()) } else { Ok(()) }
}

/// The file, or standard input.
/// A text, from a file or from standard input (`-`); `file` names it in messages.
pub(super) fn read_text(path: &OsStr, file: &str) -> Result<String> {
    let failed = |e: std::io::Error| Diagnostic::new("E0760", format!("cannot be read: {e}")).at(file);
    let mut bytes = vec![];
    if path == "-" {
        std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let f = std::fs::File::open(path).map_err(failed)?;
        f.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > MOST {
        return Err(Diagnostic::new("E0771", format!("more than {MOST} bytes; no graph is so large")).at(file));
    }
    String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        Diagnostic::new("E0771", "the text is not UTF-8").at(format!("{file}:{line}"))
    })
}

/// Prints all but the last, which ends the command.
fn report(mut all: Vec<Diagnostic>, p: &mut Printer) -> Stop {
    let last = all.pop();
    all.iter().for_each(|d| p.error(d));
    Stop::Failed(last.unwrap_or_else(|| Diagnostic::new("E0768", "refused without a reason")))
}

/// The result, or the module after each pass that was asked for, under a comment with its name.
fn shown(done: &Outcome, task: &Task) -> String {
    if task.after.is_empty() {
        return done.text();
    }
    done.printed.iter().map(|(pass, text)| format!("// after {pass}\n{text}")).collect()
}

fn stats(done: &Outcome) -> Value {
    let steps = done.report.steps.iter();
    let passes: Vec<Value> =
        steps.map(|s| json!({"pass": s.pass, "ran": s.ran, "changed": s.changed, "stats": s.stats})).collect();
    json!({"passes": passes, "decisions": done.report.decisions})
}
