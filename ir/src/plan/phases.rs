//! Two plans for one program. Both are lowerings of one graph whose orders stand, so they give the same bits; they share
//! weights, caches, tokens, rows and state by name.
//!
//! `decode` runs steps of up to [`DECODE_ROWS`] rows. `prefill` runs longer ones, be they a chunk of one sequence or a row each of
//! several: what a launch costs is spread over many rows, and a block may compute several of them with the weights that it reads
//! once.

use super::{BufferKind, Plan};
use crate::diag::{Diagnostic, Result};
use crate::graph::Rows;
use crate::kernel::Kernel;
use std::collections::BTreeMap;

/// Rows that a step of `decode` has at most where there is `prefill` too.
pub const DECODE_ROWS: usize = 1;

/// The plans of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phases {
    /// For few rows at a time, and for all steps if there is no other plan.
    pub decode: Plan,
    /// For steps of more rows.
    pub prefill: Option<Plan>,
}

impl From<Plan> for Phases {
    fn from(decode: Plan) -> Phases {
        Phases { decode, prefill: None }
    }
}

impl Phases {
    /// Joins plans: a kernel of `prefill` that equals one of `decode` gets its name, any other a name of its own.
    pub fn join(decode: Plan, prefill: Option<Plan>) -> Phases {
        let text = |k: &Kernel| crate::kernel::text::print(&Kernel { name: "k".into(), ..k.clone() });
        let known: BTreeMap<String, &Kernel> = decode.kernels.iter().map(|k| (text(k), k)).collect();
        let taken = |name: &str| decode.kernels.iter().any(|k| k.name == name);
        let prefill = prefill.map(|mut p| {
            for k in &mut p.kernels {
                // Equal text is an equal kernel, though values of one that was read from text have other numbers.
                if let Some(same) = known.get(&text(k)) {
                    *k = (*same).clone();
                } else if let Some(own) = (0..).map(|i| format!("{}{}", "p_".repeat(i + 1), k.name)).find(|n| !taken(n)) {
                    k.name = own;
                }
            }
            p
        });
        Phases { decode, prefill }
    }

    /// The plans with the names of their phases, `decode` first.
    pub fn plans(&self) -> impl Iterator<Item = (&'static str, &Plan)> {
        [("decode", &self.decode)].into_iter().chain(self.prefill.iter().map(|p| ("prefill", p)))
    }

    /// Every kernel once: those of `decode`, then what `prefill` has beside them.
    pub fn kernels(&self) -> Vec<&Kernel> {
        let mut out: Vec<&Kernel> = self.decode.kernels.iter().collect();
        for k in self.prefill.iter().flat_map(|p| &p.kernels) {
            if !self.decode.kernels.iter().any(|d| d.name == k.name) {
                out.push(k);
            }
        }
        out
    }

    /// What the plans share, as a plan without launches: weights, caches, tokens, rows and state, arenas that are large enough for
    /// either.
    pub fn common(&self) -> Plan {
        let Plan { buffers, weights, arena_bytes, output_bytes, .. } = self.decode.clone();
        let mut out = Plan { buffers, weights, arena_bytes, output_bytes, ..Plan::default() };
        if let Some(p) = &self.prefill {
            for b in &mut out.buffers {
                // Where longer steps leave no parts, there are [`DECODE_ROWS`] rows of them.
                if let (BufferKind::Parts { rows, .. }, None) = (&mut b.kind, p.buffer(&b.name)) {
                    *rows = Rows::Once;
                }
                // Digests are no value that steps share: each plan has its own, and this one's steps have [`DECODE_ROWS`] rows.
                if let BufferKind::Digests { rows } = &mut b.kind {
                    (*rows, b.name) = (Rows::Once, format!("decode.{}", b.name));
                }
            }
            out.arena_bytes = out.arena_bytes.max(p.arena_bytes);
            out.output_bytes = out.output_bytes.max(p.output_bytes);
            for w in &p.weights {
                if !out.weights.contains(w) {
                    out.weights.push(w.clone());
                }
            }
            for b in &p.buffers {
                if b.offset.is_none() && out.buffer(&b.name).is_none() {
                    out.buffers.push(b.clone());
                }
            }
        }
        out
    }

    /// Can the plans share what they name alike? Each by itself is not looked at.
    pub fn check(&self) -> Result<()> {
        let Some(prefill) = &self.prefill else { return Ok(()) };
        let differ = |what: &str, name: &str| {
            Err(Diagnostic::new("E0363", format!("the plans of decode and prefill differ in a {what} of one name")).at(name))
        };
        for k in &prefill.kernels {
            if self.decode.kernels.iter().any(|d| d.name == k.name && d != k) {
                return differ("kernel", &k.name);
            }
        }
        for b in &prefill.buffers {
            let value = matches!(b.kind, BufferKind::Value { .. });
            let same = |d: &BufferKind| value && matches!(d, BufferKind::Value { .. }) || *d == b.kind;
            if self.decode.buffers.iter().any(|d| d.name == b.name && !same(&d.kind)) {
                return differ("buffer", &b.name);
            }
        }
        Ok(())
    }
}
