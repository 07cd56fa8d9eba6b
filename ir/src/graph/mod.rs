//! The tensor graph: what is computed, before it is decided where. Nodes carry stable names from the model and keep their
//! operands in order; ids are dense and never reused; petgraph holds the edges and stays private.
//! Fusion is stated by [`Stage`]s: which nodes one kernel computes and which of them it stores. Without stages every
//! computing node is a kernel of its own.

pub mod interp;
pub mod op;
pub mod text;
pub mod truth;
pub mod verify;

use op::Op;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;

/// A node, and the value it defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Number format of stored floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// binary16
    F16,
    /// binary32
    F32,
}

impl Dtype {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }
    /// The element of values in this format.
    pub fn elem(self) -> Elem {
        match self {
            Dtype::Bf16 => Elem::Bf16,
            Dtype::F16 => Elem::F16,
            Dtype::F32 => Elem::F32,
        }
    }
}

/// What one element of a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Elem {
    /// binary32
    F32,
    /// bfloat16 (weights)
    Bf16,
    /// binary16 (weights)
    F16,
    /// token ids
    I32,
    /// affine codes: `w = s * code + b`, one s and b per group of a row
    Affine {
        /// 2, 3, 4, 5, 6 or 8
        bits: u32,
        /// elements of a group
        group: u32,
        /// format of s and b
        scales: Dtype,
    },
    /// 24-bit fixed point with one power of two per group (DESIGN section 3)
    Q24 {
        /// elements of a group
        group: u32,
    },
    /// one chosen expert: index and weight
    Route,
    /// key/value cache of a layer
    Kv,
}

/// Leading symbolic dimension of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rows {
    /// Not per token: a weight or a state.
    Once,
    /// One row per token of the chunk.
    Tokens,
    /// One row per token whose logits are asked for.
    Outputs,
}

/// Type of a value: `rows` × `shape` elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Element.
    pub elem: Elem,
    /// Leading dimension.
    pub rows: Rows,
    /// Static dimensions.
    pub shape: Vec<u32>,
}

impl Type {
    /// f32 with one row per token.
    pub fn tokens(shape: &[u32]) -> Self {
        Type { elem: Elem::F32, rows: Rows::Tokens, shape: shape.to_vec() }
    }
    /// Elements of a row.
    pub fn width(&self) -> u32 {
        self.shape.iter().product()
    }
    /// The number format, if it holds plain floats.
    pub fn dtype(&self) -> Option<Dtype> {
        match self.elem {
            Elem::F32 => Some(Dtype::F32),
            Elem::Bf16 => Some(Dtype::Bf16),
            Elem::F16 => Some(Dtype::F16),
            _ => None,
        }
    }
    /// Same rows and shape, other element.
    pub fn with(&self, elem: Elem) -> Self {
        Type { elem, ..self.clone() }
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Stable name from the model, unique.
    pub name: String,
    /// Operation with its attributes.
    pub op: Op,
    /// Operands, in order.
    pub inputs: Vec<NodeId>,
    /// Type of the value.
    pub ty: Type,
}

/// What one kernel computes: an ordered set of nodes. A node may stand in several stages (it is then computed again), but
/// is stored by one at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Stable name, from the last node.
    pub name: String,
    /// Nodes in topological order.
    pub nodes: Vec<NodeId>,
    /// Nodes whose values reach memory.
    pub stores: Vec<NodeId>,
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name of the model.
    pub name: String,
    nodes: Vec<Option<Node>>,
    edges: DiGraph<(), u32>,
    /// Values the caller reads.
    pub outputs: Vec<NodeId>,
    /// Fusion decisions, in execution order; empty until they are made.
    pub stages: Vec<Stage>,
    /// Stages of one launch (indices into `stages`), in execution order; empty: one launch per stage.
    pub launches: Vec<Vec<u32>>,
}

impl PartialEq for Graph {
    fn eq(&self, o: &Self) -> bool {
        self.name == o.name
            && self.nodes == o.nodes
            && self.outputs == o.outputs
            && self.stages == o.stages
            && self.launches == o.launches
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Adds a node.
    pub fn add(&mut self, name: &str, op: Op, inputs: &[NodeId], ty: Type) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Some(Node { name: name.into(), op, inputs: vec![], ty }));
        self.edges.add_node(());
        self.set_inputs(id, inputs);
        id
    }

    /// Reserves the id of a deleted node (used when text is parsed).
    pub fn add_hole(&mut self) {
        self.nodes.push(None);
        self.edges.add_node(());
    }

    /// Replaces a node's operands.
    pub fn set_inputs(&mut self, id: NodeId, inputs: &[NodeId]) {
        let ix = NodeIndex::new(id.idx());
        let old: Vec<_> =
            self.edges.edges_directed(ix, petgraph::Direction::Incoming).map(|e| petgraph::visit::EdgeRef::id(&e)).collect();
        // Highest first: removing an edge renumbers the last one.
        let mut old = old;
        old.sort();
        for e in old.into_iter().rev() {
            self.edges.remove_edge(e);
        }
        for (k, i) in inputs.iter().enumerate() {
            self.edges.add_edge(NodeIndex::new(i.idx()), ix, k as u32);
        }
        self.node_mut(id).inputs = inputs.to_vec();
    }

    /// Removes a node that nobody uses.
    pub fn remove(&mut self, id: NodeId) {
        self.set_inputs(id, &[]);
        self.nodes[id.idx()] = None;
    }

    /// The node; ids come from this graph and were not removed.
    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.idx()].as_ref().expect("a live node")
    }

    /// The node, if the id is live.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.idx()).and_then(Option::as_ref)
    }

    /// The node, to change (operands are changed by [`Graph::set_inputs`]).
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.idx()].as_mut().expect("a live node")
    }

    /// Number of ids ever given out.
    pub fn id_count(&self) -> usize {
        self.nodes.len()
    }

    /// Live nodes, by id.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().enumerate().filter(|(_, n)| n.is_some()).map(|(i, _)| NodeId(i as u32))
    }

    /// The live node of this name.
    pub fn by_name(&self, name: &str) -> Option<NodeId> {
        self.ids().find(|&i| self.node(i).name == name)
    }

    /// Nodes that read this value, by id.
    pub fn users(&self, id: NodeId) -> Vec<NodeId> {
        let ix = NodeIndex::new(id.idx());
        let set: BTreeSet<NodeId> = self.edges.neighbors(ix).map(|n| NodeId(n.index() as u32)).collect();
        set.into_iter().collect()
    }

    /// Is there a cycle?
    pub fn is_cyclic(&self) -> bool {
        petgraph::algo::is_cyclic_directed(&self.edges)
    }

    /// Topological order, lowest id first among the ready ones.
    pub fn topo(&self) -> Vec<NodeId> {
        let mut missing: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut ready = BinaryHeap::new();
        for id in self.ids() {
            let n: BTreeSet<_> = self.node(id).inputs.iter().collect();
            missing.insert(id, n.len());
            if n.is_empty() {
                ready.push(std::cmp::Reverse(id));
            }
        }
        let mut out = vec![];
        while let Some(std::cmp::Reverse(id)) = ready.pop() {
            out.push(id);
            for u in self.users(id) {
                let m = missing.get_mut(&u).expect("users are live");
                *m -= 1;
                if *m == 0 {
                    ready.push(std::cmp::Reverse(u));
                }
            }
        }
        out
    }

    /// Replaces every use of `old` (outputs included) by `new`.
    pub fn replace_uses(&mut self, old: NodeId, new: NodeId) {
        for u in self.users(old) {
            if u == new {
                continue;
            }
            let inputs: Vec<NodeId> = self.node(u).inputs.iter().map(|&i| if i == old { new } else { i }).collect();
            self.set_inputs(u, &inputs);
        }
        for o in &mut self.outputs {
            if *o == old {
                *o = new;
            }
        }
    }

    /// The stages, or one per computing node if none were chosen.
    pub fn stages_or_default(&self) -> Vec<Stage> {
        if !self.stages.is_empty() {
            return self.stages.clone();
        }
        self.topo()
            .into_iter()
            .filter(|&id| self.node(id).op.computes())
            .map(|id| Stage { name: self.node(id).name.clone(), nodes: vec![id], stores: vec![id] })
            .collect()
    }

    /// The launches, or one per stage if none were chosen.
    pub fn launches_or_default(&self) -> Vec<Vec<u32>> {
        if !self.launches.is_empty() {
            return self.launches.clone();
        }
        (0..self.stages_or_default().len() as u32).map(|i| vec![i]).collect()
    }
}
