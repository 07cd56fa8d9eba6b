//! What chat templates expect of Python: its idea of white space, and methods of strings and dictionaries.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Steps after which a template is stopped: a fraction of a second. A message takes some hundred.
const FUEL: u64 = 2_000_000;

/// An environment as transformers makes it for chat templates.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    env.set_syntax(syntax);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(method);
    env.add_filter("trim", |v: Value, chars: Option<String>| strip(&v.to_string(), chars.as_deref(), true, true));
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(env)
}

/// White space as `str.strip` and `str.split` see it: Unicode's, and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(text: &str, chars: Option<&str>, start: bool, end: bool) -> String {
    let drop = |c: char| chars.map_or(is_space(c), |set| set.contains(c));
    let text = if start { text.trim_start_matches(drop) } else { text };
    if end { text.trim_end_matches(drop) } else { text }.to_string()
}

fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), name, args),
        ValueKind::Map => match name {
            "get" => {
                let (key, default): (Value, Option<Value>) = from_args(args)?;
                let found = value.get_item(&key)?;
                Ok(if found.is_undefined() { default.unwrap_or(Value::from(())) } else { found })
            }
            "items" => {
                let () = from_args(args)?;
                state.apply_filter("items", std::slice::from_ref(value))
            }
            "keys" => {
                let () = from_args(args)?;
                Ok(value.try_iter()?.collect())
            }
            "values" => {
                let () = from_args(args)?;
                value.try_iter()?.map(|key| value.get_item(&key)).collect()
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        },
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(strip(text, chars, name != "rstrip", name != "lstrip").into())
        }
        "split" => {
            let (sep, max, kw): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let max = max.or(kw.get("maxsplit")?).filter(|n| *n >= 0);
            kw.assert_all_used()?;
            match (sep, max) {
                (Some(""), _) => Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                (Some(sep), None) => Ok(text.split(sep).collect()),
                (Some(sep), Some(n)) => Ok(text.splitn((n as usize).saturating_add(1), sep).collect()),
                (None, None) => Ok(text.split(is_space).filter(|s| !s.is_empty()).collect()),
                (None, Some(_)) => Err(Error::new(ErrorKind::InvalidOperation, "split(maxsplit) needs a separator")),
            }
        }
        "startswith" | "endswith" => {
            let (what,): (&str,) = from_args(args)?;
            Ok(if name == "startswith" { text.starts_with(what) } else { text.ends_with(what) }.into())
        }
        "replace" => {
            let (from, to): (&str, &str) = from_args(args)?;
            Ok(text.replace(from, to).into())
        }
        "upper" => {
            let () = from_args(args)?;
            Ok(text.to_uppercase().into())
        }
        "lower" => {
            let () = from_args(args)?;
            Ok(text.to_lowercase().into())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
