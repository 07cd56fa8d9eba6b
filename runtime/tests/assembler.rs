//! Assemblers: both make machine code of a kernel, the same each time and side by side, and say why not, with the kernel's name
//! and their log. Needs what `make assembler` puts under `.tools`; without it this fails, it does not skip.

use runtime::assembler::{Assembler, Cubins};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PTX: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n  .reg .b64 %rd<3>;\n  \
     .reg .b32 %r<2>;\n  ld.param.u64 %rd1, [p];\n  cvta.to.global.u64 %rd2, %rd1;\n  mov.u32 %r1, %tid.x;\n  \
     st.global.u32 [%rd2], %r1;\n  ret;\n}\n";

fn tool(path: &str) -> Assembler {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools").join(path);
    Assembler::at(&path).unwrap_or_else(|| panic!("{} is missing: run `make assembler`", path.display()))
}

fn both() -> [Assembler; 2] {
    [tool("lib/libnvJitLink.so.13"), tool("bin/ptxas")]
}

/// A program that stands for ptxas and does this when it is to assemble.
fn fake(name: &str, does: &str) -> Assembler {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let path: PathBuf = dir.join("ptxas");
    let text =
        format!("#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'Cuda compilation tools, release 1.2, V1.2.3'; exit; }}\n{does}\n");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Assembler::at(&path).unwrap()
}

#[test]
fn both_make_the_same_code_each_time() {
    for a in both() {
        for arch in ["sm_90", "sm_121"] {
            let one = a.assemble("k", PTX, arch).unwrap_or_else(|d| panic!("{d}"));
            let names: Vec<String> = (0..9).map(|i| format!("k{i}")).collect();
            let many: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), PTX)).collect();
            let mut told = vec![];
            let all = a.assemble_all(&many, arch, &mut |done, of| told.push((done, of))).unwrap_or_else(|d| panic!("{d}"));
            assert!(all.len() == 9 && all.iter().all(|c| *c == one), "{}, {arch}", a.name);
            assert_eq!(told, (0..=9).map(|n| (n, 9)).collect::<Vec<_>>());
        }
        assert!(a.assemble_all(&[], "sm_90", &mut |_, _| {}).unwrap().is_empty());
        println!("{}", a.name);
    }
}

#[test]
fn a_refusal_names_the_kernel_and_has_the_log() {
    let bad = PTX.replace("st.global.u32", "st.nowhere.u32");
    for a in both() {
        let d = a.assemble_all(&[("good", PTX), ("wrong", &bad)], "sm_90", &mut |_, _| {}).unwrap_err();
        assert!(d.code == "E0471" && d.place.contains("kernel `wrong`, sm_90"), "{d}");
        assert!(d.message.contains(".nowhere") || d.message.contains("line 10"), "{d}");
        // PTX for a later GPU, an architecture that is none, and text that ends early.
        let late = PTX.replace("sm_90", "sm_121").replace("8.0", "8.8");
        for (ptx, arch) in
            [(late.as_str(), "sm_90"), (PTX, "sm_1"), (&PTX[..PTX.len() - 9], "sm_90"), ("", "sm_90"), ("\0", "sm_90")]
        {
            let d = a.assemble("k", ptx, arch).unwrap_err();
            assert!(d.code == "E0471" && d.place.contains("kernel `k`"), "{}: {d}", a.name);
        }
    }
}

#[test]
fn an_assembler_that_lies_is_found_out() {
    let d = |does: &str, name: &str| fake(name, does).assemble("k", PTX, "sm_90").unwrap_err();
    assert_eq!(fake("asm-version", "").name, "ptxas 1.2");
    let e = d("echo 'ptxas fatal : no' >&2; exit 3", "asm-fails");
    assert!(e.code == "E0471" && e.message.contains("ptxas fatal : no") && e.message.contains('3'), "{e}");
    assert!(d("exit 0", "asm-nothing").message.contains("cannot be read"));
    assert!(d("printf junk > k.cubin", "asm-junk").message.contains("no machine code"));
    assert!(d("head -c 1500 /dev/zero > k.cubin", "asm-zeros").message.contains("no machine code"));
    // What does not say its version is none.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("asm-none");
    std::fs::create_dir_all(&dir).unwrap();
    for (name, text) in [("ptxas", "#!/bin/sh\nexit 1\n"), ("libnvJitLink.so.13", "no library")] {
        std::fs::write(dir.join(name), text).unwrap();
        assert!(Assembler::at(&dir.join(name)).is_none());
    }
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let ours = format!("isobit-ptxas-{}-", std::process::id());
    let left: Vec<_> = left.filter(|e| e.file_name().to_string_lossy().starts_with(&ours)).collect();
    assert!(left.len() <= 4, "folders are removed: {left:?}");
    assert_eq!(Cubins::ALL.map(|c| Cubins::parse(c.name())), Cubins::ALL.map(Some));
}
