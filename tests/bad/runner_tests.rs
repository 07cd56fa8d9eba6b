//! Faults planted for the runner itself: each must be seen.

use super::{Case, case, clean, differences, judge, scratch};
use std::fs;
use std::path::Path;

/// A shell in place of isobit.
fn shell(script: &str) -> Case {
    let mut c = case("plant", |_| (), "");
    c.program = "sh";
    c.args = vec!["-c".into(), script.into()];
    c
}

/// What is wrong with it.
fn faults(name: &str, case: &Case) -> String {
    let dir = scratch(&format!("plant-{name}"));
    let (_, faults) = judge(case, &dir);
    clean(&dir);
    faults.join("; ")
}

#[test]
fn a_good_end_is_no_fault() {
    assert_eq!(faults("good", &shell("echo 'error[E0001]: no' >&2; exit 1")), "");
    assert_eq!(faults("usage", &shell("echo 'error: no' >&2; exit 2").usage()), "");
    assert_eq!(faults("warning", &shell("echo 'warning[E0001]: so' >&2; echo data").warns()), "");
}

#[test]
fn a_slow_case_is_seen() {
    let slow = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo 'error: no' >&2; exit 1";
    assert!(faults("slow", &shell(slow)).contains("of processor time"));
    assert_eq!(faults("slow-large", &shell(slow).large("it counts")), "");
    // Waiting is not computing.
    assert_eq!(faults("waits", &shell("sleep 0.3; echo 'error: no' >&2; exit 1")), "");
}

#[test]
fn a_case_that_takes_memory_is_seen() {
    let base = super::start_peak() >> 20;
    // `tail` keeps a line to its end.
    let takes = |mb: u64| format!("head -c {mb}m /dev/zero | tail -n 1 | wc -c >&2; echo 'error: no' >&2; exit 1");
    let seen = |mb: u64| faults(&format!("memory-{mb}"), &shell(&takes(mb))).contains("MB beyond the start");
    assert!(seen(base + 80));
    assert!(!seen(base));
}

#[test]
fn panics_signals_and_codes_are_seen() {
    assert!(faults("panic", &shell("echo 'error: no' >&2; exit 101")).contains("panics"));
    assert!(faults("signal", &shell("echo 'error: no' >&2; kill -SEGV $$")).contains("ends by signal 11"));
    assert!(faults("code", &shell("echo 'error: no' >&2; exit 2")).contains("not 1"));
    assert!(faults("success", &shell("echo 'error: no' >&2")).contains("not 1"));
}

#[test]
fn a_second_error_none_and_output_are_seen() {
    assert!(faults("two", &shell("echo 'error: a' >&2; echo 'error[E0002]: b' >&2; exit 1")).contains("says 2 errors"));
    assert!(faults("none", &shell("echo 'oh no' >&2; exit 1")).contains("says 0 errors"));
    assert!(faults("output", &shell("echo x; echo 'error: a' >&2; exit 1")).contains("prints"));
    let mut prints = shell("echo x; echo 'error: a' >&2; exit 1").prints();
    assert_eq!(faults("prints", &prints), "");
    prints.args[1] = "echo 'error: a' >&2; exit 1".into();
    assert!(faults("prints-not", &prints).contains("prints"));
    assert!(faults("silent", &shell("true").warns()).contains("warns of nothing"));
}

#[test]
fn files_left_behind_are_seen() {
    let make = |d: &Path| {
        fs::write(d.join("a"), "1").unwrap();
        fs::write(d.join("b"), "1").unwrap();
    };
    let mut c = shell("echo more >> a; rm b; mkdir -p c; : > c/.x.tmp-17-0; echo 'error: no' >&2; exit 1");
    c.make = Box::new(make);
    let dir = scratch("plant-files");
    let (lines, _) = judge(&c, &dir);
    clean(&dir);
    assert_eq!(lines[1..], ["! error: no", "+ c", "+ c/.x.tmp-N", "- b", "* a", "? 1"]);
}

#[test]
fn other_words_are_seen() {
    let want = "# a\n! error: x\n? 1\n\n# b\n! error: y\n? 1\n\n";
    assert!(differences(want, want).is_empty());
    assert_eq!(differences(want, &want.replace('y', "z")).len(), 1);
    assert_eq!(differences(want, "# a\n! error: x\n? 1\n\n").len(), 1, "a case went away");
    assert_eq!(differences("", want).len(), 2, "cases that nobody has read");
}
