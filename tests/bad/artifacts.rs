//! Artifacts that were changed, or made by and for others.

use super::model::Model;
use super::{Case, case, run, scratch};
use isobit::artifact::{self, Manifest};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The command that meets a damaged artifact.
pub const RUN: &str = "run a.isobit --threads 1 -n 2 --ids 2,105";

/// A good artifact, made once.
fn good() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch("artifact");
        Model::new(&dir);
        let args = ["compile", "model", "-o", "a.isobit", "--target", "x86-64-v3,sm_90", "--cubin", "off"].map(String::from);
        let o = run(super::PROGRAM, &args, &dir, Default::default());
        assert_eq!(o.code(), Some(0), "{}", o.err);
        dir.join("a.isobit")
    })
}

/// An artifact.
pub struct Artifact(pub PathBuf);

/// A damaged artifact, met by [`RUN`].
pub fn damaged(name: impl Into<String>, change: impl Fn(&Artifact) + 'static) -> Case {
    case(name, move |dir| change(&Artifact::new(dir)), RUN)
}

impl Artifact {
    /// A good one in `a.isobit`; its files are links to those of another.
    pub fn new(dir: &Path) -> Artifact {
        let to = dir.join("a.isobit");
        link(good(), &to);
        Artifact(to)
    }

    /// Path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Another file of this name, in place of the link.
    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let _ = fs::remove_file(self.path(name));
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Changes the bit of one byte: in the middle, or, in a manifest, whose length depends on all else, in its checksum.
    pub fn flip(&self, name: &str) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        let checksum = bytes.windows(13).position(|w| w == b"\"checksum\": \"").map(|at| at + 20);
        let at = checksum.unwrap_or(bytes.len() / 2);
        bytes[at] ^= 1;
        self.put(name, bytes);
    }

    /// Adds a byte.
    pub fn lengthen(&self, name: &str) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes.push(b'\n');
        self.put(name, bytes);
    }

    /// The manifest with another text in one place, and a checksum that fits it.
    pub fn manifest(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.path("manifest.json")).unwrap();
        assert!(text.contains(from), "{from}");
        let m: Manifest = serde_json::from_str(&text.replacen(from, to, 1)).unwrap();
        self.put("manifest.json", m.text());
    }

    /// The first file whose name ends like this.
    pub fn find(&self, end: &str) -> String {
        let text = fs::read_to_string(self.path("manifest.json")).unwrap();
        let m = Manifest::parse(&text).unwrap();
        m.files.keys().find(|f| f.ends_with(end)).unwrap().clone()
    }
}

fn link(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for e in fs::read_dir(from).unwrap() {
        let (path, to) = (e.as_ref().unwrap().path(), to.join(e.unwrap().file_name()));
        if path.is_dir() { link(&path, &to) } else { fs::hard_link(path, to).unwrap() }
    }
}

/// All cases.
pub fn cases() -> Vec<Case> {
    // What a run on the processor does not read: it finds that something is missing, and who reads it that it was changed.
    let others = ["model.graph", "sm_90/model.plan", "sm_90/prefill.plan", "sm_90/kernels/k_logits.kir", ".ptx"];
    let used = [
        "manifest.json",
        "x86-64-v3/model.plan",
        "x86-64-v3/kernels.o",
        "x86-64-v3/kernels/k_logits.kir",
        "model/chat_template.jinja",
        "model/config.json",
        "model/generation_config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
    ];
    let find = |a: &Artifact, kind: &str| if kind == "manifest.json" { kind.to_string() } else { a.find(kind) };
    let title = |kind: &str| kind.trim_start_matches('.').replace('/', "-");
    let flipped = |kind: &'static str| damaged(format!("{}-changed", title(kind)), move |a| a.flip(&find(a, kind)));
    let mut out: Vec<Case> = used.into_iter().map(flipped).collect();
    out.extend(others.into_iter().map(|kind| flipped(kind).run("inspect a.isobit")));
    let gone = |kind| damaged(format!("{}-missing", title(kind)), move |a| fs::remove_file(a.path(&find(a, kind))).unwrap());
    out.extend(used.into_iter().chain(others).map(gone));
    let longer = |kind| damaged(format!("{}-longer", title(kind)), move |a| a.lengthen(&find(a, kind)));
    out.extend(["x86-64-v3/kernels.o", "sm_90/model.plan"].map(longer));
    out.extend([
        damaged("of-another-form", |a| {
            a.manifest(&format!("\"format\": {}", artifact::FORMAT), "\"format\": 99");
        }),
        damaged("of-another-version", |a| a.manifest(concat!("\"", env!("CARGO_PKG_VERSION"), "\""), "\"99.0.0\"")),
        damaged("for-another-target", |_| ()).run(&format!("{RUN} --target x86-64-v4+vnni")),
        damaged("for-an-unknown-target", |a| {
            a.manifest("\"name\": \"x86-64-v3\"", "\"name\": \"riscv\"");
            a.manifest("\"name\": \"sm_90\"", "\"name\": \"sm_999\"");
        }),
        damaged("for-an-unknown-target-interpreted", |a| {
            a.manifest("\"name\": \"x86-64-v3\"", "\"name\": \"riscv\"");
            a.manifest("\"name\": \"sm_90\"", "\"name\": \"sm_999\"");
        })
        .run(&format!("{RUN} --target interp")),
        damaged("compiled-otherwise", |_| ()).run(&format!("{RUN} --embed exact")),
        damaged("manifest-empty", |a| a.put("manifest.json", "")),
        damaged("manifest-cut", |a| {
            let text = fs::read(a.path("manifest.json")).unwrap();
            a.put("manifest.json", &text[..100]);
        }),
        damaged("manifest-no-json", |a| a.put("manifest.json", "[")),
        damaged("manifest-of-another-program", |a| a.put("manifest.json", "{}")),
        damaged("manifest-not-utf8", |a| a.put("manifest.json", b"{\"\xff\": 1}")),
        damaged("manifest-nested", |a| a.put("manifest.json", "[".repeat(10_000))),
        damaged("manifest-nested-after-its-head", |a| {
            a.put("manifest.json", format!("{{\"format\": {}, \"isobit\": {}", artifact::FORMAT, "[".repeat(100_000)));
        }),
        damaged("manifest-of-a-huge-format", |a| a.put("manifest.json", "{\"format\": 18446744073709551615}")),
        damaged("manifest-lists-a-path-outside", |a| a.manifest("\"model.graph\": {", "\"../model.graph\": {")),
        damaged("manifest-lists-an-absolute-path", |a| a.manifest("\"model.graph\": {", "\"/etc/passwd\": {")),
        damaged("a-file-too-many", |a| a.put("model/extra.safetensors", "text")),
        damaged("a-folder-too-many", |a| fs::create_dir(a.path("empty")).unwrap()),
        damaged("a-link-for-a-file", |a| {
            fs::remove_file(a.path("model.graph")).unwrap();
            symlink(good().join("model.graph"), a.path("model.graph")).unwrap();
        }),
        damaged("a-link-for-a-folder", |a| {
            fs::remove_dir_all(a.path("model")).unwrap();
            symlink(good().join("model"), a.path("model")).unwrap();
        }),
        damaged("a-pipe-for-a-file", |a| {
            fs::remove_file(a.path("model.graph")).unwrap();
            super::pipe(&a.path("model.graph"));
        }),
        damaged("a-folder-for-a-file", |a| {
            fs::remove_file(a.path("model.graph")).unwrap();
            fs::create_dir(a.path("model.graph")).unwrap();
        }),
        damaged("a-file-for-a-folder", |a| {
            fs::remove_dir_all(a.path("host")).unwrap();
            a.put("host", "text");
        }),
        case("an-empty-folder", |dir| fs::create_dir(dir.join("a.isobit")).unwrap(), RUN),
        case("a-file", |dir| fs::write(dir.join("a.isobit"), "text").unwrap(), RUN),
        damaged("compiled-again", |_| ()).run("compile a.isobit -o b.isobit").usage(),
        damaged("dumped", |_| ()).run("dump a.isobit").usage(),
    ]);
    out
}
