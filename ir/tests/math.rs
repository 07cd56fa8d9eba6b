//! The elementary functions against f64, their symmetry and special values, and an executor that counts,
//! checks and disturbs the operations they are made of.

use ir::math::quant::{self, E_MAX, E_MIN, X_MAX};
use ir::math::{
    Arith, COS_ULP, EXP_ULP, Func, GELU_ABS, GELU_REL, GELU_TAIL, LOG_ULP, Ops, RECIP_ULP, RSQRT_ULP, SIN_ULP, SINCOS_LIMIT,
    SINCOS_POS_ABS, SINCOS_POS_LIMIT, Scalar, TANH_ULP, sincos, sincos_pos,
};
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4};
use std::f64::consts::PI;

/// The plain executor, made strict: an `f_to_i` of anything but an integer in range panics, so does a
/// product with a constant 0, ±1 or ±2 or an operation on constants alone (LLVM would rewrite those);
/// operations are counted; a NaN result gets the payload `nan`; `fault` disturbs the result of one float
/// operation by a relative 2^-20.
#[derive(Clone, Copy, Default)]
struct Strict {
    ops: Ops,
    nan: Option<u32>,
    fault: Option<u32>,
}

/// A value, and whether it is a constant of the program.
#[derive(Clone, Copy)]
struct V {
    v: f32,
    constant: bool,
}

fn v(v: f32) -> V {
    V { v, constant: false }
}

/// LLVM rewrites a product with one of these.
fn factors(a: V, b: V) {
    for x in [a, b] {
        let trivial = x.constant && [0.0, 1.0, 2.0].contains(&x.v.abs());
        assert!(!trivial, "a product with {}", x.v);
    }
}

impl Strict {
    fn issued(&self) -> u32 {
        self.ops.fma + self.ops.mul + self.ops.add
    }
    fn out(&mut self, y: f32, args: &[V]) -> V {
        assert!(!args.iter().all(|a| a.constant), "constants alone");
        if self.fault == Some(self.issued()) {
            return v(y + y * (1.0 / 1_048_576.0));
        }
        match self.nan {
            Some(bits) if y.is_nan() => v(f32::from_bits(bits)),
            _ => v(y),
        }
    }
}

impl Arith for Strict {
    type F = V;
    type I = i32;
    type B = bool;

    fn cf(&mut self, x: f32) -> V {
        V { v: x, constant: true }
    }
    fn ci(&mut self, x: i32) -> i32 {
        x
    }
    fn add(&mut self, a: V, b: V) -> V {
        self.ops.add += 1;
        self.out(a.v + b.v, &[a, b])
    }
    fn sub(&mut self, a: V, b: V) -> V {
        assert!(!(a.constant && a.v == 0.0), "0 - x is no negation");
        self.ops.add += 1;
        self.out(a.v - b.v, &[a, b])
    }
    fn mul(&mut self, a: V, b: V) -> V {
        factors(a, b);
        self.ops.mul += 1;
        self.out(a.v * b.v, &[a, b])
    }
    fn fma(&mut self, a: V, b: V, c: V) -> V {
        factors(a, b);
        assert!(!(c.constant && c.v == 0.0), "fma of a zero");
        assert!(!(a.constant && b.constant), "a constant product");
        self.ops.fma += 1;
        self.out(a.v.mul_add(b.v, c.v), &[a, b, c])
    }
    fn round_even(&mut self, a: V) -> V {
        v(a.v.round_ties_even())
    }
    fn f_to_i(&mut self, a: V) -> i32 {
        let range = -2_147_483_648.0..2_147_483_648.0;
        assert!(a.v == a.v.trunc() && range.contains(&a.v), "f_to_i({})", a.v);
        a.v as i32
    }
    fn i_to_f(&mut self, a: i32) -> V {
        v(a as f32)
    }
    fn bits(&mut self, a: V) -> i32 {
        a.v.to_bits() as i32
    }
    fn float(&mut self, a: i32) -> V {
        v(f32::from_bits(a as u32))
    }
    fn iadd(&mut self, a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    fn isub(&mut self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    fn iand(&mut self, a: i32, b: i32) -> i32 {
        a & b
    }
    fn ior(&mut self, a: i32, b: i32) -> i32 {
        a | b
    }
    fn shl(&mut self, a: i32, by: u32) -> i32 {
        assert!(by < 32);
        a << by
    }
    fn lshr(&mut self, a: i32, by: u32) -> i32 {
        assert!(by < 32);
        ((a as u32) >> by) as i32
    }
    fn ashr(&mut self, a: i32, by: u32) -> i32 {
        assert!(by < 32);
        a >> by
    }
    fn ilt(&mut self, a: i32, b: i32) -> bool {
        a < b
    }
    fn ieq(&mut self, a: i32, b: i32) -> bool {
        a == b
    }
    fn flt(&mut self, a: V, b: V) -> bool {
        a.v < b.v
    }
    fn is_nan(&mut self, a: V) -> bool {
        a.v.is_nan()
    }
    fn sel(&mut self, p: bool, a: V, b: V) -> V {
        v(if p { a.v } else { b.v })
    }
    fn isel(&mut self, p: bool, a: i32, b: i32) -> i32 {
        if p { a } else { b }
    }
}

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

fn plain(func: Func, x: f32) -> f32 {
    func.apply(&mut Scalar, x)
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in `lo..=hi`.
    fn range(&mut self, lo: i64, hi: i64) -> i64 {
        lo + (self.next() % (hi - lo + 1) as u64) as i64
    }
}

/// Where a run over all 2^32 inputs found the largest error of each function.
const WORST: [u32; 9] =
    [0xc0bb_2813, 0x3f21_4812, 0x3ec6_e797, 0x3f9c_031f, 0x4963_8262, 0x4972_8378, 0x3f22_ba71, 0x7e80_0aa8, 0x008d_ff8f];

/// Bit patterns at a stride, the known worst ones, the ends of every exponent, and where the functions change branch.
fn inputs(stride: usize) -> impl Iterator<Item = f32> {
    let ends = (0..=255u32).flat_map(|e| (-3..=3i32).map(move |d| (e << 23).wrapping_add_signed(d)));
    let turns = [
        0.63,
        1.0,
        10.0,
        9.02,
        GELU_TAIL,
        5.0,
        104.0,
        87.336_54,
        88.722_84,
        89.0,
        SINCOS_LIMIT,
        0.346_573_6,
        2.0 / 3.0,
        4.0 / 3.0,
        FRAC_PI_4,
        FRAC_PI_2,
        std::f32::consts::PI,
    ];
    let turns = turns.into_iter().flat_map(|x: f32| (-40..=40i32).map(move |d| x.to_bits().wrapping_add_signed(d)));
    (0..=u32::MAX).step_by(stride).chain(ends.chain(turns).chain(WORST).flat_map(|b| [b, b ^ 0x8000_0000])).map(f)
}

/// `2·sqrt(2/π)·(x + 0.044715·x³)`.
fn gelu_2u(x: f64) -> f64 {
    2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// The function in f64, whose own error is far below the bounds tested.
fn truth(func: Func, x: f32) -> f64 {
    let inside = x.abs() < SINCOS_LIMIT;
    let x = f64::from(x);
    match func {
        Func::Exp => x.exp(),
        Func::Tanh => x.tanh(),
        Func::Gelu => x / (1.0 + (-gelu_2u(x)).exp()),
        Func::Sin => {
            if inside {
                x.sin()
            } else {
                f64::NAN
            }
        }
        Func::Cos => {
            if inside {
                x.cos()
            } else {
                f64::NAN
            }
        }
        Func::Log => x.ln(),
        Func::Recip => 1.0 / x,
        Func::Rsqrt => 1.0 / x.sqrt(),
    }
}

/// `|y - t|` in ulp of t; infinities count as 2^128, where a wider exponent range would continue.
fn ulps(y: f32, t: f64) -> f64 {
    if y.is_nan() || t.is_nan() {
        return if y.is_nan() && t.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let top = 128f64.exp2();
    let (y, t) = (f64::from(y).clamp(-top, top), t.clamp(-top, top));
    let e = ((t.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let e = e.clamp(-126, 127);
    (y - t).abs() * f64::from(23 - e).exp2()
}

/// The error of one result as a fraction of the function's bound.
fn share_of_bound(func: Func, x: f32, y: f32) -> f64 {
    let t = truth(func, x);
    let bound = match func {
        Func::Exp => EXP_ULP,
        Func::Tanh => TANH_ULP,
        Func::Sin => SIN_ULP,
        Func::Cos => COS_ULP,
        Func::Log => LOG_ULP,
        Func::Recip => RECIP_ULP,
        Func::Rsqrt => RSQRT_ULP,
        Func::Gelu => {
            if !x.is_finite() || y.is_nan() {
                // special values have their own test
                return if x.is_nan() == y.is_nan() { 0.0 } else { f64::INFINITY };
            }
            // half of the smallest subnormal is free
            let e = ((f64::from(y) - t).abs() - (-150f64).exp2()).max(0.0);
            if e == 0.0 {
                return 0.0;
            }
            let x = f64::from(x);
            let absolute = e / (GELU_ABS * x.abs());
            if x < -f64::from(GELU_TAIL) {
                return absolute;
            }
            let relative = e / (GELU_REL * (1.0 + (-gelu_2u(x)).max(0.0)) * t.abs());
            return absolute.max(relative);
        }
    };
    ulps(y, t) / bound
}

/// The largest share of the bound over the inputs, and where.
fn worst(func: Func, stride: usize, mut run: impl FnMut(f32) -> f32) -> (f64, f32, usize) {
    let (mut most, mut at, mut n) = (0.0, 0.0, 0);
    for x in inputs(stride) {
        let e = share_of_bound(func, x, run(x));
        n += 1;
        if e > most {
            (most, at) = (e, x);
        }
    }
    (most, at, n)
}

fn check_bound(func: Func) {
    let (most, at, n) = worst(func, 4093, |x| plain(func, x));
    assert!(n >= 1_000_000);
    assert!(most <= 1.0, "{} at {at:e}: {most:.3} of its bound", func.name());
    // a bound that nothing comes near tests nothing
    assert!(most > 0.9, "{}: only {most:.3} of its bound", func.name());
}

#[test]
fn exp_keeps_its_bound() {
    check_bound(Func::Exp);
}
#[test]
fn tanh_keeps_its_bound() {
    check_bound(Func::Tanh);
}
#[test]
fn gelu_keeps_its_bound() {
    check_bound(Func::Gelu);
}
#[test]
fn sin_keeps_its_bound() {
    check_bound(Func::Sin);
}
#[test]
fn cos_keeps_its_bound() {
    check_bound(Func::Cos);
}
#[test]
fn log_keeps_its_bound() {
    check_bound(Func::Log);
}
#[test]
fn recip_keeps_its_bound() {
    check_bound(Func::Recip);
}
#[test]
fn rsqrt_keeps_its_bound() {
    check_bound(Func::Rsqrt);
}

/// The bound is tight enough to see a relative 2^-20 in one operation. Not in every one: the first Newton
/// steps correct themselves, and the last coefficients weigh little.
#[test]
fn a_disturbed_operation_breaks_the_bound() {
    for func in Func::ALL {
        let n = func.ops().fma + func.ops().mul + func.ops().add;
        let seen: Vec<u32> = (1..=n)
            .filter(|&fault| {
                let run = |x| {
                    let mut a = Strict { fault: Some(fault), ..Strict::default() };
                    func.apply(&mut a, v(x)).v
                };
                worst(func, 400_009, run).0 > 1.0
            })
            .collect();
        assert!(seen.contains(&n) && seen.len() >= 3, "{}: only {seen:?} of {n}", func.name());
    }
}

#[test]
fn special_values() {
    const INF: f32 = f32::INFINITY;
    let nan = f32::NAN;
    let tiny = f(1);
    let table: &[(Func, f32, f32)] = &[
        (Func::Exp, 0.0, 1.0),
        (Func::Exp, -0.0, 1.0),
        (Func::Exp, tiny, 1.0),
        (Func::Exp, -INF, 0.0),
        (Func::Exp, INF, INF),
        (Func::Exp, 88.722_84, INF),
        (Func::Exp, -103.972_1, 0.0),
        (Func::Exp, -103.972_08, tiny),
        (Func::Exp, -f32::MAX, 0.0),
        (Func::Exp, f32::MAX, INF),
        (Func::Tanh, 0.0, 0.0),
        (Func::Tanh, -0.0, -0.0),
        (Func::Tanh, tiny, tiny),
        (Func::Tanh, 9.02, 1.0),
        (Func::Tanh, f32::MAX, 1.0),
        (Func::Tanh, INF, 1.0),
        (Func::Tanh, -INF, -1.0),
        (Func::Gelu, 0.0, 0.0),
        (Func::Gelu, -0.0, -0.0),
        (Func::Gelu, INF, INF),
        (Func::Gelu, f32::MAX, f32::MAX),
        (Func::Gelu, -INF, -0.0),
        (Func::Gelu, -f32::MAX, -0.0),
        (Func::Gelu, 5.0, 5.0),
        (Func::Gelu, 6.1, 6.1),
        (Func::Sin, 0.0, 0.0),
        (Func::Sin, -0.0, -0.0),
        (Func::Sin, -tiny, -tiny),
        (Func::Sin, INF, nan),
        (Func::Sin, -INF, nan),
        (Func::Sin, SINCOS_LIMIT, nan),
        (Func::Sin, f32::MAX, nan),
        (Func::Cos, 0.0, 1.0),
        (Func::Cos, -0.0, 1.0),
        (Func::Cos, INF, nan),
        (Func::Cos, -SINCOS_LIMIT, nan),
        (Func::Log, 0.0, -INF),
        (Func::Log, -0.0, -INF),
        (Func::Log, 1.0, 0.0),
        (Func::Log, INF, INF),
        (Func::Log, -INF, nan),
        (Func::Log, -tiny, nan),
        (Func::Log, -1.0, nan),
        (Func::Recip, 0.0, INF),
        (Func::Recip, -0.0, -INF),
        (Func::Recip, INF, 0.0),
        (Func::Recip, -INF, -0.0),
        (Func::Recip, 1.0, 1.0),
        (Func::Recip, -4.0, -0.25),
        (Func::Recip, tiny, INF),
        (Func::Recip, f(0x0020_0000), INF),
        (Func::Recip, f(0x7f00_0000), f(0x0040_0000)),
        (Func::Rsqrt, 0.0, INF),
        (Func::Rsqrt, -0.0, -INF),
        (Func::Rsqrt, INF, 0.0),
        (Func::Rsqrt, -INF, nan),
        (Func::Rsqrt, -1.0, nan),
        (Func::Rsqrt, -tiny, nan),
        (Func::Rsqrt, 1.0, 1.0),
        (Func::Rsqrt, 0.25, 2.0),
    ];
    for &(func, x, want) in table {
        let y = plain(func, x);
        let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan();
        assert!(same, "{}({x:e}) = {y:e}, expected {want:e}", func.name());
    }
    for func in Func::ALL {
        for bits in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, u32::MAX] {
            assert!(plain(func, f(bits)).is_nan(), "{}({bits:08x})", func.name());
        }
        for i in 0..100_000u32 {
            let x = f((0x7f80_0001 + 83 * i) | (i << 31));
            assert!(plain(func, x).is_nan(), "{}({x:?})", func.name());
        }
    }
}

#[test]
fn symmetry_and_range() {
    for x in inputs(8191).filter(|x| !x.is_nan()) {
        let [tanh, sin, recip] = [Func::Tanh, Func::Sin, Func::Recip].map(|g| {
            let (y, z) = (plain(g, x), plain(g, -x));
            assert!(y.is_nan() && z.is_nan() || y.to_bits() == (-z).to_bits(), "{}({x:e})", g.name());
            y
        });
        let (cos, z) = (plain(Func::Cos, x), plain(Func::Cos, -x));
        assert!(cos.is_nan() && z.is_nan() || cos.to_bits() == z.to_bits(), "cos({x:e})");
        assert!(tanh.abs() <= 1.0 && tanh.abs() <= x.abs());
        assert!(!(sin.abs() > 1.0 || cos.abs() > 1.0));
        assert_eq!(recip.is_sign_negative(), x.is_sign_negative());
        let (s, c) = sincos(&mut Scalar, x);
        assert!(s.to_bits() == sin.to_bits() || s.is_nan());
        assert!(c.to_bits() == cos.to_bits() || c.is_nan());
    }
}

/// Neighbouring inputs: a decrease is at most one ulp, also where tanh changes branch.
#[test]
fn exp_and_tanh_are_almost_monotone() {
    for func in [Func::Exp, Func::Tanh] {
        let mut starts: Vec<u32> = (0..64u32).map(|i| 0x3a00_0000 + i * 0x0024_9249).collect();
        starts.push(0.63f32.to_bits() - 500);
        for start in starts {
            let mut last = plain(func, f(start));
            for d in 1..1000 {
                let y = plain(func, f(start + d));
                assert!(y.to_bits() + 1 >= last.to_bits(), "{} near {:e}", func.name(), f(start + d));
                last = y;
            }
        }
    }
}

/// The strict executor agrees with the plain one whatever a NaN looks like, and counts the documented
/// operations.
#[test]
fn nan_payloads_are_invisible_and_operations_are_counted() {
    for func in Func::ALL {
        for x in inputs(400_009) {
            let y = plain(func, x);
            for nan in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff, 0x7fd5_5555] {
                let mut a = Strict { nan: Some(nan), ..Strict::default() };
                let z = func.apply(&mut a, v(x)).v;
                let same = y.to_bits() == z.to_bits() || y.is_nan() && z.is_nan();
                assert!(same, "{}({x:e}): {y:e}, {z:e} with NaN {nan:08x}", func.name());
                assert_eq!(a.ops, func.ops(), "{}", func.name());
            }
        }
    }
    let mut a = Strict::default();
    sincos_pos(&mut a, 77, v(0.5), v(1e-9));
    assert_eq!(a.ops, Ops { fma: 13, mul: 3, add: 2 });
}

#[test]
fn rotary_angles() {
    let mut frequencies: Vec<f64> = vec![1.0, 0.999_999_97, 0.5, 1e-3, 1e-9, 1e-30];
    for (base, dim) in [(1e4f64, 128), (1e6, 256), (5e5, 512)] {
        frequencies.extend((0..dim / 2).map(|i| base.powf(-2.0 * f64::from(i) / f64::from(dim))));
    }
    let mut rng = Rng(1);
    frequencies.extend((0..600).map(|_| (rng.next() >> 11) as f64 / 53f64.exp2()));
    let check = |pos: i32, freq: f64, bound: f64| {
        let hi = freq as f32;
        let lo = (freq - f64::from(hi)) as f32;
        let (s, c) = sincos_pos(&mut Scalar, pos, hi, lo);
        let angle = f64::from(pos) * (f64::from(hi) + f64::from(lo));
        let e = (f64::from(s) - angle.sin()).abs().max((f64::from(c) - angle.cos()).abs());
        assert!(e <= bound, "position {pos}, frequency {freq:e}: {e:e}");
        e
    };
    let (mut n, mut most) = (0, 0f64);
    for &freq in &frequencies {
        for k in 0..1000 {
            let pos = if k < 64 { k } else { rng.range(0, 262_144) as i32 };
            most = most.max(check(pos, freq, SINCOS_POS_ABS));
            n += 1;
        }
        most = most.max(check(262_144, freq, SINCOS_POS_ABS));
    }
    assert!(n >= 1_000_000 && most > 0.3 * SINCOS_POS_ABS, "{n} {most:e}");
    for k in 0..20_000 {
        check(262_144 + 39 * k, frequencies[k as usize % 1000], SINCOS_POS_ABS);
    }
    assert_eq!(sincos_pos(&mut Scalar, 0, 0.3, 1e-9), (0.0, 1.0));
    for (pos, hi) in [(1 << 23, 0.125), (1, f32::INFINITY), (1, f32::NAN), (0, f32::INFINITY), (-(1 << 21), 1.0)] {
        assert!(hi.is_nan() || hi.is_infinite() || (pos as f32 * hi).abs() >= SINCOS_POS_LIMIT);
        let (s, c) = sincos_pos(&mut Scalar, pos, hi, 0.0);
        assert!(s.is_nan() && c.is_nan(), "{pos} {hi}");
    }
}

#[test]
fn group_exponents() {
    for e in 0..=255u32 {
        for m in [0, 1, 0x40_0000, 0x7f_fffe, 0x7f_ffff] {
            let bits = e << 23 | m;
            let amax = f(bits);
            let g = quant::group_exponent(&mut Scalar, bits as i32);
            assert_eq!(g.ok, amax.is_finite());
            let unbiased = e as i32 - 127;
            assert_eq!(g.e, (unbiased - 22).clamp(E_MIN, E_MAX));
            assert_eq!(f64::from(g.inv), f64::from(-g.e).exp2());
            if g.ok {
                assert_eq!(f64::from(g.scale), f64::from(g.e).exp2());
            } else {
                assert_eq!(g.scale.to_bits(), 0x7fc0_0000);
            }
            // the strict executor checks every conversion
            let mut a = Strict::default();
            let h = quant::group_exponent(&mut a, bits as i32);
            for (x, other) in [amax, -amax, f32::NAN, f32::INFINITY, 1.0].into_iter().zip([0, 0, 1, 1, 1]) {
                if other == 1 && h.ok {
                    continue;
                }
                let q = quant::quantize(&mut a, v(x), h.inv, h.ok);
                if !h.ok {
                    assert_eq!(q, 0);
                }
            }
            assert_eq!(a.ops.fma + a.ops.add, 0);
        }
    }
}

#[test]
fn quantized_values() {
    let mut rng = Rng(2);
    let (mut n, mut clamped, mut ties) = (0, 0, 0);
    for group in 0..32_000u32 {
        let e = group % 255;
        let amax = e << 23 | if group % 5 == 0 { 0x7f_ffff } else { rng.next() as u32 & 0x7f_ffff };
        let mut a = Strict::default();
        let g = quant::group_exponent(&mut a, amax as i32);
        for k in 0..32u32 {
            let below = match k {
                0 => amax,
                1 => amax - amax.min(1),
                2 => amax.saturating_sub(23 << 23),
                // near ties: few mantissa bits
                3..12 => amax.saturating_sub((k * 2) << 23) & 0xfff8_0000 | 0x0004_0000 & amax,
                _ => rng.range(0, i64::from(amax)) as u32,
            };
            let below = below.min(amax);
            let x = f(below | (rng.next() as u32) << 31);
            assert_eq!(quant::magnitude_bits(&mut a, v(x)), below as i32);
            let exact = f64::from(x) * f64::from(-g.e).exp2();
            ties += u32::from((exact - exact.trunc()).abs() == 0.5);
            let want = (exact.round_ties_even() as i32).min(X_MAX);
            clamped += u32::from(exact.round_ties_even() > f64::from(X_MAX));
            let got = quant::quantize(&mut a, v(x), g.inv, g.ok);
            assert_eq!(got, want, "{x:e} in {:e}", f(amax));
            assert!((-X_MAX - 1..=X_MAX).contains(&got));
            n += 1;
        }
    }
    assert!(n >= 1_000_000 && clamped > 1000 && ties > 1000, "{n} {clamped} {ties}");
}

#[test]
fn byte_planes() {
    let ends = [-X_MAX - 1, -X_MAX, -65_537, -65_536, -257, -256, -1, 0, 1, 255, 256, 65_535, 65_536, X_MAX];
    for x in (-X_MAX - 1..=X_MAX).step_by(13).chain(ends) {
        let (hi, mid, lo) = quant::planes(&mut Scalar, x);
        assert!((-128..128).contains(&hi) && (0..256).contains(&mid) && (0..256).contains(&lo));
        assert_eq!(65_536 * hi + 256 * mid + lo, x);
        assert_eq!(quant::join(&mut Scalar, hi, mid, lo), x as f32);
    }
}

/// `join` of the plane sums is the exact integer sum rounded once (`i64 as f32` rounds to nearest even).
#[test]
fn joined_sums_are_rounded_once() {
    let mut rng = Rng(3);
    let (mut twice, mut n) = (0, 0);
    for (q_lo, q_hi) in [(0, 15), (0, 255), (1, 1), (-8, 7), (-128, 127)] {
        for group in [32usize, 64, 128] {
            for round in 0..400 {
                let (mut exact, mut hi, mut mid, mut lo) = (0i64, 0i32, 0i32, 0i32);
                let fixed = [-i64::from(X_MAX) - 1, i64::from(X_MAX), -1, 0, 1, 0xffff, -0x10000, 0x7fff];
                for _ in 0..group {
                    let q = match round / 8 {
                        0 => q_hi,
                        1 => q_lo,
                        _ => rng.range(q_lo, q_hi),
                    };
                    let x = match round {
                        0..24 => fixed[round % 8],
                        24..100 => rng.range(-300, 300),
                        _ => rng.range(-i64::from(X_MAX) - 1, i64::from(X_MAX)),
                    };
                    let (h, m, l) = quant::planes(&mut Scalar, x as i32);
                    exact += q * x;
                    hi += q as i32 * h;
                    mid += q as i32 * m;
                    lo += q as i32 * l;
                }
                let got = quant::join(&mut Scalar, hi, mid, lo);
                assert_eq!(got.to_bits(), (exact as f32).to_bits(), "{exact}");
                let two = (hi as f32).mul_add(65_536.0, (256 * mid + lo) as f32);
                twice += u32::from(two != got);
                n += 1;
            }
        }
    }
    // rounding A before joining is another function: the test can tell
    assert!(twice > n / 100, "{twice} of {n}");

    // the whole stated range of plane sums, not only what a group reaches
    for i in 0..1_000_000u32 {
        let sum = match i {
            0 => i32::MIN,
            1 => i32::MAX,
            2 => 0,
            3 => -1,
            _ => rng.next() as i32,
        };
        let h = match i % 8 {
            0 => (1i64 << 24) * if i % 16 == 0 { 1 } else { -1 },
            1 => rng.range(-3, 3),
            _ => rng.range(-(1 << 24), 1 << 24),
        };
        let hi = (h - i64::from(sum >> 16)) as i32;
        let mid = (rng.next() as i32) >> 9;
        // 256·mid + lo = sum with any mid
        let lo = sum.wrapping_sub(mid.wrapping_mul(256));
        let exact = 65_536 * i64::from(hi) + i64::from(sum);
        let got = quant::join(&mut Scalar, hi, mid, lo);
        assert_eq!(got.to_bits(), (exact as f32).to_bits(), "{hi} {sum}");
    }
}
