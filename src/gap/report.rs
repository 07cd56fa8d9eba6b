//! What was found, for people and for programs.

use super::flip::{Flip, median};
use super::{Token, Turn};
use models::Text;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Characters of context that are shown.
const CONTEXT: usize = 56;
/// Gaps below which tokens are counted.
const BELOW: [f64; 5] = [1.0, 0.1, 0.01, 0.001, 0.0001];
/// Differing tokens that are listed.
const LISTED: usize = 12;

/// A near tie.
#[derive(Clone, Debug, PartialEq)]
pub struct Near {
    /// Its turn and its place in the turn.
    pub at: (usize, usize),
    /// What noise in all layers did, a trial each.
    pub flips: Vec<Flip>,
    /// The middle radius of noise in one layer alone, if that was asked for.
    pub layers: Vec<(u32, Option<f64>)>,
    /// What follows the chosen token, and what would follow the second.
    pub after: [Vec<u32>; 2],
}

/// All of it.
pub struct Report<'a> {
    /// In order.
    pub turns: &'a [Turn],
    /// The nearest ties, the nearest first.
    pub near: &'a [Near],
    /// Names of the judges; the first is the model itself in float64.
    pub judges: &'a [&'static str],
    /// For the text of ids.
    pub text: Option<&'a Text>,
    /// Seed of the noise.
    pub seed: u64,
}

/// A radius, or a gap.
fn short(x: f64) -> String {
    match x.abs() {
        a if a == 0.0 || (1e-3..1e4).contains(&a) => format!("{x:.6}"),
        _ => format!("{x:.2e}"),
    }
}

fn radius(r: Option<f64>) -> String {
    r.map_or("never".into(), |r| if r == 0.0 { "0".into() } else { format!("{r:.1e}") })
}

impl Report<'_> {
    /// All tokens of all turns.
    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.turns.iter().flat_map(|t| &t.tokens)
    }

    fn token(&self, near: &Near) -> Option<&Token> {
        self.turns.get(near.at.0)?.tokens.get(near.at.1)
    }

    /// The text of ids, quoted; without a tokenizer the ids.
    pub fn quoted(&self, ids: &[u32]) -> String {
        match self.text {
            Some(text) => format!("{:?}", text.decode(ids, false)),
            None => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        }
    }

    /// The end of the context that chose a near tie, on one line.
    pub fn context(&self, near: &Near) -> String {
        let ids = self.turns.get(near.at.0).map(|t| t.context(near.at.1)).unwrap_or_default();
        let from = ids.len().saturating_sub(CONTEXT);
        let text = self.quoted(&ids[from..]);
        let text = if self.text.is_some() { text[1..text.len() - 1].to_string() } else { text };
        let all = text.chars().count();
        text.chars().skip(all.saturating_sub(CONTEXT)).collect()
    }

    /// Places of the tokens that judge `j` would choose otherwise.
    fn differing(&self, j: usize) -> Vec<&Token> {
        self.tokens().filter(|t| t.judged.get(j).is_some_and(|s| s.best != t.chosen())).collect()
    }

    /// The largest difference between a logit of the kernels and the same in float64.
    pub fn error(&self) -> f64 {
        self.tokens().filter_map(|t| t.judged.first()).map(|s| s.error).fold(0.0, f64::max)
    }

    fn middle(&self) -> f64 {
        let mut gaps: Vec<f64> = self.tokens().map(Token::gap).collect();
        gaps.sort_by(f64::total_cmp);
        gaps.get(gaps.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn below(&self, limit: f64) -> usize {
        self.tokens().filter(|t| t.gap() < limit).count()
    }

    /// For people.
    pub fn table(&self, all: bool) -> String {
        let (mut out, n) = (String::new(), self.tokens().count());
        if all {
            let head: String = self.judges.iter().map(|j| format!("{j:>12}")).collect();
            let _ = writeln!(out, "turn token {:>12}{head}  chosen | second", "gap");
            for t in self.tokens() {
                let judged: String = t.judged.iter().map(|s| format!("{:>12}", short(s.gap))).collect();
                let words = format!("{} | {}", self.quoted(&[t.chosen()]), self.quoted(&[t.second()]));
                let _ = writeln!(out, "{:>4} {:>5} {:>12}{judged}  {words}", t.turn + 1, t.index, short(t.gap()));
            }
            out.push('\n');
        }
        let below: Vec<String> = BELOW.iter().map(|b| format!("{} below {b}", self.below(*b))).collect();
        let _ = writeln!(
            out,
            "{n} tokens; gap between the two best logits: {:.2} in the middle, {}",
            self.middle(),
            below.join(", ")
        );
        for (j, name) in self.judges.iter().enumerate() {
            let differ = self.differing(j);
            let places: Vec<String> = differ.iter().take(LISTED).map(|t| format!("{}/{}", t.turn + 1, t.index)).collect();
            let more = if differ.len() > LISTED { ", ..." } else { "" };
            let what = match differ.len() {
                0 => "chooses the same token everywhere".to_string(),
                d => format!("chooses another token at {d} of {n} places (turn/token {}{more})", places.join(", ")),
            };
            let error = if j == 0 { format!("; logits within {:.1e} of it", self.error()) } else { String::new() };
            let _ = writeln!(out, "{name}: {what}{error}");
        }
        for near in self.near {
            let Some(t) = self.token(near) else { continue };
            let judged = self.judges.iter().zip(&t.judged).map(|(j, s)| format!("; {j} {}", short(s.gap)));
            let _ = write!(out, "\nturn {} token {}: gap {}{}", t.turn + 1, t.index, short(t.gap()), judged.collect::<String>());
            let _ = writeln!(out, "\n  {}", self.context(near));
            for (what, id, after) in [("chosen", t.chosen(), &near.after[0]), ("second", t.second(), &near.after[1])] {
                let _ = writeln!(out, "  {what} {:<14} {}", self.quoted(&[id]), self.quoted(after));
            }
            if !near.flips.is_empty() {
                let _ = writeln!(out, "  {}", self.noise(near));
            }
        }
        out
    }

    /// A line on the noise that flips a near tie.
    fn noise(&self, near: &Near) -> String {
        let (n, all) = (near.flips.iter().filter(|f| f.radius.is_some()).count(), near.flips.len());
        let radii = near.flips.iter().filter_map(|f| f.radius);
        let least = radii.clone().fold(f64::INFINITY, f64::min);
        let to: Vec<String> = self.winners(near).iter().map(|(id, n)| format!("{} in {n}", self.quoted(&[*id]))).collect();
        let mut out = match median(&near.flips) {
            _ if n == 0 => format!("no noise makes another token win, in {all} trials"),
            Some(0.0) => format!("float64 chooses another token without noise: {}", self.quoted(&[near.flips[0].to])),
            r => format!(
                "noise of {} in every layer's output makes another token win (least {}; {n} of {all} trials: {})",
                radius(r),
                radius(Some(least)),
                to.join(", ")
            ),
        };
        if !near.layers.is_empty() {
            let list: Vec<String> = near.layers.iter().map(|(l, r)| format!("{l}: {}", radius(*r))).collect();
            let _ = write!(out, "\n  in one layer alone: {}", list.join(", "));
        }
        out
    }

    /// The tokens that noise made win, with the number of trials, the most frequent first.
    fn winners(&self, near: &Near) -> Vec<(u32, usize)> {
        let mut count: BTreeMap<u32, usize> = BTreeMap::new();
        near.flips.iter().filter(|f| f.radius.is_some()).for_each(|f| *count.entry(f.to).or_default() += 1);
        let mut all: Vec<(u32, usize)> = count.into_iter().collect();
        all.sort_by_key(|(id, n)| (std::cmp::Reverse(*n), *id));
        all
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let text = |ids: &[u32]| self.text.map(|t| t.decode(ids, false));
        let token = |t: &Token| {
            let mut o = json!({
                "turn": t.turn, "index": t.index, "position": t.position,
                "id": t.chosen(), "text": text(&[t.chosen()]), "logit": t.top.first().map(|x| x.1),
                "second": { "id": t.second(), "text": text(&[t.second()]), "logit": t.top.get(1).map(|x| x.1) },
                "gap": t.gap(),
            });
            for (name, s) in self.judges.iter().zip(&t.judged) {
                o[*name] = json!({ "gap": s.gap, "best": s.best, "error": s.error });
            }
            o
        };
        let near = |near: &Near| {
            let mut o = self.token(near).map(token).unwrap_or_default();
            o["context"] = json!(self.context(near));
            o["after"] = json!({ "ids": near.after[0], "text": text(&near.after[0]) });
            o["second"]["after"] = json!({ "ids": near.after[1], "text": text(&near.after[1]) });
            let radii: Vec<Option<f64>> = near.flips.iter().map(|f| f.radius).collect();
            let to: Vec<Value> =
                self.winners(near).iter().map(|(id, n)| json!({ "id": id, "text": text(&[*id]), "trials": n })).collect();
            o["noise"] = json!({ "radius": median(&near.flips), "trials": radii, "to": to });
            if !near.layers.is_empty() {
                o["noise"]["layers"] = near.layers.iter().map(|(l, r)| json!({ "layer": l, "radius": r })).collect();
            }
            o
        };
        let differing: serde_json::Map<String, Value> =
            self.judges.iter().enumerate().map(|(j, name)| (name.to_string(), json!(self.differing(j).len()))).collect();
        let below: serde_json::Map<String, Value> = BELOW.iter().map(|b| (b.to_string(), json!(self.below(*b)))).collect();
        let turns: Vec<Value> = self
            .turns
            .iter()
            .map(|t| json!({ "prompt_ids": t.prompt, "generated_ids": t.generated, "text": text(&t.generated) }))
            .collect();
        json!({
            "turns": turns,
            "tokens": self.tokens().map(token).collect::<Vec<_>>(),
            "nearest": self.near.iter().map(near).collect::<Vec<_>>(),
            "below": below,
            "differing": differing,
            "error": self.error(),
            "seed": self.seed,
        })
    }
}
