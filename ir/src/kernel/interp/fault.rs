//! What can go wrong at run time, and how it is told.

use crate::diag::Diagnostic;
use crate::kernel::{Kernel, Mem};

/// A fault of one instruction. Boxed, so that the fast path carries one pointer.
pub(super) struct Fault {
    pub code: &'static str,
    pub message: String,
    pub hint: &'static str,
    pub lane: Option<usize>,
    /// Index into the decoded code, set by the executor; `None` for control flow.
    pub at: Option<u32>,
    pub warp: Option<u32>,
}

pub(super) type Check<T = ()> = Result<T, Box<Fault>>;

impl Fault {
    #[cold]
    pub fn new(code: &'static str, message: String) -> Box<Fault> {
        Box::new(Fault { code, message, hint: "", lane: None, at: None, warp: None })
    }

    #[cold]
    pub fn lane(code: &'static str, lane: usize, message: String) -> Box<Fault> {
        let mut f = Fault::new(code, message);
        f.lane = Some(lane);
        f
    }

    #[cold]
    pub fn hint(mut self: Box<Fault>, hint: &'static str) -> Box<Fault> {
        self.hint = hint;
        self
    }

    /// For the user: kernel, block, warp, lane and the printed instruction.
    #[cold]
    pub fn diagnose(self, k: &Kernel, block: [u32; 2], line: Option<String>) -> Diagnostic {
        let mut place = format!("kernel {}, block ({}, {})", k.name, block[0], block[1]);
        if let Some(w) = self.warp {
            place += &format!(", warp {w}");
        }
        if let Some(l) = self.lane {
            place += &format!(", lane {l}");
        }
        if let Some(line) = line {
            place += &format!(": `{line}`");
        }
        Diagnostic::new(self.code, self.message).at(place).hint(self.hint)
    }
}

/// `buf.x` or `shared.x`
pub(super) fn mem_name(k: &Kernel, m: Mem) -> String {
    match m {
        Mem::Buf(b) => format!("buf.{}", k.bufs[b as usize].name),
        Mem::Shared(s) => format!("shared.{}", k.shared[s as usize].name),
    }
}
