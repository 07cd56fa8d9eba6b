//! Traces: what a run computed, as one digest for each stored value of each token. `docs/trace.md` describes the file.
//!
//! A trace is written while the model runs, line by line, so what a killed run leaves is a trace that ends early.

mod read;
mod record;
mod values;

pub use read::Trace;
pub use record::{Recorder, Subject, Wish};
pub use values::{KEY_SEPARATOR, Spool, key, values_file};

use ir::graph::op::Op;
use ir::graph::{Graph, NodeId};
use ir::plan::Plan;
use runtime::trace::traced;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The form of traces; another number is another form.
pub const FORMAT: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub isobit_trace: u32,
    /// The version that wrote it.
    pub isobit: String,
    /// The model.
    pub model: Model,
    /// Hash of the graph with its orders: equal hashes, equal bits.
    pub numerics: String,
    /// Hash of plans and kernels.
    pub program: String,
    /// What the program was compiled for.
    pub target: String,
    /// What ran it.
    pub device: String,
    /// How a GPU was given launches.
    pub launch: Option<String>,
    /// Tokens of a prompt that were computed together.
    pub chunk: usize,
    /// Who computed digests: `epilogue` or `separate`.
    pub mode: String,
    /// Of caches: what each row wrote (`written`), or the whole too (`full`).
    pub kv: String,
    /// The values of each plan of the program.
    pub plans: Vec<PlanValues>,
    /// What is computed: every node of the graph by its name.
    pub nodes: BTreeMap<String, NodeEntry>,
}

/// What was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Hash of its configuration, and of names, types and shapes of its tensors.
    pub table_hash: String,
    /// Hash of its files, where it is known.
    pub content_hash: Option<String>,
    /// `stored`, or `random:SEED`.
    pub weights: String,
}

/// The values of a plan, in the order in which they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanValues {
    /// `decode` or `prefill`.
    pub phase: String,
    /// Digests of a row stand in this order.
    pub values: Vec<ValueEntry>,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueEntry {
    /// Its name.
    pub name: String,
    /// The node of the graph that it is of.
    pub node: String,
    /// Type and shape of a row.
    #[serde(rename = "type")]
    pub ty: String,
    /// The launch that writes it.
    pub launch: String,
    /// Its kernel.
    pub kernel: String,
    /// How the launch is spread over blocks: no bit depends on it.
    pub schedule: String,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Operation, attributes (orders among them) and type, as dumps write them.
    pub op: String,
    /// Its operands.
    pub inputs: Vec<String>,
}

/// A line: one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Turns of the conversation before it.
    pub turn: u64,
    /// Steps of the device before it; rows of a chunk have one step.
    pub step: u64,
    /// Number of the plan that ran it.
    pub plan: usize,
    /// Position in the sequence.
    pub position: u64,
    /// The token.
    pub token: u32,
    /// How the vocabulary writes it.
    pub text: Option<String>,
    /// A digest for each value; none where logits were not asked for.
    #[serde(with = "hex")]
    pub digests: Vec<Option<u64>>,
}

/// Digests as 16 hex digits.
mod hex {
    use serde::de::Error;
    use serde::ser::SerializeSeq;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::borrow::Cow;

    pub fn serialize<S: Serializer>(all: &[Option<u64>], s: S) -> Result<S::Ok, S::Error> {
        let mut list = s.serialize_seq(Some(all.len()))?;
        for d in all {
            match d {
                Some(d) => list.serialize_element(&format_args!("{d:016x}"))?,
                None => list.serialize_element(&())?,
            }
        }
        list.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Option<u64>>, D::Error> {
        #[derive(Deserialize)]
        struct Word<'a>(#[serde(borrow)] Cow<'a, str>);
        let words: Vec<Option<Word>> = Vec::deserialize(d)?;
        let one = |w: Option<Word>| match w {
            None => Ok(None),
            Some(Word(w)) if w.len() == 16 && w.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u64::from_str_radix(&w, 16).map(Some).map_err(D::Error::custom)
            }
            Some(Word(w)) => Err(D::Error::custom(format!("`{w:.20}` is no digest of 16 hex digits"))),
        };
        words.into_iter().map(one).collect()
    }
}

/// The nodes of a graph.
pub fn nodes(graph: &Graph) -> BTreeMap<String, NodeEntry> {
    let text = ir::graph::text::print(graph);
    let mut lines: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines() {
        if let Some((id, rest)) = line.trim_start().split_once(" = ") {
            lines.insert(id, rest);
        }
    }
    let entry = |id: NodeId| {
        let node = graph.node(id);
        let line = lines.get(id.to_string().as_str()).copied().unwrap_or_default();
        let line = line.rsplit_once(" \"").map_or(line, |(op, _)| op);
        let op: Vec<&str> = line.split(' ').filter(|w| !w.starts_with('%')).collect();
        let inputs = node.inputs.iter().map(|&i| graph.node(i).name.clone()).collect();
        (node.name.clone(), NodeEntry { op: op.join(" "), inputs })
    };
    graph.ids().map(entry).collect()
}

/// The node whose value a traced value is: that of its name, or the one that writes the cache.
fn node_of(graph: &Graph, name: &str) -> Option<NodeId> {
    if let Some(id) = graph.by_name(name) {
        return Some(id);
    }
    let layer: u32 = name.strip_prefix("kv.")?.split('.').next()?.parse().ok()?;
    let writes = |id: &NodeId| {
        let n = graph.node(*id);
        let of_layer = |i: &NodeId| matches!(graph.node(*i).op, Op::Kv { layer: l, .. } if l == layer);
        matches!(n.op, Op::KvWrite) && n.inputs.iter().any(of_layer)
    };
    graph.ids().find(writes)
}

/// The values of a plan.
pub fn values(plan: &Plan, graph: &Graph, all: bool) -> Vec<ValueEntry> {
    let entry = |t: runtime::trace::Traced| {
        let launch = &plan.launches[t.launch];
        let kernel = plan.kernels.get(launch.kernel as usize);
        let node = node_of(graph, &t.name);
        let ty = match node {
            Some(id) if graph.node(id).name == t.name => graph.node(id).ty.to_string(),
            _ => "cache".into(),
        };
        let warps = kernel.map_or(0, |k| k.warps);
        ValueEntry {
            node: node.map_or(t.name.clone(), |id| graph.node(id).name.clone()),
            name: t.name,
            ty,
            launch: launch.name.clone(),
            kernel: kernel.map_or(String::new(), |k| k.name.clone()),
            schedule: format!("grid_x={} warps={warps} rows_of_a_block={}", launch.grid_x, launch.tokens),
        }
    };
    traced(plan, graph, all).into_iter().map(entry).collect()
}
