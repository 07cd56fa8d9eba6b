//! Plants: what the checks of aarch64 objects under the emulator must catch, planted in the object's bytes.

mod common;
use codegen::{HostIsa, host_object};
use common::*;
use ir::kernel::build::Builder;
use ir::kernel::*;

/// Dot products, of unsigned bytes and of signed ones, and a constant that lies in the constant pool.
fn kernel() -> Kernel {
    let mut b = Builder::new("plant", 1);
    let (x, y) = (b.buf("x", false), b.buf("y", true));
    let lane = b.lane();
    let at = b.add_c(lane, 32);
    let (v, w) = (b.load(x, Elem::I32, lane, None), b.load(x, Elem::I32, at, None));
    let sum = b.dp4a(false, false, v, w, lane);
    let sum = b.dp4a(true, true, v, w, sum);
    let odd = b.mul_c(lane, 0x0101_0307);
    let r = b.int(IntOp::Xor, sum, odd);
    b.store(y, Elem::I32, lane, r, None);
    b.finish()
}

fn inputs() -> Vec<Vec<u8>> {
    vec![Rng(11).words(64), vec![0; 128]]
}

/// Words of the object that `is` holds for, as byte offsets.
fn find(object: &[u8], is: impl Fn(u32) -> bool) -> Vec<usize> {
    let word = |at: usize| u32::from_le_bytes([object[at], object[at + 1], object[at + 2], object[at + 3]]);
    (0..object.len() / 4 * 4).step_by(4).filter(|&at| is(word(at))).collect()
}

/// The object with one byte xored must not give the right result.
fn caught(object: &[u8], at: usize, with: u8) -> bool {
    let k = kernel();
    let want = emulate::run(&k, [1, 1], &inputs());
    assert_eq!(run_object(object, &k, HostIsa::Aarch64DotProd, [1, 1], &inputs()).as_ref(), Ok(&want));
    let mut bad = object.to_vec();
    bad[at] ^= with;
    run_object(&bad, &k, HostIsa::Aarch64DotProd, [1, 1], &inputs()).as_ref() != Ok(&want)
}

#[test]
fn a_dot_of_the_wrong_sign_is_caught() {
    let object = host_object(&[&kernel()], HostIsa::Aarch64DotProd).unwrap();
    // sdot, udot Vd.4s, Vn.16b, Vm.16b; they differ in bit 29.
    for encoding in [0x4e80_9400, 0x6e80_9400] {
        let found = find(&object, |w| w & 0xffe0_fc00 == encoding);
        assert_eq!(found.len(), 8, "{encoding:x}");
        assert!(caught(&object, found[3] + 3, 0x20));
    }
}

#[test]
fn a_wrong_addend_is_caught() {
    let object = host_object(&[&kernel()], HostIsa::Aarch64DotProd).unwrap();
    // The type of a relocation, before the number of its symbol and its addend: R_AARCH64_LDST128_ABS_LO12_NC.
    let found = find(&object, |w| w == 299);
    assert!(!found.is_empty(), "the kernel reads no constants");
    assert!(caught(&object, found[0] + 8, 16));
}

#[test]
fn an_object_for_another_machine_is_refused() {
    let (k, bufs) = (kernel(), inputs());
    let host = host_object(&[&k], HostIsa::X86_64V3).unwrap();
    let arm = host_object(&[&k], HostIsa::Aarch64).unwrap();
    let there = run_object(&host, &k, HostIsa::Aarch64, [1, 1], &bufs).unwrap_err();
    assert!(there.contains("host code is for x86-64, this machine is aarch64"), "{there}");
    if cfg!(target_arch = "x86_64") {
        let here = runtime::cpu::loader::Module::load(&arm, "plant").err().unwrap();
        assert_eq!(here.code, "E0402");
        assert!(here.message.contains("host code is for aarch64, this machine is x86-64"), "{here}");
    }
}
