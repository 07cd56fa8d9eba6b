//! NVIDIA GPUs through the driver, which is loaded when a device is opened: the same binary runs on machines without one.
//!
//! A module is PTX text. Several texts may stand one after the other, each after a line that names its kernel
//! ([`frame`] writes that form, [`split`] reads it); the driver compiles each on its own, so that an error names a kernel.

mod device;
mod driver;
mod graph;
mod pinned;

pub use device::{CudaDevice, CudaOptions, Fill};

/// Begins the line that names the kernel of the text after it.
const MARK: &str = "//! kernel ";

/// One module of several PTX texts, each with the name of its kernel.
pub fn frame<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (name, ptx) in texts {
        out.push_str(MARK);
        out.push_str(name);
        out.push('\n');
        out.push_str(ptx);
        if !ptx.ends_with('\n') {
            out.push('\n');
        }
    }
    out
}

/// The texts of a module with their names; a text before the first name has the empty one.
pub fn split(module: &str) -> Vec<(&str, &str)> {
    let mut out = vec![];
    let (mut name, mut from, mut at) = ("", 0, 0);
    for line in module.split_inclusive('\n') {
        if let Some(next) = line.strip_prefix(MARK) {
            out.push((name, &module[from..at]));
            (name, from) = (next.trim(), at + line.len());
        }
        at += line.len();
    }
    out.push((name, &module[from..]));
    out.retain(|(name, text)| !name.is_empty() || !text.trim().is_empty());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn framing_round_trips() {
        let texts = [("a", "//\n// x\n//\n.version 8.0\n"), ("b_2", ".version 8.0\n")];
        let module = frame(texts);
        assert_eq!(split(&module), texts);
        assert_eq!(split(".version 8.0\n"), [("", ".version 8.0\n")]);
        assert_eq!(split("\n//! kernel a\nx"), [("a", "x")]);
        assert!(split("").is_empty());
    }

    /// Without a driver: a diagnostic, never a panic. With one: memory that can be written and read.
    #[test]
    fn opens_or_says_why_not() {
        match CudaDevice::new(CudaOptions::default()) {
            Err(d) => assert!(matches!(d.code, "E0440" | "E0441"), "{d}"),
            Ok(mut device) => {
                let b = device.alloc(64).unwrap();
                let mut out = [1u8; 64];
                device.read(b, 0, &mut out).unwrap();
                assert_eq!(out, [0; 64]);
                assert_eq!(device.read(b, 1, &mut out).unwrap_err().code, "E0422");
            }
        }
    }
}
