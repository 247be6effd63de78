#!/usr/bin/env python3
"""Compares the token ids of `mmtrain inspect --text` with those of the `tokenizers` and `sentencepiece` packages on many generated texts.

usage: tokenizer_check.py MMTRAIN [--count 100000] [--seed 2] [--real]      (needs: pip install -r requirements.txt)

Vocabularies of every family are trained here. Unigram models have ties, which versions of the library break differently: cuts of
the same score are counted apart. With --real also those that packages on PyPI ship are checked, where they are installed:
openai-whisper (GPT-2's and Whisper's), mistral-common (SentencePiece models), llama-models (Llama 3's).
"""
import argparse
import importlib.util
import inspect
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

import tokenizer_cases
import tokenizer_texts


def ids_of(mmtrain, path, texts, special):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(t) + "\n" for t in texts))
        file.flush()
        command = [mmtrain, "inspect", str(path), "--text", file.name] + (["--special"] if special else [])
        return [json.loads(line) for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()]


def same_score(processor, ids, expected):
    size = processor.get_piece_size()
    scores = [sum(processor.get_score(i) for i in some if i < size) for some in (ids, expected)]
    added = [[i for i in some if i >= size] for some in (ids, expected)]
    return added[0] == added[1] and abs(scores[0] - scores[1]) < 1e-4 * abs(scores[0])  # float sums of hundreds of terms


def check(mmtrain, name, path, reference, texts):
    wrong = ties = 0
    for special in (False, True):
        found = ids_of(mmtrain, path, texts, special)
        if len(found) != len(texts):
            sys.exit(f"{name}: {len(found)} lines for {len(texts)} texts")
        for text, ids in zip(texts, found):
            expected = tokenizer_cases.both_ways(reference, text)[1 if special else 0]
            if ids != expected and "unigram" in name and same_score(reference.with_prefix, ids, expected):
                ties += 1
            elif ids != expected:
                wrong += 1
                if wrong <= 5:
                    print(f"{name}: {text!r}\n  {ids}\n  {expected}")
    print(f"{name}: {wrong} of {2 * len(texts)} differ" + (f", {ties} ties" if ties else ""), flush=True)
    return wrong


def corpus():
    """Sentences, code, and the source text of Python's own library."""
    lines = tokenizer_texts.SENTENCES * 20 + [line for c in tokenizer_texts.CODE for line in c.splitlines() if line] * 5
    for module in (argparse, inspect, json, random, subprocess, tempfile):
        lines += [line for line in Path(module.__file__).read_text().splitlines() if line.strip()]
    return lines


def trained(folder):
    """name, path, reference; larger vocabularies than the checked-in ones."""
    lines = corpus()
    for kind in ("gpt2", "llama3", "qwen2"):
        path = folder / f"{kind}.json"
        tokenizer_cases.dump(path, tokenizer_cases.build(kind, lines, 4000))
        yield kind, path, Tokenizer.from_file(str(path))
    model = tokenizer_cases.piece_model("bpe", 4000, lines)
    for kind, file in tokenizer_cases.piece_families(model).items():
        tokenizer_cases.dump(folder / kind / "tokenizer.json", file)
        yield kind, folder / kind, Tokenizer.from_file(str(folder / kind / "tokenizer.json"))
    for name, legacy in (("legacy", True), ("not_legacy", False)):
        yield f"tokenizer.model, {name}", folder / name, tokenizer_cases.write_pieces(folder / name, model, legacy)
    unigram = tokenizer_cases.piece_model("unigram", 3000, lines)
    yield "tokenizer.model, unigram", folder / "unigram", tokenizer_cases.write_pieces(folder / "unigram", unigram, False)


def place_of(package):
    spec = importlib.util.find_spec(package)
    if spec is None:
        print(f"{package} is not installed: not checked")
        return Path("/nonexistent")
    return Path(spec.submodule_search_locations[0])


def shipped(folder):
    from transformers.convert_slow_tokenizer import TikTokenConverter
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    found = [(f, gpt2) for f in sorted(place_of("whisper").glob("assets/*.tiktoken"))]
    found += [(f, tokenizer_cases.LLAMA3) for f in sorted(place_of("llama_models").glob("llama3/tokenizer.model"))]
    for file, pattern in found:
        converted = TikTokenConverter(str(file), pattern=pattern, extra_special_tokens=["<|startoftext|>", "<|end|>"]).converted()
        path = folder / f"{file.parent.name}_{file.stem}.json"
        converted.save(str(path))
        yield f"{file.parent.parent.name}/{file.name}", path, Tokenizer.from_file(str(path))
    for file in sorted(place_of("mistral_common").glob("data/*.model*")):
        path = folder / file.name / "tokenizer.model"
        path.parent.mkdir()
        path.write_bytes(file.read_bytes())
        yield f"mistral_common/{file.name}", path, tokenizer_cases.Pieces(file.read_bytes(), [], True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mmtrain")
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--real", action="store_true")
    a = parser.parse_args()
    texts = tokenizer_texts.texts(a.count, a.seed)
    with tempfile.TemporaryDirectory() as folder:
        wrong = sum(check(a.mmtrain, *one, texts) for one in trained(Path(folder)))
        if a.real:
            (Path(folder) / "real").mkdir()
            wrong += sum(check(a.mmtrain, *one, texts) for one in shipped(Path(folder) / "real"))
    sys.exit(wrong > 0)


main()
