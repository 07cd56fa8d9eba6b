//! Options of a compilation: everything beside the checkpoint that decides what comes out.

use crate::target::{Class, Target};
use ir::diag::{Diagnostic, Result};
use ir::graph::op::EmbedMode;
use ir::plan::phases::Phases;
use passes::lower::schedule::Schedule;
use passes::{Level, Manager};
use runtime::assembler::Cubins;
use std::collections::BTreeMap;

/// The passes that `--fusion` switches together.
pub const FUSING: [&str; 3] = ["fuse", "recompute-rows", "merge-launches"];

/// Options of a compilation.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// What code is made for; may be empty, then only plans are made.
    pub targets: Vec<Target>,
    /// How the embedding row enters the residual stream.
    pub embed: EmbedMode,
    /// For which targets to make a plan for chunks of many tokens; others run the plan for one.
    pub prefill: PrefillPlan,
    /// Is there to be machine code for GPUs? It is the same program without.
    pub cubins: Cubins,
    /// Free schedules in place of the targets' own; the last of a kind counts.
    pub schedules: Vec<Scheduled>,
    /// Options of the passes.
    pub passes: passes::Options,
    /// Hashes of edited dumps that the program is compiled from, by path.
    pub edited: BTreeMap<String, String>,
}

/// A free schedule, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Of these targets.
    pub class: Class,
    /// For chunks of many tokens.
    pub prefill: bool,
    /// The schedule.
    pub schedule: Schedule,
}

impl Scheduled {
    /// Reads `gpu=4/4/...` or `gpu-prefill=4/4/...`.
    pub fn parse(text: &str) -> std::result::Result<Scheduled, String> {
        let (kind, numbers) = text.split_once('=').ok_or("expected KIND=NUMBERS")?;
        let (class, prefill) = kind.strip_suffix("-prefill").map_or((kind, false), |c| (c, true));
        let class = Class::ALL.into_iter().find(|c| c.name() == class);
        let class = class.ok_or("the kind is host, host-prefill, gpu or gpu-prefill")?;
        let schedule = Schedule::parse(numbers).ok_or("no such schedule: `isobit inspect` prints that of an artifact")?;
        Ok(Scheduled { class, prefill, schedule })
    }

    /// What it is for, as on the command line.
    pub fn kind(&self) -> String {
        format!("{}{}", self.class.name(), if self.prefill { "-prefill" } else { "" })
    }
}

/// Which targets get a plan of their own for chunks of many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillPlan {
    /// All.
    On,
    /// None.
    Off,
    /// GPUs. On a processor the plan for one token is as fast: weights stay in its caches.
    #[default]
    Gpu,
}

impl PrefillPlan {
    /// All of them.
    pub const ALL: [PrefillPlan; 3] = [PrefillPlan::On, PrefillPlan::Off, PrefillPlan::Gpu];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PrefillPlan::On => "on",
            PrefillPlan::Off => "off",
            PrefillPlan::Gpu => "gpu",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<PrefillPlan> {
        PrefillPlan::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Do targets of this class get one?
    pub fn wanted(self, class: Class) -> bool {
        self == PrefillPlan::On || self == PrefillPlan::Gpu && class == Class::Gpu
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            targets: vec![],
            embed: EmbedMode::Factor,
            prefill: PrefillPlan::default(),
            cubins: Cubins::default(),
            schedules: vec![],
            passes: passes::Options::default(),
            edited: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// Refuses what is not built yet.
    pub fn check(&self) -> Result<()> {
        let level = self.passes.determinism;
        if level == Level::Run {
            return Err(Diagnostic::new("E0752", format!("determinism `{}` is not built yet", level.name()))
                .at("--determinism")
                .hint("leave it at `portable`, which keeps the strongest promise; `off` promises nothing"));
        }
        Ok(())
    }

    /// Every pass with its effective switch, by name.
    pub fn switches(&self) -> BTreeMap<String, bool> {
        Manager::default().passes().map(|p| (p.name().to_string(), self.passes.is_on(p.name()))).collect()
    }

    /// The free schedule of a class of targets, for one token or for chunks of many.
    pub fn schedule(&self, class: Class, prefill: bool) -> Schedule {
        let given = self.schedules.iter().rev().find(|s| s.class == class && s.prefill == prefill);
        given.map_or(class.schedule(prefill), |s| s.schedule)
    }

    /// Those of a program for this class, as text.
    pub fn schedules_of(&self, class: Class, plans: &Phases) -> (String, Option<String>) {
        let text = |prefill| self.schedule(class, prefill).to_string();
        (text(false), plans.prefill.as_ref().map(|_| text(true)))
    }

    /// Switches all fusing passes together.
    pub fn set_fusion(&mut self, on: bool) {
        for pass in FUSING {
            self.passes.switches.insert(pass.into(), on);
        }
    }

    /// All of it but the targets and machine code as one line, the same for the same program.
    pub fn text(&self) -> String {
        let mut passes = self.passes.clone();
        let level = passes.determinism;
        passes.switches.retain(|name, on| *on != passes::on_by_default(name, level)); // The others are what passes are.
        let schedules: String = self.schedules.iter().map(|s| format!(" {}={}", s.kind(), s.schedule)).collect();
        format!("embed={} prefill-plan={} {passes}{schedules}", embed_name(self.embed), self.prefill.name())
    }
}

/// Embedding modes and their names.
pub const EMBED: [(EmbedMode, &str); 3] = [(EmbedMode::Factor, "factor"), (EmbedMode::Exact, "exact"), (EmbedMode::Bf16, "bf16")];

/// The name of an embedding mode.
pub fn embed_name(mode: EmbedMode) -> &'static str {
    EMBED.iter().find(|(m, _)| *m == mode).map_or("factor", |(_, n)| n)
}

/// The embedding mode of this name.
pub fn embed_mode(name: &str) -> Option<EmbedMode> {
    EMBED.iter().find(|(_, n)| *n == name).map(|(m, _)| *m)
}
