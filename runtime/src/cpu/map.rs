//! Executable memory: pages that are first writable, then code (read, execute) and data (read only), never
//! writable and executable at once.

use super::link::Image;
use ir::diag::{Diagnostic, Result};
use std::ptr::{self, NonNull};

/// Pages that hold one linked image; unmapped when dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages are never written after `new`, and belong to this value alone.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access only reads addresses.
unsafe impl Sync for Mapping {}

/// Page size of the system, at least 4096.
pub(super) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(0).max(4096)
}

impl Mapping {
    /// Copies the image to fresh pages and makes it executable.
    pub(super) fn new(image: &Image) -> Result<Mapping> {
        let len = image.bytes.len();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(failed("map", len));
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| failed("map", len))?;
        let mapping = Mapping { start, len };
        // SAFETY: the mapping has `len` writable bytes, which nothing else refers to.
        unsafe { ptr::copy_nonoverlapping(image.bytes.as_ptr(), start.as_ptr(), len) };
        flush_instruction_cache(start.as_ptr(), image.code);
        mapping.protect(0, image.code, libc::PROT_READ | libc::PROT_EXEC)?;
        mapping.protect(image.code, len, libc::PROT_READ)?;
        Ok(mapping)
    }

    fn protect(&self, from: usize, to: usize, protection: libc::c_int) -> Result<()> {
        assert!(from <= to && to <= self.len);
        if from == to {
            return Ok(());
        }
        // SAFETY: the range is inside the mapping; no Rust reference to it exists.
        let rc = unsafe { libc::mprotect(self.start.as_ptr().add(from).cast(), to - from, protection) };
        if rc == 0 { Ok(()) } else { Err(failed("protect", to - from)) }
    }

    /// Address of a byte of the image.
    pub(super) fn address(&self, offset: usize) -> *const u8 {
        assert!(offset < self.len);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping; users of its code promised not to outlive it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn failed(what: &str, len: usize) -> Diagnostic {
    let error = std::io::Error::last_os_error();
    Diagnostic::new("E0406", format!("could not {what} {len} bytes for host code: {error}"))
        .hint("the system may forbid executable memory (SELinux, seccomp or a memory limit)")
}

#[cfg(not(target_arch = "aarch64"))]
fn flush_instruction_cache(_start: *const u8, _len: usize) {}

/// Makes code that was just written visible to instruction fetch.
#[cfg(target_arch = "aarch64")]
fn flush_instruction_cache(start: *const u8, len: usize) {
    use std::arch::asm;
    let ctr: u64;
    // SAFETY: reading the cache type register is allowed in user mode on Linux and has no effect.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack)) };
    let (dline, iline) = (4usize << ((ctr >> 16) & 15), 4usize << (ctr & 15));
    let (from, to) = (start as usize, start as usize + len);
    for line in (from & !(dline - 1)..to).step_by(dline) {
        // SAFETY: cleans a line of mapped memory; changes no contents.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack)) };
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack)) };
    for line in (from & !(iline - 1)..to).step_by(iline) {
        // SAFETY: invalidates an instruction cache line; changes no contents.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack)) };
}
