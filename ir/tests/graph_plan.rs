//! The plan's text (round trips, messages, no panic) and every rule of the plan verifier.

mod graph_common;

use graph_common::{Rng, show};
use ir::diag::Diagnostic;
use ir::graph::Dtype;
use ir::graph::Rows;
use ir::graph::op::RopeParams;
use ir::kernel::Kernel;
use ir::layout::{Format, MatrixLayout};
use ir::order::{ReductionOrder, Take, Tree};
use ir::plan::phases::Phases;
use ir::plan::text::{parse, parse_whole, print, print_whole};
use ir::plan::verify::{CODES, verify};
use ir::plan::{Arg, Buffer, BufferKind, Launch, Pack, PackedWeight, Plan};
use std::collections::BTreeSet;

/// Three values in a row, a cache, an output.
const PLAN: &str = r#"plan {
  arena 2048, outputs 256
  k0 = kernel from_weight
  k1 = kernel copy
  k2 = kernel cache
  b0 = state "state"
  b1 = tokens "tokens"
  b2 = value "embed" {rows=T, bytes=1024, offset=0}
  b3 = value "mid" {rows=T, bytes=512, offset=1024}
  b4 = value "late" {rows=T, bytes=1024, offset=0}
  b5 = value "logits" {rows=O, bytes=256, offset=0}
  b6 = keys "kv.0.keys" {layer=0, heads=2, dim=32, window=16}
  b7 = values "kv.0.values" {layer=0, heads=2, dim=32, window=0}
  w0 = affine "embed_tokens" {bits=4, group=64, stack=1, rows=4096, cols=256, order=sum(lanes=4, take=contiguous, tree=pair), chain_lanes=2, vec=4}
  w1 = plain "norm"
  w2 = rope "rope.0" {dim=32, rotated=16, theta=0x40c3880000000000, factor=0x3ff0000000000000} // 10000.0, 1.0
  launch "embed" k0(b1, w0, b2) {grid_x=4, rows=T} // from_weight: tokens, embed_tokens, embed
  launch "mid" k1(b2, b3) {grid_x=1, rows=T} // copy: embed, mid
  launch "write" k2(b3, b6) {grid_x=1, rows=T} // cache: mid, kv.0.keys
  launch "late" k1(b3, b4) {grid_x=1, rows=T} // copy: mid, late
  launch "logits" k1(b4, b5) {grid_x=2, rows=O} // copy: late, logits
}
"#;

const KERNELS: &str = r#"kernel from_weight warps=1 min_blocks=0 {
  buf ids read
  buf w fixed
  buf y write
  %0 = lane
  %1 = load.i32 buf.ids[%0]
  %2 = load.f32 buf.w[%1]
  store.f32 buf.y[%0] = %2
}
kernel copy warps=1 min_blocks=0 {
  buf x read
  buf y write
  %0 = lane
  %1 = load.f32 buf.x[%0]
  store.f32 buf.y[%0] = %1
}
kernel cache warps=1 min_blocks=0 {
  buf x read
  buf kv write
  %0 = lane
  %1 = load.f32 buf.x[%0]
  store.f32 buf.kv[%0] = %1
  %2 = load.f32 buf.kv[%0]
  store.f32 buf.kv[%0] = %2
}
"#;

fn whole(plan: &str) -> String {
    plan.to_string() + KERNELS
}

fn read(plan: &str) -> Plan {
    parse_whole(&whole(plan)).unwrap_or_else(|e| panic!("{}\n{plan}", show(&e)))
}

#[test]
fn prints_and_parses_back() {
    let p = read(PLAN);
    assert_eq!(print(&p), PLAN);
    assert_eq!(parse_whole(&print_whole(&p)).unwrap(), p);
    assert_eq!(verify(&p, &[]).map_err(|e| show(&e)), Ok(()));
    // With kernels from elsewhere.
    let mut from = |name: &str| {
        let k = p.kernels.iter().find(|k| k.name == name).cloned();
        k.ok_or_else(|| Diagnostic::new("E0114", format!("no file for kernel {name}")))
    };
    assert_eq!(parse(&print(&p), &mut from).unwrap(), p);
    let text = PLAN.replace("kernel copy", "kernel other");
    let e = parse(&text, &mut from).unwrap_err();
    assert_eq!((e.len(), e[0].place.as_str()), (1, "line 4, column 3"));
}

fn any(r: &mut Rng) -> u32 {
    r.next() as u32 >> r.below(32)
}

fn random_plan(r: &mut Rng, kernels: &[Kernel]) -> Plan {
    let name = |r: &mut Rng| -> String {
        let chars = ['a', '.', '"', '\\', '\n', '%', '+', '漢', '\u{85}'];
        (0..r.below(6)).map(|_| r.pick(&chars)).collect()
    };
    let rows = |r: &mut Rng| r.pick(&[Rows::Once, Rows::Tokens, Rows::Outputs]);
    let mut p = Plan { arena_bytes: r.next() >> r.below(64), output_bytes: r.next() >> r.below(64), ..Plan::default() };
    for _ in 0..r.below(3) {
        p.kernels.push(kernels[r.below(kernels.len())].clone());
    }
    for _ in 0..r.below(6) {
        let (layer, heads, dim, window) = (any(r), any(r), any(r), any(r));
        let kind = match r.below(8) {
            0 => BufferKind::Value { rows: rows(r), bytes: any(r) },
            1 => BufferKind::Keys { layer, heads, dim, window },
            2 => BufferKind::Values { layer, heads, dim, window },
            3 => BufferKind::Tokens,
            4 => BufferKind::Parts { rows: rows(r), heads: layer, dim, window },
            5 => BufferKind::Rows,
            6 => BufferKind::Digests { rows: rows(r) },
            _ => BufferKind::State,
        };
        let offset = if r.below(2) == 0 { None } else { Some(r.next()) };
        p.buffers.push(Buffer { name: name(r), kind, offset });
    }
    for _ in 0..r.below(6) {
        let (take, tree) = (r.pick(&[Take::Strided, Take::Contiguous]), r.pick(&[Tree::Pair, Tree::Fold]));
        let order = ReductionOrder { lanes: any(r), take, tree };
        let pack = match r.below(3) {
            0 => Pack::Plain,
            1 => Pack::Rope(RopeParams { dim: any(r), rotated: any(r), theta: 1e6 + f64::from(any(r)) / 3.0, factor: -0.0 }),
            _ => {
                let (bits, group, stack, rows, cols) = (any(r), any(r), any(r), any(r), any(r));
                let dtype = r.pick(&[Dtype::Bf16, Dtype::F16, Dtype::F32]);
                let affine = Format::Affine { bits, group, scales: dtype };
                let format = if r.below(2) == 0 { affine } else { Format::Plain(dtype) };
                Pack::Matrix(MatrixLayout { format, stack, rows, cols, order, chain_lanes: any(r), vec: any(r) })
            }
        };
        p.weights.push(PackedWeight { tensor: name(r), pack });
    }
    for _ in 0..r.below(6) {
        let arg = |r: &mut Rng| if r.below(2) == 0 { Arg::Buffer(any(r)) } else { Arg::Weight(any(r)) };
        let args = (0..r.below(4)).map(|_| arg(r)).collect();
        p.launches.push(Launch { name: name(r), kernel: any(r), args, grid_x: any(r), rows: rows(r), tokens: any(r) });
    }
    p
}

#[test]
fn any_plan_prints_and_parses_back() {
    let kernels = read(PLAN).kernels;
    let mut r = Rng(1);
    for _ in 0..3000 {
        let p = random_plan(&mut r, &kernels);
        let text = print_whole(&p);
        let back = parse_whole(&text).unwrap_or_else(|e| panic!("{}\n{text}", show(&e)));
        assert!(back == p, "{text}");
        // Whatever it is, it can be checked.
        _ = verify(&p, &[]);
    }
}

/// (line that starts so, part, replacement, code, place, part of the message)
const FAULTS: &[(&str, &str, &str, &str, &str, &str)] = &[
    ("plan", "plan", "plane", "E0102", "line 1, column 1", "expected `plan`, found `plane`"),
    ("  arena", "2048", "-1", "E0102", "line 2, column 9", "expected arena bytes, found `-1`"),
    ("  arena", "arena", "arenas", "E0102", "line 2, column 3", "found `arenas`"),
    ("  k1", "k1", "k7", "E0113", "line 4, column 3", "expected `k1`, found `k7`"),
    ("  b1", "b1", "b0", "E0113", "line 7, column 3", "expected `b1`, found `b0`"),
    ("  b2", "value", "valve", "E0102", "line 8, column 8", "found `valve`"),
    ("  b2", "offset=0", "offset=x", "E0102", "line 8, column 50", "expected an offset or `none`"),
    ("  b2", "bytes=1024", "bytes=1 024", "E0102", "line 8, column 39", "expected `,`"),
    ("  b2", "rows=T", "rows=V", "E0102", "line 8, column 28", "`T`, `O` or `once`"),
    ("  w1", "plain", "plane", "E0102", "line 15, column 8", "found `plane`"),
    ("  launch \"mid\"", "b2", "c2", "E0102", "line 18, column 19", "expected a buffer like `b0`"),
    ("  launch \"mid\"", "k1(", "k(", "E0102", "line 18, column 16", "expected a kernel like `k0`"),
    ("  launch \"mid\"", "rows=T}", "rows=T} 4", "E0102", "line 18, column 46", "expected end of line"),
];

fn change(text: &str, line: &str, from: &str, to: &str) -> String {
    let mut hits = 0;
    let mut edit = |l: &str| {
        if l.starts_with(line) && l.contains(from) {
            hits += 1;
            return l.replacen(from, to, 1) + "\n";
        }
        l.to_string() + "\n"
    };
    let out: String = text.lines().map(&mut edit).collect();
    assert_eq!(hits, 1, "{line} {from}");
    out
}

#[test]
fn messages_name_the_place() {
    for (line, from, to, code, place, part) in FAULTS {
        let text = whole(&change(PLAN, line, from, to));
        let errors = parse_whole(&text).expect_err(to);
        let hit = errors.iter().any(|d| d.code == *code && d.place == *place && d.message.contains(part));
        assert!(hit && errors.len() == 1, "wanted {code} {place}: {part}\n{}", show(&errors));
    }
    // The kernels keep the lines of the file.
    let text = whole(PLAN).replace("%2 = load.f32 buf.w", "%2 = lode.f32 buf.w");
    assert!(show(&parse_whole(&text).unwrap_err()).contains("line 29, column"), "{}", show(&parse_whole(&text).unwrap_err()));
    let e = parse_whole(PLAN).unwrap_err();
    assert_eq!(e[0].code, "E0114");
    let e = parse_whole(&(whole(PLAN) + &KERNELS.replace("from_weight", "more"))).unwrap_err();
    assert_eq!(e[0].code, "E0114");
}

#[test]
fn no_text_panics() {
    let mut r = Rng(3);
    let mut parsed = 0;
    for _ in 0..3000 {
        let mut bytes = whole(PLAN).into_bytes();
        for _ in 0..1 + r.below(3) {
            let at = r.below(bytes.len());
            match r.below(6) {
                0 => bytes[at] = r.next() as u8,
                1 => _ = bytes.remove(at),
                2 => bytes.insert(at, r.pick(b"{}()[]%\"=,:->0x9T\n\\")),
                3 if r.below(8) == 0 => bytes.truncate(at.max(1)),
                _ => bytes[at] = r.pick(b"0123456789"),
            }
        }
        if let Ok(p) = parse_whole(&String::from_utf8_lossy(&bytes)) {
            parsed += 1;
            _ = verify(&p, &["late"]);
        }
    }
    assert!(parsed > 100, "{parsed}");
}

/// (line that starts so, part, replacement, code)
const RULES: &[(&str, &str, &str, &str)] = &[
    ("  b3", "\"mid\"", "\"embed\"", "E0351"),
    ("  b3", "\"mid\"", "\"\"", "E0351"),
    ("  launch \"mid\"", "\"mid\"", "\"embed\"", "E0351"),
    ("  launch \"mid\"", "k1", "k3", "E0352"),
    ("  launch \"mid\"", "b2", "b8", "E0352"),
    ("  launch \"embed\"", "w0", "w3", "E0352"),
    ("  launch \"mid\"", "b2, ", "", "E0353"),
    ("  launch \"mid\"", "b2, ", "b2, b2, ", "E0353"),
    ("  launch \"mid\"", "b3)", "w1)", "E0354"),
    ("  launch \"embed\"", "w0", "b1", "E0364"),
    ("  launch \"mid\"", "b2", "b4", "E0355"),
    ("  launch \"mid\"", "b2", "b3", "E0356"),
    ("  launch \"write\"", "b6", "b4", "E0356"),
    ("  launch \"write\"", "b3, b6", "b6, b6", "E0356"),
    ("  b2", "bytes=1024", "bytes=1000", "E0357"),
    ("  b2", "bytes=1024", "bytes=0", "E0357"),
    ("  b2", "offset=0", "offset=32", "E0357"),
    ("  b6", "heads=2", "heads=0", "E0357"),
    ("  b6", "window=16", "window=16, offset=0", "E0357"),
    ("  b0", "\"state\"", "\"state\" {offset=0}", "E0357"),
    ("  w0", "bits=4", "bits=7", "E0358"),
    ("  w0", "group=64", "group=48", "E0358"),
    ("  w0", "cols=256", "cols=250", "E0358"),
    ("  w0", "rows=4096", "rows=0", "E0358"),
    ("  w0", "stack=1", "stack=0", "E0358"),
    ("  w0", "lanes=4", "lanes=3", "E0358"),
    ("  w0", "chain_lanes=2", "chain_lanes=8", "E0358"),
    ("  w0", "chain_lanes=2", "chain_lanes=3", "E0358"),
    ("  w0", "chain_lanes=2", "chain_lanes=0", "E0358"),
    ("  w0", "vec=4", "vec=8", "E0358"),
    ("  w2", "rotated=16", "rotated=17", "E0358"),
    ("  b3", "offset=1024", "offset=none", "E0359"),
    ("  b3", "offset=1024", "offset=1856", "E0359"),
    ("  b5", "offset=0", "offset=64", "E0359"),
    ("  b5", "offset=0", "offset=18446744073709551552", "E0359"),
    ("  b3", "offset=1024", "offset=960", "E0360"),
    // Read and written by one launch: both are live.
    ("  b4", "offset=0", "offset=512", "E0360"),
    // In the arena of tokens, it lies where `late` does.
    ("  b5", "rows=O", "rows=T", "E0360"),
    ("  launch \"mid\"", "grid_x=1", "grid_x=0", "E0361"),
    ("  launch \"mid\"", "grid_x=1", "grid_x=3000000000", "E0361"),
    ("  launch \"mid\"", "rows=T", "rows=T, tokens=0", "E0361"),
    ("  launch \"mid\"", "rows=T", "rows=T, tokens=257", "E0361"),
    ("  launch \"mid\"", "rows=T", "rows=O", "E0362"),
];

#[test]
fn every_rule() {
    for (line, from, to, code) in RULES {
        let text = change(PLAN, line, from, to);
        match verify(&read(&text), &[]) {
            Ok(()) => panic!("{code} is not reported\n{text}"),
            Err(e) => assert!(e.iter().any(|d| d.code == *code), "wanted {code}, found\n{}{text}", show(&e)),
        }
    }
    let tested: BTreeSet<&str> = RULES.iter().map(|r| r.3).collect();
    assert_eq!(tested, CODES.iter().map(|c| c.0).collect());
}

#[test]
fn kernels_have_one_name() {
    let mut p = read(PLAN);
    p.kernels[1].name = "cache".into();
    assert_eq!(verify(&p, &[]).unwrap_err()[0].code, "E0351");
}

#[test]
fn what_may_be_written_down() {
    // Before `memory-plan` there are no offsets.
    let mut p = read(PLAN);
    (p.arena_bytes, p.output_bytes) = (0, 0);
    p.buffers.iter_mut().for_each(|b| b.offset = None);
    assert_eq!(verify(&p, &[]), Ok(()));
    // A value that nobody uses needs none.
    let text = PLAN.replace("  b6", "  b6 = value \"spare\" {rows=T, bytes=64, offset=none}\n  b7");
    let text = text.replace("  b7 = values", "  b8 = values").replace("b3, b6", "b3, b7").replace("mid, kv", "mid,kv");
    assert_eq!(verify(&read(&text), &[]).map_err(|e| show(&e)), Ok(()));
    // `late` takes the place of `embed`, which is not needed any more, unless it is kept.
    let e = verify(&read(PLAN), &["embed"]).unwrap_err();
    assert_eq!(e.iter().map(|d| d.code).collect::<Vec<_>>(), ["E0360"]);
    // A cache may be read and written by a launch, and read before this plan writes it.
    let text = change(PLAN, "  launch \"write\"", "b3, b6", "b7, b6");
    assert_eq!(verify(&read(&text), &[]).map_err(|e| show(&e)), Ok(()));
}

#[test]
fn plans_of_two_phases_share_what_is_equal() {
    let decode = read(PLAN);
    let mut prefill = decode.clone();
    // Another kernel of an old name, and two that are the same.
    prefill.kernels[1].warps = 2;
    prefill.launches[1].tokens = 4;
    let mut both = Phases::join(decode.clone(), Some(prefill));
    let names = |p: &Plan| p.kernels.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(both.prefill.as_ref().unwrap()), ["from_weight", "p_copy", "cache"]);
    assert_eq!(both.kernels().iter().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["from_weight", "copy", "cache", "p_copy"]);
    both.check().unwrap();
    assert_eq!(both.common().weights, decode.weights);
    // One name for two kernels, or for two caches.
    let p = both.prefill.as_mut().unwrap();
    p.kernels[1].name = "copy".into();
    assert_eq!(both.check().unwrap_err().code, "E0363");
    let p = both.prefill.as_mut().unwrap();
    p.kernels[1].name = "other".into();
    p.buffers[6].kind = p.buffers[7].kind.clone();
    assert_eq!(both.check().unwrap_err().code, "E0363");
}

#[test]
fn blocks_of_launches_end_with_the_last_row() {
    let mut l = read(PLAN).launches[0].clone();
    for (tokens, rows, blocks) in [(1, 7, 7), (4, 7, 2), (4, 8, 2), (8, 1, 1), (2, 0, 0)] {
        l.tokens = tokens;
        assert_eq!(l.grid_y(rows, 0), blocks);
        assert_eq!(Launch { rows: Rows::Outputs, ..l.clone() }.grid_y(99, rows), blocks);
    }
}
