//! Kernel IR: an SSA program for one warp of 32 lanes, the form between graph and LLVM.
//!
//! A kernel runs on a grid of blocks of `warps` warps. Control flow is structured ([`Op::For`], [`Op::If`],
//! [`Op::Pipeline`]) and warp-uniform; anything that contains a barrier is block-uniform. Values are dense
//! ids, defined once, visible in the rest of their block and in blocks nested in it.
//! Float operations are exactly those of DESIGN section 3: one rounding each, nearest even, subnormals kept,
//! no contraction. On a GPU a lane is a thread; on the host a lane vector is SIMD registers.

pub mod build;
pub mod interp;
#[cfg(feature = "testgen")]
pub mod testgen;
pub mod text;
pub mod uniform;
pub mod verify;

/// Lanes of a warp.
pub const LANES: usize = 32;

/// A value of a kernel: an index into [`Kernel::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct V(pub u32);

impl V {
    /// As an index.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Type of a value, per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ty {
    /// 32-bit integer, wrapping; signedness is the operation's.
    I32,
    /// IEEE-754 binary32.
    F32,
    /// Truth value.
    Bool,
}

/// How memory is read or written by one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Elem {
    /// 4 bytes <-> f32.
    F32,
    /// 4 bytes <-> i32.
    I32,
    /// 1 byte <-> i32: zero-extended when read, low byte stored.
    U8,
    /// 2 bytes <-> f32: widened when read, rounded to nearest even when stored.
    Bf16,
}

impl Elem {
    /// Bytes of one element.
    pub fn bytes(self) -> u32 {
        match self {
            Elem::F32 | Elem::I32 => 4,
            Elem::Bf16 => 2,
            Elem::U8 => 1,
        }
    }

    /// Type of the value in a register.
    pub fn ty(self) -> Ty {
        match self {
            Elem::F32 | Elem::Bf16 => Ty::F32,
            Elem::I32 | Elem::U8 => Ty::I32,
        }
    }
}

/// A place in memory: a parameter or a shared array of the block, both plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mem {
    /// Index into [`Kernel::bufs`].
    Buf(u32),
    /// Index into [`Kernel::shared`].
    Shared(u32),
}

/// A pointer parameter: global memory, 16-byte aligned, never aliasing a buffer that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buf {
    /// Unique in the kernel.
    pub name: String,
    /// The kernel stores to it. A buffer that is not written is read-only for the whole launch.
    pub write: bool,
    /// Nobody writes to it while the program runs: weights. It may be read before earlier launches have ended.
    pub fixed: bool,
}

/// An array in the block's shared memory, 16-byte aligned, undefined at entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Unique in the kernel.
    pub name: String,
    /// Size in bytes, a multiple of 16.
    pub bytes: u32,
}

/// Wrapping integer operations. `Div*`/`Rem*` by zero is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IntOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// low 32 bits of `a * b`
    Mul,
    /// bitwise and
    And,
    /// bitwise or
    Or,
    /// bitwise exclusive or
    Xor,
    /// `a << b`, `b < 32`
    Shl,
    /// logical `a >> b`, `b < 32`
    Lshr,
    /// arithmetic `a >> b`, `b < 32`
    Ashr,
    /// signed maximum
    Max,
    /// signed minimum
    Min,
    /// unsigned quotient
    Div,
    /// unsigned remainder
    Rem,
}

/// Float operations of two operands, rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FloatOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
}

/// Functions that hardware computes roughly, each machine in its own way. Only kernels of `--determinism off` have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApproxOp {
    /// `2^x`
    Exp2,
    /// `1/sqrt(x)`
    Rsqrt,
}

impl ApproxOp {
    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            ApproxOp::Exp2 => "exp2.approx",
            ApproxOp::Rsqrt => "rsqrt.approx",
        }
    }
}

/// Integer comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ICmp {
    /// equal
    Eq,
    /// not equal
    Ne,
    /// signed less
    Lt,
    /// signed less or equal
    Le,
}

/// Float comparisons; all but `Nan` are false if an operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FCmp {
    /// ordered equal
    Eq,
    /// ordered less
    Lt,
    /// ordered less or equal
    Le,
    /// an operand is NaN
    Nan,
}

/// Operations on truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoolOp {
    /// both
    And,
    /// either
    Or,
    /// exactly one
    Xor,
}

/// What an instruction does. Results are in [`Inst::results`].
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Integer constant.
    ConstI(i32),
    /// Float constant, by bits.
    ConstF(u32),
    /// Truth constant.
    ConstB(bool),
    /// Lane number, 0..32.
    Lane,
    /// Warp number in the block, 0..warps.
    Warp,
    /// Block number along x.
    BlockX,
    /// Block number along y.
    BlockY,
    /// Integer operation.
    Int(IntOp, V, V),
    /// Float operation.
    Float(FloatOp, V, V),
    /// `a * b + c`, rounded once.
    Fma(V, V, V),
    /// Nearest integer, ties to even, as a float.
    RoundEven(V),
    /// Nearest bf16 value (ties to even), as a float.
    RoundBf16(V),
    /// A function as the machine happens to compute it; the interpreter rounds it once or twice. No processor has it.
    Approx(ApproxOp, V),
    /// Integer comparison.
    ICmp(ICmp, V, V),
    /// Float comparison.
    FCmp(FCmp, V, V),
    /// Operation on truth values.
    Bool(BoolOp, V, V),
    /// `p ? a : b` (a, b of one type).
    Select(V, V, V),
    /// Float with these bits.
    BitsToF(V),
    /// Bits of a float. The value must not be a NaN that matters: targets differ in its payload.
    FToBits(V),
    /// Signed integer to the nearest float.
    IToF(V),
    /// Float to integer, toward zero; the value must be in range and not NaN.
    FToI(V),
    /// `acc + Σ a.byte[i] * b.byte[i]` over the four bytes, each signed or not; wrapping.
    Dp4a {
        /// Bytes of `a` are signed.
        a_signed: bool,
        /// Bytes of `b` are signed.
        b_signed: bool,
        /// Four packed bytes, lowest first.
        a: V,
        /// Four packed bytes, lowest first.
        b: V,
        /// Accumulator.
        acc: V,
    },
    /// `acc + A · B` of a whole warp, wrapping: A has 16 rows of 32 bytes, B 32 bytes of 8 columns, each signed or not. Byte `b`
    /// of lane `4r + t` holds, in `a[i]`, row `r + 8·(i % 2)` of A at `16·(i / 2) + 4t + b`; in `b[i]`, column `r` of B at
    /// `16·i + 4t + b`. Accumulator and result `i` are row `r + 8·(i / 2)`, column `2t + i % 2`.
    Mma {
        /// Bytes of `a` are signed.
        a_signed: bool,
        /// Bytes of `b` are signed.
        b_signed: bool,
        /// Four packed bytes each, lowest first.
        a: [V; 4],
        /// Four packed bytes each, lowest first.
        b: [V; 2],
        /// Accumulators.
        acc: [V; 4],
    },
    /// Reads results.len() (1, 2 or 4) consecutive elements at element index `idx` (a multiple of that number).
    /// A lane whose predicate is false touches no memory and reads zeros.
    Load {
        /// From where.
        mem: Mem,
        /// How.
        elem: Elem,
        /// Element index, unsigned.
        idx: V,
        /// Lanes that take part; all if absent.
        pred: Option<V>,
    },
    /// Writes one element. A lane whose predicate is false writes nothing. No two lanes of a grid may write one
    /// address in a phase, unless the value comes from one warp and is the same (then it is stored once).
    Store {
        /// To where.
        mem: Mem,
        /// How.
        elem: Elem,
        /// Element index, unsigned.
        idx: V,
        /// The value.
        val: V,
        /// Lanes that take part; all if absent.
        pred: Option<V>,
    },
    /// Adds integers to words of a buffer, wrapping: any lanes, warps and blocks may add to one word, and its value after the
    /// launch is the same in whatever order they come. The kernel does nothing else with the buffer, so nobody sees how far it is.
    AtomicAdd {
        /// Index into [`Kernel::bufs`].
        buf: u32,
        /// In words of 4 bytes, unsigned.
        idx: V,
        /// What is added.
        val: V,
        /// Lanes that take part; all if absent.
        pred: Option<V>,
        /// Words are floats: then the order of arrival is seen in the sum, and no level but `off` allows it.
        float: bool,
    },
    /// The value of lane `lane ^ mask`.
    ShuffleXor(V, u32),
    /// The value of lane `src & 31`.
    ShuffleIdx(V, V),
    /// All warps of the block arrive; their earlier stores to shared and global memory are visible after it.
    Barrier,
    /// `trip` times (signed; none if not positive), with `iv` = 0, 1, ... The results are the carried values after the
    /// last iteration.
    For {
        /// Warp-uniform trip count; block-uniform if the body has a barrier.
        trip: V,
        /// Iteration number.
        iv: V,
        /// Carried values: (name inside the body, initial value).
        carried: Vec<(V, V)>,
        /// Body.
        body: Block,
        /// Next values of the carried ones, defined in the body or outside.
        yields: Vec<V>,
    },
    /// One of two blocks. `cond` is warp-uniform; block-uniform if there is a barrier inside.
    If {
        /// Condition.
        cond: V,
        /// Taken if true.
        then: Block,
        /// Taken if false.
        els: Block,
        /// Results of `then`.
        then_yields: Vec<V>,
        /// Results of `els`.
        els_yields: Vec<V>,
    },
    /// `trip` iterations, each fed by asynchronous copies to shared memory issued up to `stages - 1` iterations ahead.
    /// Iteration i copies into and reads slot `i % stages`. All copies have landed, and all warps see them, before a body
    /// runs; a slot is overwritten only after all warps have left the body that read it; everything has drained at the end.
    /// Block-uniform.
    Pipeline {
        /// Slots, 2 to 8.
        stages: u32,
        /// Block-uniform trip count.
        trip: V,
        /// Iteration number in the copy block.
        copy_iv: V,
        /// Slot number in the copy block.
        copy_slot: V,
        /// Pure operations and [`Op::Copy`] only.
        copy: Block,
        /// Iteration number in the body.
        iv: V,
        /// Slot number in the body.
        slot: V,
        /// Carried values.
        carried: Vec<(V, V)>,
        /// Body, without barriers.
        body: Block,
        /// Next values of the carried ones.
        yields: Vec<V>,
    },
    /// Copies 16 bytes per lane from global to shared memory; only in a pipeline's copy block.
    Copy {
        /// Index into [`Kernel::shared`].
        dst: u32,
        /// In units of 16 bytes.
        dst_idx: V,
        /// Index into [`Kernel::bufs`], not written by this kernel.
        src: u32,
        /// In units of 16 bytes.
        src_idx: V,
        /// Lanes that take part; all if absent.
        pred: Option<V>,
    },
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// The values it defines.
    pub results: Vec<V>,
}

/// A sequence of instructions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// In order.
    pub insts: Vec<Inst>,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// A valid symbol: `[a-z_][a-z0-9_]*`.
    pub name: String,
    /// Warps of a block, 1 to 32.
    pub warps: u32,
    /// Free schedule: blocks that should fit on one multiprocessor (0: no wish).
    pub min_blocks: u32,
    /// A product whose sum follows may be rounded once instead of twice, as code generation and assembler like. Only kernels of
    /// `--determinism off` allow it.
    pub contract: bool,
    /// Parameters, in order.
    pub bufs: Vec<Buf>,
    /// Shared arrays.
    pub shared: Vec<Shared>,
    /// Type of each value.
    pub types: Vec<Ty>,
    /// Program.
    pub body: Block,
}

impl Kernel {
    /// What lets machines, or runs, differ in the bits that the kernel computes: one line for each, and whether runs may.
    pub fn relaxed(&self) -> Vec<(String, bool)> {
        fn walk(k: &Kernel, b: &Block, out: &mut Vec<(String, bool)>) {
            for i in &b.insts {
                match &i.op {
                    Op::Approx(..) => out.push((text::line(k, i), false)),
                    Op::AtomicAdd { float: true, .. } => out.push((text::line(k, i), true)),
                    Op::For { body, .. } => walk(k, body, out),
                    Op::If { then, els, .. } => {
                        walk(k, then, out);
                        walk(k, els, out);
                    }
                    Op::Pipeline { copy, body, .. } => {
                        walk(k, copy, out);
                        walk(k, body, out);
                    }
                    _ => {}
                }
            }
        }
        let mut out = vec![];
        walk(self, &self.body, &mut out);
        out
    }

    /// Type of a value.
    pub fn ty(&self, v: V) -> Ty {
        self.types[v.idx()]
    }

    /// Byte offset of each shared array, and the total.
    pub fn shared_layout(&self) -> (Vec<u32>, u32) {
        let mut at = 0;
        let offs = self
            .shared
            .iter()
            .map(|s| {
                let o = at;
                at += s.bytes.next_multiple_of(16);
                o
            })
            .collect();
        (offs, at)
    }
}

impl Block {
    /// Does a barrier, or a pipeline, stand anywhere inside?
    pub fn has_barrier(&self) -> bool {
        self.insts.iter().any(|i| match &i.op {
            Op::Barrier | Op::Pipeline { .. } => true,
            Op::For { body, .. } => body.has_barrier(),
            Op::If { then, els, .. } => then.has_barrier() || els.has_barrier(),
            _ => false,
        })
    }
}

impl Op {
    /// Values read, nested blocks not included.
    pub fn operands(&self) -> Vec<V> {
        match self {
            Op::ConstI(_) | Op::ConstF(_) | Op::ConstB(_) | Op::Lane | Op::Warp | Op::BlockX | Op::BlockY | Op::Barrier => vec![],
            Op::Int(_, a, b)
            | Op::Float(_, a, b)
            | Op::ICmp(_, a, b)
            | Op::FCmp(_, a, b)
            | Op::Bool(_, a, b)
            | Op::ShuffleIdx(a, b) => {
                vec![*a, *b]
            }
            Op::Fma(a, b, c) | Op::Select(a, b, c) | Op::Dp4a { a, b, acc: c, .. } => vec![*a, *b, *c],
            Op::Mma { a, b, acc, .. } => a.iter().chain(b).chain(acc).copied().collect(),
            Op::RoundEven(a)
            | Op::RoundBf16(a)
            | Op::Approx(_, a)
            | Op::BitsToF(a)
            | Op::FToBits(a)
            | Op::IToF(a)
            | Op::FToI(a)
            | Op::ShuffleXor(a, _) => {
                vec![*a]
            }
            Op::Load { idx, pred, .. } => std::iter::once(*idx).chain(*pred).collect(),
            Op::Store { idx, val, pred, .. } | Op::AtomicAdd { idx, val, pred, .. } => {
                [*idx, *val].into_iter().chain(*pred).collect()
            }
            Op::For { trip, carried, .. } | Op::Pipeline { trip, carried, .. } => {
                std::iter::once(*trip).chain(carried.iter().map(|c| c.1)).collect()
            }
            Op::If { cond, .. } => vec![*cond],
            Op::Copy { dst_idx, src_idx, pred, .. } => [*dst_idx, *src_idx].into_iter().chain(*pred).collect(),
        }
    }

    /// No memory, no control, no dependence on other lanes: may be merged or dropped freely.
    pub fn is_pure(&self) -> bool {
        !matches!(
            self,
            Op::Load { .. }
                | Op::Store { .. }
                | Op::AtomicAdd { .. }
                | Op::Barrier
                | Op::For { .. }
                | Op::If { .. }
                | Op::Pipeline { .. }
                | Op::Copy { .. }
        )
    }
}
