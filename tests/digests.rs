//! Digests of all values of a step: kernels that sum them up and the host that reads memory find the same; they are the same for
//! every chunk, schedule, device and fusion that stores the value; and summing them up changes no bit of the model.
#![cfg(feature = "llvm")]

mod common;

use common::golden::transcript;
use common::*;
use ir::diag::Result;
use ir::graph::Graph;
use ir::plan::Plan;
use ir::plan::phases::Phases;
use isobit::diff::traces::{Side, diff};
use isobit::trace::{FORMAT, Header, Model, PlanValues, Row, Spool, Trace, key, nodes, values};
use models::checkpoint::TensorFile;
use passes::lower::schedule::Schedule;
use passes::{Manager, Module, Options, Pipeline};
use runtime::cpu::CpuDevice;
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId};
use runtime::session::{Limits, Session};
use runtime::trace::{Mode, Request, traced};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Position and value -> digest.
type Digests = BTreeMap<(usize, String), u64>;

fn ids() -> &'static [u32] {
    &transcript("b2-long-prose").prompt[..44]
}

fn limits() -> Limits {
    Limits { slots: 1, context: 64, chunk: 44, slack: 0, outputs: 44 }
}

/// A plan whose kernels sum up digests, or not.
fn lowered(graph: &Graph, options: &Options, prefill: bool, sums: bool) -> Plan {
    let mut m = Module::new(graph.clone());
    let mut options = options.clone();
    options.switches.insert("instrument-trace".into(), sums);
    let mut pipeline = Pipeline::plan();
    if prefill {
        (m.graph.stages, m.graph.launches) = (vec![], vec![]);
        (options.rows, options.launch_cost, pipeline) = (128, 1 << 14, Pipeline::fusing_anew());
    }
    let done = Manager::default().run(&mut m, &pipeline.traced(), &options, &mut []);
    done.unwrap_or_else(|f| panic!("pass {}: {}", f.pass, f.diagnostic));
    let plan = m.plan.expect("a plan");
    for k in &plan.kernels {
        ir::kernel::verify::verify(k).unwrap_or_else(|e| panic!("{e:#?}"));
    }
    ir::plan::verify::verify(&plan, &[]).unwrap_or_else(|e| panic!("{e:#?}"));
    plan
}

fn both(graph: &Graph, schedule: Schedule, sums: bool) -> Phases {
    let one = Options { schedule: Schedule { tokens: 1, mma: 0, ..schedule }, ..Options::default() };
    let many = Options { schedule, ..Options::default() };
    Phases::join(lowered(graph, &one, false, sums), Some(lowered(graph, &many, true, sums)))
}

/// Digests and logits of tokens in chunks, of which the last few come one by one.
fn run(mut s: Session, graph: &Graph, mode: Mode, chunk: usize, ids: &[u32]) -> (Digests, Vec<f32>) {
    let got: Rc<RefCell<Digests>> = Rc::default();
    let out = got.clone();
    // The values of each plan.
    let names: Vec<Vec<String>> = s.plans().map(|p| traced(p, graph, false).into_iter().map(|t| t.name).collect()).collect();
    let request = Request {
        mode,
        all: false,
        wanted: Box::new(|_| false),
        sink: Box::new(move |row| {
            assert_eq!((row.slot, row.digests.len()), (0, names[row.plan].len()));
            for (name, d) in names[row.plan].iter().zip(row.digests) {
                if let Some(d) = d {
                    out.borrow_mut().insert((row.position, name.clone()), *d);
                }
            }
            Ok(())
        }),
    };
    s.trace(graph, request).unwrap_or_else(|d| panic!("{d}"));
    let mut logits = vec![];
    let (first, rest) = ids.split_at(ids.len() - 5);
    s.run(first, chunk, first.len(), &mut |row| logits.extend_from_slice(row)).unwrap();
    rest.chunks(1).for_each(|t| _ = s.run(t, 1, 1, &mut |row| logits.extend_from_slice(row)).unwrap());
    drop(s);
    (got.take(), logits)
}

/// Fails at the first value that both have and whose digests differ; says how many both have.
#[track_caller]
fn agree(what: &str, a: &Digests, b: &Digests) -> usize {
    let mut n = 0;
    for (k, x) in a {
        if let Some(y) = b.get(k) {
            assert_eq!(x, y, "{what}: {} at position {}", k.1, k.0);
            n += 1;
        }
    }
    n
}

#[test]
fn kernels_and_host_find_the_same_whatever_the_plan() {
    let fused = through_passes(model(), &Options::default());
    let unfused = through_passes(model(), &without(&["fuse", "merge-launches"]));
    let isa = best_target();
    let mut all: Vec<(String, Digests, Vec<f32>)> = vec![];
    let one = |graph: &Graph, sums| Phases::from(lowered(graph, &Options::default(), false, sums));
    // The program that the host looks at sums up nothing in the first case.
    let cases = [
        ("host", &fused, one(&fused, true), Some(one(&fused, false))),
        ("unfused", &unfused, one(&unfused, true), None),
        ("gpu", &fused, both(&fused, Schedule::GPU_PREFILL, true), None),
    ];
    for (name, graph, with, plain) in cases {
        let code = object_of(&with.kernels(), isa);
        let plain = plain.map(|p| (object_of(&p.kernels(), isa), p));
        for (chunk, threads) in [(44, 2), (7, 1), (1, 1)] {
            let on = |phases: &Phases, code: &[u8]| on_host(phases, code, common::threads(threads), limits(), checkpoint());
            let (sums, logits) = run(on(&with, &code), graph, Mode::Epilogue, chunk, ids());
            let (code, phases) = plain.as_ref().map_or((&code, &with), |(code, p)| (code, p));
            let (read, same) = run(on(phases, code), graph, Mode::Separate, chunk, ids());
            same_bits(name, &logits, &same, ids().len());
            assert_eq!(sums.len(), read.len(), "{name}");
            assert_eq!(agree(&format!("{name}, chunks of {chunk}: kernels against host"), &sums, &read), sums.len());
            all.push((format!("{name}, chunks of {chunk}"), sums, logits));
        }
    }
    let (_, first, logits) = &all[0];
    for (name, digests, other) in &all[1..] {
        same_bits(name, logits, other, ids().len());
        let common = agree(name, first, digests);
        println!("{name}: {} digests, {common} in common with the first", digests.len());
        assert!(common > 44 * 30);
    }
}

#[test]
fn the_interpreter_finds_the_same() {
    let fused = through_passes(model(), &Options::default());
    let ids = &ids()[..7];
    let phases = both(&fused, Schedule::GPU_PREFILL, true);
    let code = object_of(&phases.kernels(), best_target());
    let (host, _) = run(on_host(&phases, &code, threads(2), limits(), checkpoint()), &fused, Mode::Epilogue, 7, ids);
    for mode in [Mode::Epilogue, Mode::Separate] {
        let (interpreted, _) = run(on_interpreter(&phases, limits(), checkpoint()), &fused, mode, 7, ids);
        assert_eq!(interpreted.len(), host.len());
        assert_eq!(agree(mode.name(), &interpreted, &host), host.len());
    }
}

#[test]
fn a_program_without_sums_is_refused_by_name() {
    let fused = through_passes(model(), &Options::default());
    let plan = lowered(&fused, &Options::default(), false, false);
    assert_eq!(Mode::of(&plan), Mode::Separate);
    let code = object(&plan, best_target());
    let mut s = on_host(&plan, &code, threads(1), limits(), checkpoint());
    let sink = Box::new(|_: &runtime::trace::Row| Ok(()));
    let request = Request { mode: Mode::Epilogue, all: false, wanted: Box::new(|_| false), sink };
    let d = s.trace(&fused, request).unwrap_err();
    assert_eq!(d.code, "E0493");
}

/// A processor on which, behind one run of a launch, a bit of what it wrote flips.
struct Flips {
    device: CpuDevice,
    lists: Vec<(PreparedId, Vec<LaunchDesc>)>,
    /// Number of the launch in the plan, which of its runs, which of its arguments, byte and bit.
    plant: Option<(usize, usize, usize, u64, u8)>,
    runs: usize,
}

impl Device for Flips {
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
    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        self.device.load_module(code, names)
    }
    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        let id = self.device.prepare(list)?;
        self.lists.push((id, list.to_vec()));
        Ok(id)
    }
    fn release(&mut self, prepared: PreparedId) -> Result<()> {
        self.device.release(prepared)
    }
    unsafe fn run(&mut self, prepared: PreparedId, grid_y: &[u32]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.device.run(prepared, grid_y)? };
        let Some((launch, run, arg, byte, bit)) = self.plant else { return Ok(()) };
        let singles: Vec<_> = self.lists.iter().filter(|(_, l)| l.len() == 1).collect();
        if singles.get(launch).is_some_and(|(id, _)| *id == prepared) {
            self.runs += 1;
            if self.runs == run + 1 {
                let (buffer, at) = singles[launch].1[0].args[arg];
                let mut x = [0];
                self.device.read(buffer, at + byte, &mut x)?;
                self.device.write(buffer, at + byte, &[x[0] ^ 1 << bit])?;
            }
        }
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        self.device.sync()
    }
}

/// The trace of tokens that come one by one, and the file of values that match.
fn recorded(plan: &Plan, graph: &Graph, code: &[u8], plant: Option<(usize, usize, usize, u64, u8)>) -> (Trace, TensorFile) {
    let device = CpuDevice::new(threads(2)).unwrap();
    let device = Box::new(Flips { device, lists: vec![], plant, runs: 0 });
    let mut s = Session::new(device, plan.clone(), code, checkpoint(), limits(), &mut |_, _| {}).unwrap();
    let header = Header {
        isobit_trace: FORMAT,
        isobit: "test".into(),
        model: Model { table_hash: checkpoint().table_hash(), content_hash: None, weights: "stored".into() },
        numerics: "same".into(),
        program: "same".into(),
        target: "host".into(),
        device: s.device_name(),
        launch: None,
        chunk: 1,
        mode: "separate".into(),
        kv: "written".into(),
        plans: vec![PlanValues { phase: "decode".into(), values: values(plan, graph, false) }],
        nodes: nodes(graph),
    };
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("planted-{}.safetensors", plant.is_some()));
    let spool = Rc::new(RefCell::new(Spool::begin(&file).unwrap()));
    let rows: Rc<RefCell<Vec<Row>>> = Rc::default();
    let (out, stored) = (rows.clone(), spool.clone());
    let names: Vec<String> = header.plans[0].values.iter().map(|v| v.name.clone()).collect();
    let sink = move |r: &runtime::trace::Row| {
        for (i, bytes) in r.values {
            stored.borrow_mut().add(&key(&names[*i], 0, r.position as u64), true, bytes)?;
        }
        let (position, token, digests) = (r.position as u64, r.token, r.digests.to_vec());
        out.borrow_mut().push(Row { turn: 0, step: r.step, plan: r.plan, position, token, text: None, digests });
        Ok(())
    };
    let wanted = Box::new(|name: &str| name == "layers.5.moe.sum");
    s.trace(graph, Request { mode: Mode::Separate, all: false, wanted, sink: Box::new(sink) }).unwrap();
    ids().chunks(1).for_each(|t| _ = s.run(t, 1, 1, &mut |_| {}).unwrap());
    drop(s);
    Rc::into_inner(spool).unwrap().into_inner().finish().unwrap();
    (Trace { header, rows: rows.take(), cut: false }, TensorFile::open(&file).unwrap())
}

#[test]
fn a_bit_that_flips_in_an_experts_output_is_named() {
    const VALUE: &str = "layers.5.moe.sum";
    let graph = through_passes(model(), &Options::default());
    let plan = lowered(&graph, &Options::default(), false, false);
    let code = object(&plan, best_target());
    let buffer = plan.buffer(VALUE).unwrap() as u32;
    let writes = |l: &ir::plan::Launch| {
        let params = l.args.iter().zip(&plan.kernels[l.kernel as usize].bufs);
        params.enumerate().find(|(_, (a, b))| b.write && **a == ir::plan::Arg::Buffer(buffer)).map(|(i, _)| i)
    };
    let (launch, arg) = plan.launches.iter().enumerate().find_map(|(i, l)| Some((i, writes(l)?))).unwrap();
    // Step 40, element 17, the lowest bit.
    let (a, values_a) = recorded(&plan, &graph, &code, None);
    let (b, values_b) = recorded(&plan, &graph, &code, Some((launch, 40, arg, 17 * 4, 0)));
    let side = |name: &str, trace, values| Side { name: name.into(), trace, values };
    let v = diff(&side("a", &a, Some(&values_a)), &side("b", &b, Some(&values_b))).unwrap();
    let d = &v.json["difference"];
    assert_eq!((v.equal, &d["value"], &d["position"], &d["step"]), (false, &VALUE.into(), &40.into(), &40.into()), "{}", v.text);
    assert_eq!((&d["same_order"], &d["elements"]["differ"]), (&true.into(), &1.into()));
    assert_eq!((&d["elements"]["first"]["index"], &d["elements"]["first"]["ulps"]), (&17.into(), &1.into()));
    assert!(v.text.contains("verdict  same order, other bits") && v.text.contains("first at 17:"), "{}", v.text);
    assert!(d["inputs"].as_array().unwrap().iter().any(|i| i == "layers.5.moe.act"), "{}", v.text);
    // Without values the element is not known; the traces alone name the rest.
    let v = diff(&side("a", &a, None), &side("b", &b, Some(&values_b))).unwrap();
    assert!(v.text.contains("elements unknown: a has no stored values"), "{}", v.text);
    assert!(diff(&side("a", &a, None), &side("a", &a, None)).unwrap().equal);
    // Another order of one sum in the graph is another order, whatever its bits.
    let mut c = b.clone();
    let sum = c.header.nodes.get_mut("layers.5.moe.down").unwrap();
    sum.op = sum.op.replace("tree=pair", "tree=fold");
    let v = diff(&side("a", &a, None), &side("c", &c, None)).unwrap();
    assert!(v.text.contains("verdict  another order") && v.text.contains("tree=fold"), "{}", v.text);
}
