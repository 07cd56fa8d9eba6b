//! Typed access to the fields of config.json: every refusal names the field, what was found and what is expected.

use crate::json::show;
use ir::diag::{Diagnostic, Result};
use serde_json::{Map, Value};

/// The text decoder's fields: `text_config` where there is one, and the top level.
pub(super) struct Fields<'a> {
    pub(super) top: &'a Map<String, Value>,
    pub(super) text: Option<&'a Map<String, Value>>,
    pub(super) place: &'a str,
}

/// A field's value has the wrong type or range.
pub(super) fn unexpected(place: &str, field: &str, found: &Value, expected: &str) -> Diagnostic {
    Diagnostic::new("E0206", format!("`{field}` is {}, expected {expected}", show(found))).at(place)
}

/// Two statements of the configuration exclude each other.
pub(super) fn contradiction(place: &str, message: String) -> Diagnostic {
    Diagnostic::new("E0207", message).at(place)
}

/// The configuration is legal but describes something that isobit does not build.
pub(super) fn unsupported(place: &str, message: String) -> Diagnostic {
    Diagnostic::new("E0208", message).at(place)
}

/// The configuration lacks a field.
pub(super) fn missing(place: &str, field: &str) -> Diagnostic {
    Diagnostic::new("E0205", format!("`{field}` is missing"))
        .at(place)
        .hint("the defaults of the reference implementations differ from each other and from every released model, so each field must be given")
}

impl<'a> Fields<'a> {
    /// The value of a field; null counts as absent. Given in both places, it must be the same.
    pub(super) fn get(&self, field: &str) -> Result<Option<&'a Value>> {
        let top = self.top.get(field).filter(|v| !v.is_null());
        let text = self.text.and_then(|t| t.get(field)).filter(|v| !v.is_null());
        match (text, top) {
            (Some(a), Some(b)) if a != b => Err(contradiction(
                self.place,
                format!("`{field}` is {} in text_config but {} at the top level", show(a), show(b)),
            )
            .hint("the two must agree, or one of them must go")),
            (a, b) => Ok(a.or(b)),
        }
    }

    pub(super) fn need(&self, field: &str) -> Result<&'a Value> {
        self.get(field)?.ok_or_else(|| missing(self.place, field))
    }

    /// An integer from 1 to `max`.
    pub(super) fn count(&self, field: &str, max: usize) -> Result<usize> {
        count(self.place, field, self.need(field)?, 1, max)
    }

    /// An integer from 0 to `max`; absent is 0.
    pub(super) fn count_or_zero(&self, field: &str, max: usize) -> Result<usize> {
        self.get(field)?.map_or(Ok(0), |v| count(self.place, field, v, 0, max))
    }

    pub(super) fn flag(&self, field: &str, absent: bool) -> Result<bool> {
        match self.get(field)? {
            None => Ok(absent),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(unexpected(self.place, field, v, "true or false")),
        }
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>> {
        match self.get(field)? {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(v) => Err(unexpected(self.place, field, v, "a string")),
        }
    }

    /// A token id below `vocab`, if the field is given.
    pub(super) fn id(&self, field: &str, vocab: usize) -> Result<Option<u32>> {
        self.get(field)?.map(|v| token_id(self.place, field, v, vocab)).transpose()
    }
}

/// An integer within bounds.
pub(super) fn count(place: &str, field: &str, value: &Value, min: usize, max: usize) -> Result<usize> {
    value
        .as_u64()
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| unexpected(place, field, value, &format!("an integer from {min} to {max}")))
}

/// A finite number above 0 and at most `max`.
pub(super) fn positive(place: &str, field: &str, value: &Value, max: f64) -> Result<f64> {
    value
        .as_f64()
        .filter(|x| x.is_finite() && *x > 0.0 && *x <= max)
        .ok_or_else(|| unexpected(place, field, value, &format!("a number above 0 and at most {max}")))
}

/// A token id below `vocab`.
pub(crate) fn token_id(place: &str, field: &str, value: &Value, vocab: usize) -> Result<u32> {
    Ok(count(place, field, value, 0, vocab.saturating_sub(1).min(u32::MAX as usize))? as u32)
}

/// One id or a list of ids, each below `vocab`; null is the empty list.
pub(crate) fn token_ids(place: &str, field: &str, value: Option<&Value>, vocab: usize) -> Result<Vec<u32>> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(|v| token_id(place, field, v, vocab)).collect(),
        Some(v) => Ok(vec![token_id(place, field, v, vocab)?]),
    }
}
