//! Several sequences on one session. Each has a slot of the caches; a step takes rows of as many of them as there is room for.
//! Sequences are admitted and finished at any time. Logits of each are those of a run alone, as bits: rows of a step know
//! nothing of each other but the keys and values of their own sequence.

use crate::memory::Sizes;
use crate::session::Session;
use ir::diag::{Diagnostic, Result};
use ir::order::KV_BLOCK;
use ir::plan::{row, state};

/// What a slot of the caches holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    /// Tokens whose keys and values are there.
    pub tokens: Vec<u32>,
    /// One past the last position written since position 0 was.
    pub written: usize,
}

impl Slot {
    /// How many tokens of what it holds `prompt` shares: as far as the rings still hold the keys that the next position needs,
    /// and never all of the prompt, as a token must be left to compute.
    pub fn shares(&self, prompt: &[u32], sizes: &Sizes) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = common.min(prompt.len().saturating_sub(1));
        if self.holds(keep, sizes) { keep } else { 0 }
    }

    /// Do the rings hold all keys that position `at` sees?
    fn holds(&self, at: usize, sizes: &Sizes) -> bool {
        if sizes.window == 0 || at == 0 || self.written == 0 {
            return true;
        }
        let block = KV_BLOCK as usize;
        let first = (at + 1).saturating_sub(sizes.window) / block;
        let last = (self.written - 1) / block;
        last < first + sizes.ring_blocks
    }

    /// Forgets all but the first tokens.
    pub fn keep(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        if self.tokens.is_empty() {
            // All that will be read will have been written again.
            self.written = 0;
        }
    }

    /// Takes tokens that were run.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.written = self.written.max(self.tokens.len());
    }
}

/// Rows of a step that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    /// Its slot.
    pub slot: usize,
    /// Position of the first of its tokens.
    pub at: usize,
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// The first of them whose logits are made.
    pub from: usize,
}

/// What kernels are told of a step.
pub(crate) struct Table {
    /// Number of rows.
    pub rows: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// Words of the state buffer.
    pub state: [i32; state::WORDS as usize],
    /// Words of the table of rows.
    pub entries: Vec<i32>,
}

impl Table {
    /// The rows of parts, one part after the other.
    pub fn new(parts: &[Part], sizes: &Sizes) -> Table {
        let rows: usize = parts.iter().map(|p| p.tokens.len()).sum();
        let mut entries = vec![[0i32; row::WORDS as usize]; rows];
        let (mut at, mut outputs) = (0, 0);
        for p in parts {
            for i in 0..p.tokens.len() {
                entries[at + i][row::POSITION as usize] = (p.at + i) as i32;
                entries[at + i][row::SLOT as usize] = p.slot as i32;
            }
            for i in p.from..p.tokens.len() {
                entries[outputs][row::OUTPUT as usize] = (at + i) as i32;
                outputs += 1;
            }
            at += p.tokens.len();
        }
        let mut words = [0i32; state::WORDS as usize];
        for (word, v) in [
            (state::TOKENS, rows),
            (state::OUTPUTS, outputs),
            (state::RING_BLOCKS, sizes.ring_blocks),
            (state::FULL_BLOCKS, sizes.full_blocks),
        ] {
            words[word as usize] = v as i32;
        }
        Table { rows, outputs, state: words, entries: entries.into_flattened() }
    }
}

/// Tokens that a sequence has yet to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its slot.
    pub slot: usize,
    /// Tokens, of which the first `done` were run.
    pub tokens: Vec<u32>,
    /// See there.
    pub done: usize,
    /// The logits of so many of the last tokens are asked for; those of the last are always made, to choose the next.
    pub outputs: usize,
}

impl Job {
    /// Nothing was run yet.
    pub fn new(slot: usize, tokens: &[u32], outputs: usize) -> Job {
        Job { slot, tokens: tokens.to_vec(), done: 0, outputs }
    }

    /// Tokens left.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.done
    }
}

/// Rows that a job gets in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Number of the job.
    pub job: usize,
    /// Rows.
    pub rows: usize,
    /// The first of them whose logits are made.
    pub from: usize,
}

/// Shares the rows and outputs of one step among jobs: first a row for each that has one token left, then rows for the others,
/// at most `chunk` for each; both in the jobs' order, so that the first of them always gets some.
pub(crate) fn share(jobs: &[Job], chunk: usize, mut rows: usize, mut outputs: usize) -> Vec<Share> {
    let order = (0..jobs.len()).filter(|&j| jobs[j].left() == 1).chain((0..jobs.len()).filter(|&j| jobs[j].left() > 1));
    let mut out = vec![];
    for job in order {
        let j = &jobs[job];
        // Up to the first token whose logits are made, and from there as many as there is room for.
        let made = j.tokens.len() - j.outputs.clamp(1, j.tokens.len());
        let n = j.left().min(chunk).min(rows).min(made.saturating_sub(j.done) + outputs);
        if n == 0 {
            continue;
        }
        let from = made.clamp(j.done, j.done + n) - j.done;
        out.push(Share { job, rows: n, from });
        (rows, outputs) = (rows - n, outputs - (n - from));
    }
    out
}

/// A sequence whose last token was run.
#[derive(Debug)]
pub struct Ended {
    /// Its slot.
    pub slot: usize,
    /// The greedy choice after it.
    pub next: Result<u32>,
}

/// Takes a slot and the logits of its sequence's next position.
pub type SlotSink<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// Sequences that run together on a session.
pub struct Sequences<'s> {
    session: &'s mut Session,
    /// In order of admission; with no token left where the sequence waits for one.
    jobs: Vec<Job>,
    chunk: usize,
}

impl<'s> Sequences<'s> {
    /// None yet. A step takes at most `chunk` tokens of one sequence.
    pub fn new(session: &'s mut Session, chunk: usize) -> Sequences<'s> {
        let chunk = chunk.clamp(1, session.limits().chunk);
        Sequences { session, jobs: vec![], chunk }
    }

    /// Sequences that could still be admitted.
    pub fn free(&self) -> usize {
        self.session.limits().slots - self.jobs.len()
    }

    /// Admits a sequence to a free slot; says which, and how many tokens of the prompt need not be computed, because the slot
    /// holds them from before. The slot that holds most is taken. With `logits` those of all positions go to the sink of the
    /// steps, so that all are computed.
    pub fn admit(&mut self, prompt: &[u32], logits: bool) -> Result<(usize, usize)> {
        let free = (0..self.session.limits().slots).filter(|&s| self.jobs.iter().all(|j| j.slot != s));
        let shares = |s: usize| if logits { 0 } else { self.session.shares(s, prompt) };
        let best = free.map(|s| (s, shares(s))).reduce(|a, b| if b.1 > a.1 { b } else { a });
        let Some((slot, kept)) = best else {
            let m = format!("all {} slots hold sequences that run", self.session.limits().slots);
            return Err(Diagnostic::new("E0490", m).hint("finish one first, or ask for more --slots"));
        };
        self.session.keep(slot, kept);
        let fresh = &prompt[kept..];
        self.session.check_room(slot, fresh)?;
        self.jobs.push(Job::new(slot, fresh, if logits { fresh.len() } else { 0 }));
        Ok((slot, kept))
    }

    /// One step. Returns the sequences that now wait for [`Sequences::push`] or [`Sequences::finish`]; nothing runs if all wait.
    pub fn step(&mut self, sink: SlotSink) -> Result<Vec<Ended>> {
        self.session.advance(&mut self.jobs, self.chunk, sink)
    }

    /// Goes on with a sequence that waits.
    pub fn push(&mut self, slot: usize, token: u32) -> Result<()> {
        let Some(job) = self.jobs.iter_mut().find(|j| j.slot == slot && j.left() == 0) else {
            return Err(Diagnostic::new("E0492", format!("no sequence in slot {slot} waits for a token")));
        };
        self.session.check_room(slot, &[token])?;
        *job = Job::new(slot, &[token], job.outputs.min(1));
        Ok(())
    }

    /// Ends a sequence: its slot is free. What it holds may serve a later one with the same beginning.
    pub fn finish(&mut self, slot: usize) {
        self.jobs.retain(|j| j.slot != slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(list: &[(usize, usize)]) -> Vec<Job> {
        list.iter().enumerate().map(|(i, &(n, outputs))| Job::new(i, &vec![7; n], outputs)).collect()
    }

    fn shared(list: &[(usize, usize)], chunk: usize, rows: usize, outputs: usize) -> Vec<(usize, usize, usize)> {
        share(&jobs(list), chunk, rows, outputs).into_iter().map(|s| (s.job, s.rows, s.from)).collect()
    }

    #[test]
    fn rows_are_shared() {
        // Those that continue come first; prompts get the rest in order; those without tokens get nothing.
        assert_eq!(shared(&[(9, 0), (1, 0), (0, 0), (5, 0), (1, 1)], 8, 12, 9), [(1, 1, 0), (4, 1, 0), (0, 8, 8), (3, 2, 2)]);
        // A prompt's last token makes an output, and all that are asked for.
        assert_eq!(shared(&[(5, 0), (6, 4)], 8, 64, 64), [(0, 5, 4), (1, 6, 2)]);
        // Without room for an output only tokens before the first one run.
        assert_eq!(shared(&[(1, 0), (1, 0), (5, 0), (4, 4)], 8, 64, 1), [(0, 1, 0), (2, 4, 4)]);
        assert_eq!(shared(&[(6, 4)], 8, 64, 3), [(0, 5, 2)]);
        assert_eq!(shared(&[(1, 0), (1, 0), (1, 0)], 8, 2, 8), [(0, 1, 0), (1, 1, 0)]);
        assert_eq!(shared(&[], 8, 64, 64), []);
    }

    #[test]
    fn every_job_ends_in_steps_of_any_size() {
        let list = [(9, 0), (1, 1), (12, 12), (3, 2), (1, 0)];
        for (chunk, rows, outputs) in [(1, 1, 1), (2, 3, 1), (5, 5, 5), (64, 64, 3), (64, 64, 64)] {
            let (mut jobs, mut made, mut steps) = (jobs(&list), [0; 5], 0);
            while jobs.iter().any(|j| j.left() > 0) {
                let shares = share(&jobs, chunk, rows, outputs);
                assert!(!shares.is_empty());
                assert!(shares.iter().map(|s| s.rows).sum::<usize>() <= rows);
                assert!(shares.iter().map(|s| s.rows - s.from).sum::<usize>() <= outputs);
                for s in shares {
                    made[s.job] += s.rows - s.from;
                    jobs[s.job].done += s.rows;
                }
                steps += 1;
            }
            assert_eq!(made, list.map(|(_, outputs)| outputs.max(1)), "{chunk} {rows} {outputs}");
            assert!(steps <= 26, "{steps}");
        }
    }

    #[test]
    fn the_table_has_each_row_at_its_place() {
        let sizes = Sizes { slots: 3, window: 0, full_blocks: 9, ring_blocks: 1, tokens: 8, outputs: 8 };
        let parts = [
            Part { slot: 2, at: 40, tokens: &[50], from: 0 },
            Part { slot: 0, at: 3, tokens: &[60, 61, 62], from: 3 },
            Part { slot: 1, at: 0, tokens: &[70, 71], from: 1 },
        ];
        let t = Table::new(&parts, &sizes);
        assert_eq!((t.rows, t.outputs, &t.state[..4]), (6, 2, &[6, 2, 1, 9][..]));
        let of = |word: u32| t.entries.chunks_exact(4).map(|e| e[word as usize]).collect::<Vec<_>>();
        assert_eq!(of(row::POSITION), [40, 3, 4, 5, 0, 1]);
        assert_eq!(of(row::SLOT), [2, 0, 0, 0, 1, 1]);
        assert_eq!(of(row::OUTPUT)[..2], [0, 5]);
    }

    #[test]
    fn a_slot_keeps_what_its_rings_hold() {
        let sizes = Sizes { slots: 1, window: 64, full_blocks: 99, ring_blocks: 4, tokens: 8, outputs: 8 };
        let tokens: Vec<u32> = (0..300).collect();
        let mut s = Slot::default();
        s.extend(&tokens[..100]);
        assert_eq!(s.shares(&tokens[..50], &sizes), 49);
        s.extend(&tokens[100..]);
        assert_eq!((s.shares(&tokens[..50], &sizes), s.shares(&tokens[..300], &sizes)), (0, 299));
        // Another sequence in the slot: what the one before wrote is no concern of it.
        s.keep(0);
        s.extend(&tokens[..100]);
        assert_eq!(s.shares(&tokens[..50], &sizes), 49);
    }
}
