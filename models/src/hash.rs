//! Content hashes of large files: BLAKE3 on all cores, over mapped pages that are given back as soon as they were read.

use std::fs::File;
use std::io;

/// Bytes that are hashed, and then given back, at a time.
const RUN: usize = 64 << 20;

/// Hash of bytes, as 64 hex digits; `done` is told of each run that was read.
pub fn hash_bytes(bytes: &[u8], done: &mut dyn FnMut(&[u8])) -> String {
    let mut hash = blake3::Hasher::new();
    for run in bytes.chunks(RUN) {
        hash.update_rayon(run);
        done(run);
    }
    hash.finalize().to_hex().to_string()
}

/// Length and hash of an open file, which must not be changed meanwhile.
pub fn hash_file(file: &File) -> io::Result<(u64, String)> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok((0, hash_bytes(&[], &mut |_| {}))); // a mapping cannot be empty
    }
    // SAFETY: the mapping is read only. As with every mapping, whoever truncates the file meanwhile ends the process (SIGBUS).
    let map = unsafe { memmap2::Mmap::map(file) }?;
    let hash = hash_bytes(&map, &mut |run| {
        let at = run.as_ptr() as usize - map.as_ptr() as usize;
        // SAFETY: pages of a file that is mapped read only come back with the same contents.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, run.len()) };
    });
    Ok((length, hash))
}
