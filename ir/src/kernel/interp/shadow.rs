//! Shadow memory: who touched each byte last, in which phase (the time between two barriers), and whether it has a
//! value. It promises to find, whatever the order in which warps and blocks are interpreted: two warps of a block that
//! touch one byte in one phase, two blocks that touch one byte of a buffer in one launch (one of the two writing),
//! reads of shared bytes that were never written, and any touch of bytes that a copy in flight will write.

use super::fault::{Check, Fault, mem_name};
use crate::kernel::{Kernel, Mem};

const PAGE: usize = 4096;
/// Warp or block number that stands for several.
const MANY: u32 = u32::MAX;

/// Last touches of a byte within a block; warps count from 1, 0 is nobody.
#[derive(Clone, Copy, Default)]
struct Touch {
    writer: u32,
    written: u32,
    reader: u32,
    read: u32,
}

impl Touch {
    /// The other warp, and what it did.
    fn on_read(&mut self, warp: u32, phase: u32) -> Option<(u32, &'static str)> {
        let me = warp + 1;
        if self.written == phase && self.writer != me {
            return Some((self.writer, "wrote"));
        }
        self.reader = if self.read == phase && self.reader != me { MANY } else { me };
        self.read = phase;
        None
    }

    fn on_write(&mut self, warp: u32, phase: u32) -> Option<(u32, &'static str)> {
        let me = warp + 1;
        if self.written == phase && self.writer != me {
            return Some((self.writer, "wrote"));
        }
        if self.read == phase && self.reader != me {
            return Some((self.reader, "read"));
        }
        (self.writer, self.written) = (me, phase);
        None
    }
}

#[derive(Clone, Copy, Default)]
struct SharedByte {
    touch: Touch,
    init: bool,
    flight: bool,
}

/// Blocks count from 1, 0 is nobody.
#[derive(Clone, Copy, Default)]
struct GlobalByte {
    touch: Touch,
    writer: u32,
    reader: u32,
}

type Page = Option<Box<[GlobalByte]>>;

/// A copy that was issued and has not landed.
pub(super) struct Pending {
    pub iteration: u32,
    pub warp: u32,
    pub dst: u32,
    /// In bytes, inside the array.
    pub dst_at: usize,
    pub src: u32,
    pub src_at: usize,
}

pub(super) struct Shadow {
    shared: Vec<SharedByte>,
    offsets: Vec<u32>,
    buffers: Vec<Vec<Page>>,
    /// Counts on through all blocks.
    phase: u32,
    pub pending: Vec<Pending>,
}

/// A touch of `len` bytes at byte `at`.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub mem: Mem,
    pub at: usize,
    pub len: usize,
    pub warp: u32,
    /// Number of the block in the grid.
    pub block: u32,
    pub lane: usize,
    pub write: bool,
}

impl Shadow {
    pub fn new(k: &Kernel) -> Shadow {
        let (offsets, total) = k.shared_layout();
        Shadow {
            shared: vec![SharedByte::default(); total as usize],
            offsets,
            buffers: k.bufs.iter().map(|_| vec![]).collect(),
            phase: 1,
            pending: vec![],
        }
    }

    pub fn barrier(&mut self) {
        self.phase += 1;
    }

    pub fn next_block(&mut self) {
        self.phase += 1;
        self.shared.fill(SharedByte::default());
        self.pending.clear();
    }

    pub fn touch(&mut self, k: &Kernel, a: Access) -> Check {
        match a.mem {
            Mem::Shared(s) => {
                let start = self.offsets[s as usize] as usize + a.at;
                for byte in start..start + a.len {
                    self.touch_shared(k, a, byte)?;
                }
            }
            Mem::Buf(b) => {
                if k.bufs[b as usize].write {
                    for byte in a.at..a.at + a.len {
                        self.touch_global(k, a, b as usize, byte)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn touch_shared(&mut self, k: &Kernel, a: Access, byte: usize) -> Check {
        let phase = self.phase;
        let cell = &mut self.shared[byte];
        let does = if a.write { "write to" } else { "read of" };
        if cell.flight {
            let m = format!("{does} {}, byte {}, while a copy into it is in flight", mem_name(k, a.mem), a.at);
            return Err(Fault::lane("E0158", a.lane, m).hint("a body may touch only its own slot of the pipeline"));
        }
        if !a.write && !cell.init {
            let m = format!("read of {}, byte {}, which nothing wrote", mem_name(k, a.mem), a.at);
            return Err(Fault::lane("E0157", a.lane, m).hint("shared memory is undefined when a block starts"));
        }
        let other = if a.write { cell.touch.on_write(a.warp, phase) } else { cell.touch.on_read(a.warp, phase) };
        cell.init |= a.write;
        race(k, a, other)
    }

    fn touch_global(&mut self, k: &Kernel, a: Access, buf: usize, byte: usize) -> Check {
        let pages = &mut self.buffers[buf];
        let n = byte / PAGE;
        if pages.len() <= n {
            pages.resize_with(n + 1, || None);
        }
        let page = pages[n].get_or_insert_with(|| vec![GlobalByte::default(); PAGE].into_boxed_slice());
        let cell = &mut page[byte % PAGE];
        let me = a.block + 1;
        let other = if cell.writer != 0 && cell.writer != me {
            Some((cell.writer, "wrote"))
        } else if a.write && cell.reader != 0 && cell.reader != me {
            Some((cell.reader, "read"))
        } else {
            None
        };
        if let Some((b, did)) = other {
            let does = if a.write { "write to" } else { "read of" };
            let who = if b == MANY { "several other blocks".to_string() } else { format!("block {} of the grid", b - 1) };
            let m = format!("{does} {}, byte {}, which {who} {did} in this launch", mem_name(k, a.mem), a.at);
            return Err(Fault::lane("E0159", a.lane, m).hint("blocks run in any order: split the work into two kernels"));
        }
        if a.write {
            cell.writer = me;
        } else {
            cell.reader = if cell.reader == 0 || cell.reader == me { me } else { MANY };
        }
        let phase = self.phase;
        let other = if a.write { cell.touch.on_write(a.warp, phase) } else { cell.touch.on_read(a.warp, phase) };
        race(k, a, other)
    }

    /// A copy of 16 bytes is issued.
    pub fn issue(&mut self, k: &Kernel, p: Pending, lane: usize) -> Check {
        let start = self.offsets[p.dst as usize] as usize + p.dst_at;
        let (mem, at) = (Mem::Shared(p.dst), p.dst_at);
        let a = Access { mem, at, len: 16, warp: p.warp, block: 0, lane, write: true };
        for byte in start..start + 16 {
            self.touch_shared(k, a, byte)?;
        }
        self.shared[start..start + 16].iter_mut().for_each(|c| c.flight = true);
        self.pending.push(p);
        Ok(())
    }

    /// The copies of an iteration have landed: returns them, their bytes are ordinary again.
    pub fn land(&mut self, iteration: u32) -> Vec<Pending> {
        let all = std::mem::take(&mut self.pending);
        let (landed, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| p.iteration == iteration);
        self.pending = rest;
        for p in &landed {
            let start = self.offsets[p.dst as usize] as usize + p.dst_at;
            for c in &mut self.shared[start..start + 16] {
                c.flight = false;
                c.init = true;
                (c.touch.writer, c.touch.written) = (p.warp + 1, self.phase);
            }
        }
        landed
    }
}

fn race(k: &Kernel, a: Access, other: Option<(u32, &'static str)>) -> Check {
    let Some((warp, did)) = other else { return Ok(()) };
    let does = if a.write { "write to" } else { "read of" };
    let who = if warp == MANY { "several other warps".to_string() } else { format!("warp {}", warp - 1) };
    let m = format!("{does} {}, byte {}, which {who} {did} since the last barrier", mem_name(k, a.mem), a.at);
    Err(Fault::lane("E0156", a.lane, m).hint("put a barrier between the two"))
}
