//! The few calls of the CUDA driver that a device needs, each with its error as a diagnostic. Only entry points that every
//! driver of CUDA 12 has: one that is missing would panic in cudarc.

use super::code::{driver_fits, refused};
use cudarc::driver::sys;
use ir::diag::{Diagnostic, Result};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

pub use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUstream};

/// Bytes kept of the driver's messages about one module.
const LOG_BYTES: usize = 8192;

/// One GPU with its context and one stream.
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: CUstream,
    /// What it is.
    pub about: About,
}

/// A launch with its addresses.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The kernel.
    pub entry: CUfunction,
    /// Its name, for errors.
    pub name: &'a str,
    /// Blocks.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// One address a parameter.
    pub args: &'a [CUdeviceptr],
    /// It may start before the kernel in front of it has ended: it waits by itself.
    pub dependent: bool,
}

// SAFETY: driver objects may be used from any thread; every call makes the context current on the thread it is on.
unsafe impl Send for Gpu {}

/// `Ok` if the driver said so; otherwise what was being done and what the driver says.
pub(super) fn check(result: sys::CUresult, code: &'static str, what: &str) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |f: unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult| {
        let mut p = std::ptr::null();
        // SAFETY: `p` is a place for a pointer; the driver's strings live forever.
        let known = unsafe { f(result, &mut p) } == sys::CUresult::CUDA_SUCCESS && !p.is_null();
        // SAFETY: as above.
        known.then(|| unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", result as u32));
    let about = text(sys::cuGetErrorString).map_or_else(String::new, |t| format!(": {t}"));
    Err(Diagnostic::new(code, format!("CUDA driver: {what}: {name}{about}")))
}

/// What the driver tells of a GPU before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Product name and architecture: `NVIDIA H200 (sm_90)`.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Version of CUDA that the driver has: 12080 is 12.8.
    pub driver: u32,
}

/// Looks at GPU number `ordinal`. Without a driver or a GPU this is an error that says so.
pub fn about(ordinal: u32) -> Result<About> {
    find(ordinal).map(|(_, about)| about)
}

fn find(ordinal: u32) -> Result<(sys::CUdevice, About)> {
    // SAFETY: loads the driver's library, if there is one.
    if !unsafe { sys::is_culib_present() } {
        return Err(Diagnostic::new("E0440", "there is no CUDA driver on this machine (libcuda.so.1 was not found)")
            .hint("run on the CPU, or install NVIDIA's driver"));
    }
    let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
    // SAFETY: the library is there; every pointer is to a place of the type that the call fills.
    unsafe {
        check(sys::cuInit(0), "E0441", "it does not start")?;
        let (mut count, mut version, mut device) = (0, 0, 0);
        check(sys::cuDriverGetVersion(&mut version), "E0441", "asking for its version")?;
        check(sys::cuDeviceGetCount(&mut count), "E0441", "counting GPUs")?;
        if ordinal >= count {
            return Err(Diagnostic::new("E0441", format!("there is no GPU number {ordinal}: the driver knows {count}")));
        }
        check(sys::cuDeviceGet(&mut device, ordinal), "E0441", "opening the GPU")?;
        let mut name = [0 as c_char; 128];
        check(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device), "E0441", "naming the GPU")?;
        let mut cc = [0; 2];
        for (value, attribute) in cc.iter_mut().zip([
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]) {
            check(sys::cuDeviceGetAttribute(value, attribute, device), "E0441", "asking for its capability")?;
        }
        let name = format!("{} (sm_{}{})", CStr::from_ptr(name.as_ptr()).to_string_lossy(), cc[0], cc[1]);
        let [major, minor] = cc.map(|n| u32::try_from(n).unwrap_or(0));
        Ok((device, About { name, capability: (major, minor), driver: u32::try_from(version).unwrap_or(0) }))
    }
}

impl Gpu {
    /// Opens GPU number `ordinal`.
    pub fn open(ordinal: u32) -> Result<Gpu> {
        let (device, about) = find(ordinal)?;
        driver_fits(&about)?;
        let mut gpu = Gpu { device, context: null_mut(), stream: null_mut(), about };
        // SAFETY: places for a context and a stream.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&mut gpu.context, gpu.device), "E0441", "making a context")?;
            gpu.enter()?;
            // CU_STREAM_NON_BLOCKING: nothing on other streams is waited for.
            check(sys::cuStreamCreate(&mut gpu.stream, 1), "E0441", "making a stream")?;
        }
        Ok(gpu)
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is held until drop.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "E0441", "entering the context")
    }

    /// Bytes of free memory.
    pub fn free_bytes(&self) -> Result<u64> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are places for sizes.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "E0441", "asking for free memory")?;
        Ok(free as u64)
    }

    /// New memory, aligned to 256 bytes.
    pub fn alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        self.enter()?;
        let mut p = 0;
        // SAFETY: `p` is a place for a pointer.
        check(unsafe { sys::cuMemAlloc_v2(&mut p, bytes.max(1)) }, "E0420", &format!("a buffer of {bytes} bytes"))?;
        Ok(p)
    }

    /// Gives memory back; the work that uses it is waited for.
    ///
    /// # Safety
    /// `p` came from [`Gpu::alloc`] and is not used again.
    pub unsafe fn free(&self, p: CUdeviceptr) -> Result<()> {
        self.sync()?;
        // SAFETY: the caller's promise.
        check(unsafe { sys::cuMemFree_v2(p) }, "E0442", "freeing a buffer")
    }

    /// Fills memory, in stream order.
    ///
    /// # Safety
    /// The range is inside one live allocation.
    pub unsafe fn fill(&self, p: CUdeviceptr, byte: u8, bytes: usize) -> Result<()> {
        self.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        check(unsafe { sys::cuMemsetD8Async(p, byte, bytes, self.stream) }, "E0442", "filling a buffer")
    }

    /// Sets one word, in stream order.
    ///
    /// # Safety
    /// The word is inside one live allocation, and aligned.
    pub unsafe fn fill_word(&self, p: CUdeviceptr, word: u32) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        check(unsafe { sys::cuMemsetD32Async(p, word, 1, self.stream) }, "E0442", "filling a buffer")
    }

    /// Copies to the GPU, to its end.
    ///
    /// # Safety
    /// The range is inside one live allocation.
    pub unsafe fn upload(&self, p: CUdeviceptr, data: &[u8]) -> Result<()> {
        self.enter()?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise; `data` outlives the copy, which is waited for.
        let copy = unsafe { sys::cuMemcpyHtoDAsync_v2(p, data.as_ptr().cast(), data.len(), self.stream) };
        let waited = self.sync();
        check(copy, "E0442", "copying to a buffer")?;
        waited
    }

    /// Copies from the GPU, to its end.
    ///
    /// # Safety
    /// The range is inside one live allocation.
    pub unsafe fn download(&self, p: CUdeviceptr, out: &mut [u8]) -> Result<()> {
        self.enter()?;
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: as in `upload`.
        let copy = unsafe { sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), p, out.len(), self.stream) };
        let waited = self.sync();
        check(copy, "E0442", "copying from a buffer")?;
        waited
    }

    /// Loads PTX, compiling it, or machine code; `what` is which, for errors, which have the driver's log.
    pub fn load(&self, image: &[u8], what: &str, code: &'static str, place: &str) -> Result<CUmodule> {
        self.enter()?;
        // PTX ends with a zero byte; after machine code one does no harm.
        let image = [image, &[0]].concat();
        let mut log = vec![0u8; LOG_BYTES];
        let mut module = null_mut();
        let mut options = [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // A number is passed as if it were a pointer.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), (LOG_BYTES - 1) as *mut c_void];
        // SAFETY: image ends with a zero byte; options and values are as many as stated; the log is as long as stated.
        let loaded =
            unsafe { sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
        check(loaded, code, &format!("loading {what}")).map_err(|d| refused(d, &log, place))?;
        Ok(module)
    }

    /// The kernel of that name, if the module has it.
    ///
    /// # Safety
    /// `module` came from [`Gpu::load`] and was not unloaded.
    pub unsafe fn function(&self, module: CUmodule, name: &str) -> Result<Option<CUfunction>> {
        self.enter()?;
        let Ok(name) = CString::new(name) else { return Ok(None) };
        let mut f = null_mut();
        // SAFETY: the caller's promise; the name ends with a zero byte.
        let found = unsafe { sys::cuModuleGetFunction(&mut f, module, name.as_ptr()) };
        if found == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Ok(None);
        }
        check(found, "E0443", "finding a kernel")?;
        Ok(Some(f))
    }

    /// Unloads a module.
    ///
    /// # Safety
    /// `module` came from [`Gpu::load`] and is not used again.
    pub unsafe fn unload(&self, module: CUmodule) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        check(unsafe { sys::cuModuleUnload(module) }, "E0442", "unloading a module")
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// The kernel takes these pointers, and stays inside the allocations behind them.
    pub unsafe fn launch(&self, call: &Call) -> Result<()> {
        let mut params: Vec<*mut c_void> = call.args.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
        let mut serialization = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: call.grid[0],
            gridDimY: call.grid[1],
            gridDimZ: 1,
            blockDimX: call.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream,
            attrs: &mut serialization,
            numAttrs: u32::from(call.dependent),
        };
        // SAFETY: one pointer to an argument for each parameter; the driver copies them and the configuration before it returns.
        let queued = unsafe { sys::cuLaunchKernelEx(&config, call.entry, params.as_mut_ptr(), null_mut()) };
        check(queued, "E0444", "launching a kernel").map_err(|d| d.at(call.name))
    }

    /// Makes the context current for a list of launches.
    pub fn begin(&self) -> Result<()> {
        self.enter()
    }

    /// The stream that all work goes to.
    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Queues a copy between buffers.
    ///
    /// # Safety
    /// Both ranges are inside live allocations.
    pub unsafe fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        self.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }, "E0442", "copying between buffers")
    }

    /// Waits for all queued work; a fault in a kernel is reported here.
    pub fn sync(&self) -> Result<()> {
        self.enter()?;
        // SAFETY: the stream is destroyed at drop only.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, "E0445", "running kernels")
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: each is given back once, if it was made; nothing can be done about an error here.
        unsafe {
            if !self.context.is_null() {
                let _ = sys::cuCtxSetCurrent(self.context);
                if !self.stream.is_null() {
                    let _ = sys::cuStreamSynchronize(self.stream);
                    let _ = sys::cuStreamDestroy_v2(self.stream);
                }
                let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
            }
        }
    }
}
