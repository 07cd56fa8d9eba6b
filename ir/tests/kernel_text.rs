//! The textual form of kernels: what it looks like, what it accepts, and what its errors say.

use ir::diag::Diagnostic;
use ir::kernel::text::{CODES, MAX_DEPTH, parse, parse_all, print};

/// Every construct once, as printed.
const ALL: &str = "\
kernel all warps=4 min_blocks=2 {
  buf layers.7.x read
  buf y write
  shared s 1024
  %0 = lane
  %1 = warp
  %2 = block.x
  %3 = block.y
  %4 = iconst -2147483648
  %5 = fconst 0x3fc00000 // 1.5
  %6 = fconst 0xff800000 // -inf
  %7 = fconst 0x7fc00000 // NaN
  %8 = fconst 0x00000001 // 1e-45
  %9 = bconst true
  %10 = iadd %0 %1
  %11 = isub %10 %0
  %12 = imul %10 %0
  %13 = iand %10 %0
  %14 = ior %10 %0
  %15 = ixor %10 %0
  %16 = shl %10 %0
  %17 = lshr %10 %0
  %18 = ashr %10 %0
  %19 = smax %10 %0
  %20 = smin %10 %0
  %21 = udiv %10 %0
  %22 = urem %10 %0
  %23 = itof %22
  %24 = fadd %23 %5
  %25 = fsub %23 %5
  %26 = fmul %23 %5
  %27 = fma %23 %23 %5
  %28 = roundeven %27
  %29 = round.bf16 %27
  %30 = icmp.eq %0 %1
  %31 = icmp.ne %0 %1
  %32 = icmp.lt %0 %1
  %33 = icmp.le %0 %1
  %34 = fcmp.eq %27 %28
  %35 = fcmp.lt %27 %28
  %36 = fcmp.le %27 %28
  %37 = fcmp.nan %27 %28
  %38 = band %30 %31
  %39 = bor %30 %31
  %40 = bxor %30 %31
  %41 = select %40 %27 %28
  %42 = select %40 %39 %38
  %43 = bitcast.f32 %0
  %44 = bitcast.i32 %43
  %45 = ftoi %28
  %46 = dp4a.su %0 %1 %2
  %47 = dp4a.us %0 %1 %2
  %48 = shuffle.xor %41 16
  %49 = shuffle.idx %48 %0
  %50 %51 %52 %53 = load.bf16 buf.layers.7.x[%0] if %42
  %54 %55 = load.u8 shared.s[%0]
  store.f32 buf.y[%0] = %50
  store.u8 shared.s[%0] = %54 if %42
  barrier
  %56 %57 = for %58 in %2 carry %59 = %5, %60 = %9 {
    yield %50 %60
  }
  for %61 in %2 {
    barrier
  }
  %62 %63 = if %57 {
    %64 = iadd %0 %4
    yield %64 %56
  } else {
    yield %0 %49
  }
  if %57 {
    barrier
  }
  %65 = pipeline stages=3 in %2 copy %66 %67 {
    %68 = iadd %66 %67
    copy shared.s[%67] = buf.layers.7.x[%68] if %42
  } body %69 %70 carry %71 = %63 {
    %72 = load.f32 shared.s[%70]
    %73 = fma %72 %5 %71
    yield %73
  }
  store.f32 buf.y[%0] = %65
  %74 %75 %76 %77 = mma.su %0 %1 %2 %0 %1 %2 %0 %1 %2 %0
  %78 %79 %80 %81 = mma.us %74 %75 %76 %77 %1 %2 %0 %1 %2 %0
}
";

#[test]
fn every_construct_prints_as_it_was_written() {
    let k = parse(ALL).unwrap_or_else(|d| panic!("{d:?}"));
    assert_eq!(print(&k), ALL);
    assert_eq!(k.to_string(), ALL);
    assert_eq!(k.name, "all");
    assert_eq!((k.warps, k.min_blocks), (4, 2));
}

#[test]
fn comments_spaces_and_numbers_of_values_are_free() {
    let free = "; first\nkernel  k warps = 1 min_blocks=0x0 { // here\r\n\tbuf y write\n\n%70 = lane ; lane\n store.i32 buf.y [ %70 ] = %70\n}\n//end";
    let want = "kernel k warps=1 min_blocks=0 {\n  buf y write\n  %0 = lane\n  store.i32 buf.y[%0] = %0\n}\n";
    assert_eq!(print(&parse(free).unwrap()), want);
}

#[test]
fn several_kernels_in_one_text() {
    let one = |n: &str| format!("kernel {n} warps=1 min_blocks=0 {{\n  %0 = lane\n}}\n");
    let both = format!("{}\n{}", one("a"), one("b"));
    let names: Vec<String> = parse_all(&both).unwrap().into_iter().map(|k| k.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(parse(&both).unwrap_err()[0].message.contains("expected one kernel, found 2"));
}

fn fails(text: &str) -> Vec<String> {
    let show = |d: &Diagnostic| format!("{} {d}", d.code);
    parse(text).expect_err(text).iter().map(show).collect()
}

/// Errors of a kernel whose third line is `line`.
fn line_fails(line: &str) -> Vec<String> {
    fails(&format!("kernel k warps=1 min_blocks=0 {{\n  %0 = lane\n  {line}\n}}\n"))
}

/// (line, its error)
const ERRORS: &[(&str, &str)] = &[
    ("%1 = iadd %0", "E0102 line 4, column 1: expected a value like `%1`, found `}`"),
    ("%1 = iadd %0 %0 %0", "E0102 line 3, column 19: expected end of line, found `%0`"),
    ("%1 = iad %0 %0", "E0102 line 3, column 8: unknown instruction `iad`"),
    ("%1 iadd %0 %0", "E0102 line 3, column 6: expected `=`, found `iadd`"),
    ("%1:i64 = iadd %0 %0", "E0102 line 3, column 6: expected a type (i32, f32, bool), found `i64`"),
    (
        "%1 = iconst 2147483648",
        "E0103 line 3, column 15: integer constant `2147483648` is out of range -2147483648 to 2147483647",
    ),
    ("%1 = iconst 99999999999999999999", "E0103 line 3, column 15: number `99999999999999999999` is out of range"),
    ("%1 = fconst 1.5", "E0101 line 3, column 15: `1.5` is not a number"),
    ("%1 = fconst 15", "E0102 line 3, column 15: expected the bits of the constant (like 0x3f800000), found `15`"),
    ("%1 = fconst 0x3f8000000", "E0103 line 3, column 15: bits of the constant `0x3f8000000` is out of range 0 to 4294967295"),
    ("%1 = bconst 1", "E0102 line 3, column 15: expected `true` or `false`, found `1`"),
    ("%4294967296 = lane", "E0103 line 3, column 3: value number `%4294967296` is out of range"),
    ("%x = lane", "E0101 line 3, column 3: expected a number after `%`, found `x`"),
    ("%1 = load.f32 buf.z[%0]", "E0105 line 3, column 17: `buf.z` is no declared buffer or shared array"),
    ("%1 = load.f64 buf.z[%0]", "E0102 line 3, column 8: unknown instruction `load.f64`"),
    ("%1 = shuffle.xor %0 -1", "E0103 line 3, column 23: mask `-1` is out of range 0 to 4294967295"),
    ("yield %0", "E0102 line 4, column 1: a kernel yields nothing"),
    ("buf y write", "E0102 line 3, column 3: unknown instruction `buf`"),
    ("if %0 { }", "E0102 line 3, column 11: expected end of line, found `}`"),
    ("for %1 = %0 {", "E0102 line 3, column 10: expected `in`, found `=`"),
    ("é = lane", "E0101 line 3, column 3: unexpected character 'é'"),
    ("%1 = lane $", "E0101 line 3, column 13: unexpected character '$'"),
    ("\"open", "E0101 line 3, column 3: string without closing `\"` on its line"),
    ("\"a\" -> -", "E0102 line 3, column 3: expected an instruction, found string \"a\""),
];

#[test]
fn errors_name_place_expectation_and_finding() {
    for (line, want) in ERRORS {
        let got = line_fails(line);
        assert!(got[0].starts_with(want), "{line}:\nwant {want}\ngot  {}", got.join("\n     "));
    }
    let codes = |c: &str| ERRORS.iter().any(|e| e.1.starts_with(c)) || c == "E0104";
    assert!(CODES.iter().all(|c| codes(c.0)));
}

#[test]
fn errors_of_the_frame() {
    assert_eq!(fails(""), ["E0102 line 1, column 1: expected `kernel`, found end of input"]);
    assert_eq!(fails("kernel k warps=1"), ["E0102 line 1, column 1: expected `min_blocks`, found end of input"]);
    let head = "kernel k warps=1 min_blocks=0 {\n";
    assert_eq!(fails(head), ["E0102 line 2, column 1: expected an instruction or `}`, found end of input"]);
    assert_eq!(fails(&format!("{head}}}\n}}")), ["E0102 line 3, column 1: expected `kernel`, found `}`"]);
    assert_eq!(fails(&format!("{head}buf x\n}}")), ["E0102 line 3, column 1: expected `read`, `fixed` or `write`, found `}`"]);
}

#[test]
fn errors_are_collected() {
    let got = fails("kernel k warps=1 min_blocks=0 {\n  buf x\n  %0 = lan\n  %1 = lane\n  %2 = iadd\n}\n");
    let lines: Vec<&str> = got.iter().map(|e| &e[6..12]).collect();
    assert_eq!(lines, ["line 3", "line 3", "line 6"], "{got:?}");
    let many = "kernel k warps=1 min_blocks=0 {\n".to_string() + &"  foo\n".repeat(1000);
    assert_eq!(fails(&many).len(), 20);
}

#[test]
fn deep_nesting_is_an_error() {
    let nest = |n: usize| {
        let open = (0..n).map(|i| format!("for %{} in %0 {{\n", i + 1)).collect::<String>();
        format!("kernel k warps=1 min_blocks=0 {{\n%0 = lane\n{open}{}}}\n", "}\n".repeat(n))
    };
    assert!(parse(&nest(MAX_DEPTH)).is_ok());
    assert!(fails(&nest(MAX_DEPTH + 1))[0].contains("regions are nested deeper than 32"));
    assert_eq!(fails(&nest(100_000)).len(), 1);
}
