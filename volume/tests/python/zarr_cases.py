"""Corner cases of Zarr: zarr-python and tensorstore write volumes, and read the volumes that the crate wrote.

    zarr_cases.py write DIRECTORY      writes volumes and their elements (dense, C order, little-endian); prints descriptions
    zarr_cases.py check < JSON         reads volumes with both, compares them with elements from files; prints differences
"""

import itertools
import json
import os
import sys

import ml_dtypes
import numcodecs
import numpy
import tensorstore
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

KINDS = ["uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


def kind_of(name):
    return numpy.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else numpy.dtype(name)


def elements(name, shape, seed):
    """Numbers that every type can represent, some of them in long runs."""
    numbers = numpy.random.default_rng(seed).integers(0, 100, shape)
    numbers[tuple(slice(0, length // 2) for length in shape)] = 3
    if name.startswith("complex"):
        return (numbers - 1j * (numbers % 7)).astype(name)
    return numbers.astype(kind_of(name))


class Volumes:
    def __init__(self, directory):
        self.directory = directory
        self.all = []

    def place(self, name):
        return os.path.join(self.directory, name)

    def add(self, name, array, **more):
        expected = self.place(name + ".elements")
        numpy.ascontiguousarray(array).tofile(expected)
        dtype = "bfloat16" if array.dtype == ml_dtypes.bfloat16 else array.dtype.name
        self.all.append({"name": name, "dtype": dtype, "shape": array.shape, "expected": expected, **more})


def write_zarr_python(volumes):
    shape, chunks = (13, 10, 21), (5, 4, 8)
    compressors = {
        "raw": None, "gzip": numcodecs.GZip(3), "zlib": numcodecs.Zlib(3), "bz2": numcodecs.BZ2(3), "zstd": numcodecs.Zstd(3),
        "blosc": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE), "blosclz": numcodecs.Blosc("blosclz", 5, 1),
    }
    for at, (packing, compressor) in enumerate(compressors.items()):
        for order, endian, separator in (("C", "<", "."), ("F", ">", "/")):
            name = f"v2-{packing}-{order}"
            kind = KINDS[at % len(KINDS)] if order == "C" else KINDS[-1 - at % len(KINDS)]
            array = elements(kind, shape, at)
            opened = zarr.create_array(
                volumes.place(name), shape=shape, chunks=chunks, dtype=array.dtype.newbyteorder(endian), zarr_format=2,
                order=order, compressors=compressor, filters=None, fill_value=3 if order == "C" else None,
                chunk_key_encoding={"name": "v2", "separator": separator}, config={"write_empty_chunks": False})
            opened[...] = array
            volumes.add(name, array)
    filtered = elements("uint16", shape, 7)
    opened = zarr.create_array(
        volumes.place("v2-shuffle"), shape=shape, chunks=chunks, dtype="<u2", zarr_format=2, fill_value=0,
        filters=[numcodecs.Shuffle(2)], compressors=numcodecs.GZip(1))
    opened[...] = filtered
    volumes.add("v2-shuffle", filtered)

    packings = {"raw": (), "gzip": (GzipCodec(),), "zstd": (ZstdCodec(checksum=True),), "blosc": (BloscCodec(),),
                "crc32c": (Crc32cCodec(),), "gzip-crc32c": (GzipCodec(), Crc32cCodec()), "twice": (ZstdCodec(), GzipCodec())}
    for at, ((packing, codecs), sharded) in enumerate(itertools.product(packings.items(), (False, True))):
        kind = KINDS[at % len(KINDS)]
        array = elements(kind, shape, 50 + at)
        name = f"v3-{packing}-{'sharded' if sharded else 'plain'}"
        turned = [TransposeCodec(order=[(2, 1, 0), (1, 2, 0)][at % 2])] if at % 3 == 0 else []
        inner = [*turned, BytesCodec(endian=["little", "big"][at // 2 % 2] if array.dtype.itemsize > 1 else None), *codecs]
        location = ["start", "end"][at // 2 % 2]
        if sharded:
            inner = [ShardingCodec(chunk_shape=chunks, codecs=inner, index_location=location)]
        outer = tuple(2 * length for length in chunks) if sharded else chunks
        fill = {"fill_value": 3, "data_type": kind, "attributes": {}}
        document = {
            "zarr_format": 3, "node_type": "array", "shape": shape, **fill,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
            "chunk_key_encoding": [{"name": "default", "configuration": {"separator": "."}}, {"name": "v2"}][at % 2],
            "codecs": [codec.to_dict() for codec in inner], "dimension_names": ["z", "y", "x"],
        }
        if kind.startswith("complex"):
            document["fill_value"] = [3.0, 0.0]
        write_document(volumes, name, document, array)
        volumes.all[-1]["axes"] = ["z", "y", "x"]
    # Shards in shards, and shards that are transposed and packed as a whole: allowed by the format, though no program writes them.
    array = elements("uint16", (24, 24), 99)
    little = BytesCodec(endian="little")
    small = ShardingCodec(chunk_shape=(3, 4), codecs=[little, GzipCodec()])
    for name, codecs in {
        "v3-nested": [ShardingCodec(chunk_shape=(6, 8), codecs=[small])],
        "v3-turned-shards": [TransposeCodec(order=(1, 0)), ShardingCodec(chunk_shape=(4, 3), codecs=[little]), GzipCodec()],
    }.items():
        write_document(volumes, name, {
            "zarr_format": 3, "node_type": "array", "shape": (24, 24), "data_type": "uint16", "fill_value": 3, "attributes": {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": (12, 24)}},
            "chunk_key_encoding": {"name": "default"}, "codecs": [codec.to_dict() for codec in codecs]}, array)


def write_document(volumes, name, document, array):
    os.makedirs(volumes.place(name))
    with open(os.path.join(volumes.place(name), "zarr.json"), "w") as file:
        json.dump(document, file)
    opened = zarr.open_array(volumes.place(name), mode="r+", config={"write_empty_chunks": False})
    opened[...] = array
    if not numpy.array_equal(zarr.open_array(volumes.place(name), mode="r")[...], array):
        raise ValueError(f"{name}: zarr-python does not read back what it wrote")
    volumes.add(name, array)


def write_tensorstore(volumes):
    shape, chunks = (9, 14, 11), (4, 4, 4)
    for at, kind in enumerate([*KINDS, "bfloat16"]):
        for driver in ("zarr", "zarr3"):
            array = elements(kind, shape, 200 + at)
            # Chunks of zeros are left out, and the metadata of version 2 then gives no fill value.
            array[:4, :4, :8] = 0
            name = f"tensorstore-{driver}-{kind}"
            if driver == "zarr" and kind == "bfloat16":
                continue
            if driver == "zarr":
                metadata = {"chunks": chunks, "compressor": [None, {"id": "zlib"}, {"id": "blosc"}][at % 3]}
            else:
                codecs = [{"name": "sharding_indexed", "configuration": {
                    "chunk_shape": (4, 2, 4), "codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
                                                         {"name": "zstd", "configuration": {"level": 1}}]}}]
                metadata = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}}, "codecs": codecs}
            store = tensorstore.open(
                {"driver": driver, "kvstore": {"driver": "file", "path": volumes.place(name) + "/"}, "metadata": metadata},
                create=True, dtype=kind, shape=shape).result()
            store[...] = array
            volumes.add(name, array)


def write_pyramids(volumes):
    """Writes OME-Zarr of both versions, with resolutions that are the product of two transformations."""
    for version in (2, 3):
        name = f"ome-{version}"
        group = zarr.open_group(volumes.place(name), mode="w", zarr_format=version)
        axes = [{"name": "c", "type": "channel"}] + [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
        datasets = []
        for level in range(3):
            array = elements("uint16", (2, 16 >> level, 20 >> level, 24 >> level), 300 + level)
            made = group.create_array(f"levels/{level}", shape=array.shape, chunks=(1, 8, 8, 8), dtype="uint16")
            made[...] = array
            volumes.add(f"{name}-{level}", array, path=name, mip=level)
            scale = [1.0, 2.0, 2.0 ** level, 2.0 ** level]
            datasets.append({"path": f"levels/{level}", "coordinateTransformations": [{"type": "scale", "scale": scale}]})
        common = [{"type": "scale", "scale": [1.0, 20.0, 4.0, 4.0]}]
        multiscales = [{"axes": axes, "datasets": datasets, "coordinateTransformations": common}]
        if version == 2:
            group.attrs["multiscales"] = [{**multiscales[0], "version": "0.4"}]
        else:
            group.attrs["ome"] = {"version": "0.5", "multiscales": multiscales}


def write(directory):
    volumes = Volumes(directory)
    write_zarr_python(volumes)
    write_tensorstore(volumes)
    write_pyramids(volumes)
    print(json.dumps(volumes.all))


def difference(found, expected):
    if found.shape != expected.shape or found.dtype.newbyteorder("=") != expected.dtype:
        return f"{found.shape} of {found.dtype} instead of {expected.shape} of {expected.dtype}"
    wrong = numpy.argwhere(found != expected)
    return f"{len(wrong)} elements differ, first {wrong[0].tolist()}" if len(wrong) else ""


def check(volumes):
    wrong = []
    for volume in volumes:
        expected = numpy.fromfile(volume["expected"], kind_of(volume["dtype"])).reshape(volume["shape"])
        kvstore = {"driver": "file", "path": volume["path"] + "/"}
        readers = {
            "tensorstore": lambda: tensorstore.open(
                {"driver": {2: "zarr", 3: "zarr3"}[volume["version"]], "kvstore": kvstore}).result().read().result(),
            "zarr-python": lambda: zarr.open_array(volume["path"], mode="r")[...],
        }
        # zarr-python has no bfloat16.
        for reader in volume["readers"]:
            try:
                what = difference(numpy.asarray(readers[reader]()), expected)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
            if what:
                wrong.append(f"{volume['path']}: {reader}: {what}")
    print(json.dumps(wrong))


if sys.argv[1] == "write":
    write(sys.argv[2])
else:
    check(json.load(sys.stdin))
