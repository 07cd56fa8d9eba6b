//! Planted faults: each file of `tests/faults` plants one in a dump of the demo model, as a person would with
//! `isobit compile --from-ir`, or in its code, and names who catches it. A file has
//!
//! - `# ...`: what the fault is;
//! - `target: NAME`: whose kernels;
//! - `zero: WORDS`: tensors of the checkpoint with these words in their names hold zeros;
//! - `edit: FILE` of the dump folder, or `code: KERNEL` for its PTX; several edits follow each other;
//! - `in: WORDS`: only within the section that begins with these words, to the next `}` at its margin;
//! - `find:` and lines with `| `: the first place with these lines. `$x` is one word or part of one, `$*x` the rest of a line,
//!   the same wherever it stands; a line `...` skips lines, and what stands before it stays;
//! - `with:` and lines: what stands there instead; `%new0` to `%new9` are values of its own. None drops the lines;
//! - `rename: $x $y`: from there to the end of the section, the one for the other;
//! - `all:`: everywhere and not only at the first place;
//! - `catch: WHO CODE [WORDS]`: `verifier`, `audit`, `code`, or a check of `isobit run --check`; the finding has these words. `bisect`
//!   runs this program and the one without the fault, and is told nothing else: its exit code and the first value that differs.

use isobit::artifact::{self, OptionsEntry};
use isobit::audit::{Audit, Subject, code};
use isobit::check::{self, Check, Job};
use isobit::emit::Code;
use isobit::from_ir::Edits;
use isobit::options::CompileOptions;
use isobit::pipeline::{self, Compiled, Planned, Program, Watch};
use isobit::source::Source;
use isobit::target::{Class, Target};
use models::Checkpoint;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// A prompt of a few tokens, in a step of two and one of one.
const PROMPT: [u32; 3] = [2, 105, 911];
const CHUNK: usize = 2;
const TOKENS: usize = 1;

#[derive(Clone, Debug, Default)]
struct Edit {
    file: String,
    code: bool,
    within: String,
    find: Vec<String>,
    with: Vec<String>,
    rename: Option<(String, String)>,
    all: bool,
}

#[derive(Clone, Debug, Default)]
struct Fault {
    name: String,
    target: String,
    zero: String,
    edits: Vec<Edit>,
    catches: Vec<(String, String, String)>,
}

fn read(path: &Path) -> Fault {
    let text = std::fs::read_to_string(path).unwrap();
    let mut f = Fault { name: path.file_stem().unwrap().to_string_lossy().into_owned(), ..Fault::default() };
    let mut with = false;
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(l) = line.strip_prefix('|') {
            let e = f.edits.last_mut().unwrap();
            if with { &mut e.with } else { &mut e.find }.push(l.trim().to_string());
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{}: {line}", f.name));
        let value = value.trim().to_string();
        match key {
            "target" => f.target = value,
            "zero" => f.zero = value,
            "edit" | "code" => f.edits.push(Edit { file: value, code: key == "code", ..Edit::default() }),
            "in" => f.edits.last_mut().unwrap().within = value,
            "find" => with = false,
            "with" => with = true,
            "all" => f.edits.last_mut().unwrap().all = true,
            "rename" => {
                let (a, b) = value.split_once(' ').unwrap();
                f.edits.last_mut().unwrap().rename = Some((a.into(), b.into()));
            }
            "catch" => {
                let mut w = value.splitn(3, ' ').map(String::from);
                f.catches.push((w.next().unwrap(), w.next().unwrap(), w.next().unwrap_or_default()));
            }
            _ => panic!("{}: {line}", f.name),
        }
    }
    f
}

type Names = BTreeMap<String, String>;

/// Does a line match a pattern? Names that it binds are added.
fn matches(pattern: &str, line: &str, names: &Names) -> Option<Names> {
    fn go(p: &[char], l: &[char], names: &mut Names) -> bool {
        let Some((&c, rest)) = p.split_first() else { return l.is_empty() };
        if c != '$' {
            return l.first() == Some(&c) && go(rest, &l[1..], names);
        }
        let (star, rest) = if rest.first() == Some(&'*') { (true, &rest[1..]) } else { (false, rest) };
        let n = rest.iter().take_while(|c| c.is_ascii_alphanumeric()).count();
        let name: String = rest[..n].iter().collect();
        if star {
            names.insert(name, l.iter().collect());
            return true;
        }
        let word = l.iter().take_while(|c| c.is_ascii_alphanumeric() || "%_.-".contains(**c)).count();
        (1..=word).rev().any(|k| {
            let value: String = l[..k].iter().collect();
            if names.get(&name).is_some_and(|v| *v != value) {
                return false;
            }
            let mut tried = names.clone();
            tried.insert(name.clone(), value);
            let fits = go(&rest[n..], &l[k..], &mut tried);
            if fits {
                *names = tried;
            }
            fits
        })
    }
    let mut names = names.clone();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    go(&pattern.chars().collect::<Vec<_>>(), &line.chars().collect::<Vec<_>>(), &mut names).then_some(names)
}

fn filled(template: &str, names: &Names, n: usize) -> String {
    let mut out = template.to_string();
    // The longest name first: `$ab` is not `$a` and a b.
    for (k, v) in names.iter().rev() {
        out = out.replace(&format!("${k}"), v).replace(&format!("$*{k}"), v);
    }
    out.replace("%new", &format!("%{}", 10_000 + n))
}

/// A text with the fault in it.
fn planted(text: &str, e: &Edit, place: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = if e.within.is_empty() {
        0
    } else {
        lines.iter().position(|l| l.starts_with(&e.within)).unwrap_or_else(|| panic!("{place}: no section {}", e.within))
    };
    let end = if e.within.is_empty() { lines.len() } else { from + lines[from..].iter().position(|l| *l == "}").unwrap() };
    let segments: Vec<&[String]> = e.find.split(|l| l == "...").collect();
    let found = |segment: &[String], at: usize, names: &Names| {
        (at..end.saturating_sub(segment.len() - 1)).find_map(|i| {
            let mut names = names.clone();
            for (p, l) in segment.iter().zip(&lines[i..]) {
                names = matches(p, l, &names)?;
            }
            Some((i, names))
        })
    };
    let (mut at, mut names) = (from, Names::new());
    for s in &segments[..segments.len() - 1] {
        let (i, n) = found(s, at, &names).unwrap_or_else(|| panic!("{place}: no lines like {s:?}"));
        (at, names) = (i + s.len(), n);
    }
    let last = segments[segments.len() - 1];
    let mut out: Vec<String> = lines[..at].iter().map(|l| l.to_string()).collect();
    let mut renames: Option<(String, String)> = None;
    let mut n = 0;
    while let Some((i, bound)) = found(last, at, &names) {
        out.extend(lines[at..i].iter().map(|l| l.to_string()));
        out.extend(e.with.iter().map(|l| filled(l, &bound, n)));
        renames = e.rename.as_ref().map(|(a, b)| (filled(a, &bound, n), filled(b, &bound, n)));
        at = i + last.len();
        n += 1;
        if !e.all {
            break;
        }
    }
    assert!(n > 0, "{place}: no lines like {last:?}");
    let rest = |l: &&str| match &renames {
        None => l.to_string(),
        Some((a, b)) => {
            let word = |w: &str| w.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '%').to_string();
            l.split(' ')
                .map(|w| if word(w) == *a { w.replace(a.as_str(), b) } else { w.replace(&format!("[{a}]"), &format!("[{b}]")) })
                .collect::<Vec<_>>()
                .join(" ")
        }
    };
    out.extend(lines[at..end].iter().map(rest));
    out.extend(lines[end..].iter().map(|l| l.to_string()));
    out.join("\n") + "\n"
}

fn options(target: Target) -> CompileOptions {
    CompileOptions { targets: vec![target], ..CompileOptions::default() }
}

/// The demo model; tensors with these words in their names hold zeros.
fn checkpoint(zero: &str) -> Checkpoint {
    let ck = Source::Demo.checkpoint().unwrap();
    if zero.is_empty() {
        return ck;
    }
    let mut files: Vec<(String, Cow<'static, [u8]>)> =
        ck.files().map(|(name, bytes)| (name.to_string(), Cow::Owned(bytes.to_vec()))).collect();
    let weights = files.iter_mut().find(|f| f.0 == "model.safetensors").unwrap().1.to_mut();
    let head = u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&weights[8..8 + head]).unwrap();
    let mut n = 0;
    for (_, t) in tensors.as_object().unwrap().iter().filter(|(name, _)| name.contains(zero)) {
        let at = |i: usize| 8 + head + t["data_offsets"][i].as_u64().unwrap() as usize;
        weights[at(0)..at(1)].fill(0);
        n += 1;
    }
    assert!(n > 0, "no tensor is called {zero}");
    Checkpoint::from_memory(files).unwrap()
}

/// The dumps of the model as it is.
fn clean_dumps(target: Target) -> &'static [(String, String)] {
    static DUMPS: [OnceLock<Vec<(String, String)>>; 2] = [const { OnceLock::new() }; 2];
    DUMPS[usize::from(target.class() == Class::Gpu)].get_or_init(|| {
        let mut watch = Watch { dump: true, ..Watch::default() };
        pipeline::plan(&Source::Demo.checkpoint().unwrap(), &options(target), &[target.class()], &mut watch).unwrap();
        watch.dumps
    })
}

/// What each catcher finds: code and text.
fn findings(f: &Fault, clean: bool) -> BTreeMap<String, Vec<(String, String)>> {
    let target = Target::parse(&f.target).unwrap();
    let (ck, o) = (checkpoint(&f.zero), options(target));
    let mut out: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut planned = None;
    let edited = f.edits.iter().filter(|e| !clean && !e.code).count();
    for round in 0..=edited {
        if round == 0 && edited > 0 {
            let e = &f.edits[0];
            let text = clean_dumps(target)
                .iter()
                .find(|(p, _)| *p == e.file)
                .unwrap_or_else(|| panic!("{}: no dump {}", f.name, e.file));
            texts.insert(e.file.clone(), planted(&text.1, e, &f.name));
            continue;
        }
        let edits = Edits::of(Path::new("dumps"), texts.clone());
        let mut watch = Watch { dump: round < edited, edits, ..Watch::default() };
        let done = match pipeline::plan(&ck, &o, &[target.class()], &mut watch) {
            Ok(done) => done,
            Err(d) => {
                out.entry("verifier".into()).or_default().push((d.code.into(), d.to_string()));
                return out;
            }
        };
        if let Some(e) = f.edits.get(round).filter(|_| round < edited) {
            let text = watch.dumps.iter().find(|(p, _)| *p == e.file).unwrap_or_else(|| panic!("{}: no dump {}", f.name, e.file));
            texts.insert(e.file.clone(), planted(&text.1, e, &f.name));
        }
        planned = Some(done);
    }
    let planned = planned.unwrap();
    let plans = planned.plans[0].1.clone();
    let wanted = |who: &str| f.catches.iter().any(|c| c.0 == who);
    if wanted("code") {
        let e = &f.edits[0];
        let kernels = plans.kernels();
        let k = kernels.iter().find(|k| k.name == e.file).unwrap_or_else(|| panic!("{}: no kernel {}", f.name, e.file));
        let ptx = codegen::ptx(&[k], codegen::Target::parse(&f.target).unwrap()).unwrap().remove(0);
        let ptx = if clean { ptx } else { planted(&ptx, e, &f.name) };
        let found = code::ptx_text(&k.name, &ptx, Some(k)).1;
        out.insert(
            "code".into(),
            found.iter().map(|f| (f.kind.code().into(), format!("{} breaks {}: {}", f.place, f.breaks, f.what))).collect(),
        );
    }
    if wanted("audit") {
        let programs = [Program { target, plans: plans.clone(), code: Code::Kernels }];
        let subject = Subject {
            graph: &planned.graph,
            pinned: &planned.pinned,
            options: OptionsEntry::of(&o),
            programs: &programs,
            recorded: None,
        };
        let audit = Audit::of(&subject).unwrap();
        let all = audit.findings.iter().map(|f| (f.kind.code().to_string(), format!("{}: {}", f.place, f.what)));
        out.insert("audit".into(), all.collect());
    }
    if wanted("bisect") {
        out.insert("bisect".into(), vec![bisect(f, &ck, &o, planned.clone())]);
    }
    let checks: Vec<Check> = Check::ALL.into_iter().filter(|c| wanted(c.name())).collect();
    if !checks.is_empty() {
        let job = Job { phases: &plans, graph: &planned.graph, checkpoint: &ck, prompt: &PROMPT, tokens: TOKENS, chunk: CHUNK };
        for o in check::run(&job, &checks, &mut |_, _, _| {}).unwrap() {
            let all = o.findings.iter().map(|f| (f.code.clone(), format!("{}: {}", f.place, f.what)));
            out.insert(o.check.name().into(), all.collect());
        }
    }
    out
}

/// What `isobit bisect` says of a program and the one without the fault, from two runs: exit code and report.
fn bisect(f: &Fault, ck: &Checkpoint, o: &CompileOptions, planned: Planned) -> (String, String) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults");
    std::fs::create_dir_all(&dir).unwrap();
    // For this machine; the plan is one for all processors.
    let o = CompileOptions { targets: vec![Target::host().unwrap()], ..o.clone() };
    let write = |name: &str, planned: Planned| {
        let plans = planned.plans[0].1.clone();
        let code = isobit::emit::code(&plans.kernels(), o.targets[0], None, &mut |_, _| {}).unwrap();
        let programs = vec![Program { target: o.targets[0], plans, code }];
        let compiled = Compiled { options: o.clone(), planned, programs };
        let place = dir.join(format!("{name}.isobit"));
        let _ = std::fs::remove_dir_all(&place);
        artifact::write(&place, &compiled, ck, None, true, &mut |_, _, _| {}).unwrap();
    };
    static CLEAN: OnceLock<()> = OnceLock::new();
    CLEAN.get_or_init(|| write("clean", pipeline::plan(ck, &o, &[Class::Host], &mut Watch::default()).unwrap()));
    assert!(f.zero.is_empty(), "{}: the program without the fault is that of the demo model", f.name);
    write(&f.name, planned);
    let ids = PROMPT.map(|id| id.to_string()).join(",");
    let out = Command::new(env!("CARGO_BIN_EXE_isobit"))
        .current_dir(&dir)
        .args(["bisect", "demo", "--a", "clean.isobit", "--b", &format!("{}.isobit", f.name), "-n", "4", "--ids", &ids])
        .output()
        .unwrap();
    (out.status.code().unwrap_or(-1).to_string(), String::from_utf8(out.stdout).unwrap())
}

/// All faults, in the order of their names.
fn faults() -> Vec<Fault> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "txt"))
        .collect();
    files.sort();
    files.iter().map(|p| read(p)).collect()
}

#[test]
fn each_fault_is_caught() {
    let all = faults();
    assert!(all.len() >= 12, "the search for faults is broken");
    let mut missed = vec![];
    for f in &all {
        let found = match std::panic::catch_unwind(|| findings(f, false)) {
            Ok(found) => found,
            Err(e) => {
                missed.push(format!("{}: {:?}", f.name, e.downcast_ref::<String>()));
                continue;
            }
        };
        for (who, code, words) in &f.catches {
            let list = found.get(who).cloned().unwrap_or_default();
            if !list.iter().any(|(c, text)| c == code && text.contains(words.as_str())) {
                missed.push(format!("{}: {who} finds no {code} {words}, but {found:?}", f.name));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The catchers are silent where nothing is planted.
#[test]
fn nothing_is_caught_where_nothing_is_planted() {
    for (target, who) in [("x86-64-v3", &["audit", "parity"][..]), ("sm_121", &["audit", "races", "init", "order", "parity"])] {
        let catches = who.iter().map(|w| (w.to_string(), String::new(), String::new())).collect();
        let f = Fault { name: target.into(), target: target.into(), catches, ..Fault::default() };
        let found = findings(&f, true);
        assert_eq!(found.len(), who.len());
        assert!(found.values().all(Vec::is_empty), "{target}: {found:?}");
    }
}

#[test]
fn patterns() {
    let none = Names::new();
    let m = matches("$r = fadd $a $a", "  %1 = fadd %2 %2", &none).unwrap();
    assert_eq!((m["r"].as_str(), m["a"].as_str()), ("%1", "%2"));
    assert!(matches("$r = fadd $a $a", "%1 = fadd %2 %3", &none).is_none());
    assert_eq!(matches("load buf.$b[$i] $*rest", "load buf.v2[%3] if %4", &none).unwrap()["rest"], "if %4");
    assert_eq!(filled("$a %new1", &m, 2), "%2 %100021");
}
