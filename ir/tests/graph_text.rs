//! The graph's text: round trips of arbitrary graphs, messages with their places, no panic on any text.

mod graph_common;

use graph_common::{MODEL, Rng, show};
use ir::graph::op::{EmbedMode, Op, RopeParams};
use ir::graph::text::{parse, print};
use ir::graph::{Dtype, Elem, Graph, NodeId, Rows, Stage, Type};
use ir::order::{AttentionOrder, ReductionOrder, Take, Tree};

fn order(r: &mut Rng) -> ReductionOrder {
    let (take, tree) = (r.pick(&[Take::Strided, Take::Contiguous]), r.pick(&[Tree::Pair, Tree::Fold]));
    ReductionOrder { lanes: r.next() as u32 >> r.below(32), take, tree }
}

fn maybe<T>(r: &mut Rng, f: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if r.below(4) == 0 { None } else { Some(f(r)) }
}

/// Any float that equals itself; zeros, subnormals and infinities are frequent.
fn float(r: &mut Rng) -> f32 {
    let x = match r.below(4) {
        0 => r.pick(&[0.0, -0.0, f32::INFINITY, f32::MIN_POSITIVE, f32::from_bits(1), 0.1, 16.0]),
        _ => f32::from_bits(r.next() as u32),
    };
    if x.is_nan() { 1.5 } else { x }
}

fn double(r: &mut Rng) -> f64 {
    let x = f64::from_bits(r.next());
    if x.is_nan() { -0.0 } else { x }
}

fn op(r: &mut Rng) -> Op {
    let n = |r: &mut Rng| r.next() as u32 >> r.below(32);
    match r.below(23) {
        0 => Op::Tokens,
        1 => Op::Weight,
        2 => Op::Kv { layer: n(r), heads: n(r), dim: n(r), window: n(r) },
        3 => Op::Embed { mode: r.pick(&[EmbedMode::Exact, EmbedMode::Factor, EmbedMode::Bf16]), factor: float(r) },
        4 => Op::RmsNorm { dim: n(r), eps: float(r), order: maybe(r, order) },
        5 => Op::Linear { order: maybe(r, order) },
        6 => Op::ExpertLinear { order: maybe(r, order) },
        7 => Op::Quantize { group: n(r) },
        8 => Op::QLinear { order: maybe(r, order) },
        9 => Op::QExpertLinear { order: maybe(r, order) },
        10 => Op::Add,
        11 => Op::Mul,
        12 => Op::MulConst { c: float(r) },
        13 => Op::GeluMul,
        14 => Op::Rope(RopeParams { dim: n(r), rotated: n(r), theta: double(r), factor: double(r) }),
        15 => Op::KvWrite,
        16 => {
            let order = maybe(r, |r| AttentionOrder { split: r.next() as u32, dot: order(r), sum: order(r) });
            Op::Attention { heads: n(r), order }
        }
        17 => Op::Route { k: n(r) },
        18 => Op::ExpertSum,
        19 => Op::Select,
        21 => Op::Slice { start: n(r), len: n(r) },
        20 => Op::Softcap { cap: float(r) },
        _ => Op::Argmax,
    }
}

fn name(r: &mut Rng) -> String {
    let chars = ['a', 'Z', '.', '_', '7', '"', '\\', '\n', '\r', '\t', ' ', '/', '%', '{', '}', 'ü', '\u{2028}', '\0', '漢'];
    (0..r.below(9)).map(|_| r.pick(&chars)).collect()
}

fn ty(r: &mut Rng) -> Type {
    let (a, b) = (r.next() as u32 >> r.below(32), r.next() as u32 >> r.below(32));
    let elem = match r.below(8) {
        0 => Elem::F32,
        1 => Elem::Bf16,
        2 => Elem::F16,
        3 => Elem::I32,
        4 => Elem::Affine { bits: a, group: b, scales: r.pick(&[Dtype::Bf16, Dtype::F16, Dtype::F32]) },
        5 => Elem::Q24 { group: a },
        6 => Elem::Route,
        _ => Elem::Kv,
    };
    let shape = (0..r.below(5)).map(|_| r.next() as u32 >> r.below(32)).collect();
    Type { elem, rows: r.pick(&[Rows::Once, Rows::Tokens, Rows::Outputs]), shape }
}

/// Any graph at all: holes, cycles, dead operands, wrong types.
fn graph(r: &mut Rng) -> Graph {
    let mut g = Graph::new(&name(r));
    let n = r.below(30);
    let mut live = vec![];
    for i in 0..n {
        if r.below(5) == 0 {
            g.add_hole();
        } else {
            let (name, op, ty) = (name(r), op(r), ty(r));
            live.push(g.add(&name, op, &[], ty));
            assert_eq!(g.id_count(), i + 1);
        }
    }
    let ids = |r: &mut Rng, most: usize| -> Vec<NodeId> {
        let most = if n == 0 { 0 } else { r.below(most) };
        (0..most).map(|_| NodeId(r.below(n) as u32)).collect()
    };
    for &id in &live {
        let inputs = ids(r, 5);
        g.set_inputs(id, &inputs);
    }
    g.outputs = ids(r, 4);
    for _ in 0..r.below(4) {
        g.stages.push(Stage { name: name(r), nodes: ids(r, 5), stores: ids(r, 4) });
    }
    for _ in 0..r.below(4) {
        g.launches.push((0..r.below(4)).map(|_| r.next() as u32).collect());
    }
    g
}

#[test]
fn any_graph_prints_and_parses_back() {
    let mut r = Rng(1);
    for _ in 0..3000 {
        let g = graph(&mut r);
        let text = print(&g);
        let back = parse(&text).unwrap_or_else(|e| panic!("{}\n{text}", show(&e)));
        assert!(back == g, "{text}");
        assert_eq!(back.id_count(), g.id_count());
        assert_eq!(print(&back), text);
        // Every line but that of names with strange characters is one statement.
        let extra = 2 + g.outputs.len() + g.stages.len() + g.launches.len();
        assert!(text.lines().count() <= g.ids().count() + extra + 1);
    }
}

#[test]
fn nan_constants_keep_their_bits() {
    let mut g = Graph::new("nan");
    let ty = Type::tokens(&[1]);
    g.add("c", Op::MulConst { c: f32::from_bits(0xffc1_2345) }, &[], ty);
    let back = parse(&print(&g)).unwrap();
    assert!(matches!(back.node(NodeId(0)).op, Op::MulConst { c } if c.to_bits() == 0xffc1_2345));
}

#[test]
fn the_model_is_a_fixed_point_of_printing() {
    let g = parse(MODEL).unwrap_or_else(|e| panic!("{}", show(&e)));
    assert_eq!(print(&g), MODEL);
    assert_eq!(ir::graph::verify::verify(&g), Ok(()));
}

#[test]
fn nodes_may_stand_in_any_order_and_floats_be_decimal() {
    let text = "graph \"x\" {\n  ids 9\n  %3 = mul_const %5 {c=\"0.1\"} : f32[T,4] \"b\"\n  ; a comment\n\n  %5 = mul_const %3 {c=-2} \
                : f32[T,4] \"a\"}";
    let g = parse(text).unwrap_or_else(|e| panic!("{}", show(&e)));
    assert_eq!((g.id_count(), g.node(NodeId(3)).inputs[0]), (9, NodeId(5)));
    assert!(matches!(g.node(NodeId(3)).op, Op::MulConst { c } if c == 0.1));
    assert!(matches!(g.node(NodeId(5)).op, Op::MulConst { c } if c == -2.0));
}

/// (text, code, place, part of the message)
const FAULTS: &[(&str, &str, &str, &str)] = &[
    ("", "E0102", "line 1, column 1", "expected `graph`, found end of input"),
    ("graph x {}", "E0102", "line 1, column 7", "expected the graph's name in quotes, found `x`"),
    ("graph \"x\" {\n  output %1", "E0102", "line 2, column 1", "expected a statement or `}`"),
    ("graph \"x\" {\n  %0 = frob : f32[T] \"a\"\n}", "E0102", "line 2, column 8", "expected an operation, found `frob`"),
    ("graph \"x\" {\n  %0 = tokens : i33[T] \"a\"\n}", "E0102", "line 2, column 17", "expected an element type"),
    ("graph \"x\" {\n  %0 = tokens : u4g64x[T] \"a\"\n}", "E0102", "line 2, column 17", "found `u4g64x`"),
    ("graph \"x\" {\n  %0 = tokens : i32[T \"a\"\n}", "E0102", "line 2, column 23", "expected `]`, found string"),
    ("graph \"x\" {\n  %0 = tokens : i32[T]\n}", "E0102", "line 3, column 1", "expected the node's name in quotes"),
    ("graph \"x\" {\n  %0 = tokens : i32[T] \"a\" 7\n}", "E0102", "line 2, column 28", "expected end of line, found `7`"),
    ("graph \"x\" {\n  %0 = quantize {k=1} : i32[T] \"a\"\n}", "E0102", "line 2, column 18", "expected `group`, found `k`"),
    ("graph \"x\" {\n  %0 = quantize {group=5000000000} : i32[T] \"a\"\n}", "E0103", "line 2, column 24", "out of range"),
    (
        "graph \"x\" {\n  %0 = mul_const {c=0x123456789} : i32[T] \"a\"\n}",
        "E0102",
        "line 2, column 21",
        "expected a float: 32 bits",
    ),
    (
        "graph \"x\" {\n  %0 = mul_const {c=\"1e99\"} : i32[T] \"a\"\n}",
        "E0103",
        "line 2, column 21",
        "no decimal number in range",
    ),
    (
        "graph \"x\" {\n  %0 = embed {mode=any} : i32[T] \"a\"\n}",
        "E0102",
        "line 2, column 20",
        "expected `exact`, `factor` or `bf16`",
    ),
    (
        "graph \"x\" {\n  %0 = qlinear {order=sum(lanes=1, take=random)} : i32[T] \"a\"\n}",
        "E0102",
        "line 2, column 41",
        "`contiguous`",
    ),
    (
        "graph \"x\" {\n  %0 = tokens : i32[T] \"a\"\n  %0 = tokens : i32[T] \"b\"\n}",
        "E0110",
        "line 3, column 3",
        "already, at line 2",
    ),
    ("graph \"x\" {\n  %999999 = tokens : i32[T] \"a\"\n}", "E0110", "line 2, column 3", "too large"),
    ("graph \"x\" {\n  %0 = add %0 %4 : f32[T] \"a\"\n}", "E0111", "line 2, column 3", "operand %4 is no value"),
    ("graph \"x\" {\n  %0 = tokens : i32[T] \"a\\n\"\n}", "E0112", "line 2, column 24", "unknown escape"),
    ("graph \"x\" {\n  stage \"s\" { %0 } { %0 }\n}", "E0102", "line 2, column 20", "expected `->`, found `{`"),
    ("graph \"x\" {\n  %q = tokens : i32[T] \"a\"\n}", "E0101", "line 2, column 3", "number after `%`"),
    ("graph \"x\" {\n} }", "E0102", "line 2, column 3", "expected end of input, found `}`"),
];

#[test]
fn messages_name_the_place() {
    for (text, code, place, part) in FAULTS {
        let errors = parse(text).expect_err(text);
        let hit = errors.iter().any(|d| d.code == *code && d.place == *place && d.message.contains(part));
        assert!(hit, "{text}\nwanted {code} {place}: {part}\n{}", show(&errors));
    }
}

#[test]
fn several_lines_are_reported_at_once() {
    let text = "graph \"x\" {\n %0 = a : f32[] \"a\"\n %1 = tokens : i32[T] \"b\"\n %2 = b : f32[] \"c\"\n}";
    assert_eq!(parse(text).expect_err(text).len(), 2);
}

#[test]
fn no_text_panics() {
    let mut r = Rng(7);
    let lines: Vec<&str> = MODEL.lines().collect();
    let (mut parsed, mut valid) = (0, 0);
    for _ in 0..4000 {
        let mut bytes = (lines[..3 + r.below(lines.len() - 3)].join("\n") + "\n}").into_bytes();
        for _ in 0..1 + r.below(4) {
            let at = r.below(bytes.len());
            match r.below(4) {
                0 => bytes[at] = r.next() as u8,
                1 if bytes.len() > 1 => _ = bytes.remove(at),
                2 => bytes.insert(at, r.pick(b"{}()[]%\"=,:->0x9T\n\\")),
                _ if r.below(8) == 0 => bytes.truncate(at.max(1)),
                _ => bytes[at] = r.pick(b"0123456789"),
            }
        }
        if let Ok(g) = parse(&String::from_utf8_lossy(&bytes)) {
            // Whatever was read can be checked and printed.
            parsed += 1;
            valid += u32::from(ir::graph::verify::verify(&g).is_ok());
            assert!(parse(&print(&g)).is_ok());
        }
    }
    assert!(parsed > 200, "{parsed} of the texts were graphs, {valid} valid");
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..r.below(60)).map(|_| r.next() as u8).collect();
        _ = parse(&String::from_utf8_lossy(&bytes));
    }
    let mut long = String::from("graph \"x\" {\n %0 = tokens : i32[T] \"n0\"\n");
    for i in 1..30_000 {
        long += &format!(" %{i} = add %{} : i32[T] \"n{i}\"\n", i - 1);
    }
    let g = parse(&(long + " output %1\n}")).unwrap();
    assert!(ir::graph::verify::verify(&g).is_err_and(|e| e.len() == 29_999));
    assert!(parse(&print(&g)).unwrap() == g);
    let deep = "graph \"x\" { %0 = attention {heads=1, order=".to_string() + &"sum(".repeat(100_000);
    assert!(parse(&deep).is_err());
}
