"""Notebooks: a real kernel runs the cells, and what it shows is looked at."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient
from PIL import Image

import ndshm

CELLS = """
import functools, numpy, ndshm
from matplotlib import pyplot
%matplotlib inline
name, place = {name!r}, {place!r}
array = ndshm.create(name, (8, 64, 96), "uint8")
with array.write() as x:
    x[:] = numpy.arange(64, dtype="uint8")[:, None]
array
#---
def fill(x, region):
    x[...] = numpy.add(region[0].start, step)

step = 1
painted = ndshm.paint(name, (8, 6), (4, 6), "float32", fill, replace=True)
painted[:, 0].tolist()
#---
step = 2
try:
    ndshm.paint(name, (8, 6), (4, 6), "float32", fill, exist_ok=True)
except ndshm.Mismatch:
    shown = functools.partial(fill)
    print(ndshm.paint(name, (8, 6), (4, 6), "float32", shown, replace=True)[:, 0].tolist())
#---
volume = ndshm.create_volume(place, (64, 64), (32, 32), "uint8")
_ = await ndshm.upload(volume, numpy.full((64, 64), 3, "uint8"))
copy = ndshm.download(volume, progress=True).result()
volume
#---
ndshm.info(volume)
#---
work = ndshm.download(volume)
work.result()
work
#---
pyplot.imshow(painted)
#---
ndshm.unlink(name)
"""


def run(cells: str, directory: Path) -> list[dict[str, Any]]:
    """Run cells in a kernel of this Python, and return the outputs of each: by their types."""
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(cell) for cell in cells.strip().split("#---\n")]
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(directory)}})
    client.km = client.create_kernel_manager()
    client.km._kernel_spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    client.execute()
    shown: list[dict[str, Any]] = [{} for _ in book.cells]
    for cell, of_cell in zip(book.cells, shown, strict=True):
        for output in cell.outputs:
            for kind, text in output.get("data", {output.get("name"): output.get("text")}).items():
                of_cell[kind] = of_cell.get(kind, "") + text
    return shown


def test_notebook_shows_what_it_makes(name: str, tmp_path: Path) -> None:
    shown = run(CELLS.format(name=name, place=str(tmp_path / "em")), tmp_path)
    array, painted, again, volume, info, work, plot, gone = shown
    assert "<td>8 × 64 × 96</td>" in array["text/html"] and "<td>uint8</td>" in array["text/html"] and "<img" in array["text/html"]
    assert painted["text/plain"] == "[1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]"
    assert again["stdout"] == "[2.0, 2.0, 2.0, 2.0, 6.0, 6.0, 6.0, 6.0]\n"
    assert "<td>32 × 32</td>" in volume["text/html"] and "100%" in volume["stderr"]
    assert "<th>chunk</th>" in info["text/html"] and "<td>uint8</td>" in info["text/html"]
    assert "<td>4 of 4</td>" in work["text/html"] and "<td>ended</td>" in work["text/html"]
    assert "image/png" in plot and gone["text/plain"] == "True"
    said = "".join(cell.get("stderr", "") for cell in shown)
    assert [line for line in said.splitlines() if "Warning" in line and "TqdmWarning" not in line] == []  # tqdm misses its widgets


def picture(array: ndshm.Array) -> np.ndarray[Any, Any] | None:
    found = re.search(r'src="data:image/png;base64,([^"]+)"', array._repr_html_())
    return None if found is None else np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))


def test_picture_is_the_middle_plane() -> None:
    x = np.random.default_rng(3).integers(0, 256, (5, 7, 9), "u1")
    x[2, 0, :2] = 0, 255
    for array in (ndshm.share(x), ndshm.share(np.asfortranarray(x.T))):
        seen = picture(array)
        assert seen is not None and (seen == x[2]).all()
    large = picture(ndshm.share(np.arange(3000)[:, None] + np.arange(500)))
    assert large is not None and large.shape == (250, 42)
    assert (picture(ndshm.share(np.eye(3, dtype=bool))) == 255 * np.eye(3)).all()
    assert (picture(ndshm.share(np.array([[np.nan, 1], [-np.inf, np.inf]]))) == [[0, 0], [0, 255]]).all()


@pytest.mark.parametrize("x", [np.array(5), np.arange(3), np.zeros((0, 3)), np.zeros((2, 3), "c8"), np.zeros((5, 3, 0, 2))])
def test_array_without_a_plane_has_no_picture(x: Any) -> None:
    assert picture(ndshm.share(x)) is None


def test_sparse_array_has_no_picture_and_gets_no_memory(name: str) -> None:
    array = ndshm.create(name, (10_000, 10_000), "f8", sparse=True)
    before = os.stat(f"/dev/shm/{name}").st_blocks
    assert picture(array) is None and os.stat(f"/dev/shm/{name}").st_blocks == before


@pytest.mark.filterwarnings("error")
def test_numbers_near_the_largest_have_a_picture() -> None:
    seen = picture(ndshm.share(np.array([[1.7e308, -1.7e308], [0, np.inf]])))
    assert seen is not None and seen.tolist() == [[255, 0], [127, 255]]


def test_locked_array_has_no_picture_and_no_wait(name: str) -> None:
    array = ndshm.create(name, (4, 4), "u1")
    locked, end = threading.Event(), threading.Event()

    def hold() -> None:
        with ndshm.open(name).write():
            locked.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    try:
        assert picture(array) is None
    finally:
        end.set()
        thread.join()
    with array.write():
        assert picture(array) is None
    assert picture(array) is not None
    ndshm.unlink(name)
    assert picture(array) is None
    array.close()
    assert "closed" in array._repr_html_()
