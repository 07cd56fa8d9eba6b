#!/usr/bin/env bash
# Runs the checks on a machine with an NVIDIA GPU, then the same under the memory checker's tools. Everything it needs lies
# beside it: `check`, `isobit`, `bundle/` and `demo.isobit/`. Usage: run.sh [PART...], default all of them:
#   device     the device itself: order of launches, graphs, queued copies, faults
#   check      kernels and whole models of the bundle against the host, launched as graphs
#   stream     the same, launched one by one, a few repeats
#   early      the same as graphs whose kernels start early, a few repeats
#   run        `isobit run`: logits and ids on the processor, by stream and by graph, with machine code and with PTX
#   repeats    a conversation in many fresh processes: one digest
#   memcheck racecheck synccheck initcheck   tools of compute-sanitizer
# Logs go to $OUT (default: the current folder). Exit code 0 only if every part ran to its end and found nothing.
# A part that could not run counts as failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "${OUT:-.}" && pwd)
repeat=${REPEAT:-100}
budget=${BUDGET:-570}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(device check stream early run repeats memcheck racecheck synccheck initcheck)
summary="$out/summary.txt"
: > "$summary"
failed=0
start=$SECONDS

say() { echo "$*" | tee -a "$summary"; }

# left CAP: seconds that a part may take.
left() {
  local n=$((budget - (SECONDS - start)))
  [ "$n" -lt "$1" ] && echo "$n" || echo "$1"
}

# same WHAT WANTED FOUND: compares two digests.
same() {
  if [ -n "$2" ] && [ "$2" = "$3" ]; then
    echo "same: $1: ${2:0:16}"
  else
    echo "MISMATCH: $1: expected ${2:-nothing}, found ${3:-nothing}"
    wrong=1
  fi
}

prompt="Write a paragraph about the history of coffee."
talk='Hello!\nWho are you?\nTell me about the sea.\nAnd about ships?\nThank you.\n'

# logits ARG...: digest of all logits of the prompt and of what is generated.
logits() {
  rm -f "$out/logits.st"
  "$here/isobit" run "$here/demo.isobit" "$prompt" --logits "$out/logits.st" "$@" >/dev/null 2>"$out/run.err" || cat "$out/run.err" >&2
  [ -f "$out/logits.st" ] && sha256sum < "$out/logits.st" | cut -d ' ' -f 1
}

# ids ARG...: digest of the ids that are generated; turns from standard input if no prompt is given.
ids() {
  "$here/isobit" run "$here/demo.isobit" --json "$@" 2>"$out/run.err" > "$out/run.json" || cat "$out/run.err" >&2
  [ -s "$out/run.json" ] && grep -o '"generated_ids":[^]]*]' "$out/run.json" | sha256sum | cut -d ' ' -f 1
}

# On the processor, and in every way on the GPU.
runs() {
  local wrong=0 want way
  local ways=("--launch stream" "--launch graph" "--launch graph --cubin off" "--launch stream --cubin off")
  want=$(logits --device cpu -n 60)
  for way in "${ways[@]}"; do same "logits, $way" "$want" "$(logits --device cuda $way -n 60)"; done
  for n in 1 5 64 128 129; do
    same "logits, chunks of $n" "$want" "$(logits --device cuda --prefill-chunk "$n" -n 60)"
    same "logits, chunks of $n, stream" "$want" "$(logits --device cuda --launch stream --prefill-chunk "$n" -n 60)"
  done
  # Past every window, and past the blocks of keys that there are at first.
  want=$(ids --device cpu -n 1200 --ignore-eos "$prompt")
  for way in "${ways[@]}"; do same "1200 tokens, $way" "$want" "$(ids --device cuda $way -n 1200 --ignore-eos "$prompt")"; done
  want=$(printf "$talk" | ids --device cpu)
  for way in "${ways[@]}"; do same "conversation, $way" "$want" "$(printf "$talk" | ids --device cuda $way)"; done
  for way in "--device auto" "--target sm_90"; do same "conversation, $way" "$want" "$(printf "$talk" | ids $way)"; done
  "$here/isobit" run "$here/demo.isobit" "$prompt" -n 400 --ignore-eos --print-options --launch graph 2>&1 >/dev/null | tail -n 20
  "$here/isobit" run "$here/demo.isobit" "$prompt" -n 400 --ignore-eos --launch stream 2>&1 >/dev/null | tail -n 2
  echo "runs: $([ $wrong -eq 0 ] && echo agree || echo FAILED)"
  return $wrong
}

# The conversation in fresh processes.
repeats() {
  local wrong=0 want i
  want=$(printf "$talk" | ids --device cpu)
  for ((i = 0; i < repeat; i++)); do
    same "process $i" "$want" "$(printf "$talk" | ids --device cuda)"
    [ $wrong -eq 0 ] || break
  done
  echo "repeats: $i processes, $([ $wrong -eq 0 ] && echo 'one digest' || echo FAILED)"
  return $wrong
}

chmod +x "$here/check" "$here/isobit"
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1 | tee "$out/machine.txt"
uname -r | tee -a "$out/machine.txt"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1)
[ -n "$sanitizer" ] && "$sanitizer" --version 2>&1 | tail -n 1 | tee -a "$out/machine.txt"

export -f runs repeats logits ids same
export here out repeat prompt talk
for part in "${parts[@]}"; do
  log="$out/$part.log"
  tool=0
  case $part in
    device) cap=60; run=("$here/check" device) ;;
    check) cap=330; run=("$here/check" "$here/bundle" --repeat "$repeat" --time) ;;
    stream) cap=120; run=("$here/check" "$here/bundle" --repeat 5 --launch stream --skip big) ;;
    early) cap=120; run=("$here/check" "$here/bundle" --repeat 5 --dependent --skip big) ;;
    run) cap=240; run=(bash -c runs) ;;
    repeats) cap=300; run=(bash -c repeats) ;;
    # Cases called big only repeat what smaller ones cover.
    memcheck | racecheck | synccheck) cap=180; tool=1; run=("$here/check" "$here/bundle" --repeat 1 --skip big) ;;
    # Nothing is filled, so that every read of memory that no kernel wrote is found; nothing is read back.
    initcheck) cap=120; tool=1; run=("$here/check" "$here/bundle" --repeat 1 --skip big --skip session --no-fill) ;;
    *) say "$part: FAILED: there is no such part"; failed=1; continue ;;
  esac
  limit=$(left "$cap")
  if [ "$limit" -lt 10 ]; then
    say "$part: NOT RUN: no time left (run it alone: run.sh $part)"
    failed=1
    continue
  fi
  if [ $tool -eq 1 ] && [ -z "$sanitizer" ]; then
    say "$part: NOT RUN: compute-sanitizer is not on this machine"
    failed=1
    continue
  fi
  [ $tool -eq 0 ] || run=("$sanitizer" --tool "$part" --error-exitcode 99 --print-limit 20 "${run[@]}")
  began=$SECONDS
  timeout "$limit" "${run[@]}" > "$log" 2>&1
  rc=$?
  took=$((SECONDS - began))
  if [ $tool -eq 1 ] && grep -qiE "device not supported|not supported on this|failed to initialize|unable to .*(attach|inject|launch)|Internal Sanitizer Error|Target application terminated before first instrumented" "$log"; then
    say "$part: REFUSED: the sanitizer does not work on this machine (${took} s); this is not a pass"
    grep -iE "not supported|failed to initialize|unable to|Internal Sanitizer Error|terminated before" "$log" | head -n 3 | tee -a "$summary"
    failed=1
  elif [ $rc -eq 124 ]; then
    say "$part: NOT FINISHED in $limit s; this is not a pass. Done so far: $(grep -cE '(cuda|cpu) [0-9x]|^same' "$log") comparisons"
    failed=1
  elif [ $rc -ne 0 ]; then
    say "$part: FAILED, exit code $rc (${took} s)"
    failed=1
  elif [ $tool -eq 1 ] && ! grep -qE "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" "$log"; then
    say "$part: FAILED: no summary without errors in its log (${took} s)"
    failed=1
  else
    say "$part: passed (${took} s)"
  fi
  grep -E "MISMATCH|NOT RUN|SUMMARY|programs compared|FAILED|^error|^runs:|^repeats:|tok/s" "$log" | head -n 12 | tee -a "$summary"
done
if [ -f "$out/check.log" ]; then
  grep -E "^(reference|device|repeats|case)| cuda |    time|^#" "$out/check.log" | cut -c1-150
fi
say "$([ $failed -eq 0 ] && echo 'all parts passed' || echo 'NOT all parts passed') (${parts[*]}; $((SECONDS - start)) s)"
exit $failed
