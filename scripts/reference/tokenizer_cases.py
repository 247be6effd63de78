#!/usr/bin/env python3
"""Makes tests/data/tokenizer/: three small byte-level BPE tokenizers and the ids that the `tokenizers` package gives.

usage: tokenizer_cases.py OUTPUT_FOLDER        (needs: pip install tokenizers)
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

CORPUS = [
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: what is this? ASSISTANT: ankle boot",
    "what was said? seven seventeen thirty forty fifty sixty seventy eighty ninety ankle boot sandal sneaker shirt",
    "I'll say we've seen that they're done; it's what I'd do, don't you? I'm sure. HE'S HERE AND WE'RE GONE",
    "Der Käse schmeckt gut, die Straße ist naß. L'été à la plage, où êtes-vous ? ¿Qué tal, señor? ",
    "Привет, как дела? Сегодня хорошая погода. 今日は良い天気ですね。 你好，世界！ 안녕하세요 세계",
    "def f(x):\n    return x + 1\r\n\r\n\tif x > 10:\n\t\tprint('hello   world')\n\n\n    # comment 12345 678\n",
    "1 12 123 1234 12345 3.14159 2024-01-01 10:30:00 0xff 1,000,000",
    "🙂👍🏽👩‍👩‍👧 emoji and ½ ² Ⅷ ① symbols €100 £5 ¥7 «quoted» “curly” … — – •",
]

STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n", "\n ", "\t", " \t\n x", "a", " a", "  a", "   a", "a ",
    "a  ", "a   b", "hello world", "Hello, World!", "I'll don't WE'RE it'S 'tis 've ' s", "'\u017f and '\u017F",
    "x\u00a0\u00a0y", "x\u00a0y", "x\u0085y", "x\u0085\u0085  y", "x   \u00a0 y", "x\u180ey", "x\u180e\u180e y", "x\u200by",
    "x\u2028y\u2029z", "x\u3000y", "x\u202f1", "\ufeffbom", "x\u001cy\u001f z", "x\u000b\u000c y", "\x00nul\x00 \x00",
    "naïve café", "cafe\u0301 nai\u0308ve", "\u0301lead", "a \u0301b", "\u212b \u2126 \ufb01", "한국어 텍스트", "\u1112\u1161\u11ab",
    "Привет мир", "你好世界", "日本語のテキスト", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดี", "🙂", "👍🏽👍🏽", "👩‍👩‍👧 family", "a🙂b",
    "🙂🙂\n🙂", "1", "12", "123", "1234", "1234567890", "a1b22c333d4444", "3.14 1,000", "½²Ⅷ①", "١٢٣٤", "x1\u00b2",
    "foo(bar)[1]{2}", "a+b=c;//x", "!!!???...", " !!! ???", "...\n\n...", "!\r\n!\r\n", "--\n", "tabs\tand\t\tmore",
    "trailing   \n", "trailing \n\n  next", "   leading", "\n\n   leading", "a\n b\n  c\n   d", "mixed \t \n \r end",
    "<image>", "<|im_start|>user\nhi<|im_end|>", "text <image> text", "{type<image>|bold}", "</s>", "<s>a</s>", "<think>x</think>",
    " <think> ", "<tool> <tool_call> <tool_call", "<ab", "<abc", "<abcd", "x<mask>y", "x <mask> y", "x  <mask>  y", "wordy",
    "a wordy b", "wordy1 word_y wordyx xwordy wordy", "e\u0301t\u00e9 \u304cX \u304b\u3099X", "zebra xylo zebraxylo", " zebra",
    "A chat between a curious user", "USER: <image>\nQ ASSISTANT: A</s>USER: ", "ankle boot", "seven ankle boot", "x" * 200,
    "ab" * 120, "hello" * 60, " " * 100, " " * 100 + "x", "\n" * 50, "a" * 23 + "b" * 24 + "c" * 25, "the the the the",
    "\U0010ffff \ue000 \ufffd", "\u0378 unassigned", "z\u0335\u0336\u0337algo", "ǅ ǈ ß ẞ İ ı",
]
BYTES = [b"\xff", b"a\x80b", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\x99", b"\xf0\x9f\x99\x82\xf0\x9f",
         b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"ok \xfe\xfe ok", b"\xe0\x80\x80", b"\xf0\x80\x80\x80",
         b"\xef\xbf\xbe\xef\xbf", b"a\xcc\x81\xcc"]


def random_strings(count, seed):
    rng = random.Random(seed)
    pools = ["abcdefgh  \n", "aA'sStTdDmM reREvellLL ", " \t\r\n\u00a0\u0085\u2003x1", "0123456789.,ab ", "äöüßéèñ\u0301\u0308ae ",
             "你好世界123 ab", "🙂👍🏽\u200d ab!?", "<>|image_padimstrte/s ", "Приветмир yx"]
    return ["".join(rng.choice(pools[i % len(pools)]) for _ in range(rng.randint(1, 40))) for i in range(count)]


def added():
    return ([AddedToken(t, special=True, normalized=False) for t in
             ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>", "<audio>", "<|image_pad|>"]] +
            [AddedToken("<think>", special=False, normalized=False), AddedToken("</think>", special=False, normalized=False),
             AddedToken("<tool>", special=False, normalized=False), AddedToken("<tool_call>", special=False, normalized=False),
             AddedToken("<ab", special=False, normalized=False), AddedToken("<abcd", special=False, normalized=False),
             AddedToken("<mask>", special=False, normalized=False, lstrip=True, rstrip=True),
             AddedToken("wordy", special=False, normalized=False, single_word=True),
             AddedToken("\u304cX", special=False, normalized=True)])


def build(kind):
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind == "gpt2":
        tokenizer.pre_tokenizer = byte_level
    else:
        pattern = LLAMA3 if kind == "llama3" else QWEN2
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False), byte_level])
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256 + 260, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  min_frequency=1)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if kind == "llama3":  # words that no merge reaches, so that `ignore_merges` shows
        file = json.loads(tokenizer.to_str())
        file["model"]["ignore_merges"] = True
        for word in ["zebra", "Ġzebra", "xylo"]:
            file["model"]["vocab"][word] = len(file["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_tokens(added())
    file = json.loads(tokenizer.to_str())
    model = file["model"]
    pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    model["merges"] = [" ".join(p) for p in pairs] if kind == "qwen2" else pairs
    return file


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    texts = [s.encode() for s in STRINGS + random_strings(90, 7)] + BYTES
    for kind in ["gpt2", "llama3", "qwen2"]:
        file = build(kind)
        (out / f"{kind}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")
        tokenizer = Tokenizer.from_file(str(out / f"{kind}.json"))
        cases = []
        for text in texts:
            clean = text.decode("utf-8", "replace")
            tokenizer.encode_special_tokens = True  # special tokens are plain text
            plain = tokenizer.encode(clean, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = False
            special = tokenizer.encode(clean, add_special_tokens=False).ids
            case = {"hex": text.hex(), "ids": plain, "decoded": tokenizer.decode(plain, skip_special_tokens=False)}
            if special != plain:
                case["special_ids"] = special
            cases.append(case)
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (out / f"{kind}_cases.json").write_text("[\n" + lines + "\n]\n")


main()
