"""Reads and writes the media of the quick start: IDX pictures to PNG, WAV to shifted, scaled and noisy WAV.

All sound arithmetic is on integers and every file has its own seed, so the bytes are the same on every machine and for
any number of worker processes.
"""
import array
import gzip
import os
import random
import struct
import sys
import wave
import zlib

SAMPLE_RATE = 8000
# The sum of four uniform bytes less its mean is close to a normal variable; its standard deviation is 147.8.
NOISE_SIGMA = 148
NOISE_BANK_SIZE = 1 << 17


def read_idx(path):
    """The file's dimensions and its bytes; unsigned bytes only."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: not an IDX file of unsigned bytes")
    num_dims = data[3]
    dims = struct.unpack(f">{num_dims}I", data[4:4 + 4 * num_dims])
    return dims, data[4 + 4 * num_dims:]


def _png_chunk(kind, payload):
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png_bytes(pixels, width, height):
    """8-bit grey PNG of width x height bytes, rows from the top."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + pixels[y * width:(y + 1) * width] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + _png_chunk(b"IHDR", header) + _png_chunk(b"IDAT", zlib.compress(rows, 6)) +
            _png_chunk(b"IEND", b""))


def read_wav(path):
    """16-bit mono samples at SAMPLE_RATE as a list of int."""
    with wave.open(path, "rb") as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if form != (1, 2, SAMPLE_RATE):
            raise ValueError(f"{path}: expected mono, 16 bit, {SAMPLE_RATE} Hz, found {form}")
        samples = array.array("h")
        samples.frombytes(file.readframes(file.getnframes()))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tolist()


def write_wav(path, samples):
    data = array.array("h", samples)
    if sys.byteorder == "big":
        data.byteswap()
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(data.tobytes())


def noise_bank(seed):
    """NOISE_BANK_SIZE integers, near normal, standard deviation NOISE_SIGMA."""
    rng = random.Random(f"noise {seed}")
    raw = rng.getrandbits(8 * 4 * NOISE_BANK_SIZE).to_bytes(4 * NOISE_BANK_SIZE, "little")
    return [a + b + c + d - 510 for a, b, c, d in zip(raw[0::4], raw[1::4], raw[2::4], raw[3::4])]


def _isqrt_mean_square(samples):
    total = sum(x * x for x in samples) // max(1, len(samples))
    root = int(total ** 0.5)
    while root * root > total:
        root -= 1
    while (root + 1) * (root + 1) <= total:
        root += 1
    return root


def perturb(recordings, bank, rng):
    """Joins the recordings with a short pause, then: a random start (0 to 200 ms later, up to 100 ms of tail), a gain of
    1/4 to 5/4, and white noise of 1/30 to 1/5 of the speech's level over all of it (14 to 30 dB)."""
    samples = [0] * rng.randrange(0, SAMPLE_RATE // 5)
    for i, recording in enumerate(recordings):
        if i > 0:
            samples += [0] * rng.randrange(0, SAMPLE_RATE // 20)
        samples += recording
    samples += [0] * rng.randrange(0, SAMPLE_RATE // 10)
    level = max(1, _isqrt_mean_square([x for recording in recordings for x in recording]))
    gain = rng.randrange(1024, 5121)  # of 4096
    peak = max(1, max(max(recording) for recording in recordings), -min(min(recording) for recording in recordings))
    noise = gain * level // (rng.randrange(50, 301) * NOISE_SIGMA // 10)  # of 4096, for one unit of the bank
    room = 32767 * 4096 - 511 * noise
    if gain * peak > room:  # no clipping: loud recordings are raised less
        gain = room // peak
    start = rng.randrange(0, NOISE_BANK_SIZE)
    turned = bank[start:] + bank[:start]
    while len(turned) < len(samples):
        turned += bank
    return [(x * gain + z * noise) >> 12 for x, z in zip(samples, turned)]


def make_sound(job, bank):
    """job = (output path, [recordings' paths], seed text)."""
    out, sources, seed = job
    os.makedirs(os.path.dirname(out), exist_ok=True)
    write_wav(out, perturb([read_wav(source) for source in sources], bank, random.Random(seed)))
