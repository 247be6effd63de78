#!/usr/bin/env python3
"""What PyTorch computes with the cases of families.py, beside what we do: expect.py FOLDER [--binary mmtrain] [CASE...]

For each case FOLDER/<case>.yaml is dumped (`mmtrain dump --logits`); transformers loads the same folders, gets the ids
of the dump and prepares pictures and sounds itself, from the same files. Loss, logits and every gradient are compared
tensor by tensor, in fp32, and in bf16 with PyTorch's own bf16 error. Then both make three steps (torch.optim.AdamW);
losses are compared, and what `mmtrain export` writes afterwards is loaded by transformers and must give the logits of
our checkpoint. --write makes FOLDER/<case>.json of PyTorch's numbers, which the tests compare with: norms, products
with a probe, bf16 errors, losses.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import wave

import h5py
import numpy as np
import torch
from PIL import Image
import transformers as hf
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "data", "models"))
from make_goldens import value  # noqa: E402

TRAIN = {"lr": 3e-3, "weight_decay": 0.1}
TOLERANCE = 1e-4  # of a tensor's norm: fp32 sums in other orders, through two layers and back
MODULES = {  # by case: what the YAML file says
    "llama3": {"llm": "llama3"}, "mistral": {"llm": "mistral"}, "qwen2": {"llm": "qwen2"}, "qwen3": {"llm": "qwen3"},
    "llava_clip": {"whole": "llava_clip"}, "llava_siglip": {"whole": "llava_siglip"},
    "llava_next": {"whole": "llava_next"}, "qwen2_vl": {"whole": "qwen2_vl"}, "qwen2_vl_video": {"whole": "qwen2_vl"},
    "qwen2_audio": {"whole": "qwen2_audio"},
    "composed_audio": {"ears": "qwen2_audio_tower", "llm": "llama3", "ears.projector": "projector_ears"},
    "composed": {"eyes": "siglip", "ears": "whisper", "llm": "qwen3", "eyes.projector": "projector_eyes",
                 "ears.projector": "projector_ears"},
}


def probe(name, count):
    return value("probe " + name, count)


class Reference:
    """One case in PyTorch."""

    def __init__(self, folder, modules, dtype):
        """`modules`: folders by module, relative to `folder`, which has the media."""
        self.folder, self.modules, self.dtype = folder, modules, dtype
        load = lambda kind, name: kind.from_pretrained(os.path.join(folder, name), dtype=dtype,
                                                       attn_implementation="eager").train()
        self.parameters = {}
        of = lambda name: hf.AutoConfig.from_pretrained(os.path.join(folder, self.modules[name])).model_type
        whole = of("whole") if "whole" in self.modules else ""
        self.qwen2_vl, self.qwen2_audio = whole == "qwen2_vl", whole == "qwen2_audio"
        if self.qwen2_audio:
            self.whole = load(hf.Qwen2AudioForConditionalGeneration, self.modules["whole"])
            self.listen(self.modules["whole"])
            self.whole.model.audio_tower.embed_positions.requires_grad_(False)
            for name, p in self.whole.named_parameters():
                self.parameters[self.our_name(name).replace("eyes", "ears", 1)] = p
            return
        if whole:
            self.whole = load(hf.AutoModelForImageTextToText, self.modules["whole"])
            self.processor = hf.AutoImageProcessor.from_pretrained(os.path.join(folder, self.modules["whole"]),
                                                                   backend="pil")
            for name, p in self.whole.named_parameters():
                self.parameters[self.our_name(name)] = p
            return
        self.llm = load(hf.AutoModelForCausalLM, self.modules["llm"])
        self.add("llm", self.llm)
        if "eyes" in self.modules:
            self.eyes = load(hf.SiglipVisionModel, self.modules["eyes"])
            self.processor = hf.AutoImageProcessor.from_pretrained(os.path.join(folder, self.modules["eyes"]),
                                                                   backend="pil")
            self.add("eyes", self.eyes)
        if "ears" in self.modules:
            self.pools = of("ears") == "qwen2_audio_encoder"
            if self.pools:
                self.ears = load(hf.Qwen2AudioEncoder, self.modules["ears"])
                self.listen(self.modules["ears"])
            else:
                self.ears = load(hf.WhisperModel, self.modules["ears"]).encoder
            self.ears.embed_positions.requires_grad_(False)  # sinusoids: frozen in Whisper and here
            self.add("ears", self.ears)
        for name in ("eyes.projector", "ears.projector"):
            if name not in self.modules:
                continue
            tensors = load_file(os.path.join(folder, self.modules[name], "model.safetensors"))
            for key, t in tensors.items():
                self.parameters[f"{name}/{key}"] = torch.nn.Parameter(t.to(dtype))

    @staticmethod
    def our_name(name):
        if name.startswith("model.language_model."):
            return "llm/model." + name[len("model.language_model."):]
        if name.startswith("model.vision_tower."):
            return "eyes/" + name[len("model.vision_tower."):].removeprefix("vision_model.")
        if name == "model.image_newline":
            return "eyes.projector/image_newline"
        if name.startswith("model.audio_tower."):
            return "eyes/" + name[len("model.audio_tower."):]
        if name.startswith("model.multi_modal_projector."):
            return "eyes.projector/" + name[len("model.multi_modal_projector."):]
        if name.startswith("model.visual.merger."):
            return "eyes.projector/" + name[len("model.visual.merger."):]
        if name.startswith("model.visual."):
            return "eyes/" + name[len("model.visual."):]
        return "llm/" + name

    def add(self, module, model):
        for name, p in model.named_parameters():
            self.parameters[f"{module}/{name.removeprefix('vision_model.')}"] = p

    def pixels(self, path):
        with Image.open(path) as image:
            return self.processor(images=image.convert("RGB"), return_tensors="pt")["pixel_values"].to(self.dtype)

    def video(self, path):
        """Patches and grid of a video, each frame through transformers' picture processor (a still picture is both
        frames of a patch: here they are those of two). Every frame of these files is taken."""
        names = path
        if isinstance(path, str) and os.path.isdir(os.path.join(self.folder, path)):
            numbers = lambda name: int("".join(c for c in name if c.isdigit()))
            names = [os.path.join(path, name) for name in sorted(os.listdir(os.path.join(self.folder, path)), key=numbers)]
        frames = []
        for name in [names] if isinstance(names, str) else names:
            with Image.open(os.path.join(self.folder, name)) as image:
                for i in range(getattr(image, "n_frames", 1)):
                    image.seek(i)
                    frames.append(image.convert("RGB"))
        if len(frames) > 4:  # fps 2 of the 4 that it has
            assert len(frames) == 8
            frames = frames[::2]
        with open(os.path.join(self.folder, self.modules["whole"], "video_preprocessor_config.json"), encoding="utf-8") as f:
            size = json.load(f)["size"]
        rows = [self.processor(images=frame, size=size, return_tensors="pt") for frame in frames]
        grid = rows[0]["image_grid_thw"].clone()
        planes = [r["pixel_values"].reshape(len(r["pixel_values"]), 3, 2, -1)[:, :, :1] for r in rows]
        if len(planes) % 2:
            planes.append(planes[-1])
        grid[0, 0] = len(planes) // 2
        pairs = [torch.cat(planes[i:i + 2], 2).reshape(len(planes[i]), -1) for i in range(0, len(planes), 2)]
        self.check_video(frames, torch.cat(pairs), grid)
        return torch.cat(pairs), grid

    def check_video(self, frames, rows, grid):
        """Where torchvision is installed: the same from transformers' video processor, whose resize is torchvision's
        (one level of 255 apart from Pillow's at most)."""
        if importlib.util.find_spec("torchvision") is None:
            return
        folder = os.path.join(self.folder, self.modules["whole"])
        theirs = hf.AutoVideoProcessor.from_pretrained(folder, cap_pixels_per_frame=False)(
            videos=[torch.from_numpy(np.stack([np.asarray(f) for f in frames])).permute(0, 3, 1, 2)],
            do_sample_frames=False, return_tensors="pt")
        assert theirs["video_grid_thw"].tolist() == grid.tolist()
        levels = (theirs["pixel_values_videos"] - rows).abs().max().item() * 255 * max(self.processor.image_std)
        assert levels < 1.1, levels

    def listen(self, name):
        self.extractor = hf.AutoFeatureExtractor.from_pretrained(os.path.join(self.folder, name))

    @staticmethod
    def samples(path):
        with wave.open(path) as f:
            return np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768

    def windows(self, paths):
        """The clips, cut into windows, as Qwen2-Audio's processor has them."""
        size = self.extractor.n_samples
        clips = [s[at:at + size] for s in map(self.samples, paths) for at in range(0, len(s), size)]
        out = self.extractor(clips, sampling_rate=16000, padding="max_length", return_attention_mask=True,
                             return_tensors="pt")
        return {"input_features": out["input_features"].to(self.dtype), "feature_attention_mask": out["attention_mask"]}

    def pooled(self, paths):
        """Rows of Qwen2-Audio's encoder alone, masked by hand."""
        media, rows = self.windows(paths), []
        for features, mask in zip(media["input_features"], media["feature_attention_mask"]):
            keys = (int(mask.sum()) - 1) // 2 + 1
            seen = torch.full((1, 1, 1, features.shape[1] // 2), torch.finfo(self.dtype).min, dtype=self.dtype)
            seen[..., :keys] = 0
            rows.append(self.ears(features[None], attention_mask=seen).last_hidden_state[0, :(keys - 2) // 2 + 1])
        return torch.cat(rows)

    def frames(self, path):
        samples = self.samples(path)
        extractor = hf.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
        return extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"].to(self.dtype)

    def project(self, name, x):
        p = self.parameters
        if f"{name}/linear.weight" in p:
            return torch.nn.functional.linear(x, p[f"{name}/linear.weight"], p[f"{name}/linear.bias"])
        x = torch.nn.functional.linear(x, p[f"{name}/linear_1.weight"], p[f"{name}/linear_1.bias"])
        return torch.nn.functional.linear(torch.nn.functional.gelu(x), p[f"{name}/linear_2.weight"],
                                          p[f"{name}/linear_2.bias"])

    def logits(self, record, ids):
        ids = torch.tensor(ids)[None]
        if "whole" in self.modules and self.whole.config.model_type == "llava_next":
            return self.tiled_logits(record, ids)
        picture = record.get("image") and os.path.join(self.folder, record["image"])
        sounds = record.get("audio", [])
        sounds = [os.path.join(self.folder, s) for s in ([sounds] if isinstance(sounds, str) else sounds)]
        if self.qwen2_audio:
            media = self.windows(sounds) if sounds else {}
            return self.whole(input_ids=ids, attention_mask=torch.ones_like(ids), **media).logits[0]
        if "whole" in self.modules:
            if self.qwen2_vl:
                with Image.open(picture or os.path.join(self.folder, "picture0.png")) as image:
                    media = dict(self.processor(images=image.convert("RGB"), return_tensors="pt")) if picture else {}
                videos = [self.video(v) for v in record.get("videos") or [record.get("video")] if v]
                if videos:
                    media["pixel_values_videos"] = torch.cat([rows for rows, _ in videos])
                    media["video_grid_thw"] = torch.cat([grid for _, grid in videos])
                kinds = {"mm_token_type_ids": (ids == 261).int() + 2 * (ids == 265).int()}
                return self.whole(input_ids=ids, **kinds, **media).logits[0]
            media = {"pixel_values": self.pixels(picture)} if picture else {}
            return self.whole(input_ids=ids, **media).logits[0]
        x = self.llm.get_input_embeddings()(ids)
        if picture:
            rows = self.project("eyes.projector", self.eyes(self.pixels(picture)).last_hidden_state[0])
            x = torch.cat([x[0][ids[0] != 261], rows])[self.places(ids[0] == 261)][None]
        if sounds:
            heard = self.pooled(sounds) if self.pools else self.ears(self.frames(sounds[0])).last_hidden_state[0]
            rows = self.project("ears.projector", heard)
            x = torch.cat([x[0][ids[0] != 263], rows])[self.places(ids[0] == 263)][None]
        return self.llm(inputs_embeds=x).logits[0]

    def tiled_logits(self, record, ids):
        names = record.get("image", [])
        images = []
        for name in [names] if isinstance(names, str) else names:
            with Image.open(os.path.join(self.folder, name)) as image:
                images.append(image.convert("RGB"))
        media = self.processor(images=images, return_tensors="pt") if images else {}
        if images:
            media["pixel_values"] = media["pixel_values"].to(self.dtype)
        return self.whole(input_ids=ids, **media).logits[0]

    @staticmethod
    def places(media):
        """Row of [text rows, media rows] that each row takes."""
        text = int((~media).sum())
        return torch.where(media, text + torch.cumsum(media, 0) - 1, torch.cumsum(~media, 0) - 1)

    def train(self, records, samples, steps):
        """Losses before each step of AdamW; biases and norms do not decay."""
        plain = lambda n: n.endswith("bias") or "norm" in n.rsplit(".", 2)[-2]
        groups = [{"params": [p for n, p in self.parameters.items() if p.requires_grad and plain(n) == flag],
                   "weight_decay": 0.0 if flag else TRAIN["weight_decay"]} for flag in (True, False)]
        optimizer = torch.optim.AdamW(groups, lr=TRAIN["lr"], betas=(0.9, 0.999), eps=1e-8)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            losses.append(self.run(records, samples)["loss"])
            optimizer.step()
        return losses

    def run(self, records, samples):
        weight = sum(sum(label != -100 for label in s["labels"]) for s in samples.values())
        out = {"weight": weight, "samples": {}}
        total = 0.0
        for place, s in samples.items():
            logits = self.logits(records[place], s["ids"])
            labels = torch.tensor(s["labels"])
            loss = torch.nn.functional.cross_entropy(logits[:-1].float(), labels[1:], ignore_index=-100, reduction="sum")
            (loss / weight).backward()
            total += loss.item()
            out["samples"][place] = {"loss": loss.item(), "logits": logits.detach().float().numpy()}
        out["loss"] = total / weight
        out["grads"] = {}
        for name, p in self.parameters.items():
            if p.grad is None:
                continue
            if ".attn.qkv." in name:  # fused in the file, three parameters here
                for part, g in zip("qkv", p.grad.float().numpy().reshape(3, p.shape[0] // 3, *p.shape[1:])):
                    out["grads"][name.replace(".attn.qkv.", f".attn.{part}.")] = g
            else:
                out["grads"][name] = p.grad.float().numpy()
        return out


def train(binary, path, folder, steps):
    """Losses of our training; its checkpoint and what `export` makes of it lie in `folder`."""
    settings = ["--set", f"run.output_dir={folder}/run", "--set", f"data.index_dir={folder}", "--set",
                f"train.steps={steps}", "--set", f"optimizer.lr={TRAIN['lr']}", "--set",
                f"optimizer.weight_decay={TRAIN['weight_decay']}"]
    for command in (["train", path], ["export", path, "--dtype", "F32", "--out", f"{folder}/out"]):
        subprocess.run([binary, *command, *settings], check=True, stdout=subprocess.DEVNULL)
    with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as f:
        return [line["loss"] for line in map(json.loads, f) if "loss" in line]


def after_training(args, case, records, samples):
    """Whether three steps and the exported model agree; the losses of PyTorch."""
    modules = MODULES[case]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(args.folder, case + ".yaml")
        ours = train(args.binary, path, folder, 3)
        theirs = Reference(args.folder, modules, torch.float32).train(records, samples, 3)
        checkpoint = f"{folder}/run/checkpoints/step_00000003"
        trained = {}
        for module in ("eyes", "ears", "llm"):
            if module in modules or ("whole" in modules and module != ("eyes" if case == "qwen2_audio" else "ears")):
                trained[f"modules.{module}.init.checkpoint"] = checkpoint
        with_checkpoint = dump(args.binary, path, "fp32", trained)
        exported = {m: os.path.join(folder, "out", "" if len(modules) == 1 else m) for m in modules}
        loaded = Reference(args.folder, exported, torch.float32).run(records, samples)
    losses = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    logits = max(np.linalg.norm(with_checkpoint["samples"][p]["logits"] - s["logits"]) / np.linalg.norm(s["logits"])
                 for p, s in loaded["samples"].items())
    print(f"{case}: losses of three steps {losses:.1e} ({theirs[0]:.4f} to {theirs[-1]:.4f}); exported and loaded by "
          f"transformers: logits {logits:.1e}")
    return losses <= 1e-5 and logits <= 1e-5, theirs


def peft_folder(args, case, records, samples):
    """Whether PEFT loads an adapter that we trained and exported, onto the published model, with our logits."""
    import peft
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(args.folder, case + ".yaml")
        lora = {"modules.llm.lora": "{on: [q_proj, down_proj], rank: 4, alpha: 6}", "optimizer.lr": "0.05",
                "train.steps": "3", "run.output_dir": folder + "/run", "data.index_dir": folder}
        settings = [a for k, v in lora.items() for a in ("--set", f"{k}={v}")]
        for command in (["train", path], ["export", path, "--lora", "separate", "--out", f"{folder}/out"]):
            subprocess.run([args.binary, *command, *settings], check=True, stdout=subprocess.DEVNULL)
        ours = dump(args.binary, path, "fp32", {"modules.llm.lora": lora["modules.llm.lora"],
                                                "modules.llm.init.checkpoint": folder + "/run/checkpoints/step_00000003"})
        reference = Reference(args.folder, MODULES[case], torch.float32)
        name = "whole" if hasattr(reference, "whole") else "llm"
        wrapped = peft.PeftModel.from_pretrained(getattr(reference, name), f"{folder}/out/llm-adapter")
        loaded = sum(p.abs().sum().item() > 0 for n, p in wrapped.named_parameters() if "lora_B" in n)
        setattr(reference, name, wrapped)
        with torch.no_grad():
            error = max(np.linalg.norm(s["logits"] - reference.logits(records[p], s["ids"]).numpy()) /
                        np.linalg.norm(s["logits"]) for p, s in ours["samples"].items())
    print(f"{case}: adapter loaded by PEFT ({loaded} layers): logits {error:.1e}")
    return loaded == 4 and error <= 1e-5


def dump(binary, path, precision, more=None):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "dump.h5")
        subprocess.run([binary, "dump", path, "--out", out, "--logits", "--set", f"run.output_dir={folder}/run", "--set",
                        f"data.index_dir={folder}", "--set", f"train.precision={precision}",
                        *(a for k, v in (more or {}).items() for a in ("--set", f"{k}={v}"))], check=True, stdout=subprocess.DEVNULL)
        with h5py.File(out) as f:
            samples = {int(k): {"ids": v["input_ids"][:].tolist(), "labels": v["labels"][:].tolist(),
                                "loss": float(v["loss"][()]), "logits": v["logits"][:]} for k, v in f["samples"].items()}
            grads = {}
            for module in f["grads"]:
                for name in f["grads"][module]:
                    grads[f"{module}/{name}"] = f["grads"][module][name][:]
            return {"loss": float(f["loss"][()]), "samples": samples, "grads": grads}


def scale(name, grads):
    """What an error is measured by: the gradient's norm, or where its true value is zero (a key bias without rotary
    positions) the rounding of the sums it consists of, which the weight's gradient bounds."""
    own = np.linalg.norm(grads[name])
    weight = name.removesuffix("bias") + "weight"
    if not name.endswith(".bias") or grads.get(weight) is None or grads[weight].ndim != 2:
        return own
    return max(own, 1e-2 * 2 * np.linalg.norm(grads[weight]) / np.sqrt(grads[weight].shape[1]))


def compare(ours, theirs, tolerance, what):
    worst = ("", 0.0)
    assert set(ours["grads"]) == set(theirs["grads"]), set(ours["grads"]) ^ set(theirs["grads"])
    for name, g in theirs["grads"].items():
        error = np.linalg.norm(ours["grads"][name] - g) / max(scale(name, theirs["grads"]), 1e-30)
        worst = max(worst, (name, error), key=lambda x: x[1])
    logits = max(np.linalg.norm(ours["samples"][p]["logits"] - s["logits"]) / np.linalg.norm(s["logits"])
                 for p, s in theirs["samples"].items())
    loss = abs(ours["loss"] / theirs["loss"] - 1)
    print(f"{what}: loss {loss:.1e}, logits {logits:.1e}, worst gradient {worst[1]:.1e} ({worst[0]}) of {len(ours['grads'])}")
    return max(loss, logits, worst[1]) <= tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "..", "build", "release", "bin", "mmtrain"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    for case in args.cases or MODULES:
        path = os.path.join(args.folder, case + ".yaml")
        ours = dump(args.binary, path, "fp32")
        data = {"composed": "media", "llava_next": "tiles", "llava_clip": "pictures", "llava_siglip": "pictures",
                "qwen2_vl": "pictures", "qwen2_vl_video": "videos", "qwen2_audio": "sounds",
                "composed_audio": "sounds"}.get(case, "text")
        with open(os.path.join(args.folder, data + ".json"), encoding="utf-8") as f:
            records = json.load(f)
        theirs = Reference(args.folder, MODULES[case], torch.float32).run(records, ours["samples"])
        good = compare(ours, theirs, TOLERANCE, case + " fp32") and good
        theirs16 = Reference(args.folder, MODULES[case], torch.bfloat16).run(records, ours["samples"])
        ours16 = dump(args.binary, path, "bf16")
        compare(theirs16, theirs, 1, case + " bf16, PyTorch")
        compare(ours16, theirs, 1, case + " bf16, ours")
        errors = {n: float(np.linalg.norm(theirs16["grads"][n] - g)) for n, g in theirs["grads"].items()}
        total = [np.sqrt(sum(np.linalg.norm(x["grads"][n] - g) ** 2 for n, g in theirs["grads"].items()))
                 for x in (ours16, theirs16)]
        print(f"{case} bf16: error of all gradients {total[0]:.3e}, PyTorch's own {total[1]:.3e}")
        good = good and total[0] <= 2 * total[1]
        agree, losses = after_training(args, case, records, ours["samples"])
        good = good and agree
        if case in ("llama3", "llava_clip"):
            good = peft_folder(args, case, records, ours["samples"]) and good
        if not args.write:
            continue
        numbers = lambda name, x: [float(np.linalg.norm(x)), float(x.astype(np.float64).ravel() @ probe(name, x.size))]
        out = {"loss": theirs["loss"], "weight": theirs["weight"],
               "samples": {str(p): {"ids": ours["samples"][p]["ids"], "loss": s["loss"],
                                    "logits": numbers(f"logits {p}", s["logits"])}
                           for p, s in theirs["samples"].items()},
               "grads": {n: numbers(n, g) for n, g in sorted(theirs["grads"].items())},
               "bf16_error": {n: e for n, e in sorted(errors.items())}, "train": {**TRAIN, "losses": losses}}
        with open(os.path.join(args.folder, case + ".json"), "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)
            f.write("\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
