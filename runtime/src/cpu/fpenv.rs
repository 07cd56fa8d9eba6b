//! The floating-point mode of a thread while kernels run: round to nearest even, subnormals kept, no traps.
//! A library built with `-ffast-math` may have switched subnormals off for the process; kernels must not see it.

/// Holds the default mode until dropped, then restores what was there.
pub(super) struct DefaultFpMode {
    changed_from: Option<u64>,
}

impl DefaultFpMode {
    /// Switches this thread to the default mode if it is in another.
    pub(super) fn enter() -> DefaultFpMode {
        let found = mode::get();
        if mode::is_default(found) {
            return DefaultFpMode { changed_from: None };
        }
        mode::set(mode::DEFAULT);
        DefaultFpMode { changed_from: Some(found) }
    }
}

impl Drop for DefaultFpMode {
    fn drop(&mut self) {
        if let Some(found) = self.changed_from {
            mode::set(found);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod mode {
    use std::arch::asm;

    /// All exceptions masked, nearest even, neither flush-to-zero nor denormals-are-zero.
    pub(super) const DEFAULT: u64 = 0x1f80;

    pub(super) fn get() -> u64 {
        let mut mxcsr = 0u32;
        // SAFETY: stores four bytes to a live variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
        u64::from(mxcsr)
    }

    /// The low six bits are sticky exception flags.
    pub(super) fn is_default(mode: u64) -> bool {
        mode & !0x3f == DEFAULT
    }

    pub(super) fn set(mode: u64) {
        let mxcsr = mode as u32;
        // SAFETY: the value is the default or was read from the register; either the mode becomes the one that
        // Rust code expects, or the one that the thread was in.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod mode {
    use std::arch::asm;

    /// Nearest even, no flush-to-zero, no default NaN, no traps.
    pub(super) const DEFAULT: u64 = 0;

    pub(super) fn get() -> u64 {
        let fpcr: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        fpcr
    }

    pub(super) fn is_default(mode: u64) -> bool {
        mode == DEFAULT
    }

    pub(super) fn set(mode: u64) {
        // SAFETY: the value is the default or was read from the register; either the mode becomes the one that
        // Rust code expects, or the one that the thread was in.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags)) };
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod mode {
    pub(super) const DEFAULT: u64 = 0;

    pub(super) fn get() -> u64 {
        DEFAULT
    }

    pub(super) fn is_default(_mode: u64) -> bool {
        true
    }

    pub(super) fn set(_mode: u64) {}
}
