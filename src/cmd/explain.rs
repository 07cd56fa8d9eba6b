//! `isobit explain`: what a diagnostic code means, or what a pass or a fusion rule does. Alone it lists all.

use super::Stop;
use crate::args::ExplainArgs;
use crate::explain::{self, Entry, Section};
use crate::printer::Printer;
use ir::diag::{Diagnostic, nearest};
use passes::fuse::{self, Rule};
use passes::{Effect, Level, Manager, Options, Pass};
use serde_json::{Value, json};
use std::fmt::Write;

/// Runs it.
pub fn run(args: &ExplainArgs, p: &mut Printer) -> Result<(), Stop> {
    let manager = Manager::default();
    let Some(word) = &args.what else {
        return if args.json { p.line(&list_json(&manager).to_string()) } else { p.data(&list(&manager)) };
    };
    if let Some((section, entry)) = explain::find(&word.to_ascii_uppercase()) {
        return if args.json { p.line(&code_json(section, entry).to_string()) } else { p.data(&code(section, entry)) };
    }
    if let Ok(pass) = manager.find(word) {
        return if args.json { p.line(&pass_json(pass).to_string()) } else { p.data(&about(pass)) };
    }
    let rules = fuse::rules();
    if let Some(rule) = rules.iter().find(|r| r.name == *word) {
        return if args.json { p.line(&rule_json(rule).to_string()) } else { p.data(&rule_text(rule)) };
    }
    let codes = explain::sections().iter().flat_map(|s| &s.entries).map(|e| e.code.as_str());
    let names = codes.chain(manager.passes().map(|p| p.name())).chain(rules.iter().map(|r| r.name.as_str()));
    let near = nearest(names, word, 3);
    Err(Diagnostic::new("E0769", format!("there is no diagnostic code, pass or fusion rule `{word}`"))
        .hint(format!("near are {}; `isobit explain` lists all", near.join(", ")))
        .into())
}

fn code(section: &Section, e: &Entry) -> String {
    let mut out = format!("{}: {}\n", e.code, e.meaning);
    for line in &e.text {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(out, "\n{}; exit code {}", section.title, if e.usage { 2 } else { 1 });
    for line in &section.remark {
        let _ = writeln!(out, "  {line}");
    }
    out
}

fn code_json(section: &Section, e: &Entry) -> Value {
    json!({
        "code": e.code, "meaning": e.meaning, "text": e.text, "part": section.title, "remark": section.remark,
        "exit_code": if e.usage { 2 } else { 1 },
    })
}

/// Why a pass may not be switched off at a level, for each level that needs it.
fn required(pass: &dyn Pass) -> Vec<(Level, &'static str)> {
    let at = |level| Options { determinism: level, ..Options::default() };
    Level::ALL.into_iter().filter_map(|level| pass.required(&at(level)).map(|why| (level, why))).collect()
}

fn about(pass: &dyn Pass) -> String {
    let mut out = format!("pass {}\n  {}\n\n", pass.name(), pass.about());
    let bits = match pass.effect() {
        Effect::Exact => "exact: the same bits with it and without",
        Effect::Rounding => "rounding: it chooses the arithmetic, and with it the bits",
    };
    let _ = writeln!(out, "effect    {bits}");
    let _ = writeln!(out, "switch    --{} on|off (default: on)", pass.name());
    let needed = required(pass);
    let levels: Vec<&str> = needed.iter().map(|(l, _)| l.name()).collect();
    let optional = match needed.first() {
        None => "yes".to_string(),
        Some((_, why)) if needed.len() == Level::ALL.len() => format!("no: {why}"),
        Some((_, why)) => format!("no at --determinism {}: {why}", levels.join(", ")),
    };
    let _ = writeln!(out, "optional  {optional}");
    for (name, meaning) in pass.args() {
        let _ = writeln!(out, "argument  {name}: {meaning}");
    }
    out
}

fn pass_json(pass: &dyn Pass) -> Value {
    let args: Vec<Value> = pass.args().iter().map(|(name, meaning)| json!({"name": name, "meaning": meaning})).collect();
    let required: Vec<Value> = required(pass).iter().map(|(l, why)| json!({"determinism": l.name(), "why": why})).collect();
    json!({
        "pass": pass.name(), "effect": pass.effect().name(), "about": pass.about(), "switch": format!("--{}", pass.name()),
        "optional": required.is_empty(), "required": required, "args": args,
    })
}

fn rule_text(rule: &Rule) -> String {
    let mut out = format!("fusion rule {}\n  {}\n\n", rule.name, rule.about);
    let effect = if rule.exact { Effect::Exact } else { Effect::Rounding };
    let _ = writeln!(out, "effect    {}", effect.name());
    let _ = writeln!(out, "switch    --disable-rule {}", rule.name);
    let _ = writeln!(out, "optional  yes");
    out
}

fn rule_json(rule: &Rule) -> Value {
    let switch = format!("--disable-rule {}", rule.name);
    json!({ "rule": rule.name, "about": rule.about, "exact": rule.exact, "switch": switch })
}

fn list(manager: &Manager) -> String {
    let mut out = String::new();
    for s in explain::sections() {
        let _ = writeln!(out, "{}", s.title);
        for e in &s.entries {
            let _ = writeln!(out, "  {} {}", e.code, e.meaning);
        }
        out.push('\n');
    }
    out.push_str("Passes, in order\n");
    for pass in manager.passes() {
        let first = pass.about().split_once(". ").map_or(pass.about(), |(first, _)| first).trim_end_matches('.');
        let _ = writeln!(out, "  {:<15} {:<8} {first}", pass.name(), pass.effect().name());
    }
    out.push_str("\nFusion rules\n");
    for rule in fuse::rules() {
        let _ = writeln!(out, "  {:<32} {}", rule.name, rule.about);
    }
    out
}

fn list_json(manager: &Manager) -> Value {
    let codes: Vec<Value> = explain::sections().iter().flat_map(|s| s.entries.iter().map(|e| code_json(s, e))).collect();
    let passes: Vec<Value> = manager.passes().map(pass_json).collect();
    json!({ "codes": codes, "passes": passes, "rules": fuse::rules().iter().map(rule_json).collect::<Vec<_>>() })
}
