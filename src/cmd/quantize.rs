//! `isobit quantize`: a checkpoint of bf16, f16 or f32 becomes a folder in MLX's affine layout.

use super::Stop;
use crate::args::{QuantizeArgs, RecipeArg};
use crate::files::{self, Pending};
use crate::printer::Printer;
use crate::source::Source;
use ir::diag::{Diagnostic, Result};
use models::quantize::{Options, Plan, Recipe, Report};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Files that go with the weights, copied as they are if they are there.
const COMPANIONS: [&str; 8] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
];

/// Runs it.
pub fn run(args: &QuantizeArgs, p: &mut Printer) -> Result<(), Stop> {
    let recipe = match args.recipe {
        RecipeArg::Mixed => Recipe::Mixed,
        RecipeArg::Uniform => Recipe::Uniform,
    };
    let o = Options { bits: args.bits, group: args.group, recipe, ..Options::default() };
    check_place(&args.output)?;
    let source = Source::of(&args.model);
    let ck = source.checkpoint()?;
    let plan = Plan::new(&ck, &o)?;
    let report = plan.report();
    for w in ck.warnings().iter().chain(&undivided(report)) {
        p.warning(w);
    }
    let folder = Pending::folder(&args.output)?;
    plan.write(folder.path(), &mut |what, done, of| p.progress(what, done, of)).map_err(|d| tidy(d, &folder, &args.output))?;
    let mut copied = vec![];
    if let Some(from) = source.folder() {
        for name in COMPANIONS {
            let path = from.join(name);
            if path.is_file() {
                let bytes = fs::read(&path).map_err(|e| files::failed("cannot be read", &path, &e))?;
                files::write(&folder.path().join(name), &bytes).map_err(|d| tidy(d, &folder, &args.output))?;
                copied.push(name);
            }
        }
    }
    check_place(&args.output)?; // again: time has passed
    folder.commit()?;
    if args.json {
        return p.line(&json(report, &args.output, &copied));
    }
    p.data(&table(report))?;
    p.message(&format!("wrote {}", args.output.display()));
    Ok(())
}

/// The folder that was being written has another name than the one asked for; a person knows only the latter.
fn tidy(mut d: Diagnostic, folder: &Pending, output: &Path) -> Diagnostic {
    d.place = d.place.replace(&folder.path().display().to_string(), &output.display().to_string());
    d
}

/// Only an empty folder is replaced: a model takes long to make and longer to download.
fn check_place(output: &Path) -> Result<()> {
    let empty = |dir: &Path| -> Result<bool> { Ok(!files::is_link(dir) && dir.is_dir() && files::list(dir)?.is_empty()) };
    if files::is_there(output) && !empty(output)? {
        return Err(Diagnostic::new("E0761", "this exists and is not an empty folder, so it is not replaced")
            .at(output.display())
            .hint("choose another name, or remove it first"));
    }
    // Told now rather than after the work.
    Pending::folder(output).map(|_| ())
}

fn undivided(r: &Report) -> Option<Diagnostic> {
    let first = r.undivided.first()?;
    let what =
        format!("{} modules stay as they are: a group of {} does not divide their input features", r.undivided.len(), r.group);
    Some(Diagnostic::new("E0774", what).at(first).hint("a smaller `--group` may divide them"))
}

fn json(r: &Report, output: &Path, copied: &[&str]) -> String {
    let mut value = serde_json::json!({"output": output.display().to_string(), "copied": copied});
    if let (Some(map), Ok(serde_json::Value::Object(more))) = (value.as_object_mut(), serde_json::to_value(r)) {
        map.extend(more);
    }
    value.to_string()
}

/// Bytes in decimal units, as disks are sold.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

fn table(r: &Report) -> String {
    let line = |name: &str, modules: usize, parameters: u64, before: u64, after: u64| {
        let bits = 8.0 * after as f64 / parameters.max(1) as f64;
        format!("{name:<24}{modules:>8}{parameters:>15}{:>11}{:>11}{bits:>13.3}\n", size(before), size(after))
    };
    let mut out =
        format!("{:<24}{:>8}{:>15}{:>11}{:>11}{:>13}\n", "format", "modules", "parameters", "before", "after", "bits/weight");
    let mut modules = 0;
    for f in &r.formats {
        modules += f.modules;
        let name = match (f.bits, f.group) {
            (Some(b), Some(g)) => format!("{b} bits, groups of {g}"),
            _ => f.dtype.to_lowercase(),
        };
        out.push_str(&line(&name, f.modules, f.parameters, f.bytes_before, f.bytes_after));
    }
    out.push_str(&line("all", modules, r.parameters, r.bytes_before, r.bytes_after));
    let mut skipped: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for s in &r.skipped {
        let entry = skipped.entry(&s.why).or_default();
        *entry = (entry.0 + 1, entry.1 + s.bytes);
    }
    for (why, (n, bytes)) in skipped {
        out.push_str(&format!("left out: {n} tensors, {} ({why})\n", size(bytes)));
    }
    out
}
