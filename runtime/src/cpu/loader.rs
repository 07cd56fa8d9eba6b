//! Loads compiled host code: an ELF relocatable object with code and read-only data, position-independent and
//! without undefined symbols. Anything else is refused with the reason; a damaged object never causes a panic
//! or an access outside a buffer while it is loaded. Pages are never writable and executable at once.

use super::KernelFn;
use super::link;
use super::map::{self, Mapping};
use super::reloc::Machine;
use ir::diag::{Diagnostic, Result};
use std::collections::BTreeMap;

/// Host code in memory, ready to be called.
pub struct Module {
    place: String,
    mapping: Mapping,
    functions: BTreeMap<String, usize>,
}

impl Module {
    /// Loads an object; `place` is where it came from, for errors.
    pub fn load(bytes: &[u8], place: &str) -> Result<Module> {
        let machine =
            Machine::host().ok_or_else(|| Diagnostic::new("E0402", "host code exists for x86-64 and aarch64 only").at(place))?;
        let image = link::link(bytes, machine, map::page_size()).map_err(|d| d.at(place))?;
        let mapping = Mapping::new(&image).map_err(|d| d.at(place))?;
        Ok(Module { place: place.to_string(), mapping, functions: image.functions })
    }

    /// The function of that name.
    ///
    /// Calling it is unsafe: besides the kernel's own demands on its arguments, the module must still be alive,
    /// and the name must be that of a kernel.
    pub fn function(&self, name: &str) -> Result<KernelFn> {
        let Some(&offset) = self.functions.get(name) else {
            let names: Vec<&str> = self.functions.keys().take(8).map(String::as_str).collect();
            return Err(Diagnostic::new("E0407", format!("host code has no function `{name}`")).at(&self.place).hint(format!(
                "it has {} functions, the first being: {}",
                self.functions.len(),
                names.join(", ")
            )));
        };
        let address = self.mapping.address(offset);
        // SAFETY: the address is that of mapped code and not null; a function pointer has the size of a pointer.
        // Whether it has this signature is a promise that the caller of the function makes.
        Ok(unsafe { std::mem::transmute::<*const u8, KernelFn>(address) })
    }

    /// Names of all functions, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }
}
