//! Every rule of the verifier seen failing: a kernel that breaks one rule, the code and a part of its message.

use ir::kernel::text::{line, parse, print};
use ir::kernel::verify::{CODES, verify};
use ir::kernel::{Block, Inst, Kernel, Mem, Op, Ty, V};

const HEAD: &str = "kernel k warps=2 min_blocks=0 {
  buf x read
  buf y write
  shared s 1024
  %0 = lane
  %1 = warp
  %2 = iconst 4
  %3 = fconst 0x40400000
  %4 = itof %0
  %5 = icmp.lt %0 %2
  %6 = icmp.lt %1 %2
  %7 = block.x
  %8 = bconst true
";

fn kernel(body: &str) -> Kernel {
    parse(&format!("{HEAD}{body}\n}}")).unwrap_or_else(|d| panic!("{body}: {d:?}"))
}

fn check(k: &Kernel, code: &str, message: &str) {
    let errors = verify(k).expect_err("a rule is broken");
    let all: Vec<String> = errors.iter().map(|e| format!("{} {e}", e.code)).collect();
    assert!(errors.iter().all(|e| e.code == code), "expected {code} alone:\n{}\n{k}", all.join("\n"));
    assert!(all.iter().any(|e| e.contains(message)), "expected `{message}`:\n{}", all.join("\n"));
}

#[test]
fn the_head_alone_is_valid() {
    verify(&kernel("")).unwrap();
}

/// (code, part of the message, what follows HEAD)
const BROKEN: &[(&str, &str, &str)] = &[
    ("E0116", "%9 is used before its definition", "%9 = iadd %9 %0"),
    ("E0116", "%9 is used before", "store.i32 buf.y[%0] = %99"),
    ("E0117", "%10 is used outside", "for %9 in %2 {\n%10 = iadd %0 %9\n}\nstore.i32 buf.y[%0] = %10"),
    ("E0117", "%9 is used outside", "if %8 {\n%9 = iadd %0 %1\n} else {\nstore.i32 buf.y[%0] = %9\n}"),
    ("E0118", "%4 is defined twice", "%4 = itof %1"),
    ("E0119", "operand %3 is f32, expected i32", "%9 = iadd %0 %3"),
    ("E0119", "operand %0 is i32, expected f32", "%9 = fma %4 %0 %3"),
    ("E0119", "operand %4 is f32, expected i32", "%9 = select %5 %0 %4"),
    ("E0119", "operand %4 is f32, expected i32", "store.u8 buf.y[%0] = %4"),
    ("E0119", "operand %0 is i32, expected bool", "%9 = load.u8 buf.x[%0] if %0"),
    ("E0119", "operand %2 is i32, expected bool", "if %2 {\n}"),
    ("E0119", "operand %3 is f32, expected i32", "for %9 in %3 {\n}"),
    ("E0119", "operand %0 is i32, expected f32", "%9:f32 = for %10 in %2 carry %11:f32 = %0 {\nyield %11\n}"),
    ("E0120", "result %9 is f32, expected i32", "%9:f32 = iadd %0 %1"),
    ("E0120", "%9 is f32, expected i32", "for %9:f32 in %2 {\n}"),
    ("E0120", "result %9 is bool, expected i32", "%9:bool = load.u8 buf.x[%0]"),
    ("E0121", "a load of 3 results", "%9 %10 %11 = load.f32 buf.x[%2]"),
    ("E0121", "2 results, expected 1", "%9 %10 = iadd %0 %1"),
    ("E0121", "3 results, expected 4", "%9 %10 %11 = mma.su %0 %1 %2 %0 %1 %2 %0 %1 %2 %0"),
    ("E0119", "operand %3 is f32, expected i32", "%9 %10 %11 %12 = mma.uu %0 %1 %2 %0 %1 %2 %0 %1 %2 %3"),
    ("E0121", "0 results, expected 1", "iadd %0 %1"),
    ("E0121", "1 results, expected 0", "%9 = barrier"),
    ("E0121", "0 results, expected 1", "for %10 in %2 carry %11 = %0 {\nyield %11\n}"),
    ("E0122", "yields 0 values, expected 1", "%9 = for %10 in %2 carry %11 = %0 {\n}"),
    ("E0122", "of type f32, expected i32", "%9 = for %10 in %2 carry %11 = %0 {\nyield %4\n}"),
    ("E0122", "`else` block yields 0 values", "%9 = if %8 {\nyield %0\n} else {\n}"),
    ("E0122", "`else` block yields %4 of type f32", "%9 = if %8 {\nyield %0\n} else {\nyield %4\n}"),
    ("E0122", "yields 0 values", "%9 = pipeline stages=2 in %2 copy %10 %11 {\n} body %12 %13 carry %14 = %0 {\n}"),
    ("E0123", "shift by 32", "%9 = iconst 32\n%10 = shl %0 %9"),
    ("E0123", "shift by -1", "%9 = iconst -1\n%10 = ashr %0 %9"),
    ("E0124", "division by 0", "%9 = iconst 0\n%10 = urem %0 %9"),
    ("E0125", "shuffle mask 32", "%9 = shuffle.xor %0 32"),
    ("E0126", "1 pipeline stages", "pipeline stages=1 in %2 copy %9 %10 {\n} body %11 %12 {\n}"),
    ("E0126", "9 pipeline stages", "pipeline stages=9 in %2 copy %9 %10 {\n} body %11 %12 {\n}"),
    ("E0127", "index 256 is outside shared array `s` of 256", "%9 = iconst 256\n%10 = load.f32 shared.s[%9]"),
    ("E0127", "index 4294967295 is outside", "%9 = iconst -1\nstore.u8 shared.s[%9] = %0 if %5"),
    ("E0127", "index 6 is not a multiple of 4", "%9 = iconst 6\n%10 %11 %12 %13 = load.f32 buf.x[%9]"),
    (
        "E0127",
        "index 64 is outside shared array `s` of 64",
        "pipeline stages=2 in %2 copy %9 %10 {\n%11 = iconst 64\ncopy shared.s[%11] = buf.x[%0]\n} body %12 %13 {\n}",
    ),
    ("E0128", "trip count %0 may differ between the lanes", "for %9 in %0 {\n}"),
    ("E0128", "condition %5 may differ between the lanes", "if %5 {\n}"),
    ("E0128", "trip count %0", "pipeline stages=2 in %0 copy %9 %10 {\n} body %11 %12 {\n}"),
    ("E0129", "condition %6 may differ between the warps", "if %6 {\nbarrier\n}"),
    ("E0129", "trip count %1 may differ between the warps", "for %9 in %1 {\nbarrier\n}"),
    ("E0129", "trip count %1", "pipeline stages=2 in %1 copy %9 %10 {\n} body %11 %12 {\n}"),
    ("E0129", "condition %6", "if %6 {\nfor %9 in %2 {\nbarrier\n}\n}"),
    ("E0130", "a copy outside the copy block", "copy shared.s[%0] = buf.x[%0]"),
    (
        "E0130",
        "a copy outside the copy block",
        "pipeline stages=2 in %2 copy %9 %10 {\n} body %11 %12 {\ncopy shared.s[%0] = buf.x[%0]\n}",
    ),
    (
        "E0131",
        "only pure operations and copies",
        "pipeline stages=2 in %2 copy %9 %10 {\n%11 = load.f32 buf.x[%9]\n} body %12 %13 {\n}",
    ),
    ("E0131", "only pure", "pipeline stages=2 in %2 copy %9 %10 {\nstore.i32 buf.y[%0] = %0\n} body %12 %13 {\n}"),
    ("E0131", "only pure", "pipeline stages=2 in %2 copy %9 %10 {\nif %8 {\n}\n} body %12 %13 {\n}"),
    ("E0132", "body has no barrier", "pipeline stages=2 in %2 copy %9 %10 {\n} body %11 %12 {\nbarrier\n}"),
    ("E0132", "body has no barrier", "pipeline stages=2 in %2 copy %9 %10 {\n} body %11 %12 {\nif %8 {\nbarrier\n}\n}"),
    (
        "E0132",
        "body has no barrier",
        "pipeline stages=2 in %2 copy %9 %10 {\n} body %11 %12 {\npipeline stages=2 in %2 copy %13 %14 {\n} body %15 %16 {\n}\n}",
    ),
    ("E0133", "store to read-only buffer `x`", "store.i32 buf.x[%0] = %0"),
    (
        "E0134",
        "copy from buffer `y`",
        "pipeline stages=2 in %2 copy %9 %10 {\ncopy shared.s[%0] = buf.y[%0]\n} body %11 %12 {\n}",
    ),
    ("E0119", "operand %4 is f32, expected i32", "atomic.add buf.y[%0] = %4"),
    ("E0119", "operand %0 is i32, expected bool", "atomic.add buf.y[%0] = %1 if %0"),
    ("E0133", "an addition to read-only buffer `x`", "atomic.add buf.x[%0] = %0"),
    ("E0370", "buffer `y` is added to atomically, and read or stored to", "atomic.add buf.y[%0] = %0\nstore.i32 buf.y[%0] = %0"),
    (
        "E0370",
        "buffer `y` is added to",
        "for %9 in %2 {\n%10 = load.i32 buf.y[%0]\nif %8 {\natomic.add buf.y[%0] = %10\n} else {\n}\n}",
    ),
    ("E0131", "a copy block has only", "pipeline stages=2 in %2 copy %9 %10 {\natomic.add buf.y[%0] = %0\n} body %11 %12 {\n}"),
    ("E0136", "constants only", "%9 = fadd %3 %3"),
    ("E0136", "multiplication by 2.0", "%9 = fconst 0x40000000\n%10 = fmul %4 %9"),
    ("E0136", "multiplication by 1.0", "%9 = fconst 0x3f800000\n%10 = fmul %9 %4"),
    ("E0136", "multiplication by -1.0", "%9 = fconst 0xbf800000\n%10 = fmul %4 %9"),
    ("E0136", "multiplication by zero", "%9 = fconst 0x80000000\n%10 = fmul %4 %9"),
    ("E0136", "addition of -0.0", "%9 = fconst 0x80000000\n%10 = fadd %4 %9"),
    ("E0136", "subtraction of 0.0", "%9 = fconst 0x00000000\n%10 = fsub %4 %9"),
    ("E0136", "subtraction from -0.0", "%9 = fconst 0x80000000\n%10 = fsub %9 %4"),
    ("E0136", "fma with two constant factors", "%9 = fma %3 %3 %4"),
    ("E0136", "fma with the addend -0.0", "%9 = fconst 0x80000000\n%10 = fma %4 %4 %9"),
    ("E0136", "hint: write `fadd`", "%9 = fconst 0x3f800000\n%10 = fma %9 %4 %4"),
    ("E0136", "fma with the factor -1.0", "%9 = fconst 0xbf800000\n%10 = fma %4 %9 %4"),
    ("E0136", "fma with a zero factor", "%9 = fconst 0x00000000\n%10 = fma %4 %9 %4"),
    ("E0136", "rounding of a constant", "%9 = roundeven %3"),
];

#[test]
fn every_rule_on_instructions() {
    for (code, message, body) in BROKEN {
        check(&kernel(body), code, message);
    }
}

#[test]
fn rules_on_declarations() {
    let base = kernel("");
    let broken = |f: fn(&mut Kernel), code: &str, message: &str| {
        let mut k = base.clone();
        f(&mut k);
        check(&k, code, message);
    };
    broken(|k| k.name = "Bad".into(), "E0137", "kernel name `Bad`");
    broken(|k| k.name = "1k".into(), "E0137", "kernel name `1k`");
    broken(|k| k.name = String::new(), "E0137", "kernel name ``");
    broken(|k| k.bufs[0].name = "a b".into(), "E0137", "buffer name `a b`");
    broken(|k| k.shared[0].name = "é".into(), "E0137", "shared array name `é`");
    broken(|k| k.bufs[0].name = "y".into(), "E0138", "buffer name `y` is used twice");
    broken(|k| k.shared.push(k.shared[0].clone()), "E0138", "shared array name `s` is used twice");
    broken(|k| k.warps = 33, "E0139", "33 warps");
    broken(|k| k.warps = 0, "E0139", "0 warps");
    broken(|k| k.shared[0].bytes = 24, "E0140", "`s` has 24 bytes");
    broken(|k| k.shared[0].bytes = 0, "E0140", "`s` has 0 bytes");
    broken(|k| k.shared[0].bytes = 99 * 1024 + 16, "E0141", "101392 bytes");
}

#[test]
fn rules_that_no_text_can_break() {
    // Regions deeper than the parser reads.
    let mut k = kernel("");
    for _ in 0..33 {
        let body = std::mem::take(&mut k.body);
        let mut block = Block::default();
        let n = k.types.len() as u32;
        k.types.extend([Ty::I32, Ty::I32]);
        let op = Op::For { trip: V(n), iv: V(n + 1), carried: vec![], body, yields: vec![] };
        block.insts = vec![Inst { op: Op::ConstI(3), results: vec![V(n)] }, Inst { op, results: vec![] }];
        k.body = block;
    }
    check(&k, "E0115", "deeper than 32");
    // Memory operands and values out of range.
    let mut k = kernel("%9 = load.i32 buf.x[%0]");
    let last = k.body.insts.last_mut().unwrap();
    last.op = Op::Load { mem: Mem::Buf(7), elem: ir::kernel::Elem::I32, idx: V(0), pred: None };
    check(&k, "E0135", "buffer 7 is not declared");
    last_op(&mut k, Op::Load { mem: Mem::Shared(7), elem: ir::kernel::Elem::I32, idx: V(0), pred: None });
    check(&k, "E0135", "shared array 7 is not declared");
    last_op(&mut k, Op::Int(ir::kernel::IntOp::Add, V(0), V(4_000_000_000)));
    check(&k, "E0116", "is used before its definition");
    assert!(!print(&k).is_empty());
}

fn last_op(k: &mut Kernel, op: Op) {
    k.body.insts.last_mut().unwrap().op = op;
}

#[test]
fn all_errors_are_collected_each_with_its_line() {
    let k = kernel("%9 = iadd %0 %3\n%10 = fadd %0 %0\nstore.i32 buf.x[%0] = %9");
    let errors = verify(&k).unwrap_err();
    let got: Vec<(&str, &str)> = errors.iter().map(|e| (e.code, e.place.as_str())).collect();
    let at = |l: &str| format!("kernel k: `{l}`");
    assert_eq!(
        got,
        [
            ("E0119", at("%9 = iadd %0 %3").as_str()),
            ("E0119", at("%10 = fadd %0 %0").as_str()),
            ("E0119", at("%10 = fadd %0 %0").as_str()),
            ("E0133", at("store.i32 buf.x[%0] = %9").as_str()),
        ]
    );
    assert_eq!(line(&k, k.body.insts.last().unwrap()), "store.i32 buf.x[%0] = %9");
}

#[test]
fn every_code_has_a_kernel_that_breaks_it() {
    let here = ["E0137", "E0138", "E0139", "E0140", "E0141", "E0115", "E0135"];
    for (code, _) in CODES {
        assert!(here.contains(code) || BROKEN.iter().any(|b| b.0 == *code), "{code} is never seen failing");
    }
}

/// What looks close to a broken rule and is allowed.
#[test]
fn allowed() {
    for body in [
        "%9 = load.i32 shared.s[%0]\n%10 = shuffle.idx %9 %2\nif %6 {\n%11 = iadd %10 %0\n}",
        "if %6 {\nfor %9 in %1 {\n}\n}",
        "for %9 in %7 {\nbarrier\nfor %10 in %9 {\nbarrier\n}\n}",
        "%9 = fconst 0x00000000\n%10 = fadd %4 %9\n%11 = fma %4 %4 %9\n%12 = fsub %9 %4",
        "%9 = iconst 255\n%10 = load.f32 shared.s[%9]\n%11 = iconst 1023\n%12 = load.u8 shared.s[%11]",
        "%9 = shl %0 %1",
        "pipeline stages=8 in %7 copy %9 %10 {\n%11 = iadd %9 %10\ncopy shared.s[%11] = buf.x[%11] if %5\n} body %12 %13 {\nfor %14 in %1 {\n}\n}",
    ] {
        let k = kernel(body);
        if let Err(e) = verify(&k) {
            panic!("{body}: {e:?}");
        }
    }
}

/// Loops in loops, all with carried values that widen from the inside: time must not grow exponentially.
#[test]
fn deep_loops_are_analysed_in_time() {
    let mut body = String::new();
    let mut carried = 0;
    for d in 0..30 {
        let (r, iv, p) = (100 + d * 10, 101 + d * 10, 102 + d * 10);
        body += &format!("%{r} = for %{iv} in %2 carry %{p} = %{carried} {{\n");
        carried = p;
    }
    body += "%1000 = iadd %1 %0\n";
    let mut inner = 1000;
    for d in (0..30).rev() {
        body += &format!("%{} = ixor %{inner} %1\nyield %{}\n}}\n", 2000 + d, 2000 + d);
        inner = 100 + d * 10;
    }
    let k = parse(&format!("{HEAD}{body}\n}}")).unwrap();
    verify(&k).unwrap();
}
