#!/usr/bin/env bash
# Installs what a build needs and this machine lacks: LLVM 22 (Debian's packages), a C linker, git-free. Changes nothing else.
set -euo pipefail

need=()
command -v cc >/dev/null || need+=(gcc libc6-dev)
command -v llvm-config-22 >/dev/null || need+=(llvm-22-dev)
if [ ${#need[@]} -gt 0 ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  echo "installing ${need[*]}" >&2
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
command -v cargo >/dev/null || { echo "error: cargo is not installed; hint: install Rust 1.95 with rustup" >&2; exit 1; }
