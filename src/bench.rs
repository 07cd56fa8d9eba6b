//! Measurements of a program: prompts of given lengths, and tokens generated after given numbers of others. The tokens are a
//! function of a seed. What is timed is compared, as bits, with the same run before whose logits were all looked at: there is
//! no speed without a digest.

use crate::digest::Digest;
use crate::engine::Engine;
use ir::diag::{Diagnostic, Result};
use ir::plan::{BufferKind, Plan};
use models::random;
use std::ops::ControlFlow;
use std::time::Instant;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Seed of the token ids.
    pub seed: u64,
    /// Tokens to generate.
    pub n: usize,
    /// Times to measure.
    pub repeat: usize,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Tokens of the prompt, or before those that are generated.
    pub at: usize,
    /// Tokens that were timed.
    pub tokens: usize,
    /// Seconds of each time, in order of size.
    pub seconds: Vec<f64>,
    /// Of the logits of the timed tokens; of a prompt those after its last.
    pub digest: String,
}

impl Measured {
    fn new(at: usize, tokens: usize, mut seconds: Vec<f64>, digest: &Digest) -> Measured {
        seconds.sort_by(f64::total_cmp);
        Measured { at, tokens, seconds, digest: digest.hex() }
    }

    /// Tokens per second: the median, the slowest and the fastest time.
    pub fn rates(&self) -> [f64; 3] {
        let rate = |i: usize| self.tokens as f64 / self.seconds.get(i).copied().unwrap_or(f64::NAN).max(1e-9);
        let last = self.seconds.len().saturating_sub(1);
        [rate(last.div_ceil(2)), rate(last), rate(0)]
    }
}

fn changed(what: &str, at: usize) -> Diagnostic {
    Diagnostic::new("E0798", format!("{what} {at}: a timed run gave other logits than the same run before"))
        .hint("the program or the machine is at fault: no two runs may differ")
}

impl Bench {
    fn tokens(&self, engine: &Engine, n: usize) -> Vec<u32> {
        random::tokens(self.seed, 0..n as u64, u32::try_from(engine.vocab()).unwrap_or(u32::MAX))
    }

    /// A prompt of so many tokens.
    pub fn prefill(&self, engine: &mut Engine, len: usize) -> Result<Measured> {
        let (ids, chunk, vocab) = (self.tokens(engine, len), engine.chunk(), engine.vocab());
        let s = engine.session();
        let mut digest = Digest::default();
        let mut seconds = vec![];
        // Twice before, so that a GPU has captured what it will replay.
        for time in 0..self.repeat + 2 {
            s.reset();
            let mut seen = Digest::default();
            let start = Instant::now();
            s.run(&ids, chunk, 0, &mut |_| {})?;
            let took = start.elapsed().as_secs_f64();
            seen.row(&s.row("logits", 0)?[..vocab]);
            if time == 0 {
                digest = seen;
            } else if digest.hex() != seen.hex() {
                return Err(changed("a prompt of length", len));
            } else if time > 1 {
                seconds.push(took);
            }
        }
        Ok(Measured::new(len, len, seconds, &digest))
    }

    /// Tokens after so many others, each chosen by the one before.
    pub fn decode(&self, engine: &mut Engine, depth: usize) -> Result<Measured> {
        let (ids, chunk, vocab) = (self.tokens(engine, depth + 1), engine.chunk(), engine.vocab());
        let s = engine.session();
        let mut digest = Digest::default();
        let (mut chosen, mut seconds) = (vec![], vec![]);
        for time in 0..self.repeat + 1 {
            let kept = s.reuse(&ids);
            if kept < depth {
                s.run(&ids[kept..depth], chunk, 0, &mut |_| {})?;
            }
            if time == 0 {
                let mut next = ids[depth];
                for _ in 0..self.n {
                    next = s.run(&[next], 1, 1, &mut |row| digest.row(&row[..vocab]))?;
                    chosen.push(next);
                }
                continue;
            }
            let mut ids_now = vec![];
            let start = Instant::now();
            s.generate(ids[depth], self.n, &mut |id| {
                ids_now.push(id);
                ControlFlow::Continue(())
            })?;
            seconds.push(start.elapsed().as_secs_f64());
            if ids_now != chosen || !digest.ends_with(&s.row("logits", 0)?[..vocab]) {
                return Err(changed("tokens at depth", depth));
            }
        }
        Ok(Measured::new(depth, self.n, seconds, &digest))
    }
}

/// Bytes of keys and values that a token at a position reads and writes, as a mean over `n` tokens from position `depth` on.
pub fn cache_bytes(plan: &Plan, depth: usize, n: usize) -> u64 {
    let mut sum = 0u64;
    for b in &plan.buffers {
        if let BufferKind::Keys { heads, dim, window, .. } | BufferKind::Values { heads, dim, window, .. } = b.kind {
            let seen = |at: usize| if window == 0 { at + 1 } else { (at + 1).min(window as usize) };
            let rows: u64 = (depth..depth + n).map(|at| seen(at) as u64).sum();
            sum += rows * u64::from(heads) * u64::from(dim) * 4;
        }
    }
    sum / n.max(1) as u64
}
