//! One command line option per registered pass: `--fuse off`, `--memory-plan off`, ... New passes appear by themselves.

use crate::options::PrefillPlan;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use passes::{Effect, Manager, Options};
use runtime::assembler::Cubins;
use runtime::device::LaunchMode;
use runtime::trace::Mode;
use std::collections::BTreeMap;

/// Passes that the command line switches, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches(pub BTreeMap<String, bool>);

/// Reads a switch value.
pub fn on_off(value: &str) -> Result<bool, String> {
    match value {
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err("a switch is on or off (also true, false, 1, 0)".into()),
    }
}

/// Reads the value of `--prefill-plan`: a switch, or `gpu`.
pub fn prefill_plan(value: &str) -> Result<PrefillPlan, String> {
    match PrefillPlan::parse(value) {
        Some(plan) => Ok(plan),
        None => match on_off(value) {
            Ok(on) => Ok(if on { PrefillPlan::On } else { PrefillPlan::Off }),
            Err(_) => Err("it is gpu, on or off (also true, false, 1, 0)".into()),
        },
    }
}

/// Reads the value of `--cubin`: a switch, or `auto`.
pub fn cubins(value: &str) -> Result<Cubins, String> {
    match Cubins::parse(value) {
        Some(c) => Ok(c),
        None => match on_off(value) {
            Ok(on) => Ok(if on { Cubins::On } else { Cubins::Off }),
            Err(_) => Err("it is auto, on or off (also true, false, 1, 0)".into()),
        },
    }
}

/// Reads the value of `--launch`.
pub fn launch_mode(value: &str) -> Result<LaunchMode, String> {
    LaunchMode::parse(value).ok_or_else(|| "it is stream or graph".into())
}

/// Reads the value of `--trace-mode`.
pub fn trace_mode(value: &str) -> Result<Mode, String> {
    Mode::parse(value).ok_or_else(|| "it is epilogue or separate".into())
}

fn register(mut command: Command) -> Command {
    for pass in Manager::default().passes() {
        let about = pass.about().split_once(". ").map_or(pass.about(), |(first, _)| first).trim_end_matches('.').to_string();
        let bits = if pass.effect() == Effect::Rounding { " (chooses the bits)" } else { "" };
        let needed = if pass.required(&Options::default()).is_some() { " (must be on)" } else { "" };
        let relaxed = passes::RELAXED.contains(&pass.name());
        let off = if relaxed {
            " (on at --determinism off)"
        } else if passes::OFF.contains(&pass.name()) {
            " (off unless asked for)"
        } else {
            ""
        };
        let help = format!("{about}{bits}{needed}{off}");
        let arg = Arg::new(pass.name())
            .long(pass.name())
            .value_name("on|off")
            .value_parser(on_off)
            .help(help)
            .help_heading("Passes, on by default");
        command = command.arg(arg);
    }
    command
}

impl Args for Switches {
    fn augment_args(command: Command) -> Command {
        register(command)
    }
    fn augment_args_for_update(command: Command) -> Command {
        register(command)
    }
}

impl FromArgMatches for Switches {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut out = Switches::default();
        out.update_from_arg_matches(matches)?;
        Ok(out)
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for pass in Manager::default().passes() {
            if let Some(on) = matches.get_one::<bool>(pass.name()) {
                self.0.insert(pass.name().into(), *on);
            }
        }
        Ok(())
    }
}
