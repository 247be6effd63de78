#!/usr/bin/env bash
# usage: run.sh PROGRAM RANKS CASE   Runs the MPI test program and checks exit code, message and time.
set -u
program=$1 ranks=$2 case=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
launch() { timeout -k 5 120 mpirun --oversubscribe --bind-to none -np "$ranks" "$program" "$@" 2>&1; }
fail() { printf '%s\n--- output ---\n%s\n' "$1" "$out"; exit 1; }
expect() { # exit code, text that appears exactly once, most seconds
  [ "$code" -eq "$1" ] || fail "exit code $code, expected $1"
  [ "$(grep -cF -- "$2" <<<"$out")" -eq 1 ] || fail "expected once: $2"
  [ "$SECONDS" -le "$3" ] || fail "took $SECONDS s, more than $3"
}

SECONDS=0
case $case in
  all) out=$(launch all); code=$?; expect 0 "passed: $ranks ranks on 1 node, through shared memory" 100 ;;
  nodes) out=$(MMTRAIN_NODES=2 launch all); code=$?
    expect 0 "passed: $ranks ranks on 2 nodes, through shared memory within a node and MPI between nodes" 100 ;;
  messages) out=$(MMTRAIN_SHARED_MEMORY=off launch all); code=$?
    expect 0 "through MPI messages, which is slow within a node, since MMTRAIN_SHARED_MEMORY=off" 100 ;;
  small_memory) out=$(MMTRAIN_SHARED_MEMORY=24 launch all); code=$?
    expect 0 "passed: $ranks ranks on 1 node, through shared memory" 100 ;;
  config) out=$(launch config); code=$?; expect 2 "llm.hidden: 0 is out of range" 15 ;;
  config_nodes) out=$(MMTRAIN_NODES=2 launch config); code=$?; expect 2 "llm.hidden: 0 is out of range" 15 ;;
  die) out=$(launch die); code=$?; expect 137 "exited on signal 9" 15 ;;
  hang) out=$(MMTRAIN_COMM_TIMEOUT=2 launch hang); code=$?
    expect 5 "call number 1, barrier, for rank $((ranks - 1))" 15 ;;
  wrong_launcher) out=$(PMI_SIZE=4 "$program" all 2>&1); code=$?; expect 2 "PMI_SIZE=4, but MPI sees one rank" 15 ;;
  dead_without_launcher) # a launcher that does not notice: the ranks find out themselves
    out=$(timeout -k 5 120 mpirun --oversubscribe --bind-to none --mca orte_abort_on_non_zero_status 0 \
      --enable-recovery -np "$ranks" "$program" die 2>&1)
    grep -q "rank $((ranks - 1)) (process [0-9]* on .*) has died" <<<"$out" || fail "no message about the dead rank"
    [ "$SECONDS" -le 30 ] || fail "took $SECONDS s" ;;
  *) echo "unknown case $case"; exit 1 ;;
esac
