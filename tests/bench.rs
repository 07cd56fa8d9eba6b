//! `isobit bench`: what it prints, as JSON and as tables; and its digests, which are those of `isobit run` of the same tokens,
//! on every target, poisoned or not, and those of no other tokens.
#![cfg(feature = "llvm")]

mod common;

use isobit::digest::Digest;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs isobit to its end; standard output.
fn isobit(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_isobit")).args(args).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn bench(more: &[&str]) -> Value {
    let fixed = ["bench", "--device", "cpu", "--json", "--threads", "2"];
    serde_json::from_str(&isobit(&[&fixed, more].concat())).unwrap()
}

/// Digests of a report, prompts first.
fn digests(report: &Value) -> Vec<&str> {
    let all = ["prefill", "decode"].map(|part| report[part].as_array().unwrap());
    all.into_iter().flatten().map(|m| m["logits"].as_str().unwrap()).collect()
}

/// The logits that `isobit run --logits` writes for `n` more tokens.
fn logits(dir: &Path, ids: &[u32], n: usize) -> Vec<Vec<f32>> {
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let file = dir.join("logits");
    let n = n.to_string();
    let line = ["run", "demo", "--ids", &list.join(","), "-n", &n, "--ignore-eos", "--logits", file.to_str().unwrap()];
    isobit(&[&line[..], &["--target", "x86-64-v3", "--threads", "1"]].concat());
    let bytes = std::fs::read(&file).unwrap();
    let end = 512 + (ids.len() + n.parse::<usize>().unwrap() - 1) * 4096 * 4;
    let floats: Vec<f32> = bytes[512..end].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    floats.chunks_exact(4096).map(<[f32]>::to_vec).collect()
}

#[test]
fn digests_are_those_of_a_run_of_the_same_tokens() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let what = ["--depth", "0,40", "--prefill", "24,1", "-n", "5", "--repeat", "2"];
    let report = bench(&what);
    let ids = models::random::tokens(1, 0..41, 4096);
    let of = |rows: &[Vec<f32>]| {
        let mut d = Digest::default();
        rows.iter().for_each(|r| d.row(r));
        d.hex()
    };
    let want = [
        of(&logits(&dir, &ids[..24], 1)[23..]),
        of(&logits(&dir, &ids[..1], 1)),
        of(&logits(&dir, &ids[..1], 5)),
        of(&logits(&dir, &ids[..41], 5)[40..]),
    ];
    assert_eq!(digests(&report), want);
    // Another seed is another text, and other digests.
    let other = bench(&[&what[..], &["--seed", "2"]].concat());
    assert!(digests(&other).iter().zip(&want).all(|(a, b)| *a != b));
    // Another program, chunk and memory is not.
    let poisoned =
        bench(&[&what[..], &["--poison", "--target", "x86-64-v3", "--fusion", "off", "--prefill-chunk", "7"]].concat());
    assert_eq!(digests(&poisoned), want);
    assert_eq!((&poisoned["poison"], &report["poison"]), (&true.into(), &false.into()));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_report_has_its_parts() {
    let dir = common::random::folder("bench-config", |c| c["quantization"] = serde_json::json!({"bits": 4, "group_size": 32}));
    let cache = dir.join("cache");
    let config = ["--config", dir.to_str().unwrap(), "--weights", "random:7", "--cache-dir", cache.to_str().unwrap()];
    let what = ["--depth", "3,0", "--prefill", "9", "-n", "4", "--repeat", "3"];
    let r = bench(&[&config[..], &what].concat());
    for key in
        ["weights", "target", "device", "launch", "kernels", "schedule", "poison", "chunk", "context", "n", "repeat", "seed"]
    {
        assert!(r.get(key).is_some(), "{key}: {r}");
    }
    // The seed of the tokens is that of the weights.
    assert_eq!(
        (&r["weights"], &r["seed"], &r["context"], &r["launch"]),
        (&"random:7".into(), &7.into(), &9.into(), &Value::Null)
    );
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{v} is no number in {r}"));
    assert!(number(&r["read_bandwidth"]) > 1e8 && number(&r["kernels"]) > 10.0);
    let memory = &r["memory"];
    let parts = ["weights", "kv_full", "kv_sliding", "workspace", "code"].map(|k| number(&memory[k]));
    assert_eq!(parts.iter().sum::<f64>(), number(&memory["total"]));
    assert!(parts.iter().all(|p| *p > 0.0) && number(&r["seconds"]["load"]) > 0.0);
    let (prefill, decode) = (&r["prefill"][0], r["decode"].as_array().unwrap());
    assert_eq!((&prefill["tokens"], &decode[0]["depth"], &decode[1]["depth"]), (&9.into(), &3.into(), &0.into()));
    for m in decode.iter().chain([prefill]) {
        let [median, low, high] = ["median", "low", "high"].map(|k| number(&m["tok_s"][k]));
        assert!(0.0 < low && low <= median && median <= high, "{m}");
        assert_eq!((m["seconds"].as_array().unwrap().len(), m["logits"].as_str().unwrap().len()), (3, 64));
    }
    for m in decode {
        let bytes = number(&m["bytes"]["weights"]) + number(&m["bytes"]["kv"]);
        let speed = number(&m["bytes_s"]);
        assert!((speed - bytes * number(&m["tok_s"]["median"])).abs() < 1e-6 * speed);
        assert!((number(&m["share"]) - speed / number(&r["read_bandwidth"])).abs() < 1e-6);
        assert!((number(&m["ms"]) * number(&m["tok_s"]["median"]) - 1e3).abs() < 1e-6);
    }
    // A later position reads more of the caches: 3 more rows in each of the layers, keys and values.
    let kv = |i: usize| number(&decode[i]["bytes"]["kv"]);
    assert_eq!(kv(0) - kv(1), 3.0 * (kv(1) / 2.5));

    let text = isobit(&[&["bench", "--device", "cpu"], &config[..], &what].concat());
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<&str> = lines.iter().map(|l| l.split("  ").next().unwrap()).take(7).collect();
    assert_eq!(heads, ["weights", "program", "launch", "schedule", "chunk, context", "memory", "read bandwidth"]);
    assert_eq!(lines.len(), 7 + 3 + 4, "{text}");
    for (line, digest) in [lines[9], lines[12], lines[13]].iter().zip(digests(&r)) {
        assert!(line.ends_with(&digest[..16]), "{line} has not {digest}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
