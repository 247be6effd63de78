"""Makes the HDF5 files of this folder, with h5py: what other programs write, and what only an attacker writes."""
import h5py
import numpy as np


def new(name):
    return h5py.File(name, "w", libver=("v110", "v110"))


with new("good.h5") as f:
    f.create_dataset("plain", data=np.arange(6, dtype="f4").reshape(2, 3))
    f.create_dataset("packed", data=np.arange(600, dtype="i8").reshape(20, 30), chunks=(5, 30), compression="gzip")
    f.attrs.update(fixed=np.bytes_("abc"), text="äöü", i=np.int32(-3), u=np.uint8(200), f=np.float32(0.5), list=[1, 2, 3])

with new("kinds.h5") as f:
    f.create_dataset("half", data=np.zeros(3, "f2"))
    f.create_dataset("big_endian", data=np.zeros(3, ">f4"))
    f.create_dataset("compound", data=np.zeros(3, [("a", "f4"), ("b", "i4")]))
    f.create_dataset("text", data=["a", "b"])
    f.create_dataset("null", data=h5py.Empty("f4"))
    f.create_dataset("vlen", (2,), dtype=h5py.vlen_dtype("i4"))
    f.create_dataset("bool", data=np.array([True, False]))

with new("links.h5") as f:
    f.create_dataset("real", data=np.arange(3, dtype="f4"))
    f["soft"] = h5py.SoftLink("/real")
    f["outside"] = h5py.ExternalLink("good.h5", "/plain")
    f["dangling"] = h5py.SoftLink("/none")
    group = f.create_group("cycle")
    group["again"] = group

with new("bombs.h5") as f:
    f.create_dataset("late", shape=(1 << 40, 1 << 10), dtype="f4", chunks=(1024, 1024))
    f.create_dataset("gzip", shape=(1 << 44,), dtype="f4", chunks=(1 << 16,), compression="gzip")
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((1 << 45,))
    h5py.h5d.create(f.id, b"contiguous", h5py.h5t.IEEE_F32LE, space, properties)

with new("outside.h5") as f:
    f.create_dataset("raw", shape=(8,), dtype="u1", external=[("/etc/hostname", 0, 8)])

    def virtual(name, size, *parts):
        layout = h5py.VirtualLayout((size,), "f4")
        for where, file, dataset, length in parts:
            layout[where] = h5py.VirtualSource(file, dataset, shape=(length,))
        f.create_virtual_dataset(name, layout)

    everything = slice(None)
    virtual("absolute", 4, (everything, "/etc/passwd", "x", 4))
    virtual("up", 4, (everything, "../good.h5", "x", 4))
    virtual("itself", 4, (everything, ".", "x", 4))
    virtual("missing", 4, (everything, "nothing.h5", "x", 4))
    virtual("wrong_type", 4, (everything, "good.h5", "packed", 4))
    virtual("wrong_shape", 4, (everything, "good.h5", "plain", 4))
    virtual("strided", 6, (slice(None, None, 2), "links.h5", "real", 3))
    virtual("hole", 6, (slice(0, 3), "links.h5", "real", 3))
    virtual("twice", 4, (slice(0, 3), "links.h5", "real", 3), (slice(1, 4), "links.h5", "real", 3))
    virtual("soft", 3, (everything, "links.h5", "soft", 3))
    virtual("dots", 3, (everything, "links.h5", "a/../real", 3))
    virtual("fine", 3, (everything, "links.h5", "real", 3))
