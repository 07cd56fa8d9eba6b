//! Runs a fuzz target, or shows a failure again; the library says how.

use isobit_fuzz::driver::{self, Counting, Until};
use isobit_fuzz::{TARGETS, Target, find};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// As small as the stack of any thread that meets such inputs.
const STACK: usize = 2 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let work = std::thread::Builder::new().stack_size(STACK).spawn(move || work(&args));
    match work.map(|t| t.join()) {
        Ok(Ok(code)) => code,
        _ => ExitCode::from(101),
    }
}

fn work(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let option = |name: &str| words.iter().position(|w| *w == name).and_then(|i| words.get(i + 1)).copied();
    let number = |name: &str| option(name).and_then(|n| n.parse::<u64>().ok());
    let until = number("--count").map(Until::Count).unwrap_or(Until::Seconds(number("--seconds").unwrap_or(60)));
    let seed = number("--seed").unwrap_or(1);
    match words.as_slice() {
        ["child", name, ..] => known(name, |t| {
            driver::child(&t, seed, until, Path::new(option("--at-work").unwrap_or("at-work")));
            ExitCode::SUCCESS
        }),
        ["replay", name, files @ ..] => known(name, |t| {
            driver::replay(&t, &files.iter().map(PathBuf::from).collect::<Vec<_>>());
            ExitCode::SUCCESS
        }),
        [name, ..] => known(name, |t| {
            let program = std::env::current_exe().unwrap_or_default();
            match driver::fuzz(&program, &t, seed, until, &driver::corpus_dir(t.name), &std::env::temp_dir()) {
                Ok(done) => {
                    println!("{done}");
                    ExitCode::SUCCESS
                }
                Err(f) => {
                    eprintln!("{}\nkept: {}\nagain: {}", f.what, f.file.display(), f.command);
                    ExitCode::FAILURE
                }
            }
        }),
        [] => known("", |_| ExitCode::SUCCESS),
    }
}

fn known(name: &str, run: impl FnOnce(Target) -> ExitCode) -> ExitCode {
    match find(name) {
        Some(t) => run(t),
        None => {
            let names: Vec<&str> = TARGETS.iter().filter(|t| t.listed).map(|t| t.name).collect();
            eprintln!("usage: isobit-fuzz TARGET [--seconds N | --count N] [--seed N]\n       isobit-fuzz replay TARGET FILE...");
            eprintln!("targets: {}", names.join(" "));
            ExitCode::from(2)
        }
    }
}
