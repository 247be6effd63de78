#!/usr/bin/env python3
"""Training steps of a LLaVA-shaped model (CLIP tower, 2-layer projector, Llama; 151 M parameters) with transformers on the CPU.

The same work as the rows step/llava-151m/... of mmtrain-bench: eight samples, five with a picture of 224 x 224 (256 rows each), answers
of different length, here padded to the longest as usual collators do. Gradients are clipped to norm 1, fused AdamW. Prints real rows
a second and the peak memory.
"""
import argparse

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

import rows

TEXT = [48, 200, 96, 320, 64, 500, 128, 32]  # tokens of each sample; the last half is the answer
PICTURE = [True, True, False, True, True, False, True, False]
PICTURE_ROWS = (224 // 14) ** 2
VOCABULARY, IMAGE_TOKEN, IGNORED = 32000, 31999, -100


def make_model(pattern):
    """`all`: everything trains. `frozen`: the tower does not. `projector`: only the projector does."""
    vision = CLIPVisionConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, image_size=224,
                              patch_size=14)
    text = LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
                       vocab_size=VOCABULARY, max_position_embeddings=4096)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE_TOKEN))
    model.train()
    for name, parameter in model.named_parameters():
        if pattern == "frozen":
            parameter.requires_grad = "vision_tower" not in name
        elif pattern == "projector":
            parameter.requires_grad = "multi_modal_projector" in name
    return model


def make_batch():
    """Padded on the right; the rows of a picture stand before the text of its sample."""
    lengths = [text + (PICTURE_ROWS if picture else 0) for text, picture in zip(TEXT, PICTURE)]
    ids = torch.zeros(len(TEXT), max(lengths), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    mask = torch.zeros_like(ids)
    for i, (text, length) in enumerate(zip(TEXT, lengths)):
        ids[i, :length - text] = IMAGE_TOKEN
        ids[i, length - text:length] = torch.randint(0, IMAGE_TOKEN - 999, (text,))
        labels[i, length - text // 2:length] = ids[i, length - text // 2:length]
        mask[i, :length] = 1
    pixels = torch.randn(sum(PICTURE), 3, 224, 224)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "pixel_values": pixels}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", choices=["all", "frozen", "projector"], default="all", help="what trains")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast with f32 weights")
    parser.add_argument("--steps", type=int, default=3, help="timed ones")
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = make_model(args.pattern)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-4, weight_decay=0.1, fused=True)
    batch = make_batch()

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = rows.seconds_of(step, args.steps, args.warm_up)
    case = f"llava-151m/{args.pattern}/{args.dtype}"
    rows.print_rate(f"step/{case}", "rows/s", int(batch["attention_mask"].sum()), seconds, args.json)
    rows.print_row(f"memory/{case}", "GB", rows.peak_gb(), rows.peak_gb(), args.json)


if __name__ == "__main__":
    main()
