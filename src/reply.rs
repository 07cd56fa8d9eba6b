//! The visible text of a generation, as it comes and as a whole. Both are the same text.

use models::Text;
use models::text::Stream;

/// How a generation is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A model's turn: without thought blocks and special tokens.
    Reply,
    /// The same with the text of the thought blocks.
    Thinking,
    /// A completion: every token is text. A stop id at the end is left out.
    Raw,
}

/// Text of ids that come one by one. What [`ReplyStream::push`] and [`ReplyStream::finish`] give, joined, is [`text_of`].
pub struct ReplyStream<'a> {
    text: &'a Text,
    stream: Stream<'a>,
    show: Show,
    open: Option<u32>,
    close: Option<u32>,
    thought: bool,
    /// A stop id: it is text only if more follows.
    held: Option<u32>,
}

impl<'a> ReplyStream<'a> {
    /// Nothing yet.
    pub fn new(text: &'a Text, show: Show) -> ReplyStream<'a> {
        ReplyStream {
            text,
            stream: text.stream(show != Show::Raw),
            show,
            open: text.id("<|channel>"),
            close: text.id("<channel|>"),
            thought: false,
            held: None,
        }
    }

    /// The text that is certain after one more id.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = match self.held.take() {
            Some(held) => self.accept(held),
            None => String::new(),
        };
        if self.text.is_stop(id) {
            self.held = Some(id);
        } else {
            out.push_str(&self.accept(id));
        }
        out
    }

    fn accept(&mut self, id: u32) -> String {
        if self.show == Show::Reply && Some(id) == self.open {
            self.thought = true;
        }
        if self.thought {
            self.thought = Some(id) != self.close;
            return String::new();
        }
        self.stream.push(id)
    }

    /// The rest, at the end.
    pub fn finish(self) -> String {
        self.stream.finish()
    }
}

/// The visible text of generated ids.
pub fn text_of(text: &Text, ids: &[u32], show: Show) -> String {
    let mut stream = ReplyStream::new(text, show);
    let mut out: String = ids.iter().map(|id| stream.push(*id)).collect();
    out.push_str(&stream.finish());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    #[test]
    fn streamed_replies_are_what_the_tokenizer_calls_the_reply() {
        let text = Text::load(&Source::Demo.checkpoint().unwrap()).unwrap();
        let (open, close, stop) = (text.id("<|channel>").unwrap(), text.id("<channel|>").unwrap(), text.stop_ids()[0]);
        let word = text.encode("Hello ☕ there", false).unwrap();
        let cases = [
            word.clone(),
            [&[open], &word[..], &[close], &word[..], &[stop]].concat(),
            [&[open], &word[..]].concat(),
            [&word[..], &[open, close, stop, stop]].concat(),
            [&word[..], &[open], &word[..], &[close], &word[..], &[close, open], &word[..], &[stop]].concat(),
            vec![stop],
            vec![],
        ];
        for ids in cases {
            assert_eq!(text_of(&text, &ids, Show::Reply), text.reply(&ids), "{ids:?}");
        }
        assert_eq!(text_of(&text, &[stop, stop], Show::Raw), text.decode(&[stop], false));
    }
}
