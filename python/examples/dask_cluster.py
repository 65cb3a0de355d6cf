"""Inverts a volume part by part with the workers of a dask cluster. After a crash, the same command does only the parts that are missing.

    python dask_cluster.py [SOURCE TARGET MARKERS]

Workers talk to the stores and not to each other, so they may be on several machines. Without arguments a small volume is inverted.
"""

from __future__ import annotations

import sys
import tempfile

import dask
import distributed
import numpy

import ndshm

PARTS = 8


def invert(shard: ndshm.shards.Shard, source: ndshm.Volume, target: ndshm.Volume, markers: ndshm.shards.Markers) -> None:
    """Do one part, in a worker. It may be repeated: it stores the same objects again."""
    part = ndshm.shards.plan(target, None, shard.parts)[shard.part]  # of the target: no two parts write the same stored object
    if part is not None:
        array = ndshm.download(source, part).result()  # without a name: freed when this function or its process ends
        with array.write() as x:
            numpy.invert(x, out=x)
        ndshm.upload(target, array, part).result()
    markers.write(shard, part)


def run(client: distributed.Client, from_url: str, to_url: str, place: str) -> int:
    """Do the parts that are missing, and return their number."""
    source = ndshm.Volume(from_url)
    scale = ndshm.info(source).scales[0]
    target = ndshm.create_volume(to_url, scale.shape, scale.chunk, scale.dtype, encoding="zstd", exist_ok=True)
    markers = ndshm.shards.Markers(place, f"invert {source.url} into {target.url}", scale.bounds)
    missing = markers.missing(PARTS)
    # The part of a killed worker is given to another one. pure=False: dask must do a part also if it has seen the same call before.
    client.gather(client.map(invert, missing, source=source, target=target, markers=markers, pure=False))
    return len(missing)


def main(place: str) -> None:
    source, target, markers = sys.argv[1:] or (f"{place}/source.zarr", f"{place}/target.zarr", f"{place}/markers")
    x = numpy.random.default_rng(0).integers(0, 256, (64, 64, 64), "uint8")
    if not sys.argv[1:]:
        ndshm.upload(ndshm.create_volume(source, x.shape, (16, 32, 32), x.dtype), x).result()
    dask.config.set(temporary_directory=place)
    # With a cluster that runs already: distributed.Client("tcp://scheduler:8786")
    with distributed.Client(n_workers=3, threads_per_worker=1, dashboard_address=":0") as client:
        print(f"{run(client, source, target, markers)} of {PARTS} parts were missing and are done")
    if not sys.argv[1:]:
        assert (ndshm.download(target).result()[...] == 255 - x).all()


if __name__ == "__main__":  # the workers import this file
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
