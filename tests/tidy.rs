//! The shape of the project, checked: which crate may depend on which, where each large library may be used, what the core
//! crates may not touch, that every source file says what it promises, and that no error code means two things.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names under `[dependencies]` and `[dev-dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut out: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
    let mut section = None;
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = match name.trim_end_matches(']') {
                "dependencies" => Some("normal"),
                "dev-dependencies" => Some("dev"),
                "build-dependencies" => Some("build"),
                _ => None,
            };
        } else if let (Some(s), Some((name, _))) = (section, line.split_once(['=', '.']))
            && !line.starts_with('#')
        {
            out.entry(s).or_default().insert(name.trim().trim_matches('"').to_string());
        }
    }
    out
}

const CRATES: [&str; 5] = ["ir", "passes", "codegen", "runtime", "models"];

fn wrong_dependencies(manifests: &BTreeMap<String, String>) -> Vec<String> {
    let mut bad = vec![];
    // The only home of each large library; the root package sees them through the crates alone.
    let homes =
        [("egg", "passes"), ("inkwell", "codegen"), ("cudarc", "runtime"), ("tokenizers", "models"), ("minijinja", "models")];
    for (name, text) in manifests {
        let deps = dependencies(text);
        let normal = deps.get("normal").cloned().unwrap_or_default();
        if name != "root" {
            let allowed: &[&str] = if name == "ir" { &[] } else { &["ir"] };
            for c in CRATES {
                if normal.contains(c) && !allowed.contains(&c) {
                    bad.push(format!("{name} depends on {c}"));
                }
            }
        }
        for (lib, home) in homes {
            let everywhere = deps.values().any(|d| d.contains(lib));
            if everywhere && name != home {
                bad.push(format!("{name} depends on {lib}, whose home is {home}"));
            }
        }
        if deps.contains_key("build") {
            bad.push(format!("{name} has a build script dependency"));
        }
    }
    bad
}

fn manifests() -> BTreeMap<String, String> {
    let mut m: BTreeMap<String, String> =
        CRATES.iter().map(|c| (c.to_string(), read(&root().join(c).join("Cargo.toml")))).collect();
    m.insert("root".into(), read(&root().join("Cargo.toml")));
    m
}

#[test]
fn dependencies_point_one_way() {
    assert_eq!(wrong_dependencies(&manifests()), Vec::<String>::new());
}

#[test]
fn a_dependency_the_wrong_way_is_seen() {
    let mut m = manifests();
    m.get_mut("ir").unwrap().push_str("\n[dependencies]\npasses.workspace = true\n");
    m.get_mut("runtime").unwrap().push_str("\n[dev-dependencies]\negg = \"0.11\"\n");
    let bad = wrong_dependencies(&m);
    assert!(bad.contains(&"ir depends on passes".to_string()), "{bad:?}");
    assert!(bad.contains(&"runtime depends on egg, whose home is passes".to_string()), "{bad:?}");
}

/// Rust sources below a folder, without build products.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for p in entries {
        let name = p.file_name().unwrap().to_string_lossy().into_owned();
        if p.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(&p, out);
            }
        } else if name.ends_with(".rs") {
            out.push(p);
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let mut files = vec![];
    sources(root(), &mut files);
    files.iter().map(|p| (p.strip_prefix(root()).unwrap().to_string_lossy().into_owned(), read(p))).collect()
}

/// Words that make a result depend on hashing, time, files or the environment.
const FORBIDDEN: [&str; 6] = ["HashMap", "HashSet", "Instant", "SystemTime", "std::env", "std::fs"];

fn forbidden(file: &str, text: &str) -> Vec<String> {
    let core = ["ir/src/", "passes/src/", "codegen/src/"].iter().any(|c| file.starts_with(c));
    let code = text.lines().map(|l| l.split("//").next().unwrap_or(""));
    code.enumerate()
        .flat_map(|(i, l)| FORBIDDEN.iter().filter(move |w| core && l.contains(**w)).map(move |w| (i, *w)))
        .map(|(i, w)| format!("{file}:{}: {w}", i + 1))
        .collect()
}

#[test]
fn core_crates_touch_no_clock_files_environment_or_hash_order() {
    let bad: Vec<String> = all_sources().iter().flat_map(|(f, t)| forbidden(f, t)).collect();
    assert_eq!(bad, Vec::<String>::new());
    assert_eq!(forbidden("ir/src/x.rs", "fn f() {}\nuse std::collections::HashMap;"), ["ir/src/x.rs:2: HashMap"]);
}

#[test]
fn every_file_says_what_it_promises() {
    let bad: Vec<String> = all_sources().into_iter().filter(|(_, t)| !t.starts_with("//!")).map(|(f, _)| f).collect();
    assert_eq!(bad, Vec::<String>::new());
}

#[test]
fn a_code_belongs_to_one_crate() {
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in all_sources() {
        // A test program speaks of the errors of what it tests.
        if file.starts_with("tests/") {
            continue;
        }
        let Some(owner) = file.split_once("/src/").map(|x| x.0).or(file.starts_with("src/").then_some("root")) else { continue };
        for (i, _) in text.match_indices("Diagnostic::new(") {
            let rest = text[i + 16..].trim_start();
            if let Some(code) = rest.strip_prefix('"').and_then(|r| r.get(..5)) {
                owners.entry(code.to_string()).or_default().insert(owner.to_string());
            }
        }
    }
    assert!(owners.len() > 50, "the search for codes is broken: {owners:?}");
    let shared: Vec<_> = owners.iter().filter(|(_, o)| o.len() > 1).collect();
    assert!(shared.is_empty(), "{shared:?}");
}
