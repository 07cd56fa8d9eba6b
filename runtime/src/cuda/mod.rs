//! NVIDIA GPUs through the driver, which is loaded when a device is opened: the same binary runs on machines without one.
//!
//! A module is PTX text. Several texts may stand one after the other, each after a line that names its kernel, with machine
//! code where there is some ([`frame`] writes that form, [`split`] reads it); each is loaded on its own, so that an error names
//! a kernel.

mod code;
mod device;
mod driver;
mod graph;
mod pinned;

pub use code::{Part, frame, split};
pub use device::{CudaDevice, CudaOptions, Fill};
pub use driver::{About, about};

/// A version of CUDA as people write it: 12080 is 12.8.
pub fn cuda_version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

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
