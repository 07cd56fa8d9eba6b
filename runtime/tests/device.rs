//! `CpuDevice` through the `Device` trait: checked ids and offsets, prepared lists, and results that depend on
//! neither threads, order of blocks nor poison.

mod common;

use common::{PIC, compile};
use runtime::cpu::pool::Order;
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::device::{BufferId, Device, KernelHandle, KernelNames, KernelSig, LaunchDesc};

const KERNELS: &str = r#"
static const float factor[4] = {0.1f, 0.2f, 0.3f, 0.7f};
/* row y, columns x*4..x*4+4 of a 16-wide matrix; shared memory is written before it is read */
KERNEL(scale) {
    const float *in = (const float *)bufs[0] + y * 16 + x * 4;
    float *out = (float *)bufs[1] + y * 16 + x * 4, *s = (float *)shared;
    for (int i = 0; i < 4; i++) s[i] = in[i] * factor[i];
    for (int i = 0; i < 4; i++) out[i] = s[i] + s[3 - i];
}
/* sum of 16 floats, in order */
KERNEL(sum) {
    const float *in = (const float *)bufs[0] + y * 16;
    float total = 0;
    for (int i = 0; i < 16; i++) total += in[i];
    ((float *)bufs[1])[y] = total;
}
/* a faulty kernel: reads shared memory that it never wrote */
KERNEL(stale) { ((float *)bufs[0])[x] = ((float *)shared)[x]; }
KERNEL(where) { ((uint64_t *)bufs[0])[0] = (uint64_t)bufs[0]; ((uint64_t *)bufs[0])[1] = (uint64_t)shared; }
"#;

fn device(options: CpuOptions) -> (Box<dyn Device>, Vec<KernelHandle>) {
    let mut device: Box<dyn Device> = Box::new(CpuDevice::new(options).unwrap());
    let kernels = [("scale", 2), ("sum", 2), ("stale", 1), ("where", 1)].map(|(name, bufs)| KernelSig { name, bufs });
    let names = KernelNames { place: "test.o", kernels: &kernels };
    let handles = device.load_module(&compile(KERNELS, PIC), &names).unwrap();
    assert_eq!(handles.len(), 4);
    (device, handles)
}

fn options(threads: usize, poison: bool, order: Order) -> CpuOptions {
    CpuOptions { threads, poison, order }
}

fn desc(kernel: KernelHandle, args: &[(BufferId, u64)], grid: [u32; 2]) -> LaunchDesc {
    LaunchDesc { kernel, args: args.to_vec(), grid, warps: 1, shared_bytes: 16 }
}

fn floats(device: &mut dyn Device, buffer: BufferId, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * count];
    device.read(buffer, 0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn program(options: CpuOptions) -> Vec<u32> {
    let (mut device, k) = device(options);
    let input = device.alloc(4 * 16 * 32).unwrap();
    let middle = device.alloc(4 * 16 * 32).unwrap();
    let out = device.alloc(4 * 32).unwrap();
    let values: Vec<u8> = (0..512).flat_map(|i| (i as f32 * 0.37 - 50.0).to_ne_bytes()).collect();
    device.write(input, 0, &values).unwrap();
    device.write(out, 0, &[0; 128]).unwrap();
    let list = [desc(k[0], &[(input, 0), (middle, 0)], [4, 32]), desc(k[1], &[(middle, 0), (out, 0)], [1, 32])];
    let prepared = device.prepare(&list).unwrap();
    // SAFETY: the kernels touch 16 floats a row of at most 32 rows.
    unsafe {
        device.run(prepared, &[7, 5]).unwrap(); // rows 5.. stay zero
        device.sync().unwrap();
        let part = floats(&mut *device, out, 32);
        assert!(part[..5].iter().all(|v| *v != 0) && part[5..].iter().all(|v| *v == 0));
        device.run(prepared, &[32, 0]).unwrap(); // the second launch is skipped
        assert_eq!(part, floats(&mut *device, out, 32));
        for _ in 0..20 {
            device.run(prepared, &[]).unwrap();
        }
        device.sync().unwrap();
    }
    floats(&mut *device, out, 32)
}

#[test]
fn same_bits_whatever_the_options() {
    let want = program(options(1, false, Order::Forward));
    assert!(want.iter().all(|v| f32::from_bits(*v).is_finite() && *v != 0));
    for threads in [1, 2, 3, 8] {
        for poison in [false, true] {
            for order in [Order::Forward, Order::Reverse, Order::Shuffled(1), Order::Shuffled(2)] {
                assert_eq!(want, program(options(threads, poison, order)), "{threads} {poison} {order:?}");
            }
        }
    }
}

#[test]
fn poison_shows_a_stale_read() {
    let (mut device, k) = device(options(2, true, Order::Forward));
    let out = device.alloc(16).unwrap();
    assert_eq!(floats(&mut *device, out, 4), [u32::MAX; 4]);
    device.write(out, 0, &[0; 16]).unwrap();
    // SAFETY: four floats.
    unsafe { device.launch(&[desc(k[2], &[(out, 0)], [4, 1])]).unwrap() };
    assert_eq!(floats(&mut *device, out, 4), [u32::MAX; 4]);
}

#[test]
fn memory_is_aligned_and_zero() {
    let (mut device, k) = device(options(1, false, Order::Forward));
    assert_eq!(device.name(), "cpu (1 thread)");
    for bytes in [32u64, 33, 4096, 1 << 20] {
        let buffer = device.alloc(bytes).unwrap();
        let mut all = vec![1u8; bytes as usize];
        device.read(buffer, 0, &mut all).unwrap();
        assert!(all.iter().all(|b| *b == 0));
        // SAFETY: 16 bytes.
        unsafe { device.launch(&[desc(k[3], &[(buffer, 16)], [1, 1])]).unwrap() };
        device.read(buffer, 16, &mut all[..16]).unwrap();
        let at = |i: usize| u64::from_ne_bytes(all[i..i + 8].try_into().unwrap());
        assert_eq!((at(0) % 64, at(8) % 64), (16, 0));
    }
    device.alloc(0).unwrap();
}

fn code<T>(result: ir::diag::Result<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(d) => d.code,
    }
}

#[test]
fn bounds_and_ids() {
    let (mut device, k) = device(options(1, false, Order::Forward));
    let buffer = device.alloc(100).unwrap();
    let mut four = [0u8; 4];
    device.write(buffer, 96, &four).unwrap();
    device.read(buffer, 100, &mut []).unwrap();
    for offset in [97, 100, 101, u64::MAX, u64::MAX - 3] {
        assert_eq!(code(device.write(buffer, offset, &four)), "E0422");
        assert_eq!(code(device.read(buffer, offset, &mut four)), "E0422");
    }
    let d = device.read(buffer, 97, &mut four).unwrap_err();
    assert_eq!(d.message, "4 bytes at offset 97 are outside buffer 0 of 100 bytes");
    for bytes in [1 << 60, u64::MAX] {
        let d = device.alloc(bytes).unwrap_err();
        assert_eq!(d.code, "E0420");
        assert!(d.message.contains(&bytes.to_string()) && d.message.contains("1 buffers hold 100 bytes"), "{d}");
    }

    let good = desc(k[2], &[(buffer, 0)], [1, 1]);
    let change = |f: &dyn Fn(&mut LaunchDesc)| {
        let mut bad = good.clone();
        f(&mut bad);
        bad
    };
    for bad in [
        change(&|l| l.args.clear()),
        change(&|l| l.args[0].1 = 8),
        change(&|l| l.warps = 0),
        change(&|l| l.warps = 33),
        change(&|l| l.grid = [0, 1]),
        change(&|l| l.grid = [1 << 31, 1]),
        change(&|l| l.grid = [1, 65536]),
    ] {
        assert_eq!(code(device.prepare(&[good.clone(), bad])), "E0424");
    }
    let d = device.prepare(&[change(&|l| l.args[0].1 = 112)]).unwrap_err();
    assert_eq!((d.code, d.place.as_str()), ("E0422", "launch 0 (stale)"));

    let prepared = device.prepare(std::slice::from_ref(&good)).unwrap();
    assert_eq!(code(device.free(buffer)), "E0423");
    // SAFETY: both are refused before anything runs.
    unsafe {
        assert_eq!(code(device.run(prepared, &[1, 1])), "E0424");
        assert_eq!(code(device.run(prepared, &[65536])), "E0424");
    }
    device.release(prepared).unwrap();
    assert_eq!(code(device.release(prepared)), "E0421");
    // SAFETY: as above.
    unsafe { assert_eq!(code(device.run(prepared, &[])), "E0421") };
    device.free(buffer).unwrap();
    assert_eq!(code(device.free(buffer)), "E0421");
    assert_eq!(code(device.read(buffer, 0, &mut four)), "E0421");
    assert_eq!(code(device.prepare(&[good])), "E0421");
    assert_ne!(device.alloc(1).unwrap(), buffer);
}

#[test]
fn missing_kernel_loads_nothing() {
    let mut device = CpuDevice::new(CpuOptions::default()).unwrap();
    let kernels = [KernelSig { name: "sum", bufs: 2 }, KernelSig { name: "none", bufs: 1 }];
    let d = device.load_module(&compile(KERNELS, PIC), &KernelNames { place: "a.o", kernels: &kernels }).unwrap_err();
    assert_eq!((d.code, d.place.as_str()), ("E0407", "a.o"));
    let again = device.load_module(&compile(KERNELS, PIC), &KernelNames { place: "a.o", kernels: &kernels[..1] });
    assert_eq!(again.unwrap().len(), 1);
}
