#!/usr/bin/env bash
# The checks for a machine with an NVIDIA GPU, of what tests/gpu/pack.sh made: `pack.txz` lies beside this file.
# Usage: run.sh [--device cpu] [PART[:WHICH]...], default all parts. WHICH picks checks whose label contains it: bits:wide.
#   device     the device itself: order of launches, graphs, queued copies, faults in code and in runs
#   kernels    kernels of the bundle, buffer by buffer, against the host
#   bits       logits of all positions: models, chunks, batches, launch modes, fusion, free schedules
#   poison     the same again with memory full of NaN
#   repeat     the golden conversation of five turns in 100 fresh processes, and 100 times in one
#   load       conversations and logits while another process keeps the GPU busy
#   memcheck racecheck synccheck initcheck   tools of compute-sanitizer; `sanitizer` is all four
#   faults     what a user may meet: clear errors, and the next run unharmed
#   bench      speed, with digests
#   trace      what a trace costs, and whether the processor has the same digests
# A line for each check, with its digest: `same`, `DIFFERS`, `FAILED`, `NOT RUN`. Each part has SECONDS_OF_PART (90) seconds; what
# does not come to its turn counts as failed. Lines go to $OUT/summary.txt too. Exit code 0 only if nothing failed.
# With `--device cpu` the processor stands for the GPU: to try this file out where there is none (CPU_THREADS=1 on a busy machine).
set -u
here=$(cd "$(dirname "$0")" && pwd)
me=$here/$(basename "$0")
[ "${1:-}" = --device ] && { device=$2; shift 2; }
export device=${device:-cuda}
export out=$(cd "${OUT:-.}" && pwd)
export jobs=${JOBS:-8}

# `isobit run`; what hangs is ended.
program() { timeout "${SECONDS_OF_RUN:-85}" "$work/isobit" run "$@"; }
# digest KIND ARG...: of what `isobit run` prints: all logits, the ids of a conversation, or all of a batch.
digest() {
  local kind=$1 err
  shift
  err=$(mktemp)
  case $kind in
    logits) program "$@" --digest --json 2>"$err" </dev/null | sed -n 's/^{"repeat":.*"logits":"\([0-9a-f]*\)".*/\1/p' ;;
    talk) program "$@" --digest --json 2>"$err" <"$work/talk.txt" | sed -n 's/^{"repeat":.*"logits":"\([0-9a-f]*\)".*/\1/p' ;;
    golden) program "$@" --json 2>"$err" <"$work/talk.txt" | sed -n 's/.*"generated_ids":\[\([^]]*\)\].*/\1/p' | sha256sum | cut -c 1-64 ;;
    batch) program "$@" --digest --json 2>"$err" </dev/null | sed -n 's/^{"index":\([0-9]*\),.*"logits":"\([0-9a-f]*\)".*/\1 \2/p' | sha256sum | cut -c 1-64 ;;
  esac
  grep -m1 '^error' "$err" >&2
  rm -f "$err"
}
nothing=$(sha256sum </dev/null | cut -c 1-64)

# One check: LABEL, what is wanted (a file of `want/`), KIND, ARG...; a line of the report.
one() {
  local label=$1 want found
  if [ "$(date +%s)" -ge "$deadline" ]; then echo "NOT RUN $label: no time left"; return; fi
  want=$(cat "$work/want/$2" 2>/dev/null)
  shift 2
  found=$(digest "$@" 2>&1)
  if [ -n "$want" ] && [ "$want" != "$nothing" ] && [ "$want" = "$found" ]; then
    echo "same $label ${found:0:16}"
  else
    echo "DIFFERS $label: expected ${want:0:16}, found ${found:0:200}"
  fi
}
if [ "${1:-}" = --one ]; then
  IFS=$'\t' read -r -a words <<<"$2"
  one "${words[@]}"
  exit
fi

# One tool over one program, a line: --tool TOOL LABEL COMMAND...
tool() {
  local tool=$1 label=$2 log left
  shift 2
  left=$((deadline - $(date +%s)))
  [ $left -ge 10 ] || { echo "NOT RUN $tool, $label: no time left"; return; }
  log=$out/$tool-${label//[^a-z0-9-]/_}.log
  timeout "$left" "$sanitizer" --tool "$tool" --error-exitcode 99 --print-limit 20 "$@" >"$log" 2>&1
  local rc=$?
  if grep -qiE "device not supported|not supported on this|failed to initialize|unable to .*(attach|inject|launch)|Internal Sanitizer Error|terminated before first instrumented" "$log"; then
    echo "NOT RUN $tool, $label: the tool does not work here: $(grep -iE 'not supported|failed to|unable to|Internal|terminated' "$log" | head -n 1)"
  elif [ $rc -eq 124 ]; then
    echo "NOT RUN $tool, $label: not finished in $left s"
  elif [ $rc -eq 0 ] && grep -qE "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" "$log"; then
    echo "same $tool, $label: no finding"
  else
    echo "FAILED $tool, $label: exit code $rc: $(grep -E 'SUMMARY|Invalid|Uninit|hazard|^error' "$log" | head -n 2 | tr '\n' ';')"
  fi
}
if [ "${1:-}" = --tool ]; then
  IFS=$'\t' read -r -a words <<<"$2"
  tool "${words[@]}"
  exit
fi

# What was packed, unpacked once.
export work=${TMPDIR:-/tmp}/isobit-gpu-$(sha256sum <"$here/pack.txz" | cut -c 1-12)
if [ ! -f "$work/ready" ]; then
  rm -rf "$work"
  mkdir -p "$work/want" && python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$here/pack.txz" "$work" && touch "$work/ready" || { echo "FAILED: pack.txz cannot be unpacked"; exit 1; }
fi
list=$work/jobs
summary=$out/summary.txt
: >"$summary"
say() { echo "$*" | tee -a "$summary"; }

cpu="--device cpu ${CPU_THREADS:+--threads $CPU_THREADS}"
gpu=(--device "$device")
[ "$device" = cpu ] && gpu=($cpu)
if [ "$device" = cpu ]; then launches=(""); else launches=("--launch stream" "--launch graph"); fi

# job LABEL WANT KIND ARG...: queued, if it was picked.
job() {
  case "$1" in *"$which"*) (IFS=$'\t'; echo "$*") >>"$list" ;; esac
}
# want NAME KIND ARG...: how the processor gets it, once, if a check that is queued needs it.
declare -A wants
want() { wants[$1]="${*:2}"; }
# Runs what is queued, several at a time.
run_jobs() {
  local name
  for name in $(cut -f 2 "$list" | sort -u); do
    [ -s "$work/want/$name" ] || digest ${wants[$name]} >"$work/want/$name"
  done
  [ -s "$list" ] && xargs -a "$list" -d '\n' -n 1 -P "$jobs" "$me" --one | tee -a "$summary"
  : >"$list"
}

vocab() { sed -n "s/^$1 //p" "$work/models.txt"; }
# N ids of a text without sense, on one line.
ids() { awk -v v="$(vocab "$1")" -v n="$2" -v s="${3:-0}" 'BEGIN { for (i = 0; i < n; i++) printf "%s%d", i ? "," : "", (i * 7919 + i * i * 31 + s * 101 + 5) % v }'; }
models() { cut -d ' ' -f 1 "$work/models.txt"; }
prompts() {
  case $1 in
    demo) echo "$work/prompts.txt" ;;
    *) [ -s "$work/$1.ids" ] || for ((i = 0; i < 70; i++)); do ids "$1" $((1 + (i * i * 5 + i) % 37)) "$i"; echo; done >"$work/$1.ids"; echo "$work/$1.ids" ;;
  esac
}

# Logits of all positions in every way; further arguments go to the runs on the GPU.
every_way() {
  local m variant way chunk slots length n wanted
  for m in $(models); do
    length=140 n=8 wanted=70
    [ "$m" = wide ] && wanted=9
    want "$m" logits "$work/$m.isobit" $cpu --ids "$(ids "$m" $length)" -n $n --ignore-eos
    head -n "$wanted" "$(prompts "$m")" >"$work/$m.batch"
    want "$m.batch" batch "$work/$m.isobit" $cpu --batch "$work/$m.batch" --slots 1 -n 6 --ignore-eos
    for variant in "$work/$m" "$work/$m"-unfused "$work/$m"-s1 "$work/$m"-s2 "$work/$m"-s3; do
      # Free schedules are of the demo model alone.
      case "$variant" in *-s[123]) [ "$m" = demo ] || continue ;; esac
      for way in "${launches[@]}"; do
        for chunk in 1 5 64 128 129 $length; do
          job "$(basename "$variant"), chunks of $chunk ${way#--launch }" "$m" logits "$variant.isobit" "${gpu[@]}" $way \
            --ids "$(ids "$m" $length)" -n $n --ignore-eos --prefill-chunk "$chunk" "$@"
        done
        for slots in 1 2 7 64; do
          # Prompts of other lengths beside each, admitted when one ends; with 64 slots 6 of the 70 come late.
          job "$(basename "$variant"), batch of $slots ${way#--launch }" "$m.batch" batch "$variant.isobit" "${gpu[@]}" $way \
            --batch "$work/$m.batch" --slots "$slots" -n 6 --ignore-eos "$@"
        done
      done
    done
  done
  run_jobs
}

bits() { every_way; }
poison() {
  every_way --poison
  want talk talk "$work/demo.isobit" $cpu -n 60
  job "conversation, 5 times in one process" talk talk "$work/demo.isobit" "${gpu[@]}" -n 60 --repeat 5 --poison
  run_jobs
}
repeat() {
  local i
  tr -d ' ' <"$work/golden.txt" | sha256sum | cut -c 1-64 >"$work/want/golden"
  for ((i = 1; i <= ${REPEAT:-100}; i++)); do
    job "golden ids, process $i" golden golden "$work/demo-exact.isobit" "${gpu[@]}" -n 1024
  done
  want talk talk "$work/demo.isobit" $cpu -n 60
  job "conversation, ${REPEAT:-100} times in one process" talk talk "$work/demo.isobit" "${gpu[@]}" -n 60 --repeat "${REPEAT:-100}"
  run_jobs
}
load() {
  local i busy
  want wide logits "$work/wide.isobit" $cpu --ids "$(ids wide 140)" -n 8 --ignore-eos
  tr -d ' ' <"$work/golden.txt" | sha256sum | cut -c 1-64 >"$work/want/golden"
  # Work without end, ended below.
  "$work/isobit" bench "$work/wide.isobit" "${gpu[@]}" -n 2000 --depth 0 --prefill 1024 --repeat 1000 >/dev/null 2>&1 &
  busy=$!
  sleep 5
  for ((i = 1; i <= 24; i++)); do
    job "golden ids beside a busy process, process $i" golden golden "$work/demo-exact.isobit" "${gpu[@]}" -n 1024
  done
  for i in "${launches[@]}"; do
    job "wide beside a busy process ${i#--launch }" wide logits "$work/wide.isobit" "${gpu[@]}" $i --ids "$(ids wide 140)" -n 8 --ignore-eos
  done
  run_jobs
  if kill -0 $busy 2>/dev/null; then say "same busy process: it ran all the while"; else say "FAILED busy process: it ended early"; fi
  kill $busy 2>/dev/null
  wait $busy 2>/dev/null
}

# refused LABEL CODE TEXT ARG...: `isobit` ends with exit code 1 and this error.
refused() {
  local label=$1 code=$2 text=$3 err rc
  shift 3
  case "$label" in *"$which"*) ;; *) return ;; esac
  err=$("$@" 2>&1 >/dev/null </dev/null)
  rc=$?
  if [ $rc -eq 1 ] && grep -qE "error\[($code)\]" <<<"$err" && grep -qE "$text" <<<"$err"; then
    say "same $label: $(grep -m1 '^error' <<<"$err" | cut -c 1-150)"
  else
    say "DIFFERS $label: exit code $rc, expected $code: $(head -c 300 <<<"$err")"
  fi
}
# The next run is as ever.
unharmed() {
  job "a run after $1" demo logits "$work/demo.isobit" "${gpu[@]}" --ids "$(ids demo 140)" -n 8 --ignore-eos
  run_jobs
}
faults() {
  local run=("$work/isobit" run) ids=(--ids 2,5,7 -n 2) none loading
  want demo logits "$work/demo.isobit" $cpu --ids "$(ids demo 140)" -n 8 --ignore-eos
  none=$(mktemp -d)
  for f in libcuda.so libcuda.so.1 libnvcuda.so; do echo none >"$none/$f"; done
  refused "no driver" "E0440|E0441" "driver" env LD_LIBRARY_PATH="$none" "${run[@]}" "$work/demo.isobit" --device cuda "${ids[@]}"
  refused "no such GPU" "E0440|E0441" "driver|GPU" "${run[@]}" "$work/demo.isobit" --device cuda:99 "${ids[@]}"
  if [ "$device" = cuda ]; then
    refused "no GPU to be seen" "E0441" "GPU|device" env CUDA_VISIBLE_DEVICES= "${run[@]}" "$work/demo.isobit" --device cuda "${ids[@]}"
    refused "another architecture" "E0796" "sm_121" "${run[@]}" "$work/demo-sm121.isobit" --device cuda "${ids[@]}"
  fi
  # Without a driver, and nothing asked for, the processor does it.
  job "no driver, device auto" demo logits "$work/demo.isobit" --device auto --ids "$(ids demo 140)" -n 8 --ignore-eos
  LD_LIBRARY_PATH=$none run_jobs
  rm -r "$none"
  for ((i = 0; i < 40; i++)); do echo "2,5,$i"; done >"$work/many.ids"
  refused "out of memory at load" "E0437" "does not fit" "${run[@]}" "$work/26b.isobit" "${gpu[@]}" --batch "$work/many.ids" --slots 40 --context 262144
  refused "a context that is full" "E0757" "context" "${run[@]}" "$work/demo.isobit" "${gpu[@]}" --context 64 --ids "$(ids demo 140)"
  unharmed "refusals"
  local copy=$work/copy.isobit f
  for f in ptx cubin kir o; do
    rm -rf "$copy" && cp -r "$work/demo.isobit" "$copy"
    local file=$(find "$copy" -name "*.$f" | sort | head -n 1)
    [ -n "$file" ] || { say "FAILED a damaged $f: there is none"; continue; }
    printf '\377' | dd of="$file" bs=1 seek=100 conv=notrunc 2>/dev/null
    refused "a damaged $f" "E0764" "${file##*/}" "${run[@]}" "$copy" "${gpu[@]}" "${ids[@]}"
  done
  rm -rf "$copy"
  for f in 0.3 1 2 4; do
    "${run[@]}" "$work/wide.isobit" "${gpu[@]}" "${ids[@]}" >/dev/null 2>&1 &
    loading=$!
    sleep $f
    kill -9 $loading 2>/dev/null
    wait $loading 2>/dev/null
  done
  unharmed "processes killed while they load"
  # Code that the driver refuses, and kernels that fail.
  [ "$device" = cuda ] && checked device device "$work/check" device
}

# checked PART LABEL COMMAND...: runs `check`; its log is kept.
checked() {
  local log=$out/$1.log label=$2 left
  shift 2
  case "$label" in *"$which"*) ;; *) return ;; esac
  left=$((deadline - $(date +%s)))
  [ $left -ge 5 ] || { say "NOT RUN $label: no time left"; return; }
  timeout "$left" "$@" >>"$log" 2>&1
  case $? in
    0) say "same $label: $(grep -cE '^ *(cuda|cpu|device) ' "$log") lines in $(basename "$log")" ;;
    124) say "NOT RUN $label: not finished in $left s" ;;
    *) say "FAILED $label: $(grep -E 'MISMATCH|FAILED|^error' "$log" | head -n 3 | tr '\n' ';')" ;;
  esac
}
kernels() {
  local more=(--device "$device")
  [ "$device" = cpu ] && more+=(--only small)
  checked kernels "kernels, graph" "$work/check" "$work/bundle" "${more[@]}" --repeat 20 --skip big
  [ "$device" = cpu ] && return
  checked kernels "kernels, stream" "$work/check" "$work/bundle" --repeat 3 --launch stream --skip big
  checked kernels "kernels, early starts" "$work/check" "$work/bundle" --repeat 3 --dependent --skip big
}

sanitize() {
  local tool=$1 m case
  export sanitizer=$(PATH="$PATH:/usr/local/cuda/bin" command -v compute-sanitizer || ls /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1)
  [ -n "$sanitizer" ] || { say "NOT RUN $tool: compute-sanitizer is not on this machine"; return; }
  local check=("$work/check" "$work/bundle" --device "$device" --repeat 1)
  # Nothing is filled, so that reads of what no kernel wrote are found; a session fills its memory, so it is left out.
  [ "$tool" = initcheck ] && check+=(--skip session --no-fill)
  local cases="gemv4-small gemv8-small attn-small moe-small model"
  [ "$tool" = initcheck ] && cases=${cases% model}
  for case in $cases; do
    job "$tool" "$case" "${check[@]}" --only "$case"
  done
  if [ "$tool" != initcheck ]; then
    for m in demo moe-1 moe-2 moe-8 moe-128 tiny-moe-mlx tiny-dense-mlx tiny-ple-mlx tiny-moe-hf tiny-dense-hf tiny-ple-hf; do
      # A chunk on matrix units where it has them, then two tokens.
      job "$tool" "$m" "$work/isobit" run "$work/$m.isobit" "${gpu[@]}" --ids "$(ids "$m" 20)" -n 3 --ignore-eos --context 40
    done
  fi
  [ -z "$only_tool" ] || { grep "$only_tool" "$list" >"$list.some"; mv "$list.some" "$list"; }
  [ -s "$list" ] && xargs -a "$list" -d '\n' -n 1 -P 4 "$me" --tool | tee -a "$summary"
  : >"$list"
}

bench() {
  local m more=()
  for m in demo wide 26b; do
    case "$m" in *"$which"*) ;; *) continue ;; esac
    if [ "$device" = cpu ]; then
      [ "$m" = demo ] || continue
      more=(-n 8)
    fi
    # The demo model has fewer positions.
    "$work/isobit" bench "$work/$m.isobit" "${gpu[@]}" --depth 0,512,2048 --prefill 128,2048 --prefill-chunk 2048 "${more[@]}" --json >"$out/bench-$m.json" 2>"$out/bench.err" &&
      say "same bench $m: $(cat "$out/bench-$m.json")" || say "FAILED bench $m: $(grep -m1 '^error' "$out/bench.err")"
  done
}

# What a trace costs, and that a trace of the GPU is the processor's.
trace() {
  local m run=("$work/isobit" run) err=$out/trace.err
  for m in 26b 26b-traced; do
    local more=()
    [ "$m" = 26b ] || more=(--trace "$out/26b.trace")
    "${run[@]}" "$work/$m.isobit" "${gpu[@]}" "${more[@]}" --ids 2,105,911,17,300 -n 257 --ignore-eos 2>&1 >/dev/null </dev/null | tail -n 1 | sed "s/^/same $m: /" | tee -a "$summary"
  done
  say "same bytes of the trace: $(stat -c %s "$out/26b.trace") for 261 tokens"
  mv "$out/26b.trace" "$work/"
  "${run[@]}" "$work/demo.isobit" "${gpu[@]}" --trace "$work/demo.trace" --ids "$(ids demo 140)" -n 8 --ignore-eos >/dev/null 2>"$err" </dev/null
  "$work/isobit" verify "$work/demo.isobit" "$work/demo.trace" $cpu >"$err" 2>&1 && say "same demo: $(tail -n 1 "$err")" || say "DIFFERS demo: $(tail -n 3 "$err" | tr '\n' ';')"
}

if [ "$device" = cuda ]; then
  nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.used --format=csv,noheader 2>&1 | tee -a "$summary"
fi
[ $# -gt 0 ] || set -- device kernels bits poison repeat load sanitizer faults bench trace
[ "$1" = sanitizer ] && { shift; set -- memcheck racecheck synccheck initcheck "$@"; }
for word in "$@"; do
  part=${word%%:*}
  which=
  only_tool=
  [ "$part" = "$word" ] || which=${word#*:}
  : >"$list"
  export deadline=$(($(date +%s) + ${SECONDS_OF_PART:-90}))
  began=$SECONDS
  case $part in
    bits | poison | repeat | load | faults | kernels | bench | trace) "$part" ;;
    device) if [ "$device" = cpu ]; then say "the part for a GPU alone is left out: device"; else checked device device "$work/check" device; fi ;;
    memcheck | racecheck | synccheck | initcheck) only_tool=$which which= && sanitize "$part" ;;
    *) say "FAILED: there is no part $part" ;;
  esac
  say "# $word: $((SECONDS - began)) s"
done
counts() { grep -c "^$1" "$summary"; }
say "# same $(counts same), DIFFERS $(counts DIFFERS), FAILED $(counts FAILED), NOT RUN $(counts 'NOT RUN') ($*)"
! grep -qE "^(DIFFERS|FAILED|NOT RUN)" "$summary" && [ "$(counts same)" -gt 0 ]
