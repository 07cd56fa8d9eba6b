//! Memory accesses of one warp: bounds and alignment always, shadow checks where they are on; contiguous and uniform
//! accesses take short ways.

use super::Arg;
use super::decode::{NONE, S};
use super::fault::{Check, Fault, mem_name};
use super::shadow::{Access, Pending, Shadow};
use crate::kernel::{Elem, Kernel, LANES, Mem};

/// One register: 32 lanes.
pub(super) type Reg = [u32; LANES];

/// Memory and place of the running warp.
pub(super) struct Ctx<'a, 'b> {
    pub k: &'a Kernel,
    pub args: &'a mut [Arg<'b>],
    pub shared: Vec<u8>,
    pub offsets: Vec<u32>,
    pub shadow: Option<Box<Shadow>>,
    pub warp: u32,
    /// Number of the block in the grid.
    pub block: u32,
    /// Iteration that copies are issued for.
    pub iteration: u32,
}

impl Ctx<'_, '_> {
    fn bytes(&self, m: Mem) -> &[u8] {
        match m {
            Mem::Buf(b) => match &self.args[b as usize] {
                Arg::Read(s) => s,
                Arg::Write(s) => s,
            },
            Mem::Shared(s) => {
                let at = self.offsets[s as usize] as usize;
                &self.shared[at..at + self.k.shared[s as usize].bytes as usize]
            }
        }
    }

    fn bytes_mut(&mut self, m: Mem) -> &mut [u8] {
        match m {
            Mem::Buf(b) => match &mut self.args[b as usize] {
                Arg::Read(_) => &mut [],
                Arg::Write(s) => s,
            },
            Mem::Shared(s) => {
                let at = self.offsets[s as usize] as usize;
                &mut self.shared[at..at + self.k.shared[s as usize].bytes as usize]
            }
        }
    }
}

/// Lanes that take part, as bits.
#[inline(always)]
fn mask(r: &[Reg], pred: S) -> u32 {
    if pred == NONE {
        return !0;
    }
    r[pred as usize].iter().enumerate().fold(0, |m, (i, p)| m | u32::from(*p != 0) << i)
}

/// Are all indices of active lanes inside and aligned? `count` elements of memory, `n` per lane.
#[inline(always)]
fn inside(ix: &Reg, mask: u32, n: usize, count: usize) -> bool {
    let limit = (count + 1).saturating_sub(n) as u64;
    let mut bad = 0;
    for (i, &x) in ix.iter().enumerate() {
        let out = u32::from(u64::from(x) >= limit) | (x & (n as u32 - 1));
        bad |= if mask >> i & 1 != 0 { out } else { 0 };
    }
    bad == 0
}

#[cold]
fn outside(cx: &Ctx<'_, '_>, m: Mem, elem: Elem, ix: &Reg, mask: u32, n: usize, count: usize) -> Box<Fault> {
    let bad = |i: &usize| {
        let x = u64::from(ix[*i]);
        mask >> *i & 1 != 0 && (x + n as u64 > count as u64 || x % n as u64 != 0)
    };
    let lane = (0..LANES).find(bad).unwrap_or(0);
    let (x, name) = (ix[lane], mem_name(cx.k, m));
    if u64::from(x) + n as u64 > count as u64 {
        let what = if n == 1 { format!("index {x} is") } else { format!("{n} elements at index {x} are") };
        let m = format!("{what} outside {name} of {count} {} elements", super::super::text::elem_name(elem));
        Fault::lane("E0150", lane, m)
    } else {
        Fault::lane("E0151", lane, format!("index {x} into {name} is not a multiple of {n}"))
    }
}

#[inline(always)]
fn contiguous(ix: &Reg, n: usize, count: usize) -> bool {
    let first = ix[0];
    u64::from(first) + (LANES * n) as u64 <= count as u64
        && ix.iter().enumerate().fold(0, |d, (i, x)| d | (x ^ first.wrapping_add((i * n) as u32))) == 0
}

/// Checks with shadow memory, if it is on.
#[inline(never)]
fn shadow(cx: &mut Ctx<'_, '_>, mem: Mem, ix: &Reg, mask: u32, len: usize, bytes: usize, write: bool) -> Check {
    let Some(s) = &mut cx.shadow else { return Ok(()) };
    for lane in (0..LANES).filter(|i| mask >> i & 1 != 0) {
        let at = ix[lane] as usize * bytes;
        s.touch(cx.k, Access { mem, at, len, warp: cx.warp, block: cx.block, lane, write })?;
    }
    Ok(())
}

/// Operands of a load.
pub(super) struct LoadArgs {
    pub mem: Mem,
    pub elem: Elem,
    pub n: usize,
    pub d: S,
    pub idx: S,
    pub pred: S,
}

#[inline(always)]
pub(super) fn load(cx: &mut Ctx<'_, '_>, r: &mut [Reg], l: LoadArgs) -> Check {
    let ix = r[l.idx as usize];
    let mask = mask(r, l.pred);
    let size = l.elem.bytes() as usize;
    let count = cx.bytes(l.mem).len() / size;
    if !inside(&ix, mask, l.n, count) {
        return Err(outside(cx, l.mem, l.elem, &ix, mask, l.n, count));
    }
    if cx.shadow.is_some() {
        shadow(cx, l.mem, &ix, mask, l.n * size, size, false)?;
    }
    let bytes = cx.bytes(l.mem);
    let d = &mut r[l.d as usize..l.d as usize + l.n];
    match l.elem {
        Elem::F32 | Elem::I32 => fill(bytes, &ix, mask, d, u32::from_le_bytes),
        Elem::Bf16 => fill(bytes, &ix, mask, d, |b| u32::from(u16::from_le_bytes(b)) << 16),
        Elem::U8 => fill(bytes, &ix, mask, d, |[b]| u32::from(b)),
    }
    Ok(())
}

#[inline(always)]
fn fill<const B: usize>(bytes: &[u8], ix: &Reg, mask: u32, d: &mut [Reg], get: impl Fn([u8; B]) -> u32 + Copy) {
    let elems = bytes.as_chunks::<B>().0;
    match d {
        [a] => fill_n(elems, ix, mask, [a], get),
        [a, b] => fill_n(elems, ix, mask, [a, b], get),
        [a, b, c, e] => fill_n(elems, ix, mask, [a, b, c, e], get),
        _ => unreachable!("the verifier allows 1, 2 or 4 results"),
    }
}

#[inline(always)]
fn fill_n<const B: usize, const N: usize>(
    elems: &[[u8; B]],
    ix: &Reg,
    mask: u32,
    mut d: [&mut Reg; N],
    get: impl Fn([u8; B]) -> u32 + Copy,
) {
    if mask == !0 && contiguous(ix, N, elems.len()) {
        let src = &elems[ix[0] as usize..ix[0] as usize + LANES * N];
        for i in 0..LANES {
            for j in 0..N {
                d[j][i] = get(src[i * N + j]);
            }
        }
    } else if mask == !0 && ix.iter().fold(0, |e, x| e | (x ^ ix[0])) == 0 {
        for j in 0..N {
            *d[j] = [get(elems[ix[0] as usize + j]); LANES];
        }
    } else {
        for i in 0..LANES {
            if mask >> i & 1 != 0 {
                let src = &elems[ix[i] as usize..ix[i] as usize + N];
                for j in 0..N {
                    d[j][i] = get(src[j]);
                }
            } else {
                d.iter_mut().for_each(|d| d[i] = 0);
            }
        }
    }
}

/// Operands of a store.
pub(super) struct StoreArgs {
    pub mem: Mem,
    pub elem: Elem,
    pub idx: S,
    pub val: S,
    pub pred: S,
}

#[inline(always)]
pub(super) fn store(cx: &mut Ctx<'_, '_>, r: &[Reg], s: StoreArgs) -> Check {
    let (ix, val) = (&r[s.idx as usize], &r[s.val as usize]);
    let mask = mask(r, s.pred);
    let size = s.elem.bytes() as usize;
    let count = cx.bytes(s.mem).len() / size;
    if !inside(ix, mask, 1, count) {
        return Err(outside(cx, s.mem, s.elem, ix, mask, 1, count));
    }
    if cx.shadow.is_some() {
        shadow(cx, s.mem, ix, mask, size, size, true)?;
        one_value(cx, &s, ix, val, mask)?;
    }
    let bytes = cx.bytes_mut(s.mem);
    match s.elem {
        Elem::F32 | Elem::I32 => spill(bytes, ix, val, mask, u32::to_le_bytes),
        Elem::Bf16 => spill(bytes, ix, val, mask, |x| ((bf16(x) >> 16) as u16).to_le_bytes()),
        Elem::U8 => spill(bytes, ix, val, mask, |x| [x as u8]),
    }
    Ok(())
}

#[inline(always)]
fn spill<const B: usize>(bytes: &mut [u8], ix: &Reg, val: &Reg, mask: u32, put: impl Fn(u32) -> [u8; B]) {
    let elems = bytes.as_chunks_mut::<B>().0;
    if mask == !0 && contiguous(ix, 1, elems.len()) {
        let at = ix[0] as usize;
        for (e, v) in elems[at..at + LANES].iter_mut().zip(val) {
            *e = put(*v);
        }
    } else {
        for i in 0..LANES {
            if mask >> i & 1 != 0 {
                elems[ix[i] as usize] = put(val[i]);
            }
        }
    }
}

/// Lanes that store to one address store one value.
#[cold]
fn one_value(cx: &Ctx<'_, '_>, s: &StoreArgs, ix: &Reg, val: &Reg, mask: u32) -> Check {
    let stored = |x: u32| match s.elem {
        Elem::F32 | Elem::I32 => x,
        Elem::Bf16 => bf16(x),
        Elem::U8 => x & 0xff,
    };
    for i in (0..LANES).filter(|i| mask >> i & 1 != 0) {
        for j in (0..i).filter(|j| mask >> j & 1 != 0 && ix[*j] == ix[i]) {
            if stored(val[i]) != stored(val[j]) {
                let name = mem_name(cx.k, s.mem);
                let m = format!("lanes {j} and {i} store different values to {name}, index {}", ix[i]);
                return Err(Fault::lane("E0160", i, m));
            }
        }
    }
    Ok(())
}

/// Adds lane by lane; `[idx, val, pred]`. The verifier sees to it that nothing else touches the buffer.
pub(super) fn atomic_add(cx: &mut Ctx<'_, '_>, r: &[Reg], buf: u32, [idx, val, pred]: [S; 3], float: bool) -> Check {
    let (ix, val, mask) = (&r[idx as usize], &r[val as usize], mask(r, pred));
    let mem = Mem::Buf(buf);
    let count = cx.bytes(mem).len() / 4;
    if !inside(ix, mask, 1, count) {
        return Err(outside(cx, mem, Elem::I32, ix, mask, 1, count));
    }
    let words = cx.bytes_mut(mem).as_chunks_mut::<4>().0;
    for i in (0..LANES).filter(|i| mask >> i & 1 != 0) {
        let w = &mut words[ix[i] as usize];
        let old = u32::from_le_bytes(*w);
        let sum = if float { (f32::from_bits(old) + f32::from_bits(val[i])).to_bits() } else { old.wrapping_add(val[i]) };
        *w = sum.to_le_bytes();
    }
    Ok(())
}

/// Operands of a copy.
pub(super) struct CopyArgs {
    pub dst: u32,
    pub dst_idx: S,
    pub src: u32,
    pub src_idx: S,
    pub pred: S,
}

pub(super) fn copy(cx: &mut Ctx<'_, '_>, r: &[Reg], c: CopyArgs) -> Check {
    let mask = mask(r, c.pred);
    for lane in (0..LANES).filter(|i| mask >> i & 1 != 0) {
        let (to, from) = (r[c.dst_idx as usize][lane], r[c.src_idx as usize][lane]);
        for (m, x) in [(Mem::Shared(c.dst), to), (Mem::Buf(c.src), from)] {
            let units = cx.bytes(m).len() / 16;
            if x as usize >= units {
                let m = format!("index {x} is outside {} of {units} units of 16 bytes", mem_name(cx.k, m));
                return Err(Fault::lane("E0150", lane, m));
            }
        }
        let (dst_at, src_at) = (to as usize * 16, from as usize * 16);
        let p = Pending { iteration: cx.iteration, warp: cx.warp, dst: c.dst, dst_at, src: c.src, src_at };
        match &mut cx.shadow {
            Some(s) => {
                s.issue(cx.k, p, lane)?;
                cx.bytes_mut(Mem::Shared(c.dst))[dst_at..dst_at + 16].fill(0xff);
            }
            None => land(cx, &p),
        }
    }
    Ok(())
}

/// The bytes of a copy arrive.
pub(super) fn land(cx: &mut Ctx<'_, '_>, p: &Pending) {
    let mut unit = [0; 16];
    unit.copy_from_slice(&cx.bytes(Mem::Buf(p.src))[p.src_at..p.src_at + 16]);
    cx.bytes_mut(Mem::Shared(p.dst))[p.dst_at..p.dst_at + 16].copy_from_slice(&unit);
}

/// Nearest bf16 value, ties to even, as bits of a float; NaN becomes the one NaN.
#[inline(always)]
pub(super) fn bf16(x: u32) -> u32 {
    if x & 0x7fff_ffff > 0x7f80_0000 { 0x7fc0_0000 } else { x.wrapping_add(0x7fff + (x >> 16 & 1)) & 0xffff_0000 }
}
