//! `isobit opt`: texts that are no module, and passes that cannot be.

use super::{Case, Child, case};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const RUN: &str = "opt t --passes fold";

const GRAPH: &str = "graph \"t\" {\n  %0 = tokens : i32[T] \"tokens\"\n  %1 = weight : u4g32[64,64] \"w\"\n  \
                     %2 = embed %1 %0 {mode=factor, factor=8} : f32[T,64] \"x\"\n  output %2\n}\n";

const REPRODUCER: &str = "// isobit reproducer: pass `fold`: E0000 nothing\n";

/// A text in the file `t`, met by [`RUN`].
fn text(name: impl Into<String>, text: impl AsRef<[u8]> + 'static) -> Case {
    case(name, move |dir: &Path| fs::write(dir.join("t"), &text).unwrap(), RUN)
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let good = |name: &str, args: &str| text(name, GRAPH).run(args);
    let edited = |name: &str, from: &str, to: &str| {
        assert!(GRAPH.contains(from), "{from}");
        text(name, GRAPH.replacen(from, to, 1))
    };
    let reproducer = |name: &str, rest: &str| text(name, format!("{REPRODUCER}{rest}{GRAPH}")).run("opt t");
    let user = Child { unprivileged: true, ..Child::default() };
    let full = Child { full_output: true, ..Child::default() };
    vec![
        case("no-file", |_| (), RUN),
        case("a-folder", |dir| fs::create_dir(dir.join("t")).unwrap(), RUN),
        case("nothing-on-standard-input", |_| (), "opt - --passes fold"),
        case(
            "without-permission",
            |dir| {
                fs::write(dir.join("t"), GRAPH).unwrap();
                fs::set_permissions(dir.join("t"), fs::Permissions::from_mode(0o0)).unwrap();
            },
            RUN,
        )
        .child(user),
        text("empty", ""),
        text("not-text", (0..=255).collect::<Vec<u8>>()),
        text("not-utf8", b"graph \"x\xff\" {\n}\n"),
        text("of-words", "the quick brown fox\n".repeat(2_000)),
        text("of-brackets", "{".repeat(50_000)),
        text("of-quotes", "\"".repeat(50_000)),
        text("cut", &GRAPH[..GRAPH.find("  output").unwrap()]),
        text("an-artifacts-manifest", "{\"format\": 1}"),
        edited("of-an-id-twice", "%1 = weight", "%0 = weight"),
        edited("of-an-operand-that-is-not", "embed %1", "embed %7"),
        edited("of-a-shape-that-is-not", "f32[T,64]", "f32[T,32]"),
        edited("of-a-huge-shape", "u4g32[64,64]", "u4g32[4294967295,4294967295]"),
        edited("of-a-size-below-zero", "u4g32[64,64]", "u4g32[-64,64]"),
        edited("of-a-factor-that-is-nan", "factor=8", "factor=0x7fc00000"),
        edited("without-output", "  output %2\n", ""),
        text("kernels-nested", format!("kernel k warps=1 min_blocks=0 {{\n  %0 = iconst 1\n{}", "if %0 {\n".repeat(10_000))),
        text("kernels-for-passes", "kernel k warps=1 min_blocks=0 {\n}\n").usage(),
        text("a-plan-cut", "plan \"t\" {\n").run("opt t --passes "),
        good("an-unknown-pass", "opt t --passes fold,fuze").usage(),
        good("an-unknown-pass-to-print-after", "opt t --passes fold --after fuze").usage(),
        good("an-unknown-argument", "opt t --passes fold(most=1)").usage(),
        good("an-argument-below-its-range", "opt t --passes merge-launches(max=0)").usage(),
        good("an-unknown-rule", "opt t --passes fuse --disable-rule norm-into-quantise").usage(),
        good("an-unknown-target", "opt t --passes fold --target riscv").usage(),
        good("a-pipeline-cut", "opt t --passes fold(").usage(),
        good("a-pipeline-of-commas", "opt t --passes ,,").usage(),
        good("no-passes", "opt t").usage(),
        good("a-needed-pass-off", "opt t --passes quant-lower --quant-lower off").usage(),
        good("a-pass-before-its-time", "opt t --passes memory-plan"),
        good("output-in-no-folder", "opt t --passes fold -o no/such"),
        good("output-that-is-a-folder", "opt t --passes fold -o ."),
        good("output-without-room", RUN).child(full),
        reproducer("reproducer-without-pipeline", ""),
        reproducer("reproducer-without-options", "// pipeline: fold\n"),
        reproducer("reproducer-of-an-unknown-pass", "// pipeline: fuze\n// options: determinism=portable\n").usage(),
        reproducer("reproducer-of-an-unknown-option", "// pipeline: fold\n// options: speed=high\n").usage(),
    ]
}
