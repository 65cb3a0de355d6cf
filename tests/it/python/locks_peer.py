"""Takes the locks of ndarray-shm through the programs of docs/python, and holds each one until it is told to release it."""

import os
import signal
import sys
from contextlib import ExitStack

import numpy as np

import ndshm_locks
from conversation import serve
from ndshm_locks import CELLS, READ, WRITE, Array
from ndshm_painter import Painter, begin as begin_buffer
from sample import axes, compare, sample, storage

arrays = {}
held = {}
painters = {}


def attach(path):
    arrays[path] = Array(path)


def detach(path):
    arrays.pop(path).close()


def attached(path):
    return ndshm_locks.attached(path)


def unlink(path):
    return ndshm_locks.unlink(path)


def hold(path, area, kind, wait):
    held[path] = ExitStack()
    held[path].enter_context(arrays[path].locked(kind, area, wait == "wait"))


def read(path, wait):
    hold(path, CELLS, READ, wait)


def write(path, wait):
    hold(path, CELLS, WRITE, wait)


def claim_cell(path, index):
    hold(path, (CELLS[0] + int(index), 1), WRITE, "now")


def release(path):
    held.pop(path).close()


def hold_name(path):
    """Takes the name lock, as for removing or replacing the name, and holds it."""
    held[path] = ExitStack()
    fd = ndshm_locks.open_file(path, write=True)
    held[path].callback(ndshm_locks.os.close, fd)
    ndshm_locks.lock(fd, WRITE, ndshm_locks.NAME)


def view(path, dtype, shape):
    return np.frombuffer(arrays[path].bytes, storage(dtype)).reshape(axes(shape))


def fill(path, dtype, shape, seed):
    with arrays[path].locked(WRITE):
        view(path, dtype, shape)[...] = sample(axes(shape), dtype, seed)


def check(path, dtype, shape, seed):
    with arrays[path].locked(READ):
        return compare(view(path, dtype, shape), dtype, seed)


def join(directory, location):
    """Joins a renderbuffer and returns the contents of its ledger."""
    painter = painters[location] = Painter(directory, location)
    return painter.dtype, painter.order, painter.shape, painter.chunk_shape, painter.offset, painter.fingerprint


def begin(directory, location, stop):
    """Begins the tests' buffer. With "stop", the process stops itself while the ledger is unfinished."""
    begun = (lambda: os.kill(os.getpid(), signal.SIGSTOP)) if stop == "stop" else (lambda: None)
    begin_buffer(directory, location, "<u2", "F", (10, 9, 8), (4, 3, 5), (1, 0, 3), "painted by two", 2, begun)
    return "begun"


def paint(location, seed, step):
    """Paints the free ones of chunks 0, `step`, 2 * `step`, .., and returns how many it painted."""
    painter, painted = painters[location], 0
    buffer = np.frombuffer(painter.payload.bytes, storage(painter.dtype))
    buffer = buffer.reshape(painter.shape, order=painter.order)
    expected = sample(painter.shape, painter.dtype, seed)
    for index in range(0, painter.chunks, int(step)):
        try:
            with painter.claim(index) as region:
                if region is None:
                    continue
                box = tuple(slice(axis.start, axis.stop) for axis in region)
                buffer[box] = expected[box]
                painted += 1
        except BlockingIOError:
            continue
    return painted


def claim(location, index):
    """Claims a chunk and holds it unpainted."""
    held[location] = ExitStack()
    return held[location].enter_context(painters[location].claim(int(index)))


if __name__ == "__main__":
    serve(
        attach, detach, attached, unlink, read, write, claim_cell, release, hold_name, fill, check, begin, join, paint, claim,
    )
    sys.exit(0)
