"""Small sound inputs from which the fuzzer starts, beside those under tests/data.

Usage: python3 make.py   (writes beside itself; the same bytes every time)
"""
import io
import json
import os
import struct
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
MEDIA = os.path.join(HERE, "..", "..", "data", "media")


def write(name, content):
    with open(os.path.join(HERE, name), "wb") as out:
        out.write(content if isinstance(content, bytes) else content.encode())


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


LLAVA = [{"id": 1, "image": "a/b.jpg", "conversations": [{"from": "human", "value": "<image>\nwhat \u00e9 \U0001f642?"},
                                                         {"from": "gpt", "value": "a boot"}]},
         {"id": "t", "conversations": [{"from": "human", "value": "text"}, {"from": "gpt", "value": "alone"}]}]
write("records.json", json.dumps(LLAVA, indent=1))
MESSAGES = [
    {"images": ["x.png", {"path": "y.png"}], "audios": "s.wav", "system": "s",
     "messages": [turn("user", "<image><audio> and <image>"), turn("assistant", "ok", loss=False),
                  turn("tool", "r"), turn("assistant", "yes")]},
    {"messages": [turn("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
                                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                                {"type": "image", "image": "x.png"}]), turn("assistant", [{"type": "text", "text": "b"}])]},
    {"image": None, "conversations": [{"from": "gpt", "value": "drops"}, {"from": "human", "value": "q"},
                                      {"from": "function_call", "value": "{}"}, {"from": "observation", "value": "o"},
                                      {"from": "gpt", "value": "a"}]},
]
write("messages.jsonl", "".join(json.dumps(m) + "\n" for m in MESSAGES))

tensors = {"a": ("F32", [2, 3], 24), "b": ("BF16", [4], 8), "s": ("I64", [], 8), "empty": ("U8", [0, 5], 0)}
header, at = {"__metadata__": {"format": "pt"}}, 0
for name, (dtype, shape, size) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
write("tiny.safetensors", struct.pack("<Q", len(text)) + text + bytes(range(at)))
write("scalar.safetensors", struct.pack("<Q", 58) + b'{"x": {"dtype": "F64", "shape": [], "data_offsets": [0,8]}}'[:58].ljust(58) + bytes(8))

samples = io.BytesIO()
with tarfile.open(fileobj=samples, mode="w", format=tarfile.PAX_FORMAT) as tar:
    for name, content in [("0001.jpg", open(os.path.join(MEDIA, "jgrey.jpg"), "rb").read()), ("0001.txt", b"a boot\n"),
                          ("0002.img1.png", b"p"), ("0002.img2.png", b"q"),
                          ("0002.json", json.dumps({"images": ["img2.png", "img1.png"], "messages": [
                              turn("user", "<image><image>"), turn("assistant", "two")]}).encode()),
                          ("d/0003.wav", b"w"), ("d/0003.json", b'{"caption": "three"}'), ("d/0003.gif", b"g"),
                          ("d/" + "n" * 120 + "/0004.txt", b"far"), ("\u00e9.txt", b"UTF-8")]:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
write("samples.tar", samples.getvalue())


def counted(value):
    return struct.pack("<Q", len(value)) + value


shards = b""
for number in range(2):
    shards += counted(b"/data/%d.tar" % number) + struct.pack("<qq", 4096, 17 + number) + counted(b"00010002")
    shards += struct.pack("<QQQ", 2, 2, 3) + counted(b"jpg") + counted(b"txt")
    shards += struct.pack("<IIII", 4, 2, 4, 1)
    for name, offset, size in [(0, 512, 100), (1, 1536, 3), (1, 2560, 7)]:
        shards += struct.pack("<qqI", offset, size, name)
write("two.mmtshards", b"MMTTARS1" + bytes(8) + shards)  # the checksum is made right by the target

write("layout.yaml", """\
run: {output_dir: runs/x, seed: 1, device: cpu}
modules:
  eyes: {role: encoder, modality: image, kind: clip, hidden: 64, layers: 4, heads: 4, patch: 7, image_size: 28, trainable: false, projector: {kind: mlp2}}
  llm: {role: llm, kind: llama, hidden: 64, layers: 4, heads: 4, trainable: ["lora"], lora: {rank: 4, alpha: 8, on: ["q_proj", "v_proj"]}}
parallel:
  layout: {all: {ranks: "0-3", pp: 2, tp: 2, stages: [{eyes: "0-3"}, {llm: "0-3"}]}}
  schedule: {policy: 1f1b, microbatches: auto}
  zero: {llm: 1}
train: {steps: 3, global_batch_size: 8, tokens_per_microbatch: 1024, precision: bf16, max_grad_norm: 1.0}
optimizer: {kind: adamw, lr: 2e-5, betas: [0.9, 0.95], groups: [{match: "projector", lr: 1e-3}]}
learning_rate: {kind: wsd, warmup_steps: 1, decay_steps: 1, decay: linear}
data:
  sets: [{path: "s-{000..003}.tar", format: webdataset, weight: 0.5}, {path: a.json, media_root: m, name: a}]
  template: {start: "{bos}", user: {prefix: "U: ", suffix: "\\n"}, assistant: {prefix: "A:", lead: " ", suffix: "{eos}"}, image: {token: "<image>"}}
  tokenizer: tokenizer.json
eval: {every_steps: 2, sets: [{path: e.json}]}
checkpoint: {every_steps: 2, keep_last: 2, keep_best: loss}
log: {every_steps: 1, trace: {steps: [1, 2]}}
""")
write("planted.txt", b"LEN\x05hello")
