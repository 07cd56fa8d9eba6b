//! What reaches the terminal: results on standard output, messages on standard error, colour and progress only for people.

use crate::cmd::Stop;
use ir::diag::Diagnostic;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Progress shows when a step takes longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// Columns of a bar.
const BAR: usize = 24;

/// The two streams.
pub struct Printer {
    colour: bool,
    progress: Option<Bar>,
}

impl Printer {
    /// For this process's streams.
    pub fn new() -> Printer {
        let terminal = io::stderr().is_terminal();
        let asked_not = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Printer { colour: terminal && !asked_not, progress: terminal.then(Bar::start) }
    }

    /// Data, as it is.
    pub fn data(&mut self, text: &str) -> Result<(), Stop> {
        self.clear();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Stop::output(&e))
    }

    /// A line of data.
    pub fn line(&mut self, text: &str) -> Result<(), Stop> {
        self.data(&format!("{text}\n"))
    }

    /// A line for people.
    pub fn message(&mut self, text: &str) {
        self.clear();
        // Standard error may be closed: then there is nobody to tell.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// A prompt without end of line, for a person at a terminal.
    pub fn ask(&mut self, text: &str) {
        self.clear();
        let _ = write!(io::stderr(), "{text}");
    }

    /// Less important than a message.
    pub fn note(&mut self, text: &str) {
        let text = self.paint("2", text);
        self.message(&text);
    }

    /// Something to know that stops nothing.
    pub fn warning(&mut self, d: &Diagnostic) {
        let text = self.render("warning", "33;1", d);
        self.message(&text);
    }

    /// Why the command failed.
    pub fn error(&mut self, d: &Diagnostic) {
        let text = self.render("error", "31;1", d);
        self.message(&text);
    }

    /// Tells of progress; shown on a terminal, after a second. Where `of` is 0 only the time is shown.
    pub fn progress(&mut self, what: &str, done: usize, of: usize) {
        if let Some(bar) = &self.progress {
            bar.set(what, done, of);
        }
    }

    /// Takes the progress bar away.
    pub fn clear(&mut self) {
        if let Some(bar) = &self.progress {
            bar.set("", 0, 0);
        }
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_string() }
    }

    fn render(&self, word: &str, style: &str, d: &Diagnostic) -> String {
        let mut out = format!("{}: {}", self.paint(style, &format!("{word}[{}]", d.code)), plain(&d.message));
        if !d.place.is_empty() {
            out.push_str(&format!("\n  at {}", plain(&d.place)));
        }
        if !d.hint.is_empty() {
            out.push_str(&format!("\n{}: {}", self.paint("36", "hint"), plain(&d.hint)));
        }
        out
    }
}

impl Default for Printer {
    fn default() -> Self {
        Printer::new()
    }
}

/// Names come from files: no control character of theirs reaches the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// The progress bar: a thread that draws what it was last told.
struct Bar {
    shared: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    what: String,
    done: usize,
    of: usize,
    since: Instant,
    drawn: bool,
}

fn lock(m: &Mutex<State>) -> MutexGuard<'_, State> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bar {
    fn start() -> Bar {
        let state = State { what: String::new(), done: 0, of: 0, since: Instant::now(), drawn: false };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let theirs = shared.clone();
        // It ends with the process. If there is no thread to be had there is no bar.
        let _ = std::thread::Builder::new().name("progress".into()).spawn(move || {
            let (state, changed) = &*theirs;
            let mut s = lock(state);
            loop {
                s = if s.what.is_empty() {
                    changed.wait(s).unwrap_or_else(PoisonError::into_inner)
                } else {
                    s.draw();
                    changed.wait_timeout(s, PATIENCE / 5).unwrap_or_else(PoisonError::into_inner).0
                };
            }
        });
        Bar { shared }
    }

    fn set(&self, what: &str, done: usize, of: usize) {
        let mut s = lock(&self.shared.0);
        if s.what != what {
            s.erase();
            (s.what, s.since) = (what.into(), Instant::now());
            self.shared.1.notify_one();
        }
        (s.done, s.of) = (done, of);
    }
}

impl State {
    fn draw(&mut self) {
        let time = self.since.elapsed();
        if time < PATIENCE {
            return;
        }
        // One step of one is no bar either.
        let bar = if self.of > 1 {
            let full = BAR * self.done.min(self.of) / self.of;
            format!(" [{}{}] {}/{}", "#".repeat(full), ".".repeat(BAR - full), self.done, self.of)
        } else {
            String::new()
        };
        let _ = write!(io::stderr(), "\r\x1b[K{}{bar} {} s", self.what, time.as_secs());
        let _ = io::stderr().flush();
        self.drawn = true;
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
            let _ = io::stderr().flush();
        }
    }
}
