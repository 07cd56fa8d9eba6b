//! Machine code in artifacts: there where an assembler is, the same bytes each time and from each folder, never needed and never
//! in the way. Needs what `make assembler` puts under `.tools`; without it this fails, it does not skip.
#![cfg(feature = "llvm")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs isobit in a folder, with programs from this one.
fn isobit(dir: &Path, programs: &Path, args: &[&str]) -> Output {
    let path: OsString = programs.into();
    Command::new(env!("CARGO_BIN_EXE_isobit"))
        .args(args)
        .current_dir(dir)
        .env("PATH", path)
        .env("TMPDIR", dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .output()
        .unwrap()
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// All files below a folder.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(d) = todo.pop() {
        for e in fs::read_dir(d).unwrap() {
            let p = e.unwrap().path();
            if p.is_dir() {
                todo.push(p);
            } else {
                out.insert(p.strip_prefix(dir).unwrap().display().to_string(), fs::read(&p).unwrap());
            }
        }
    }
    out
}

fn compile(dir: &Path, programs: &Path, cubin: &str) -> Output {
    let args = ["compile", "demo", "-o", "a.isobit", "--target", "sm_90,sm_121", "--prefill-plan", "off", "--cubin", cubin];
    isobit(dir, programs, &args)
}

#[test]
fn with_an_assembler_the_same_bytes_each_time() {
    let tools = root().join(".tools/bin");
    assert!(tools.join("ptxas").exists(), "ptxas is missing: run `make assembler`");
    let trees: Vec<_> = ["cubin-one", "cubin-another-name"]
        .map(|name| {
            let dir = scratch(name);
            let o = compile(&dir, &tools, "auto");
            assert!(o.status.success() && stderr(&o).contains("distinct, machine code by ptxas 13.5"), "{}", stderr(&o));
            tree(&dir.join("a.isobit"))
        })
        .into();
    assert!(trees[0] == trees[1], "two compilations differ");
    let ends = |t: &BTreeMap<String, Vec<u8>>, end: &str| t.keys().filter(|k| k.ends_with(end)).count();
    let (ptx, cubin) = (ends(&trees[0], ".ptx"), ends(&trees[0], ".cubin"));
    assert!(ptx == cubin && ptx > 20, "{ptx} PTX texts, {cubin} cubins");
    let manifest: serde_json::Value = serde_json::from_slice(&trees[0]["manifest.json"]).unwrap();
    assert_eq!(manifest["options"]["cubin"], "auto");
    assert!(manifest["targets"].as_array().unwrap().iter().all(|t| t["assembler"] == "ptxas 13.5"), "{manifest}");
    // Without it everything else is the same.
    let dir = scratch("cubin-off");
    let o = compile(&dir, &tools, "off");
    assert!(o.status.success() && !stderr(&o).contains("machine code"), "{}", stderr(&o));
    let mut without = tree(&dir.join("a.isobit"));
    let mut with = trees[0].clone();
    with.retain(|k, _| !k.ends_with(".cubin"));
    // These two name the option.
    for named in ["manifest.json", "audit.json"] {
        assert_ne!(with.remove(named), without.remove(named));
    }
    assert!(with == without);
    // A run reads it, and gets as far as there is a driver.
    let o = isobit(
        &scratch("cubin-run"),
        &tools,
        &["run", dir.join("a.isobit").to_str().unwrap(), "-n", "2", "--device", "cuda:0", "Hi"],
    );
    let e = stderr(&o);
    assert!(o.status.success() || e.contains("error[E0440]") || e.contains("error[E0441]"), "{e}");
}

/// A folder with a ptxas that does this.
fn fake(name: &str, does: &str) -> PathBuf {
    let dir = scratch(name);
    let text = format!("#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'release 1.2, V1.2.3'; exit; }}\n{does}\n");
    fs::write(dir.join("ptxas"), text).unwrap();
    fs::set_permissions(dir.join("ptxas"), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn without_one_and_with_one_that_fails() {
    let (none, bad) = (scratch("cubin-no-programs"), fake("cubin-bad-program", "echo 'ptxas fatal: sm_121 is unknown'; exit 1"));
    // Where the system has nvJitLink, that takes over.
    let doctor = isobit(&none, &none, &["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let library = doctor["checks"].as_array().unwrap().iter().any(|c| c["part"] == "nvJitLink" && c["state"] == "ok");
    for (programs, code, says) in [(&none, "E0470", "--cubin off"), (&bad, "E0471", "ptxas fatal: sm_121 is unknown")] {
        let dir = scratch("cubin-not-on");
        let o = compile(&dir, programs, "on");
        let e = stderr(&o);
        if library {
            assert!(o.status.success() && e.contains("machine code by nvJitLink"), "{e}");
        } else {
            assert!(o.status.code() == Some(1) && e.contains(&format!("error[{code}]")), "{e}");
            assert!(code == "E0470" || e.contains(says) && e.contains("kernel `k_"), "{e}");
            assert!(tree(&dir).is_empty(), "nothing is left: {:?}", tree(&dir).keys());
        }
        let dir = scratch("cubin-not-auto");
        let o = compile(&dir, programs, "auto");
        let e = stderr(&o);
        assert!(o.status.success(), "{e}");
        if !library {
            assert_eq!(e.contains("warning[E0471]"), code == "E0471", "{e}");
            assert!(!tree(&dir).keys().any(|k| k.ends_with(".cubin")));
        }
    }
}
