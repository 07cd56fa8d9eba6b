//! `--trace-values GLOB`: the bytes of values, in a safetensors file beside the trace. A tensor is one row of a value, under
//! `NAME@TURN.POSITION`: floats as f32, anything else as its words (i32) or bytes.

use crate::files::{self, Pending};
use ir::diag::Result;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Between a value's name and its row, in the name of a tensor.
pub const KEY_SEPARATOR: char = '@';

/// Name of the tensor that holds a row of a value.
pub fn key(name: &str, turn: u64, position: u64) -> String {
    format!("{name}{KEY_SEPARATOR}{turn}.{position}")
}

/// The file of values of a trace.
pub fn values_file(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".safetensors");
    name.into()
}

/// Values that wait, on disk, until their number is known: a header that names them all comes first in the file.
pub struct Spool {
    place: Pending,
    /// Removed when it is dropped.
    data: Pending,
    out: BufWriter<File>,
    header: String,
    bytes: u64,
}

impl Spool {
    /// Begins a file.
    pub fn begin(path: &Path) -> Result<Spool> {
        let (place, data) = (Pending::file(path)?, Pending::file(path)?);
        let file = File::create(data.path()).map_err(|e| files::failed("cannot be written", data.path(), &e))?;
        Ok(Spool { place, data, out: BufWriter::new(file), header: String::new(), bytes: 0 })
    }

    /// Adds a tensor; `floats`: its words are such.
    pub fn add(&mut self, name: &str, floats: bool, bytes: &[u8]) -> Result<()> {
        let dtype = match (floats, bytes.len() % 4) {
            (true, _) => "F32",
            (false, 0) => "I32",
            _ => "U8",
        };
        let count = if dtype == "U8" { bytes.len() } else { bytes.len() / 4 };
        let (from, to) = (self.bytes, self.bytes + bytes.len() as u64);
        let name = serde_json::Value::from(name);
        let comma = if self.header.is_empty() { "" } else { "," };
        _ = write!(self.header, r#"{comma}{name}:{{"dtype":"{dtype}","shape":[{count}],"data_offsets":[{from},{to}]}}"#);
        self.bytes = to;
        self.out.write_all(bytes).map_err(|e| self.data.tell(files::failed("cannot be written", self.data.path(), &e)))
    }

    /// Ends the file: it gets its name.
    pub fn finish(mut self) -> Result<()> {
        let written = self.end();
        written.map_err(|e| self.place.tell(files::failed("cannot be written", self.place.path(), &e)))?;
        self.place.commit()
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.flush()?;
        let mut header = format!("{{{}}}", self.header);
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut out = BufWriter::new(File::create(self.place.path())?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        let (mut data, mut piece) = (File::open(self.data.path())?, vec![0; 1 << 20]);
        loop {
            match data.read(&mut piece)? {
                0 => break,
                n => out.write_all(&piece[..n])?,
            }
        }
        out.flush()
    }
}
