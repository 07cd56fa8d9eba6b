//! The PTX audit and its planted faults, targets, and kernels that are refused.

mod common;
use codegen::{HostIsa, Target, audit, host_object, llvm_ir, ptx, ptx_for};
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::*;
use ir::math::Arith;

#[test]
fn planted_faults_are_caught() {
    let k = gemv::gemv(4, 1);
    let good = ptx(&[&k], Target::Sm90).unwrap().remove(0);
    audit::check(&k, &good).unwrap();
    let plant = |line: &str| good.replacen("ret;", &format!("{line}\n\tret;"), 1);
    for fault in [
        "mul.f32 %f1, %f2, %f3;",
        "@%p1 add.f32 %f1, %f2, %f3;",
        "sub.f32 %f1, %f2, %f3;",
        "fma.rn.ftz.f32 %f1, %f2, %f3, %f4;",
        "mad.f32 %f1, %f2, %f3, %f4;",
        "add.rz.f32 %f1, %f2, %f3;",
        "fma.rm.f32x2 %f1, %f2, %f3, %f4;",
        "sub.rn.f32.bf16 %f1, %h2, %f3;",
        "mul.rn.sat.f32 %f1, %f2, %f3;",
        "div.approx.f32 %f1, %f2, %f3;",
        "div.full.f32 %f1, %f2, %f3;",
        "div.rn.f32 %f1, %f2, %f3;",
        "sqrt.rn.f32 %f1, %f2;",
        "add.rn.f64 %fd1, %fd2, %fd3;",
        "cvt.rz.bf16.f32 %h1, %f2;",
        "sqrt.approx.f32 %f1, %f2;",
        "rcp.approx.ftz.f32 %f1, %f2;",
        "rsqrt.approx.f32 %f1, %f2;",
        "ex2.approx.f32 %f1, %f2;",
        "lg2.approx.f32 %f1, %f2;",
        "sin.approx.f32 %f1, %f2;",
        "cos.approx.f32 %f1, %f2;",
        "tanh.approx.f32 %f1, %f2;",
        "atom.global.add.f32 %f1, [%rd1], %f2;",
        "red.global.add.f32 [%rd1], %f2;",
        "{ atom.global.add.noftz.bf16x2 %r1, [%rd1], %r2; }",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f2};",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
        "min.f32 %f1, %f2, %f3;",
        "max.NaN.f32 %f1, %f2, %f3;",
        "st.local.b32 [%rd1], %r1;",
        ".local .align 4 .b8 \t__local_depot0[16];",
        "call.uni (retval0), fmaf, (param0);",
    ] {
        let e = audit::ptx_audit(&plant(fault)).expect_err(fault);
        assert_eq!(e.code, "E0506", "{fault}: {e}");
    }
    for fine in [
        "min.s32 %r1, %r2, %r3;",
        "atom.global.add.u64 %rd1, [%rd2], %rd3;",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};",
        "// mul.f32 in a comment",
        "add.s32 %r1, %r2, %r3;",
    ] {
        audit::ptx_audit(&plant(fine)).unwrap_or_else(|e| panic!("{fine}: {e}"));
    }
    // A multiplication and an addition contracted to an fma.
    let contracted = good.replacen("mul.rn.f32", "fma.rn.f32", 1);
    assert_ne!(contracted, good);
    assert_eq!(audit::check(&k, &contracted).unwrap_err().code, "E0507");
    assert_ne!(audit::ptx_counts(&contracted), audit::float_counts(&k));
    // An fma that went missing shows in the counts.
    let missing = good.replacen("fma.rn.f32", "mov.b32", 1);
    assert_ne!(audit::ptx_counts(&missing), audit::float_counts(&k));
}

/// Machine code of processors: what is counted, and what is refused.
#[test]
fn machine_code_is_read() {
    use audit::host::{llvm_results, scan};
    let good = "vfmadd231ps %zmm1, %zmm2, %zmm3 {%k1}\nvmulps (%rax), %ymm1, %ymm2\nvaddss %xmm1, %xmm2, %xmm3\nvhaddps %xmm1, %xmm2, %xmm3\n\
         vrndscaleps $8, %zmm1, %zmm2\nvroundps $8, %ymm1, %ymm2\nvcmpltps %ymm1, %ymm2, %ymm3\nvcvttps2dq %ymm1, %ymm2\nvmovsd %xmm1, (%rax)\n\
         vpmulld %zmm1, %zmm2, %zmm3\nvpshufb %ymm1, %ymm2, %ymm3\nvmaxps %ymm1, %ymm2, %ymm3\nretq";
    let s = scan(good.lines(), false);
    assert!(s.findings.is_empty(), "{:?}", s.findings);
    assert_eq!((s.instructions, s.results), (13, audit::Counts { fma: 16, mul: 8, add: 5 }));
    for bad in [
        "vdivps %ymm1, %ymm2, %ymm3",
        "sqrtss %xmm1, %xmm2",
        "vrcpps %ymm1, %ymm2",
        "vrsqrt14ps %zmm1, %zmm2",
        "vaddps {rz-sae}, %zmm1, %zmm2, %zmm3",
        "vroundps $9, %ymm1, %ymm2",
        "vcvtps2dq %ymm1, %ymm2",
        "vaddpd %ymm1, %ymm2, %ymm3",
        "vaddph %zmm1, %zmm2, %zmm3",
        "vcvtneps2bf16 %zmm1, %ymm2",
        "vdpbf16ps %zmm1, %zmm2, %zmm3",
        "vreduceps $8, %zmm1, %zmm2",
        "callq fmaf",
        "ldmxcsr (%rax)",
        "fadd %st(1), %st",
    ] {
        assert_eq!(scan([bad], false).findings.len(), 1, "{bad}");
    }
    let s = scan("fmla v0.4s, v1.4s, v2.s[1]\nfmadd s0, s1, s2, s3\nfmul v0.2s, v1.2s, v2.2s\nfadd s0, s1, s2\nfcmgt v0.4s, v1.4s, v2.4s\nbfi w0, w1, #1, #2\nret".lines(), true);
    assert!(s.findings.is_empty(), "{:?}", s.findings);
    assert_eq!(s.results, audit::Counts { fma: 5, mul: 2, add: 1 });
    for bad in [
        "fdiv s0, s1, s2",
        "frecpe v0.4s, v1.4s",
        "fmax s0, s1, s2",
        "fsqrt s0, s1",
        "frintx s0, s1",
        "bl fmaf",
        "msr FPCR, x0",
        "bfdot v0.4s, v1.8h, v2.8h",
    ] {
        assert_eq!(scan([bad], true).findings.len(), 1, "{bad}");
    }
    let ir = "define void @k(ptr %0) {\n  %1 = fadd <32 x float> %a, %b\n  %2 = fmul float %c, %d\n  %3 = call <32 x float> @llvm.fma.v32f32(<32 x float> %1)\n}";
    assert_eq!(llvm_results(ir).unwrap(), [("k".to_string(), audit::Counts { fma: 32, mul: 1, add: 32 })]);
    for flag in ["contract ", "fast ", "reassoc nsz "] {
        assert!(llvm_results(&ir.replacen("fadd ", &format!("fadd {flag}"), 1)).is_err(), "{flag}");
    }
    assert!(llvm_results(&ir.replace("fmul", "fdiv")).is_err());
    // Every object is read back; its results are those of the IR at most, and it has some.
    let k = gemv::gemv(4, 1);
    let object = host_object(&[&k], HostIsa::X86_64V3).unwrap();
    let read = codegen::host_scan(&object, HostIsa::X86_64V3).unwrap();
    assert!(read.len() == 1 && read[0].0 == k.name && read[0].1.results.fma > 0 && read[0].1.findings.is_empty(), "{read:?}");
    assert_eq!(codegen::host_scan(b"no object", HostIsa::X86_64V3).unwrap_err().code, "E0530");
}

/// Operations with constants for which LLVM has shorter forms.
#[test]
fn counts_know_what_llvm_folds() {
    let consts = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, f32::MIN_POSITIVE];
    for (n, c) in consts.into_iter().enumerate() {
        for op in 0..12 {
            let mut b = Builder::new("folds", 1);
            let (x, y) = (b.buf("x", false), b.buf("y", true));
            let lane = b.lane();
            let a = b.load(x, Elem::F32, lane, None);
            let at = b.add_c(lane, 32);
            let d = b.load(x, Elem::F32, at, None);
            let c = b.cf(c);
            let v = match op {
                0 => b.add(a, c),
                1 => b.sub(a, c),
                2 => b.sub(c, a),
                3 => b.mul(a, c),
                4 => b.fma(a, c, d),
                5 => b.fma(a, d, c),
                6 => b.fma(a, c, c),
                7 => b.add(a, a),
                8 => b.sub(a, a),
                9 => {
                    let m = b.mul(a, c);
                    b.add(m, d)
                }
                10 => {
                    let m = b.mul(a, c);
                    b.sub(d, m)
                }
                _ => {
                    let m = b.mul(a, c);
                    b.fma(m, d, a)
                }
            };
            b.store(y, Elem::F32, lane, v, None);
            let k = b.finish();
            for t in [Target::Sm90, Target::Sm121] {
                let text = ptx(&[&k], t).unwrap_or_else(|e| panic!("constant {n}, operation {op}: {e}"));
                assert_eq!(audit::ptx_counts(&text[0]), audit::float_counts(&k), "constant {n}, operation {op}");
            }
            check(&k, [1, 1], &[Rng(8).floats(64), vec![0; 128]]);
        }
    }
}

#[test]
fn ptx_is_the_same_twice() {
    let ks: Vec<Kernel> = (0..6).map(|s| random::kernel(s, 4, 20).0).collect();
    let ks: Vec<&Kernel> = ks.iter().collect();
    for t in [Target::Sm90, Target::Sm121] {
        assert_eq!(ptx(&ks, t).unwrap(), ptx(&ks, t).unwrap());
    }
}

/// Weights are read at once; all else is read and written after the wait for earlier launches, and not through the cache of what
/// never changes. Every kernel waits before it ends.
#[test]
fn what_earlier_launches_write_is_waited_for() {
    let mut b = Builder::new("waits", 1);
    let (w, x, y) = (b.fixed("w"), b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let weight = b.load(w, Elem::F32, lane, None);
    let value = b.load(x, Elem::F32, lane, None);
    let sum = b.add(weight, value);
    b.store(y, Elem::F32, lane, sum, None);
    let p = ptx(&[&b.finish()], Target::Sm90).unwrap().remove(0);
    let at = |part: &str| p.find(part).unwrap_or_else(|| panic!("no {part} in\n{p}"));
    assert!(at("ld.global.nc.b32") < at("griddepcontrol.wait") && at("griddepcontrol.wait") < at("ld.global.b32"), "{p}");
    assert!(at("griddepcontrol.wait") < at("st.global"), "{p}");
    assert_eq!(p.matches("ld.global.nc").count(), 1, "{p}");
    let idle = Builder::new("idle", 1).finish();
    assert!(ptx(&[&idle], Target::Sm90).unwrap()[0].contains("griddepcontrol.wait"));
}

#[test]
fn ptx_has_the_right_forms() {
    let (k, _) = random::kernel(1, 4, 10);
    let p = ptx(&[&k], Target::Sm90).unwrap().remove(0);
    for part in [".version 8.0", ".target sm_90", ".visible .entry random_1(", ".maxntid 128, 1, 1"] {
        assert!(p.contains(part), "no {part} in\n{p}");
    }
    let for_121 = ptx(&[&k], Target::Sm121).unwrap().remove(0);
    assert!(for_121.contains(".version 8.8\n.target sm_121\n"));
    assert_eq!(ptx_for(&p, Target::Sm90, Target::Sm121).unwrap(), for_121);
    assert!(ptx_for(&for_121, Target::Sm90, Target::Sm121).unwrap_err().message.contains("without its head"));

    let mut b = Builder::new("forms", 2);
    b.min_blocks(3);
    let (x, y) = (b.fixed("x"), b.buf("y", true));
    let s = b.shared("s", 2048);
    let (lane, w) = (b.lane(), b.warp());
    let at = b.mul_c(w, 32);
    let at = b.int(IntOp::Add, at, lane);
    let four = b.mul_c(at, 4);
    let v = b.load_n(x, Elem::F32, four, 4, None);
    let u = b.load_n(x, Elem::Bf16, four, 4, None);
    let us = b.mul(u[0], u[3]);
    let a = b.fma(v[0], v[1], us);
    let r = b.round_bf16(a);
    let e = b.round_even(v[2]);
    let i = b.f_to_i(e);
    let h = b.shuffle_xor(r, 16);
    let g = b.shuffle_idx(i, w);
    b.store(s, Elem::F32, at, h, None);
    b.barrier();
    let o = b.int_c(IntOp::Xor, at, 32);
    let o = b.load(s, Elem::F32, o, None);
    let z = b.add(o, v[3]);
    b.store(y, Elem::Bf16, at, z, None);
    let off = b.add_c(at, 64);
    b.store(y, Elem::I32, off, g, None);
    let k = b.finish();
    let p = ptx(&[&k], Target::Sm121).unwrap().remove(0);
    for part in [
        "ld.global.nc.v4.b32",
        "ld.global.nc.v2.b32",
        "fma.rn.f32",
        "cvt.rn.bf16.f32",
        "cvt.rni.f32.f32",
        "cvt.rzi.s32.f32",
        "shfl.sync.bfly.b32",
        "shfl.sync.idx.b32",
        "bar",
        "st.shared.b32",
        "ld.shared.b32",
        "st.global.b16",
        ".minnctapersm 3",
        ".param .u64 .ptr .global .align 16",
    ] {
        assert!(p.contains(part), "no {part} in\n{p}");
    }
    assert!(llvm_ir(&k, Target::Sm90).unwrap().contains("ptx_kernel"));
    assert!(llvm_ir(&k, Target::Host(HostIsa::Native)).unwrap().contains("<32 x float>"));
}

#[test]
fn targets() {
    for name in Target::NAMES {
        let t = Target::parse(name).unwrap();
        assert!(name == "host" || t.name() == name);
        assert_eq!(Target::parse(&t.name()).unwrap(), t);
        assert_ne!(t, Target::Host(HostIsa::Native));
    }
    for bad in ["sm_999", "", "SM_90", "sm_90 ", "x86-64", "gpu"] {
        let e = Target::parse(bad).unwrap_err();
        assert_eq!(e.code, "E0501");
        assert!(e.hint.contains("sm_121") && e.hint.contains("x86-64-v4+vnni"), "{e}");
    }
    let k = gemv::gemv(2, 1);
    assert_eq!(ptx(&[&k], Target::Host(HostIsa::X86_64V3)).unwrap_err().code, "E0501");
}

#[test]
fn broken_kernels_are_refused() {
    let good = gemv::gemv(2, 1);
    let refuse = |what: &str, code: &str, f: &dyn Fn(&mut Kernel)| {
        let mut k = good.clone();
        f(&mut k);
        let e = ptx(&[&k], Target::Sm90).expect_err(what);
        assert_eq!(e.code, code, "{what}: {e}");
        assert_eq!(host_object(&[&k], HostIsa::X86_64V3).expect_err(what).code, code);
        assert_eq!(llvm_ir(&k, Target::Sm90).expect_err(what).code, code);
    };
    for name in ["", "9a", "A", "a-b", "a\0b", "a.b", "é"] {
        refuse(name, "E0503", &|k| k.name = name.into());
    }
    refuse("no warps", "E0503", &|k| k.warps = 0);
    refuse("too many warps", "E0503", &|k| k.warps = 33);
    refuse("one name twice", "E0503", &|k| k.bufs[1].name = k.bufs[0].name.clone());
    refuse("a missing buffer", "E0503", &|k| k.bufs.truncate(3));
    refuse("a store to read-only memory", "E0503", &|k| k.bufs[4].write = false);
    refuse("a value that is not there", "E0503", &|k| k.types.truncate(9));
    refuse("a wrong type", "E0503", &|k| k.types.iter_mut().for_each(|t| *t = Ty::Bool));
    refuse("a use before the definition", "E0503", &|k| k.body.insts.reverse());
    refuse("a definition twice", "E0503", &|k| k.body.insts.push(k.body.insts[0].clone()));
    refuse("a result too many", "E0503", &|k| k.body.insts[0].results.push(V(1)));
    refuse("a shared size", "E0503", &|k| k.shared.push(Shared { name: "s".into(), bytes: 8 }));
    refuse("a shuffle mask", "E0503", &|k| {
        let v = V(k.types.len() as u32);
        k.types.push(Ty::I32);
        k.body.insts.push(Inst { op: Op::ShuffleXor(k.body.insts[0].results[0], 32), results: vec![v] });
    });
    refuse("a copy outside of a pipeline", "E0503", &|k| {
        k.shared.push(Shared { name: "s".into(), bytes: 512 });
        let i = k.body.insts[0].results[0];
        k.body.insts.push(Inst { op: Op::Copy { dst: 0, dst_idx: i, src: 0, src_idx: i, pred: None }, results: vec![] });
    });
    refuse("too much shared memory", "E0504", &|k| k.shared.push(Shared { name: "s".into(), bytes: 48 * 1024 + 16 }));
    assert_eq!(host_object(&[&good, &good], HostIsa::X86_64V3).unwrap_err().code, "E0505");
    assert_eq!(host_object(&[], HostIsa::X86_64V3).unwrap_err().code, "E0505");
    assert!(ptx(&[], Target::Sm90).unwrap().is_empty());
}
