"""Writes volumes with zarr-python, and compares what `ndshm download` made of them with what zarr-python reads.

    zarr_peer.py write DIRECTORY            writes volumes, prints one line of JSON for each
    zarr_peer.py compare VOLUME < downloads compares; each line of JSON names a file, its bbox and its order
"""

import json
import sys

import numpy as np
import zarr
from zarr.codecs import BloscCodec, GzipCodec, TransposeCodec, ZstdCodec

RANDOM = np.random.default_rng(20261121)


def values(shape, dtype):
    """Returns random elements: integers of the whole range, or floats without NaNs, which equal nothing."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return RANDOM.integers(limits.min, limits.max, shape, dtype.newbyteorder("="), endpoint=True)
    if dtype.kind == "c":
        return (RANDOM.standard_normal(shape) + 1j * RANDOM.standard_normal(shape)).astype(dtype)
    return (RANDOM.standard_normal(shape) * 1000).astype(dtype)


def v3(shape, chunks, dtype, compressors, **more):
    return dict(zarr_format=3, shape=shape, chunks=chunks, dtype=dtype, compressors=compressors, **more)


def v2(shape, chunks, dtype, compressor, **more):
    import numcodecs

    codecs = {"gzip": numcodecs.GZip(5), "blosc": numcodecs.Blosc("lz4"), "none": None}
    return dict(zarr_format=2, shape=shape, chunks=chunks, dtype=dtype, compressors=codecs[compressor], **more)


ZSTD, GZIP = ZstdCodec(level=3), GzipCodec(level=4)
BLOSC = BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle")

# Name, arguments of create_array, and the first element of each chunk that is not stored, so that it reads as the fill value.
VOLUMES = [
    ("v3-zstd-u16", v3((70, 65, 33), (32, 32, 16), "uint16", ZSTD, fill_value=7), [(32, 0, 16)]),
    ("v3-blosc-f32", v3((50, 40, 30), (20, 16, 30), "float32", BLOSC, fill_value=-1.5), []),
    ("v3-gzip-i64", v3((40, 50), (13, 17), "int64", GZIP), [(13, 17)]),
    ("v3-none-i8-1d", v3((1000,), (77,), "int8", None), []),
    ("v3-sharded-u32", v3((64, 64, 64), (16, 16, 16), "uint32", ZSTD, shards=(32, 32, 64), fill_value=3), [(32, 32, 0)]),
    ("v3-transposed-i16", v3((30, 20, 25), (10, 8, 9), "int16", ZSTD, filters=[TransposeCodec(order=(2, 0, 1))]), []),
    ("v3-zstd-f64-4d", v3((3, 20, 21, 22), (1, 8, 8, 8), "float64", ZSTD), []),
    ("v3-zstd-f16", v3((33, 34), (16, 16), "float16", ZSTD), []),
    ("v3-zstd-c64", v3((12, 13), (5, 5), "complex64", ZSTD), []),
    ("v2-gzip-u8", v2((100, 90, 41), (32, 32, 32), "uint8", "gzip", fill_value=9), [(64, 64, 0)]),
    ("v2-blosc-u64", v2((40, 41), (16, 16), "uint64", "blosc"), []),
    ("v2-gzip-big-endian-i32", v2((21, 22, 23), (8, 8, 8), ">i4", "gzip"), []),
    ("v2-none-fortran-f32", v2((21, 22, 23), (8, 8, 8), "float32", "none", order="F"), []),
]


def write(directory):
    for name, how, missing in VOLUMES:
        path = f"{directory}/{name}"
        array = zarr.create_array(store=path, **how)
        array[...] = values(array.shape, array.dtype)
        # zarr does not store a chunk of fill values, as if the chunk had never been written.
        pieces = array.shards or array.chunks
        for start in missing:
            array[tuple(slice(at, at + length) for at, length in zip(start, pieces))] = array.fill_value
        print(json.dumps({"name": name, "path": path, "shape": array.shape}), flush=True)


def compare(path):
    volume = zarr.open_array(path, mode="r")
    compared = 0
    for line in sys.stdin:
        download = json.loads(line)
        bbox = tuple(slice(start, end) for start, end in download["bbox"])
        expected = volume[bbox]
        found = np.memmap(
            download["file"],
            dtype=expected.dtype.newbyteorder("="),
            mode="r",
            shape=expected.shape,
            order=download["order"].upper(),
        )
        if not np.array_equal(found, expected):
            wrong = np.argwhere(np.asarray(found) != expected)
            sys.exit(f"{download}: {len(wrong)} elements differ, the first at {wrong[0]}")
        compared += found.size
    print(compared)


if __name__ == "__main__":
    {"write": write, "compare": compare}[sys.argv[1]](sys.argv[2])
