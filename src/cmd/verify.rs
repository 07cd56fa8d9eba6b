//! `isobit verify`: runs the tokens of a trace again, on this machine, and compares the digests. Exit code 0: they are the same,
//! 1: they differ, 2: it could not be done.

use super::{Stop, diff};
use crate::args::VerifyArgs;
use crate::artifact::Artifact;
use crate::diff::traces::{self, Side};
use crate::engine::{Engine, EngineOptions};
use crate::gpu;
use crate::printer::Printer;
use crate::target::Target;
use crate::trace::{Row, Subject, Trace, Wish};
use ir::diag::{Diagnostic, Result};
use runtime::session::Session;
use runtime::trace::Request;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Runs it.
pub fn run(args: &VerifyArgs, p: &mut Printer) -> Result<(), Stop> {
    let trace = Trace::open(&args.trace)?;
    let artifact = Artifact::open(&args.artifact)?;
    let (program, number) = match args.target.as_deref() {
        Some("interp") => (artifact.interpreted()?, 0),
        name => {
            let named = name.map(Target::parse).transpose()?;
            let place = gpu::place(args.device, named, &artifact.targets(), &gpu::look)?;
            (artifact.program(place.target)?, place.gpu)
        }
    };
    let (checkpoint, graph) = (artifact.checkpoint(&mut |what, done, of| p.progress(what, done, of))?, artifact.graph()?);
    if checkpoint.table_hash() != trace.header.model.table_hash {
        return Err(Diagnostic::new("E0808", "the trace is of another model than the artifact")
            .at(args.trace.display())
            .hint("its configuration, or names or shapes of its tensors differ")
            .into());
    }
    let longest = trace.rows.iter().map(|r| r.position as usize + 1).max().unwrap_or(0);
    let steps = steps(&trace);
    let chunk = steps.iter().map(|s| s.len()).max().unwrap_or(1);
    let options = EngineOptions {
        context: Some(longest.max(1)),
        chunk: Some(chunk),
        threads: args.threads.map(|n| n as usize),
        gpu: number,
        logits: true,
        ..EngineOptions::default()
    };
    let mut engine = Engine::open(&checkpoint, &program, &options, &mut |what, done, of| p.progress(what, done, of))?;
    let all = trace.header.kv == "full";
    let wish = Wish { mode: None, all, values: vec![] };
    let subject = Subject { checkpoint: &checkpoint, program: &program, graph: &graph, launch: None };
    let header = subject.header(&engine, &wish);
    let (rows, turn) = (Rc::new(RefCell::new(vec![])), Rc::new(Cell::new(0)));
    let (out, now) = (rows.clone(), turn.clone());
    let sink = move |r: &runtime::trace::Row| {
        let digests = r.digests.to_vec();
        let (position, token) = (r.position as u64, r.token);
        out.borrow_mut().push(Row { turn: now.get(), step: r.step, plan: r.plan, position, token, text: None, digests });
        Ok(())
    };
    let request = Request { mode: wish.mode(&program), all, wanted: Box::new(|_| false), sink: Box::new(sink) };
    engine.session().trace(&graph, request)?;
    for (i, step) in steps.iter().enumerate() {
        p.progress("steps", i, steps.len());
        turn.set(step[0].turn);
        again(engine.session(), &trace, step)?;
    }
    drop(engine);
    let ran = Trace { header, rows: rows.take(), cut: false };
    let name = |path: &std::path::Path| path.display().to_string();
    let [a, b] =
        [(name(&args.trace), &trace), (name(&args.artifact), &ran)].map(|(name, trace)| Side { name, trace, values: None });
    diff::tell(&traces::diff(&a, &b)?, args.json, p)
}

/// The rows of each step of the device, in order.
fn steps(trace: &Trace) -> Vec<&[Row]> {
    trace.rows.chunk_by(|a, b| (a.turn, a.step, a.plan) == (b.turn, b.step, b.plan)).collect()
}

/// Runs a step again, after what it needs of the positions in front of it.
fn again(s: &mut Session, trace: &Trace, step: &[Row]) -> Result<()> {
    let at = step[0].position as usize;
    let broken = |what: &str| {
        let m = format!("position {at} of turn {} {what}", step[0].turn);
        Err(Diagnostic::new("E0808", m).hint("the trace lacks rows: record it again"))
    };
    if step.iter().enumerate().any(|(i, r)| r.position as usize != at + i) {
        return broken("is followed by another than the next");
    }
    let Some(before) = s.tokens().get(..at) else { return broken("follows on positions that the trace lacks") };
    let tokens: Vec<u32> = before.iter().copied().chain(step.iter().map(|r| r.token)).collect();
    let mut kept = s.reuse(&tokens);
    if kept > at {
        s.reset();
        kept = 0;
    }
    let logits = trace.header.plans[step[0].plan].values.iter().position(|v| v.name == "logits");
    let outputs = logits.map_or(0, |l| step.iter().filter(|r| r.digests[l].is_some()).count());
    if kept < at {
        s.run(&tokens[kept..at], step.len(), 0, &mut |_| {})?;
    }
    s.run(&tokens[at..], step.len(), outputs, &mut |_| {}).map(|_| ())
}
