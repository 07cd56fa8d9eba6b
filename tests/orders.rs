//! A reduction order is consumed, not decoration: editing one in the text of a graph changes the logits, and the interpreter of
//! graphs, the interpreter of kernels and host code all give the new ones.
#![cfg(feature = "llvm")]

mod common;

use common::golden::transcript;
use common::*;
use ir::graph::Graph;
use ir::plan::Plan;
use passes::Options;
use passes::lower::lower;
use passes::lower::schedule::Schedule;
use runtime::session::Limits;

const LIMITS: Limits = Limits { slots: 1, context: 128, chunk: 40, slack: 0, outputs: 40 };

/// The node of this name with its order (or a part of it) replaced, in text.
fn edited(text: &str, node: &str, from: &str, to: &str) -> Graph {
    let mark = format!("\"{node}\"");
    let mut found = 0;
    let lines: Vec<String> = text
        .lines()
        .map(|l| {
            if l.contains(&mark) && l.contains("order=") {
                assert!(l.contains(from), "no `{from}` in `{l}`");
                found += 1;
                return l.replacen(from, to, 1);
            }
            l.to_string()
        })
        .collect();
    assert_eq!(found, 1, "{node} stands in {found} lines with an order");
    ir::graph::text::parse(&lines.join("\n")).unwrap_or_else(|e| panic!("{node}: {e:?}"))
}

/// Node, what is replaced, by what, and whether bits change.
const EDITS: [(&str, &str, &str, bool); 12] = [
    ("layers.0.attn.q_proj", "lanes=4", "lanes=2", true),
    ("layers.2.moe.up", "lanes=4, take=contiguous, tree=pair", "lanes=2, take=contiguous, tree=fold", true),
    ("layers.1.mlp.down", "tree=pair", "tree=fold", true),
    ("layers.2.moe.gate", "lanes=4, take=contiguous", "lanes=1, take=strided", true),
    ("layers.0.mlp.norm", "lanes=256", "lanes=128", true),
    ("layers.3.attn.norm", "tree=pair", "tree=fold", true),
    ("layers.1.attn.k_norm", "tree=pair", "tree=fold", true),
    ("layers.7.attn.out", "split=32", "split=64", true),
    ("layers.0.attn.out", "dot=sum(lanes=4, take=contiguous", "dot=sum(lanes=8, take=strided", true),
    ("layers.3.attn.out", "sum=sum(lanes=32, take=strided, tree=pair)", "sum=sum(lanes=32, take=strided, tree=fold)", true),
    // Controls: other words for the same sum. A row has four groups, and 2^e times a group's sum is exact.
    ("logits.raw", "take=contiguous", "take=strided", false),
    ("layers.0.attn.q_proj", "lanes=4, take=contiguous", "lanes=2, take=strided", false),
];

#[test]
fn an_edited_order_changes_bits_everywhere_alike() {
    let ids = &transcript("b2-long-prose").prompt[..70];
    let text = ir::graph::text::print(&through_passes(model(), &Options::default()));
    let mut graphs = vec![ir::graph::text::parse(&text).unwrap_or_else(|e| panic!("{e:?}"))];
    graphs.extend(EDITS.iter().map(|(node, from, to, _)| edited(&text, node, from, to)));
    // Two schedules, so that orders are obeyed by lanes that share a row too.
    let schedule =
        |i: usize| if i.is_multiple_of(2) { Schedule::HOST } else { Schedule { chain_lanes: 2, vec: 2, ..Schedule::HOST } };
    let planned = |(i, g): (usize, &Graph)| plan(g, &Options { schedule: schedule(i), ..Options::default() });
    let mut plans: Vec<Plan> = graphs.iter().enumerate().map(planned).collect();
    let kernels = run::joined(&mut plans.iter_mut().collect::<Vec<_>>());
    println!("{} graphs, {} distinct kernels", graphs.len(), kernels.len());
    let code = object(&Plan { kernels, ..Plan::default() }, best_target());

    let cases: Vec<(&Graph, &Plan)> = graphs.iter().zip(&plans).collect();
    let results = on_two_threads(&cases, |(g, plan)| {
        let by_graph = reference(g, checkpoint(), ids, "logits");
        let (by_kernels, _) = logits(&mut on_interpreter(*plan, LIMITS, checkpoint()), ids, 40);
        let (by_host, _) = logits(&mut on_host(*plan, &code, threads(1), LIMITS, checkpoint()), ids, 40);
        (by_graph, by_kernels, by_host)
    });
    let plain = &results[0].0;
    for (i, (by_graph, by_kernels, by_host)) in results.iter().enumerate() {
        let what =
            if i == 0 { "unedited".into() } else { format!("{}: {} -> {}", EDITS[i - 1].0, EDITS[i - 1].1, EDITS[i - 1].2) };
        same_bits(&format!("{what}: kernels against graph"), by_graph, by_kernels, 4096);
        same_bits(&format!("{what}: host against graph"), by_graph, by_host, 4096);
        if i > 0 {
            let d = difference(plain, by_graph, 4096);
            println!("{what}: {}", d.as_deref().unwrap_or("no difference"));
            assert_eq!(d.is_some(), EDITS[i - 1].3, "{what}");
        }
    }
}

/// An order that no kernel obeys is refused, never replaced by another one.
#[test]
fn an_order_without_a_kernel_is_refused() {
    let text = ir::graph::text::print(&through_passes(model(), &Options::default()));
    for (node, from, to, code) in [
        ("layers.0.mlp.norm", "take=strided", "take=contiguous", "E0615"),
        ("layers.0.mlp.norm", "lanes=256", "lanes=16", "E0615"),
        ("layers.0.attn.out", "sum=sum(lanes=32", "sum=sum(lanes=16", "E0621"),
        ("layers.0.attn.out", "dot=sum(lanes=4", "dot=sum(lanes=64", "E0621"),
    ] {
        let refused = lower(&edited(&text, node, from, to), &Schedule::HOST).err();
        assert_eq!(refused.map(|d| d.code), Some(code), "{node}: {to}");
    }
    // What is no order at all is not read.
    for (from, to) in [("lanes=4", "lanes=0"), ("lanes=4", "lanes=3"), ("tree=pair", "tree=any"), ("take=contiguous, ", "")] {
        let line = text.lines().find(|l| l.contains("\"layers.0.attn.q_proj\"") && l.contains("order=")).expect("a matmul");
        let wrong = text.replacen(line, &line.replacen(from, to, 1), 1);
        let g = ir::graph::text::parse(&wrong);
        let refused = g.map_or(true, |g| ir::graph::verify::verify(&g).is_err());
        assert!(refused, "{from} -> {to} was accepted");
    }
}
