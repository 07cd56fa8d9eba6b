//! [`InterpDevice`]: the reference interpreter of kernels as a device. Code is the text of kernels; it is slow, checks
//! everything, and is what every other device is compared with.

use crate::cpu::available::available;
use crate::device::{BufferId, Device, KernelHandle, KernelNames, LaunchDesc, PreparedId, check_grid_list, check_grid_y};
use crate::memory::Available;
use ir::diag::{Diagnostic, Result};
use ir::kernel::interp::{Arg, Machine, RunOptions};
use std::collections::BTreeMap;

/// Interprets kernels.
pub struct InterpDevice {
    options: RunOptions,
    buffers: Vec<Option<Vec<u8>>>,
    kernels: Vec<Machine>,
    lists: Vec<Option<Vec<LaunchDesc>>>,
}

impl InterpDevice {
    /// A device that runs with these checks and orders.
    pub fn new(options: RunOptions) -> Self {
        InterpDevice { options, buffers: vec![], kernels: vec![], lists: vec![] }
    }

    fn buffer(&mut self, id: BufferId) -> Result<&mut Vec<u8>> {
        self.buffers.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or_else(|| Diagnostic::new("E0421", "unknown buffer"))
    }

    fn range(&mut self, id: BufferId, offset: u64, len: usize) -> Result<&mut [u8]> {
        let b = self.buffer(id)?;
        let size = b.len();
        usize::try_from(offset)
            .ok()
            .and_then(|o| b.get_mut(o..o.checked_add(len)?))
            .ok_or_else(|| Diagnostic::new("E0422", format!("{len} bytes at {offset} of a buffer of {size}")))
    }

    /// One launch. Arguments may be slices of one buffer (the arena): the memory of each buffer is cut at the arguments'
    /// offsets, so that parts can be lent at once.
    fn one(&mut self, l: &LaunchDesc, grid_y: u32) -> Result<()> {
        let machine = &self.kernels[l.kernel.0 as usize];
        let writes: Vec<bool> = machine.kernel().bufs.iter().map(|b| b.write).collect();
        let mut cuts: BTreeMap<BufferId, Vec<u64>> = BTreeMap::new();
        for (id, at) in &l.args {
            cuts.entry(*id).or_default().push(*at);
        }
        let mut pieces: BTreeMap<(BufferId, u64), &mut [u8]> = BTreeMap::new();
        for (i, b) in self.buffers.iter_mut().enumerate() {
            let (Some(b), Some(at)) = (b.as_mut(), cuts.get_mut(&BufferId(i as u32))) else {
                continue;
            };
            at.sort_unstable();
            at.dedup();
            let mut rest: &mut [u8] = b;
            let mut done = 0;
            for (k, &start) in at.iter().enumerate() {
                let (_, tail) = std::mem::take(&mut rest).split_at_mut((start - done) as usize);
                let len = at.get(k + 1).map_or(tail.len(), |n| (n - start) as usize);
                let (piece, tail) = tail.split_at_mut(len);
                pieces.insert((BufferId(i as u32), start), piece);
                (rest, done) = (tail, start + len as u64);
            }
        }
        // A value's piece ends where the next argument of the arena begins, or with the arena.
        let mut shared: BTreeMap<(BufferId, u64), &[u8]> = BTreeMap::new();
        for (k, w) in l.args.iter().zip(&writes) {
            if !w && let Some(p) = pieces.remove(k) {
                shared.insert(*k, p);
            }
        }
        let mut args = vec![];
        for (k, w) in l.args.iter().zip(&writes) {
            args.push(match (w, shared.get(k)) {
                (false, Some(p)) => Arg::Read(p),
                _ => Arg::Write(
                    pieces.remove(k).ok_or_else(|| Diagnostic::new("E0424", "a launch writes a buffer that it also reads"))?,
                ),
            });
        }
        machine.run([l.grid[0], grid_y], &mut args, &self.options)?;
        Ok(())
    }
}

impl Device for InterpDevice {
    fn name(&self) -> String {
        "interpreter".into()
    }

    fn alloc(&mut self, bytes: u64) -> Result<BufferId> {
        let fill = if self.options.poison { 0xff } else { 0 };
        let mut b = vec![];
        let n = usize::try_from(bytes).map_err(|_| Diagnostic::new("E0420", format!("no buffer has {bytes} bytes")))?;
        b.try_reserve_exact(n)
            .map_err(|_| Diagnostic::new("E0420", format!("not enough memory for a buffer of {bytes} bytes")))?;
        b.resize(n, fill);
        self.buffers.push(Some(b));
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    fn free(&mut self, buffer: BufferId) -> Result<()> {
        self.buffer(buffer)?;
        self.buffers[buffer.0 as usize] = None;
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.range(buffer, offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn write_with(&mut self, buffer: BufferId, offset: u64, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        fill(self.range(buffer, offset, len)?);
        Ok(())
    }

    fn available(&self) -> Option<Available> {
        available()
    }

    fn read(&mut self, buffer: BufferId, offset: u64, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(self.range(buffer, offset, out.len())?);
        Ok(())
    }

    fn load_module(&mut self, code: &[u8], names: &KernelNames<'_>) -> Result<Vec<KernelHandle>> {
        let text = std::str::from_utf8(code).map_err(|_| Diagnostic::new("E0407", "kernels are not text").at(names.place))?;
        let first =
            |e: Vec<Diagnostic>| e.into_iter().next().unwrap_or_else(|| Diagnostic::new("E0407", "bad kernels").at(names.place));
        let parsed = ir::kernel::text::parse_all(text).map_err(first)?;
        let mut out = vec![];
        for sig in names.kernels {
            let k = parsed.iter().find(|k| k.name == sig.name);
            let k = k.ok_or_else(|| Diagnostic::new("E0407", format!("no kernel `{}`", sig.name)).at(names.place))?;
            self.kernels.push(Machine::new(k).map_err(first)?);
            out.push(KernelHandle(self.kernels.len() as u32 - 1));
        }
        Ok(out)
    }

    fn prepare(&mut self, list: &[LaunchDesc]) -> Result<PreparedId> {
        for (i, l) in list.iter().enumerate() {
            let k = self.kernels.get(l.kernel.0 as usize).ok_or_else(|| Diagnostic::new("E0421", "unknown kernel"))?;
            let (name, bufs) = (k.kernel().name.clone(), k.kernel().bufs.len());
            l.check(i, &name, bufs as u32)?;
            for (b, at) in &l.args {
                self.range(*b, *at, 0)?;
            }
        }
        self.lists.push(Some(list.to_vec()));
        Ok(PreparedId(self.lists.len() as u32 - 1))
    }

    fn release(&mut self, prepared: PreparedId) -> Result<()> {
        match self.lists.get_mut(prepared.0 as usize) {
            Some(l @ Some(_)) => {
                *l = None;
                Ok(())
            }
            _ => Err(Diagnostic::new("E0421", "unknown list")),
        }
    }

    unsafe fn run(&mut self, prepared: PreparedId, grid_y: &[u32]) -> Result<()> {
        let list = self.lists.get_mut(prepared.0 as usize).and_then(Option::take);
        let list = list.ok_or_else(|| Diagnostic::new("E0421", "unknown list"))?;
        let result = check_grid_list(grid_y.len(), list.len()).and_then(|()| {
            list.iter().enumerate().try_for_each(|(i, l)| {
                let y = grid_y.get(i).copied().unwrap_or(l.grid[1]);
                check_grid_y(i, "", y)?;
                if y == 0 { Ok(()) } else { self.one(l, y) }
            })
        });
        self.lists[prepared.0 as usize] = Some(list);
        result
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
}
