//! One case of the bundle as text: what `check` must know beside plans and code.
//!
//! ```text
//! about "what it covers"
//! seed 1
//! vocab 512
//! flags small time session
//! steps 64 64 1
//! ring 7
//! full 8
//! plain NAME LENGTH
//! affine NAME BITS GROUP STACK ROWS COLS
//! ```

use std::fmt::Write;

/// A tensor that the case's programs read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tensor {
    /// bf16 vector.
    Plain {
        /// Name.
        name: String,
        /// Elements.
        len: u32,
    },
    /// Affine codes.
    Affine {
        /// Name.
        name: String,
        /// 4 or 8.
        bits: u32,
        /// Elements of a group.
        group: u32,
        /// Matrices.
        stack: u32,
        /// Rows of each.
        rows: u32,
        /// Columns.
        cols: u32,
    },
}

impl Tensor {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Tensor::Plain { name, .. } | Tensor::Affine { name, .. } => name,
        }
    }
}

/// A case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// What it covers, and its shapes.
    pub about: String,
    /// Of weights and tokens.
    pub seed: u64,
    /// Token ids are below this.
    pub vocab: u32,
    /// `small`: an interpreter can run it; `big`: not for a memory checker; `time`: worth timing; `session`: a whole model.
    pub flags: Vec<String>,
    /// Tokens of each step.
    pub steps: Vec<u32>,
    /// Key blocks of sliding layers.
    pub ring: u32,
    /// Key blocks of full layers.
    pub full: u32,
    /// Weights.
    pub tensors: Vec<Tensor>,
}

impl Case {
    /// Does it have this flag?
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// Most tokens of a step.
    pub fn rows(&self) -> u32 {
        self.steps.iter().copied().max().unwrap_or(1)
    }

    /// As text.
    pub fn print(&self) -> String {
        let steps: Vec<String> = self.steps.iter().map(u32::to_string).collect();
        let mut s = format!("about {}\nseed {}\nvocab {}\nflags {}\n", self.about, self.seed, self.vocab, self.flags.join(" "));
        _ = writeln!(s, "steps {}\nring {}\nfull {}", steps.join(" "), self.ring, self.full);
        for t in &self.tensors {
            _ = match t {
                Tensor::Plain { name, len } => writeln!(s, "plain {name} {len}"),
                Tensor::Affine { name, bits, group, stack, rows, cols } => {
                    writeln!(s, "affine {name} {bits} {group} {stack} {rows} {cols}")
                }
            };
        }
        s
    }

    /// Reads what [`Case::print`] writes.
    pub fn parse(text: &str) -> Result<Case, String> {
        let mut c = Case::default();
        for line in text.lines() {
            let bad = || format!("cannot read the line `{line}`");
            let (key, rest) = line.split_once(' ').ok_or_else(bad)?;
            let words: Vec<&str> = rest.split_whitespace().collect();
            let number = |i: usize| words.get(i).and_then(|w| w.parse::<u32>().ok()).ok_or_else(bad);
            match key {
                "about" => c.about = rest.into(),
                "seed" => c.seed = u64::from(number(0)?),
                "vocab" => c.vocab = number(0)?,
                "flags" => c.flags = words.iter().map(|w| (*w).into()).collect(),
                "steps" => c.steps = (0..words.len()).map(number).collect::<Result<_, _>>()?,
                "ring" => c.ring = number(0)?,
                "full" => c.full = number(0)?,
                "plain" => c.tensors.push(Tensor::Plain { name: words.first().ok_or_else(bad)?.to_string(), len: number(1)? }),
                "affine" => c.tensors.push(Tensor::Affine {
                    name: words.first().ok_or_else(bad)?.to_string(),
                    bits: number(1)?,
                    group: number(2)?,
                    stack: number(3)?,
                    rows: number(4)?,
                    cols: number(5)?,
                }),
                _ => return Err(bad()),
            }
        }
        Ok(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let c = Case {
            about: "two words".into(),
            seed: 7,
            vocab: 3,
            flags: vec!["small".into()],
            steps: vec![4, 1],
            ring: 2,
            full: 1,
            tensors: vec![
                Tensor::Plain { name: "a.b".into(), len: 3 },
                Tensor::Affine { name: "c".into(), bits: 4, group: 32, stack: 1, rows: 2, cols: 64 },
            ],
        };
        assert_eq!(Case::parse(&c.print()), Ok(c));
        assert!(Case::parse("steps x").is_err());
    }
}
