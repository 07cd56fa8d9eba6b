//! Typed access to the fields of config.json: every refusal names the field, what was found and what is expected.
//!
//! A field may stand at the top level, in `text_config`, or in both, and some have two spellings. Whatever is said twice must
//! be said alike: numbers are compared by value, so `1e6` and `1000000` agree.

use crate::json::show;
use ir::diag::{Diagnostic, Result};
use serde_json::{Map, Value};

/// The text decoder's fields: `text_config` where there is one, and the top level.
pub(super) struct Fields<'a> {
    pub(super) top: &'a Map<String, Value>,
    pub(super) text: Option<&'a Map<String, Value>>,
    pub(super) place: &'a str,
}

/// Fields with two spellings.
const SPELLINGS: [[&str; 2]; 5] = [
    ["num_experts", "num_local_experts"],
    ["top_k_experts", "num_experts_per_tok"],
    ["moe_intermediate_size", "expert_intermediate_size"],
    ["hidden_activation", "hidden_act"],
    ["dtype", "torch_dtype"],
];

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

/// Whether two values mean the same.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || (x.is_f64() != y.is_f64() && x.as_f64() == y.as_f64()),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        (Value::Object(x), Value::Object(y)) => x.len() == y.len() && x.iter().all(|(k, a)| y.get(k).is_some_and(|b| same(a, b))),
        _ => a == b,
    }
}

/// One value stated several times: the first, if all agree. Each statement is (where it stands, its value).
pub(super) fn agreed<'a>(place: &str, stated: &[(String, &'a Value)]) -> Result<Option<&'a Value>> {
    let Some((first, value)) = stated.first() else { return Ok(None) };
    match stated.iter().find(|(_, v)| !same(value, v)) {
        None => Ok(Some(value)),
        Some((other, v)) => Err(contradiction(place, format!("{first} is {} but {other} is {}", show(value), show(v)))
            .hint("the two must agree, or one of them must go")),
    }
}

impl<'a> Fields<'a> {
    /// The value of a field and the spelling it was found under; null counts as absent. Whatever is given more than once must
    /// agree.
    pub(super) fn find<'n>(&self, field: &'n str) -> Result<Option<(&'n str, &'a Value)>> {
        let alone = [field];
        let names: &[&'n str] = SPELLINGS.iter().find(|s| s[0] == field).map_or(&alone, |s| s);
        let mut stated: Vec<(&'n str, String, &'a Value)> = vec![];
        for name in names {
            for (map, at) in [(self.text, "in text_config"), (Some(self.top), "at the top level")] {
                if let Some(v) = map.and_then(|m| m.get(*name)).filter(|v| !v.is_null()) {
                    stated.push((name, format!("`{name}` {at}"), v));
                }
            }
        }
        let all: Vec<(String, &Value)> = stated.iter().map(|(_, at, v)| (at.clone(), *v)).collect();
        Ok(agreed(self.place, &all)?.map(|v| (stated[0].0, v)))
    }

    /// The value of a field; null counts as absent.
    pub(super) fn get(&self, field: &str) -> Result<Option<&'a Value>> {
        Ok(self.find(field)?.map(|(_, v)| v))
    }

    pub(super) fn need<'n>(&self, field: &'n str) -> Result<(&'n str, &'a Value)> {
        self.find(field)?.ok_or_else(|| missing(self.place, field))
    }

    /// An integer from 1 to `max`.
    pub(super) fn count(&self, field: &str, max: usize) -> Result<usize> {
        let (name, value) = self.need(field)?;
        count(self.place, name, value, 1, max)
    }

    /// An integer from 0 to `max`; absent is 0.
    pub(super) fn count_or_zero(&self, field: &str, max: usize) -> Result<usize> {
        self.find(field)?.map_or(Ok(0), |(name, v)| count(self.place, name, v, 0, max))
    }

    pub(super) fn flag(&self, field: &str, absent: bool) -> Result<bool> {
        match self.get(field)? {
            None => Ok(absent),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(unexpected(self.place, field, v, "true or false")),
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
