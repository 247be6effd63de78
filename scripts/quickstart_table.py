#!/usr/bin/env python3
"""The quick start's result as a table: quickstart_table.py EVAL.json (what `mmtrain eval --json` wrote).

Exit code 1 when a mark is missed. Marks are on whole answers under greedy decoding."""
import json
import sys

# set, what it is, mark: at least (>=) or below (<) so many percent of exact answers, or none
ROWS = [
    ("pictures", "10,000 held-out pictures", ">=", 80),
    ("speech", "spoken numbers, perturbed anew", ">=", 95),
    ("both", "a held-out picture and a spoken number", ">=", 70),
    ("pictures_swapped_pictures", "control: pictures exchanged", "<", 15),
    ("speech_swapped_sounds", "control: sounds exchanged", "<", 15),
    ("both_swapped_pictures", "control: both, pictures exchanged", "<", 15),
    ("both_swapped_sounds", "control: both, sounds exchanged", "<", 15),
    ("words", "other spoken words", "", 0),
    ("phrases", "phrases kept out of training", "", 0),
    ("compounds", "compound numbers kept out of training", "", 0),
    ("text", "text alone", "", 0),
]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    sets = {row["name"]: row for row in result["sets"]}
    missed = []
    print(f"{'':42} {'samples':>8} {'exact answers':>14}   mark")
    for name, what, side, mark in ROWS:
        if name not in sets:
            continue
        percent = 100 * sets[name]["answer_accuracy"]
        good = not side or (percent >= mark if side == ">=" else percent < mark)
        if not good:
            missed.append(name)
        wanted = f"{side} {mark} %{'' if good else '   MISSED'}" if side else "-"
        print(f"{what:42} {sets[name]['samples']:>8} {percent:>13.1f}%   {wanted}")
    if missed:
        print("missed: " + ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
