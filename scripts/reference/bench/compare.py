#!/usr/bin/env python3
"""Measures rows of mmtrain-bench and the same work in PyTorch, one after the other, and prints them side by side as a Markdown table.

usage: compare.py gpt2|llava|attention [PATTERN] [--bench PROGRAM] [--threads N] [--repeat N]

PATTERN is searched in the rows' names (step/gpt2-124m/B4T64/bf16, step/llava-151m/frozen/f32, attention/image/T4096/D64/f32/forward).
The last column is ours against the best of PyTorch: a rate above 1, a memory below 1 is better.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = HERE.parents[2] / "build/release/bin/mmtrain-bench"


def rows_of(command, threads):
    """The rows that a program writes as JSON, by name; what it says besides goes through."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, env=environment, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"compare.py: {' '.join(map(str, command))} ended with {result.returncode}")
    return {row["name"]: row for row in map(json.loads, result.stdout.splitlines())}


def peers_of(group, names, repeats):
    """{column: commands of the programs that give its rows}."""
    peers = {}
    for name in names:
        step = re.match(r"step/(?:gpt2-124m/B(\d+)T(\d+)|llava-151m/(\w+))/(f32|bf16)$", name)
        if not step:
            continue
        batch, length, pattern, dtype = step.groups()
        if group == "gpt2":
            for mode in ("eager", "compile"):
                peers.setdefault(f"PyTorch, {mode}", []).append(
                    ["gpt2_step.py", "--mode", mode, "--dtype", dtype, "--batch", batch, "--length", length, "--steps", repeats])
        else:
            peers.setdefault("transformers", []).append(
                ["mllm_step.py", "--pattern", pattern, "--dtype", dtype, "--steps", repeats])
    if group == "attention" and names:
        chosen = "^(" + "|".join(map(re.escape, names)) + ")$"
        peers["PyTorch"] = [["attention.py", chosen, "--repeat", repeats]]
    return peers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=["gpt2", "llava", "attention"])
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--bench", type=Path, default=PROGRAM)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()

    listed = subprocess.run([args.bench, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    prefix = {"gpt2": "(step|memory)/gpt2-124m/", "llava": "(step|memory)/llava-151m/", "attention": "attention/"}[args.group]
    names = [n for n in listed if re.match(prefix, n) and re.search(args.pattern, n) and not re.search("/(tiles|1t)$|/tiles/", n)]
    if not names:
        sys.exit(f"compare.py: no row of {args.group} has a name that {args.pattern!r} is found in")
    ours = rows_of([args.bench, "--json", "--threads", args.threads, "--repeat", args.repeat, "^(" + "|".join(names) + ")$"], args.threads)
    columns = {}
    for column, commands in peers_of(args.group, names, args.repeat).items():
        for command in commands:
            columns.setdefault(column, {}).update(
                rows_of([sys.executable, HERE / command[0], *command[1:], "--json"], args.threads))

    print(f"| row | mmtrain | of its limit | {' | '.join(columns)} | ratio |")
    print("|---|---|---|" + "---|" * (len(columns) + 1))
    for name in names:
        mine = ours.get(name)
        if mine is None:
            continue
        share = "" if mine["share"] is None else f"{100 * mine['share']:.0f} %"
        theirs = [rows[name]["best"] if name in rows else None for rows in columns.values()]
        known = [t for t in theirs if t is not None]
        best = (min if mine["unit"] == "GB" else max)(known, default=None)
        cells = [f"{t:.3g}" if t is not None else "" for t in theirs]
        ratio = f"{mine['best'] / best:.2f}" if best else ""
        print(f"| {name} | {mine['best']:.3g} {mine['unit']} | {share} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
