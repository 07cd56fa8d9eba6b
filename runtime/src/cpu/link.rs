//! Turns an ELF relocatable object into a position-independent image: every section placed, every relocation
//! applied, or an error that says what is refused. Pure and without unsafe code: all offsets of the object are
//! checked, so a damaged object gives an error or some other image, never an access outside a buffer.

use super::reloc::{self, Machine};
use ir::diag::{Diagnostic, Result};
use object::LittleEndian;
use object::elf;
use object::read::SectionIndex;
use object::read::elf::{FileHeader, Rela, SectionHeader, SectionTable, Sym, SymbolTable};
use std::collections::BTreeMap;
use std::ops::Range;

type Elf = elf::FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

/// Largest alignment a section may ask for: a page on every machine.
const MAX_ALIGN: usize = 4096;

/// Undefined symbols and relocations named in one error before it says how many more there are.
const MAX_NAMED: usize = 20;

/// A linked object, to be copied to a page boundary.
#[derive(Debug)]
pub(super) struct Image {
    /// Code, then read-only data from the next page on.
    pub(super) bytes: Vec<u8>,
    /// Bytes of code, a multiple of the page size: `bytes[..code]` is to be executable, the rest readable.
    pub(super) code: usize,
    /// Offset of each exported function, inside the code.
    pub(super) functions: BTreeMap<String, usize>,
}

/// A section that has a place in the image.
struct Placed {
    range: Range<usize>,
    code: bool,
}

/// Links `object` for `machine`; `page` is the page size of the system.
pub(super) fn link(object: &[u8], machine: Machine, page: usize) -> Result<Image> {
    let header = Elf::parse(object).map_err(damaged)?;
    header.endian().map_err(damaged)?;
    match Machine::from_elf(header.e_machine(LE)) {
        Some(found) if found == machine => {}
        found => {
            let found = match found {
                Some(found) => found.name().to_string(),
                None => format!("ELF machine {}", header.e_machine(LE).0),
            };
            return Err(Diagnostic::new("E0402", format!("host code is for {found}, this machine is {}", machine.name()))
                .hint("compile the model for the host that runs it"));
        }
    }
    if header.e_type(LE) != elf::ET_REL {
        return Err(Diagnostic::new(
            "E0401",
            format!("host code is ELF type {}, expected a relocatable object (1)", header.e_type(LE).0),
        ));
    }
    let sections = header.sections(LE, object).map_err(damaged)?;
    let symbols = sections.symbols(LE, object, elf::SHT_SYMTAB).map_err(damaged)?;
    check_undefined(&symbols)?;

    let (mut bytes, code, placed) = place(object, &sections, machine, page)?;
    let functions = functions(&symbols, &placed)?;
    for (index, section) in sections.enumerate() {
        relocate(object, index, section, &symbols, &placed, machine, &mut bytes)?;
    }
    Ok(Image { bytes, code, functions })
}

fn damaged(error: object::read::Error) -> Diagnostic {
    Diagnostic::new("E0401", format!("host code object is damaged: {error}"))
}

fn damage(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new("E0401", format!("host code object is damaged: {what}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first names of a list, and how many were left out.
fn named(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMED).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MAX_NAMED) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

fn check_undefined(symbols: &SymbolTable<'_, Elf>) -> Result<()> {
    let mut names = Vec::new();
    for symbol in symbols.iter().skip(1) {
        if symbol.st_shndx(LE) == elf::SHN_UNDEF {
            names.push(text(symbols.symbol_name(LE, symbol).map_err(damaged)?));
        }
    }
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Ok(());
    }
    Err(Diagnostic::new("E0403", format!("host code needs symbols that it does not define: {}", named(&names)))
        .hint("host code must be self-contained: no libm or memcpy calls, no global offset table"))
}

/// Whether a section is loaded; an error if it is needed but refused.
fn wanted(section: &elf::SectionHeader64<LittleEndian>, name: &str, machine: Machine) -> Result<bool> {
    let flags = section.sh_flags(LE);
    let kind = section.sh_type(LE);
    if kind == elf::SHT_CREL || kind == elf::SHT_RELR || kind == elf::SHT_REL {
        return Err(refuse(name, "a relocation format that is not supported"));
    }
    // Notes and unwind tables are of no use here: kernels do not unwind.
    let unwind = machine == Machine::X86_64 && kind == elf::SHT_X86_64_UNWIND;
    if !flags.contains(elf::SHF_ALLOC) || kind == elf::SHT_NOTE || unwind || name == ".eh_frame" {
        return Ok(false);
    }
    if section.sh_size(LE) == 0 {
        return Ok(!flags.contains(elf::SHF_WRITE));
    }
    if flags.contains(elf::SHF_TLS) {
        return Err(refuse(name, "thread-local data"));
    }
    if flags.contains(elf::SHF_WRITE) || kind == elf::SHT_NOBITS {
        return Err(refuse(name, "writable data"));
    }
    if flags.contains(elf::SHF_COMPRESSED) {
        return Err(refuse(name, "compressed data"));
    }
    if kind != elf::SHT_PROGBITS {
        return Err(refuse(name, &format!("contents of ELF section type {}", kind.0)));
    }
    Ok(true)
}

fn refuse(section: &str, what: &str) -> Diagnostic {
    Diagnostic::new("E0404", format!("host code section `{section}` holds {what}, which is refused"))
        .hint("kernels may have code and read-only data only")
}

/// Lays out code, then read-only data on the next page, and copies the contents.
#[allow(clippy::type_complexity)]
fn place(
    object: &[u8],
    sections: &SectionTable<'_, Elf>,
    machine: Machine,
    page: usize,
) -> Result<(Vec<u8>, usize, BTreeMap<usize, Placed>)> {
    let mut contents = Vec::new();
    let mut total = 0;
    for (index, section) in sections.enumerate() {
        let name = text(sections.section_name(LE, section).map_err(damaged)?);
        if !wanted(section, &name, machine)? {
            continue;
        }
        let data = section.data(LE, object).map_err(damaged)?;
        // Sections of a sound object do not overlap; this bounds the image by the size of the object.
        total += data.len();
        if total > object.len() {
            return Err(damage("its sections overlap"));
        }
        let align = section.sh_addralign(LE).max(1);
        let align = usize::try_from(align).ok().filter(|a| a.is_power_of_two() && *a <= MAX_ALIGN);
        let align = align.ok_or_else(|| damage(format!("alignment of section `{name}`")))?;
        contents.push((index.0, data, align, section.sh_flags(LE).contains(elf::SHF_EXECINSTR)));
    }
    let filler = match machine {
        Machine::X86_64 => 0xcc, // int3
        Machine::Aarch64 => 0,   // udf
    };
    let (mut bytes, mut placed, mut code) = (Vec::new(), BTreeMap::new(), 0);
    for is_code in [true, false] {
        let fill = if is_code { filler } else { 0 };
        for &(index, data, align, _) in contents.iter().filter(|c| c.3 == is_code) {
            bytes.resize(bytes.len().next_multiple_of(align), fill);
            let start = bytes.len();
            bytes.extend_from_slice(data);
            placed.insert(index, Placed { range: start..bytes.len(), code: is_code });
        }
        bytes.resize(bytes.len().next_multiple_of(page), fill);
        if is_code {
            code = bytes.len();
        }
    }
    if code == 0 {
        return Err(damage("it has no code"));
    }
    Ok((bytes, code, placed))
}

/// Image offset of a symbol, which must lie in a placed section (its end included).
fn address<'a>(
    symbols: &SymbolTable<'_, Elf>,
    placed: &'a BTreeMap<usize, Placed>,
    index: object::read::SymbolIndex,
    symbol: &elf::Sym64<LittleEndian>,
) -> Result<Option<(usize, &'a Placed)>> {
    let Some(section) = symbols.symbol_section(LE, symbol, index).map_err(damaged)? else {
        return Ok(None);
    };
    let Some(section) = placed.get(&section.0) else {
        return Ok(None);
    };
    let value = usize::try_from(symbol.st_value(LE)).ok().filter(|v| *v <= section.range.len());
    match value {
        Some(value) => Ok(Some((section.range.start + value, section))),
        None => {
            let name = text(symbols.symbol_name(LE, symbol).map_err(damaged)?);
            Err(damage(format!("symbol `{name}` is outside its section")))
        }
    }
}

/// Exported functions; refuses what would need the dynamic linker or writable memory.
fn functions(symbols: &SymbolTable<'_, Elf>, placed: &BTreeMap<usize, Placed>) -> Result<BTreeMap<String, usize>> {
    let mut functions = BTreeMap::new();
    for (index, symbol) in symbols.enumerate().skip(1) {
        let name = symbols.symbol_name(LE, symbol).map_err(damaged)?;
        if symbol.st_shndx(LE) == elf::SHN_COMMON {
            return Err(Diagnostic::new("E0404", format!("host code has the common variable `{}`", text(name)))
                .hint("kernels may have code and read-only data only"));
        }
        let bind = symbol.st_bind();
        if bind != elf::STB_GLOBAL && bind != elf::STB_WEAK {
            continue;
        }
        let kind = symbol.st_type();
        if kind == elf::STT_GNU_IFUNC {
            return Err(Diagnostic::new("E0404", format!("host code has the indirect function `{}`", text(name))));
        }
        if kind != elf::STT_FUNC && kind != elf::STT_NOTYPE {
            continue;
        }
        let Some((at, section)) = address(symbols, placed, index, symbol)? else {
            continue;
        };
        if !section.code || at == section.range.end {
            continue;
        }
        let name = String::from_utf8(name.to_vec()).map_err(|_| damage("a function name is not UTF-8"))?;
        if let Some(other) = functions.insert(name, at)
            && other != at
        {
            return Err(damage(format!(
                "function `{}` is defined twice",
                text(symbols.symbol_name(LE, symbol).map_err(damaged)?)
            )));
        }
    }
    Ok(functions)
}

/// Applies the relocations of one relocation section, if its target is loaded.
fn relocate(
    object: &[u8],
    index: SectionIndex,
    section: &elf::SectionHeader64<LittleEndian>,
    symbols: &SymbolTable<'_, Elf>,
    placed: &BTreeMap<usize, Placed>,
    machine: Machine,
    bytes: &mut [u8],
) -> Result<()> {
    let Some((relocations, link)) = section.rela(LE, object).map_err(damaged)? else {
        return Ok(());
    };
    let Some(target) = placed.get(&(section.sh_info(LE) as usize)) else {
        return Ok(());
    };
    if link != symbols.section() {
        return Err(damage(format!("relocation section {} names another symbol table", index.0)));
    }
    for relocation in relocations {
        let kind = relocation.r_type(LE, false);
        if reloc::is_none(machine, kind) {
            continue;
        }
        let offset = relocation.r_offset(LE);
        let mut name = String::from("nothing");
        let applied = match relocation.symbol(LE, false) {
            None => Err("has no symbol".to_string()),
            Some(index) => {
                let symbol = symbols.symbol(index).map_err(damaged)?;
                name = text(symbols.symbol_name(LE, symbol).map_err(damaged)?);
                match address(symbols, placed, index, symbol)? {
                    None => Err("points to something that is not loaded".to_string()),
                    Some((at, _)) => {
                        let sum = (at as i64).checked_add(relocation.r_addend(LE));
                        let place = i64::try_from(offset).ok().and_then(|o| o.checked_add(target.range.start as i64));
                        match (sum, place) {
                            (Some(sum), Some(place)) => {
                                reloc::apply(machine, kind, &mut bytes[target.range.clone()], offset, place, sum)
                            }
                            _ => Err("is out of range".to_string()),
                        }
                    }
                }
            }
        };
        applied.map_err(|why| {
            Diagnostic::new("E0405", format!("relocation of host code to `{name}` at byte {offset} {why}"))
                .hint("host code must be position-independent: relocation model PIC, hidden symbols, no global offset table")
        })?;
    }
    Ok(())
}
