//! `--override MODULE=FORMAT`: a model whose modules' weights are taken from another checkpoint, or are its own rounded to a
//! format. `lm_head` is the matrix that makes the logits and `embed_tokens` the table of embeddings, also where one tensor
//! serves as both.

use ir::diag::{Diagnostic, Result, nearest};
use ir::graph::interp::pieces::{Head, Piece, Tensor};
use ir::graph::interp::{Affine, Plain, WeightSource};
use ir::graph::op::Op;
use ir::graph::truth::weights::{narrow, widen};
use ir::graph::{Dtype, Graph, Node, NodeId};
use models::Checkpoint;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ends the name of a weight that was replaced.
const MARK: &str = " (replaced)";

/// One override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// `lm_head`, `embed_tokens`, or a name of weights in which `*` is any text.
    pub module: String,
    /// What its numbers are rounded to.
    pub format: Dtype,
}

impl Override {
    /// Reads `MODULE=FORMAT`.
    pub fn parse(text: &str) -> Result<Override, String> {
        let (module, format) = text.split_once('=').ok_or("expected `MODULE=FORMAT`, such as `lm_head=bf16`")?;
        let format = match format {
            "bf16" => Dtype::Bf16,
            "f16" => Dtype::F16,
            "f32" => Dtype::F32,
            other => return Err(format!("formats are bf16, f16 and f32, not `{other}`")),
        };
        if module.is_empty() || module.contains(char::is_whitespace) {
            return Err(format!("no module has the name {module:?}"));
        }
        Ok(Override { module: module.into(), format })
    }
}

/// Where a replaced weight is found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    tensor: String,
    format: Dtype,
}

/// A model's weights, some of them replaced.
pub struct Replaced<'a> {
    base: &'a Checkpoint,
    from: &'a Checkpoint,
    places: BTreeMap<String, Place>,
}

impl<'a> Replaced<'a> {
    /// The weights of `base` and its graph, with modules taken from `from` (which may be `base`).
    pub fn new(
        base: &'a Checkpoint,
        graph: &Graph,
        from: &'a Checkpoint,
        overrides: &[Override],
    ) -> Result<(Graph, Replaced<'a>)> {
        let (mut g, mut places) = (graph.clone(), BTreeMap::new());
        for o in overrides {
            let uses = uses(&g, &o.module);
            if uses.is_empty() {
                return Err(unknown(&g, &o.module));
            }
            for (user, operand) in uses {
                let weight = g.node(user).inputs[operand];
                let (old, ty) = (g.node(weight).name.clone(), g.node(weight).ty.clone());
                // A later override of the same weight counts.
                let stored = if o.module == "lm_head" { "lm_head" } else { old.trim_end_matches(MARK) };
                let name = format!("{stored}{MARK}");
                let tensor = if stored == "lm_head" && from.config().tied { "embed_tokens" } else { stored }.to_string();
                let new = match g.by_name(&name) {
                    Some(id) => id,
                    None => g.add(&name, Op::Weight, &[], ty.clone()),
                };
                g.node_mut(new).ty = ty.with(o.format.elem());
                let mut inputs = g.node(user).inputs.clone();
                inputs[operand] = new;
                g.set_inputs(user, &inputs);
                places.insert(name, Place { tensor, format: o.format });
            }
        }
        Ok((g, Replaced { base, from, places }))
    }
}

/// Nodes that read the weights of a module, and as which operand.
fn uses(g: &Graph, module: &str) -> Vec<(NodeId, usize)> {
    let pattern = passes::Options { keep: [module.to_string()].into(), ..passes::Options::default() };
    let meant = |n: &Node, weight: &Node| match module {
        "lm_head" => n.name == "logits.raw" || n.name == models::gemma4::layers::LOGITS,
        "embed_tokens" => matches!(n.op, Op::Embed { .. }) && weight.name == module,
        _ => pattern.keeps(&weight.name),
    };
    let mut out = vec![];
    for user in g.ids() {
        for (operand, &id) in g.node(user).inputs.iter().enumerate() {
            if g.node(id).op == Op::Weight && meant(g.node(user), g.node(id)) {
                out.push((user, operand));
            }
        }
    }
    out
}

fn unknown(g: &Graph, module: &str) -> Diagnostic {
    let names = g.ids().map(|id| g.node(id)).filter(|n| n.op == Op::Weight).map(|n| n.name.as_str());
    let near = nearest(names.chain(["lm_head"]), module, 3).join(", ");
    Diagnostic::new("E0813", format!("the model has no module `{module}`"))
        .at("--override")
        .hint(format!("near to it are {near}; `*` is any text, and `isobit dump MODEL` shows the names of weights"))
}

impl WeightSource for Replaced<'_> {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        self.base.plain(name)
    }
    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        self.base.affine(name)
    }
    fn open(&self, name: &str) -> Option<Box<dyn Tensor + '_>> {
        match self.places.get(name) {
            Some(p) => Some(Box::new(Rounded { inner: self.from.open(&p.tensor)?, to: p.format })),
            None => self.base.open(name),
        }
    }
    fn done(&self, bytes: &[u8]) {
        self.base.done(bytes);
    }
}

/// A tensor's numbers, rounded.
struct Rounded<'a> {
    inner: Box<dyn Tensor + 'a>,
    to: Dtype,
}

impl Tensor for Rounded<'_> {
    fn head(&self) -> Head {
        Head { elem: self.to.elem(), ..self.inner.head() }
    }

    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_> {
        let (head, piece) = (self.inner.head(), self.inner.rows(m, rows.clone()));
        let (mut row, mut out) = (vec![], vec![]);
        for r in 0..rows.len() {
            widen(&head, &piece, r, &mut row);
            row.iter().for_each(|x| narrow(self.to, *x, &mut out));
        }
        Piece { elements: Cow::Owned(out), scales: Cow::Borrowed(&[]), biases: Cow::Borrowed(&[]) }
    }
}
