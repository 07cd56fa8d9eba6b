//! A checkpoint: its files, and its tensors by canonical name.
//!
//! Files are mapped, not read; nothing is copied. Tensors are found through the safetensors headers alone
//! (a stale index file cannot mislead: it is a warning), iterate in name order, and have been checked against their file's
//! length. What the text decoder does not need is skipped, and listed. Tensor bytes are not aligned: read them as bytes.

mod files;
mod fit;
mod index;
mod module;
mod names;
mod quant;
mod safetensors;
mod tensor_file;

use crate::gemma4::Config;
use crate::gemma4::tensors::{Expected, tensors};
use crate::hash::hash_bytes;
use files::Data;
use ir::diag::{Diagnostic, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

pub use ::safetensors::Dtype;
pub use module::{Module, Parts};
pub use names::Why;
pub use quant::{code, dequant_f64};
pub use tensor_file::TensorFile;

/// An opened and checked checkpoint.
pub struct Checkpoint {
    place: String,
    files: BTreeMap<String, Data>,
    entries: BTreeMap<String, safetensors::Entry>,
    names: names::Names,
    config: Config,
    config_place: String,
    /// What the configuration asks for, by name.
    expected: BTreeMap<String, Expected>,
    /// Shards that the index names and that are not here.
    absent_shards: Vec<String>,
    warnings: Vec<Diagnostic>,
    /// The seed, if weights are made and not read.
    random: Option<u64>,
}

/// One stored tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Full name in the file.
    pub name: &'a str,
    /// Stored type.
    pub dtype: Dtype,
    /// Stored shape, row major.
    pub shape: &'a [usize],
    /// Little-endian values; the address is not aligned.
    pub bytes: &'a [u8],
    /// The file that holds it.
    pub file: &'a str,
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {:?} in {}", self.name, self.dtype, self.shape, self.file)
    }
}

impl Tensor<'_> {
    /// Place of this tensor in messages.
    pub fn place(&self) -> String {
        format!("{}: {}", self.file, self.name)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` widened exactly; `None` past the end or if the stored type is none of bf16, f16 and f32.
    pub fn float(&self, i: usize) -> Option<f32> {
        quant::float(self.bytes, self.dtype, i)
    }

    /// All elements widened exactly.
    pub fn floats(&self) -> Result<Vec<f32>> {
        (0..self.len()).map(|i| self.float(i).ok_or_else(|| module::not_float(self))).collect()
    }
}

impl Checkpoint {
    /// Opens a checkpoint folder. The files must not be changed while it is open.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let place = dir.display().to_string();
        Self::build(files::map_folder(dir)?, place)
    }

    /// The checkpoint that a folder's configuration describes, with the weights that a seed makes ([`crate::random`]). Tensors
    /// in the folder are not looked at; tokenizer and template may be missing.
    pub fn with_random_weights(dir: &Path, seed: u64) -> Result<Checkpoint> {
        let mut files = files::map_folder(dir)?;
        files.retain(|name, _| !name.ends_with(".safetensors") && name != index::INDEX);
        let (config, config_place, place) = read_config(&files, dir.display().to_string())?;
        let expected = expected(&config);
        let (entries, names) = (BTreeMap::new(), names::Names::default());
        let (absent_shards, warnings, random) = (vec![], vec![], Some(seed));
        Ok(Checkpoint { place, files, entries, names, config, config_place, expected, absent_shards, warnings, random })
    }

    /// The same model with the weights that a seed makes.
    pub fn randomized(mut self, seed: u64) -> Checkpoint {
        self.files.retain(|name, _| !name.ends_with(".safetensors") && name != index::INDEX);
        (self.entries, self.names) = (BTreeMap::new(), names::Names::default());
        (self.absent_shards, self.warnings, self.random) = (vec![], vec![], Some(seed));
        self
    }

    /// A checkpoint from named file contents (the demo model lies in the binary).
    pub fn from_memory(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Checkpoint> {
        let place = "built-in checkpoint";
        let mut map = BTreeMap::new();
        for (name, data) in files {
            if map.insert(name.clone(), Data::Memory(data)).is_some() {
                return Err(Diagnostic::new("E0212", format!("the file {name} is given twice")).at(place));
            }
        }
        Self::build(map, place.into())
    }

    fn build(files: BTreeMap<String, Data>, place: String) -> Result<Checkpoint> {
        let is_shard = |n: &&String| n.ends_with(".safetensors");
        let (config, config_place, place) = read_config(&files, place)?;
        if files.keys().find(is_shard).is_none() {
            let d = Diagnostic::new("E0214", "there is no *.safetensors file here").at(&place);
            return Err(if files.keys().any(|n| n.ends_with(".bin")) {
                d.hint("only safetensors is read: PyTorch's .bin files can run code. Convert them first")
            } else {
                d.hint("the weights seem not to be downloaded yet")
            });
        }
        let mut entries: BTreeMap<String, safetensors::Entry> = BTreeMap::new();
        for name in files.keys().filter(is_shard) {
            for (tensor, entry) in safetensors::read_header(name, files[name].bytes())? {
                if let Some(old) = entries.get(&tensor) {
                    return Err(Diagnostic::new(
                        "E0221",
                        format!("the tensor {tensor} is in two files, {} and {name}", old.file),
                    )
                    .at(&place)
                    .hint("the folder seems to mix two checkpoints: keep the shards of one"));
                }
                entries.insert(tensor, entry);
            }
        }
        let names = names::sort(&entries, &config, &place)?;
        let mut warnings = vec![];
        let mut absent_shards = vec![];
        if let Some(data) = files.get(index::INDEX) {
            let shards = files.keys().filter(is_shard).map(String::as_str).collect();
            let stale = index::compare(data.bytes(), &format!("{place}/{}", index::INDEX), &shards, &entries);
            absent_shards = stale.absent;
            warnings.extend(stale.warning);
        }
        let outside: Vec<&str> = names.skipped.iter().filter(|(_, w)| *w == Why::Outside).map(|(n, _)| n.as_str()).collect();
        if let Some(first) = outside.first() {
            let m = format!("{} tensors are neither of the text decoder nor of a known tower, {first} the first", outside.len());
            warnings.push(Diagnostic::new("E0261", m).at(&place).hint("they are not read"));
        }
        if config.quantization.is_none()
            && let Some(name) = names.full.keys().find(|n| n.ends_with(".scales"))
        {
            let m =
                format!("config.json says nothing of quantization, but {name} exists: bits and groups are taken from the shapes");
            warnings.push(Diagnostic::new("E0262", m).at(&config_place));
        }
        let expected = expected(&config);
        Ok(Checkpoint { place, files, entries, names, config, config_place, expected, absent_shards, warnings, random: None })
    }

    /// The seed of the weights, if they are random.
    pub fn random(&self) -> Option<u64> {
        self.random
    }

    /// Gives back the pages of bytes of a mapped file; they are read again when they are needed.
    pub fn forget(&self, bytes: &[u8]) {
        self.files.values().for_each(|f| f.forget(bytes));
    }

    /// The folder, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The validated configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The contents of a file of the checkpoint, by its name.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Data::bytes)
    }

    /// Name and contents of every file that the results depend on, in name order.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let all = self.files.iter().filter(|(n, _)| files::matters(n));
        all.map(|(n, d)| (n.as_str(), d.bytes()))
    }

    /// What stands before the names of the text decoder's tensors.
    pub fn prefix(&self) -> &'static str {
        self.names.prefix
    }

    /// What a user should know although the checkpoint can be read: a stale index, tensors of unknown origin.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// The tensors that are not read, in name order, and why.
    pub fn skipped(&self) -> impl Iterator<Item = (Tensor<'_>, Why)> {
        self.names.skipped.iter().filter_map(|(name, why)| Some((self.tensor_by_full_name(name)?, *why)))
    }

    /// What the configuration asks for under this name of a weight.
    pub fn expected(&self, name: &str) -> Option<&Expected> {
        self.expected.get(name)
    }

    /// A tensor by canonical name, without prefix (`layers.0.layer_scalar`).
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.tensor_by_full_name(self.names.full.get(name)?)
    }

    /// A tensor by its name in the file.
    pub fn tensor_by_full_name(&self, name: &str) -> Option<Tensor<'_>> {
        self.entries.get_key_value(name).map(|(name, e)| self.view(name, e))
    }

    /// All tensors, those outside the text decoder included, in name order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.entries.iter().map(|(name, e)| self.view(name, e))
    }

    fn view<'a>(&'a self, name: &'a str, e: &'a safetensors::Entry) -> Tensor<'a> {
        let bytes = self.files.get(&e.file).and_then(|d| d.bytes().get(e.start..e.end)).unwrap_or_default();
        Tensor { name, dtype: e.dtype, shape: &e.shape, bytes, file: &e.file }
    }

    /// Name, length and BLAKE3 (64 hex digits) of every file that the results depend on, in name order. Reads them all.
    pub fn file_hashes(&self) -> impl Iterator<Item = (&str, u64, String)> {
        self.files().map(|(name, bytes)| (name, bytes.len() as u64, hash_bytes(bytes, &mut |run| self.forget(run))))
    }

    /// BLAKE3 over name, length and hash of every file that the results depend on, in name order, as 64 hex digits.
    pub fn content_hash(&self) -> String {
        content_hash(self.file_hashes())
    }

    /// BLAKE3 over all of the checkpoint that decides a program: config.json, and name, type and shape of every tensor. Reads no
    /// tensor's contents, since no program depends on them.
    pub fn table_hash(&self) -> String {
        let config = self.file("config.json").unwrap_or_default();
        let mut hash = blake3::Hasher::new();
        hash.update(&(config.len() as u64).to_le_bytes());
        hash.update(config);
        if self.random.is_some() {
            hash.update(b"random");
        }
        for t in self.tensors() {
            hash.update(format!("{:?} {:?} {:?}\n", t.name, t.dtype, t.shape).as_bytes());
        }
        hash.finalize().to_hex().to_string()
    }
}

/// BLAKE3 over names, lengths and hashes of files, as 64 hex digits.
pub fn content_hash<N: AsRef<str>, H: AsRef<str>>(files: impl Iterator<Item = (N, u64, H)>) -> String {
    let mut hash = blake3::Hasher::new();
    for (name, bytes, content) in files {
        hash.update(format!("{:?} {bytes} {}\n", name.as_ref(), content.as_ref()).as_bytes());
    }
    hash.finalize().to_hex().to_string()
}

/// The configuration among files, its place, and the place of all of them.
fn read_config(files: &BTreeMap<String, Data>, place: String) -> Result<(Config, String, String)> {
    let Some(config) = files.get("config.json") else {
        let hint = if files.keys().any(|n| n.ends_with(".gguf")) {
            "isobit reads Hugging Face and MLX folders, not GGUF"
        } else {
            "a checkpoint is a folder with config.json, *.safetensors and tokenizer.json"
        };
        return Err(Diagnostic::new("E0213", "there is no config.json here").at(&place).hint(hint));
    };
    let config_place = format!("{place}/config.json");
    Ok((Config::from_bytes(config.bytes(), &config_place)?, config_place, place))
}

fn expected(config: &Config) -> BTreeMap<String, Expected> {
    tensors(config).into_iter().map(|e| (e.name.clone(), e)).collect()
}
