#!/usr/bin/env python3
"""Turns parquet files of Hugging Face data sets into tar shards that `format: webdataset` reads.

usage: parquet_to_webdataset.py FOLDER FILE.parquet... [options]

Pictures and sounds are columns of {bytes, path} structs or lists of them; what they are is read from the file's own
description, else from the column's name. Dialogues are a column `messages` or `conversations`; without one, a text column
becomes the caption. Needs pyarrow; nothing else of mmtrain does. The same input gives the same shards.
"""
import argparse
import io
import json
import os
import sys
import tarfile

DIALOGUES = ("messages", "conversations")
TEXTS = ("caption", "text", "txt", "sentence", "transcription", "transcript")
SOUND_NAMES = ("audio", "sound", "speech", "wav")
PLACEHOLDER = {"image": "<image>", "audio": "<audio>"}


class Mistake(Exception):
    pass


def field_of(content):
    """The field that these bytes make, by what they are and not by their name."""
    head = bytes(content[:16])
    for magic, name in [(b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mp3")]:
        if head.startswith(magic):
            return name
    if head[:4] in (b"RIFF", b"RF64"):
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(head[8:12])
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 6:
        return "mp3"
    return None


def described(feature):
    """"image" or "audio" where the description of a column says so, through lists."""
    while isinstance(feature, list) and feature:
        feature = feature[0]
    while isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    kind = feature.get("_type") if isinstance(feature, dict) else None
    return {"Image": "image", "Audio": "audio"}.get(kind)


def media_columns(schema, options):
    """Names of the columns with pictures and with sounds, in the order of the file."""
    import pyarrow as pa

    features = {}
    if schema.metadata and b"huggingface" in schema.metadata:
        features = json.loads(schema.metadata[b"huggingface"]).get("info", {}).get("features") or {}
    found = {"image": [], "audio": []}
    for column in schema:
        kind = described(features.get(column.name))
        inner = column.type
        while pa.types.is_list(inner) or pa.types.is_large_list(inner):
            inner = inner.value_type
        holds_bytes = pa.types.is_struct(inner) and inner.get_field_index("bytes") >= 0
        if kind is None and holds_bytes:
            kind = "audio" if any(word in column.name.lower() for word in SOUND_NAMES) else "image"
        if column.name in options.image:
            kind = "image"
        if column.name in options.audio:
            kind = "audio"
        if kind:
            found[kind].append(column.name)
    return found


def without_nulls(value):
    """Structs of Arrow have all keys of all rows; those without a value were not there."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def read_medium(value, folder, where):
    content = value if isinstance(value, (bytes, bytearray)) else value.get("bytes")
    if content is None:
        path = os.path.join(folder, value.get("path") or "")
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise Mistake(f"{where}: no bytes, and the file they should be in: {error}") from None
    field = field_of(content)
    if field is None:
        raise Mistake(f"{where}: neither JPEG, PNG, WebP, WAV, FLAC, OGG nor MP3 (it begins {bytes(content[:8])!r})")
    return field, content


def slots(turns, kind):
    """Placeholders and parts of a kind in the turns that are not answers."""
    count = 0
    for turn in turns:
        if turn.get("role", turn.get("from")) in ("assistant", "gpt"):
            continue
        content = turn.get("content", turn.get("value"))
        if isinstance(content, list):
            count += sum(isinstance(p, dict) and str(p.get("type", "")).startswith(kind) for p in content)
        else:
            count += str(content).count(PLACEHOLDER[kind])
    return count


def prepend(turns, kind, count):
    for turn in turns:
        if turn.get("role", turn.get("from")) in ("user", "human"):
            key = "content" if "content" in turn else "value"
            if isinstance(turn[key], list):
                turn[key] = [{"type": kind}] * count + turn[key]
            else:
                turn[key] = (PLACEHOLDER[kind] + "\n") * count + turn[key]
            return


def members(row, columns, dialogue, text, options, folder, where):
    """(field, bytes) of a row."""
    out, names = [], {"image": [], "audio": []}
    for kind, column_names in columns.items():
        media = []
        for name in column_names:
            value = row[name]
            media += [v for v in value if v is not None] if isinstance(value, list) else [value] if value is not None else []
        for number, value in enumerate(media):
            field, content = read_medium(value, folder, f"{where}, {kind} {number}")
            if len(media) > 1:
                field = f"{kind}{number}.{field}"
            names[kind].append(field)
            out.append((field, content))
    if dialogue:
        turns = without_nulls(row[dialogue])
        if isinstance(turns, str):
            turns = json.loads(turns)
        record = {"id": str(row["id"])} if row.get("id") is not None else {}
        for kind, fields in names.items():
            found = slots(turns, kind)
            if options.prepend_media and fields and found == 0:
                prepend(turns, kind, len(fields))
            elif found != len(fields):
                raise Mistake(f"{where}: {len(fields)} {kind}s, but {found} places for them in the dialogue"
                              + ("" if found else " (--prepend-media puts them in front of the first user turn)"))
            if fields:
                record[kind + "s"] = fields
        record[dialogue] = turns
        out.append(("json", json.dumps(record, ensure_ascii=False).encode()))
    elif row[text] is None:
        raise Mistake(f"{where}: the column {text} is empty")
    else:
        out.append(("txt", str(row[text]).encode()))
    return out


class Shards:
    def __init__(self, folder, prefix, per_shard):
        self.folder, self.prefix, self.per_shard = folder, prefix, per_shard
        self.samples = self.shards = 0
        self.tar = self.path = None

    def add(self, fields):
        if self.tar is None:
            self.path = os.path.join(self.folder, f"{self.prefix}-{self.shards:06d}.tar")
            self.tar = tarfile.open(self.path + ".part", "w", format=tarfile.USTAR_FORMAT)
        for field, content in fields:
            info = tarfile.TarInfo(f"{self.samples:09d}.{field}")
            info.size = len(content)
            self.tar.addfile(info, io.BytesIO(content))
        self.samples += 1
        if self.samples % self.per_shard == 0:
            self.close()

    def close(self):
        """A shard has its name only when it is whole."""
        if self.tar is not None:
            self.tar.close()
            os.replace(self.path + ".part", self.path)
            self.shards += 1
            self.tar = None


def convert(options):
    import pyarrow.parquet as parquet

    os.makedirs(options.folder, exist_ok=True)
    shards, skipped = Shards(options.folder, options.prefix, options.samples_per_shard), 0
    for path in options.files:
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
        columns = media_columns(schema, options)
        dialogue = next((n for n in DIALOGUES if n in schema.names), None) if options.text is None else None
        text = options.text or next((n for n in TEXTS if n in schema.names), None)
        if dialogue is None and text not in schema.names:
            raise Mistake(f"{path}: no column {' or '.join(DIALOGUES)}, no text: name one with --text ({', '.join(schema.names)})")
        for name in options.image + options.audio:
            if name not in schema.names:
                raise Mistake(f"{path}: no column {name} ({', '.join(schema.names)})")
        said = dialogue or text
        print(f"{path}: {file.metadata.num_rows} rows; pictures: {columns['image']}, sounds: {columns['audio']}, text: {said}")
        wanted = [n for n in schema.names if n in columns["image"] + columns["audio"] + [said, "id"]]
        number = 0
        for batch in file.iter_batches(batch_size=64, columns=wanted):
            for row in batch.to_pylist():
                where = f"{path}: row {number}"
                number += 1
                try:
                    shards.add(members(row, columns, dialogue, text, options, os.path.dirname(path), where))
                except Mistake as mistake:
                    if not options.skip_bad:
                        raise
                    skipped += 1
                    print(f"left out: {mistake}", file=sys.stderr)
    shards.close()
    print(f"{shards.samples} samples in {shards.shards} shards, {skipped} rows left out: "
          f"{options.folder}/{options.prefix}-{{000000..{max(shards.shards - 1, 0):06d}}}.tar")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the shards go")
    parser.add_argument("files", nargs="+", metavar="FILE.parquet")
    parser.add_argument("--prefix", default="shard")
    parser.add_argument("--samples-per-shard", type=int, default=1000)
    parser.add_argument("--text", help="the column with captions (no dialogue is looked for)")
    parser.add_argument("--image", action="append", default=[], metavar="COLUMN", help="a column with pictures")
    parser.add_argument("--audio", action="append", default=[], metavar="COLUMN", help="a column with sounds")
    parser.add_argument("--prepend-media", action="store_true", help="media that no dialogue places go before the first user turn")
    parser.add_argument("--skip-bad", action="store_true", help="leave rows out that cannot be used, instead of stopping")
    options = parser.parse_args()
    try:
        convert(options)
    except Mistake as mistake:
        sys.exit(f"parquet_to_webdataset: {mistake}")


if __name__ == "__main__":
    main()
