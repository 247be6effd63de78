"""Makes animations/: small GIF and WebP animations, and animations/frames.txt, which says what Pillow makes of them.

  python3 -m venv v && v/bin/pip install pillow numpy && v/bin/python make_animations.py [FOLDER [COUNT]]

A line a file: name, width, height, frames; then by frame its milliseconds and the FNV-1a hash of its RGB bytes, as
`seek(i)` and `convert("RGB")` give them. COUNT: GIFs of random structure (8 are checked in).
"""
import io
import random
import struct
import sys
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def lzw(bits, indices):
    """Codes of single pixels, the table cleared before a code grows: every decoder reads them alike."""
    clear, width = 1 << bits, bits + 1
    codes, since = [clear], 0
    for index in indices:
        if since >= (1 << bits) - 2:
            codes.append(clear)
            since = 0
        codes.append(int(index))
        since += 1
    codes.append(clear + 1)
    number = at = 0
    for code in codes:
        number |= code << at
        at += width
    data = number.to_bytes((at + 7) // 8, "little")
    blocks = b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255))
    return bytes([bits]) + blocks + b"\0"


def control(disposal, transparent, delay):
    return b"!\xf9\x04" + struct.pack("<BHB", disposal << 2 | (transparent is not None), delay, transparent or 0) + b"\0"


def palette(colors):
    bits = max(1, (len(colors) - 1).bit_length())
    return bits, b"".join(bytes(c) for c in colors) + bytes(3 * ((1 << bits) - len(colors)))


def frame(x, y, indices, colors=None, interlaced=False, bits=None):
    height, width = indices.shape
    flags, table = 0x40 if interlaced else 0, b""
    if colors is not None:
        size, table = palette(colors)
        flags |= 0x80 | (size - 1)
    order = range(height)
    if interlaced:
        order = [*range(0, height, 8), *range(4, height, 8), *range(2, height, 4), *range(1, height, 2)]
    pixels = [i for row in order for i in indices[row]]
    return b"," + struct.pack("<HHHHB", x, y, width, height, flags) + table + lzw(bits or 3, pixels)


def gif(width, height, colors, body, background=0, version=b"89a"):
    flags, table = 0, b""
    if colors is not None:
        size, table = palette(colors)
        flags = 0x80 | (size - 1)
    return b"GIF" + version + struct.pack("<HHBBB", width, height, flags, background, 0) + table + body + b";"


def random_gif(seed):
    r = random.Random(seed)
    width, height = r.randint(1, 12), r.randint(1, 9)
    some = lambda n: [tuple(r.randrange(256) for _ in range(3)) for _ in range(n)]
    ramp = [(i, i, i) for i in range(8)]
    grey = r.random() < 0.25  # then all frames: see animation.h
    tables = [ramp, None] if grey else [some(8), some(8), some(4)]
    whole = r.choice(tables)
    body = b""
    for i in range(r.randint(2, 8)):
        x, y = r.randrange(width), r.randrange(height)
        w, h = r.randint(1, width - x), r.randint(1, height - y)
        if i == 0 and r.random() < 0.6:
            x, y, w, h = 0, 0, width, height
        if r.random() < 0.85:
            body += control(r.choice([0, 0, 1, 2, 2, 3, 3, 5]), r.choice([None, None, r.randrange(8)]), r.choice([0, 1, 4, 10, 250]))
        if r.random() < 0.1:
            body += b"!\xfe\x05hello\0"
        local = r.choice(tables + [None] + ([ramp] if i > 0 else []))
        if local is None and whole is None and not grey:
            local = some(8)
        indices = np.array([[r.randrange(8) for _ in range(w)] for _ in range(h)])
        body += frame(x, y, indices, local, r.random() < 0.3)
    return gif(width, height, whole, body, r.randrange(8))


def scene(i, size=(40, 28)):
    """A disc that moves over a slope of colours."""
    y, x = np.mgrid[0:size[1], 0:size[0]].astype(np.float64)
    disc = (x - 6 - 4 * i) ** 2 + (y - 12) ** 2 < 36
    rgb = np.stack([x * 6, y * 9, 120 + 0 * x], -1)
    rgb[disc] = (250, 40 + 20 * i, 30)
    return np.clip(rgb, 0, 255).astype(np.uint8)


def saved(images, kind, **options):
    out = io.BytesIO()
    images[0].save(out, kind, save_all=True, append_images=images[1:], **options)
    return out.getvalue()


def animations(count):
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (250, 250, 10), (1, 2, 3), (90, 80, 70), (7, 99, 200), (255, 255, 255)]
    full = np.arange(48).reshape(6, 8) % 8
    small = np.array([[1, 2, 3], [4, 2, 6]])
    yield "plain.gif", gif(8, 6, colors, frame(0, 0, full) + frame(2, 1, small), version=b"87a")
    yield "one.gif", gif(8, 6, colors, frame(0, 0, full, interlaced=True))
    yield "disposals.gif", gif(8, 6, colors, control(1, None, 5) + frame(0, 0, full) + control(2, 2, 7) + frame(1, 1, small)
                               + control(3, 2, 300) + frame(4, 3, small) + frame(0, 4, small[:1])
                               + control(0, None, 0) + frame(5, 0, small), background=3)
    yield "short_palette.gif", gif(8, 6, colors[:2], control(2, 5, 5) + frame(0, 0, full) + control(2, 5, 9) + frame(2, 2, small)
                                   + frame(0, 0, small))
    pictures = [Image.fromarray(scene(i)) for i in range(7)]
    yield "scene.gif", saved(pictures, "GIF", duration=[40, 50, 60, 70, 80, 90, 1000], loop=0)
    greys = [p.convert("L") for p in pictures[:4]]
    yield "grey.gif", saved(greys, "GIF", duration=120)
    yield "lossless.webp", saved(pictures[:5], "WEBP", lossless=True, duration=[100, 150, 0, 10, 30])
    yield "lossy.webp", saved(pictures[:4], "WEBP", quality=70, duration=80)
    clear = []
    for i, p in enumerate(pictures[:4]):
        rgba = np.dstack([np.asarray(p), np.full((28, 40), 255, np.uint8)])
        rgba[4:20, 5 * i:5 * i + 12, 3] = 90 * (i % 3)
        clear.append(Image.fromarray(rgba))
    yield "alpha.webp", saved(clear, "WEBP", lossless=True, exact=True, duration=60, background=(10, 200, 30, 255))
    yield "alpha_lossy.webp", saved(clear, "WEBP", quality=60, duration=60)
    for seed in range(count):
        yield f"random{seed}.gif", random_gif(seed)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "animations"
    folder.mkdir(exist_ok=True)
    lines = []
    for name, data in animations(int(sys.argv[2]) if len(sys.argv) > 2 else 8):
        (folder / name).write_bytes(data)
        with Image.open(io.BytesIO(data)) as image:
            frames = []
            for i in range(image.n_frames):
                image.seek(i)
                rgb = image.convert("RGB")
                frames.append(f"{image.info.get('duration', 0)} {fnv(rgb.tobytes()):016x}")
            lines.append(f"{name} {rgb.width} {rgb.height} {len(frames)} {' '.join(frames)}")
    (folder / "frames.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
