//! The bit-exact interpreter of kernels: the oracle of every test. Promises: what it computes is the meaning of the
//! kernel; out-of-bounds and misaligned accesses, division by zero, shifts by 32 or more and impossible conversions are
//! errors, never values. With [`RunOptions::shadow`] races, uninitialised reads and reads of copies in flight are too.
//! NaN results of float operations are the one NaN 0x7fc00000.

mod decode;
mod exec;
mod fault;
mod mem;
mod shadow;
mod walk;

use super::Kernel;
use super::text::renumber;
use super::verify::verify;
use crate::diag::{Diagnostic, Result};

/// Codes of the interpreter's diagnostics.
pub const CODES: &[(&str, &str)] = &[
    ("E0150", "an access outside a buffer or shared array"),
    ("E0151", "a vector access whose index is not a multiple of its length"),
    ("E0152", "a float that is NaN or out of range converted to an integer"),
    ("E0153", "an integer division by zero"),
    ("E0154", "a shift by 32 or more"),
    ("E0155", "a trip count or condition that differs between lanes or warps"),
    ("E0156", "two warps of a block touch one location between two barriers, and one of them writes"),
    ("E0157", "a read of shared memory that nothing wrote"),
    ("E0158", "a touch of shared memory that an asynchronous copy is still writing"),
    ("E0159", "two blocks touch one location of a buffer, and one of them writes"),
    ("E0160", "two lanes of a warp store different values to one address"),
    ("E0161", "the arguments do not fit the kernel's parameters"),
    ("E0162", "the kernel ran longer than the step limit"),
];

/// What a fault of shadow memory is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Two warps, and no barrier between.
    Race,
    /// A read of what nobody wrote.
    Unwritten,
    /// A touch of what a copy is still writing.
    InFlight,
    /// Two blocks or lanes that write one location.
    Writers,
}

/// What the code of such a fault says; none for codes of other faults.
pub fn trouble(code: &str) -> Option<Trouble> {
    Some(match code {
        "E0156" => Trouble::Race,
        "E0157" => Trouble::Unwritten,
        "E0158" => Trouble::InFlight,
        "E0159" | "E0160" => Trouble::Writers,
        _ => return None,
    })
}

/// An order in which things run that should not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// 0, 1, 2, ...
    #[default]
    InOrder,
    /// The last one first.
    Reverse,
    /// Shuffled anew each time, from this seed.
    Shuffled(u64),
}

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Look for races, uninitialised reads and reads of copies in flight (about ten times slower).
    pub shadow: bool,
    /// Order of the warps of a block, between two barriers.
    pub warp_order: Order,
    /// Order of the blocks.
    pub block_order: Order,
    /// Shared memory starts as 0xff bytes (NaN, -1) instead of zeros.
    pub poison: bool,
    /// Give up after about so many instructions of warps; 0: never.
    pub max_steps: u64,
}

impl RunOptions {
    /// All checks, shared memory poisoned, orders shuffled from `seed`.
    pub fn checked(seed: u64) -> Self {
        let order = Order::Shuffled(seed);
        RunOptions { shadow: true, warp_order: order, block_order: order, poison: true, max_steps: 0 }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed, one per warp; constants and control not counted.
    pub warp_insts: u64,
}

/// An argument: memory behind a parameter.
#[derive(Debug)]
pub enum Arg<'a> {
    /// For a parameter that the kernel does not write.
    Read(&'a [u8]),
    /// For any parameter.
    Write(&'a mut [u8]),
}

/// A kernel, checked and decoded.
pub struct Machine {
    kernel: Kernel,
    program: decode::Program,
}

impl Machine {
    /// Verifies and decodes.
    pub fn new(k: &Kernel) -> Result<Machine, Vec<Diagnostic>> {
        verify(k)?;
        let kernel = renumber(k);
        let program = decode::decode(&kernel);
        Ok(Machine { kernel, program })
    }

    /// The kernel, renumbered.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Runs a grid of `[x, y]` blocks.
    pub fn run(&self, grid: [u32; 2], args: &mut [Arg<'_>], opts: &RunOptions) -> Result<Stats> {
        let params = &self.kernel.bufs;
        let bad = |m: String| Diagnostic::new("E0161", m).at(format!("kernel {}", self.kernel.name));
        if args.len() != params.len() {
            return Err(bad(format!("{} arguments, expected {}", args.len(), params.len())));
        }
        for (a, p) in args.iter().zip(params) {
            if p.write && matches!(a, Arg::Read(_)) {
                return Err(bad(format!("read-only memory for parameter `{}`, which is written", p.name)));
            }
        }
        walk::run(&self.kernel, &self.program, grid, args, opts)
    }
}

/// Runs a kernel once, on one vector of bytes per parameter.
pub fn run(k: &Kernel, grid: [u32; 2], bufs: &mut [Vec<u8>], opts: &RunOptions) -> Result<Stats, Vec<Diagnostic>> {
    let m = Machine::new(k)?;
    let mut args: Vec<Arg<'_>> = bufs.iter_mut().map(|b| Arg::Write(b)).collect();
    m.run(grid, &mut args, opts).map_err(|d| vec![d])
}
