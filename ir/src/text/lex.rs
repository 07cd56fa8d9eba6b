//! Tokens of the textual forms, with line and column, and a cursor over them. Promises: no input panics, every
//! message names line, column, what was expected and what was found. `//` and `;` start a comment.

use crate::diag::{Diagnostic, Result};

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tok<'a> {
    /// `[A-Za-z_][A-Za-z0-9_.]*`
    Ident(&'a str),
    /// `%12`
    Value(u32),
    /// `12`, `-12`, `0xc`
    Int {
        /// A minus sign stood before it.
        neg: bool,
        /// Without sign.
        abs: u64,
        /// Written in base 16.
        hex: bool,
    },
    /// `"text"`, no escapes, on one line.
    Str(&'a str),
    /// `->`
    Arrow,
    /// One of `{ } ( ) [ ] < > = : , * + - / | & ! ? @ #`.
    Punct(char),
    /// End of input.
    End,
}

/// A token and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    /// The token.
    pub tok: Tok<'a>,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub col: u32,
    /// No other token stands before it on its line.
    pub first: bool,
}

impl Token<'_> {
    /// `line 3, column 7`
    pub fn place(&self) -> String {
        place(self.line, self.col)
    }

    fn describe(&self) -> String {
        match self.tok {
            Tok::Ident(s) => format!("`{s}`"),
            Tok::Value(n) => format!("`%{n}`"),
            Tok::Int { neg, abs, hex } => {
                let sign = if neg { "-" } else { "" };
                if hex { format!("`{sign}{abs:#x}`") } else { format!("`{sign}{abs}`") }
            }
            Tok::Str(s) => format!("string \"{s}\""),
            Tok::Arrow => "`->`".into(),
            Tok::Punct(c) => format!("`{c}`"),
            Tok::End => "end of input".into(),
        }
    }
}

fn place(line: u32, col: u32) -> String {
    format!("line {line}, column {col}")
}

/// All tokens of a text, the last one [`Tok::End`], and the lexical errors; a faulty token is left out.
pub(crate) fn lex(text: &str) -> (Vec<Token<'_>>, Vec<Diagnostic>) {
    let (mut tokens, mut errors) = (vec![], vec![]);
    let mut line = 0;
    for (n, l) in text.split('\n').enumerate() {
        line = n as u32 + 1;
        lex_line(l, line, &mut tokens, &mut errors);
    }
    tokens.push(Token { tok: Tok::End, line: line.max(1), col: 1, first: true });
    (tokens, errors)
}

fn lex_line<'a>(l: &'a str, line: u32, tokens: &mut Vec<Token<'a>>, errors: &mut Vec<Diagnostic>) {
    let mut rest = l;
    let mut col = 1;
    let mut first = true;
    while let Some(c) = rest.chars().next() {
        if c.is_whitespace() {
            rest = &rest[c.len_utf8()..];
            col += 1;
            continue;
        }
        if c == ';' || rest.starts_with("//") {
            return;
        }
        let (len, tok) = token(rest, c);
        let text = &rest[..len];
        match tok {
            Ok(tok) => {
                tokens.push(Token { tok, line, col, first });
                first = false;
            }
            Err((code, message)) => errors.push(Diagnostic::new(code, message).at(place(line, col))),
        }
        col += text.chars().count() as u32;
        rest = &rest[len..];
    }
}

type LexError = (&'static str, String);

/// Length in bytes (at least one character) and kind of the token at the start of `s`, whose first character is `c`.
fn token(s: &str, c: char) -> (usize, Result<Tok<'_>, LexError>) {
    let span = |s: &str, f: fn(char) -> bool| s.find(|c| !f(c)).unwrap_or(s.len());
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    match c {
        'A'..='Z' | 'a'..='z' | '_' => {
            let n = span(s, word);
            (n, Ok(Tok::Ident(&s[..n])))
        }
        '%' => {
            let n = 1 + span(&s[1..], word);
            let tok = match s[1..n].parse::<u32>() {
                Ok(v) if s[1..n].bytes().all(|b| b.is_ascii_digit()) => Ok(Tok::Value(v)),
                _ if n > 1 && s[1..n].bytes().all(|b| b.is_ascii_digit()) => {
                    Err(("E0103", format!("value number `{}` is out of range", &s[..n])))
                }
                _ => Err(("E0101", format!("expected a number after `%`, found `{}`", &s[1..n]))),
            };
            (n, tok)
        }
        '-' if s[1..].starts_with('>') => (2, Ok(Tok::Arrow)),
        '0'..='9' => number(s, 0, span(s, word)),
        '-' if s[1..].starts_with(|c: char| c.is_ascii_digit()) => number(s, 1, 1 + span(&s[1..], word)),
        '"' => match s[1..].find('"') {
            Some(n) => (n + 2, Ok(Tok::Str(&s[1..n + 1]))),
            None => (s.len(), Err(("E0101", "string without closing `\"` on its line".into()))),
        },
        '{' | '}' | '(' | ')' | '[' | ']' | '<' | '>' | '=' | ':' | ',' | '*' | '+' | '-' | '/' | '|' | '&' | '!' | '?' | '@'
        | '#' => (1, Ok(Tok::Punct(c))),
        _ => (c.len_utf8(), Err(("E0101", format!("unexpected character {c:?}")))),
    }
}

fn number(s: &str, sign: usize, n: usize) -> (usize, Result<Tok<'_>, LexError>) {
    let digits = &s[sign..n];
    let (body, base) = match digits.strip_prefix("0x") {
        Some(h) => (h, 16),
        None => (digits, 10),
    };
    if body.is_empty() || !body.chars().all(|c| c.is_digit(base)) {
        return (n, Err(("E0101", format!("`{}` is not a number", &s[..n]))));
    }
    let tok = match u64::from_str_radix(body, base) {
        Ok(abs) => Ok(Tok::Int { neg: sign == 1, abs, hex: base == 16 }),
        Err(_) => Err(("E0103", format!("number `{}` is out of range", &s[..n]))),
    };
    (n, tok)
}

/// A place in a token list.
pub(crate) struct Cursor<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `tokens`, which end with [`Tok::End`].
    pub fn new(tokens: Vec<Token<'a>>) -> Self {
        debug_assert!(matches!(tokens.last(), Some(t) if t.tok == Tok::End));
        Cursor { tokens, at: 0 }
    }

    /// The token ahead.
    pub fn peek(&self) -> Token<'a> {
        self.tokens[self.at]
    }

    /// Takes a token; the end is never passed.
    pub fn next(&mut self) -> Token<'a> {
        let t = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        t
    }

    /// "expected .., found .." at the token ahead.
    pub fn unexpected(&self, expected: &str) -> Diagnostic {
        let t = self.peek();
        Diagnostic::new("E0102", format!("expected {expected}, found {}", t.describe())).at(t.place())
    }

    /// Takes a punctuation mark, if it is ahead.
    pub fn eat(&mut self, c: char) -> bool {
        let yes = self.peek().tok == Tok::Punct(c);
        if yes {
            self.next();
        }
        yes
    }

    /// Takes a word, if it is ahead.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let yes = self.peek().tok == Tok::Ident(word);
        if yes {
            self.next();
        }
        yes
    }

    /// Takes a punctuation mark.
    pub fn punct(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { Err(self.unexpected(&format!("`{c}`"))) }
    }

    /// Takes a certain word.
    pub fn word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    /// Takes an identifier; `what` names it in the message.
    pub fn ident(&mut self, what: &str) -> Result<&'a str> {
        match self.peek().tok {
            Tok::Ident(s) => {
                self.next();
                Ok(s)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Takes an integer of `min..=max`.
    pub fn int(&mut self, what: &str, min: i64, max: i64) -> Result<i64> {
        let t = self.peek();
        let Tok::Int { neg, abs, .. } = t.tok else { return Err(self.unexpected(what)) };
        let x = if neg { -i128::from(abs) } else { i128::from(abs) };
        if x < i128::from(min) || x > i128::from(max) {
            let m = format!("{what} {} is out of range {min} to {max}", t.describe());
            return Err(Diagnostic::new("E0103", m).at(t.place()));
        }
        self.next();
        Ok(x as i64)
    }

    /// Index of the token ahead.
    pub fn at(&self) -> usize {
        self.at
    }

    /// After an error in the statement that began at token `from`: skips to the first token of a later line, and tells
    /// whether a brace was passed.
    pub fn skip_line(&mut self, from: usize) -> bool {
        while !self.peek().first || self.at == from {
            if self.peek().tok == Tok::End {
                break;
            }
            self.next();
        }
        self.tokens[from..self.at].iter().any(|t| matches!(t.tok, Tok::Punct('{' | '}')))
    }
}
