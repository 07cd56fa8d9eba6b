//! What the decode loop asks of a machine: memory, code, and lists of launches that run in order. A device
//! keeps the bits: what a list computes is a function of the buffers alone, never of timing or of the device.
//!
//! On the host a module is an ELF object and a buffer is heap memory; on CUDA a module is PTX or a cubin, a buffer
//! is a device pointer, and a launch has `32 * warps` threads a block.

use crate::memory::Available;
use crate::weights::PIECE;
use ir::diag::{Diagnostic, Result};

/// A buffer of one device; never reused for another buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BufferId(pub(crate) u32);

/// A kernel of a loaded module of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelHandle(pub(crate) u32);

/// A prepared list of one device; never reused for another list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PreparedId(pub(crate) u32);

/// Most warps of a block.
pub const MAX_WARPS: u32 = 32;
/// Most blocks along x.
pub const MAX_GRID_X: u32 = i32::MAX as u32;
/// Most blocks along y.
pub const MAX_GRID_Y: u32 = 65535;
/// Alignment of every kernel argument, in bytes.
pub const ARG_ALIGN: u64 = 16;

/// A kernel that a module is expected to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSig<'a> {
    /// Name of its entry point.
    pub name: &'a str,
    /// Number of buffers it takes.
    pub bufs: u32,
}

/// The kernels wanted of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNames<'a> {
    /// Where the code came from, for errors.
    pub place: &'a str,
    /// The kernels; [`Device::load_module`] answers in this order.
    pub kernels: &'a [KernelSig<'a>],
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchDesc {
    /// What runs.
    pub kernel: KernelHandle,
    /// One buffer and byte offset (a multiple of [`ARG_ALIGN`]) per parameter.
    pub args: Vec<(BufferId, u64)>,
    /// Blocks along x and y; y is the default of a run that gives none.
    pub grid: [u32; 2],
    /// Warps of a block, as the kernel was compiled for.
    pub warps: u32,
    /// Shared memory of a block, as the kernel was compiled for.
    pub shared_bytes: u32,
}

/// How a GPU is given a list of launches. No choice changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchMode {
    /// One after the other, by the host.
    Stream,
    /// As a graph: a list with a grid that comes a second time is captured, and replayed from then on.
    #[default]
    Graph,
}

impl LaunchMode {
    /// All of them.
    pub const ALL: [LaunchMode; 2] = [LaunchMode::Stream, LaunchMode::Graph];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LaunchMode::Stream => "stream",
            LaunchMode::Graph => "graph",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<LaunchMode> {
        LaunchMode::ALL.into_iter().find(|m| m.name() == name)
    }
}

/// Most bytes that [`Device::queue_read`] takes: the digests of a step of one row.
pub const QUEUED_BYTES: usize = 64 << 10;

/// A read that was begun; [`Device::finish`] has its bytes.
#[derive(Debug)]
pub struct Queued(pub(crate) Read);

/// How far a read is.
#[derive(Debug)]
pub(crate) enum Read {
    Done(Vec<u8>),
    /// Number of the place where a GPU puts it, and how much.
    #[cfg(feature = "cuda")]
    Slot(usize, usize),
}

/// A machine that runs kernels. Calls take effect in order.
pub trait Device: Send {
    /// What it is, for people: `cpu (2 threads)`.
    fn name(&self) -> String;

    /// A new buffer, 64-byte aligned, filled with zeros (or with 0xff where the device was told to poison).
    fn alloc(&mut self, bytes: u64) -> Result<BufferId>;

    /// Gives a buffer back. Refused while a prepared list uses it.
    fn free(&mut self, buffer: BufferId) -> Result<()>;

    /// Copies to a buffer, after all earlier runs.
    fn write(&mut self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()>;

    /// Lets `fill` write `len` bytes of a buffer, all of them, after all earlier runs: in place where the buffer is ordinary
    /// memory, else in a staging buffer of that size, so that callers with much to write come often.
    fn write_with(&mut self, buffer: BufferId, offset: u64, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let mut staging = staging(len)?;
        fill(&mut staging);
        self.write(buffer, offset, &staging)
    }

    /// Sets `len` bytes of a buffer, after all earlier runs and before all later ones. It may return before it is done.
    fn fill(&mut self, buffer: BufferId, offset: u64, len: u64, byte: u8) -> Result<()> {
        let mut at = 0;
        while at < len {
            let n = (len - at).min(PIECE);
            self.write_with(buffer, offset + at, n as usize, &mut |out| out.fill(byte))?;
            at += n;
        }
        Ok(())
    }

    /// Memory that buffers can still have, if the device knows.
    fn available(&self) -> Option<Available> {
        None
    }

    /// Copies from a buffer, after all earlier runs.
    fn read(&mut self, buffer: BufferId, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Runs that may be queued before the results of the first are looked at: 0 where runs are done when they return, so that
    /// nothing is gained by it.
    fn ahead(&self) -> usize {
        0
    }

    /// As [`Device::write`], but it may return before it is done.
    fn queue_write(&mut self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.write(buffer, offset, data)
    }

    /// Copies `len` bytes between buffers, after all earlier runs and before all later ones. It may return before it is done.
    fn queue_copy(&mut self, from: (BufferId, u64), to: (BufferId, u64), len: usize) -> Result<()> {
        let mut bytes = vec![0; len];
        self.read(from.0, from.1, &mut bytes)?;
        self.write(to.0, to.1, &bytes)
    }

    /// Begins to copy at most [`QUEUED_BYTES`] from a buffer, as it is after all earlier runs and before all later ones.
    fn queue_read(&mut self, buffer: BufferId, offset: u64, len: usize) -> Result<Queued> {
        let mut bytes = vec![0; len];
        self.read(buffer, offset, &mut bytes)?;
        Ok(Queued(Read::Done(bytes)))
    }

    /// The bytes of a read that was begun, and what went wrong in the runs before it.
    fn finish(&mut self, read: Queued) -> Result<Vec<u8>> {
        match read.0 {
            Read::Done(bytes) => Ok(bytes),
            #[cfg(feature = "cuda")]
            Read::Slot(slot, _) => Err(Diagnostic::new("E0421", format!("read {slot} was not begun on this device"))),
        }
    }

    /// Loads compiled code and finds its kernels. The module lives as long as the device.
    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>>;

    /// Checks a list of launches and resolves its pointers once, to be run often.
    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId>;

    /// Forgets a prepared list.
    fn release(&mut self, prepared: PreparedId) -> Result<()>;

    /// Runs a prepared list: each launch sees all that earlier ones wrote. `grid_y` has the y extent of each
    /// launch (0 skips it), or is empty to run the list as prepared. May return before the work is done.
    ///
    /// # Safety
    /// The loaded code must be what the compiler made for these kernels, and each launch, with this grid,
    /// `warps` and `shared_bytes`, must stay inside the buffers of its arguments. A sound plan of a checked
    /// artifact has these properties.
    unsafe fn run(&mut self, prepared: PreparedId, grid_y: &[u32]) -> Result<()>;

    /// Waits until all runs are done, and reports what went wrong in them.
    fn sync(&mut self) -> Result<()>;

    /// Runs a list once, to its end.
    ///
    /// # Safety
    /// As for [`Device::run`].
    unsafe fn launch(&mut self, list: &[LaunchDesc]) -> Result<()> {
        let prepared = self.prepare(list)?;
        // SAFETY: the caller's promise.
        let ran = unsafe { self.run(prepared, &[]) }.and_then(|()| self.sync());
        let released = self.release(prepared);
        ran.and(released)
    }
}

/// Zeros, to be written to a buffer.
pub(crate) fn staging(len: usize) -> Result<Vec<u8>> {
    let mut staging = Vec::new();
    staging
        .try_reserve_exact(len)
        .map_err(|_| Diagnostic::new("E0420", format!("not enough memory for a staging buffer of {len} bytes")))?;
    staging.resize(len, 0);
    Ok(staging)
}

impl LaunchDesc {
    /// Refuses a launch that not every device can run; `bufs` is what the kernel takes, `index` the place in
    /// the list, for the error.
    pub(crate) fn check(&self, index: usize, kernel: &str, bufs: u32) -> Result<()> {
        let refuse = |what: String| Err(Diagnostic::new("E0424", what).at(format!("launch {index} ({kernel})")));
        if self.args.len() != bufs as usize {
            return refuse(format!("the kernel takes {bufs} buffers, the launch has {}", self.args.len()));
        }
        if self.warps == 0 || self.warps > MAX_WARPS {
            return refuse(format!("a block has 1 to {MAX_WARPS} warps, the launch asks for {}", self.warps));
        }
        if self.grid[0] == 0 || self.grid[0] > MAX_GRID_X {
            return refuse(format!("x extent {} of the grid is not in 1..={MAX_GRID_X}", self.grid[0]));
        }
        check_grid_y(index, kernel, self.grid[1])?;
        match self.args.iter().find(|a| a.1 % ARG_ALIGN != 0) {
            Some(arg) => refuse(format!("byte offset {} of an argument is not a multiple of {ARG_ALIGN}", arg.1)),
            None => Ok(()),
        }
    }
}

/// Refuses a y extent that not every device can run.
pub(crate) fn check_grid_y(index: usize, kernel: &str, y: u32) -> Result<()> {
    if y > MAX_GRID_Y {
        let message = format!("y extent {y} of the grid is more than {MAX_GRID_Y}");
        return Err(Diagnostic::new("E0424", message).at(format!("launch {index} ({kernel})")));
    }
    Ok(())
}

/// The y extents of a run: those given, checked, or those prepared.
pub(crate) fn check_grid_list(given: usize, prepared: usize) -> Result<()> {
    if given != 0 && given != prepared {
        let message = format!("{given} y extents given for a list of {prepared} launches");
        return Err(Diagnostic::new("E0424", message));
    }
    Ok(())
}
