#!/usr/bin/env python3
"""What no step of GPT-2 small in PyTorch can beat on this machine: its matrix products at their shapes and fused AdamW, alone.

mmtrain-bench finds the same floor with its own library for every step row (its limit).
"""
import argparse

import torch

import rows

HIDDEN, LAYERS, VOCABULARY, PARAMETERS = 768, 12, 50304, 124_475_904
# inputs, outputs, how many of them
PRODUCTS = [(HIDDEN, 3 * HIDDEN, LAYERS), (HIDDEN, HIDDEN, LAYERS), (HIDDEN, 4 * HIDDEN, LAYERS), (4 * HIDDEN, HIDDEN, LAYERS),
            (HIDDEN, VOCABULARY, 1)]


def products(tokens, dtype, repeats):
    """Seconds of forward, input gradient and weight gradient of all products, and their flops."""
    seconds, flops = 0.0, 0
    for inputs, outputs, count in PRODUCTS:
        x, w, dy = (torch.randn(shape).to(dtype) for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs)))
        for call in (lambda: x @ w.t(), lambda: dy @ w, lambda: dy.t() @ x):
            seconds += count * rows.seconds_of(call, repeats, warm_up=2)[0]
        flops += count * 6 * tokens * inputs * outputs
    return seconds, flops


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parameters = torch.randn(PARAMETERS, requires_grad=True)
    parameters.grad = torch.randn_like(parameters)
    update = rows.seconds_of(torch.optim.AdamW([parameters], fused=True).step, args.repeat, warm_up=2)
    rows.print_rate("adamw/124M/f32", "GB/s", 28 * PARAMETERS / 1e9, update, args.json)
    source = torch.ones(PARAMETERS)
    target = torch.empty_like(source)
    rows.print_rate("limit/copy", "GB/s", 8 * PARAMETERS / 1e9, rows.seconds_of(lambda: target.copy_(source), args.repeat), args.json)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        for tokens in (256, 512):
            seconds, flops = products(tokens, dtype, args.repeat)
            rows.print_rate(f"floor/gpt2-124m/M{tokens}/{name}/products", "GF/s", flops / 1e9, [seconds], args.json)
            rows.print_rate(f"floor/gpt2-124m/M{tokens}/{name}", "tok/s", tokens, [seconds + update[0]], args.json)


if __name__ == "__main__":
    main()
