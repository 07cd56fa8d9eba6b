//! Reading traces. Any bytes give a trace or a diagnostic; what a run that was killed left is read up to its last whole line.

use super::{FORMAT, Header, Row};
use crate::files::failed;
use ir::diag::{Diagnostic, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read. That of a header names every node of a graph; one of the largest model takes half a megabyte.
const MAX_LINE: u64 = 64 << 20;

/// A trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What was run.
    pub header: Header,
    /// Tokens, in the order in which they ran.
    pub rows: Vec<Row>,
    /// It ends in the middle of a line.
    pub cut: bool,
}

impl Trace {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Trace> {
        let meta = std::fs::metadata(path).map_err(|e| failed("cannot be read", path, &e))?;
        if !meta.is_file() {
            return Err(Diagnostic::new("E0760", "this is not a regular file").at(path.display()));
        }
        let file = File::open(path).map_err(|e| failed("cannot be read", path, &e))?;
        Trace::read(file, &path.display().to_string())
    }

    /// Reads what is at `place`.
    pub fn read(from: impl Read, place: &str) -> Result<Trace> {
        let mut lines = Lines { from: BufReader::new(from), number: 0, place, line: vec![] };
        let no_trace = |why: String| {
            Diagnostic::new("E0800", format!("this is not a trace: {why}")).at(place).hint("`isobit run --trace FILE` writes one")
        };
        if !lines.next()? {
            let why = if lines.line.is_empty() { "it is empty" } else { "its first line does not end" };
            return Err(no_trace(why.into()));
        }
        let value: serde_json::Value =
            serde_json::from_slice(&lines.line).map_err(|e| no_trace(format!("its first line is no JSON, {e}")))?;
        match value.get("isobit_trace").and_then(serde_json::Value::as_u64) {
            Some(v) if v == u64::from(FORMAT) => {}
            Some(v) => {
                let m = format!("the trace has form {v}, this isobit reads form {FORMAT}");
                return Err(Diagnostic::new("E0801", m).at(place).hint("record it again with this version"));
            }
            None => return Err(no_trace("its first line has no `isobit_trace`".into())),
        }
        let header: Header = serde_json::from_value(value).map_err(|e| lines.damaged(&e.to_string()))?;
        let mut rows: Vec<Row> = vec![];
        while lines.next()? {
            let row: Row = serde_json::from_slice(&lines.line).map_err(|e| lines.damaged(&e.to_string()))?;
            match header.plans.get(row.plan) {
                Some(p) if p.values.len() == row.digests.len() => {}
                Some(p) => {
                    let m = format!("{} digests for the {} values of plan {}", row.digests.len(), p.values.len(), row.plan);
                    return Err(lines.damaged(&m));
                }
                None => return Err(lines.damaged(&format!("there is no plan {}", row.plan))),
            }
            rows.push(row);
        }
        let cut = !lines.line.is_empty();
        Ok(Trace { header, rows, cut })
    }
}

struct Lines<'a, R: Read> {
    from: BufReader<R>,
    number: usize,
    place: &'a str,
    /// The line at hand, or what is left of one that does not end.
    line: Vec<u8>,
}

impl<R: Read> Lines<'_, R> {
    /// Goes to the next line; false if there is no whole one.
    fn next(&mut self) -> Result<bool> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.from).take(MAX_LINE);
        let read = limited.read_until(b'\n', &mut self.line);
        read.map_err(|e| Diagnostic::new("E0760", format!("cannot be read: {e}")).at(self.place))?;
        if self.line.len() as u64 == MAX_LINE && self.line.last() != Some(&b'\n') {
            let m = format!("line {} has more than {} MiB", self.number, MAX_LINE >> 20);
            return Err(Diagnostic::new("E0803", m).at(self.place).hint("no line of a trace is that long: the file is damaged"));
        }
        Ok(self.line.last() == Some(&b'\n'))
    }

    fn damaged(&self, why: &str) -> Diagnostic {
        Diagnostic::new("E0802", format!("line {} is not what isobit wrote: {why}", self.number))
            .at(self.place)
            .hint("it was changed or damaged: record the trace again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"isobit_trace":1,"isobit":"0.1.0","model":{"table_hash":"t","content_hash":null,"weights":"stored"},"numerics":"n","program":"p","target":"x","device":"d","launch":null,"chunk":1,"mode":"separate","kv":"written","plans":[{"phase":"decode","values":[{"name":"a","node":"a","type":"f32[T,1]","launch":"l","kernel":"k","schedule":"s"}]}],"nodes":{}}"#;
    const ROW: &str = r#"{"turn":0,"step":0,"plan":0,"position":0,"token":7,"text":" the","digests":["00000000000000ff"]}"#;

    fn read(text: &str) -> Result<Trace> {
        Trace::read(text.as_bytes(), "t.trace")
    }

    #[test]
    fn reads_what_is_whole() {
        let t = read(&format!("{HEADER}\n{ROW}\n{ROW}\n")).unwrap();
        assert_eq!((t.rows.len(), t.rows[0].digests[0], t.cut), (2, Some(255), false));
        assert_eq!(serde_json::to_string(&t.header).unwrap(), HEADER);
        assert_eq!(serde_json::to_string(&t.rows[0]).unwrap(), ROW);
        for end in [1, ROW.len() / 2, ROW.len()] {
            let t = read(&format!("{HEADER}\n{ROW}\n{}", &ROW[..end])).unwrap();
            assert_eq!((t.rows.len(), t.cut), (1, true), "cut after {end}");
        }
        assert_eq!(read(&format!("{HEADER}\n")).unwrap().rows, []);
    }

    #[test]
    fn says_what_is_wrong() {
        let zeros = "0".repeat(8 << 10);
        for (text, code, says) in [
            ("", "E0800", "it is empty"),
            ("garbage", "E0800", "does not end"),
            ("garbage\n", "E0800", "no JSON"),
            ("{}\n", "E0800", "no `isobit_trace`"),
            ("{\"isobit_trace\":2}\n", "E0801", "form 2"),
            ("{\"isobit_trace\":1}\n", "E0802", "line 1"),
            (&format!("{HEADER}\nnonsense\n"), "E0802", "line 2"),
            (&format!("{HEADER}\n{ROW}\n{}\n", ROW.replace("00ff", "zz")), "E0802", "no digest"),
            (&format!("{HEADER}\n{}\n", ROW.replace("\"plan\":0", "\"plan\":3")), "E0802", "no plan 3"),
            (&format!("{HEADER}\n{}\n", ROW.replace("[\"", "[null,\"")), "E0802", "2 digests for the 1 values"),
            (&format!("{HEADER}\n{}\n", ROW.replace("00000000000000ff", &zeros)), "E0802", "no digest"),
        ] {
            let d = read(text).unwrap_err();
            assert!(d.code == code && d.message.contains(says), "{d}");
            assert!(d.message.len() < 400, "{d}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_read_to_its_end() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                self.0 += buf.len() as u64;
                buf.fill(b'x');
                Ok(buf.len())
            }
        }
        let mut endless = Endless(0);
        assert_eq!(Trace::read(&mut endless, "t").unwrap_err().code, "E0803");
        assert!(endless.0 < 2 * MAX_LINE);
    }
}
