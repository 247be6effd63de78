"""Makes the small media files and golden values beside it. Needed only to change them: the tests read what is checked in.

  python3 -m venv v && v/bin/pip install pillow numpy soundfile soxr transformers && v/bin/python make_media.py
  v/bin/pip install 'pillow<13' && v/bin/python make_media.py --resize-only      # releases before 13 resize in another order
  v/bin/python make_media.py --qwen2-vl-only      # the goldens of qwen2_vl.txt alone
  v/bin/python make_media.py --anyres-only        # those of anyres.txt

Goldens come from Pillow, libsndfile through soundfile, soxr through its Python binding, and transformers' Pillow image
processors and numpy Whisper feature extractor, or from the plain numpy computations below.
"""
import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps

HERE = Path(__file__).parent
WIDTH, HEIGHT = 24, 16


def save(name, data):
    (HERE / name).write_bytes(data)


def picture(width, height):
    """A smooth coloured pattern with one sharp edge."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    r = 127 + 120 * np.sin(x * 0.4) * np.cos(y * 0.25)
    g = 255 * x / max(width - 1, 1)
    b = np.where(x + y < (width + height) / 2, 40, 220 - 5 * (y % 8))
    return np.clip(np.stack([r, g, b], axis=-1), 0, 255).astype(np.uint8)


def noise(width, height):
    """The same bytes as the test's `noise_image`."""
    i = np.arange(width * height * 3, dtype=np.uint64)
    v = (i * 2654435761) & 0xFFFFFFFF
    v ^= v >> np.uint64(15)
    v = (v * 2246822519) & 0xFFFFFFFF
    return (v >> np.uint64(24)).astype(np.uint8).reshape(height, width, 3)


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def encoded(image, **options):
    out = io.BytesIO()
    image.save(out, **options)
    return out.getvalue()


def golden_rgb(name, array):
    save(name + ".rgb", np.ascontiguousarray(array, dtype=np.uint8).tobytes())


def on_white(rgba):
    """Exact blend, rounded to nearest."""
    a = rgba[..., 3:].astype(np.int64)
    return ((rgba[..., :3] * a + 255 * (255 - a)) * 2 + 255) // 510


# ---- PNG forms that Pillow does not write

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, color, rows, interlace=0, extra=b""):
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def scanlines(array):
    return b"".join(b"\0" + row.tobytes() for row in array)


def adam7(array):
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    return b"".join(scanlines(np.ascontiguousarray(array[y::dy, x::dx])) for x, y, dx, dy in passes if array[y::dy, x::dx].size)


def make_png():
    rgb = picture(WIDTH, HEIGHT)
    image = Image.fromarray(rgb)
    save("rgb.png", encoded(image, format="PNG"))
    golden_rgb("rgb", rgb)
    save("interlaced.png", png(WIDTH, HEIGHT, 8, 2, adam7(rgb), interlace=1))

    grey = image.convert("L")
    save("grey.png", encoded(grey, format="PNG"))
    golden_rgb("grey", grey.convert("RGB"))
    bit = image.convert("1")
    save("bit.png", encoded(bit, format="PNG"))
    golden_rgb("bit", bit.convert("RGB"))
    palette = image.quantize(13)
    save("palette.png", encoded(palette, format="PNG"))
    golden_rgb("palette", palette.convert("RGB"))
    save("palette_trns.png", encoded(palette, format="PNG", transparency=bytes((i * 19) % 256 for i in range(13))))
    golden_rgb("palette_trns", on_white(np.asarray(Image.open(HERE / "palette_trns.png").convert("RGBA"))))

    alpha = np.linspace(0, 255, WIDTH * HEIGHT).astype(np.uint8).reshape(HEIGHT, WIDTH)
    rgba = np.dstack([rgb, alpha])
    save("rgba.png", encoded(Image.fromarray(rgba), format="PNG"))
    golden_rgb("rgba", on_white(rgba))
    golden_rgb("rgba_pillow", Image.alpha_composite(Image.new("RGBA", (WIDTH, HEIGHT), (255, 255, 255, 255)), Image.fromarray(rgba)).convert("RGB"))
    grey_alpha = np.dstack([np.asarray(grey), alpha])
    save("grey_alpha.png", encoded(Image.fromarray(grey_alpha, "LA"), format="PNG"))
    golden_rgb("grey_alpha", on_white(np.dstack([np.asarray(grey)] * 3 + [alpha])))
    key = tuple(int(v) for v in rgb[3, 5])
    save("color_key.png", encoded(image, format="PNG", transparency=key))
    keyed = rgb.copy()
    keyed[(rgb == key).all(axis=-1)] = 255
    golden_rgb("color_key", keyed)

    ramp = np.linspace(0, 65535, WIDTH * HEIGHT).astype(np.uint16).reshape(HEIGHT, WIDTH)
    save("grey16.png", png(WIDTH, HEIGHT, 16, 0, scanlines(ramp.astype(">u2"))))
    golden_rgb("grey16", np.dstack([(ramp.astype(np.int64) * 255 * 2 + 65535) // (2 * 65535)] * 3))
    golden_rgb("grey16_pillow", np.asarray(Image.open(HERE / "grey16.png").convert("RGB")))
    deep = np.dstack([ramp, 65535 - ramp, ramp // 3])
    save("rgb16.png", png(WIDTH, HEIGHT, 16, 2, scanlines(deep.astype(">u2"))))
    golden_rgb("rgb16", (deep.astype(np.int64) * 255 * 2 + 65535) // (2 * 65535))
    golden_rgb("rgb16_pillow", np.asarray(Image.open(HERE / "rgb16.png").convert("RGB")))

    exif = Image.Exif()
    exif[0x0112] = 6
    save("exif6.png", encoded(image, format="PNG", exif=exif))
    save("strip_1x305.png", encoded(Image.fromarray(picture(305, 1)), format="PNG"))
    save("strip_305x1.png", encoded(Image.fromarray(picture(1, 305)), format="PNG"))
    golden_rgb("strip", picture(305, 1))
    save("garment.png", encoded(Image.fromarray(picture(28, 28)).convert("L"), format="PNG"))


def make_jpeg():
    image = Image.fromarray(picture(WIDTH, HEIGHT))
    forms = {"j420": dict(subsampling=2), "j422": dict(subsampling=1), "j444": dict(subsampling=0), "progressive": dict(progressive=True)}
    for name, options in forms.items():
        save(name + ".jpg", encoded(image, format="JPEG", quality=90, **options))
        golden_rgb(name, Image.open(HERE / (name + ".jpg")).convert("RGB"))
    save("jgrey.jpg", encoded(image.convert("L"), format="JPEG", quality=90))
    golden_rgb("jgrey", Image.open(HERE / "jgrey.jpg").convert("RGB"))
    save("cmyk.jpg", encoded(image.convert("CMYK"), format="JPEG", quality=90))
    golden_rgb("cmyk", Image.open(HERE / "cmyk.jpg").convert("RGB"))
    for value in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = value
        exif[0x010F] = "maker"
        save(f"exif{value}.jpg", encoded(image, format="JPEG", quality=80, exif=exif))
        golden_rgb(f"exif{value}", ImageOps.exif_transpose(Image.open(HERE / f"exif{value}.jpg")).convert("RGB"))


def make_webp():
    image = Image.fromarray(picture(WIDTH, HEIGHT))
    save("lossy.webp", encoded(image, format="WEBP", quality=80))
    golden_rgb("lossy", Image.open(HERE / "lossy.webp").convert("RGB"))
    rgba = np.dstack([picture(WIDTH, HEIGHT), np.linspace(255, 0, WIDTH * HEIGHT).astype(np.uint8).reshape(HEIGHT, WIDTH)])
    save("alpha.webp", encoded(Image.fromarray(rgba), format="WEBP", lossless=True, exact=True))
    golden_rgb("alpha", on_white(rgba))
    exif = Image.Exif()
    exif[0x0112] = 8
    save("exif8.webp", encoded(image, format="WEBP", lossless=True, exif=exif))
    golden_rgb("exif8_webp", np.asarray(image.transpose(Image.Transpose.ROTATE_90)))
    frames = [image, ImageOps.invert(image)]
    save("animated.webp", encoded(frames[0], format="WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True))


def make_resize(sizes=None):
    """One line a case: input width and height, output width and height, filter, FNV-1a of the result."""
    if sizes is None:
        sizes = [(1, 1, 5, 7), (5, 7, 1, 1), (28, 28, 28, 28), (28, 28, 14, 28), (28, 28, 28, 14), (28, 28, 56, 56), (3, 50, 50, 3), (1, 305, 9, 9),
                 (305, 1, 9, 9), (100, 75, 48, 36), (640, 48, 33, 33), (17, 19, 224, 224), (255, 257, 224, 224), (336, 252, 32, 24)]
        rng = np.random.default_rng(5)
        sizes += [tuple(int(v) for v in rng.integers(1, 70, 4)) for _ in range(60)]
    lines = []
    for w, h, ow, oh in sizes:
        source = Image.fromarray(noise(w, h))
        for code, kind in ((2, Image.Resampling.BILINEAR), (3, Image.Resampling.BICUBIC)):
            result = source.resize((ow, oh), kind)
            lines.append(f"{w} {h} {ow} {oh} {code} {fnv(result.tobytes()):016x}")
    save(f"resize_pillow{PIL.__version__.split('.')[0]}.txt", ("\n".join(lines) + "\n").encode())


def patch_rows(chw, patch):
    c, h, w = chw.shape
    return chw.reshape(c, h // patch, patch, w // patch, patch).transpose(1, 3, 0, 2, 4).reshape(-1, c * patch * patch)


def make_preprocess():
    from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil
    source = Image.fromarray(noise(61, 40))
    clip = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    value = np.asarray(clip(source, return_tensors="np")["pixel_values"][0], dtype=np.float32)
    save("clip.f32", np.ascontiguousarray(patch_rows(value, 7)).tobytes())
    siglip = SiglipImageProcessorPil(size={"height": 21, "width": 28})
    value = np.asarray(siglip(source, return_tensors="np")["pixel_values"][0], dtype=np.float32)
    save("siglip.f32", np.ascontiguousarray(patch_rows(value, 7)).tobytes())
    # Resized to fewer pixels than the crop: black around it.
    small = CLIPImageProcessorPil(size={"shortest_edge": 13}, crop_size={"height": 28, "width": 28}, do_normalize=False, do_rescale=False)
    golden_rgb("small_crop", np.asarray(small(source, return_tensors="np")["pixel_values"][0]).transpose(1, 2, 0))
    side = max(source.size)
    canvas = Image.new("RGB", (side, side), tuple(int(255 * m) for m in clip.image_mean))
    canvas.paste(source, ((side - source.width) // 2, (side - source.height) // 2))
    golden_rgb("padded", canvas.resize((28, 28), Image.Resampling.BICUBIC))


def tone(frames, rate, hz=440.0):
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(frames) / rate)


def make_sound():
    import soundfile
    import soxr
    def write(name, data, rate, **options):
        soundfile.write(HERE / name, data, rate, **options)
    left = tone(4410, 44100) + 0.2 * tone(4410, 44100, 3100.0)
    right = tone(4410, 44100, 660.0)
    write("stereo44.wav", np.stack([left, right], axis=1), 44100, subtype="PCM_16")
    write("mono8.wav", tone(801, 8000) + 0.3 * tone(801, 8000, 1900.0), 8000, subtype="PCM_16")
    write("mono16.flac", tone(1600, 16000), 16000, subtype="PCM_16")
    write("wide22.wav", tone(2205, 22050), 22050, subtype="PCM_24")
    write("tone22.ogg", tone(6615, 22050), 22050)
    write("tone44.mp3", np.stack([tone(13230, 44100)] * 2, axis=1), 44100)
    for name in ("stereo44.wav", "mono8.wav"):
        data, rate = soundfile.read(HERE / name, dtype="float32", always_2d=True)
        mono = data.astype(np.float64).mean(axis=1).astype(np.float32)
        save(name.split(".")[0] + ".f32", soxr.resample(mono, rate, 16000, quality="HQ").astype(np.float32).tobytes())
    for name in ("tone22.ogg", "tone44.mp3"):
        print(name, soundfile.read(HERE / name)[0].shape)


def make_qwen2_vl():
    """One line a case: file, patch, limits of pixels, rows and columns of patches, FNV-1a of the 8-bit values of all
    patches in the order of the tower's rows, sum and sum of squares of what the tower takes."""
    from transformers import Qwen2VLImageProcessorPil
    lines = []
    for name in ("garment.png", "rgb.png", "strip_1x305.png", "exif6.jpg", "j420.jpg", "lossy.webp", "grey.png"):
        image = ImageOps.exif_transpose(Image.open(HERE / name)).convert("RGB")
        for patch, low, high in ((14, 3136, 1003520), (4, 64, 1024), (2, 16, 200), (7, 20000, 40000)):
            if max(image.size) > 200 * min(image.size):
                continue
            processor = Qwen2VLImageProcessorPil(patch_size=patch, size={"shortest_edge": low, "longest_edge": high})
            out = processor(image, return_tensors="np")
            t, rows, cols = out["image_grid_thw"][0]
            values = np.asarray(out["pixel_values"], dtype=np.float32)
            assert t == 1 and values.shape == (rows * cols, 6 * patch * patch)
            by_channel = values.reshape(-1, 3, 2 * patch * patch).astype(np.float64)
            mean, std = (np.array(x)[None, :, None] for x in (processor.image_mean, processor.image_std))
            levels = np.rint((by_channel * std + mean) * 255).astype(np.uint8)
            wide = values.astype(np.float64)
            lines.append(f"{name} {patch} {low} {high} {rows} {cols} {fnv(levels.tobytes()):016x} "
                         f"{wide.sum():.9e} {(wide * wide).sum():.9e}")
    save("qwen2_vl.txt", ("\n".join(lines) + "\n").encode())


PINPOINTS = {  # side of a tile: heights and widths that pictures are fitted into
    336: [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    384: [[384 * i, 384 * j] for i in range(1, 4) for j in range(1, 4)],
    56: [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
    28: [[28, 28], [56, 84], [84, 28]],
}
SIZES = [(1, 1), (336, 336), (337, 336), (672, 672), (673, 671), (1000, 1000), (640, 480), (480, 640), (1920, 1080),
         (1080, 1920), (4000, 3000), (3000, 4000), (500, 333), (333, 500), (1008, 336), (336, 1008), (2000, 150),
         (150, 2000), (5000, 50), (50, 5000), (1365, 768), (700, 1050), (997, 331), (331, 997), (99, 1500), (1237, 41), (1, 3000), (3000, 1), (2, 2000)]


def make_anyres():
    """`size` lines: side of a tile, patch, width and height of a picture; height and width that it is fitted into; first
    line and first column of patches that stay, rows in the LLM. `picture` lines: file, side,
    patch, tiles, FNV-1a of the 8-bit values of all patches in the order of the tower's rows, sum, sum of squares."""
    import torch
    from transformers import LlavaNextImageProcessorPil
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_next.modeling_llava_next import unpad_image
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    lines = []
    for side, pinpoints in PINPOINTS.items():
        patch = 14 if side > 28 else 7
        patches = side // patch
        for width, height in SIZES:
            best = select_best_resolution((height, width), pinpoints)
            rows, cols = (x // side * patches for x in best)
            places = torch.arange(rows * cols).reshape(1, rows, cols)
            kept = unpad_image(places, (height, width))
            count = LlavaNextProcessor._get_unpadded_features(None, height, width, patches, patches, best[0] // side,
                                                              best[1] // side)
            assert count == (kept.numel(), kept.shape[1])
            first = divmod(int(kept.flatten()[0]), cols) if kept.numel() else (
                (rows // 2, 0) if kept.shape[1] == 0 else (0, cols // 2))
            lines.append(f"size {side} {patch} {width} {height} {best[0]} {best[1]} {first[0]} {first[1]} "
                         f"{patches * patches + sum(count)}")
    for name in ("garment.png", "rgb.png", "strip_1x305.png", "exif6.jpg", "j420.jpg", "lossy.webp", "grey.png",
                 "../pretrained/picture1.png", "../pretrained/picture2.png"):
        image = ImageOps.exif_transpose(Image.open(HERE / name)).convert("RGB")
        for side, patch in ((336, 14), (56, 14), (28, 7)):
            processor = LlavaNextImageProcessorPil(size={"shortest_edge": side}, image_grid_pinpoints=PINPOINTS[side],
                                                   crop_size={"height": side, "width": side})
            values = np.asarray(processor(image, return_tensors="np")["pixel_values"][0], dtype=np.float32)
            grid = side // patch
            rows = values.reshape(-1, 3, grid, patch, grid, patch).transpose(0, 2, 4, 1, 3, 5)
            mean, std = (np.array(x)[:, None, None] for x in (processor.image_mean, processor.image_std))
            levels = np.rint((rows.astype(np.float64) * std + mean) * 255).astype(np.uint8)
            wide = values.astype(np.float64)
            lines.append(f"picture {name} {side} {patch} {values.shape[0]} {fnv(np.ascontiguousarray(levels).tobytes()):016x} "
                         f"{wide.sum():.9e} {(wide * wide).sum():.9e}")
    save("anyres.txt", ("\n".join(lines) + "\n").encode())


def clip_for_mel(num):
    """The same samples as the test's `mel_clip`."""
    i = np.arange(num)
    noise_part = ((i * 7919) % 1009) / 1009.0 - 0.5
    return (0.4 * np.sin(2 * np.pi * (200 * i / 16000 + 1500 * (i / 16000) ** 2)) + 0.02 * noise_part).astype(np.float32)


def slaney(num_mels, fft, rate):
    def hz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))
    top = 15 + np.log(rate / 2 / 1000) / (np.log(6.4) / 27)
    edges = hz(np.linspace(0, top, num_mels + 2))
    bins = np.arange(fft // 2 + 1) * rate / fft
    up = (bins[None] - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - bins[None]) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def log_mel(clip, num_mels):
    """Plain numpy in double: the clip itself, nothing behind it."""
    fft, hop = 400, 160
    padded = np.pad(clip.astype(np.float64), fft // 2, mode="reflect")
    frames = len(clip) // hop
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(fft) / fft)
    power = np.stack([np.abs(np.fft.rfft(padded[t * hop:t * hop + fft] * window)) ** 2 for t in range(frames)])
    x = np.log10(np.maximum(power @ slaney(num_mels, fft, 16000).T, 1e-10))
    return (np.maximum(x, x.max() - 8) + 4) / 4


def make_mel():
    from transformers import WhisperFeatureExtractor
    clip = clip_for_mel(5000)
    save("mel_none.f32", log_mel(clip, 80).astype(np.float32).tobytes())
    for samples in (160, 201):
        save(f"mel_none_{samples}.f32", log_mel(clip[:samples], 80).astype(np.float32).tobytes())
    one_second = WhisperFeatureExtractor(feature_size=128, chunk_length=1)
    value = one_second(clip, sampling_rate=16000, return_tensors="np", padding="max_length")["input_features"][0]
    save("mel_full_128.f32", np.ascontiguousarray(value.T[[0, 1, 2, 15, 30, 31, 32, 33, 50, 99]].astype(np.float32)).tobytes())
    own = WhisperFeatureExtractor(feature_size=80)
    value = own(clip, sampling_rate=16000, return_tensors="np", padding="do_not_pad")["input_features"][0]
    difference = np.abs(value.T - log_mel(clip, 80)).max()
    assert difference < 1e-5, difference


if __name__ == "__main__":
    make_resize()
    if "--resize-only" in sys.argv:
        sys.exit()
    if "--qwen2-vl-only" in sys.argv:
        make_qwen2_vl()
        sys.exit()
    if "--anyres-only" in sys.argv:
        make_anyres()
        sys.exit()
    make_png()
    make_jpeg()
    make_webp()
    make_preprocess()
    make_qwen2_vl()
    make_anyres()
    make_sound()
    make_mel()
    print(sum(f.stat().st_size for f in HERE.iterdir()), "bytes")
