//! `--logits FILE`: a safetensors file that is written row by row and gets its name at the end.
//!
//! `logits` is f32 `[positions, vocabulary]`: row `i` is what the model says after token `i`. `ids` is i32 `[tokens]`: the
//! prompt and the generated ids. The last generated token is not run, so it has no row.

use crate::files::{self, Pending};
use ir::diag::Result;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

/// Bytes before the data: their length, and a description padded with spaces.
const HEADER: usize = 512;

/// A file in the making.
pub struct LogitsFile {
    pending: Pending,
    out: BufWriter<File>,
    vocab: usize,
    rows: usize,
    error: Option<io::Error>,
}

impl LogitsFile {
    /// Begins a file for rows of `vocab` logits.
    pub fn begin(pending: Pending, vocab: usize) -> Result<LogitsFile> {
        let file = File::create(pending.path()).map_err(|e| files::failed("cannot be written", pending.path(), &e))?;
        let mut out = BufWriter::new(file);
        let error = out.write_all(&[b' '; HEADER]).err();
        Ok(LogitsFile { pending, out, vocab, rows: 0, error })
    }

    /// Adds a row. Errors are told at the end.
    pub fn row(&mut self, row: &[f32]) {
        self.rows += 1;
        for x in row {
            if self.error.is_none() {
                self.error = self.out.write_all(&x.to_le_bytes()).err();
            }
        }
    }

    /// Ends the file.
    pub fn finish(mut self, ids: &[u32]) -> Result<()> {
        let written = match self.error.take() {
            Some(e) => Err(e),
            None => self.end(ids),
        };
        written.map_err(|e| self.pending.tell(files::failed("cannot be written", self.pending.path(), &e)))?;
        self.pending.commit()
    }

    fn end(&mut self, ids: &[u32]) -> io::Result<()> {
        for id in ids {
            self.out.write_all(&id.to_le_bytes())?;
        }
        let (rows, vocab, n) = (self.rows, self.vocab, ids.len());
        let (a, b) = (rows * vocab * 4, rows * vocab * 4 + n * 4);
        let json = format!(
            r#"{{"logits":{{"dtype":"F32","shape":[{rows},{vocab}],"data_offsets":[0,{a}]}},"ids":{{"dtype":"I32","shape":[{n}],"data_offsets":[{a},{b}]}}}}"#
        );
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&((HEADER - 8) as u64).to_le_bytes())?;
        self.out.write_all(json.as_bytes())?;
        self.out.flush()
    }
}
