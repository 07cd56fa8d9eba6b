//! The library nvJitLink, loaded when it is asked for. Every status is looked at: after PTX that was refused, its last call
//! says that all is well and leaves an empty file.

use ir::diag::{Diagnostic, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Handle = *mut c_void;
/// `nvJitLinkResult`, 0 if all is well.
type Status = c_int;
type Create = unsafe extern "C" fn(*mut Handle, c_uint, *const *const c_char) -> Status;
type Destroy = unsafe extern "C" fn(*mut Handle) -> Status;
type AddData = unsafe extern "C" fn(Handle, c_int, *const c_void, usize, *const c_char) -> Status;
type Complete = unsafe extern "C" fn(Handle) -> Status;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> Status;
type Bytes = unsafe extern "C" fn(Handle, *mut c_void) -> Status;
type Version = unsafe extern "C" fn(*mut c_uint, *mut c_uint) -> Status;

/// `NVJITLINK_INPUT_PTX`.
const PTX: c_int = 2;

/// Where it may be: as the system finds libraries, newest first, or where the toolkit puts it.
const PLACES: [&str; 5] = [
    "libnvJitLink.so.13",
    "libnvJitLink.so.12",
    "libnvJitLink.so",
    "/usr/local/cuda/lib64/libnvJitLink.so.13",
    "/usr/local/cuda/lib64/libnvJitLink.so.12",
];

/// Architectures, and the version from which the library knows them. One that it does not know makes it crash.
const KNOWN: [(&str, (u32, u32)); 2] = [("sm_90", (12, 0)), ("sm_121", (12, 9))];

/// The library and its functions. It stays loaded.
pub struct Library {
    /// `nvJitLink 13.5`.
    pub name: String,
    version: (u32, u32),
    create: Create,
    destroy: Destroy,
    add_data: AddData,
    complete: Complete,
    cubin_size: Size,
    cubin: Bytes,
    log_size: Size,
    log: Bytes,
}

/// Meaning of a status.
fn status_name(status: Status) -> String {
    let names = [
        "success",
        "unrecognized option",
        "missing architecture",
        "invalid input",
        "PTX compilation failed",
        "NVVM compilation failed",
        "internal error",
        "thread pool failed",
        "unrecognized input",
        "finalizing failed",
        "null input",
        "incompatible options",
        "incorrect input type",
        "architecture mismatch",
        "outdated library",
        "missing fatbinary",
    ];
    let known = usize::try_from(status).ok().and_then(|i| names.get(i));
    known.map_or_else(|| format!("status {status}"), |n| format!("status {status}, {n}"))
}

impl Library {
    /// The first that is found and has all that is needed.
    pub fn find() -> Option<Library> {
        PLACES.iter().find_map(|p| Library::at(Path::new(p)))
    }

    /// This one, if it can be loaded and has all that is needed.
    pub fn at(path: &Path) -> Option<Library> {
        let path = CString::new(path.to_str()?).ok()?;
        // SAFETY: the path ends with a zero byte. The library's initialisers are NVIDIA's business.
        let lib = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if lib.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is never unloaded; the name ends with a zero byte.
            let p = unsafe { libc::dlsym(lib, name.as_ptr()) };
            (!p.is_null()).then_some(p)
        };
        // SAFETY: the functions have had these types since version 12.0, in which the library came.
        unsafe {
            let version: Option<Version> = symbol(c"nvJitLinkVersion").map(|p| std::mem::transmute::<*mut c_void, Version>(p));
            let (mut major, mut minor) = (0, 0);
            if version.is_none_or(|v| v(&mut major, &mut minor) != 0) {
                (major, minor) = (12, 0); // the first could not tell
            }
            Some(Library {
                name: format!("nvJitLink {major}.{minor}"),
                version: (major, minor),
                create: std::mem::transmute::<*mut c_void, Create>(symbol(c"nvJitLinkCreate")?),
                destroy: std::mem::transmute::<*mut c_void, Destroy>(symbol(c"nvJitLinkDestroy")?),
                add_data: std::mem::transmute::<*mut c_void, AddData>(symbol(c"nvJitLinkAddData")?),
                complete: std::mem::transmute::<*mut c_void, Complete>(symbol(c"nvJitLinkComplete")?),
                cubin_size: std::mem::transmute::<*mut c_void, Size>(symbol(c"nvJitLinkGetLinkedCubinSize")?),
                cubin: std::mem::transmute::<*mut c_void, Bytes>(symbol(c"nvJitLinkGetLinkedCubin")?),
                log_size: std::mem::transmute::<*mut c_void, Size>(symbol(c"nvJitLinkGetErrorLogSize")?),
                log: std::mem::transmute::<*mut c_void, Bytes>(symbol(c"nvJitLinkGetErrorLog")?),
            })
        }
    }

    /// Machine code.
    pub fn assemble(&self, ptx: &str, architecture: &str) -> Result<Vec<u8>> {
        if !KNOWN.iter().any(|(name, from)| *name == architecture && self.version >= *from) {
            return Err(Diagnostic::new("E0471", format!("{} does not know this architecture", self.name)));
        }
        let no_zero = |_| Diagnostic::new("E0471", "PTX has no zero bytes");
        let ptx = CString::new(ptx).map_err(no_zero)?;
        let option = CString::new(format!("-arch={architecture}")).map_err(no_zero)?;
        let options = [option.as_ptr()];
        let mut handle = null_mut();
        // SAFETY: one option; `handle` is a place for a handle; PTX is given with the zero byte at its end.
        unsafe {
            let status = (self.create)(&mut handle, 1, options.as_ptr());
            if status != 0 {
                return Err(Diagnostic::new("E0471", format!("nvJitLink does not start: {}", status_name(status)))
                    .hint("it may be too old for this architecture"));
            }
            let result = self.link(handle, &ptx);
            let _ = (self.destroy)(&mut handle);
            result
        }
    }

    /// # Safety
    /// `handle` is one of this library.
    unsafe fn link(&self, handle: Handle, ptx: &CStr) -> Result<Vec<u8>> {
        let check = |status: Status, what: &str| match status {
            0 => Ok(()),
            // SAFETY: the caller's promise.
            _ => Err(refused(status, what, &unsafe { self.error_log(handle) })),
        };
        let bytes = ptx.to_bytes_with_nul();
        let mut size = 0;
        // SAFETY: the caller's promise; sizes are those of the memory that is given.
        unsafe {
            check((self.add_data)(handle, PTX, bytes.as_ptr().cast(), bytes.len(), c"kernel".as_ptr()), "PTX")?;
            check((self.complete)(handle), "linking")?;
            check((self.cubin_size)(handle, &mut size), "the size of the code")?;
            let mut out = vec![0u8; size];
            check((self.cubin)(handle, out.as_mut_ptr().cast()), "the code")?;
            Ok(out)
        }
    }

    /// # Safety
    /// `handle` is one of this library.
    unsafe fn error_log(&self, handle: Handle) -> String {
        let mut size = 0;
        // SAFETY: as in `link`.
        unsafe {
            if (self.log_size)(handle, &mut size) != 0 || size == 0 {
                return String::new();
            }
            let mut out = vec![0u8; size];
            if (self.log)(handle, out.as_mut_ptr().cast()) != 0 {
                return String::new();
            }
            String::from_utf8_lossy(&out).trim_end_matches('\0').trim().to_string()
        }
    }
}

/// What a status other than success is told as.
fn refused(status: Status, what: &str, log: &str) -> Diagnostic {
    let message = format!("nvJitLink refused a kernel ({what}: {})\n{log}", status_name(status));
    Diagnostic::new("E0471", message.trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_with_its_log() {
        let d = refused(4, "PTX", "ptxas fatal : Unresolved extern function 'f'");
        assert_eq!(d.code, "E0471");
        let text =
            "nvJitLink refused a kernel (PTX: status 4, PTX compilation failed)\nptxas fatal : Unresolved extern function 'f'";
        assert_eq!(d.message, text);
        assert_eq!(refused(99, "linking", "").message, "nvJitLink refused a kernel (linking: status 99)");
        assert!(Library::at(Path::new("libno-such-thing.so.1")).is_none());
    }
}
