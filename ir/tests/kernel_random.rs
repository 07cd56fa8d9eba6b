//! Random kernels: print and parse are inverse, the verifier accepts them, and no order that should not matter matters.

use ir::kernel::interp::{Order, RunOptions, run};
use ir::kernel::testgen::{Rng, case};
use ir::kernel::text::{parse, print, renumber};
use ir::kernel::verify::verify;

fn seeds() -> std::ops::Range<u64> {
    0..200
}

fn show(ds: &[ir::diag::Diagnostic]) -> String {
    ds.iter().map(|d| format!("{} {d}\n", d.code)).collect()
}

#[test]
fn print_and_parse_are_inverse() {
    for seed in seeds() {
        let k = case(seed).kernel;
        let text = print(&k);
        let back = parse(&text).unwrap_or_else(|d| panic!("seed {seed}:\n{}{text}", show(&d)));
        assert_eq!(back, renumber(&k), "seed {seed}");
        assert_eq!(print(&back), text, "seed {seed}");
    }
}

#[test]
fn verifier_accepts() {
    for seed in seeds() {
        let k = case(seed).kernel;
        if let Err(d) = verify(&k) {
            panic!("seed {seed}:\n{}{}", show(&d), print(&k));
        }
    }
}

#[test]
fn orders_and_checks_change_nothing() {
    let mut insts = 0;
    for seed in seeds() {
        let c = case(seed);
        let go = |o: RunOptions| {
            let mut bufs = c.bufs.clone();
            match run(&c.kernel, c.grid, &mut bufs, &o) {
                Ok(s) => (bufs, s),
                Err(d) => panic!("seed {seed}, {o:?}:\n{}{}", show(&d), print(&c.kernel)),
            }
        };
        let (want, stats) = go(RunOptions::default());
        insts += stats.warp_insts;
        assert_ne!(want, c.bufs, "seed {seed} stores nothing");
        let reverse =
            RunOptions { warp_order: Order::Reverse, block_order: Order::Reverse, poison: true, ..RunOptions::default() };
        for o in [reverse, RunOptions::checked(seed), RunOptions::checked(!seed)] {
            let (got, same) = go(o);
            assert!(got == want, "seed {seed}, {o:?}\n{}", print(&c.kernel));
            assert_eq!(same, stats);
        }
    }
    assert!(insts > 100_000, "{insts}");
}

/// Damaged texts give errors or kernels, never panics; what still verifies runs or fails with an error.
#[test]
fn damaged_texts_never_panic() {
    let mut rng = Rng(7);
    let (mut parsed, mut verified) = (0, 0);
    for round in 0..2500 {
        let seed = rng.below(60) as u64;
        let c = case(seed);
        let mut text = print(&c.kernel).into_bytes();
        for _ in 0..1 + rng.below(4) {
            damage(&mut rng, &mut text);
        }
        let text = String::from_utf8_lossy(&text);
        let Ok(k) = parse(&text) else { continue };
        parsed += 1;
        let again = parse(&print(&k)).unwrap_or_else(|d| panic!("round {round}:\n{}", show(&d)));
        if verify(&k).is_err() {
            continue;
        }
        assert_eq!(again, k, "round {round}");
        verified += 1;
        let o = RunOptions { max_steps: 2_000, ..RunOptions::checked(1) };
        let mut bufs = c.bufs.clone();
        let _ = run(&k, c.grid, &mut bufs, &o);
    }
    assert!(parsed > 100 && verified > 30, "{parsed} {verified}");
}

fn damage(rng: &mut Rng, text: &mut Vec<u8>) {
    let lines: Vec<(usize, usize)> = {
        let mut at = 0;
        text.split_inclusive(|b| *b == b'\n')
            .map(|l| {
                at += l.len();
                (at - l.len(), at)
            })
            .collect()
    };
    let n = text.len();
    let words: &[&[u8]] =
        &[b"%3", b"}", b"{", b"yield", b"0xffffffffffffffffff", b"if", b" = ", b"-1", b"\xff", b"barrier\n", b"%99999999999"];
    match rng.below(6) {
        0 => {
            let i = rng.below(n);
            text[i] = rng.bits() as u8;
        }
        1 => {
            let i = rng.below(n);
            let j = (i + 1 + rng.below(8)).min(n);
            text.drain(i..j);
        }
        2 => {
            let i = rng.below(n);
            let w = rng.pick(words);
            text.splice(i..i, w.iter().copied());
        }
        3 => {
            let (from, to) = rng.pick(&lines);
            text.drain(from..to);
        }
        4 => {
            let (from, to) = rng.pick(&lines);
            let line = text[from..to].to_vec();
            let at = rng.pick(&lines).0;
            text.splice(at..at, line);
        }
        _ => {
            let i = rng.below(n);
            if let Some(d) = text[i..].iter().position(|b| b.is_ascii_digit()) {
                text[i + d] = b'0' + rng.below(10) as u8;
            }
        }
    }
    if text.is_empty() {
        text.push(b'k');
    }
}
