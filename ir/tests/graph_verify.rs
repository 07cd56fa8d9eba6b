//! Every rule of the graph verifier, as text: a valid graph, one change, the code that reports it.

mod graph_common;

use graph_common::{MODEL, show};
use ir::graph::text::parse;
use ir::graph::verify::{CODES, Options, verify, verify_with};
use std::collections::BTreeSet;

/// (line that contains this, part of it, replacement, code)
const NODES: &[(&str, &str, &str, &str)] = &[
    ("\"l0.normed\"", "\"l0.normed\"", "\"embed\"", "E0301"),
    ("\"l0.normed\"", "\"l0.normed\"", "\"\"", "E0301"),
    ("\"l0.resid\"", "%17", "%46", "E0302"),
    ("\"l0.resid\"", "%17", "%40", "E0303"),
    ("output %44", "output %44", "output %46", "E0304"),
    ("output %44", "output %44", "output %12", "E0304"),
    ("\"l0.resid\"", "%2 %17", "%2", "E0305"),
    ("\"l0.normed\"", "%2 %3", "%2 %3 %3", "E0305"),
    ("\"l0.normed\"", "%2 %3", "", "E0305"),
    // Kinds.
    ("\"l0.resid\"", "%17", "%5", "E0307"),
    ("\"l0.router.norm\"", "%18", "%15", "E0306"),
    ("\"l0.normed\"", "%2 %3", "%2 %18", "E0303"),
    ("\"l0.router.norm\"", "%18", "%18 %17", "E0306"),
    ("\"l0.q\"", "%5 %6", "%4 %6", "E0306"),
    ("\"l0.q\"", "%5 %6", "%5 %3", "E0306"),
    ("\"embed\"", "%1 %0", "%1 %3", "E0306"),
    ("\"embed\"", "%1 %0", "%0 %0", "E0306"),
    ("\"l0.attn\"", "%10 %13", "%10 %10", "E0306"),
    ("\"l0.experts.g\"", "%28 %29 %27", "%28 %29 %25", "E0306"),
    ("\"l0.experts.out\"", "%36 %27", "%36 %19", "E0306"),
    ("\"selected\"", "\"selected\"", "\"s\"\n  %50 = select %41 : f32[O,64] \"again\"", "E0306"),
    ("\"l0.kv.written\"", "%12 %11 %9", "%9 %11 %9", "E0306"),
    ("\"l0.router.scale\"", "bf16[64]", "i32[64]", "E0306"),
    ("\"l0.q_proj\"", "u4g64[128,64]", "u4g64[T,128,64]", "E0306"),
    ("\"l0.q_proj\"", "u4g64[128,64]", "u4g32[128,64]", "E0306"),
    ("\"next\"", "%44", "%27", "E0306"),
    // Shapes.
    ("\"embed_tokens\"", "[96,64]", "[96,0]", "E0307"),
    ("\"embed_tokens\"", "[96,64]", "[96,65]", "E0307"),
    ("\"embed_tokens\"", "[96,64]", "[96,4000000000,4000000000]", "E0307"),
    ("\"embed_tokens\"", "[96,64]", "[1,2,3,64]", "E0307"),
    ("\"l0.norm\"", "bf16[64]", "bf16[32]", "E0307"),
    ("\"l0.q_proj\"", "[128,64]", "[128,128]", "E0307"),
    ("\"l0.resid\"", "%2 %17", "%2 %14", "E0307"),
    ("\"l0.router.scaled\"", "%19 %20", "%19 %26", "E0307"),
    ("\"l0.kv.written\"", "%11 %9", "%11 %7", "E0307"),
    ("\"l0.attn\"", "%10 %13", "%11 %13", "E0307"),
    ("\"l0.router.per_expert_scale\"", "bf16[8]", "bf16[9]", "E0307"),
    ("\"l0.experts.d\"", "%35", "%15", "E0307"),
    ("\"l0.experts.out\"", "%36", "%18", "E0307"),
    ("\"l0.q.rope\"", "dim=32", "dim=48", "E0307"),
    // Stated types.
    ("\"l0.q\"", "f32[T,128]", "f32[T,64]", "E0308"),
    ("\"tokens\"", "i32[T]", "i32[O]", "E0308"),
    ("\"l0.kv\"", "kv[2,32]", "kv[2,64]", "E0308"),
    ("\"l0.route\"", "route[T,2]", "route[T,3]", "E0308"),
    ("\"next\"", "i32[O]", "i32[T]", "E0308"),
    ("\"selected\"", "f32[O,64]", "f32[T,64]", "E0308"),
    // Attributes.
    ("\"l0.normed\"", "dim=64", "dim=48", "E0309"),
    ("\"l0.normed\"", "dim=64", "dim=0", "E0309"),
    ("\"l0.normed\"", "eps=0x358637bd", "eps=-1", "E0309"),
    ("\"l0.normed.q\"", "group=64", "group=16", "E0309"),
    ("\"embed_tokens\"", "u4g64", "u7g64", "E0309"),
    ("\"embed_tokens\"", "u4g64", "u4g16", "E0309"),
    ("\"embed\"", "factor=0x40e9999a", "factor=0x7f800000", "E0309"),
    ("\"l0.router.in\"", "c=0x3e000000", "c=0x7fc00000", "E0309"),
    ("\"l0.q.rope\"", "rotated=16", "rotated=17", "E0309"),
    ("\"l0.q.rope\"", "dim=32", "dim=31", "E0309"),
    ("\"l0.q.rope\"", "theta=0x40c3880000000000", "theta=\"-10000\"", "E0309"),
    ("\"l0.kv\"", "heads=2", "heads=0", "E0309"),
    ("\"l0.attn\"", "heads=4", "heads=3", "E0309"),
    ("\"l0.route\"", "k=2", "k=9", "E0309"),
    ("\"l0.route\"", "k=2", "k=0", "E0309"),
    ("\"logits\"", "cap=0x41f00000", "cap=0", "E0309"),
    // Orders.
    ("\"l0.normed\"", "lanes=32", "lanes=0", "E0310"),
    ("\"l0.normed\"", "lanes=32", "lanes=1025", "E0310"),
    ("\"l0.q\"", "lanes=4", "lanes=3", "E0310"),
    ("\"l0.attn\"", "split=64", "split=48", "E0310"),
    ("\"l0.attn\"", "dot=sum(lanes=1,", "dot=sum(lanes=12,", "E0310"),
    // Caches.
    ("\"l0.attn\"", "%10 %13", "%10 %12", "E0312"),
    ("\"l0.kv.written\"", "\"l0.kv.written\"", "\"w\"\n  %50 = kv_write %12 %9 %9 : kv[2,32] \"w2\"", "E0312"),
    ("\"l0.kv.written\"", "\"l0.kv.written\"", "\"w\"\n  %50 = kv_write %13 %9 %9 : kv[2,32] \"w2\"", "E0312"),
    ("\"l0.kv\"", "\"l0.kv\"", "\"kv\"\n  %50 = kv {layer=0, heads=2, dim=32, window=0} : kv[2,32] \"kv2\"", "E0312"),
    ("\"l0.experts.up\"", "[8,64,64]", "[9,64,64]", "E0313"),
];

fn change(text: &str, line: &str, from: &str, to: &str) -> String {
    let mut hits = 0;
    let lines: Vec<String> = text
        .lines()
        .map(|l| {
            if l.contains(line) && l.contains(from) {
                hits += 1;
                l.replacen(from, to, 1)
            } else {
                l.into()
            }
        })
        .collect();
    assert_eq!(hits, 1, "{line}: {from}");
    lines.join("\n")
}

fn expect(text: &str, code: &str, options: &Options) {
    let g = parse(text).unwrap_or_else(|e| panic!("{}\n{text}", show(&e)));
    match verify_with(&g, options) {
        Ok(()) => panic!("{code} is not reported\n{text}"),
        Err(e) => assert!(e.iter().any(|d| d.code == code), "wanted {code}, found\n{}{text}", show(&e)),
    }
}

#[test]
fn every_rule_on_nodes() {
    // Room for operands that are holes.
    let model = MODEL.replace("  output %45\n", "  output %45\n  ids 60\n");
    for (line, from, to, code) in NODES {
        expect(&change(&model, line, from, to), code, &Options::default());
    }
}

#[test]
fn an_empty_graph_has_no_output() {
    expect("graph \"x\" {\n}", "E0304", &Options::default());
}

#[test]
fn orders_are_required_on_demand() {
    let strict = Options { require_orders: true };
    assert_eq!(verify_with(&parse(MODEL).unwrap(), &strict), Ok(()));
    for name in ["\"l0.normed\"", "\"l0.q\"", "\"l0.experts.g\"", "\"l0.attn\""] {
        let line = MODEL.lines().find(|l| l.contains(name)).unwrap();
        let (a, b) = (line.find("order=").unwrap(), line.find("} :").unwrap());
        let text = change(MODEL, name, &line[a..b], "order=none");
        assert_eq!(verify(&parse(&text).unwrap()), Ok(()));
        expect(&text, "E0311", &strict);
    }
    // What is not lowered yet sums in no fixed order.
    let order = "{order=sum(lanes=4, take=contiguous, tree=pair)}";
    let text = change(MODEL, "\"l0.q\"", &format!("qlinear %5 %6 {order}"), &format!("linear %4 %6 {order}"));
    assert_eq!(verify(&parse(&text).unwrap()), Ok(()));
    expect(&text, "E0311", &strict);
}

#[test]
fn all_errors_are_collected() {
    let mut text = MODEL.to_string();
    for (line, from, to) in
        [("\"l0.normed\"", "lanes=32", "lanes=0"), ("\"l0.route\"", "k=2", "k=9"), ("\"l0.q\"", "[T,128]", "[T,1]")]
    {
        text = change(&text, line, from, to);
    }
    let codes: Vec<&str> = verify(&parse(&text).unwrap()).unwrap_err().iter().map(|d| d.code).collect();
    for code in ["E0308", "E0309", "E0310"] {
        assert!(codes.contains(&code), "{codes:?}");
    }
}

/// The model with stages; each stands on its line.
const STAGES: &str = r#"
  stage "embed" { %2 } -> { %2 }
  stage "norm" { %4 %5 } -> { %5 }
  stage "q" { %7 %10 } -> { %10 }
  stage "kv" { %9 %11 %13 } -> { %13 }
  stage "attn" { %14 } -> { %14 }
  stage "o" { %15 %17 %18 } -> { %18 }
  stage "router" { %19 %21 %22 %23 %25 } -> { %25 }
  stage "route" { %27 } -> { %27 }
  stage "act" { %19 %28 %32 %33 %34 } -> { %34 }
  stage "down" { %35 %36 %37 %38 %40 } -> { %40 }
  stage "final" { %41 %42 %43 %44 } -> { %44 }
  stage "next" { %45 } -> { %45 }
  launch 0
  launch 1
  launch 2 3
  launch 4
  launch 5
  launch 6
  launch 7
  launch 8
  launch 9
  launch 10
  launch 11
}"#;

fn staged() -> String {
    MODEL.trim_end().trim_end_matches('}').trim_end().to_string() + STAGES
}

/// (line, part, replacement, code); the line is found by its start.
const FUSION: &[(&str, &str, &str, &str)] = &[
    ("stage \"norm\"", "\"norm\"", "\"embed\"", "E0301"),
    ("stage \"norm\"", "{ %4", "{ %60 %4", "E0320"),
    ("stage \"norm\"", "{ %4", "{ %3 %4", "E0320"),
    ("stage \"norm\"", "{ %4 %5", "{ %4 %5 %4", "E0320"),
    ("stage \"next\"", "stage \"next\" { %45 } -> { %45 }", "", "E0321"),
    ("stage \"norm\"", "%4 %5 }", "%5 %4 }", "E0322"),
    ("stage \"q\"", "%7 %10 }", "%10 }", "E0323"),
    ("stage \"attn\"", "{ %14 } -> { %14 }", "{ %7 %10 %14 %15 } -> { %15 }", "E0323"),
    ("stage \"router\"", "-> { %25 }", "-> { %25 %19 }", "ok"),
    ("stage \"down\"", "{ %35", "{ %34 %35", "E0323"),
    ("stage \"act\"", "-> { %34 }", "-> { %34 %34 }", "E0324"),
    ("stage \"o\"", "{ %15 %17 %18 } -> { %18 }", "{ %14 %15 %17 %18 } -> { %14 %18 }", "E0324"),
    ("stage \"q\"", "-> { %10 }", "-> { %10 %9 }", "E0325"),
    ("stage \"final\"", "-> { %44 }", "-> { %43 }", "E0326"),
    ("stage \"attn\"", "{ %14 }", "{ %9 %11 %13 %14 }", "E0327"),
    ("stage \"kv\"", "-> { %13 }", "-> { %11 }", "E0327"),
    ("stage \"final\"", "{ %41 %42 %43 %44 } -> { %44 }", "{ %38 %40 %41 %42 %43 %44 } -> { %44 %38 }", "E0328"),
    ("stage \"norm\"", "-> { %5 }", "-> { }", "E0328"),
    ("launch 4", "launch 4", "", "E0330"),
    ("launch 4", "launch 4", "launch 4 4", "E0330"),
    ("launch 4", "launch 4", "launch 4 12", "E0330"),
    ("launch 2 3", "launch 2 3", "launch 3 2", "E0330"),
    ("launch 4", "launch 4", "launch 4\n  launch", "E0330"),
    ("launch 4", "launch 4", "launch 4 5", "E0330"),
    ("launch 0", "launch 0", "launch 0 1", "E0330"),
];

#[test]
fn every_rule_on_stages_and_launches() {
    let text = staged();
    let g = parse(&text).unwrap_or_else(|e| panic!("{}", show(&e)));
    assert_eq!(verify(&g).map_err(|e| show(&e)), Ok(()));
    for (line, from, to, code) in FUSION {
        let text = text
            .lines()
            .map(|l| {
                if l.trim_start().starts_with(line) && (l.contains("stage") || l.trim() == *line) {
                    l.replacen(from, to, 1)
                } else {
                    l.into()
                }
            })
            .collect::<Vec<String>>()
            .join("\n");
        if *code == "ok" {
            assert_eq!(verify(&parse(&text).unwrap()).map_err(|e| show(&e)), Ok(()), "{line}");
        } else {
            expect(&text, code, &Options::default());
        }
    }
    // A dependency inside a launch, and one on a later launch.
    for (from, to) in [("  launch 0\n  launch 1\n", "  launch 0 1\n"), ("  launch 0\n  launch 1\n", "  launch 1\n  launch 0\n")] {
        assert!(text.contains(from));
        expect(&text.replace(from, to), "E0331", &Options::default());
    }
    // Launches without stages.
    expect(&MODEL.replace("  output %45\n", "  output %45\n  launch 0\n"), "E0330", &Options::default());
}

#[test]
fn every_code_has_a_test_and_a_line() {
    let tested: BTreeSet<&str> =
        NODES.iter().chain(FUSION).map(|c| c.3).chain(["E0311", "E0331"]).filter(|c| *c != "ok").collect();
    let listed: BTreeSet<&str> = CODES.iter().map(|c| c.0).collect();
    assert_eq!(tested, listed);
    assert_eq!(listed.len(), CODES.len());
}
