//! Host memory that the GPU copies from and to while the host goes on, and events that tell when it has done so.

use super::driver::{CUdeviceptr, Gpu, check};
use cudarc::driver::sys;
use ir::diag::Result;
use std::ptr::null_mut;

/// CU_EVENT_DISABLE_TIMING: nothing is timed.
const NO_TIMING: u32 = 2;

/// Pinned memory with an event behind the last copy that used it. Whoever has it gives it back with [`Pinned::close`].
pub struct Pinned {
    at: *mut u8,
    bytes: usize,
    event: sys::CUevent,
    used: bool,
}

// SAFETY: the memory belongs to this value alone; driver objects may be used from any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeros.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Pinned> {
        gpu.begin()?;
        let mut p = Pinned { at: null_mut(), bytes: bytes.max(1), event: null_mut(), used: false };
        let mut at = null_mut();
        // SAFETY: places for a pointer and an event.
        unsafe {
            check(sys::cuMemHostAlloc(&mut at, p.bytes, 0), "E0420", &format!("{bytes} bytes of pinned memory of the host"))?;
            p.at = at.cast();
            p.at.write_bytes(0, p.bytes);
            if let Err(d) = check(sys::cuEventCreate(&mut p.event, NO_TIMING), "E0442", "making an event") {
                p.close(gpu);
                return Err(d);
            }
        }
        Ok(p)
    }

    /// Its memory, once no copy uses it.
    pub fn memory(&mut self, gpu: &Gpu) -> Result<&mut [u8]> {
        self.wait(gpu)?;
        // SAFETY: it is that long, was filled when made, and no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) })
    }

    /// Waits for the last copy; a fault in a kernel before it is reported here.
    pub fn wait(&mut self, gpu: &Gpu) -> Result<()> {
        if std::mem::take(&mut self.used) {
            gpu.begin()?;
            // SAFETY: the event lives.
            check(unsafe { sys::cuEventSynchronize(self.event) }, "E0445", "running kernels")?;
        }
        Ok(())
    }

    /// Queues a copy of `len` bytes at `from` to the GPU.
    ///
    /// # Safety
    /// The range behind `to` is inside a live allocation.
    pub unsafe fn send(&mut self, gpu: &Gpu, from: usize, len: usize, to: CUdeviceptr) -> Result<()> {
        debug_assert!(from + len <= self.bytes);
        gpu.begin()?;
        // SAFETY: the caller's promise; this memory is not written before the event behind the copy has come.
        let copy = unsafe { sys::cuMemcpyHtoDAsync_v2(to, self.at.add(from).cast(), len, gpu.stream()) };
        check(copy, "E0442", "copying to a buffer")?;
        self.mark(gpu)
    }

    /// Queues a copy of `len` bytes from the GPU to its start.
    ///
    /// # Safety
    /// The range behind `from` is inside a live allocation.
    pub unsafe fn receive(&mut self, gpu: &Gpu, from: CUdeviceptr, len: usize) -> Result<()> {
        debug_assert!(len <= self.bytes);
        gpu.begin()?;
        // SAFETY: the caller's promise; this memory is not read before the event behind the copy has come.
        let copy = unsafe { sys::cuMemcpyDtoHAsync_v2(self.at.cast(), from, len, gpu.stream()) };
        check(copy, "E0442", "copying from a buffer")?;
        self.mark(gpu)
    }

    fn mark(&mut self, gpu: &Gpu) -> Result<()> {
        self.used = true;
        // SAFETY: event and stream live.
        check(unsafe { sys::cuEventRecord(self.event, gpu.stream()) }, "E0442", "recording an event")
    }

    /// Gives it back, after the copies that use it.
    pub fn close(mut self, gpu: &Gpu) {
        let _ = gpu.begin().and_then(|()| self.wait(gpu));
        // SAFETY: each is given back once; nothing can be done about an error here.
        unsafe {
            if !self.event.is_null() {
                let _ = sys::cuEventDestroy_v2(self.event);
            }
            if !self.at.is_null() {
                let _ = sys::cuMemFreeHost(self.at.cast());
            }
        }
    }
}

/// Small copies that are queued: what is written waits in a ring, what is read comes to a slot of its own.
#[derive(Default)]
pub struct Queue {
    ring: Option<Pinned>,
    /// Where the next write goes.
    at: usize,
    slots: Vec<Slot>,
}

struct Slot {
    memory: Pinned,
    taken: bool,
}

/// Bytes of the ring.
const RING: usize = 64 << 10;
/// Fewest bytes of a slot.
const SLOT: usize = 64;

/// Where `len` bytes go in a ring of `size` at `at`, and whether all that is there must have been read before.
fn next(at: usize, len: usize, size: usize) -> (usize, bool) {
    let at = at.next_multiple_of(64);
    if at + len > size { (0, true) } else { (at, false) }
}

impl Queue {
    /// Can this much be queued? More is written at once.
    pub fn takes(len: usize) -> bool {
        len <= RING / 4
    }

    /// Queues a write.
    ///
    /// # Safety
    /// The range behind `to` is inside a live allocation.
    pub unsafe fn write(&mut self, gpu: &Gpu, to: CUdeviceptr, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let ring = match &mut self.ring {
            Some(r) => r,
            none => none.insert(Pinned::new(gpu, RING)?),
        };
        let (at, full) = next(self.at, data.len(), RING);
        if full {
            ring.wait(gpu)?;
        }
        // SAFETY: `next` keeps inside the ring; copies that are under way read other parts of it.
        unsafe { ring.at.add(at).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        self.at = at + data.len();
        // SAFETY: the caller's promise.
        unsafe { ring.send(gpu, at, data.len(), to) }
    }

    /// Queues a read; the number is for [`Queue::finish`].
    ///
    /// # Safety
    /// The range behind `from` is inside a live allocation.
    pub unsafe fn read(&mut self, gpu: &Gpu, from: CUdeviceptr, len: usize) -> Result<usize> {
        let slot = match self.slots.iter().position(|s| !s.taken && len <= s.memory.bytes) {
            Some(i) => i,
            None => {
                self.slots.push(Slot { memory: Pinned::new(gpu, len.next_multiple_of(SLOT))?, taken: false });
                self.slots.len() - 1
            }
        };
        let s = &mut self.slots[slot];
        s.taken = true;
        // SAFETY: the caller's promise.
        unsafe { s.memory.receive(gpu, from, len)? };
        Ok(slot)
    }

    /// The bytes of a read, and its slot back; none if there is no such read.
    pub fn finish(&mut self, gpu: &Gpu, slot: usize, len: usize) -> Option<Result<Vec<u8>>> {
        let s = self.slots.get_mut(slot).filter(|s| s.taken)?;
        s.taken = false;
        Some(s.memory.memory(gpu).map(|m| m[..len.min(m.len())].to_vec()))
    }

    /// Gives all memory back.
    pub fn close(&mut self, gpu: &Gpu) {
        self.ring.take().into_iter().chain(self.slots.drain(..).map(|s| s.memory)).for_each(|p| p.close(gpu));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_lie_apart_until_the_ring_is_full() {
        assert_eq!(next(0, 32, 256), (0, false));
        assert_eq!(next(32, 64, 256), (64, false));
        assert_eq!(next(128, 128, 256), (128, false));
        assert_eq!(next(129, 64, 256), (192, false));
        assert_eq!(next(193, 1, 256), (0, true));
        assert_eq!(next(256, 1, 256), (0, true));
        // All that may be queued fits an empty ring.
        assert!(Queue::takes(RING / 4) && !Queue::takes(RING));
    }
}
