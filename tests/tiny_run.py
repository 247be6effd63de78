#!/usr/bin/env python3
"""Makes a text data set, a tokenizer and a config that trains a model of a few thousand weights: for tests of job scripts.

usage: tiny_run.py FOLDER [--steps N] [--every N]     writes FOLDER/{config.yaml,text.json,tokenizer.json}
"""
import argparse
import collections
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import learn_tokenizer  # noqa: E402

WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
CONFIG = """\
run:
  output_dir: run
  device: cpu
modules:
  llm:
    role: llm
    kind: llama
    hidden: 32
    layers: 2
    heads: 2
train:
  steps: {steps}
  global_batch_size: 8
  tokens_per_microbatch: 512
optimizer:
  kind: adamw
  lr: 1e-3
data:
  sets:
    - path: text.json
      format: llava
  template: chatml
  tokenizer: tokenizer.json
  max_sequence: 128
checkpoint:
  every_steps: {every}
  keep_last: 2
resume: auto
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    samples = [{"id": f"{a}-{b}", "conversations": [
        {"from": "human", "value": f"what comes {side} {a}?"}, {"from": "gpt", "value": b}]}
        for one, next_one in zip(WORDS, WORDS[1:]) for side, a, b in (("after", one, next_one), ("before", next_one, one))]
    with open(os.path.join(args.folder, "text.json"), "w", encoding="utf-8") as file:
        json.dump(samples, file)
    texts = collections.Counter(turn["value"] for sample in samples for turn in sample["conversations"])
    learn_tokenizer.write(os.path.join(args.folder, "tokenizer.json"), learn_tokenizer.learn(texts, 32))
    with open(os.path.join(args.folder, "config.yaml"), "w", encoding="utf-8") as file:
        file.write(CONFIG.format(steps=args.steps, every=args.every))


if __name__ == "__main__":
    main()
