"""Opens, fills and makes arrays with numpy alone, as any program would that has never heard of ndarray-shm."""

import mmap
import os

import numpy as np

from conversation import serve
from sample import axes, compare, sample, storage


def check(path, dtype, shape, order, seed):
    """Compares through np.memmap, read-only."""
    array = np.memmap(path, storage(dtype), "r", 0, axes(shape), order)
    return compare(array, dtype, seed)


def check_buffer(path, dtype, shape, order, seed):
    """Compares through np.ndarray over an mmap, read-only."""
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.ndarray(axes(shape), storage(dtype), mapping, order=order)
    return compare(array, dtype, seed)


def fill(path, dtype, shape, order, seed):
    """Writes through np.memmap into what is there."""
    array = np.memmap(path, storage(dtype), "r+", 0, axes(shape), order)
    array[...] = sample(array.shape, dtype, seed)


def fill_buffer(path, dtype, shape, order, seed):
    """Writes through np.ndarray over an mmap into what is there."""
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    array = np.ndarray(axes(shape), storage(dtype), mapping, order=order)
    array[...] = sample(array.shape, dtype, seed)


def make(path, dtype, shape, order, seed):
    """Makes the file with np.memmap and fills it."""
    array = np.memmap(path, storage(dtype), "w+", 0, axes(shape), order)
    array[...] = sample(array.shape, dtype, seed)


def make_sparse(path, size):
    """Makes a file of zeros that takes no room."""
    with open(path, "xb") as file:
        os.ftruncate(file.fileno(), int(size))


if __name__ == "__main__":
    serve(check, check_buffer, fill, fill_buffer, make, make_sparse)
