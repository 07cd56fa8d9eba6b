//! `--weights random:SEED`: a folder with a config.json alone runs; two processes agree, two seeds do not, the interpreter
//! and the host's code give the same bits; an artifact keeps the seed; and what cannot be is refused.

mod common;

use std::path::Path;
use std::process::Command;

/// Runs isobit; exit code, standard output, standard error.
fn isobit(args: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_isobit")).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

/// Runs ids, and returns what was printed and the bytes of all logits.
fn run(model: &Path, more: &[&str], logits: &Path) -> (String, Vec<u8>) {
    let fixed =
        ["run", model.to_str().unwrap(), "--ids", "2,5,77,900", "-n", "4", "--ignore-eos", "--logits", logits.to_str().unwrap()];
    let (code, out, err) = isobit(&[&fixed, more].concat());
    assert_eq!(code, Some(0), "{more:?}: {err}");
    let bytes = std::fs::read(logits).unwrap();
    std::fs::remove_file(logits).unwrap();
    (out, bytes)
}

#[test]
fn a_configuration_is_enough() {
    for bits in [None, Some(4)] {
        let dir = common::random::folder(&format!("random-{bits:?}"), |c| {
            if let Some(b) = bits {
                c["quantization"] = serde_json::json!({"bits": b, "group_size": 32});
            }
        });
        let (file, cache, artifact) = (dir.join("logits"), dir.join("cache"), dir.join("a.isobit"));
        let cached = ["--weights", "random:1", "--cache-dir", cache.to_str().unwrap()];
        let first = run(&dir, &cached, &file);
        let again = run(&dir, &cached, &file);
        assert_eq!(first, again, "two processes");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
        // Programs do not depend on weights, so another seed needs no other entry.
        let other = run(&dir, &["--weights", "random:2", "--cache-dir", cache.to_str().unwrap()], &file);
        assert_ne!(first.1, other.1, "two seeds");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
        let interpreted = run(&dir, &["--weights", "random:1", "--target", "interp", "--prefill-chunk", "1"], &file);
        assert_eq!(first, interpreted, "the interpreter");
        // Ids come as ids: four of them, as `--ids` takes them.
        let ids: Vec<u32> = first.0.trim().split(',').map(|w| w.parse().unwrap()).collect();
        assert_eq!(ids.len(), 4, "{}", first.0);

        let (dir_text, out) = (dir.to_str().unwrap(), artifact.to_str().unwrap());
        let (code, _, err) = isobit(&["compile", dir_text, "--weights", "random:1", "-o", out]);
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(run(&artifact, &[], &file), first, "the artifact");
        let (code, _, err) = isobit(&["run", out, "--weights", "random:2", "--ids", "2"]);
        assert!(code == Some(1) && err.contains("error[E0767]: the artifact was compiled with --weights random:1"), "{err}");
        let (code, table, err) = isobit(&["inspect", dir_text, "--weights", "random:1"]);
        assert!(code == Some(0) && table.contains("packed weights"), "{err}");
        let (code, _, err) = isobit(&["run", dir_text, "--weights", "random:1", "--no-cache", "Hello"]);
        assert!(code == Some(2) && err.contains("error[E0773]"), "{err}");
        let (code, _, err) = isobit(&["run", dir_text, "--no-cache", "--ids", "2"]);
        assert!(code == Some(1) && err.contains("error[E0214]"), "without weights: {err}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn seeds_are_numbers() {
    for bad in ["random", "random:", "random:-1", "random:x", "random:18446744073709551616", "zeros"] {
        let (code, _, err) = isobit(&["run", "demo", "--weights", bad, "--ids", "2"]);
        assert!(code == Some(2) && err.contains("random:SEED"), "{bad}: {err}");
    }
    // A model with a tokenizer takes text.
    let (code, out, err) = isobit(&["run", "demo", "--weights", "random:7", "--no-cache", "-n", "3", "--ignore-eos", "Hello"]);
    assert_eq!((code, out.is_empty()), (Some(0), false), "{err}");
}
