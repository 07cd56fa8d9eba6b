//! What a kernel does to memory: barriers, pipelines, the phases of its shared memory, and, by interpreting its skeleton over
//! the whole grid, whether each location has one writer and whether barriers part what they must.

use crate::audit::Kind;
use codegen::audit::skeleton::{Part, skeleton};
use ir::diag::Diagnostic;
use ir::graph::Rows;
use ir::kernel::interp::{Arg, Machine, Order, RunOptions};
use ir::kernel::{Block, Kernel, Mem, Op};
use ir::plan::{self, BufferKind, Launch, Pack, Plan, row, state};
use runtime::memory::Sizes;
use serde::{Deserialize, Serialize};

/// How far addresses are known to be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every address was looked at.
    Proved,
    /// Addresses depend on what stands there; the others were looked at. `isobit run --check races` looks at all.
    DependsOn(Vec<String>),
    /// What is wrong.
    Broken(String),
}

impl Verdict {
    /// For people.
    pub fn text(&self) -> String {
        match self {
            Verdict::Proved => "proved".into(),
            Verdict::DependsOn(names) => format!("depends on the contents of {}", names.join(", ")),
            Verdict::Broken(what) => format!("broken: {what}"),
        }
    }
}

/// A group of asynchronous copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipe {
    /// Slots.
    pub stages: u32,
    /// Copies of 16 bytes a lane in each iteration. All have drained where the pipeline ends.
    pub copies: usize,
}

/// A kernel as a plan launches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelAudit {
    /// Name.
    pub name: String,
    /// Launches of it in a step.
    pub launches: usize,
    /// Warps of a block.
    pub warps: u32,
    /// Barriers, as they stand in the text.
    pub barriers: usize,
    /// Asynchronous copies.
    pub pipelines: Vec<Pipe>,
    /// Shared arrays and what each phase between two barriers does with them, as it stands in the text.
    pub phases: Vec<String>,
    /// Has every location of a buffer one writer?
    pub writers: Verdict,
    /// Do barriers part all touches of shared memory, is it written before it is read, have copies landed?
    pub shared: Verdict,
}

/// Rows of a step that a plan for many is looked at with.
const ROWS: usize = 40;

/// Looks at the kernels of a plan; `many` if it runs steps of many rows.
pub fn kernels(plan: &Plan, common: &Plan, many: bool) -> Vec<KernelAudit> {
    let rows = if many { ROWS } else { 1 };
    let limits = runtime::session::Limits { slots: 1, context: 64, chunk: rows, slack: 0, outputs: rows.min(2) };
    let sizes = Sizes::of(common, &limits);
    let look = |(i, k): (usize, &Kernel)| {
        let launches: Vec<&Launch> = plan.launches.iter().filter(|l| l.kernel as usize == i).collect();
        let mut out = structure(k, launches.len());
        let mut seen = vec![];
        for l in launches {
            // Kernels of equal launches need one look.
            let shape = (l.grid_x, l.rows, l.tokens, kinds(plan, l));
            if seen.contains(&shape) {
                continue;
            }
            let cx = Cx { plan, l, k, sizes: &sizes, rows };
            let grid = [l.grid_x, l.grid_y(rows, limits.outputs)];
            merge(&mut out.writers, cx.run(Part::Buffers, None, grid));
            // Blocks differ in addresses of buffers, not of shared memory: the corners of the grid stand for all.
            let mut corners = vec![[0, 0], [grid[0].saturating_sub(1), grid[1].saturating_sub(1)]];
            corners.dedup();
            for at in corners {
                merge(&mut out.shared, cx.run(Part::Shared, Some(at), [1, 1]));
            }
            seen.push(shape);
        }
        out
    };
    plan.kernels.iter().enumerate().map(look).collect()
}

/// What a launch binds, without names.
fn kinds(plan: &Plan, l: &Launch) -> Vec<String> {
    let kind = |a: &plan::Arg| match *a {
        plan::Arg::Buffer(b) => match plan.buffers[b as usize].kind {
            BufferKind::Keys { heads, dim, window, .. } => format!("keys {heads} {dim} {window}"),
            BufferKind::Values { heads, dim, window, .. } => format!("values {heads} {dim} {window}"),
            ref k => format!("{k:?}"),
        },
        plan::Arg::Weight(w) => match &plan.weights[w as usize].pack {
            Pack::Matrix(m) => m.bytes().to_string(),
            _ => String::new(),
        },
    };
    l.args.iter().map(kind).collect()
}

fn merge(a: &mut Verdict, b: Verdict) {
    match (&mut *a, b) {
        (Verdict::Broken(_), _) | (_, Verdict::Proved) => {}
        (Verdict::DependsOn(x), Verdict::DependsOn(y)) => {
            x.extend(y);
            x.sort();
            x.dedup();
        }
        (_, b) => *a = b,
    }
}

struct Cx<'a> {
    plan: &'a Plan,
    l: &'a Launch,
    k: &'a Kernel,
    sizes: &'a Sizes,
    rows: usize,
}

impl Cx<'_> {
    /// Interprets a skeleton.
    fn run(&self, part: Part, block: Option<[u32; 2]>, grid: [u32; 2]) -> Verdict {
        let s = skeleton(self.k, part, block);
        let mut depends: Vec<String> = s.reads.iter().filter_map(|&n| self.data(n)).collect();
        if s.shared {
            depends.push("shared memory".into());
        }
        let mut memory: Vec<Vec<u8>> =
            (0..self.k.bufs.len()).map(|i| if touched(&s.kernel.body, i) { self.memory(i) } else { vec![] }).collect();
        let machine = match Machine::new(&s.kernel) {
            Ok(m) => m,
            Err(all) => return Verdict::Broken(all.first().map(Diagnostic::to_string).unwrap_or_default()),
        };
        let mut args: Vec<Arg> = memory.iter_mut().map(|m| Arg::Write(m)).collect();
        let order = Order::Reverse;
        let options = RunOptions { shadow: true, warp_order: order, block_order: order, poison: false, max_steps: MOST_STEPS };
        match machine.run(grid, &mut args, &options) {
            Err(d)
                if Kind::of_interpreter(d.code).is_some_and(|k| k == Kind::Writers || k == Kind::Shared)
                    && !(s.shared && part == Part::Buffers) =>
            {
                Verdict::Broken(format!("{} {d}", d.code))
            }
            // What stands in memory is made up, and may lead anywhere.
            Err(d) if depends.is_empty() => Verdict::DependsOn(vec![format!("all it reads ({})", d.message)]),
            _ if depends.is_empty() => Verdict::Proved,
            _ => Verdict::DependsOn(depends),
        }
    }

    /// The value behind a parameter, if its contents are not those that every step has.
    fn data(&self, param: u32) -> Option<String> {
        match self.l.args[param as usize] {
            plan::Arg::Weight(w) => Some(self.plan.weights[w as usize].tensor.clone()),
            plan::Arg::Buffer(b) => match &self.plan.buffers[b as usize] {
                plan::Buffer { kind: BufferKind::State | BufferKind::Rows, .. } => None,
                b => Some(b.name.rsplit('.').next().unwrap_or(&b.name).to_string()),
            },
        }
    }

    /// Memory behind a parameter: state and rows of a step from position 0 on, zeros elsewhere.
    fn memory(&self, param: usize) -> Vec<u8> {
        let (tokens, outputs) = (self.rows, self.sizes.outputs as usize);
        let b = match self.l.args[param] {
            plan::Arg::Buffer(b) => &self.plan.buffers[b as usize],
            plan::Arg::Weight(w) => {
                let bytes = if let Pack::Matrix(m) = &self.plan.weights[w as usize].pack { m.bytes() } else { 1 << 20 };
                return vec![0; bytes as usize];
            }
        };
        let words: Vec<i32> = match b.kind {
            BufferKind::State => {
                let mut w = vec![0; state::WORDS as usize];
                for (at, v) in [
                    (state::TOKENS, tokens),
                    (state::OUTPUTS, outputs),
                    (state::RING_BLOCKS, self.sizes.ring_blocks),
                    (state::FULL_BLOCKS, self.sizes.full_blocks),
                ] {
                    w[at as usize] = v as i32;
                }
                w
            }
            BufferKind::Rows => (0..tokens)
                .flat_map(|i| {
                    let mut w = [0; row::WORDS as usize];
                    w[row::POSITION as usize] = i as i32;
                    w[row::OUTPUT as usize] = (tokens.saturating_sub(outputs) + i).min(tokens - 1) as i32;
                    w
                })
                .collect(),
            BufferKind::Value { rows, bytes } => {
                let rows = if rows == Rows::Outputs { outputs } else { tokens };
                return vec![0; bytes as usize * rows];
            }
            ref kind => return vec![0; self.sizes.bytes(kind, None).unwrap_or(64) as usize],
        };
        words.iter().flat_map(|w| w.to_le_bytes()).chain([0; 64]).collect()
    }
}

/// A skeleton that runs longer is not one.
const MOST_STEPS: u64 = 1 << 28;

/// Does the body touch this parameter?
fn touched(b: &Block, param: usize) -> bool {
    b.insts.iter().any(|i| match &i.op {
        Op::Load { mem: Mem::Buf(n), .. } | Op::Store { mem: Mem::Buf(n), .. } | Op::Copy { src: n, .. } => *n as usize == param,
        Op::For { body, .. } => touched(body, param),
        Op::If { then, els, .. } => touched(then, param) || touched(els, param),
        Op::Pipeline { copy, body, .. } => touched(copy, param) || touched(body, param),
        _ => false,
    })
}

/// What can be read off the text.
fn structure(k: &Kernel, launches: usize) -> KernelAudit {
    let mut out = KernelAudit {
        name: k.name.clone(),
        launches,
        warps: k.warps,
        barriers: 0,
        pipelines: vec![],
        phases: vec![],
        writers: Verdict::Proved,
        shared: Verdict::Proved,
    };
    if k.shared.is_empty() {
        return out;
    }
    let mut phase = vec![];
    walk(k, &k.body, &mut phase, &mut out);
    out.phases.push(phase.join(", "));
    out
}

fn walk(k: &Kernel, b: &Block, phase: &mut Vec<String>, out: &mut KernelAudit) {
    let note = |phase: &mut Vec<String>, what: &str, n: u32| {
        let text = format!("{what} {}", k.shared[n as usize].name);
        if !phase.contains(&text) {
            phase.push(text);
        }
    };
    for i in &b.insts {
        match &i.op {
            Op::Load { mem: Mem::Shared(n), .. } => note(phase, "read", *n),
            Op::Store { mem: Mem::Shared(n), .. } => note(phase, "write", *n),
            Op::Copy { dst, .. } => note(phase, "copy to", *dst),
            Op::Barrier => {
                out.barriers += 1;
                out.phases.push(std::mem::take(phase).join(", "));
            }
            Op::For { body, .. } => walk(k, body, phase, out),
            Op::If { then, els, .. } => {
                walk(k, then, phase, out);
                walk(k, els, phase, out);
            }
            Op::Pipeline { stages, copy, body, .. } => {
                out.phases.push(std::mem::take(phase).join(", "));
                out.pipelines.push(Pipe {
                    stages: *stages,
                    copies: copy.insts.iter().filter(|i| matches!(i.op, Op::Copy { .. })).count(),
                });
                walk(k, copy, phase, out);
                walk(k, body, phase, out);
                out.phases.push(std::mem::take(phase).join(", "));
            }
            _ => {}
        }
    }
}
