//! `isobit options`: every option and switch of a compilation with its effective value, and where that comes from: the
//! default, the determinism level, or a flag. `--print-options` of `compile` and `run` prints the same.

use super::{Stop, resolve};
use crate::args::{BuildArgs, OptionsArgs};
use crate::artifact::Manifest;
use crate::options::{CompileOptions, FUSING, embed_name};
use crate::printer::Printer;
use passes::{Level, Manager, Options, Pass};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Runs it.
pub fn run(args: &OptionsArgs, p: &mut Printer) -> Result<(), Stop> {
    let o = resolve(&args.build, vec![])?;
    if args.json { p.line(&json(&args.build, &o).to_string()) } else { p.data(&text(&args.build, &o)) }
}

/// An option in effect.
struct Effective {
    name: String,
    value: Value,
    from: String,
}

/// Does the level choose this switch? Passes that every level needs are no choice.
fn chosen_by_level(pass: &dyn Pass, level: Level) -> bool {
    let needed = |level| pass.required(&Options { determinism: level, ..Options::default() }).is_some();
    needed(level) && !Level::ALL.into_iter().all(needed)
}

fn effective(args: &BuildArgs, o: &CompileOptions) -> Vec<Effective> {
    let given = |flag: &str, is: bool| if is { format!("--{flag}") } else { "default".to_string() };
    let mut out = vec![];
    let mut add = |name: &str, value: Value, from: String| out.push(Effective { name: name.into(), value, from });
    let (a, passes) = (&args.passes, &o.passes);
    add("embed", json!(embed_name(o.embed)), given("embed", args.embed.is_some()));
    add("determinism", json!(passes.determinism.name()), given("determinism", a.determinism.is_some()));
    for pass in Manager::default().passes() {
        let name = pass.name();
        let from = match () {
            () if a.switches.0.contains_key(name) => given(name, true),
            () if args.activations.is_some() && name == passes::round_activations::NAME => given("activations", true),
            () if a.fusion.is_some() && FUSING.contains(&name) => given("fusion", true),
            () if chosen_by_level(pass, passes.determinism) => format!("level {}", passes.determinism.name()),
            () => given(name, false),
        };
        add(name, json!(passes.is_on(name)), from);
    }
    let list = |names: &BTreeSet<String>| json!(names);
    add("disable-rule", list(&passes.rules_off), given("disable-rule", !a.disable_rule.is_empty()));
    add("keep", list(&passes.keep), given("keep", !a.keep.is_empty()));
    add("pass-limit", json!(passes.pass_limit), given("pass-limit", a.pass_limit.is_some()));
    add("launch-cost", json!(passes.launch_cost), "default".into());
    add("prefill-plan", json!(o.prefill.name()), given("prefill-plan", args.prefill_plan.is_some()));
    add("cubin", json!(o.cubins.name()), given("cubin", args.cubin.is_some()));
    let schedules: Vec<String> = o.schedules.iter().map(|s| format!("{}={}", s.kind(), s.schedule)).collect();
    add("schedule", json!(schedules), given("schedule", !args.schedule.is_empty()));
    out
}

/// As a table.
pub fn text(args: &BuildArgs, o: &CompileOptions) -> String {
    table(&effective(args, o))
}

/// Those that an artifact was compiled with, as a table.
pub fn of_artifact(m: &Manifest) -> String {
    let o = &m.options;
    let list = |names: &[String]| json!(names);
    let mut all = vec![("embed", json!(m.numerics.embed)), ("determinism", json!(o.determinism))];
    // In the order of the passes, as everywhere.
    let manager = Manager::default();
    all.extend(manager.passes().filter_map(|p| Some((p.name(), json!(o.switches.get(p.name())?)))));
    all.push(("disable-rule", list(&o.rules_off)));
    all.push(("keep", list(&o.keep)));
    all.push(("pass-limit", json!(o.pass_limit)));
    all.push(("launch-cost", json!(o.launch_cost)));
    all.push(("prefill-plan", json!(o.prefill_plan)));
    all.push(("cubin", json!(o.cubin)));
    let from = || "artifact".to_string();
    table(&all.into_iter().map(|(name, value)| Effective { name: name.into(), value, from: from() }).collect::<Vec<_>>())
}

fn table(all: &[Effective]) -> String {
    let shown = |e: &Effective| match &e.value {
        Value::Bool(on) => if *on { "on" } else { "off" }.to_string(),
        Value::String(s) => s.clone(),
        Value::Null => "-".into(),
        Value::Array(a) if a.is_empty() => "-".into(),
        Value::Array(a) => a.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    let wide = all.iter().map(|e| shown(e).len()).max().unwrap_or(0).max(5);
    let mut out = format!("{:<16} {:<wide$} from\n", "option", "value");
    for e in all {
        let _ = writeln!(out, "{:<16} {:<wide$} {}", e.name, shown(e), e.from);
    }
    out
}

fn json(args: &BuildArgs, o: &CompileOptions) -> Value {
    let entries = effective(args, o).into_iter().map(|e| (e.name, json!({"value": e.value, "from": e.from})));
    Value::Object(entries.collect())
}
