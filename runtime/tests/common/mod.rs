//! Makes real objects for tests: C text compiled by gcc for the machine that runs the test, which may be an emulated one. A
//! machine without gcc fails the tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Flags for a position-independent object as the compiler emits it.
pub const PIC: &[&str] = &["-O2", "-fPIC", "-ffunction-sections", "-fno-stack-protector", "-fno-math-errno"];

/// What every test kernel begins with.
pub const PRELUDE: &str = "
#include <stdint.h>
typedef uint8_t *const *Bufs;
#define KERNEL(name) void name(Bufs bufs, uint32_t x, uint32_t y, uint8_t *shared)
#define HIDDEN __attribute__((visibility(\"hidden\"), noinline))
";

/// Compiles C text (after [`PRELUDE`]) to a relocatable object.
pub fn compile(source: &str, flags: &[&str]) -> Vec<u8> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let stem = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("k{}-{number}", std::process::id()));
    let (c, o) = (stem.with_extension("c"), stem.with_extension("o"));
    std::fs::write(&c, format!("{PRELUDE}{source}")).unwrap();
    // Debian's name of the compiler for aarch64, there and elsewhere.
    let gcc = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu-gcc" } else { "gcc" };
    let gcc = Command::new(gcc).args(flags).arg("-c").arg(&c).arg("-o").arg(&o).output().expect("gcc runs");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    let object = std::fs::read(&o).unwrap();
    std::fs::remove_file(&c).unwrap();
    std::fs::remove_file(&o).unwrap();
    object
}
