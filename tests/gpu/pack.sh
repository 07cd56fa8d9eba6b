#!/usr/bin/env bash
# Makes .carry/: all that tests/gpu/run.sh needs on a machine with a GPU and without LLVM. Arguments go to `prepare`.
set -eu
cd "$(dirname "$0")/../.."
# With an assembler beside it, artifacts hold machine code too.
PATH="$PATH:$PWD/.tools/bin"
cargo build --release -p isobit-gpu-check --bin prepare
cargo build --release
# Without LLVM, so that the binaries need nothing but libc.
bare="--no-default-features --features cuda --target-dir target/bare"
cargo build --release -p isobit-gpu-check $bare --bin check
cargo build --release -p isobit $bare
mkdir -p .carry
rm -rf .carry/bundle .carry/demo.isobit
target/release/prepare .carry/bundle "$@"
target/release/isobit compile demo -o .carry/demo.isobit --target x86-64-v3,x86-64-v4,x86-64-v4+vnni,sm_90,sm_121
cp target/bare/release/check target/bare/release/isobit .carry/
strip .carry/check .carry/isobit
cp tests/gpu/run.sh .carry/run.sh
du -sh .carry
