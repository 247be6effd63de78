#!/usr/bin/env bash
# Installs what is missing, builds preset `release` and runs its tests. At most 12 minutes from nothing, 5 with a build.
#
# usage: scripts/test.sh [ctest options, e.g. -R data]
# Environment: MMTRAIN_JOBS (default: the cores), MMTRAIN_SETUP=skip (the libraries come from elsewhere)
set -euo pipefail
cd "$(dirname "$0")/.."

begin=$SECONDS
jobs=${MMTRAIN_JOBS:-$(nproc)}
if command -v ccache > /dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache} CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
fi
[ "${MMTRAIN_SETUP:-}" = skip ] || scripts/setup.sh --only build --only tests
echo "test: $((SECONDS - begin)) s: packages"

mark=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset release > "$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset release -j "$jobs"
echo "test: $((SECONDS - mark)) s: configure and build"

# Open MPI refuses root and more ranks than cores by default, and polls; the tests start such jobs.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive
mark=$SECONDS
status=0
ctest --preset release -LE 'slow|isa' -j "$jobs" "$@" || status=$?
echo "test: $((SECONDS - mark)) s: tests"
echo "test: $((SECONDS - begin)) s in all"
exit "$status"
