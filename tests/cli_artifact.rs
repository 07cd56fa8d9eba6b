//! Whatever stands in the texts of an artifact whose hashes fit, reading it gives a program or an error, never a panic.

use ir::kernel::Kernel;
use ir::plan::phases::Phases;
use isobit::artifact::{self, Artifact, Bodies, FileEntry, MANIFEST, Manifest};
use isobit::emit::{Code, GpuCode};
use isobit::options::{CompileOptions, PrefillPlan};
use isobit::pipeline::{self, Compiled, Program, Watch};
use isobit::source::Source;
use isobit::target::{Class, Target};
use std::fs;
use std::path::{Path, PathBuf};

/// Replaces a file and makes the manifest agree.
fn replace(dir: &Path, path: &str, bytes: &[u8]) {
    fs::write(dir.join(path), bytes).unwrap();
    let mut m = Manifest::parse(&fs::read_to_string(dir.join(MANIFEST)).unwrap()).unwrap();
    m.files.insert(path.into(), FileEntry::of(bytes));
    fs::write(dir.join(MANIFEST), m.text()).unwrap();
}

fn open(dir: &Path) -> Result<Program, isobit::Diagnostic> {
    Artifact::open(dir)?.interpreted()
}

/// Writes an artifact of the demo model with programs of this code, of kernels for hosts.
fn written(name: &str, codes: impl Fn(&Phases) -> Vec<(Target, Code)>) -> (PathBuf, Compiled) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let dir = dir.join("a.isobit");
    let ck = Source::Demo.checkpoint().unwrap();
    let options = CompileOptions { prefill: PrefillPlan::On, ..CompileOptions::default() };
    let planned = pipeline::plan(&ck, &options, &[Class::Host], &mut Watch::default()).unwrap();
    let plans = &planned.plans[0].1;
    let programs = codes(plans).into_iter().map(|(target, code)| Program { target, plans: plans.clone(), code }).collect();
    let compiled = Compiled { options, planned, programs };
    artifact::write(&dir, &compiled, &ck, None, true, &mut |_, _, _| {}).unwrap();
    (dir, compiled)
}

/// A run reads what its target needs and nothing else; each of these files is found changed by who reads it, and by a check of all.
#[test]
fn files_are_checked_by_who_reads_them() {
    let host = Target::host().unwrap();
    let (dir, compiled) = written("artifact-files", |plans| {
        let ptx = plans.kernels().iter().map(|k| format!("// {}", k.name)).collect();
        let gpu = Code::Gpu(GpuCode { ptx, machine: None });
        let Ok(codegen::Target::Host(isa)) = codegen::Target::parse(host.name()) else { panic!("{}", host.name()) };
        vec![(host, Code::Host(codegen::host_object(&plans.kernels(), isa).unwrap())), (Target::Sm90, gpu)]
    });
    let open = || Artifact::open(&dir).unwrap();
    let heads = open().program(Some(host)).unwrap();
    let full = &compiled.programs[0].plans;
    let same = |(h, k): (&&Kernel, &&Kernel)| (&h.name, h.warps, &h.bufs, &h.shared) == (&k.name, k.warps, &k.bufs, &k.shared);
    assert!(heads.plans.kernels().iter().zip(&full.kernels()).all(same), "heads are those of the kernels");
    let m = Manifest::parse(&fs::read_to_string(dir.join(MANIFEST)).unwrap()).unwrap();
    for file in m.files.keys() {
        let good = fs::read(dir.join(file)).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::remove_file(dir.join(file)).unwrap(); // it may be a link
        fs::write(dir.join(file), bad).unwrap();
        let mut all = vec![
            ("", open().check(&mut |_, _, _| {})),
            ("model/", open().checkpoint(&mut |_, _, _| {}).map(|_| ())),
            ("host/", open().program(Some(host)).map(|_| ())),
            ("host/", open().interpreted().map(|_| ())),
            ("gpu/", open().program(Some(Target::Sm90)).map(|_| ())),
        ];
        if file.ends_with("kernels.o") {
            assert!(all.remove(3).1.is_ok(), "an interpreter needs no object");
        }
        for (reads, found) in all {
            let refused = found.as_ref().is_err_and(|d| d.code == "E0764" && d.place.ends_with(file.as_str()));
            assert_eq!(refused, file.starts_with(reads), "who reads {reads}* found of {file}: {found:?}");
        }
        fs::write(dir.join(file), good).unwrap();
    }
}

#[test]
fn texts_that_were_changed_with_their_hashes() {
    let (dir, compiled) = written("artifact-texts", |_| vec![(Target::X86V3, Code::Kernels)]);
    let whole = |p: &Program| p.plans.plans().map(|(_, p)| ir::plan::text::print_whole(p)).collect::<Vec<_>>();
    assert!(whole(&open(&dir).unwrap()) == whole(&compiled.programs[0]), "what was written is read");
    let m = Manifest::parse(&fs::read_to_string(dir.join(MANIFEST)).unwrap()).unwrap();
    let texts: Vec<String> = m.files.keys().filter(|f| f.starts_with("host/")).cloned().collect();
    let mut random = 1u64;
    let mut next = |n: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % n
    };
    let (mut refused, mut read) = (0, 0);
    for i in 0..200 {
        // Half of them in the plans.
        let file = match i % 4 {
            0 => "host/x86-64-v3/model.plan",
            2 => "host/x86-64-v3/prefill.plan",
            _ => &texts[next(texts.len())],
        };
        let good = fs::read(dir.join(file)).unwrap();
        let mut bad = good.clone();
        let at = next(bad.len());
        match next(4) {
            0 => bad[at] = b'0' + next(10) as u8,
            1 => drop(bad.remove(at)),
            2 => bad.truncate(at),
            _ => bad.insert(at, b" 9-{}%\"\n"[next(8)]),
        }
        replace(&dir, file, &bad);
        let whole = open(&dir).map(|_| ());
        let heads = Artifact::open(&dir).and_then(|a| a.plans(Target::X86V3, Bodies::Left)).map(|_| ());
        assert!(heads.is_ok() || whole.is_err(), "{file}: {heads:?}");
        for d in [&whole, &heads].into_iter().filter_map(|r| r.as_ref().err()) {
            assert!(d.code.starts_with('E') && !d.message.is_empty() && !d.place.is_empty(), "{d:?}");
        }
        *if whole.is_ok() { &mut read } else { &mut refused } += 1;
        replace(&dir, file, &good);
    }
    assert!(refused > 130, "{refused} refused, {read} read");
}
