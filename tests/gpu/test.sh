#!/usr/bin/env bash
# `make test-gpu`: every check that needs an NVIDIA GPU, on the machine that has it. Where Rust and LLVM are, what is checked is
# built; elsewhere `.carry/` must have been brought along (tests/gpu/pack.sh makes it). Arguments and results: run.sh.
set -u
cd "$(dirname "$0")/../.."
if command -v cargo >/dev/null && command -v llvm-config-22 >/dev/null; then
  tests/gpu/pack.sh || { echo "FAILED: the checks do not build"; exit 1; }
elif [ -f .carry/pack.txz ]; then
  echo "there is no Rust or no LLVM 22 here: running what lies in .carry"
else
  echo "NOT RUN: there is no Rust or no LLVM 22 here, and no .carry made by tests/gpu/pack.sh elsewhere"
  exit 1
fi
exec .carry/run.sh "$@"
