//! Code of kernels as a device takes it: a module is one PTX text, or several with the names of their kernels, each with the
//! machine code that an assembler made of it, if one did. What a driver or a GPU cannot take is told before it is given to it.

use super::{About, cuda_version};
use ir::diag::{Diagnostic, Result};

/// Begins the line that names the kernel of the text after it.
const MARK: &[u8] = b"//! kernel ";
/// Begins the line, after a text, with the architecture and the length of the machine code that follows it.
const CUBIN: &[u8] = b"//! cubin ";

/// Code of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its name; empty for a module of one text.
    pub name: &'a str,
    /// PTX.
    pub ptx: &'a str,
    /// Machine code, and the architecture that alone runs it.
    pub cubin: Option<(&'a str, &'a [u8])>,
}

/// A module of these parts.
pub fn frame<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Vec<u8> {
    let mut out = vec![];
    for p in parts {
        out.extend_from_slice(MARK);
        out.extend_from_slice(p.name.as_bytes());
        out.push(b'\n');
        out.extend_from_slice(p.ptx.as_bytes());
        if !p.ptx.ends_with('\n') {
            out.push(b'\n');
        }
        if let Some((arch, code)) = p.cubin {
            out.extend_from_slice(CUBIN);
            out.extend_from_slice(format!("{arch} {}\n", code.len()).as_bytes());
            out.extend_from_slice(code);
            out.push(b'\n');
        }
    }
    out
}

/// The parts of a module; a text before the first name has the empty one.
pub fn split(module: &[u8]) -> Result<Vec<Part<'_>>> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| Diagnostic::new("E0443", "PTX is not text"));
    let mut out = vec![];
    let mut part = Part { name: "", ptx: "", cubin: None };
    let (mut from, mut at) = (0, 0);
    // Text from `from` on is not in a part yet.
    while at < module.len() {
        let end = module[at..].iter().position(|&b| b == b'\n').map_or(module.len(), |n| at + n + 1);
        let line = &module[at..end];
        if let Some(name) = line.strip_prefix(MARK) {
            part.ptx = if part.cubin.is_none() { text(&module[from..at])? } else { part.ptx };
            out.push(part);
            part = Part { name: text(name)?.trim(), ptx: "", cubin: None };
            from = end;
        } else if let Some(rest) = line.strip_prefix(CUBIN) {
            let cut = || Diagnostic::new("E0443", "the machine code of a kernel is cut off").at(part.name);
            let (arch, len) = text(rest)?.trim().split_once(' ').ok_or_else(cut)?;
            let code = len.parse().ok().and_then(|len: usize| module.get(end..end.checked_add(len)?)).ok_or_else(cut)?;
            part = Part { ptx: text(&module[from..at])?, cubin: Some((arch, code)), ..part };
            at = (end + code.len() + 1).min(module.len());
            from = at;
            continue;
        }
        at = end;
    }
    part.ptx = if part.cubin.is_none() { text(&module[from..])? } else { part.ptx };
    out.push(part);
    out.retain(|p| !p.name.is_empty() || !p.ptx.trim().is_empty());
    Ok(out)
}

/// The words after the first line that begins with `.key`.
fn directive<'a>(ptx: &'a str, key: &str) -> Option<&'a str> {
    ptx.lines().find_map(|l| l.trim().strip_prefix(key)?.strip_prefix([' ', '\t'])).map(str::trim)
}

/// Major and minor number of `8.7`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The capability of `sm_90`, `sm_121a` or a list that begins so.
fn capability(target: &str) -> Option<(u32, u32)> {
    let digits: &str = target.strip_prefix("sm_")?;
    let n: u32 = digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()?;
    Some((n / 10, n % 10))
}

/// Version of PTX, the CUDA whose driver knows it, the first driver of that.
const DRIVERS: [((u32, u32), u32, u32); 12] = [
    ((8, 0), 12000, 525),
    ((8, 1), 12010, 530),
    ((8, 2), 12020, 535),
    ((8, 3), 12030, 545),
    ((8, 4), 12040, 550),
    ((8, 5), 12050, 555),
    ((8, 6), 12070, 565),
    ((8, 7), 12080, 570),
    ((8, 8), 12090, 575),
    ((9, 0), 13000, 580),
    ((9, 1), 13010, 590),
    ((9, 2), 13020, 595),
];

/// The oldest CUDA that has every entry point that is called.
const OLDEST: u32 = 12000;

/// Refuses a driver that is older than what is called of it.
pub fn driver_fits(about: &About) -> Result<()> {
    if about.driver >= OLDEST {
        return Ok(());
    }
    Err(too_old("isobit", OLDEST, 525, about))
}

fn too_old(what: &str, cuda: u32, driver: u32, about: &About) -> Diagnostic {
    let message = format!(
        "{what} needs a driver of CUDA {} (version {driver} or later); the driver of this machine is of CUDA {}",
        cuda_version(cuda),
        cuda_version(about.driver)
    );
    Diagnostic::new("E0468", message).hint("install a newer driver, or run on the CPU")
}

/// Refuses PTX for another GPU, and PTX that the driver is too old for, before the driver sees it.
pub fn ptx_fits(ptx: &str, about: &About) -> Result<()> {
    if let Some((target, needs)) = directive(ptx, ".target").and_then(|t| Some((t, capability(t)?)))
        && needs > about.capability
    {
        let target = target.split(',').next().unwrap_or(target).trim();
        let message = format!("the code is for {target} and later, the GPU is {}", about.name);
        return Err(Diagnostic::new("E0467", message).hint("compile the model for this GPU"));
    }
    let wanted = directive(ptx, ".version").and_then(|v| Some((v, version(v)?)));
    match wanted.and_then(|(v, number)| Some((v, DRIVERS.iter().find(|d| d.0 == number)?))) {
        Some((v, &(_, cuda, driver))) if cuda > about.driver => Err(too_old(&format!("PTX {v}"), cuda, driver, about)),
        _ => Ok(()),
    }
}

/// Does machine code for this architecture run on this GPU? Only on exactly that one.
pub fn cubin_fits(arch: &str, about: &About) -> bool {
    capability(arch) == Some(about.capability)
}

/// What a driver wrote to its log.
pub fn log_text(log: &[u8]) -> String {
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim().to_string()
}

/// A refusal with the driver's log.
pub fn refused(d: Diagnostic, log: &[u8], place: &str) -> Diagnostic {
    let log = log_text(log);
    let message = if log.is_empty() { d.message } else { format!("{}\n{log}", d.message) };
    Diagnostic { message, ..d }
        .at(place)
        .hint("the code is damaged, or newer than the driver: compile the model again, or install a newer driver")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(capability: (u32, u32), driver: u32) -> About {
        About { name: format!("GPU (sm_{}{})", capability.0, capability.1), capability, driver }
    }

    #[test]
    fn framing_round_trips() {
        let code = b"\x7fELF\n//! kernel x\n\0\n";
        let parts = [
            Part { name: "a", ptx: "//\n// x\n//\n.version 8.0\n", cubin: None },
            Part { name: "b_2", ptx: ".version 8.0\n", cubin: Some(("sm_90", code)) },
            Part { name: "c", ptx: ".version 8.8\n", cubin: Some(("sm_121", b"")) },
            Part { name: "d", ptx: "x\n", cubin: None },
        ];
        let module = frame(parts);
        assert_eq!(split(&module).unwrap(), parts);
        let bare = |text: &'static str| split(text.as_bytes()).unwrap();
        assert_eq!(bare(".version 8.0\n"), [Part { name: "", ptx: ".version 8.0\n", cubin: None }]);
        assert_eq!(bare("\n//! kernel a\nx"), [Part { name: "a", ptx: "x", cubin: None }]);
        assert!(bare("").is_empty());
        for bad in [
            "//! kernel a\nx\n//! cubin sm_90 5\n1234",
            "//! cubin sm_90\n",
            "//! cubin sm_90 x\n",
            "//! cubin a 18446744073709551615\n",
        ] {
            let d = split(bad.as_bytes()).unwrap_err();
            assert!(d.code == "E0443" && d.message.contains("cut off"), "{bad}: {d}");
        }
        assert_eq!(split(b"\xff\xfe").unwrap_err().code, "E0443");
    }

    #[test]
    fn a_driver_that_is_too_old_is_told_what_is_needed() {
        let ptx = |v: &str, t: &str| format!("//\n.version {v}\n.target {t}\n.address_size 64\n");
        let h200 = gpu((9, 0), 13000);
        assert_eq!(ptx_fits(&ptx("8.0", "sm_90"), &h200), Ok(()));
        assert_eq!(ptx_fits(&ptx("8.0", "sm_90"), &gpu((12, 1), 12090)), Ok(()));
        let d = ptx_fits(&ptx("8.8", "sm_121"), &gpu((12, 1), 12080)).unwrap_err();
        assert_eq!(d.code, "E0468");
        assert_eq!(
            d.message,
            "PTX 8.8 needs a driver of CUDA 12.9 (version 575 or later); the driver of this machine is of CUDA 12.8"
        );
        let d = ptx_fits(&ptx("8.7", "sm_120"), &gpu((12, 0), 12040)).unwrap_err();
        assert!(d.message.contains("CUDA 12.8 (version 570") && d.message.contains("of CUDA 12.4"), "{d}");
        let d = ptx_fits(&ptx("8.0", "sm_121"), &h200).unwrap_err();
        assert_eq!((d.code, d.message.as_str()), ("E0467", "the code is for sm_121 and later, the GPU is GPU (sm_90)"));
        assert!(ptx_fits(&ptx("8.0", "sm_90a, debug"), &gpu((8, 9), 13000)).unwrap_err().message.contains("for sm_90a and"));
        // What is not known is left to the driver.
        for odd in ["", ".version\n", &ptx("99.0", "sm_90"), &ptx("x.y", "compute")] {
            assert_eq!(ptx_fits(odd, &h200), Ok(()), "{odd}");
        }
        assert!(driver_fits(&h200).is_ok() && driver_fits(&gpu((9, 0), 11080)).unwrap_err().message.contains("is of CUDA 11.8"));
        assert!(DRIVERS.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1 && w[0].2 < w[1].2));
    }

    #[test]
    fn machine_code_runs_on_one_architecture() {
        assert!(cubin_fits("sm_90", &gpu((9, 0), 12000)) && cubin_fits("sm_121", &gpu((12, 1), 12000)));
        assert!(!cubin_fits("sm_90", &gpu((12, 1), 12000)) && !cubin_fits("90", &gpu((9, 0), 12000)));
    }

    #[test]
    fn a_refusal_has_the_log_and_the_kernel() {
        let d = Diagnostic::new("E0443", "CUDA driver: loading PTX: CUDA_ERROR_INVALID_PTX");
        let d = refused(d, b"ptxas application ptx input, line 7; fatal   : Unknown symbol\n\0junk", "kernels, kernel `k_head`");
        assert!(d.message.ends_with("INVALID_PTX\nptxas application ptx input, line 7; fatal   : Unknown symbol"), "{d}");
        assert_eq!(d.place, "kernels, kernel `k_head`");
        assert_eq!(refused(Diagnostic::new("E0443", "x"), b"\0", "p").message, "x");
        assert_eq!(log_text(b"no end"), "no end");
    }
}
