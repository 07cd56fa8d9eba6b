//! tokenizer.json, checked, and encoding with or without special tokens.
//!
//! The `tokenizers` crate does the encoding. Its file is checked first for what would make it ambiguous, random
//! (dropout, one id given twice) or different from Gemma 4's pipeline.

use ir::diag::{Diagnostic, Result};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::tokenizer::{Model as _, NormalizedString, Normalizer, PreTokenizer as _};
use tokenizers::{NormalizerWrapper, OffsetReferential, OffsetType};

/// Larger files are refused; Gemma's own has 32 MB.
const MAX_FILE: usize = 512 << 20;
/// Longer texts are refused: they fit no model's context, and encoding takes some hundred times their size.
const MAX_TEXT: usize = 16 << 20;

pub(super) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// By id.
    tokens: Vec<Option<String>>,
    ids: BTreeMap<String, u32>,
    /// Tokens that are found before the text is cut into words.
    added: BTreeMap<String, u32>,
    special_ids: BTreeSet<u32>,
    special: BTreeSet<String>,
    /// Lengths in bytes that special tokens have.
    lengths: BTreeSet<usize>,
    /// What the decoder writes for what.
    replace: (String, String),
    place: String,
}

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    vocab: Vocab,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    special: bool,
    normalized: bool,
}

/// Token ids by spelling, no spelling given twice.
struct Vocab(BTreeMap<String, u32>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Vocab;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a BPE vocabulary: an object of ids by token")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> std::result::Result<Vocab, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    if out.insert(token.clone(), id).is_some() {
                        return Err(serde::de::Error::custom(format_args!("the token {token:?} is given twice")));
                    }
                }
                Ok(Vocab(out))
            }
        }
        d.deserialize_map(Visitor)
    }
}

impl Tokenizer {
    pub(super) fn load(bytes: &[u8], vocab_size: usize, place: &str) -> Result<Tokenizer> {
        let damaged = |message: String| Diagnostic::new("E0241", message).at(place);
        let foreign =
            |message: String| Diagnostic::new("E0242", message).at(place).hint("this is not the tokenizer of a Gemma 4 model");
        if bytes.len() > MAX_FILE {
            return Err(damaged(format!("{} bytes; at most {MAX_FILE} are read", bytes.len())));
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| damaged(format!("damaged tokenizer: {e}")))?;
        if file.model.kind.as_deref().is_some_and(|k| k != "BPE") {
            return Err(foreign(format!("the model is {}, expected BPE", file.model.kind.unwrap_or_default())));
        }
        if file.model.dropout.is_some_and(|p| p != 0.0) {
            return Err(foreign("`model.dropout` is set: encoding would be random".into()));
        }
        let replace = decoder(&file.decoder).ok_or_else(|| {
            foreign(format!("the decoder is {}, expected Replace, ByteFallback, Fuse", crate::json::show(&file.decoder)))
        })?;

        let mut ids = file.model.vocab.0;
        for t in &file.added_tokens {
            if t.content.is_empty() {
                return Err(damaged(format!("the added token {} is empty", t.id)));
            }
            if t.special && t.normalized {
                return Err(foreign(format!("the special token {:?} is matched after normalization", t.content)));
            }
            if let Some(old) = ids.insert(t.content.clone(), t.id)
                && old != t.id
            {
                return Err(damaged(format!("the token {:?} has two ids, {old} and {}", t.content, t.id)));
            }
        }
        let mut tokens: Vec<Option<String>> = Vec::new();
        for (token, &id) in &ids {
            let at = id as usize;
            if at >= vocab_size {
                return Err(Diagnostic::new(
                    "E0243",
                    format!("the token {token:?} has the id {id}, but `vocab_size` is {vocab_size}"),
                )
                .at(place)
                .hint("tokenizer.json and config.json belong to different models"));
            }
            if tokens.len() <= at {
                tokens.resize(at + 1, None);
            }
            if let Some(other) = &tokens[at] {
                return Err(damaged(format!("the id {id} is given to both {other:?} and {token:?}")));
            }
            tokens[at] = Some(token.clone());
        }

        let inner =
            guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(|e| damaged(format!("damaged tokenizer: {e}")))?;
        let mut out = Tokenizer {
            inner,
            tokens,
            ids,
            added: BTreeMap::new(),
            special_ids: BTreeSet::new(),
            special: BTreeSet::new(),
            lengths: BTreeSet::new(),
            replace,
            place: place.to_string(),
        };
        for t in file.added_tokens {
            if out.inner.token_to_id(&t.content) != Some(t.id) {
                return Err(damaged(format!(
                    "the added token {:?} can't have the id {}: ids must follow the vocabulary's",
                    t.content, t.id
                )));
            }
            out.added.insert(t.content.clone(), t.id);
            if t.special {
                out.name_special(&t.content);
            }
        }
        Ok(out)
    }

    /// Calls an added token special.
    pub(super) fn name_special(&mut self, token: &str) {
        if let Some(id) = self.added.get(token) {
            self.special_ids.insert(*id);
            self.special.insert(token.to_string());
            self.lengths.insert(token.len());
        }
    }

    pub(super) fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize)?.as_deref()
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// A token as text, byte tokens apart.
    pub(super) fn plain(&self, token: &str) -> String {
        token.replace(&self.replace.0, &self.replace.1)
    }

    /// The text with `mark` after the first character of each spelled special token, so that none is left.
    pub(super) fn marked(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            out.push(c);
            let spelled = |n: &usize| text.get(at..at + n).is_some_and(|part| self.special.contains(part));
            if self.lengths.iter().any(spelled) {
                out.push(mark);
            }
        }
        out
    }

    /// Ids of a text; special tokens in it become tokens. `mark` is removed after they have been found, before
    /// anything else happens to the text: words are merged across it.
    pub(super) fn encode(&self, text: &str, mark: Option<char>) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT {
            return Err(Diagnostic::new("E0244", format!("the text has {} bytes, at most {MAX_TEXT} are encoded", text.len())));
        }
        let run = || -> tokenizers::Result<Vec<u32>> {
            let normalizer = Unmark { mark, then: self.inner.get_normalizer() };
            let mut pieces = self.inner.get_added_vocabulary().extract_and_normalize(Some(&normalizer), text);
            if let Some(p) = self.inner.get_pre_tokenizer() {
                p.pre_tokenize(&mut pieces)?;
            }
            self.inner.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
            Ok(splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten().map(|t| t.id).collect())
        };
        guarded(run).map_err(|e| Diagnostic::new("E0244", format!("the text cannot be encoded: {e}")).at(&self.place))
    }
}

/// The only decoder that Gemma uses: Replace of a string, ByteFallback, Fuse. Returns what is replaced by what.
fn decoder(value: &Value) -> Option<(String, String)> {
    let list = value.get("decoders").filter(|_| value["type"] == "Sequence")?.as_array()?;
    let [replace, bytes, fuse] = list.as_slice() else {
        return None;
    };
    if replace["type"] != "Replace" || bytes["type"] != "ByteFallback" || fuse["type"] != "Fuse" {
        return None;
    }
    let from = replace["pattern"]["String"].as_str().filter(|s| !s.is_empty())?;
    Some((from.to_string(), replace["content"].as_str()?.to_string()))
}

/// Removes the mark, then normalizes as the file says.
struct Unmark<'a> {
    mark: Option<char>,
    then: Option<&'a NormalizerWrapper>,
}

impl Normalizer for Unmark<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if let Some(mark) = self.mark
            && text.get().contains(mark)
        {
            text.filter(|c| c != mark);
        }
        self.then.map_or(Ok(()), |n| n.normalize(text))
    }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Is this thread running code whose panic becomes an error? A panic hook that ends the process must let it pass.
pub fn panic_is_caught() -> bool {
    GUARDED.get()
}

/// Runs code of a library that panics on some odd inputs; a panic becomes an error.
pub(super) fn catch<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(before);
    done
}

/// Runs code of the `tokenizers` crate.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, Cow<'static, str>> {
    match catch(run) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(e.to_string().into()),
        Err(_) => Err("the tokenizer library gave up on it".into()),
    }
}

#[cfg(test)]
impl Tokenizer {
    pub(super) fn reference(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }
}
