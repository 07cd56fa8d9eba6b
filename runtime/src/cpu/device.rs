//! [`CpuDevice`]: buffers on the heap, code mapped from objects, launches on a pool of threads. Every call
//! checks its ids and offsets; runs are done when they return.

use super::KernelFn;
use super::available::available;
use super::loader::Module;
use super::memory::AlignedBuf;
use super::pool::{Launch, Order, Pool};
use crate::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId, check_grid_list, check_grid_y};
use crate::memory::Available;
use ir::diag::{Diagnostic, Result};

/// How a [`CpuDevice`] runs. No choice changes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that run blocks.
    pub threads: usize,
    /// Fill new buffers, and shared memory before every block, with 0xff instead of what happens to be there.
    pub poison: bool,
    /// Order of blocks.
    pub order: Order,
}

impl Default for CpuOptions {
    /// One thread per processor, no poison, blocks in order.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        CpuOptions { threads, poison: false, order: Order::Forward }
    }
}

/// The host CPU.
pub struct CpuDevice {
    pool: Pool,
    poison: bool,
    buffers: Vec<Option<AlignedBuf>>,
    kernels: Vec<Kernel>,
    prepared: Vec<Option<Prepared>>,
    /// Keeps the code of `kernels` mapped.
    modules: Vec<Module>,
}

struct Kernel {
    entry: KernelFn,
    name: String,
    bufs: u32,
}

struct Prepared {
    steps: Vec<Step>,
    /// Arguments of all steps, in order.
    pointers: Vec<*mut u8>,
    /// Buffers behind them, sorted.
    buffers: Vec<BufferId>,
}

struct Step {
    kernel: KernelHandle,
    /// Range of its arguments in `pointers`.
    args: std::ops::Range<usize>,
    grid: [u32; 2],
    shared_bytes: u32,
}

// SAFETY: the pointers are into buffers that the device owns and moves with; see `Prepared::buffers`.
unsafe impl Send for Prepared {}

impl CpuDevice {
    /// Starts the threads.
    pub fn new(options: CpuOptions) -> Result<CpuDevice> {
        let mut pool = Pool::new(options.threads)?;
        pool.set_poison(options.poison);
        pool.set_order(options.order);
        Ok(CpuDevice {
            pool,
            poison: options.poison,
            buffers: Vec::new(),
            kernels: Vec::new(),
            prepared: Vec::new(),
            modules: Vec::new(),
        })
    }

    fn buffer(&self, id: BufferId) -> Result<&AlignedBuf> {
        self.buffers.get(id.0 as usize).and_then(Option::as_ref).ok_or_else(|| unknown("buffer", id.0))
    }

    /// Address of `len` bytes at `offset` of a buffer.
    fn bytes(&self, id: BufferId, offset: u64, len: usize) -> Result<*mut u8> {
        let buffer = self.buffer(id)?;
        match usize::try_from(offset).ok().filter(|o| o.checked_add(len).is_some_and(|end| end <= buffer.len())) {
            // SAFETY: offset is at most the length of the buffer.
            Some(offset) => Ok(unsafe { buffer.ptr().add(offset) }),
            None => {
                let size = buffer.len();
                let message = format!("{len} bytes at offset {offset} are outside buffer {} of {size} bytes", id.0);
                Err(Diagnostic::new("E0422", message))
            }
        }
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

impl Device for CpuDevice {
    fn name(&self) -> String {
        match self.pool.threads() {
            1 => "cpu (1 thread)".to_string(),
            n => format!("cpu ({n} threads)"),
        }
    }

    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        let id = BufferId(next_id(self.buffers.len(), "buffer")?);
        let Some(mut buffer) = usize::try_from(bytes).ok().and_then(AlignedBuf::zeroed) else {
            let live = self.buffers.iter().flatten();
            let (count, held) = live.fold((0, 0u64), |(n, sum), b| (n + 1, sum + b.len() as u64));
            let message = format!("not enough memory for a buffer of {bytes} bytes; {count} buffers hold {held} bytes");
            return Err(Diagnostic::new("E0420", message).hint("a shorter context or a smaller prefill chunk needs less memory"));
        };
        if self.poison {
            buffer.fill(0xff);
        }
        self.buffers.push(Some(buffer));
        Ok(id)
    }

    fn free(&mut self, id: BufferId) -> Result<()> {
        self.buffer(id)?;
        let user = self.prepared.iter().position(|p| p.as_ref().is_some_and(|p| p.buffers.binary_search(&id).is_ok()));
        if let Some(user) = user {
            return Err(Diagnostic::new("E0423", format!("buffer {} is used by prepared list {user}", id.0)));
        }
        self.buffers[id.0 as usize] = None;
        Ok(())
    }

    fn write(&mut self, id: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        let start = self.bytes(id, offset, data.len())?;
        // SAFETY: the range is inside the buffer, which `&mut self` keeps from others, and which is not `data`:
        // the device gives out no references to buffers.
        unsafe { start.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    fn write_with(&mut self, id: BufferId, offset: u64, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let start = self.bytes(id, offset, len)?;
        // SAFETY: as in `write`; buffers are filled when made, so their bytes are initialised.
        fill(unsafe { std::slice::from_raw_parts_mut(start, len) });
        Ok(())
    }

    fn available(&self) -> Option<Available> {
        available()
    }

    fn read(&mut self, id: BufferId, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = self.bytes(id, offset, out.len())?;
        // SAFETY: as in `write`; buffers are filled when made, so their bytes are initialised.
        unsafe { start.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        let module = Module::load(code, names.place)?;
        let mut found = Vec::new();
        for sig in names.kernels {
            found.push(Kernel { entry: module.function(sig.name)?, name: sig.name.to_string(), bufs: sig.bufs });
        }
        let first = self.kernels.len();
        next_id(first + found.len(), "kernel")?;
        self.kernels.extend(found);
        self.modules.push(module);
        Ok((first..self.kernels.len()).map(|i| KernelHandle(i as u32)).collect())
    }

    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        let id = PreparedId(next_id(self.prepared.len(), "prepared list")?);
        let (mut steps, mut pointers, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, launch) in list.iter().enumerate() {
            let kernel = self.kernel(launch.kernel)?;
            launch.check(index, &kernel.name, kernel.bufs)?;
            let from = pointers.len();
            for &(buffer, offset) in &launch.args {
                let place = |d: Diagnostic| d.at(format!("launch {index} ({})", kernel.name));
                pointers.push(self.bytes(buffer, offset, 0).map_err(place)?);
                buffers.push(buffer);
            }
            steps.push(Step {
                kernel: launch.kernel,
                args: from..pointers.len(),
                grid: launch.grid,
                shared_bytes: launch.shared_bytes,
            });
        }
        buffers.sort_unstable();
        buffers.dedup();
        self.prepared.push(Some(Prepared { steps, pointers, buffers }));
        Ok(id)
    }

    fn release(&mut self, id: PreparedId) -> Result<()> {
        match self.prepared.get_mut(id.0 as usize).and_then(Option::take) {
            Some(_) => Ok(()),
            None => Err(unknown("prepared list", id.0)),
        }
    }

    unsafe fn run(&mut self, id: PreparedId, grid_y: &[u32]) -> Result<()> {
        let prepared = self.prepared.get(id.0 as usize).and_then(Option::as_ref);
        let prepared = prepared.ok_or_else(|| unknown("prepared list", id.0))?;
        check_grid_list(grid_y.len(), prepared.steps.len())?;
        let mut launches = Vec::with_capacity(prepared.steps.len());
        for (index, step) in prepared.steps.iter().enumerate() {
            let kernel = &self.kernels[step.kernel.0 as usize];
            let y = grid_y.get(index).copied().unwrap_or(step.grid[1]);
            check_grid_y(index, &kernel.name, y)?;
            launches.push(Launch {
                kernel: kernel.entry,
                bufs: &prepared.pointers[step.args.clone()],
                grid: [step.grid[0], y],
                shared_bytes: step.shared_bytes,
            });
        }
        // SAFETY: the code is mapped as long as the device lives; the buffers exist, because `free` refuses those
        // of a prepared list, and `&mut self` keeps others from them; the rest is the caller's promise.
        unsafe { self.pool.run_list(&launches) }
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
}
