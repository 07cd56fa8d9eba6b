//! Passes over a module in text form: what `isobit opt` and the tests in `tests/filetests` do.

use crate::pipeline::{self, PrintAfter, blame};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use ir::kernel::Kernel;
use ir::plan::Plan;
use passes::instrument::Instrument;
use passes::instrument::repro::Reproducer;
use passes::instrument::verify::VerifyEach;
use passes::{Manager, Module, Options, Pipeline, Report};

/// A text that was read and verified.
pub enum Input {
    /// Passes run over this.
    Graph(Graph),
    /// A plan with its kernels.
    Plan(Plan),
    /// Kernels alone.
    Kernels(Vec<Kernel>),
}

/// Reads a text of any form, and verifies it; `file` names it in the places of errors. All errors, in order.
pub fn read(text: &str, file: &str) -> Result<Input, Vec<Diagnostic>> {
    let place = |all: Vec<Diagnostic>| all.into_iter().map(|d| placed(d, file, text)).collect::<Vec<_>>();
    let kernels = |kernels: &[Kernel]| {
        let bad: Vec<Diagnostic> = kernels.iter().filter_map(|k| ir::kernel::verify::verify(k).err()).flatten().collect();
        if bad.is_empty() { Ok(()) } else { Err(place(bad)) }
    };
    match first_word(text) {
        "plan" => {
            let plan = ir::plan::text::parse_whole(text).map_err(place)?;
            kernels(&plan.kernels)?;
            ir::plan::verify::verify(&plan, &[]).map_err(place)?;
            Ok(Input::Plan(plan))
        }
        "kernel" => {
            let all = ir::kernel::text::parse_all(text).map_err(place)?;
            kernels(&all)?;
            Ok(Input::Kernels(all))
        }
        _ => {
            let graph = ir::graph::text::parse(text).map_err(place)?;
            ir::graph::verify::verify(&graph).map_err(place)?;
            Ok(Input::Graph(graph))
        }
    }
}

/// The first word that is no comment.
fn first_word(text: &str) -> &str {
    let line = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with("//")).unwrap_or("");
    line.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or("")
}

/// `line 4, column 3` becomes `FILE:4:3`, as editors read it; other places get the file in front, with the line of what they name.
fn placed(d: Diagnostic, file: &str, text: &str) -> Diagnostic {
    let at = d.place.strip_prefix("line ").and_then(|rest| rest.split_once(", column "));
    let place = match at {
        Some((line, column)) => format!("{file}:{line}:{column}"),
        None if d.place.is_empty() => file.to_string(),
        None => match line_of(text, &d.place) {
            Some(line) => format!("{file}:{line}: {}", d.place),
            None => format!("{file}: {}", d.place),
        },
    };
    d.at(place)
}

/// The line of what a verifier names: a kernel with one of its instructions, a launch, buffer, weight or stage, or a node.
fn line_of(text: &str, place: &str) -> Option<usize> {
    let code = |l: &str| l.split("//").next().unwrap_or("").trim().to_string();
    let lines = || text.lines().enumerate().map(|(i, l)| (i + 1, code(l)));
    let Some(kernel) = place.strip_prefix("kernel ") else {
        let node = place.split_once(" \"").filter(|(id, _)| id.starts_with('%'));
        return match (node, place.split_once(' ')) {
            (Some((id, _)), _) => lines().find(|(_, l)| l.starts_with(&format!("{id} ="))).map(|l| l.0),
            (None, Some((what @ ("launch" | "stage" | "buffer" | "weight" | "kernel"), name))) => {
                let entry = |l: &str| match what {
                    "launch" | "stage" => l.starts_with(place),
                    _ => l.split_whitespace().nth(1) == Some("=") && l.contains(name),
                };
                lines().find(|(_, l)| entry(l)).map(|l| l.0)
            }
            _ => None,
        };
    };
    let (name, inst) = kernel.split_once(": `").map_or((kernel, None), |(n, i)| (n, Some(i.trim_end_matches('`'))));
    let head = lines().find(|(_, l)| l.starts_with(&format!("kernel {name} ")))?.0;
    let Some(inst) = inst else { return Some(head) };
    // The verifier numbers values as printed text does, which an edited one need not; but lines follow each other alike.
    let own: Vec<(usize, &str)> = text.lines().enumerate().skip(head - 1).map(|(i, l)| (i + 1, l)).collect();
    let end = own.iter().position(|(_, l)| l.trim_end() == "}")?;
    let section: String = own[..=end].iter().map(|(_, l)| format!("{l}\n")).collect();
    let printed = ir::kernel::text::print(&ir::kernel::text::parse(&section).ok()?);
    let same = |l: &str| code(l).trim_end_matches(" {").trim() == inst.trim_end_matches(" {").trim();
    let n = printed.lines().position(same)?;
    own[..=end].iter().filter(|(_, l)| !code(l).is_empty()).nth(n).map(|l| l.0)
}

/// The passes and options in the head of a reproducer; none if the text is another graph.
pub fn recipe(text: &str) -> Result<Option<(Pipeline, Options)>> {
    if text.starts_with("// isobit reproducer") { Reproducer::recipe(text).map(Some) } else { Ok(None) }
}

/// How passes are run.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// Which, in order.
    pub pipeline: Pipeline,
    /// What they are asked for.
    pub options: Options,
    /// Verify after every pass that changed something.
    pub verify_each: bool,
    /// Print the module after these passes.
    pub after: Vec<String>,
}

/// What came out.
pub struct Outcome {
    /// The module.
    pub module: Module,
    /// What the passes did.
    pub report: Report,
    /// Passes of [`Task::after`] and the modules after them.
    pub printed: Vec<(String, String)>,
}

impl Outcome {
    /// The graph, or once there is a plan the plan with its kernels.
    pub fn text(&self) -> String {
        pipeline::print(&self.module).into_iter().map(|(_, text)| text).collect()
    }
}

/// A run that stopped.
pub struct Stopped {
    /// Why.
    pub diagnostic: Diagnostic,
    /// What makes it stop again, if a pass failed.
    pub reproducer: Option<String>,
}

impl From<Diagnostic> for Stopped {
    fn from(diagnostic: Diagnostic) -> Stopped {
        Stopped { diagnostic, reproducer: None }
    }
}

/// Runs passes over a graph that was verified; verifies what comes out.
pub fn run(graph: Graph, task: &Task) -> Result<Outcome, Stopped> {
    let named: Vec<String> = pipeline::computed(&graph).map(String::from).collect();
    let mut module = Module::new(graph);
    let mut verify = VerifyEach::with(pipeline::verify);
    let mut print_after = PrintAfter::new(&task.after);
    let mut looks: Vec<&mut dyn Instrument> = vec![];
    if task.verify_each {
        looks.push(&mut verify);
    }
    looks.push(&mut print_after);
    let result = Manager::default().run(&mut module, &task.pipeline, &task.options, &mut looks);
    let report = result.map_err(|failure| {
        let reproducer = failure.reproducer.as_ref().map(Reproducer::text);
        Stopped { diagnostic: blame(*failure), reproducer }
    })?;
    pipeline::check_keep(&task.options, &named, &module.graph)?;
    pipeline::verify(&module).map_err(|d| {
        let message = format!("the passes left a broken module: {}", d.message);
        Diagnostic { message, ..d }.hint("`--verify-each` names the pass")
    })?;
    Ok(Outcome { module, report, printed: print_after.printed })
}

/// The text of what was only read.
pub fn print(input: &Input) -> String {
    match input {
        Input::Graph(g) => ir::graph::text::print(g),
        Input::Plan(p) => ir::plan::text::print_whole(p),
        Input::Kernels(all) => all.iter().map(ir::kernel::text::print).collect::<Vec<_>>().join("\n"),
    }
}
