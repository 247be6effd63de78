#!/usr/bin/env python3
"""Checks a finished quick start data folder against the promises of its makers, from the files alone.

usage: quickstart_data_check.py DIR
"""
import gzip
import hashlib
import json
import os
import re
import struct
import sys
import wave
import zlib

CLOTHES = ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
IDX = "/usr/share/datasets/fashion-mnist/"


def check(condition, message):
    if not condition:
        sys.exit(f"quickstart_data_check: {message}")


def load(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return json.load(file) if name.endswith(".json") else [json.loads(line) for line in file]


def parts(sample):
    """(question, answer, pictures, sounds)"""
    turns = [turn.get("value") or turn["content"] for turn in sample.get("conversations") or sample["messages"]]
    check(len(turns) == 2, f"{sample['id']}: not two turns")
    pictures = sample.get("images") or ([sample["image"]] if "image" in sample else [])
    sounds = sample.get("audios", [])
    for word, media in (("<image>", pictures), ("<audio>", sounds)):
        check(turns[0].count(word) == len(media), f"{sample['id']}: {len(media)} media for {turns[0]!r}")
    return turns[0], turns[1], pictures, sounds


def decode_png(path):
    """Width, height and bytes of an 8-bit grey PNG with filter 0, with every checksum compared."""
    with open(path, "rb") as file:
        data = file.read()
    check(data[:8] == b"\x89PNG\r\n\x1a\n", f"{path}: no PNG")
    at, size, body = 8, None, b""
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        payload = data[at + 8:at + 8 + length]
        check(struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(kind + payload), f"{path}: CRC")
        if kind == b"IHDR":
            size = struct.unpack(">II", payload[:8])
        elif kind == b"IDAT":
            body += payload
        at += 12 + length
    rows = zlib.decompress(body)
    width, height = size
    check(len(rows) == (width + 1) * height, f"{path}: {len(rows)} bytes")
    return width, height, b"".join(rows[y * (width + 1) + 1:(y + 1) * (width + 1)] for y in range(height))


def check_pictures(root, part, prefix, samples):
    with gzip.open(f"{IDX}{prefix}-images-idx3-ubyte.gz") as file:
        pixels = file.read()[16:]
    with gzip.open(f"{IDX}{prefix}-labels-idx1-ubyte.gz") as file:
        labels = file.read()[8:]
    check(len(os.listdir(os.path.join(root, "pictures", part))) == len(labels), f"pictures/{part}: count")
    for i in range(0, len(labels), 397):
        check(decode_png(os.path.join(root, "pictures", part, f"{i:05d}.png")) == (28, 28, pixels[784 * i:784 * i + 784]),
              f"pictures/{part}/{i:05d}.png differs from the source")
    for sample in samples:
        _, answer, (picture,), _ = parts(sample)
        check(answer == CLOTHES[labels[int(picture[-9:-4])]], f"{sample['id']}: {picture} is no {answer}")


def check_swapped(original, swapped, index):
    """The same questions and answers, media `index` handed round so that nobody keeps its own."""
    own = {sample["id"]: parts(sample) for sample in original}
    given = []
    for sample in swapped:
        old, new = own[sample["id"]], parts(sample)
        for i in range(4):
            check((old[i] == new[i]) == (i != index), f"{sample['id']}: swapped the wrong thing")
        given.append(new[index][0])
    check(sorted(given) == sorted(own[sample["id"]][index][0] for sample in swapped), "swapped media are not a permutation")


def main():
    root = sys.argv[1]
    manifest = load(root, "MANIFEST.json")
    for name, entry in manifest["files"].items():
        with open(os.path.join(root, name), "rb") as file:
            check(hashlib.sha256(file.read()).hexdigest() == entry["sha256"], f"{name}: hash differs from the manifest")
    train = {name: load(root, name) for name in manifest["files"] if name.startswith("train/")}
    evals = {name: load(root, name) for name in manifest["files"] if name.startswith("eval/")}

    check_pictures(root, "test", "t10k", evals["eval/pictures.json"])
    check_pictures(root, "train", "train", train["train/pictures.json"])
    check(len(evals["eval/pictures.json"]) == 10000, "not all 10,000 test pictures are asked about")

    trained, answers = set(), set()
    for samples in train.values():
        for sample in samples:
            _, answer, pictures, sounds = parts(sample)
            trained.update(pictures, sounds)
            answers.add(answer)
    for name, samples in evals.items():
        for sample in samples:
            _, answer, pictures, sounds = parts(sample)
            check(not trained & set(pictures + sounds), f"{name}: {sample['id']} uses trained media")
            for path in pictures + sounds:
                check(os.path.isfile(os.path.join(root, path)), f"{name}: {path} does not exist")
            if name == "eval/phrases.jsonl":
                check(answer not in answers, f"{name}: the phrase {answer!r} is trained")
    for path in trained:
        check(os.path.isfile(os.path.join(root, path)), f"{path} does not exist")

    heard = {}
    for sample in evals["eval/speech.jsonl"]:
        _, answer, _, (sound,) = parts(sample)
        heard.setdefault(re.sub(r"-\d\d\.wav$", "", sound), set()).add(answer)
    check(len(heard) == 140 and all(len(words) == 1 for words in heard.values()), f"{len(heard)} recordings of numbers, not 140")
    check(len({word for words in heard.values() for word in words}) == 28, "not 28 numbers")
    digests = {}
    for folder, _, files in os.walk(os.path.join(root, "sounds")):
        for file in files:
            path = os.path.join(folder, file)
            with wave.open(path) as sound:
                check((sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, 8000), f"{path}: format")
                digest = hashlib.sha256(sound.readframes(sound.getnframes())).digest()
            check(digest not in digests, f"{path} and {digests.get(digest)} are the same sound")
            digests[digest] = path

    for name, samples in evals.items():
        match = re.match(r"eval/(\w+?)_swapped_(pictures|sounds)(\.jsonl?)$", name)
        if match:
            check_swapped(evals[f"eval/{match[1]}{match[3]}"], samples, 2 if match[2] == "pictures" else 3)
    print(f"{root}: {len(train)} training and {len(evals)} evaluation sets are what they should be")


if __name__ == "__main__":
    main()
