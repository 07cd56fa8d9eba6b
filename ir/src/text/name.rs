//! Names in quotes. Promises: `unquote(quote(s)) == s` for every string; a quoted name is one token on one line.

use super::lex::{Cursor, Tok};
use crate::diag::{Diagnostic, Result};

/// The name in quotes; what a string token can't hold, and the backslash, becomes `\u{hex}`.
pub(crate) fn quote(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        if c == '"' || c == '\\' || c.is_control() {
            out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out.push('"');
    out
}

/// What stands between the quotes, escapes replaced; `None` if an escape is malformed.
pub(crate) fn unquote(s: &str) -> Option<String> {
    let mut parts = s.split('\\');
    let mut out = String::from(parts.next().unwrap_or(""));
    for part in parts {
        let (hex, rest) = part.strip_prefix("u{")?.split_once('}')?;
        if hex.is_empty() || hex.len() > 6 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        out.push(char::from_u32(u32::from_str_radix(hex, 16).ok()?)?);
        out.push_str(rest);
    }
    Some(out)
}

/// Takes a name in quotes; `what` names it in the message.
pub(crate) fn string(c: &mut Cursor, what: &str) -> Result<String> {
    let t = c.peek();
    let Tok::Str(s) = t.tok else { return Err(c.unexpected(&format!("{what} in quotes"))) };
    c.next();
    let bad = || Diagnostic::new("E0112", format!("\"{s}\" has an unknown escape, only `\\u{{hex}}` is one")).at(t.place());
    unquote(s).ok_or_else(bad)
}
