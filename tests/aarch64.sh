#!/usr/bin/env bash
# The runtime's own tests as a program for aarch64, under an emulator: relocations as gcc leaves them, protection of pages,
# threads, float mode, damaged objects. Needs what `make aarch64` puts there.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# As tools/aarch64.sh builds.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
# The tests of assemblers load and start programs of this machine's processor, so they are not among these.
cargo test --release --target aarch64-unknown-linux-gnu -p isobit-runtime --lib --test device --test loader --test pool
