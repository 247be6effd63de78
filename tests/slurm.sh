#!/usr/bin/env bash
# Runs both job scripts of scripts/slurm on a real Slurm that this script starts: munge, slurmctld and slurmd as plain
# processes of this machine, in a scratch folder, stopped at the end. Each job gets USR1 while it trains, has to save,
# exit 75, be queued again, resume and end well.
#
# usage: tests/slurm.sh MMTRAIN [CONFIG]      (as root; packages: scripts/setup.sh --only slurm)
#   CONFIG  default: a text model of a few thousand weights, made here
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
binary=$(readlink -f "$1")
config=${2:-}
[ -x "$binary" ] || { echo "slurm.sh: $1 is not executable" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "slurm.sh: needs root to start the daemons" >&2; exit 2; }
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" > /dev/null || { echo "slurm.sh: $program is missing: scripts/setup.sh --only slurm" >&2; exit 2; }
done

scratch=$(mktemp -d)
started_munge=false
stop_daemons() {
  local name pid
  for name in slurmd slurmctld munged; do
    [ "$name" != munged ] || $started_munge || continue
    pid=$(cat "$scratch/$name.pid" 2> /dev/null) || continue
    kill "$pid" 2> /dev/null || continue
    for _ in $(seq 50); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2> /dev/null || true
  done
}
finish() {
  local status=$?
  [ -z "${job:-}" ] || scancel "$job" 2> /dev/null || true
  if [ "$status" -ne 0 ]; then
    echo "slurm.sh: failed; logs:" >&2
    tail -n 30 "$scratch"/*.log >&2 || true
  fi
  stop_daemons
  rm -rf "$scratch"
  exit "$status"
}
trap finish EXIT

# munge: one daemon a machine; use the one that runs, else start one with a key of its own where there is none.
if ! munge -n 2> /dev/null | unmunge > /dev/null 2>&1; then
  for folder in /run/munge /var/log/munge /var/lib/munge; do install -d -o munge -g munge -m 0755 "$folder"; done
  if [ ! -e /etc/munge/munge.key ]; then
    install -d -o munge -g munge -m 0700 /etc/munge
    install -o munge -g munge -m 0400 <(head -c 1024 /dev/urandom) /etc/munge/munge.key
  fi
  setpriv --reuid=munge --regid=munge --clear-groups munged --force
  started_munge=true
  for _ in $(seq 50); do munge -n 2> /dev/null | unmunge > /dev/null 2>&1 && break; sleep 0.1; done
  munge -n | unmunge > /dev/null
  cp /run/munge/munged.pid "$scratch/munged.pid"
fi

host=$(hostname -s)
cores=$(nproc)
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
cat > "$scratch/slurm.conf" <<CONF
ClusterName=t
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits as long as its credential lives: not the usual two minutes here.
AuthInfo=cred_expire=5
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=512 State=UNKNOWN
PartitionName=p Nodes=$host Default=YES State=UP OverSubscribe=YES
CONF
mkdir -p "$scratch/state" "$scratch/spool"
export SLURM_CONF=$scratch/slurm.conf
slurmctld -f "$SLURM_CONF" -c
slurmd -f "$SLURM_CONF" -c
for _ in $(seq 100); do
  [ "$(sinfo -h -o %T 2> /dev/null)" = idle ] && break
  sleep 0.1
done
[ "$(sinfo -h -o %T)" = idle ] || { echo "slurm.sh: the node does not come up: $(sinfo -h -o '%T %E')" >&2; exit 1; }

state_of() { scontrol show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1; }
wait_for() { # seconds, what, command...
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$limit" ] || { echo "slurm.sh: timed out: $what" >&2; return 1; }
    sleep 0.2
  done
}
trains() { grep -qi 'step' "$scratch/$1.log" 2> /dev/null; }
restarted() { [ "$(state_of "$1" Restarts)" -ge 1 ]; }
ended() { case $(state_of "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) ;; *) return 1 ;; esac; }

run_form() { # mpirun|srun, scancel options...
  local form=$1 config_file=$config begin=$SECONDS
  shift
  if [ -z "$config_file" ]; then
    python3 "$root/tests/tiny_run.py" "$scratch/$form" --steps 2000 --every 500
    config_file=$scratch/$form/config.yaml
  fi
  job=$(MMTRAIN=$binary MMTRAIN_ROOT=$root sbatch --parsable -n "$((cores < 2 ? cores : 2))" --time=10 --output="$scratch/$form.log" \
    "$root/scripts/slurm/$form.sbatch" "$config_file")
  wait_for 60 "$form: first step" trains "$form"
  scancel --signal=USR1 "$@" "$job"
  wait_for 60 "$form: queued again after USR1" restarted "$job"
  wait_for 400 "$form: end of the second run" ended "$job"
  if [ "$(state_of "$job" JobState)" != COMPLETED ] || [ "$(state_of "$job" Restarts)" != 1 ]; then
    scontrol show job "$job" >&2
    return 1
  fi
  grep -q 'saved; queueing job' "$scratch/$form.log"
  grep -qi 'resum' "$scratch/$form.log" || { echo "slurm.sh: $form: the second run does not say that it resumes" >&2; return 1; }
  echo "slurm.sh: $form: saved at USR1, queued again, resumed, completed ($((SECONDS - begin)) s)"
  job=
}

run_form mpirun --batch
run_form srun
