//! A process that is killed while it writes leaves nothing half-written at the destination, and the next one works.
//!
//! A limit on the size of files ends the child inside the write that crosses it, without a chance to clean up: SIGKILL at a
//! point that is the same every time. One test sends SIGKILL itself.

use super::model::Model;
use super::{Beyond, Child, Outcome, PROGRAM, clean, run, scratch};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const COMPILE: &str = "compile model -o a.isobit --target x86-64-v3";
const CACHED: &str = "run model --cache-dir c --target x86-64-v3 --threads 1 -n 2 --ids 2,105";

fn isobit(dir: &Path, args: &str, child: Child) -> Outcome {
    run(PROGRAM, &args.split(' ').map(String::from).collect::<Vec<_>>(), dir, child)
}

/// Ends inside the write that makes a file longer than this.
fn killed(dir: &Path, args: &str, bytes: u64) {
    let o = isobit(dir, args, Child { files: Some((bytes, Beyond::Kill)), ..Child::default() });
    assert_eq!(o.signal(), Some(libc::SIGXFSZ), "{args} with {bytes} bytes: {:?} {}", o.code(), o.err);
}

fn works(dir: &Path, args: &str) -> Outcome {
    let o = isobit(dir, args, Child::default());
    assert_eq!(o.code(), Some(0), "{args}: {}", o.err);
    o
}

/// Names in a folder.
fn names(dir: &Path) -> Vec<String> {
    let mut out: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    out.sort();
    out
}

/// Contents of all files below a folder.
fn contents(dir: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut out = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(d) = todo.pop() {
        for e in fs::read_dir(d).unwrap() {
            let p = e.unwrap().path();
            if p.is_dir() {
                todo.push(p);
            } else {
                out.insert(p.strip_prefix(dir).unwrap().into(), blake3::hash(&fs::read(&p).unwrap()));
            }
        }
    }
    out
}

#[test]
fn while_an_artifact_is_written() {
    let dir = scratch("kill-artifact");
    Model::tiny(&dir);
    let artifact = dir.join("a.isobit");
    let leftover = |n: &String| n.starts_with(".a.isobit.tmp-");
    // At the first byte, and in the middle of a file.
    for bytes in [1, 100_000] {
        killed(&dir, COMPILE, bytes);
        assert!(!artifact.exists());
    }
    let left = names(&dir);
    assert_eq!(left.iter().filter(|n| leftover(n)).count(), 2, "{left:?}");
    assert!(left.iter().all(|n| n == "model" || leftover(n)), "{left:?}");
    works(&dir, COMPILE);
    let good = contents(&artifact);
    // An artifact that is there stays what it is until another is whole.
    killed(&dir, &COMPILE.replace("v3", "v4"), 100_000);
    assert!(contents(&artifact) == good);
    works(&dir, &COMPILE.replace("v3", "v4"));
    assert!(contents(&artifact) != good);
    works(&dir, COMPILE);
    assert!(contents(&artifact) == good);
    clean(&dir);
}

#[test]
fn while_the_cache_is_written() {
    let dir = scratch("kill-cache");
    Model::tiny(&dir);
    killed(&dir, CACHED, 100_000);
    assert!(names(&dir.join("c")).iter().all(|n| n.starts_with('.')), "{:?}", names(&dir.join("c")));
    let first = works(&dir, CACHED);
    assert!(first.err.contains("; compiled in") && !first.err.contains("warning"), "{}", first.err);
    let second = works(&dir, CACHED);
    assert!(second.err.contains("; cached in") && !second.err.contains("warning"), "{}", second.err);
    assert_eq!(first.out, second.out);
    clean(&dir);
}

#[test]
fn while_logits_are_written() {
    let dir = scratch("kill-logits");
    Model::tiny(&dir);
    let args = format!("{CACHED} --logits l");
    works(&dir, CACHED);
    killed(&dir, &args, 3_000);
    assert!(!dir.join("l").exists());
    works(&dir, &args);
    let good = fs::read(dir.join("l")).unwrap();
    killed(&dir, &args, 3_000);
    assert!(fs::read(dir.join("l")).unwrap() == good);
    clean(&dir);
}

#[test]
fn while_a_model_is_quantized() {
    let dir = scratch("kill-quantize");
    super::quantize::plain(&dir);
    for bytes in [1, 20_000] {
        killed(&dir, super::quantize::RUN, bytes);
        assert!(!dir.join("q").exists());
    }
    works(&dir, super::quantize::RUN);
    works(&dir, &super::quantize::RUN.replace("-o q", "-o again"));
    assert!(contents(&dir.join("q")) == contents(&dir.join("again")));
    clean(&dir);
}

/// Killed from outside as soon as anything is there.
#[test]
fn by_somebody_else() {
    let dir = scratch("kill-outside");
    Model::new(&dir);
    let args: Vec<&str> = COMPILE.split(' ').collect();
    let mut child =
        Command::new(PROGRAM).args(args).current_dir(&dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = || {
        // The folder is tried before the work, too; only a file in it counts.
        let temporary = names(&dir).into_iter().find(|n| n.starts_with(".a.isobit"));
        temporary.is_some_and(|t| fs::read_dir(dir.join(t)).is_ok_and(|mut d| d.next().is_some()))
    };
    while !begun() {
        assert!(child.try_wait().unwrap().is_none(), "it was not seen writing");
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // It may have been quick enough to finish; half of it there must not be.
    if dir.join("a.isobit").exists() {
        works(&dir, "run a.isobit --threads 1 -n 1 --ids 2,105");
    }
    works(&dir, COMPILE);
    works(&dir, "run a.isobit --threads 1 -n 1 --ids 2,105");
    clean(&dir);
}

/// Process ids come again, in containers nearly always: what an earlier process left must not stop this one.
#[test]
fn by_a_process_of_the_same_number() {
    let dir = scratch("kill-number");
    Model::tiny(&dir);
    let child = Child { leftover: Some(".a.isobit.tmp-PID-0"), ..Child::default() };
    let o = isobit(&dir, COMPILE, child);
    assert_eq!(o.code(), Some(0), "{}", o.err);
    let left = names(&dir);
    assert!(left.iter().any(|n| n.starts_with(".a.isobit.tmp-") && n.ends_with("-0")), "the plant is not there: {left:?}");
    clean(&dir);
}
