//! Artifacts: a compiled model as a folder that a person can open.
//!
//! ```text
//! NAME.isobit/
//!   manifest.json                  versions, options, targets, numerics, a hash of every other file
//!   model.graph                    the graph after all passes
//!   audit.json                     what `isobit audit` finds; absent in cache entries
//!   host/ISA/model.plan            launches, buffers, packed weights: for one token
//!   host/ISA/prefill.plan          the same for chunks of many tokens
//!   host/ISA/kernels/NAME.kir      each kernel as text
//!   host/ISA/kernels.o             their code
//!   gpu/SM/...                     the same with kernels/NAME.ptx, and kernels/NAME.cubin if an assembler made them
//!   model/                         the checkpoint (hard links where possible); absent in cache entries
//! ```
//!
//! Two compilations of one input give the same bytes: no time, path or name of a machine is in it. It appears whole or not
//! at all. [`Artifact::open`] checks versions and that all files are there, and a file is used only if it has its hash, so a damaged
//! artifact is an error that names the file. The hashes guard against accidents; who can write an artifact can make it run any code.

mod manifest;
mod read;
mod write;

pub use manifest::{FileEntry, Manifest, ModelEntry, NumericsEntry, OptionsEntry, PlanEntry, TargetEntry};
pub use read::{Artifact, Bodies, is_artifact};
pub use write::{check_place, numerics_hash, write};

/// The form of artifacts; another number is another form.
pub const FORMAT: u32 = 3;
/// Name of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// Folder of the checkpoint.
pub const MODEL: &str = "model";
/// Name of the graph.
const GRAPH: &str = "model.graph";

/// Name of the file of a plan.
fn plan_file(phase: &str) -> &'static str {
    if phase == "prefill" { "prefill.plan" } else { "model.plan" }
}
