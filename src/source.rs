//! Where a model comes from: a checkpoint folder, or the demo model inside this program.

use crate::artifact;
use ir::diag::{Diagnostic, Result};
use models::Checkpoint;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

macro_rules! demo_files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo/mlx-4bit/", $name)))),*]
    };
}

/// The demo model: 10.7 million parameters, trained for this project.
const DEMO: &[(&str, &[u8])] = demo_files![
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The name of the demo model on the command line.
pub const DEMO_NAME: &str = "demo";

/// What a command is given as its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in model.
    Demo,
    /// A checkpoint folder.
    Folder(PathBuf),
    /// A compiled model.
    Artifact(PathBuf),
}

impl Source {
    /// What a word on the command line names. A path that exists is itself, even if it is called `demo`.
    pub fn of(word: &OsStr) -> Source {
        let path = Path::new(word);
        if artifact::is_artifact(path) {
            Source::Artifact(path.into())
        } else if word == DEMO_NAME && !path.exists() {
            Source::Demo
        } else {
            Source::Folder(path.into())
        }
    }

    /// The checkpoint, to be compiled. That of an artifact is read through the artifact, which checks it.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.with_weights(None)
    }

    /// The same; with a seed, its weights are made from that.
    pub fn with_weights(&self, seed: Option<u64>) -> Result<Checkpoint> {
        match (self, seed) {
            (Source::Demo, _) => {
                let ck = Checkpoint::from_memory(DEMO.iter().map(|(n, b)| (n.to_string(), Cow::Borrowed(*b))).collect())?;
                Ok(if let Some(seed) = seed { ck.randomized(seed) } else { ck })
            }
            (Source::Folder(dir), None) => Checkpoint::open(dir),
            (Source::Folder(dir), Some(seed)) => Checkpoint::with_random_weights(dir, seed),
            (Source::Artifact(dir), _) => {
                Err(Diagnostic::new("E0750", "this is an artifact, but a checkpoint is needed").at(dir.display()).hint(format!(
                    "name the checkpoint that it was compiled from; its files are in {}, which `isobit run` checks",
                    dir.join(artifact::MODEL).display()
                )))
            }
        }
    }

    /// The folder that holds the files of the checkpoint to be compiled.
    pub fn folder(&self) -> Option<PathBuf> {
        match self {
            Source::Folder(dir) => Some(dir.clone()),
            Source::Demo | Source::Artifact(_) => None,
        }
    }
}

/// The first word is the model if it names one, else the prompt for the demo model. Errors: E0758.
pub fn model_and_prompt<'a>(
    command: &str,
    first: Option<&'a OsStr>,
    second: Option<&'a OsStr>,
) -> Result<(Source, Option<&'a OsStr>)> {
    let Some(first) = first else { return Ok((Source::Demo, None)) };
    let source = Source::of(first);
    let names_model = source == Source::Demo || Path::new(first).exists();
    if second.is_some() || names_model {
        return Ok((source, second));
    }
    if looks_like_path(first) {
        return Err(Diagnostic::new("E0758", "there is no such folder or artifact")
            .at(Path::new(first).display())
            .hint(format!("if this is the prompt, name the model before it: `isobit {command} demo PROMPT`")));
    }
    Ok((Source::Demo, Some(first)))
}

fn looks_like_path(word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    let blank = word.contains(char::is_whitespace);
    !blank && (word.contains('/') || word.starts_with('~') || word.ends_with(".isobit"))
}
