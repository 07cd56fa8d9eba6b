//! Every diagnostic code is explained, no explanation is left over, and a code is raised by the sources that its section
//! names and by no others, so that it has one meaning.

use isobit::explain::{self, Section};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Sources of all crates, without tests: path and text.
fn sources() -> Vec<(String, String)> {
    let mut out = vec![];
    let mut todo: Vec<PathBuf> =
        ["src", "ir/src", "passes/src", "codegen/src", "runtime/src", "models/src"].map(PathBuf::from).into();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(root().join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            let name = path.to_str().unwrap().to_string();
            if root().join(&path).is_dir() {
                todo.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = std::fs::read_to_string(root().join(&path)).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_string();
                out.push((name, code));
            }
        }
    }
    out.sort();
    assert!(out.len() > 100, "the search for sources is broken");
    out
}

/// Codes in quotes, `"E0101"`, with the files that hold them.
fn raised(sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in sources {
        for (i, _) in text.match_indices("\"E") {
            let code = text.get(i + 1..i + 6).filter(|c| c[1..].bytes().all(|b| b.is_ascii_digit()));
            if let Some(code) = code.filter(|_| text[i + 6..].starts_with('"')) {
                out.entry(code.into()).or_default().insert(file.clone());
            }
        }
    }
    out
}

/// What is wrong with these explanations of these sources.
fn faults(sections: &[Section], sources: &[(String, String)]) -> Vec<String> {
    let raised = raised(sources);
    let mut explained = BTreeSet::new();
    let mut bad = vec![];
    for s in sections {
        for e in &s.entries {
            if !explained.insert(e.code.clone()) {
                bad.push(format!("{} is explained twice", e.code));
            }
            if e.text.is_empty() || e.meaning.is_empty() || e.meaning.ends_with('.') {
                bad.push(format!("{}: the meaning is a phrase without full stop, below it stand one to four lines", e.code));
            }
            match raised.get(&e.code) {
                None => bad.push(format!("{} is explained and nothing raises it", e.code)),
                Some(files) => {
                    for f in files.iter().filter(|f| !s.sources.iter().any(|p| f.starts_with(p.as_str()))) {
                        bad.push(format!("{} belongs to \"{}\", and {f} raises it too", e.code, s.title));
                    }
                }
            }
        }
    }
    for (code, files) in raised.iter().filter(|(c, _)| !explained.contains(*c)) {
        bad.push(format!("{code} of {files:?} has no entry in src/explain/codes.txt"));
    }
    bad
}

#[test]
fn every_code_has_one_meaning_and_an_explanation() {
    let sections = explain::parse(explain::TEXT).unwrap();
    assert!(sections.iter().map(|s| s.entries.len()).sum::<usize>() > 200);
    let bad = faults(&sections, &sources());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn planted_faults_are_seen() {
    let sections = || explain::parse(explain::TEXT).unwrap();
    let sources = sources();
    let with = |file: &str, line: &str| {
        let mut s = sources.clone();
        s.push((file.into(), line.into()));
        faults(&sections(), &s)
    };
    let bad = with("runtime/src/new.rs", "Diagnostic::new(\"E0999\", \"x\")");
    assert_eq!(bad, ["E0999 of {\"runtime/src/new.rs\"} has no entry in src/explain/codes.txt"]);
    let bad = with("ir/src/graph/verify/new.rs", "Diagnostic::new(\"E0110\", \"x\")");
    assert_eq!(bad.len(), 1);
    assert!(bad[0].ends_with("and ir/src/graph/verify/new.rs raises it too"), "{bad:?}");
    let more = format!("{}E0998 nothing\n  at all\nE0101 again\n  x\nE0997 no text\n", explain::TEXT);
    let bad = faults(&explain::parse(&more).unwrap(), &sources).join("\n");
    for want in ["E0998 is explained and nothing raises it", "E0101 is explained twice", "E0997: the meaning"] {
        assert!(bad.contains(want), "{want}: {bad}");
    }
    for (text, line) in [("E0101 x", "line 1"), ("== A\nE01 x", "line 2"), ("== A\n\nE0101", "line 3")] {
        assert!(explain::parse(text).unwrap_err().starts_with(line), "{text}");
    }
}

#[test]
fn usage_is_what_exits_with_two() {
    let is = |code| explain::is_usage(&ir::diag::Diagnostic::new(code, ""));
    assert!(is("E0750") && is("E0701") && !is("E0754") && !is("E0999"));
}
