//! The pool: every block exactly once, launches of a list in order with all their writes visible, whatever the
//! number of threads and the order of blocks.

use runtime::cpu::pool::{Launch, Order, Pool};
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(not(miri))]
mod common;

const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Shuffled(42)];

fn pointer<T>(slice: &mut [T]) -> *mut u8 {
    slice.as_mut_ptr().cast()
}

/// bufs: counters (one per block), width of the grid.
unsafe extern "C" fn count(bufs: *const *mut u8, x: u32, y: u32, shared: *mut u8) {
    // SAFETY: the tests pass as many counters as there are blocks, and one width.
    unsafe {
        let width = *(*bufs.add(1)).cast::<u32>();
        assert!(x < width && (shared as usize).is_multiple_of(64));
        (*(*bufs).cast::<AtomicU32>().add((y * width + x) as usize)).fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn each_block_once() {
    for threads in [0, 1, 2, 3, 8] {
        let mut pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads.max(1));
        for order in ORDERS {
            pool.set_order(order);
            for grid in [[1, 1], [0, 3], [2, 1], [1, 7], [5, 3], [16, 16], [1000, 1], [3, 0]] {
                let blocks = (grid[0] * grid[1]) as usize;
                let mut counters = vec![0u32; blocks];
                let mut width = [grid[0]];
                let bufs = [pointer(&mut counters), pointer(&mut width)];
                let launch = Launch { kernel: count, bufs: &bufs, grid, shared_bytes: 0 };
                // SAFETY: the buffers are as `count` wants them.
                unsafe {
                    pool.run(&launch).unwrap();
                    pool.run_list(&[launch, launch, launch]).unwrap();
                    pool.run_list(&[]).unwrap();
                }
                assert!(counters.iter().all(|c| *c == 4), "{threads} threads, {order:?}, {grid:?}");
            }
        }
    }
}

const VALUES: usize = 16;

/// One step of a chain: every source value must be the same n; the part of this block becomes n + 1.
/// bufs: source, destination, number of blocks, errors.
unsafe extern "C" fn step(bufs: *const *mut u8, x: u32, _y: u32, _shared: *mut u8) {
    // SAFETY: the tests pass buffers of these sizes; blocks write different parts of the destination.
    unsafe {
        let source = std::slice::from_raw_parts((*bufs).cast::<u64>(), VALUES);
        let destination = (*bufs.add(1)).cast::<u64>();
        let blocks = *(*bufs.add(2)).cast::<u32>() as usize;
        if source.iter().any(|v| *v != source[0]) {
            (*(*bufs.add(3)).cast::<AtomicU32>()).fetch_add(1, Ordering::Relaxed);
        }
        for i in (x as usize..VALUES).step_by(blocks) {
            *destination.add(i) = source[i] + 1;
        }
    }
}

fn chain(threads: usize, rounds: u64) {
    let mut pool = Pool::new(threads).unwrap();
    let (mut a, mut b, mut errors) = ([0u64; VALUES], [0u64; VALUES], [0u32]);
    let mut sizes = [1u32, 2, 3, 5, 8, 16];
    let (pa, pb, pe) = (pointer(&mut a), pointer(&mut b), pointer(&mut errors));
    let counts: Vec<*mut u8> = sizes.iter_mut().map(|n| (n as *mut u32).cast()).collect();
    // Runs of single blocks between wide launches: the barrier between those is left out.
    let pattern = [5, 0, 0, 0, 3, 1, 0, 2, 5, 5, 0, 4, 0, 0, 5, 1];
    let widths = [1u32, 2, 3, 5, 8, 16];
    let bufs: Vec<[*mut u8; 4]> = pattern
        .iter()
        .enumerate()
        .map(|(i, n)| if i % 2 == 0 { [pa, pb, counts[*n], pe] } else { [pb, pa, counts[*n], pe] })
        .collect();
    let list: Vec<Launch> = pattern
        .iter()
        .zip(&bufs)
        .map(|(n, bufs)| Launch { kernel: step, bufs, grid: [widths[*n], 1], shared_bytes: 64 })
        .collect();
    for round in 0..rounds {
        pool.set_order(ORDERS[round as usize % 3]);
        // SAFETY: the buffers are as `step` wants them.
        unsafe { pool.run_list(&list).unwrap() };
        // SAFETY: 16 values, and no run is going on.
        let now = unsafe { std::slice::from_raw_parts(pa.cast::<u64>(), VALUES) };
        assert_eq!(now, [(round + 1) * pattern.len() as u64; VALUES], "{threads} threads");
        if round % 512 == 511 {
            std::thread::sleep(std::time::Duration::from_millis(2)); // let the workers fall asleep
        }
    }
    // SAFETY: as above.
    assert_eq!(unsafe { *pe.cast::<u32>() }, 0, "{threads} threads");
}

#[test]
fn later_launches_see_all_earlier_writes() {
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    chain(1, rounds);
    chain(2, rounds);
    chain(3, rounds / 4);
    chain(8, rounds / 16);
}

/// Copies shared memory (size in bufs[1]) to this block's place in bufs[0], then dirties it.
unsafe extern "C" fn dirty(bufs: *const *mut u8, x: u32, _y: u32, shared: *mut u8) {
    // SAFETY: the tests give each block that many bytes.
    unsafe {
        let bytes = *(*bufs.add(1)).cast::<u32>() as usize;
        std::ptr::copy_nonoverlapping(shared, (*bufs).add(x as usize * bytes), bytes);
        shared.write_bytes(x as u8, bytes);
    }
}

#[test]
fn poison_fills_shared_memory_before_every_block() {
    for threads in [1, 2, 3] {
        let mut pool = Pool::new(threads).unwrap();
        pool.set_poison(true);
        let largest = if cfg!(miri) { 500 } else { 100_000 };
        for bytes in [16u32, 48, 400, largest, 32] {
            let mut out = vec![0u8; 6 * bytes as usize];
            let mut size = [bytes];
            let bufs = [pointer(&mut out), pointer(&mut size)];
            for blocks in [1, 6] {
                let launch = Launch { kernel: dirty, bufs: &bufs, grid: [blocks, 1], shared_bytes: bytes };
                // SAFETY: the buffers are as `dirty` wants them.
                unsafe { pool.run_list(&[launch, launch]).unwrap() };
            }
            assert!(out.iter().all(|b| *b == 0xff), "{threads} threads, {bytes} bytes");
        }
        pool.set_poison(false);
        let (mut out, mut size) = ([0u8; 64], [32u32]);
        let bufs = [pointer(&mut out), pointer(&mut size)];
        let launch = Launch { kernel: dirty, bufs: &bufs, grid: [2, 1], shared_bytes: 32 };
        // SAFETY: as above.
        unsafe { pool.run_list(&[launch, launch]).unwrap() };
        assert!(out.iter().any(|b| *b != 0xff));
    }
}

#[test]
fn pools_start_and_stop_at_once() {
    for round in 0..50 {
        let pools: Vec<Pool> = (0..3).map(|_| Pool::new(1 + round % 4).unwrap()).collect();
        drop(pools);
    }
    assert_eq!(Pool::new(usize::MAX).err().map(|d| d.code), Some("E0410"));
}

/// A thread whose floating-point mode drops subnormals (as libraries built with -ffast-math leave it) gets the
/// kernel's bits all the same, and its mode back.
#[test]
#[cfg(not(miri))]
fn kernels_run_in_the_default_float_mode() {
    // Flush to zero, on x86-64 also: denormals are zero.
    let (flush, default) = if cfg!(target_arch = "aarch64") { (1 << 24, 0) } else { (0x9fc0, 0x1f80) };
    let source = "
        #ifdef __aarch64__
        static void set(uint64_t mode) { __asm__ volatile(\"msr fpcr, %0\" : : \"r\"(mode)); }
        static uint64_t get(void) { uint64_t mode; __asm__ volatile(\"mrs %0, fpcr\" : \"=r\"(mode)); return mode; }
        #else
        #include <xmmintrin.h>
        static void set(uint32_t mode) { _mm_setcsr(mode); }
        static uint32_t get(void) { return _mm_getcsr() & ~0x3fu; }
        #endif
        KERNEL(set_mode) { set(*(uint32_t *)bufs[0]); }
        KERNEL(get_mode) { *(uint32_t *)bufs[0] = get(); }
        KERNEL(halve) { float *v = (float *)bufs[0]; v[x] = v[x] * 0.5f; }";
    let module = runtime::cpu::loader::Module::load(&common::compile(source, common::PIC), "mode.o").unwrap();
    let [set, get, halve] = ["set_mode", "get_mode", "halve"].map(|n| module.function(n).unwrap());
    for threads in [1, 2] {
        let mut modes = [flush, 0u32];
        let mut values = [f32::MIN_POSITIVE; 8];
        let (mode, seen) = ([pointer(&mut modes[..1])], [pointer(&mut modes[1..])]);
        let bufs = [pointer(&mut values)];
        // SAFETY: one word, one word, eight floats.
        unsafe {
            set(mode.as_ptr(), 0, 0, std::ptr::null_mut());
            let mut pool = Pool::new(threads).unwrap(); // the worker inherits the mode
            let launch = Launch { kernel: halve, bufs: &bufs, grid: [8, 1], shared_bytes: 0 };
            let ran = pool.run_list(&[launch, launch]);
            get(seen.as_ptr(), 0, 0, std::ptr::null_mut());
            *mode[0].cast::<u32>() = default;
            set(mode.as_ptr(), 0, 0, std::ptr::null_mut());
            ran.unwrap();
            assert_eq!(*seen[0].cast::<u32>(), flush);
        }
        assert_eq!(values.map(f32::to_bits), [f32::MIN_POSITIVE.to_bits() / 4; 8], "{threads} threads");
    }
}
