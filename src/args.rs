//! The command line as types. No logic.

use crate::gap::replace::Override;
use crate::gpu::Choice;
use crate::options::PrefillPlan;
use crate::options::Scheduled;
use crate::switches::{Switches, cubins, launch_mode, on_off, prefill_plan, trace_mode};
use clap::{Args, Parser, Subcommand, ValueEnum};
use runtime::assembler::Cubins;
use runtime::device::LaunchMode;
use runtime::trace::Mode;
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
    /// Measure speed, with the digests of what was computed
    Bench(BenchArgs),
    /// Say where two runs or two programs differ first
    Diff(DiffArgs),
    /// Run two configurations and say which value, and which option, makes their logits differ
    Bisect(BisectArgs),
    /// Run the tokens of a trace again and compare the digests
    Verify(VerifyArgs),
    /// Show how near the ties of a generation are, by float64 too, and how little noise flips them
    Gap(GapArgs),
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
    /// Keep activations in f32, or, for experiments, round them between kernels as other programs do (bf16)
    #[arg(long, value_name = "f32|bf16", value_parser = ["f32", "bf16"], help_heading = "Compilation")]
    pub activations: Option<String>,
    /// Make a plan of its own for chunks of many tokens: for GPUs only (gpu), for all targets or for none
    #[arg(long, value_name = "on|off|gpu", value_parser = prefill_plan, help_heading = "Compilation")]
    pub prefill_plan: Option<PrefillPlan>,
    /// Have machine code for GPUs beside PTX: if an assembler is found (auto), always (on) or never (off); in a run also whether it is taken
    #[arg(long, value_name = "auto|on|off", value_parser = cubins, help_heading = "Compilation")]
    pub cubin: Option<Cubins>,
    /// Spread work like this, in numbers as `isobit inspect` prints them: no schedule changes a bit. KIND is host, host-prefill,
    /// gpu or gpu-prefill (may be repeated)
    #[arg(long, value_name = "KIND=NUMBERS", value_parser = Scheduled::parse, help_heading = "Compilation")]
    pub schedule: Vec<Scheduled>,
    /// What passes are asked for.
    #[command(flatten)]
    pub passes: PassArgs,
}

/// Options that passes read.
#[derive(Clone, Debug, Default, Args)]
pub struct PassArgs {
    /// The promise to keep: portable (the default), or off: none, for experiments (run is not built yet)
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
    after_help = "Examples:\n  isobit run 'Write a paragraph about the history of tea.'\n  isobit run demo.isobit --raw -n 40 'The sea was'\n  printf 'Hello!\\nWho are you?\\n' | isobit run demo --json\n  isobit run demo --batch prompts.txt --slots 64\n  isobit run demo -n 40 --trace a.trace 'The sea was'"
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
    /// number, a tab and the text, where ends of lines, tabs and backslashes are written \n, \t and \\. A model without a tokenizer
    /// takes and gives token ids
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
    /// Write the logits of every token that was run, and the ids, to this safetensors file (one prompt only)
    #[arg(long, value_name = "FILE")]
    pub logits: Option<PathBuf>,
    /// Tell the digest of all logits: of the conversation, or with `--json` of each prompt of `--batch`
    #[arg(long)]
    pub digest: bool,
    /// Hold the conversation N times and compare the digests of all logits: a difference is an error
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["batch", "logits", "trace"])]
    pub repeat: Option<u32>,
    /// Write a digest of every stored value of every token to this file, for `isobit diff` and `isobit verify`
    #[arg(long, value_name = "FILE", help_heading = "Tracing")]
    pub trace: Option<PathBuf>,
    /// Also store the values with these names, in FILE.safetensors; `*` is any text (may be repeated)
    #[arg(long, value_name = "GLOB", requires = "trace", help_heading = "Tracing")]
    pub trace_values: Vec<String>,
    /// Who computes digests: the kernels that write the values (epilogue), or the host from memory (separate), which any
    /// program can do and which is slower [default: epilogue where the program can]
    #[arg(long, value_name = "epilogue|separate", value_parser = trace_mode, requires = "trace", help_heading = "Tracing")]
    pub trace_mode: Option<Mode>,
    /// Digests of what each token writes to the caches (written), or also of all that it sees there (full)
    #[arg(long, value_name = "written|full", value_parser = ["written", "full"], requires = "trace", help_heading = "Tracing")]
    pub trace_kv: Option<String>,
    /// Run in the interpreter of kernels and look for faults: races, init, order, parity, or all. With --target of the kernels of
    /// that target, which need not be this machine's
    #[arg(long, value_name = "LIST", conflicts_with_all = ["batch", "logits", "launch", "print_options", "trace", "digest", "repeat"], help_heading = "Execution")]
    pub check: Option<String>,
    /// Prompts of `--batch` that run together, 1 to 64 [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), requires = "batch", help_heading = "Execution")]
    pub slots: Option<u32>,
    /// How it runs.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// Options that decide how a program is found and run. None changes a bit.
#[derive(Clone, Debug, Args)]
pub struct ExecArgs {
    /// Print every option and switch in effect to standard error, and where it comes from
    #[arg(long)]
    pub print_options: bool,
    /// Tokens of a prompt that are computed together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65535), help_heading = "Execution")]
    pub prefill_chunk: Option<u32>,
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
    /// Fill values between kernels, and caches that hold nothing, with NaN before use and between turns: what no kernel wrote
    /// and some kernel reads then spoils the result
    #[arg(long, help_heading = "Execution")]
    pub poison: bool,
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

/// `isobit bench`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  isobit bench\n  isobit bench demo.isobit --depth 0,512,2048 -n 32 --json\n  isobit bench --config gemma-4-26b-a4b --weights random:1 --device cuda --prefill 128,2048"
)]
pub struct BenchArgs {
    /// Checkpoint folder, artifact or `demo` [default: demo]
    #[arg(value_name = "MODEL|ARTIFACT")]
    pub model: Option<OsString>,
    /// The model that the config.json of this folder describes, with weights that a seed makes
    #[arg(long, value_name = "FOLDER", conflicts_with = "model", requires = "weights")]
    pub config: Option<PathBuf>,
    /// Generate after so many tokens, each a measurement
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_value = "0,512")]
    pub depth: Vec<u32>,
    /// Run prompts of so many tokens, each a measurement
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_value = "128", value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill: Vec<u32>,
    /// Tokens to generate at each depth
    #[arg(short, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub n: u32,
    /// Times to measure each; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Seed of the token ids that are run [default: that of `--weights`, or 1]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// How it runs.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// `isobit diff`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if they are equal, 1 if they differ, 2 if they cannot be compared.\n\nExamples:\n  isobit diff a.trace b.trace\n  isobit diff one.isobit other.isobit\n  isobit diff --values ours.safetensors theirs.safetensors --map names.txt"
)]
pub struct DiffArgs {
    /// A trace (of `run --trace`), an artifact, a dump folder, a manifest, or any text file
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// Another of the same kind
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// A and B are safetensors files, of whatever program: compare tensors by name
    #[arg(long)]
    pub values: bool,
    /// Which tensor of A is which of B: two columns a line
    #[arg(long, value_name = "FILE", requires = "values")]
    pub map: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `isobit bisect`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if all logits are the same bits, 1 if some differ, 2 if it cannot be done.\n\nExamples:\n  isobit bisect demo --a '' --b '--embed bf16 --fusion off' --passes 'The sea was'\n  isobit bisect demo --a 'good.isobit' --b 'bad.isobit' --ids 2,105,911 -n 16 --out parts\n  isobit bisect demo --a '--device cuda' --b '--device cuda' --repeat 100 'The sea was'"
)]
pub struct BisectArgs {
    /// Checkpoint folder, artifact or `demo`. What is no path is the prompt, for the demo model
    #[arg(value_name = "MODEL|ARTIFACT")]
    pub model: Option<OsString>,
    /// The prompt
    pub prompt: Option<OsString>,
    /// One configuration: options of compilation and execution as `isobit run` takes them, quoted as one word. An artifact or a
    /// checkpoint among them stands for MODEL
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    pub a: String,
    /// The other
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub b: String,
    /// Continue the text as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Give the prompt as token ids
    #[arg(long, value_name = "2,17,4", conflicts_with = "raw")]
    pub ids: Option<String>,
    /// Most tokens to generate
    #[arg(short, value_name = "N", default_value_t = 64)]
    pub n: usize,
    /// Run each configuration N times, for faults that are rare
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeat: u32,
    /// If they differ, look for the smallest set of options that makes the difference, and for the numbered decision of a pass
    #[arg(long)]
    pub passes: bool,
    /// Write traces, graphs, plans and the kernels that differ to this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `isobit verify`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 if all digests are the same, 1 if one differs, 2 if it cannot be done.\n\nExample:\n  isobit verify demo.isobit gpu.trace --device cpu"
)]
pub struct VerifyArgs {
    /// The artifact to run
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// A trace of the model, made anywhere
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Run on the processor (cpu), on a GPU, or on a GPU if there is one that can (auto)
    #[arg(long, value_name = "cpu|cuda[:N]|auto", value_parser = Choice::parse, default_value = "auto")]
    pub device: Choice,
    /// Run the program of this target, or `interp`: the reference interpreter (slow)
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Threads of the CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `isobit gap`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  isobit gap demo 'Write a paragraph about the history of coffee.' --svg gaps.svg\n  isobit gap gemma-4-26b-4bit --against gemma-4-26b-a4b-it --override lm_head=bf16 'Hello!'\n  printf 'Hello!\\nWho are you?\\n' | isobit gap demo --json"
)]
#[command(mut_arg("batch", |a| a.hide(true)), mut_arg("slots", |a| a.hide(true)), mut_arg("logits", |a| a.hide(true)))]
#[command(mut_arg("digest", |a| a.hide(true)), mut_arg("repeat", |a| a.hide(true)), mut_arg("trace", |a| a.hide(true)))]
#[command(mut_arg("trace_values", |a| a.hide(true)), mut_arg("trace_mode", |a| a.hide(true)), mut_arg("trace_kv", |a| a.hide(true)), mut_arg("check", |a| a.hide(true)))]
#[command(mut_arg("n", |a| a.help("Most tokens to generate for a turn [default: 256]")))]
#[command(mut_arg("json", |a| a.help("Print one JSON object")))]
pub struct GapArgs {
    /// Nearest ties to look at closely
    #[arg(long, value_name = "K", default_value_t = 5, help_heading = "Ties")]
    pub top: usize,
    /// Print a line for every token
    #[arg(long, help_heading = "Ties")]
    pub all: bool,
    /// Write a plot of all gaps to this file
    #[arg(long, value_name = "FILE", help_heading = "Ties")]
    pub svg: Option<PathBuf>,
    /// Tokens to show after either choice
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Ties")]
    pub after: usize,
    /// Trials of noise for each tie; 0 for none
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=1024), help_heading = "Ties")]
    pub trials: u64,
    /// Seed of the noise
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ties")]
    pub seed: u64,
    /// Look also at noise in one layer alone, for each layer (as many times slower)
    #[arg(long, help_heading = "Ties")]
    pub each_layer: bool,
    /// Also ask this checkpoint in float64: the same model, quantized otherwise or not at all
    #[arg(long, value_name = "MODEL", help_heading = "Ties")]
    pub against: Option<OsString>,
    /// Also ask the model in float64 with this module's weights from the checkpoint of `--from`, rounded to bf16, f16 or f32.
    /// `lm_head`, `embed_tokens`, or names of weights in which `*` is any text (may be repeated)
    #[arg(long = "override", value_name = "MODULE=FORMAT", value_parser = Override::parse, help_heading = "Ties")]
    pub overrides: Vec<Override>,
    /// Where `--override` takes weights from [default: the checkpoint of `--against`, else the model's own]
    #[arg(long, value_name = "MODEL", help_heading = "Ties")]
    pub from: Option<OsString>,
    /// What is run.
    #[command(flatten)]
    pub run: RunArgs,
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
#[command(
    after_help = "Examples:\n  isobit dump demo --after fuse\n  isobit dump demo --what ptx --target sm_121\n  isobit dump demo --format html -o demo.html\n  isobit dump demo --format dot --only 'layers.0.*' | dot -Tsvg > layer.svg"
)]
pub struct DumpArgs {
    /// Checkpoint folder, or `demo`; for pages and pictures also the text of a graph
    pub model: OsString,
    /// As text, for Graphviz (dot), or as one page to search, fold and select in, which needs nothing else (html)
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub format: Format,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// In a page, show this beside it, with differences marked: a model, under the same options, or the text of a graph
    #[arg(long, value_name = "MODEL|FILE")]
    pub with: Option<OsString>,
    /// In a picture, show only values with these names and what they read; `*` is any text (may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,
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

/// How `isobit dump` shows a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text that parses back
    Text,
    /// Graphviz
    Dot,
    /// A page
    Html,
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
