//! Strict JSON: like serde_json, but a key given twice in one object is an error, and so is an oversized file or one of too
//! many values, which would need far more memory than its bytes.

use ir::diag::{Diagnostic, Result};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fmt;

/// Largest configuration file that is read.
pub(crate) const MAX_CONFIG: usize = 4 << 20;
/// A file may have one value for so many bytes of its limit. The names, shapes and offsets of tensors have fewer.
const BYTES_A_VALUE: usize = 8;

/// Parses a whole file of at most `limit` bytes; `place` names it in errors.
pub(crate) fn parse(bytes: &[u8], limit: usize, place: &str) -> Result<Value> {
    if bytes.len() > limit {
        return Err(Diagnostic::new("E0203", format!("JSON of {} bytes; at most {limit} are read", bytes.len())).at(place));
    }
    let bad = |e: serde_json::Error| {
        let d = Diagnostic::new("E0204", format!("damaged JSON: {e}")).at(place);
        match e.classify() {
            serde_json::error::Category::Eof => d.hint("the file seems cut off: download it again"),
            _ => d,
        }
    };
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut de = serde_json::Deserializer::from_slice(text);
    let room = Cell::new(limit / BYTES_A_VALUE);
    let value = Strict(&room).deserialize(&mut de).map_err(bad)?;
    de.end().map_err(bad)?;
    Ok(value)
}

/// Short form of a value for messages.
pub(crate) fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Reads one value, and counts down how many more may be read.
#[derive(Clone, Copy)]
struct Strict<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| D::Error::custom("there are too many values"))?;
        self.0.set(left);
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(v) = seq.next_element_seed(self)? {
            out.push(v);
        }
        Ok(Value::Array(out))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` is given twice")));
            }
            let value = map.next_value_seed(self)?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text.as_bytes(), 1000, "f.json").unwrap_err().to_string()
    }

    #[test]
    fn keeps_values_and_order() {
        let text = r#"{"b":[1,-2,2.5,null,true,"x"],"a":{"c":18446744073709551615}}"#;
        assert_eq!(parse(text.as_bytes(), 1000, "f").unwrap().to_string(), text);
    }

    #[test]
    fn refuses_what_is_not_json() {
        assert!(error(r#"{"a":1,"b":{"c":1,"c":1}}"#).contains("f.json: damaged JSON: the key `c` is given twice"));
        assert!(error(r#"{"a":"#).contains("cut off"));
        assert!(error(r#"{"a":NaN}"#).contains("line 1 column"));
        assert!(error(r#"{"a":1} x"#).contains("trailing characters"));
        let deep = parse("[".repeat(900).as_bytes(), 10_000, "f").unwrap_err();
        assert!(deep.message.contains("recursion limit"), "{deep}");
        assert!(error(&" ".repeat(1001)).contains("1001 bytes; at most 1000"));
        assert!(error(&format!("[{}0]", "0,".repeat(125))).contains("too many values"));
        assert!(parse(format!("[{}0]", "0,".repeat(123)).as_bytes(), 1000, "f").is_ok());
        assert!(parse(b"\"\xff\"", 10, "f").unwrap_err().message.contains("damaged JSON"));
    }
}
