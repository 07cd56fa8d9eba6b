//! Several prompts on one engine: as many together as there are slots, each admitted when one is free.

use crate::digest::Digest;
use crate::engine::{Engine, StopReason, over};
use ir::diag::Result;
use runtime::sequences::Sequences;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What is generated.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Whole prompts.
    pub prompts: &'a [Vec<u32>],
    /// Most tokens to generate for each.
    pub max: usize,
    /// Ids that end a generation.
    pub stop: &'a [u32],
    /// Make the digests of all logits; then every prompt is computed as a whole.
    pub digest: bool,
}

/// What came out for one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Generated ids, with the one that ended it.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens of the prompt that were not computed, because an earlier prompt began with them.
    pub kept: usize,
    /// Of all logits, if it was asked for.
    pub digest: Option<String>,
}

/// What it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Steps.
    pub steps: usize,
    /// Tokens that were run.
    pub run: usize,
    /// Tokens of prompts that were not.
    pub kept: usize,
    /// Tokens that were generated.
    pub generated: usize,
    /// Most sequences of one step.
    pub together: usize,
    /// Time.
    pub time: Duration,
}

/// Takes the number of a prompt that ended and what came out, and may break off.
pub type OnEnd<'a> = &'a mut dyn FnMut(usize, Result<Finished>) -> ControlFlow<()>;

/// Greedy generation for all prompts. They end in any order. What fails in one sequence is told as its end.
pub fn run(engine: &mut Engine, batch: &Batch, on_end: OnEnd) -> Result<Report> {
    let Batch { prompts, max, stop, digest } = *batch;
    let (context, chunk, vocab, start) = (engine.context(), engine.chunk(), engine.vocab(), Instant::now());
    let mut sequences = Sequences::new(engine.session(), chunk);
    let mut waiting = 0..prompts.len();
    let mut live: BTreeMap<usize, (usize, Finished)> = BTreeMap::new();
    let mut digests: BTreeMap<usize, Digest> = BTreeMap::new();
    let mut report = Report::default();
    'steps: loop {
        while sequences.free() > 0
            && let Some(i) = waiting.next()
        {
            let (slot, kept) = sequences.admit(&prompts[i], digest)?;
            digests.insert(slot, Digest::default());
            (report.run, report.kept) = (report.run + prompts[i].len() - kept, report.kept + kept);
            live.insert(slot, (i, Finished { ids: vec![], stop: StopReason::Length, kept, digest: None }));
        }
        if live.is_empty() {
            break;
        }
        report.steps += 1;
        report.together = report.together.max(live.len());
        for ended in sequences.step(&mut |slot, row| digests.entry(slot).or_default().row(&row[..vocab.min(row.len())]))? {
            let Some((i, mut f)) = live.remove(&ended.slot) else { continue };
            let over = match ended.next {
                Ok(_) if max == 0 => Some(Ok(StopReason::Length)),
                Ok(next) => {
                    f.ids.push(next);
                    report.generated += 1;
                    over(prompts[i].len(), &f.ids, max, stop, context).map(Ok)
                }
                Err(d) => Some(Err(d)),
            };
            let Some(over) = over else {
                if let Some(next) = f.ids.last() {
                    sequences.push(ended.slot, *next)?;
                    report.run += 1;
                }
                live.insert(ended.slot, (i, f));
                continue;
            };
            sequences.finish(ended.slot);
            f.digest = digests.remove(&ended.slot).filter(|_| digest).map(|d| d.hex());
            if on_end(i, over.map(|stop| Finished { stop, ..f })).is_break() {
                break 'steps;
            }
        }
    }
    report.time = start.elapsed();
    Ok(report)
}
