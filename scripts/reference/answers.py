#!/usr/bin/env python3
"""Whether transformers answers as we do: answers.py CONFIG EXPORTED DATA.jsonl MEDIA_ROOT [--count 64] [--set KEY=VALUE]

CONFIG starts from the weights to compare (`init`), EXPORTED what `mmtrain export` made of it: eyes (CLIP), ears (Whisper, window none),
their projectors, llm. Every token of the held-out answers is predicted by both, given what comes before it; printed are
the answers that both get exactly right and those that they predict alike.
"""
import argparse
import json
import os
import sys

import numpy as np
import torch
import transformers as hf
from transformers.models.whisper.modeling_whisper import WhisperEncoder

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import expect  # noqa: E402


class Exported(expect.Reference):
    """The parts of the quick start's model, each by the class of its family."""

    def __init__(self, folder, media):
        self.folder, self.modules, self.dtype, self.parameters = media, {}, torch.float32, {}
        load = lambda kind, name: kind.from_pretrained(os.path.join(folder, name), dtype=torch.float32,
                                                       attn_implementation="eager").eval()
        self.llm, self.eyes = load(hf.AutoModelForCausalLM, "llm"), load(hf.CLIPVisionModel, "eyes")
        self.ears = load(WhisperEncoder, "ears")
        self.processor = hf.AutoImageProcessor.from_pretrained(os.path.join(folder, "eyes"), backend="pil")
        for name in ("eyes.projector", "ears.projector"):
            for key, t in expect.load_file(os.path.join(folder, name, "model.safetensors")).items():
                self.parameters[f"{name}/{key}"] = t

    def sound(self, path):
        """The clip's own frames alone, whatever the encoder's window is."""
        import soundfile
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        assert rate == 16000, rate
        extractor = hf.WhisperFeatureExtractor(feature_size=self.ears.config.num_mel_bins)
        x = extractor(samples.mean(1), sampling_rate=rate, padding="do_not_pad", return_tensors="pt")["input_features"]
        e = self.ears
        x = torch.nn.functional.gelu(e.conv1(x))
        x = torch.nn.functional.gelu(e.conv2(x)).permute(0, 2, 1)
        x = x + e.embed_positions.weight[: x.shape[1]]
        for layer in e.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x
        return e.layer_norm(x)[0]

    def logits(self, record, ids):
        ids = torch.tensor(ids)
        x = self.llm.get_input_embeddings()(ids)
        tokens = hf.PreTrainedTokenizerFast(tokenizer_file=self.tokenizer)
        for kind, placeholder in (("images", "<|image_pad|>"), ("audios", "<|AUDIO|>")):
            files = record.get(kind) or ([record[kind[:-1]]] if record.get(kind[:-1]) else [])
            if not files:
                continue
            at = ids == tokens.convert_tokens_to_ids(placeholder)
            paths = [os.path.join(self.folder, f) for f in files]
            if kind == "images":
                # The hidden state before post_layernorm: what CLIPVisionModel calls last_hidden_state.
                rows = [self.project("eyes.projector", self.eyes(self.pixels(p)).last_hidden_state[0, 1:]) for p in paths]
            else:
                rows = [self.project("ears.projector", self.sound(p)) for p in paths]
            x[at] = torch.cat(rows)
        return self.llm(inputs_embeds=x[None]).logits[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("exported")
    parser.add_argument("data")
    parser.add_argument("media")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "..", "build", "release", "bin", "mmtrain"))
    args = parser.parse_args()
    with open(args.data, encoding="utf-8") as f:
        records = [json.loads(line) for line in f][: args.count]
    settings = dict(s.split("=", 1) for s in args.set)
    settings |= {"data.sets": f"[{{path: {os.path.abspath(args.data)}, format: messages, media_root: {os.path.abspath(args.media)}}}]",
                 "data.shuffle": "false", "train.global_batch_size": str(len(records)), "train.steps": "1",
                 "learning_rate.warmup_steps": "0"}
    ours = expect.dump(args.binary, args.config, "fp32", settings)
    model = Exported(args.exported, args.media)
    model.tokenizer = os.path.join(args.exported, "llm", "tokenizer.json")
    same = right = total = 0
    worst = 0.0
    with torch.no_grad():
        for place, s in ours["samples"].items():
            theirs = model.logits(records[place], s["ids"]).numpy()
            worst = max(worst, np.linalg.norm(s["logits"] - theirs) / np.linalg.norm(theirs))
            wanted = [(i - 1, label) for i, label in enumerate(s["labels"]) if label != -100]
            a = [int(s["logits"][i].argmax()) for i, _ in wanted]
            b = [int(theirs[i].argmax()) for i, _ in wanted]
            total += 1
            same += a == b
            right += b == [label for _, label in wanted]
    print(f"{total} answers: {same} alike, {right} right by transformers; largest relative error of logits {worst:.1e}")
    sys.exit(0 if same == total else 1)


if __name__ == "__main__":
    main()
