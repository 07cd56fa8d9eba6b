//! How near the ties are: for each generated token the distance of its two best logits, what float64 says of the same two,
//! and how little noise makes another token win. The kernels' rows come in, the judge ([`ir::graph::truth`]) reads the same
//! tokens; nothing here runs a kernel.

pub mod flip;
pub mod plot;
pub mod replace;
pub mod report;

use ir::diag::{Diagnostic, Result};
use ir::graph::interp::WeightSource;
use ir::graph::truth::{Truth, Value, best};
use ir::graph::{Graph, Node};
use models::gemma4::layers::LOGITS;

/// Logits of a row that are kept, the greatest first: the error of a row is looked for among them.
const KEPT: usize = 16;

/// What one judge says of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Its logit of the chosen token less its logit of the second.
    pub gap: f64,
    /// The token that it would choose.
    pub best: u32,
    /// The largest difference from the kernels' logits, among the greatest of these.
    pub error: f64,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Turn of the conversation, from 0.
    pub turn: usize,
    /// Which of the turn's tokens, from 0.
    pub index: usize,
    /// Its position in the context.
    pub position: usize,
    /// The greatest logits with their ids, the chosen one first.
    pub top: Vec<(u32, f32)>,
    /// What each judge says, in the judges' order.
    pub judged: Vec<Judged>,
}

impl Token {
    /// From a row of logits. Ties go to the lowest id. A row needs two logits.
    pub fn new(turn: usize, index: usize, position: usize, row: &[f32]) -> Token {
        let mut top: Vec<(u32, f32)> = vec![];
        for (id, &z) in (0..).zip(row) {
            let at = top.partition_point(|t| t.1 >= z);
            if at < KEPT {
                top.insert(at, (id, z));
                top.truncate(KEPT);
            }
        }
        Token { turn, index, position, top, judged: vec![] }
    }

    /// The chosen id.
    pub fn chosen(&self) -> u32 {
        self.top.first().map_or(0, |t| t.0)
    }

    /// The second.
    pub fn second(&self) -> u32 {
        self.top.get(1).map_or(self.chosen(), |t| t.0)
    }

    /// The distance of the two logits, exact.
    pub fn gap(&self) -> f64 {
        match self.top[..] {
            [a, b, ..] => f64::from(a.1) - f64::from(b.1),
            _ => f64::INFINITY,
        }
    }
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The whole context before it.
    pub prompt: Vec<u32>,
    /// What was generated.
    pub generated: Vec<u32>,
    /// One each.
    pub tokens: Vec<Token>,
}

impl Turn {
    /// The context that chose a token.
    pub fn context(&self, index: usize) -> Vec<u32> {
        [&self.prompt[..], &self.generated[..index]].concat()
    }
}

/// A model in float64, with the tokens that it has read.
pub struct Judge<'a> {
    truth: Truth<'a>,
    held: Vec<u32>,
}

impl<'a> Judge<'a> {
    /// A judge of this graph, with these weights.
    pub fn new(graph: &'a Graph, source: &'a dyn WeightSource, threads: usize) -> Result<Judge<'a>> {
        let truth = Truth::new(graph, source, threads).map_err(crate::pipeline::first)?;
        Ok(Judge { truth, held: vec![] })
    }

    /// Reads `ids`, of which nothing that is read already is read again unless logits are asked for; `row` gets the logits
    /// after each token from index `from` on.
    fn read(&mut self, ids: &[u32], from: usize, row: &mut dyn FnMut(&[f64])) -> Result<()> {
        let same = self.held.iter().zip(ids).take_while(|(a, b)| a == b).count().min(from);
        self.truth.rewind(same);
        self.held.truncate(same);
        if same == ids.len() {
            return Ok(());
        }
        let vocab = |n: &Node| (n.ty.width() as usize).max(1);
        let mut look = |n: &Node, v: &mut Value| {
            if let (LOGITS, Value::Floats(z)) = (n.name.as_str(), v) {
                z.chunks_exact(vocab(n)).for_each(&mut *row);
            }
        };
        self.truth.run(&ids[same..], from - same, &mut look)?;
        self.held = ids.to_vec();
        Ok(())
    }

    /// Judges every token of a turn.
    pub fn judge(&mut self, turn: &mut Turn) -> Result<()> {
        let n = turn.tokens.len();
        let Some(first) = turn.prompt.len().checked_sub(1).filter(|_| n > 0) else { return Ok(()) };
        let ids = turn.context(n - 1);
        let mut tokens = turn.tokens.iter_mut();
        self.read(&ids, first, &mut |z| {
            let Some(t) = tokens.next() else { return };
            let at = |id: u32| z.get(id as usize).copied().unwrap_or(f64::NEG_INFINITY);
            let error = t.top.iter().map(|&(id, have)| (at(id) - f64::from(have)).abs()).fold(0.0, f64::max);
            t.judged.push(Judged { gap: at(t.chosen()) - at(t.second()), best: best(z)[0], error });
        })
    }

    /// The winners of `rows` futures of the last of `ids`; `disturb` may change a layer's output: layer, row, values.
    fn futures(&mut self, ids: &[u32], rows: usize, disturb: &dyn Fn(u32, usize, &mut [f64])) -> Result<Vec<u32>> {
        let Some((&last, before)) = ids.split_last() else {
            return Err(Diagnostic::new("E0755", "the prompt is empty"));
        };
        self.read(before, before.len(), &mut |_| {})?;
        let mut winners = vec![];
        let mut look = |n: &Node, v: &mut Value| {
            let Value::Floats(x) = v else { return };
            let width = (n.ty.width() as usize).max(1);
            if let Some(layer) = flip::layer_output(&n.name) {
                x.chunks_exact_mut(width).enumerate().for_each(|(row, x)| disturb(layer, row, x));
            } else if n.name == LOGITS {
                winners = x.chunks_exact(width).map(|z| best(z)[0]).collect();
            }
        };
        self.truth.branches(before.len(), last, rows, &mut look)?;
        Ok(winners)
    }
}
