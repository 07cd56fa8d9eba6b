//! Reproducers: a failing run as one text, its input and how to run it again.

use crate::options::Options;
use crate::pipeline::Pipeline;
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;

/// A failing run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reproducer {
    /// The pass that failed.
    pub pass: String,
    /// What it said, on one line.
    pub message: String,
    /// The pipeline up to and with that pass.
    pub pipeline: String,
    /// Options, as text.
    pub options: String,
    /// The graph before the first pass, as text.
    pub input: String,
}

impl Reproducer {
    /// Of this failure.
    pub fn new(pass: &str, d: &Diagnostic, pipeline: &Pipeline, options: &Options, input: &Graph) -> Self {
        Reproducer {
            pass: pass.into(),
            message: format!("{} {}", d.code, d.message.replace('\n', " ")),
            pipeline: pipeline.to_string(),
            options: options.to_string(),
            input: super::text::print(input),
        }
    }

    /// One file: comment lines that say how to run it, then the input.
    pub fn text(&self) -> String {
        format!(
            "// isobit reproducer: pass `{}`: {}\n// pipeline: {}\n// options: {}\n{}",
            self.pass, self.message, self.pipeline, self.options, self.input
        )
    }

    /// Reads how to run it again from a file made by [`Reproducer::text`]; the graph text is the same file.
    pub fn recipe(text: &str) -> Result<(Pipeline, Options)> {
        let line = |key: &str| {
            text.lines().find_map(|l| l.strip_prefix(key)).ok_or_else(|| {
                Diagnostic::new("E0709", format!("the reproducer has no line `{key}`"))
                    .hint("a reproducer is the file that a failing compile wrote")
            })
        };
        Ok((Pipeline::parse(line("// pipeline: ")?)?, Options::parse(line("// options: ")?)?))
    }
}
