"""The words of the quick start: questions, answers, facts, and the samples made of them.

Pictures and text are LLaVA records (`conversations`, `image`), sounds and both are messages records (`messages`, `images`,
`audios`): the two formats that the trainer reads.
"""
import collections
import random

# Fashion-MNIST's ten labels as one noun each, without plural.
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

PICTURE_QUESTIONS = ("what is this?", "what do you see?", "what is in the picture?", "name the thing in the picture.")
SPEECH_QUESTIONS = ("what was said?", "what do you hear?", "what did the voice say?", "write down the spoken word.")
BOTH_QUESTIONS = ("what was said, and what is this?", "what do you hear, and what do you see?",
                  "name the spoken word and the thing in the picture.")

UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
         "eighteen nineteen twenty").split()
MONTHS = "january february march april may june july august september october november december".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
SPELLING = ("alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec romeo "
            "sierra tango uniform victor whiskey x-ray yankee zulu").split()
# Zero to ten in the other languages of the recordings.
ABROAD = {
    "spanish": "cero uno dos tres cuatro cinco seis siete ocho nueve diez",
    "french": "zéro un deux trois quatre cinq six sept huit neuf dix",
    "italian": "zero uno due tre quattro cinque sei sette otto nove dieci",
    "russian": "ноль один два три четыре пять шесть семь восемь девять десять",
}

# Texts of the chat templates: learnt by the tokenizer so that a system prompt costs few tokens.
TEMPLATE_TEXTS = (
    "You are a helpful assistant.", "system\n", "user\n", "assistant\n", "USER: ", " ASSISTANT: ", " ASSISTANT:",
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and "
    "polite answers to the user's questions. ", "\n", "Audio 1: ",
)


def picture_sample(name, picture, answer, rng):
    question = rng.choice(PICTURE_QUESTIONS)
    return {"id": name, "image": picture, "conversations": [
        {"from": "human", "value": f"<image>\n{question}"}, {"from": "gpt", "value": answer}]}


def _messages(name, question, answer, **lists):
    return {"id": name, "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **lists}


def speech_sample(name, sound, answer, rng):
    return _messages(name, f"<audio>\n{rng.choice(SPEECH_QUESTIONS)}", answer, audios=[sound])


def both_sample(name, picture, sound, answer, rng):
    question = rng.choice(BOTH_QUESTIONS)
    places = rng.choice(("<image>\n<audio>\n", "<audio>\n<image>\n"))
    return _messages(name, places + question, answer, images=[picture], audios=[sound])


def text_sample(name, question, answer):
    return {"id": name, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def as_messages(sample):
    """A picture sample in the other format."""
    human, gpt = (turn["value"] for turn in sample["conversations"])
    return _messages(sample["id"], human, gpt, images=[sample["image"]])


def facts(seed):
    """(training, held-out): [(question, answer)]. Each fact is asked in several wordings; one of them is held out for a
    quarter of the facts."""
    asked = []
    for words, what in ((UNITS, "number"), (MONTHS, "month"), (DAYS, "day")):
        for before, after in zip(words, words[1:]):
            asked.append(([f"what comes after {before}?", f"which {what} follows {before}?"], after))
            asked.append(([f"what comes before {after}?", f"which {what} precedes {after}?"], before))
    for word in SPELLING:
        asked.append(([f"spell {word[0]}.", f"which word stands for the letter {word[0]}?"], word))
    for language, words in ABROAD.items():
        for english, word in zip(UNITS, words.split()):
            asked.append(([f"what is {word} in english?", f"translate {word} from {language}."], english))
    rng = random.Random(f"facts {seed}")
    training, heldout = [], []
    for questions, answer in asked:
        keep = rng.randrange(len(questions)) if rng.randrange(4) == 0 else None
        for i, question in enumerate(questions):
            (heldout if i == keep else training).append((question, answer))
    return training, heldout


def all_texts(sets):
    """{text: count}: what the tokenizer learns from. Training texts, and each word of the templates."""
    texts = collections.Counter()
    for name, samples in sets.items():
        if name.startswith("train/"):
            for sample in samples:
                for turn in sample.get("conversations") or sample["messages"]:
                    texts[turn.get("value") or turn["content"]] += 1
    for entry in TEMPLATE_TEXTS:
        texts[entry] += 1000
    return texts
