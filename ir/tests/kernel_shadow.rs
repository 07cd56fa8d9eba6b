//! Planted faults that the interpreter's shadow memory must find in every order, next to the same kernels without them.

use ir::kernel::interp::{CODES, Order, RunOptions, run};
use ir::kernel::text::parse;

const HEAD: &str = "kernel k warps=4 min_blocks=0 {
buf x read
buf y write
shared s 4096
%0 = lane
%1 = warp
%2 = iconst 32
%3 = imul %1 %2
%4 = iadd %3 %0
%5 = iconst 127
%6 = isub %5 %4
%7 = block.x
%8 = iconst 128
%9 = imul %7 %8
%10 = iadd %9 %4
%11 = iconst 3
";

const ORDERS: [Order; 4] = [Order::InOrder, Order::Reverse, Order::Shuffled(1), Order::Shuffled(2)];

/// The error of a body in each order.
fn errors(body: &str, grid: u32) -> Vec<Option<(&'static str, String)>> {
    let k = parse(&format!("{HEAD}{body}\n}}")).unwrap_or_else(|d| panic!("{body}: {d:?}"));
    ORDERS
        .iter()
        .map(|&o| {
            let mut bufs = vec![vec![1; 4096], vec![0; 4096]];
            let o = RunOptions { shadow: true, warp_order: o, block_order: o, poison: true, max_steps: 0 };
            run(&k, [grid, 1], &mut bufs, &o).err().map(|d| (d[0].code, d[0].to_string()))
        })
        .collect()
}

const WRITE: &str = "store.i32 shared.s[%4] = %0\n";
const READ: &str = "%30 = load.i32 shared.s[%6]\nstore.i32 buf.y[%10] = %30\n";
const COPY: &str = "pipeline stages=3 in %11 copy %20 %21 {\n%22 = iconst 80\n%23 = imul %21 %22\n%24 = iadd %23 %4\n%25 = icmp.lt %4 %22\ncopy shared.s[%24] = buf.x[%4] if %25\n} body %26 %27 {\n";

/// (code, part of the message, blocks, body)
fn planted() -> Vec<(&'static str, &'static str, u32, String)> {
    // The slot that is being filled for a later iteration.
    let later = format!(
        "{COPY}%31 = iconst 320\n%35 = iconst 2\n%28 = iadd %27 %35\n%29 = urem %28 %11\n%32 = imul %29 %31\n%33 = iadd %32 %6\n"
    );
    vec![
        ("E0156", "since the last barrier", 1, format!("{WRITE}barrier\n{WRITE}{READ}")),
        ("E0156", "since the last barrier", 1, format!("{WRITE}barrier\n{READ}{WRITE}")),
        ("E0156", "since the last barrier", 1, "store.i32 shared.s[%0] = %0".into()),
        ("E0156", "wrote since the last barrier", 1, "store.i32 buf.y[%0] = %0".into()),
        ("E0156", "since the last barrier", 1, "%20 = load.i32 buf.y[%0]\nstore.i32 buf.y[%4] = %0".into()),
        // A loop whose barrier stands at one side only.
        ("E0156", "since the last barrier", 1, format!("for %20 in %11 {{\n{WRITE}barrier\n{READ}}}")),
        ("E0157", "which nothing wrote", 1, READ.into()),
        ("E0157", "which nothing wrote", 1, format!("%20 = icmp.lt %0 %11\nstore.i32 shared.s[%4] = %0 if %20\nbarrier\n{READ}")),
        // What one block wrote is not there for the next.
        ("E0157", "which nothing wrote", 2, format!("%20 = icmp.lt %7 %11\n%21 = icmp.eq %7 %1\n{READ}{WRITE}")),
        ("E0158", "read of shared.s", 1, format!("{later}%34 = load.i32 shared.s[%33]\n}}")),
        ("E0158", "write to shared.s", 1, format!("{later}store.i32 shared.s[%33] = %0\n}}")),
        // Shared memory that was written before the pipeline, without a barrier in between.
        ("E0156", "since the last barrier", 1, format!("store.i32 shared.s[%6] = %0\n{COPY}}}")),
        ("E0159", "in this launch", 2, "store.i32 buf.y[%4] = %0".into()),
        (
            "E0159",
            "in this launch",
            2,
            "%20 = iconst 255\n%21 = isub %20 %10\n%22 = load.i32 buf.y[%21]\nstore.i32 buf.y[%10] = %0".into(),
        ),
        ("E0160", "store different values", 1, "%20 = iconst 900\n%21 = iadd %20 %1\nstore.i32 shared.s[%21] = %0".into()),
    ]
}

#[test]
fn planted_faults_are_found_in_every_order() {
    for (code, message, grid, body) in planted() {
        for (got, order) in errors(&body, grid).into_iter().zip(ORDERS) {
            let Some((c, m)) = got else { panic!("{code} not found, {order:?}:\n{body}") };
            assert!(c == code && m.contains(message), "expected {code} {message}, {order:?}:\n{body}\ngot {c} {m}");
        }
    }
    for code in ["E0156", "E0157", "E0158", "E0159", "E0160"] {
        assert!(CODES.iter().any(|c| c.0 == code) && planted().iter().any(|p| p.0 == code));
    }
}

#[test]
fn sound_kernels_pass() {
    let own_slot = format!("{COPY}%31 = iconst 320\n%32 = imul %27 %31\n%33 = iadd %32 %6\n%34 = load.i32 shared.s[%33]\n}}");
    for body in [
        format!("{WRITE}barrier\n{READ}"),
        format!("{WRITE}barrier\n{READ}barrier\n{WRITE}"),
        // A warp sees what it wrote itself.
        format!("{WRITE}%20 = load.i32 shared.s[%4]"),
        format!("for %20 in %11 {{\n{WRITE}barrier\n{READ}barrier\n}}"),
        own_slot.clone(),
        // Reuse of the same memory after the drain.
        format!("{own_slot}\n{WRITE}barrier\n{READ}"),
        // One value from all lanes of a warp.
        "%20 = iconst 900\n%21 = iadd %20 %1\nstore.i32 shared.s[%21] = %3".into(),
        "%20 = load.i32 buf.x[%4]\nstore.i32 buf.y[%10] = %20\nbarrier\n%21 = load.i32 buf.y[%10]".into(),
    ] {
        assert!(errors(&body, 2).iter().all(Option::is_none), "{body}\n{:?}", errors(&body, 2));
    }
}

/// Without shadow memory the same faults go unnoticed: that is why it exists.
#[test]
fn the_fast_path_does_not_look_for_races() {
    let k = parse(&format!("{HEAD}{WRITE}{READ}\n}}")).unwrap();
    let mut bufs = vec![vec![1; 4096], vec![0; 4096]];
    assert!(run(&k, [1, 1], &mut bufs, &RunOptions::default()).is_ok());
}
