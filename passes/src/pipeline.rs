//! The pipeline: which passes run, in which order. Text form `a,b(key=value,key=value),c`.

use crate::pass::Pass;
use ir::diag::{Diagnostic, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Every pass there is, in the order in which the default pipeline runs them. To add a pass, add a line here.
pub fn registry() -> Vec<Box<dyn Pass>> {
    vec![
        // Canonical form: fewer nodes, the same bits.
        Box::new(crate::canon::OrderOperands),
        Box::new(crate::canon::Fold),
        Box::new(crate::canon::Cse),
        Box::new(crate::canon::Dce),
        // Numerics: which arithmetic, in which order.
        Box::new(crate::quant_lower::QuantLower),
        Box::new(crate::pin_reductions::PinReductions),
        // What one kernel computes, what one launch runs.
        Box::new(crate::fuse::Fuse),
        Box::new(crate::recompute_rows::RecomputeRows),
        Box::new(crate::merge_launches::MergeLaunches),
        // Off unless it is asked for.
        Box::new(crate::instrument_trace::InstrumentTrace),
        Box::new(crate::round_activations::RoundActivations),
        // Only at `--determinism off`.
        Box::new(crate::relax::Approximate),
        Box::new(crate::relax::UnorderedSums),
        // Kernels for a target: how weights lie, programs and launches, where values lie.
        Box::new(crate::weight_layout::WeightLayout),
        Box::new(crate::lower_pass::Lower),
        Box::new(crate::relax::Contract),
        Box::new(crate::place::MemoryPlan),
    ]
}

/// The passes that need no plan, in order.
pub const GRAPH: &str = "order-operands,fold,cse,dce,quant-lower,pin-reductions,fuse,recompute-rows,merge-launches";

/// The passes from the graph to a plan for one target, in order.
pub const PLAN: &str = "weight-layout,lower,memory-plan";

/// The same where fusion is chosen anew: for GPUs, and for chunks of many tokens.
pub const FUSING_ANEW: &str = "fuse,recompute-rows,merge-launches,weight-layout,lower,memory-plan";

/// One pass of a pipeline with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the pass.
    pub pass: String,
    /// Arguments, by name.
    pub args: BTreeMap<String, String>,
}

/// Passes in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pipeline {
    /// In order of execution.
    pub entries: Vec<Entry>,
}

impl Pipeline {
    /// From names, without arguments.
    pub fn of(names: &[&str]) -> Self {
        Pipeline { entries: names.iter().map(|n| Entry { pass: (*n).into(), args: BTreeMap::new() }).collect() }
    }

    /// The passes over the graph: everything before lowering.
    pub fn graph() -> Self {
        Pipeline::of(&GRAPH.split(',').collect::<Vec<_>>())
    }

    /// The passes that make a plan for one target: lowering and what surrounds it.
    pub fn plan() -> Self {
        Pipeline::of(&PLAN.split(',').collect::<Vec<_>>())
    }

    /// The passes that make a plan with fusions of its own.
    pub fn fusing_anew() -> Self {
        Pipeline::of(&FUSING_ANEW.split(',').collect::<Vec<_>>())
    }

    /// The same, with kernels that sum up digests of what they store.
    pub fn traced(mut self) -> Self {
        let at = self.entries.iter().position(|e| e.pass == "lower").unwrap_or(self.entries.len());
        self.entries.insert(at, Entry { pass: crate::instrument_trace::NAME.into(), args: BTreeMap::new() });
        self
    }

    /// The same, with activations rounded as other programs round them, before matmuls become exact.
    pub fn rounded(mut self) -> Self {
        let at = self.entries.iter().position(|e| e.pass == "quant-lower").unwrap_or(self.entries.len());
        self.entries.insert(at, Entry { pass: crate::round_activations::NAME.into(), args: BTreeMap::new() });
        self
    }

    /// The same, with the passes that leave bits to the machine, each at its place around `lower`.
    pub fn relaxed(mut self) -> Self {
        for (pass, behind) in [(crate::relax::APPROXIMATE, 0), (crate::relax::UNORDERED, 0), (crate::relax::CONTRACT, 1)] {
            let at = self.entries.iter().position(|e| e.pass == "lower").map_or(self.entries.len(), |i| i + behind);
            self.entries.insert(at, Entry { pass: pass.into(), args: BTreeMap::new() });
        }
        self
    }

    /// Every registered pass, in order.
    pub fn full() -> Self {
        Pipeline::of(&registry().iter().map(|p| p.name()).collect::<Vec<_>>())
    }

    /// Reads the text form. Names are checked when the pipeline runs.
    pub fn parse(text: &str) -> Result<Pipeline> {
        let mut p = Parser { text, at: 0 };
        let mut out = Pipeline::default();
        p.space();
        if p.at == text.len() {
            return Ok(out);
        }
        loop {
            let pass = p.word("a pass name")?;
            let mut args = BTreeMap::new();
            if p.eat('(') {
                while !p.eat(')') {
                    let key = p.word("an argument name")?;
                    if !p.eat('=') {
                        return Err(p.error("expected `=`"));
                    }
                    let value = p.word("a value")?;
                    if args.insert(key.clone(), value).is_some() {
                        return Err(p.error(&format!("argument `{key}` is given twice")));
                    }
                    if !p.eat(',') && !p.peek(')') {
                        return Err(p.error("expected `,` or `)`"));
                    }
                }
            }
            out.entries.push(Entry { pass, args });
            if p.at == text.len() {
                return Ok(out);
            }
            if !p.eat(',') {
                return Err(p.error("expected `,`"));
            }
        }
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.entries.iter().enumerate() {
            if i > 0 {
                write!(f, ",")?;
            }
            write!(f, "{}", e.pass)?;
            if !e.args.is_empty() {
                let args: Vec<String> = e.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(f, "({})", args.join(","))?;
            }
        }
        Ok(())
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }
    fn peek(&self, c: char) -> bool {
        self.text[self.at..].starts_with(c)
    }
    fn eat(&mut self, c: char) -> bool {
        let hit = self.peek(c);
        if hit {
            self.at += c.len_utf8();
            self.space();
        }
        hit
    }
    fn word(&mut self, what: &str) -> Result<String> {
        let rest = &self.text[self.at..];
        let n = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.*".contains(c))).unwrap_or(rest.len());
        if n == 0 {
            return Err(self.error(&format!("expected {what}")));
        }
        self.at += n;
        let word = rest[..n].to_string();
        self.space();
        Ok(word)
    }
    fn error(&self, what: &str) -> Diagnostic {
        Diagnostic::new("E0707", format!("cannot read the pipeline: {what} at column {}", self.at + 1))
            .at(format!("`{}`", self.text))
            .hint("a pipeline looks like `fold,fuse,merge-launches(max=2)`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for t in ["", "a", "a,b(x=1,y=off),c-d"] {
            assert_eq!(Pipeline::parse(t).unwrap().to_string(), t);
        }
        assert_eq!(Pipeline::parse(" a , b( x = 1 ) ").unwrap().to_string(), "a,b(x=1)");
        for t in [",", "a,", "a(", "a(x)", "a(x=)", "a(x=1", "a b", "a(x=1,x=2)"] {
            assert_eq!(Pipeline::parse(t).unwrap_err().code, "E0707", "{t}");
        }
    }

    #[test]
    fn registry_matches_the_readable_list() {
        assert!(Pipeline::full().to_string().starts_with(GRAPH));
        assert_eq!(Pipeline::graph().to_string(), GRAPH);
        let names: std::collections::BTreeSet<_> = registry().iter().map(|p| p.name()).collect();
        assert_eq!(names.len(), registry().len(), "names are unique");
        assert!(registry().iter().all(|p| p.about().len() > 40));
    }
}
