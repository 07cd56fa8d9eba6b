//! Diagnostic codes of the root package, and which of all codes mean that the command was wrong rather than that it failed.

use ir::diag::Diagnostic;

/// Codes and their meaning.
pub const CODES: &[(&str, &str)] = &[
    ("E0750", "the arguments of a command do not fit together, or a value is none of those allowed"),
    ("E0751", "there is no such target"),
    ("E0752", "this determinism level is not built yet"),
    ("E0753", "this build of isobit cannot generate code (feature `llvm` is off)"),
    ("E0754", "a program for this target cannot run on this machine, or is not in the artifact"),
    ("E0755", "a prompt or text is empty, too long, or not UTF-8"),
    ("E0756", "a list of token ids cannot be read, or names a token that the model does not have"),
    ("E0757", "the prompt does not fit the context, or the context the model"),
    ("E0758", "a word looks like the path of a model, but nothing is there"),
    ("E0759", "there is no such fusion rule"),
    ("E0760", "a file or folder cannot be read or written"),
    ("E0761", "the output exists and is not what the command may replace"),
    ("E0762", "this is not an artifact"),
    ("E0763", "the artifact was made by another version of isobit"),
    ("E0764", "a file of the artifact is not what was written"),
    ("E0765", "a file of the artifact is missing, or does not belong there"),
    ("E0766", "the text of a plan or kernel in the artifact is broken"),
    ("E0767", "the artifact was compiled with other options"),
    ("E0768", "the passes left no plan: a bug"),
    ("E0773", "this model has no tokenizer, so it takes token ids only"),
    ("E0769", "modules are not quantized because the group does not divide their input features"),
];

/// Does this diagnostic blame the command line (exit code 2) rather than what was found (exit code 1)?
pub fn is_usage(d: &Diagnostic) -> bool {
    const USAGE: [&str; 15] = [
        "E0281", "E0501", "E0701", "E0703", "E0704", "E0705", "E0707", "E0708", "E0750", "E0751", "E0752", "E0755", "E0756",
        "E0759", "E0773",
    ];
    USAGE.contains(&d.code)
}
