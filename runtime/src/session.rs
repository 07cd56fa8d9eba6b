//! A program on one device: buffers of a plan, the key/value caches, chunked prefill, decode steps, and the reuse of what
//! earlier turns left. Logits are a function of the tokens up to a position, however they came here. [`Session::run`] is for one
//! sequence, that of slot 0; [`crate::sequences`] has several. Both run by [`Session::advance`].

use crate::device::{BufferId, Device, KernelNames, KernelSig, LaunchDesc, PreparedId};
use crate::memory::{self, Needs, Sizes};
use crate::sequences::{Ended, Job, Part, Slot, SlotSink, Table, share};
use crate::trace::{On, Open, Request, Tracer};
use crate::weights;
use ir::diag::{Diagnostic, Result};
use ir::graph::interp::WeightSource;
use ir::graph::{Graph, Rows};
use ir::plan::phases::{DECODE_ROWS, Phases};
use ir::plan::{Arg, Buffer, BufferKind, Plan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

mod poison;

/// Names of the values that every program has.
const LOGITS: &str = "logits";
const NEXT: &str = "next_token";

/// Limits of a session, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that the caches have room for, each in a slot of its own.
    pub slots: usize,
    /// Positions of a sequence that full layers have room for.
    pub context: usize,
    /// Most tokens of one step, of all sequences together.
    pub chunk: usize,
    /// Positions beyond the window that sliding layers keep, so that a later turn can go back.
    pub slack: usize,
    /// Most tokens of one step whose logits are made, at least 1: a step that is asked for more is cut.
    pub outputs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { slots: 1, context: 4096, chunk: 128, slack: 512, outputs: 128 }
    }
}

/// A plan bound to memory.
struct Bound {
    plan: Plan,
    /// Buffer and offset of each of the plan's buffers.
    places: Vec<(BufferId, u64)>,
    launches: Vec<LaunchDesc>,
    prepared: PreparedId,
    /// Where kernels sum up digests, and its bytes.
    sums: Option<(BufferId, usize)>,
}

impl Bound {
    fn on(&self) -> On<'_> {
        On { plan: &self.plan, places: &self.places, launches: &self.launches, sums: self.sums }
    }
}

/// The tokens of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    /// Those of its parts.
    Given,
    /// The one that the step in front of it chose; that had one row.
    Chosen,
}

/// A chosen token as the device stores it; none after a NaN.
fn token(bytes: &[u8]) -> Option<u32> {
    let id = i32::from_le_bytes(bytes.first_chunk().copied().unwrap_or([0xff; 4]));
    u32::try_from(id).ok()
}

/// A program on a device with its weights and caches.
pub struct Session {
    device: Box<dyn Device>,
    limits: Limits,
    /// The plan for one row; then, if there is one, that for more.
    plans: Vec<Bound>,
    /// Number of the plan that ran last: where values lie is its choice.
    last: usize,
    sizes: Sizes,
    /// Buffers of values between kernels and of what kernels are told of a step, with their bytes.
    between: Vec<(BufferId, u64)>,
    slots: Vec<Slot>,
    /// What state and table hold once all that is queued is done; shorter where that is not known.
    told: [Vec<i32>; 2],
    vocab: usize,
    needs: Needs,
    /// Slots that begin anew with the next step, so that memory is poisoned before; none if it never is.
    poison: Option<BTreeSet<usize>>,
    tracer: Option<Tracer>,
}

impl Session {
    /// Loads the code of all kernels of the plans, packs the weights, allocates everything. Plans share weights, caches,
    /// tokens, rows, state and arenas. Nothing is loaded if it does not fit.
    pub fn new(
        mut device: Box<dyn Device>,
        plans: impl Into<Phases>,
        code: &[u8],
        source: &dyn WeightSource,
        limits: Limits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Session> {
        let Limits { slots, context, chunk, .. } = limits;
        if slots == 0 || context == 0 || chunk == 0 || chunk > crate::device::MAX_GRID_Y as usize {
            let m = format!("no session has {slots} slots, a context of {context} and chunks of {chunk}");
            return Err(Diagnostic::new("E0432", m));
        }
        let phases: Phases = plans.into();
        phases.check()?;
        let common = phases.common();
        let sizes = Sizes::of(&common, &limits);
        let needs = Needs::of(&common, &limits, source, code.len() as u64)?;
        if let Some(available) = device.available() {
            memory::check(&needs, &available, &common, &limits)?;
        }
        memory::addressable(&common, &sizes)?;
        let kernels = phases.kernels();
        let sigs: Vec<KernelSig> = kernels.iter().map(|k| KernelSig { name: &k.name, bufs: k.bufs.len() as u32 }).collect();
        let loaded = device.load_module(code, &KernelNames { place: "kernels", kernels: &sigs })?;
        let handles: BTreeMap<String, _> = kernels.iter().map(|k| k.name.clone()).zip(loaded).collect();
        let mut between = vec![];
        let mut alloc_between = |device: &mut Box<dyn Device>, bytes: u64| {
            let id = device.alloc(bytes)?;
            between.push((id, bytes));
            Ok::<BufferId, Diagnostic>(id)
        };
        let arena = alloc_between(&mut device, (common.arena_bytes * sizes.tokens).max(64))?;
        let of_outputs = alloc_between(&mut device, (common.output_bytes * sizes.outputs).max(64))?;
        let weights = weights::upload(&mut *device, &common.weights, source, progress)?;
        let mut shared: BTreeMap<String, (BufferId, u64)> = BTreeMap::new();
        let mut plans = vec![];
        let Phases { decode, prefill: other } = phases;
        let prefill = other.is_some();
        for plan in [decode].into_iter().chain(other) {
            let mut places = vec![];
            // Digests of a plan lie together, so that they are read at once: those of a value after those of another.
            let digests = |b: &&Buffer| matches!(b.kind, BufferKind::Digests { .. });
            let of_one = memory::digest_bytes(&sizes, plans.is_empty() && prefill);
            let bytes = plan.buffers.iter().filter(digests).count() as u64 * of_one;
            let sums = if bytes > 0 { Some((device.alloc(bytes)?, bytes as usize)) } else { None };
            let mut next = (0..).map(|i| i * of_one);
            for b in &plan.buffers {
                let place = match (&b.kind, b.offset) {
                    (BufferKind::Value { rows: Rows::Outputs, .. }, Some(o)) => (of_outputs, o * sizes.outputs),
                    (BufferKind::Value { .. }, Some(o)) => (arena, o * sizes.tokens),
                    (BufferKind::Digests { .. }, _) => (sums.map_or(arena, |s| s.0), next.next().unwrap_or(0)),
                    (kind, offset) => match shared.get(&b.name) {
                        Some(place) if offset.is_none() && !matches!(kind, BufferKind::Value { .. }) => *place,
                        _ => {
                            // As large as all plans together need it.
                            let kind = match common.buffer(&b.name) {
                                Some(i) if matches!(kind, BufferKind::Parts { .. }) => &common.buffers[i].kind,
                                _ => kind,
                            };
                            let bytes = sizes.bytes(kind, offset).unwrap_or(64);
                            let cache = matches!(kind, BufferKind::Keys { .. } | BufferKind::Values { .. });
                            (if cache { device.alloc(bytes)? } else { alloc_between(&mut device, bytes)? }, 0)
                        }
                    },
                };
                if !matches!(b.kind, BufferKind::Value { .. } | BufferKind::Digests { .. }) {
                    shared.insert(b.name.clone(), place);
                }
                places.push(place);
            }
            let weight: Vec<BufferId> =
                plan.weights.iter().filter_map(|w| common.weights.iter().position(|c| c == w).map(|i| weights[i])).collect();
            let launch = |l: &ir::plan::Launch| {
                let k = &plan.kernels[l.kernel as usize];
                let arg = |a: &Arg| match a {
                    Arg::Buffer(i) => places[*i as usize],
                    Arg::Weight(i) => (weight[*i as usize], 0),
                };
                LaunchDesc {
                    kernel: handles[&k.name],
                    args: l.args.iter().map(arg).collect(),
                    grid: [l.grid_x, 1],
                    warps: k.warps,
                    shared_bytes: k.shared_layout().1,
                }
            };
            let launches: Vec<LaunchDesc> = plan.launches.iter().map(launch).collect();
            let prepared = device.prepare(&launches)?;
            plans.push(Bound { plan, places, launches, prepared, sums });
        }
        let plan = &plans[0].plan;
        let vocab = plan.buffer(LOGITS).and_then(|i| match plan.buffers[i].kind {
            BufferKind::Value { bytes, .. } => Some(bytes as usize / 4),
            _ => None,
        });
        let vocab = vocab.ok_or_else(|| Diagnostic::new("E0433", "the program stores no logits"))?;
        let slots = vec![Slot::default(); limits.slots];
        let (told, poison, tracer) = (Default::default(), None, None);
        Ok(Session { device, limits, plans, between, last: 0, sizes, slots, told, vocab, needs, poison, tracer })
    }

    /// Name of the device.
    pub fn device_name(&self) -> String {
        self.device.name()
    }

    /// The device, for work beside the session's: between two calls of a session nothing of its own is under way.
    pub fn device(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    /// What it holds.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Launches for one token.
    pub fn launches(&self) -> usize {
        self.plans[0].launches.len()
    }

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Tokens of slot 0 whose keys and values are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.slots[0].tokens
    }

    /// Elements of a row of logits (padded to whole 64-byte lines).
    pub fn logits_width(&self) -> usize {
        self.vocab
    }

    /// The plans, by number.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.plans.iter().map(|b| &b.plan)
    }

    /// From now on every step's rows go to the sink of the request. The graph is the one that the plans were lowered from.
    pub fn trace(&mut self, graph: &Graph, request: Request) -> Result<()> {
        let on: Vec<On> = self.plans.iter().map(Bound::on).collect();
        self.tracer = Some(Tracer::new(&mut *self.device, &on, graph, request)?);
        Ok(())
    }

    /// Keeps of the cache what `prompt` shares with it, as far as every sliding layer still holds the keys that the next
    /// position needs, and always leaves a token to compute. Returns how many tokens were kept.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        let keep = self.shares(0, prompt);
        self.keep(0, keep);
        keep
    }

    /// Forgets the sequence of slot 0.
    pub fn reset(&mut self) {
        self.keep(0, 0);
    }

    /// How many tokens of a prompt need not be computed in this slot.
    pub(crate) fn shares(&self, slot: usize, prompt: &[u32]) -> usize {
        self.slots[slot].shares(prompt, &self.sizes)
    }

    /// Forgets all but the first tokens of a slot.
    pub(crate) fn keep(&mut self, slot: usize, tokens: usize) {
        self.slots[slot].keep(tokens);
        self.poison.iter_mut().for_each(|p| _ = p.insert(slot));
    }

    /// Refuses tokens that a slot has no room for.
    pub(crate) fn check_room(&self, slot: usize, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Diagnostic::new("E0434", "no token to run"));
        }
        let together = self.slots[slot].tokens.len() + tokens.len();
        if together > self.limits.context {
            let m = format!("{together} tokens do not fit a context of {}", self.limits.context);
            return Err(Diagnostic::new("E0435", m).hint("ask for a larger --context"));
        }
        Ok(())
    }

    /// Runs tokens in slot 0, in chunks; the logits of the last `outputs` of them go to `sink`, a row of [`Session::logits_width`]
    /// floats per position. Returns the greedy choice after the last token.
    pub fn run(&mut self, tokens: &[u32], chunk: usize, outputs: usize, sink: &mut dyn FnMut(&[f32])) -> Result<u32> {
        self.check_room(0, tokens)?;
        let mut jobs = [Job::new(0, tokens, outputs)];
        loop {
            if let Some(ended) = self.advance(&mut jobs, chunk, &mut |_, row| sink(row))?.pop() {
                return ended.next;
            }
        }
    }

    /// One step of jobs in different slots, with at most `chunk` tokens of each. Logits that are asked for go to `sink`.
    /// Returns the jobs whose last token was run.
    pub(crate) fn advance(&mut self, jobs: &mut [Job], chunk: usize, sink: SlotSink) -> Result<Vec<Ended>> {
        let chunk = chunk.clamp(1, self.limits.chunk);
        let shares = share(jobs, chunk, self.limits.chunk, self.sizes.outputs as usize);
        if shares.is_empty() {
            return Ok(vec![]);
        }
        let part = |s: &crate::sequences::Share| {
            let job = &jobs[s.job];
            let at = self.slots[job.slot].tokens.len();
            Part { slot: job.slot, at, tokens: &job.tokens[job.done..job.done + s.rows], from: s.from }
        };
        let parts: Vec<Part> = shares.iter().map(part).collect();
        let open = self.queue_step(&parts, Input::Given)?;
        let tokens = parts.iter().flat_map(|p| p.tokens).copied().collect::<Vec<_>>();
        self.finish_trace(open, &tokens)?;
        for p in &parts {
            self.slots[p.slot].extend(p.tokens);
        }
        let (mut output, mut ended) = (0, vec![]);
        for s in &shares {
            let (job, rows) = (&mut jobs[s.job], s.rows - s.from);
            job.done += s.rows;
            if job.outputs > 0 && rows > 0 {
                let floats = self.floats(LOGITS, output, rows)?;
                floats.chunks_exact(self.vocab).for_each(|row| sink(job.slot, row));
            }
            output += rows;
            if job.left() == 0 {
                ended.push((job.slot, output - 1));
            }
        }
        if ended.is_empty() {
            return Ok(vec![]);
        }
        let choices = self.choices(output)?;
        let next = |(slot, output): (usize, usize)| Ended { slot, next: choices[output].ok_or_else(|| self.not_finite(slot)) };
        Ok(ended.into_iter().map(next).collect())
    }

    /// Generates greedily in slot 0: runs `first`, then each choice, in at most `most` steps of one token; each choice goes to
    /// `choice`, until that breaks off. Afterwards the cache holds the tokens that were run, up to the one whose choice was the
    /// last.
    ///
    /// A device that works while the host looks on is kept ahead: the next step is queued, with a choice that only the device
    /// knows, before this one's is read. A step too many is forgotten.
    pub fn generate(&mut self, first: u32, most: usize, choice: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
        let base = self.slots[0].tokens.len();
        let most = most.min(self.limits.context.saturating_sub(base));
        let (mut queued, mut started, mut running) = (VecDeque::new(), 0, first);
        let result = loop {
            while started < most && queued.len() <= self.device.ahead() {
                let input = if started == 0 { Input::Given } else { Input::Chosen };
                let open = self.queue_step(&[Part { slot: 0, at: base + started, tokens: &[first], from: 0 }], input)?;
                self.slots[0].written = self.slots[0].written.max(base + started + 1);
                started += 1;
                let (b, at, _) = self.value(NEXT)?;
                queued.push_back((self.device.queue_read(b, at, 4)?, open));
            }
            let Some((read, open)) = queued.pop_front() else { break Ok(()) };
            let chosen = token(&self.device.finish(read)?);
            self.finish_trace(open, &[running])?;
            self.slots[0].tokens.push(running);
            match chosen {
                None => break Err(()),
                Some(id) if choice(id).is_break() => break Ok(()),
                Some(id) => running = id,
            }
        };
        // A step that is forgotten is in no trace.
        let forgotten = !queued.is_empty();
        for (read, _) in queued {
            self.device.finish(read)?;
        }
        if forgotten {
            self.trace_anew()?;
        }
        result.map_err(|()| self.not_finite(0))
    }

    /// Queues a step; what its trace waits for, if there is one.
    fn queue_step(&mut self, parts: &[Part], input: Input) -> Result<Option<Open>> {
        let table = self.queue_input(parts, input)?;
        self.last = if table.rows > DECODE_ROWS { self.plans.len() - 1 } else { 0 };
        let bound = &self.plans[self.last];
        let grid: Vec<u32> = bound.plan.launches.iter().map(|l| l.grid_y(table.rows, table.outputs)).collect();
        // SAFETY: the plan was made by the compiler for this code; buffers are sized for `limits.chunk` rows, and the caches
        // for the slots and blocks in table and state.
        unsafe {
            match &mut self.tracer {
                None => self.device.run(bound.prepared, &grid).map(|()| None),
                Some(t) => {
                    let how = (self.last, bound.prepared, &grid[..]);
                    t.run(&mut *self.device, how, &bound.on(), parts, &self.sizes).map(Some)
                }
            }
        }
    }

    /// Hands on what the trace of a step waited for; these are its tokens.
    fn finish_trace(&mut self, open: Option<Open>, tokens: &[u32]) -> Result<()> {
        match (&mut self.tracer, open) {
            (Some(t), Some(open)) => t.finish(&mut *self.device, open, tokens),
            _ => Ok(()),
        }
    }

    /// Leaves out of the trace what ran since the last step that was handed on.
    fn trace_anew(&mut self) -> Result<()> {
        let on: Vec<On> = self.plans.iter().map(Bound::on).collect();
        self.tracer.as_mut().map_or(Ok(()), |t| t.forget(&mut *self.device, &on))
    }

    /// Where a buffer lies that all plans have in common.
    fn common(&self, kind: BufferKind) -> Option<(BufferId, u64)> {
        self.plans
            .iter()
            .find_map(|Bound { plan, places, .. }| plan.buffers.iter().position(|b| b.kind == kind).map(|i| places[i]))
    }

    /// Where the last step's value of this name lies, and the bytes of a row.
    fn value(&self, name: &str) -> Result<(BufferId, u64, u64)> {
        let Bound { plan, places, .. } = &self.plans[self.last];
        let i = plan.buffer(name).ok_or_else(|| Diagnostic::new("E0433", "the program stores no such value").at(name))?;
        match plan.buffers[i].kind {
            BufferKind::Value { bytes, .. } => Ok((places[i].0, places[i].1, u64::from(bytes))),
            _ => Err(Diagnostic::new("E0433", "not a value").at(name)),
        }
    }

    /// Bytes of the last step's value of this name, from its first row.
    pub fn read(&mut self, name: &str, out: &mut [u8]) -> Result<()> {
        let (b, at, _) = self.value(name)?;
        self.device.read(b, at, out)
    }

    /// Floats of row `row` of the last step's value (one row is as long as its buffer's, padding included).
    pub fn row(&mut self, name: &str, row: usize) -> Result<Vec<f32>> {
        self.floats(name, row, 1)
    }

    /// The same of several rows.
    fn floats(&mut self, name: &str, row: usize, rows: usize) -> Result<Vec<f32>> {
        let (b, at, bytes) = self.value(name)?;
        let mut out = vec![0u8; rows * bytes as usize];
        self.device.read(b, at + row as u64 * bytes, &mut out)?;
        Ok(out.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// The greedy choices of the last step; none after a NaN.
    fn choices(&mut self, outputs: usize) -> Result<Vec<Option<u32>>> {
        let (b, at, bytes) = self.value(NEXT)?;
        let mut out = vec![0u8; outputs * bytes as usize];
        self.device.read(b, at, &mut out)?;
        Ok(out.chunks_exact(bytes as usize).map(token).collect())
    }

    /// Runs the sequence of a slot again, token by token and launch by launch, to find the first value that is not finite.
    fn not_finite(&mut self, slot: usize) -> Diagnostic {
        let tokens = self.slots[slot].tokens.clone();
        self.keep(slot, 0);
        // Rows end in padding that is not looked for.
        if let Err(d) = self.clean() {
            return d;
        }
        let (mut at, mut place) = (tokens.len().saturating_sub(1), LOGITS.to_string());
        for (i, token) in tokens.iter().enumerate() {
            match self.first_bad_value(slot, *token) {
                Ok(None) => {}
                Ok(Some(name)) => {
                    (at, place) = (i, name);
                    break;
                }
                Err(d) => return d,
            }
        }
        // What is in the caches is of no use.
        self.keep(slot, 0);
        if let Err(d) = self.trace_anew() {
            return d;
        }
        Diagnostic::new("E0436", format!("a NaN or an infinity at position {at}: generation stops"))
            .at(place)
            .hint("this is the first stored value that is not finite; a scale or a weight of the checkpoint may be damaged")
    }

    /// Runs one more token, and names the first stored value that is not finite.
    fn first_bad_value(&mut self, slot: usize, token: u32) -> Result<Option<String>> {
        let at = self.slots[slot].tokens.len();
        self.queue_input(&[Part { slot, at, tokens: &[token], from: 0 }], Input::Given)?;
        self.last = 0;
        let mut found = None;
        for k in 0..self.plans[0].launches.len() {
            let plan = &self.plans[0].plan;
            let launch = &plan.launches[k];
            let kernel = &plan.kernels[launch.kernel as usize];
            let written: Vec<u32> = launch
                .args
                .iter()
                .zip(&kernel.bufs)
                .filter_map(|(a, b)| if let (Arg::Buffer(i), true) = (a, b.write) { Some(*i) } else { None })
                .collect();
            for i in &written {
                // The row of a route ends in padding that no kernel writes.
                if let Buffer { name, kind: BufferKind::Value { bytes, .. }, .. } = &plan.buffers[*i as usize]
                    && name.ends_with(".route")
                {
                    let (b, at) = self.plans[0].places[*i as usize];
                    self.device.write(b, at, &vec![0; *bytes as usize])?;
                }
            }
            // SAFETY: as in `step`, for one row.
            unsafe { self.device.launch(&self.plans[0].launches[k..=k])? };
            let written: Vec<_> = written.into_iter().map(|i| plan.buffers[i as usize].clone()).collect();
            for b in written {
                // Fixed point and the chosen token are not floats. The experts of a route read as floats are tiny and finite,
                // its weights are floats.
                let floats = matches!(b.kind, BufferKind::Value { .. }) && !b.name.ends_with(".q24") && b.name != NEXT;
                if floats && found.is_none() && self.row(&b.name, 0)?.iter().any(|x| !x.is_finite()) {
                    found = Some(b.name);
                }
            }
        }
        self.slots[slot].extend(&[token]);
        Ok(found)
    }

    /// Queues what kernels are told of a step.
    fn queue_input(&mut self, parts: &[Part], input: Input) -> Result<Table> {
        self.poison_what_is_free()?;
        let table = Table::new(parts, &self.sizes);
        self.queue_changes(BufferKind::State, 0, &table.state)?;
        self.queue_changes(BufferKind::Rows, 1, &table.entries)?;
        if let Some((b, at)) = self.common(BufferKind::Tokens) {
            match input {
                Input::Given => {
                    let ids = parts.iter().flat_map(|p| p.tokens).flat_map(|t| t.to_le_bytes());
                    self.device.queue_write(b, at, &ids.collect::<Vec<u8>>())?;
                }
                Input::Chosen => {
                    let (from, offset, _) = self.value(NEXT)?;
                    self.device.queue_copy((from, offset), (b, at), 4)?;
                }
            }
        }
        Ok(table)
    }

    /// Queues those words of a buffer that are not there already: from token to token of one sequence that is its position.
    fn queue_changes(&mut self, kind: BufferKind, which: usize, words: &[i32]) -> Result<()> {
        let Some((b, at)) = self.common(kind) else { return Ok(()) };
        let mut known = std::mem::take(&mut self.told[which]);
        let differs = |i: &usize| known.get(*i) != Some(&words[*i]);
        if let Some(first) = (0..words.len()).find(differs) {
            let end = (first..words.len()).rfind(differs).map_or(first, |i| i + 1);
            let bytes: Vec<u8> = words[first..end].iter().flat_map(|w| w.to_le_bytes()).collect();
            self.device.queue_write(b, at + 4 * first as u64, &bytes)?;
        }
        known.splice(..known.len().min(words.len()), words.iter().copied());
        self.told[which] = known;
        Ok(())
    }
}
