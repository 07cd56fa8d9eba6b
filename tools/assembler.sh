#!/usr/bin/env bash
# Puts NVIDIA's assembler, as program and as library, and disassembler (public Python wheels, no driver or toolkit needed)
# under .tools/bin and .tools/lib.
set -euo pipefail
cd "$(dirname "$0")/.."

version=13.5.37
[ -x .tools/bin/ptxas ] && [ -e .tools/lib/libnvJitLink.so.13 ] && [ -x .tools/bin/nvdisasm ] && [ "$(cat .tools/version 2>/dev/null)" = "$version" ] && exit 0
if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
fi
rm -rf .tools
python3 -m venv .tools/venv
.tools/venv/bin/pip install --quiet --disable-pip-version-check --no-deps \
  "nvidia-cuda-nvcc==$version" "nvidia-cuda-nvdisasm==$version" "nvidia-nvjitlink==$version"
mkdir -p .tools/bin .tools/lib
for tool in ptxas nvdisasm; do
  found=$(find .tools/venv -type f -name "$tool" -path '*/bin/*' | head -n 1)
  [ -n "$found" ] || { echo "error: the wheels hold no $tool" >&2; exit 1; }
  chmod +x "$found"
  ln -s "../../$found" ".tools/bin/$tool"
done
found=$(find .tools/venv -type f -name 'libnvJitLink.so.13' | head -n 1)
[ -n "$found" ] || { echo "error: the wheels hold no libnvJitLink" >&2; exit 1; }
ln -s "../../$found" .tools/lib/libnvJitLink.so.13
echo "$version" > .tools/version
