//! Memory of a session: what is said of it is what is allocated, byte for byte; what does not fit is refused before anything
//! is, with numbers and the context that fits; and room for few rows of logits changes no bit.

mod common;

use ir::diag::Result;
use ir::plan::Plan;
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId};
use runtime::interp::InterpDevice;
use runtime::memory::{Available, Needs};
use runtime::session::{Limits, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The interpreter, with a sum over everything that is allocated, and a limit of its own.
struct Counting {
    device: InterpDevice,
    bytes: Arc<AtomicU64>,
    available: Option<u64>,
}

impl Device for Counting {
    fn name(&self) -> String {
        self.device.name()
    }
    fn available(&self) -> Option<Available> {
        self.available.map(|bytes| Available { bytes, limit: "what this test has" })
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

/// A session of the demo model where so much is available, and how much was allocated.
fn session(plan: &Plan, limits: Limits, available: Option<u64>) -> (Result<Session>, u64) {
    let bytes = Arc::new(AtomicU64::new(0));
    let device = Counting { device: InterpDevice::new(Default::default()), bytes: bytes.clone(), available };
    let code = common::kernel_text(plan);
    let s = Session::new(Box::new(device), plan.clone(), &code, common::checkpoint(), limits, &mut |_, _| {});
    (s, bytes.load(Ordering::Relaxed))
}

#[test]
fn memory_is_what_a_session_allocates() {
    let options = passes::Options::default();
    let unplaced = common::without(&["memory-plan"]);
    let cases = [(&options, 1, 4096, 128, 1), (&options, 1, 100, 7, 7), (&unplaced, 1, 33, 33, 5), (&options, 5, 100, 30, 5)];
    for (options, slots, context, chunk, outputs) in cases {
        let plan = common::program(options);
        let limits = Limits { slots, context, chunk, outputs, ..Limits::default() };
        let (s, bytes) = session(&plan, limits, None);
        s.unwrap();
        let n = Needs::of(&plan, &limits, common::checkpoint(), 0).unwrap();
        assert_eq!(n.total(), bytes, "context {context}, chunk {chunk}, outputs {outputs}: {n:?}");
        assert!(n.full > 0 && n.sliding > 0 && n.workspace > 0);
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_allocated() {
    let plan = common::program(&passes::Options::default());
    let limits = Limits { context: 4096, ..Limits::default() };
    let code = common::kernel_text(&plan).len() as u64;
    let total = Needs::of(&plan, &limits, common::checkpoint(), code).unwrap().total();
    assert!(session(&plan, limits, Some(total)).0.is_ok());
    let (s, bytes) = session(&plan, limits, Some(total - 1));
    let d = s.err().expect("a byte is missing");
    assert_eq!((d.code, bytes), ("E0437", 0), "{d}");
    for row in ["weights", "full layers", "sliding layers", "together", "what this test has"] {
        assert!(d.message.contains(row), "{d}");
    }
    // The context of the hint fits, and one more block of keys does not.
    let context: usize = d.hint.strip_prefix("the largest context that fits is --context ").unwrap().parse().unwrap();
    assert!((4032..4096).contains(&context), "{d}");
    assert!(session(&plan, Limits { context, ..limits }, Some(total - 1)).0.is_ok());
    assert!(session(&plan, Limits { context: context + 1, ..limits }, Some(total - 1)).0.is_err());
    // With several sequences the hint says how many of them fit: one more does not.
    let many = Limits { slots: 9, ..limits };
    let (some, more) = (Limits { slots: 4, ..limits }, Limits { slots: 5, ..limits });
    let [some, more] = [some, more].map(|l| Needs::of(&plan, &l, common::checkpoint(), code).unwrap().total());
    assert!(total < some && some < more);
    let d = session(&plan, many, Some(more - 1)).0.err().expect("too many sequences");
    assert_eq!((d.code, d.hint.as_str()), ("E0437", "so many sequences of this context fit: --slots 4"), "{d}");
    assert!(d.message.starts_with("a context of 4096 positions for 9 sequences does not fit"), "{d}");
    assert!(session(&plan, Limits { slots: 4, ..limits }, Some(more - 1)).0.is_ok());
    // Where not even one fits, the context of the hint is for all that are asked for.
    let d = session(&plan, many, Some(total - 1)).0.err().expect("too many sequences");
    let context: usize = d.hint.strip_prefix("the largest context that fits is --context ").unwrap().parse().unwrap();
    assert!(session(&plan, Limits { context, ..many }, Some(total - 1)).0.is_ok());
    // Where not even the weights fit, no context is named.
    let d = session(&plan, limits, Some(1 << 20)).0.err().unwrap();
    assert!(d.hint.starts_with("not even one position fits"), "{d}");
}

#[test]
fn an_address_space_that_is_too_small_is_told() {
    let dir = common::random::folder("space", |c| c["text_config"]["max_position_embeddings"] = (1 << 24).into());
    let run = |limit: &str| {
        let line = format!(
            "ulimit -v {limit}; exec \"$0\" run \"$1\" --weights random:1 --ids 2,5 -n 1 --target interp --context 16000000"
        );
        let out = std::process::Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_isobit")]).arg(&dir).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, message) = run("8000000");
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("error[E0437]") && message.contains("left of the address space (ulimit -v)"), "{message}");
    assert!(message.contains("hint: the largest context that fits is --context "), "{message}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn room_for_few_rows_of_logits_changes_no_bit() {
    let plan = common::program(&passes::Options::default());
    let tokens: Vec<u32> = (0..23).map(|i| 2 + i * 37 % 4000).collect();
    let rows = |outputs: usize, wanted: usize| {
        let limits = Limits { slots: 1, context: 64, chunk: 16, slack: 0, outputs };
        let mut s = session(&plan, limits, None).0.unwrap();
        let mut rows: Vec<Vec<u32>> = vec![];
        let next = s.run(&tokens, 16, wanted, &mut |r| rows.push(r.iter().map(|x| x.to_bits()).collect())).unwrap();
        (next, rows)
    };
    let all = rows(16, 23);
    assert_eq!(all.1.len(), 23);
    for (outputs, wanted) in [(1, 23), (3, 23), (16, 9), (2, 9), (1, 0)] {
        let some = rows(outputs, wanted);
        assert!(some.0 == all.0 && some.1[..] == all.1[23 - wanted..], "{outputs} rows, {wanted} wanted");
    }
}
