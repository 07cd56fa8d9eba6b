//! `isobit tokenize`: the ids that a model gets for a text, and the text of ids. Nothing is compiled.

use super::Stop;
use super::run::{Form, parse_ids, utf8};
use crate::args::TokenizeArgs;
use crate::artifact::Artifact;
use crate::printer::Printer;
use crate::source::{Source, model_and_prompt};
use ir::diag::{Diagnostic, Result};
use models::Text;
use serde_json::json;
use std::borrow::Cow;
use std::io::{IsTerminal, Read};

/// More is not read: no model has the context for it.
const MAX_INPUT: u64 = 16 << 20;

/// The model, and the ids or the text that the command line gives.
type Parts<'a> = (Source, Option<Vec<u32>>, Option<&'a str>);

/// What to tokenize, if nothing on the command line contradicts itself.
fn parts(args: &TokenizeArgs) -> Result<Parts<'_>> {
    let (source, prompt) = model_and_prompt("tokenize", args.model.as_deref(), args.text.as_deref())?;
    let given = match (&args.ids, prompt) {
        (Some(_), Some(_)) => return Err(Diagnostic::new("E0750", "both a text and `--ids` are given")),
        (Some(list), None) => Some(parse_ids(list)?),
        (None, _) => None,
    };
    Ok((source, given, prompt.map(|word| utf8(word, "the text")).transpose()?))
}

/// Refuses a command line that contradicts itself.
pub(super) fn check(args: &TokenizeArgs) -> Result<()> {
    parts(args).map(|_| ())
}

/// Runs it.
pub fn run(args: &TokenizeArgs, p: &mut Printer) -> Result<(), Stop> {
    let (source, given, prompt) = parts(args)?;
    let checkpoint = match &source {
        Source::Artifact(dir) => Artifact::open(dir)?.checkpoint(&mut |what, done, of| p.progress(what, done, of))?,
        _ => source.checkpoint()?,
    };
    let text = Text::load(&checkpoint)?;
    let (ids, encoded) = match given {
        Some(ids) => (ids, false),
        None => {
            let said = match prompt {
                Some(said) => Cow::Borrowed(said),
                None => Cow::Owned(standard_input(p)?),
            };
            let form = Form { chat: args.chat, system: args.system.as_deref(), thinking: args.thinking, special: args.special };
            (form.first_turn(&text, &said)?, true)
        }
    };
    let piece = |id: &u32| {
        text.token(*id).ok_or_else(|| Diagnostic::new("E0756", format!("the tokenizer has no token {id}")).at("--ids"))
    };
    let pieces = ids.iter().map(piece).collect::<Result<Vec<String>>>()?;
    let decoded = text.decode(&ids, false);
    p.line(&if args.json {
        json!({"ids": ids, "pieces": pieces, "text": decoded}).to_string()
    } else if encoded {
        ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    } else {
        decoded
    })
}

/// All of standard input, to its last byte.
fn standard_input(p: &mut Printer) -> Result<String> {
    let place = "standard input";
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        p.note("the text is read from standard input; ctrl-d ends it");
    }
    let mut bytes = vec![];
    let read = stdin.lock().take(MAX_INPUT + 1).read_to_end(&mut bytes);
    read.map_err(|e| Diagnostic::new("E0760", format!("cannot be read: {e}")).at(place))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(Diagnostic::new("E0755", format!("the text is longer than {MAX_INPUT} bytes")).at(place));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Diagnostic::new("E0755", format!("the text is not UTF-8: byte {at} is {:#04x}", e.as_bytes()[at])).at(place)
    })
}
