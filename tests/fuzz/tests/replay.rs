//! Every target: its corpus again and a fixed number of inputs made from it, the same each time; with the feature
//! `full-tests` for a minute. Faults planted in targets of their own are found, made smaller and kept.

use isobit_fuzz::driver::{Until, corpus, fuzz, words};
use isobit_fuzz::{TARGETS, find};
use std::fs;
use std::path::{Path, PathBuf};

const PROGRAM: &str = env!("CARGO_BIN_EXE_isobit-fuzz");

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Inputs, or a minute.
fn run(name: &str, count: u64) {
    let until = if cfg!(feature = "full-tests") { Until::Seconds(60) } else { Until::Count(count) };
    let target = find(name).unwrap();
    assert!(!corpus(name).is_empty() && words(name).len() > 10, "{name} has no corpus or no dictionary");
    let keep = isobit_fuzz::driver::corpus_dir(name);
    match fuzz(Path::new(PROGRAM), &target, 1, until, &keep, &scratch(name)) {
        Ok(done) => println!("{done}"),
        Err(f) => panic!("{name}: {}\nkept: {}\nagain: {}", f.what, f.file.display(), f.command),
    }
}

macro_rules! targets {
    ($($name:ident: $count:expr),* $(,)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), $count);
        })*

        #[test]
        fn every_target_is_run() {
            let listed: Vec<&str> = TARGETS.iter().filter(|t| t.listed).map(|t| t.name).collect();
            assert_eq!(listed, [$(stringify!($name)),*]);
        }
    };
}

targets! {
    graph: 4000,
    kernel: 4000,
    plan: 4000,
    safetensors: 4000,
    config: 4000,
    text: 500,
    tokenizer: 300,
    template: 300,
    manifest: 3000,
    trace: 4000,
    command: 3000,
}

/// A planted fault: found, small, kept, and it fails again.
fn planted(name: &str, says: &str, smallest: usize) {
    let dir = scratch(name);
    let target = find(name).unwrap();
    let f = fuzz(Path::new(PROGRAM), &target, 1, Until::Count(200_000), &dir.join("keep"), &dir).expect_err("it is found");
    assert!(f.what.contains(says), "{}", f.what);
    let kept = fs::read(&f.file).unwrap();
    assert!(kept.len() <= smallest, "{} bytes: {kept:?}", kept.len());
    assert!(f.command.contains(f.file.to_str().unwrap()) && f.command.contains(name));
    let again = std::process::Command::new(PROGRAM).args(["replay", name]).arg(&f.file).output().unwrap();
    assert!(!again.status.success());
}

#[test]
fn a_planted_panic_is_found() {
    planted("planted_panic", "a planted panic", 4);
}

#[test]
fn a_planted_overflow_of_the_stack_is_found() {
    planted("planted_overflow", "stack", 4);
}

#[test]
fn a_planted_endless_loop_is_found() {
    planted("planted_loop", "does not end", usize::MAX);
}

#[test]
fn a_planted_waste_of_memory_is_found() {
    planted("planted_memory", "MB, more than", 4);
}

#[test]
fn inputs_are_a_function_of_the_seed() {
    use isobit_fuzz::mutate::{Random, mutate};
    let corpus = [b"a = 1\nb = 2\n".to_vec(), b"(x)".to_vec()];
    let list = |seed| {
        (0..200)
            .map(|_| 0)
            .scan(Random(seed), |r, _: i32| Some(mutate(r, &corpus, &[b"(".to_vec(), b"end".to_vec()])))
            .collect::<Vec<_>>()
    };
    assert_eq!(list(1), list(1));
    assert_ne!(list(1), list(2));
}
