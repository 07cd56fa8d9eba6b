//! [`CudaDevice`]: buffers are device memory, modules are machine code or PTX that the driver compiles, launches go to one stream in order.
//! Every call checks its ids and offsets as the CPU's device does; a fault in a kernel is reported by the next call that waits.

use super::code::{Part, cubin_fits, ptx_fits, split};
use super::driver::{CUdeviceptr, CUfunction, CUmodule, Call, Gpu};
use super::graph::{Graph, Graphs, Todo};
use super::pinned::{Pinned, Queue};
use crate::assembler::Cubins;
use crate::device::{
    BufferId, Device, KernelHandle, KernelNames, LaunchDesc, LaunchMode, PreparedId, QUEUED_BYTES, Queued, Read, check_grid_list,
    check_grid_y, staging,
};
use crate::memory::Available;
use crate::weights::PIECE;
use ir::diag::{Diagnostic, Result};

/// What a new buffer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    #[default]
    Zero,
    /// 0xff bytes: NaN as floats.
    Poison,
    /// Whatever was there: for a memory checker that looks for reads of it.
    Nothing,
}

/// How a [`CudaDevice`] runs. No choice changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Number of the GPU.
    pub ordinal: u32,
    /// What new buffers hold.
    pub fill: Fill,
    /// How lists of launches reach it.
    pub launch: LaunchMode,
    /// Is machine code taken, where there is some for this GPU? [`Cubins::On`] takes nothing else.
    pub cubins: Cubins,
    /// Kernels that wait for what is in front of them by themselves (`griddepcontrol.wait`) start before that has ended.
    pub dependent: bool,
}

/// What the code of a kernel has that waits by itself.
const WAIT: &str = "griddepcontrol.wait";

/// One NVIDIA GPU.
pub struct CudaDevice {
    gpu: Gpu,
    options: CudaOptions,
    queue: Queue,
    /// Where weights are packed: while one is copied to the GPU, the other is filled.
    staging: [Option<Pinned>; 2],
    buffers: Vec<Option<Buffer>>,
    kernels: Vec<Kernel>,
    prepared: Vec<Option<Prepared>>,
    modules: Vec<CUmodule>,
}

#[derive(Clone, Copy)]
struct Buffer {
    at: CUdeviceptr,
    bytes: u64,
}

struct Kernel {
    entry: CUfunction,
    name: String,
    bufs: u32,
    /// Its code waits for what is in front of it.
    waits: bool,
}

struct Prepared {
    steps: Vec<Step>,
    /// Buffers that the steps use, sorted.
    buffers: Vec<BufferId>,
    graphs: Graphs<Graph>,
}

struct Step {
    kernel: KernelHandle,
    args: Vec<CUdeviceptr>,
    grid: [u32; 2],
    threads: u32,
}

// SAFETY: as for `Gpu`: driver objects may be used from any thread, and `&mut self` keeps calls apart.
unsafe impl Send for CudaDevice {}

impl CudaDevice {
    /// Opens a GPU. Without a driver or a GPU this is an error that says so.
    pub fn new(options: CudaOptions) -> Result<CudaDevice> {
        Ok(CudaDevice {
            gpu: Gpu::open(options.ordinal)?,
            options,
            queue: Queue::default(),
            staging: [None, None],
            buffers: vec![],
            kernels: vec![],
            prepared: vec![],
            modules: vec![],
        })
    }

    fn buffer(&self, id: BufferId) -> Result<Buffer> {
        self.buffers.get(id.0 as usize).copied().flatten().ok_or_else(|| unknown("buffer", id.0))
    }

    /// Address of `len` bytes at `offset` of a buffer.
    fn bytes(&self, id: BufferId, offset: u64, len: usize) -> Result<CUdeviceptr> {
        let b = self.buffer(id)?;
        if offset.checked_add(len as u64).is_none_or(|end| end > b.bytes) {
            let message = format!("{len} bytes at offset {offset} are outside buffer {} of {} bytes", id.0, b.bytes);
            return Err(Diagnostic::new("E0422", message));
        }
        Ok(b.at + offset)
    }

    /// Loads machine code where some fits, else PTX.
    fn load_part(&self, part: &Part, place: &str) -> Result<CUmodule> {
        let (gpu, wanted) = (&self.gpu, self.options.cubins);
        let cubin = part.cubin.filter(|(arch, _)| wanted != Cubins::Off && cubin_fits(arch, &gpu.about));
        let first = match cubin {
            Some((_, code)) => match gpu.load(code, "machine code", "E0469", place) {
                Err(d) if wanted != Cubins::On => Some(d),
                done => return done,
            },
            None if wanted == Cubins::On => {
                let message = format!("there is no machine code for {}", gpu.about.name);
                return Err(Diagnostic::new("E0469", message).at(place).hint("compile with `--cubin on`, or run PTX"));
            }
            None => None,
        };
        // Machine code of a newer assembler than the driver knows may be refused where its PTX is not.
        let ptx = ptx_fits(part.ptx, &gpu.about).map_err(|d| d.at(place));
        let ptx = ptx.and_then(|()| gpu.load(part.ptx.as_bytes(), "PTX", "E0443", place));
        ptx.map_err(|d| match first {
            Some(f) => Diagnostic { message: format!("{}\n{}", f.message, d.message), ..d },
            None => d,
        })
    }

    fn kernel(&self, handle: KernelHandle) -> Result<&Kernel> {
        self.kernels.get(handle.0 as usize).ok_or_else(|| unknown("kernel", handle.0))
    }
}

fn unknown(what: &str, id: u32) -> Diagnostic {
    Diagnostic::new("E0421", format!("{what} {id} does not exist on this device"))
}

/// The next id of a table.
fn next_id(len: usize, what: &str) -> Result<u32> {
    u32::try_from(len).map_err(|_| Diagnostic::new("E0421", format!("this device has had 2^32 {what}s")))
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.gpu.about.name.clone()
    }

    fn available(&self) -> Option<Available> {
        self.gpu.free_bytes().ok().map(|bytes| Available { bytes, limit: "free memory of the GPU" })
    }

    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        let id = BufferId(next_id(self.buffers.len(), "buffer")?);
        let size = usize::try_from(bytes).map_err(|_| Diagnostic::new("E0420", format!("no buffer has {bytes} bytes")))?;
        let at = self.gpu.alloc(size).map_err(|d| {
            let live = self.buffers.iter().flatten();
            let (count, held) = live.fold((0, 0u64), |(n, sum), b| (n + 1, sum + b.bytes));
            Diagnostic { message: format!("{}; {count} buffers hold {held} bytes", d.message), ..d }
                .hint("a shorter context or a smaller prefill chunk needs less memory")
        })?;
        let filled = match self.options.fill {
            // SAFETY: the allocation is that long.
            Fill::Zero => unsafe { self.gpu.fill(at, 0, size) },
            // SAFETY: as above.
            Fill::Poison => unsafe { self.gpu.fill(at, 0xff, size) },
            Fill::Nothing => Ok(()),
        };
        self.buffers.push(Some(Buffer { at, bytes }));
        filled.map(|()| id)
    }

    fn free(&mut self, id: BufferId) -> Result<()> {
        let b = self.buffer(id)?;
        let user = self.prepared.iter().position(|p| p.as_ref().is_some_and(|p| p.buffers.binary_search(&id).is_ok()));
        if let Some(user) = user {
            return Err(Diagnostic::new("E0423", format!("buffer {} is used by prepared list {user}", id.0)));
        }
        self.buffers[id.0 as usize] = None;
        // SAFETY: it came from `alloc`, no list has its address, and its id is now unknown.
        unsafe { self.gpu.free(b.at) }
    }

    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        let at = self.bytes(id, offset, data.len())?;
        // SAFETY: the range was checked.
        unsafe { self.gpu.upload(at, data) }
    }

    fn write_with(&mut self, id: BufferId, offset: u64, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let at = self.bytes(id, offset, len)?;
        self.staging.swap(0, 1);
        if self.staging[0].is_none() && len as u64 <= PIECE {
            // Without pinned memory, which the system may limit, other memory does.
            self.staging[0] = Pinned::new(&self.gpu, PIECE as usize).ok();
        }
        match &mut self.staging[0] {
            Some(s) if len as u64 <= PIECE => {
                fill(&mut s.memory(&self.gpu)?[..len]);
                // SAFETY: the range was checked.
                unsafe { s.send(&self.gpu, 0, len, at) }
            }
            _ => {
                let staging = &mut staging(len)?;
                fill(staging);
                // SAFETY: the range was checked.
                unsafe { self.gpu.upload(at, staging) }
            }
        }
    }

    fn fill(&mut self, id: BufferId, offset: u64, len: u64, byte: u8) -> Result<()> {
        let len = usize::try_from(len).map_err(|_| Diagnostic::new("E0422", format!("no buffer has {len} bytes")))?;
        let at = self.bytes(id, offset, len)?;
        // SAFETY: the range was checked.
        unsafe { self.gpu.fill(at, byte, len) }
    }

    fn read(&mut self, id: BufferId, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = self.bytes(id, offset, out.len())?;
        // SAFETY: the range was checked.
        unsafe { self.gpu.download(at, out) }
    }

    fn ahead(&self) -> usize {
        1
    }

    fn queue_write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        if !Queue::takes(data.len()) {
            return self.write(id, offset, data);
        }
        let at = self.bytes(id, offset, data.len())?;
        // SAFETY: the range was checked.
        match data.first_chunk() {
            // One word is filled in by the GPU itself, which no copy from the host has to be waited for.
            Some(word) if data.len() == 4 && at % 4 == 0 => unsafe { self.gpu.fill_word(at, u32::from_le_bytes(*word)) },
            // SAFETY: as above.
            _ => unsafe { self.queue.write(&self.gpu, at, data) },
        }
    }

    fn queue_copy(&mut self, from: (BufferId, u64), to: (BufferId, u64), len: usize) -> Result<()> {
        let (from, to) = (self.bytes(from.0, from.1, len)?, self.bytes(to.0, to.1, len)?);
        // SAFETY: the ranges were checked.
        unsafe { self.gpu.copy(to, from, len) }
    }

    fn queue_read(&mut self, id: BufferId, offset: u64, len: usize) -> Result<Queued> {
        let at = self.bytes(id, offset, len)?;
        if len > QUEUED_BYTES {
            return Err(Diagnostic::new("E0422", format!("a read of {len} bytes is not queued: at most {QUEUED_BYTES} are")));
        }
        // SAFETY: the range was checked.
        let slot = unsafe { self.queue.read(&self.gpu, at, len)? };
        Ok(Queued(Read::Slot(slot, len)))
    }

    fn finish(&mut self, read: Queued) -> Result<Vec<u8>> {
        match read.0 {
            Read::Done(bytes) => Ok(bytes),
            Read::Slot(slot, len) => {
                let unknown = || Diagnostic::new("E0421", format!("read {slot} was not begun on this device"));
                self.queue.finish(&self.gpu, slot, len).ok_or_else(unknown)?
            }
        }
    }

    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        let parts = split(code).map_err(|d| d.at(names.place))?;
        let first_module = self.modules.len();
        for part in &parts {
            let name = part.name;
            let place = if name.is_empty() { names.place.to_string() } else { format!("{}, kernel `{name}`", names.place) };
            let module = self.load_part(part, &place)?;
            self.modules.push(module);
        }
        next_id(self.kernels.len() + names.kernels.len(), "kernel")?;
        let first = self.kernels.len();
        let mut found = vec![];
        for sig in names.kernels {
            // The text of that name, or any that has no name.
            let mut entry = None;
            for (Part { name, ptx, .. }, module) in parts.iter().zip(&self.modules[first_module..]) {
                if entry.is_none() && (name.is_empty() || *name == sig.name) {
                    // SAFETY: modules are unloaded when the device is dropped.
                    entry = unsafe { self.gpu.function(*module, sig.name)? }.map(|f| (f, ptx.contains(WAIT)));
                }
            }
            let missing = || Diagnostic::new("E0407", format!("no kernel `{}`", sig.name)).at(names.place);
            let (entry, waits) = entry.ok_or_else(missing)?;
            found.push(Kernel { entry, name: sig.name.to_string(), bufs: sig.bufs, waits });
        }
        self.kernels.extend(found);
        Ok((first..self.kernels.len()).map(|i| KernelHandle(i as u32)).collect())
    }

    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        let id = PreparedId(next_id(self.prepared.len(), "prepared list")?);
        let (mut steps, mut buffers) = (vec![], vec![]);
        for (index, launch) in list.iter().enumerate() {
            let kernel = self.kernel(launch.kernel)?;
            launch.check(index, &kernel.name, kernel.bufs)?;
            let mut args = vec![];
            for &(buffer, offset) in &launch.args {
                let place = |d: Diagnostic| d.at(format!("launch {index} ({})", kernel.name));
                args.push(self.bytes(buffer, offset, 0).map_err(place)?);
                buffers.push(buffer);
            }
            steps.push(Step { kernel: launch.kernel, args, grid: launch.grid, threads: 32 * launch.warps });
        }
        buffers.sort_unstable();
        buffers.dedup();
        // What is run next has its weights.
        self.staging.iter_mut().filter_map(Option::take).for_each(|s| s.close(&self.gpu));
        self.prepared.push(Some(Prepared { steps, buffers, graphs: Graphs::default() }));
        Ok(id)
    }

    fn release(&mut self, id: PreparedId) -> Result<()> {
        match self.prepared.get_mut(id.0 as usize).and_then(Option::take) {
            Some(mut list) => {
                list.graphs.drain().for_each(|g| g.close(&self.gpu));
                Ok(())
            }
            None => Err(unknown("prepared list", id.0)),
        }
    }

    unsafe fn run(&mut self, id: PreparedId, grid_y: &[u32]) -> Result<()> {
        let prepared = self.prepared.get_mut(id.0 as usize).and_then(Option::as_mut);
        let Prepared { steps, graphs, .. } = prepared.ok_or_else(|| unknown("prepared list", id.0))?;
        check_grid_list(grid_y.len(), steps.len())?;
        let ys: Vec<u32> = (0..steps.len()).map(|i| grid_y.get(i).copied().unwrap_or(steps[i].grid[1])).collect();
        let (mut todo, mut old) = (Todo::Launch, None);
        if self.options.launch == LaunchMode::Graph {
            (todo, old) = graphs.todo(&ys);
        }
        old.into_iter().for_each(|g| g.close(&self.gpu));
        if todo != Todo::Replay {
            let mut calls = vec![];
            for (index, (step, &y)) in steps.iter().zip(&ys).enumerate() {
                let Kernel { entry, name, waits, .. } = &self.kernels[step.kernel.0 as usize];
                check_grid_y(index, name, y)?;
                if y > 0 {
                    // The first follows copies.
                    let dependent = self.options.dependent && *waits && !calls.is_empty();
                    let grid = [step.grid[0], y];
                    calls.push(Call { entry: *entry, name, grid, threads: step.threads, args: &step.args, dependent });
                }
            }
            if todo == Todo::Launch || calls.is_empty() {
                self.gpu.begin()?;
                // SAFETY: the buffers exist, because `free` refuses those of a prepared list; the rest is the caller's promise.
                return calls.iter().try_for_each(|c| unsafe { self.gpu.launch(c) });
            }
            // SAFETY: as above; the graph is given back with the list.
            graphs.keep(unsafe { Graph::capture(&self.gpu, &calls)? });
        }
        match graphs.last() {
            // SAFETY: as above.
            Some(graph) => unsafe { graph.launch(&self.gpu) },
            None => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<()> {
        self.gpu.sync()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let _ = self.gpu.sync();
        for mut list in self.prepared.drain(..).flatten() {
            list.graphs.drain().for_each(|g| g.close(&self.gpu));
        }
        self.queue.close(&self.gpu);
        self.staging.iter_mut().filter_map(Option::take).for_each(|s| s.close(&self.gpu));
        for b in self.buffers.iter().flatten() {
            // SAFETY: it came from `alloc`; nothing uses it after the device.
            let _ = unsafe { self.gpu.free(b.at) };
        }
        for &m in &self.modules {
            // SAFETY: it came from `load`; nothing uses it after the device.
            let _ = unsafe { self.gpu.unload(m) };
        }
    }
}
