//! The graph interpreter against straightforward float64, operation by operation, special values included.

mod graph_common;

use graph_common::{Rng, Weights, show};
use ir::graph::interp::{Dtype, Fixed, Session, Value, WeightSource};
use ir::graph::text::parse;

/// Runs `body` on tables of rows that enter as %2, %4, ...; the tokens are 0, 1, 2, ... The value named "out".
fn run(tables: &[(usize, &[f32])], body: &str) -> (Value, Weights) {
    let tokens = tables[0].1.len() / tables[0].0;
    run_tokens(tables, body, &(0..tokens as u32).collect::<Vec<u32>>(), 0)
}

fn run_tokens(tables: &[(usize, &[f32])], body: &str, tokens: &[u32], output_from: usize) -> (Value, Weights) {
    let mut text = String::from("graph \"t\" {\n %0 = tokens : i32[T] \"tokens\"\n");
    for (i, (width, rows)) in tables.iter().enumerate() {
        let (w, x, v) = (1 + 2 * i, 2 + 2 * i, rows.len() / width);
        text += &format!(" %{w} = weight : f32[{v},{width}] \"t{i}\"\n");
        text += &format!(" %{x} = embed %{w} %0 {{mode=exact, factor=1}} : f32[T,{width}] \"x{i}\"\n");
    }
    text += body;
    let out = body.lines().find(|l| l.contains("\"out\"")).unwrap().split_whitespace().next().unwrap();
    text += &format!("\n output {out}\n}}");
    let g = parse(&text).unwrap_or_else(|e| panic!("{}\n{text}", show(&e)));
    let mut w = Weights::random(&g, 5);
    for (i, (width, rows)) in tables.iter().enumerate() {
        w.set(&format!("t{i}"), &[(rows.len() / width) as u32, *width as u32], rows);
    }
    let out = {
        let mut s = Session::new(&g, &w).unwrap_or_else(|e| panic!("{}\n{text}", show(&e)));
        s.step(tokens, output_from).unwrap();
        s.value("out").unwrap().clone()
    };
    (out, w)
}

fn floats(tables: &[(usize, &[f32])], body: &str) -> Vec<f32> {
    run(tables, body).0.f32s().unwrap().to_vec()
}

fn random(r: &mut Rng, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|_| r.unit() * scale).collect()
}

fn close(got: f32, want: f64, tolerance: f64) {
    assert!((f64::from(got) - want).abs() <= tolerance, "got {got}, want {want} within {tolerance}");
}

fn plain(w: &Weights, name: &str) -> Vec<f64> {
    let p = w.plain(name).unwrap();
    (0..p.shape.iter().product::<u32>() as usize).map(|i| f64::from(p.at(i))).collect()
}

/// All weights of an affine tensor in float64, by another way of reading codes than the interpreter's: bit by bit.
fn dequantized(w: &Weights, name: &str) -> Vec<f64> {
    let a = w.affine(name).unwrap();
    let (words, scales, biases) = (a.words.concat(), a.scales.concat(), a.biases.concat());
    let number = |b: &[u8], g: usize| match a.scale_dtype {
        Dtype::Bf16 => f64::from(half::bf16::from_le_bytes([b[2 * g], b[2 * g + 1]]).to_f32()),
        Dtype::F16 => f64::from(half::f16::from_le_bytes([b[2 * g], b[2 * g + 1]]).to_f32()),
        Dtype::F32 => f64::from(f32::from_le_bytes(b[4 * g..4 * g + 4].try_into().unwrap())),
    };
    let bit = |k: usize| u32::from(words[k / 8]) >> (k % 8) & 1;
    (0..(a.stack * a.rows * a.cols) as usize)
        .map(|i| {
            let q: u32 = (0..a.bits as usize).map(|k| bit(i * a.bits as usize + k) << k).sum();
            number(&scales, i / a.group as usize) * f64::from(q) + number(&biases, i / a.group as usize)
        })
        .collect()
}

const ORDERS: [&str; 5] = [
    "none",
    "sum(lanes=1, take=strided, tree=pair)",
    "sum(lanes=8, take=contiguous, tree=pair)",
    "sum(lanes=32, take=strided, tree=pair)",
    "sum(lanes=5, take=contiguous, tree=fold)",
];

#[test]
fn rms_norm() {
    let mut r = Rng(2);
    let x = random(&mut r, 3 * 96, 3.0);
    for order in ORDERS {
        for weight in [false, true] {
            let w = if weight { " %20 = weight : f16[48] \"w\"\n" } else { "" };
            let operands = if weight { "%2 %20" } else { "%2" };
            let body = format!("{w} %21 = rmsnorm {operands} {{dim=48, eps=\"1e-6\", order={order}}} : f32[T,96] \"out\"");
            let (out, ws) = run(&[(96, &x)], &body);
            for (i, (run, got)) in x.chunks(48).zip(out.f32s().unwrap().chunks(48)).enumerate() {
                let ss: f64 = run.iter().map(|&v| f64::from(v).powi(2)).sum();
                let f = 1.0 / (ss / 48.0 + 1e-6).sqrt();
                for j in 0..48 {
                    let w = if weight { plain(&ws, "w")[j] } else { 1.0 };
                    close(got[j], f64::from(run[j]) * f * w, 1e-6 * (1.0 + i as f64));
                }
            }
        }
    }
    // A row with a NaN or infinity, and a row of zeros.
    let rows = [f32::NAN, 1.0, f32::INFINITY, 1.0, 0.0, 0.0];
    let out = floats(&[(2, &rows)], " %21 = rmsnorm %2 {dim=2, eps=\"1e-6\", order=none} : f32[T,2] \"out\"");
    assert!(out[0].is_nan() && out[1].is_nan() && out[2].is_nan());
    assert_eq!(out[3..], [0.0, 0.0, 0.0]);
}

fn fixed(x: &[f32], width: usize, group: u32) -> Fixed {
    let body = format!(" %21 = quantize %2 {{group={group}}} : q24g{group}[T,{width}] \"out\"");
    match run(&[(width, x)], &body).0 {
        Value::Q24(q) => q,
        v => panic!("{v:?}"),
    }
}

#[test]
fn quantize() {
    let mut r = Rng(3);
    let mut x = random(&mut r, 4 * 64, 1.0);
    for (i, v) in x.iter_mut().enumerate() {
        *v *= [1e-30, 1.0, 3e10, 1e38][i / 64];
    }
    let q = fixed(&x, 64, 32);
    for (g, run) in x.chunks(32).enumerate() {
        let s = f64::from(q.scale[g]);
        assert_eq!(s.log2().fract(), 0.0);
        let max = run.iter().fold(0f64, |m, &v| m.max(f64::from(v).abs()));
        // 22 to 23 bits of the largest element.
        assert!(max / s >= 4_194_304.0 && max / s < 8_388_608.0);
        for (i, &v) in run.iter().enumerate() {
            assert!((f64::from(v) / s - f64::from(q.x[g * 32 + i])).abs() <= 0.5 || q.x[g * 32 + i] == 8_388_607);
        }
        let sum: i64 = q.x[g * 32..][..32].iter().map(|&x| i64::from(x)).sum();
        assert_eq!(q.sum[g], sum as f32);
    }
    // An infinity, a NaN, zeros, the largest float, subnormals: a group each.
    let mut x = vec![1.0f32; 5 * 32];
    x[3] = f32::NEG_INFINITY;
    x[32 + 7] = f32::NAN;
    x[64..96].fill(-0.0);
    x[96] = f32::MAX;
    x[128..160].fill(f32::from_bits(3));
    let q = fixed(&x, 32, 32);
    assert!(q.scale[0].is_nan() && q.scale[1].is_nan());
    assert!(q.x[..96].iter().all(|&v| v == 0));
    assert_eq!((q.sum[0], q.sum[1], q.sum[2].to_bits()), (0.0, 0.0, 0));
    assert_eq!((q.x[96], q.scale[3]), (8_388_607, 2f32.powi(105)));
    assert_eq!(q.scale[4], 2f32.powi(-126));
    assert!(q.x[128..].iter().all(|&v| v == 0));
}

#[test]
fn qlinear() {
    let mut r = Rng(4);
    for (bits, group) in [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128), (2, 32), (3, 64), (5, 128), (6, 32)] {
        let mut x = random(&mut r, 3 * 384, 2.0);
        x[2 * 384 + 130] = f32::NAN;
        for order in ORDERS {
            let body = format!(
                " %20 = weight : u{bits}g{group}[7,384] \"w\"\n %21 = quantize %2 {{group={group}}} : \
                 q24g{group}[T,384] \"xq\"\n %22 = qlinear %21 %20 {{order={order}}} : f32[T,7] \"out\""
            );
            let (out, w) = run(&[(384, &x)], &body);
            let (out, w) = (out.f32s().unwrap().to_vec(), dequantized(&w, "w"));
            for (i, &got) in out[..14].iter().enumerate() {
                let (x, w) = (&x[i / 7 * 384..][..384], &w[i % 7 * 384..][..384]);
                let (mut want, mut size) = (0.0, 0.0);
                for (x, w) in x.iter().zip(w) {
                    want += f64::from(*x) * w;
                    size += (f64::from(*x) * w).abs();
                }
                close(got, want, 4e-7 * size);
            }
            assert!(out[14..].iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn linear_with_affine_weights_is_float64_rounded_once() {
    let mut r = Rng(5);
    let x = random(&mut r, 2 * 64, 2.0);
    for elem in ["u2g32", "u3g64", "u4g32", "u4g32:f16", "u5g32:f32", "u6g64", "u8g64", "u8g64:f16"] {
        let body = format!(" %20 = weight : {elem}[5,64] \"w\"\n %22 = linear %2 %20 {{order=none}} : f32[T,5] \"out\"");
        let (out, w) = run(&[(64, &x)], &body);
        let w = dequantized(&w, "w");
        for (i, &got) in out.f32s().unwrap().iter().enumerate() {
            let dot: f64 = (0..64).map(|j| f64::from(x[i / 5 * 64 + j]) * w[i % 5 * 64 + j]).sum();
            assert_eq!(got, dot as f32);
        }
    }
}

/// Chains of fma: lane by lane as the text of the order says, each over its units of eight.
#[test]
fn linear_with_plain_weights_is_chains_of_fma() {
    let mut r = Rng(15);
    for cols in [64, 104, 20] {
        let x = random(&mut r, 2 * cols, 2.0);
        for elem in ["bf16", "f16", "f32"] {
            let mut seen = vec![];
            for (text, lanes, strided) in
                [("none", 1, true), ("contiguous", 8, false), ("contiguous", 4, false), ("strided", 4, true)]
            {
                let order = if text == "none" { text.into() } else { format!("sum(lanes={lanes}, take={text}, tree=pair)") };
                let body =
                    format!(" %20 = weight : {elem}[5,{cols}] \"w\"\n %22 = linear %2 %20 {{order={order}}} : f32[T,5] \"out\"");
                let (out, w) = run(&[(cols, &x)], &body);
                let (out, w) = (out.f32s().unwrap().to_vec(), plain(&w, "w"));
                let (units, mut acc) = (cols.div_ceil(8), vec![]);
                for (i, &got) in out.iter().enumerate() {
                    let (mut chains, mut exact, mut size) = (vec![0f32; lanes], 0.0, 0.0);
                    for j in 0..cols {
                        let lane = if strided { j / 8 % lanes } else { j / 8 / units.div_ceil(lanes) };
                        let (x, w) = (x[i / 5 * cols + j], w[i % 5 * cols + j]);
                        chains[lane] = (w as f32).mul_add(x, chains[lane]);
                        exact += f64::from(x) * w;
                        size += (f64::from(x) * w).abs();
                    }
                    while chains.len() > 1 {
                        let half = chains.len() / 2;
                        chains = (0..half).map(|l| chains[l] + chains[l + half]).collect();
                    }
                    assert_eq!(got.to_bits(), chains[0].to_bits(), "{elem} {cols} {order}");
                    close(got, exact, 1e-6 * size);
                    acc.push(got.to_bits());
                }
                seen.push(acc);
            }
            assert!(cols < 64 || seen[0] != seen[1] && seen[1] != seen[2], "orders show: {elem} {cols}");
        }
    }
}

#[test]
fn slice() {
    let mut r = Rng(16);
    let x = random(&mut r, 3 * 20, 1.0);
    let (out, _) = run(&[(20, &x)], " %20 = slice %2 {start=7, len=5} : f32[T,5] \"out\"");
    let want: Vec<f32> = x.chunks(20).flat_map(|r| r[7..12].to_vec()).collect();
    assert_eq!(out.f32s().unwrap(), want);
}

#[test]
fn experts() {
    let mut r = Rng(6);
    let (x, z) = (random(&mut r, 5 * 64, 1.0), random(&mut r, 5 * 6, 4.0));
    let head = " %10 = weight : bf16[6] \"scale\"\n %11 = route %4 %10 {k=3} : route[T,3] \"route\"\n \
                 %12 = weight : u4g32[6,64,64] \"a\"\n %13 = quantize %2 {group=32} : q24g32[T,64] \"xq\"\n \
                 %14 = qexpert_linear %13 %12 %11 {order=none} : f32[T,3,64] \"y\"\n \
                 %15 = expert_linear %2 %12 %11 {order=none} : f32[T,3,64] \"y64\"\n";
    let second = " %16 = quantize %14 {group=64} : q24g64[T,3,64] \"yq\"\n %17 = weight : u8g64[6,9,64] \"b\"\n \
                  %18 = qexpert_linear %16 %17 %11 {order=none} : f32[T,3,9] \"d\"\n \
                  %19 = expert_linear %14 %17 %11 {order=none} : f32[T,3,9] \"d64\"\n";
    let value = |name: &str| {
        let body = (head.to_string() + second).replace(&format!("\"{name}\""), "\"out\"");
        run(&[(64, &x), (6, &z)], &body)
    };
    let Value::Route(route) = value("route").0 else { panic!() };
    let ws = value("route").1;
    let (scale, a, b) = (plain(&ws, "scale"), dequantized(&ws, "a"), dequantized(&ws, "b"));
    let y = value("y").0.f32s().unwrap().to_vec();
    for t in 0..5 {
        let z = &z[t * 6..][..6];
        let mut ranked: Vec<usize> = (0..6).collect();
        ranked.sort_by(|&i, &j| z[j].total_cmp(&z[i]));
        let sum: f64 = ranked[..3].iter().map(|&i| f64::from(z[i]).exp()).sum();
        for rank in 0..3 {
            let (c, e) = (route[t * 3 + rank], ranked[rank]);
            assert_eq!(c.expert as usize, e);
            close(c.weight, f64::from(z[e]).exp() / sum * scale[e], 1e-6);
            for i in 0..64 {
                let w = &a[(e * 64 + i) * 64..][..64];
                let want: f64 = (0..64).map(|j| f64::from(x[t * 64 + j]) * w[j]).sum();
                close(y[(t * 3 + rank) * 64 + i], want, 1e-5);
            }
            let d = value("d").0.f32s().unwrap()[(t * 3 + rank) * 9..][..9].to_vec();
            for (i, &d) in d.iter().enumerate() {
                let w = &b[(e * 9 + i) * 64..][..64];
                let want: f64 = (0..64).map(|j| f64::from(y[(t * 3 + rank) * 64 + j]) * w[j]).sum();
                close(d, want, 1e-5);
            }
        }
    }
    for (q, f) in [("y", "y64"), ("d", "d64")] {
        let (q, f) = (value(q).0, value(f).0);
        q.f32s().unwrap().iter().zip(f.f32s().unwrap()).for_each(|(a, b)| close(*a, f64::from(*b), 1e-5));
    }
    let body = head.to_string() + " %16 = expert_sum %14 %11 : f32[T,64] \"out\"";
    let out = floats(&[(64, &x), (6, &z)], &body);
    for (i, &got) in out.iter().enumerate() {
        let (t, j) = (i / 64, i % 64);
        let want: f64 = (0..3).map(|k| f64::from(route[t * 3 + k].weight) * f64::from(y[(t * 3 + k) * 64 + j])).sum();
        close(got, want, 1e-5);
    }
}

#[test]
fn route_ties_and_nan() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    #[rustfmt::skip]
    let z = [
        1.0, 2.0, 2.0, 2.0,
        -0.0, 0.0, -3e38, -1.0,
        nan, 1.0, nan, 3.0,
        nan, nan, nan, nan,
        -inf, 1.0, 2.0, nan,
        1.0, inf, nan, inf,
        1.0, 2.0, inf, 3.0,
        3.0, 2.0, -inf, 4.0,
        -inf, -inf, -inf, -inf,
    ];
    let body = " %10 = weight : f32[4] \"scale\"\n %11 = route %2 %10 {k=3} : route[T,3] \"out\"";
    let Value::Route(c) = run(&[(4, &z)], body).0 else { panic!() };
    let experts: Vec<u32> = c.iter().map(|c| c.expert).collect();
    assert_eq!(experts, [1, 2, 3, 0, 1, 3, 0, 2, 3, 0, 1, 2, 0, 3, 2, 1, 2, 3, 2, 3, 1, 2, 3, 0, 0, 1, 2]);
    assert!(c[..6].iter().all(|c| c.weight.is_finite()));
    // NaN and -inf count as +inf, and each makes every weight NaN.
    assert!(c[6..].iter().all(|c| c.weight.is_nan()));
}

#[test]
fn embed() {
    let mut r = Rng(7);
    let x = random(&mut r, 32, 1.0);
    for (mode, factor) in [("exact", 7.3f32), ("factor", 7.3), ("bf16", 7.3)] {
        for elem in ["u4g32", "u8g32", "u3g32", "u5g32:f16", "bf16", "f16", "f32"] {
            let body = format!(
                " %20 = weight : {elem}[1,32] \"w\"\n %21 = embed %20 %0 {{mode={mode}, factor=\"{factor}\"}} : \
                 f32[T,32] \"out\""
            );
            let (out, w) = run(&[(32, &x)], &body);
            let w = if elem.starts_with('u') { dequantized(&w, "w") } else { plain(&w, "w") };
            let bf16 = |x: f32| half::bf16::from_f32(x).to_f32();
            for (got, w) in out.f32s().unwrap().iter().zip(w) {
                // scale·code + bias has at most 24 + 8 bits and is exact in float64, so this rounds once too.
                let w = w as f32;
                let want = if mode == "bf16" { bf16(bf16(w) * factor) } else { w * factor };
                assert_eq!(got.to_bits(), want.to_bits());
            }
        }
    }
}

#[test]
fn elementwise() {
    let mut r = Rng(8);
    let (mut x, y) = (random(&mut r, 64, 4.0), random(&mut r, 64, 4.0));
    x[..4].copy_from_slice(&[f32::INFINITY, -0.0, 50.0, -50.0]);
    let t: [(usize, &[f32]); 2] = [(32, &x), (32, &y)];
    let zip =
        |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> { x.iter().zip(&y).map(|(&a, &b)| f(f64::from(a), f64::from(b))).collect() };
    let exact = |body: &str, want: Vec<f64>| {
        let got = floats(&t, body);
        assert_eq!(got, want.iter().map(|&v| v as f32).collect::<Vec<f32>>(), "{body}");
    };
    exact(" %9 = add %2 %4 : f32[T,32] \"out\"", zip(&|a, b| a + b));
    exact(" %9 = mul %2 %4 : f32[T,32] \"out\"", zip(&|a, b| a * b));
    exact(" %9 = mul_const %2 {c=\"0.3\"} : f32[T,32] \"out\"", zip(&|a, _| a * f64::from(0.3f32)));
    for n in [1, 32] {
        let body = format!(" %8 = weight : bf16[{n}] \"w\"\n %9 = mul %2 %8 : f32[T,32] \"out\"");
        let w = plain(&run(&t, &body).1, "w");
        let want = x.iter().enumerate().map(|(i, &a)| f64::from(a) * w[i % n]).collect();
        exact(&body, want);
    }
    let gelu = |a: f64| 0.5 * a * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a * a * a)).tanh());
    let got = floats(&t, " %9 = gelu_mul %2 %4 : f32[T,32] \"out\"");
    for (i, want) in zip(&|a, b| gelu(a) * b).into_iter().enumerate().skip(1) {
        close(got[i], want, 2e-6 * (1.0 + want.abs()));
    }
    assert_eq!(got[0], f32::INFINITY * y[0]);
    let got = floats(&t, " %9 = softcap %2 {cap=30} : f32[T,32] \"out\"");
    for (got, want) in got.iter().zip(zip(&|a, _| 30.0 * (a / 30.0).tanh())).skip(1) {
        close(*got, want, 1e-5);
    }
    // Infinity must not hide behind the cap.
    assert!(got[0].is_nan());
    assert_eq!(got[1].to_bits(), (-0.0f32).to_bits());
}

#[test]
fn argmax_and_select() {
    let nan = f32::NAN;
    let z = [1.0, 3.0, 3.0, -0.0, 0.0, -1.0, nan, 1.0, 2.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let body = " %9 = argmax %2 : i32[T] \"out\"";
    assert_eq!(run(&[(3, &z)], body).0, Value::I32(vec![1, 0, -1, 0]));
    let body = " %9 = select %2 : f32[O,3] \"out\"";
    assert_eq!(run_tokens(&[(3, &z)], body, &[3, 1, 0], 1).0, Value::F32(vec![-0.0, 0.0, -1.0, 1.0, 3.0, 3.0]));
    assert_eq!(run_tokens(&[(3, &z)], body, &[3], 1).0, Value::F32(vec![]));
}

#[test]
fn rope() {
    let mut r = Rng(9);
    let x = random(&mut r, 32, 1.0);
    // Six pairs turn, two stay; the same row at every position.
    let body = " %9 = rope %2 {dim=16, rotated=6, theta=\"1e6\", factor=\"8\"} : f32[T,32] \"out\"";
    let tokens = vec![0; 3000];
    let (out, _) = run_tokens(&[(32, &x)], body, &tokens, 0);
    for (p, row) in out.f32s().unwrap().chunks(32).enumerate() {
        for h in 0..2 {
            for j in 0..8 {
                let f = if j < 6 { 1e6f64.powf(-2.0 * j as f64 / 16.0) / 8.0 } else { 0.0 };
                let (sin, cos) = (p as f64 * f).sin_cos();
                let (a, b) = (f64::from(x[h * 16 + j]), f64::from(x[h * 16 + j + 8]));
                close(row[h * 16 + j], a * cos - b * sin, 6e-7);
                close(row[h * 16 + j + 8], b * cos + a * sin, 6e-7);
                if j >= 6 {
                    assert_eq!((row[h * 16 + j], row[h * 16 + j + 8]), (a as f32, b as f32));
                }
            }
        }
    }
}

#[test]
fn attention() {
    let mut r = Rng(10);
    let n = 150;
    let (q, k, v) = (random(&mut r, n * 32, 2.0), random(&mut r, n * 16, 2.0), random(&mut r, n * 16, 1.0));
    for window in [0usize, 1, 16, 40, 64] {
        for split in ["none", "32", "64", "128", "1048576"] {
            let order = if split == "none" {
                "none".into()
            } else {
                format!(
                    "attention(split={split}, dot=sum(lanes=4, take=contiguous, tree=pair), \
                     sum=sum(lanes=32, take=strided, tree=pair))"
                )
            };
            let body = format!(
                " %9 = kv {{layer=3, heads=2, dim=8, window={window}}} : kv[2,8] \"kv\"\n %10 = kv_write %9 %4 %6 : \
                 kv[2,8] \"kvw\"\n %11 = attention %2 %10 {{heads=4, order={order}}} : f32[T,32] \"out\""
            );
            let out = floats(&[(32, &q), (16, &k), (16, &v)], &body);
            for p in 0..n {
                for h in 0..4 {
                    let lo = if window == 0 { 0 } else { (p + 1).saturating_sub(window) };
                    let at = |x: &[f32], c: usize, j: usize| f64::from(x[c * 16 + h / 2 * 8 + j]);
                    let s: Vec<f64> = (lo..=p)
                        .map(|c| (0..8).map(|j| f64::from(q[p * 32 + h * 8 + j]) * at(&k, c, j)).sum::<f64>().exp())
                        .collect();
                    let sum: f64 = s.iter().sum();
                    for j in 0..8 {
                        let want = (lo..=p).map(|c| s[c - lo] / sum * at(&v, c, j)).sum();
                        close(out[p * 32 + h * 8 + j], want, 2e-6);
                    }
                }
            }
        }
    }
}

#[test]
fn attention_never_reads_what_is_masked() {
    // Positions 0 and 1 hold NaN and infinity; with a window of 2, position 3 and later must not see them.
    let q = [1.0f32; 16];
    let mut k = [0.5f32; 16];
    let mut v = [0.25f32; 16];
    (k[0], k[2], v[1], v[3]) = (f32::NAN, f32::INFINITY, f32::INFINITY, f32::NAN);
    let body = " %9 = kv {layer=0, heads=1, dim=2, window=2} : kv[1,2] \"kv\"\n %10 = kv_write %9 %4 %6 : kv[1,2] \
                \"kvw\"\n %11 = attention %2 %10 {heads=1, order=none} : f32[T,2] \"out\"";
    let out = floats(&[(2, &q), (2, &k), (2, &v)], body);
    assert!(out[0].is_nan() && out[4].is_nan());
    assert_eq!(out[6..], [0.25; 10]);
}
