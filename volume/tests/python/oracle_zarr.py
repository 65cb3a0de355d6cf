"""Volumes as zarr-python writes and reads them: Zarr v2 and v3, in files."""

import content
import numcodecs
import numpy
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

KNOWS_S3 = False

COMPRESSORS_V2 = {
    "zlib": lambda: numcodecs.Zlib(level=1),
    "gzip": lambda: numcodecs.GZip(level=1),
    "bz2": lambda: numcodecs.BZ2(level=1),
    "blosc": lambda: numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
    "zstd": lambda: numcodecs.Zstd(level=1),
}

PACKING_V3 = {
    "gzip": lambda: [GzipCodec(level=1)],
    "zstd": lambda: [ZstdCodec(level=1)],
    "blosc": lambda: [BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")],
    "crc32c": lambda: [Crc32cCodec()],
}


def make(volume, array):
    store = zarr.storage.LocalStore(volume["place"]["file"])
    opened = (make_v2 if volume["format"] == "zarr2" else make_v3)(store, volume)
    if array is not None:
        opened[...] = array


def make_v2(store, volume):
    encoding = volume["encoding"]
    kind = numpy.dtype(volume["dtype"]).newbyteorder(">" if encoding == "big-endian" else "<")
    compressor = COMPRESSORS_V2.get(encoding)
    return zarr.create_array(
        store,
        shape=volume["shape"],
        chunks=volume["chunk"],
        dtype=kind,
        zarr_format=2,
        order="F" if encoding == "order F" else "C",
        compressors=compressor() if compressor else None,
        filters=None,
        fill_value=content.fill_value(volume["dtype"]) if encoding == "fill value" else 0,
        chunk_key_encoding={"name": "v2", "separator": "/" if encoding == "order F" else "."},
    )


def make_v3(store, volume):
    encoding = volume["encoding"]
    inner = encoding.removeprefix("sharded ")
    arguments = {}
    if encoding.startswith("sharded"):
        arguments["shards"] = {
            "shape": [2 * length for length in volume["chunk"]],
            "index_location": "start" if inner == "raw" else "end",
        }
    if encoding == "transpose":
        last = len(volume["shape"]) - 1
        arguments["filters"] = [TransposeCodec(order=(last, *range(last)))]
    if inner == "transpose and blosc":
        arguments["filters"] = [TransposeCodec(order=tuple(reversed(range(len(volume["shape"])))))]
        inner = "blosc"
    packing = PACKING_V3.get(inner)
    return zarr.create_array(
        store,
        shape=volume["shape"],
        chunks=volume["chunk"],
        dtype=numpy.dtype(volume["dtype"]),
        zarr_format=3,
        serializer=BytesCodec(endian="big" if encoding == "big-endian" else "little"),
        compressors=packing() if packing else None,
        fill_value=content.fill_value(volume["dtype"]) if encoding == "fill value" else 0,
        # zarr-python's own default elsewhere; this is the other one that the format has.
        chunk_key_encoding={"name": "v2", "separator": "."} if encoding == "gzip" else {"name": "default", "separator": "/"},
        **arguments,
    )


def read(volume, regions):
    opened = zarr.open_array(zarr.storage.LocalStore(volume["place"]["file"], read_only=True), mode="r")
    for bbox in regions:
        yield opened[tuple(slice(start, end) for start, end in bbox)]
