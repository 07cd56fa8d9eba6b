//! What diagnostic codes mean, from the data file `codes.txt`, which a person can edit. `tests/explain.rs` checks that it
//! has an entry for each code that any source raises, none for others, and that only the sources that a section names raise
//! its codes: a code has one meaning.

use ir::diag::Diagnostic;
use std::sync::OnceLock;

/// The data file. Its first lines describe its form.
pub const TEXT: &str = include_str!("codes.txt");

/// One code.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Entry {
    /// `E0101`.
    pub code: String,
    /// On one line.
    pub meaning: String,
    /// It blames the command line: exit code 2 rather than 1.
    pub usage: bool,
    /// What causes it and what to do, one to four lines.
    pub text: Vec<String>,
}

/// The codes of one part of isobit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The part, for people.
    pub title: String,
    /// Beginnings of the paths of the sources that raise its codes.
    pub sources: Vec<String>,
    /// Lines shown with each code.
    pub remark: Vec<String>,
    /// In order.
    pub entries: Vec<Entry>,
}

/// The sections of the data file.
pub fn sections() -> &'static [Section] {
    static SECTIONS: OnceLock<Vec<Section>> = OnceLock::new();
    // The text is a part of the program, and a test reads it.
    SECTIONS.get_or_init(|| parse(TEXT).unwrap_or_default())
}

/// The entry of a code, and its section.
pub fn find(code: &str) -> Option<(&'static Section, &'static Entry)> {
    sections().iter().find_map(|s| s.entries.iter().find(|e| e.code == code).map(|e| (s, e)))
}

/// Does this diagnostic blame the command line (exit code 2) rather than what was found (exit code 1)?
pub fn is_usage(d: &Diagnostic) -> bool {
    find(d.code).is_some_and(|(_, e)| e.usage)
}

/// Reads the form of the data file. The error names the line.
pub fn parse(text: &str) -> Result<Vec<Section>, String> {
    let mut out: Vec<Section> = vec![];
    for (i, line) in text.lines().enumerate() {
        let bad = |what: &str| Err(format!("line {}: {what}", i + 1));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("== ") {
            out.push(Section { title: title.into(), ..Section::default() });
            continue;
        }
        let Some(section) = out.last_mut() else { return bad("stands before the first section") };
        if let Some(paths) = line.strip_prefix("@ ") {
            section.sources.extend(paths.split(' ').map(String::from));
        } else if let Some(more) = line.strip_prefix("  ") {
            match section.entries.last_mut() {
                Some(e) if e.text.len() == 4 => return bad("more than four lines"),
                Some(e) => e.text.push(more.into()),
                None => section.remark.push(more.into()),
            }
        } else {
            let Some((code, meaning)) = line.split_once(' ') else { return bad("a code has no meaning") };
            if code.len() != 5 || !code.starts_with('E') || !code[1..].bytes().all(|b| b.is_ascii_digit()) {
                return bad("this is no code");
            }
            let (usage, meaning) = meaning.strip_prefix("(usage) ").map_or((false, meaning), |m| (true, m));
            section.entries.push(Entry { code: code.into(), meaning: meaning.into(), usage, text: vec![] });
        }
    }
    Ok(out)
}
