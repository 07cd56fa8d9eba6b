//! Runs plans and kernels that are not whole models, on any device: what `Session` does, without logits.

use super::kernel_text;
use ir::graph::Rows;
use ir::graph::interp::WeightSource;
use ir::kernel::Kernel;
use ir::kernel::interp::RunOptions;
use ir::order::KV_BLOCK;
use ir::plan::{Arg, BufferKind, Plan, row, state};
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, KernelSig, LaunchDesc};
use runtime::interp::InterpDevice;

/// Blocks of keys that every cache has room for.
const CACHE_BLOCKS: usize = 4;

/// Kernels of many plans in one list without repetition; plans then use the names of this list.
pub fn joined(plans: &mut [&mut Plan]) -> Vec<Kernel> {
    let (mut known, mut out): (std::collections::BTreeMap<String, usize>, Vec<Kernel>) = Default::default();
    for k in plans.iter_mut().flat_map(|p| p.kernels.iter_mut()) {
        k.name = "k".into();
        let at = *known.entry(ir::kernel::text::print(k)).or_insert(out.len());
        k.name = format!("k{at}");
        if at == out.len() {
            out.push(k.clone());
        }
    }
    out
}

/// Where kernels run.
pub enum Place<'a> {
    /// Host code, an object; blocks on this many threads, memory poisoned.
    Host(&'a [u8], usize),
    /// The interpreter.
    Interpreter,
    /// The interpreter with all its checks: ten times slower.
    Checked,
}

/// The device, with these kernels loaded.
pub fn device(place: &Place, kernels: &[Kernel]) -> (Box<dyn Device>, Vec<KernelHandle>) {
    let text = kernel_text(&Plan { kernels: kernels.to_vec(), ..Plan::default() });
    let (mut d, code): (Box<dyn Device>, &[u8]) = match place {
        Place::Host(object, threads) => {
            let options = CpuOptions { threads: *threads, poison: true, ..CpuOptions::default() };
            (Box::new(CpuDevice::new(options).unwrap_or_else(|d| panic!("{d}"))), object)
        }
        Place::Interpreter => (Box::new(InterpDevice::new(RunOptions { shadow: false, ..RunOptions::checked(5) })), &text),
        Place::Checked => (Box::new(InterpDevice::new(RunOptions::checked(5))), &text),
    };
    let sigs: Vec<_> = kernels.iter().map(|k| KernelSig { name: &k.name, bufs: k.bufs.len() as u32 }).collect();
    let names = KernelNames { place: "test", kernels: &sigs };
    let handles = d.load_module(code, &names).unwrap_or_else(|d| panic!("{d}"));
    (d, handles)
}

/// One step of a plan over a fresh sequence; logits are asked for from token `from` on. Returns the values of these names, rows
/// of floats without padding: `names` holds each value's name and width.
pub fn step(
    plan: &Plan,
    place: &Place,
    source: &dyn WeightSource,
    tokens: &[u32],
    from: usize,
    names: &[(&str, usize)],
) -> Vec<Vec<f32>> {
    let (mut d, handles) = device(place, &plan.kernels);
    let (rows, block) = (tokens.len(), KV_BLOCK as usize);
    let (arena, of_outputs) = (plan.arena_bytes * rows as u64, plan.output_bytes * (rows - from) as u64);
    let (arena, of_outputs) = (d.alloc(arena.max(64)).unwrap(), d.alloc(of_outputs.max(64)).unwrap());
    let mut words = [0i32; state::WORDS as usize];
    for (word, v) in [
        (state::TOKENS, rows),
        (state::OUTPUTS, rows - from),
        (state::RING_BLOCKS, CACHE_BLOCKS),
        (state::FULL_BLOCKS, CACHE_BLOCKS),
    ] {
        words[word as usize] = v as i32;
    }
    let mut entries = vec![[0i32; row::WORDS as usize]; rows];
    for (r, e) in entries.iter_mut().enumerate() {
        e[row::POSITION as usize] = r as i32;
        e[row::OUTPUT as usize] = (from + r) as i32;
    }
    assert!(rows <= CACHE_BLOCKS * block || !plan.buffers.iter().any(|b| matches!(b.kind, BufferKind::Keys { .. })));
    let mut places: Vec<(BufferId, u64)> = vec![];
    for b in &plan.buffers {
        places.push(match b.kind {
            BufferKind::Value { rows: Rows::Outputs, .. } => (of_outputs, b.offset.expect("placed") * (rows - from) as u64),
            BufferKind::Value { .. } => (arena, b.offset.expect("placed") * rows as u64),
            BufferKind::Keys { heads, dim, .. } | BufferKind::Values { heads, dim, .. } => {
                (d.alloc(u64::from(heads * dim) * 4 * (CACHE_BLOCKS * block) as u64).unwrap(), 0)
            }
            BufferKind::Parts { heads, dim, .. } => {
                (d.alloc(u64::from(heads * (dim + 2)) * 4 * (CACHE_BLOCKS * rows) as u64).unwrap(), 0)
            }
            BufferKind::Digests { .. } => (d.alloc(u64::from(ir::plan::DIGEST_BYTES) * rows as u64).unwrap(), 0),
            BufferKind::Tokens => {
                let id = d.alloc(4 * rows.next_multiple_of(16) as u64).unwrap();
                d.write(id, 0, &tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>()).unwrap();
                (id, 0)
            }
            BufferKind::State => {
                let id = d.alloc(64).unwrap();
                d.write(id, 0, &words.map(i32::to_le_bytes).concat()).unwrap();
                (id, 0)
            }
            BufferKind::Rows => {
                let id = d.alloc(4 * u64::from(row::WORDS) * rows.next_multiple_of(4) as u64).unwrap();
                d.write(id, 0, &entries.as_flattened().iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()).unwrap();
                (id, 0)
            }
        });
    }
    let weights = runtime::weights::upload(&mut *d, &plan.weights, source, &mut |_, _| {}).unwrap_or_else(|d| panic!("{d}"));
    let launch = |l: &ir::plan::Launch| LaunchDesc {
        kernel: handles[l.kernel as usize],
        args: l
            .args
            .iter()
            .map(|a| match a {
                Arg::Buffer(i) => places[*i as usize],
                Arg::Weight(i) => (weights[*i as usize], 0),
            })
            .collect(),
        grid: [l.grid_x, l.grid_y(rows, rows - from)],
        warps: plan.kernels[l.kernel as usize].warps,
        shared_bytes: plan.kernels[l.kernel as usize].shared_layout().1,
    };
    let list: Vec<_> = plan.launches.iter().map(launch).collect();
    // SAFETY: code, plan and buffers belong together.
    unsafe { d.launch(&list) }.unwrap_or_else(|d| panic!("{d}"));
    let read = |(name, width): &(&str, usize)| {
        let i = plan.buffer(name).unwrap_or_else(|| panic!("no value {name}"));
        let BufferKind::Value { rows: kind, bytes } = plan.buffers[i].kind else { panic!("{name} is no value") };
        let n = if kind == Rows::Outputs { rows - from } else { rows };
        let mut raw = vec![0u8; n * bytes as usize];
        d.read(places[i].0, places[i].1, &mut raw).unwrap();
        raw.chunks_exact(bytes as usize).flat_map(|row| floats(&row[..4 * width])).collect()
    };
    names.iter().map(read).collect()
}

/// Runs one kernel over a grid of `[x, 1]` blocks on one buffer per parameter.
pub fn kernel(d: &mut dyn Device, handle: KernelHandle, k: &Kernel, blocks: u32, bufs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let ids: Vec<BufferId> = bufs.iter().map(|b| d.alloc(b.len() as u64).unwrap()).collect();
    ids.iter().zip(bufs).for_each(|(id, b)| d.write(*id, 0, b).unwrap());
    let args = ids.iter().map(|id| (*id, 0)).collect();
    let launch = LaunchDesc { kernel: handle, args, grid: [blocks, 1], warps: k.warps, shared_bytes: k.shared_layout().1 };
    // SAFETY: the caller made buffers for this kernel and grid.
    unsafe { d.launch(&[launch]) }.unwrap_or_else(|e| panic!("{}: {e}", k.name));
    let read = |(id, b): (&BufferId, &Vec<u8>)| {
        let mut out = vec![0; b.len()];
        d.read(*id, 0, &mut out).unwrap();
        d.free(*id).unwrap();
        out
    };
    ids.iter().zip(bufs).map(read).collect()
}

/// Bytes of words.
pub fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Bytes as floats.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
