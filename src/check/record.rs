//! The interpreter of kernels as a device that runs launch by launch and writes down what each had and made: named values, and
//! keys and values of the step's positions as they stand in the caches.

use ir::diag::{Diagnostic, Result};
use ir::graph::{Elem, Graph, NodeId, Rows};
use ir::kernel::interp::RunOptions;
use ir::order::KV_BLOCK;
use ir::plan::phases::Phases;
use ir::plan::{Arg, BufferKind, Plan, row, state};
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId};
use runtime::interp::InterpDevice;
use std::sync::{Arc, Mutex, PoisonError};

/// What a step is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Position of the first token.
    pub position: usize,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Rows whose logits are made: the last ones.
    pub outputs: usize,
}

/// A value's rows as they stand in memory, without what pads them.
pub type Seen = (NodeId, Vec<u8>);

/// Keys and values of the step's positions in one layer's cache, `[token][head][dim]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenCache {
    /// Layer.
    pub layer: u32,
    /// Keys, or values.
    pub keys: bool,
    /// As bits.
    pub floats: Vec<u32>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the step.
    pub step: usize,
    /// `decode` or `prefill`.
    pub phase: &'static str,
    /// Its name in the plan.
    pub launch: String,
    /// Values that it had.
    pub reads: Vec<Seen>,
    /// Values that it made.
    pub writes: Vec<Seen>,
    /// What it wrote to caches.
    pub caches: Vec<SeenCache>,
}

/// What was written down.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Launches in order.
    pub records: Vec<Record>,
}

/// A log that a session's device writes and its owner reads.
pub type SharedLog = Arc<Mutex<Log>>;

/// The device.
pub struct Recorder {
    inner: InterpDevice,
    plans: Vec<(&'static str, Plan)>,
    graph: Graph,
    /// What a value is filled with before it is written.
    fill: u8,
    lists: Vec<(PreparedId, List)>,
    log: SharedLog,
}

/// A prepared list.
struct List {
    descs: Vec<LaunchDesc>,
    single: Vec<PreparedId>,
    /// Number of its plan; none for lists of another maker.
    plan: Option<usize>,
}

impl Recorder {
    /// A device for these plans of this graph. With `poison`, memory that nobody wrote holds NaNs, else zeros.
    pub fn new(options: RunOptions, phases: &Phases, graph: &Graph, log: SharedLog) -> Recorder {
        Recorder {
            inner: InterpDevice::new(options),
            plans: phases.plans().map(|(n, p)| (n, p.clone())).collect(),
            graph: graph.clone(),
            fill: if options.poison { 0xff } else { 0 },
            lists: vec![],
            log,
        }
    }

    /// Where a buffer lies that satisfies a condition.
    fn place(plan: &Plan, descs: &[LaunchDesc], of: impl Fn(&BufferKind) -> bool) -> Option<(BufferId, u64)> {
        let pairs = plan.launches.iter().zip(descs).flat_map(|(l, d)| l.args.iter().zip(&d.args));
        pairs.into_iter().find_map(|(a, d)| match a {
            Arg::Buffer(b) if of(&plan.buffers[*b as usize].kind) => Some(*d),
            _ => None,
        })
    }

    fn words(&mut self, at: Option<(BufferId, u64)>, n: usize) -> Result<Vec<u32>> {
        let Some((b, offset)) = at else { return Ok(vec![0; n]) };
        let mut bytes = vec![0; 4 * n];
        self.inner.read(b, offset, &mut bytes)?;
        Ok(words(&bytes))
    }

    /// The step that memory describes; with its words of state.
    fn step(&mut self, plan: &Plan, descs: &[LaunchDesc]) -> Result<(Step, Vec<u32>)> {
        let at = |kind: BufferKind| Recorder::place(plan, descs, |k| *k == kind);
        let s = self.words(at(BufferKind::State), state::WORDS as usize)?;
        let n = match at(BufferKind::State) {
            Some(_) => s[state::TOKENS as usize] as usize,
            None => 1,
        };
        let rows = self.words(at(BufferKind::Rows), row::WORDS as usize)?;
        let tokens = self.words(at(BufferKind::Tokens), n)?;
        let step = Step { position: rows[row::POSITION as usize] as usize, tokens, outputs: s[state::OUTPUTS as usize] as usize };
        Ok((step, s))
    }

    /// The values behind a launch's parameters that the graph knows.
    fn values(&mut self, plan: &Plan, l: usize, d: &LaunchDesc, step: &Step, write: bool) -> Result<Vec<Seen>> {
        let mut out = vec![];
        let launch = &plan.launches[l];
        for (i, a) in launch.args.iter().enumerate() {
            let Arg::Buffer(b) = *a else { continue };
            let buffer = &plan.buffers[b as usize];
            let BufferKind::Value { rows, bytes } = buffer.kind else { continue };
            if plan.kernels[launch.kernel as usize].bufs[i].write != write {
                continue;
            }
            let Some(id) = self.graph.by_name(&buffer.name) else { continue };
            let rows = if rows == Rows::Outputs { step.outputs } else { step.tokens.len() };
            let mut all = vec![0; rows * bytes as usize];
            self.inner.read(d.args[i].0, d.args[i].1, &mut all)?;
            let held = held(&self.graph, id).min(bytes as usize);
            out.push((id, all.chunks_exact(bytes as usize).flat_map(|r| &r[..held]).copied().collect()));
        }
        Ok(out)
    }

    /// What the step's positions have in the caches that a launch writes.
    fn caches(&mut self, plan: &Plan, l: usize, d: &LaunchDesc, step: &Step, state: &[u32]) -> Result<Vec<SeenCache>> {
        let mut out = vec![];
        let launch = &plan.launches[l];
        for (i, a) in launch.args.iter().enumerate() {
            let Arg::Buffer(b) = *a else { continue };
            let (layer, heads, dim, window, keys) = match plan.buffers[b as usize].kind {
                BufferKind::Keys { layer, heads, dim, window } => (layer, heads, dim, window, true),
                BufferKind::Values { layer, heads, dim, window } => (layer, heads, dim, window, false),
                _ => continue,
            };
            if !plan.kernels[launch.kernel as usize].bufs[i].write {
                continue;
            }
            let room =
                state[if window == 0 { ir::plan::state::FULL_BLOCKS } else { ir::plan::state::RING_BLOCKS } as usize] as usize;
            let (block, dim) = (KV_BLOCK as usize, dim as usize);
            let mut floats = vec![];
            let mut of_block = vec![0; 4 * block * dim];
            for p in step.position..step.position + step.tokens.len() {
                let (n, within) = (p / block % room.max(1), p % block);
                for head in 0..heads as usize {
                    let at = d.args[i].1 + ((head * room + n) * of_block.len()) as u64;
                    self.inner.read(d.args[i].0, at, &mut of_block)?;
                    let w = words(&of_block);
                    floats.extend((0..dim).map(|j| if keys { w[j * block + within] } else { w[within * dim + j] }));
                }
            }
            out.push(SeenCache { layer, keys, floats });
        }
        Ok(out)
    }

    /// Runs a list launch by launch.
    fn recorded(&mut self, list: &List, plan: usize, grid_y: &[u32]) -> Result<()> {
        let (phase, plan) = self.plans[plan].clone();
        let (step, state) = self.step(&plan, &list.descs)?;
        let number = {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.steps.push(step.clone());
            log.steps.len() - 1
        };
        for (l, d) in list.descs.iter().enumerate() {
            let y = grid_y.get(l).copied().unwrap_or(d.grid[1]);
            if y == 0 {
                continue;
            }
            let name = &plan.launches[l].name;
            let at = |e: Diagnostic| Diagnostic { place: format!("position {}, launch {name}, {}", step.position, e.place), ..e };
            let reads = self.values(&plan, l, d, &step, false)?;
            for (i, a) in plan.launches[l].args.iter().enumerate() {
                let Arg::Buffer(b) = *a else { continue };
                if let BufferKind::Value { rows, bytes } = plan.buffers[b as usize].kind
                    && plan.kernels[plan.launches[l].kernel as usize].bufs[i].write
                {
                    let rows = if rows == Rows::Outputs { step.outputs } else { step.tokens.len() };
                    self.inner.write(d.args[i].0, d.args[i].1, &vec![self.fill; rows * bytes as usize])?;
                }
            }
            // SAFETY: the interpreter checks every access.
            unsafe { self.inner.run(list.single[l], &[y]) }.map_err(at)?;
            let writes = self.values(&plan, l, d, &step, true)?;
            let caches = self.caches(&plan, l, d, &step, &state)?;
            let record = Record { step: number, phase, launch: name.clone(), reads, writes, caches };
            self.log.lock().unwrap_or_else(PoisonError::into_inner).records.push(record);
        }
        Ok(())
    }
}

/// Little-endian words.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// Bytes of a row that a value fills.
fn held(g: &Graph, id: NodeId) -> usize {
    let ty = &g.node(id).ty;
    let n = ty.width() as usize;
    match ty.elem {
        Elem::Route => 8 * n,
        // Three planes of bytes, then exponent and sum of each group.
        Elem::Q24 { group } => 3 * n + 8 * n / group.max(1) as usize,
        _ => 4 * n.max(1),
    }
}

impl Device for Recorder {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        self.inner.alloc(bytes)
    }
    fn free(&mut self, buffer: BufferId) -> Result<()> {
        self.inner.free(buffer)
    }
    fn write(&mut self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write(buffer, offset, data)
    }
    fn read(&mut self, buffer: BufferId, offset: u64, out: &mut [u8]) -> Result<()> {
        self.inner.read(buffer, offset, out)
    }
    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        self.inner.load_module(code, names)
    }
    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        let id = self.inner.prepare(list)?;
        // A session prepares its plans first, in order.
        let plan = Some(self.lists.len()).filter(|&n| self.plans.get(n).is_some_and(|(_, p)| p.launches.len() == list.len()));
        let single = match plan {
            Some(_) => list.iter().map(|l| self.inner.prepare(std::slice::from_ref(l))).collect::<Result<_>>()?,
            None => vec![],
        };
        self.lists.push((id, List { descs: list.to_vec(), single, plan }));
        Ok(id)
    }
    fn release(&mut self, prepared: PreparedId) -> Result<()> {
        self.inner.release(prepared)
    }
    unsafe fn run(&mut self, prepared: PreparedId, grid_y: &[u32]) -> Result<()> {
        let found = self.lists.iter().position(|(id, l)| *id == prepared && l.plan.is_some());
        let Some(i) = found else {
            // SAFETY: the caller's promise.
            return unsafe { self.inner.run(prepared, grid_y) };
        };
        let (id, list) = self.lists.remove(i);
        let result = list.plan.map_or(Ok(()), |plan| self.recorded(&list, plan, grid_y));
        self.lists.insert(i, (id, list));
        result
    }
    fn sync(&mut self) -> Result<()> {
        self.inner.sync()
    }
}
