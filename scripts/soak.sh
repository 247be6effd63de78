#!/usr/bin/env bash
# Long checks, by hand: a training that is killed again and again must end as one that never was, and every fuzz test and
# fuzz target runs for as long as asked.
#
# usage: scripts/soak.sh [--kills N] [--ranks N] [--seed N] [--fuzz-rounds N] [--fuzz-seconds N] [--config FILE] [--dir DIR]
#   --kills N        interruptions (default 100): mpirun or one rank by SIGKILL, or USR1 to mpirun, at random moments
#   --ranks N        default 2
#   --seed N         of the moments and kinds, and of the fuzz targets' changes (default 1)
#   --fuzz-rounds N  MMTRAIN_FUZZ_ROUNDS for the tests named fuzz (default 100000; 0: none)
#   --fuzz-seconds N fuzz_parsers, all targets together (default 3600; 0: none), under sanitizers where build/debug has it
#   --config FILE    a training config with `resume: auto` and without an output folder in use; default: a tiny text model
#   --dir DIR        scratch folder (default: build/soak; emptied)
# Prints figures: how often each kind of kill fell on what, restarts, seconds; fails at the first difference.
set -euo pipefail
cd "$(dirname "$0")/.."

kills=100 ranks=2 seed=1 rounds=100000 fuzz_seconds=3600 config='' dir=build/soak
while [ $# -gt 0 ]; do
  case $1 in
    --kills) kills=$2 ;;
    --ranks) ranks=$2 ;;
    --seed) seed=$2 ;;
    --fuzz-rounds) rounds=$2 ;;
    --fuzz-seconds) fuzz_seconds=$2 ;;
    --config) config=$(readlink -f "$2") ;;
    --dir) dir=$2 ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "soak.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift 2
done

mmtrain=$PWD/build/release/bin/mmtrain
[ -x "$mmtrain" ] || { echo "soak.sh: build first: cmake --preset release && cmake --build --preset release" >&2; exit 2; }

if [ "$kills" -gt 0 ]; then
  rm -rf "$dir"
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  if [ -z "$config" ]; then
    python3 tests/tiny_run.py "$dir/data" --steps $((kills * 40)) --every 20
    config=$dir/data/config.yaml
  fi
  python3 scripts/soak_kills.py --launcher scripts/mmtrain-launch --mmtrain "$mmtrain" --config "$config" --dir "$dir" \
    --kills "$kills" --ranks "$ranks" --seed "$seed"
fi

if [ "$rounds" -gt 0 ]; then
  begin=$SECONDS
  MMTRAIN_FUZZ_ROUNDS=$rounds ctest --preset release -R '[Ff]uzz' --timeout 7200 -j "$(nproc)" --no-tests=error
  echo "soak: fuzz tests with $rounds rounds: $((SECONDS - begin)) s"
fi

if [ "$fuzz_seconds" -gt 0 ]; then
  fuzz=build/debug/bin/fuzz_parsers
  [ -x "$fuzz" ] || fuzz=build/release/bin/fuzz_parsers
  echo "soak: $fuzz for $fuzz_seconds s"
  mkdir -p "$dir"
  "$fuzz" --seconds "$fuzz_seconds" --seed "$seed" --keep "$dir"
fi
