"""Tar shards in the formats that Python's tarfile writes, and what tarfile says is in them: the test compares places.

Usage: python3 make_shards.py   (writes beside itself; the same bytes every time)
"""
import io
import os
import re
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
# The rule of the webdataset package (tariterators.base_plus_ext, and names that it skips).
SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
META = re.compile(r"__[^/]*__($|/)")

LONG = "a_long_folder_name/" * 8
MEMBERS = [
    ("0001.jpg", b"\xff\xd8 picture"), ("0001.txt", b"one\n"),
    ("__index__/0001.json", b"{}"), ("__meta__", b"skipped"), ("no_field", b"skipped"),
    ("d.x/0002.IMG1.Jpg", b"p" * 511), ("d.x/0002.img10.jpg", b"p" * 512), ("d.x/0002.img2.jpg", b"p" * 513),
    ("d.x/0002.json", b'{"caption": "three"}'),
    ("d/0002.txt", b""),
    (LONG + "0003.png", b"far"), (LONG + "0003.txt", b"away"),
    ("stra\u00dfe/\u00e9t\u00e9.txt", b"names in UTF-8"), ("stra\u00dfe/\u00e9t\u00e9.wav", b"RIFF"),
    ("0001.txt", b"a key that comes again is another sample"),
]


def write(name, form):
    with tarfile.open(os.path.join(HERE, name), "w", format=form, encoding="utf-8") as tar:
        folder = tarfile.TarInfo("d.x/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for member, content in MEMBERS:
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            if member == "0001.txt":
                link = tarfile.TarInfo("0001.png")
                link.type, link.linkname = tarfile.SYMTYPE, "0001.jpg"
                tar.addfile(link)


def listing(name):
    lines = []
    with tarfile.open(os.path.join(HERE, name), encoding="utf-8") as tar:
        for info in tar:
            split = SPLIT.match(info.name)
            if not info.isreg() or META.match(info.name) or not split:
                continue
            lines.append("\t".join([split[1], split[2].lower(), str(info.offset_data), str(info.size)]))
    return "\n".join(lines) + "\n"


for stem, form in [("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)]:
    write(stem + ".tar", form)
    with open(os.path.join(HERE, stem + ".txt"), "w", encoding="utf-8") as out:
        out.write(listing(stem + ".tar"))
