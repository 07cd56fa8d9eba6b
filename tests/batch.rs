//! Several sequences: the logits of each are, as bits, those of a run alone: whatever its neighbours and its slot, however many
//! run together, admitted and finished at different times, in chunks of any size, fused and not, on host code and in the
//! interpreter. A set that covers every pair of choices is run.
#![cfg(feature = "llvm")]

mod common;

use common::golden::transcripts;
use common::pairwise::{cover, covered, product};
use common::*;
use ir::kernel::interp::RunOptions;
use ir::kernel::{Block, Inst, IntOp, Kernel, Mem, Op, Ty, V};
use ir::plan::phases::Phases;
use ir::plan::row;
use passes::Options;
use passes::lower::schedule::Schedule;
use runtime::cpu::CpuOptions;
use runtime::cpu::pool::Order;
use runtime::sequences::Sequences;
use runtime::session::{Limits, Session};
use std::collections::BTreeMap;
use std::sync::OnceLock;

const WIDTH: usize = 4096;

/// A prompt, and how many tokens follow it.
#[derive(Clone, Debug)]
struct Text {
    prompt: Vec<u32>,
    generated: usize,
}

/// Logits of every position, and the tokens chosen.
#[derive(Clone, Debug, Default)]
struct Outcome {
    logits: Vec<f32>,
    chosen: Vec<u32>,
}

/// Prompts of 1 to 60 tokens, and two past the window of 128.
fn texts() -> &'static [Text] {
    static TEXTS: OnceLock<Vec<Text>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let all: Vec<u32> = transcripts().iter().flat_map(|t| t.prompt.iter().copied()).collect();
        let length = |i: usize| match i {
            3 => 190,
            68 => 140,
            i => 1 + (i * i * 7 + i) % [5, 60, 23][i % 3],
        };
        let text = |i: usize| {
            let at = (i * 131) % (all.len() - 200);
            Text { prompt: all[at..at + length(i)].to_vec(), generated: 1 + (i * 5) % 7 }
        };
        (0..70).map(text).collect()
    })
}

/// As hosts run it, one kernel an operation, and with the forms of attention and matmul that GPUs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Fused,
    Unfused,
    Gpu,
}
use Form::*;
const FORMS: [Form; 3] = [Fused, Unfused, Gpu];

fn phases_of(form: Form) -> &'static (Phases, Vec<u8>) {
    static P: [OnceLock<(Phases, Vec<u8>)>; 3] = [const { OnceLock::new() }; 3];
    P[form as usize].get_or_init(|| {
        let options = if form == Unfused { without(&["fuse", "merge-launches"]) } else { Options::default() };
        let schedule = match form {
            Fused => Schedule { tokens: 4, ..Schedule::HOST },
            Unfused => Schedule { tokens: 2, ..Schedule::HOST },
            Gpu => Schedule::parse("4/4/4/1/0/0/8/80/16/4/0/0/0").expect("a schedule"),
        };
        let options = Options { schedule, ..options };
        let phases = phases(&through_passes(model(), &options), &options);
        let tiles = phases.prefill.iter().flat_map(|p| &p.launches).filter(|l| l.name.ends_with("attn.out") && l.tokens > 1);
        assert_eq!(tiles.count() > 0, form == Gpu, "tiles of tokens, which may be of several sequences");
        let code = object_of(&phases.kernels(), best_target());
        (phases, code)
    })
}

fn limits(slots: usize, rows: usize, outputs: usize) -> Limits {
    Limits { slots, context: 200, chunk: rows, slack: 0, outputs }
}

/// A run of its own on one slot, in chunks of 128.
fn alone(text: &Text, s: &mut Session) -> Outcome {
    let (logits, mut next) = logits(s, &text.prompt, 128);
    let mut o = Outcome { logits, chosen: vec![next] };
    while o.chosen.len() < text.generated {
        next = s.run(&[next], 1, 1, &mut |row| o.logits.extend_from_slice(row)).unwrap_or_else(|d| panic!("{d}"));
        o.chosen.push(next);
    }
    o
}

/// What each text gives alone: the plan for one token, fused, one thread.
fn wanted() -> &'static [Outcome] {
    static W: OnceLock<Vec<Outcome>> = OnceLock::new();
    W.get_or_init(|| {
        let (phases, code) = phases_of(Fused);
        let mut s = on_host(&phases.decode, code, threads(1), limits(1, 128, 128), checkpoint());
        texts().iter().map(|t| alone(t, &mut s)).collect()
    })
}

/// Runs texts together: one more is admitted every so many steps where a slot is free, and each ends where it has its tokens.
fn together(s: &mut Session, texts: &[Text], chunk: usize, every: usize) -> (Vec<Outcome>, usize) {
    let mut out = vec![Outcome::default(); texts.len()];
    let mut of_slot: BTreeMap<usize, usize> = BTreeMap::new();
    let mut sequences = Sequences::new(s, chunk);
    let (mut next, mut most) = (0, 0);
    for step in 0.. {
        while next < texts.len() && sequences.free() > 0 && (of_slot.is_empty() || step % every == 0) {
            let (slot, kept) = sequences.admit(&texts[next].prompt, true).unwrap_or_else(|d| panic!("{d}"));
            assert!(kept == 0 && of_slot.insert(slot, next).is_none(), "slot {slot} was free");
            next += 1;
            if every > 1 {
                break;
            }
        }
        if of_slot.is_empty() {
            break;
        }
        most = most.max(of_slot.len());
        let mut sink = |slot: usize, row: &[f32]| out[of_slot[&slot]].logits.extend_from_slice(row);
        for e in sequences.step(&mut sink).unwrap_or_else(|d| panic!("{d}")) {
            let i = of_slot[&e.slot];
            let token = e.next.unwrap_or_else(|d| panic!("{d}"));
            out[i].chosen.push(token);
            if out[i].chosen.len() == texts[i].generated {
                sequences.finish(e.slot);
                of_slot.remove(&e.slot);
            } else {
                sequences.push(e.slot, token).unwrap_or_else(|d| panic!("{d}"));
            }
        }
    }
    (out, most)
}

/// The first text that came out otherwise than alone.
fn unlike(want: &[Outcome], got: &[Outcome]) -> Option<String> {
    assert_eq!(want.len(), got.len());
    want.iter().zip(got).enumerate().find_map(|(i, (w, g))| {
        let d = difference(&w.logits, &g.logits, WIDTH);
        let d = d.or_else(|| (w.chosen != g.chosen).then(|| format!("{:?} against {:?}", w.chosen, g.chosen)));
        d.map(|d| format!("text {i}: {d}"))
    })
}

/// The texts from number `first` on and around, `count` of them, with what they give alone.
fn some(first: usize, count: usize) -> (Vec<Text>, Vec<Outcome>) {
    let all = texts().len();
    (0..count).map(|i| (first + i) % all).map(|i| (texts()[i].clone(), wanted()[i].clone())).unzip()
}

/// Slots, texts, and steps between admissions.
const BATCHES: [(usize, usize, usize); 4] = [(2, 7, 1), (7, 16, 3), (64, 70, 1), (64, 20, 2)];
const CHUNKS: [usize; 3] = [1, 5, 64];
const ORDERS: [Order; 2] = [Order::Forward, Order::Shuffled(7)];

#[test]
fn sequences_are_what_they_are_alone() {
    // Batch, chunk, form, plan for chunks, rows of a step, threads and order of blocks.
    let levels = [BATCHES.len(), CHUNKS.len(), FORMS.len(), 2, 2, 2];
    let rows = cover(&levels, &product(&levels));
    let (pairs, held) = covered(&levels, &rows);
    println!("{} runs hold {held} of {pairs} pairs of choices", rows.len());
    assert_eq!(held, pairs);
    let numbered: Vec<(usize, Vec<usize>)> = rows.into_iter().enumerate().collect();
    let bad: Vec<Option<String>> = on_two_threads(&numbered, |(n, r)| {
        let ((slots, count, every), chunk) = (BATCHES[r[0]], CHUNKS[r[1]]);
        let (phases, code) = phases_of(FORMS[r[2]]);
        let mut phases = phases.clone();
        if r[3] == 1 {
            phases.prefill = None;
        }
        // A row for each sequence, or so few rows that sequences must wait; and so few outputs too.
        let (rows, outputs) = if r[4] == 0 { (chunk.max(slots), 70) } else { (chunk, 3) };
        let cpu = CpuOptions { threads: 1 + r[5], poison: true, order: ORDERS[r[5]] };
        let mut s = on_host(&phases, code, cpu, limits(slots, rows, outputs), checkpoint());
        let (texts, want) = some(n * 11, count);
        let (got, most) = together(&mut s, &texts, chunk, every);
        let what = format!("{count} texts in {slots} slots, one every {every} steps, {r:?}");
        println!("{what}: up to {most} at once");
        assert!(every > 1 || most == slots, "{what}: only {most} at once");
        unlike(&want, &got).map(|d| format!("{what}: {d}"))
    });
    let bad: Vec<String> = bad.into_iter().flatten().collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn interpreters_agree() {
    on_two_threads(&FORMS, |&form| {
        let (phases, _) = phases_of(form);
        let (texts, want) = some(5, 5);
        let mut s = on_interpreter(phases, limits(3, 8, 8), checkpoint());
        if let Some(d) = unlike(&want, &together(&mut s, &texts, 5, 2).0) {
            panic!("interpreter, {form:?}: {d}");
        }
        // Short ones under all its checks: no race, no uninitialised read.
        let short: Vec<usize> = (0..texts.len()).filter(|&i| texts[i].prompt.len() < 6).take(2).collect();
        let (texts, want): (Vec<_>, Vec<_>) = short.iter().map(|&i| (texts[i].clone(), want[i].clone())).unzip();
        assert_eq!(texts.len(), 2);
        let mut s = on_device_of_kernels(phases, RunOptions::checked(3), limits(2, 4, 4), checkpoint());
        if let Some(d) = unlike(&want, &together(&mut s, &texts, 3, 1).0) {
            panic!("checked interpreter, {form:?}: {d}");
        }
    });
}

/// A slot serves one sequence after the other, and keeps what the next one shares with the last.
#[test]
fn slots_are_used_again() {
    let (phases, code) = phases_of(Fused);
    let text = &texts()[3];
    let (mut second, mut third) = (text.prompt.clone(), text.prompt[..40].to_vec());
    second.truncate(100);
    second.extend([17, 18, 19]);
    third.push(20);
    let want = |prompt: &[u32]| {
        let mut s = on_host(phases, code, threads(1), limits(1, 64, 64), checkpoint());
        let all = logits(&mut s, prompt, 64);
        (all.0[(prompt.len() - 1) * WIDTH..].to_vec(), all.1)
    };
    let mut s = on_host(phases, code, threads(1), Limits { slack: 512, ..limits(2, 64, 64) }, checkpoint());
    let mut sequences = Sequences::new(&mut s, 64);
    let mut kept = vec![];
    for prompt in [&text.prompt, &third, &second, &texts()[1].prompt] {
        let (slot, k) = sequences.admit(prompt, false).unwrap();
        let next = loop {
            if let Some(e) = sequences.step(&mut |_, _| panic!("no logits were asked for")).unwrap().pop() {
                assert_eq!(e.slot, slot);
                break e.next.unwrap();
            }
        };
        assert_eq!(next, want(prompt).1);
        kept.push((slot, k));
        if prompt.len() == 41 {
            continue; // It stays in its slot.
        }
        sequences.finish(slot);
    }
    assert_eq!(kept, [(0, 0), (0, 40), (1, 0), (1, 0)], "kept of the slots' last sequences");
}

#[test]
fn what_cannot_be_is_refused() {
    let (phases, code) = phases_of(Fused);
    let mut s = on_host(phases, code, threads(1), limits(2, 8, 2), checkpoint());
    let mut sequences = Sequences::new(&mut s, 8);
    assert_eq!(sequences.admit(&[], false).unwrap_err().code, "E0434");
    assert_eq!(sequences.admit(&[5; 201], false).unwrap_err().code, "E0435");
    assert_eq!(sequences.push(0, 5).unwrap_err().code, "E0492");
    let slots = [sequences.admit(&[5, 6], false).unwrap().0, sequences.admit(&[7], false).unwrap().0];
    assert_eq!((slots, sequences.free()), ([0, 1], 0));
    assert_eq!(sequences.admit(&[5], false).unwrap_err().code, "E0490");
    assert_eq!(sequences.push(0, 5).unwrap_err().code, "E0492", "it has tokens to run");
    assert_eq!(sequences.step(&mut |_, _| ()).unwrap().len(), 2);
    assert!(sequences.step(&mut |_, _| ()).unwrap().is_empty(), "all wait");
    sequences.finish(0);
    assert_eq!(sequences.free(), 1);
    // Caches that kernels could not number, and no slots at all.
    let refused = |slots, context| {
        let common = phases.common();
        let sizes = runtime::memory::Sizes::of(&common, &Limits { slots, context, ..limits(1, 8, 1) });
        runtime::memory::addressable(&common, &sizes).err().map(|d| d.code)
    };
    assert_eq!((refused(64, 1 << 16), refused(64, 1 << 22)), (None, Some("E0491")));
    let device = Box::new(runtime::interp::InterpDevice::new(RunOptions::default()));
    let none = Session::new(device, phases.clone(), &[], checkpoint(), limits(0, 8, 1), &mut |_, _| {});
    assert_eq!(none.err().map(|d| d.code), Some("E0432"));
}

/// Calls `f` on every list of instructions.
fn each(b: &mut Block, f: &mut dyn FnMut(&mut Vec<Inst>)) {
    f(&mut b.insts);
    for i in &mut b.insts {
        match &mut i.op {
            Op::For { body, .. } | Op::Pipeline { body, .. } => each(body, f),
            Op::If { then, els, .. } => [then, els].into_iter().for_each(|b| each(b, f)),
            _ => {}
        }
    }
}

/// Makes a kernel take this word of the table from the step's first row, whatever its own; how often it reads the word.
fn misread(k: &mut Kernel, word: u32) -> usize {
    let table = k.bufs.iter().position(|b| b.name.starts_with("rows"));
    let Some(table) = table.map(|i| Mem::Buf(i as u32)) else { return 0 };
    let (mut consts, mut added): (BTreeMap<V, i32>, BTreeMap<V, u32>) = Default::default();
    each(&mut k.body, &mut |insts| {
        for i in insts.iter() {
            match i.op {
                Op::ConstI(c) => _ = consts.insert(i.results[0], c),
                Op::Int(IntOp::Add, a, b) => {
                    if let Some(c) = consts.get(&b).or_else(|| consts.get(&a)) {
                        added.insert(i.results[0], *c as u32);
                    }
                }
                _ => {}
            }
        }
    });
    let (mut types, mut found) = (std::mem::take(&mut k.types), 0);
    each(&mut k.body, &mut |insts| {
        let reads = |i: &Inst| matches!(i.op, Op::Load { mem, idx, .. } if mem == table && added.get(&idx).copied().unwrap_or(row::POSITION) == word);
        for at in (0..insts.len()).rev() {
            if reads(&insts[at]) {
                types.push(Ty::I32);
                let first = V(types.len() as u32 - 1);
                if let Op::Load { idx, .. } = &mut insts[at].op {
                    *idx = first;
                }
                insts.insert(at, Inst { op: Op::ConstI(word as i32), results: vec![first] });
                found += 1;
            }
        }
    });
    k.types = types;
    ir::kernel::verify::verify(k).unwrap_or_else(|e| panic!("{}: {e:?}", k.name));
    found
}

/// Kernels that take a neighbour's slot, length or row for their own are noticed.
#[test]
fn a_neighbour_that_leaks_is_noticed() {
    let (right, _) = phases_of(Unfused);
    let right = &right.decode;
    // Texts of different lengths, so that what is another's is wrong.
    let mut picked: Vec<usize> = (0..20).collect();
    picked.sort_by_key(|&i| (texts()[i].prompt.len(), i));
    picked.dedup_by_key(|i| texts()[*i].prompt.len());
    let picked: Vec<usize> = picked.into_iter().filter(|&i| (3..30).contains(&texts()[i].prompt.len())).take(4).collect();
    let (texts, want): (Vec<_>, Vec<_>) = picked.iter().map(|&i| (texts()[i].clone(), wanted()[i].clone())).unzip();
    assert_eq!(texts.len(), 4);
    let run = |phases: &Phases| {
        let code = object_of(&phases.kernels(), best_target());
        let mut s = on_host(phases, &code, threads(1), limits(4, 8, 8), checkpoint());
        together(&mut s, &texts, 8, 1).0
    };
    assert_eq!(unlike(&want, &run(&right.clone().into())), None, "before the faults");
    let faults = [
        ("keys are written to the first row's slot", "attn.kv", row::SLOT),
        ("keys are read from the first row's slot", "attn.out", row::SLOT),
        ("the first row's length is the mask's", "attn.out", row::POSITION),
        ("queries turn by the first row's position", "attn.q", row::POSITION),
        ("every output is that of the first row", "", row::OUTPUT),
    ];
    for (what, part, word) in faults {
        let mut wrong = right.clone();
        let kernels: Vec<u32> = wrong.launches.iter().filter(|l| l.name.contains(part)).map(|l| l.kernel).collect();
        let mut found = 0;
        for (i, k) in wrong.kernels.iter_mut().enumerate() {
            if kernels.contains(&(i as u32)) {
                found += misread(k, word);
            }
        }
        assert!(found > 0, "{what}: nothing to change");
        println!("{what}: {}", unlike(&want, &run(&wrong.clone().into())).unwrap_or_else(|| panic!("not noticed: {what}")));
    }
    // In a tile of attention, too, each row has its own sequence.
    let mut wrong = phases_of(Gpu).0.clone();
    let prefill = wrong.prefill.as_mut().expect("a plan for many rows");
    let launch = prefill.launches.iter().find(|l| l.name.ends_with("attn.out")).expect("attention");
    let found = misread(&mut prefill.kernels[launch.kernel as usize], row::SLOT);
    assert!(found > 0, "nothing to change in a tile");
    let got = run(&wrong);
    println!("a tile takes all rows for the first one's sequence: {}", unlike(&want, &got).expect("not noticed"));
}
