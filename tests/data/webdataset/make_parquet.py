"""The shards in parquet/: small parquet files as Hugging Face data sets are, through scripts/parquet_to_webdataset.py.

Usage: python3 make_parquet.py   (needs pyarrow; writes beside itself; the same bytes every time)
"""
import json
import os
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as parquet

HERE = os.path.dirname(os.path.abspath(__file__))
MEDIA = os.path.join(HERE, "..", "media")
SCRIPT = os.path.join(HERE, "..", "..", "..", "scripts", "parquet_to_webdataset.py")


def medium(name):
    with open(os.path.join(MEDIA, name), "rb") as file:
        return {"bytes": file.read(), "path": "anything.bin"}


STORED = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PART = pa.struct([("type", pa.string()), ("text", pa.string()), ("index", pa.int64())])
DESCRIPTION = {"info": {"features": {"pictures": [{"_type": "Image"}], "clip": {"_type": "Audio", "sampling_rate": 8000}}}}


def run(folder, name, table, *options):
    path = os.path.join(folder, name + ".parquet")
    parquet.write_table(table, path)
    subprocess.run([sys.executable, SCRIPT, os.path.join(HERE, "parquet"), path, "--prefix", name, *options], check=True)


with tempfile.TemporaryDirectory() as folder:
    # A list of pictures and a sound that only the description names; content in parts; a row without media.
    parts = [{"type": "image", "index": 0}, {"type": "text", "text": "and"}, {"type": "image", "index": 1}, {"type": "audio"}]
    dialogues = pa.table({
        "id": pa.array([7, 8]),
        "pictures": pa.array([[medium("grey.png"), medium("jgrey.jpg")], []], pa.list_(STORED)),
        "clip": pa.array([medium("mono8.wav"), None], STORED),
        "messages": pa.array([[{"role": "user", "content": parts}, {"role": "assistant", "content": [{"type": "text", "text": "both"}]}],
                              [{"role": "user", "content": [{"type": "text", "text": "alone?"}]},
                               {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}]],
                             pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(PART))]))),
    }).replace_schema_metadata({"huggingface": json.dumps(DESCRIPTION)})
    run(folder, "dialogue", dialogues)
    # LLaVA's spelling without placeholders, and the path in the place of bytes.
    with open(os.path.join(folder, "beside.webp"), "wb") as file:
        file.write(medium("lossy.webp")["bytes"])
    turns = [{"from": "human", "value": "what?"}, {"from": "gpt", "value": "a slope"}]
    run(folder, "llava", pa.table({
        "image": pa.array([medium("bit.png"), {"bytes": None, "path": "beside.webp"}], STORED),
        "conversations": pa.array([turns, turns], pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
    }), "--prepend-media", "--samples-per-shard", "1")
    run(folder, "caption", pa.table({
        "photo": pa.array([medium("grey.png"), medium("jgrey.jpg"), {"bytes": b"GIF89a", "path": "x.gif"}], STORED),
        "caption": pa.array(["a grey slope", "\u00e9t\u00e9\n", "none"]),
    }), "--skip-bad")
