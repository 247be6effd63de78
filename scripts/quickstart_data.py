#!/usr/bin/env python3
"""Makes the quick start's data from Debian packages: pictures, recordings, questions and answers, and a tokenizer.

usage: quickstart_data.py DIR [--seed N] [--workers N] [--packages FOLDER]

Sources: dataset-fashion-mnist (70,000 photographs of clothes) and asterisk-core-sounds-{en,es,fr,it,ru}-wav (recordings of
people). What a recording says stands in quickstart_words.json. DIR gets

  pictures/{train,test}/NNNNN.png        28x28, grey
  sounds/{train,heldout}/LANGUAGE/*.wav  8 kHz mono, each a recording shifted in time, scaled and with noise added
  train/*.json(l)  eval/*.json(l)        LLaVA JSON (.json) and messages JSONL (.jsonl), media paths relative to DIR
  tokenizer.json                         256 bytes, merges learnt from the texts, special tokens
  MANIFEST.json                          what was made: counts, seed, sizes and hashes of the text files

Held out from training: the 10,000 test pictures; perturbations of the 140 spoken numbers (other seeds); the spoken numbers
together with test pictures; two-word numbers that were never joined in training; numbers recorded as one word ("veintiuno").
Controls: the same questions and answers with the pictures, or the sounds, exchanged between samples.

The packages are found by dpkg, or below FOLDER where they were unpacked (apt-get download NAME; dpkg -x NAME*.deb FOLDER).
Needs Python >= 3.9 and nothing else. The same seed gives the same bytes. A finished DIR is left as it is.
"""
import argparse
import collections
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time

import learn_tokenizer
import quickstart_media as media
import quickstart_text as text

HERE = os.path.dirname(os.path.abspath(__file__))
LANGUAGES = ("en", "es", "fr", "it", "ru")
NUM_MERGES = 640

# Perturbed copies of each recording.
COPIES = {"numbers": 32, "ordinals": 6, "days": 6, "months": 6, "letters": 6, "spelling": 6, "other": 6, "joined": 4}
HELDOUT_COPIES = {"numbers": 10, "words": 1, "joined": 1, "compounds": 4}
# Samples of one epoch. Every training picture is asked about once; the mix of one epoch is the mix of the training.
NUM_QUICK_PICTURES = 100  # training pictures kept for the look during training
NUM_SPEECH = 26000
NUM_BOTH = 20000
NUM_TEXT = 2000
NUM_HELDOUT_BOTH = 2000
NUM_CONTROL = 2000


def package_files(package, unpacked):
    """Files of a Debian package, installed or below the folder `unpacked`, or an error that says how to get it."""
    if unpacked:
        below = os.path.join(unpacked, "usr/share/datasets" if "dataset" in package else "usr/share/asterisk/sounds")
        files = [os.path.join(folder, name) for folder, _, names in os.walk(below) for name in names]
        if package.startswith("asterisk"):
            language = package.split("-")[3]
            files = [path for path in files if os.path.relpath(path, below).startswith(f"{language}_")]
    else:
        try:
            files = subprocess.run(["dpkg", "-L", package], check=True, capture_output=True, text=True).stdout.splitlines()
        except (OSError, subprocess.CalledProcessError):
            files = []
    if not files:
        sys.exit(f"quickstart_data.py: the Debian package {package} is missing{' below ' + unpacked if unpacked else ''}; install "
                 f"it with: apt-get install {package} (scripts/setup.sh does it), or unpack it and use --packages")
    return sorted(files)


def find_pictures(unpacked):
    """{part: (images, labels)}: paths of the four IDX files."""
    files = {os.path.basename(path): path for path in package_files("dataset-fashion-mnist", unpacked)}
    return {part: (files[f"{prefix}-images-idx3-ubyte.gz"], files[f"{prefix}-labels-idx1-ubyte.gz"])
            for part, prefix in (("train", "train"), ("test", "t10k"))}


def find_recordings(words, unpacked):
    """{group: [(language, name, word, path)]}, in the order of the table. All numbers must be there."""
    found = collections.defaultdict(list)
    for language in LANGUAGES:
        files = {"/".join(path[:-4].split("/")[-2:]): path
                 for path in package_files(f"asterisk-core-sounds-{language}-wav", unpacked) if path.endswith(".wav")}
        for group, table in words.items():
            for name, word in table.items():
                if name in files:
                    found[group].append((language, name, word, files[name]))
                elif group == "numbers":
                    sys.exit(f"quickstart_data.py: asterisk-core-sounds-{language}-wav has no recording {name}.wav")
    return found


class Sounds:
    """Names perturbed recordings and remembers them for `make`."""

    def __init__(self, root, seed):
        self.root, self.seed, self.jobs = root, seed, []

    def add(self, part, language, label, sources, copies):
        """Paths, relative to the root, of `copies` perturbations of the joined sources."""
        names = [f"sounds/{part}/{language}/{label}-{copy:02d}.wav" for copy in range(copies)]
        self.jobs += [(os.path.join(self.root, name), sources, f"{self.seed} {name}") for name in names]
        return names


_bank = []


def _start_worker(seed):
    _bank.extend(media.noise_bank(seed))


def _make_sound(job):
    media.make_sound(job, _bank)


def _write_pictures(job):
    """job = (folder, images file, first, count)."""
    folder, path, first, count = job
    (_, height, width), pixels = media.read_idx(path)
    size = width * height
    for i in range(first, first + count):
        with open(os.path.join(folder, f"{i:05d}.png"), "wb") as file:
            file.write(media.png_bytes(pixels[i * size:(i + 1) * size], width, height))


def write_media(root, pictures, sounds, seed, workers):
    jobs = []
    for part, (path, labels) in pictures.items():
        folder = os.path.join(root, "pictures", part)
        os.makedirs(folder, exist_ok=True)
        count = media.read_idx(labels)[0][0]
        jobs += [(folder, path, first, min(10000, count - first)) for first in range(0, count, 10000)]
    with multiprocessing.get_context("spawn").Pool(workers, _start_worker, (seed,)) as pool:
        for _ in pool.imap_unordered(_write_pictures, jobs):
            pass
        for _ in pool.imap_unordered(_make_sound, sounds.jobs, chunksize=64):
            pass


def file_label(name):
    """digits/h-11 -> digits-h-11"""
    return name.replace("/", "-").replace("_", "")


def exchanged(samples, key, rng):
    """The samples with `key` handed round: each gets another one's."""
    order = list(range(len(samples)))
    rng.shuffle(order)
    result = [dict(sample) for sample in samples]
    for a, b in zip(order, order[1:] + order[:1]):
        result[a][key] = samples[b][key]
    return result


def make_speech(recordings, sounds):
    """Perturbs everything that is heard. Returns {set: [(sound, answer)]}."""
    heard = collections.defaultdict(list)
    for group, entries in recordings.items():
        for language, name, word, path in entries:
            label = file_label(name)
            if group == "compounds":
                heard["heldout compounds"] += [
                    (s, word) for s in sounds.add("heldout", language, label, [path], HELDOUT_COPIES["compounds"])]
                continue
            kind = "numbers" if group == "numbers" else "words"
            heard[f"train {kind}"] += [(s, word) for s in sounds.add("train", language, label, [path], COPIES[group])]
            heard[f"heldout {kind}"] += [
                (s, word) for s in sounds.add("heldout", language, label, [path], HELDOUT_COPIES[kind])]
            if kind == "numbers":
                heard["quick numbers"] += [(s, word) for s in sounds.add("quick", language, label, [path], 1)]
    number = {(language, name): (word, path) for language, name, word, path in recordings["numbers"]}
    for language in LANGUAGES:
        for tens in range(20, 100, 10):
            for unit in range(1, 10):
                (first, path1), (second, path2) = (number[language, f"digits/{n}"] for n in (tens, unit))
                # A quarter of the phrases is kept out in every language; each word occurs in phrases that are trained.
                part = "heldout" if (tens // 10 + unit) % 4 == 0 else "train"
                copies = (COPIES if part == "train" else HELDOUT_COPIES)["joined"]
                heard[f"{part} joined"] += [(s, f"{first} {second}") for s in sounds.add(
                    part, language, f"joined-{tens}-{unit}", [path1, path2], copies)]
    return heard


def drawn(items, count, rng):
    """`count` items, each as often as the others give or take one, in random order."""
    result = []
    while len(result) < count:
        turn = list(items)
        rng.shuffle(turn)
        result += turn
    return result[:count]


def make_sets(pictures, recordings, sounds, seed):
    """{file: samples} for every training and evaluation file."""
    rng = random.Random(f"sets {seed}")
    heard = make_speech(recordings, sounds)
    seen = {}
    for part, (_, labels) in pictures.items():
        seen[part] = [(f"pictures/{part}/{i:05d}.png", text.CLOTHES[label]) for i, label in enumerate(media.read_idx(labels)[1])]
    quick_pictures, seen["train"] = seen["train"][:NUM_QUICK_PICTURES], seen["train"][NUM_QUICK_PICTURES:]

    def picture_set(items):
        return [text.picture_sample(f"picture-{i}", picture, answer, rng) for i, (picture, answer) in enumerate(items)]

    def speech_set(items):
        return [text.speech_sample(f"speech-{i}", sound, answer, rng) for i, (sound, answer) in enumerate(items)]

    def both_set(seen_items, heard_items):
        return [text.both_sample(f"both-{i}", picture, sound, f"{word} {thing}", rng)
                for i, ((picture, thing), (sound, word)) in enumerate(zip(seen_items, heard_items))]

    others = heard["train words"] + heard["train joined"]
    num_others = min(NUM_SPEECH // 3, len(others))
    speech = drawn(heard["train numbers"], NUM_SPEECH - num_others, rng) + drawn(others, num_others, rng)
    both = both_set(drawn(seen["train"], NUM_BOTH, rng), drawn(heard["train numbers"], NUM_BOTH, rng))
    facts, heldout_facts = text.facts(seed)
    sets = {
        "train/pictures.json": picture_set(seen["train"]),
        "train/speech.jsonl": speech_set(speech),
        "train/both.jsonl": both,
        "train/text.json": [text.text_sample(f"text-{i}", *fact) for i, fact in enumerate(drawn(facts, NUM_TEXT, rng))],
        "eval/pictures.json": picture_set(seen["test"]),
        "eval/speech.jsonl": speech_set(heard["heldout numbers"]),
        "eval/both.jsonl": both_set(drawn(seen["test"], NUM_HELDOUT_BOTH, rng),
                                    drawn(heard["heldout numbers"], NUM_HELDOUT_BOTH, rng)),
        "eval/words.jsonl": speech_set(heard["heldout words"]),
        "eval/phrases.jsonl": speech_set(heard["heldout joined"]),
        "eval/compounds.jsonl": speech_set(heard["heldout compounds"]),
        "eval/text.json": [text.text_sample(f"text-{i}", *fact) for i, fact in enumerate(heldout_facts)],
    }
    quick = drawn(heard["quick numbers"], 2 * NUM_QUICK_PICTURES, rng)
    sets["eval/quick.jsonl"] = (
        [text.as_messages(sample) for sample in picture_set(quick_pictures)] + speech_set(quick[:NUM_QUICK_PICTURES]) +
        both_set(quick_pictures, quick[NUM_QUICK_PICTURES:]))
    for name, key in (("pictures.json", "image"), ("speech.jsonl", "audios"), ("both.jsonl", "images"), ("both.jsonl", "audios")):
        stem, ending = name.split(".")
        which = {"image": "pictures", "images": "pictures", "audios": "sounds"}[key]
        samples = rng.sample(sets[f"eval/{name}"], min(NUM_CONTROL, len(sets[f"eval/{name}"])))
        sets[f"eval/{stem}_swapped_{which}.{ending}"] = exchanged(samples, key, rng)
    return sets


def write_sets(root, sets):
    for name, samples in sets.items():
        os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
        with open(os.path.join(root, name), "w", encoding="utf-8", newline="\n") as file:
            if name.endswith(".jsonl"):
                file.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
            else:
                file.write("[\n" + ",\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples) + "\n]\n")


def version_of_scripts():
    """A hash of what decides the data: these scripts and the word table."""
    digest = hashlib.sha256()
    for name in ("quickstart_data.py", "quickstart_media.py", "quickstart_text.py", "quickstart_words.json", "learn_tokenizer.py"):
        with open(os.path.join(HERE, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def write_manifest(root, seed, version, sets, sounds, pictures):
    files = {}
    for name in sorted([*sets, "tokenizer.json"]):
        with open(os.path.join(root, name), "rb") as file:
            data = file.read()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if name in sets:
            files[name]["samples"] = len(sets[name])
    counts = {"pictures/" + part: media.read_idx(labels)[0][0] for part, (_, labels) in pictures.items()}
    for job in sounds.jobs:
        key = "/".join(os.path.relpath(job[0], root).split(os.sep)[:2])
        counts[key] = counts.get(key, 0) + 1
    manifest = {"format": 1, "seed": seed, "scripts": version, "media_files": counts, "files": files}
    with open(os.path.join(root, "MANIFEST.json"), "w", encoding="utf-8", newline="\n") as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")
    return manifest


def is_done(root, seed, version):
    try:
        with open(os.path.join(root, "MANIFEST.json"), encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError):
        return False
    return (manifest.get("seed"), manifest.get("scripts")) == (seed, version)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", help="folder below which the Debian packages were unpacked")
    parser.add_argument("--workers", type=int, default=min(4, len(os.sched_getaffinity(0))))
    args = parser.parse_args()
    begin, root, version = time.monotonic(), os.path.abspath(args.dir), version_of_scripts()
    if is_done(root, args.seed, version):
        print(f"{root}: complete, nothing to do")
        return
    if os.path.exists(os.path.join(root, "MANIFEST.json")):
        os.remove(os.path.join(root, "MANIFEST.json"))
        for name in ("pictures", "sounds", "train", "eval"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(HERE, "quickstart_words.json"), encoding="utf-8") as file:
        recordings = find_recordings(json.load(file), args.packages)
    pictures, sounds = find_pictures(args.packages), Sounds(root, args.seed)
    sets = make_sets(pictures, recordings, sounds, args.seed)
    write_sets(root, sets)
    learn_tokenizer.write(os.path.join(root, "tokenizer.json"), learn_tokenizer.learn(text.all_texts(sets), NUM_MERGES))
    print(f"{root}: texts and tokenizer written, now {sum(media.read_idx(p[1])[0][0] for p in pictures.values())} pictures "
          f"and {len(sounds.jobs)} sounds", flush=True)
    write_media(root, pictures, sounds, args.seed, args.workers)
    manifest = write_manifest(root, args.seed, version, sets, sounds, pictures)
    for name, entry in manifest["files"].items():
        print(f"  {name:38s} {entry.get('samples', ''):>7} samples" if "samples" in entry else f"  {name}")
    print(f"{root}: done in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
