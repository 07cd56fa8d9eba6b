//! Places that cannot be read or written: no permission, no room, something else in the way.

use super::model::{Model, RUN, damaged, demo};
use super::{Beyond, Case, Child, case};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const COMPILE: &str = "compile model -o a.isobit --target x86-64-v3";
const CACHED: &str = "run model --cache-dir c --target x86-64-v3 --threads 1 -n 2 --ids 2,105";

fn lock(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A folder `locked` that cannot be written to, beside a good model.
fn locked(dir: &Path) {
    Model::tiny(dir);
    fs::create_dir(dir.join("locked")).unwrap();
    lock(&dir.join("locked"), 0o555);
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let user = Child { unprivileged: true, ..Child::default() };
    let room = |bytes| Child { files: Some((bytes, Beyond::Error)), ..Child::default() };
    let full = Child { full_output: true, ..Child::default() };
    let sound = |name: &str, args: &str| case(name, Model::tiny, args);
    let compiles = "compiles the model";
    let blocked = |dir: &Path| {
        Model::tiny(dir);
        fs::write(dir.join("c"), "text").unwrap();
    };
    vec![
        damaged("folder-without-permission", |m| lock(&m.0, 0)).child(user),
        damaged("folder-that-cannot-be-listed", |m| lock(&m.0, 0o111)).child(user),
        damaged("config-without-permission", |m| {
            drop(m.own("config.json"));
            lock(&m.path("config.json"), 0);
        })
        .child(user),
        damaged("weights-without-permission", |m| {
            drop(m.own("model.safetensors"));
            lock(&m.path("model.safetensors"), 0);
        })
        .child(user),
        case("artifact-in-a-folder-without-permission", locked, &COMPILE.replace("a.isobit", "locked/a.isobit")).child(user),
        case("logits-in-a-folder-without-permission", locked, &format!("{RUN} --logits locked/l")).child(user),
        case("dumps-in-a-folder-without-permission", locked, "compile model --dump-dir locked/d").child(user),
        case("cache-in-a-folder-without-permission", locked, &CACHED.replace("dir c", "dir locked/c"))
            .child(user)
            .warns()
            .large(compiles),
        case("a-file-for-the-cache", blocked, CACHED).warns().large(compiles),
        case("a-file-for-the-folder-of-the-artifact", blocked, &COMPILE.replace("a.isobit", "c/a.isobit")),
        case("a-file-for-the-artifact", blocked, &COMPILE.replace("a.isobit", "c")),
        case("a-folder-for-the-logits", locked, &format!("{RUN} --logits model")),
        case("a-device-for-the-logits", locked, &format!("{RUN} --logits /dev/full")),
        sound("no-such-folder-for-the-artifact", &COMPILE.replace("a.isobit", "no/such/a.isobit")),
        sound("no-name-for-the-artifact", &COMPILE.replace("a.isobit", "..")),
        sound("a-name-too-long-for-the-artifact", &COMPILE.replace("a.isobit", &"a".repeat(300))),
        sound("artifact-without-room", COMPILE).child(room(1)).large(compiles),
        sound("artifact-without-room-for-its-kernels", COMPILE).child(room(100_000)).large(compiles),
        case(
            "artifact-without-room-for-the-model",
            |dir| {
                // Weights of their own that cannot be linked into the artifact: a link would take no room.
                fs::create_dir(dir.join("model")).unwrap();
                for e in fs::read_dir(demo()).unwrap() {
                    let e = e.unwrap();
                    fs::copy(e.path(), dir.join("model").join(e.file_name())).unwrap();
                }
            },
            "compile demo -o a.isobit --target x86-64-v3",
        )
        .child(room(1_000_000))
        .large(compiles),
        sound("logits-without-room", &format!("{RUN} --logits l"))
            .child(room(3_000))
            .prints()
            .large("compiles and runs the model"),
        sound("dumps-without-room", "compile model --dump-dir d --target x86-64-v3").child(room(1000)).large(compiles),
        sound("cache-without-room", CACHED).child(room(1000)).warns().large("compiles and runs the model"),
        sound("output-without-room", "dump model --after fold").child(full).large("builds the graph"),
        sound("text-without-room", RUN).child(full).large("compiles and runs the model"),
    ]
}
