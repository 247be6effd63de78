#!/usr/bin/env python3
"""Training steps of GPT-2 small (124 M parameters, vocabulary 50,304) in PyTorch on the CPU: forward, backward, fused AdamW.

The same work as the rows step/gpt2-124m/... of mmtrain-bench, on random tokens. Prints tokens a second and the peak memory.
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

import rows

VOCABULARY, HIDDEN, LAYERS, HEADS, POSITIONS = 50304, 768, 12, 12, 1024


class Block(nn.Module):
    """Layer norm, causal attention, layer norm, MLP with tanh GELU; both added to what comes in."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.projection = nn.Linear(HIDDEN, HIDDEN)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, HIDDEN // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Learned positions, a head tied to the embedding; returns the mean loss."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(POSITIONS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--dtype", choices=["f32", "bf16", "pure-bf16"], default="f32",
                        help="bf16: autocast with f32 weights; pure-bf16: weights and moments in bf16")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5, help="timed ones, after two that warm up")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Gpt2()
    if args.dtype == "pure-bf16":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    loss_of = torch.compile(model) if args.mode == "compile" else model
    ids, labels = torch.randint(0, VOCABULARY, (2, args.batch, args.length))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = loss_of(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    seconds = rows.seconds_of(step, args.steps, warm_up=2)
    case = f"gpt2-124m/B{args.batch}T{args.length}/{args.dtype}"
    rows.print_rate(f"step/{case}", "tok/s", args.batch * args.length, seconds, args.json)
    rows.print_row(f"memory/{case}", "GB", rows.peak_gb(), rows.peak_gb(), args.json)


if __name__ == "__main__":
    main()
