//! `isobit inspect`: what a model or an artifact holds, and what it takes to run.

use super::Stop;
use crate::args::InspectArgs;
use crate::artifact::{Artifact, Bodies, Manifest, PlanEntry};
use crate::engine::Room;
use crate::inventory::{self, Amount, Part};
use crate::options::CompileOptions;
use crate::pipeline::{self, Watch};
use crate::printer::Printer;
use crate::source::Source;
use crate::target::Class;
use ir::diag::Result;
use ir::layout::Format;
use ir::plan::{Pack, Plan};
use models::Checkpoint;
use models::checkpoint::Why;
use models::gemma4::{Config, Layer, LayerKind};
use runtime::memory::Needs;
use runtime::session::Limits;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Runs it.
pub fn run(args: &InspectArgs, p: &mut Printer) -> Result<(), Stop> {
    let source = Source::of(&args.model);
    let (json, text) = match &source {
        Source::Artifact(dir) => artifact(dir, p)?,
        Source::Folder(dir) if args.weights.is_none() && !has_tensors(dir) && dir.join("config.json").is_file() => {
            config_only(dir)?
        }
        _ => {
            let ck = super::checkpoint(&source, args.weights, p)?;
            model(&ck, args.context)?
        }
    };
    if args.json { p.line(&json.to_string()) } else { p.data(&text) }
}

/// Is there a safetensors file in this folder?
fn has_tensors(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.path().extension().is_some_and(|x| x == "safetensors"))
}

/// Facts under one another, names in one column.
fn table(title: &str, rows: &[(&str, String)], out: &mut String) {
    let _ = writeln!(out, "{title}");
    for (name, value) in rows {
        let _ = writeln!(out, "  {name:<22} {value}");
    }
    out.push('\n');
}

/// Bytes for people, with the exact number where it is short.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        10_000_000..10_000_000_000 => format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64),
        _ => format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64),
    }
}

/// A count for people.
fn count(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..100_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} G", n as f64 / 1e9),
    }
}

/// What config.json says.
fn architecture(c: &Config) -> (Value, Vec<(&'static str, String)>) {
    // Layers of equal sizes under one another, in the order of their first.
    let mut kinds: Vec<(Layer, usize)> = vec![];
    for l in &c.layers {
        let plain = Layer { kv_from: l.kv_from.map(|_| 0), ..*l };
        match kinds.iter_mut().find(|(k, _)| *k == plain) {
            Some((_, n)) => *n += 1,
            None => kinds.push((plain, 1)),
        }
    }
    let number = |kind| c.layers.iter().filter(|l| l.kind == kind).count();
    let (sliding, full) = (number(LayerKind::Sliding), number(LayerKind::Full));
    let mut rows = vec![("layers", format!("{}: {sliding} sliding, {full} full; {} wide", c.layers.len(), c.hidden_size))];
    let mut list = vec![];
    for (l, n) in &kinds {
        let (name, sees) = match l.kind {
            LayerKind::Sliding => ("sliding", format!("the last {} positions", l.window)),
            LayerKind::Full => ("full", "all".to_string()),
        };
        let values = match (l.kv_from, l.k_eq_v) {
            (Some(_), _) => ", keys of an earlier layer",
            (None, true) => ", keys are the values too",
            (None, false) => "",
        };
        let (heads, kv, dim, mlp) = (l.heads, l.kv_heads, l.head_dim, l.mlp_width);
        let what = format!("{n}: {heads} query heads, {kv} key heads of {dim}; sees {sees}{values}; MLP {mlp}");
        rows.push((if l.kind == LayerKind::Sliding { "sliding layers" } else { "full layers" }, what));
        list.push(json!({
            "kind": name, "layers": n, "heads": heads, "kv_heads": kv, "head_dim": dim, "window": l.window, "mlp": mlp,
            "k_eq_v": l.k_eq_v, "own_keys": l.kv_from.is_none(),
        }));
    }
    if let Some(e) = c.experts {
        rows.push(("experts", format!("{} of {} for a token, {} wide", e.top_k, e.count, e.width)));
    }
    if let Some(e) = c.per_layer {
        rows.push(("per-layer embeddings", format!("{} wide, {} rows", e.width, e.vocab_size)));
    }
    let tied = if c.tied { ", logits from the embedding" } else { "" };
    rows.push(("vocabulary", format!("{}{tied}", c.vocab_size)));
    rows.push(("positions", c.max_position_embeddings.to_string()));
    let json = json!({
        "layers": c.layers.len(), "hidden": c.hidden_size, "kinds": list, "vocabulary": c.vocab_size,
        "positions": c.max_position_embeddings, "tied": c.tied,
        "experts": c.experts.map(|e| json!({"count": e.count, "top_k": e.top_k, "width": e.width})),
        "per_layer": c.per_layer.map(|e| json!({"width": e.width, "rows": e.vocab_size})),
    });
    (json, rows)
}

/// A folder with a configuration and no tensors: what the tensors would be.
fn config_only(dir: &Path) -> Result<(Value, String)> {
    let path = dir.join("config.json");
    let bytes = std::fs::read(&path).map_err(|e| crate::files::failed("cannot be read", &path, &e))?;
    let c = Config::from_bytes(&bytes, &path.display().to_string())?;
    let (architecture, rows) = architecture(&c);
    let mut out = String::new();
    table("architecture", &rows, &mut out);
    let parts = inventory::parts_of_config(&c);
    amounts(&parts, &mut out);
    // Keys and values are f32; layers that read those of an earlier one have none.
    let kind = |kind| c.layers.iter().filter(move |l| l.kind == kind && l.kv_from.is_none());
    let token = |k| kind(k).map(|l| 8 * (l.kv_heads * l.head_dim) as u64).sum::<u64>();
    let (full, sliding) = (token(LayerKind::Full), token(LayerKind::Sliding));
    let title = "keys and values of a token";
    table(title, &[("full layers", size(full)), ("sliding layers", size(sliding))], &mut out);
    out.push_str("There are no tensors here: this is what config.json describes.\n");
    let memory = json!({"kv_token_full": full, "kv_token_sliding": sliding});
    let json =
        json!({"architecture": architecture, "parts": parts_json(&parts), "total": amount_json(total(&parts)), "memory": memory});
    Ok((json, out))
}

/// All parts together.
fn total(parts: &[(Part, Amount)]) -> Amount {
    parts.iter().fold(Amount::default(), |sum, (_, a)| sum.plus(*a))
}

fn parts_json(parts: &[(Part, Amount)]) -> Value {
    Value::Object(parts.iter().map(|(p, a)| (p.name().to_string(), amount_json(*a))).collect())
}

fn amount_json(a: Amount) -> Value {
    json!({
        "parameters": a.parameters, "active": a.active, "bytes": a.bytes, "bytes_per_token": a.read,
        "bits_per_weight": (a.bits() * 1e3).round() / 1e3,
    })
}

/// Rows of the table of parts.
fn amounts(parts: &[(Part, Amount)], out: &mut String) {
    let _ = writeln!(
        out,
        "{:<22} {:>11} {:>11} {:>12} {:>12} {:>15}",
        "parameters", "all", "for a token", "stored", "bits/weight", "read for a token"
    );
    let mut row = |name: &str, a: Amount| {
        let bits = if a.parameters == 0 { "-".to_string() } else { format!("{:.2}", a.bits()) };
        let (all, active) = (count(a.parameters), count(a.active));
        let _ = writeln!(out, "  {name:<20} {all:>11} {active:>11} {:>12} {bits:>12} {:>16}", size(a.bytes), size(a.read));
    };
    for (part, a) in parts {
        row(part.name(), *a);
    }
    row("total", total(parts));
    out.push('\n');
}

fn model(ck: &Checkpoint, context: Option<usize>) -> Result<(Value, String)> {
    let room = Room::new(ck, context)?;
    let limits = Limits::default();
    // As `isobit run` without `--logits`: one row of outputs.
    let limits = Limits { context: room.context, chunk: limits.chunk.min(room.context), outputs: 1, ..limits };
    let o = CompileOptions::default();
    let graph = models::gemma4::layers::graph(ck, o.embed)?;
    let parts = inventory::parts(&graph);
    let planned = pipeline::plan(ck, &o, &[Class::Host], &mut Watch::default())?;
    let plan = &planned.plans[0].1.common();
    let memory = Needs::of(plan, &limits, ck, 0)?;
    let token = inventory::token_bytes(plan);
    let (architecture, rows) = architecture(ck.config());

    let mut out = String::new();
    table("architecture", &rows, &mut out);
    amounts(&parts, &mut out);
    let per = |bytes: u64| format!(", {} a token", size(bytes));
    let title = format!("memory for {} positions, chunks of {}, on the host", limits.context, limits.chunk);
    table(
        &title,
        &[
            ("packed weights", size(memory.weights)),
            ("keys, full", format!("{}{}", size(memory.full), per(token.0))),
            ("keys, sliding (rings)", format!("{}{}", size(memory.sliding), per(token.1))),
            ("workspace", size(memory.workspace)),
            ("total", size(memory.total())),
        ],
        &mut out,
    );
    let mut skipped: BTreeMap<Why, (usize, u64)> = BTreeMap::new();
    for (t, why) in ck.skipped() {
        let e = skipped.entry(why).or_default();
        *e = (e.0 + 1, e.1 + t.bytes.len() as u64);
    }
    if !skipped.is_empty() {
        let _ = writeln!(out, "tensors that are not read");
        for (why, (n, bytes)) in &skipped {
            let _ = writeln!(out, "  {n} tensors, {}: {why}", size(*bytes));
        }
        out.push('\n');
    }
    let skipped: Vec<Value> =
        skipped.iter().map(|(why, (n, bytes))| json!({"why": why.to_string(), "tensors": n, "bytes": bytes})).collect();
    out.truncate(out.trim_end().len());
    out.push('\n');
    let json = json!({
        "architecture": architecture,
        "parts": parts_json(&parts),
        "total": amount_json(total(&parts)),
        "skipped": skipped,
        "warnings": ck.warnings(),
        "memory": {
            "context": limits.context, "chunk": limits.chunk, "weights": memory.weights, "kv_full": memory.full,
            "kv_sliding": memory.sliding, "kv_token_full": token.0, "kv_token_sliding": token.1,
            "workspace": memory.workspace, "total": memory.total(),
        },
    });
    Ok((json, out))
}

/// The elements of a packed matrix, for people.
fn format_name(f: &Format) -> String {
    match f {
        Format::Affine { bits, group, .. } => format!("affine, {bits} bits, groups of {group}"),
        Format::Plain(d) => format!("plain {d:?}").to_lowercase(),
    }
}

/// Bytes of packed weights by kind of packing.
fn packs(plan: &Plan) -> BTreeMap<String, (u64, u64)> {
    let mut out: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for w in &plan.weights {
        let (kind, bytes) = match &w.pack {
            Pack::Matrix(l) => (format_name(&l.format), l.bytes()),
            Pack::Rope(r) => ("rotary frequencies".to_string(), u64::from(r.dim) * 4),
            Pack::Plain => ("vectors as stored".to_string(), 0),
        };
        let e = out.entry(kind).or_default();
        *e = (e.0 + 1, e.1 + bytes);
    }
    out
}

fn artifact(dir: &Path, p: &mut Printer) -> Result<(Value, String)> {
    let a = Artifact::open(dir)?;
    a.check(&mut |what, done, of| p.progress(what, done, of))?;
    let m: &Manifest = a.manifest();
    let mut out = String::new();
    let model = if m.model.included { "inside" } else { "not inside" };
    let bytes: u64 = m.files.values().map(|f| f.bytes).sum();
    let hash = m.model.content_hash.as_deref().unwrap_or(&m.model.table_hash);
    table(
        "artifact",
        &[
            ("written by", format!("isobit {}, format {}", m.isobit, m.format)),
            ("model", format!("{}, {model}, content {}", m.model.family, hash.get(..16).unwrap_or(hash))),
            ("numerics", m.numerics.hash.clone()),
            ("embedding, cache", format!("{}, {}", m.numerics.embed, m.numerics.cache)),
            ("determinism", m.options.determinism.clone()),
            ("files", m.files.len().to_string()),
        ],
        &mut out,
    );
    let on = |b: &bool| if *b { "on" } else { "off" };
    let list = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(", ") };
    let switches: Vec<(&str, String)> = m.options.switches.iter().map(|(name, b)| (name.as_str(), on(b).into())).collect();
    table("switches", &switches, &mut out);
    table(
        "options",
        &[
            ("rules off", list(&m.options.rules_off)),
            ("values kept", list(&m.options.keep)),
            ("pass limit", m.options.pass_limit.map_or("none".into(), |n| n.to_string())),
        ],
        &mut out,
    );
    let mut targets = vec![];
    for t in a.targets() {
        let Some(entry) = m.targets.iter().find(|e| e.name == t.name()) else { continue };
        let (s, prefill) = (entry.decode.stats, entry.prefill.as_ref());
        let packs = packs(&a.plans(t, Bodies::Read)?.common());
        let chunk = |of: &dyn Fn(&PlanEntry) -> String| prefill.map_or("as for a token".into(), of);
        let mut rows = vec![
            ("kernels for a token", format!("{}, {} distinct", s.launches, s.kernels)),
            ("kernels for a chunk", chunk(&|e| format!("{}, {} distinct", e.stats.launches, e.stats.kernels))),
            ("arena for a row", size(s.arena_bytes.max(prefill.map_or(0, |e| e.stats.arena_bytes)))),
            ("packed weights", size(s.weight_bytes)),
            ("schedule for a token", entry.decode.schedule.clone()),
            ("schedule for a chunk", chunk(&|e| e.schedule.clone())),
        ];
        let here = if t.class() == Class::Host && t.runs_here() { "yes" } else { "no" };
        rows.push(("runs here", here.into()));
        for (kind, (n, bytes)) in &packs {
            rows.push(("weights", if *bytes > 0 { format!("{n} {kind}: {}", size(*bytes)) } else { format!("{n} {kind}") }));
        }
        table(&format!("target {}", t.name()), &rows, &mut out);
        let packs: Vec<Value> =
            packs.iter().map(|(kind, (n, bytes))| json!({"pack": kind, "tensors": n, "bytes": bytes})).collect();
        targets.push(json!({"name": t.name(), "decode": entry.decode, "prefill": prefill, "weights": packs}));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    let json = json!({
        "isobit": m.isobit, "format": m.format,
        "model": {"family": m.model.family, "content_hash": m.model.content_hash, "included": m.model.included},
        "numerics": m.numerics, "options": m.options, "files": m.files.len(), "bytes": bytes, "targets": targets,
    });
    Ok((json, out))
}
