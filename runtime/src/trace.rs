//! Digests of all values of a step, row by row: what one machine, plan or schedule computed can be laid beside what another
//! did. A digest ([`ir::digest`]) is of a value's row, wherever it lies, so neither memory plan nor chunk shows in it; of a cache
//! it is of what the row writes there.
//!
//! Kernels sum up digests themselves where the program was compiled with the pass `instrument-trace` ([`Mode::Epilogue`]); their
//! sums only grow, and what a step added is the difference to those before. [`Mode::Separate`] works for any program: the host
//! runs the launches one by one and reads what each wrote. Both give the same digests.

use crate::device::{BufferId, Device, LaunchDesc, PreparedId, QUEUED_BYTES, Queued};
use crate::memory::Sizes;
use crate::sequences::Part;
use ir::diag::{Diagnostic, Result};
use ir::digest::{Digest, Run, runs};
use ir::graph::{Elem, Graph, Rows};
use ir::order::KV_BLOCK;
use ir::plan::{Arg, BufferKind, DIGEST, DIGEST_BYTES, Plan};
use std::collections::BTreeMap;

/// Who computes digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernels that write the values.
    Epilogue,
    /// The host, from memory, after each launch.
    Separate,
}

impl Mode {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Epilogue => "epilogue",
            Mode::Separate => "separate",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Mode> {
        [Mode::Epilogue, Mode::Separate].into_iter().find(|m| m.name() == name)
    }

    /// What a plan has been compiled for: its kernels sum up digests, or they do not.
    pub fn of(plan: &Plan) -> Mode {
        let sums = plan.buffers.iter().any(|b| matches!(b.kind, BufferKind::Digests { .. }));
        if sums { Mode::Epilogue } else { Mode::Separate }
    }
}

/// Refuses [`Mode::Epilogue`] for a plan whose kernels sum up nothing.
pub fn check(mode: Mode, plan: &Plan) -> Result<()> {
    if mode == Mode::Epilogue && Mode::of(plan) != mode { Err(no_sums("--trace-mode")) } else { Ok(()) }
}

fn no_sums(place: &str) -> Diagnostic {
    Diagnostic::new("E0493", "no kernel of this program sums up digests")
        .at(place)
        .hint("compile with `--instrument-trace on`, or trace with `--trace-mode separate`")
}

/// A value that has a digest, in order of the launches that write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The value's name in the graph, or `kv.N.keys`, `kv.N.values`; with ` (all)` behind it the whole of a cache.
    pub name: String,
    /// The launch of the plan that writes it.
    pub launch: usize,
    /// Rows of the value.
    pub rows: Rows,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Row { buffer: usize, bytes: u64, runs: Vec<Run> },
    Cache { buffer: usize, cache: Cache, all: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cache {
    keys: bool,
    heads: u64,
    dim: u64,
    window: u64,
}

/// The values of a plan that a trace has. `all`: the whole caches too, as a row sees them, after the launches that write them.
pub fn traced(plan: &Plan, graph: &Graph, all: bool) -> Vec<Traced> {
    let mut out: Vec<Traced> = vec![];
    for (launch, l) in plan.launches.iter().enumerate() {
        let Some(kernel) = plan.kernels.get(l.kernel as usize) else { continue };
        for (arg, param) in l.args.iter().zip(&kernel.bufs) {
            let Arg::Buffer(i) = *arg else { continue };
            let (i, Some(b)) = (i as usize, plan.buffers.get(i as usize)) else { continue };
            if !param.write {
                continue;
            }
            // What a later launch adds to is done when that is.
            if let Some(i) = out.iter().position(|t| t.name == b.name) {
                if matches!(b.kind, BufferKind::Value { .. }) {
                    let t = out.remove(i);
                    out.push(Traced { launch, ..t });
                }
                continue;
            }
            let (rows, what) = match b.kind {
                BufferKind::Value { rows, bytes } => {
                    let Some(runs) = graph.by_name(&b.name).and_then(|id| runs(&graph.node(id).ty)) else { continue };
                    (rows, What::Row { buffer: i, bytes: u64::from(bytes), runs })
                }
                BufferKind::Keys { heads, dim, window, .. } | BufferKind::Values { heads, dim, window, .. } => {
                    let keys = matches!(b.kind, BufferKind::Keys { .. });
                    let cache = Cache { keys, heads: heads.into(), dim: dim.into(), window: window.into() };
                    (Rows::Tokens, What::Cache { buffer: i, cache, all: false })
                }
                _ => continue,
            };
            out.push(Traced { name: b.name.clone(), launch, rows, what: what.clone() });
            if let (What::Cache { buffer, cache, .. }, true) = (what, all) {
                out.push(Traced {
                    name: format!("{} (all)", b.name),
                    launch,
                    rows,
                    what: What::Cache { buffer, cache, all: true },
                });
            }
        }
    }
    out
}

/// The element type of a traced value's words, for who stores them: floats, or bytes of something else.
pub fn is_floats(graph: &Graph, name: &str) -> bool {
    name.starts_with("kv.") || graph.by_name(name).is_some_and(|id| graph.node(id).ty.elem == Elem::F32)
}

/// What a step left of one row.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Number of the plan that ran it.
    pub plan: usize,
    /// Steps before it.
    pub step: u64,
    /// Slot of its sequence.
    pub slot: usize,
    /// Position in the sequence.
    pub position: usize,
    /// Its token.
    pub token: u32,
    /// For each value of [`traced`] its digest; none for values of rows whose logits were not asked for.
    pub digests: &'a [Option<u64>],
    /// Numbers of values that were wanted, and their bytes.
    pub values: &'a [(usize, Vec<u8>)],
}

/// Takes the rows of a step, in order.
pub type Sink = Box<dyn FnMut(&Row) -> Result<()>>;

/// What to trace.
pub struct Request {
    /// Who computes digests.
    pub mode: Mode,
    /// Digests of whole caches too.
    pub all: bool,
    /// Values whose bytes are wanted, by name; for [`Mode::Separate`] only.
    pub wanted: Box<dyn Fn(&str) -> bool>,
    /// Gets the rows.
    pub sink: Sink,
}

/// A plan on a device.
pub(crate) struct On<'a> {
    pub plan: &'a Plan,
    pub places: &'a [(BufferId, u64)],
    pub launches: &'a [LaunchDesc],
    /// Where kernels sum up digests, and its bytes.
    pub sums: Option<(BufferId, usize)>,
}

struct PlanTrace {
    traced: Vec<Traced>,
    /// The launches, each a list of its own.
    singles: Vec<PreparedId>,
    /// For each traced value where its digests begin, if kernels sum them up.
    sums: Vec<u64>,
    /// What they were after the last step that was finished.
    before: Vec<u8>,
}

/// Digests and bytes of a row.
#[derive(Clone, Default)]
struct RowOut {
    digests: Vec<Option<u64>>,
    values: Vec<(usize, Vec<u8>)>,
}

struct OpenRow {
    slot: usize,
    position: usize,
    output: Option<usize>,
}

enum Found {
    Done(Vec<RowOut>),
    /// The sums of all values, one after the other.
    Sums(Vec<u8>),
    /// The same, under way.
    Queued(Queued),
}

/// A step that runs.
pub(crate) struct Open {
    plan: usize,
    rows: Vec<OpenRow>,
    found: Found,
}

/// Traces a session.
pub(crate) struct Tracer {
    request: Request,
    plans: Vec<PlanTrace>,
    steps: u64,
}

impl Tracer {
    pub fn new(device: &mut dyn Device, on: &[On], graph: &Graph, request: Request) -> Result<Tracer> {
        let mut plans = vec![];
        for on in on {
            let traced = traced(on.plan, graph, request.all);
            let (mut singles, mut sums) = (vec![], vec![]);
            if request.mode == Mode::Separate {
                singles = on.launches.iter().map(|l| device.prepare(std::slice::from_ref(l))).collect::<Result<_>>()?;
            } else {
                for t in &traced {
                    let found = on.plan.buffer(&format!("{DIGEST}{}", t.name));
                    let place = found.and_then(|i| on.places.get(i)).copied();
                    sums.push(place.map(|p| p.1).ok_or_else(|| no_sums(&t.name))?);
                }
            }
            plans.push(PlanTrace { traced, singles, sums, before: vec![] });
        }
        let mut tracer = Tracer { request, plans, steps: 0 };
        tracer.forget(device, on)?; // what memory held before
        Ok(tracer)
    }

    /// Takes the sums as they are: what was added since the last step is no step's.
    pub fn forget(&mut self, device: &mut dyn Device, on: &[On]) -> Result<()> {
        for (p, on) in self.plans.iter_mut().zip(on) {
            if let Some((buffer, bytes)) = on.sums {
                p.before = vec![0; bytes];
                device.read(buffer, 0, &mut p.before)?;
            }
        }
        Ok(())
    }

    /// Runs a step of a plan (its number, its list, the grid) whose inputs are on the device, or queues it.
    ///
    /// # Safety
    /// As for [`Device::run`].
    pub unsafe fn run(
        &mut self,
        device: &mut dyn Device,
        (plan, prepared, grid): (usize, PreparedId, &[u32]),
        on: &On,
        parts: &[Part],
        sizes: &Sizes,
    ) -> Result<Open> {
        let mut rows = vec![];
        let mut outputs = 0;
        for p in parts {
            for i in 0..p.tokens.len() {
                let output = (i >= p.from).then_some(outputs);
                outputs += usize::from(output.is_some());
                rows.push(OpenRow { slot: p.slot, position: p.at + i, output });
            }
        }
        let found = match self.request.mode {
            Mode::Epilogue => {
                // SAFETY: the caller's promise.
                unsafe { device.run(prepared, grid)? };
                match on.sums {
                    Some((buffer, bytes)) if bytes <= QUEUED_BYTES => Found::Queued(device.queue_read(buffer, 0, bytes)?),
                    Some((buffer, bytes)) => {
                        let mut sums = vec![0; bytes];
                        device.read(buffer, 0, &mut sums)?;
                        Found::Sums(sums)
                    }
                    None => Found::Done(vec![RowOut::default(); rows.len()]),
                }
            }
            Mode::Separate => {
                let mut out = vec![RowOut::default(); rows.len()];
                for (launch, &y) in grid.iter().enumerate() {
                    // SAFETY: the caller's promise, for one launch of the list after the other.
                    unsafe { device.run(self.plans[plan].singles[launch], &[y])? };
                    for (i, t) in self.plans[plan].traced.iter().enumerate().filter(|(_, t)| t.launch == launch) {
                        let wanted = (self.request.wanted)(&t.name).then_some(i);
                        look(device, t, wanted, on, (&rows, &mut out), sizes)?;
                    }
                }
                Found::Done(out)
            }
        };
        Ok(Open { plan, rows, found })
    }

    /// Hands the rows of a step on; steps are finished in the order in which they ran.
    pub fn finish(&mut self, device: &mut dyn Device, open: Open, tokens: &[u32]) -> Result<()> {
        let Open { plan, rows, found } = open;
        let found = match found {
            Found::Queued(read) => Found::Sums(device.finish(read)?),
            found => found,
        };
        let out = match found {
            Found::Done(out) => out,
            Found::Queued(_) => vec![],
            Found::Sums(now) => {
                let p = &mut self.plans[plan];
                p.before.resize(now.len(), 0);
                let digest = |bytes: &[u8], at: usize| {
                    let word = |at| bytes.get(at..at + 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
                    Digest::of_words([word(at), word(at + 4)])
                };
                let of_row = |row: &OpenRow, r: usize| {
                    let one = |(t, &offset): (&Traced, &u64)| {
                        let row = if t.rows == Rows::Outputs { row.output? } else { r };
                        let at = offset as usize + row * DIGEST_BYTES as usize;
                        Some(digest(&now, at).since(digest(&p.before, at)).value())
                    };
                    RowOut { digests: p.traced.iter().zip(&p.sums).map(one).collect(), values: vec![] }
                };
                let out = rows.iter().enumerate().map(|(r, row)| of_row(row, r)).collect();
                p.before = now;
                out
            }
        };
        for (r, (row, out)) in rows.iter().zip(&out).enumerate() {
            let &OpenRow { slot, position, .. } = row;
            let token = tokens.get(r).copied().unwrap_or_default();
            (self.request.sink)(&Row {
                plan,
                step: self.steps,
                slot,
                position,
                token,
                digests: &out.digests,
                values: &out.values,
            })?;
        }
        self.steps += 1;
        Ok(())
    }
}

/// Reads what a launch wrote of a value: its digests, and its bytes if its number is given.
fn look(
    device: &mut dyn Device,
    t: &Traced,
    wanted: Option<usize>,
    on: &On,
    (rows, out): (&[OpenRow], &mut [RowOut]),
    sizes: &Sizes,
) -> Result<()> {
    match &t.what {
        What::Row { buffer, bytes, runs } => {
            let (b, at) = on.places[*buffer];
            let count = match t.rows {
                Rows::Outputs => rows.iter().filter(|r| r.output.is_some()).count(),
                _ => rows.len(),
            };
            let mut memory = vec![0; count * *bytes as usize];
            device.read(b, at, &mut memory)?;
            let len = runs.iter().map(|r| (r.bytes * r.count) as usize).sum::<usize>();
            for (r, (row, out)) in rows.iter().zip(out).enumerate() {
                let at = if t.rows == Rows::Outputs { row.output } else { Some(r) };
                let bytes = at.and_then(|at| memory.chunks_exact(*bytes as usize).nth(at)).map(|m| &m[..len.min(m.len())]);
                out.digests.push(bytes.map(|bytes| {
                    let mut d = Digest::default();
                    d.add_row(runs, bytes);
                    d.value()
                }));
                if let (Some(number), Some(bytes)) = (wanted, bytes) {
                    out.values.push((number, bytes.to_vec()));
                }
            }
        }
        What::Cache { buffer, cache, all } => {
            let mut reader = CacheReader { device, at: on.places[*buffer], cache: *cache, sizes, blocks: BTreeMap::new() };
            for (row, out) in rows.iter().zip(out) {
                let first = match (all, cache.window as usize) {
                    (false, _) => row.position,
                    (true, 0) => 0,
                    (true, window) => (row.position + 1).saturating_sub(window),
                };
                let mut d = Digest::default();
                let mut bytes = vec![];
                for position in first..=row.position {
                    let of = reader.row(row.slot, position)?;
                    let place = if *all { position as u32 * of.len() as u32 } else { 0 };
                    let words = of.as_chunks::<4>().0;
                    words.iter().enumerate().for_each(|(i, w)| d.add(place + 4 * i as u32, u32::from_le_bytes(*w)));
                    if wanted.is_some() {
                        bytes.extend(of);
                    }
                }
                out.digests.push(Some(d.value()));
                if let Some(number) = wanted {
                    out.values.push((number, bytes));
                }
            }
        }
    }
    Ok(())
}

/// Reads keys or values of a position as `[heads][dim]`, whatever their layout.
struct CacheReader<'a> {
    device: &'a mut dyn Device,
    at: (BufferId, u64),
    cache: Cache,
    sizes: &'a Sizes,
    /// Blocks that were read, by number.
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl CacheReader<'_> {
    fn row(&mut self, slot: usize, position: usize) -> Result<Vec<u8>> {
        let Cache { keys, heads, dim, window } = self.cache;
        let room = if window == 0 { self.sizes.full_blocks } else { self.sizes.ring_blocks } as u64;
        let (block, within) = (position as u64 / u64::from(KV_BLOCK) % room, position % KV_BLOCK as usize);
        let bytes = dim * u64::from(KV_BLOCK) * 4;
        let mut out = vec![];
        for head in 0..heads {
            let number = (slot as u64 * heads + head) * room + block;
            if !self.blocks.contains_key(&number) {
                let mut memory = vec![0; bytes as usize];
                self.device.read(self.at.0, self.at.1 + number * bytes, &mut memory)?;
                self.blocks.insert(number, memory);
            }
            let words = self.blocks[&number].as_chunks::<4>().0;
            let dim = dim as usize;
            if keys {
                words.iter().skip(within).step_by(KV_BLOCK as usize).for_each(|w| out.extend(w));
            } else {
                words[within * dim..(within + 1) * dim].iter().for_each(|w| out.extend(w));
            }
        }
        Ok(out)
    }
}
