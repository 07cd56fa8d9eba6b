//! The table of bad inputs. Each case is a line of one of the lists in `tests/bad/`: what is done to a good input, and the
//! command that meets it. For every case the program must
//!
//! - end with the exit code that the case states, never by a panic or a signal;
//! - say exactly one error, in the words that stand in `tests/bad/GROUP.txt` (`ISOBIT_BLESS=1` writes what came out);
//! - print nothing to standard output, and leave no file behind that the snapshot does not name;
//! - need less than 100 ms of processor time, and less than 64 MB beyond what it needs to start, unless the case says
//!   what large work it asks for.
//!
//! To add a case, add it to a list and run with `ISOBIT_BLESS=1`. A new subcommand gets a file of its own in `tests/bad/`.

#![cfg(feature = "llvm")]

mod bad;

#[test]
fn safetensors() {
    bad::group("safetensors", bad::safetensors::cases());
}

#[test]
fn checkpoints() {
    bad::group("checkpoints", bad::checkpoints::cases());
}

#[test]
fn configurations() {
    bad::group("config", bad::config::cases());
}

#[test]
fn tokenizers_and_templates() {
    bad::group("text", bad::text::cases());
}

#[test]
fn values_that_are_not_finite() {
    bad::group("values", bad::values::cases());
}

#[test]
fn artifacts() {
    bad::group("artifacts", bad::artifacts::cases());
}

#[test]
fn measurements() {
    bad::group("bench", bad::bench::cases());
}

#[test]
fn artifacts_of_garbage() {
    bad::group("garbage", bad::garbage::cases());
}

#[test]
fn places() {
    bad::group("places", bad::places::cases());
}

#[test]
fn quantizing() {
    bad::group("quantize", bad::quantize::cases());
}

#[test]
fn inspecting() {
    bad::group("inspect", bad::inspect::cases());
}

#[test]
fn passes_over_text() {
    bad::group("opt", bad::opt::cases());
}

#[test]
fn explaining_and_the_doctor() {
    bad::group("explain", bad::explain::cases());
}

/// Its length is a promise.
#[test]
fn the_table_is_long() {
    let groups = [
        bad::safetensors::cases(),
        bad::checkpoints::cases(),
        bad::config::cases(),
        bad::text::cases(),
        bad::values::cases(),
        bad::artifacts::cases(),
        bad::garbage::cases(),
        bad::places::cases(),
        bad::quantize::cases(),
        bad::inspect::cases(),
        bad::opt::cases(),
        bad::explain::cases(),
    ];
    for cases in &groups {
        let names: std::collections::BTreeSet<&String> = cases.iter().map(|c| &c.name).collect();
        assert_eq!(names.len(), cases.len(), "two cases have one name: {names:?}");
    }
    assert!(groups.iter().map(Vec::len).sum::<usize>() >= 60);
}
