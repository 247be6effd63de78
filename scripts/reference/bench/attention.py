#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention on the CPU with the masks and shapes of the rows attention/... of mmtrain-bench.

GF/s count allowed pairs: 4 D a pair and head forward, 10 D backward. Full and causal attention use the fast paths without a mask;
every other mask is a dense boolean matrix, as a user would have to make it.
"""
import argparse
import re

import torch
import torch.nn.functional as F

import rows


def image(rows_, start=100, length=576):
    """Causal text with one picture that reads itself both ways."""
    mask = torch.ones(rows_, rows_, dtype=torch.bool).tril()
    mask[start:start + length, start:start + length] = True
    return mask


def images(rows_, period=300, length=256):
    """Every 300 rows a picture of 256 that reads itself alone, both ways; the 44 rows of text after it read all before them."""
    mask = torch.ones(rows_, rows_, dtype=torch.bool).tril()
    for start in range(0, rows_, period):
        end = min(start + length, rows_)
        mask[start:end] = False
        mask[start:end, start:end] = True
    return mask


def packed_lengths(lengths, pictures):
    mask = torch.zeros(sum(lengths), sum(lengths), dtype=torch.bool)
    first = 0
    for length in lengths:
        sample = mask[first:first + length, first:first + length]
        sample.copy_(torch.ones(length, length, dtype=torch.bool).tril())
        if pictures:
            sample[2:length // 2, 2:length // 2] = True
        first += length
    return mask


def short_samples(rows_, pictures):
    """Samples of 20 to 100 rows; with pictures, the first half of each but two rows reads itself both ways."""
    lengths, number = [], 1
    while sum(lengths) < rows_:
        lengths.append(min(20 + 37 * number % 81, rows_ - sum(lengths)))
        number += 1
    return packed_lengths(lengths, pictures)


MASKS = {
    "image": image,
    "images": images,
    "packed": lambda rows_: short_samples(rows_, False),
    "packed-images": lambda rows_: short_samples(rows_, True),
    "llava": lambda _: packed_lengths([304, 456, 96, 576, 320, 500, 384, 32], False),
}

# mask, rows, heads, key and value heads, head dimension
CASES = [
    ("full", 1024, 12, 12, 64), ("causal", 1024, 12, 12, 64), ("image", 1024, 12, 12, 64),
    ("full", 4096, 8, 8, 64), ("causal", 4096, 8, 8, 64), ("image", 4096, 8, 8, 64), ("images", 4096, 8, 8, 64),
    ("packed", 4096, 8, 8, 64), ("packed-images", 4096, 8, 8, 64), ("llava", 2668, 12, 4, 64),
    ("full", 729, 16, 16, 72), ("causal", 2048, 8, 8, 72),
    ("full", 4096, 8, 8, 128), ("causal", 4096, 8, 8, 128), ("image", 4096, 8, 8, 128), ("images", 4096, 8, 8, 128),
    ("causal", 4096, 8, 2, 64), ("causal", 2048, 16, 4, 128),
]


def measure(case, dtype, repeats, wanted, as_json):
    kind, length, heads, kv_heads, dim = case
    groups = "" if heads == kv_heads else f"/gqa{heads // kv_heads}"
    name = f"attention/{kind}/T{length}/D{dim}{groups}/{dtype}"
    if not wanted.search(name + "/forward") and not wanted.search(name + "/backward"):
        return
    torch_dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    q = torch.randn(1, heads, length, dim, dtype=torch_dtype, requires_grad=True)
    k, v = (torch.randn(1, kv_heads, length, dim, dtype=torch_dtype, requires_grad=True) for _ in range(2))
    mask = MASKS[kind](length) if kind in MASKS else None
    pairs = {"full": length * length, "causal": length * (length + 1) // 2}.get(kind) or int(mask.sum())

    def forward():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=kind == "causal", enable_gqa=heads != kv_heads)

    out = forward()
    d_out = torch.randn_like(out)
    flops = 4 * heads * dim * pairs / 1e9
    rows.print_rate(name + "/forward", "GF/s", flops, rows.seconds_of(forward, repeats), as_json)
    backward = rows.seconds_of(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True), repeats)
    rows.print_rate(name + "/backward", "GF/s", 2.5 * flops, backward, as_json)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression searched in the rows' names")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    for dtype in ("f32", "bf16"):
        for case in CASES:
            measure(case, dtype, args.repeat, re.compile(args.pattern), args.json)


if __name__ == "__main__":
    main()
