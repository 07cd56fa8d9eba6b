//! Streams the tensors to their files: header first, then blocks of rows wherever they belong. At most a block a thread is
//! held in memory. The bytes do not depend on the number of threads, nor on who takes which block.

use super::affine::{self, Bad};
use super::plan::{Item, Plan};
use super::together;
use ir::diag::{Diagnostic, Result};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements of a block, about.
const BLOCK: usize = 1 << 20;

/// Tells how far it is: what is done, steps done, steps in all.
pub type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// Where the bytes of a file go.
trait Sink: Sync {
    fn put(&self, bytes: &[u8], at: u64) -> io::Result<()>;
}

impl Sink for File {
    fn put(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }
}

/// A value that cannot be quantized: the piece of the item, its index there, and why.
type BadValue = (usize, usize, Bad);

impl Plan<'_> {
    /// Writes config.json, the weights and their index into a folder that exists and is empty. Values that are not finite,
    /// or too far apart, are an error that names every tensor that has one. After an error the folder is to be removed.
    pub fn write(&self, dir: &Path, progress: Progress) -> Result<()> {
        let mut bad = vec![];
        let mut done = 0;
        let mut index = Map::new();
        for (s, items) in self.shards.iter().enumerate() {
            let name = match self.shards.len() {
                1 => "model.safetensors".to_string(),
                n => format!("model-{:05}-of-{n:05}.safetensors", s + 1),
            };
            let path = dir.join(&name);
            let failed = |e: io::Error| self.failed(&path, &e);
            let file = File::create_new(&path).map_err(failed)?;
            let layout = Layout::new(&self.items, items);
            file.put(&layout.header, 0).map_err(failed)?;
            for (item, at) in items.iter().map(|&i| &self.items[i]).zip(&layout.offsets) {
                progress("quantize", done, self.items.len());
                done += 1;
                // Once something is wrong the rest is only looked at.
                let sink: Option<&dyn Sink> = if bad.is_empty() { Some(&file) } else { None };
                bad.extend(self.places(item, stream(item, at, sink).map_err(failed)?));
                for part in item.stored() {
                    index.insert(part.name, json!(name));
                }
            }
        }
        if let Some(d) = together("E0283", "cannot be quantized", self.ck.place(), bad) {
            return Err(d.hint("the file seems damaged: download it again"));
        }
        index.sort_keys();
        let sizes = json!({"total_size": self.report.bytes_after, "total_parameters": self.report.parameters});
        let index = format!("{:#}\n", json!({"metadata": sizes, "weight_map": Value::Object(index)}));
        for (name, text) in [("model.safetensors.index.json", &index), ("config.json", &self.config)] {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|e| self.failed(&path, &e))?;
        }
        Ok(())
    }

    /// The first value of each tensor of the input, with its place there, and what is wrong with it.
    fn places(&self, item: &Item, bad: Vec<BadValue>) -> Vec<(String, String)> {
        let mut out: Vec<(String, String)> = vec![];
        for (piece, within, why) in bad {
            let start = item.pieces[piece].as_ptr();
            let found = self.ck.tensors().find(|t| t.bytes.as_ptr_range().contains(&start));
            let (place, first) = match found {
                Some(t) => (t.place(), (start as usize - t.bytes.as_ptr() as usize) / item.width),
                None => (item.name.clone(), 0),
            };
            if out.last().is_some_and(|o| o.0 == place) {
                continue;
            }
            let at = first + within;
            out.push((
                place,
                match why {
                    Bad::NotFinite => format!("element {at} is infinite or not a number"),
                    Bad::Spread => format!("the group of element {at} spreads wider than float32 can tell"),
                },
            ));
        }
        out
    }

    fn failed(&self, path: &Path, e: &io::Error) -> Diagnostic {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let d = Diagnostic::new("E0285", format!("cannot be written: {e}")).at(path.display());
        match e.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => {
                d.hint(format!("the result takes {} bytes: make room, or name a folder elsewhere", self.report.bytes_after))
            }
            _ => d,
        }
    }
}

/// Where the tensors of one file lie.
struct Layout {
    /// Length and JSON, padded so that tensors are aligned.
    header: Vec<u8>,
    /// For each item the offsets of its tensors in the file.
    offsets: Vec<Vec<u64>>,
}

impl Layout {
    fn new(all: &[Item], items: &[usize]) -> Layout {
        let stored: Vec<_> = items.iter().map(|&i| all[i].stored()).collect();
        let mut order: Vec<(usize, usize)> =
            stored.iter().enumerate().flat_map(|(i, parts)| (0..parts.len()).map(move |p| (i, p))).collect();
        // Wide elements first: then each tensor is aligned to its element.
        order.sort_by_key(|&(i, p)| std::cmp::Reverse(stored[i][p].dtype.bitsize()));
        let mut offsets: Vec<Vec<u64>> = stored.iter().map(|parts| vec![0; parts.len()]).collect();
        let mut map = Map::new();
        map.insert("__metadata__".into(), json!({"format": "mlx"}));
        let mut at = 0;
        for (i, p) in order {
            let part = &stored[i][p];
            let end = at + part.bytes;
            let entry = json!({"dtype": format!("{:?}", part.dtype), "shape": part.shape, "data_offsets": [at, end]});
            map.insert(part.name.clone(), entry);
            offsets[i][p] = at;
            at = end;
        }
        let mut text = Value::Object(map).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        for at in offsets.iter_mut().flatten() {
            *at += header.len() as u64;
        }
        Layout { header, offsets }
    }
}

/// Whole rows of one piece, and the index of their first element in the result.
struct Block<'a> {
    piece: usize,
    bytes: &'a [u8],
    /// Index of the first element in the piece.
    within: usize,
    first: u64,
}

/// Writes one item, or only looks at it. Gives the first value of each block that cannot be quantized, in order.
fn stream(item: &Item, at: &[u64], sink: Option<&dyn Sink>) -> io::Result<Vec<BadValue>> {
    let row = item.cols() * item.width;
    let rows = (BLOCK / item.cols().max(1)).max(1);
    let mut blocks = vec![];
    let mut first = 0;
    for (piece, p) in item.pieces.iter().enumerate() {
        let mut within = 0;
        for bytes in p.chunks((rows * row).max(1)) {
            blocks.push(Block { piece, bytes, within, first });
            within += bytes.len() / item.width;
            first += (bytes.len() / item.width) as u64;
        }
    }
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<Vec<BadValue>> {
        let mut buffers = Buffers::default();
        let mut bad = vec![];
        while let Some(b) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some((i, why)) = buffers.block(item, at, b, sink)? {
                bad.push((b.piece, b.within + i, why));
            }
        }
        Ok(bad)
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(blocks.len()).min(16);
    let mut bad = if threads <= 1 {
        work()?
    } else {
        std::thread::scope(|s| {
            let all: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
            let mut bad = vec![];
            let mut result = Ok(());
            for t in all {
                match t.join() {
                    Ok(Ok(found)) => bad.extend(found),
                    Ok(Err(e)) => result = Err(e),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            result.map(|()| bad)
        })?
    };
    bad.sort_by_key(|b| (b.0, b.1));
    Ok(bad)
}

#[derive(Default)]
struct Buffers {
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Buffers {
    fn block(&mut self, item: &Item, at: &[u64], b: &Block, sink: Option<&dyn Sink>) -> io::Result<Option<(usize, Bad)>> {
        let n = b.bytes.len() / item.width;
        let Some((bits, group)) = item.format else {
            if let Some(i) = affine::first_not_finite(item.dtype, b.bytes) {
                return Ok(Some((i, Bad::NotFinite)));
            }
            if let (Some(sink), [at]) = (sink, at) {
                sink.put(b.bytes, at + b.first * item.width as u64)?;
            }
            return Ok(None);
        };
        self.codes.resize(n * bits as usize / 8, 0);
        self.scales.resize(n / group * item.width, 0);
        self.biases.resize(n / group * item.width, 0);
        let r = affine::quantize(item.dtype, bits, group, b.bytes, &mut self.codes, &mut self.scales, &mut self.biases);
        if let Err(bad) = r {
            return Ok(Some(bad));
        }
        if let (Some(sink), &[codes, scales, biases]) = (sink, at) {
            let pairs = b.first / group as u64 * item.width as u64;
            sink.put(&self.codes, codes + b.first * u64::from(bits) / 8)?;
            sink.put(&self.scales, scales + pairs)?;
            sink.put(&self.biases, biases + pairs)?;
        }
        Ok(None)
    }
}
