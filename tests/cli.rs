//! The program as a user meets it. Transcripts in `tests/cli/*.txt` are run command by command and compared; with
//! `ISOBIT_BLESS=1` what came out is written back. A transcript has
//!
//! - `# ...`: remarks;
//! - `$ isobit ARGS [< TEXT]`: runs the program (words may be quoted; `\n` and `\xHH` in double quotes);
//! - `$ copy A B`, `$ rm PATH`, `$ write FILE TEXT`, `$ mkdir PATH`, `$ link TARGET PATH`,
//!   `$ pipe PATH`, `$ same A B`: changes and compares files;
//! - below a command: `> ` lines of standard output, `! ` lines of standard error, `? N` the exit code if it is not 0.
//!
//! Times and rates are replaced by `N`. Each transcript runs in a folder of its own; the cache is shared.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const PROGRAM: &str = env!("CARGO_BIN_EXE_isobit");

/// A fresh folder.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn cache() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| scratch("cli-cache"))
}

struct Output {
    out: String,
    err: String,
    code: i32,
}

fn isobit(dir: &Path, args: &[OsString], stdin: &[u8]) -> Output {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .current_dir(dir)
        .env("XDG_CACHE_HOME", cache())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it reads.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let o = child.wait_with_output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Output { out: text(&o.stdout), err: text(&o.stderr), code: o.status.code().unwrap_or(-1) }
}

/// Words of a command line.
fn words(line: &str) -> Vec<OsString> {
    let mut out = vec![];
    let mut chars = line.chars().peekable();
    while let Some(&c) = chars.peek() {
        if c == ' ' {
            chars.next();
            continue;
        }
        let mut word: Vec<u8> = vec![];
        let mut quote = None;
        for c in chars.by_ref() {
            match (c, quote) {
                (' ', None) => break,
                ('\'' | '"', None) => quote = Some(c),
                (c, Some(q)) if c == q => quote = None,
                (c, _) => word.extend(c.to_string().bytes()),
            }
        }
        if line.contains('"') {
            word = unescape(&word);
        }
        out.push(OsString::from_vec(word));
    }
    out
}

fn unescape(word: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(word).into_owned();
    let mut out = vec![];
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend(before.bytes());
        rest = match after.as_bytes() {
            [b'n', ..] => {
                out.push(b'\n');
                &after[1..]
            }
            [b'x', ..] => {
                out.push(u8::from_str_radix(&after[1..3], 16).unwrap());
                &after[3..]
            }
            _ => after,
        };
    }
    out.extend(rest.bytes());
    out
}

/// A line without what differs from run to run: `12.34 s` and `56 tok/s` become `N s` and `N tok/s`, JSON loses its times.
fn timeless(line: &str) -> String {
    let mut out = line.replace("\"program\":\"compiled\"", "\"program\":\"cached\"");
    if let Some((a, b)) = out.split_once("\"seconds\":{") {
        let rest = b.split_once('}').map_or("", |(_, r)| r);
        out = format!("{a}\"seconds\":{{N}}{rest}");
    }
    let words: Vec<&str> = out.split(' ').collect();
    let number = |w: &str| w.parse::<f64>().is_ok();
    let mut done = vec![];
    for (i, w) in words.iter().enumerate() {
        let unit = words.get(i + 1).map_or("", |u| u.trim_end_matches([',', ';']));
        done.push(if number(w) && (unit == "s" || unit == "tok/s") { "N" } else { w });
    }
    done.join(" ").replace("; compiled in", "; ready in").replace("; cached in", "; ready in")
}

/// Runs one command and gives its output as transcript lines.
fn command(dir: &Path, line: &str) -> Vec<String> {
    let mut w = words(line);
    let name = w.remove(0).into_string().unwrap();
    let path = |i: usize| dir.join(&w[i]);
    match name.as_str() {
        "isobit" => {
            let stdin = match w.iter().position(|x| x == "<") {
                Some(at) => w.drain(at..).nth(1).unwrap().into_vec(),
                None => vec![],
            };
            let o = isobit(dir, &w, &stdin);
            let mark = |text: &str, m: char| {
                text.lines().map(|l| format!("{m} {}", timeless(l)).trim_end().to_string()).collect::<Vec<_>>()
            };
            let mut out = mark(&o.out, '>');
            out.extend(mark(&o.err, '!'));
            if o.code != 0 {
                out.push(format!("? {}", o.code));
            }
            return out;
        }
        "copy" => copy(&path(0), &path(1)),
        "rm" if path(0).is_dir() => fs::remove_dir_all(path(0)).unwrap(),
        "rm" => fs::remove_file(path(0)).unwrap(),
        "write" => fs::write(path(0), w[1].as_encoded_bytes()).unwrap(),
        "mkdir" => fs::create_dir(path(0)).unwrap(),
        "link" => std::os::unix::fs::symlink(&w[0], path(1)).unwrap(),
        "pipe" => assert!(Command::new("mkfifo").arg(path(0)).status().unwrap().success()),
        "same" => {
            let (a, b) = (tree(&path(0)), tree(&path(1)));
            return vec![if a == b { "> the same" } else { "> different" }.into()];
        }
        _ => panic!("no command {name}"),
    }
    vec![]
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for e in fs::read_dir(from).unwrap() {
            let e = e.unwrap();
            copy(&e.path(), &to.join(e.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// All files below a folder with their contents.
fn tree(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = vec![];
    let mut todo = vec![path.to_path_buf()];
    while let Some(p) = todo.pop() {
        if p.is_dir() {
            todo.extend(fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
        } else {
            out.push((p.strip_prefix(path).unwrap().to_path_buf(), fs::read(&p).unwrap()));
        }
    }
    out.sort();
    out
}

/// Runs a transcript and compares it.
fn transcript(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cli/{name}.txt"));
    let want = fs::read_to_string(&file).unwrap();
    let dir = scratch(&format!("cli-{name}"));
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit"), &dir.join("model"));
    let mut got = String::new();
    for line in want.lines() {
        if line.starts_with(['>', '!', '?']) {
            continue;
        }
        got.push_str(&format!("{line}\n"));
        if let Some(c) = line.strip_prefix("$ ") {
            for l in command(&dir, c) {
                got.push_str(&format!("{l}\n"));
            }
        }
    }
    fs::remove_dir_all(&dir).unwrap();
    if std::env::var_os("ISOBIT_BLESS").is_some() {
        fs::write(&file, &got).unwrap();
    } else if got != want {
        let at = got.lines().zip(want.lines()).take_while(|(a, b)| a == b).count();
        let show = |t: &str| t.lines().skip(at.saturating_sub(3)).take(12).collect::<Vec<_>>().join("\n");
        panic!(
            "{name}.txt line {}:\n--- expected\n{}\n--- found\n{}\n(ISOBIT_BLESS=1 accepts it)",
            at + 1,
            show(&want),
            show(&got)
        );
    }
}

#[test]
fn help() {
    transcript("help");
}

#[test]
fn usage_errors() {
    transcript("usage");
}

#[test]
fn bad_input() {
    transcript("input");
}

#[test]
fn artifacts() {
    transcript("artifact");
}

#[test]
fn audits() {
    transcript("audit");
}

#[test]
fn checks_and_edited_dumps() {
    transcript("check");
}

#[test]
fn runs() {
    transcript("run");
}

#[test]
fn bisections() {
    transcript("bisect");
}

#[test]
fn traces() {
    transcript("trace");
}

#[test]
fn batches() {
    transcript("batch");
}

/// What prompts get together is what each gets alone, whatever the slots.
#[test]
fn a_batch_is_what_each_is_alone() {
    let dir = scratch("cli-batch-alone");
    let prompts: Vec<String> =
        (0..9).map(|i| format!("{} {}", ["The sea", "Tea", "A river in winter"][i % 3], "is ".repeat(i))).collect();
    fs::write(dir.join("prompts.txt"), prompts.join("\n")).unwrap();
    let common = ["run", "demo", "--raw", "-n", "9", "--ignore-eos", "--json"];
    let outputs = |more: &[&str], stdin: &[u8]| -> Vec<(serde_json::Value, serde_json::Value)> {
        let o = isobit(&dir, &args(&[&common[..], more].concat()), stdin);
        assert_eq!(o.code, 0, "{}", o.err);
        let all = o.out.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        all.map(|v| (v["prompt_ids"].clone(), v["generated_ids"].clone())).collect()
    };
    let alone = outputs(&[], prompts.join("\n").as_bytes());
    assert_eq!(alone.len(), 9);
    for slots in ["1", "4", "64"] {
        assert_eq!(outputs(&["--batch", "prompts.txt", "--slots", slots], b""), alone, "{slots} slots");
    }
}

#[test]
fn tokenizes() {
    transcript("tokenize");
}

#[test]
fn dumps() {
    transcript("dump");
}

#[test]
fn pages_and_pictures() {
    transcript("page");
}

#[test]
fn gaps() {
    transcript("gap");
}

#[test]
fn explains() {
    transcript("explain");
}

#[test]
fn inspects() {
    transcript("inspect");
}

#[test]
fn effective_options() {
    transcript("options");
}

#[test]
fn passes_over_text() {
    transcript("opt");
}

/// Every code and pass can be explained, alone and in the list.
#[test]
fn all_can_be_explained() {
    let dir = scratch("cli-explain-all");
    let o = isobit(&dir, &args(&["explain", "--json"]), b"");
    let all: serde_json::Value = serde_json::from_str(&o.out).unwrap();
    let list = |key: &str, name: &str| -> Vec<String> {
        all[key].as_array().unwrap().iter().map(|e| e[name].as_str().unwrap().to_string()).collect()
    };
    let names = [list("codes", "code"), list("passes", "pass"), list("rules", "rule")];
    assert!(names[0].len() > 200 && names[1].len() > 10 && names[2].len() > 40);
    let text = isobit(&dir, &args(&["explain"]), b"").out;
    for name in names.iter().flatten() {
        assert!(text.contains(&format!("  {name} ")), "{name}");
    }
    for name in [&names[0][0], &names[1][0], &names[2][0]] {
        let o = isobit(&dir, &args(&["explain", name]), b"");
        assert!(o.code == 0 && o.out.contains(name.as_str()), "{name}: {} {}", o.out, o.err);
    }
}

/// The parts of a model add up to its file, byte for byte.
#[test]
fn inspected_parts_are_the_whole_file() {
    let dir = scratch("cli-inspect-sum");
    let o = isobit(&dir, &args(&["inspect", "demo", "--json"]), b"");
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    let v: serde_json::Value = serde_json::from_str(&o.out).unwrap();
    let file = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/mlx-4bit/model.safetensors")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    assert_eq!(v["total"]["bytes"].as_u64().unwrap(), file.len() as u64 - 8 - header);
    let experts = &v["parts"]["experts"];
    assert_eq!(experts["bytes_per_token"].as_u64().unwrap() * 4, experts["bytes"].as_u64().unwrap(), "4 of 16 experts");
    // Tied: stored once, one row of it read as embedding, all of it as logits.
    assert_eq!(v["parts"]["embedding"]["bytes"], v["parts"]["lm_head"]["bytes_per_token"]);
    assert_eq!(v["parts"]["embedding"]["active"], 256);
    assert_eq!(v["parts"]["lm_head"]["bytes"], 0);
}

/// The doctor's verdict is its exit code. What it finds differs from machine to machine, its parts do not.
#[test]
fn the_doctor_looks_at_every_part() {
    let dir = scratch("cli-doctor");
    let o = isobit(&dir, &args(&["doctor", "--json"]), b"");
    let v: serde_json::Value = serde_json::from_str(&o.out).unwrap();
    let checks = v["checks"].as_array().unwrap();
    let parts: Vec<&str> = checks.iter().map(|c| c["part"].as_str().unwrap()).collect();
    assert_eq!(parts, ["processor", "target", "memory", "compiler", "GPU", "assembler", "nvJitLink", "cache"]);
    let bad = checks.iter().any(|c| c["needed"] == true && c["state"] != "ok");
    assert_eq!((v["works"] == true, o.code), (!bad, i32::from(bad)));
    let text = isobit(&dir, &args(&["doctor"]), b"").out;
    assert!(parts.iter().all(|p| text.contains(p)) && !text.contains('\u{1b}'), "{text}");
    // The cache of a test is new and can be written; one below a file cannot.
    assert!(text.contains("ok       cache"), "{text}");
    fs::write(dir.join("file"), "").unwrap();
    let o = Command::new(PROGRAM).arg("doctor").env("XDG_CACHE_HOME", dir.join("file/below")).output().unwrap();
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(text.contains("missing  cache") && text.contains("--cache-dir"), "{text}");
    assert!(tree(&dir).len() == 1, "nothing is left");
}

/// What `isobit dump` prints is what the parsers read, for every pass.
#[test]
fn dumps_parse_back() {
    let dir = scratch("cli-dump-parse");
    let dump = |more: &[&str]| {
        let o = isobit(&dir, &args(&[&["dump", "demo"], more].concat()), b"");
        assert_eq!((o.code, o.err.as_str()), (0, ""), "{more:?}");
        o.out
    };
    for pass in ["fold", "quant-lower", "merge-launches"] {
        let text = dump(&["--after", pass]);
        let graph = ir::graph::text::parse(&text).unwrap();
        assert_eq!(ir::graph::text::print(&graph), text);
        assert_eq!(text.contains("qlinear"), pass != "fold");
    }
    let text = dump(&["--after", "memory-plan", "--target", "sm_121"]);
    assert_eq!(ir::plan::text::print_whole(&ir::plan::text::parse_whole(&text).unwrap()), text);
    let kernels = ir::kernel::text::parse_all(&dump(&["--what", "kernels", "--target", "x86-64-v3"])).unwrap();
    let plan = dump(&["--what", "plan", "--target", "x86-64-v3"]);
    assert!(kernels.len() > 5 && kernels.iter().all(|k| plan.contains(&format!("= kernel {}\n", k.name))));
    assert!(dump(&["--what", "ptx", "--target", "sm_121"]).contains(".target sm_121"));
    assert!(dump(&["--what", "asm", "--target", "x86-64-v4+vnni"]).contains("vpdpbusd"));
    assert!(dump(&["--what", "llvm", "--target", "sm_90"]).contains("define"));
}

fn args(list: &[&str]) -> Vec<OsString> {
    list.iter().map(OsString::from).collect()
}

/// The second run takes the program from the cache; a damaged entry is compiled again with a warning.
#[test]
fn the_cache_is_used_and_mends_itself() {
    let dir = scratch("cli-cache-use");
    let run = || isobit(&dir, &args(&["run", "demo", "--cache-dir", "c", "-n", "3", "--ids", "2,105"]), b"");
    let (a, b) = (run(), run());
    assert!(a.err.contains("; compiled in") && b.err.contains("; cached in"), "{} {}", a.err, b.err);
    let object = tree(&dir.join("c")).into_iter().find(|(p, _)| p.ends_with("kernels.o")).unwrap();
    fs::write(dir.join("c").join(&object.0), &object.1[1..]).unwrap();
    let c = run();
    assert!(c.code == 0 && c.err.contains("warning[E0764]") && c.err.contains("; compiled in"), "{}", c.err);
    let d = run();
    assert!(d.err.contains("; cached in"), "{}", d.err);
    assert!([&b, &c, &d].iter().all(|o| o.out == a.out));
    let other = isobit(&dir, &args(&["run", "demo", "--cache-dir", "c", "-n", "3", "--ids", "2,105", "--embed", "exact"]), b"");
    assert!(other.err.contains("; compiled in"), "{}", other.err);
}

/// Logits are a function of the tokens, and the file is well formed.
#[test]
fn logits_do_not_depend_on_the_chunk() {
    let dir = scratch("cli-logits");
    let ids: Vec<String> = (0..40).map(|i| (2 + i * 37 % 4000).to_string()).collect();
    let write = |file: &str, more: &[&str]| {
        let o = isobit(
            &dir,
            &args(&[&["run", "demo", "--logits", file, "--ids", &ids.join(","), "-n", "3", "--json"], more].concat()),
            b"",
        );
        assert_eq!(o.code, 0, "{}", o.err);
        fs::read(dir.join(file)).unwrap()
    };
    let a = write("a", &[]);
    assert_eq!(a, write("b", &["--prefill-chunk", "7", "--threads", "1"]));
    assert_eq!(a, write("c", &["--fusion", "off"]));
    let header: serde_json::Value = serde_json::from_slice(&a[8..512]).unwrap();
    assert_eq!(header["logits"]["shape"], serde_json::json!([42, 4096]));
    assert_eq!(header["ids"]["shape"], serde_json::json!([43]));
    assert_eq!(u64::from_le_bytes(a[..8].try_into().unwrap()), 504);
    assert_eq!(a.len(), 512 + 42 * 4096 * 4 + 43 * 4);
    assert!(tree(&dir).iter().all(|(p, _)| p.to_str().unwrap().len() == 1), "nothing temporary is left");
}

/// Without a home there is no cache: one warning says so.
#[test]
fn no_home_is_a_warning() {
    let dir = scratch("cli-no-home");
    let o = Command::new(PROGRAM)
        .args(["run", "demo", "-n", "1", "--ids", "2,105"])
        .current_dir(&dir)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("HOME")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(o.status.success() && err.matches("warning[E0760]").count() == 1, "{err}");
    assert!(tree(&dir).is_empty());
}

/// What fits no context of the model gets no hint to ask for a larger one, and is told before the work.
#[test]
fn prompts_longer_than_the_model() {
    let dir = scratch("cli-long");
    let ids = ["2"; 4097].join(",");
    let o = isobit(&dir, &args(&["run", "demo", "--no-cache", "--ids", &ids]), b"");
    assert!(o.code == 1 && o.err.starts_with("error[E0757]: the prompt has 4097 tokens, the context 4096\n"), "{}", o.err);
    assert!(o.err.ends_with("hint: the model has 4096 positions: shorten the prompt\n"), "{}", o.err);
}

/// A file is written where a symbolic link leads; the link stays.
#[test]
fn outputs_follow_links() {
    let dir = scratch("cli-output-link");
    fs::create_dir(dir.join("there")).unwrap();
    fs::write(dir.join("there/file"), "old").unwrap();
    std::os::unix::fs::symlink("there/file", dir.join("link")).unwrap();
    let o = isobit(&dir, &args(&["run", "demo", "--ids", "2,105", "-n", "2", "--logits", "link"]), b"");
    assert_eq!(o.code, 0, "{}", o.err);
    assert!(fs::symlink_metadata(dir.join("link")).unwrap().is_symlink());
    assert_eq!(fs::read(dir.join("there/file")).unwrap().len(), 512 + 3 * 4096 * 4 + 4 * 4);
    assert_eq!(fs::read_dir(dir.join("there")).unwrap().count(), 1, "nothing temporary is left");
}

/// Ids in, ids out: a folder without tokenizer runs, but takes no text.
#[test]
fn ids_need_no_tokenizer() {
    let (dir, from) = (scratch("cli-no-tokenizer"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-dense/mlx"));
    fs::create_dir(dir.join("m")).unwrap();
    for name in ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        fs::copy(from.join(name), dir.join("m").join(name)).unwrap();
    }
    let run = |more: &[&str]| isobit(&dir, &args(&[&["run", "m", "-n", "4", "--ignore-eos"], more].concat()), b"Hello\n");
    let json = run(&["--ids", "2,105,7", "--json"]);
    assert_eq!(json.code, 0, "{}", json.err);
    let v: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let ids: Vec<String> = v["generated_ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    assert!(ids.len() == 4 && v["text"].is_null(), "{}", json.out);
    let plain = run(&["--ids", "2,105,7"]);
    assert_eq!((plain.code, plain.out.trim_end()), (0, ids.join(",").as_str()), "{}", plain.err);
    // What ends a generation is known without a tokenizer, too.
    let end = format!("{{\"eos_token_id\": [{}]}}", ids[1]);
    fs::write(dir.join("m/generation_config.json"), end).unwrap();
    let o = isobit(&dir, &args(&["run", "m", "-n", "4", "--ids", "2,105,7"]), b"");
    assert_eq!((o.code, o.out.trim_end().split(',').next_back()), (0, Some(ids[1].as_str())), "{} {}", o.out, o.err);
    // Many together are lists of ids, too, and have the digest of a run alone.
    let o = isobit(&dir, &args(&["run", "m", "-n", "2", "--ignore-eos", "--batch", "-", "--digest", "--json"]), b"7\n2,105,7\n");
    assert_eq!(o.code, 0, "{}", o.err);
    let many: serde_json::Value = serde_json::from_str(o.out.lines().nth(1).unwrap()).unwrap();
    let alone = isobit(&dir, &args(&["run", "m", "-n", "2", "--ignore-eos", "--ids", "2,105,7", "--digest", "--json"]), b"");
    let alone: serde_json::Value = serde_json::from_str(alone.out.lines().nth(1).unwrap()).unwrap();
    assert!(many["logits"].is_string() && many["text"].is_null() && many["logits"] == alone["logits"], "{many} {alone}");
    let o = isobit(&dir, &args(&["run", "m", "--batch", "-"]), b"7\nHello\n");
    assert!(o.code == 2 && o.err.starts_with("error[E0773]") && o.err.contains("standard input:2"), "{}", o.err);
    for text in [run(&[]), run(&["Hello"])] {
        assert!(text.code == 1 && text.err.starts_with("error[E0240]") && text.out.is_empty(), "{}", text.err);
    }
}

/// A reader that goes away is no error.
#[test]
fn broken_pipes_are_quiet() {
    let dir = scratch("cli-pipe");
    let mut child = Command::new(PROGRAM)
        .args(["run", "demo", "--ignore-eos", "-n", "2000", "--ids", "2"])
        .current_dir(&dir)
        .env("XDG_CACHE_HOME", cache())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(o.status.code() == Some(0) && !err.contains("error") && !err.contains("bug"), "{:?} {err}", o.status);
}

#[test]
fn what_is_odd_about_a_checkpoint_is_told() {
    let (dir, from) =
        (scratch("cli-odd-checkpoint"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-dense/mlx"));
    let dump = || isobit(&dir, &["dump", "m"].map(OsString::from), b"");
    fs::create_dir(dir.join("m")).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|e| e.unwrap().path()) {
        fs::copy(&entry, dir.join("m").join(entry.file_name().unwrap())).unwrap();
    }
    let o = dump();
    assert_eq!((o.code, o.out.is_empty()), (0, false), "{}", o.err);
    assert!(o.err.contains("warning[E0261]: 14 tensors are neither of the text decoder nor of a known tower"), "{}", o.err);
    fs::remove_file(dir.join("m/expected.safetensors")).unwrap();
    assert_eq!(dump().err, "");
    let index = dir.join("m/model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("model-00002-of-00002", "model-00002-of-00003")).unwrap();
    let o = dump();
    assert_eq!(o.code, 0, "{}", o.err);
    assert!(o.err.starts_with("warning[E0234]: this index is stale: it names 1 shard that is not here"), "{}", o.err);
    // With the shard really gone, the index says which it was.
    fs::remove_file(dir.join("m/model-00002-of-00002.safetensors")).unwrap();
    let o = dump();
    assert_eq!((o.code, o.out.as_str()), (1, ""), "{}", o.err);
    assert!(o.err.contains("error[E0227]: ") && o.err.contains(" tensors are missing:\n  language_model.model."), "{}", o.err);
    assert!(o.err.ends_with("hint: the index names shards that are not here: model-00002-of-00003.safetensors\n"), "{}", o.err);
}
