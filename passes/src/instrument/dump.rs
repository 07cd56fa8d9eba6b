//! Dumps after change: the content of a dump folder, without times and paths, so that two dumps of one input are equal.

use super::Instrument;
use super::stats::counters;
use crate::manager::Step;
use crate::pass::Module;
use ir::diag::Result;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prints a module as (file extension, text) parts.
pub type Printer = fn(&Module) -> Vec<(&'static str, String)>;

/// The instrument. A part is written when its text differs from what was written last.
pub struct Dump {
    printer: Printer,
    last: BTreeMap<&'static str, String>,
    /// File name and text, in order.
    pub files: Vec<(String, String)>,
    index: String,
}

impl Dump {
    /// Prints the graph.
    pub fn new() -> Self {
        Dump::with(|m| vec![("graph", super::text::print(&m.graph))])
    }

    /// Prints what `printer` gives.
    pub fn with(printer: Printer) -> Self {
        Dump { printer, last: BTreeMap::new(), files: vec![], index: String::new() }
    }

    fn write(&mut self, number: usize, name: &str, m: &Module) -> Vec<String> {
        let mut written = vec![];
        for (ext, text) in (self.printer)(m) {
            if self.last.get(ext) != Some(&text) {
                let file = format!("{:03}-{name}.{ext}", number * 10);
                self.files.push((file.clone(), text.clone()));
                self.last.insert(ext, text);
                written.push(file);
            }
        }
        written
    }

    /// All files, with the table of contents `index.txt`.
    pub fn folder(&self) -> Vec<(String, String)> {
        let mut out = self.files.clone();
        out.push(("index.txt".into(), self.index.clone()));
        out
    }

    /// The dumps that were written after this pass.
    pub fn after_pass(&self, pass: &str) -> impl Iterator<Item = &(String, String)> {
        let middle = format!("-{pass}.");
        self.files.iter().filter(move |(f, _)| f.get(3..).is_some_and(|r| r.starts_with(&middle)))
    }
}

impl Default for Dump {
    fn default() -> Self {
        Dump::new()
    }
}

impl Instrument for Dump {
    fn start(&mut self, m: &Module) -> Result<()> {
        self.write(0, "input", m);
        let _ = writeln!(self.index, "000 {:<16} {:<9} -", "input", "-");
        Ok(())
    }

    fn after(&mut self, step: &Step, m: &Module) -> Result<()> {
        if step.changed {
            self.write(step.index, step.pass, m);
        }
        let state = match (step.ran, step.changed) {
            (_, true) => "changed",
            (true, false) => "unchanged",
            (false, false) => "off",
        };
        let _ = writeln!(self.index, "{:03} {:<16} {state:<9} {}", step.index * 10, step.pass, counters(&step.stats));
        Ok(())
    }
}
