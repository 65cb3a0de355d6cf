"""Volumes of zarr-python: Zarr v2 and v3, in files."""

import lzma
import warnings

import content
import metadata
import numcodecs
import numpy
import zarr
from zarr.codecs import numcodecs as numcodecs_v3
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

KNOWS_S3 = False

# zarr-python warns that codecs of numcodecs are in no specification.
warnings.filterwarnings("ignore", category=UserWarning)

# Bits of the mantissa: bitround keeps all of them, so that elements are read as they were written.
MANTISSA = {"float16": 10, "float32": 23, "float64": 52}

COMPRESSORS_V2 = {
    "zlib": lambda: numcodecs.Zlib(level=1),
    "gzip": lambda: numcodecs.GZip(level=1),
    "bz2": lambda: numcodecs.BZ2(level=1),
    "blosc": lambda: numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
    "zstd": lambda: numcodecs.Zstd(level=1),
    "lz4": lambda: numcodecs.LZ4(acceleration=1),
    "lzma": lambda: numcodecs.LZMA(),
    "lzma alone": lambda: numcodecs.LZMA(format=lzma.FORMAT_ALONE),
    "lzma raw": lambda: numcodecs.LZMA(format=lzma.FORMAT_RAW, filters=[
        {"id": lzma.FILTER_DELTA, "dist": 2}, {"id": lzma.FILTER_LZMA2, "preset": 1}]),
    "delta": lambda: numcodecs.LZ4(),
    "bitround": lambda: numcodecs.Zlib(),
    "shuffle": lambda: numcodecs.Zlib(),
}

FILTERS_V2 = {
    "delta": lambda kind: [numcodecs.Delta(kind.str)],
    "crc32": lambda kind: [numcodecs.CRC32(location="end")],
    "crc32c": lambda kind: [numcodecs.CRC32C()],
    "adler32": lambda kind: [numcodecs.Adler32()],
    "fletcher32": lambda kind: [numcodecs.Fletcher32()],
    "bitround": lambda kind: [numcodecs.BitRound(MANTISSA[kind.name])],
    "shuffle": lambda kind: [numcodecs.Shuffle(kind.itemsize)],
}

PACKING_V3 = {
    "gzip": lambda: [GzipCodec(level=1)],
    "zstd": lambda: [ZstdCodec(level=1)],
    "blosc": lambda: [BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")],
    "crc32c": lambda: [Crc32cCodec()],
    "zstd without checksum": lambda: [ZstdCodec(level=1)],
    # Without arguments, their configurations are empty.
    "numcodecs.zlib": lambda: [numcodecs_v3.Zlib()],
    "numcodecs.bz2": lambda: [numcodecs_v3.BZ2()],
    "numcodecs.gzip": lambda: [numcodecs_v3.GZip(level=1)],
    "numcodecs.zstd": lambda: [numcodecs_v3.Zstd(level=1)],
    "numcodecs.blosc": lambda: [numcodecs_v3.Blosc(cname="zlib", clevel=1, shuffle=numcodecs.Blosc.AUTOSHUFFLE)],
    "numcodecs.lz4": lambda: [numcodecs_v3.LZ4()],
    "numcodecs.lzma": lambda: [numcodecs_v3.LZMA(preset=1)],
    "numcodecs.crc32": lambda: [numcodecs_v3.CRC32()],
    "numcodecs.crc32c": lambda: [numcodecs_v3.CRC32C()],
    "numcodecs.adler32": lambda: [numcodecs_v3.Adler32(location="end")],
    "numcodecs.fletcher32": lambda: [numcodecs_v3.Fletcher32()],
    "numcodecs.shuffle": lambda: [numcodecs_v3.Shuffle(), numcodecs_v3.Zlib(level=1)],
}

FILTERS_V3 = {
    "numcodecs.delta": lambda kind: [numcodecs_v3.Delta(dtype=kind.str)],
    "numcodecs.bitround": lambda kind: [numcodecs_v3.BitRound(keepbits=MANTISSA[kind.name])],
}


def make(volume, array):
    store = zarr.storage.LocalStore(volume["place"]["file"])
    opened = (make_v2 if volume["format"] == "zarr2" else make_v3)(store, volume)
    metadata.respell(volume["encoding"], lambda change: change_file(volume["place"]["file"], change))
    if array is not None:
        opened[...] = array


def change_file(directory, change):
    with open(f"{directory}/zarr.json", "r+b") as file:
        changed = change(file.read())
        file.seek(0)
        file.write(changed)
        file.truncate()


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
        filters=FILTERS_V2[encoding](kind) if encoding in FILTERS_V2 else None,
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
    if inner in FILTERS_V3:
        arguments["filters"] = FILTERS_V3[inner](numpy.dtype(volume["dtype"]))
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
        # One encoding uses the format's other key encoding; the rest use zarr-python's default.
        chunk_key_encoding={"name": "v2", "separator": "."} if encoding == "gzip" else {"name": "default", "separator": "/"},
        **arguments,
    )


def read(volume, regions):
    opened = zarr.open_array(zarr.storage.LocalStore(volume["place"]["file"], read_only=True), mode="r")
    for bbox in regions:
        yield opened[tuple(slice(start, end) for start, end in bbox)]
