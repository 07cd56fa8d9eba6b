//! What two configurations differ in, option by option, each with a name as on the command line, so that a part of the
//! differences can be tried alone.

use crate::args::ExecArgs;
use crate::options::{CompileOptions, Scheduled, embed_name};
use passes::Manager;
use std::collections::BTreeSet;

/// A configuration: how it is run, and what is compiled. The second is what counts of the compilation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Options of execution.
    pub exec: ExecArgs,
    /// Options of compilation.
    pub options: CompileOptions,
}

/// One option in which B is not A.
pub struct Delta {
    /// As it would stand on the command line of B.
    pub name: String,
    set: Box<dyn Fn(&mut Setup)>,
}

impl Delta {
    /// Makes the option that of B.
    pub fn apply(&self, to: &mut Setup) {
        (self.set)(to);
    }
}

fn on(is: bool) -> &'static str {
    if is { "on" } else { "off" }
}

/// All differences, in a fixed order.
pub fn deltas(a: &Setup, b: &Setup) -> Vec<Delta> {
    let mut out: Vec<Delta> = vec![];
    let mut add = |name: String, set: Box<dyn Fn(&mut Setup)>| out.push(Delta { name, set });
    let (p, q) = (&a.options, &b.options);
    if p.passes.determinism != q.passes.determinism {
        let level = q.passes.determinism;
        add(format!("--determinism {}", level.name()), Box::new(move |s| s.options.passes.determinism = level));
    }
    if p.embed != q.embed {
        let mode = q.embed;
        add(format!("--embed {}", embed_name(mode)), Box::new(move |s| s.options.embed = mode));
    }
    for pass in Manager::default().passes() {
        let (name, is) = (pass.name(), q.passes.is_on(pass.name()));
        if p.passes.is_on(name) != is {
            add(format!("--{name} {}", on(is)), Box::new(move |s| _ = s.options.passes.switches.insert(name.into(), is)));
        }
    }
    let of = |x: &BTreeSet<String>, y: &BTreeSet<String>| x.difference(y).cloned().collect::<Vec<_>>();
    for rule in of(&q.passes.rules_off, &p.passes.rules_off) {
        add(format!("--disable-rule {rule}"), Box::new(move |s| _ = s.options.passes.rules_off.insert(rule.clone())));
    }
    for rule in of(&p.passes.rules_off, &q.passes.rules_off) {
        add(format!("no --disable-rule {rule}"), Box::new(move |s| _ = s.options.passes.rules_off.remove(&rule)));
    }
    for keep in of(&q.passes.keep, &p.passes.keep) {
        add(format!("--keep {keep}"), Box::new(move |s| _ = s.options.passes.keep.insert(keep.clone())));
    }
    for keep in of(&p.passes.keep, &q.passes.keep) {
        add(format!("no --keep {keep}"), Box::new(move |s| _ = s.options.passes.keep.remove(&keep)));
    }
    if p.passes.pass_limit != q.passes.pass_limit {
        let limit = q.passes.pass_limit;
        let name = limit.map_or("no --pass-limit".into(), |n| format!("--pass-limit {n}"));
        add(name, Box::new(move |s| s.options.passes.pass_limit = limit));
    }
    if p.prefill != q.prefill {
        let prefill = q.prefill;
        add(format!("--prefill-plan {}", prefill.name()), Box::new(move |s| s.options.prefill = prefill));
    }
    if p.cubins != q.cubins {
        let (cubins, exec) = (q.cubins, b.exec.build.cubin);
        let set = move |s: &mut Setup| (s.options.cubins, s.exec.build.cubin) = (cubins, exec);
        add(format!("--cubin {}", cubins.name()), Box::new(set));
    }
    let all =
        |o: &CompileOptions| o.schedules.iter().map(|s| format!(" --schedule {}={}", s.kind(), s.schedule)).collect::<String>();
    if all(p) != all(q) {
        let schedules: Vec<Scheduled> = q.schedules.clone();
        let name = if schedules.is_empty() { "no --schedule".into() } else { all(q).trim_start().to_string() };
        add(name, Box::new(move |s| s.options.schedules = schedules.clone()));
    }
    let (x, y) = (&a.exec, &b.exec);
    // Together: a target of a GPU does not run on a processor.
    if (&x.target, x.device) != (&y.target, y.device) {
        let (target, device) = (y.target.clone(), y.device);
        let name = match &target {
            Some(t) => format!("--target {t}"),
            None => format!("--device {}", device.name()),
        };
        let (launch, targets) = (y.launch, q.targets.clone());
        let set = move |s: &mut Setup| {
            (s.exec.target, s.exec.device, s.options.targets) = (target.clone(), device, targets.clone());
            if device == crate::gpu::Choice::Cpu {
                s.exec.launch = launch;
            }
        };
        add(name, Box::new(set));
    }
    if x.launch != y.launch {
        let launch = y.launch;
        let name = launch.map_or("no --launch".into(), |l| format!("--launch {}", l.name()));
        add(name, Box::new(move |s| s.exec.launch = launch));
    }
    let count = |flag: &str, n: Option<u64>| n.map_or(format!("no {flag}"), |n| format!("{flag} {n}"));
    if x.prefill_chunk != y.prefill_chunk {
        let n = y.prefill_chunk;
        add(count("--prefill-chunk", n.map(u64::from)), Box::new(move |s| s.exec.prefill_chunk = n));
    }
    if x.threads != y.threads {
        let n = y.threads;
        add(count("--threads", n.map(u64::from)), Box::new(move |s| s.exec.threads = n));
    }
    if x.context != y.context {
        let n = y.context;
        add(count("--context", n.map(|n| n as u64)), Box::new(move |s| s.exec.context = n));
    }
    if x.poison != y.poison {
        let is = y.poison;
        add(if is { "--poison".into() } else { "no --poison".into() }, Box::new(move |s| s.exec.poison = is));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::graph::op::EmbedMode;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        exec: ExecArgs,
    }

    fn setup(words: &[&str]) -> Setup {
        let exec = <Flags as clap::Parser>::parse_from([&["x"], words].concat()).exec;
        let mut options = CompileOptions::default();
        if exec.build.embed.as_deref() == Some("bf16") {
            options.embed = EmbedMode::Bf16;
        }
        options.passes.switches = exec.build.passes.switches.0.clone();
        options.passes.rules_off.extend(exec.build.passes.disable_rule.iter().cloned());
        Setup { exec, options }
    }

    #[test]
    fn all_together_make_b_of_a() {
        let a = setup(&["--disable-rule", "old", "--threads", "2", "--fuse", "on"]);
        let words = ["--embed", "bf16", "--fuse", "off", "--disable-rule", "new", "--prefill-chunk", "3", "--poison"];
        let b = setup(&words);
        let all = deltas(&a, &b);
        let names: Vec<&str> = all.iter().map(|d| d.name.as_str()).collect();
        let want =
            "--embed bf16; --fuse off; --disable-rule new; no --disable-rule old; --prefill-chunk 3; no --threads; --poison";
        assert_eq!(names.join("; "), want);
        let mut c = a.clone();
        all.iter().for_each(|d| d.apply(&mut c));
        assert!(deltas(&c, &b).is_empty() && deltas(&a, &a).is_empty());
    }
}
