#!/usr/bin/env bash
# Runs the check on a machine with an NVIDIA GPU, then the same under the memory checker's tools. Everything it needs lies
# beside it: `check` and `bundle/`. Usage: run.sh [check] [memcheck] [racecheck] [synccheck] [initcheck] (default: all).
# Logs go to $OUT (default: the current folder). Exit code 0 only if every part ran to its end and found nothing.
# A part that could not run counts as failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-.}
repeat=${REPEAT:-100}
budget=${BUDGET:-570}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(check memcheck racecheck synccheck initcheck)
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

chmod +x "$here/check"
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1 | tee "$out/machine.txt"
uname -r | tee -a "$out/machine.txt"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1)
[ -n "$sanitizer" ] && "$sanitizer" --version 2>&1 | tail -n 1 | tee -a "$out/machine.txt"

for part in "${parts[@]}"; do
  log="$out/$part.log"
  case $part in
    check) cap=330; args=(--repeat "$repeat" --time) ;;
    # Cases called big only repeat what smaller ones cover.
    memcheck | racecheck | synccheck) cap=180; args=(--repeat 1 --skip big) ;;
    # Nothing is filled, so that every read of memory that no kernel wrote is found; nothing is read back.
    initcheck) cap=120; args=(--repeat 1 --skip big --skip session --no-fill) ;;
    *) say "$part: FAILED: there is no such part"; failed=1; continue ;;
  esac
  limit=$(left "$cap")
  if [ "$limit" -lt 10 ]; then
    say "$part: NOT RUN: no time left (run it alone: run.sh $part)"
    failed=1
    continue
  fi
  began=$SECONDS
  if [ "$part" = check ]; then
    timeout "$limit" "$here/check" "$here/bundle" "${args[@]}" > "$log" 2>&1
    rc=$?
  elif [ -z "$sanitizer" ]; then
    say "$part: NOT RUN: compute-sanitizer is not on this machine"
    failed=1
    continue
  else
    timeout "$limit" "$sanitizer" --tool "$part" --error-exitcode 99 --print-limit 20 "$here/check" "$here/bundle" "${args[@]}" > "$log" 2>&1
    rc=$?
  fi
  took=$((SECONDS - began))
  if grep -qiE "device not supported|not supported on this|failed to initialize|unable to .*(attach|inject|launch)|Internal Sanitizer Error|Target application terminated before first instrumented" "$log"; then
    say "$part: REFUSED: the sanitizer does not work on this machine (${took} s); this is not a pass"
    grep -iE "not supported|failed to initialize|unable to|Internal Sanitizer Error|terminated before" "$log" | head -n 3 | tee -a "$summary"
    failed=1
  elif [ $rc -eq 124 ]; then
    say "$part: NOT FINISHED in $limit s; this is not a pass. Done so far: $(grep -cE '(cuda|cpu) [0-9x]' "$log") programs"
    failed=1
  elif [ $rc -ne 0 ]; then
    say "$part: FAILED, exit code $rc (${took} s)"
    failed=1
  elif [ "$part" != check ] && ! grep -qE "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" "$log"; then
    say "$part: FAILED: no summary without errors in its log (${took} s)"
    failed=1
  else
    say "$part: passed (${took} s)"
  fi
  grep -E "MISMATCH|NOT RUN|SUMMARY|programs compared|FAILED|^error" "$log" | head -n 12 | tee -a "$summary"
done
if [ -f "$out/check.log" ]; then
  grep -E "^(reference|device|repeats|case)| cuda |    time|^#" "$out/check.log" | cut -c1-150
fi
say "$([ $failed -eq 0 ] && echo 'all parts passed' || echo 'NOT all parts passed') (${parts[*]}; $((SECONDS - start)) s)"
exit $failed
