#!/usr/bin/env bash
# From nothing to a trained model that answers questions about pictures and speech, on the CPUs of this machine:
# installs, builds, prepares real data from Debian packages, trains under mpirun, evaluates, shows where everything lies.
#
# usage: scripts/quickstart.sh [--dir DIR] [-n RANKS] [--packages FOLDER] [--train-only] [-- mmtrain train options, e.g. --set train.steps=100]
#   --dir DIR     where data and run go (default: runs/quickstart, which git ignores); about 700 MB
#   -n RANKS      default: the cores, at least 2, at most 4; one thread each
#   --packages F  where the data packages were unpacked, if they are not installed
#   --train-only  leave the evaluation out
# About 8 minutes of training on 2 cores. Run it again after an interruption, of whatever kind: it goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

dir=runs/quickstart
cores=$(nproc)
ranks=$((cores < 2 ? 2 : cores > 4 ? 4 : cores))
evaluate=true
data_options=()
while [ $# -gt 0 ]; do
  case $1 in
    --dir) dir=${2:?--dir wants a folder}; shift 2 ;;
    -n) ranks=${2:?-n wants a number}; shift 2 ;;
    --packages) data_options=(--packages "${2:?--packages wants a folder}"); shift 2 ;;
    --train-only) evaluate=false; shift ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    *) echo "quickstart.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
done

begin=$SECONDS
say() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - begin)); }

say "packages"
[ "${MMTRAIN_SETUP:-}" = skip ] || scripts/setup.sh

say "build"
if command -v ccache > /dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache} CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
fi
mkdir -p build/release
cmake --preset release > build/release/configure.log 2>&1 || { cat build/release/configure.log; exit 1; }
cmake --build --preset release -j "${MMTRAIN_JOBS:-$cores}" --target mmtrain
mmtrain=$root/build/release/bin/mmtrain

say "data"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
python3 scripts/quickstart_data.py "$dir/data" "${data_options[@]}"

# The configs' paths are relative to their own folder and name runs/quickstart; for another folder they are copied there.
config=configs/quickstart.yaml
eval_config=configs/quickstart_eval.yaml
if [ "$dir" != "$root/runs/quickstart" ]; then
  for file in "$config" "$eval_config"; do
    sed 's|\.\./runs/quickstart/||' "$file" > "$dir/$(basename "$file")"
  done
  config=$dir/quickstart.yaml
  eval_config=$dir/quickstart_eval.yaml
fi

say "index: rows and tokens of every sample"
"$mmtrain" index "$config"

say "training on $ranks ranks"
status=0
scripts/mmtrain-launch -n "$ranks" -t 1 --mmtrain "$mmtrain" train "$config" "$@" || status=$?
if [ "$status" -eq 75 ]; then
  echo "quickstart: stopped after saving; run the same command again to go on"
fi
[ "$status" -eq 0 ] || exit "$status"

marks=0
if $evaluate; then
  say "evaluation: everything that was held out, and the controls"
  scripts/mmtrain-launch -n "$ranks" -t 1 --mmtrain "$mmtrain" eval "$eval_config" --json > "$dir/eval.json"
  python3 scripts/quickstart_table.py "$dir/eval.json" || marks=$?
fi

say "done"
cat <<TEXT
data         $dir/data            pictures, sounds, questions; MANIFEST.json says what
run          $dir/run             log, metrics, TensorBoard events, checkpoints
evaluation   $dir/eval.json
ask it       build/release/bin/mmtrain generate $config --image $dir/data/pictures/test/00000.png --prompt "what is this?"
inspect it   build/release/bin/mmtrain inspect $config
TEXT
exit "$marks" # 1: a mark was missed
