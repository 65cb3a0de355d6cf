"""Volumes of tensorstore: Neuroglancer Precomputed, Zarr v2 and v3, N5."""

import metadata
import numpy
import tensorstore

KNOWS_S3 = True

SHARDING = {
    "sharded raw": ("raw", {"hash": "murmurhash3_x86_128", "preshift_bits": 1, "minishard_bits": 2, "shard_bits": 1,
                            "minishard_index_encoding": "raw", "data_encoding": "raw"}),
    "sharded gzip": ("raw", {"hash": "identity", "preshift_bits": 0, "minishard_bits": 1, "shard_bits": 2,
                             "minishard_index_encoding": "gzip", "data_encoding": "gzip"}),
    "sharded compressed_segmentation": ("compressed_segmentation", {
        "hash": "identity", "preshift_bits": 1, "minishard_bits": 1, "shard_bits": 1,
        "minishard_index_encoding": "gzip", "data_encoding": "gzip"}),
}

COMPRESSORS_V2 = {
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "bz2": {"id": "bz2", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1},
    "zstd": {"id": "zstd", "level": 1},
}

PACKING_V3 = {
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
    "zstd": [{"name": "zstd", "configuration": {"level": 1}}],
    "crc32c": [{"name": "crc32c"}],
    "zstd without checksum": [{"name": "zstd", "configuration": {"level": 1}}],
    "transpose F": [{"name": "gzip", "configuration": {"level": 1}}],
}


COMPRESSION_N5 = {
    "gzip": {"type": "gzip", "level": 1},
    "gzip with zlib": {"type": "gzip", "level": 1, "useZlib": True},
    "bzip2": {"type": "bzip2", "blockSize": 1},
    "blosc": {"type": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2},
    "zstd": {"type": "zstd", "level": 1},
    "xz": {"type": "xz", "preset": 1},
}


def kvstore(place):
    if "file" in place:
        return {"driver": "file", "path": place["file"] + "/"}
    s3 = place["s3"]
    return {"driver": "s3", "bucket": s3["bucket"], "path": s3["key"] + "/", "endpoint": s3["endpoint"],
            "aws_region": "us-east-1"}


def driver(volume):
    return {"precomputed": "neuroglancer_precomputed", "zarr2": "zarr", "zarr3": "zarr3", "n5": "n5"}[volume["format"]]


def precomputed(volume):
    encoding, sharding = SHARDING.get(volume["encoding"], (volume["encoding"], None))
    labels = encoding == "compressed_segmentation"
    scale = {
        "size": volume["shape"][:3],
        "voxel_offset": volume["origin"][:3],
        "chunk_size": volume["chunk"][:3],
        "resolution": [4, 4.5, 40],
        "encoding": encoding,
    }
    if labels:
        scale["compressed_segmentation_block_size"] = [8, 8, 4]
    if sharding:
        scale["sharding"] = {"@type": "neuroglancer_uint64_sharded_v1", **sharding}
    multiscale = {
        "type": "segmentation" if labels else "image",
        "data_type": volume["dtype"],
        "num_channels": volume["shape"][3],
    }
    return {"multiscale_metadata": multiscale, "scale_metadata": scale}


def zarr2(volume):
    encoding = volume["encoding"]
    kind = numpy.dtype(volume["dtype"]).newbyteorder(">" if encoding == "big-endian" else "<")
    return {"metadata": {
        "shape": volume["shape"],
        "chunks": volume["chunk"],
        "dtype": kind.str,
        "order": "F" if encoding == "order F" else "C",
        "compressor": COMPRESSORS_V2.get(encoding),
        "dimension_separator": "/" if encoding == "order F" else ".",
    }}


def n5(volume):
    return {"metadata": {
        "dimensions": volume["shape"],
        "blockSize": volume["chunk"],
        "dataType": volume["dtype"],
        "compression": COMPRESSION_N5.get(volume["encoding"], {"type": "raw"}),
    }}


def last_first(volume):
    last = len(volume["shape"]) - 1
    return [last, *range(last)]


def codecs(volume, encoding):
    size = 2 if volume["dtype"] == "bfloat16" else numpy.dtype(volume["dtype"]).itemsize
    plain = [{"name": "bytes", "configuration": {"endian": "big" if encoding == "big-endian" else "little"}}]
    if encoding == "transpose":
        return [{"name": "transpose", "configuration": {"order": last_first(volume)}}, *plain]
    if encoding == "transpose F":
        order = list(reversed(range(len(volume["shape"]))))
        return [{"name": "transpose", "configuration": {"order": order}}, *plain, *PACKING_V3[encoding]]
    if encoding == "blosc":
        shuffle = {"cname": "zstd", "clevel": 3, "shuffle": "shuffle", "typesize": size, "blocksize": 0}
        return [*plain, {"name": "blosc", "configuration": shuffle}]
    return [*plain, *PACKING_V3.get(encoding, [])]


def zarr3(volume):
    encoding = volume["encoding"]
    chunk, chain = volume["chunk"], codecs(volume, encoding)
    if encoding.startswith("sharded"):
        inner = encoding.removeprefix("sharded ")
        shards = {
            "chunk_shape": chunk,
            "codecs": codecs(volume, inner),
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            # Usually the index is at the end; one encoding has it at the start.
            "index_location": "start" if inner == "raw" else "end",
        }
        chunk = [2 * length for length in chunk]
        chain = [{"name": "sharding_indexed", "configuration": shards}]
    return {"metadata": {
        "shape": volume["shape"],
        "data_type": volume["dtype"],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "v2" if encoding == "gzip" else "default"},
        "codecs": chain,
    }}


def make(volume, array):
    specification = {"precomputed": precomputed, "zarr2": zarr2, "zarr3": zarr3, "n5": n5}[volume["format"]](volume)
    opened = tensorstore.open(
        {"driver": driver(volume), "kvstore": kvstore(volume["place"]), **specification}, create=True).result()
    metadata.respell(volume["encoding"], lambda change: change_object(volume["place"], change))
    if array is not None:
        opened[opened.domain].write(array).result()


def change_object(place, change):
    store = tensorstore.KvStore.open(kvstore(place)).result()
    store.write("zarr.json", change(store.read("zarr.json").result().value)).result()


def read(volume, regions):
    opened = tensorstore.open(
        {"driver": driver(volume), "kvstore": kvstore(volume["place"])}, open=True, read=True).result()
    for bbox in regions:
        yield opened[tuple(slice(start, end) for start, end in bbox)].read().result()
