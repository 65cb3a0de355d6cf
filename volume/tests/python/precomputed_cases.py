"""Corner cases of Precomputed: CloudVolume and tensorstore write volumes, and read the volumes that the crate wrote.

    precomputed_cases.py write DIRECTORY      writes volumes and their elements (dense, C order, little-endian); prints descriptions
    precomputed_cases.py check < JSON         reads volumes with both, compares them with elements from files; prints differences

tensorstore does not look for CloudVolume's files that end in `.gz`, and reads zeros instead: it gets an unpacked copy.
"""

import gzip
import itertools
import json
import os
import sys

import numpy
import tensorstore
from cloudfiles import CloudFiles
from cloudvolume import Bbox, CloudVolume
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification

import short_waits  # noqa: F401

KINDS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32"]

NOT_IN_TENSORSTORE = "int64"

SHARDINGS = [
    {"hash": "identity", "preshift_bits": 1, "minishard_bits": 2, "shard_bits": 1,
     "minishard_index_encoding": "raw", "data_encoding": "raw"},
    {"hash": "murmurhash3_x86_128", "preshift_bits": 0, "minishard_bits": 1, "shard_bits": 5,
     "minishard_index_encoding": "gzip", "data_encoding": "gzip"},
    {"hash": "identity", "preshift_bits": 3, "minishard_bits": 0, "shard_bits": 0,
     "minishard_index_encoding": "gzip", "data_encoding": "raw"},
    {"hash": "murmurhash3_x86_128", "preshift_bits": 2, "minishard_bits": 6, "shard_bits": 0,
     "minishard_index_encoding": "raw", "data_encoding": "gzip"},
]

# Offsets before, at and after 0; sizes that are no multiples of the chunks.
PLACES = [([0, 0, 0], [37, 23, 11], [16, 8, 4]), ([-19, 5, -40], [33, 40, 9], [32, 16, 16]), ([7, -3, 100], [9, 10, 70], [64, 4, 33])]


def noise(kind, shape, seed):
    generator = numpy.random.default_rng(seed)
    if kind.startswith("float"):
        return generator.normal(size=shape).astype(kind)
    limits = numpy.iinfo(kind)
    return generator.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


def labels(kind, shape, seed):
    """Boxes of labels, some of them large numbers, with single elements of other labels in between."""
    generator = numpy.random.default_rng(seed)
    names = generator.integers(1, numpy.iinfo(kind).max, 300, dtype=kind)
    boxes = generator.integers(0, 300, [-(-length // 5) for length in shape])
    for axis, length in enumerate(shape):
        boxes = numpy.repeat(boxes, 5, axis).take(range(length), axis)
    boxes = numpy.where(generator.random(shape) < 0.02, generator.integers(0, 300, shape), boxes)
    return names[boxes]


def smooth(shape, seed):
    axes = numpy.meshgrid(*(numpy.arange(length) for length in shape), indexing="ij")
    wave = sum(numpy.sin(axis / (5 + number) + seed) for number, axis in enumerate(axes))
    return (128 + 120 * wave / len(shape)).astype("uint8")


def domain(origin, shape):
    return tuple(slice(start, start + length) for start, length in zip(origin, shape))


def by_cloudvolume(path):
    opened = CloudVolume(f"precomputed://file://{path}", progress=False, cache=False, parallel=1, fill_missing=False)
    return numpy.asarray(opened[opened.bounds])


def by_tensorstore(path):
    kvstore = {"driver": "file", "path": path + "/"}
    return tensorstore.open({"driver": "neuroglancer_precomputed", "kvstore": kvstore}).result().read().result()


def write_cloudvolume(path, array, place, encoding, compress, block, sharding):
    origin, size, chunk = place
    is_labels = encoding == "compressed_segmentation"
    info = CloudVolume.create_new_info(
        num_channels=array.shape[3], layer_type="segmentation" if is_labels else "image", data_type=str(array.dtype),
        encoding=encoding, resolution=[4, 4.5, 40], voxel_offset=origin, volume_size=size, chunk_size=chunk,
        compressed_segmentation_block_size=block)
    if sharding:
        specification = ShardingSpecification(type="neuroglancer_uint64_sharded_v1", **sharding)
        info["scales"][0]["sharding"] = specification.to_dict()
    opened = CloudVolume(f"precomputed://file://{path}", info=info, compress=compress, progress=False, cache=False, parallel=1)
    opened.commit_info()
    opened.commit_provenance()
    if not sharding:
        opened[domain(origin, size)] = array
        return
    chunks = {}
    for corner in itertools.product(*(range(0, length, along) for length, along in zip(size, chunk))):
        block = array[tuple(slice(low, low + along) for low, along in zip(corner, chunk))]
        low = [start + offset for start, offset in zip(corner, origin)]
        high = [start + length for start, length in zip(low, block.shape)]
        chunks.update(opened.image.make_shard_chunks(block, Bbox(low, high), 0))
    files = CloudFiles(opened.meta.join(opened.meta.cloudpath, opened.meta.key(0)))
    for name, shard in opened.image.shard_spec(0).synthesize_shards(chunks).items():
        files.put(name, shard, compress=False)


def write_tensorstore(path, array, place, encoding, block, sharding):
    origin, size, chunk = place
    scale = {"size": size, "voxel_offset": origin, "chunk_size": chunk, "resolution": [4, 4.5, 40], "encoding": encoding}
    if encoding == "compressed_segmentation":
        scale["compressed_segmentation_block_size"] = list(block)
    if sharding:
        scale["sharding"] = {"@type": "neuroglancer_uint64_sharded_v1", **sharding}
    opened = tensorstore.open({
        "driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": path + "/"},
        "multiscale_metadata": {"type": "image", "data_type": str(array.dtype), "num_channels": array.shape[3]},
        "scale_metadata": scale}, create=True).result()
    opened.write(array).result()


def write(directory):
    volumes = []

    def add(writer, array, place, encoding, compress=False, block=(8, 8, 8), sharding=None):
        number = len(volumes)
        path = os.path.join(directory, f"volume-{number}")
        if writer == "cloudvolume":
            write_cloudvolume(path, array, place, encoding, compress, block, sharding)
        else:
            write_tensorstore(path, array, place, encoding, block, sharding)
        # CloudVolume mixes up channels and positions when it reads several channels of a picture.
        mixed = encoding == "jpeg" and array.shape[3] > 1
        reader = by_cloudvolume if writer == "cloudvolume" and not mixed else by_tensorstore
        back = reader(path)
        if encoding == "jpeg":
            assert numpy.abs(back.astype(int) - array.astype(int)).max() < 30
            array = back
        else:
            assert back.tobytes() == array.tobytes(), f"{writer} does not read back what it wrote"
        numpy.ascontiguousarray(array).tofile(path + ".elements")
        volumes.append({"name": f"{number}: {writer} {array.dtype} {encoding} {compress} {sharding and sharding['hash']} {place}",
                        "path": path, "elements": path + ".elements", "dtype": str(array.dtype), "shape": list(array.shape),
                        "origin": list(place[0]), "lossy": encoding == "jpeg"})

    for at, kind in enumerate(KINDS):
        for turn, place in enumerate(PLACES):
            channels = 1 + (at + turn) % 3
            array = noise(kind, (*place[1], channels), at)
            add("cloudvolume", array, place, "raw", [None, False, "gzip"][(at + turn) % 3])
            sharding = SHARDINGS[(at + turn) % 4]
            if kind != NOT_IN_TENSORSTORE:
                add("tensorstore", array, place, "raw")
                add("tensorstore", array, place, "raw", sharding=sharding)
            if turn == at % 3:
                add("cloudvolume", array[..., :1], place, "raw", sharding=sharding)
    for turn, place in enumerate(PLACES):
        for kind in ["uint32", "uint64"]:
            for make in [labels, noise]:
                block = [(8, 8, 8), (4, 4, 2), (16, 3, 5)][turn]
                one = make(kind, (*place[1], 1), turn)
                two = make(kind, (*place[1], 2), turn)
                add("cloudvolume", one, place, "compressed_segmentation", [None, False][turn % 2], block)
                add("cloudvolume", one, place, "compressed_segmentation", block=block, sharding=SHARDINGS[turn])
                add("tensorstore", two, place, "compressed_segmentation", block=block)
                add("tensorstore", two, place, "compressed_segmentation", block=block, sharding=SHARDINGS[turn + 1])
        for channels in [1, 3]:
            array = smooth((*place[1], channels), turn)
            add("cloudvolume", array, place, "jpeg")
            add("tensorstore", array, place, "jpeg")
            add("tensorstore", array, place, "jpeg", sharding=SHARDINGS[turn])
        for channels in [1, 2, 3, 4]:
            for kind in ["uint8", "uint16"]:
                add("tensorstore", noise(kind, (*place[1], channels), turn), place, "png")
    print(json.dumps(volumes))


def check():
    wrong = []
    for volume in json.load(sys.stdin):
        expected = numpy.fromfile(volume["elements"], volume["dtype"]).reshape(volume["shape"])
        readers = {"cloudvolume": by_cloudvolume, "tensorstore": by_tensorstore}
        if expected.dtype == NOT_IN_TENSORSTORE:
            del readers["tensorstore"]
        # CloudVolume reads no PNG here, mixes up the channels of pictures, and reads only one channel of labels.
        if volume["encoding"] == "png" or (volume["encoding"] != "raw" and volume["shape"][3] > 1):
            del readers["cloudvolume"]
        for name, reader in readers.items():
            try:
                found = reader(unpacked(volume["path"]) if name == "tensorstore" else volume["path"])
            except Exception as error:
                wrong.append(f"{volume['path']}: {name} says {type(error).__name__}: {error}")
                continue
            if found.shape != expected.shape or found.dtype != expected.dtype:
                wrong.append(f"{volume['path']}: {name} reads {found.dtype} {found.shape}")
                continue
            if volume["encoding"] == "jpeg":
                loss = int(numpy.abs(found.astype(int) - expected.astype(int)).max())
                if loss > volume["loss"]:
                    wrong.append(f"{volume['path']}: {name} reads elements that are off by {loss}")
            elif found.tobytes() != expected.tobytes():
                wrong.append(f"{volume['path']}: {name} reads other elements")
    print(json.dumps(wrong))


def unpacked(path):
    """Copies a volume with its gzip files unpacked, for readers that ignore the suffix, and returns the copy's path."""
    copy = path + ".unpacked"
    for directory, _, names in os.walk(path):
        target = os.path.join(copy, os.path.relpath(directory, path))
        os.makedirs(target)
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                packed = file.read()
            with open(os.path.join(target, name.removesuffix(".gz")), "wb") as file:
                file.write(gzip.decompress(packed) if name.endswith(".gz") else packed)
    return copy


if sys.argv[1] == "write":
    write(sys.argv[2])
else:
    check()
