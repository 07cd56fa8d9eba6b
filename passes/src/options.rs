//! What a person asks of the passes: determinism level, switches, values to keep. Plain data with a text form, so that a
//! reproducer can carry it.

use crate::lower::schedule::Schedule;
use ir::diag::{Diagnostic, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The determinism level (DESIGN section 2), weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No promise: the control of an experiment.
    Off,
    /// Same artifact and GPU model: same bits.
    Run,
    /// One set of bits everywhere.
    #[default]
    Portable,
}

impl Level {
    /// All levels, weakest first.
    pub const ALL: [Level; 3] = [Level::Off, Level::Run, Level::Portable];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Run => "run",
            Level::Portable => "portable",
        }
    }

    /// The level of this name.
    pub fn parse(s: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|l| l.name() == s)
    }
}

/// Passes that are off unless they are asked for.
pub const OFF: [&str; 2] = [crate::instrument_trace::NAME, crate::round_activations::NAME];

/// Passes that leave bits to the machine: on at [`Level::Off`], and refused above it.
pub const RELAXED: [&str; 3] = [crate::relax::APPROXIMATE, crate::relax::UNORDERED, crate::relax::CONTRACT];

/// Is a pass on if nobody says so?
pub fn on_by_default(pass: &str, level: Level) -> bool {
    if RELAXED.contains(&pass) { level == Level::Off } else { !OFF.contains(&pass) }
}

/// Options of a compilation that passes read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The level whose promise must be kept.
    pub determinism: Level,
    /// Passes switched on or off by name; what is not named is as [`on_by_default`] says.
    pub switches: BTreeMap<String, bool>,
    /// Fusion rules that are not used.
    pub rules_off: BTreeSet<String>,
    /// Names of values that must reach memory and stay there to the end of a step; `*` stands for any text.
    pub keep: BTreeSet<String>,
    /// Optional decisions numbered above this are not taken.
    pub pass_limit: Option<u64>,
    /// What one launch costs in fusion, in bytes of memory traffic.
    pub launch_cost: u64,
    /// Rows of a launch, about, for the cost of fusion: 1 in a plan for one token.
    pub rows: u32,
    /// Free schedule of the target.
    pub schedule: Schedule,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            determinism: Level::default(),
            switches: BTreeMap::new(),
            rules_off: BTreeSet::new(),
            keep: BTreeSet::new(),
            pass_limit: None,
            launch_cost: crate::fuse::cost::LAUNCH,
            rows: 1,
            schedule: Schedule::HOST,
        }
    }
}

impl Options {
    /// Is this pass switched on?
    pub fn is_on(&self, pass: &str) -> bool {
        self.switches.get(pass).copied().unwrap_or_else(|| on_by_default(pass, self.determinism))
    }

    /// Must this value reach memory and stay?
    pub fn keeps(&self, name: &str) -> bool {
        self.keep.iter().any(|p| glob(p, name))
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Options> {
        let bad = |what: &str| {
            Diagnostic::new("E0708", format!("cannot read the option `{what}`"))
                .hint("options look like `determinism=portable switch.fuse=off rule.NAME=off keep=NAME pass-limit=7`")
        };
        let mut o = Options::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| bad(word))?;
            let on = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(bad(word)),
            };
            if let Some(pass) = key.strip_prefix("switch.") {
                o.switches.insert(pass.into(), on()?);
            } else if let Some(rule) = key.strip_prefix("rule.") {
                if !on()? {
                    o.rules_off.insert(rule.into());
                }
            } else {
                match key {
                    "determinism" => o.determinism = Level::parse(value).ok_or_else(|| bad(word))?,
                    "keep" => {
                        o.keep.insert(value.into());
                    }
                    "pass-limit" => o.pass_limit = Some(value.parse().map_err(|_| bad(word))?),
                    "rows" => o.rows = value.parse().ok().filter(|n| *n > 0).ok_or_else(|| bad(word))?,
                    "schedule" => o.schedule = Schedule::parse(value).ok_or_else(|| bad(word))?,
                    "launch-cost" => o.launch_cost = value.parse().map_err(|_| bad(word))?,
                    _ => return Err(bad(word)),
                }
            }
        }
        Ok(o)
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "determinism={}", self.determinism.name())?;
        for (name, on) in &self.switches {
            write!(f, " switch.{name}={}", if *on { "on" } else { "off" })?;
        }
        for name in &self.rules_off {
            write!(f, " rule.{name}=off")?;
        }
        for name in &self.keep {
            write!(f, " keep={name}")?;
        }
        if let Some(n) = self.pass_limit {
            write!(f, " pass-limit={n}")?;
        }
        if self.rows != 1 {
            write!(f, " rows={}", self.rows)?;
        }
        if self.schedule != Schedule::HOST {
            write!(f, " schedule={}", self.schedule)?;
        }
        if self.launch_cost != crate::fuse::cost::LAUNCH {
            write!(f, " launch-cost={}", self.launch_cost)?;
        }
        Ok(())
    }
}

/// Does `name` match the pattern, in which `*` stands for any text?
pub fn glob(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    // Where to go on if what follows the last star does not fit: the star takes one byte more.
    let (mut i, mut j, mut back) = (0, 0, None);
    while j < n.len() {
        match p.get(i) {
            Some(b'*') => {
                back = Some((i, j));
                i += 1;
            }
            Some(c) if *c == n[j] => (i, j) = (i + 1, j + 1),
            _ => match back {
                Some((star, at)) => {
                    back = Some((star, at + 1));
                    (i, j) = (star + 1, at + 1);
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let mut o = Options {
            determinism: Level::Run,
            pass_limit: Some(7),
            launch_cost: 1,
            rows: 128,
            schedule: Schedule::GPU_PREFILL,
            ..Options::default()
        };
        o.switches.insert("fuse".into(), false);
        o.rules_off.insert("norm-into-quantize".into());
        o.keep.insert("layers.*.attn.q".into());
        assert_eq!(Options::parse(&o.to_string()).unwrap(), o);
        assert_eq!(Options::parse(&Options::default().to_string()).unwrap(), Options::default());
        assert_eq!(Options::parse("switch.fuse=maybe").unwrap_err().code, "E0708");
    }

    #[test]
    fn kept_names_may_hold_stars() {
        let o = Options { keep: ["layers.*.q".to_string()].into(), ..Options::default() };
        assert!(o.keeps("layers.7.attn.q"));
        assert!(!o.keeps("layers.7.attn.k"));
    }
}
