//! Decoding ahead of the host: however many steps a device is ahead, the choices, the tokens in the cache and what follows
//! them are those of one step after the other; and a step that was queued with no token, after a NaN, harms nothing.
#![cfg(feature = "llvm")]

mod common;

use common::*;
use ir::diag::Result;
use ir::plan::Plan;
use runtime::cpu::CpuDevice;
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId, Queued};
use runtime::interp::InterpDevice;
use runtime::session::{Limits, Session};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device that is kept ahead. Of its queued reads, number `bad` finds that there was a NaN.
struct Ahead {
    device: Box<dyn Device>,
    steps: usize,
    bad: Option<usize>,
    reads: usize,
    runs: Arc<AtomicUsize>,
}

impl Device for Ahead {
    fn name(&self) -> String {
        self.device.name()
    }
    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        self.device.alloc(bytes)
    }
    fn free(&mut self, buffer: BufferId) -> Result<()> {
        self.device.free(buffer)
    }
    fn write(&mut self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write(buffer, offset, data)
    }
    fn read(&mut self, buffer: BufferId, offset: u64, out: &mut [u8]) -> Result<()> {
        self.device.read(buffer, offset, out)
    }
    fn ahead(&self) -> usize {
        self.steps
    }
    fn queue_read(&mut self, buffer: BufferId, offset: u64, len: usize) -> Result<Queued> {
        self.reads += 1;
        if self.bad == Some(self.reads) {
            self.device.write(buffer, offset, &[0xff; 4])?;
        }
        self.device.queue_read(buffer, offset, len)
    }
    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        self.device.load_module(code, names)
    }
    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        self.device.prepare(list)
    }
    fn release(&mut self, prepared: PreparedId) -> Result<()> {
        self.device.release(prepared)
    }
    unsafe fn run(&mut self, prepared: PreparedId, grid_y: &[u32]) -> Result<()> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.device.run(prepared, grid_y) }
    }
    fn sync(&mut self) -> Result<()> {
        self.device.sync()
    }
}

/// The demo model with its code.
fn program() -> &'static (Plan, Vec<u8>) {
    static P: OnceLock<(Plan, Vec<u8>)> = OnceLock::new();
    P.get_or_init(|| {
        let plan = common::program(&passes::Options::default());
        let code = object(&plan, best_target());
        (plan, code)
    })
}

fn prompt() -> &'static [u32] {
    &common::golden::transcript("b1-short-question").prompt
}

fn limits(context: usize) -> Limits {
    Limits { slots: 1, context, chunk: 32, slack: 0, outputs: 32 }
}

/// A session so many steps ahead, and the number of its runs.
fn session(steps: usize, context: usize) -> (Session, Arc<AtomicUsize>) {
    let (plan, code) = program();
    let runs = Arc::new(AtomicUsize::new(0));
    let device = Box::new(CpuDevice::new(threads(1)).unwrap());
    let device = Ahead { device, steps, bad: None, reads: 0, runs: runs.clone() };
    (Session::new(Box::new(device), plan.clone(), code, checkpoint(), limits(context), &mut |_, _| {}).unwrap(), runs)
}

/// Choices after the prompt, until `stop` of them have come, of at most `most`.
fn generate(s: &mut Session, most: usize, stop: usize) -> Vec<u32> {
    let first = s.run(prompt(), 32, 0, &mut |_| {}).unwrap();
    let mut ids = vec![first];
    s.generate(first, most, &mut |id| {
        ids.push(id);
        if ids.len() > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    ids
}

#[test]
fn however_many_steps_ahead() {
    let n = prompt().len();
    // One step after the other.
    let (mut s, _) = session(0, 256);
    let mut want = vec![s.run(prompt(), 32, 0, &mut |_| {}).unwrap()];
    for i in 0..24 {
        want.push(s.run(&[want[i]], 1, 0, &mut |_| {}).unwrap());
    }
    for steps in [0, 1, 3] {
        for (most, stop, context) in
            [(24, 24, 256), (24, 5, 256), (5, 24, 256), (1, 9, 256), (0, 9, 256), (99, 99, n + 7), (9, 1, n + 2)]
        {
            let (mut s, runs) = session(steps, context);
            let what = format!("{steps} ahead, {most} steps, {stop} wanted, context {context}");
            let ids = generate(&mut s, most, stop);
            let count = most.min(stop).min(context - n);
            assert_eq!(ids, want[..=count], "{what}");
            assert_eq!(s.tokens(), [prompt(), &want[..count]].concat(), "{what}");
            // A step is in vain only where the host broke off.
            let vain = runs.load(Ordering::Relaxed) - n.div_ceil(32) - count;
            assert!(vain <= if stop < most.min(context - n) { steps } else { 0 }, "{what}: {vain} steps in vain");
            // What follows does not know of steps in vain.
            if context == 256 {
                let (mut rows, mut fresh) = (vec![], vec![]);
                s.run(&want[count..=count], 1, 1, &mut |r| rows.extend_from_slice(r)).unwrap();
                let all = [prompt(), &want[..=count]].concat();
                session(0, 256).0.run(&all, 32, 1, &mut |r| fresh.extend_from_slice(r)).unwrap();
                same_bits(&what, &fresh, &rows, s.logits_width());
            }
        }
    }
}

#[test]
fn a_nan_ends_it_and_the_step_ahead_reads_no_row_that_is_not_there() {
    let plan = &program().0;
    for steps in [0, 1, 2] {
        // The interpreter refuses every access outside a buffer.
        let device = Box::new(InterpDevice::new(Default::default()));
        let device = Ahead { device, steps, bad: Some(2), reads: 0, runs: Arc::default() };
        let code = kernel_text(plan);
        let mut s = Session::new(Box::new(device), plan.clone(), &code, checkpoint(), limits(32), &mut |_, _| {}).unwrap();
        let mut heard = 0;
        let d = s.generate(prompt()[0], 9, &mut |_| {
            heard += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((d.unwrap_err().code, heard), ("E0436", 1), "{steps} ahead");
        assert!(s.tokens().is_empty(), "what is in the caches is of no use");
    }
}
