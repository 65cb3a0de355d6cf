"""CloudVolume and NumPy create the arrays that a test uploads, and CloudVolume or zarr-python read the volume afterwards.

Each question and each answer is one line of JSON. Elements are u16: 7 * (index in C order) + seed.
"""

import json
import sys

import numpy
from cloudvolume import Bbox, CloudVolume
from cloudvolume import sharedmemory


def elements(shape, seed):
    count = int(numpy.prod(shape))
    return ((numpy.arange(count, dtype=numpy.uint64) * 7 + seed) % 65536).astype(numpy.uint16).reshape(shape)


def share(location, shape, order, seed):
    """Creates an array as CloudVolume creates those that it uploads in parallel."""
    mapping, array = sharedmemory.ndarray(shape=shape, dtype="uint16", location=location, order=order)
    array[:] = elements(shape, seed)
    del array
    mapping.close()


def still(location, shape, order, seed):
    """Returns whether the array is unchanged, and removes it."""
    mapping, array = sharedmemory.ndarray(shape=shape, dtype="uint16", location=location, order=order, readonly=True)
    same = bool((array == elements(shape, seed)).all())
    del array
    mapping.close()
    return same and sharedmemory.unlink(location)


def memmap(path, shape, order, seed):
    array = numpy.memmap(path, dtype="uint16", mode="w+", shape=tuple(shape), order=order)
    array[:] = elements(shape, seed)
    array.flush()


def read(url, bbox, into):
    slices = tuple(slice(*axis) for axis in bbox)
    if url.startswith("precomputed://"):
        volume = CloudVolume(url, fill_missing=True, progress=False)
        box = Bbox([axis[0] for axis in bbox[:3]], [axis[1] for axis in bbox[:3]])
        array = numpy.asarray(volume[box])[..., slices[3]]
    else:
        import zarr

        array = zarr.open(url.removeprefix("zarr://file://"), mode="r")[slices]
    with open(into, "wb") as file:
        file.write(numpy.ascontiguousarray(array, dtype="<u2").tobytes())


DO = {"share": share, "still": still, "memmap": memmap, "read": read}

for line in sys.stdin:
    question = json.loads(line)
    answer = DO[question.pop("do")](**question)
    print(json.dumps(answer), flush=True)
