//! Whatever stands in the texts of an artifact whose hashes fit, reading it gives a program or an error, never a panic.

use isobit::artifact::{self, Artifact, FileEntry, MANIFEST, Manifest};
use isobit::emit::Code;
use isobit::options::{CompileOptions, PrefillPlan};
use isobit::pipeline::{self, Program, Watch};
use isobit::source::Source;
use isobit::target::{Class, Target};
use std::fs;
use std::path::Path;

/// Replaces a file and makes the manifest agree.
fn replace(dir: &Path, path: &str, bytes: &[u8]) {
    fs::write(dir.join(path), bytes).unwrap();
    let mut m = Manifest::parse(&fs::read_to_string(dir.join(MANIFEST)).unwrap()).unwrap();
    m.files.insert(path.into(), FileEntry::of(bytes));
    fs::write(dir.join(MANIFEST), m.text()).unwrap();
}

fn open(dir: &Path) -> Result<Program, isobit::Diagnostic> {
    Artifact::open(dir, &mut |_, _, _| {})?.interpreted()
}

#[test]
fn texts_that_were_changed_with_their_hashes() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifact-texts");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let dir = dir.join("a.isobit");
    let ck = Source::Demo.checkpoint().unwrap();
    let options = CompileOptions { prefill: PrefillPlan::On, ..CompileOptions::default() };
    let planned = pipeline::plan(&ck, &options, &[Class::Host], &mut Watch::default()).unwrap();
    let program = Program { target: Target::X86V3, plans: planned.plans[0].1.clone(), code: Code::Kernels };
    let compiled = pipeline::Compiled { options, planned, programs: vec![program] };
    artifact::write(&dir, &compiled, &ck, None, false, &mut |_, _, _| {}).unwrap();
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
        match open(&dir) {
            Ok(_) => read += 1,
            Err(d) => {
                assert!(d.code.starts_with('E') && !d.message.is_empty() && !d.place.is_empty(), "{d:?}");
                refused += 1;
            }
        }
        replace(&dir, file, &good);
    }
    assert!(refused > 130, "{refused} refused, {read} read");
}
