//! The model's own chat template, rendered as transformers renders it.

use super::tokenizer::{Tokenizer, catch};
use super::{THOUGHT, pycompat};
use crate::checkpoint::Checkpoint;
use ir::diag::{Diagnostic, Result};
use minijinja::Environment;
use minijinja::Value as Jinja;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The same under its newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Model,
}

impl Role {
    /// As templates know it.
    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Model => "assistant",
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into() }
    }

    /// What of the message is shown to the template.
    pub(super) fn kept(&self) -> Cow<'_, str> {
        if self.role == Role::Model { strip_thoughts(&self.content).into() } else { (&self.content).into() }
    }

    fn instructs(&self) -> bool {
        matches!(self.role, Role::System | Role::Developer) && !self.content.trim().is_empty()
    }
}

/// A reply without its thought blocks, as the templates of the released models strip them: a block that never closes is
/// thought to the end, a closing mark alone is dropped.
pub fn strip_thoughts(reply: &str) -> String {
    reply.split(THOUGHT.1).map(|part| part.split_once(THOUGHT.0).map_or(part, |(before, _)| before)).collect()
}

/// A parsed chat template.
pub(super) struct Template {
    env: Environment<'static>,
    source: String,
    place: String,
    /// Names of special tokens that the template may use (`bos_token`).
    names: BTreeMap<String, String>,
}

const NAME: &str = "chat";
/// Gemma 4's own has 19 KB.
const MAX_TEMPLATE: usize = 128 << 10;
/// Largest prompt that a template makes, beside what the messages say.
const MAX_OUTPUT: usize = 1 << 20;
/// Address space, of which only the part in use becomes memory.
const PARSER_STACK: usize = 1 << 30;

impl Template {
    /// chat_template.jinja if there is one, else `chat_template` of tokenizer_config.json, else nothing.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        settings: &Map<String, Value>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Template>> {
        let at = |name: &str| format!("{}/{name}", checkpoint.place());
        let (source, place) = if let Some(bytes) = checkpoint.file("chat_template.jinja") {
            let place = at("chat_template.jinja");
            let text = std::str::from_utf8(bytes)
                .map_err(|e| Diagnostic::new("E0251", format!("the template is no UTF-8: {e}")).at(&place))?;
            (text.to_string(), place)
        } else {
            let place = at("tokenizer_config.json: chat_template");
            match settings.get("chat_template") {
                None | Some(Value::Null) => return Ok(None),
                Some(Value::String(s)) => (s.clone(), place),
                Some(Value::Array(list)) => {
                    let default = list.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str());
                    let Some(s) = default else {
                        return Err(Diagnostic::new("E0252", "none of the chat templates is named \"default\"").at(place));
                    };
                    (s.to_string(), place)
                }
                Some(other) => {
                    let found = crate::json::show(other);
                    return Err(Diagnostic::new("E0252", format!("the chat template is {found}, expected a string")).at(place));
                }
            }
        };
        if source.len() > MAX_TEMPLATE {
            let message = format!("the chat template has {} bytes, at most {MAX_TEMPLATE} are read", source.len());
            return Err(Diagnostic::new("E0256", message).at(place));
        }
        let env = compile(&source, &place)?;
        let names = special_names(settings, checkpoint.config().bos, tokenizer, &at("tokenizer_config.json"))?;
        Ok(Some(Template { env, source, place, names }))
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation up to where the model speaks next; `protect` is applied to each content first.
    pub(super) fn render(&self, messages: &[Message], thinking: bool, protect: impl Fn(&str) -> String) -> Result<String> {
        if messages.is_empty() {
            return Err(Diagnostic::new("E0255", "a conversation needs at least one message"));
        }
        let list: Vec<(bool, Jinja)> = messages
            .iter()
            .map(|m| {
                let pairs = [("role", Jinja::from(m.role.name())), ("content", protect(&m.kept()).into())];
                (m.instructs(), Jinja::from_pairs(pairs))
            })
            .collect();
        let limit = MAX_OUTPUT + 4 * messages.iter().map(|m| m.content.len()).sum::<usize>();
        let all = || list.iter().map(|(_, m)| m.clone()).collect::<Vec<_>>();
        let out = self.fill(all(), thinking, limit)?;
        // What is asked for and changes nothing would be lost without a word.
        if thinking && self.fill(all(), false, limit).is_ok_and(|without| without == out) {
            return Err(Diagnostic::new(
                "E0248",
                "the chat template knows no thinking: the prompt is the same with and without it",
            )
            .at(&self.place)
            .hint("leave `--thinking` out"));
        }
        let others: Vec<Jinja> = list.iter().filter(|(instructs, _)| !instructs).map(|(_, m)| m.clone()).collect();
        if others.len() < list.len()
            && !others.is_empty()
            && self.fill(others, thinking, limit).is_ok_and(|without| without == out)
        {
            return Err(Diagnostic::new("E0249", "the chat template leaves system messages out")
                .at(&self.place)
                .hint("put the instructions into the first prompt"));
        }
        Ok(out)
    }

    /// Runs the template; what it makes has at most `limit` bytes.
    fn fill(&self, messages: Vec<Jinja>, thinking: bool, limit: usize) -> Result<String> {
        let names = self.names.iter().map(|(name, token)| (name.as_str(), Jinja::from(token.as_str())));
        let context = Jinja::from_pairs(names.chain([
            ("messages", Jinja::from(messages)),
            ("add_generation_prompt", true.into()),
            ("enable_thinking", thinking.into()),
            ("tools", ().into()),
        ]));
        let failed = |e: minijinja::Error| explain("E0254", "the chat template failed", &self.place, &e);
        let mut out = Limited { bytes: Vec::new(), limit, full: false };
        let template = self.env.get_template(NAME).map_err(failed)?;
        let done = template.render_captured_to(context, &mut out).map(|_| ());
        if out.full {
            let message = format!("the chat template makes a prompt of more than {} bytes", out.limit);
            return Err(Diagnostic::new("E0254", message).at(&self.place));
        }
        done.map_err(failed)?;
        String::from_utf8(out.bytes)
            .map_err(|_| Diagnostic::new("E0254", "the chat template makes a prompt that is no UTF-8").at(&self.place))
    }
}

/// Takes what a template writes, up to a limit.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl std::io::Write for Limited {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        self.full |= part.len() > self.limit - self.bytes.len();
        if self.full {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Parses on a thread with a stack that the longest chain of operators in a template can't exhaust: the parser
/// recurses once an operator.
fn compile(source: &str, place: &str) -> Result<Environment<'static>> {
    let work = || {
        let mut env = pycompat::environment()?;
        env.add_template_owned(NAME, source.to_string())?;
        Ok(env)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, || catch(work));
        let thread = thread.map_err(|e| Diagnostic::new("E0257", format!("no thread to parse the chat template: {e}")))?;
        match thread.join().and_then(|caught| caught) {
            Ok(done) => done.map_err(|e| explain("E0253", "the chat template is broken", place, &e)),
            Err(_) => Err(Diagnostic::new("E0253", "the chat template is broken: its parser gave up").at(place)),
        }
    })
}

/// The tokens that tokenizer_config.json calls special, with their names; those of a list have none.
pub(super) fn named_tokens(settings: &Map<String, Value>) -> Vec<(String, String)> {
    let extra = settings.get("extra_special_tokens").and_then(Value::as_object).into_iter().flatten();
    let named = extra.chain(settings.iter().filter(|(key, _)| key.ends_with("_token"))).map(|(key, value)| (key.clone(), value));
    let lists = ["extra_special_tokens", "additional_special_tokens"].map(|key| settings.get(key).and_then(Value::as_array));
    let listed = lists.into_iter().flatten().flatten().map(|value| (String::new(), value));
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_string);
    named.chain(listed).filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

/// `bos_token` and the like, by the names that tokenizer_config.json gives them.
fn special_names(
    settings: &Map<String, Value>,
    bos: u32,
    tokenizer: &Tokenizer,
    place: &str,
) -> Result<BTreeMap<String, String>> {
    let mut names: BTreeMap<String, String> =
        named_tokens(settings).into_iter().filter(|(name, _)| name.ends_with("_token")).collect();
    let expected = tokenizer.token(bos).unwrap_or_default();
    match names.get("bos_token") {
        None => {
            names.insert("bos_token".into(), expected.into());
        }
        Some(found) if found == expected => {}
        Some(found) => {
            return Err(Diagnostic::new(
                "E0247",
                format!("`bos_token` is {found:?}, but `bos_token_id` of config.json is {bos}, {expected:?}"),
            )
            .at(place));
        }
    }
    Ok(names)
}

fn explain(code: &'static str, what: &str, place: &str, e: &minijinja::Error) -> Diagnostic {
    let line = e.line().map_or(String::new(), |n| format!(":{n}"));
    let detail = e.detail().map_or(String::new(), |d| format!(": {d}"));
    Diagnostic::new(code, format!("{what}: {}{detail}", e.kind())).at(format_args!("{place}{line}"))
}
