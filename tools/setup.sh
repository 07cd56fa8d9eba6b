#!/usr/bin/env bash
# Installs what a build needs and this machine lacks: LLVM 22 and a linker (Debian's packages). Changes nothing else.
set -euo pipefail

need=()
# LLVM's library is C++: linking it takes libstdc++, which a C compiler alone does not bring.
if ! command -v cc >/dev/null || [ "$(cc -print-file-name=libstdc++.so)" = libstdc++.so ]; then
  need+=(g++)
fi
command -v llvm-config-22 >/dev/null || need+=(llvm-22-dev)
if [ ${#need[@]} -gt 0 ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  echo "installing ${need[*]}" >&2
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
command -v cargo >/dev/null || { echo "error: cargo is not installed; hint: install Rust 1.95 with rustup" >&2; exit 1; }
