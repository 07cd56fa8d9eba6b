//! Runs a target in a process of its own, so that whatever happens to it is seen: panics, stack overflows, endless loops,
//! too much time or memory. The input at work is in a file before it is run; what fails is made smaller and kept.

use crate::Target;
use crate::mutate::{MAX, Random, mutate};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Processor time of one input.
const TIME: Duration = Duration::from_millis(1500);
/// Memory of one input.
const MEMORY: u64 = 96 << 20;
/// Beyond this an allocation fails at once.
const HUGE: u64 = 4 << 30;
/// Attempts to make an input smaller.
const ATTEMPTS: usize = 400;
/// And no longer than this: what never ends takes its time at every attempt.
const PATIENCE: Duration = Duration::from_secs(20);
/// Exit code of an input that takes too much time or memory.
const TOO_MUCH: i32 = 3;

/// Counts what is allocated.
pub struct Counting;

static NOW: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

// SAFETY: as the system's, but that it may refuse.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as u64;
        let now = NOW.fetch_add(size, Ordering::Relaxed) + size;
        if now > HUGE {
            NOW.fetch_sub(size, Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: from `alloc` with this layout.
        unsafe { System.dealloc(p, layout) }
    }
}

/// How long a target is run.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// So many inputs.
    Count(u64),
    /// So many seconds.
    Seconds(u64),
}

/// An input that fails.
pub struct Failure {
    /// Where it was kept.
    pub file: PathBuf,
    /// What it did.
    pub what: String,
    /// The command that shows it again.
    pub command: String,
}

/// The corpus of a target.
pub fn corpus_dir(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Files of a corpus, in order of their names.
pub fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(corpus_dir(target)).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    files.into_iter().map(|f| (f.clone(), fs::read(&f).unwrap_or_default())).collect()
}

/// Words of a target's language: lines like `"a\x0a\\"`, as libFuzzer has them.
pub fn words(target: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dict").join(format!("{target}.dict"));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let inside = |l: &str| l.trim().strip_prefix('"')?.strip_suffix('"').map(word);
    text.lines().filter_map(inside).collect()
}

fn word(escaped: &str) -> Vec<u8> {
    let (mut out, mut rest) = (vec![], escaped.as_bytes());
    while let Some((&b, after)) = rest.split_first() {
        rest = after;
        match (b, after) {
            (b'\\', [b'x', a, b, after @ ..]) => {
                let digit = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
                out.push(digit(*a) << 4 | digit(*b));
                rest = after;
            }
            (b'\\', [c, after @ ..]) => {
                out.push(*c);
                rest = after;
            }
            _ => out.push(b),
        }
    }
    out
}

fn cpu(clock: libc::clockid_t) -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the result.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Runs one input; ends the process if that takes too much.
fn one(target: &Target, input: &[u8]) {
    let (before, start) = (NOW.load(Ordering::Relaxed), cpu(libc::CLOCK_PROCESS_CPUTIME_ID));
    PEAK.store(before, Ordering::Relaxed);
    another();
    (target.run)(input);
    let memory = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let time = cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - start;
    if memory > MEMORY {
        too_much(&format!("takes {} MB, more than {}", memory >> 20, MEMORY >> 20));
    }
    if time > TIME {
        too_much(&format!("takes {} ms of processor time, more than {}", time.as_millis(), TIME.as_millis()));
    }
}

fn too_much(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(TOO_MUCH)
}

/// The child: runs the corpus and inputs made from it, the one at work in `at_work`. Prints how many it ran.
pub fn child(target: &Target, seed: u64, until: Until, at_work: &Path) {
    protect();
    let file = File::create(at_work).unwrap_or_else(|e| panic!("{}: {e}", at_work.display()));
    let corpus: Vec<Vec<u8>> = corpus(target.name).into_iter().map(|(_, b)| b).collect();
    let words = words(target.name);
    let (mut r, start, mut done) = (Random(seed), Instant::now(), 0u64);
    let run = |input: &[u8]| {
        let kept = file.set_len(input.len() as u64).and_then(|()| file.write_all_at(input, 0));
        kept.unwrap_or_else(|e| panic!("{}: {e}", at_work.display()));
        one(target, input);
    };
    (target.run)(b""); // what is made once is not the first input's
    corpus.iter().for_each(|input| run(input));
    while match until {
        Until::Count(n) => done < n,
        Until::Seconds(s) => start.elapsed().as_secs() < s,
    } {
        let mut input = mutate(&mut r, &corpus, &words);
        if let (Some(mend), false) = (target.mend, r.below(4) == 0) {
            mend(&mut input);
            input.truncate(MAX);
        }
        run(&input);
        done += 1;
    }
    println!("{}: {} of the corpus, {done} made from them", target.name, corpus.len());
}

/// Runs files.
pub fn replay(target: &Target, files: &[PathBuf]) {
    protect();
    (target.run)(b"");
    for f in files {
        let input = fs::read(f).unwrap_or_else(|e| panic!("{}: {e}", f.display()));
        one(target, &input);
    }
}

/// Panics that nobody catches end the process as they end isobit, and so does what never ends.
fn protect() {
    std::panic::set_hook(Box::new(|info| {
        if !models::text::panic_is_caught() {
            eprintln!("{info}");
            std::process::exit(101);
        }
    }));
    // Processor time, so that a busy machine does not matter.
    std::thread::spawn(|| {
        let mut last = (0, Duration::ZERO);
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let (runs, now) = (RUNS.load(Ordering::Relaxed), cpu(libc::CLOCK_PROCESS_CPUTIME_ID));
            if last.0 != runs {
                last = (runs, now);
            } else if now - last.1 > 3 * TIME {
                too_much("does not end");
            }
        }
    });
}

static RUNS: AtomicU64 = AtomicU64::new(0);

/// Tells the watching thread that another input is at work.
fn another() {
    RUNS.fetch_add(1, Ordering::Relaxed);
}

/// Runs a target in a child, and keeps what fails.
pub fn fuzz(program: &Path, target: &Target, seed: u64, until: Until, keep: &Path, scratch: &Path) -> Result<String, Failure> {
    let at_work = scratch.join(format!("{}-{}", target.name, std::process::id()));
    let (what, n) = match until {
        Until::Count(n) => ("--count", n),
        Until::Seconds(n) => ("--seconds", n),
    };
    let mut c = Command::new(program);
    c.args(["child", target.name, "--seed", &seed.to_string(), what, &n.to_string(), "--at-work"]).arg(&at_work);
    let o = c.output().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    if o.status.success() {
        let _ = fs::remove_file(&at_work);
        return Ok(String::from_utf8_lossy(&o.stdout).trim().to_string());
    }
    let input = fs::read(&at_work).unwrap_or_default();
    let small = smaller(program, target, input, &at_work, &o);
    let _ = fs::remove_file(&at_work);
    let _ = fs::create_dir_all(keep);
    let hash = small.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    let file = keep.join(format!("found-{hash:016x}"));
    fs::write(&file, &small).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let command = format!("cargo run --release -p isobit-fuzz -- replay {} {}", target.name, file.display());
    Err(Failure { file, what: how(&o), command })
}

/// How it ended, in a line.
fn how(o: &Output) -> String {
    let err = String::from_utf8_lossy(&o.stderr).into_owned();
    let line = err.lines().filter(|l| !l.trim().is_empty()).take(3).collect::<Vec<_>>().join(" ");
    format!("{}: {line}", o.status)
}

/// A smaller input that ends the same way.
fn smaller(program: &Path, target: &Target, input: Vec<u8>, file: &Path, first: &Output) -> Vec<u8> {
    let (mut attempts, start) = (0, Instant::now());
    let mut fails = |bytes: &[u8]| {
        attempts += 1;
        if attempts > ATTEMPTS || start.elapsed() > PATIENCE {
            return None;
        }
        fs::write(file, bytes).ok()?;
        let o = Command::new(program).args(["replay", target.name]).arg(file).output().ok()?;
        Some(o.status == first.status)
    };
    let mut best = input;
    if fails(&best) != Some(true) {
        return best; // it needs what came before it
    }
    let mut part = best.len().div_ceil(2).max(1);
    loop {
        let (mut at, before) = (0, best.len());
        while at < best.len() {
            let mut tried = best.clone();
            tried.drain(at..(at + part).min(best.len()));
            match fails(&tried) {
                None => return best,
                Some(true) => best = tried,
                Some(false) => at += part,
            }
        }
        if part == 1 && best.len() == before {
            return best;
        }
        part = (part / 2).max(1);
    }
}
