//! Writes a trace while a program runs.

use super::{FORMAT, Header, Model, PlanValues, Row, Spool, key, nodes, values, values_file};
use crate::artifact::numerics_hash;
use crate::engine::Engine;
use crate::files::{self, Pending};
use crate::pipeline::Program;
use crate::{VERSION, artifact};
use ir::diag::{Diagnostic, Result};
use ir::graph::Graph;
use models::{Checkpoint, Text};
use runtime::trace::{Mode, Request, is_floats};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Who computes digests: as the program allows, if it is not said.
    pub mode: Option<Mode>,
    /// Digests of whole caches too.
    pub all: bool,
    /// Values to store; `*` is any text.
    pub values: Vec<String>,
}

impl Wish {
    /// Who computes digests of this program.
    pub fn mode(&self, program: &Program) -> Mode {
        self.mode.unwrap_or(if self.all || !self.values.is_empty() { Mode::Separate } else { Mode::of(&program.plans.decode) })
    }
}

/// What a program with its model is, for a header.
pub struct Subject<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// The program.
    pub program: &'a Program,
    /// Its graph.
    pub graph: &'a Graph,
    /// How a GPU is given launches.
    pub launch: Option<String>,
}

impl Subject<'_> {
    /// The header of its traces.
    pub fn header(&self, engine: &Engine, wish: &Wish) -> Header {
        let Subject { checkpoint, program, graph, launch } = self;
        let plans = program.plans.plans();
        let plans = plans.map(|(phase, p)| PlanValues { phase: phase.into(), values: values(p, graph, wish.all) }).collect();
        let mut hash = blake3::Hasher::new();
        program.plans.plans().for_each(|(_, p)| _ = hash.update(ir::plan::text::print_whole(p).as_bytes()));
        let interpreted = engine.device_name() == "interpreter";
        Header {
            isobit_trace: FORMAT,
            isobit: VERSION.into(),
            model: Model {
                table_hash: checkpoint.table_hash(),
                content_hash: None,
                weights: artifact::ModelEntry::weights_of(checkpoint.random()),
            },
            // Kernels that a person edited show in the hash of the program.
            numerics: numerics_hash(graph, &Default::default()),
            program: hash.finalize().to_hex().to_string(),
            target: if interpreted { "interp" } else { program.target.name() }.into(),
            device: engine.device_name(),
            launch: launch.clone(),
            chunk: engine.chunk(),
            mode: wish.mode(program).name().into(),
            kv: if wish.all { "full" } else { "written" }.into(),
            plans,
            nodes: nodes(graph),
        }
    }
}

/// A trace in the making. Lines are in the file when the step that made them has ended.
pub struct Recorder {
    turn: Rc<Cell<u64>>,
    spool: Option<Rc<RefCell<Spool>>>,
}

impl Recorder {
    /// Is there room for these files? Told before the work; nothing is written yet.
    pub fn check(path: &Path, wish: &Wish) -> Result<()> {
        let files = [Some(path.to_path_buf()), (!wish.values.is_empty()).then(|| values_file(path))];
        files.into_iter().flatten().try_for_each(|p: PathBuf| Pending::file(&p).map(|_| ()))
    }

    /// Begins a trace of everything that the engine runs from now on.
    pub fn begin(path: &Path, subject: &Subject, engine: &mut Engine, wish: &Wish, text: Option<Rc<Text>>) -> Result<Recorder> {
        let open = || {
            // Streamed to its place: a run that is killed leaves what it had.
            drop(Pending::file(path)?);
            let file = File::create(path).map_err(|e| files::failed("cannot be written", path, &e))?;
            Ok(BufWriter::new(file))
        };
        Recorder::begin_to(open, path, subject, engine, wish, text)
    }

    /// The same, written to what `open` gives when nothing else can be wrong any more; `path` is its name.
    pub fn begin_to<W: Write + 'static>(
        open: impl FnOnce() -> Result<W>,
        path: &Path,
        subject: &Subject,
        engine: &mut Engine,
        wish: &Wish,
        text: Option<Rc<Text>>,
    ) -> Result<Recorder> {
        subject.program.plans.plans().try_for_each(|(_, p)| runtime::trace::check(wish.mode(subject.program), p))?;
        let header = subject.header(engine, wish);
        let matches = |name: &str| wish.values.iter().any(|p| passes::options::glob(p, name));
        if let Some(bad) = wish.values.iter().find(|p| {
            let mut names = header.plans.iter().flat_map(|p| &p.values);
            !names.any(|v| passes::options::glob(p, &v.name))
        }) {
            return Err(Diagnostic::new("E0805", format!("no value of this program has a name like `{bad}`"))
                .at("--trace-values")
                .hint("a fused program stores few values: `isobit dump MODEL --what plan` shows them, `--keep` stores more"));
        }
        let wanted: Vec<String> =
            header.plans.iter().flat_map(|p| &p.values).map(|v| v.name.clone()).filter(|n| matches(n)).collect();
        let graph = subject.graph;
        let floats: Vec<Vec<bool>> =
            header.plans.iter().map(|p| p.values.iter().map(|v| is_floats(graph, &v.name)).collect()).collect();
        let names: Vec<Vec<String>> = header.plans.iter().map(|p| p.values.iter().map(|v| v.name.clone()).collect()).collect();
        let spool = match wanted.is_empty() {
            true => None,
            false => Some(Rc::new(RefCell::new(Spool::begin(&values_file(path))?))),
        };
        let turn = Rc::new(Cell::new(0));
        let at = path.to_path_buf();
        let cannot = move |e: std::io::Error| files::failed("cannot be written", &at, &e);
        let mut out = open()?;
        let put = |out: &mut W, line: String| {
            out.write_all(line.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush())
        };
        put(&mut out, serde_json::to_string(&header).unwrap_or_default()).map_err(&cannot)?;
        let (now, stored) = (turn.clone(), spool.clone());
        let sink = move |row: &runtime::trace::Row| {
            let turn = now.get();
            let piece = text.as_ref().and_then(|t| t.token(row.token)).map(|t| t.replace('\u{2581}', " "));
            let line = Row {
                turn,
                step: row.step,
                plan: row.plan,
                position: row.position as u64,
                token: row.token,
                text: piece,
                digests: row.digests.to_vec(),
            };
            put(&mut out, serde_json::to_string(&line).unwrap_or_default()).map_err(&cannot)?;
            for (i, bytes) in row.values {
                if let Some(spool) = &stored {
                    let name = key(&names[row.plan][*i], turn, row.position as u64);
                    spool.borrow_mut().add(&name, floats[row.plan][*i], bytes)?;
                }
            }
            Ok(())
        };
        let wanted = move |name: &str| wanted.iter().any(|w| w == name);
        let request = Request { mode: wish.mode(subject.program), all: wish.all, wanted: Box::new(wanted), sink: Box::new(sink) };
        engine.session().trace(graph, request)?;
        Ok(Recorder { turn, spool })
    }

    /// The next turn begins.
    pub fn next_turn(&self) {
        self.turn.set(self.turn.get() + 1);
    }

    /// Ends the trace: the file of values gets its name. The engine must be gone.
    pub fn finish(self) -> Result<()> {
        match self.spool.map(Rc::try_unwrap) {
            None => Ok(()),
            Some(Ok(spool)) => spool.into_inner().finish(),
            Some(Err(_)) => Err(Diagnostic::new("E0768", "the trace of a session that still runs was ended")),
        }
    }
}
