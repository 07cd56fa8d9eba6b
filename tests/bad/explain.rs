//! `isobit explain` and `isobit doctor`: what there is no word for, and words that they do not take.

use super::{Case, Child, case};

/// All cases.
pub fn cases() -> Vec<Case> {
    let asked = |name: &str, args: &str| case(name, |_| (), args).usage();
    let full = Child { full_output: true, ..Child::default() };
    let mut long = asked("a-word-of-1000-letters", "explain");
    long.args.push("e".repeat(1_000));
    vec![
        asked("an-unknown-code", "explain E9999"),
        asked("a-code-without-its-letter", "explain 0436"),
        asked("a-code-with-more-behind-it", "explain E0436:"),
        asked("an-unknown-pass", "explain fuze"),
        asked("an-unknown-rule", "explain norm-into-quantise"),
        asked("an-empty-word", "explain "),
        asked("two-words", "explain fold cse"),
        asked("an-unknown-code-as-json", "explain E9999 --json"),
        long,
        case("explaining-without-room", |_| (), "explain E0436").child(full),
        asked("a-doctor-for-a-model", "doctor model"),
        asked("a-doctor-who-is-told-what-to-find", "doctor --json=works"),
        case("a-doctor-without-room", |_| (), "doctor").child(full),
    ]
}
