#!/usr/bin/env bash
# Makes .carry/: all that tests/gpu/run.sh needs on a machine with a GPU and without LLVM, within 40 MiB: `pack.txz` holds two
# programs that need nothing but libc, artifacts with code for the processor and for sm_90, kernels with inputs of their own
# (`bundle`), prompts, and what is expected. Arguments go to `prepare`.
set -eu
cd "$(dirname "$0")/../.."
# With an assembler beside it, artifacts hold machine code too.
PATH="$PATH:$PWD/.tools/bin"
cargo build --release -p isobit-gpu-check --bin prepare
cargo build --release -p isobit
bare="--no-default-features --features cuda --target-dir target/bare"
cargo build --release -p isobit-gpu-check $bare --bin check
cargo build --release -p isobit $bare
at=target/gpu-pack
rm -rf "$at" .carry
mkdir -p "$at" .carry
target/release/prepare "$at/bundle" "$@" >/dev/null
tests/gpu/configs/make.py "$at/configs"
cp -r tests/configs/26b-a4b-mlx-4bit "$at/configs/26b"
both=x86-64-v3,x86-64-v4+vnni,sm_90

# compile NAME MODEL OPTION...
compile() {
  local name=$1 model=$2
  shift 2
  target/release/isobit compile "$model" -o "$at/$name.isobit" "$@" 2>"$at/log" >/dev/null || { cat "$at/log"; echo "FAILED: $name"; exit 1; }
}
compile demo demo --target "$both"
compile demo-unfused demo --target "$both" --fusion off
compile demo-exact demo --target "$both" --embed exact
compile demo-sm121 demo --target sm_121 --cubin off
# Free schedules: wide blocks and no matrix units; copies in stages; one warp a block and other tiles of matrix units.
compile demo-s1 demo --target "$both" --schedule gpu=8/2/2/4/0/2/1/0/8/1/0/0/0 --schedule gpu-prefill=8/2/2/4/0/2/8/0/8/1/0/0/0
compile demo-s2 demo --target "$both" --schedule gpu=4/4/4/1/3/0/1/0/16/2/64/0/0 --schedule gpu-prefill=2/4/4/1/3/0/4/0/32/1/0/16/1
compile demo-s3 demo --target "$both" --schedule gpu=1/4/4/2/0/0/1/40/1/4/0/0/0 --schedule gpu-prefill=4/4/4/1/0/2/4/0/8/1/0/64/0
models="demo 4096"
for model in tiny-moe tiny-dense tiny-ple; do
  for layout in hf mlx; do
    compile "$model-$layout" "tests/fixtures/$model/$layout" --target x86-64-v3,sm_90
    compile "$model-$layout-unfused" "tests/fixtures/$model/$layout" --target x86-64-v3,sm_90 --fusion off
    models="$models"$'\n'"$model-$layout $(grep -om1 '"vocab_size": [0-9]*' "tests/fixtures/$model/$layout/config.json" | cut -d ' ' -f 2)"
  done
done
for n in 1 2 8 128; do
  compile "moe-$n" "$at/configs/moe-$n" --weights "random:$n" --target "$both"
  compile "moe-$n-unfused" "$at/configs/moe-$n" --weights "random:$n" --target "$both" --fusion off
  models="$models"$'\n'"moe-$n 512"
done
compile wide "$at/configs/wide" --weights random:1 --target x86-64-v4+vnni,sm_90
compile wide-unfused "$at/configs/wide" --weights random:1 --target x86-64-v4+vnni,sm_90 --fusion off
compile 26b "$at/configs/26b" --weights random:1 --target x86-64-v4+vnni,sm_90
compile 26b-traced "$at/configs/26b" --weights random:1 --target sm_90 --instrument-trace on
echo "$models"$'\n'"wide 262144" > "$at/models.txt"
# The five turns of the golden conversation, and what the model says to each; prompts of many lengths.
python3 - "$at" <<'PY'
import hashlib, json, sys
at = sys.argv[1]
all = json.load(open("tests/golden/golden.json"))["transcripts"]
turns = [t for t in all if t["id"].startswith("repro/")]
assert len(turns) == 5 and not any("\n" in t["user"] for t in turns)
open(f"{at}/talk.txt", "w").write("".join(t["user"] + "\n" for t in turns))
open(f"{at}/golden.txt", "w").write("".join(",".join(map(str, t["generated_ids"])) + "\n" for t in turns))
words = " ".join(t["user"] for t in all).split()
lines = [" ".join(words[(7 * i) % 40 :][: 1 + (i * i * 5 + i) % 37]) for i in range(70)]
open(f"{at}/prompts.txt", "w").write("".join(line + "\n" for line in lines))
# Files that artifacts share are stored once.
import os, pathlib
seen = {}
for f in sorted(pathlib.Path(at).glob("*.isobit/**/*")):
    if f.is_file():
        h = hashlib.sha256(f.read_bytes()).digest()
        if h in seen:
            f.unlink()
            os.link(seen[h], f)
        else:
            seen[h] = f
PY
rm -rf "$at/configs" "$at/log"
cp target/bare/release/check target/bare/release/isobit "$at/"
strip "$at/check" "$at/isobit"
tar -C "$at" -cf - . | xz -T0 -6 > .carry/pack.txz
cp tests/gpu/run.sh .carry/run.sh
size=$(du -sm .carry | cut -f 1)
echo "$size MiB in .carry"
[ "$size" -le 40 ] || { echo "FAILED: .carry has more than 40 MiB"; exit 1; }
