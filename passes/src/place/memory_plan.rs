//! Memory plan: offsets of values in two arenas, one of values per token and one of values per token whose logits are asked
//! for (there are fewer of those, and their rows are long), from the launches in which they live. Values whose lives do not
//! meet may share a place. Lives are whole launches: the stages of one launch run at the same time.

use crate::pass::{Effect, Module, Pass, PassCx};
use ir::diag::{Diagnostic, Result};
use ir::graph::Rows;
use ir::plan::{Arg, BufferKind, Plan};

/// Alignment of every value.
const ALIGN: u64 = 64;

/// The pass.
pub struct MemoryPlan;

impl Pass for MemoryPlan {
    fn name(&self) -> &'static str {
        "memory-plan"
    }
    fn about(&self) -> &'static str {
        "Gives every value its offset in the arena of tokens or that of outputs. A value lives from the launch that first writes it to the last that reads \
         it; outputs and values named by keep live to the end. Values whose lives do not meet share a place (best fit, \
         largest first). Off: every value has a place of its own."
    }
    fn effect(&self) -> Effect {
        Effect::Exact
    }

    fn run(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        assign(m, cx, true)
    }

    fn off(&self, m: &mut Module, cx: &mut PassCx<'_>) -> Result<bool> {
        assign(m, cx, false)
    }
}

fn assign(m: &mut Module, cx: &mut PassCx<'_>, reuse: bool) -> Result<bool> {
    let ends: Vec<String> = m.graph.outputs.iter().map(|&o| m.graph.node(o).name.clone()).collect();
    let Some(plan) = &mut m.plan else {
        return Err(Diagnostic::new("E0721", "there is no plan to place values for")
            .hint("`memory-plan` comes after the lowering to kernels"));
    };
    let before = plan.clone();
    let options = cx.options;
    let to_end = |name: &str| ends.iter().any(|e| e == name) || options.keeps(name);
    let mut share = |name: &str| reuse && cx.decide(format!("share the place of {name}"));
    place(plan, &to_end, &mut share)?;
    let total: u64 = values(plan).map(|(_, b)| b).sum();
    cx.stat("values", values(plan).count() as u64);
    cx.stat("arena-bytes", plan.arena_bytes);
    cx.stat("output-bytes", plan.output_bytes);
    cx.stat("bytes-saved", total - (plan.arena_bytes + plan.output_bytes).min(total));
    Ok(*plan != before)
}

/// Index and padded bytes of every value.
fn values(plan: &Plan) -> impl Iterator<Item = (usize, u64)> + '_ {
    plan.buffers.iter().enumerate().filter_map(|(i, b)| match b.kind {
        BufferKind::Value { bytes, .. } => Some((i, u64::from(bytes).next_multiple_of(ALIGN))),
        _ => None,
    })
}

struct Life {
    buffer: usize,
    output: bool,
    bytes: u64,
    first: usize,
    last: usize,
}

/// Sets the offsets. `to_end(name)`: the value lives to the end. `share(name)`: it may lie where another one lay before or
/// lies after; asked once for each value that could.
pub fn place(plan: &mut Plan, to_end: &dyn Fn(&str) -> bool, share: &mut dyn FnMut(&str) -> bool) -> Result<()> {
    let mut lives = lives(plan, to_end)?;
    // Largest first, then in order of life, then by index: a total order.
    lives.sort_by_key(|l| (std::cmp::Reverse(l.bytes), l.first, l.buffer));
    let mut placed: Vec<(Life, u64)> = vec![];
    let mut arenas = [0, 0];
    for l in lives {
        let arena = &mut arenas[usize::from(l.output)];
        let meets = |o: &Life| o.output == l.output && o.first <= l.last && l.first <= o.last;
        let mut taken: Vec<(u64, u64)> = placed.iter().filter(|(o, _)| meets(o)).map(|(o, at)| (*at, at + o.bytes)).collect();
        taken.sort_unstable();
        let hole = best_hole(&taken, l.bytes, *arena);
        // Only a place that something else uses at another time is a choice.
        let at = match hole {
            Some(at) if share(&plan.buffers[l.buffer].name) => at,
            _ => *arena,
        };
        *arena = (*arena).max(at + l.bytes);
        placed.push((l, at));
    }
    for (l, at) in placed {
        plan.buffers[l.buffer].offset = Some(at);
    }
    [plan.arena_bytes, plan.output_bytes] = arenas;
    Ok(())
}

/// The smallest hole below `end` that `bytes` fit into; the lowest of equal ones.
fn best_hole(taken: &[(u64, u64)], bytes: u64, end: u64) -> Option<u64> {
    let mut best: Option<(u64, u64)> = None;
    let mut from = 0;
    for &(lo, hi) in taken.iter().chain(&[(end, end)]) {
        if lo >= from && lo - from >= bytes && best.is_none_or(|(size, _)| lo - from < size) {
            best = Some((lo - from, from));
        }
        from = from.max(hi);
    }
    best.map(|(_, at)| at)
}

/// First and last launch of every value.
fn lives(plan: &Plan, to_end: &dyn Fn(&str) -> bool) -> Result<Vec<Life>> {
    let mut out = vec![];
    for (buffer, bytes) in values(plan) {
        let name = &plan.buffers[buffer].name;
        let (mut first, mut last) = (None, 0);
        for (t, launch) in plan.launches.iter().enumerate() {
            let kernel = &plan.kernels[launch.kernel as usize];
            for (param, arg) in kernel.bufs.iter().zip(&launch.args) {
                if *arg != Arg::Buffer(buffer as u32) {
                    continue;
                }
                if first.is_none() && !param.write {
                    return Err(Diagnostic::new("E0722", "a launch reads a value that none before it writes")
                        .at(format!("{name} in {}", launch.name)));
                }
                first = first.or(Some(t));
                last = t;
            }
        }
        let Some(first) = first else {
            return Err(Diagnostic::new("E0723", "no launch writes this value").at(name));
        };
        if to_end(name) {
            last = plan.launches.len();
        }
        let output = matches!(plan.buffers[buffer].kind, BufferKind::Value { rows: Rows::Outputs, .. });
        out.push(Life { buffer, output, bytes, first, last });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::pass::Decisions;
    use crate::sketch::Sketch;
    use ir::kernel::Buf;
    use ir::plan::{Buffer, Launch};
    use std::collections::BTreeMap;

    /// Launches that each read some values and write others, by index.
    fn plan(bytes: &[u32], launches: &[(&[u32], &[u32])]) -> Plan {
        let mut p = Plan::default();
        for (i, b) in bytes.iter().enumerate() {
            let rows = if i % 5 == 4 && bytes.len() > 5 { Rows::Outputs } else { Rows::Tokens };
            let kind = BufferKind::Value { rows, bytes: *b };
            p.buffers.push(Buffer { name: format!("v{i}"), kind, offset: None });
        }
        for (t, (reads, writes)) in launches.iter().enumerate() {
            let mut k = ir::kernel::build::Builder::new(&format!("k{t}"), 1).finish();
            let args = reads.iter().chain(*writes).map(|&b| Arg::Buffer(b)).collect();
            k.bufs = reads.iter().map(|b| buf(*b, false)).chain(writes.iter().map(|b| buf(*b, true))).collect();
            p.kernels.push(k);
            p.launches.push(Launch { name: format!("l{t}"), kernel: t as u32, args, grid_x: 1, rows: Rows::Tokens, tokens: 1 });
        }
        p
    }

    fn buf(b: u32, write: bool) -> Buf {
        Buf { name: format!("v{b}"), write, fixed: false }
    }

    fn no_overlap(p: &Plan, lives: &[Life]) {
        let at = |l: &Life| p.buffers[l.buffer].offset.unwrap();
        for (i, a) in lives.iter().enumerate() {
            assert!(at(a) % ALIGN == 0 && at(a) + a.bytes <= [p.arena_bytes, p.output_bytes][usize::from(a.output)]);
            for b in lives[i + 1..].iter().filter(|b| b.output == a.output) {
                let meet = a.first <= b.last && b.first <= a.last;
                let apart = at(a) + a.bytes <= at(b) || at(b) + b.bytes <= at(a);
                assert!(!meet || apart, "{} and {}", a.buffer, b.buffer);
            }
        }
    }

    #[test]
    fn a_chain_needs_two_places_and_outputs_stay() {
        let mut p = plan(&[64, 64, 64, 64], &[(&[], &[0]), (&[0], &[1]), (&[1], &[2]), (&[2], &[3])]);
        place(&mut p, &|_| false, &mut |_| true).unwrap();
        assert_eq!(p.arena_bytes, 128);
        no_overlap(&p, &lives(&p, &|_| false).unwrap());
        place(&mut p, &|n| n == "v0", &mut |_| true).unwrap();
        assert_eq!(p.arena_bytes, 192);
        no_overlap(&p, &lives(&p, &|n| n == "v0").unwrap());
        place(&mut p, &|_| false, &mut |_| false).unwrap();
        assert_eq!(p.arena_bytes, 256);
    }

    #[test]
    fn outputs_lie_apart() {
        let mut p = plan(&[64, 128, 640, 64], &[(&[], &[0]), (&[0], &[1]), (&[1], &[2]), (&[2], &[3])]);
        for b in &mut p.buffers[2..] {
            let BufferKind::Value { rows, .. } = &mut b.kind else { panic!() };
            *rows = Rows::Outputs;
        }
        place(&mut p, &|_| false, &mut |_| true).unwrap();
        assert_eq!((p.arena_bytes, p.output_bytes), (192, 704));
        no_overlap(&p, &lives(&p, &|_| false).unwrap());
    }

    #[test]
    fn the_best_hole_is_taken() {
        assert_eq!(best_hole(&[(64, 128), (192, 256)], 64, 512), Some(0), "the lowest of equal holes");
        assert_eq!(best_hole(&[(128, 192), (256, 320)], 64, 512), Some(192), "the smallest hole");
        assert_eq!(best_hole(&[(0, 128), (128, 512)], 64, 512), None);
        assert_eq!(best_hole(&[(0, 256), (64, 128)], 64, 320), Some(256), "overlapping places");
    }

    #[test]
    fn random_plans_never_overlap() {
        let mut x = 1u32;
        let mut next = |n: u32| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 16) % n
        };
        for _ in 0..50 {
            let n = 2 + next(20);
            let bytes: Vec<u32> = (0..n).map(|_| 64 * (1 + next(8))).collect();
            let reads: Vec<Vec<u32>> = (0..n).map(|i| (0..i).filter(|_| next(4) == 0).collect()).collect();
            let ids: Vec<[u32; 1]> = (0..n).map(|i| [i]).collect();
            let launches: Vec<(&[u32], &[u32])> = reads.iter().zip(&ids).map(|(r, w)| (&r[..], &w[..])).collect();
            let mut p = plan(&bytes, &launches);
            place(&mut p, &|n| n == "v1", &mut |_| true).unwrap();
            no_overlap(&p, &lives(&p, &|n| n == "v1").unwrap());
            let mut again = plan(&bytes, &launches);
            place(&mut again, &|n| n == "v1", &mut |_| true).unwrap();
            assert_eq!(again, p);
        }
    }

    #[test]
    fn reads_before_writes_are_refused() {
        let mut p = plan(&[64], &[(&[0], &[])]);
        assert_eq!(place(&mut p, &|_| false, &mut |_| true).unwrap_err().code, "E0722");
        let mut p = plan(&[64], &[]);
        assert_eq!(place(&mut p, &|_| false, &mut |_| true).unwrap_err().code, "E0723");
    }

    #[test]
    fn off_gives_every_value_its_own_place() {
        let mut s = Sketch::new("t");
        let x = s.embed("v3", 64);
        let mut m = Module::new(s.finish(&[x]));
        let (options, args, mut d) = (Options::default(), BTreeMap::new(), Decisions::new(None));
        let mut cx = PassCx::new("memory-plan", &options, &args, &mut d);
        assert_eq!(MemoryPlan.run(&mut m, &mut cx).unwrap_err().code, "E0721");
        let chain: [(&[u32], &[u32]); 4] = [(&[], &[0]), (&[0], &[1]), (&[1], &[2]), (&[2], &[3])];
        m.plan = Some(plan(&[64; 4], &chain));
        assert!(MemoryPlan.off(&mut m, &mut cx).unwrap());
        assert_eq!(m.plan.as_ref().unwrap().arena_bytes, 256);
        assert!(MemoryPlan.run(&mut m, &mut cx).unwrap());
        assert_eq!(m.plan.as_ref().unwrap().arena_bytes, 128);
        assert_eq!(d.log[0], "take (1) memory-plan: share the place of v2");
    }
}
