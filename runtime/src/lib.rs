//! The part of isobit that runs compiled programs: devices, weights, caches and the decode loop.
//!
//! Errors of the device layer:
//!
//! | code | meaning |
//! |---|---|
//! | E0401 | host code object is damaged or not an ELF relocatable object |
//! | E0402 | host code object is for another machine |
//! | E0403 | host code object needs symbols that it does not define |
//! | E0404 | host code object has a section or symbol that is refused (writable data, TLS, compressed, ...) |
//! | E0405 | host code object has a relocation that is refused or does not fit |
//! | E0406 | the operating system refused to map code |
//! | E0407 | a kernel is missing from a module |
//! | E0410 | a worker thread could not be started |
//! | E0411 | not enough memory for the shared memory of the blocks |
//! | E0420 | not enough memory for a buffer |
//! | E0421 | unknown buffer, kernel or prepared list |
//! | E0422 | access outside a buffer |
//! | E0423 | buffer still used by a prepared list |
//! | E0424 | launch that no device can run (grid, warps, arguments) |
//! | E0430 | a tensor that the program reads is missing |
//! | E0431 | a tensor is not the one that the program was compiled for |
//! | E0432 | no session has such limits |
//! | E0433 | the program has no such value |
//! | E0434 | no token to run |
//! | E0435 | the context is full |
//! | E0436 | a value is not finite |
//! | E0437 | the session does not fit into memory |
//! | E0493 | no kernel sums up digests of a value |
//! | E0440 | no CUDA driver |
//! | E0441 | the CUDA driver does not start, or has no such GPU |
//! | E0442 | the CUDA driver could not fill, copy or free |
//! | E0443 | the CUDA driver refused PTX (its log is in the message) |
//! | E0444 | the CUDA driver refused a launch |
//! | E0445 | a kernel failed on the GPU |
//! | E0465 | a captured graph is not the list of launches |
//! | E0466 | the CUDA driver could not make a graph |
//! | E0467 | code is for a later GPU |
//! | E0468 | the CUDA driver is too old |
//! | E0469 | the CUDA driver refused machine code, or there is none |
//! | E0470 | an assembler cannot be used |
//! | E0471 | an assembler refused PTX (its log is in the message) |
//! | E0490 | no slot is free for another sequence |
//! | E0491 | a cache has more elements than kernels can number |
//! | E0492 | a slot holds no sequence that waits for a token |

pub mod assembler;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod interp;
pub mod memory;
pub mod sequences;
pub mod session;
pub mod trace;
pub mod weights;
