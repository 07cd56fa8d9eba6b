//! The manifest as data. Its text is a function of its contents, so any changed byte of it shows.

use super::FORMAT;
use crate::options::{CompileOptions, embed_name};
use crate::stats::PlanStats;
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Size and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Length.
    pub bytes: u64,
    /// Hash of its contents, 64 hex digits.
    pub blake3: String,
}

impl FileEntry {
    /// Of these contents.
    pub fn of(bytes: &[u8]) -> FileEntry {
        FileEntry { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_hex().to_string() }
    }
}

/// The checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// Kind of model.
    pub family: String,
    /// Where its weights come from: `stored` in its files, or `random:SEED`.
    pub weights: String,
    /// Hash of what decides the program: config.json, and names, types and shapes of the tensors.
    pub table_hash: String,
    /// Hash over names and contents of all files of the checkpoint. Entries of the cache have none, since programs do not
    /// depend on the contents of tensors.
    pub content_hash: Option<String>,
    /// The files that were compiled; empty in entries of the cache.
    pub files: BTreeMap<String, FileEntry>,
    /// Are the files inside the artifact?
    pub included: bool,
}

impl ModelEntry {
    /// How [`ModelEntry::weights`] names these.
    pub fn weights_of(seed: Option<u64>) -> String {
        seed.map_or("stored".into(), |seed| format!("random:{seed}"))
    }

    /// The seed of random weights.
    pub fn seed(&self) -> Option<u64> {
        self.weights.strip_prefix("random:")?.parse().ok()
    }
}

/// What the compiler was asked for, and every switch's effective value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionsEntry {
    /// Level.
    pub determinism: String,
    /// Every pass.
    pub switches: BTreeMap<String, bool>,
    /// Fusion rules that were not used.
    pub rules_off: Vec<String>,
    /// Values that stay in memory.
    pub keep: Vec<String>,
    /// Limit of optional decisions.
    pub pass_limit: Option<u64>,
    /// Cost of a launch in fusion.
    pub launch_cost: u64,
    /// Which targets have a plan for chunks of many tokens: `on`, `off` or `gpu`.
    pub prefill_plan: String,
    /// Was machine code for GPUs asked for: `on`, `off`, or `auto`, if there is an assembler? Programs say whether they have it.
    pub cubin: String,
    /// Dumps that a person edited and the program was compiled from, with their hashes; absent if there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edited: BTreeMap<String, String>,
}

impl OptionsEntry {
    /// Of these options.
    pub fn of(o: &CompileOptions) -> OptionsEntry {
        OptionsEntry {
            determinism: o.passes.determinism.name().into(),
            switches: o.switches(),
            rules_off: o.passes.rules_off.iter().cloned().collect(),
            keep: o.passes.keep.iter().cloned().collect(),
            pass_limit: o.passes.pass_limit,
            launch_cost: o.passes.launch_cost,
            prefill_plan: o.prefill.name().into(),
            cubin: o.cubins.name().into(),
            edited: o.edited.clone(),
        }
    }
}

/// What decides bits beside weights and tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumericsEntry {
    /// Rounding of the embedding.
    pub embed: String,
    /// Type of the cache.
    pub cache: String,
    /// Hash of the graph with its orders and without its schedule: equal hashes, equal bits.
    pub hash: String,
}

impl NumericsEntry {
    /// Of these options and this hash.
    pub fn of(o: &CompileOptions, hash: String) -> NumericsEntry {
        NumericsEntry { embed: embed_name(o.embed).into(), cache: "f32".into(), hash }
    }
}

/// A program in the artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetEntry {
    /// Name of the target.
    pub name: String,
    /// Where its files are.
    pub folder: String,
    /// What made its machine code, if it has some beside PTX.
    pub assembler: Option<String>,
    /// The plan for one token.
    pub decode: PlanEntry,
    /// The plan for chunks of many tokens, if there is one.
    pub prefill: Option<PlanEntry>,
}

/// A plan of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanEntry {
    /// How work is spread: changes speed, never a bit.
    pub schedule: String,
    /// What it takes.
    pub stats: PlanStats,
}

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of the artifact.
    pub format: u32,
    /// The version that wrote it.
    pub isobit: String,
    /// The checkpoint.
    pub model: ModelEntry,
    /// What was asked for.
    pub options: OptionsEntry,
    /// The passes that ran.
    pub pipeline: String,
    /// What decides bits.
    pub numerics: NumericsEntry,
    /// Programs.
    pub targets: Vec<TargetEntry>,
    /// Every other file of the artifact, by path.
    pub files: BTreeMap<String, FileEntry>,
    /// Hash of this text with an empty checksum.
    pub checksum: String,
}

impl Manifest {
    /// The free schedules of a target's program: for a token, and for chunks of many if they have a plan of their own.
    pub fn schedules(&self, target: Target) -> (String, Option<String>) {
        let of = |t: &TargetEntry| (t.decode.schedule.clone(), t.prefill.as_ref().map(|p| p.schedule.clone()));
        self.targets.iter().find(|t| t.name == target.name()).map(of).unwrap_or_default()
    }

    /// The text, with its checksum.
    pub fn text(&self) -> String {
        let blank = Manifest { checksum: String::new(), ..self.clone() };
        let checksum = blake3::hash(pretty(&blank).as_bytes()).to_hex().to_string();
        pretty(&Manifest { checksum, ..blank })
    }

    /// Reads a text that [`Manifest::text`] wrote; the error says what is wrong with it. Versions are not looked at.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let m: Manifest = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if m.format == FORMAT && m.text() != text {
            return Err("its checksum does not fit its contents".into());
        }
        Ok(m)
    }
}

fn pretty(m: &Manifest) -> String {
    // Maps have text keys, so nothing can fail.
    serde_json::to_string_pretty(m).unwrap_or_default() + "\n"
}
