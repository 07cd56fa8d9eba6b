//! One program (a plan and its code) on one device: buffers, poison, steps, outputs.

use gpu_check::case::Case;
use gpu_check::random::Random;
use ir::diag::{Diagnostic, Result};
use ir::graph::Rows;
use ir::graph::interp::WeightSource;
use ir::plan::{Arg, BufferKind, Plan, row, state};
use runtime::device::{BufferId, Device, KernelNames, KernelSig, LaunchDesc, PreparedId};
use std::collections::BTreeSet;
use std::time::Instant;

/// A program on a device.
pub struct Program {
    /// Where it runs.
    pub device: Box<dyn Device>,
    plan: Plan,
    /// Buffer and its size, for each of the plan's buffers.
    places: Vec<(BufferId, u64)>,
    launches: Vec<LaunchDesc>,
    prepared: PreparedId,
    weight_bytes: Vec<u64>,
}

/// Is given the step, the buffer's name and its bytes.
pub type Sink<'a> = &'a mut dyn FnMut(usize, &str, &[u8]) -> Result<()>;

/// One launch and what it cost.
pub struct Timed {
    /// Name of the launch.
    pub name: String,
    /// Microseconds.
    pub us: f64,
    /// Bytes of the packed weights bound to it.
    pub bytes: u64,
}

impl Program {
    /// Loads code, packs weights, allocates.
    pub fn new(
        mut device: Box<dyn Device>,
        plan: Plan,
        code: &[u8],
        place: &str,
        case: &Case,
        source: &dyn WeightSource,
    ) -> Result<Program> {
        let kernels: Vec<KernelSig> =
            plan.kernels.iter().map(|k| KernelSig { name: &k.name, bufs: k.bufs.len() as u32 }).collect();
        let handles = device.load_module(code, &KernelNames { place, kernels: &kernels })?;
        let rows = u64::from(case.rows());
        let mut places = vec![];
        for b in &plan.buffers {
            let bytes = match b.kind {
                BufferKind::Value { bytes, .. } => u64::from(bytes) * rows,
                BufferKind::Keys { heads, dim, window, .. } | BufferKind::Values { heads, dim, window, .. } => {
                    u64::from(heads) * u64::from(dim) * 4 * 32 * u64::from(if window == 0 { case.full } else { case.ring })
                }
                BufferKind::Parts { heads, dim, window, .. } => {
                    u64::from(heads) * u64::from(dim + 2) * 4 * rows * u64::from(if window == 0 { case.full } else { case.ring })
                }
                BufferKind::Digests { .. } => u64::from(ir::plan::DIGEST_BYTES) * rows,
                BufferKind::Tokens => 4 * rows.next_multiple_of(16),
                BufferKind::State => 64,
                BufferKind::Rows => 4 * u64::from(row::WORDS) * rows.next_multiple_of(4),
            };
            places.push((device.alloc(bytes)?, bytes));
        }
        let mut weights = vec![];
        for w in &plan.weights {
            let bytes = runtime::weights::pack(w, source)?;
            let b = device.alloc(bytes.len() as u64)?;
            device.write(b, 0, &bytes)?;
            weights.push((b, bytes.len() as u64));
        }
        let mut launches = vec![];
        for l in &plan.launches {
            let k = &plan.kernels[l.kernel as usize];
            let arg = |a: &Arg| match a {
                Arg::Buffer(i) => (places[*i as usize].0, 0),
                Arg::Weight(i) => (weights[*i as usize].0, 0),
            };
            launches.push(LaunchDesc {
                kernel: handles[l.kernel as usize],
                args: l.args.iter().map(arg).collect(),
                grid: [l.grid_x, 1],
                warps: k.warps,
                shared_bytes: k.shared_layout().1,
            });
        }
        let prepared = device.prepare(&launches)?;
        let weight_bytes = weights.iter().map(|w| w.1).collect();
        Ok(Program { device, plan, places, launches, prepared, weight_bytes })
    }

    /// Indices of the buffers that kernels write, in order of their names.
    fn written(&self) -> Vec<usize> {
        let mut out: Vec<usize> = (0..self.plan.buffers.len())
            .filter(|&i| !matches!(self.plan.buffers[i].kind, BufferKind::Tokens | BufferKind::State | BufferKind::Rows))
            .collect();
        out.sort_by(|&a, &b| self.plan.buffers[a].name.cmp(&self.plan.buffers[b].name));
        out
    }

    /// Names of all buffers.
    pub fn names(&self) -> BTreeSet<String> {
        self.plan.buffers.iter().map(|b| b.name.clone()).collect()
    }

    /// Sets every byte of every written buffer to 0xff.
    pub fn poison(&mut self) -> Result<()> {
        for i in self.written() {
            let (b, bytes) = self.places[i];
            self.device.write(b, 0, &vec![0xff; bytes as usize])?;
        }
        Ok(())
    }

    /// Runs all steps. After each, `sink(step, name, bytes)` gets every value, and after the last the caches too.
    pub fn steps(&mut self, case: &Case, read: bool, sink: Sink<'_>) -> Result<()> {
        let mut tokens = Random::new(case.seed, "tokens");
        let mut at = 0;
        let written = self.written();
        for (step, &n) in case.steps.iter().enumerate() {
            let ids: Vec<u8> = (0..n).flat_map(|_| tokens.below(case.vocab).to_le_bytes()).collect();
            self.state(case, at, n, &ids)?;
            let grid: Vec<u32> = self.plan.launches.iter().map(|l| l.grid_y(n as usize, n as usize)).collect();
            // SAFETY: `prepare` made the code from this plan; buffers are sized for the case's largest step and its blocks.
            unsafe { self.device.run(self.prepared, &grid)? };
            self.device.sync()?;
            at += n;
            for &i in written.iter().filter(|_| read) {
                let kind = &self.plan.buffers[i].kind;
                if matches!(kind, BufferKind::Value { .. }) || step + 1 == case.steps.len() {
                    let (b, bytes) = self.places[i];
                    let mut out = vec![0u8; bytes as usize];
                    self.device.read(b, 0, &mut out)?;
                    sink(step, &self.plan.buffers[i].name, &out)?;
                }
            }
        }
        Ok(())
    }

    fn state(&mut self, case: &Case, position: u32, tokens: u32, ids: &[u8]) -> Result<()> {
        let mut words = [0u32; state::WORDS as usize];
        words[state::TOKENS as usize] = tokens;
        words[state::OUTPUTS as usize] = tokens;
        words[state::RING_BLOCKS as usize] = case.ring;
        words[state::FULL_BLOCKS as usize] = case.full;
        let mut rows = vec![0u32; (tokens * row::WORDS) as usize];
        for r in 0..tokens {
            let entry = &mut rows[(r * row::WORDS) as usize..];
            (entry[row::POSITION as usize], entry[row::OUTPUT as usize]) = (position + r, r);
        }
        for (b, &(id, _)) in self.plan.buffers.iter().zip(&self.places) {
            match b.kind {
                BufferKind::State => self.device.write(id, 0, &words.map(u32::to_le_bytes).concat())?,
                BufferKind::Tokens => self.device.write(id, 0, ids)?,
                BufferKind::Rows => self.device.write(id, 0, &rows.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>())?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Time of each launch alone, for one token, over `repeat` launches in a row.
    pub fn time(&mut self, case: &Case, repeat: u32) -> Result<Vec<Timed>> {
        self.state(case, 0, 1, &[0; 4])?;
        let mut out = vec![];
        for (l, desc) in self.plan.launches.iter().zip(&self.launches) {
            let prepared = self.device.prepare(std::slice::from_ref(desc))?;
            let mut us = f64::MAX;
            for _ in 0..3 {
                self.device.sync()?;
                let start = Instant::now();
                for _ in 0..repeat {
                    // SAFETY: as in `steps`, for one token.
                    unsafe { self.device.run(prepared, &[1])? };
                }
                self.device.sync()?;
                us = us.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(repeat));
            }
            self.device.release(prepared)?;
            let mut bytes: Vec<(u32, u64)> = vec![];
            for a in &l.args {
                if let Arg::Weight(i) = a {
                    bytes.push((*i, self.weight_bytes[*i as usize]));
                }
            }
            out.push(Timed { name: l.name.clone(), us, bytes: bytes.iter().map(|b| b.1).sum() });
        }
        Ok(out)
    }

    /// Are the rows of every launch tokens? Others would need their own grid.
    pub fn check(&self) -> Result<()> {
        match self.plan.launches.iter().find(|l| l.rows == Rows::Once) {
            Some(l) => Err(Diagnostic::new("E0424", "a launch without rows").at(&l.name)),
            None => Ok(()),
        }
    }
}
