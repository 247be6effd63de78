#!/usr/bin/env python3
"""Goldens of tiny models of each family from PyTorch and transformers: python3 make_goldens.py [DIR]

Made with torch 2.15 and transformers 5.24. Weights and inputs are not stored: both sides compute them from a name and an
index (value()). A golden has the parameter names and shapes of a fresh save_pretrained, the loss (or the sum of output *
probe), and of each gradient its L2 norm and its product with a probe. The models run in float64; transformers computes
norms, softmax and rotary angles in float32, so about seven digits are good.
"""

import os
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
    WhisperConfig,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder


def value(name, count, scale=1.0):
    """count pseudo-random values in (-scale, scale): FNV-1a of the name, then a 32-bit finalizer of each index."""
    h = 2166136261
    for byte in name.encode():
        h = ((h ^ byte) * 16777619) & 0xFFFFFFFF
    x = (np.arange(count, dtype=np.uint64) * 2654435761 + h) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return ((x >> 8).astype(np.float64) / 2.0**23 - 1.0) * scale


def tensor(name, shape, scale=1.0):
    return torch.from_numpy(value(name, int(np.prod(shape)), scale).reshape(shape))


def saved_names(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
            return {k: list(f.get_slice(k).get_shape()) for k in f.keys()}


def prepare(model):
    names = saved_names(model)
    model.double().train()
    for name, p in model.named_parameters():
        name = name.removeprefix("vision_model.")
        assert name in names, name
        norm = name.endswith("norm.weight") or "layer_norm" in name or "layrnorm" in name or "layernorm" in name
        v = tensor(name, p.shape, 0.3)
        p.data = v + 1.0 if norm and name.endswith("weight") else v
    return names


def write(path, model, names, objective):
    objective.backward()
    with open(path, "w") as f:
        for name, shape in sorted(names.items()):
            f.write(f"parameter {name} {' '.join(map(str, shape))}\n")
        f.write(f"objective {objective.item():.12e}\n")
        for name, p in sorted(model.named_parameters()):
            name = name.removeprefix("vision_model.")
            if p.grad is None:
                continue
            g = p.grad.double().flatten()
            probe = tensor("probe " + name, g.shape)
            f.write(f"grad {name} {g.norm().item():.12e} {(g @ probe).item():.12e}\n")
    print(path, objective.item())


def llm(folder, case, kind, config):
    config._attn_implementation = "eager"
    model = kind(config)
    names = prepare(model)
    ids = torch.tensor([[3, 17, 5, 30, 2, 11, 36, 0, 8, 21, 9, 14]])
    supervised = [4, 5, 6, 9, 11]  # places of the labels
    logits = model(input_ids=ids).logits[0]
    loss = sum(torch.nn.functional.cross_entropy(logits[i - 1].double(), ids[0, i]) for i in supervised)
    write(f"{folder}/{case}.txt", model, names, loss)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    text = dict(vocab_size=37, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=64, tie_word_embeddings=False)
    llm(folder, "llama", LlamaForCausalLM, LlamaConfig(**text, num_key_value_heads=1, rms_norm_eps=1e-5))
    rope = dict(rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32)
    llm(folder, "llama3", LlamaForCausalLM,
        LlamaConfig(**text, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters=rope))
    for name, more in [("llama_linear", {}), ("llama_yarn", {"original_max_position_embeddings": 32, "beta_fast": 4.0})]:
        rope = dict(rope_type=name[6:], rope_theta=50.0, factor=4.0, **more)
        llm(folder, name, LlamaForCausalLM,
            LlamaConfig(**text, num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters=rope))
    llm(folder, "qwen2", Qwen2ForCausalLM, Qwen2Config(**text, num_key_value_heads=2, rms_norm_eps=1e-6))
    llm(folder, "qwen3", Qwen3ForCausalLM,
        Qwen3Config(**text, num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-6))
    llm(folder, "mistral", MistralForCausalLM,
        MistralConfig(**text, num_key_value_heads=1, rms_norm_eps=1e-5, sliding_window=3))
    tied = dict(text, tie_word_embeddings=True)
    llm(folder, "qwen2_tied", Qwen2ForCausalLM, Qwen2Config(**tied, num_key_value_heads=2, rms_norm_eps=1e-6))

    tower = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, patch_size=2,
                 image_size=6)
    pixels = tensor("pixels", (2, 3, 6, 6))
    model = CLIPVisionModel(CLIPVisionConfig(**tower, attn_implementation="eager"))
    names = prepare(model)
    out = model(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
    write(f"{folder}/clip.txt", model, names, (out * tensor("probe out", out.shape)).sum())

    model = SiglipVisionModel(SiglipVisionConfig(**tower, vision_use_head=False, attn_implementation="eager"))
    names = prepare(model)
    out = model(pixels).last_hidden_state
    write(f"{folder}/siglip.txt", model, names, (out * tensor("probe out", out.shape)).sum())

    config = WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=40, num_mel_bins=5,
                           max_source_positions=12, dropout=0.0, attn_implementation="eager")
    model = WhisperEncoder(config)
    names = prepare(model)
    out = model(tensor("frames", (2, 5, 24))).last_hidden_state
    write(f"{folder}/whisper.txt", model, names, (out * tensor("probe out", out.shape)).sum())


if __name__ == "__main__":
    main()
