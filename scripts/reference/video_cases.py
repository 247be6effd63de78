#!/usr/bin/env python3
"""Which frames transformers samples: video_cases.py > tests/data/media/frame_samples.txt

A line a case: frames, frames a second, wanted fps, min_frames, max_frames, frames a patch, how many are taken, FNV-1a of
their indices. The function is that of Qwen2VLVideoProcessor, run without the rest of the class (which needs torchvision).
"""
import ast
import math
import random
import types
from pathlib import Path

import torch
import transformers

SOURCE = Path(transformers.__file__).parent / "models" / "qwen2_vl" / "video_processing_qwen2_vl.py"


def sample_frames():
    tree = ast.parse(SOURCE.read_text())
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "sample_frames")
    found.args = ast.parse("def f(self, metadata, temporal_patch_size=None, min_frames=None, max_frames=None, "
                           "num_frames=None, fps=None, **kwargs): pass").body[0].args
    space = {"math": math, "torch": torch}
    exec(compile(ast.fix_missing_locations(ast.Module([found], [])), str(SOURCE), "exec"), space)
    return space["sample_frames"]


def main():
    sample, r = sample_frames(), random.Random(5)
    this = types.SimpleNamespace(num_frames=None, fps=None, temporal_patch_size=2, min_frames=4, max_frames=768)
    for i in range(400):
        step = r.choice([1, 2, 2, 2, 4])
        total = r.choice([step, step + 1, r.randint(step, 40), r.randint(step, 2000), r.randint(step, 10000)])
        rate = r.choice([25.0, 30.0, 24.0, 10.0, 1.0, 7.5, 12.5, 0.25])
        fps = r.choice([2.0, 2.0, 1.0, 0.5, 4.0, 30.0])
        low, high = r.choice([(4, 768), (4, 768), (1, 16), (8, 32), (2, 7)])
        try:
            metadata = types.SimpleNamespace(total_num_frames=total, fps=rate)
            taken = sample(this, metadata, step, low, high, None, fps).tolist()
        except ZeroDivisionError:  # fewer frames than a patch spans: ours takes those
            continue
        if taken[-1] >= total:  # rounding gave arange one index too many: transformers fails, ours takes the others
            continue
        h = 0xCBF29CE484222325
        for index in taken:
            h = ((h ^ index) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        print(total, rate, fps, low, high, step, len(taken), f"{h:016x}")


if __name__ == "__main__":
    main()
