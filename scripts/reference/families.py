#!/usr/bin/env python3
"""Tiny models of each family as transformers saves them: families.py FOLDER

Writes FOLDER/<case>/ with config.json, model.safetensors (bf16) and, for whole models, the processor's file, and
FOLDER/tokenizer.json, pictures, sounds and data sets that the cases share. `expect.py` adds what PyTorch computes with
them. Everything follows from names and indices (value() in tests/data/models/make_goldens.py): a second run writes the
same files.
"""
import json
import os
import shutil
import sys
import wave

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
import transformers as hf

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "data", "models"))
from make_goldens import value  # noqa: E402

VOCABULARY = 272
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|video_pad|>"]

TEXT = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=512, tie_word_embeddings=False)
TOWER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, patch_size=14,
             image_size=56)
PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]


def llama3():
    rope = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=1, rms_norm_eps=1e-5, rope_parameters=rope))


def mistral():
    return hf.MistralForCausalLM(hf.MistralConfig(**TEXT, num_key_value_heads=1, rms_norm_eps=1e-5, sliding_window=9))


def qwen2():
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**dict(TEXT, tie_word_embeddings=True), num_key_value_heads=2,
                                              use_sliding_window=True, sliding_window=11, max_window_layers=1))


def qwen3():
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**TEXT, num_key_value_heads=1, head_dim=24))


def llava_clip():
    text = hf.LlamaConfig(**TEXT, num_key_value_heads=2, rms_norm_eps=1e-5)
    vision = hf.CLIPVisionConfig(**TOWER)
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=256 + SPECIAL.index("<|image_pad|>"),
        vision_feature_layer=-2, vision_feature_select_strategy="default"))


def llava_siglip():
    text = hf.Qwen2Config(**TEXT, num_key_value_heads=1)
    vision = hf.SiglipVisionConfig(**TOWER, vision_use_head=False)
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=256 + SPECIAL.index("<|image_pad|>"),
        vision_feature_layer=-1, vision_feature_select_strategy="full"))


def llava_next():
    text = hf.MistralConfig(**TEXT, num_key_value_heads=1, rms_norm_eps=1e-5, sliding_window=None)
    vision = hf.CLIPVisionConfig(**TOWER)
    return hf.LlavaNextForConditionalGeneration(hf.LlavaNextConfig(
        vision_config=vision, text_config=text, image_token_index=256 + SPECIAL.index("<|image_pad|>"),
        vision_feature_layer=-2, vision_feature_select_strategy="default", image_grid_pinpoints=PINPOINTS))


def qwen2_vl():
    text = dict(TEXT, num_key_value_heads=1, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None, rope_parameters=dict(
        rope_type="default", rope_theta=1000.0, mrope_section=[2, 3, 3]))
    vision = dict(depth=2, embed_dim=32, hidden_size=32, num_heads=2, mlp_ratio=2, patch_size=14, spatial_merge_size=2,
                  temporal_patch_size=2)
    special = lambda s: 256 + SPECIAL.index(s)
    return hf.Qwen2VLForConditionalGeneration(hf.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=special("<|image_pad|>"),
        video_token_id=special("<|video_pad|>"), vision_start_token_id=special("<|vision_start|>"),
        vision_end_token_id=special("<|vision_end|>"), tie_word_embeddings=False))


def siglip():
    # A side of 4 patches and a rest; with its pooling head, which nobody trains here.
    return hf.SiglipVisionModel(hf.SiglipVisionConfig(**dict(TOWER, image_size=60)))


def whisper():
    return hf.WhisperModel(hf.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48, decoder_layers=1,
        decoder_attention_heads=2, decoder_ffn_dim=32, num_mel_bins=80, max_source_positions=50, vocab_size=64,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.0))


SOUND = dict(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48, num_mel_bins=128,
             max_source_positions=50)


def qwen2_audio():
    text = hf.Qwen2Config(**TEXT, num_key_value_heads=1)
    return hf.Qwen2AudioForConditionalGeneration(hf.Qwen2AudioConfig(
        audio_config=hf.Qwen2AudioEncoderConfig(**SOUND), text_config=text,
        audio_token_index=256 + SPECIAL.index("<|AUDIO|>")))


def qwen2_audio_tower():
    return hf.Qwen2AudioEncoder(hf.Qwen2AudioEncoderConfig(**dict(SOUND, encoder_layers=1)))


CASES = {"llama3": llama3, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3, "llava_clip": llava_clip,
         "llava_siglip": llava_siglip, "llava_next": llava_next, "qwen2_vl": qwen2_vl, "siglip": siglip, "whisper": whisper,
         "qwen2_audio": qwen2_audio, "qwen2_audio_tower": qwen2_audio_tower}


def fill(model):
    """Values by name; those of norms around 1."""
    for name, p in model.named_parameters():
        norm = "norm" in name and name.endswith("weight")
        v = torch.from_numpy(value(name, p.numel(), 0.25).reshape(p.shape))
        p.data = (v + 1.0 if norm else v).to(torch.float32)


def rename(folder, change):
    """Another spelling of the tensors' names."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    save_file({change(name): t.contiguous() for name, t in tensors.items()}, path, metadata={"format": "pt"})


def hub_names(name):
    """LLaVA as it lies on the hub: vision_tower.vision_model.*"""
    return name.replace("vision_tower.", "vision_tower.vision_model.", 1) if name.startswith("vision_tower.") else name


def old_config(folder):
    """A config.json as transformers 4 wrote them."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def byte_symbol(byte):
    """GPT-2's printable character of a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in plain else chr(256 + [b for b in range(256) if b not in plain].index(byte))


def write_tokenizer(path):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, s in enumerate(SPECIAL)]
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
                   "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "vocab": {byte_symbol(b): b for b in range(256)}, "merges": []}}, f)


def write_media(folder):
    # The last three: tall and wide enough to lose padding at two sides and above, and one that is smaller than a patch.
    for i, (width, height) in enumerate([(56, 56), (97, 61), (40, 83), (150, 31), (20, 110), (9, 7)]):
        y, x = np.mgrid[0:height, 0:width]
        channels = [127 + 100 * np.sin(x / (5.0 + i) + c) * np.cos(y / (9.0 - c)) for c in range(3)]
        Image.fromarray(np.stack(channels, -1).astype(np.uint8)).save(os.path.join(folder, f"picture{i}.png"))
    # Of a window of one second: frames even and odd, rows even and odd, one row that leaves, all of it, and more.
    for i, samples in enumerate([8000, 12800, 4881, 530, 16000, 20000]):
        t = np.arange(samples) / 16000
        samples = (8000 * np.sin(2 * np.pi * (300 + 200 * i) * t) * np.exp(-t)).astype("<i2")
        with wave.open(os.path.join(folder, f"sound{i}.wav"), "wb") as f:
            f.setnchannels(1)
            f.setsampwidth(2)
            f.setframerate(16000)
            f.writeframes(samples.tobytes())


def film(count, width, height):
    """A disc that moves over a slope of colours."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    pictures = []
    for i in range(count):
        rgb = np.stack([x * 3, y * 4, 60 + 30 * i + 0 * x], -1)
        rgb[(x - 12 - 9 * i) ** 2 + (y - height / 2) ** 2 < 80] = (250, 40 + 30 * i, 20)
        pictures.append(Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8)))
    return pictures


def write_videos(folder):
    """One of each kind: a folder whose frames are resized, a GIF, a WebP."""
    os.makedirs(os.path.join(folder, "film3"), exist_ok=True)
    for i, picture in enumerate(film(3, 70, 45)):
        picture.save(os.path.join(folder, "film3", f"frame{9 + i}.png"))
    gif = [p.quantize(32, method=Image.Quantize.MEDIANCUT) for p in film(4, 56, 56)]
    gif[0].save(os.path.join(folder, "film4.gif"), save_all=True, append_images=gif[1:], duration=[40, 80, 500, 100])
    webp = film(8, 64, 40)
    webp[0].save(os.path.join(folder, "film8.webp"), save_all=True, append_images=webp[1:], duration=250, quality=60)


def talk(question, answer):
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def write_data(folder):
    text = [{"id": "t0", "conversations": talk("What is it?", "A small model.")},
            {"id": "t1", "conversations": talk("Say more than that, please.", "It has two layers and few columns.")}]
    pictures = [{"id": f"p{i}", "image": f"picture{i}.png", "conversations": talk("<image>\nWhat?", f"Waves, {i}.")}
                for i in range(3)]
    sounds = [{"id": f"s{i}", "audio": f"sound{i}.wav", "conversations": talk("<audio>\nHow high?", f"{300 + 200 * i}")}
              for i in range(2)]
    tiles = text[:1] + [
        {"id": "n0", "image": "picture0.png", "conversations": talk("<image>\nWhat?", "A square.")},
        {"id": "n1", "image": ["picture3.png", "picture5.png"], "conversations": talk("<image>\nand <image>?", "Wide.")},
        {"id": "n2", "image": "picture4.png", "conversations": talk("<image>\nWhat?", "Tall.")},
        {"id": "n3", "image": ["picture1.png", "picture2.png"], "conversations": talk("<image><image>\nBoth?", "Yes.")}]
    videos = [{"id": "v1", "video": ["picture0.png"], "conversations": talk("<video>\nWhat?", "One frame.")},
              {"id": "v3", "video": "film3", "conversations": talk("What is in <video>?", "Three.")},
              {"id": "v4", "videos": ["film4.gif"], "conversations": talk("<video>Tell.", "A disc moves.")},
              {"id": "both", "image": "picture2.png", "videos": ["film8.webp", "film4.gif"],
               "conversations": talk("<video> then <image> and <video>", "Eight, one and four.")},
              pictures[1]]
    hear = lambda place, files, question, answer: {"id": f"h{place}", "audio": files,
                                                   "conversations": talk(question, answer)}
    heard = [hear(0, "sound0.wav", "<audio>\nHow high?", "300"),
             hear(1, ["sound2.wav", "sound3.wav"], "<audio>and<audio>\nWhich is shorter?", "The second."),
             hear(2, "sound4.wav", "How long? <audio>", "A second."), hear(3, "sound5.wav", "<audio>Longer?", "Yes."),
             hear(4, "sound1.wav", "<audio>", "500")]
    for name, records in {"sounds": text[:1] + heard, "videos": videos, "text": text, "tiles": tiles, "pictures": text[:1] + pictures,
                          "media": text[:1] + pictures[1:] + sounds}.items():
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(records, f, indent=1)
            f.write("\n")


CONFIG = """\
run: {{output_dir: run, seed: 1, device: cpu}}
modules:
{modules}train: {{steps: 1, global_batch_size: {samples}, tokens_per_microbatch: 512, max_grad_norm: 0}}
optimizer: {{lr: 1e-3}}
data:
  sets: [{{path: {data}.json, format: llava}}]
  template: chatml
  tokenizer: tokenizer.json
  shuffle: false
"""


def write_configs(folder):
    configs = {}
    for case in CASES:
        if case in ("siglip", "whisper", "qwen2_audio_tower"):
            continue
        modules = f"  llm: {{role: llm, init: {{hf: {case}}}}}\n"
        whole = case.startswith("llava") or case == "qwen2_vl"
        if whole:
            modules = f"  eyes: {{role: encoder, init: {{hf: {case}}}}}\n" + modules
        if case == "qwen2_audio":
            modules = f"  ears: {{role: encoder, init: {{hf: {case}}}}}\n" + modules
            configs[case] = CONFIG.format(modules=modules, samples=6, data="sounds")
            continue
        tiles = case == "llava_next"
        configs[case] = CONFIG.format(modules=modules, samples=5 if tiles else 4 if whole else 2,
                                      data="tiles" if tiles else "pictures" if whole else "text")
    configs["qwen2_vl_video"] = CONFIG.format(
        modules="  eyes: {role: encoder, init: {hf: qwen2_vl}}\n  llm: {role: llm, init: {hf: qwen2_vl}}\n", samples=5,
        data="videos")
    configs["composed"] = CONFIG.format(
        modules="  eyes: {role: encoder, init: {hf: siglip}, post_norm: true, projector: {init: {hf: projector_eyes}}}\n"
                "  ears: {role: encoder, init: {hf: whisper}, projector: {kind: linear, init: {hf: projector_ears}}}\n"
                "  llm: {role: llm, init: {hf: qwen3}}\n", samples=5, data="media")
    configs["composed_audio"] = CONFIG.format(
        modules="  ears: {role: encoder, init: {hf: qwen2_audio_tower}, projector: {init: {hf: projector_ears}}}\n"
                "  llm: {role: llm, init: {hf: llama3}}\n", samples=6, data="sounds")
    for case, text in configs.items():
        with open(os.path.join(folder, case + ".yaml"), "w", encoding="utf-8") as f:
            f.write(text)


def write_projectors(folder):
    for module, layers in {"eyes": ("linear_1", "linear_2"), "ears": ("linear",)}.items():
        path = os.path.join(folder, "projector_" + module)
        os.makedirs(path, exist_ok=True)
        tensors = {}
        for layer in layers:
            for name, shape in (("weight", (32, 32)), ("bias", (32,))):
                key = f"{layer}.{name}"
                tensors[key] = torch.from_numpy(value(module + key, int(np.prod(shape)), 0.25).reshape(shape)).bfloat16()
        save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})


def main():
    folder = os.path.abspath(sys.argv[1])
    os.makedirs(folder, exist_ok=True)
    write_tokenizer(os.path.join(folder, "tokenizer.json"))
    write_media(folder)
    write_videos(folder)
    write_data(folder)
    write_configs(folder)
    write_projectors(folder)
    for case, make in CASES.items():
        torch.manual_seed(0)
        path = os.path.join(folder, case)
        shutil.rmtree(path, ignore_errors=True)
        model = make()
        fill(model)
        model.to(torch.bfloat16).save_pretrained(path)
        if os.path.exists(os.path.join(path, "generation_config.json")):
            os.remove(os.path.join(path, "generation_config.json"))
        if case.startswith("llava") or case == "siglip":
            tower = "Siglip" if "siglip" in case else "CLIP"
            pixels = 60 if case == "siglip" else 56
            side = {"height": pixels, "width": pixels}
            processor = hf.LlavaNextImageProcessorPil if case == "llava_next" else getattr(hf, tower + "ImageProcessorPil")
            sizes = {"size": side} if tower == "Siglip" else {"size": {"shortest_edge": 56}, "crop_size": side}
            if case == "llava_next":
                sizes["image_grid_pinpoints"] = PINPOINTS
            processor(**sizes).save_pretrained(path)
        if case == "qwen2_vl":
            hf.Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28 * 2, "longest_edge": 28 * 28 * 6}).save_pretrained(path)
            with open(os.path.join(path, "video_preprocessor_config.json"), "w", encoding="utf-8") as f:
                json.dump({"video_processor_type": "Qwen2VLVideoProcessor", "fps": 2, "min_frames": 4, "max_frames": 768,
                           "size": {"shortest_edge": 28 * 28 * 2, "longest_edge": 28 * 28 * 4}}, f, indent=2)
                f.write("\n")
        if case.startswith("qwen2_audio"):
            hf.WhisperFeatureExtractor(feature_size=128, chunk_length=1, return_attention_mask=True).save_pretrained(path)
        if case == "llava_clip":
            rename(path, hub_names)
        if case in ("mistral", "qwen2"):
            old_config(path)
        print(path, sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path)))


if __name__ == "__main__":
    main()
