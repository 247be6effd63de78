#!/usr/bin/env bash
# The fuzzer finds planted bugs, saves what finds them, finds the same with the same seed, and passes without the bug.
#
# usage: fuzz_planted.sh FUZZ_PARSERS
set -euo pipefail

fuzz=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "fuzz_planted.sh: $1" >&2; cat "$folder"/*.log >&2; exit 1; }
expect() { # exit code, log, arguments...
  local code=0
  "$fuzz" "${@:3}" --keep "$folder" > "$folder/$2.log" 2>&1 || code=$?
  [ "$code" = "$1" ] || fail "fuzz_parsers ${*:3} ended with $code, not $1"
}

expect 0 none planted_none --seconds 1 --seed 3
expect 1 first planted_exception --seconds 60 --seed 3
grep -q "planted_exception: FOUND after .* (seed 3)" "$folder/first.log" || fail "no report"
saved=("$folder"/fuzz-planted_exception-3-*)
if [ ${#saved[@]} != 1 ] || [ ! -s "${saved[0]}" ]; then fail "the input was not saved"; fi
expect 1 alone planted_exception --input "${saved[0]}"
cp "${saved[0]}" "$folder/kept"
expect 1 again planted_exception --seconds 60 --seed 3
cmp "${saved[0]}" "$folder/kept" || fail "the same seed found something else"
expect 134 crash planted_crash --seconds 60 --seed 3 # 128 + SIGABRT
grep -q "the process dies; the input is in" "$folder/crash.log" || fail "a crash was not reported"
expect 134 crash_alone planted_crash --input "$(ls "$folder"/fuzz-planted_crash-3-*)"
