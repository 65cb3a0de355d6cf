"""Writes .npy files with NumPy, and compares what `ndshm import` and `ndshm export` made of them with what NumPy reads.

    npy_peer.py write DIRECTORY    writes files, prints one line of JSON for each
    npy_peer.py compare < trips    compares; each line of JSON names a file, the array made of it, and the file made of that
"""

import json
import sys

import ml_dtypes
import numpy as np

RANDOM = np.random.default_rng(20261121)

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
SHAPES = [(), (1,), (7,), (0,), (5, 4), (3, 0, 2), (17, 13, 11), (2, 3, 4, 5)]


def elements(shape, dtype):
    """Returns random bits: any value, including NaNs and infinities."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    return np.frombuffer(RANDOM.bytes(count * dtype.itemsize), dtype).reshape(shape)


def same(found, expected):
    """Returns whether both have the same bits. Unlike equality, this also compares NaNs."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    native = expected.dtype.newbyteorder("=")
    return found.dtype == native and found.tobytes() == expected.astype(native).tobytes()


def write(directory):
    def save(name, array, version=None, dtype=None):
        path = f"{directory}/{name}.npy"
        with open(path, "wb") as file:
            np.lib.format.write_array(file, array, version=version)
        print(json.dumps({"file": path, "elements": array.size, "dtype": dtype}), flush=True)

    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES):
            for order in "CF":
                save(f"{dtype}-{number}-{order}", np.asarray(elements(shape, dtype), order=order))
        if np.dtype(dtype).itemsize > 1:
            # Bits are compared, so NumPy must not convert the elements.
            save(f"{dtype}-big-endian", elements((9, 8, 7), dtype).view(np.dtype(dtype).newbyteorder(">")))
    save("version-2", elements((4, 5), "u2"), version=(2, 0))
    save("version-3", elements((4, 5), "u2"), version=(3, 0))
    save("bool", elements((30, 3), "u1") > 100, dtype="uint8")
    save("bfloat16", elements((6, 5), "u2").view(ml_dtypes.bfloat16), dtype="bfloat16")
    # Larger than one block of a reader or writer.
    save("large", elements((5 << 20,), "u1").view("<u4").reshape(1280, 1024).T)


def compare():
    compared = 0
    for line in sys.stdin:
        trip = json.loads(line)
        original = np.load(trip["file"])
        exported = np.load(trip["exported"])
        if trip["dtype"] == "uint8":
            original = original.view(np.uint8)
        if trip["dtype"] == "bfloat16":
            assert exported.dtype.itemsize == 2 and exported.dtype.kind == "V", exported.dtype
            original, exported = original.view("u2"), exported.view("u2")
        native = original.dtype.newbyteorder("=")
        if original.size:
            array = np.memmap(trip["array"], dtype=native, mode="r", shape=original.shape, order=trip["order"])
        else:
            array = np.fromfile(trip["array"], dtype=native).reshape(original.shape)
        if original.dtype != native:
            swapped = np.dtype(native).newbyteorder("S")
            original = np.frombuffer(original.tobytes(), swapped).reshape(original.shape).byteswap().view(native)
            original = original.reshape(array.shape)
        for name, found in [("array", np.asarray(array)), ("exported", exported)]:
            if not same(found, original):
                sys.exit(f"{trip}: the {name} differs")
        assert exported.flags.f_contiguous == np.load(trip["file"]).flags.f_contiguous, trip
        compared += original.size
    print(compared)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"write": write, "compare": compare}[command](*arguments)
