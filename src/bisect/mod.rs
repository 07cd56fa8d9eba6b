//! Two configurations, and what makes their logits differ. "Differ" is always said of the bits of logits; chosen tokens are
//! reported apart, since most differences choose the same token. How configurations run is the business of [`crate::cmd`].

pub mod deltas;
pub mod minimal;
pub mod odds;

use crate::digest::Digest;
use serde_json::{Value, json};

/// One run.
#[derive(Clone)]
pub struct Run {
    /// Logits of every position.
    pub logits: Digest,
    /// Generated ids.
    pub ids: Vec<u32>,
}

impl Run {
    /// The first position whose logits are others as bits.
    pub fn parts_from(&self, other: &Run) -> Option<usize> {
        self.logits.parts_from(&other.logits)
    }
}

/// Runs of one configuration, sorted by their logits: a run of each kind and how many there were, in order of appearance.
#[derive(Clone, Default)]
pub struct Tally {
    /// Kinds.
    pub kinds: Vec<(Run, u32)>,
}

impl Tally {
    /// Adds a run.
    pub fn add(&mut self, run: Run) {
        match self.kinds.iter_mut().find(|(r, _)| r.parts_from(&run).is_none()) {
            Some((_, n)) => *n += 1,
            None => self.kinds.push((run, 1)),
        }
    }

    /// The most frequent run, the earliest of equals.
    pub fn usual(&self) -> Option<&Run> {
        let most = self.kinds.iter().map(|k| k.1).max()?;
        self.kinds.iter().find(|k| k.1 == most).map(|k| &k.0)
    }

    /// Runs in all.
    pub fn runs(&self) -> u32 {
        self.kinds.iter().map(|k| k.1).sum()
    }

    /// Runs whose logits are not those of `reference`, and the first of them.
    pub fn others<'a>(&'a self, reference: &Run) -> (u32, Option<&'a Run>) {
        let mut other = self.kinds.iter().filter(|(r, _)| r.parts_from(reference).is_some());
        let first = other.clone().next().map(|k| &k.0);
        (other.by_ref().map(|k| k.1).sum(), first)
    }

    /// Runs that chose other tokens than `reference`.
    pub fn flipped(&self, reference: &Run) -> u32 {
        self.kinds.iter().filter(|(r, _)| r.ids != reference.ids).map(|k| k.1).sum()
    }

    /// A line for people, against the usual run of A.
    pub fn line(&self, reference: &Run) -> String {
        let (runs, kinds) = (self.runs(), self.kinds.len());
        let (other, _) = self.others(reference);
        let many = |n: u32| if n == 1 { "1 run".to_string() } else { format!("{n} runs") };
        let mut s = many(runs);
        if runs > 1 && kinds == 1 {
            s += ", all the same";
        } else if kinds > 1 {
            let counts: Vec<String> = self.kinds.iter().map(|k| k.1.to_string()).collect();
            s += &format!(", {kinds} results ({})", counts.join(", "));
        }
        if other > 0 {
            let flipped = self.flipped(reference);
            s += &format!("; logits differ from A's in {other} of {runs}, chosen tokens in {flipped}");
        }
        s
    }

    /// For programs.
    pub fn json(&self, reference: &Run) -> Value {
        let of = |(r, n): &(Run, u32)| json!({"logits": r.logits.hex(), "ids": r.ids, "runs": n});
        let (differ, _) = self.others(reference);
        json!({
            "runs": self.runs(),
            "differ": differ,
            "flipped": self.flipped(reference),
            "results": self.kinds.iter().map(of).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_their_bits_and_tokens_apart() {
        let run = |x: f32, id: u32| {
            let mut logits = Digest::default();
            logits.row(&[x]);
            Run { logits, ids: vec![id] }
        };
        let mut t = Tally::default();
        for (x, id) in [(1.0, 7), (2.0, 7), (2.0, 7), (3.0, 8)] {
            t.add(run(x, id));
        }
        let usual = t.usual().unwrap().clone();
        assert_eq!((usual.parts_from(&run(2.0, 0)), t.runs(), t.kinds.len()), (None, 4, 3));
        assert_eq!((t.others(&usual).0, t.flipped(&usual)), (2, 1));
        assert_eq!(t.line(&usual), "4 runs, 3 results (1, 2, 1); logits differ from A's in 2 of 4, chosen tokens in 1");
    }
}
