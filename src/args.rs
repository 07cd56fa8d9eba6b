//! The command line as types. No logic.

use crate::gpu::Choice;
use crate::options::PrefillPlan;
use crate::switches::{Switches, cubins, launch_mode, on_off, prefill_plan};
use clap::{Args, Parser, Subcommand, ValueEnum};
use runtime::assembler::Cubins;
use runtime::device::LaunchMode;
use std::ffi::OsString;
use std::path::PathBuf;

/// Compiles Gemma 4 to kernels whose results are the same bits everywhere, and runs them.
#[derive(Debug, Parser)]
#[command(name = "isobit", version, about, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Example:\n  isobit run 'Write a paragraph about the history of tea.'")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compile a checkpoint to an artifact
    Compile(CompileArgs),
    /// Run a model: a prompt, or a conversation line by line
    Run(RunArgs),
    /// Print what the compiler makes of a model
    Dump(DumpArgs),
    /// Say whether a program can give other bits, and where
    Audit(AuditArgs),
    /// Print the token ids of a text, or the text of token ids
    Tokenize(TokenizeArgs),
    /// Make a quantized checkpoint (MLX affine) of a Hugging Face one
    Quantize(QuantizeArgs),
    /// Run passes over a graph in text form
    Opt(OptArgs),
    /// Show what a model or an artifact holds and takes
    Inspect(InspectArgs),
    /// Print the effective options of a compilation, and where each comes from
    Options(OptionsArgs),
    /// Explain a diagnostic code, a pass or a fusion rule
    Explain(ExplainArgs),
    /// Check what this machine can compile and run
    Doctor(DoctorArgs),
}

/// `random:SEED`
fn random_seed(text: &str) -> Result<u64, String> {
    let seed = text.strip_prefix("random:").ok_or("expected `random:SEED`")?;
    seed.parse().map_err(|_| format!("`{seed}` is not a number from 0 to {}", u64::MAX))
}

/// Options that decide what is compiled.
#[derive(Clone, Debug, Default, Args)]
pub struct BuildArgs {
    /// Take the numbers that a seed makes instead of the tensors of the checkpoint, which needs only a config.json
    #[arg(long, value_name = "random:SEED", value_parser = random_seed, help_heading = "Compilation")]
    pub weights: Option<u64>,
    /// How the embedding is rounded: as trained (factor), not at all (exact), or as other programs do (bf16)
    #[arg(long, value_name = "MODE", value_parser = ["factor", "exact", "bf16"], help_heading = "Compilation")]
    pub embed: Option<String>,
    /// Make a plan of its own for chunks of many tokens: for GPUs only (gpu), for all targets or for none
    #[arg(long, value_name = "on|off|gpu", value_parser = prefill_plan, help_heading = "Compilation")]
    pub prefill_plan: Option<PrefillPlan>,
    /// Have machine code for GPUs beside PTX: if an assembler is found (auto), always (on) or never (off); in a run also whether it is taken
    #[arg(long, value_name = "auto|on|off", value_parser = cubins, help_heading = "Compilation")]
    pub cubin: Option<Cubins>,
    /// What passes are asked for.
    #[command(flatten)]
    pub passes: PassArgs,
}

/// Options that passes read.
#[derive(Clone, Debug, Default, Args)]
pub struct PassArgs {
    /// The promise to keep: off, run or portable (the default, and the only one built yet)
    #[arg(long, value_name = "LEVEL", help_heading = "Compilation")]
    pub determinism: Option<String>,
    /// Switch all fusing passes together
    #[arg(long, value_name = "on|off", value_parser = on_off, help_heading = "Compilation")]
    pub fusion: Option<bool>,
    /// Do not use this fusion rule (may be repeated)
    #[arg(long, value_name = "NAME", help_heading = "Compilation")]
    pub disable_rule: Vec<String>,
    /// Take only the first N optional decisions of the passes
    #[arg(long, value_name = "N", help_heading = "Compilation")]
    pub pass_limit: Option<u64>,
    /// Keep values with these names in memory to the end of a step; `*` is any text (may be repeated)
    #[arg(long, value_name = "GLOB", help_heading = "Compilation")]
    pub keep: Vec<String>,
    /// Switches of passes.
    #[command(flatten)]
    pub switches: Switches,
}

/// `isobit compile`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  isobit compile demo -o demo.isobit --target host,sm_121\n  isobit compile demo --stats --fuse off"
)]
pub struct CompileArgs {
    /// Checkpoint folder, or `demo`
    pub model: OsString,
    /// The artifact to write; without it nothing is written and no code is made
    #[arg(short, long, value_name = "NAME.isobit")]
    pub output: Option<PathBuf>,
    /// Targets, separated by commas: host, x86-64-v3, x86-64-v4, x86-64-v4+vnni, aarch64, aarch64+dotprod, aarch64+i8mm, sm_90, sm_121
    #[arg(long, value_name = "LIST", default_value = "host")]
    pub target: String,
    /// Print kernels per token, memory and switches, with fusion on and off
    #[arg(long, help_heading = "Looking on")]
    pub stats: bool,
    /// Write the module after each pass that changed it to this folder
    #[arg(long, value_name = "DIR", help_heading = "Looking on")]
    pub dump_dir: Option<PathBuf>,
    /// Print the module after this pass
    #[arg(long, value_name = "PASS", help_heading = "Looking on")]
    pub print_ir_after: Option<String>,
    /// Go on from a folder that `--dump-dir` wrote and a person edited: the passes run on from the file that differs
    #[arg(long, value_name = "DIR", requires = "output", conflicts_with_all = ["dump_dir", "print_ir_after", "stats"])]
    pub from_ir: Option<PathBuf>,
    /// Print the time of each step to standard error
    #[arg(long, help_heading = "Looking on")]
    pub time_passes: bool,
    /// Print every option and switch in effect, and where it comes from
    #[arg(long, help_heading = "Looking on")]
    pub print_options: bool,
    /// If a pass fails, write what makes it fail again to this file (for `isobit opt`)
    #[arg(long, value_name = "FILE", help_heading = "Looking on")]
    pub reproducer: Option<PathBuf>,
    /// What is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `isobit run`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  isobit run 'Write a paragraph about the history of tea.'\n  isobit run demo.isobit --raw -n 40 'The sea was'\n  printf 'Hello!\\nWho are you?\\n' | isobit run demo --json\n  isobit run demo --batch prompts.txt --slots 64"
)]
pub struct RunArgs {
    /// Checkpoint folder, artifact or `demo`. What is no path is the prompt, for the demo model
    #[arg(value_name = "MODEL|ARTIFACT")]
    pub model: Option<OsString>,
    /// The prompt. Without one, each line of standard input is a turn of a conversation; a line `/bye` ends it
    pub prompt: Option<OsString>,
    /// Continue the text as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Give the prompt as token ids
    #[arg(long, value_name = "2,17,4", conflicts_with_all = ["raw", "system", "thinking", "special"])]
    pub ids: Option<String>,
    /// Run the prompts of a file together, one a line (`-` is standard input; blank lines are none). For each, a line says its
    /// number, a tab and the text, where ends of lines, tabs and backslashes are written \n, \t and \\
    #[arg(long, value_name = "FILE")]
    pub batch: Option<OsString>,
    /// Most tokens to generate for a turn [default: 256; with --check 4]
    #[arg(short, value_name = "N")]
    pub n: Option<usize>,
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Let the model think first, and show it
    #[arg(long, conflicts_with = "raw")]
    pub thinking: bool,
    /// Special tokens that are spelled out in prompts are meant as such
    #[arg(long)]
    pub special: bool,
    /// Generate N tokens, whatever the model says
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print one JSON object a turn, or a line of `--batch`: ids, text, why it ended, times
    #[arg(long)]
    pub json: bool,
    /// Print every option and switch in effect to standard error, and where it comes from
    #[arg(long)]
    pub print_options: bool,
    /// Write the logits of every token that was run, and the ids, to this safetensors file (one prompt only)
    #[arg(long, value_name = "FILE")]
    pub logits: Option<PathBuf>,
    /// Run in the interpreter of kernels and look for faults: races, init, order, parity, or all. With --target of the kernels of
    /// that target, which need not be this machine's
    #[arg(long, value_name = "LIST", conflicts_with_all = ["batch", "logits", "launch", "print_options"], help_heading = "Execution")]
    pub check: Option<String>,
    /// Tokens of a prompt that are computed together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65535), help_heading = "Execution")]
    pub prefill_chunk: Option<u32>,
    /// Prompts of `--batch` that run together, 1 to 64 [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), requires = "batch", help_heading = "Execution")]
    pub slots: Option<u32>,
    /// Threads of the CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Execution")]
    pub threads: Option<u32>,
    /// Positions to make room for, in each of the slots of `--batch`
    #[arg(long, value_name = "N", help_heading = "Execution")]
    pub context: Option<usize>,
    /// Run on the processor (cpu), on a GPU, or on a GPU if there is one that can (auto)
    #[arg(long, value_name = "cpu|cuda[:N]|auto", value_parser = Choice::parse, default_value = "auto", help_heading = "Execution")]
    pub device: Choice,
    /// Give a GPU its launches one by one (stream) or as a captured graph [default: graph]
    #[arg(long, value_name = "stream|graph", value_parser = launch_mode, help_heading = "Execution")]
    pub launch: Option<LaunchMode>,
    /// Run the program of this target, or `interp`: the reference interpreter (slow)
    #[arg(long, value_name = "TARGET", help_heading = "Execution")]
    pub target: Option<String>,
    /// Compile anew, and keep nothing
    #[arg(long, help_heading = "Execution", conflicts_with = "cache_dir")]
    pub no_cache: bool,
    /// Keep compiled models in this folder
    #[arg(long, value_name = "DIR", help_heading = "Execution")]
    pub cache_dir: Option<PathBuf>,
    /// What is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

impl RunArgs {
    /// Most tokens to generate for a turn.
    pub fn most(&self) -> usize {
        self.n.unwrap_or(256)
    }
}

/// What `isobit dump` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// The tensor graph
    Graph,
    /// Launches, buffers and weights
    Plan,
    /// The kernels
    Kernels,
    /// Host assembly
    Asm,
    /// PTX
    Ptx,
    /// LLVM IR
    Llvm,
}

/// `isobit dump`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  isobit dump demo --after fuse\n  isobit dump demo --what ptx --target sm_121")]
pub struct DumpArgs {
    /// Checkpoint folder, or `demo`
    pub model: OsString,
    /// Print the module as it is after this pass
    #[arg(long, value_name = "PASS", conflicts_with = "what")]
    pub after: Option<String>,
    /// What to print: graph, plan, kernels, asm (of host targets), ptx (of sm_90 and sm_121), llvm
    #[arg(long, value_enum, default_value = "graph", hide_possible_values = true)]
    pub what: What,
    /// For which target
    #[arg(long, value_name = "TARGET", default_value = "host")]
    pub target: String,
    /// Of which plan: for one token (decode), or for chunks of many (prefill)
    #[arg(long, value_enum, value_name = "PHASE", default_value = "decode", hide_possible_values = true)]
    pub phase: Phase,
    /// What is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `isobit audit`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if the promise holds, 1 if it does not, 2 if something could not be looked at.\n\nExamples:\n  isobit audit demo\n  isobit audit demo.isobit --only 'layers.0.*'\n  isobit audit demo --target sm_121 --json\n  isobit audit kernel.ptx"
)]
pub struct AuditArgs {
    /// Checkpoint folder, artifact or `demo`; or code: a file of PTX (.ptx, its kernel beside it as .kir) or assembly (.s)
    #[arg(value_name = "MODEL|ARTIFACT|FILE")]
    pub model: OsString,
    /// The level whose promise is judged: off, run or portable [default: the one it was compiled for]
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<String>,
    /// Targets, separated by commas [default: all of an artifact, else host]
    #[arg(long, value_name = "LIST")]
    pub target: Option<String>,
    /// Show every reduction, kernel and writer, and the reasons
    #[arg(short, long)]
    pub verbose: bool,
    /// Show those with names like this; `*` is any text
    #[arg(long, value_name = "GLOB")]
    pub only: Option<String>,
    /// Print the audit as JSON: all of it
    #[arg(long, conflicts_with_all = ["verbose", "only"])]
    pub json: bool,
    /// What is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Plans of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// For one token at a time
    Decode,
    /// For chunks of many tokens
    Prefill,
}

/// `isobit tokenize`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  isobit tokenize 'The history of tea'\n  isobit tokenize demo --chat --system 'Be brief.' Hello\n  isobit tokenize demo --ids 2,105,911 --json\n  isobit run demo --ids \"$(isobit tokenize demo --chat Hello)\""
)]
pub struct TokenizeArgs {
    /// Checkpoint folder, artifact or `demo`. What is no path is the text, for the demo model
    #[arg(value_name = "MODEL|ARTIFACT")]
    pub model: Option<OsString>,
    /// The text. Without one, all of standard input
    pub text: Option<OsString>,
    /// Print the text of these token ids
    #[arg(long, value_name = "2,17,4", conflicts_with_all = ["chat", "special"])]
    pub ids: Option<String>,
    /// Make the text the first turn of a conversation, by the chat template
    #[arg(long)]
    pub chat: bool,
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Let the model think first
    #[arg(long, requires = "chat")]
    pub thinking: bool,
    /// Special tokens that are spelled out are meant as such
    #[arg(long)]
    pub special: bool,
    /// Print one JSON object: ids, how they are written in the vocabulary, what they decode to
    #[arg(long)]
    pub json: bool,
}

/// Which modules get how many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecipeArg {
    /// Router and dense MLP at 8 bits, as in the published 4-bit models
    Mixed,
    /// All alike but the router, as mlx-lm does it
    Uniform,
}

/// `isobit quantize`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  isobit quantize gemma-4-26b-a4b-it -o gemma-4-26b-4bit --bits 4 --group 64")]
pub struct QuantizeArgs {
    /// Checkpoint folder: Hugging Face, of bf16, f16 or f32
    pub model: OsString,
    /// The folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Bits of a code: 2, 3, 4, 5, 6 or 8
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub bits: u32,
    /// Weights that share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub group: usize,
    /// Which modules get more bits
    #[arg(long, value_enum, default_value = "mixed")]
    pub recipe: RecipeArg,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `isobit opt`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  isobit dump demo --after fold | isobit opt - --passes cse,dce\n  isobit opt reproducer.txt\n  isobit opt edited.graph --passes 'fuse,merge-launches(max=2),weight-layout,lower,memory-plan' --json -o out.plan"
)]
pub struct OptArgs {
    /// A graph in text form, or a reproducer; `-` is standard input. Without passes also a plan or kernels
    pub file: OsString,
    /// Passes in order, separated by commas, with arguments in parentheses; '' only reads and verifies. A reproducer brings its own
    #[arg(long, value_name = "LIST")]
    pub passes: Option<String>,
    /// Verify after every pass that changed something, not only the input and the result
    #[arg(long)]
    pub verify_each: bool,
    /// Print the module after this pass instead of at the end (may be repeated)
    #[arg(long, value_name = "PASS")]
    pub after: Vec<String>,
    /// Write the result to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// If a pass fails, write what makes it fail again to this file
    #[arg(long, value_name = "FILE")]
    pub reproducer: Option<PathBuf>,
    /// Print one JSON object instead of the result: what each pass did, and the numbered decisions
    #[arg(long, conflicts_with = "after")]
    pub json: bool,
    /// For which target `weight-layout` and `lower` choose a schedule [default: host]
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// What passes are asked for.
    #[command(flatten)]
    pub build: PassArgs,
}

/// `isobit inspect`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  isobit inspect demo --context 4096\n  isobit inspect demo.isobit --json")]
pub struct InspectArgs {
    /// Checkpoint folder, artifact or `demo`
    #[arg(value_name = "MODEL|ARTIFACT")]
    pub model: OsString,
    /// Take the numbers that a seed makes instead of the tensors of the checkpoint, which needs only a config.json
    #[arg(long, value_name = "random:SEED", value_parser = random_seed)]
    pub weights: Option<u64>,
    /// Positions to state the memory for [default: 4096, or the model's limit]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `isobit options`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  isobit options\n  isobit options --fusion off --merge-launches on --json")]
pub struct OptionsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// What is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `isobit explain`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  isobit explain E0228\n  isobit explain pin-reductions\n  isobit explain")]
pub struct ExplainArgs {
    /// What to explain; without it, everything that can be explained is listed
    #[arg(value_name = "CODE|PASS|RULE")]
    pub what: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `isobit doctor`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  isobit doctor")]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
