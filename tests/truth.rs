//! The float64 judge against float64 values made by NumPy and transformers: every kind of Gemma 4 in little, every value at
//! every position, in one go and token by token. Then that it sees: a constant that is slightly wrong in a kernel's graph, a
//! scale that was dropped, keys of the wrong layer, a weight's offset left out.
#![cfg(feature = "llvm")]

mod common;

use common::fixture::{FIXTURES, Fixture, error_of};
use common::on_two_threads;
use ir::graph::interp::pieces::{Head, Piece, Tensor};
use ir::graph::interp::{Affine, Plain, WeightSource};
use ir::graph::op::{EmbedMode, Op};
use ir::graph::truth::{Truth, Value, best};
use ir::graph::{Graph, Node};
use models::gemma4::layers::{LOGITS, PER_LAYER};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// What is demanded: error over greatest magnitude. Both sides are float64; the files hold some values as f32.
const BOUND: f64 = 1e-12;
const STORED_F32: f64 = 1e-7;

type Floats = BTreeMap<String, Vec<f64>>;
type Routes = BTreeMap<usize, (Vec<u32>, Vec<f64>)>;

fn judge<'a>(g: &'a Graph, source: &'a dyn WeightSource) -> Truth<'a> {
    Truth::new(g, source, 2).unwrap_or_else(|e| panic!("{e:#?}"))
}

/// All values of a run in chunks, and the choices of experts.
fn values(t: &mut Truth, ids: &[u32], chunk: usize) -> (Floats, Routes) {
    let (mut floats, mut routes) = (Floats::new(), Routes::new());
    for ids in ids.chunks(chunk) {
        let mut look = |n: &Node, v: &mut Value| match v {
            Value::Floats(x) => floats.entry(n.name.clone()).or_default().extend_from_slice(x),
            Value::Route(r) => {
                let layer = n.name.split('.').nth(1).and_then(|l| l.parse().ok()).unwrap();
                let to: &mut (Vec<u32>, Vec<f64>) = routes.entry(layer).or_default();
                r.iter().for_each(|(id, w)| (to.0.push(*id), to.1.push(*w)).0);
            }
            Value::Ids(_) => {}
        };
        t.run(ids, 0, &mut look).unwrap_or_else(|d| panic!("{d}"));
    }
    (floats, routes)
}

/// The row of logits after these tokens.
fn row(t: &mut Truth, ids: &[u32]) -> Vec<f64> {
    let mut row = vec![];
    let mut look = |n: &Node, v: &mut Value| {
        if let (LOGITS, Value::Floats(z)) = (n.name.as_str(), v) {
            row.clone_from(z);
        }
    };
    t.run(ids, ids.len() - 1, &mut look).unwrap_or_else(|d| panic!("{d}"));
    row
}

#[test]
fn every_value_of_every_kind() {
    let all: Vec<Fixture> = FIXTURES.iter().map(|(model, layout)| Fixture::load(model, layout)).collect();
    on_two_threads(&all, |f| {
        let g = f.graph(EmbedMode::Exact);
        let (floats, routes) = values(&mut judge(&g, &f.ck), &f.prompt, usize::MAX);
        let errors = f.errors_of(&floats, &routes);
        let worst = errors.iter().fold(("", 0.0), |m, (n, e)| if *e > m.1 { (n, *e) } else { m });
        println!("{:>14}: {} values, worst {} {:.1e}, logits {:.1e}", f.name, errors.len(), worst.0, worst.1, errors[LOGITS]);
        for (name, e) in &errors {
            let bound = if name == LOGITS { BOUND } else { STORED_F32 };
            assert!(*e <= bound, "{}: {name} off by {e:e}", f.name);
        }
        let rounded = f.graph(EmbedMode::Bf16);
        let e = error_of(&values(&mut judge(&rounded, &f.ck), &f.prompt, 7).0[LOGITS], f.want("logits_bf16embed"));
        assert!(e <= STORED_F32, "{}: with the embedding in bf16 off by {e:e}", f.name);
    });
}

#[test]
fn token_by_token() {
    let all: Vec<Fixture> = FIXTURES.iter().map(|(model, layout)| Fixture::load(model, layout)).collect();
    on_two_threads(&all, |f| {
        let g = f.graph(EmbedMode::Exact);
        let mut t = judge(&g, &f.ck);
        let (top, logits) = (f.want("greedy_top8_ids"), f.want("greedy_top8_logits_f64"));
        let mut input = f.prompt.clone();
        for (i, id) in f.greedy.iter().enumerate() {
            let z = row(&mut t, &input);
            assert_eq!(best(&z)[0], *id, "{}: token {i}", f.name);
            let got: Vec<f64> = top[8 * i..8 * i + 8].iter().map(|k| z[*k as usize]).collect();
            let e = error_of(&got, &logits[8 * i..8 * i + 8]);
            assert!(e <= BOUND, "{}: token {i} off by {e:e}", f.name);
            input = vec![*id];
        }
        // A rewound session is a fresh one, and a branch is what the next token gives, however many there are.
        t.rewind(f.prompt.len() - 1);
        let id = f.prompt[f.prompt.len() - 1];
        let mut rows = vec![];
        let mut look = |n: &Node, v: &mut Value| {
            if let (LOGITS, Value::Floats(z)) = (n.name.as_str(), v) {
                rows.clone_from(z);
            }
        };
        t.branches(f.prompt.len() - 1, id, 3, &mut look).unwrap_or_else(|d| panic!("{d}"));
        let want = row(&mut t, &[id]);
        for z in rows.chunks_exact(want.len()) {
            assert!(error_of(z, &want) <= BOUND, "{}: a branch is another token", f.name);
        }
        assert_eq!(t.length(), f.prompt.len());
    });
}

#[test]
fn threads_do_not_count() {
    let f = Fixture::load("tiny-moe", "mlx");
    let g = f.graph(EmbedMode::Exact);
    let run = |threads| {
        let mut t = Truth::new(&g, &f.ck, threads).unwrap_or_else(|e| panic!("{e:#?}"));
        values(&mut t, &f.prompt, usize::MAX)
    };
    assert!(run(1) == run(5));
}

fn errors(f: &Fixture, g: &Graph, source: &dyn WeightSource) -> BTreeMap<String, f64> {
    let (floats, routes) = values(&mut judge(g, source), &f.prompt, usize::MAX);
    f.errors_of(&floats, &routes)
}

#[test]
fn a_dropped_scale_is_seen() {
    let f = Fixture::load("tiny-ple", "hf");
    let mut g = f.graph(EmbedMode::Exact);
    let id = g.by_name(PER_LAYER).unwrap();
    g.node_mut(id).op = Op::MulConst { c: 1.0 };
    assert!(errors(&f, &g, &f.ck)["per_layer_inputs"] > 0.1);
}

/// So small an error is under what kernels may make, yet the judge has to see it.
#[test]
fn a_constant_that_is_one_float_off_is_seen() {
    let f = Fixture::load("tiny-moe", "hf");
    let mut g = f.graph(EmbedMode::Exact);
    for id in g.ids().collect::<Vec<_>>() {
        if let Op::Softcap { cap } = &mut g.node_mut(id).op {
            *cap = f32::from_bits(cap.to_bits() + 1);
        }
    }
    let e = errors(&f, &g, &f.ck)[LOGITS];
    assert!(e > 10.0 * BOUND && e < 1e-6, "{e:e}");
}

#[test]
fn keys_of_the_wrong_layer_are_seen() {
    let f = Fixture::load("tiny-ple", "hf");
    let mut g = f.graph(EmbedMode::Exact);
    let node = |name: &str| g.by_name(name).unwrap();
    let (out, q, wrong) = (node("layers.4.attn.out"), node("layers.4.attn.q"), node("layers.1.attn.kv"));
    g.set_inputs(out, &[q, wrong]);
    let e = errors(&f, &g, &f.ck);
    assert!(e["resid_out.3"] <= STORED_F32 && e["resid_out.4"] > 1e-3, "{e:?}");
}

/// A source whose offsets are all zero.
struct NoOffsets<'a>(&'a dyn WeightSource);

struct Bare<'a>(Box<dyn Tensor + 'a>);

impl Tensor for Bare<'_> {
    fn head(&self) -> Head {
        self.0.head()
    }
    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_> {
        let p = self.0.rows(m, rows);
        Piece { biases: Cow::Owned(vec![0; p.biases.len()]), ..p }
    }
}

impl WeightSource for NoOffsets<'_> {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        self.0.plain(name)
    }
    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        self.0.affine(name)
    }
    fn open(&self, name: &str) -> Option<Box<dyn Tensor + '_>> {
        Some(Box::new(Bare(self.0.open(name)?)))
    }
}

#[test]
fn offsets_that_are_left_out_are_seen() {
    let f = Fixture::load("tiny-dense", "mlx");
    let g = f.graph(EmbedMode::Exact);
    assert!(errors(&f, &g, &NoOffsets(&f.ck))[LOGITS] > 0.01);
}

#[test]
fn what_it_refuses() {
    let f = Fixture::load("tiny-dense", "mlx");
    let g = f.graph(EmbedMode::Exact);
    let code = |g: &Graph, s: &dyn WeightSource| Truth::new(g, s, 1).err().map(|e| e[0].code);
    let lowered = common::through_passes(g.clone(), &passes::Options::default());
    assert_eq!(code(&lowered, &f.ck), Some("E0375"));
    assert_eq!(code(&g, &Fixture::load("tiny-dense", "hf").ck), Some("E0377"));
    assert_eq!(code(&g, common::checkpoint()), Some("E0377"));
    assert_eq!(code(&f.graph(EmbedMode::Exact), &f.ck), None);
    let mut t = judge(&g, &f.ck);
    let refused = |r: ir::diag::Result<()>| r.unwrap_err().code;
    assert_eq!(refused(t.run(&[], 0, &mut |_, _| {})), "E0379");
    assert_eq!(refused(t.run(&[1 << 30], 0, &mut |_, _| {})), "E0379");
    let mut poison = |n: &Node, v: &mut Value| {
        if let ("layers.1.resid", Value::Floats(x)) = (n.name.as_str(), v) {
            x[0] = f64::NAN;
        }
    };
    let d = t.run(&f.prompt, 0, &mut poison).unwrap_err();
    assert_eq!((d.code, d.place.as_str()), ("E0378", "layers.1.resid"));
    assert_eq!(t.length(), 0);
    // It goes on as if nothing had happened.
    let (z, all) = (row(&mut t, &f.prompt), f.want("logits_f64"));
    assert!(error_of(&z, &all[all.len() - z.len()..]) <= BOUND);
}
