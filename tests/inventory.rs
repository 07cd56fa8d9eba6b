//! What `isobit inspect` says of memory is what a session allocates, byte for byte; and what it says of a configuration
//! without tensors is what it says of the checkpoint.

mod common;

use ir::diag::Result;
use isobit::inventory::Memory;
use isobit::stats::PlanStats;
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId};
use runtime::interp::InterpDevice;
use runtime::session::{Limits, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The interpreter, with a sum over everything that is allocated.
struct Counting {
    device: InterpDevice,
    bytes: Arc<AtomicU64>,
}

impl Device for Counting {
    fn name(&self) -> String {
        self.device.name()
    }
    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
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
        // SAFETY: the caller's promise.
        unsafe { self.device.run(prepared, grid_y) }
    }
    fn sync(&mut self) -> Result<()> {
        self.device.sync()
    }
}

#[test]
fn memory_is_what_a_session_allocates() {
    let options = passes::Options::default();
    let unplaced = common::without(&["memory-plan"]);
    for (options, context, chunk) in [(&options, 4096, 128), (&options, 100, 7), (&unplaced, 33, 33)] {
        let plan = common::program(options);
        let limits = Limits { context, chunk, ..Limits::default() };
        let bytes = Arc::new(AtomicU64::new(0));
        let device = Counting { device: InterpDevice::new(Default::default()), bytes: bytes.clone() };
        let code = common::kernel_text(&plan);
        Session::new(Box::new(device), plan.clone(), &code, common::checkpoint(), limits, &mut |_, _| {}).unwrap();
        let m = Memory::of(&plan, PlanStats::new(&plan, common::checkpoint()).weight_bytes, limits);
        assert_eq!(m.total(), bytes.load(Ordering::Relaxed), "context {context}, chunk {chunk}: {m:?}");
        assert!(m.full > 0 && m.sliding > 0 && m.workspace > 0);
    }
}

#[test]
fn a_configuration_tells_what_its_checkpoint_holds() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders =
        ["models/demo/mlx-4bit", "tests/fixtures/tiny-ple/mlx", "tests/fixtures/tiny-moe/mlx", "tests/fixtures/tiny-dense/hf"];
    for folder in folders {
        let ck = models::Checkpoint::open(&dir.join(folder)).unwrap_or_else(|d| panic!("{d}"));
        let graph = models::gemma4::layers::graph(&ck, ir::graph::op::EmbedMode::Exact).unwrap_or_else(|d| panic!("{d}"));
        let want = isobit::inventory::parts(&graph);
        assert_eq!(isobit::inventory::parts_of_config(ck.config()), want, "{folder}");
        assert!(want.len() >= 5);
    }
}
