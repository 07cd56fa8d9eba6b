//! A whole model in the interpreter: chunks do not matter, orders do, errors change nothing.

mod graph_common;

use graph_common::{MODEL, Weights, show};
use ir::graph::Graph;
use ir::graph::interp::{Session, Value, WeightSource};
use ir::graph::text::parse;

fn model(text: &str) -> Graph {
    parse(text).unwrap_or_else(|e| panic!("{}", show(&e)))
}

fn tokens() -> Vec<u32> {
    (0..130u32).map(|i| (i * i * 7 + i * 13 + 5) % 96).collect()
}

fn bits(v: &Value) -> Vec<u32> {
    v.f32s().unwrap().iter().map(|x| x.to_bits()).collect()
}

/// Bits of the logits of every position, taken in chunks of these sizes (the last one repeats).
fn logits(g: &Graph, w: &Weights, tokens: &[u32], chunks: &[usize]) -> Vec<u32> {
    let mut s = Session::new(g, w).unwrap_or_else(|e| panic!("{}", show(&e)));
    let (mut out, mut rest, mut i) = (vec![], tokens, 0);
    while !rest.is_empty() {
        let n = chunks[i.min(chunks.len() - 1)].min(rest.len());
        s.step(&rest[..n], 0).unwrap();
        out.extend(bits(s.value("logits").unwrap()));
        rest = &rest[n..];
        i += 1;
    }
    assert_eq!(s.position(), tokens.len());
    out
}

#[test]
fn chunks_do_not_matter() {
    let g = model(MODEL);
    let (w, t) = (Weights::random(&g, 1), tokens());
    let whole = logits(&g, &w, &t, &[t.len()]);
    assert_eq!(whole.len(), t.len() * 96);
    assert!(whole.iter().all(|&b| f32::from_bits(b).is_finite()));
    for chunks in [&[1][..], &[7, 1, 33], &[39, 40, 41]] {
        assert!(logits(&g, &w, &t, chunks) == whole, "{chunks:?}");
    }
}

#[test]
fn reset_and_output_rows() {
    let g = model(MODEL);
    let (w, t) = (Weights::random(&g, 1), tokens());
    let mut s = Session::new(&g, &w).unwrap();
    s.step(&t, 0).unwrap();
    let all = bits(s.value("logits").unwrap());
    let Some(Value::I32(next)) = s.value("next").cloned() else { panic!() };
    assert_eq!(next.len(), t.len());
    s.reset();
    assert_eq!((s.position(), s.value("logits")), (0, None));
    s.step(&t, 120).unwrap();
    assert_eq!(bits(s.value("logits").unwrap()), all[120 * 96..]);
    assert_eq!(s.value("next"), Some(&Value::I32(next[120..].to_vec())));
    assert_eq!(s.value("embed_tokens"), None);
    assert_eq!(s.value("l0.kv.written"), None);
}

#[test]
fn the_order_in_the_text_decides_the_bits() {
    let g = model(MODEL);
    let (w, t) = (Weights::random(&g, 1), tokens()[..80].to_vec());
    let before = logits(&g, &w, &t, &[64]);
    let edits = [
        ("\"l0.normed\"", "lanes=32", "lanes=16"),
        ("\"l0.normed\"", "take=strided", "take=contiguous"),
        ("\"l0.normed\"", "tree=pair", "tree=fold"),
        ("\"l0.router.norm\"", "lanes=8", "lanes=4"),
        ("\"l0.attn\"", "split=64", "split=32"),
        ("\"l0.attn\"", "dot=sum(lanes=1,", "dot=sum(lanes=4,"),
        ("\"l0.attn\"", "sum=sum(lanes=32,", "sum=sum(lanes=1,"),
        ("\"l0.attn\"", "tree=pair))", "tree=fold))"),
    ];
    for (line, from, to) in edits {
        let edit = |l: &str| if l.contains(line) { l.replacen(from, to, 1) } else { l.to_string() };
        let text: Vec<String> = MODEL.lines().map(edit).collect();
        assert_ne!(text.join("\n"), MODEL.trim_end());
        assert!(logits(&model(&text.join("\n")), &w, &t, &[64]) != before, "{line}: {from} -> {to}");
    }
    // Where it cannot matter, it does not: one group, or two (a group's scale is a power of two, its product exact).
    for (line, from, to) in [("\"l0.experts.g\"", "lanes=1", "lanes=4"), ("\"l0.o\"", "lanes=2", "lanes=1")] {
        let edit = |l: &str| if l.contains(line) { l.replacen(from, to, 1) } else { l.to_string() };
        let text: Vec<String> = MODEL.lines().map(edit).collect();
        assert!(logits(&model(&text.join("\n")), &w, &t, &[64]) == before, "{line}");
    }
}

#[test]
fn a_longer_sum_over_groups_depends_on_its_order() {
    let text = |order: &str| {
        format!(
            "graph \"t\" {{\n %0 = tokens : i32[T] \"t\"\n %1 = weight : f32[3,1024] \"x\"\n %2 = embed %1 %0 \
             {{mode=exact, factor=1}} : f32[T,1024] \"e\"\n %3 = quantize %2 {{group=64}} : q24g64[T,1024] \"q\"\n %4 = \
             weight : u4g64[64,1024] \"w\"\n %5 = qlinear %3 %4 {{order={order}}} : f32[T,64] \"logits\"\n output %5\n}}"
        )
    };
    let run = |order: &str| {
        let g = model(&text(order));
        let w = Weights::random(&g, 3);
        logits(&g, &w, &[0, 1, 2], &[3])
    };
    let chain = run("sum(lanes=1, take=strided, tree=pair)");
    assert_eq!(chain, run("none"));
    assert_eq!(chain, run("sum(lanes=1, take=contiguous, tree=fold)"));
    let mut seen = vec![chain];
    for order in ["lanes=4, take=strided, tree=pair", "lanes=4, take=contiguous, tree=pair", "lanes=4, take=strided, tree=fold"] {
        let bits = run(&format!("sum({order})"));
        assert!(!seen.contains(&bits), "{order}");
        seen.push(bits);
    }
}

#[test]
fn a_nan_stays_in_its_token_and_becomes_minus_one() {
    let g = model(MODEL);
    let (mut w, t) = (Weights::random(&g, 1), tokens());
    let before = {
        let mut s = Session::new(&g, &w).unwrap();
        s.step(&t, 0).unwrap();
        s.value("next").cloned()
    };
    // A NaN in the vector that scales the router's input reaches the weights of all experts.
    let text = MODEL.replace("bf16[64] \"l0.router.scale\"", "f32[64] \"l0.router.scale\"");
    let mut scale = vec![1.0; 64];
    scale[9] = f32::NAN;
    w.set("l0.router.scale", &[64], &scale);
    let g = model(&text);
    let mut s = Session::new(&g, &w).unwrap();
    s.step(&t, 0).unwrap();
    assert_ne!(s.value("next").cloned(), before);
    assert_eq!(s.value("next"), Some(&Value::I32(vec![-1; t.len()])));
}

#[test]
fn errors_change_nothing() {
    let g = model(MODEL);
    let w = Weights::random(&g, 1);
    let mut s = Session::new(&g, &w).unwrap();
    s.step(&[1, 2, 3], 0).unwrap();
    let before = bits(s.value("logits").unwrap());
    for (tokens, from) in [(&[][..], 0), (&[5], 2), (&[5, 96], 0)] {
        assert_eq!(s.step(tokens, from).unwrap_err().code, "E0343");
        assert_eq!((s.position(), bits(s.value("logits").unwrap())), (3, before.clone()));
    }
    // Weights that are missing, of another kind, or of another shape.
    let mut w = Weights::random(&g, 1);
    w.0.remove("l0.norm");
    w.0.remove("l0.experts.up");
    w.set("l0.q_proj", &[128, 64], &[0.0; 128 * 64]);
    w.set("l0.layer_scalar", &[1], &[1.0]);
    let codes: Vec<_> = Session::new(&g, &w).err().unwrap().iter().map(|d| (d.code, d.place.clone())).collect();
    let want = [("E0341", "l0.norm"), ("E0341", "l0.q_proj"), ("E0341", "l0.experts.up"), ("E0342", "l0.layer_scalar")];
    assert_eq!(codes, want.map(|(c, p)| (c, p.to_string())));
    assert!(w.plain("l0.layer_scalar").is_some());
    // A graph that does not verify is not run.
    let g = model(&MODEL.replace("k=2", "k=0"));
    assert!(Session::new(&g, &w).is_err());
}
