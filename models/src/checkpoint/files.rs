//! The files of a checkpoint folder, mapped into memory, or given as bytes.

use ir::diag::{Diagnostic, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Contents of one file.
pub(super) enum Data {
    Mapped(memmap2::Mmap),
    Memory(Cow<'static, [u8]>),
}

impl Data {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Data::Mapped(m) => m,
            Data::Memory(m) => m,
        }
    }
}

impl Data {
    /// Gives back the pages of these bytes, if they are of this file's mapping. They are read again when they are needed.
    pub(super) fn forget(&self, bytes: &[u8]) {
        let Data::Mapped(map) = self else { return };
        let (start, end) = (map.as_ptr() as usize, map.as_ptr() as usize + map.len());
        let at = bytes.as_ptr() as usize;
        if bytes.is_empty() || at < start || at + bytes.len() > end {
            return;
        }
        // SAFETY: the mapping is of a file, read only, and never written: its pages come back with the same contents.
        // A refusal costs memory, nothing else.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at - start, bytes.len()) };
    }
}

/// Whether the results depend on a file of this name.
pub(super) fn matters(name: &str) -> bool {
    name.ends_with(".safetensors")
        || matches!(
            name,
            "config.json" | "generation_config.json" | "chat_template.jinja" | "tokenizer.json" | "tokenizer_config.json"
        )
}

/// Maps the files that matter; of others only the name is kept, for hints.
pub(super) fn map_folder(dir: &Path) -> Result<BTreeMap<String, Data>> {
    let place = dir.display().to_string();
    let meta = fs::metadata(dir).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Diagnostic::new("E0210", "there is no such folder")
            .at(&place)
            .hint("give the folder of a downloaded checkpoint, or `demo` for the built-in model"),
        _ => Diagnostic::new("E0211", format!("cannot be opened: {e}")).at(&place),
    })?;
    if !meta.is_dir() {
        let d = Diagnostic::new("E0215", "this is a file, but a checkpoint is a folder").at(&place);
        return Err(match dir.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(parent) => d.hint(format!("give the folder that holds it: {}", parent.display())),
            None => d.hint("give the folder that holds it: ."),
        });
    }
    let unreadable = |e: std::io::Error| Diagnostic::new("E0211", format!("cannot be read: {e}")).at(&place);
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(&unreadable)? {
        let path = entry.map_err(&unreadable)?.path();
        // Names that are not UTF-8 are none of ours; hidden ones are editor and file manager litter.
        let Some(name) = path.file_name().and_then(|n| n.to_str()).filter(|n| !n.starts_with('.')) else {
            continue;
        };
        let data = if matters(name) || name == super::index::INDEX { map(&path)? } else { Data::Memory(Cow::Borrowed(&[])) };
        out.insert(name.to_string(), data);
    }
    Ok(out)
}

pub(super) fn map(path: &Path) -> Result<Data> {
    let place = path.display();
    let failed = |e: std::io::Error| Diagnostic::new("E0211", format!("cannot be read: {e}")).at(&place);
    // Asked before opening, since opening a pipe would wait.
    let meta = fs::metadata(path).map_err(&failed)?;
    if !meta.is_file() {
        return Err(Diagnostic::new("E0216", "this is not a regular file").at(&place));
    }
    if meta.len() == 0 {
        return Ok(Data::Memory(Cow::Borrowed(&[]))); // a mapping cannot be empty
    }
    let file = fs::File::open(path).map_err(&failed)?;
    // SAFETY: the mapping is read only. As with every mapping, whoever truncates the file meanwhile ends the process
    // (SIGBUS); `Checkpoint::open` says so.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(&failed)?;
    Ok(Data::Mapped(map))
}
