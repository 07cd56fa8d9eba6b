//! Ids to text, one at a time: a run of byte tokens is held back until it ends, since only the whole run tells
//! whether it is UTF-8.

use super::tokenizer::Tokenizer;

/// Decodes ids as they come. What [`Stream::push`] and [`Stream::finish`] return, joined, is the text of all ids.
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    bytes: Vec<u8>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Stream { tokenizer, skip_special, bytes: Vec::new() }
    }

    /// The text that is certain after one more id; often empty in the middle of a character.
    pub fn push(&mut self, id: u32) -> String {
        let Some(token) = self.tokenizer.token(id) else {
            return String::new();
        };
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        if let Some(byte) = byte_token(token) {
            self.bytes.push(byte);
            return String::new();
        }
        let mut out = self.flush();
        out.push_str(&self.tokenizer.plain(token));
        out
    }

    /// The rest, at the end.
    pub fn finish(mut self) -> String {
        self.flush()
    }

    /// One replacement character a byte if the run is not UTF-8, as the reference tokenizer does.
    fn flush(&mut self) -> String {
        let bytes = std::mem::take(&mut self.bytes);
        let count = bytes.len();
        String::from_utf8(bytes).unwrap_or_else(|_| "\u{fffd}".repeat(count))
    }
}

/// `<0x41>` and the like.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
