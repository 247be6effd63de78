#!/usr/bin/env python3
"""Goldens of Qwen2-VL from transformers: python3 make_qwen2_vl.py [DIR]

qwen2_vl_tower.txt: the tower with its merger on a picture of 4 x 6 patches and a film of 2 x (2 x 4), sum of output * probe.
qwen2_vl.txt: the whole model on a sample of text, two pictures and text: the positions of every row, and the loss.
qwen2_vl_positions.txt: the positions of every row of samples with videos, by get_rope_index. A line a sample: its runs, as
t<rows>, i<frames>x<height>x<width> and v<...> in rows that leave the tower, then frame, row and column of each row.
Otherwise as make_goldens.py. --positions-only makes the last alone.
"""

import os
import sys

import torch
from make_goldens import saved_names, tensor, write
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

IMAGE, VIDEO, START, END = 40, 41, 42, 43
VISION = dict(depth=2, embed_dim=32, hidden_size=24, num_heads=2, mlp_ratio=4, in_channels=3, patch_size=2,
              spatial_merge_size=2, temporal_patch_size=2)


def prepare(model, on_disk):
    """Sets every parameter by its name on disk, as make_goldens does."""
    names = saved_names(model)
    model.double().train()
    for name, p in model.named_parameters():
        name = on_disk(name)
        assert name in names, name
        norm = "norm" in name or "ln_q" in name
        v = tensor(name, p.shape, 0.3)
        p.data = v + 1.0 if norm and name.endswith("weight") else v
    return names


class Renamed:
    """A model whose parameters go by their names on disk."""

    def __init__(self, model, on_disk):
        self.model, self.on_disk = model, on_disk

    def named_parameters(self):
        return [(self.on_disk(n), p) for n, p in self.model.named_parameters()]


SAMPLES = [[3, (1, 1, 2, 3), 2], [2, (2, 3, 2, 2), 4], [1, (2, 1, 1, 1), 1, (2, 2, 3, 1), 5],
           [4, (2, 5, 1, 2), 2, (1, 1, 4, 2), 1, (2, 2, 2, 4), 3], [2, (2, 9, 1, 1), 1, (1, 1, 1, 1), 2]]


def write_positions(folder):
    """Runs: rows of text, or (1 picture / 2 video, frames, height, width)."""
    text = dict(vocab_size=44, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=1, rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3]))
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=dict(VISION, hidden_size=32)))
    with open(f"{folder}/qwen2_vl_positions.txt", "w") as f:
        for runs in SAMPLES:
            kinds, words, grids = [], [], {1: [], 2: []}
            for run in runs:
                kind, frames, height, width = run if isinstance(run, tuple) else (0, run, 1, 1)
                kinds += [kind] * (frames * height * width)
                words.append(f"t{run}" if kind == 0 else f"{' iv'[kind]}{frames}x{height}x{width}")
                if kind:
                    grids[kind].append([frames, 2 * height, 2 * width])
            kinds = torch.tensor([kinds])
            grid = {k: torch.tensor(g) if g else None for k, g in grids.items()}
            positions = model.model.get_rope_index(torch.zeros_like(kinds), mm_token_type_ids=kinds, image_grid_thw=grid[1],
                                                   video_grid_thw=grid[2])[0][:, 0]
            f.write(" ".join(words) + " : " + " ".join(map(str, positions.T.flatten().tolist())) + "\n")


def main():
    arguments = [a for a in sys.argv[1:] if a != "--positions-only"]
    folder = arguments[0] if arguments else os.path.dirname(os.path.abspath(__file__))
    write_positions(folder)
    if "--positions-only" in sys.argv:
        return
    model = Qwen2VisionTransformerPretrainedModel(Qwen2VLVisionConfig(**VISION, attn_implementation="eager"))
    names = prepare(model, lambda n: n)
    grids = torch.tensor([[1, 4, 6], [2, 2, 4]])
    out = model(tensor("pixels", (int(grids.prod(1).sum()), 24)), grid_thw=grids)
    out = out if torch.is_tensor(out) else out.pooler_output
    write(f"{folder}/qwen2_vl_tower.txt", model, names, (out * tensor("probe out", out.shape)).sum())

    text = dict(vocab_size=44, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3]))
    config = Qwen2VLConfig(text_config=text, vision_config=dict(VISION, hidden_size=32), image_token_id=IMAGE,
                           video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END,
                           tie_word_embeddings=False, attn_implementation="eager")
    model = Qwen2VLForConditionalGeneration(config)
    on_disk = lambda n: n.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
    names = prepare(model, on_disk)
    grids = torch.tensor([[1, 4, 6], [1, 2, 4]])
    ids = [3, START] + [IMAGE] * 6 + [END, 17, 5, START] + [IMAGE] * 2 + [END, 30, 2, 11, 36, 8]
    supervised = [16, 17, 19]  # places of the labels
    ids = torch.tensor([ids])
    kinds = (ids == IMAGE).int()
    positions = model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)[0][:, 0]
    logits = model(input_ids=ids, pixel_values=tensor("pixels", (int(grids.prod(1).sum()), 24)),
                   image_grid_thw=grids, mm_token_type_ids=kinds, attention_mask=torch.ones_like(ids)).logits[0]
    loss = sum(torch.nn.functional.cross_entropy(logits[i - 1].double(), ids[0, i]) for i in supervised)
    path = f"{folder}/qwen2_vl.txt"
    write(path, Renamed(model, on_disk), names, loss)
    with open(path, "a") as f:
        for row in positions.T.tolist():
            f.write(f"position {' '.join(map(str, row))}\n")


if __name__ == "__main__":
    main()
