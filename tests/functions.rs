//! The arithmetic that kernels are made of, over a million inputs each: elementary functions, the rotary angle, 24-bit fixed
//! point, its byte planes. Interpreter, plain Rust and host code give the same bits on every target (NaNs are one class).
//! Exact group sums equal a 64-bit integer reference rounded once.
#![cfg(feature = "llvm")]

mod common;

use common::fault;
use common::run::{Place, bytes, floats, joined, step};
use common::weights::{Kind, Made};
use common::*;
use ir::graph::op::{EmbedMode, Op};
use ir::graph::{Dtype, Elem as GElem, Graph, NodeId, Rows, Type};
use ir::kernel::build::Builder;
use ir::kernel::{Elem, IntOp, Kernel, Mem, V};
use ir::math::quant::{group_exponent, join, magnitude_bits, planes, quantize};
use ir::math::{Arith, Func, Scalar, f16_high, f16_low, sincos_pos};
use ir::order::ReductionOrder;
use ir::plan::Plan;
use passes::Options;
use passes::lower::schedule::Schedule;

const N: usize = 1 << 20;
/// Vectors of 32 that one block takes.
const RUN: u32 = 64;

/// A kernel of one warp over vectors of 32 words: `inputs` streams in, `outputs` streams out, all of `n` words.
fn elementwise(name: &str, inputs: &[Elem], outputs: &[Elem], f: impl FnOnce(&mut Builder, &[V]) -> Vec<V>) -> Kernel {
    let mut b = Builder::new(name, 1);
    let ins: Vec<Mem> = (0..inputs.len()).map(|i| b.buf(&format!("x{i}"), false)).collect();
    let outs: Vec<Mem> = (0..outputs.len()).map(|i| b.buf(&format!("y{i}"), true)).collect();
    let (block, lane) = (b.block_x(), b.lane());
    b.for_n(RUN, &[], |b, t, _| {
        let first = b.mul_c(block, RUN as i32);
        let row = b.int(IntOp::Add, first, t);
        let row = b.mul_c(row, 32);
        let at = b.int(IntOp::Add, row, lane);
        let xs: Vec<V> = ins.iter().zip(inputs).map(|(m, e)| b.load(*m, *e, at, None)).collect();
        let ys = f(b, &xs);
        assert_eq!(ys.len(), outs.len());
        outs.iter().zip(outputs).zip(ys).for_each(|((m, e), y)| b.store(*m, *e, at, y, None));
        vec![]
    });
    b.finish()
}

/// Zeros, subnormals, the edges of normal numbers, infinities, NaNs; and numbers next to the edges of the functions.
fn specials() -> Vec<u32> {
    let mut out = vec![];
    let edges = [
        0.0f32,
        1e-45,
        f32::MIN_POSITIVE,
        1e-20,
        1e-7,
        0.5,
        0.625,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        9.0,
        20.0,
        30.0,
        87.33654,
        88.72284,
        103.97208,
        127.0,
        128.0,
        8388607.5,
        8388608.0,
        16777216.0,
        2147483648.0,
        1e30,
        f32::MAX,
        f32::INFINITY,
    ];
    for e in edges.into_iter().chain((1..40).map(|k| k as f32 * std::f32::consts::FRAC_PI_4)) {
        for d in -3i32..=3 {
            let bits = e.to_bits().wrapping_add_signed(d) & 0x7fff_ffff;
            out.extend([bits, bits | 0x8000_0000]);
        }
    }
    out.extend([0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0xffff_ffff]);
    out
}

/// A million floats as bits: specials, all bit patterns at random, subnormals, and the range where functions are curved.
fn inputs(seed: u64) -> Vec<u32> {
    let (mut r, mut out) = (Rng(seed), specials());
    while out.len() < N {
        let w = r.word();
        out.push(match out.len() % 8 {
            0..3 => w,
            3 => w & 0x807f_ffff,
            4 => (r.unit() * 2.0).to_bits(),
            5 => (r.unit() * 12.0).to_bits(),
            6 => (r.unit() * 110.0).to_bits(),
            _ => (r.unit() * 20000.0).to_bits(),
        });
    }
    out
}

/// A kernel with its million inputs and what plain Rust gives.
struct Case {
    kernel: Kernel,
    inputs: Vec<Vec<u32>>,
    want: Vec<Vec<u32>>,
    /// Outputs are floats (NaNs are one class), not integers.
    is_float: Vec<bool>,
}

fn functions() -> Vec<Case> {
    Func::ALL
        .into_iter()
        .enumerate()
        .map(|(i, f)| {
            let x = inputs(i as u64);
            let want = x.iter().map(|x| f.apply(&mut Scalar, f32::from_bits(*x)).to_bits()).collect();
            let kernel = elementwise(&format!("f_{}", f.name()), &[Elem::F32], &[Elem::F32], |b, x| vec![f.apply(b, x[0])]);
            Case { kernel, inputs: vec![x], want: vec![want], is_float: vec![true] }
        })
        .collect()
}

/// Sine and cosine of `position * frequency`.
fn rotary() -> Case {
    let mut r = Rng(77);
    let (mut pos, mut hi, mut lo) = (vec![], vec![], vec![]);
    for i in 0..N {
        // The frequencies of the models, and others; positions of long texts, and the least and greatest.
        let theta: f64 = [1e4, 1e6][i % 2];
        let f = if i % 4 < 2 { theta.powf(-f64::from(r.below(64)) / 64.0) } else { f64::from(r.unit().abs()) };
        pos.push(match i % 16 {
            0 => [0, 1, 4095, 131_071, (1 << 24) - 1][r.below(5) as usize],
            1..8 => r.below(1 << 12),
            _ => r.below(1 << 18),
        });
        hi.push((f as f32).to_bits());
        lo.push(((f - f64::from(f as f32)) as f32).to_bits());
    }
    let both = |i: usize| sincos_pos(&mut Scalar, pos[i] as i32, f32::from_bits(hi[i]), f32::from_bits(lo[i]));
    let want = (0..N).map(both).map(|(s, c)| (s.to_bits(), c.to_bits())).unzip::<u32, u32, Vec<u32>, Vec<u32>>();
    let kernel = elementwise("rotary", &[Elem::I32, Elem::F32, Elem::F32], &[Elem::F32; 2], |b, x| {
        let (s, c) = sincos_pos(b, x[0], x[1], x[2]);
        vec![s, c]
    });
    Case { kernel, inputs: vec![pos, hi, lo], want: vec![want.0, want.1], is_float: vec![true; 2] }
}

/// Groups of 32 floats to fixed point and byte planes.
fn fixed_point() -> Case {
    let mut r = Rng(78);
    let hard = specials();
    let mut x = vec![];
    for g in 0..N / 32 {
        let size = f32::from_bits(r.below(255) << 23);
        for i in 0..32 {
            x.push(match g % 4 {
                // Around one size, and now and then far below.
                0..2 => (r.unit() * size * if r.below(8) == 0 { 1e-6 } else { 1.0 }).to_bits(),
                2 => r.word() & 0x807f_ffff | r.below(3) << 23,
                // Specials; one group in four of these has only finite ones.
                _ => {
                    let w = hard[r.below(hard.len() as u32) as usize];
                    if g % 16 == 3 && w & 0x7f80_0000 == 0x7f80_0000 { i } else { w }
                }
            });
        }
    }
    let mut want = vec![vec![]; 7];
    let a = &mut Scalar;
    for group in x.chunks_exact(32) {
        let amax = group.iter().map(|w| magnitude_bits(a, f32::from_bits(*w))).max().unwrap();
        let g = group_exponent(a, amax);
        for w in group {
            let q = quantize(a, f32::from_bits(*w), g.inv, g.ok);
            let (hi, mid, lo) = planes(a, q);
            let back = join(a, hi, mid, lo);
            for (out, v) in
                want.iter_mut().zip([g.e as u32, g.scale.to_bits(), q as u32, hi as u32, mid as u32, lo as u32, back.to_bits()])
            {
                out.push(v);
            }
        }
    }
    let (f, i) = (Elem::F32, Elem::I32);
    let kernel = elementwise("fixed_point", &[f], &[i, f, i, i, i, i, f], |b, x| {
        let mut amax = magnitude_bits(b, x[0]);
        for m in [16, 8, 4, 2, 1] {
            let other = b.shuffle_xor(amax, m);
            amax = b.int(IntOp::Max, amax, other);
        }
        let g = group_exponent(b, amax);
        let q = quantize(b, x[0], g.inv, g.ok);
        let (hi, mid, lo) = planes(b, q);
        let back = join(b, hi, mid, lo);
        vec![g.e, g.scale, q, hi, mid, lo, back]
    });
    Case { kernel, inputs: vec![x], want, is_float: vec![false, true, false, false, false, false, true] }
}

/// Sums of byte planes, as large as a group of 128 makes them, to one float.
fn joins() -> Case {
    let (mut r, mut sums, mut want) = (Rng(79), [vec![], vec![], vec![]], vec![]);
    let ends = [(-128 * 128 * 255, 127 * 128 * 255), (0, 255 * 128 * 255), (0, 255 * 128 * 255)];
    for i in 0..N {
        let mut exact = 0i64;
        for (k, (lo, hi)) in ends.into_iter().enumerate() {
            let v = match i % 4 {
                0 => [lo, hi, 0, lo + 1, hi - 1, 1][r.below(6) as usize].clamp(lo, hi),
                1 => r.below(1 << 16) as i32 + lo / 4096,
                _ => lo + r.below((hi - lo) as u32 + 1) as i32,
            };
            sums[k].push(v as u32);
            exact += i64::from(v) << (16 - 8 * k);
        }
        want.push((exact as f32).to_bits());
    }
    let kernel = elementwise("joins", &[Elem::I32; 3], &[Elem::F32], |b, x| vec![join(b, x[0], x[1], x[2])]);
    Case { kernel, inputs: sums.to_vec(), want: vec![want], is_float: vec![true] }
}

/// First output and input at which words differ.
fn first_difference(c: &Case, got: &[Vec<u8>]) -> Option<String> {
    for (k, (want, got)) in c.want.iter().zip(&got[c.inputs.len()..]).enumerate() {
        assert_eq!(got.len(), 4 * want.len());
        let words = got.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        let nan = |w: u32| c.is_float[k] && f32::from_bits(w).is_nan();
        let bad: Vec<(usize, u32)> = words.enumerate().filter(|(i, g)| *g != want[*i] && !(nan(*g) && nan(want[*i]))).collect();
        if let Some((i, g)) = bad.first() {
            let x: Vec<String> = c.inputs.iter().map(|x| format!("{:08x}", x[*i])).collect();
            let n = bad.len();
            return Some(format!(
                "{}: output {k} of {}: {g:08x}, expected {:08x} ({n} differ)",
                c.kernel.name,
                x.join(" "),
                want[*i]
            ));
        }
    }
    None
}

fn buffers(c: &Case) -> Vec<Vec<u8>> {
    let out = c.want.iter().map(|w| vec![0xa5; 4 * w.len()]);
    c.inputs.iter().map(|x| bytes(x.iter().copied())).chain(out).collect()
}

/// All binary16 numbers, in either half of a word.
fn halves() -> Case {
    let x: Vec<u32> = (0..N as u32).map(|i| (i & 0xffff) | i.wrapping_mul(0x9e37_79b9) & 0xffff_0000).collect();
    let wide = |h: u32| {
        // By the definition, in float64: exact.
        let (sign, e, m) = (if h >> 15 == 1 { -1.0 } else { 1.0 }, h >> 10 & 31, f64::from(h & 0x3ff));
        let v = match e {
            0 => m * 2f64.powi(-24),
            31 if m == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + m) * 2f64.powi(e as i32 - 25),
        };
        ((sign * v) as f32).to_bits()
    };
    let want = vec![x.iter().map(|w| wide(w & 0xffff)).collect(), x.iter().map(|w| wide(w >> 16)).collect()];
    let kernel = elementwise("halves", &[Elem::I32], &[Elem::F32; 2], |b, x| vec![f16_low(b, x[0]), f16_high(b, x[0])]);
    Case { kernel, inputs: vec![x], want, is_float: vec![true; 2] }
}

/// Products with 1 and 2, which the builder writes as LLVM would: a model may have such a softcap.
fn easy_factors() -> Case {
    let x = inputs(80);
    let times = |c: f32| x.iter().map(|x| (f32::from_bits(*x) * c).to_bits()).collect::<Vec<u32>>();
    let want = vec![times(1.0), times(2.0)];
    let kernel = elementwise("easy_factors", &[Elem::F32], &[Elem::F32; 2], |b, x| {
        let (one, two) = (b.f(1.0), b.f(2.0));
        vec![b.mul(x[0], one), b.mul(two, x[0])]
    });
    Case { kernel, inputs: vec![x], want, is_float: vec![true; 2] }
}

#[test]
fn interpreter_plain_rust_and_host_code_agree() {
    let mut cases = functions();
    cases.extend([rotary(), fixed_point(), joins(), halves(), easy_factors()]);
    let kernels: Vec<Kernel> = cases.iter().map(|c| c.kernel.clone()).collect();
    let all = Plan { kernels: kernels.clone(), ..Plan::default() };
    let targets = host_targets();
    let objects: Vec<Vec<u8>> = on_two_threads(&targets, |isa| object(&all, *isa));
    let mut places = vec![("interpreter", Place::Interpreter)];
    places.extend(targets.iter().zip(&objects).map(|(isa, o)| (isa.name(), Place::Host(o, 1))));
    let jobs: Vec<(usize, usize)> = (0..cases.len()).flat_map(|c| (0..places.len()).map(move |p| (c, p))).collect();
    let bad = on_two_threads(&jobs, |&(c, p)| {
        let (case, (name, place)) = (&cases[c], &places[p]);
        let (mut d, handles) = run::device(place, &kernels[c..=c]);
        let got = run::kernel(&mut *d, handles[0], &case.kernel, N as u32 / 32 / RUN, &buffers(case));
        first_difference(case, &got).map(|d| format!("{name}, {d}"))
    });
    let bad: Vec<String> = bad.into_iter().flatten().collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    let names: Vec<&str> = places.iter().map(|p| p.0).collect();
    println!("{} kernels over {N} inputs: {}", cases.len(), names.join(" = "));
}

/// One product rounded before it is added is found among a million inputs.
#[test]
fn a_wrong_function_is_noticed() {
    for mut c in functions() {
        let mut wrong = c.kernel.clone();
        assert!(fault::plant(&mut wrong, fault::last_contraction), "{} has no fma", wrong.name);
        c.kernel = wrong;
        let (mut d, handles) = run::device(&Place::Interpreter, std::slice::from_ref(&c.kernel));
        let got = run::kernel(&mut *d, handles[0], &c.kernel, N as u32 / 32 / RUN, &buffers(&c));
        println!("{}", first_difference(&c, &got).unwrap_or_else(|| panic!("{}: not noticed", c.kernel.name)));
    }
}

// ---- exact group sums through the lowering of a quantized matmul

const TOKENS: u32 = 256;
const ROWS: u32 = 256;
const GROUPS: u32 = 4;
/// Of the embedding; a power of two, so that activations stay what they are meant to be.
const FACTOR: f32 = 2.0;

/// Activations that are any 24-bit integers (the sum of three embeddings: high, middle and low byte), quantized, times a matrix.
fn product(bits: u32, group: u32) -> Graph {
    let (width, tokens) = (GROUPS * group, Type { elem: GElem::I32, rows: Rows::Tokens, shape: vec![] });
    let mut g = Graph::new(&format!("product_{bits}_{group}"));
    let ids = g.add("tokens", Op::Tokens, &[], tokens);
    let weight = |g: &mut Graph, name: &str, elem, rows| {
        g.add(name, Op::Weight, &[], Type { elem, rows: Rows::Once, shape: vec![rows, width] })
    };
    let parts: Vec<NodeId> = ["high", "middle", "low"]
        .iter()
        .map(|n| {
            let table = weight(&mut g, &format!("{n}.table"), GElem::Affine { bits: 8, group: 32, scales: Dtype::Bf16 }, TOKENS);
            g.add(n, Op::Embed { mode: EmbedMode::Exact, factor: FACTOR }, &[table, ids], Type::tokens(&[width]))
        })
        .collect();
    let x = g.add("upper", Op::Add, &parts[..2], Type::tokens(&[width]));
    let x = g.add("x", Op::Add, &[x, parts[2]], Type::tokens(&[width]));
    let q = g.add("x.q24", Op::Quantize { group }, &[x], Type::tokens(&[width]).with(GElem::Q24 { group }));
    let w = weight(&mut g, "w", GElem::Affine { bits, group, scales: Dtype::Bf16 }, ROWS);
    let order = Some(ReductionOrder::contiguous(4));
    let y = g.add("y", Op::QLinear { order }, &[q, w], Type::tokens(&[ROWS]));
    g.outputs = vec![y];
    g
}

/// The 24-bit integer that stands at element `i` of token `t`, and the power of two it is scaled with.
fn activation(seed: u32, t: u32, i: u32) -> (i32, i32) {
    let h = Rng(u64::from(seed) << 40 | u64::from(t) << 20 | u64::from(i)).word();
    let (least, most) = (-(1 << 23), (1 << 23) - 1);
    let x = match t % 8 {
        0 => [least, most][(h & 1) as usize],
        1 => most,
        2 => least,
        3 => (h & 1) as i32 - (h >> 1 & 1) as i32,
        4 if t == 4 => 0,
        5 => (h as i32) >> (8 + h % 24),
        _ => (h as i32) >> 8,
    };
    (x, [0, -30, 60, -119][(t / 8 % 4) as usize])
}

/// What row `r` of the matrix is: the one group that counts, and whether it shows the product (else the plain sum).
fn role(r: u32) -> (u32, bool) {
    (r % GROUPS, r / GROUPS % 4 != 3)
}

fn code(bits: u32, r: u32, i: u32) -> u32 {
    let most = (1 << bits) - 1;
    let h = Rng(u64::from(r) << 32 | u64::from(i)).word();
    match r / 16 % 4 {
        0 => most,
        1 => (h & 1) * most,
        _ => h % (most + 1),
    }
}

/// Sums in 64-bit integers, rounded once, over fixed point made with float64.
fn group_sums(seed: u32, bits: u32, group: u32) -> Vec<f32> {
    let mut out = vec![];
    for t in 0..TOKENS {
        let fixed = |g: u32| -> (Vec<i64>, i32) {
            let xs: Vec<f64> = (0..group)
                .map(|i| activation(seed, t, g * group + i))
                .map(|(x, p)| f64::from(x) * 2f64.powi(p) * f64::from(FACTOR))
                .collect();
            let amax = xs.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let exponent = if amax < f64::from(f32::MIN_POSITIVE) { -127 } else { amax.log2().floor() as i32 };
            let e = (exponent - 22).clamp(-126, 105);
            (xs.iter().map(|x| ((x * 2f64.powi(-e)).round_ties_even() as i64).min((1 << 23) - 1)).collect(), e)
        };
        let groups: Vec<(Vec<i64>, i32)> = (0..GROUPS).map(fixed).collect();
        for r in 0..ROWS {
            let (g, is_product) = role(r);
            let (x, e) = &groups[g as usize];
            let q = |i: usize| if is_product { i64::from(code(bits, r, g * group + i as u32)) } else { 1 };
            let sum: i64 = x.iter().enumerate().map(|(i, x)| q(i) * x).sum();
            out.push(((f64::from(sum as f32)) * 2f64.powi(*e)) as f32);
        }
    }
    out
}

fn weights_of(g: &Graph, seed: u32, bits: u32, group: u32) -> Made {
    let mut m = Made::of(g, Kind::Random, 1);
    for (k, name) in ["high", "middle", "low"].into_iter().enumerate() {
        let shift = 16 - 8 * k as u32;
        // Planes of the integer; the high one is offset by 128.
        let mut byte = |t: u32, i: u32| ((activation(seed, t, i).0 as u32 ^ 0x80_0000) >> shift) & 255;
        let mut scale = |t: u32, _: u32| {
            let s = 2f32.powi(shift as i32 + activation(seed, t, 0).1);
            (s, if k == 0 { -128.0 * s } else { 0.0 })
        };
        m.set(&format!("{name}.table"), &mut byte, &mut scale);
    }
    let mut one = |r: u32, g: u32| match role(r) {
        (mine, _) if mine != g => (0.0, 0.0),
        (_, true) => (1.0, 0.0),
        (_, false) => (0.0, 1.0),
    };
    m.set("w", &mut |r, i| code(bits, r, i), &mut one);
    assert!(group.is_multiple_of(32));
    m
}

#[test]
fn group_sums_are_exact_integers_rounded_once() {
    let formats = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)];
    let schedules = [Schedule::HOST, Schedule::GPU, Schedule { stages: 3, warps: 2, chain_lanes: 2, ..Schedule::GPU }];
    let graphs: Vec<Graph> =
        formats.iter().map(|&(bits, group)| through_passes(product(bits, group), &Options::default())).collect();
    let mut plans: Vec<Vec<Plan>> = graphs
        .iter()
        .map(|g| schedules.iter().map(|&schedule| plan(g, &Options { schedule, ..Options::default() })).collect())
        .collect();
    let all = Plan { kernels: joined(&mut plans.iter_mut().flatten().collect::<Vec<_>>()), ..Plan::default() };
    let targets = host_targets();
    let objects = on_two_threads(&targets, |isa| object(&all, *isa));
    let mut places = vec![("interpreter", Place::Interpreter)];
    places.extend(targets.iter().zip(&objects).map(|(isa, o)| (isa.name(), Place::Host(o, 2))));
    let tokens: Vec<u32> = (0..TOKENS).collect();
    let jobs: Vec<usize> = (0..formats.len()).collect();
    on_two_threads(&jobs, |&f| {
        let (bits, group) = formats[f];
        // Four seeds make a million sums over the formats.
        for seed in 0..4 {
            let (want, source) = (group_sums(seed, bits, group), weights_of(&graphs[f], seed, bits, group));
            for (plan, schedule) in plans[f].iter().zip(&schedules) {
                for (name, place) in &places {
                    if seed > 0 && *name == "interpreter" && schedule.stages > 0 {
                        continue;
                    }
                    let got = step(plan, place, &source, &tokens, 0, &[("y", ROWS as usize)]);
                    same_bits(
                        &format!("{bits} bits, groups of {group}, {name}, {schedule}, seed {seed}"),
                        &want,
                        &got[0],
                        ROWS as usize,
                    );
                }
            }
        }
    });
    let sums = formats.len() * 4 * (TOKENS * ROWS) as usize;
    println!("{sums} group sums on {} schedules", schedules.len());
    // Rounding twice would show: so many sums need their one rounding.
    let f = floats(&bytes(group_sums(0, 8, 128).iter().map(|x| x.to_bits())));
    let inexact = f.iter().filter(|x| x.to_bits() & 1 == 1).count();
    assert!(inexact > f.len() / 8, "{inexact} of {} sums use all bits of a float", f.len());
}

/// What joining the planes by two roundings would give: other bits in some groups, so that the comparison above can fail.
#[test]
fn planes_joined_by_two_roundings_are_noticed() {
    let c = joins();
    let twice = |i: usize| {
        let s = |k: usize| c.inputs[k][i] as i32 as f32;
        s(0).mul_add(65536.0, s(1).mul_add(256.0, s(2)))
    };
    let other = (0..N).filter(|&i| twice(i).to_bits() != c.want[0][i]).count();
    println!("{other} of {N} sums differ when rounded twice");
    assert!(other > N / 1000);
}
