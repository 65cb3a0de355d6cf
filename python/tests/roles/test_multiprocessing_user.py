"""A user of multiprocessing has numpy programs with pools, and follows docs/guide/python.md and docs/guide/python-coming-from.md.

Each test is a program that such a user writes first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

METHODS = ["fork", "forkserver", "spawn"]

IMPORTS = """
import multiprocessing
import sys

import numpy

import ndshm
"""


def run(program: str, tmp_path: Path, *arguments: str) -> tuple[str, str]:
    """Run a program as a file, because spawned processes import it. Return what it printed."""
    path = tmp_path / "program.py"
    path.write_text(IMPORTS + program, encoding="utf-8")
    done = subprocess.run([sys.executable, path, *arguments], cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_pool_paints_the_parts_of_an_array(method: str, tmp_path: Path) -> None:
    program = """
def fill(part):
    with part.write() as x:
        x[...] = 1


if __name__ == "__main__":
    array = ndshm.share_zeros((100, 1000), "uint8")
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        pool.map(fill, array.parts())
    print(array[...].sum())
"""
    assert run(program, tmp_path, method) == ("100000", "")


@pytest.mark.parametrize("method", METHODS)
def test_workers_return_what_they_downloaded(method: str, tmp_path: Path) -> None:
    """From a pool, and through the thread of a queue, as torch's DataLoader does: an array that cannot be pickled there hangs the program."""
    program = """
def crop(start):
    return ndshm.download("em.zarr", f"{start}:{start + 8},:,:").result()


def feed(queue):
    for start in (8, 16):
        queue.put(crop(start))


if __name__ == "__main__":
    x = numpy.arange(32**3, dtype="uint16").reshape(32, 32, 32)
    ndshm.upload(ndshm.create_volume("em.zarr", x.shape, (8, 16, 16), x.dtype), x).result()
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        for start, array in zip((0, 8, 24), pool.map(crop, (0, 8, 24)), strict=True):
            assert (array[...] == x[start : start + 8]).all() and array.notes["bbox"].startswith(f"{start}:")
    queue = context.Queue()
    worker = context.Process(target=feed, args=(queue,))
    worker.start()
    print(sum(int(queue.get(timeout=60)[0, 0, 0]) for _ in range(2)))
    worker.join()
"""
    assert run(program, tmp_path, method) == (str(24 * 32 * 32), "")


ROWS = """
def fill(row):
    row[...] = 1


if __name__ == "__main__":
    INSTALL
    array = ndshm.share_zeros((100, 1000), "uint8")
    x = numpy.asarray(array)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        pool.map(fill, [x[i] for i in range(100)])
    print(x.sum())
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("install", ["pass", "ndshm.multiprocessing.install()"])
def test_pool_that_gets_rows_of_a_view_is_told_of_parts_once(method: str, install: str, tmp_path: Path) -> None:
    printed, told = run(ROWS.replace("INSTALL", install), tmp_path, method)
    assert printed == "0"
    assert told.count("ViewCopied:") == 1 and "array.part(" in told and "array.parts()" in told
    assert "install(views=True)" in told


@pytest.mark.parametrize("method", METHODS)
def test_pool_paints_rows_of_a_view_if_views_are_installed(method: str, tmp_path: Path) -> None:
    assert run(ROWS.replace("INSTALL", "ndshm.multiprocessing.install(views=True)"), tmp_path, method) == ("100000", "")


def test_workers_fill_blocks_of_a_named_array_at_the_same_time(name: str, tmp_path: Path) -> None:
    program = """
def fill(part, number):
    x = numpy.asarray(part)  # no lock: each process has a block of its own
    x[...] = number


if __name__ == "__main__":
    array = ndshm.create(sys.argv[1], (100, 10), "int64")
    blocks = [(array.part(numpy.s_[start : start + 25]), start) for start in range(0, 100, 25)]
    with multiprocessing.Pool(2) as pool:
        pool.starmap(fill, blocks)
    print(array[...].sum())
"""
    assert run(program, tmp_path, name) == (str(250 * (0 + 25 + 50 + 75)), "")
