//! What a case's kernels are made of, digests, and lines of the table.

use ir::diag::Result;
use ir::kernel::{Block, Kernel, Op};
use ir::plan::Plan;

/// 64-bit digest of outputs in order.
#[derive(Clone, Copy)]
pub struct Digest(pub u64);

impl Digest {
    /// Of nothing.
    pub fn new() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 29;
        }
    }
}

/// Counts over all kernels of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Barriers inside loops.
    pub loop_barriers: usize,
    /// Pipelines of asynchronous copies.
    pub pipelines: usize,
}

/// Counts what the kernels of a plan hold.
pub fn forms(plan: &Plan) -> Forms {
    let mut f = Forms::default();
    for Kernel { body, .. } in &plan.kernels {
        walk(body, false, &mut f);
    }
    f
}

fn walk(b: &Block, in_loop: bool, f: &mut Forms) {
    for i in &b.insts {
        match &i.op {
            Op::Barrier => f.loop_barriers += usize::from(in_loop),
            Op::For { body, .. } => walk(body, true, f),
            Op::If { then, els, .. } => {
                walk(then, in_loop, f);
                walk(els, in_loop, f);
            }
            Op::Pipeline { body, .. } => {
                f.pipelines += 1;
                walk(body, true, f);
            }
            _ => {}
        }
    }
}

/// One line of the table.
pub struct Line {
    /// Case.
    pub case: String,
    /// Device and schedule or instruction set.
    pub program: String,
    /// Distinct kernels and launches.
    pub kernels: usize,
    /// Launches of a step.
    pub launches: usize,
    /// What the kernels hold.
    pub forms: Forms,
    /// Buffers compared over all repeats.
    pub buffers: u64,
    /// Bytes compared over all repeats.
    pub bytes: u64,
    /// Buffers with a difference.
    pub mismatches: u64,
    /// Of all outputs of the first repeat.
    pub digest: u64,
}

impl Line {
    /// Nothing compared yet.
    pub fn new(case: &str, program: &str) -> Line {
        let (case, program) = (case.into(), program.into());
        Line { case, program, kernels: 0, launches: 0, forms: Forms::default(), buffers: 0, bytes: 0, mismatches: 0, digest: 0 }
    }

    /// Prints the line; a program that could not run to its end has failed.
    pub fn close(&mut self, result: Result<()>) {
        if let Err(d) = result {
            println!("FAILED {} {}: error[{}]: {d}", self.case, self.program, d.code);
            self.mismatches += 1;
        }
        println!("{}", self.print());
    }

    /// Titles of the columns.
    pub fn header() -> String {
        format!(
            "{:<14} {:<18} {:>7} {:>8} {:>8} {:>9} {:>9} {:>9} {:>10}  {:<16}",
            "case", "program", "kernels", "launches", "barriers", "pipelines", "buffers", "MiB", "mismatches", "digest"
        )
    }

    /// The line.
    pub fn print(&self) -> String {
        format!(
            "{:<14} {:<18} {:>7} {:>8} {:>8} {:>9} {:>9} {:>9.1} {:>10}  {:016x}",
            self.case,
            self.program,
            self.kernels,
            self.launches,
            self.forms.loop_barriers,
            self.forms.pipelines,
            self.buffers,
            self.bytes as f64 / f64::from(1 << 20),
            self.mismatches,
            self.digest
        )
    }
}
