//! Artifacts with garbage in place of plans and kernels, and hashes that fit it: what the parsers and verifiers of the
//! intermediate representations say to a user.

use super::Case;
use super::artifacts::{Artifact, RUN, damaged};
use isobit::artifact::{FileEntry, Manifest};
use std::fs;

/// Another file of this name, and a manifest that lists it.
fn seal(a: &Artifact, name: &str, bytes: &[u8]) {
    a.put(name, bytes);
    let text = fs::read_to_string(a.path("manifest.json")).unwrap();
    let mut m: Manifest = serde_json::from_str(&text).unwrap();
    m.files.insert(name.into(), FileEntry::of(bytes));
    a.put("manifest.json", m.text());
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let whole = |kind: &'static str, name: &str, text: Vec<u8>| {
        damaged(format!("{}-{name}", kind.trim_start_matches('.')), move |a| seal(a, &find(a, kind), &text))
    };
    let edit = |kind: &'static str, name: &str, from: &'static str, to: &'static str| {
        damaged(format!("{}-{name}", kind.trim_start_matches('.')), move |a| {
            let file = find(a, kind);
            let text = fs::read_to_string(a.path(&file)).unwrap();
            assert!(text.contains(from), "{file}: {from}");
            seal(a, &file, text.replacen(from, to, 1).as_bytes());
        })
    };
    let half = |kind: &'static str| {
        damaged(format!("{}-cut", kind.trim_start_matches('.')), move |a| {
            let file = find(a, kind);
            let bytes = fs::read(a.path(&file)).unwrap();
            seal(a, &file, &bytes[..60]);
        })
    };
    const PLAN: &str = "x86-64-v3/model.plan";
    /// Of its text a run reads the head.
    const KERNEL: &str = ".kir";
    /// Who interprets reads the whole.
    const BODY: &str = "x86-64-v3/kernels/k_attn_o_proj.kir";
    const OBJECT: &str = "kernels.o";
    let mut out = vec![];
    for kind in [PLAN, KERNEL] {
        out.extend([
            whole(kind, "empty", vec![]),
            whole(kind, "not-text", (0..=255).collect()),
            whole(kind, "of-brackets", "{".repeat(50_000).into()),
            whole(kind, "of-quotes", "\"".repeat(50_000).into()),
            whole(kind, "of-words", "the quick brown fox\n".repeat(2_000).into()),
            half(kind),
        ]);
    }
    out.extend([
        edit(KERNEL, "of-negative-warps", "warps=", "warps=-"),
        edit(KERNEL, "of-a-huge-number", "warps=", "warps=99999999999999999999"),
        edit(KERNEL, "with-a-huge-array", "{\n", "{\n  shared huge 4294967295\n"),
        edit(KERNEL, "of-another-name", "kernel ", "kernel another_"),
        edit(PLAN, "with-a-huge-arena", "arena ", "arena 99999999"),
        edit(PLAN, "with-an-arena-beyond-64-bits", "arena ", "arena 99999999999999999999"),
        edit(PLAN, "without-its-arena", "arena ", "arena 64, outputs 64 // "),
        edit(PLAN, "that-names-another-kernel", "= kernel ", "= kernel another_"),
        edit(PLAN, "that-names-a-path", "= kernel ", "= kernel ../"),
        edit(PLAN, "with-an-empty-grid", "grid_x=", "grid_x=0 // "),
        edit(PLAN, "with-huge-heads", "heads=", "heads=99999999"),
        edit(PLAN, "with-huge-rows", "stack=1, rows=4096", "stack=9999999, rows=4294967295"),
        edit(PLAN, "of-another-width", "bits=4", "bits=7"),
        edit(PLAN, "of-another-tensor", "affine \"", "affine \"another."),
        edit(PLAN, "with-an-unknown-buffer", "k0(", "k0(b9999, "),
        edit(PLAN, "with-huge-values", "bytes=", "bytes=99999"),
        whole(OBJECT, "empty", vec![]),
        whole(OBJECT, "not-an-object", b"\x7fELF but not really".to_vec()),
        half(OBJECT),
    ]);
    let interpreted = |c: Case| c.run(&format!("{RUN} --target interp"));
    out.extend(
        [
            edit(PLAN, "interpreted-that-names-another-kernel", "= kernel ", "= kernel another_"),
            whole(
                BODY,
                "nested",
                format!("kernel k warps=1 min_blocks=0 {{\n  %0 = iconst 1\n{}", "if %0 {\n".repeat(10_000)).into(),
            ),
            whole(BODY, "of-words", "the quick brown fox\n".repeat(2_000).into()),
            half(BODY),
            edit(BODY, "with-an-undefined-value", " = lane", " = iadd %99 %98"),
        ]
        .map(interpreted),
    );
    out
}

fn find(a: &Artifact, kind: &str) -> String {
    if kind == ".kir" { a.find("host/x86-64-v3/kernels/k_next_token.kir") } else { a.find(kind) }
}
