//! Artifacts, dump folders, manifests and single texts: which files differ, in the order of their names, which for dumps is that
//! of the passes, and where the first of them does.

use super::Verdict;
use crate::files::{self, Kind, failed};
use ir::diag::Result;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Differences that are listed; more are counted.
const LISTED: usize = 20;
/// Characters of a line that are shown.
const SHOWN: usize = 160;

/// Compares what two texts say: fields of manifests, else lines.
fn texts(name: &str, a: &[u8], b: &[u8]) -> Vec<String> {
    if name.ends_with(".json")
        && let (Ok(a), Ok(b)) = (serde_json::from_slice::<Value>(a), serde_json::from_slice::<Value>(b))
    {
        let (mut out, [mut x, mut y]) = (vec![], [BTreeMap::new(), BTreeMap::new()]);
        fields("", &a, &mut x);
        fields("", &b, &mut y);
        for key in x.keys().chain(y.keys()).collect::<BTreeSet<_>>() {
            let (p, q) = (x.get(key), y.get(key));
            if p != q {
                let show = |v: Option<&String>| v.map_or("nothing".into(), |v| cut(v));
                out.push(format!("{key}: {} and {}", show(p), show(q)));
            }
        }
        return out;
    }
    let (Ok(a), Ok(b)) = (std::str::from_utf8(a), std::str::from_utf8(b)) else {
        let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
        return vec![format!("byte {at} of {} and {} is the first that differs", a.len(), b.len())];
    };
    let (mut x, mut y) = (a.lines(), b.lines());
    let mut n = 0;
    loop {
        n += 1;
        match (x.next(), y.next()) {
            (None, None) => return vec!["they differ in the ends of their lines".into()],
            (p, q) if p != q => {
                let show = |l: Option<&str>| l.map_or("the end".into(), |l| cut(l.trim()));
                return vec![format!("line {n} of A: {}", show(p)), format!("line {n} of B: {}", show(q))];
            }
            _ => {}
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.into(),
    }
}

/// The leaves of a JSON value by their paths.
fn fields(at: &str, v: &Value, out: &mut BTreeMap<String, String>) {
    let below = |key: &str| if at.is_empty() { key.to_string() } else { format!("{at}.{key}") };
    match v {
        Value::Object(m) => m.iter().for_each(|(k, v)| fields(&below(k), v, out)),
        Value::Array(all) => all.iter().enumerate().for_each(|(i, v)| fields(&below(&i.to_string()), v, out)),
        leaf => _ = out.insert(at.into(), leaf.to_string()),
    }
}

/// Files of a folder by name; a file is a folder of one, without a name.
fn listing(path: &Path) -> Result<BTreeMap<String, Kind>> {
    if !path.is_dir() {
        return Ok([(String::new(), Kind::File)].into());
    }
    Ok(files::list(path)?.into_iter().filter(|(_, k)| *k != Kind::Folder).collect())
}

/// Compares two folders, or two files.
pub fn diff(a: &Path, b: &Path) -> Result<Verdict> {
    let (x, y) = (listing(a)?, listing(b)?);
    let read = |dir: &Path, name: &str| {
        let path = if name.is_empty() { dir.to_path_buf() } else { dir.join(name) };
        fs::read(&path).map_err(|e| failed("cannot be read", &path, &e))
    };
    let (mut out, mut list, mut same) = (String::new(), vec![], 0);
    for name in x.keys().chain(y.keys()).collect::<BTreeSet<_>>() {
        let what = match (x.get(name), y.get(name)) {
            (Some(_), None) => vec!["only in A".to_string()],
            (None, Some(_)) => vec!["only in B".to_string()],
            (Some(Kind::File), Some(Kind::File)) => {
                let (p, q) = (read(a, name)?, read(b, name)?);
                if p == q {
                    same += 1;
                    continue;
                }
                let named = if name.is_empty() { a.display().to_string() } else { name.clone() };
                texts(&named, &p, &q)
            }
            _ => vec!["not a regular file in both".to_string()],
        };
        list.push((name.clone(), what));
    }
    for (name, what) in list.iter().take(LISTED) {
        let name = if name.is_empty() { "differs" } else { name };
        _ = writeln!(out, "{name}");
        what.iter().take(LISTED).for_each(|l| _ = writeln!(out, "  {l}"));
        if what.len() > LISTED {
            _ = writeln!(out, "  and {} more", what.len() - LISTED);
        }
    }
    if list.len() > LISTED {
        _ = writeln!(out, "and {} more files", list.len() - LISTED);
    }
    let equal = list.is_empty();
    let many = |n: usize| if n == 1 { "1 file".to_string() } else { format!("{n} files") };
    let verdict = if equal { "equal" } else { "different" };
    _ = writeln!(out, "{verdict}: {} equal, {} differ", many(same), list.len());
    let files: Vec<Value> = list.iter().map(|(n, w)| serde_json::json!({"file": n, "differences": w})).collect();
    let json = serde_json::json!({"equal": equal, "same": same, "files": files});
    Ok(Verdict { equal, text: out, json })
}
