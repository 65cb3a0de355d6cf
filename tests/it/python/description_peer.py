"""Creates arrays of ndarray-shm with descriptions, and reads descriptions, through the programs of docs/python."""

import os

import numpy as np

from conversation import serve
from ndshm_description import describe, description
from sample import axes


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        found = description(fd)
        if found is None:
            return "none"
        return f"{found['dtype']} {','.join(map(str, found['shape']))} {found['order']}"
    finally:
        os.close(fd)


def make(path, dtype, shape, order, source):
    """Creates an array whose elements count up in memory order."""
    lengths = axes(shape)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, np.arange(np.prod(lengths), dtype=dtype).tobytes())
        describe(fd, dtype, lengths, order, source=source)
    finally:
        os.close(fd)


def make_bare(path, size):
    with open(path, "xb") as file:
        os.ftruncate(file.fileno(), int(size))


if __name__ == "__main__":
    serve(read, make, make_bare)
