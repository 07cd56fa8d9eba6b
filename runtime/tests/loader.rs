//! The loader against objects made by gcc: code and constants work wherever they are mapped; whatever is not
//! self-contained is refused by name; damaged objects give errors, never a crash.

mod common;

use common::{PIC, compile};
use runtime::cpu::KernelFn;
use runtime::cpu::loader::Module;

/// Float constants, a lookup table, a call to another section, and a jump table.
const KERNELS: &str = r#"
static const float table[8] = {1.5f, -2.25f, 3.125f, 1e-40f, 5.0f, 6.0f, 7.0f, 1e30f};
HIDDEN float helper(float v, uint32_t i) { return v * 0.1f + table[i & 7]; }
KERNEL(lookup) {
    float *out = (float *)bufs[0];
    for (uint32_t i = 0; i < 8; i++) out[i] = table[(i + x) & 7];
}
KERNEL(call) { ((float *)bufs[0])[0] = helper((float)x, y); }
KERNEL(choose) {
    uint32_t *out = (uint32_t *)bufs[0];
    switch (x) {
        case 0: out[0] = y * 3; break;
        case 1: out[0] = y ^ 0x55; break;
        case 2: out[0] = y - 7; break;
        case 3: out[0] = y >> 2; break;
        case 4: out[0] = y / 11; break;
        case 5: out[0] = ~y; break;
        case 6: out[0] = shared[0]; break;
        default: out[0] = 1;
    }
}
"#;

const TABLE: [f32; 8] = [1.5, -2.25, 3.125, 1e-40, 5.0, 6.0, 7.0, 1e30];

fn call(f: KernelFn, out: &mut [u8], x: u32, y: u32) {
    let bufs = [out.as_mut_ptr()];
    let mut shared = [9u8; 64];
    // SAFETY: the test kernels write at most 32 bytes of their one buffer.
    unsafe { f(bufs.as_ptr(), x, y, shared.as_mut_ptr()) }
}

fn error(source: &str, flags: &[&str]) -> (&'static str, String) {
    match Module::load(&compile(source, flags), "test.o") {
        Ok(_) => panic!("loaded"),
        Err(d) => {
            assert_eq!(d.place, "test.o");
            (d.code, d.message)
        }
    }
}

#[test]
fn code_and_constants() {
    let object = compile(KERNELS, PIC);
    // Two copies at different addresses behave the same; one is dropped before the other is used.
    for _ in 0..3 {
        let gone = Module::load(&object, "gone.o").unwrap();
        let module = Module::load(&object, "test.o").unwrap();
        assert_ne!(gone.function("call").unwrap() as usize, module.function("call").unwrap() as usize);
        drop(gone);
        assert!(module.names().eq(["call", "choose", "helper", "lookup"]));
        let mut out = [0u8; 64];
        for x in 0..8 {
            call(module.function("lookup").unwrap(), &mut out, x, 0);
            for i in 0..8 {
                let got = f32::from_ne_bytes(out[4 * i..4 * i + 4].try_into().unwrap());
                assert_eq!(got.to_bits(), TABLE[(i + x as usize) % 8].to_bits());
            }
            let y = 1000 + x;
            call(module.function("choose").unwrap(), &mut out, x, y);
            let want = [y * 3, y ^ 0x55, y - 7, y >> 2, y / 11, !y, 9, 1][x as usize];
            assert_eq!(u32::from_ne_bytes(out[..4].try_into().unwrap()), want);
        }
        call(module.function("call").unwrap(), &mut out, 3, 1);
        let got = f32::from_ne_bytes(out[..4].try_into().unwrap());
        assert!((got - (3.0 * 0.1 - 2.25)).abs() < 1e-6);
    }
}

#[test]
fn unaligned_bytes_and_other_layouts() {
    for flags in [
        &["-O0", "-fPIC"][..],
        &["-O2", "-fPIC"],
        &["-O3", "-fPIC", "-fdata-sections", "-ffunction-sections"],
        &["-O2", "-fPIE", "-g"],
    ] {
        let object = compile(KERNELS, &[flags, &["-fno-stack-protector"]].concat());
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(&object);
        let module = Module::load(&shifted[1..], "test.o").unwrap();
        let mut out = [0u8; 64];
        call(module.function("lookup").unwrap(), &mut out, 7, 0);
        assert_eq!(out[4..8], 1.5f32.to_ne_bytes());
    }
}

#[test]
fn pages_are_never_writable_and_executable() {
    let module = Module::load(&compile(KERNELS, PIC), "test.o").unwrap();
    let code = module.function("call").unwrap() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = 0;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let (from, to) = (usize::from_str_radix(from, 16).unwrap(), usize::from_str_radix(to, 16).unwrap());
        if (from..to).contains(&code) {
            assert!(rest.starts_with("r-xp"), "{line}");
            found += 1;
        }
        assert!(!rest.starts_with("rwx"), "{line}");
    }
    assert_eq!(found, 1);
}

#[test]
fn missing_function_is_named() {
    let module = Module::load(&compile(KERNELS, PIC), "test.o").unwrap();
    let d = module.function("kernel_7").unwrap_err();
    assert_eq!((d.code, d.place.as_str()), ("E0407", "test.o"));
    assert!(d.message.contains("kernel_7") && d.hint.contains("call"), "{d}");
}

#[test]
fn undefined_symbols_are_all_named() {
    let source = "
        extern float sinf(float); extern void other(float *);
        KERNEL(k) { float *o = (float *)bufs[0]; o[0] = sinf(o[0]); other(o); }";
    let (code, message) = error(source, &["-O2", "-fPIC", "-fno-builtin"]);
    assert_eq!(code, "E0403");
    assert!(message.contains("`other`") && message.contains("`sinf`"), "{message}");
}

#[test]
fn writable_data_is_refused() {
    let data = "static volatile int n = 3; KERNEL(k) { *(int *)bufs[0] = n++; }";
    let bss = "static volatile int n; KERNEL(k) { *(int *)bufs[0] = n++; }";
    let tls = "static __thread volatile int n = 3; KERNEL(k) { *(int *)bufs[0] = n++; }";
    for (source, name) in [(data, ".data"), (bss, ".bss")] {
        let (code, message) = error(source, PIC);
        assert_eq!(code, "E0404");
        assert!(message.contains(name), "{message}");
    }
    let (code, message) = error(tls, &[PIC, &["-ftls-model=local-exec", "-fPIE"]].concat());
    assert!(code == "E0404" || code == "E0403", "{message}");
    let (code, message) = error("int common_one; KERNEL(k) { common_one = 1; }", &["-O2", "-fPIC", "-fcommon"]);
    assert!(code == "E0404" && message.contains("common_one") || code == "E0403", "{message}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn position_dependence_is_refused() {
    let got = "const float shown[2] = {1, 2}; KERNEL(k) { *(const float **)bufs[0] = shown; }";
    let (code, message) = error(got, PIC);
    // GNU as also adds the table as an undefined symbol, LLVM does not.
    let table = code == "E0403" && message.contains("_GLOBAL_OFFSET_TABLE_");
    assert!(table || code == "E0405" && message.contains("shown"), "{message}");
    let absolute = "
        static const float a[2] = {1, 2}, b[2] = {3, 4};
        static const float *const list[2] = {a, b};
        KERNEL(k) { *(const float **)bufs[0] = list[x & 1]; }";
    let (code, message) = error(absolute, &["-O2", "-fno-pic", "-mcmodel=large"]);
    assert!(code == "E0405" && message.contains("not supported"), "{message}");
    let (code, _) = error(absolute, PIC); // .data.rel.ro
    assert_eq!(code, "E0404");
}

#[test]
fn not_an_object() {
    let load = |bytes: &[u8]| Module::load(bytes, "x").err().map(|d| d.code);
    assert_eq!(load(b""), Some("E0401"));
    assert_eq!(load(b"not an object at all, but long enough to be read as a header of sixty-four bytes"), Some("E0401"));
    let exe = std::fs::read("/proc/self/exe").unwrap();
    assert_eq!(load(&exe), Some("E0401"));
    let mut other = compile(KERNELS, PIC);
    other[18] = if other[18] == 62 { 183 } else { 62 }; // e_machine
    assert_eq!(load(&other), Some("E0402"));
    other[18] = 8;
    assert_eq!(load(&other), Some("E0402"));
    let mut empty = compile("", PIC);
    assert_eq!(load(&empty), Some("E0401"));
    empty[16] = 3; // e_type
    assert_eq!(load(&empty), Some("E0401"));
}

/// Loads what may be damaged; looks up but never calls.
fn try_load(bytes: &[u8]) -> bool {
    match Module::load(bytes, "damaged.o") {
        Ok(module) => {
            for name in module.names() {
                module.function(name).unwrap();
            }
            true
        }
        Err(d) => {
            assert!(d.code.starts_with("E04") && !d.message.is_empty());
            false
        }
    }
}

#[test]
fn truncated_objects() {
    let object = compile(KERNELS, PIC);
    assert!(try_load(&object));
    for len in 0..object.len() {
        // The section table is at the end, so no proper prefix is sound.
        assert!(!try_load(&object[..len]), "{len}");
    }
}

#[test]
fn damaged_objects() {
    let object = compile(KERNELS, PIC);
    let mut bytes = object.clone();
    let mut loaded = 0u32;
    for at in 0..object.len() {
        for damage in [0x01, 0x80, 0xff, object[at], !object[at]] {
            bytes[at] = object[at] ^ damage;
            loaded += u32::from(try_load(&bytes));
        }
        bytes[at] = object[at];
    }
    assert!(loaded > 0); // a flipped byte of code is another program
    // Wider damage: eight bytes at once, all ones or a large even number.
    for at in (0..object.len() - 8).step_by(4) {
        for word in [u64::MAX, 0, 1 << 62, 0x7fff_ffff_ffff_fff0, object.len() as u64] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            try_load(&bytes);
            bytes[at..at + 8].copy_from_slice(&object[at..at + 8]);
        }
    }
}
