//! The emitter: walks a kernel and writes LLVM instructions. One walk serves both lowerings; they differ in what a value
//! is ([`value::Val`]: a scalar per thread on a GPU; scalars, affine patterns and vectors of 32 lanes on the host) and in
//! memory, barriers and pipelines ([`gpu`], [`host`]).

mod control;
mod gpu;
pub(crate) mod host;
mod ops;
mod range;
mod value;

use crate::target::HostIsa;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicTypeEnum, FloatType, IntType, VectorType};
use inkwell::values::*;
use inkwell::{AddressSpace, IntPredicate};
use ir::diag::Diagnostic;
use ir::kernel::uniform::{Uniform, uniformity};
use ir::kernel::*;
use value::Val;

/// A failure inside the emitter; becomes a diagnostic that names the kernel.
pub(crate) struct Fault(pub String);

impl From<BuilderError> for Fault {
    fn from(e: BuilderError) -> Self {
        Fault(format!("LLVM builder: {e}"))
    }
}

impl From<&str> for Fault {
    fn from(e: &str) -> Self {
        Fault(e.into())
    }
}

impl Fault {
    /// As a diagnostic about a kernel.
    pub fn diagnostic(self, kernel: &str) -> Diagnostic {
        Diagnostic::new("E0590", self.0).at(kernel)
    }
}

/// Result of emitting.
pub(crate) type Res<T = ()> = Result<T, Fault>;

/// What differs between the lowerings.
#[derive(Clone)]
pub(crate) enum Machine<'c> {
    /// One lane is one thread.
    Gpu {
        /// All shared arrays, one after the other.
        shared: Option<PointerValue<'c>>,
    },
    /// One lane vector is registers of a core.
    Host(HostState<'c>),
}

/// Values at hand everywhere in a host function.
#[derive(Clone)]
pub(crate) struct HostState<'c> {
    /// Instruction set.
    pub isa: HostIsa,
    /// Parameters of the kernel.
    pub bufs: Vec<PointerValue<'c>>,
    /// Shared memory of the block.
    pub shared: PointerValue<'c>,
    /// Block number.
    pub block: [IntValue<'c>; 2],
    /// Warp number, inside a loop over warps.
    pub warp: IntValue<'c>,
    /// 64 bytes that read as zero.
    pub zero: PointerValue<'c>,
    /// 64 bytes that may be written.
    pub sink: PointerValue<'c>,
}

/// Emits one function.
pub(crate) struct Emitter<'c, 'k> {
    pub cx: &'c Context,
    pub m: &'k Module<'c>,
    pub b: Builder<'c>,
    pub f: FunctionValue<'c>,
    pub k: &'k Kernel,
    pub uni: Vec<Uniform>,
    /// See [`range`].
    pub counting: Vec<bool>,
    /// The instruction that defines a value (not for parameters of blocks).
    pub defs: Vec<Option<&'k Inst>>,
    pub vals: Vec<Option<Val<'c>>>,
    pub machine: Machine<'c>,
    pub entry: BasicBlock<'c>,
    pub shared_at: Vec<u32>,
    /// On a GPU: has what is emitted here waited for earlier launches?
    pub waited: bool,
}

impl<'c, 'k> Emitter<'c, 'k> {
    /// Starts a function with the given parameter types.
    fn new(cx: &'c Context, m: &'k Module<'c>, k: &'k Kernel, params: &[BasicTypeEnum<'c>]) -> Self {
        let params: Vec<_> = params.iter().map(|&p| p.into()).collect();
        let f = m.add_function(&k.name, cx.void_type().fn_type(&params, false), None);
        let nounwind = cx.create_enum_attribute(Attribute::get_named_enum_kind_id("nounwind"), 0);
        f.add_attribute(AttributeLoc::Function, nounwind);
        let entry = cx.append_basic_block(f, "entry");
        let b = cx.create_builder();
        b.position_at_end(entry);
        let mut defs = vec![None; k.types.len()];
        fill_defs(&k.body, &mut defs);
        Emitter {
            cx,
            m,
            b,
            f,
            k,
            uni: uniformity(k),
            counting: range::counting(k),
            defs,
            vals: vec![None; k.types.len()],
            machine: Machine::Gpu { shared: None },
            entry,
            shared_at: k.shared_layout().0,
            waited: false,
        }
    }

    /// The host side of the machine.
    fn host(&self) -> Res<&HostState<'c>> {
        match &self.machine {
            Machine::Host(h) => Ok(h),
            Machine::Gpu { .. } => Err("a host operation on a GPU".into()),
        }
    }

    fn is_gpu(&self) -> bool {
        matches!(self.machine, Machine::Gpu { .. })
    }

    fn i1(&self) -> IntType<'c> {
        self.cx.bool_type()
    }
    fn i8(&self) -> IntType<'c> {
        self.cx.i8_type()
    }
    fn i16(&self) -> IntType<'c> {
        self.cx.i16_type()
    }
    fn i32(&self) -> IntType<'c> {
        self.cx.i32_type()
    }
    fn i64(&self) -> IntType<'c> {
        self.cx.i64_type()
    }
    fn f32(&self) -> FloatType<'c> {
        self.cx.f32_type()
    }
    /// An i32 constant.
    fn ci(&self, x: i32) -> IntValue<'c> {
        self.i32().const_int(x as u32 as u64, false)
    }
    /// LLVM type of a value in one lane.
    fn scalar_ty(&self, ty: Ty) -> BasicTypeEnum<'c> {
        match ty {
            Ty::I32 => self.i32().into(),
            Ty::F32 => self.f32().into(),
            Ty::Bool => self.i1().into(),
        }
    }
    /// `<n x t>`
    fn vec_ty(&self, t: BasicTypeEnum<'c>, n: usize) -> VectorType<'c> {
        match t {
            BasicTypeEnum::IntType(t) => t.vec_type(n as u32),
            BasicTypeEnum::FloatType(t) => t.vec_type(n as u32),
            BasicTypeEnum::PointerType(t) => t.vec_type(n as u32),
            _ => unreachable!("no vectors of {t}"),
        }
    }

    /// Calls an intrinsic that returns a value.
    fn call(&self, name: &str, over: &[BasicTypeEnum<'c>], args: &[BasicValueEnum<'c>]) -> Res<BasicValueEnum<'c>> {
        match self.call_any(name, over, args)?.try_as_basic_value() {
            ValueKind::Basic(v) => Ok(v),
            ValueKind::Instruction(_) => Err(Fault(format!("{name} returns nothing"))),
        }
    }

    /// Calls an intrinsic.
    fn call_any(&self, name: &str, over: &[BasicTypeEnum<'c>], args: &[BasicValueEnum<'c>]) -> Res<CallSiteValue<'c>> {
        let decl = Intrinsic::find(name)
            .and_then(|i| i.get_declaration(self.m, over))
            .ok_or_else(|| Fault(format!("this LLVM has no {name}")))?;
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|&a| a.into()).collect();
        Ok(self.b.build_call(decl, &args, "")?)
    }

    /// A stack slot, allocated once per call of the function.
    fn alloca(&self, ty: BasicTypeEnum<'c>, align: u32) -> Res<PointerValue<'c>> {
        let b = self.cx.create_builder();
        match self.entry.get_first_instruction() {
            Some(i) => b.position_before(&i),
            None => b.position_at_end(self.entry),
        }
        let p = b.build_alloca(ty, "")?;
        if let Some(i) = p.as_instruction() {
            i.set_alignment(align).map_err(|_| Fault("alignment".into()))?;
        }
        Ok(p)
    }

    /// A load with an alignment; `fixed`: the memory never changes.
    fn load_at(&self, ty: BasicTypeEnum<'c>, p: PointerValue<'c>, align: u32, fixed: bool) -> Res<BasicValueEnum<'c>> {
        let v = self.b.build_load(ty, p, "")?;
        let i = v.as_instruction_value().ok_or("a load is an instruction")?;
        i.set_alignment(align).map_err(|_| Fault("alignment".into()))?;
        if fixed {
            self.invariant(i)?;
        }
        Ok(v)
    }

    fn invariant(&self, i: InstructionValue<'c>) -> Res {
        i.set_metadata(self.cx.metadata_node(&[]), self.cx.get_kind_id("invariant.load")).map_err(|e| Fault(e.to_string()))
    }

    fn store_at(&self, p: PointerValue<'c>, v: BasicValueEnum<'c>, align: u32) -> Res {
        self.b.build_store(p, v)?.set_alignment(align).map_err(|_| Fault("alignment".into()))
    }

    /// `p + bytes`
    fn offset(&self, p: PointerValue<'c>, bytes: IntValue<'c>) -> Res<PointerValue<'c>> {
        // SAFETY: only builds an instruction; without `inbounds` no address is poison.
        Ok(unsafe { self.b.build_gep(self.i8(), p, &[bytes], "")? })
    }

    /// Address of element `idx` (unsigned) of `size` bytes.
    fn element(&self, p: PointerValue<'c>, idx: IntValue<'c>, size: u32) -> Res<PointerValue<'c>> {
        let wide = self.b.build_int_z_extend(idx, self.i64(), "")?;
        let bytes = self.b.build_int_mul(wide, self.i64().const_int(u64::from(size), false), "")?;
        self.offset(p, bytes)
    }

    /// Does this memory keep its contents during the launch?
    /// Memory that never changes while the kernel runs. On a GPU a kernel starts before the one in front of it has ended.
    fn is_fixed(&self, mem: Mem) -> bool {
        let fixed = |b: &Buf| if self.is_gpu() { b.fixed } else { !b.write };
        matches!(mem, Mem::Buf(b) if fixed(&self.k.bufs[b as usize]))
    }

    fn block_here(&self) -> Res<BasicBlock<'c>> {
        self.b.get_insert_block().ok_or_else(|| "no insertion point".into())
    }

    /// Emits `f` under a condition, and the merge of its values with others that are used if it is false.
    fn guarded(
        &mut self,
        cond: IntValue<'c>,
        other: &[BasicValueEnum<'c>],
        f: impl FnOnce(&mut Self) -> Res<Vec<BasicValueEnum<'c>>>,
    ) -> Res<Vec<BasicValueEnum<'c>>> {
        let from = self.block_here()?;
        let then = self.cx.append_basic_block(self.f, "do");
        let after = self.cx.append_basic_block(self.f, "done");
        self.b.build_conditional_branch(cond, then, after)?;
        self.b.position_at_end(then);
        let vs = f(self)?;
        let end = self.block_here()?;
        self.b.build_unconditional_branch(after)?;
        self.b.position_at_end(after);
        vs.iter()
            .zip(other)
            .map(|(v, o)| {
                let phi = self.b.build_phi(v.get_type(), "")?;
                phi.add_incoming(&[(o, from), (v, end)]);
                Ok(phi.as_basic_value())
            })
            .collect()
    }

    /// `0 < trip`, or `None` where that is certain.
    fn positive(&self, trip: IntValue<'c>) -> Res<Option<IntValue<'c>>> {
        if trip.get_sign_extended_constant().is_some_and(|t| t > 0) {
            return Ok(None);
        }
        Ok(Some(self.b.build_int_compare(IntPredicate::SLT, self.ci(0), trip, "")?))
    }
}

/// The defining instruction of every value.
fn fill_defs<'k>(b: &'k Block, defs: &mut [Option<&'k Inst>]) {
    for i in &b.insts {
        for r in &i.results {
            defs[r.idx()] = Some(i);
        }
        match &i.op {
            Op::For { body, .. } => fill_defs(body, defs),
            Op::If { then, els, .. } => {
                fill_defs(then, defs);
                fill_defs(els, defs);
            }
            Op::Pipeline { copy, body, .. } => {
                fill_defs(copy, defs);
                fill_defs(body, defs);
            }
            _ => {}
        }
    }
}

/// Emits a kernel for a GPU into its module.
pub(crate) fn gpu_function<'c>(cx: &'c Context, m: &Module<'c>, k: &Kernel) -> Res {
    gpu::function(cx, m, k)
}
