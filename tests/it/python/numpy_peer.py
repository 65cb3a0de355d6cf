"""Opens, fills and creates arrays with numpy alone, as a program without ndarray-shm does."""

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
    """Writes to an existing file through np.memmap."""
    array = np.memmap(path, storage(dtype), "r+", 0, axes(shape), order)
    array[...] = sample(array.shape, dtype, seed)


def fill_buffer(path, dtype, shape, order, seed):
    """Writes to an existing file through np.ndarray over an mmap."""
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    array = np.ndarray(axes(shape), storage(dtype), mapping, order=order)
    array[...] = sample(array.shape, dtype, seed)


def make(path, dtype, shape, order, seed):
    """Creates the file with np.memmap and fills it."""
    array = np.memmap(path, storage(dtype), "w+", 0, axes(shape), order)
    array[...] = sample(array.shape, dtype, seed)


def make_sparse(path, size):
    """Creates a file of zeros without allocated blocks."""
    with open(path, "xb") as file:
        os.ftruncate(file.fileno(), int(size))


if __name__ == "__main__":
    serve(check, check_buffer, fill, fill_buffer, make, make_sparse)
