//! Relocation arithmetic: patches one field of a section for a known target. Pure, no unsafe code.
//! Only position-independent relocations are known, so that an image has the same bytes wherever it lies.

use object::elf;

/// Machine of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm, little endian.
    Aarch64,
}

impl Machine {
    /// The machine this process runs on, if host kernels exist for it.
    pub(super) fn host() -> Option<Machine> {
        if cfg!(target_arch = "x86_64") {
            Some(Machine::X86_64)
        } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
            Some(Machine::Aarch64)
        } else {
            None
        }
    }

    /// From the ELF header.
    pub(super) fn from_elf(machine: elf::Machine) -> Option<Machine> {
        match machine {
            elf::EM_X86_64 => Some(Machine::X86_64),
            elf::EM_AARCH64 => Some(Machine::Aarch64),
            _ => None,
        }
    }

    /// Name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86-64",
            Machine::Aarch64 => "aarch64",
        }
    }
}

/// True for the relocation that asks for nothing.
pub(super) fn is_none(machine: Machine, kind: elf::RelocationType) -> bool {
    match machine {
        Machine::X86_64 => kind == elf::R_X86_64_NONE,
        // 256 is the withdrawn spelling of the same.
        Machine::Aarch64 => kind == elf::R_AARCH64_NONE || kind.0 == 256,
    }
}

/// Applies one relocation to the field at `offset` of `section`.
///
/// `place` and `target` are offsets in the image of the field and of symbol plus addend; the image will lie on
/// a page boundary. The error says why the relocation is refused.
pub(super) fn apply(
    machine: Machine,
    kind: elf::RelocationType,
    section: &mut [u8],
    offset: u64,
    place: i64,
    target: i64,
) -> Result<(), String> {
    let delta = target.checked_sub(place).ok_or("is out of range")?;
    match machine {
        Machine::X86_64 => match kind {
            elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => put(section, offset, fit32(delta)?.to_le_bytes()),
            elf::R_X86_64_PC64 => put(section, offset, delta.to_le_bytes()),
            _ => Err(refused(x86_name(kind), kind)),
        },
        Machine::Aarch64 => aarch64(kind, section, offset, delta, place, target),
    }
}

fn aarch64(
    kind: elf::RelocationType,
    section: &mut [u8],
    offset: u64,
    delta: i64,
    place: i64,
    target: i64,
) -> Result<(), String> {
    let low = (target & 0xfff) as u32;
    match kind {
        elf::R_AARCH64_PREL64 => put(section, offset, delta.to_le_bytes()),
        elf::R_AARCH64_PREL32 => put(section, offset, fit32(delta)?.to_le_bytes()),
        elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 => insert(section, offset, 0, 26, words(delta, 26)?),
        elf::R_AARCH64_CONDBR19 | elf::R_AARCH64_LD_PREL_LO19 => insert(section, offset, 5, 19, words(delta, 19)?),
        elf::R_AARCH64_TSTBR14 => insert(section, offset, 5, 14, words(delta, 14)?),
        elf::R_AARCH64_ADR_PREL_LO21 => adr(section, offset, delta),
        elf::R_AARCH64_ADR_PREL_PG_HI21 => adr(section, offset, (target >> 12) - (place >> 12)),
        elf::R_AARCH64_ADD_ABS_LO12_NC | elf::R_AARCH64_LDST8_ABS_LO12_NC => insert(section, offset, 10, 12, low),
        elf::R_AARCH64_LDST16_ABS_LO12_NC => insert(section, offset, 10, 12, scaled(low, 1)?),
        elf::R_AARCH64_LDST32_ABS_LO12_NC => insert(section, offset, 10, 12, scaled(low, 2)?),
        elf::R_AARCH64_LDST64_ABS_LO12_NC => insert(section, offset, 10, 12, scaled(low, 3)?),
        elf::R_AARCH64_LDST128_ABS_LO12_NC => insert(section, offset, 10, 12, scaled(low, 4)?),
        _ => Err(refused("", kind)),
    }
}

fn refused(name: &str, kind: elf::RelocationType) -> String {
    if name.is_empty() {
        format!("of type {} is not supported", kind.0)
    } else {
        format!("of type {} ({name}) is not supported", kind.0)
    }
}

/// What kind of code asks for this: names the usual cause.
fn x86_name(kind: elf::RelocationType) -> &'static str {
    match kind {
        elf::R_X86_64_64 | elf::R_X86_64_32 | elf::R_X86_64_32S => "absolute address",
        elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => "global offset table",
        elf::R_X86_64_GOTPC32 | elf::R_X86_64_GOTOFF64 | elf::R_X86_64_GOT64 => "global offset table",
        _ => "",
    }
}

fn put<const N: usize>(section: &mut [u8], offset: u64, bytes: [u8; N]) -> Result<(), String> {
    field::<N>(section, offset)?.copy_from_slice(&bytes);
    Ok(())
}

fn field<const N: usize>(section: &mut [u8], offset: u64) -> Result<&mut [u8], String> {
    let size = section.len();
    usize::try_from(offset)
        .ok()
        .and_then(|at| section.get_mut(at..at.checked_add(N)?))
        .ok_or_else(|| format!("at byte {offset} is outside its section of {size} bytes"))
}

/// Replaces `width` bits at bit `shift` of the instruction word.
fn insert(section: &mut [u8], offset: u64, shift: u32, width: u32, value: u32) -> Result<(), String> {
    let field = field::<4>(section, offset)?;
    let mask = ((1u32 << width) - 1) << shift;
    let word = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
    field.copy_from_slice(&((word & !mask) | ((value << shift) & mask)).to_le_bytes());
    Ok(())
}

/// The split 21-bit immediate of `adr` and `adrp`.
fn adr(section: &mut [u8], offset: u64, value: i64) -> Result<(), String> {
    let value = fit(value, 21)?;
    insert(section, offset, 29, 2, value & 3)?;
    insert(section, offset, 5, 19, value >> 2)
}

fn words(delta: i64, width: u32) -> Result<u32, String> {
    if delta & 3 != 0 {
        return Err("has a target that is not aligned".into());
    }
    fit(delta >> 2, width)
}

fn scaled(low: u32, shift: u32) -> Result<u32, String> {
    if low & ((1 << shift) - 1) != 0 {
        return Err("has a target that is not aligned".into());
    }
    Ok(low >> shift)
}

fn fit(value: i64, width: u32) -> Result<u32, String> {
    let half = 1i64 << (width - 1);
    if (-half..half).contains(&value) { Ok(value as u32) } else { Err("is out of range".into()) }
}

fn fit32(value: i64) -> Result<i32, String> {
    i32::try_from(value).map_err(|_| "is out of range".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(kind: elf::RelocationType, word: u32, place: i64, target: i64) -> Result<u32, String> {
        let mut section = word.to_le_bytes();
        apply(Machine::Aarch64, kind, &mut section, 0, place, target)?;
        Ok(u32::from_le_bytes(section))
    }

    #[test]
    fn x86_fields() {
        let mut section = [0u8; 12];
        apply(Machine::X86_64, elf::R_X86_64_PC32, &mut section, 8, 0x108, 0x100).unwrap();
        assert_eq!(section[8..], (-8i32).to_le_bytes());
        apply(Machine::X86_64, elf::R_X86_64_PC64, &mut section, 4, 0, 1 << 40).unwrap();
        assert_eq!(section[4..], (1i64 << 40).to_le_bytes());
        let far = apply(Machine::X86_64, elf::R_X86_64_PLT32, &mut section, 0, 0, 1 << 31);
        assert_eq!(far.unwrap_err(), "is out of range");
        for offset in [9, 12, u64::MAX - 1] {
            let e = apply(Machine::X86_64, elf::R_X86_64_PC32, &mut section, offset, 0, 0);
            assert!(e.unwrap_err().contains("outside its section"));
        }
        for kind in [elf::R_X86_64_64, elf::R_X86_64_GOTPCREL, elf::RelocationType(777)] {
            let e = apply(Machine::X86_64, kind, &mut section, 0, 0, 0).unwrap_err();
            assert!(e.contains("not supported"), "{e}");
        }
        let e = apply(Machine::X86_64, elf::R_X86_64_PC32, &mut section, 0, i64::MIN, i64::MAX);
        assert!(e.is_err());
    }

    /// Expected words are those that an assembler gives for the resolved instruction.
    #[test]
    fn aarch64_fields() {
        // bl .+8, bl .-4
        assert_eq!(arm(elf::R_AARCH64_CALL26, 0x9400_0000, 16, 24), Ok(0x9400_0002));
        assert_eq!(arm(elf::R_AARCH64_CALL26, 0x9400_0000, 16, 12), Ok(0x97ff_ffff));
        // b.eq .+8
        assert_eq!(arm(elf::R_AARCH64_CONDBR19, 0x5400_0000, 0, 8), Ok(0x5400_0040));
        // adr x0, .+5
        assert_eq!(arm(elf::R_AARCH64_ADR_PREL_LO21, 0x1000_0000, 0, 5), Ok(0x3000_0020));
        // adrp x1, two pages on, from anywhere in the page
        assert_eq!(arm(elf::R_AARCH64_ADR_PREL_PG_HI21, 0x9000_0001, 0xffc, 0x2010), Ok(0xd000_0001));
        // add x1, x1, #0x10; ldr q0, [x1, #0x20]; ldr s0, [x1, #0x24]
        assert_eq!(arm(elf::R_AARCH64_ADD_ABS_LO12_NC, 0x9100_0021, 0, 0x2010), Ok(0x9100_4021));
        assert_eq!(arm(elf::R_AARCH64_LDST128_ABS_LO12_NC, 0x3dc0_0020, 0, 0x2020), Ok(0x3dc0_0820));
        assert_eq!(arm(elf::R_AARCH64_LDST32_ABS_LO12_NC, 0xbd40_0020, 0, 0x2024), Ok(0xbd40_2420));
        assert!(arm(elf::R_AARCH64_LDST64_ABS_LO12_NC, 0, 0, 4).is_err());
        assert!(arm(elf::R_AARCH64_CALL26, 0, 0, 1 << 27).is_err());
        assert!(arm(elf::R_AARCH64_CALL26, 0, 0, 2).is_err());
        assert!(arm(elf::RelocationType(311), 0, 0, 0).is_err()); // ADR_GOT_PAGE
    }
}
