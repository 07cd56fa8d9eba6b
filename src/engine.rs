//! Runs a program: a session on a device, and the loop that turns a prompt into tokens.

use crate::emit::{Code, kernels_text};
use crate::gpu;
use crate::pipeline::{Program, Progress};
use ir::diag::{Diagnostic, Result};
use ir::kernel::interp::RunOptions;
use models::Checkpoint;
use runtime::assembler::Cubins;
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{Device, LaunchMode};
use runtime::interp::InterpDevice;
use runtime::session::{Limits, Session};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Positions that fit by default.
pub const CONTEXT: usize = 4096;

/// Bytes of logits that one step may make.
const LOGITS_BYTES: usize = 64 << 20;

/// How a program is run. None of it changes a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Positions that fit; [`CONTEXT`] or the model's own limit if absent.
    pub context: Option<usize>,
    /// Tokens of a prompt that are run together.
    pub chunk: Option<usize>,
    /// Threads of the CPU.
    pub threads: Option<usize>,
    /// Number of the GPU, for programs that run on one.
    pub gpu: u32,
    /// How a GPU is given launches.
    pub launch: Option<LaunchMode>,
    /// Is machine code taken where some fits the GPU?
    pub cubins: Cubins,
    /// Sequences that run together, each with a context of its own; one if 0.
    pub slots: usize,
    /// Logits of all tokens will be asked for, so that there is room for many rows of them.
    pub logits: bool,
    /// Memory that holds nothing is filled with NaN.
    pub poison: bool,
}

/// What is generated.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The whole prompt; what it shares with what came before is not computed again.
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub max: usize,
    /// Ids that end it; none to go on to `max`.
    pub stop: &'a [u32],
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// No more positions fit.
    Context,
}

impl StopReason {
    /// As text.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Stop => "stop",
            StopReason::Length => "length",
            StopReason::Context => "context",
        }
    }
}

/// Takes the logits of one position after the other.
pub type LogitsSink<'a> = &'a mut dyn FnMut(&[f32]);

/// What came out.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Generated ids, with the one that ended it.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens of the prompt that were not computed again.
    pub kept: usize,
    /// Time for the prompt, and with it the first token.
    pub prefill: Duration,
    /// Time for the other tokens.
    pub decode: Duration,
}

/// What fits: known before anything is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Token ids are below this.
    pub vocab: usize,
    /// Positions that fit.
    pub context: usize,
    /// Positions that the model has.
    pub most: usize,
}

impl Room {
    /// Of a model, with this context or else [`CONTEXT`] or the model's own limit.
    pub fn new(ck: &Checkpoint, context: Option<usize>) -> Result<Room> {
        let most = ck.config().max_position_embeddings;
        let context = context.unwrap_or(CONTEXT.min(most));
        if context == 0 || context > most {
            return Err(Diagnostic::new("E0757", format!("the model has 1 to {most} positions, not {context}")).at("--context"));
        }
        Ok(Room { vocab: ck.config().vocab_size, context, most })
    }

    /// Refuses a prompt that cannot be run.
    pub fn check(&self, prompt: &[u32]) -> Result<()> {
        if prompt.is_empty() {
            return Err(Diagnostic::new("E0755", "the prompt is empty"));
        }
        if prompt.len() > self.context {
            let message = format!("the prompt has {} tokens, the context {}", prompt.len(), self.context);
            return Err(Diagnostic::new("E0757", message).hint(if prompt.len() > self.most {
                format!("the model has {} positions: shorten the prompt", self.most)
            } else {
                format!("`--context` makes room for up to {}", self.most)
            }));
        }
        match prompt.iter().find(|id| **id as usize >= self.vocab) {
            Some(id) => {
                let last = self.vocab.saturating_sub(1);
                Err(Diagnostic::new("E0756", format!("there is no token {id}: ids go from 0 to {last}")))
            }
            None => Ok(()),
        }
    }
}

/// A program on a device.
pub struct Engine {
    session: Session,
    room: Room,
    chunk: usize,
}

impl Engine {
    /// Loads a program with its weights.
    pub fn open(ck: &Checkpoint, program: &Program, options: &EngineOptions, progress: Progress) -> Result<Engine> {
        let room = Room::new(ck, options.context)?;
        let context = room.context;
        let default = Limits::default();
        let most = options.chunk.unwrap_or(default.chunk);
        let chunk = most.min(context);
        // Rows of logits are long: there is room for one, or for as many as fit this.
        let outputs = if options.logits { (LOGITS_BYTES / (4 * room.vocab.max(1))).clamp(1, chunk.max(1)) } else { 1 };
        // Every sequence may have a row in every step, and choose a token.
        let slots = options.slots.max(1);
        let rows = most.min(context * slots).max(slots);
        let limits = Limits { slots, context, chunk: rows, outputs: outputs.max(slots), ..default };
        let (device, code): (Box<dyn Device>, Vec<u8>) = match &program.code {
            Code::Host(object) => (Box::new(CpuDevice::new(cpu(options))?), object.clone()),
            Code::Kernels => {
                let checks = RunOptions { poison: options.poison, ..RunOptions::default() };
                (Box::new(InterpDevice::new(checks)), kernels_text(program.plans.kernels()).into_bytes())
            }
            Code::Gpu(_) => gpu::open(program, options)?,
        };
        let plans = (*program.plans).clone();
        let mut session = Session::new(device, plans, &code, ck, limits, &mut |done, of| progress("weights", done, of))?;
        if options.poison {
            session.poison();
        }
        Ok(Engine { session, room, chunk })
    }

    /// The device, for people.
    pub fn device_name(&self) -> String {
        self.session.device_name()
    }

    /// Number of logits of a position.
    pub fn vocab(&self) -> usize {
        self.room.vocab
    }

    /// Positions that fit.
    pub fn context(&self) -> usize {
        self.room.context
    }

    /// Most tokens of one sequence that are computed together.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The session behind it.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Greedy generation. `on_token` gets each id as it comes and may break off. With `logits`, those of every position that is
    /// computed go there, those of the prompt included.
    pub fn generate(
        &mut self,
        request: &Request,
        mut logits: Option<LogitsSink>,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let Request { prompt, max, stop } = *request;
        self.room.check(prompt)?;
        let (vocab, asked) = (self.room.vocab, logits.is_some());
        let mut rows = |row: &[f32]| {
            if let Some(sink) = &mut logits {
                sink(&row[..vocab.min(row.len())]);
            }
        };
        let wanted = |n: usize| if asked { n } else { 0 };
        let start = Instant::now();
        let kept = self.session.reuse(prompt);
        let fresh = &prompt[kept..];
        let mut next = self.session.run(fresh, self.chunk, wanted(fresh.len()), &mut rows)?;
        let prefill = start.elapsed();
        let start = Instant::now();
        let mut ids = vec![];
        let (mut reason, context) = (StopReason::Length, self.room.context);
        let mut take = |id: u32| {
            ids.push(id);
            let heard = on_token(id);
            let end = if heard.is_break() { Some(StopReason::Length) } else { over(prompt.len(), &ids, max, stop, context) };
            let Some(end) = end else { return ControlFlow::Continue(()) };
            reason = end;
            ControlFlow::Break(())
        };
        if max > 0 && take(next).is_continue() {
            if asked {
                loop {
                    next = self.session.run(&[next], 1, 1, &mut rows)?;
                    if take(next).is_break() {
                        break;
                    }
                }
            } else {
                self.session.generate(next, max - 1, &mut take)?;
            }
        }
        Ok(Generation { ids, stop: reason, kept, prefill, decode: start.elapsed() })
    }
}

/// Why a generation ends after these ids, if it does.
pub(crate) fn over(prompt: usize, ids: &[u32], max: usize, stop: &[u32], context: usize) -> Option<StopReason> {
    match ids.last() {
        Some(id) if stop.contains(id) => Some(StopReason::Stop),
        _ if ids.len() >= max => Some(StopReason::Length),
        _ if prompt + ids.len() > context => Some(StopReason::Context),
        _ => None,
    }
}

fn cpu(options: &EngineOptions) -> CpuOptions {
    let default = CpuOptions::default();
    CpuOptions { threads: options.threads.unwrap_or(default.threads), poison: options.poison, ..default }
}
