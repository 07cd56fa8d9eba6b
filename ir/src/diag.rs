//! Diagnostics as data: every user-visible error is one of these. Rendering lives in the root package.

use std::fmt;

/// One message for a person: what is wrong, where, what was expected and found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Diagnostic {
    /// Stable short code (`E0103`); `isobit explain` documents each.
    pub code: &'static str,
    /// What is wrong, lower case, without a full stop.
    pub message: String,
    /// Where: file, tensor, op or `file:line`; empty if nowhere in particular.
    pub place: String,
    /// What the user can do about it; empty if there is nothing to say.
    pub hint: String,
}

impl Diagnostic {
    /// A diagnostic with neither place nor hint.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic { code, message: message.into(), place: String::new(), hint: String::new() }
    }

    /// Names the place (file, tensor, op, line).
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = place.to_string();
        self
    }

    /// Says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{}", self.message)?;
        if !self.hint.is_empty() {
            write!(f, "\nhint: {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Result with one diagnostic.
pub type Result<T, E = Diagnostic> = std::result::Result<T, E>;

/// The `n` names that are nearest to a word, the nearest first: for hints.
pub fn nearest<'a>(names: impl IntoIterator<Item = &'a str>, word: &str, n: usize) -> Vec<&'a str> {
    // No name is so long that more of the word would matter.
    let word: String = word.chars().take(100).collect();
    let mut near: Vec<&str> = names.into_iter().collect();
    near.sort_by_cached_key(|name| distance(name, &word));
    near.truncate(n);
    near
}

/// Edits that make one word the other.
fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let best = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}
