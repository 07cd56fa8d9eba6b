//! The targets. Each takes any bytes; where its subject takes text, bytes that are no UTF-8 are replaced.

use crate::Target;
use clap::Parser;
use isobit::args::Cli;
use isobit::artifact::Manifest;
use models::{Checkpoint, Config, Message, Role, Text};
use std::borrow::Cow;
use std::sync::OnceLock;

/// All of them; the planted faults last.
pub const ALL: &[Target] = &[
    target("graph", graph),
    target("kernel", kernel),
    target("plan", plan),
    Target { mend: Some(mend_header), ..target("safetensors", safetensors) },
    target("config", config),
    target("text", text),
    target("tokenizer", tokenizer),
    target("template", template),
    Target { mend: Some(mend_manifest), ..target("manifest", manifest) },
    target("trace", trace),
    target("command", command),
    Target { listed: false, ..target("planted_panic", planted_panic) },
    Target { listed: false, ..target("planted_overflow", planted_overflow) },
    Target { listed: false, ..target("planted_loop", planted_loop) },
    Target { listed: false, ..target("planted_memory", planted_memory) },
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, mend: None, listed: true }
}

fn lossy(data: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(data)
}

/// A graph that parses prints and parses to itself, and the verifier has an opinion.
pub fn graph(data: &[u8]) {
    use ir::graph::text::{parse, print};
    if let Ok(g) = parse(&lossy(data)) {
        let text = print(&g);
        let again = parse(&text).unwrap_or_else(|e| panic!("a printed graph does not parse: {e:?}\n{text}"));
        assert_eq!(print(&again), text, "a printed graph parses to another");
        let _ = ir::graph::verify::verify(&g);
    }
}

/// The same of kernels.
pub fn kernel(data: &[u8]) {
    use ir::kernel::text::{parse_all, print, renumber};
    for k in parse_all(&lossy(data)).unwrap_or_default() {
        let text = print(&k);
        let again = parse_all(&text).unwrap_or_else(|e| panic!("a printed kernel does not parse: {e:?}\n{text}"));
        assert_eq!(again.len(), 1);
        assert_eq!(print(&again[0]), text, "a printed kernel parses to another");
        assert_eq!(print(&renumber(&k)), text, "numbering changes what is printed");
        let _ = ir::kernel::verify::verify(&k);
    }
}

/// The same of plans with their kernels.
pub fn plan(data: &[u8]) {
    use ir::plan::text::{parse_whole, print_whole};
    if let Ok(p) = parse_whole(&lossy(data)) {
        let text = print_whole(&p);
        let again = parse_whole(&text).unwrap_or_else(|e| panic!("a printed plan does not parse: {e:?}\n{text}"));
        assert_eq!(print_whole(&again), text, "a printed plan parses to another");
        let _ = ir::plan::verify::verify(&p, &[]);
    }
}

/// Weights beside a sound configuration: what is opened lies inside the file.
pub fn safetensors(data: &[u8]) {
    let files = vec![file("config.json", CONFIG_JSON), ("m.safetensors".into(), Cow::Owned(data.to_vec()))];
    if let Ok(ck) = Checkpoint::from_memory(files) {
        for t in ck.tensors() {
            let _ = (t.bytes.first(), t.bytes.last(), t.floats().map(|f| f.len()));
        }
        let _ = ck.fits().map_err(|d| d.to_string());
    }
}

/// A configuration that is accepted keeps its promises, and the tensors it asks for can be listed.
pub fn config(data: &[u8]) {
    if let Ok(c) = Config::from_bytes(data, "config.json") {
        assert!(c.vocab_size > 0 && c.hidden_size > 0 && !c.layers.is_empty());
        assert!(c.layers.iter().all(|l| l.kv_heads > 0 && l.heads % l.kv_heads == 0 && l.head_dim % 2 == 0));
        assert!((c.bos as usize) < c.vocab_size && c.eos.iter().all(|e| (*e as usize) < c.vocab_size));
        let embed = r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let files =
            vec![("config.json".into(), Cow::Owned(data.to_vec())), ("m.safetensors".into(), Cow::Owned(shard(embed, &[0; 8])))];
        let ck = Checkpoint::from_memory(files).unwrap_or_else(|d| panic!("accepted, then refused: {d}"));
        assert!(ck.fits().is_err(), "one tensor is no model");
    }
}

const CONFIG_JSON: &[u8] = include_bytes!("../../../models/demo/mlx-4bit/config.json");
const TOKENIZER_JSON: &[u8] = include_bytes!("../../../models/demo/mlx-4bit/tokenizer.json");
const TEMPLATE_JINJA: &[u8] = include_bytes!("../../../models/demo/mlx-4bit/chat_template.jinja");

fn file(name: &str, bytes: &'static [u8]) -> (String, Cow<'static, [u8]>) {
    (name.into(), Cow::Borrowed(bytes))
}

/// A safetensors file of a header's text and data.
fn shard(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn load(tokenizer: Cow<'static, [u8]>, template: Cow<'static, [u8]>) -> ir::diag::Result<Text> {
    let embed = r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let files = vec![
        file("config.json", CONFIG_JSON),
        ("m.safetensors".into(), Cow::Owned(shard(embed, &[0; 8]))),
        ("tokenizer.json".into(), tokenizer),
        ("chat_template.jinja".into(), template),
    ];
    Text::load(&Checkpoint::from_memory(files)?)
}

/// The demo model's tokenizer and template.
fn demo() -> &'static Text {
    static TEXT: OnceLock<Text> = OnceLock::new();
    TEXT.get_or_init(|| {
        load(Cow::Borrowed(TOKENIZER_JSON), Cow::Borrowed(TEMPLATE_JINJA)).unwrap_or_else(|d| panic!("the demo model: {d}"))
    })
}

/// Any string: it comes back from its ids, spelled special tokens stay text, a stream adds up to the whole, and a prompt
/// begins with exactly one bos. The bytes are also taken as ids.
pub fn text(data: &[u8]) {
    let t = demo();
    let said = lossy(data);
    if let Ok(ids) = t.encode(&said, false) {
        assert!(ids.iter().all(|id| !t.is_special(*id)), "a special token in {ids:?}");
        // The normalizer writes spaces as this character.
        let spaces = said.replace('\u{2581}', " ");
        assert_eq!(t.decode(&ids, true), spaces);
        streams(t, &ids);
    }
    if let Ok(ids) = t.encode(&said, true) {
        streams(t, &ids);
    }
    for special in [false, true] {
        if let Ok(ids) = t.raw_prompt(&said, special) {
            assert_eq!(ids.first(), Some(&t.bos()));
        }
        let half = said.char_indices().nth(said.chars().count() / 2).map_or(0, |(at, _)| at);
        let talk = [
            Message::new(Role::System, &said[..half]),
            Message::new(Role::User, &said[half..]),
            Message::new(Role::Model, &*said),
            Message::new(Role::User, &*said),
        ];
        if let Ok(ids) = t.chat_prompt(&talk, special, special) {
            assert!(special || ids.iter().filter(|id| **id == t.bos()).count() == 1);
        }
    }
    let ids: Vec<u32> = data.chunks(2).map(|c| c.iter().fold(0, |n, b| n << 8 | u32::from(*b)) % 4200).collect();
    streams(t, &ids);
    let wide: Vec<u32> = data.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    streams(t, &wide);
    let _ = t.reply(&ids);
}

fn streams(t: &Text, ids: &[u32]) {
    for skip in [false, true] {
        let mut s = t.stream(skip);
        let mut out: String = ids.iter().map(|id| s.push(*id)).collect();
        out.push_str(&s.finish());
        assert_eq!(out, t.decode(ids, skip));
    }
}

/// A tokenizer file that loads encodes and decodes.
pub fn tokenizer(data: &[u8]) {
    if let Ok(t) = load(Cow::Owned(data.to_vec()), Cow::Borrowed(b"{{ messages[0].content }}")) {
        for said in ["Hello  world\n<bos>\u{1f600}", "ab", ""] {
            for special in [false, true] {
                if let Ok(ids) = t.encode(said, special) {
                    streams(&t, &ids);
                }
            }
        }
    }
}

/// A template that loads renders or says why not.
pub fn template(data: &[u8]) {
    static SMALL: &[u8] = include_bytes!("../corpus/tokenizer/small.json");
    if let Ok(t) = load(Cow::Borrowed(SMALL), Cow::Owned(data.to_vec())) {
        let talk = [Message::new(Role::User, "Hello <bos>"), Message::new(Role::Model, "Hi"), Message::new(Role::User, "a b c")];
        for thinking in [false, true] {
            let _ = t.render(&talk, thinking);
        }
    }
}

/// A manifest that parses is the text that it prints.
pub fn manifest(data: &[u8]) {
    let text = lossy(data);
    if let Ok(m) = Manifest::parse(&text)
        && m.format == isobit::artifact::FORMAT
    {
        assert_eq!(m.text(), text);
    }
}

/// A trace that is read has rows of as many digests as values, and printed lines that are read again.
pub fn trace(data: &[u8]) {
    use isobit::trace::Trace;
    if let Ok(t) = Trace::read(data, "trace") {
        let mut text = serde_json::to_string(&t.header).unwrap() + "\n";
        for r in &t.rows {
            assert_eq!(r.digests.len(), t.header.plans[r.plan].values.len());
            text += &(serde_json::to_string(r).unwrap() + "\n");
        }
        let again = Trace::read(text.as_bytes(), "trace").unwrap_or_else(|d| panic!("a printed trace is refused: {d}\n{text}"));
        assert_eq!((&again.header, &again.rows), (&t.header, &t.rows));
        let side = |t| isobit::diff::traces::Side { name: "t".into(), trace: t, values: None };
        if let Ok(v) = isobit::diff::traces::diff(&side(&t), &side(&again)) {
            let once = t.rows.iter().map(|r| (r.turn, r.position)).collect::<std::collections::BTreeSet<_>>().len();
            assert!(v.equal || once < t.rows.len(), "a trace differs from itself: {}", v.text);
        }
    }
}

/// A command line, a word a line: it is refused, or options come of it. No model is read.
pub fn command(data: &[u8]) {
    let text = lossy(data);
    let words = std::iter::once("isobit").chain(text.lines().take(64));
    match Cli::try_parse_from(words) {
        Ok(cli) => {
            if let Err(d) = isobit::cmd::check(&cli.command) {
                assert!(!d.message.is_empty());
            }
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// The length that the header has.
#[allow(clippy::ptr_arg)] // its type is that of all menders
fn mend_header(data: &mut Vec<u8>) {
    // The header is taken to end with the last brace.
    let end = data.iter().rposition(|b| *b == b'}').map_or(0, |at| at + 1);
    if end > 8 {
        data[..8].copy_from_slice(&(end as u64 - 8).to_le_bytes());
    }
}

/// The checksum that the contents have.
fn mend_manifest(data: &mut Vec<u8>) {
    if let Ok(m) = serde_json::from_slice::<Manifest>(data) {
        *data = m.text().into_bytes();
    }
}

fn planted_panic(data: &[u8]) {
    assert!(!data.contains(&b'!'), "a planted panic");
}

fn planted_overflow(data: &[u8]) {
    fn deep(n: u64) -> u64 {
        let here = [n; 64];
        if n == u64::MAX { 0 } else { std::hint::black_box(here)[7] ^ deep(n + 1) }
    }
    if data.contains(&b'!') {
        std::hint::black_box(deep(std::hint::black_box(0)));
    }
}

fn planted_loop(data: &[u8]) {
    while data.contains(&b'!') {
        std::hint::black_box(());
    }
}

fn planted_memory(data: &[u8]) {
    if data.contains(&b'!') {
        std::hint::black_box(vec![1u8; 200 << 20]);
    }
}
