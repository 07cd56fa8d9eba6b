//! The peak of memory while a model is loaded: at most its packed weights and a tenth, with 24 MiB for what does not grow
//! with the model (pieces in work, code, stacks of threads). Pages of mapped files count. A loader that keeps a second copy is
//! seen. One test, alone in its process, since the peak is that of the process.

mod common;

use codegen::HostIsa;
use ir::graph::interp::pieces::{Head, Piece, Tensor};
use ir::graph::interp::{Affine, Plain, WeightSource};
use ir::plan::Plan;
use models::Checkpoint;
use runtime::cpu::{CpuDevice, CpuOptions};
use runtime::memory::Needs;
use runtime::session::{Limits, Session};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

const FIXED: u64 = 24 << 20;

/// Bytes of a line of /proc/self/status.
fn status(line: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = text.lines().find_map(|l| l.strip_prefix(line)).unwrap().trim_start_matches(':');
    kib.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Bytes that loading took at most beyond what the process had, and bytes of packed weights.
fn peak(plan: &Plan, code: &[u8], source: &dyn WeightSource) -> (u64, u64) {
    let limits = Limits { slots: 1, context: 64, chunk: 4, slack: 0, outputs: 1 };
    let packed = Needs::of(plan, &limits, source, 0).unwrap().weights;
    // Sets the peak to what there is.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmHWM");
    let device = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let s = Session::new(Box::new(device), plan.clone(), code, source, limits, &mut |_, _| {}).unwrap_or_else(|d| panic!("{d}"));
    let after = status("VmHWM");
    drop(s);
    (after - before, packed)
}

/// The plant: a source that keeps what it gave.
struct Keeping<'a> {
    source: &'a Checkpoint,
    kept: Mutex<Vec<Vec<u8>>>,
}

struct Kept<'a> {
    tensor: Box<dyn Tensor + 'a>,
    kept: &'a Mutex<Vec<Vec<u8>>>,
}

impl Tensor for Kept<'_> {
    fn head(&self) -> Head {
        self.tensor.head()
    }
    fn rows(&self, m: u32, rows: Range<u32>) -> Piece<'_> {
        let p = self.tensor.rows(m, rows);
        self.kept.lock().unwrap().push(p.elements.to_vec());
        p
    }
}

impl WeightSource for Keeping<'_> {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        self.source.plain(name)
    }
    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        self.source.affine(name)
    }
    fn open(&self, name: &str) -> Option<Box<dyn Tensor + '_>> {
        Some(Box::new(Kept { tensor: self.source.open(name)?, kept: &self.kept }))
    }
    fn done(&self, bytes: &[u8]) {
        self.source.done(bytes);
    }
}

/// The plant: a source that does not give pages of files back.
struct Holding<'a>(&'a Checkpoint);

impl WeightSource for Holding<'_> {
    fn plain(&self, name: &str) -> Option<Plain<'_>> {
        self.0.plain(name)
    }
    fn affine(&self, name: &str) -> Option<Affine<'_>> {
        self.0.affine(name)
    }
}

/// About 400 MB in bf16, half of it in the vocabulary.
fn folder(name: &str, bits: Option<u32>) -> std::path::PathBuf {
    common::random::folder(name, |c| {
        if let Some(bits) = bits {
            c["quantization"] = serde_json::json!({"bits": bits, "group_size": 64});
        }
        let t = &mut c["text_config"];
        t["hidden_size"] = 1024.into();
        t["num_hidden_layers"] = 2.into();
        t["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
        t["intermediate_size"] = 12_288.into();
        for key in ["vocab_size", "vocab_size_per_layer_input"] {
            if t.get(key).is_some() {
                t[key] = 98_304.into();
            }
        }
        if c.get("vocab_size").is_some() {
            c["vocab_size"] = 98_304.into();
        }
    })
}

fn program(ck: &Checkpoint) -> (Plan, Vec<u8>) {
    let options = passes::Options::default();
    let graph = models::gemma4::layers::graph(ck, ir::graph::op::EmbedMode::Factor).unwrap_or_else(|d| panic!("{d}"));
    let plan = common::plan(&common::through_passes(graph, &options), &options);
    let code = common::object(&plan, HostIsa::X86_64V3);
    (plan, code)
}

fn bound(packed: u64) -> u64 {
    packed + packed / 10 + FIXED
}

#[test]
fn loading_takes_the_packed_weights_and_a_tenth() {
    let dir = folder("peak-bf16", None);
    let random = common::random::open(&dir, 3);
    let (plan, code) = program(&random);
    let (took, packed) = peak(&plan, &code, &random);
    println!("bf16, random: {} MB for {} MB", took / 1_000_000, packed / 1_000_000);
    // Free memory that the compiler left is taken first, so a little less may be seen than was taken.
    assert!(packed > 350_000_000 && took >= packed / 10 * 9 && took <= bound(packed), "random: {took} for {packed}");
    common::random::store(&random, &dir);
    let stored = Checkpoint::open(&dir).unwrap_or_else(|d| panic!("{d}"));
    // Hashing, too, gives back what it read.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let (before, start) = (status("VmHWM"), std::time::Instant::now());
    assert_eq!(stored.content_hash().len(), 64);
    let (took, seconds) = (status("VmHWM") - before, start.elapsed().as_secs_f64());
    println!("hashed at {:.2} GB/s, {} MB mapped", packed as f64 / 1e9 / seconds, took / 1_000_000);
    assert!(took < 100 << 20, "hashing took {took} bytes");
    let (took, packed) = peak(&plan, &code, &stored);
    println!("bf16, stored: {} MB for {} MB", took / 1_000_000, packed / 1_000_000);
    assert!(took <= bound(packed), "stored: {took} for {packed}");
    let (took, _) = peak(&plan, &code, &Keeping { source: &stored, kept: Mutex::new(vec![]) });
    assert!(took > bound(packed), "a second copy is not seen: {took} for {packed}");
    let (took, _) = peak(&plan, &code, &Holding(&stored));
    assert!(took > bound(packed), "pages of files are not seen: {took} for {packed}");
    drop(stored);
    std::fs::remove_dir_all(&dir).unwrap();

    let dir = folder("peak-8bit", Some(8));
    let random = common::random::open(&dir, 3);
    let (plan, code) = program(&random);
    let (took, packed) = peak(&plan, &code, &random);
    println!("8 bits, random: {} MB for {} MB", took / 1_000_000, packed / 1_000_000);
    assert!(packed > 150_000_000 && took <= bound(packed), "8 bits: {took} for {packed}");
    std::fs::remove_dir_all(Path::new(&dir)).unwrap();
}
