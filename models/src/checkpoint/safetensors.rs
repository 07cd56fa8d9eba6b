//! Safetensors headers, strictly: every byte of the file belongs to exactly one tensor, and each is named once.
//!
//! Our own checks come first, because they can say which tensor is wrong and how; the `safetensors` crate then has
//! to accept the header too.

use crate::json::{self, show};
use ::safetensors::{Dtype, SafeTensors};
use ir::diag::{Diagnostic, Result};
use serde_json::{Map, Value};

/// Largest header that is read (the format's own limit).
const MAX_HEADER: u64 = 100_000_000;

/// Where one tensor lies.
pub(super) struct Entry {
    pub(super) file: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Byte range in the file.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Reads the header of a file of which `bytes` is the whole content.
pub(super) fn read_header(file: &str, bytes: &[u8]) -> Result<Vec<(String, Entry)>> {
    let broken = |message: String| Diagnostic::new("E0217", message).at(file);
    let cut = "the file seems cut off: download it again";
    let Some(length) = bytes.first_chunk::<8>() else {
        return Err(broken(format!("{} bytes are too few for a safetensors file", bytes.len())).hint(cut));
    };
    let length = u64::from_le_bytes(*length);
    if !(2..=MAX_HEADER).contains(&length) {
        let d = broken(format!("the header claims to have {length} bytes, expected 2 to {MAX_HEADER}"));
        return Err(if bytes.starts_with(b"version ") {
            d.hint("this is a Git LFS pointer, not the file: fetch it with `git lfs pull`")
        } else {
            d.hint("this is not a safetensors file, or it is damaged")
        });
    }
    let data_at = 8 + length as usize; // at most 100 MB
    let Some(header) = bytes.get(8..data_at) else {
        return Err(broken(format!("the header claims to have {length} bytes, but the file has {}", bytes.len())).hint(cut));
    };
    let value = json::parse(header, MAX_HEADER as usize, file).map_err(|d| Diagnostic {
        code: "E0218",
        message: format!("safetensors header: {}", d.message),
        hint: "this is not a safetensors file, or it is damaged".into(),
        ..d
    })?;
    let Value::Object(map) = &value else {
        return Err(broken(format!("the header is {}, expected an object", show(&value))));
    };
    let mut out = Vec::with_capacity(map.len());
    for (name, value) in map {
        match (name.as_str(), value) {
            ("__metadata__", Value::Object(m)) if m.values().all(Value::is_string) => {}
            ("__metadata__", other) => {
                return Err(broken(format!("`__metadata__` is {}, expected strings by name", show(other))));
            }
            (_, Value::Object(entry)) => out.push((name.clone(), one(file, name, entry, data_at)?)),
            (_, other) => {
                return Err(bad(file, name, format!("its entry is {}, expected an object", show(other))));
            }
        }
    }
    covers(file, &out, data_at, bytes.len())?;
    SafeTensors::read_metadata(bytes).map_err(|e| broken(format!("damaged header: {e}")))?;
    Ok(out)
}

fn bad(file: &str, tensor: &str, message: String) -> Diagnostic {
    Diagnostic::new("E0219", message).at(format_args!("{file}: {tensor}"))
}

fn one(file: &str, name: &str, entry: &Map<String, Value>, data_at: usize) -> Result<Entry> {
    let err = |message: String| bad(file, name, message);
    let get = |key: &str| entry.get(key).ok_or_else(|| err(format!("`{key}` is missing")));
    if let Some(key) = entry.keys().find(|k| !matches!(k.as_str(), "dtype" | "shape" | "data_offsets")) {
        return Err(err(format!("unknown key `{key}`")));
    }
    let found = get("dtype")?;
    let dtype: Dtype =
        serde_json::from_value(found.clone()).map_err(|_| err(format!("`dtype` is {}, which is unknown", show(found))))?;
    let numbers = |key: &str| -> Result<Vec<usize>> {
        let value = get(key)?;
        value
            .as_array()
            .and_then(|list| list.iter().map(|v| usize::try_from(v.as_u64()?).ok()).collect())
            .ok_or_else(|| err(format!("`{key}` is {}, expected a list of sizes", show(value))))
    };
    let (shape, offsets) = (numbers("shape")?, numbers("data_offsets")?);
    let &[start, end] = offsets.as_slice() else {
        return Err(err(format!("`data_offsets` has {} numbers, expected 2", offsets.len())));
    };
    if end < start {
        return Err(err(format!("`data_offsets` run backwards, from {start} to {end}")));
    }
    let size = shape
        .iter()
        .try_fold(dtype.bitsize(), |n, &d| n.checked_mul(d))
        .ok_or_else(|| err(format!("the shape {shape:?} has more bits than can be counted")))?;
    if size % 8 != 0 || size / 8 != end - start {
        return Err(err(format!(
            "the shape {shape:?} of {dtype:?} takes {} bytes, but `data_offsets` hold {}",
            size.div_ceil(8),
            end - start
        )));
    }
    let absolute = |x: usize| x.checked_add(data_at).ok_or_else(|| err(format!("the offset {x} is beyond any file")));
    Ok(Entry { file: file.to_string(), dtype, start: absolute(start)?, end: absolute(end)?, shape })
}

/// The tensors lie end to end, from the header to the end of the file.
fn covers(file: &str, entries: &[(String, Entry)], data_at: usize, len: usize) -> Result<()> {
    let mut order: Vec<&(String, Entry)> = entries.iter().collect();
    order.sort_by(|a, b| (a.1.start, a.1.end, &a.0).cmp(&(b.1.start, b.1.end, &b.0)));
    let (mut at, mut before) = (data_at, "the header");
    for (name, e) in order {
        if e.end > len {
            return Err(bad(file, name, format!("its data end at byte {}, but the file has {len}", e.end))
                .hint("the file seems cut off: download it again"));
        }
        if e.start < at {
            return Err(bad(file, name, format!("its data overlap those of {before} by {} bytes", at - e.start)));
        }
        if e.start > at {
            return Err(bad(file, name, format!("{} bytes between {before} and its data belong to nothing", e.start - at)));
        }
        (at, before) = (e.end, name);
    }
    if at != len {
        return Err(Diagnostic::new("E0220", format!("{} bytes after the last tensor belong to nothing", len - at)).at(file));
    }
    Ok(())
}
