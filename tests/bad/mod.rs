//! Runs the cases of a table of bad inputs; `tests/bad_inputs.rs` says what is checked of each.
//!
//! Time is processor time of the child, user and system, so a busy machine does not matter; a case over the limit gets two
//! more tries. Memory is the child's peak resident set less that of `isobit --version`: the pages of the program and of
//! LLVM, which are mapped files for the most part, are needed to say anything at all. A child begins as a copy of this
//! process, so this process must stay small, and that is checked as well.

pub mod artifacts;
pub mod bench;
pub mod checkpoints;
pub mod config;
pub mod explain;
pub mod garbage;
pub mod inspect;
pub mod kill;
pub mod model;
pub mod opt;
pub mod places;
pub mod quantize;
pub mod runner_tests;
pub mod safetensors;
pub mod text;
pub mod values;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_isobit");
/// Processor time of a case.
pub const TIME: Duration = Duration::from_millis(100);
/// Memory of a case beyond what the program needs to start.
pub const MEMORY: u64 = 64 << 20;

/// What the child may do.
#[derive(Clone, Copy, Default)]
pub struct Child {
    /// Largest file that it can write, and what happens beyond: an error (as on a full disk), or its end there and then.
    pub files: Option<(u64, Beyond)>,
    /// Without the right of root to read what it may not.
    pub unprivileged: bool,
    /// Standard output is a full device.
    pub full_output: bool,
    /// This folder stands in the working folder before it starts, with the child's process id for `PID`.
    pub leftover: Option<&'static str>,
}

/// What happens when a file grows over the limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// The write fails.
    Error,
    /// The process ends without a chance to clean up.
    Kill,
}

/// One bad input, and the command that meets it.
pub struct Case {
    /// Names it in the snapshot.
    pub name: String,
    /// The program, usually isobit.
    pub program: &'static str,
    /// Words after it.
    pub args: Vec<String>,
    /// Makes the input in a fresh folder, the child's working folder.
    pub make: Box<dyn Fn(&Path)>,
    /// The exit code.
    pub code: i32,
    /// Does it print data before it fails?
    pub prints: bool,
    /// What large work it asks for; then time and memory are not limited.
    pub large: Option<&'static str>,
    /// What the child may do.
    pub child: Child,
}

/// A case: a name, a change to an empty folder, and a command line.
pub fn case(name: impl Into<String>, make: impl Fn(&Path) + 'static, args: &str) -> Case {
    Case {
        name: name.into(),
        program: PROGRAM,
        args: args.split(' ').map(String::from).collect(),
        make: Box::new(make),
        code: 1,
        prints: false,
        large: None,
        child: Child::default(),
    }
}

impl Case {
    /// The command line is to blame.
    pub fn usage(mut self) -> Case {
        self.code = 2;
        self
    }

    /// It is only warned of.
    pub fn warns(mut self) -> Case {
        self.code = 0;
        self
    }

    /// It prints data before it fails.
    pub fn prints(mut self) -> Case {
        self.prints = true;
        self
    }

    /// Time and memory are not limited.
    pub fn large(mut self, why: &'static str) -> Case {
        self.large = Some(why);
        self
    }

    /// Another command.
    pub fn run(mut self, args: &str) -> Case {
        self.args = args.split(' ').map(String::from).collect();
        self
    }

    /// What the child may do.
    pub fn child(mut self, child: Child) -> Case {
        self.child = child;
        self
    }
}

/// What became of a child.
pub struct Outcome {
    pub out: String,
    pub err: String,
    /// As `wait4` gives it.
    pub status: i32,
    pub time: Duration,
    /// Bytes.
    pub peak: u64,
}

impl Outcome {
    /// The exit code, if it ended by itself.
    pub fn code(&self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        libc::WIFSIGNALED(self.status).then(|| libc::WTERMSIG(self.status))
    }
}

/// A fresh folder.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad").join(name);
    clean(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Removes a folder, whatever its permissions.
pub fn clean(dir: &Path) {
    for (path, _) in tree(dir) {
        let full = dir.join(path);
        if full.is_dir() && !full.is_symlink() {
            let _ = fs::set_permissions(&full, fs::Permissions::from_mode(0o755));
        }
    }
    if let Err(e) = fs::remove_dir_all(dir) {
        assert_eq!(e.kind(), io::ErrorKind::NotFound, "{}: {e}", dir.display());
    }
}

/// Everything below a folder: kind, size and time of change by path.
fn tree(dir: &Path) -> BTreeMap<PathBuf, (char, u64, i64)> {
    let mut out = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(d) = todo.pop() {
        // What cannot be listed is a case of its own.
        for e in fs::read_dir(&d).into_iter().flatten().flatten() {
            let Ok(m) = e.metadata() else { continue };
            let kind = match m.file_type() {
                t if t.is_dir() => '/',
                t if t.is_fifo() => '|',
                t if t.is_symlink() => '@',
                _ => '=',
            };
            let size = if kind == '/' { 0 } else { m.len() };
            let time = if kind == '/' { 0 } else { m.mtime_nsec() ^ m.mtime() };
            out.insert(e.path().strip_prefix(dir).unwrap().to_path_buf(), (kind, size, time));
            if kind == '/' {
                todo.push(e.path());
            }
        }
    }
    out
}

/// Runs a program in a folder and waits for its end.
#[allow(clippy::zombie_processes)] // `wait4` below is the wait
pub fn run(program: &str, args: &[String], dir: &Path, child: Child) -> Outcome {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("XDG_CACHE_HOME", dir.join("cache")).env_remove("NO_COLOR").stdin(Stdio::null());
    let stdout = if child.full_output { Stdio::from(fs::File::create("/dev/full").unwrap()) } else { Stdio::piped() };
    command.stdout(stdout).stderr(Stdio::piped());
    // SAFETY: only calls that are allowed between fork and exec.
    unsafe { command.pre_exec(move || prepare(child)) };
    let mut process = command.spawn().unwrap_or_else(|e| panic!("{program}: {e}"));
    let out = process.stdout.take();
    let mut err = process.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![];
        out.map(|mut o| o.read_to_end(&mut bytes).unwrap());
        bytes
    });
    let mut err_bytes = vec![];
    err.read_to_end(&mut err_bytes).unwrap();
    let out_bytes = reader.join().unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: our own child, and room for both results.
    let waited = unsafe { libc::wait4(process.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!(waited, process.id() as i32);
    // SAFETY: all zeros is a valid rusage, and wait4 filled it.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    Outcome {
        out: String::from_utf8_lossy(&out_bytes).into_owned(),
        err: String::from_utf8_lossy(&err_bytes).into_owned(),
        status,
        time: time(usage.ru_utime) + time(usage.ru_stime),
        peak: usage.ru_maxrss as u64 * 1024,
    }
}

/// Between fork and exec: limits, and what the case asks for.
fn prepare(child: Child) -> io::Result<()> {
    let check = |r: i32| if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let limit = |what, n: u64| {
        let l = libc::rlimit { rlim_cur: n, rlim_max: n };
        // SAFETY: a valid struct.
        check(unsafe { libc::setrlimit(what, &l) })
    };
    // SAFETY: system calls with plain numbers and texts that end with zero.
    unsafe {
        libc::alarm(300); // What hangs ends by a signal.
        limit(libc::RLIMIT_CPU, 30)?;
        limit(libc::RLIMIT_CORE, 0)?;
        if let Some(name) = child.leftover {
            let mut path = [0u8; 256];
            let mut at = &mut path[..255];
            let (before, after) = name.split_once("PID").unwrap_or((name, ""));
            write!(at, "{before}{}{after}", libc::getpid())?;
            check(libc::mkdir(path.as_ptr().cast(), 0o755))?;
        }
        if let Some((bytes, beyond)) = child.files {
            limit(libc::RLIMIT_FSIZE, bytes)?;
            if beyond == Beyond::Error {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            }
        }
        if child.unprivileged && libc::geteuid() == 0 {
            // Root without these is the owner of its files and no more. They stay away after exec.
            const DAC_OVERRIDE: libc::c_ulong = 1;
            const DAC_READ_SEARCH: libc::c_ulong = 2;
            check(libc::prctl(libc::PR_CAPBSET_DROP, DAC_OVERRIDE, 0, 0, 0))?;
            check(libc::prctl(libc::PR_CAPBSET_DROP, DAC_READ_SEARCH, 0, 0, 0))?;
        }
    }
    Ok(())
}

/// Peak of the program that does nothing.
pub fn start_peak() -> u64 {
    static PEAK: OnceLock<u64> = OnceLock::new();
    *PEAK.get_or_init(|| {
        let o = run(PROGRAM, &["--version".into()], Path::new("."), Child::default());
        assert_eq!(o.code(), Some(0), "{}", o.err);
        o.peak
    })
}

/// Memory of this process, of which a child has a copy when it begins.
fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Lines of a snapshot, and what is wrong beside the words.
pub fn judge(case: &Case, dir: &Path) -> (Vec<String>, Vec<String>) {
    let base = start_peak();
    (case.make)(dir);
    let before = tree(dir);
    let own = own_memory();
    let mut o = run(case.program, &case.args, dir, case.child);
    let after = tree(dir);
    let mut faults = vec![];
    if case.large.is_none() {
        for _ in 0..6 {
            if o.time > TIME {
                let again = run(case.program, &case.args, dir, case.child);
                o.time = o.time.min(again.time);
            }
        }
        if o.time > TIME {
            faults.push(format!("takes {} ms of processor time, more than {}", o.time.as_millis(), TIME.as_millis()));
        }
        let used = o.peak.saturating_sub(base);
        if used > MEMORY {
            faults.push(format!("takes {} MB beyond the start, more than {}", used >> 20, MEMORY >> 20));
        }
    }
    if own > base {
        // As after a panic with a backtrace: the first failure is the one to look at.
        faults.push(format!("cannot be measured: the process that starts it has {} MB", own >> 20));
    }
    let code = o.code();
    match (code, o.signal()) {
        (_, Some(s)) => faults.push(format!("ends by signal {s}")),
        (Some(101), _) => faults.push("panics".into()),
        (c, _) if c != Some(case.code) => faults.push(format!("ends with code {c:?}, not {}", case.code)),
        _ => {}
    }
    let lines = |word: &str| o.err.lines().filter(|l| l.starts_with(word)).count();
    let (errors, warnings) = (lines("error"), lines("warning["));
    if errors != usize::from(case.code != 0) {
        faults.push(format!("says {errors} errors"));
    }
    if case.code == 0 && warnings == 0 {
        faults.push("warns of nothing".into());
    }
    if case.code != 0 && o.out.is_empty() == case.prints {
        faults.push(format!("prints {:?}", o.out.chars().take(80).collect::<String>()));
    }
    let program = if case.program == PROGRAM { "isobit" } else { case.program };
    let mut text = vec![format!("$ {program} {}", case.args.join(" "))];
    text.extend(o.err.lines().map(|l| format!("! {}", timeless(l, dir)).trim_end().to_string()));
    text.extend((after.iter()).filter(|(p, _)| !before.contains_key(*p)).map(|(p, _)| format!("+ {}", name(p))));
    text.extend((before.keys()).filter(|p| !after.contains_key(*p)).map(|p| format!("- {}", name(p))));
    text.extend((before.iter()).filter(|(p, k)| after.get(*p).is_some_and(|a| a != *k)).map(|(p, _)| format!("* {}", name(p))));
    if case.code != 0 {
        text.push(format!("? {}", code.unwrap_or(-1)));
    }
    (text, faults)
}

/// A path without numbers that differ from run to run.
fn name(path: &Path) -> String {
    let text = path.display().to_string();
    match text.split_once(".tmp-") {
        Some((before, after)) => {
            format!("{before}.tmp-N{}", after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-'))
        }
        None => text,
    }
}

/// A line without times, and without the folder it happened in.
fn timeless(line: &str, dir: &Path) -> String {
    if let Some((what, _)) = line.split_once("free memory of this machine") {
        return format!("{what}free memory of this machine N");
    }
    let line = line.replace(&dir.display().to_string(), "DIR");
    let words: Vec<&str> = line.split(' ').collect();
    let number = |w: &str| w.parse::<f64>().is_ok();
    let unit = |i: usize| words.get(i + 1).map_or("", |u| u.trim_end_matches([',', ';']));
    let timed = |i: usize| number(words[i]) && matches!(unit(i), "s" | "tok/s");
    let words = (0..words.len()).map(|i| if timed(i) { "N" } else { words[i] });
    keyless(&name(Path::new(&words.collect::<Vec<_>>().join(" "))))
}

/// A text without the key of an entry of the cache, 40 hex digits that differ with every change of the program.
fn keyless(text: &str) -> String {
    let is_key = |part: &str| part.len() == 40 && part.bytes().all(|b| b.is_ascii_hexdigit());
    text.split('/').map(|part| if is_key(part) { "KEY" } else { part }).collect::<Vec<_>>().join("/")
}

/// Runs a list of cases and compares all that they say with the file of their snapshots.
pub fn group(name: &str, cases: Vec<Case>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/bad/{name}.txt"));
    let mut got = String::new();
    let mut faults = vec![];
    for (i, case) in cases.iter().enumerate() {
        let dir = scratch(&format!("{name}/{i}"));
        let (lines, wrong) = judge(case, &dir);
        clean(&dir);
        let large = case.large.map_or(String::new(), |why| format!(" (not limited: {why})"));
        got += &format!("# {}{large}\n{}\n\n", case.name, lines.join("\n"));
        faults.extend(wrong.into_iter().map(|w| format!("{}: {w}", case.name)));
    }
    let want = fs::read_to_string(&file).unwrap_or_default();
    if std::env::var_os("ISOBIT_BLESS").is_some() {
        fs::write(&file, &got).unwrap();
    } else {
        faults.extend(differences(&want, &got));
    }
    if !faults.is_empty() {
        println!("tests/bad/{name}.txt:\n{}\n(ISOBIT_BLESS=1 accepts other words)", faults.join("\n"));
        // A panic's backtrace would make this process too large to measure the groups that follow.
        std::panic::resume_unwind(Box::new("bad inputs"));
    }
}

/// The cases of two snapshots that differ.
pub fn differences(want: &str, got: &str) -> Vec<String> {
    let parts = |text: &str| -> BTreeMap<String, String> {
        let cases = text.split("\n\n").filter(|c| !c.trim().is_empty());
        cases.map(|c| (c.lines().next().unwrap_or_default().to_string(), c.trim_end().to_string())).collect()
    };
    let (want, got) = (parts(want), parts(got));
    let mut out = vec![];
    for name in want.keys().chain(got.keys().filter(|k| !want.contains_key(*k))) {
        match (want.get(name), got.get(name)) {
            (Some(w), Some(g)) if w == g => {}
            (w, g) => {
                let show = |t: Option<&String>| t.map_or("(nothing)", |t| t).to_string();
                out.push(format!("--- expected\n{}\n--- found\n{}", show(w), show(g)));
            }
        }
    }
    out
}

/// A pipe with a name.
pub fn pipe(path: &Path) {
    let c = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a text that ends with zero.
    assert_eq!(unsafe { libc::mkfifo(c.as_ptr(), 0o644) }, 0);
}
