//! Heap memory aligned to a cache line: an allocation that fails is a value, not an abort.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every buffer and scratch memory.
pub(super) const ALIGN: usize = 64;

/// Alignment asked of the allocator: what it gives without touching the pages, so that a large buffer costs
/// no time and no memory until it is written.
const HEAP_ALIGN: usize = 16;

/// Zero-filled memory.
pub(super) struct AlignedBuf {
    heap: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access gives out only the address.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes, or none if they cannot be had. An empty buffer has an address of its own too.
    pub(super) fn zeroed(len: usize) -> Option<AlignedBuf> {
        let layout = Layout::from_size_align(len.checked_add(ALIGN)?, HEAP_ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let heap = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = heap.as_ptr().align_offset(ALIGN);
        assert!(skip < ALIGN);
        // SAFETY: skip is less than the ALIGN bytes allocated beyond len.
        let start = unsafe { heap.add(skip) };
        Some(AlignedBuf { heap, layout, start, len })
    }

    /// Address of the first byte.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sets every byte.
    pub(super) fn fill(&mut self, byte: u8) {
        // SAFETY: the memory is len bytes long, and `&mut self` excludes other users of this value.
        unsafe { self.start.as_ptr().write_bytes(byte, self.len) };
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.heap.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zero_and_refused() {
        for len in [0, 1, 63, 64, 65, 4096, 1 << 22] {
            let mut buf = AlignedBuf::zeroed(len).unwrap();
            assert_eq!((buf.ptr() as usize % ALIGN, buf.len()), (0, len));
            // SAFETY: len bytes that were zero-filled.
            assert!(unsafe { std::slice::from_raw_parts(buf.ptr(), len) }.iter().all(|b| *b == 0));
            buf.fill(0xff);
        }
        for len in [1 << 60, isize::MAX as usize, usize::MAX] {
            // Unseen, an optimizer leaves the allocation out, and it never fails.
            assert!(std::hint::black_box(AlignedBuf::zeroed(len)).is_none());
        }
    }
}
