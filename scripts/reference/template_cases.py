#!/usr/bin/env python3
"""Makes tests/data/templates.json: dialogues as transformers' apply_chat_template writes them, text and ids, with the families' own
Jinja templates.

usage: template_cases.py TESTS_DATA_FOLDER        (needs: pip install -r requirements.txt)
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
          "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
          "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
          "{{ content }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
VICUNA = ("{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
          "{% else %}{% set rest = messages %}{% set system = 'A chat between a curious user and an artificial intelligence assistant. "
          "The assistant gives helpful, detailed, and polite answers to the user\\'s questions.' %}{% endif %}"
          "{{ bos_token + system + ' ' }}{% for message in rest %}{% if message['role'] == 'user' %}"
          "{{ 'USER: ' + message['content'] + ' ' }}{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}"
          "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}")
# As tests/data/text_support.h adds them to llama3.json, from id 1000 on.
SPECIAL = ["<s>", "</s>", "<image>", "<audio>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def dialogue(*turns, system=None):
    roles = ["user", "assistant"]
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": roles[i % 2], "content": t} for i, t in enumerate(turns)]


DIALOGUES = [
    dialogue("what is this?", "ankle boot"),
    dialogue("what is this?", "ankle boot", "sure?", "yes."),
    dialogue("hello", "Hi there!\nHow are you?", system="Be brief."),
    dialogue("Привет, как дела?", "今日は良い天気ですね。", "çava?", "🙂 l'été à la plage"),
    dialogue("def f(x):\n    return x + 1", "  two spaces, then\n\n  more  ", "tabs\tand\t\tmore", "12345 678"),
    dialogue("a", "b", "c", "d", "e", "f", system="x\n\ny"),
]


def byte_level(folder):
    file = json.loads((folder / "tokenizer" / "llama3.json").read_text())
    file["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(file))
    first = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer, lambda i: i if i < first else 1000 + i - first


def main():
    folder = Path(sys.argv[1])
    ours, renumber = byte_level(folder)
    pieces = [(kind, Tokenizer.from_file(str(folder / "tokenizer" / kind / "tokenizer.json"))) for kind in ("llama2", "gemma")]
    runs = [("chatml", CHATML, "llama3", ours, renumber, None), ("llama3", LLAMA3, "llama3", ours, renumber, "<|begin_of_text|>"),
            ("vicuna_v1", VICUNA, "llama3", ours, renumber, "<s>")]
    runs += [("vicuna_v1", VICUNA, kind, tokenizer, lambda i: i, "<s>") for kind, tokenizer in pieces]
    cases = []
    for name, jinja, kind, tokenizer, number, bos in runs:
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token="</s>")
        for messages in DIALOGUES:
            text = fast.apply_chat_template(messages, chat_template=jinja, tokenize=False)
            prompt = fast.apply_chat_template(messages[:-1], chat_template=jinja, tokenize=False, add_generation_prompt=True)
            ids = [number(i) for i in fast(text, add_special_tokens=False)["input_ids"]]
            start = [number(i) for i in fast(prompt, add_special_tokens=False)["input_ids"]]
            cases.append({"template": name, "tokenizer": kind, "messages": messages, "text": text, "ids": ids, "prompt_ids": start})
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    (folder / "templates.json").write_text("[\n" + lines + "\n]\n")


main()
