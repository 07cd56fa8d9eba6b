//! Executes straight-line code for one warp. The same source is compiled twice on x86-64, once for AVX2 and FMA;
//! both give the same bits.

use super::decode::D;
use super::fault::{Check, Fault};
use super::mem::{CopyArgs, Ctx, LoadArgs, Reg, StoreArgs, atomic_add, bf16, copy, load, store};
use crate::kernel::{ApproxOp, BoolOp, FCmp, FloatOp, ICmp, IntOp, LANES};

/// Runs `code`, which starts at index `base` of the program, on the registers of one warp.
pub(super) type Exec = fn(&[D], u32, &mut [Reg], &mut Ctx<'_, '_>) -> Check;

/// The fastest executor for this machine.
pub(super) fn executor() -> Exec {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return |code, base, r, cx| {
            // SAFETY: both features were found on this machine just before this function was chosen.
            unsafe { avx2(code, base, r, cx) }
        };
    }
    plain
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(code: &[D], base: u32, r: &mut [Reg], cx: &mut Ctx<'_, '_>) -> Check {
    exec(code, base, r, cx)
}

fn plain(code: &[D], base: u32, r: &mut [Reg], cx: &mut Ctx<'_, '_>) -> Check {
    exec(code, base, r, cx)
}

/// Applies an expression lane by lane.
macro_rules! lanes {
    ($r:ident, $d:expr, [$($x:ident = $s:expr),*] $e:expr) => {{
        $(let $x = $r[*$s as usize];)*
        let out = &mut $r[*$d as usize];
        for i in 0..LANES {
            $(let $x = $x[i];)*
            out[i] = $e;
        }
    }};
}

#[inline(always)]
fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

/// Bits of a float result.
#[inline(always)]
fn canon(x: f32) -> u32 {
    if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }
}

#[inline(always)]
fn exec(code: &[D], base: u32, r: &mut [Reg], cx: &mut Ctx<'_, '_>) -> Check {
    for (at, d) in code.iter().enumerate() {
        if let Err(mut e) = step(d, r, cx) {
            e.at = Some(base + at as u32);
            e.warp = Some(cx.warp);
            return Err(e);
        }
    }
    Ok(())
}

#[inline(always)]
fn step(d: &D, r: &mut [Reg], cx: &mut Ctx<'_, '_>) -> Check {
    match d {
        D::Int(op, d, a, b) => match op {
            IntOp::Add => lanes!(r, d, [x = a, y = b] x.wrapping_add(y)),
            IntOp::Sub => lanes!(r, d, [x = a, y = b] x.wrapping_sub(y)),
            IntOp::Mul => lanes!(r, d, [x = a, y = b] x.wrapping_mul(y)),
            IntOp::And => lanes!(r, d, [x = a, y = b] x & y),
            IntOp::Or => lanes!(r, d, [x = a, y = b] x | y),
            IntOp::Xor => lanes!(r, d, [x = a, y = b] x ^ y),
            IntOp::Max => lanes!(r, d, [x = a, y = b](x as i32).max(y as i32) as u32),
            IntOp::Min => lanes!(r, d, [x = a, y = b](x as i32).min(y as i32) as u32),
            IntOp::Shl => {
                shift_amounts(&r[*b as usize])?;
                lanes!(r, d, [x = a, y = b] x << (y & 31));
            }
            IntOp::Lshr => {
                shift_amounts(&r[*b as usize])?;
                lanes!(r, d, [x = a, y = b] x >> (y & 31));
            }
            IntOp::Ashr => {
                shift_amounts(&r[*b as usize])?;
                lanes!(r, d, [x = a, y = b]((x as i32) >> (y & 31)) as u32);
            }
            IntOp::Div => {
                divisors(&r[*b as usize])?;
                lanes!(r, d, [x = a, y = b] x.checked_div(y).unwrap_or(0));
            }
            IntOp::Rem => {
                divisors(&r[*b as usize])?;
                lanes!(r, d, [x = a, y = b] x.checked_rem(y).unwrap_or(0));
            }
        },
        D::Float(op, d, a, b) => match op {
            FloatOp::Add => lanes!(r, d, [x = a, y = b] canon(f(x) + f(y))),
            FloatOp::Sub => lanes!(r, d, [x = a, y = b] canon(f(x) - f(y))),
            FloatOp::Mul => lanes!(r, d, [x = a, y = b] canon(f(x) * f(y))),
        },
        D::Fma(d, a, b, c) => lanes!(r, d, [x = a, y = b, z = c] canon(f(x).mul_add(f(y), f(z)))),
        D::RoundEven(d, a) => lanes!(r, d, [x = a] canon(f(x).round_ties_even())),
        D::RoundBf16(d, a) => lanes!(r, d, [x = a] bf16(x)),
        D::Approx(ApproxOp::Exp2, d, a) => lanes!(r, d, [x = a] libm::exp2f(f32::from_bits(x)).to_bits()),
        D::Approx(ApproxOp::Rsqrt, d, a) => lanes!(r, d, [x = a](1.0 / f32::from_bits(x).sqrt()).to_bits()),
        D::ICmp(op, d, a, b) => match op {
            ICmp::Eq => lanes!(r, d, [x = a, y = b] u32::from(x == y)),
            ICmp::Ne => lanes!(r, d, [x = a, y = b] u32::from(x != y)),
            ICmp::Lt => lanes!(r, d, [x = a, y = b] u32::from((x as i32) < y as i32)),
            ICmp::Le => lanes!(r, d, [x = a, y = b] u32::from(x as i32 <= y as i32)),
        },
        D::FCmp(op, d, a, b) => match op {
            FCmp::Eq => lanes!(r, d, [x = a, y = b] u32::from(f(x) == f(y))),
            FCmp::Lt => lanes!(r, d, [x = a, y = b] u32::from(f(x) < f(y))),
            FCmp::Le => lanes!(r, d, [x = a, y = b] u32::from(f(x) <= f(y))),
            FCmp::Nan => lanes!(r, d, [x = a, y = b] u32::from(f(x).is_nan() | f(y).is_nan())),
        },
        D::Bool(op, d, a, b) => match op {
            BoolOp::And => lanes!(r, d, [x = a, y = b] x & y),
            BoolOp::Or => lanes!(r, d, [x = a, y = b] x | y),
            BoolOp::Xor => lanes!(r, d, [x = a, y = b] x ^ y),
        },
        D::Select(d, p, a, b) => lanes!(r, d, [p = p, x = a, y = b] if p != 0 { x } else { y }),
        D::IToF(d, a) => lanes!(r, d, [x = a](x as i32 as f32).to_bits()),
        D::FToI(d, a) => {
            convertible(&r[*a as usize])?;
            lanes!(r, d, [x = a] f(x) as i32 as u32);
        }
        D::Dp4a { signs, d, a, b, acc } => match signs {
            0 => lanes!(r, d, [x = a, y = b, z = acc] dot(x, y, z, u8v, u8v)),
            1 => lanes!(r, d, [x = a, y = b, z = acc] dot(x, y, z, u8v, s8v)),
            2 => lanes!(r, d, [x = a, y = b, z = acc] dot(x, y, z, s8v, u8v)),
            _ => lanes!(r, d, [x = a, y = b, z = acc] dot(x, y, z, s8v, s8v)),
        },
        D::Mma { signs, d, a, b, acc } => {
            let (a, b) = (a.map(|s| r[s as usize]), b.map(|s| r[s as usize]));
            let acc = acc.map(|s| r[s as usize]);
            let out = &mut r[*d as usize..*d as usize + 4];
            match signs {
                0 => mma(out, &a, &b, &acc, u8v, u8v),
                1 => mma(out, &a, &b, &acc, u8v, s8v),
                2 => mma(out, &a, &b, &acc, s8v, u8v),
                _ => mma(out, &a, &b, &acc, s8v, s8v),
            }
        }
        D::ShuffleXor(d, a, m) => {
            let x = r[*a as usize];
            let out = &mut r[*d as usize];
            for i in 0..LANES {
                out[i] = x[(i ^ *m as usize) & (LANES - 1)];
            }
        }
        D::ShuffleIdx(d, a, s) => {
            let (x, s) = (r[*a as usize], r[*s as usize]);
            let out = &mut r[*d as usize];
            for i in 0..LANES {
                out[i] = x[s[i] as usize & (LANES - 1)];
            }
        }
        &D::Load { mem, elem, n, d, idx, pred } => {
            return load(cx, r, LoadArgs { mem, elem, n: n as usize, d, idx, pred });
        }
        &D::Store { mem, elem, idx, val, pred } => return store(cx, r, StoreArgs { mem, elem, idx, val, pred }),
        &D::AtomicAdd { buf, idx, val, pred, float } => return atomic_add(cx, r, buf, [idx, val, pred], float),
        &D::Copy { dst, src, dst_idx, src_idx, pred } => {
            return copy(cx, r, CopyArgs { dst, dst_idx, src, src_idx, pred });
        }
    }
    Ok(())
}

/// Byte `i`, unsigned.
#[inline(always)]
fn u8v(x: u32, i: u32) -> i32 {
    (x >> (8 * i) & 0xff) as i32
}

/// Byte `i`, signed.
#[inline(always)]
fn s8v(x: u32, i: u32) -> i32 {
    (x << (24 - 8 * i)) as i32 >> 24
}

#[inline(always)]
fn dot(x: u32, y: u32, acc: u32, a: impl Fn(u32, u32) -> i32, b: impl Fn(u32, u32) -> i32) -> u32 {
    let p = a(x, 0) * b(y, 0) + a(x, 1) * b(y, 1) + a(x, 2) * b(y, 2) + a(x, 3) * b(y, 3);
    acc.wrapping_add(p as u32)
}

/// A product of a warp: see [`crate::kernel::Op::Mma`] for what lies where.
#[inline(always)]
fn mma(
    out: &mut [Reg],
    a: &[Reg; 4],
    b: &[Reg; 2],
    acc: &[Reg; 4],
    av: impl Fn(u32, u32) -> i32 + Copy,
    bv: impl Fn(u32, u32) -> i32 + Copy,
) {
    for (i, out) in out.iter_mut().enumerate() {
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4) + i % 2);
            let mut sum = acc[i][lane];
            for k in 0..8 {
                sum = dot(a[i / 2 + k / 4 * 2][4 * row + k % 4], b[k / 4][4 * column + k % 4], sum, av, bv);
            }
            out[lane] = sum;
        }
    }
}

#[inline(always)]
fn shift_amounts(b: &Reg) -> Check {
    if b.iter().fold(0, |e, x| e | x) >= 32 {
        let lane = b.iter().position(|x| *x >= 32).unwrap_or(0);
        return Err(Fault::lane("E0154", lane, format!("shift by {}", b[lane])));
    }
    Ok(())
}

#[inline(always)]
fn divisors(b: &Reg) -> Check {
    match b.iter().position(|x| *x == 0) {
        Some(lane) => Err(Fault::lane("E0153", lane, "division by zero".into())),
        None => Ok(()),
    }
}

#[inline(always)]
fn convertible(a: &Reg) -> Check {
    let fits = |x: u32| f(x) >= -2147483648.0 && f(x) < 2147483648.0;
    if a.iter().fold(false, |e, x| e | !fits(*x)) {
        let lane = a.iter().position(|x| !fits(*x)).unwrap_or(0);
        let m = format!("{:?} is converted to an integer", f(a[lane]));
        return Err(Fault::lane("E0152", lane, m).hint("the value must be in -2^31..2^31 and not NaN"));
    }
    Ok(())
}
