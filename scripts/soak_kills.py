#!/usr/bin/env python3
"""Trains twice, once undisturbed and once killed at random moments, and compares every step's loss bit for bit.

Used by soak.sh. Prints how often each kind of kill was used and what the job's exit codes were. A killed run that loses a
step, repeats one with another loss, hangs or ends elsewhere is a failure.
"""
import argparse
import collections
import glob
import json
import os
import random
import signal
import subprocess
import sys
import time

HANG_SECONDS = 120


def losses(folder):
    """{step: last loss logged}, as the text of the log has it."""
    found = {}
    for path in glob.glob(os.path.join(folder, "**", "*.jsonl"), recursive=True):
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # a line cut by a kill
                if isinstance(row, dict) and "step" in row and "loss" in row:
                    found[row["step"]] = row["loss"]
    return found


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def start(args, folder):
    command = [args.launcher, "-n", str(args.ranks), "-t", "1", "--mmtrain", args.mmtrain, "train", args.config, "--set",
               f"run.output_dir={folder}"]
    log = open(os.path.join(args.dir, os.path.basename(folder) + ".log"), "ab")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def interrupt(job, kind):
    """Sends the signal; returns whether there was somebody to hit."""
    target = job.pid
    if kind == "rank":
        ranks = children(job.pid)
        if not ranks:
            return False
        target = random.choice(ranks)
    try:
        os.kill(target, signal.SIGUSR1 if kind == "usr1" else signal.SIGKILL)
    except OSError:
        return False
    return True


def wait_or_fail(job, what, again):
    """The exit code. USR1 is sent again now and then: mpirun has nobody to hand it to before the ranks run."""
    limit = time.monotonic() + HANG_SECONDS
    while True:
        try:
            return job.wait(5 if again else HANG_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > limit:
                job.kill()
                sys.exit(f"soak: the job hangs {HANG_SECONDS} s after {what}")
            if again:
                job.send_signal(signal.SIGUSR1)


def wait_for_orphans(pids):
    """After mpirun's death its ranks have to end by themselves."""
    limit = time.monotonic() + HANG_SECONDS
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        if time.monotonic() > limit:
            sys.exit(f"soak: ranks {pids} outlive mpirun by {HANG_SECONDS} s")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("launcher", "mmtrain", "config", "dir"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("kills", "ranks", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    random.seed(args.seed)
    root = os.path.abspath(args.dir)

    begin = time.monotonic()
    straight = start(args, os.path.join(root, "straight"))
    if straight.wait() != 0:
        sys.exit(f"soak: the undisturbed run failed: see {root}/straight.log")
    whole = time.monotonic() - begin
    expected = losses(os.path.join(root, "straight"))
    if not expected:
        sys.exit("soak: the undisturbed run logged no losses")
    print(f"soak: undisturbed: {len(expected)} steps in {whole:.0f} s", flush=True)

    counts, codes, done, runs, since = collections.Counter(), collections.Counter(), 0, 0, time.monotonic()
    while done < args.kills:  # a run may end before all kills were used: then another one
        runs += 1
        folder = os.path.join(root, f"killed-{runs}")
        while True:
            job = start(args, folder)
            if done < args.kills:
                time.sleep(random.uniform(0.0, 1.0 + 2 * whole / args.kills))  # from the start-up to some saves later
                kind = random.choice(("mpirun", "rank", "usr1"))
                ranks = children(job.pid)
                if job.poll() is None and interrupt(job, kind):
                    done += 1
                    counts[kind] += 1
                    codes[kind, wait_or_fail(job, f"kill {done} ({kind})", kind == "usr1")] += 1
                    if kind == "mpirun":
                        wait_for_orphans(ranks)
                    continue
            if job.wait() != 0:
                sys.exit(f"soak: the run failed with {job.returncode} without a kill: see {folder}.log")
            break
        got = losses(folder)
        wrong = [step for step in expected if got.get(step) != expected[step]]
        if wrong or set(got) != set(expected):
            sys.exit(f"soak: run {runs}: {len(wrong)} of {len(expected)} steps differ, first at step {min(wrong, default='?')}")
    print(f"soak: {done} kills over {runs} runs in {time.monotonic() - since:.0f} s: {dict(counts)}; exit codes "
          f"{ {f'{kind} {code}': n for (kind, code), n in sorted(codes.items())} }; all losses are those of the undisturbed run")


if __name__ == "__main__":
    main()
