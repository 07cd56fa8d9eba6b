//! One safetensors file by itself, whoever wrote it.

use super::files::{Data, map};
use super::{Tensor, safetensors};
use ir::diag::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// A file and its tensors.
pub struct TensorFile {
    place: String,
    data: Data,
    /// In the order of their data.
    entries: Vec<(String, safetensors::Entry)>,
    by_name: BTreeMap<String, usize>,
}

impl TensorFile {
    /// Opens a file and checks its header. It must not be changed while it is open.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let (place, data) = (path.display().to_string(), map(path)?);
        let mut entries = safetensors::read_header(&place, data.bytes())?;
        entries.sort_by(|a, b| (a.1.start, a.1.end, &a.0).cmp(&(b.1.start, b.1.end, &b.0)));
        let by_name = entries.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        Ok(TensorFile { place, data, entries, by_name })
    }

    /// Its tensors, in the order of their data.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        (0..self.entries.len()).map(|i| self.at(i))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.by_name.get(name).map(|&i| self.at(i))
    }

    fn at(&self, i: usize) -> Tensor<'_> {
        let (name, e) = &self.entries[i];
        let bytes = self.data.bytes().get(e.start..e.end).unwrap_or_default();
        Tensor { name, dtype: e.dtype, shape: &e.shape, bytes, file: &self.place }
    }
}
