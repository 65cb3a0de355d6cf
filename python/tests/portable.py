"""Checks an installed package on any platform: `python portable.py`. On Linux, all other tests say more.

Other processes open an array, wait for its lock, are killed while they hold it, load pickles, paint, and read a stream. The program `ndshm` must be
there. Nothing may be left.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection

import numpy as np

import ndshm
from ndshm import _program

SHAPE = (3, 5, 7)


def add_one(name: str) -> None:
    """Write into an array that another process created. Not every platform has descriptions, so the caller knows shape and dtype."""
    with ndshm.open(name, SHAPE, "uint16", order="F").write(timeout=60) as x:
        x[...] += 1


def hold(name: str, channel: Connection) -> None:
    """Hold the write lock until this process is killed."""
    with ndshm.open(name, SHAPE, "uint16", order="F").write(timeout=60):
        channel.send("locked")
        channel.recv()


def double(array: ndshm.Array) -> int:
    """Write into an array that came as a pickle."""
    with array.write(timeout=60) as x:
        x[...] *= 2
    return os.getpid()


def fill(x: np.ndarray, region: tuple[slice, ...]) -> None:
    """Paint a chunk."""
    x[...] = region[0].start


def look(name: str, channel: Connection) -> None:
    """Read a stream to its end, and hold its last frame until this process is killed."""
    kept = []
    for frame in ndshm.Stream.open(name, timeout=60):
        kept = [frame.x]
        channel.send((frame.number, int(frame.x[1, 2]), frame.meta["exposure"]))
    channel.send(int(kept[0].sum()))
    channel.recv()


def streamed(name: str) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ndshm.Stream.create(name, (4, 6), "uint16", slots=4, meta={"exposure": "float64"}) as out:
        reader = context.Process(target=look, args=(name, theirs))
        with out.frame() as frame:
            frame.x[:] = 1
        reader.start()
        assert ours.poll(60) and ours.recv() == (1, 1, 0.0)
        assert out.send(np.full((4, 6), 2, "uint16"), exposure=0.5) == 2
        assert ours.poll(60) and ours.recv() == (2, 2, 0.5)
    assert ours.poll(60) and ours.recv() == 48  # the frame outlives the stream
    reader.kill()
    reader.join()
    assert not ndshm.Stream.unlink(name)


def plain(name: str) -> None:
    context = multiprocessing.get_context("spawn")
    array = ndshm.create(name, SHAPE, "uint16", order="F")
    try:
        writers = [context.Process(target=add_one, args=(name,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
            assert writer.exitcode == 0
        assert (array[...] == 2).all() and array[...].flags.f_contiguous

        ours, theirs = context.Pipe()
        holder = context.Process(target=hold, args=(name, theirs))
        holder.start()
        assert ours.poll(60) and ours.recv() == "locked"
        try:
            with array.read(timeout=0.1):
                raise AssertionError("two processes hold the lock")
        except ndshm.TimedOut:
            pass
        holder.kill()
        holder.join()
        with array.read(timeout=60) as x:  # the system has released the lock
            assert (x == 2).all()
    finally:
        assert ndshm.unlink(name)
    assert not ndshm.unlink(name)
    try:
        ndshm.open(name, SHAPE, "uint16", order="F")
        raise AssertionError("the name is still there")
    except FileNotFoundError:
        pass


def counted() -> None:
    array = ndshm.share(np.arange(12, dtype="int64").reshape(3, 4))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        processes = pool.map(double, [array] * 4, chunksize=1)
    assert os.getpid() not in processes
    assert (array[...] == 16 * np.arange(12).reshape(3, 4)).all()


def painted(name: str) -> None:
    array = ndshm.paint(name, (64, 512), (16, 512), "uint16", fill, workers=2)
    try:
        assert (array[::16, 0] == [0, 16, 32, 48]).all()
    finally:
        ndshm.unlink(name)


def program() -> None:
    path = _program.path()
    assert path is not None, "the program `ndshm` is missing"
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("ndshm ")
    assert any(check["name"] == "backend" for check in ndshm.doctor()["checks"])


def main() -> None:
    name = f"portable-{os.getpid()}"
    plain(name)
    print("plain arrays: ok")
    counted()
    print("counted arrays: ok")
    painted(name)
    print("painting: ok")
    streamed(name)
    print("streams: ok")
    program()
    print("program: ok")
    assert name not in [row.name for row in ndshm.ls()]
    assert not ndshm.gc()
    print(f"nothing left: ok ({sys.platform}, Python {sys.version.split()[0]}, numpy {np.__version__})")


if __name__ == "__main__":
    main()
