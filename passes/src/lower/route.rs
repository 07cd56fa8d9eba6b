//! Choosing: the k best experts of a token, and the greatest logit. Ties go to the lowest index. An expert's logit that is
//! not finite makes all weights of the token NaN, a NaN the greatest logit's index -1, so that it cannot stay unseen.

use super::cx::{ArgKey, Kx};
use ir::diag::{Diagnostic, Result};
use ir::graph::NodeId;
use ir::graph::op::Op;
use ir::kernel::{BoolOp, Elem, FCmp, ICmp, IntOp, Mem, V};
use ir::math::{self, Arith};

/// Emits the routing of a token by one warp; logits come from shared memory, from an element on, or from the value in
/// memory.
pub fn route(kx: &mut Kx, id: NodeId, logits: Option<(Mem, V)>) -> Result<()> {
    let n = kx.g.node(id);
    let Op::Route { k } = n.op else { return Err(Diagnostic::new("E0622", "expected a route").at(&n.name)) };
    let (z, scale) = (n.inputs[0], n.inputs[1]);
    let experts = kx.g.node(z).ty.width();
    let lane = kx.b.lane();
    let (ninf, nan) = (kx.b.f(f32::NEG_INFINITY), kx.b.f(f32::NAN));
    let inf = kx.b.f(f32::INFINITY);
    // A lane holds experts lane, lane + 32, ...; `left` says which may still be chosen.
    let mut vals = vec![];
    for c in 0..experts.div_ceil(32) {
        let i = kx.b.add_c(lane, (c * 32) as i32);
        let lim = kx.b.i(experts as i32);
        let exists = kx.b.icmp(ICmp::Lt, i, lim);
        let pred = (!experts.is_multiple_of(32)).then_some(exists);
        let v = match logits {
            Some((m, first)) => {
                let i = kx.b.iadd(first, i);
                kx.b.load(m, Elem::F32, i, pred)
            }
            None => kx.load_value(z, i, pred),
        };
        // What is not finite is chosen first, and then `inf - inf` makes all weights NaN. `v - v` is 0, or NaN.
        let zero = kx.b.sub(v, v);
        let bad = kx.b.is_nan(zero);
        let v = kx.b.select(bad, inf, v);
        let left = pred.unwrap_or_else(|| kx.b.b(true));
        vals.push((i, v, left));
    }
    let none = kx.b.i(experts as i32);
    let (mut my_index, mut my_value) = (kx.b.i(0), nan);
    let mut best0 = nan;
    for r in 0..k {
        let (mut bv, mut bi) = (ninf, none);
        for &(i, v, left) in &vals {
            let take = better(kx, v, i, bv, bi);
            let take = kx.b.bool_op(BoolOp::And, take, left);
            bv = kx.b.select(take, v, bv);
            bi = kx.b.select(take, i, bi);
        }
        for m in [16, 8, 4, 2, 1] {
            let (ov, oi) = (kx.b.shuffle_xor(bv, m), kx.b.shuffle_xor(bi, m));
            let take = better(kx, ov, oi, bv, bi);
            bv = kx.b.select(take, ov, bv);
            bi = kx.b.select(take, oi, bi);
        }
        for (i, _, left) in &mut vals {
            let other = kx.b.icmp(ICmp::Ne, *i, bi);
            *left = kx.b.bool_op(BoolOp::And, *left, other);
        }
        if r == 0 {
            best0 = bv;
        }
        let rank = kx.b.i(r as i32);
        let mine = kx.b.icmp(ICmp::Eq, lane, rank);
        my_index = kx.b.select(mine, bi, my_index);
        my_value = kx.b.select(mine, bv, my_value);
    }
    let rel = kx.b.sub(my_value, best0);
    let e = kx.exp(rel);
    let mut sum = kx.b.f(0.0);
    for r in 0..k {
        let i = kx.b.i(r as i32);
        let x = kx.b.shuffle_idx(e, i);
        sum = kx.b.add(sum, x);
    }
    let inv = math::recip(&mut kx.b, sum);
    let w = kx.b.mul(e, inv);
    let s = kx.load_plain(scale, my_index)?;
    let w = kx.b.mul(w, s);
    let lim = kx.b.i(k as i32);
    let chosen = kx.b.icmp(ICmp::Lt, lane, lim);
    kx.store_word(id, Elem::I32, lane, my_index, Some(chosen));
    let at = kx.b.add_c(lane, k as i32);
    kx.store_word(id, Elem::F32, at, w, Some(chosen));
    Ok(())
}

/// Is (v, i) ahead of (w, j): greater, or equal with a lower index?
fn better(kx: &mut Kx, v: V, i: V, w: V, j: V) -> V {
    let gt = kx.b.fcmp(FCmp::Lt, w, v);
    let eq = kx.b.fcmp(FCmp::Eq, v, w);
    let lower = kx.b.icmp(ICmp::Lt, i, j);
    let tie = kx.b.bool_op(BoolOp::And, eq, lower);
    kx.b.bool_op(BoolOp::Or, gt, tie)
}

/// Emits the argmax of an output's logits by one block.
pub fn argmax(kx: &mut Kx, id: NodeId) -> Result<()> {
    let x = kx.g.node(id).inputs[0];
    let width = kx.g.node(x).ty.width();
    if !width.is_multiple_of(32) {
        return Err(Diagnostic::new("E0623", format!("no kernel for the argmax of {width} elements")).at(&kx.g.node(id).name));
    }
    let (warps, warp, lane) = (kx.b.warps(), kx.b.warp(), kx.b.lane());
    let (ninf, zero) = (kx.b.f(f32::NEG_INFINITY), kx.b.i(0));
    let none = kx.b.i(width as i32);
    // Elements that a lane reads together, four by four.
    let together = [32, 16, 4, 1].into_iter().find(|n| width.is_multiple_of(32 * n)).unwrap_or(1);
    let wide = together.min(4);
    let vecs = width / (32 * together);
    let mem = kx.arg(ArgKey::Value(x), false);
    let base = kx.row_base(x);
    let top = kx.b.i((vecs + warps - 1) as i32);
    let left = kx.b.isub(top, warp);
    let trip = kx.b.int_c(IntOp::Div, left, warps as i32);
    let best = kx.for_(trip, &[ninf, none, zero], |kx, t, c| {
        let v = kx.b.mul_c(t, warps as i32);
        let v = kx.b.iadd(v, warp);
        let v = kx.b.mul_c(v, (32 * together) as i32);
        let mine = kx.b.mul_c(lane, wide as i32);
        let first = kx.b.iadd(v, mine);
        let mut all = vec![];
        for j in 0..together / wide {
            let i = kx.b.add_c(first, (j * 32 * wide) as i32);
            let at = kx.b.iadd(base, i);
            all.push((i, kx.b.load_n(mem, Elem::F32, at, wide as usize, None)));
        }
        let (one, mut c) = (kx.b.i(1), c.to_vec());
        for (first, xs) in all {
            for (k, x) in xs.into_iter().enumerate() {
                let i = kx.b.add_c(first, k as i32);
                let take = better(kx, x, i, c[0], c[1]);
                let bad = kx.b.is_nan(x);
                c = vec![kx.b.select(take, x, c[0]), kx.b.select(take, i, c[1]), kx.b.select(bad, one, c[2])];
            }
        }
        c
    });
    let [mut bv, mut bi, mut bad] = [best[0], best[1], best[2]];
    let reduce = |kx: &mut Kx, bv: &mut V, bi: &mut V, bad: &mut V| {
        for m in [16, 8, 4, 2, 1] {
            let (ov, oi, ob) = (kx.b.shuffle_xor(*bv, m), kx.b.shuffle_xor(*bi, m), kx.b.shuffle_xor(*bad, m));
            let take = better(kx, ov, oi, *bv, *bi);
            *bv = kx.b.select(take, ov, *bv);
            *bi = kx.b.select(take, oi, *bi);
            *bad = kx.b.ior(*bad, ob);
        }
    };
    reduce(kx, &mut bv, &mut bi, &mut bad);
    let lane0 = kx.is_zero(lane);
    if warps > 1 {
        let m = kx.shared("best", 4 * 3 * 32);
        for (k, (v, elem)) in [(bv, Elem::F32), (bi, Elem::I32), (bad, Elem::I32)].into_iter().enumerate() {
            let at = kx.b.add_c(warp, 32 * k as i32);
            kx.b.store(m, elem, at, v, Some(lane0));
        }
        kx.b.barrier();
        let lim = kx.b.i(warps as i32);
        let p = kx.b.icmp(ICmp::Lt, lane, lim);
        let mut at = lane;
        let mut read = |kx: &mut Kx, elem, other| {
            let v = kx.b.load(m, elem, at, Some(p));
            at = kx.b.add_c(at, 32);
            kx.b.select(p, v, other)
        };
        bv = read(kx, Elem::F32, ninf);
        bi = read(kx, Elem::I32, none);
        bad = read(kx, Elem::I32, zero);
        reduce(kx, &mut bv, &mut bi, &mut bad);
    }
    let clean = kx.is_zero(bad);
    let minus = kx.b.i(-1);
    let r = kx.b.select(clean, bi, minus);
    let first_warp = kx.is_zero(warp);
    let p = kx.and(Some(lane0), Some(first_warp));
    kx.store_word(id, Elem::I32, zero, r, p);
    Ok(())
}
