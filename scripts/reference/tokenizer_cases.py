#!/usr/bin/env python3
"""Makes tests/data/tokenizer/: small tokenizers of every family and the ids that the `tokenizers` and `sentencepiece`
packages give.

usage: tokenizer_cases.py OUTPUT_FOLDER        (needs: pip install -r requirements.txt)

texts.jsonl       2,200 texts, a JSON string a line
NAME.sums         for each of them the hash of its ids (FNV-1a over 32-bit little-endian, the low 32 bits in hex) with special
                  tokens as plain text, and of the ids where they are special, if those differ
NAME_cases.json   ids, and what they decode to, of some texts
"""
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import tokenizer_texts

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


def build(kind, lines=tuple(CORPUS), size=256 + 260):
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
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  min_frequency=1)
    tokenizer.train_from_iterator(lines, trainer)
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


SPACE = "\u2581"


def piece_model(kind, size, lines, prefix=True):
    """A SentencePiece model with the settings of Llama 2. Unigram has no pieces of spaces alone: runs of them have ties, which
    versions of the library break differently."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=size, model_type=kind, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, add_dummy_prefix=prefix,
        allow_whitespace_only_pieces=kind == "bpe", character_coverage=0.98, num_threads=1, minloglevel=2, hard_vocab_limit=False,
        user_defined_symbols=["[INST]", "[/INST]"] if kind == "unigram" else [])
    return out.getvalue()


def added_pieces(first):
    """Added tokens beside a SentencePiece model: ids go on behind its own."""
    tokens = [("<image>", True), ("<pad>", True), ("<think>", False), ("wordy", False), ("<|im_start|>", True)]
    return [{"id": first + i, "content": t, "single_word": t == "wordy", "lstrip": False, "rstrip": False, "normalized": False,
             "special": special} for i, (t, special) in enumerate(tokens)]


def from_pieces(model, normalizer, pre_tokenizer, strip):
    """The tokenizer.json of a SentencePiece BPE: merges are all pairs whose sum is a piece, by the score of the sum."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    merges = []
    for piece, i in vocab.items():
        if processor.is_byte(i) or processor.is_control(i) or processor.is_unknown(i):
            continue
        pairs = [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in vocab and piece[n:] in vocab]
        merges += [(-processor.get_score(i), vocab[l], vocab[r], l, r) for l, r in pairs]
    merges.sort()
    tokenizer = Tokenizer(models.BPE(vocab, [m[3:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()] +
                                          ([decoders.Strip(" ", 1, 0)] if strip else []))
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    tokenizer.add_tokens([AddedToken(t["content"], special=t["special"], normalized=False, single_word=t["single_word"])
                          for t in added_pieces(len(vocab))])
    return json.loads(tokenizer.to_str())


def piece_families(model):
    """Llama 2 and Vicuna, later Mistral, Gemma."""
    spaces = normalizers.Replace(" ", SPACE)
    return {
        "llama2": from_pieces(model, normalizers.Sequence([normalizers.Prepend(SPACE), spaces]), None, True),
        "mistral": from_pieces(model, None, pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False), True),
        "gemma": from_pieces(model, spaces, pre_tokenizers.Split(" ", "merged_with_previous"), False),
    }


class Pieces:
    """A SentencePiece model with added tokens, as transformers' slow tokenizers put them together: the text between added tokens
    is encoded by itself, with the dummy prefix everywhere (legacy) or at the beginning of the text alone."""

    def __init__(self, model, added, legacy):
        self.with_prefix = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.without = sentencepiece.SentencePieceProcessor(model_proto=model + b"\x1a\x02\x18\x00")
        special = [{"id": i, "content": self.with_prefix.id_to_piece(i), "single_word": False, "special": True}
                   for i in range(self.with_prefix.get_piece_size())
                   if self.with_prefix.is_control(i) or self.with_prefix.is_unknown(i)]
        self.added, self.legacy = special + added, legacy
        self.ids = {t["content"]: t["id"] for t in self.added}
        self.cutters = [self.cutter([t for t in self.added if not t["special"]]), self.cutter(self.added)]

    @staticmethod
    def cutter(added):
        """The `tokenizers` package, whose added tokens are these; the rest comes back as one unknown token each."""
        cutter = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        cutter.add_tokens([AddedToken(t["content"], special=t["special"], normalized=False, single_word=t["single_word"])
                           for t in added])
        return cutter

    def cut(self, text, special):
        encoding = self.cutters[special].encode(text, add_special_tokens=False)
        return [(text[a:b], None if t == "?" else self.ids[t]) for t, (a, b) in zip(encoding.tokens, encoding.offsets)]

    def encode(self, text, special):
        ids = []
        for i, (section, token) in enumerate(self.cut(text, special)):
            if token is not None:
                ids.append(token)
            else:
                ids += (self.with_prefix if i == 0 or self.legacy else self.without).encode(section)
        return ids


def both_ways(tokenizer, text):
    """Ids with special tokens as plain text, and as special ones."""
    if isinstance(tokenizer, Pieces):
        return tokenizer.encode(text, False), tokenizer.encode(text, True)
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    return plain, tokenizer.encode(text, add_special_tokens=False).ids


def checksum(ids):
    value = 0xcbf29ce484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value & 0xffffffff:08x}"


def write_sums(path, tokenizer, texts):
    lines = []
    for text in texts:
        plain, special = both_ways(tokenizer, text)
        lines.append(checksum(plain) + ("" if plain == special else " " + checksum(special)))
    path.write_text("\n".join(lines) + "\n")


def write_cases(path, tokenizer, texts):
    cases = []
    for text in texts:
        clean = text.decode("utf-8", "replace")
        plain, special = both_ways(tokenizer, clean)
        case = {"hex": text.hex(), "ids": plain, "decoded": tokenizer.decode(plain, skip_special_tokens=False)}
        if special != plain:
            case["special_ids"] = special
        cases.append(case)
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    path.write_text("[\n" + lines + "\n]\n")


def dump(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_pieces(folder, model, legacy):
    """A folder as Llama 2's: the model, the added tokens in both places, one of them in the list alone."""
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    added = added_pieces(size)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    dump(folder / "added_tokens.json", {t["content"]: t["id"] for t in added if not t["single_word"]})
    described = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added if t["content"] != "<pad>"}
    dump(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "legacy": legacy,
                                            "added_tokens_decoder": described})
    return Pieces(model, added, legacy)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    cases = [s.encode() for s in STRINGS + random_strings(90, 7)] + BYTES
    texts = tokenizer_texts.texts(2200, 1)
    (out / "texts.jsonl").write_text("".join(json.dumps(t, ensure_ascii=False) + "\n" for t in texts))
    for kind in ["gpt2", "llama3", "qwen2"]:
        dump(out / f"{kind}.json", build(kind))
        tokenizer = Tokenizer.from_file(str(out / f"{kind}.json"))
        write_cases(out / f"{kind}_cases.json", tokenizer, cases)
        write_sums(out / f"{kind}.sums", tokenizer, texts)
    lines = 8 * tokenizer_texts.SENTENCES[:16] + tokenizer_texts.SENTENCES[16:] + [line for c in tokenizer_texts.CODE for line in c.splitlines() if line]
    model = piece_model("bpe", 1500, lines)
    for kind, file in piece_families(model).items():
        dump(out / kind / "tokenizer.json", file)
        tokenizer = Tokenizer.from_file(str(out / kind / "tokenizer.json"))
        write_cases(out / f"{kind}_cases.json", tokenizer, cases[:112:2] + cases[-len(BYTES):])
        write_sums(out / f"{kind}.sums", tokenizer, texts)
    write_sums(out / "llama2_model.sums", write_pieces(out / "llama2", model, True), texts)
    unigram = piece_model("unigram", 1000, lines)
    write_sums(out / "unigram.sums", write_pieces(out / "unigram", unigram, False), texts)


if __name__ == "__main__":
    main()
