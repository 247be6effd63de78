#!/usr/bin/env python3
"""Makes tests/data/rope.json: rotary frequencies as transformers' ROPE_INIT_FUNCTIONS give them, computed in 64 bits.

usage: rope_cases.py TESTS_DATA_FOLDER        (needs: pip install -r requirements.txt)
"""
import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.8},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "attention_factor": 1.25},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024, "truncate": False},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 2048},
]


def main():
    torch.float = torch.float32 = torch.float64  # the functions name their type; nothing else runs here
    cases = []
    for parameters in CASES:
        for theta, head_dim in [(10000.0, 128), (500000.0, 64), (1000000.0, 8)]:
            config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=32768,
                                 rope_parameters={**parameters, "rope_theta": theta})
            frequencies, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
            assert frequencies.dtype == torch.float64
            cases.append({**parameters, "rope_theta": theta, "scale": scale, "frequencies": frequencies.tolist()})
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (Path(sys.argv[1]) / "rope.json").write_text("[\n" + lines + "\n]\n")


main()
