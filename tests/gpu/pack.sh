#!/usr/bin/env bash
# Makes .carry/: all that tests/gpu/run.sh needs on a machine with a GPU and without LLVM.
set -eu
cd "$(dirname "$0")/../.."
cargo build --release -p isobit-gpu-check --bin prepare
# Without LLVM, so that the binary needs nothing but libc.
cargo build --release -p isobit-gpu-check --no-default-features --features cuda --bin check
mkdir -p .carry
rm -rf .carry/bundle
target/release/prepare .carry/bundle "$@"
cp target/release/check .carry/check
strip .carry/check
cp tests/gpu/run.sh .carry/run.sh
du -sh .carry
