"""Attaches to arrays and creates them with multiprocessing.shared_memory."""

import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from conversation import serve
from sample import axes, compare, sample, storage

held = {}


def attach(name):
    """Attaches without becoming the owner, so that the end of this process does not unlink the name."""
    if sys.version_info >= (3, 13):
        held[name] = SharedMemory(name, track=False)
    else:
        held[name] = SharedMemory(name)
        resource_tracker.unregister(f"/{name}", "shared_memory")


def attach_as_owner(name):
    """Attaches with the default settings: the resource tracker unlinks the name when this process ends."""
    held[name] = SharedMemory(name)


def make(name, size):
    """Creates a segment that this process owns."""
    held[name] = SharedMemory(name, create=True, size=int(size))


def size(name):
    return held[name].size


def view(name, dtype, shape, order):
    return np.ndarray(axes(shape), storage(dtype), held[name].buf, order=order)


def check(name, dtype, shape, order, seed):
    return compare(view(name, dtype, shape, order), dtype, seed)


def fill(name, dtype, shape, order, seed):
    view(name, dtype, shape, order)[...] = sample(axes(shape), dtype, seed)


def unlink(name):
    held[name].unlink()


if __name__ == "__main__":
    serve(attach, attach_as_owner, make, size, check, fill, unlink)
    for segment in held.values():
        segment.close()
