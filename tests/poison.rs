//! Poison: a session that fills what it does not need with NaN computes the same bits, whatever is kept between turns; and a
//! launch that is left out, whose results of the turn before lie there still, is seen by it, and by nothing else.
#![cfg(feature = "llvm")]

mod common;

use common::fixture::{FIXTURES, Fixture};
use common::*;
use ir::diag::Result;
use ir::graph::op::EmbedMode;
use ir::plan::phases::Phases;
use ir::plan::{Arg, BufferKind, Plan};
use passes::Options;
use passes::lower::schedule::Schedule;
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId};
use runtime::sequences::Sequences;
use runtime::session::{Limits, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A conversation whose turns share more and less with what came before: logits of all that is computed, and what was kept.
fn conversation(s: &mut Session, ids: &[u32]) -> (Vec<f32>, Vec<usize>) {
    let (mut rows, mut kept) = (vec![], vec![]);
    let other: Vec<u32> = ids[..50].iter().chain(&ids[10..30]).copied().collect();
    for (prompt, chunk) in [(&ids[..100], 64), (&ids[..140], 7), (&other[..], 64), (&ids[..33], 1), (&ids[1..90], 64)] {
        let from = s.reuse(prompt);
        kept.push(from);
        let fresh = &prompt[from..];
        let mut next = s.run(fresh, chunk, fresh.len(), &mut |r| rows.extend_from_slice(r)).unwrap_or_else(|d| panic!("{d}"));
        for _ in 0..3 {
            next = s.run(&[next], 1, 1, &mut |r| rows.extend_from_slice(r)).unwrap_or_else(|d| panic!("{d}"));
        }
    }
    s.reset();
    (rows, kept)
}

#[test]
fn the_same_bits() {
    let chunks = Options { schedule: Schedule::HOST_PREFILL, ..Options::default() };
    let limits = Limits { slots: 1, context: 160, chunk: 64, slack: 64, outputs: 64 };
    let mut all: Vec<(String, Phases, &models::Checkpoint)> = vec![];
    all.push(("demo".into(), phases(&through_passes(model(), &chunks), &chunks), checkpoint()));
    let quantized = FIXTURES.iter().filter(|(_, layout)| *layout == "mlx");
    let fixtures: Vec<Fixture> = quantized.map(|(model, layout)| Fixture::load(model, layout)).collect();
    for f in &fixtures {
        // Unfused, every value lies in memory.
        let options = without(&["fuse", "merge-launches"]);
        let plan = plan(&through_passes(f.graph(EmbedMode::Factor), &options), &options);
        all.push((f.name.clone(), plan.into(), &f.ck));
    }
    for (name, plans, ck) in all {
        let code = object_of(&plans.kernels(), best_target());
        let vocab = ck.config().vocab_size as u32;
        let ids: Vec<u32> = (0..140).map(|i: u32| (i * 7919 + i * i * 31) % vocab).collect();
        let mut plain = on_host(&plans, &code, threads(1), limits, ck);
        let cpu = CpuOptions { poison: true, ..threads(2) };
        let mut poisoned = on_host(&plans, &code, cpu, limits, ck);
        poisoned.poison();
        let want = conversation(&mut plain, &ids);
        assert!(want.1[1..].iter().any(|k| *k > 40) && want.1[4] == 0, "{name}: {:?}", want.1);
        for turn in ["once", "again"] {
            let got = conversation(&mut poisoned, &ids);
            assert_eq!(want.1, got.1, "{name}, {turn}");
            same_bits(&format!("{name}, {turn}"), &want.0, &got.0, plain.logits_width());
        }
    }
}

/// Several sequences: the caches of the others are not touched when one is admitted.
#[test]
fn one_slot_of_many() {
    let plan = program(&Options::default());
    let code = object(&plan, best_target());
    let ids = &golden::transcript("b2-long-prose").prompt[..90];
    let run = |poison: bool| {
        let limits = Limits { slots: 3, context: 128, chunk: 32, slack: 0, outputs: 32 };
        let mut s = on_host(&plan, &code, CpuOptions { poison, ..threads(1) }, limits, checkpoint());
        if poison {
            s.poison();
        }
        let mut out = vec![];
        let mut q = Sequences::new(&mut s, 32);
        // One a step, each in the midst of the others.
        for from in [0, 5, 9, 2, 0] {
            if q.free() == 0 {
                q.finish(1);
            }
            q.admit(&ids[from..from + 70], false).unwrap();
            for ended in q.step(&mut |slot, row| out.extend_from_slice(&[slot as f32, row[0]])).unwrap() {
                let next = ended.next.unwrap();
                out.push(next as f32);
                q.push(ended.slot, next).unwrap();
            }
        }
        for _ in 0..6 {
            for ended in q.step(&mut |_, _| {}).unwrap() {
                let next = ended.next.unwrap();
                out.push(next as f32);
                q.push(ended.slot, next).unwrap();
            }
        }
        out
    };
    let want = run(false);
    assert!(want.len() > 12, "{want:?}");
    assert_eq!(want, run(true));
}

/// A processor that leaves one launch out; `usize::MAX` for none.
struct Lazy(CpuDevice, Arc<AtomicUsize>);

impl Device for Lazy {
    fn name(&self) -> String {
        self.0.name()
    }
    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        self.0.alloc(bytes)
    }
    fn free(&mut self, buffer: BufferId) -> Result<()> {
        self.0.free(buffer)
    }
    fn write(&mut self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(buffer, offset, data)
    }
    fn read(&mut self, buffer: BufferId, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(buffer, offset, out)
    }
    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        self.0.load_module(code, names)
    }
    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        self.0.prepare(list)
    }
    fn release(&mut self, prepared: PreparedId) -> Result<()> {
        self.0.release(prepared)
    }
    unsafe fn run(&mut self, prepared: PreparedId, grid_y: &[u32]) -> Result<()> {
        let mut grid = grid_y.to_vec();
        grid.get_mut(self.1.load(Ordering::Relaxed)).into_iter().for_each(|y| *y = 0);
        // SAFETY: the caller's promise; a launch that is left out does no harm to memory.
        unsafe { self.0.run(prepared, &grid) }
    }
    fn sync(&mut self) -> Result<()> {
        self.0.sync()
    }
}

/// The first launch that writes such a buffer.
fn writer(plan: &Plan, wanted: &dyn Fn(&BufferKind, &str) -> bool) -> usize {
    let writes = |l: &ir::plan::Launch| {
        let bufs = &plan.kernels[l.kernel as usize].bufs;
        l.args.iter().zip(bufs).any(|(a, b)| match a {
            Arg::Buffer(i) if b.write => wanted(&plan.buffers[*i as usize].kind, &plan.buffers[*i as usize].name),
            _ => false,
        })
    };
    plan.launches.iter().position(writes).expect("a launch")
}

#[test]
fn what_lies_there_from_the_turn_before_is_not_taken() {
    // Every value has a place of its own, so that what a launch would have written lies there from the turn before.
    let plan = program(&without(&["fuse", "merge-launches", "memory-plan"]));
    let code = object(&plan, best_target());
    let limits = Limits { slots: 1, context: 64, chunk: 8, slack: 0, outputs: 8 };
    let ids = &golden::transcript("b1-short-question").prompt[..8];
    let values = writer(&plan, &|k, name| matches!(k, BufferKind::Value { .. }) && name.starts_with("layers.3."));
    let keys = writer(&plan, &|k, _| matches!(k, BufferKind::Keys { layer: 5, .. }));
    for (what, left_out) in [("a value", values), ("keys", keys)] {
        for poison in [false, true] {
            let lazy = Arc::new(AtomicUsize::new(usize::MAX));
            let device = Lazy(CpuDevice::new(threads(1)).unwrap(), lazy.clone());
            let mut s = Session::new(Box::new(device), plan.clone(), &code, checkpoint(), limits, &mut |_, _| {}).unwrap();
            if poison {
                s.poison();
            }
            let mut turn = || {
                let mut rows = vec![];
                s.reset();
                let next = s.run(ids, 8, 8, &mut |r| rows.extend_from_slice(r));
                (rows, next)
            };
            let (want, next) = turn();
            assert!(next.is_ok());
            let again = turn();
            same_bits(what, &want, &again.0, 4096);
            lazy.store(left_out, Ordering::Relaxed);
            let (rows, next) = turn();
            let name = &plan.launches[left_out].name;
            if poison {
                let d = difference(&want, &rows, 4096).unwrap_or_else(|| panic!("not noticed: {what}, left out in {name}"));
                println!("{what}, left out in {name}: {d}");
                assert_eq!(next.unwrap_err().code, "E0436", "{what}, left out in {name}");
            } else {
                same_bits("without poison it is not noticed", &want, &rows, 4096);
                assert!(next.is_ok());
            }
        }
    }
}
