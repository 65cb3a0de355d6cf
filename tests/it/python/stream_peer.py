"""Reads a stream of ndarray-shm through the program of docs/python."""

import os

import numpy as np

from conversation import serve
from ndshm_stream import Stream

streams, frames = [], []


def attach(directory, name):
    stream = Stream(directory, name)
    streams.append(stream)
    return f"{stream.dtype} {','.join(map(str, stream.shape))} {stream.order} {stream.slots}"


def wait(seen):
    return str(streams[-1].wait(int(seen)))


def array(found):
    stream = streams[-1]
    return np.frombuffer(found[1], stream.dtype).reshape(stream.shape, order=stream.order)


def hold(number):
    """Holds a frame until `drop`, and returns its sum."""
    found = streams[-1].hold(int(number))
    if found is None:
        return "gone"
    frames.append(found)
    return array(found).sum()


def sums():
    return " ".join(str(array(found).sum()) for found in frames)


def element(row, column):
    return array(frames[-1])[int(row), int(column)]


def drop():
    """Releases the frame that was held first."""
    slot, elements = frames.pop(0)
    elements.release()
    streams[-1].release(slot)


def facts():
    return f"{streams[-1].head()} {streams[-1].state()} {streams[-1].has_writer()}"


def number():
    return os.getpid()


if __name__ == "__main__":
    serve(attach, wait, hold, sums, element, drop, facts, number)
