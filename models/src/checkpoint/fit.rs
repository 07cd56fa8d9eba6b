//! Whether a checkpoint is the one that its configuration describes: nothing missing, nothing left over.

use super::Checkpoint;
use super::names::Why;
use crate::gemma4::tensors::{Expected, Role, tensors};
use ir::diag::{Diagnostic, Result};
use std::collections::BTreeSet;

/// Lines of a list in one message.
const LINES: usize = 20;

impl Checkpoint {
    /// Compares the tensors that are there with those that config.json asks for. All that are missing are named at once.
    /// A module's own shapes are checked when it is read.
    pub fn fits(&self) -> Result<()> {
        if self.random.is_some() {
            return Ok(());
        }
        let (mut missing, mut used) = (vec![], BTreeSet::new());
        for e in tensors(&self.config) {
            let bases = match e.role {
                Role::Vector => vec![e.name.clone()],
                _ => {
                    let lead = &e.shape[..e.shape.len() - 1];
                    let found = self.sources(&e.name, lead)?;
                    if found.is_empty() { vec![e.name.clone()] } else { found.into_iter().map(|s| s.base).collect() }
                }
            };
            for base in bases {
                if !self.has_weight(&base) {
                    missing.push(line(self.prefix(), &base, &e));
                }
                used.extend(self.tensors_of(&base));
            }
        }
        if !missing.is_empty() {
            return Err(self.lacks(&missing));
        }
        self.surplus(&used)?;
        self.head_is_a_copy()
    }

    fn lacks(&self, missing: &[String]) -> Diagnostic {
        let mut message = match missing.len() {
            1 => "a tensor is missing:".to_string(),
            n => format!("{n} tensors are missing:"),
        };
        for line in missing.iter().take(LINES) {
            message += &format!("\n  {line}");
        }
        if missing.len() > LINES {
            message += &format!("\n  and {} more", missing.len() - LINES);
        }
        let hint = match self.absent_shards.as_slice() {
            [] if missing.iter().any(|l| l.contains(".experts.")) => {
                "a shard seems missing, or config.json belongs to another model; experts may also be stored as \
                 experts.gate_up_proj and experts.down_proj, or one by one as experts.0.gate_proj and so on"
                    .to_string()
            }
            [] => "a shard of the checkpoint seems missing, or config.json belongs to another model".to_string(),
            absent => format!("the index names shards that are not here: {}", absent.join(", ")),
        };
        Diagnostic::new("E0227", message).at(&self.place).hint(hint)
    }

    /// Refuses tensors of the text decoder that the configuration has no place for: it is then that of another model.
    fn surplus(&self, used: &BTreeSet<String>) -> Result<()> {
        let skipped: BTreeSet<&str> = self.names.skipped.iter().map(|(n, _)| n.as_str()).collect();
        let surplus: Vec<&str> = self
            .names
            .full
            .iter()
            .filter(|(name, full)| !used.contains(*name) && !skipped.contains(full.as_str()))
            .map(|(name, _)| name.as_str())
            .collect();
        let Some(first) = surplus.first() else { return Ok(()) };
        let m = format!("the configuration has no place for {} tensors of the checkpoint, {first} the first", surplus.len());
        Err(Diagnostic::new("E0260", m)
            .at(&self.config_place)
            .hint("config.json seems to belong to another model (layers, experts, attention_k_eq_v)"))
    }

    /// With a tied output projection, an `lm_head` that is there must be the embedding.
    fn head_is_a_copy(&self) -> Result<()> {
        if !self.names.skipped.iter().any(|(_, why)| *why == Why::HeadCopy) {
            return Ok(());
        }
        for part in ["weight", "scales", "biases"] {
            let (head, table) = (self.tensor(&format!("lm_head.{part}")), self.tensor(&format!("embed_tokens.{part}")));
            let place = match (&head, &table) {
                (None, None) => continue,
                (Some(a), Some(b)) if (a.dtype, a.shape) == (b.dtype, b.shape) && self.same(a.bytes, b.bytes) => continue,
                (Some(t), _) | (None, Some(t)) => t.place(),
            };
            return Err(Diagnostic::new("E0238", "lm_head differs from embed_tokens, but `tie_word_embeddings` is true")
                .at(place)
                .hint("say false in config.json if the output projection is a matrix of its own, or remove it"));
        }
        Ok(())
    }
}

impl Checkpoint {
    /// Compares mapped bytes, and gives back their pages.
    fn same(&self, a: &[u8], b: &[u8]) -> bool {
        const RUN: usize = 1 << 24;
        a.chunks(RUN).zip(b.chunks(RUN)).all(|(a, b)| {
            let same = a == b;
            self.forget(a);
            self.forget(b);
            same
        })
    }
}

/// A missing tensor: its name in a file, shape, and the field that asks for it.
fn line(prefix: &str, base: &str, e: &Expected) -> String {
    let bare = e.role == Role::Vector && (base.ends_with("scale") || base.ends_with("layer_scalar"));
    let prefix = if e.name == "lm_head" { "" } else { prefix };
    // One expert of many has no dimension of experts.
    let shape = if base != e.name && e.role == Role::Experts { &e.shape[1..] } else { &e.shape };
    format!("{prefix}{base}{} {shape:?} (`{}`)", if bare { "" } else { ".weight" }, e.field)
}
