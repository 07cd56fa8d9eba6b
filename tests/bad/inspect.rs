//! `isobit inspect`: what is neither a model nor an artifact, and what is a damaged one.

use super::artifacts::{self, Artifact};
use super::model::{self, Model};
use super::{Case, Child, case, pipe};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const MODEL: &str = "inspect model";
const ARTIFACT: &str = "inspect a.isobit";

/// All cases.
pub fn cases() -> Vec<Case> {
    let damaged = |name: &str, change: fn(&Model)| model::damaged(name, change).run(MODEL);
    let of_artifact = |name: &str, change: fn(&Artifact)| artifacts::damaged(name, change).run(ARTIFACT);
    let user = Child { unprivileged: true, ..Child::default() };
    let full = Child { full_output: true, ..Child::default() };
    vec![
        case("nothing", |_| (), MODEL),
        case("a-file", |dir| fs::write(dir.join("model"), "text").unwrap(), MODEL),
        case("a-pipe", |dir| pipe(&dir.join("model")), MODEL),
        case("an-empty-folder", |dir| fs::create_dir(dir.join("model")).unwrap(), MODEL),
        damaged("a-folder-without-permission", |m| fs::set_permissions(&m.0, fs::Permissions::from_mode(0o0)).unwrap())
            .child(user),
        damaged("no-config", |m| m.remove("config.json")),
        damaged("config-no-json", |m| m.put("config.json", "{")),
        damaged("config-alone-and-no-json", |m| {
            m.remove(model::WEIGHTS);
            m.put("config.json", "{");
        }),
        damaged("config-alone-of-another-model", |m| {
            m.remove(model::WEIGHTS);
            m.put("config.json", "{\"model_type\": \"llama\"}");
        }),
        damaged("weights-cut", |m| m.own(model::WEIGHTS).set_len(1_000_000).unwrap()),
        damaged("weights-empty", |m| m.put(model::WEIGHTS, "")),
        damaged("no-positions", |_| ()).run("inspect model --context 0"),
        damaged("too-many-positions", |_| ()).run("inspect model --context 18446744073709551615"),
        damaged("positions-that-are-no-number", |_| ()).run("inspect model --context many").usage(),
        damaged("weights-of-no-seed", |_| ()).run("inspect model --weights random:x").usage(),
        damaged("output-without-room", |_| ()).child(full).large("plans the model"),
        of_artifact("an-artifact-with-a-changed-manifest", |a| a.flip("manifest.json")),
        of_artifact("an-artifact-with-a-changed-graph", |a| a.flip("model.graph")),
        of_artifact("an-artifact-with-a-changed-plan", |a| a.flip(&a.find("x86-64-v3/model.plan"))),
        of_artifact("an-artifact-with-changed-code", |a| a.flip(&a.find("kernels.o"))),
        of_artifact("an-artifact-with-a-changed-kernel", |a| a.flip(&a.find(".kir"))),
        of_artifact("an-artifact-with-changed-weights", |a| a.flip("model/model.safetensors")),
        of_artifact("an-artifact-without-its-plan", |a| fs::remove_file(a.path(&a.find("x86-64-v3/model.plan"))).unwrap()),
        of_artifact("an-artifact-with-a-file-too-many", |a| a.put("more", "text")),
        of_artifact("an-artifact-of-another-version", |a| {
            a.manifest(concat!("\"", env!("CARGO_PKG_VERSION"), "\""), "\"99.0.0\"");
        }),
        of_artifact("a-manifest-alone", |a| {
            let text = fs::read(a.path("manifest.json")).unwrap();
            fs::remove_dir_all(&a.0).unwrap();
            fs::create_dir(&a.0).unwrap();
            a.put("manifest.json", text);
        }),
    ]
}
