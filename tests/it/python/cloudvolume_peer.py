"""Uses arrays as CloudVolume does: through cloudvolume.sharedmemory, and as buffers of its transfers.

The environment says where CloudVolume keeps shared memory. CloudVolume's worker processes import this file again, so
that the settings reach them too.
"""

import os

import numpy as np
from cloudvolume import Bbox, CloudVolume, sharedmemory

from conversation import serve
from sample import axes, compare, sample

sharedmemory.EMULATE_SHM = os.environ["EMULATE_SHM"] == "1"
if "NDSHM_EMULATED_DIR" in os.environ:
    sharedmemory.EMULATED_SHM_DIRECTORY = os.environ["NDSHM_EMULATED_DIR"]

held = {}


def check(location, dtype, shape, order, seed):
    """Compares through a read-only array, which numpy must not allow to be written."""
    handle, array = sharedmemory.ndarray(axes(shape), dtype, location, order=order, readonly=True)
    answer = "writable" if array.flags.writeable else compare(array, dtype, seed)
    del array
    handle.close()
    return answer


def fill(location, dtype, shape, order, seed):
    """Writes through a writable array. Creates a missing array, and resizes one of another size."""
    handle, array = sharedmemory.ndarray(axes(shape), dtype, location, order=order)
    array[...] = sample(array.shape, dtype, seed)
    del array
    handle.close()


def allocate(location, dtype, shape, order):
    """Opens or creates an array without writing to it."""
    handle, array = sharedmemory.ndarray(axes(shape), dtype, location, order=order)
    del array
    handle.close()


def hold(location, dtype, shape, order):
    """Opens or creates an array and keeps it mapped."""
    held[location] = sharedmemory.ndarray(axes(shape), dtype, location, order=order)


def check_held(location, dtype, seed):
    return compare(held[location][1], dtype, seed)


def fill_held(location, dtype, seed):
    array = held[location][1]
    array[...] = sample(array.shape, dtype, seed)


def unlink(location):
    return sharedmemory.unlink(location)


def make_layer(path, dtype, shape, chunk):
    """Creates an empty precomputed layer with axes x, y, z and channel."""
    *size, channels = axes(shape)
    info = CloudVolume.create_new_info(
        num_channels=channels,
        layer_type="image",
        data_type=np.dtype(dtype).name,
        encoding="raw",
        resolution=[4, 4, 40],
        voxel_offset=[0, 0, 0],
        chunk_size=axes(chunk),
        volume_size=size,
    )
    CloudVolume(f"file://{path}", info=info, progress=False).commit_info()


def layer(path, parallel, fill_missing=False):
    return CloudVolume(f"file://{path}", parallel=int(parallel), fill_missing=fill_missing, progress=False)


def fill_layer(path, dtype, seed):
    volume = layer(path, 1)
    volume[...] = sample(volume.shape, dtype, seed)


def check_layer(path, dtype, seed):
    return compare(np.asarray(layer(path, 1)[...]), dtype, seed)


def check_layer_box(path, dtype, seed, start, stop):
    """Compares a box with the same box of the sample; everything outside must be missing or zero."""
    volume = layer(path, 1, fill_missing=True)
    found = np.asarray(volume[...])
    expected = np.zeros(found.shape, found.dtype)
    box = tuple(slice(*ends) for ends in zip(axes(start), axes(stop)))
    expected[box] = sample(found.shape, dtype, seed)[box]
    return "same" if np.array_equal(found, expected) else f"{np.sum(found != expected)} differ"


def upload(path, location, parallel):
    """Uploads the whole layer from shared memory."""
    volume = layer(path, parallel)
    volume.upload_from_shared_memory(location, volume.bounds)


def upload_box(path, location, parallel, start, stop):
    """Uploads a box of the layer from shared memory that holds the whole layer."""
    volume = layer(path, parallel)
    volume.upload_from_shared_memory(location, volume.bounds, cutout_bbox=Bbox(axes(start), axes(stop)))


def download(path, location, parallel, start, stop):
    """Downloads a box of the layer into shared memory and leaves it there."""
    volume = layer(path, parallel)
    volume.download_to_shared_memory(Bbox(axes(start), axes(stop)), location=location)


if __name__ == "__main__":
    serve(
        check, fill, allocate, hold, check_held, fill_held, unlink, make_layer, fill_layer, check_layer,
        check_layer_box, upload, upload_box, download,
    )
