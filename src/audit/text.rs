//! The audit for people: a summary first, details where they are asked for.

use super::kernels::{KernelAudit, Verdict};
use super::reductions::{Pinned, Reduction};
use super::{Audit, PlanAudit};
use passes::Level;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What of the details is shown.
#[derive(Clone, Debug, Default)]
pub struct Show {
    /// All.
    pub verbose: bool,
    /// Values and kernels with names like this; `*` is any text.
    pub only: Option<String>,
}

impl Show {
    fn wants(&self, name: &str) -> bool {
        match &self.only {
            Some(glob) => passes::Options { keep: [glob.clone()].into(), ..passes::Options::default() }.keeps(name),
            None => self.verbose,
        }
    }
}

/// The report on a program, judged at a level.
pub fn text(a: &Audit, level: Level, show: &Show) -> String {
    let mut out = String::new();
    let broken: Vec<_> = a.broken(level).collect();
    let verdict = match (level, broken.len()) {
        (Level::Off, _) => "promises nothing".to_string(),
        (_, 0) => "holds".into(),
        (_, n) => format!("does not hold: {}", plural(n, "finding")),
    };
    let _ = writeln!(out, "{} {verdict}; numerics {}", level.name(), &a.numerics[..16]);
    for f in &broken {
        let _ = writeln!(out, "  {} {}: {}", f.kind.code(), f.place, f.what);
    }
    let off: Vec<&str> = a.options.switches.iter().filter(|(_, on)| !**on).map(|(n, _)| n.as_str()).collect();
    let off = if off.is_empty() { "all on".into() } else { format!("off: {}", off.join(", ")) };
    let _ = writeln!(out, "passes: {off}; determinism {}", a.options.determinism);
    if !a.options.edited.is_empty() {
        let files: Vec<&str> = a.options.edited.keys().map(String::as_str).collect();
        let _ = writeln!(
            out,
            "edited by a person: {}; whether kernels compute what the graph says is seen by `isobit run --check parity`",
            files.join(", ")
        );
    }
    let mut by: BTreeMap<Pinned, usize> = BTreeMap::new();
    a.reductions.iter().for_each(|r| *by.entry(r.pinned_by).or_default() += 1);
    let by: Vec<String> = by.iter().map(|(p, n)| format!("{n} by {}", p.name()).replace("by order-free", "order-free")).collect();
    let _ = writeln!(out, "reductions: {}; fixed: {}", a.reductions.len(), by.join(", "));
    let wanted: Vec<&Reduction> = a.reductions.iter().filter(|r| show.wants(&r.value)).collect();
    for r in wanted {
        let _ = writeln!(out, "  {} = {} over {}: {}, fixed by {}", r.value, r.op, r.over, r.order, r.pinned_by.name());
    }
    for p in &a.programs {
        let _ = writeln!(out, "\n{}", p.target);
        plan(&mut out, "decode", &p.decode, show);
        if let Some(many) = &p.prefill {
            plan(&mut out, "prefill", many, show);
        }
        let c = &p.code;
        if c.form != "none" {
            let sum = |f: fn(&super::code::Held) -> u32| c.kernels.values().map(f).sum::<u32>();
            let unit = if c.form == "ptx" { "instructions" } else { "results" };
            let _ = writeln!(
                out,
                "  {}: {} instructions of {}, {} that do not belong there; float {unit}: {} fma, {} mul, {} add",
                c.form,
                c.instructions(),
                plural(c.kernels.len(), "kernel"),
                c.findings.len(),
                sum(|h| h.fma),
                sum(|h| h.mul),
                sum(|h| h.add),
            );
        }
        let _ = writeln!(out, "  what depends on the number of tokens, and no bit does:");
        for c in &p.choices {
            let _ = writeln!(out, "    {} ({})", c.what, plural(c.launches, "launch"));
            if show.verbose {
                let _ = writeln!(out, "      because {}", c.because);
            }
        }
    }
    out
}

fn plural(n: usize, what: &str) -> String {
    let end = if what.ends_with("ch") { "es" } else { "s" };
    format!("{n} {what}{}", if n == 1 { "" } else { end })
}

fn plan(out: &mut String, phase: &str, p: &PlanAudit, show: &Show) {
    let count = |f: fn(&KernelAudit) -> &Verdict, v: fn(&Verdict) -> bool| p.kernels.iter().filter(|k| v(f(k))).count();
    let with_shared = p.kernels.iter().filter(|k| !k.phases.is_empty()).count();
    let barriers: usize = p.kernels.iter().map(|k| k.barriers).sum();
    let pipelines: usize = p.kernels.iter().map(|k| k.pipelines.len()).sum();
    let _ = writeln!(
        out,
        "  {phase}: {} of {}, {} values and caches with one writer each",
        plural(p.launches, "launch"),
        plural(p.kernels.len(), "kernel"),
        p.writers.len()
    );
    let split = |f: fn(&KernelAudit) -> &Verdict| {
        let (proved, depends) = (count(f, |v| *v == Verdict::Proved), count(f, |v| matches!(v, Verdict::DependsOn(_))));
        let broken = p.kernels.len() - proved - depends;
        let mut text = format!("proved for {proved}");
        if depends > 0 {
            text += &format!(", for {depends} it depends on data");
        }
        if broken > 0 {
            text += &format!(", broken in {broken}");
        }
        text
    };
    let _ = writeln!(out, "    one writer of each location: {}", split(|k| &k.writers));
    let _ = writeln!(
        out,
        "    barriers part what they must: {} ({} with shared memory, {}, {}, all drained)",
        split(|k| &k.shared),
        plural(with_shared, "kernel"),
        plural(barriers, "barrier"),
        plural(pipelines, "pipeline"),
    );
    for k in p.kernels.iter().filter(|k| show.wants(&k.name)) {
        let _ = writeln!(out, "    kernel {}: {}, {}", k.name, plural(k.launches, "launch"), plural(k.warps as usize, "warp"));
        let _ = writeln!(out, "      writers: {}", k.writers.text());
        let _ = writeln!(out, "      shared: {}", k.shared.text());
        for (i, phase) in k.phases.iter().enumerate() {
            let _ = writeln!(out, "      phase {i}: {}", if phase.is_empty() { "nothing shared" } else { phase });
        }
        for x in &k.pipelines {
            let _ = writeln!(
                out,
                "      pipeline: {} stages, {} an iteration, drained at its end",
                x.stages,
                plural(x.copies, "copy").replace("copys", "copies")
            );
        }
    }
    for (value, launch) in p.writers.iter().filter(|(v, _)| show.wants(v)) {
        let _ = writeln!(out, "    {value}: written by {launch}");
    }
}
