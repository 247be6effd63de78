#!/usr/bin/env python3
"""Learns a byte-level BPE tokenizer from text and writes it as a tokenizer.json that Hugging Face `tokenizers` loads.

usage: learn_tokenizer.py OUT.json TEXT_FILE... [--merges N]

The vocabulary: special tokens last, 256 bytes first (in the printable alphabet of GPT-2), then one token per merge.
Needs Python >= 3.9 and nothing else; the result depends on the text alone.
"""
import argparse
import collections
import json
import re

# What the named chat templates and media placeholders use; present in every tokenizer made here.
SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<s>", "</s>", "<unk>", "<pad>", "<image>", "<audio>", "<video>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]

# Qwen2's pattern as the file gives it; LEARN_PATTERN says the same of the texts here in Python's `re` (no \p{L}).
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LEARN_PATTERN = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's map of the 256 bytes to printable code points."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, shifted = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + shifted)
            shifted += 1
    return table


def learn_merges(word_counts, num_merges):
    """The most frequent pair first; equal counts: the pair that sorts first. Stops when no pair occurs twice."""
    alphabet = byte_alphabet()
    words = [([alphabet[b] for b in word.encode("utf-8")], count) for word, count in sorted(word_counts.items())]
    merges = []
    while len(merges) < num_merges:
        pairs = collections.Counter()
        for pieces, count in words:
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best, count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if count < 2:
            break
        merges.append(best)
        for pieces, _ in words:
            i = 0
            while i + 1 < len(pieces):
                if (pieces[i], pieces[i + 1]) == best:
                    pieces[i:i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def learn(texts, num_merges):
    """`texts`: {text: how often it occurs}. Returns the tokenizer as the object that tokenizer.json holds."""
    special = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))
    word_counts = collections.Counter()
    for text, count in texts.items():
        for part in special.split(text):
            for word in LEARN_PATTERN.findall(part):
                word_counts[word] += count
    merges = learn_merges(word_counts, num_merges)
    vocab = {}
    for symbol in byte_alphabet().values():
        vocab[symbol] = len(vocab)
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    added = [{"id": len(vocab) + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(SPECIAL_TOKENS)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [f"{left} {right}" for left, right in merges]},
    }


def write(path, tokenizer):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        json.dump(tokenizer, file, ensure_ascii=False, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--merges", type=int, default=512)
    args = parser.parse_args()
    texts = collections.Counter()
    for path in args.text:
        with open(path, encoding="utf-8") as file:
            texts.update(line.rstrip("\n") for line in file)
    write(args.out, learn(texts, args.merges))


if __name__ == "__main__":
    main()
