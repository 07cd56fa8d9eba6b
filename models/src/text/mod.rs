//! Text to token ids and back, and conversations to prompts, exactly as the model's own files say.
//!
//! User text never becomes a control token by being spelled like one, unless asked for (`special`): what stands in
//! a message is data. Control tokens are those that tokenizer.json or tokenizer_config.json call special; other added
//! tokens are words of the vocabulary. Streamed text is valid UTF-8 at each step, and adds up to what decoding all ids at once gives.

mod chat;
mod decode;
mod pycompat;
mod tokenizer;

use crate::checkpoint::Checkpoint;
use crate::gemma4::fields::token_ids;
use crate::json::{self, MAX_CONFIG};
use ir::diag::{Diagnostic, Result};
use serde_json::Value;
use std::borrow::Cow;

pub use chat::{Message, Role, strip_thoughts};
pub use decode::Stream;
pub use tokenizer::panic_is_caught;

/// Opens and closes a thought block of a reply.
const THOUGHT: (&str, &str) = ("<|channel>", "<channel|>");

/// Tokenizer, chat template and stop ids of a checkpoint.
pub struct Text {
    tokenizer: tokenizer::Tokenizer,
    template: Option<chat::Template>,
    bos: u32,
    stop: Vec<u32>,
    place: String,
}

impl Text {
    /// Loads tokenizer.json, tokenizer_config.json, generation_config.json and the chat template.
    /// A checkpoint without template can still complete raw text.
    pub fn load(checkpoint: &Checkpoint) -> Result<Text> {
        let (config, place) = (checkpoint.config(), checkpoint.place());
        let at = |name: &str| format!("{place}/{name}");
        let Some(bytes) = checkpoint.file("tokenizer.json") else {
            return Err(Diagnostic::new("E0240", "there is no tokenizer.json here")
                .at(place)
                .hint("a checkpoint is a folder with config.json, *.safetensors and tokenizer.json"));
        };
        let mut tokenizer = tokenizer::Tokenizer::load(bytes, config.vocab_size, &at("tokenizer.json"))?;
        let stop = stop_ids(checkpoint)?;
        if tokenizer.token(config.bos).is_none() {
            return Err(Diagnostic::new("E0245", format!("`bos_token_id` is {}, which the tokenizer does not have", config.bos))
                .at(at("config.json")));
        }
        let settings = object(checkpoint, "tokenizer_config.json")?.unwrap_or_default();
        for (_, token) in chat::named_tokens(&settings) {
            tokenizer.name_special(&token);
        }
        let template = chat::Template::load(checkpoint, &settings, &tokenizer)?;
        Ok(Text { tokenizer, template, bos: config.bos, stop, place: place.to_string() })
    }

    /// Token ids of a text, nothing added. With `special`, special tokens that are spelled out become those tokens;
    /// without, they are plain text.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        if special {
            return self.tokenizer.encode(text, None);
        }
        let mark = unused_mark(&[text.into()])?;
        self.tokenizer.encode(&self.tokenizer.marked(text, mark), Some(mark))
    }

    /// Prompt for plain completion: the text after exactly one bos.
    pub fn raw_prompt(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        Ok(self.one_bos(self.encode(text, special)?))
    }

    /// Prompt for the next reply in a conversation, by the model's own template. Thought blocks of
    /// earlier replies are dropped. `special` as in [`Text::encode`], for the contents of the messages.
    /// Thinking and system messages that the template does not know are errors.
    pub fn chat_prompt(&self, messages: &[Message], thinking: bool, special: bool) -> Result<Vec<u32>> {
        let template = self.template()?;
        let contents: Vec<Cow<str>> = messages.iter().map(Message::kept).chain([template.source().into()]).collect();
        let mark = if special { None } else { Some(unused_mark(&contents)?) };
        let rendered = template.render(messages, thinking, |text| match mark {
            Some(mark) => self.tokenizer.marked(text, mark),
            None => text.to_string(),
        })?;
        Ok(self.one_bos(self.tokenizer.encode(&rendered, mark)?))
    }

    /// The text that [`Text::chat_prompt`] tokenizes.
    pub fn render(&self, messages: &[Message], thinking: bool) -> Result<String> {
        self.template()?.render(messages, thinking, str::to_string)
    }

    fn template(&self) -> Result<&chat::Template> {
        self.template.as_ref().ok_or_else(|| {
            Diagnostic::new("E0250", "the checkpoint has no chat template")
                .at(&self.place)
                .hint("it is a file chat_template.jinja, or `chat_template` in tokenizer_config.json; a base model has none: give raw text instead")
        })
    }

    fn one_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if ids.first() != Some(&self.bos) {
            ids.insert(0, self.bos);
        }
        ids
    }

    /// Text of token ids. Ids that the tokenizer does not have are left out; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.stream(skip_special);
        let mut out: String = ids.iter().map(|id| stream.push(*id)).collect();
        out.push_str(&stream.finish());
        out
    }

    /// Decodes ids as they come.
    pub fn stream(&self, skip_special: bool) -> Stream<'_> {
        Stream::new(&self.tokenizer, skip_special)
    }

    /// The visible text of generated ids: without stop id at the end, thought blocks, special tokens.
    /// This is what belongs into the conversation as the model's message.
    pub fn reply(&self, ids: &[u32]) -> String {
        let ids = match ids.split_last() {
            Some((last, rest)) if self.is_stop(*last) => rest,
            _ => ids,
        };
        let (open, close) = (self.id(THOUGHT.0), self.id(THOUGHT.1));
        let mut thought = false;
        let said: Vec<u32> = ids
            .iter()
            .copied()
            .filter(|id| {
                thought |= Some(*id) == open;
                let said = !thought;
                thought &= Some(*id) != close;
                said
            })
            .collect();
        self.decode(&said, true)
    }

    /// Whether an id is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// How a token is written in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.token(id).map(str::to_string)
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.id(token)
    }

    /// As [`stop_ids`].
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop
    }

    /// Whether an id ends a generation.
    pub fn is_stop(&self, id: u32) -> bool {
        self.stop.contains(&id)
    }

    /// The id that starts a prompt.
    pub fn bos(&self) -> u32 {
        self.bos
    }
}

/// Ids that end a generation, ascending: those of config.json and of generation_config.json.
pub fn stop_ids(checkpoint: &Checkpoint) -> Result<Vec<u32>> {
    const FILE: &str = "generation_config.json";
    let (config, place) = (checkpoint.config(), format!("{}/{FILE}", checkpoint.place()));
    let mut stop = config.eos.clone();
    if let Some(o) = object(checkpoint, FILE)? {
        stop.extend(token_ids(&place, "eos_token_id", o.get("eos_token_id"), config.vocab_size)?);
    }
    stop.sort_unstable();
    stop.dedup();
    Ok(stop)
}

/// A JSON file of the checkpoint, if it is there.
fn object(checkpoint: &Checkpoint, name: &str) -> Result<Option<serde_json::Map<String, Value>>> {
    let at = format!("{}/{name}", checkpoint.place());
    match checkpoint.file(name).map(|b| json::parse(b, MAX_CONFIG, &at)).transpose()? {
        None => Ok(None),
        Some(Value::Object(o)) => Ok(Some(o)),
        Some(other) => Err(Diagnostic::new("E0206", format!("the file is {}, expected an object", json::show(&other))).at(at)),
    }
}

/// A character that none of the texts contains: it keeps spelled special tokens apart and vanishes before encoding.
fn unused_mark(texts: &[Cow<str>]) -> Result<char> {
    ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}').find(|c| texts.iter().all(|t| !t.contains(*c))).ok_or_else(|| {
        Diagnostic::new("E0246", "the text contains every private-use character")
            .hint("allow special tokens in it, or remove one of those characters")
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
