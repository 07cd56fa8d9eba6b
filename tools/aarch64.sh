#!/usr/bin/env bash
# What checks of aarch64 code need on another machine: Debian's emulator and cross linker, Rust's library for aarch64, and
# the programs that run there: `isobit` and the loader of single objects, both without LLVM. Fails if one cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=aarch64-unknown-linux-gnu

need=()
command -v qemu-aarch64 >/dev/null || need+=(qemu-user)
command -v aarch64-linux-gnu-gcc >/dev/null || need+=(gcc-aarch64-linux-gnu)
[ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] && [ -e /usr/aarch64-linux-gnu/lib/crt1.o ] || need+=(libc6-dev-arm64-cross)
if [ ${#need[@]} -gt 0 ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  echo "installing ${need[*]}" >&2
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ]; then
  command -v rustup >/dev/null || { echo "error: this Rust has no library for $triple; hint: install Rust with rustup" >&2; exit 1; }
  rustup target add "$triple"
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Only their compiled kernels are to be fast, and these come with the artifact.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
cargo build --release --target "$triple" --no-default-features --bin isobit
cargo build --release --target "$triple" -p isobit-runtime --example run_object
