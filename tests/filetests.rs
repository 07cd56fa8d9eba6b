//! Cases as files: each in `tests/filetests/` is a text, a command over it and what comes out. To add a case, add a file.
//!
//! ```text
//! ; what the case shows
//! ; RUN: opt - --passes fold,cse
//! graph "x" {                      the text, given on standard input
//! ...
//! ; OUT                            then standard output, lines of standard error after `! `, the exit code after `? `
//! ...
//! ```
//!
//! With `ISOBIT_BLESS=1` what came out is written into the files; `cargo test --release --test filetests -- WORD` chooses the
//! files whose name holds the word.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const OUT: &str = "; OUT\n";

/// A file in its parts.
struct Case {
    /// The lines that begin with `;`, the command among them.
    head: String,
    args: Vec<String>,
    input: String,
    want: String,
}

fn parse(text: &str) -> Result<Case, String> {
    let (given, want) = text.split_once(OUT).unwrap_or((text, ""));
    let at = given.lines().take_while(|l| l.starts_with(';')).map(|l| l.len() + 1).sum::<usize>().min(given.len());
    let (head, input) = given.split_at(at);
    let mut runs = head.lines().filter_map(|l| l.strip_prefix("; RUN: "));
    let (Some(run), None) = (runs.next(), runs.next()) else { return Err("there is not one line `; RUN: `".into()) };
    // Words may be empty, as in `--passes ''`.
    let args = run.split(' ').map(|w| w.trim_matches('\'').to_string()).collect();
    Ok(Case { head: head.into(), args, input: input.into(), want: want.into() })
}

/// What the command gives.
fn run(case: &Case) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_isobit"))
        .args(&case.args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = case.input.clone().into_bytes();
    // The program may end before it reads.
    let feed = std::thread::spawn(move || stdin.write_all(&input));
    let o = child.wait_with_output().expect("the program ends");
    let _ = feed.join();
    let mut out = String::from_utf8_lossy(&o.stdout).into_owned();
    for line in String::from_utf8_lossy(&o.stderr).lines() {
        let _ = writeln!(out, "! {line}");
    }
    if !o.status.success() {
        let _ = writeln!(out, "? {}", o.status.code().unwrap_or(-1));
    }
    out
}

/// The first difference, for people.
fn difference(want: &str, got: &str) -> Option<String> {
    if want == got {
        return None;
    }
    let n = want.lines().zip(got.lines()).take_while(|(a, b)| a == b).count();
    let line = |t: &str| t.lines().nth(n).unwrap_or("(nothing)").to_string();
    Some(format!("line {} of the output:\n  expected {}\n  found    {}", n + 1, line(want), line(got)))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let bless = std::env::var_os("ISOBIT_BLESS").is_some();
    let filter = args.iter().find(|a| !a.starts_with('-'));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).expect("the folder").map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files.retain(|f| filter.is_none_or(|w| f.to_string_lossy().contains(w.as_str())));
    let mut bad = 0;
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).expect("a text");
        let fault = match parse(&text) {
            Err(e) => Some(e),
            Ok(case) => {
                let got = run(&case);
                if bless {
                    std::fs::write(file, format!("{}{}{OUT}{got}", case.head, case.input)).expect("written");
                    None
                } else if case.want.is_empty() {
                    Some("there is no output after `; OUT`: ISOBIT_BLESS=1 accepts it".into())
                } else {
                    // A runner that sees no difference is broken.
                    assert!(difference(&format!("{}x", case.want), &got).is_some());
                    difference(&case.want, &got)
                }
            }
        };
        if let Some(fault) = fault {
            bad += 1;
            println!("FAILED {name}: {fault}");
        }
    }
    println!("filetests: {} cases, {bad} failed", files.len());
    if bad > 0 || (filter.is_none() && files.len() < 10) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
