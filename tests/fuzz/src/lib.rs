//! Fuzzing on stable Rust: [`TARGETS`], each a function of bytes that must not panic, hang, overflow the stack or take much
//! memory, and that checks what its subject promises; [`mutate`], which makes inputs; [`driver`], which runs them.
//!
//! `make test` replays `tests/fuzz/corpus/TARGET/*` and a fixed number of inputs made from them; `make test-full` runs each
//! target for a minute. By hand:
//!
//! ```text
//! cargo run --release -p isobit-fuzz -- TARGET --seconds 300 --seed 7
//! cargo run --release -p isobit-fuzz -- replay TARGET FILE
//! ```
//!
//! What fails is made smaller, written to the corpus, and the command that shows it again is printed. The functions need no
//! feedback of coverage, and know nothing of the driver, so cargo-fuzz can run them as they are:
//! `fuzz_target!(|data: &[u8]| isobit_fuzz::targets::graph(data));` with this corpus as its own, and
//! `-dict=tests/fuzz/dict/TARGET.dict`.

pub mod driver;
pub mod mutate;
pub mod targets;

/// What is fuzzed.
#[derive(Clone, Copy)]
pub struct Target {
    /// Also the name of its corpus and of its dictionary.
    pub name: &'static str,
    /// Panics if its subject breaks a promise.
    pub run: fn(&[u8]),
    /// Makes what was mutated consistent again (lengths, checksums), for some of the inputs.
    pub mend: Option<fn(&mut Vec<u8>)>,
    /// Is it run with the others? The planted faults are not.
    pub listed: bool,
}

/// All targets.
pub const TARGETS: &[Target] = targets::ALL;

/// The target of this name.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|t| t.name == name).copied()
}
