//! One sequence on one device: buffers of a plan, the key/value cache, chunked prefill, decode steps, and the reuse of what
//! earlier turns left. Logits are a function of the tokens up to a position, however they came here.

use crate::device::{BufferId, Device, KernelNames, KernelSig, LaunchDesc, PreparedId};
use crate::memory::{self, Needs, Sizes};
use crate::weights;
use ir::diag::{Diagnostic, Result};
use ir::graph::Rows;
use ir::graph::interp::WeightSource;
use ir::order::KV_BLOCK;
use ir::plan::phases::Phases;
use ir::plan::{Arg, Buffer, BufferKind, Plan, state};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

/// Names of the values that every program has.
const LOGITS: &str = "logits";
const NEXT: &str = "next_token";

/// Limits of a session, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions that full layers have room for.
    pub context: usize,
    /// Most tokens of one step.
    pub chunk: usize,
    /// Positions beyond the window that sliding layers keep, so that a later turn can go back.
    pub slack: usize,
    /// Most tokens of one step whose logits are made, at least 1: a step that is asked for more is cut.
    pub outputs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { context: 4096, chunk: 128, slack: 512, outputs: 128 }
    }
}

/// A plan bound to memory.
struct Bound {
    plan: Plan,
    /// Buffer and offset of each of the plan's buffers.
    places: Vec<(BufferId, u64)>,
    launches: Vec<LaunchDesc>,
    prepared: PreparedId,
}

/// The tokens of a step.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// These.
    Tokens(&'a [u32]),
    /// The one that the step in front of it chose; that had one token.
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
    /// The plan for one token; then, if there is one, that for more.
    plans: Vec<Bound>,
    /// Number of the plan that ran last: where values lie is its choice.
    last: usize,
    sizes: Sizes,
    /// What the state buffer holds once all that is queued is done, if that is known.
    state: Option<[i32; state::WORDS as usize]>,
    tokens: Vec<u32>,
    /// One past the last position ever written to the caches.
    written: usize,
    vocab: usize,
}

impl Session {
    /// Loads the code of all kernels of the plans, packs the weights, allocates everything. Plans share weights, caches,
    /// tokens, state and arenas. Nothing is loaded if it does not fit.
    pub fn new(
        mut device: Box<dyn Device>,
        plans: impl Into<Phases>,
        code: &[u8],
        source: &dyn WeightSource,
        limits: Limits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Session> {
        if limits.context == 0 || limits.chunk == 0 || limits.chunk > crate::device::MAX_GRID_Y as usize {
            return Err(Diagnostic::new(
                "E0432",
                format!("no session has a context of {} and chunks of {}", limits.context, limits.chunk),
            ));
        }
        let phases: Phases = plans.into();
        phases.check()?;
        let common = phases.common();
        let sizes = Sizes::of(&common, &limits);
        if let Some(available) = device.available() {
            let needs = Needs::of(&common, &limits, source, code.len() as u64)?;
            memory::check(&needs, &available, &common, &limits)?;
        }
        let kernels = phases.kernels();
        let sigs: Vec<KernelSig> = kernels.iter().map(|k| KernelSig { name: &k.name, bufs: k.bufs.len() as u32 }).collect();
        let loaded = device.load_module(code, &KernelNames { place: "kernels", kernels: &sigs })?;
        let handles: BTreeMap<String, _> = kernels.iter().map(|k| k.name.clone()).zip(loaded).collect();
        let arena = device.alloc((common.arena_bytes * sizes.tokens).max(64))?;
        let of_outputs = device.alloc((common.output_bytes * sizes.outputs).max(64))?;
        let weights = weights::upload(&mut *device, &common.weights, source, progress)?;
        let mut shared: BTreeMap<String, (BufferId, u64)> = BTreeMap::new();
        let mut plans = vec![];
        let Phases { decode, prefill } = phases;
        for plan in [decode].into_iter().chain(prefill) {
            let mut places = vec![];
            for b in &plan.buffers {
                let place = match (&b.kind, b.offset) {
                    (BufferKind::Value { rows: Rows::Outputs, .. }, Some(o)) => (of_outputs, o * sizes.outputs),
                    (BufferKind::Value { .. }, Some(o)) => (arena, o * sizes.tokens),
                    (kind, offset) => match shared.get(&b.name) {
                        Some(place) if offset.is_none() && !matches!(kind, BufferKind::Value { .. }) => *place,
                        _ => {
                            // As large as all plans together need it.
                            let kind = match common.buffer(&b.name) {
                                Some(i) if matches!(kind, BufferKind::Parts { .. }) => &common.buffers[i].kind,
                                _ => kind,
                            };
                            (device.alloc(sizes.bytes(kind, offset).unwrap_or(64))?, 0)
                        }
                    },
                };
                if !matches!(b.kind, BufferKind::Value { .. }) {
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
            plans.push(Bound { plan, places, launches, prepared });
        }
        let plan = &plans[0].plan;
        let vocab = plan.buffer(LOGITS).and_then(|i| match plan.buffers[i].kind {
            BufferKind::Value { bytes, .. } => Some(bytes as usize / 4),
            _ => None,
        });
        let vocab = vocab.ok_or_else(|| Diagnostic::new("E0433", "the program stores no logits"))?;
        Ok(Session { device, limits, plans, last: 0, sizes, state: None, tokens: vec![], written: 0, vocab })
    }

    /// Name of the device.
    pub fn device_name(&self) -> String {
        self.device.name()
    }

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Tokens whose keys and values are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Elements of a row of logits (padded to whole 64-byte lines).
    pub fn logits_width(&self) -> usize {
        self.vocab
    }

    /// Keeps of the cache what `prompt` shares with it, as far as every sliding layer still holds the keys that the next
    /// position needs, and always leaves a token to compute. Returns how many tokens were kept.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = common.min(prompt.len().saturating_sub(1));
        let keep = if self.holds(keep) { keep } else { 0 };
        self.tokens.truncate(keep);
        keep
    }

    /// Do the rings hold all keys that position `at` sees?
    fn holds(&self, at: usize) -> bool {
        if self.sizes.window == 0 || at == 0 || self.written == 0 {
            return true;
        }
        let block = KV_BLOCK as usize;
        let first = (at + 1).saturating_sub(self.sizes.window) / block;
        let last = (self.written - 1) / block;
        last < first + self.sizes.ring_blocks
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.tokens.clear();
    }

    /// Runs tokens in chunks; the logits of the last `outputs` of them go to `sink`, a row of [`Session::logits_width`]
    /// floats per position. Returns the greedy choice after the last token.
    pub fn run(&mut self, tokens: &[u32], chunk: usize, outputs: usize, sink: &mut dyn FnMut(&[f32])) -> Result<u32> {
        if tokens.is_empty() {
            return Err(Diagnostic::new("E0434", "no token to run"));
        }
        if self.tokens.len() + tokens.len() > self.limits.context {
            return Err(Diagnostic::new(
                "E0435",
                format!("{} tokens do not fit a context of {}", self.tokens.len() + tokens.len(), self.limits.context),
            )
            .hint("ask for a larger --context"));
        }
        let chunk = chunk.clamp(1, self.limits.chunk);
        let mut next = 0;
        let mut at = 0;
        let wanted_from = tokens.len().saturating_sub(outputs);
        while at < tokens.len() {
            // Up to the first row that is wanted, and from there as many as there is room for.
            let room = wanted_from.saturating_sub(at) + self.sizes.outputs as usize;
            let n = chunk.min(tokens.len() - at).min(room);
            // The last token's logits are always made: they choose the next one.
            let last = at + n == tokens.len();
            let from = wanted_from.clamp(at, at + n) - at;
            let from = if last { from.min(n - 1) } else { from };
            self.step(&tokens[at..at + n], from)?;
            if outputs > 0 && from < n {
                let rows = n - from;
                let mut bytes = vec![0u8; rows * self.vocab * 4];
                self.read(LOGITS, &mut bytes)?;
                let floats: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                floats.chunks_exact(self.vocab).for_each(&mut *sink);
            }
            if last {
                next = self.next_token(n - 1 - from)?;
            }
            at += n;
        }
        Ok(next)
    }

    /// Generates greedily: runs `first`, then each choice, in at most `most` steps of one token; each choice goes to `choice`,
    /// until that breaks off. Afterwards the cache holds the tokens that were run, up to the one whose choice was the last.
    ///
    /// A device that works while the host looks on is kept ahead: the next step is queued, with a choice that only the device
    /// knows, before this one's is read. A step too many is forgotten.
    pub fn generate(&mut self, first: u32, most: usize, choice: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
        let base = self.tokens.len();
        let most = most.min(self.limits.context.saturating_sub(base));
        let (mut queued, mut started, mut running) = (VecDeque::new(), 0, first);
        let result = loop {
            while started < most && queued.len() <= self.device.ahead() {
                let input = if started == 0 { Input::Tokens(&[first]) } else { Input::Chosen };
                self.queue_step(base + started, input, 0)?;
                self.written = self.written.max(base + started + 1);
                started += 1;
                let (b, at, _) = self.value(NEXT)?;
                queued.push_back(self.device.queue_read(b, at, 4)?);
            }
            let Some(read) = queued.pop_front() else { break Ok(()) };
            let chosen = token(&self.device.finish(read)?);
            self.tokens.push(running);
            match chosen {
                None => break Err(()),
                Some(id) if choice(id).is_break() => break Ok(()),
                Some(id) => running = id,
            }
        };
        for read in queued {
            self.device.finish(read)?;
        }
        result.map_err(|()| self.not_finite())
    }

    /// One chunk; logits are made for its rows from `from` on.
    fn step(&mut self, tokens: &[u32], from: usize) -> Result<()> {
        self.queue_step(self.tokens.len(), Input::Tokens(tokens), from)?;
        self.tokens.extend_from_slice(tokens);
        self.written = self.written.max(self.tokens.len());
        Ok(())
    }

    /// Queues one chunk from position `at` on.
    fn queue_step(&mut self, at: usize, input: Input, from: usize) -> Result<()> {
        let n = self.queue_input(at, input, from)?;
        self.last = if n > 1 { self.plans.len() - 1 } else { 0 };
        let bound = &self.plans[self.last];
        let grid: Vec<u32> = bound.plan.launches.iter().map(|l| l.grid_y(n, n - from)).collect();
        // SAFETY: the plan was made by the compiler for this code; buffers are sized for `limits.chunk` rows, and the caches
        // for the blocks in the state.
        unsafe { self.device.run(bound.prepared, &grid) }
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
        let (b, at, bytes) = self.value(name)?;
        let mut out = vec![0u8; bytes as usize];
        self.device.read(b, at + row as u64 * bytes, &mut out)?;
        Ok(out.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn next_token(&mut self, row: usize) -> Result<u32> {
        let (b, at, bytes) = self.value(NEXT)?;
        let mut out = [0u8; 4];
        self.device.read(b, at + row as u64 * bytes, &mut out)?;
        token(&out).ok_or_else(|| self.not_finite())
    }

    /// Runs the sequence again, token by token and launch by launch, to find the first value that is not finite.
    fn not_finite(&mut self) -> Diagnostic {
        let tokens = std::mem::take(&mut self.tokens);
        let (mut at, mut place) = (tokens.len().saturating_sub(1), LOGITS.to_string());
        for (i, token) in tokens.iter().enumerate() {
            match self.first_bad_value(*token) {
                Ok(None) => {}
                Ok(Some(name)) => {
                    (at, place) = (i, name);
                    break;
                }
                Err(d) => return d,
            }
        }
        // What is in the caches is of no use.
        self.tokens.clear();
        Diagnostic::new("E0436", format!("a NaN or an infinity at position {at}: generation stops"))
            .at(place)
            .hint("this is the first stored value that is not finite; a scale or a weight of the checkpoint may be damaged")
    }

    /// Runs one more token, and names the first stored value that is not finite.
    fn first_bad_value(&mut self, token: u32) -> Result<Option<String>> {
        self.queue_input(self.tokens.len(), Input::Tokens(&[token]), 0)?;
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
        self.tokens.push(token);
        Ok(found)
    }

    /// Queues state and tokens of a step, and says how many tokens it has.
    fn queue_input(&mut self, at: usize, input: Input, from: usize) -> Result<usize> {
        let n = if let Input::Tokens(ids) = input { ids.len() } else { 1 };
        let mut words = [0i32; state::WORDS as usize];
        for (word, v) in [
            (state::POSITION, at),
            (state::TOKENS, n),
            (state::OUTPUT_FROM, from),
            (state::RING_BLOCKS, self.sizes.ring_blocks),
            (state::FULL_BLOCKS, self.sizes.full_blocks),
        ] {
            words[word as usize] = v as i32;
        }
        if let Some((b, at)) = self.common(BufferKind::State) {
            // What changed: from token to token that is one word.
            let known = self.state.take();
            let differs = |i: &usize| known.is_none_or(|k| k[*i] != words[*i]);
            let first = (0..words.len()).find(differs).unwrap_or(words.len());
            let end = (0..words.len()).rev().find(differs).map_or(first, |i| i + 1);
            let bytes: Vec<u8> = words[first..end].iter().flat_map(|w| w.to_le_bytes()).collect();
            if !bytes.is_empty() {
                self.device.queue_write(b, at + 4 * first as u64, &bytes)?;
            }
            self.state = Some(words);
        }
        if let Some((b, at)) = self.common(BufferKind::Tokens) {
            match input {
                Input::Tokens(ids) => {
                    self.device.queue_write(b, at, &ids.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>())?;
                }
                Input::Chosen => {
                    let (from, offset, _) = self.value(NEXT)?;
                    self.device.queue_copy((from, offset), (b, at), 4)?;
                }
            }
        }
        Ok(n)
    }
}
