//! The interpreter, op by op against plain Rust, and its errors.

use ir::kernel::build::Builder;
use ir::kernel::interp::{Arg, Machine, Order, RunOptions, run};
use ir::kernel::testgen::Rng;
use ir::kernel::text::parse;
use ir::kernel::{BoolOp, Elem, FCmp, FloatOp, ICmp, IntOp, V};
use ir::math::Arith;

const ROWS: usize = 40;

fn words(xs: &[u32]) -> Vec<u8> {
    xs.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn unwords(b: &[u8]) -> Vec<u32> {
    b.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c)).collect()
}

fn random_words(rng: &mut Rng, floats: bool) -> Vec<u32> {
    let special = [0u32, 1, 31, 32, 0x8000_0000, 0x7fff_ffff, 0xffff_ffff, 0x7f80_0000, 0xff80_0000, 0x7f7f_ffff, 0x3f00_0000];
    let near = |rng: &mut Rng| (rng.bits() as u32 & 0x81ff_ffff) | 0x3e00_0000;
    (0..ROWS * 32)
        .map(|_| match rng.below(4) {
            0 => rng.pick(&special),
            1 if floats => near(rng),
            2 => rng.below(200) as u32,
            _ => rng.bits() as u32,
        })
        .collect()
}

/// Applies an operation to three random operands, in all 32 lanes of many blocks, and compares with `want`.
fn check(name: &str, floats: bool, op: impl Fn(&mut Builder, [V; 3]) -> V, want: impl Fn(u32, u32, u32) -> u32) {
    let elem = if floats { Elem::F32 } else { Elem::I32 };
    let mut b = Builder::new("op", 1);
    let ins = ["a", "b", "c"].map(|n| b.buf(n, false));
    let out = b.buf("out", true);
    let (lane, x) = (b.lane(), b.block_x());
    let row = b.mul_c(x, 32);
    let idx = b.int(IntOp::Add, row, lane);
    let vs = ins.map(|m| b.load(m, elem, idx, None));
    let r = op(&mut b, vs);
    let (r, elem) = match b.ty(r) {
        ir::kernel::Ty::Bool => {
            let (one, zero) = (b.i(1), b.i(0));
            (b.select(r, one, zero), Elem::I32)
        }
        ir::kernel::Ty::F32 => (r, Elem::F32),
        ir::kernel::Ty::I32 => (r, Elem::I32),
    };
    b.store(out, elem, idx, r, None);
    let mut rng = Rng(name.len() as u64);
    let ins: Vec<Vec<u32>> = (0..3).map(|_| random_words(&mut rng, floats)).collect();
    let mut bufs: Vec<Vec<u8>> = ins.iter().map(|x| words(x)).collect();
    bufs.push(vec![0; ROWS * 128]);
    run(&b.finish(), [ROWS as u32, 1], &mut bufs, &RunOptions::checked(1)).unwrap_or_else(|d| panic!("{name}: {d:?}"));
    for (i, got) in unwords(&bufs[3]).into_iter().enumerate() {
        let (x, y, z) = (ins[0][i], ins[1][i], ins[2][i]);
        assert_eq!(got, want(x, y, z), "{name} {x:#x} {y:#x} {z:#x} in element {i}: {got:#x}");
    }
}

fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

fn canon(x: f32) -> u32 {
    if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }
}

#[test]
fn integer_operations() {
    let int = |name, op: IntOp, want: fn(u32, u32) -> u32| {
        check(name, false, |b, [x, y, _]| b.int(op, x, y), |x, y, _| want(x, y));
    };
    int("add", IntOp::Add, u32::wrapping_add);
    int("sub", IntOp::Sub, u32::wrapping_sub);
    int("mul", IntOp::Mul, u32::wrapping_mul);
    int("and", IntOp::And, |x, y| x & y);
    int("or", IntOp::Or, |x, y| x | y);
    int("xor", IntOp::Xor, |x, y| x ^ y);
    int("max", IntOp::Max, |x, y| if x as i32 > y as i32 { x } else { y });
    int("min", IntOp::Min, |x, y| if (x as i32) < y as i32 { x } else { y });
    let masked = |name, op, want: fn(u32, u32) -> u32| {
        check(
            name,
            false,
            |b, [x, y, _]| {
                let y = b.int_c(IntOp::And, y, 31);
                b.int(op, x, y)
            },
            |x, y, _| want(x, y & 31),
        );
    };
    masked("shl", IntOp::Shl, |x, y| x << y);
    masked("lshr", IntOp::Lshr, |x, y| x >> y);
    masked("ashr", IntOp::Ashr, |x, y| ((x as i32) >> y) as u32);
    let odd = |name, op, want: fn(u32, u32) -> u32| {
        check(
            name,
            false,
            |b, [x, y, _]| {
                let y = b.int_c(IntOp::Or, y, 1);
                b.int(op, x, y)
            },
            |x, y, _| want(x, y | 1),
        );
    };
    odd("div", IntOp::Div, |x, y| x / y);
    odd("rem", IntOp::Rem, |x, y| x % y);
}

#[test]
fn dot_products() {
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let byte = |x: u32, i: usize, s: bool| {
            let v = x.to_le_bytes()[i];
            if s { i64::from(v as i8) } else { i64::from(v) }
        };
        let want = |x, y, z: u32| {
            let dot: i64 = (0..4).map(|i| byte(x, i, a) * byte(y, i, b)).sum();
            (i64::from(z as i32) + dot) as u32
        };
        check("dp4a", false, |k, [x, y, z]| k.dp4a(a, b, x, y, z), want);
    }
}

#[test]
fn float_operations() {
    let float = |name, op, want: fn(f32, f32) -> f32| {
        check(name, true, |b, [x, y, _]| b.float_op(op, x, y), |x, y, _| canon(want(f(x), f(y))));
    };
    float("add", FloatOp::Add, |x, y| x + y);
    float("sub", FloatOp::Sub, |x, y| x - y);
    float("mul", FloatOp::Mul, |x, y| x * y);
    check("fma", true, |b, [x, y, z]| b.fma(x, y, z), |x, y, z| canon(f(x).mul_add(f(y), f(z))));
    check("roundeven", true, |b, [x, ..]| b.round_even(x), |x, _, _| canon(f(x).round_ties_even()));
    check("bf16", true, |b, [x, ..]| b.round_bf16(x), |x, _, _| canon(half::bf16::from_f32(f(x)).to_f32()));
    check("itof", false, |b, [x, ..]| b.i_to_f(x), |x, _, _| (x as i32 as f32).to_bits());
    check("bits", true, |b, [x, ..]| b.bits(x), |x, _, _| x);
    check("float", false, |b, [x, ..]| b.float(x), |x, _, _| x);
    let in_range = |x: f32| x.abs() < 2e9;
    check(
        "ftoi",
        true,
        |b, [x, ..]| {
            let (lo, hi, zero) = (b.f(-2e9), b.f(2e9), b.f(0.0));
            let (p, q) = (b.fcmp(FCmp::Lt, lo, x), b.fcmp(FCmp::Lt, x, hi));
            let p = b.bool_op(BoolOp::And, p, q);
            let x = b.select(p, x, zero);
            b.f_to_i(x)
        },
        |x, _, _| if in_range(f(x)) { f(x) as i32 as u32 } else { 0 },
    );
}

#[test]
fn comparisons_and_truth() {
    let icmp = |op, want: fn(i32, i32) -> bool| {
        check("icmp", false, |b, [x, y, _]| b.icmp(op, x, y), |x, y, _| want(x as i32, y as i32).into());
    };
    icmp(ICmp::Eq, |x, y| x == y);
    icmp(ICmp::Ne, |x, y| x != y);
    icmp(ICmp::Lt, |x, y| x < y);
    icmp(ICmp::Le, |x, y| x <= y);
    let fcmp = |op, want: fn(f32, f32) -> bool| {
        check("fcmp", true, |b, [x, y, _]| b.fcmp(op, x, y), |x, y, _| want(f(x), f(y)).into());
    };
    fcmp(FCmp::Eq, |x, y| x == y);
    fcmp(FCmp::Lt, |x, y| x < y);
    fcmp(FCmp::Le, |x, y| x <= y);
    fcmp(FCmp::Nan, |x, y| x.is_nan() || y.is_nan());
    for (op, want) in
        [(BoolOp::And, (|p, q| p & q) as fn(bool, bool) -> bool), (BoolOp::Or, |p, q| p | q), (BoolOp::Xor, |p, q| p ^ q)]
    {
        check(
            "bool",
            false,
            |b, [x, y, z]| {
                let (p, q) = (b.icmp(ICmp::Lt, x, y), b.icmp(ICmp::Lt, y, z));
                b.bool_op(op, p, q)
            },
            |x, y, z| want((x as i32) < y as i32, (y as i32) < z as i32).into(),
        );
    }
    check(
        "select",
        true,
        |b, [x, y, z]| {
            let p = b.fcmp(FCmp::Lt, x, y);
            b.select(p, y, z)
        },
        |x, y, z| if f(x) < f(y) { y } else { z },
    );
}

/// Runs a kernel of one warp whose body leaves its result, an i32, in `%9`; buffer x holds 0, 1, 2, ... as words.
fn result(body: &str) -> Vec<u32> {
    let text = format!(
        "kernel k warps=1 min_blocks=0 {{\nbuf x read\nbuf y write\nshared s 1024\n%0 = lane\n%1 = iconst 5\n%2 = iconst 2\n{body}\nstore.i32 buf.y[%0] = %9\n}}"
    );
    let k = parse(&text).unwrap_or_else(|d| panic!("{text}: {d:?}"));
    let mut bufs = vec![words(&(0..256).collect::<Vec<_>>()), vec![0; 128]];
    run(&k, [1, 1], &mut bufs, &RunOptions::checked(3)).unwrap_or_else(|d| panic!("{text}: {d:?}"));
    unwords(&bufs[1])
}

fn lanes(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(f).collect()
}

#[test]
fn shuffles() {
    assert_eq!(result("%9 = shuffle.xor %0 5"), lanes(|l| l ^ 5));
    assert_eq!(result("%8 = imul %0 %1\n%9 = shuffle.idx %0 %8"), lanes(|l| l * 5 % 32));
}

#[test]
fn loads_and_stores_of_every_kind() {
    assert_eq!(result("%9 = load.i32 buf.x[%0]"), lanes(|l| l));
    assert_eq!(result("%9 = load.i32 buf.x[%1]"), lanes(|_| 5));
    assert_eq!(result("%8 = imul %0 %1\n%9 = load.i32 buf.x[%8]"), lanes(|l| l * 5));
    assert_eq!(result("%8 = icmp.lt %0 %1\n%9 = load.i32 buf.x[%0] if %8"), lanes(|l| if l < 5 { l } else { 0 }));
    assert_eq!(result("%8 = shl %0 %2\n%7 = load.u8 buf.x[%8]\n%9 = iadd %7 %0"), lanes(|l| 2 * l));
    assert_eq!(result("%8 = imul %0 %2\n%7 %6 = load.i32 buf.x[%8]\n%9 = imul %7 %6"), lanes(|l| 2 * l * (2 * l + 1)));
    let four = "%6 %7 %8 %5 = load.i32 buf.x[%4]\n%10 = iadd %6 %7\n%11 = iadd %8 %5\n%9 = iadd %10 %11";
    assert_eq!(result(&format!("%4 = shl %0 %2\n{four}")), lanes(|l| 16 * l + 6));
    assert_eq!(result(&format!("%3 = iconst 8\n%4 = imul %0 %3\n{}", four.replace("load.i32", "load.u8"))), lanes(|l| 2 * l));
    // bf16: the upper half of a float.
    let bf = "%3 = itof %0\nstore.bf16 shared.s[%0] = %3\n%4 = load.bf16 shared.s[%0]\n%9 = ftoi %4";
    assert_eq!(result(bf), lanes(|l| l));
    let halves = "store.u8 shared.s[%0] = %0\n%3 = iconst 31\n%4 = isub %3 %0\n%9 = load.u8 shared.s[%4]";
    assert_eq!(result(halves), lanes(|l| 31 - l));
}

#[test]
fn atomic_additions_of_all_lanes_warps_and_blocks_are_summed() {
    let text = "kernel sum warps=3 min_blocks=0 {
  buf y write
  %0 = lane
  %1 = iconst 3
  %2 = iand %0 %1
  %3 = iconst 30
  %4 = icmp.lt %0 %3
  atomic.add buf.y[%2] = %0 if %4
}";
    let k = parse(text).unwrap();
    assert_eq!(ir::kernel::text::print(&k).trim(), text);
    ir::kernel::verify::verify(&k).unwrap();
    let mut bufs = vec![words(&[u32::MAX, 0, 5, 0])];
    run(&k, [5, 2], &mut bufs, &RunOptions::checked(3)).unwrap();
    let of = |w: u32| 30 * (0..30).filter(|l| l % 4 == w).sum::<u32>();
    assert_eq!(unwords(&bufs[0]), [of(0) - 1, of(1), of(2) + 5, of(3)]);
    let d = run(&k, [1, 1], &mut [vec![0; 8]], &RunOptions::default()).unwrap_err();
    assert!(format!("{d:?}").contains("E0150"), "{d:?}");
}

#[test]
fn control_flow() {
    let fib = "%7 %8 = for %6 in %1 carry %10 = %0, %11 = %2 {\n%12 = iadd %10 %11\nyield %11 %12\n}\n%9 = iadd %7 %8";
    let want = |l: u32| {
        let (mut a, mut b) = (l, 2);
        for _ in 0..5 {
            (a, b) = (b, a + b);
        }
        a + b
    };
    assert_eq!(result(fib), lanes(want));
    for trip in ["0", "-3", "-2147483648"] {
        let never = format!("%5 = iconst {trip}\n%9 = for %6 in %5 carry %10 = %0 {{\nyield %6\n}}");
        assert_eq!(result(&never), lanes(|l| l));
    }
    let swap = "%8 %9 = for %6 in %1 carry %10 = %0, %11 = %2 {\nyield %11 %10\n}";
    assert_eq!(result(swap), lanes(|l| l));
    let arms = "%9 = for %6 in %1 carry %10 = %0 {\n%11 = icmp.lt %6 %2\n%12 = if %11 {\n%13 = iadd %10 %1\nyield %13\n} else {\n%14 = iadd %10 %2\nyield %14\n}\nyield %12\n}";
    assert_eq!(result(arms), lanes(|l| l + 16));
    let pipe = "%9 = pipeline stages=3 in %1 copy %3 %4 {\n%20 = iconst 16\n%21 = imul %4 %20\n%22 = iadd %0 %21\n%23 = iadd %3 %0\n%24 = icmp.lt %0 %20\ncopy shared.s[%22] = buf.x[%23] if %24\n} body %5 %6 carry %7 = %0 {\n%8 = iconst 64\n%10 = imul %6 %8\n%11 = iadd %10 %0\n%12 = load.i32 shared.s[%11]\n%13 = iadd %7 %12\nyield %13\n}";
    assert_eq!(result(pipe), lanes(|l| 6 * l + 4 * 10));
}

#[test]
fn grid_and_warps() {
    let text = "kernel k warps=3 min_blocks=0 {\nbuf y write\n%0 = lane\n%1 = warp\n%2 = block.x\n%3 = block.y\n%4 = iconst 2\n%5 = imul %3 %4\n%6 = iadd %5 %2\n%7 = iconst 3\n%8 = imul %6 %7\n%9 = iadd %8 %1\n%10 = iconst 32\n%11 = imul %9 %10\n%12 = iadd %11 %0\nstore.i32 buf.y[%12] = %12\n}";
    let k = parse(text).unwrap();
    for order in [Order::InOrder, Order::Reverse, Order::Shuffled(9)] {
        let n = 2 * 3 * 3 * 32;
        let mut bufs = vec![vec![0; n * 4]];
        let o = RunOptions { warp_order: order, block_order: order, shadow: true, ..RunOptions::default() };
        let stats = run(&k, [2, 3], &mut bufs, &o).unwrap();
        assert_eq!(unwords(&bufs[0]), (0..n as u32).collect::<Vec<_>>());
        assert_eq!(stats.warp_insts, 6 * 3 * 7);
    }
}

/// The error of a kernel of two warps; x has 64 words of NaN, y 64 words.
fn error(body: &str) -> String {
    let text = format!(
        "kernel k warps=2 min_blocks=0 {{\nbuf x read\nbuf y write\nshared s 256\n%0 = lane\n%1 = warp\n%2 = iconst 40\n{body}\n}}"
    );
    let k = parse(&text).unwrap_or_else(|d| panic!("{text}: {d:?}"));
    let mut bufs = vec![vec![0xff; 256], vec![0; 256]];
    let d = run(&k, [1, 1], &mut bufs, &RunOptions { max_steps: 1000, ..RunOptions::default() }).expect_err(&text);
    assert_eq!(d.len(), 1);
    format!("{} {}", d[0].code, d[0])
}

#[test]
fn errors_at_run_time() {
    for (body, want) in [
        (
            "%9 = iadd %0 %2\n%8 = load.f32 buf.x[%9]",
            "E0150 kernel k, block (0, 0), warp 0, lane 24: `%4 = load.f32 buf.x[%3]`: index 64 is outside buf.x of 64 f32 elements",
        ),
        ("%9 = isub %0 %2\n%8 = load.u8 buf.x[%9]", "index 4294967256 is outside buf.x of 256 u8 elements"),
        ("%9 = iadd %0 %2\nstore.i32 shared.s[%9] = %0", "lane 24: `store.i32 shared.s[%3] = %0`: index 64 is outside shared.s"),
        ("%9 = iadd %0 %2\n%3 = iconst 62\n%4 = smin %9 %3\n%5 %6 %7 %8 = load.f32 buf.x[%4]", "E0151"),
        (
            "%4 = iconst 4\n%9 = imul %0 %4\n%5 %6 %7 %8 = load.f32 buf.x[%9]",
            "lane 16: `%5 %6 %7 %8 = load.f32 buf.x[%4]`: 4 elements at index 64 are outside",
        ),
        ("%9 = load.f32 buf.x[%0]\n%8 = ftoi %9", "E0152 kernel k, block (0, 0), warp 0, lane 0: `%4 = ftoi %3`: NaN"),
        ("%9 = fconst 0x4f000000\n%8 = ftoi %9", "2147483600.0 is converted to an integer"),
        ("%9 = udiv %2 %0", "E0153 kernel k, block (0, 0), warp 0, lane 0: `%3 = udiv %2 %0`: division by zero"),
        ("%9 = urem %2 %1", "E0153"),
        ("%9 = isub %2 %0\n%8 = lshr %0 %9", "E0154 kernel k, block (0, 0), warp 0, lane 0: `%4 = lshr %0 %3`: shift by 40"),
        ("%9 = iconst 2000\nfor %8 in %9 {\n%7 = iadd %8 %0\n}", "E0162"),
        (
            "pipeline stages=2 in %2 copy %7 %8 {\n%9 = iadd %8 %0\ncopy shared.s[%9] = buf.x[%9]\n} body %3 %4 {\n}",
            "lane 16: `copy shared.s[%5] = buf.x[%5]`: index 16 is outside shared.s of 16 units",
        ),
    ] {
        let got = error(body);
        assert!(got.contains(want), "{body}\nwant {want}\ngot  {got}");
    }
}

#[test]
fn arguments_are_checked() {
    let k = parse("kernel k warps=1 min_blocks=0 {\nbuf y write\n}").unwrap();
    let m = Machine::new(&k).unwrap();
    let o = RunOptions::default();
    assert!(m.run([1, 1], &mut [], &o).unwrap_err().message.contains("0 arguments, expected 1"));
    let e = m.run([1, 1], &mut [Arg::Read(&[])], &o).unwrap_err();
    assert_eq!((e.code, e.message.as_str()), ("E0161", "read-only memory for parameter `y`, which is written"));
    assert!(m.run([0, 5], &mut [Arg::Write(&mut [])], &o).is_ok());
}

#[test]
fn nan_results_are_the_one_nan() {
    let text = "kernel k warps=1 min_blocks=0 {\nbuf x read\nbuf y write\n%0 = lane\n%1 = load.f32 buf.x[%0]\n%2 = fadd %1 %1\nstore.f32 buf.y[%0] = %2\n}";
    let mut bufs = vec![words(&[0xffc0_1234; 32]), vec![0; 128]];
    run(&parse(text).unwrap(), [1, 1], &mut bufs, &RunOptions::default()).unwrap();
    assert_eq!(unwords(&bufs[1]), [0x7fc0_0000; 32]);
}

/// The place of every number of a matrix product, against a product of whole matrices.
#[test]
fn matrix_products() {
    for (sa, sb) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut b = Builder::new("mma", 1);
        let (x, out) = (b.buf("x", false), b.buf("out", true));
        let lane = b.lane();
        let v: Vec<V> = (0..10)
            .map(|i| {
                let at = b.add_c(lane, 32 * i);
                b.load(x, Elem::I32, at, None)
            })
            .collect();
        let r = b.mma(sa, sb, [v[0], v[1], v[2], v[3]], [v[4], v[5]], [v[6], v[7], v[8], v[9]]);
        for (i, r) in r.into_iter().enumerate() {
            let at = b.add_c(lane, 32 * i as i32);
            b.store(out, Elem::I32, at, r, None);
        }
        let mut rng = Rng(9);
        let ins: Vec<u32> = (0..320).map(|_| rng.bits() as u32).collect();
        let mut bufs = vec![words(&ins), vec![0; 512]];
        run(&b.finish(), [1, 1], &mut bufs, &RunOptions::checked(1)).unwrap_or_else(|d| panic!("{d:?}"));
        let got = unwords(&bufs[1]);
        let byte = |reg: usize, lane: usize, i: usize, s: bool| {
            let v = ins[32 * reg + lane].to_le_bytes()[i];
            if s { i64::from(v as i8) } else { i64::from(v) }
        };
        for row in 0..16 {
            for column in 0..8 {
                let sum: i64 = (0..32)
                    .map(|k| {
                        let (t, half) = (k % 16 / 4, k / 16);
                        let a = byte(row / 8 + 2 * half, row % 8 * 4 + t, k % 4, sa);
                        a * byte(4 + half, column * 4 + t, k % 4, sb)
                    })
                    .sum();
                let (i, lane) = (row / 8 * 2 + column % 2, row % 8 * 4 + column / 2);
                let want = ins[32 * (6 + i) + lane].wrapping_add(sum as u32);
                assert_eq!(got[32 * i + lane], want, "row {row}, column {column}, signs {sa} {sb}");
            }
        }
    }
}
