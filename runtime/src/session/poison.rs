//! Poison: memory that holds nothing is filled with NaN before a sequence begins and between its turns, so that a kernel that
//! reads what none has written spoils what comes out, on every device. No sound program gives another bit by it.

use super::Session;
use crate::device::BufferId;
use ir::diag::Result;
use ir::order::KV_BLOCK;
use ir::plan::BufferKind;
use std::collections::BTreeSet;

/// As a float, four of them are a NaN; as a number, -1.
const POISON: u8 = 0xff;

impl Session {
    /// From now on, before the first step of a sequence or turn: fills values between kernels, what kernels are told of a step,
    /// and those blocks of the slot's caches in which no token is kept. Rings of which some is kept are left as they are.
    pub fn poison(&mut self) {
        self.poison = Some((0..self.limits.slots).collect());
    }

    /// Fills what the slots that begin anew do not need.
    pub(super) fn poison_what_is_free(&mut self) -> Result<()> {
        let Some(slots) = self.poison.as_mut().map(std::mem::take).filter(|s| !s.is_empty()) else { return Ok(()) };
        self.fill_between(POISON)?;
        slots.into_iter().try_for_each(|slot| self.fill_caches(slot, POISON))
    }

    /// Zeros instead, for good.
    pub(super) fn clean(&mut self) -> Result<()> {
        if self.poison.take().is_none() {
            return Ok(());
        }
        self.fill_between(0)?;
        (0..self.limits.slots).try_for_each(|slot| self.fill_caches(slot, 0))
    }

    /// All that is neither a weight nor a cache, nor a sum of digests, which only grows.
    fn fill_between(&mut self, byte: u8) -> Result<()> {
        self.told = Default::default();
        self.between.iter().try_for_each(|&(id, bytes)| self.device.fill(id, 0, bytes, byte))
    }

    /// The blocks of a slot that hold no token that is kept.
    fn fill_caches(&mut self, slot: usize, byte: u8) -> Result<()> {
        let kept = self.slots[slot].tokens.len();
        let mut ranges: BTreeSet<(BufferId, u64, u64)> = BTreeSet::new();
        for bound in &self.plans {
            for (b, &(id, at)) in bound.plan.buffers.iter().zip(&bound.places) {
                let (BufferKind::Keys { heads, dim, window, .. } | BufferKind::Values { heads, dim, window, .. }) = b.kind else {
                    continue;
                };
                let (blocks, first) = match window {
                    0 => (self.sizes.full_blocks, kept.div_ceil(KV_BLOCK as usize)),
                    _ => (self.sizes.ring_blocks, if kept == 0 { 0 } else { self.sizes.ring_blocks }),
                };
                let block = u64::from(dim * KV_BLOCK) * 4;
                for head in 0..heads as usize {
                    let from = (slot * heads as usize + head) * blocks + first;
                    ranges.insert((id, at + from as u64 * block, (blocks - first) as u64 * block));
                }
            }
        }
        ranges.into_iter().filter(|r| r.2 > 0).try_for_each(|(id, at, bytes)| self.device.fill(id, at, bytes, byte))
    }
}
