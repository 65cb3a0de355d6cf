"""Volumes of CloudVolume: Neuroglancer Precomputed."""

import itertools
import os

import numpy
from cloudfiles import CloudFiles
from cloudvolume import Bbox, CloudVolume
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification

import short_waits  # noqa: F401

KNOWS_S3 = True

SHARDING = {
    # Both kinds of hash, both kinds of packing, more than one shard and minishard.
    "sharded raw": ("raw", dict(hash="identity", preshift_bits=1, minishard_bits=1, shard_bits=2,
                                minishard_index_encoding="raw", data_encoding="raw")),
    "sharded gzip": ("raw", dict(hash="murmurhash3_x86_128", preshift_bits=0, minishard_bits=2, shard_bits=1,
                                 minishard_index_encoding="gzip", data_encoding="gzip")),
    "sharded compressed_segmentation": ("compressed_segmentation", dict(
        hash="identity", preshift_bits=2, minishard_bits=0, shard_bits=2,
        minishard_index_encoding="gzip", data_encoding="gzip")),
}


def url(place):
    if "file" in place:
        return f"precomputed://file://{place['file']}"
    # CloudVolume takes no endpoint, but its client boto3 reads this variable.
    os.environ["AWS_ENDPOINT_URL"] = place["s3"]["endpoint"]
    # CloudVolume needs a session token if the credentials come from the environment.
    os.environ.setdefault("AWS_SESSION_TOKEN", "none")
    return "precomputed://s3://{bucket}/{key}".format(**place["s3"])


def open_volume(volume, info=None):
    compress = "gzip" if volume["encoding"] in ("gzip", "compressed_segmentation") else False
    # Chunks of zeros are left out when writing, as the tests expect, and read as 0.
    fill = info is None
    return CloudVolume(url(volume["place"]), info=info, compress=compress, progress=False, cache=False, parallel=1,
                       fill_missing=fill, delete_black_uploads=True)


def make(volume, array):
    encoding, sharding = SHARDING.get(volume["encoding"], (volume["encoding"], None))
    labels = encoding == "compressed_segmentation"
    info = CloudVolume.create_new_info(
        num_channels=volume["shape"][3],
        layer_type="segmentation" if labels else "image",
        data_type=volume["dtype"],
        encoding="raw" if encoding == "gzip" else encoding,
        resolution=[4, 4.5, 40],
        voxel_offset=volume["origin"][:3],
        volume_size=volume["shape"][:3],
        chunk_size=volume["chunk"][:3],
        compressed_segmentation_block_size=(8, 8, 4),
    )
    if sharding:
        specification = ShardingSpecification(type="neuroglancer_uint64_sharded_v1", **sharding)
        info["scales"][0]["sharding"] = specification.to_dict()
    opened = open_volume(volume, info)
    opened.commit_info()
    if array is None:
        return
    if sharding:
        put_shards(opened, array)
    else:
        opened[region(opened.bounds)] = array


def put_shards(opened, array):
    """Writes all chunks of a volume into their shards; CloudVolume itself writes one shard at a time."""
    image, mip = opened.image, 0
    specification = image.shard_spec(mip)
    chunks = {}
    size = [int(length) for length in opened.chunk_size]
    counts = [-(-length // along) for length, along in zip(array.shape, size)]
    for place in itertools.product(*(range(count) for count in counts)):
        low = [number * along for number, along in zip(place, size)]
        high = [min(start + along, length) for start, along, length in zip(low, size, array.shape)]
        block = array[tuple(slice(start, end) for start, end in zip(low, high))]
        if not numpy.any(block):
            continue
        begin = [int(offset) + start for offset, start in zip(opened.voxel_offset, low)]
        end = [int(offset) + stop for offset, stop in zip(opened.voxel_offset, high)]
        chunks.update(image.make_shard_chunks(block, Bbox(begin, end), mip))
    files = CloudFiles(opened.meta.join(opened.meta.cloudpath, opened.meta.key(mip)))
    for name, shard in specification.synthesize_shards(chunks).items():
        files.put(name, shard, compress=False)


def region(bounds):
    return tuple(slice(int(low), int(high)) for low, high in zip(bounds.minpt, bounds.maxpt))


def read(volume, regions):
    opened = open_volume(volume)
    for x, y, z, channels in regions:
        if all(end - start == 1 for start, end in (x, y, z)):
            # For a single voxel CloudVolume returns the channels as another axis, or fails: two voxels are read, and one is kept.
            yield next(read(volume, [([x[0] - 1, x[1]], y, z, channels)]))[1:]
            continue
        cut = opened[tuple(slice(start, end) for start, end in (x, y, z))]
        yield numpy.asarray(cut)[..., slice(*channels)]
