//! Threads that run the blocks of kernels, list by list. Between the launches of a list stands a barrier: a
//! launch sees all that earlier ones wrote. Blocks are split over threads by number alone; results must not
//! depend on the split or on the order of blocks, and tests can vary both.
//!
//! One wake-up serves a whole list. Waiting threads spin for some microseconds, then yield, then (between lists)
//! sleep, so that an idle pool uses no CPU time and an oversubscribed machine makes progress. With one thread
//! nothing is spawned.

use super::KernelFn;
use super::fpenv::DefaultFpMode;
use super::memory::AlignedBuf;
use super::order;
pub use super::order::Order;
use ir::diag::{Diagnostic, Result};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Most turns of the spinning wait before a thread begins to yield: 10 to 40 µs, depending on the processor.
const MOST_SPINS: u32 = 1000;

/// Fewest turns, and turns between two yields.
const FEWEST_SPINS: u32 = 20;

/// Yields before a thread without work goes to sleep.
const YIELDS: u32 = 200;

/// Most threads a pool may have.
const MAX_THREADS: usize = 4096;

/// One launch of a kernel over a grid of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Entry point.
    pub kernel: KernelFn,
    /// One pointer per kernel parameter.
    pub bufs: &'a [*mut u8],
    /// Blocks along x and y; nothing runs if one of them is zero.
    pub grid: [u32; 2],
    /// Shared memory of one block.
    pub shared_bytes: u32,
}

impl Launch<'_> {
    fn blocks(&self) -> u64 {
        u64::from(self.grid[0]) * u64::from(self.grid[1])
    }
}

/// A fixed number of threads, the caller's among them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    scratch: Vec<AlignedBuf>,
    walker: Walker,
    poison: bool,
    order: Order,
}

/// Keeps what different threads write on different cache lines (two lines: processors fetch in pairs).
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    threads: usize,
    /// Number of the current job.
    generation: Padded<AtomicU64>,
    /// Arrivals of all threads at all barriers since the pool began.
    arrived: Padded<AtomicU64>,
    /// Workers that sleep or are about to.
    sleeping: Vec<Padded<AtomicBool>>,
    job: UnsafeCell<Job>,
}

// SAFETY: `job` is written by the caller's thread alone, while no worker is between a new generation and its
// last arrival at a barrier of that job, and read by workers only there. All else is atomic or never changes.
unsafe impl Sync for Shared {}
// SAFETY: the pointers in `job` are used only during a `run_list` whose caller vouches for them.
unsafe impl Send for Shared {}

struct Job {
    launches: *const Launch<'static>,
    len: usize,
    /// Scratch memory of each thread, `threads` pointers.
    scratch: Vec<*mut u8>,
    poison: bool,
    order: Order,
    stop: bool,
}

impl Pool {
    /// A pool of `threads` threads (0 means 1), of which it starts all but one.
    pub fn new(threads: usize) -> Result<Pool> {
        let threads = threads.max(1);
        if threads > MAX_THREADS {
            let message = format!("{threads} threads asked for, at most {MAX_THREADS} are possible");
            return Err(Diagnostic::new("E0410", message));
        }
        let processors = thread::available_parallelism().map_or(1, |n| n.get());
        // Where threads outnumber processors, the awaited thread may need this one's.
        let most_spins = if threads > processors { FEWEST_SPINS } else { MOST_SPINS };
        let job =
            Job { launches: std::ptr::null(), len: 0, scratch: Vec::new(), poison: false, order: Order::Forward, stop: false };
        let shared = Arc::new(Shared {
            threads,
            generation: Padded(AtomicU64::new(0)),
            arrived: Padded(AtomicU64::new(0)),
            sleeping: (1..threads).map(|_| Padded(AtomicBool::new(false))).collect(),
            job: UnsafeCell::new(job),
        });
        let mut pool = Pool {
            shared,
            workers: Vec::new(),
            scratch: Vec::new(),
            walker: Walker::new(0, most_spins),
            poison: false,
            order: Order::Forward,
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = thread::Builder::new()
                .name(format!("isobit-{index}"))
                .spawn(move || shared.work(Walker::new(index, most_spins)))
                .map_err(|e| {
                    Diagnostic::new("E0410", format!("could not start thread {index} of {threads}: {e}"))
                        .hint("ask for fewer threads")
                })?; // dropping the pool stops those already started
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Fills shared memory with 0xff (NaN patterns) before every block, so that a kernel that reads what it
    /// did not write gives visibly wrong results.
    pub fn set_poison(&mut self, poison: bool) {
        self.poison = poison;
    }

    /// Order in which blocks run; results must not depend on it.
    pub fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    /// Runs one launch to its end.
    ///
    /// # Safety
    /// As for [`Pool::run_list`].
    pub unsafe fn run(&mut self, launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run_list(std::slice::from_ref(launch)) }
    }

    /// Runs launches one after another and returns when the last has ended. Fails, before anything runs, if
    /// there is not enough memory for the shared memory of the blocks.
    ///
    /// # Safety
    /// Every kernel is valid code of that signature, stays inside the memory behind its pointers and inside its
    /// shared memory, and blocks of one launch write no location that another of its blocks reads or writes,
    /// except atomically. Nothing else accesses what the kernels write until this returns.
    pub unsafe fn run_list(&mut self, launches: &[Launch<'_>]) -> Result<()> {
        let shared_bytes = launches.iter().map(|l| l.shared_bytes).max().unwrap_or(0);
        self.reserve(shared_bytes)?;
        let alone = self.workers.is_empty() || launches.iter().all(|l| l.blocks() <= 1);
        // SAFETY: `&mut self` means that no run is going on: all workers have arrived at the last barrier of
        // the last job and do not touch `job` before the next generation.
        let job = unsafe { &mut *self.shared.job.get() };
        job.launches = launches.as_ptr().cast();
        job.len = launches.len();
        job.poison = self.poison;
        job.order = self.order;
        let guard = AbortOnUnwind;
        if alone {
            // SAFETY: the caller's promise; the whole list is this thread's.
            unsafe { run_alone(job) };
        } else {
            self.shared.publish(&self.workers);
            // SAFETY: the job is published and thread 0 is this one. It returns after all threads have arrived
            // at the last barrier, so the launches outlive their use.
            unsafe { self.shared.walk(&mut self.walker) };
        }
        std::mem::forget(guard);
        Ok(())
    }

    /// Grows every thread's scratch memory to at least `bytes`.
    fn reserve(&mut self, bytes: u32) -> Result<()> {
        let enough = |b: &AlignedBuf| b.len() >= bytes as usize;
        if self.scratch.len() == self.shared.threads && self.scratch.iter().all(enough) {
            return Ok(());
        }
        let mut scratch = Vec::new();
        for _ in 0..self.shared.threads {
            // A multiple of two cache lines, so that no line has two threads' bytes.
            let len = (bytes as usize).next_multiple_of(128).max(128);
            scratch.push(AlignedBuf::zeroed(len).ok_or_else(|| {
                let message =
                    format!("not enough memory for {bytes} bytes of shared memory in each of {} threads", self.threads());
                Diagnostic::new("E0411", message)
            })?);
        }
        // SAFETY: as in `run_list`, no run is going on.
        let job = unsafe { &mut *self.shared.job.get() };
        job.scratch = scratch.iter().map(AlignedBuf::ptr).collect();
        self.scratch = scratch;
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: as in `run_list`, no run is going on.
        unsafe { (*self.shared.job.get()).stop = true };
        self.shared.publish(&self.workers);
        for worker in self.workers.drain(..) {
            // A worker cannot panic (it would abort the process), and this must not either.
            let _ = worker.join();
        }
    }
}

/// A thread that left a run early would leave the others with dangling pointers or waiting for ever.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Shared {
    /// Begins a new generation and wakes the workers that sleep.
    fn publish(&self, workers: &[JoinHandle<()>]) {
        // Sequentially consistent on both sides: either this sees a worker's `sleeping`, or the worker sees
        // the new generation before it parks.
        self.generation.0.fetch_add(1, Ordering::SeqCst);
        for (worker, sleeping) in workers.iter().zip(&self.sleeping) {
            if sleeping.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    /// Life of a worker.
    fn work(&self, mut walker: Walker) {
        let guard = AbortOnUnwind;
        let mut generation = 0;
        loop {
            self.wait_for_job(&mut walker, generation);
            generation += 1;
            // SAFETY: the job of this generation is published and not changed before this thread's last arrival.
            if unsafe { (*self.job.get()).stop } {
                break;
            }
            // SAFETY: as above; each thread has its own number.
            unsafe { self.walk(&mut walker) };
        }
        std::mem::forget(guard);
    }

    /// Waits for the job after number `generation`; there is no second before this thread has done the first.
    fn wait_for_job(&self, walker: &mut Walker, generation: u64) {
        let sleeping = &self.sleeping[walker.thread - 1].0;
        let new = || self.generation.0.load(Ordering::Acquire) != generation;
        if walker.wait(new, YIELDS) {
            return;
        }
        while !new() {
            sleeping.store(true, Ordering::SeqCst);
            if self.generation.0.load(Ordering::SeqCst) == generation {
                thread::park();
            }
            sleeping.store(false, Ordering::SeqCst);
        }
    }

    /// Runs this thread's part of every launch of the job.
    ///
    /// # Safety
    /// The job is published, its launches are valid, and no other thread uses this walker's number.
    unsafe fn walk(&self, walker: &mut Walker) {
        // SAFETY: see `Sync`: nobody writes the job before this thread's last arrival.
        let job = unsafe { &*self.job.get() };
        // SAFETY: the caller of `run_list` holds the slice until all threads have arrived.
        let launches = unsafe { std::slice::from_raw_parts(job.launches, job.len) };
        let _mode = DefaultFpMode::enter();
        let scratch = job.scratch[walker.thread];
        for (i, launch) in launches.iter().enumerate() {
            let (first, count) = order::part(launch.blocks(), walker.thread, self.threads);
            // SAFETY: the caller of `run_list` vouches for the launch, and the scratch memory is this thread's.
            unsafe { run_blocks(launch, i, first, count, scratch, job) };
            // Launches of one block are all thread 0's: no barrier is needed between two of them. At the end
            // only the caller waits, and the job must not be touched after the arrival.
            let (barrier, wait) = match launches.get(i + 1) {
                Some(next) => (launch.blocks() > 1 || next.blocks() > 1, true),
                None => (true, walker.thread == 0),
            };
            if barrier {
                self.arrive();
                walker.barriers += 1;
            }
            if barrier && wait {
                let all = walker.barriers * self.threads as u64;
                walker.wait(|| self.arrived.0.load(Ordering::Acquire) >= all, u32::MAX);
            }
        }
    }

    fn arrive(&self) {
        self.arrived.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What one thread knows: its number, its place, and how long it is worth spinning.
struct Walker {
    thread: usize,
    /// Barriers passed since the pool began.
    barriers: u64,
    /// Turns to spin at the next wait, between [`FEWEST_SPINS`] and `most_spins`. Fewer after a wait that spinning
    /// did not end: the awaited thread may be waiting for this processor.
    spins: u32,
    most_spins: u32,
}

impl Walker {
    fn new(thread: usize, most_spins: u32) -> Walker {
        Walker { thread, barriers: 0, spins: most_spins, most_spins }
    }

    /// Spins, then yields, until `done`; false if that many yields did not help (`u32::MAX`: no limit).
    fn wait(&mut self, done: impl Fn() -> bool, yields: u32) -> bool {
        if done() {
            return true;
        }
        if spin(self.spins, &done) {
            self.spins = (self.spins * 2).min(self.most_spins);
            return true;
        }
        self.spins = (self.spins / 2).max(FEWEST_SPINS);
        let mut left = yields;
        while left > 0 {
            thread::yield_now();
            if spin(FEWEST_SPINS, &done) {
                return true;
            }
            if yields != u32::MAX {
                left -= 1;
            }
        }
        false
    }
}

fn spin(turns: u32, done: impl Fn() -> bool) -> bool {
    for _ in 0..turns {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    done()
}

/// Runs a whole list on the caller's thread.
///
/// # Safety
/// The launches of the job are valid and no other thread runs it.
unsafe fn run_alone(job: &Job) {
    // SAFETY: the caller's promise.
    let launches = unsafe { std::slice::from_raw_parts(job.launches, job.len) };
    let _mode = DefaultFpMode::enter();
    for (i, launch) in launches.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { run_blocks(launch, i, 0, launch.blocks(), job.scratch[0], job) };
    }
}

/// Runs `count` blocks from place `first` of the launch's order of blocks.
///
/// # Safety
/// The launch is valid; `scratch` has at least its `shared_bytes` bytes and is used by this thread alone.
unsafe fn run_blocks(launch: &Launch<'_>, index: usize, first: u64, count: u64, scratch: *mut u8, job: &Job) {
    let height = u64::from(launch.grid[1]);
    let blocks = launch.blocks();
    for place in first..first + count {
        let block = job.order.block(place, blocks, index as u64);
        if job.poison {
            // SAFETY: the scratch memory has that many bytes.
            unsafe { scratch.write_bytes(0xff, launch.shared_bytes as usize) };
        }
        // Both fit: they are less than the sides of the grid.
        let (x, y) = ((block / height) as u32, (block % height) as u32);
        // SAFETY: the caller's promise.
        unsafe { (launch.kernel)(launch.bufs.as_ptr(), x, y, scratch) };
    }
}
