"""What other libraries do with an array: the table of the guide, made with the libraries themselves."""

from __future__ import annotations

import copy
import operator
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import dask.sizeof
import matplotlib
import numpy as np
import pandas
import pytest
import scipy.ndimage
import skimage.filters
import skimage.measure
import skimage.transform
import tifffile
import xarray
from PIL import Image

import ndshm
from watched import Watched, watched

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"


def drawn(x: Any) -> Any:
    figure, axes = pyplot.subplots()
    try:
        return np.asarray(axes.imshow(x).get_array())
    finally:
        pyplot.close(figure)


def plotted(x: Any) -> Any:
    figure, axes = pyplot.subplots()
    try:
        return np.asarray([line.get_ydata() for line in axes.plot(x)]).T
    finally:
        pyplot.close(figure)


def tiff(x: Any) -> Any:
    path = Path(TEMPORARY[0]) / "x.tif"
    tifffile.imwrite(path, x)
    return tifffile.imread(path)


TEMPORARY: list[Path] = []

# What is called, and what it is called by.
CALLS: dict[str, Callable[[Any], Any]] = {
    "numpy.asarray(a)": np.asarray,
    "numpy.array(a)": np.array,
    "numpy.frombuffer(a, a.dtype)": lambda a: np.frombuffer(a, a.dtype).reshape(a.shape),
    "numpy.transpose(a), moveaxis, broadcast_to": np.transpose,
    "numpy.sum(a), mean, min, max, any, all": np.sum,
    "numpy.add(a, 1), sqrt and all universal functions": lambda a: np.add(a, 1),
    "numpy.concatenate([a, a]), stack, where, sort, median": lambda a: np.concatenate([a, a]),
    "numpy.copyto(x, a)": lambda a: np.copyto(np.zeros(a.shape, a.dtype), a),
    "numpy.copyto(a, x)": lambda a: np.copyto(a, 1),
    "copy.copy(a), copy.deepcopy(a)": copy.deepcopy,
    "list(a), for row in a": list,
    "PIL.Image.fromarray(a)": Image.fromarray,
    "pandas.DataFrame(a), Series": pandas.DataFrame,
    "xarray.DataArray(a)": lambda a: xarray.DataArray(a).data,
    "dask.array.from_array(a), later compute()": lambda a: dask.array.from_array(a).compute(scheduler="synchronous"),
    "scipy.ndimage.gaussian_filter(a, 1)": lambda a: scipy.ndimage.gaussian_filter(a, 1),
    "scipy.ndimage.gaussian_filter(x, 1, output=a)": lambda a: scipy.ndimage.gaussian_filter(np.ones(a.shape), 1, output=a),
    "skimage.filters.gaussian(a), measure.label": skimage.filters.gaussian,
    "skimage.transform.resize(a, shape)": lambda a: skimage.transform.resize(a, (3, 4)),
    "matplotlib: imshow(a), imsave": drawn,
    "matplotlib: plot(a), hist": plotted,
    "tifffile.imwrite(path, a)": tiff,
}


def row(call: str, tmp_path: Path) -> str:
    """Return the line of the table for a call."""
    TEMPORARY[:] = [tmp_path]
    array = watched(ndshm.share(np.arange(12, dtype="f4").reshape(3, 4)))
    Watched.locks.clear()
    try:
        found = CALLS[call](array)
    except (TypeError, AttributeError) as error:
        elements = f"{type(error).__name__}" + (": `numpy.asarray(a)`" if "numpy.asarray(array)" in str(error) else "")
    else:
        shares = found is not None and not isinstance(found, list) and np.shares_memory(np.asarray(found), np.asarray(array))
        elements = "the same memory" if shares else "a copy"
    reads = len(Watched.locks)
    assert all(way == "read" for way, _ in Watched.locks)
    locks = "none" if not reads else "read" if reads == 1 else "read, for each row" if reads >= 3 else "read, for each piece"
    return f"| `{call}` | {locks} | {elements} |"


def table() -> list[str]:
    return re.findall(r"^\| `.*$", GUIDE.read_text(encoding="utf-8").partition("## Other libraries")[2].partition("\n## ")[0], re.M)


@pytest.mark.parametrize("call", CALLS)
def test_table_of_libraries(call: str, tmp_path: Path) -> None:
    assert row(call, tmp_path) in table()


def test_table_has_no_other_rows() -> None:
    assert len(table()) == len(CALLS)


@pytest.mark.parametrize("entered", [False, True])
def test_guard_is_no_array(entered: bool) -> None:
    array = ndshm.share(np.arange(3))
    guard = array.read()
    if not entered:
        for take in (np.asarray, np.array, lambda guard: np.add(guard, 1), lambda guard: operator.add(np.ones(3), guard)):
            with pytest.raises(TypeError, match="with array.read"):
                take(guard)
    else:
        with guard as x, pytest.raises(TypeError, match="use x there"):
            np.asarray(guard)
            del x


def test_libraries_compute_what_they_compute_of_numpy_arrays() -> None:
    x = np.random.default_rng(5).random((16, 24))
    for order in "CF":
        array = ndshm.share(np.asarray(x, order=order))
        assert (pandas.DataFrame(array).to_numpy() == x).all()
        assert np.median(array) == np.median(x) and (np.sort(array) == np.sort(x)).all()
        assert (skimage.filters.gaussian(array) == skimage.filters.gaussian(x)).all()
        assert (skimage.measure.label(np.greater(array, 0.5)) == skimage.measure.label(x > 0.5)).all()
        assert (skimage.transform.resize(array, (3, 4)) == skimage.transform.resize(x, (3, 4))).all()
        assert (np.asarray(Image.fromarray(np.asarray(array) > 0.5)) == (x > 0.5)).all()
        assert (dask.array.from_array(array, chunks=8).T.sum(0).compute(scheduler="synchronous") == x.sum(1)).all() or np.allclose(
            dask.array.from_array(array, chunks=8).sum(1).compute(scheduler="synchronous"), x.sum(1)
        )


@pytest.mark.parametrize("dtype", ["f4", None])
def test_array_protocol_is_numpys(dtype: str | None) -> None:
    array = ndshm.share(np.arange(3, dtype="f8"))
    assert (array.__array__(dtype) == [0, 1, 2]).all() and array.__array__(dtype).dtype == (dtype or "f8")
    assert np.shares_memory(array.__array__(), np.asarray(array)) and not np.shares_memory(array.__array__(copy=True), np.asarray(array))
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__("i4", copy=False)


def test_dask_knows_how_large_arrays_are(tmp_path: Path) -> None:
    sizeof = dask.sizeof.sizeof
    array = ndshm.share(np.zeros((100, 1000), "u2"))
    assert (sizeof(array), sizeof(array.part(3)), sizeof(watched(array))) == (200_000, 2_000, 200_000)
    assert sizeof([array, array]) > 400_000
    volume = ndshm.create_volume(tmp_path / "v", (1 << 20,) * 3, (64,) * 3, "u1")
    assert sizeof(volume) < 1000 and sizeof(volume.T) < 1000  # its elements are elsewhere


def test_dask_imports_nothing_of_this_package() -> None:
    code = "import sys, dask.array, dask.sizeof; dask.sizeof.sizeof(object()); assert 'ndshm' not in sys.modules and '_ndshm_dask' in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
