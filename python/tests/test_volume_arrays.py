"""Volumes as arrays: what numpy, dask and xarray do with them, coordinates and counts, views, writing, forks and Ctrl-C."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask.array
import dask.base
import numpy as np
import pytest
import xarray

import ndshm
from servers import serving
from test_volumes import CHUNK, SHAPE, elements, volume_of

# A Precomputed volume that does not begin at 0.
ORIGIN = (100, -7, 3)

FORMATS: list[tuple[Any, str]] = [
    ({}, "uint8"),
    ({"format": "zarr3", "encoding": "zstd"}, "float64"),
    ({"format": "zarr3", "encoding": "gzip", "shard": (16, 32, 32)}, "int32"),
    ({"format": "zarr2", "encoding": "blosc"}, "complex64"),
    ({"format": "precomputed", "origin": ORIGIN}, "float32"),
    ({"format": "precomputed", "encoding": "gzip", "origin": ORIGIN}, "uint16"),
    ({"format": "precomputed", "encoding": "compressed_segmentation", "origin": ORIGIN}, "uint64"),
]

INDICES: list[Any] = [
    np.s_[...],
    np.s_[:],
    np.s_[3],
    np.s_[-1],
    np.s_[3, 4, 5],
    np.s_[-20, -30, -40],
    np.s_[2:9],
    np.s_[-9:-2, ...],
    np.s_[..., -1],
    np.s_[..., ::-1],
    np.s_[5:100, -100:7, 39:],
    np.s_[9:2],
    np.s_[4:4, :, 1],
    np.s_[::3, 1::2, ::-5],
    np.s_[17:2:-4, 29, ...],
    np.s_[::100, ::100, ::100],
    np.s_[np.int64(3), np.uint8(2) : np.int32(9)],
    (slice(None), ...),
    (),
]


def like_numpy(x: Any, volume: Any) -> Any:
    """Return the elements in the shape of the volume."""
    return x if volume.ndim == x.ndim else x[..., None]


def precomputed(path: Path, dtype: str = "uint16", **how: Any) -> tuple[Any, ndshm.Volume]:
    x = elements(dtype)
    return x[..., None], volume_of(path / "em", x, format="precomputed", origin=ORIGIN, **how)


@pytest.mark.parametrize(("how", "dtype"), FORMATS)
def test_every_index_of_numpy_selects_the_same(tmp_path: Path, how: Any, dtype: str) -> None:
    x = elements(dtype)
    volume = volume_of(tmp_path / "v", x, **how)
    x = like_numpy(x, volume)
    assert (volume.shape, volume.dtype, volume.ndim, volume.size, volume.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
    assert len(volume) == len(x) and volume.chunks[:3] == CHUNK
    for index in INDICES:
        found, want = volume[index], x[index]
        np.testing.assert_array_equal(found, want, err_msg=repr(index))
        assert (type(found), found.dtype, found.shape) == (type(want), want.dtype, want.shape), index
    np.testing.assert_array_equal(np.asarray(volume), x)
    np.testing.assert_array_equal([*volume], x)


def test_wrong_index_is_an_error_as_in_numpy(tmp_path: Path) -> None:
    volume = volume_of(tmp_path / "v", elements())
    for index in (20, -21, (0, 30), (0, 0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            volume[index]
    for index in ([1, 2], np.array([1]), True, None, "a", 1.5):
        with pytest.raises(TypeError):
            volume[index]


def test_counts_begin_at_0_and_coordinates_where_the_volume_does(tmp_path: Path) -> None:
    x, volume = precomputed(tmp_path)
    assert (volume.origin, volume.dims, volume.order) == ((*ORIGIN, 0), ("x", "y", "z", "channel"), "F")
    np.testing.assert_array_equal(volume[0:10, 5, :4], x[0:10, 5, :4])
    for region in ("100:110,-2:-1,3:7", np.s_[100:110, -2:-1, 3:7, :], "100:110,-2:-1,3:7,0:1"):
        np.testing.assert_array_equal(volume.read(region), x[0:10, 5:6, :4])
        np.testing.assert_array_equal(volume.read(region), ndshm.download(volume, region).result()[...])
    np.testing.assert_array_equal(volume.read(), x)
    # The same numbers are other elements: from the end, and before the volume.
    np.testing.assert_array_equal(volume[-7:-2], x[13:18])
    np.testing.assert_array_equal(volume.read(":,-7:-2,:"), x[:, :5])
    for region in ("0:10,:,:", "100:121,:,:", ":,-8:0,:"):
        with pytest.raises(ndshm.InvalidArgument, match="axis"):
            volume.read(region)


def test_elements_are_read_in_the_order_of_the_chunks(tmp_path: Path) -> None:
    _, volume = precomputed(tmp_path)
    assert volume[:8].flags.f_contiguous and volume.read("100:110,:,:").flags.f_contiguous
    other = volume_of(tmp_path / "v.zarr", elements())
    assert other.order == "C" and other[:8].flags.c_contiguous


def test_region_is_read_into_memory_that_exists(tmp_path: Path, name: str) -> None:
    x, volume = precomputed(tmp_path)
    want = x[2:9, :, 4:8]
    region = "102:109,:,7:11"
    for order in ("C", "F"):
        out = np.zeros(want.shape, "uint16", order)  # type: ignore[call-overload]
        assert volume.read(region, out=out) is out
        np.testing.assert_array_equal(out, want)
    batch = np.zeros((3, *want.shape[:3]), "uint16")
    volume.read(region, out=batch[1])  # without the channel
    np.testing.assert_array_equal(batch, np.stack([0 * want[..., 0], want[..., 0], 0 * want[..., 0]]))
    shared = ndshm.create(name, (2, *want.shape), "uint16")
    volume.read(region, out=shared.part(1))
    np.testing.assert_array_equal(shared[1], want)
    assert not shared[0].any()
    with shared.read(), pytest.raises(ndshm.WouldDeadlock):
        volume.read(region, out=shared.part(0))
    for wrong in (np.zeros(want.shape, "int16"), np.zeros((1, 2, 3), "uint16")):
        with pytest.raises(ndshm.Mismatch):
            volume.read(region, out=wrong)
    with pytest.raises(ndshm.InvalidArgument, match="positive strides"):
        volume.read(region, out=np.zeros(want.shape, "uint16")[::-1])


def test_views_have_other_axes_and_read_nothing_before_they_are_indexed(tmp_path: Path) -> None:
    x, volume = precomputed(tmp_path)
    with serving(tmp_path) as server:
        remote = ndshm.Volume(f"precomputed://{server.url}/em")
        count = len(server.asked)
        view = remote.transposed("zyx")
        assert (view.dims, view.shape, view.chunks, view.origin, view.order) == (
            ("z", "y", "x"),
            SHAPE[::-1],
            CHUNK[::-1],
            ORIGIN[::-1],
            "C",
        )
        assert len(server.asked) == count
        np.testing.assert_array_equal(view[5], x[:, :, 5, 0].T)
        assert view[5].flags.c_contiguous
    want = x[..., 0].T
    for view in (volume.transposed("zyx"), volume.squeeze().T, volume.T.squeeze(), volume.transposed(("z", 1, -4)), volume.squeeze().transposed([2, 1, 0])):
        for index in INDICES:
            if not isinstance(index, tuple) or len(index) < 3 or max(map(abs, [i for i in index if isinstance(i, int)]), default=0) < 10:
                np.testing.assert_array_equal(view[index], want[index], err_msg=repr(index))
        same = pickle.loads(pickle.dumps(view))
        np.testing.assert_array_equal(np.asarray(same), want)
        assert repr(same) == repr(view) and same.volume.url == volume.url
    middle = volume.transposed("yxz")
    np.testing.assert_array_equal(middle[1:5, ::2, -1], x[::2, 1:5, -1, 0].T)
    assert middle.order == "A" and volume.T.T.order == "F" and volume.T.shape == x.T.shape
    for wrong in ("zy", "zyxx", "zyxq", (0, 1, 2, 7)):
        with pytest.raises(ndshm.InvalidArgument):
            volume.transposed(wrong)


def test_array_protocol_copies_and_converts(tmp_path: Path) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x)
    np.testing.assert_array_equal(np.asarray(volume, "float32"), x.astype("float32"))
    np.testing.assert_array_equal(np.array(volume, copy=True), x)
    assert np.add(volume, 1).sum() == x.sum() + x.size
    with pytest.raises(ValueError, match="copy"):
        np.asarray(volume, copy=False)
    assert bool(volume) and volume.fill_value == 0 and type(volume.fill_value) is np.uint16


def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    huge = ndshm.create_volume(tmp_path / "v", (1 << 20,) * 3, (64,) * 3, "uint8")
    for read in (lambda: np.asarray(huge), lambda: huge[::2], huge.read, lambda: huge.transposed((2, 1, 0))[...]):
        with pytest.raises(ndshm.NoSpace, match=r"are free: read a part"):
            read()
    # Few elements of all of it: nothing is stored, and the elements between are not read.
    assert huge[:: 1 << 18, 5, :: 1 << 19].tolist() == [[0, 0]] * 4
    assert huge.nbytes == 1 << 60


def test_booleans_and_volumes_without_axes_are_read(tmp_path: Path) -> None:
    import json

    volume_of(tmp_path / "v", elements("bool").astype("uint8"), format="zarr3")
    document = json.loads((tmp_path / "v/zarr.json").read_text())
    document |= {"data_type": "bool", "fill_value": False}
    (tmp_path / "v/zarr.json").write_text(json.dumps(document))
    volume = ndshm.Volume(tmp_path / "v")
    assert volume.dtype == bool and volume.fill_value is np.False_
    np.testing.assert_array_equal(volume[::2, 3], elements("bool")[::2, 3])
    out = np.zeros(SHAPE, bool)
    np.testing.assert_array_equal(volume.read(out=out), elements("bool"))
    point = ndshm.create_volume(tmp_path / "point", (), (), "float64")
    point[...] = 2.5
    assert point[()] == 2.5 and np.asarray(point).shape == () and point.ndim == 0
    with pytest.raises(TypeError):
        len(point)


def test_missing_chunks_are_what_the_volume_was_opened_with(tmp_path: Path) -> None:
    empty = ndshm.create_volume(tmp_path / "em", SHAPE, CHUNK, "uint16", format="precomputed")
    assert empty.fill_value is None
    with pytest.raises(ndshm.MissingChunk):
        empty[0]
    for missing, value in (("fill", 0), (7, 7)):
        volume = pickle.loads(pickle.dumps(ndshm.Volume(tmp_path / "em", missing=missing)))
        assert (volume[0] == value).all() and (volume.read("0:9,:,:") == value).all()
        with pytest.warns(ndshm.TransferWarning, match="stored"):
            assert (ndshm.download(volume, "0:9,:,:").result()[...] == value).all()
    with pytest.raises(ndshm.InvalidArgument):
        ndshm.Volume(tmp_path / "em", missing="zero")


@pytest.mark.parametrize("how", [{"encoding": "zstd"}, {"format": "zarr3", "shard": (16, 32, 32)}, {"format": "precomputed", "origin": ORIGIN}])
def test_written_elements_are_read(tmp_path: Path, how: Any) -> None:
    x = elements("int16")
    made = volume_of(tmp_path / "v", x, **how)
    x = like_numpy(x.copy(), made)
    volume = ndshm.Volume(tmp_path / "v", partial=True)
    assert volume[0, 0, 0].item() == x[0, 0, 0].item()  # what is cached must not be read again
    for index, value in (
        (np.s_[:], 5),
        (np.s_[8:16, 16:, :16], -3),
        (np.s_[3, 4, 5], 9),
        (np.s_[2:5, -1], x[2:5, -1] + 1),
        (np.s_[..., 1:3, :] if x.ndim == 4 else np.s_[..., 1:3], np.int16(4)),
        (np.s_[4:4], 1),
        (np.s_[1:9], x[:1] + 7),
    ):
        volume[index] = value
        x[index] = value
        np.testing.assert_array_equal(volume[...], x, err_msg=repr(index))
    view = volume.squeeze().T
    view[5, 2:4] = np.arange(20, dtype="int16")
    x.squeeze().T[5, 2:4] = np.arange(20)
    np.testing.assert_array_equal(np.asarray(view), x.squeeze().T)


def test_writing_is_refused_where_elements_would_be_lost(tmp_path: Path) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x)
    volume[8:16] = 1  # whole chunks
    x[8:16] = 1
    with pytest.raises(ndshm.InvalidArgument, match="partial=True"):
        volume[8:15] = 2
    with pytest.raises(ndshm.InvalidArgument, match="step"):
        volume[::2] = 2
    for wrong in (1.5, -1, 1 << 16, 1j):
        with pytest.raises(ndshm.InvalidArgument, match="no element"):
            volume[:8] = wrong
    with pytest.raises(ndshm.InvalidArgument, match="mask"):
        volume[:8] = np.ma.masked_less(x[:8], 9)
    with pytest.raises(ndshm.Mismatch):
        volume[:8] = np.zeros((8, 30, 40), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        volume[:8] = np.zeros((8, 30, 7), "uint16")
    with pytest.raises(IndexError):
        volume[20] = 1
    np.testing.assert_array_equal(volume[...], x)


def test_dask_and_xarray_take_a_volume(tmp_path: Path) -> None:
    x, volume = precomputed(tmp_path)
    lazy = dask.array.from_array(volume)
    assert (lazy.shape, lazy.dtype, lazy.chunksize) == (x.shape, x.dtype, x.shape)
    np.testing.assert_array_equal(lazy.compute(scheduler="threads"), x)
    view = volume.transposed("zyx")
    chunked = dask.array.from_array(view, chunks=view.chunks)
    assert chunked.chunksize == CHUNK[::-1]
    want = x[..., 0].T
    np.testing.assert_array_equal((chunked[3:, ::2] + 1).max(axis=1).compute(scheduler="threads"), (want[3:, ::2] + 1).max(axis=1))
    assert dask.base.tokenize(volume) == dask.base.tokenize(ndshm.Volume(tmp_path / "em")) != dask.base.tokenize(view)
    labelled = xarray.DataArray(chunked, dims=view.dims)
    np.testing.assert_array_equal(labelled.isel(z=4).transpose("x", "y").compute(scheduler="threads"), want[4].T)
    np.testing.assert_array_equal(xarray.DataArray(view, dims=view.dims)[5], want[5])


def crop(volume: Any, at: int) -> Any:
    return volume[at : at + 9, 3:20, ::2]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_read_volumes_that_were_sent_to_them(tmp_path: Path, method: str) -> None:
    x = elements()
    volume_of(tmp_path / "v", x)
    with serving(tmp_path) as server:
        for url in (tmp_path / "v", f"{server.url}/v"):
            volume = ndshm.Volume(url)
            crop(volume, 0)
            with multiprocessing.get_context(method).Pool(2) as pool:
                found = pool.starmap(crop, [(volume, at) for at in range(8)])
            for at, part in enumerate(found):
                np.testing.assert_array_equal(part, crop(x, at))


@pytest.mark.skipif(sys.platform != "linux", reason="fork() of the C library")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_that_python_did_not_fork_reads_what_its_parent_opened(tmp_path: Path) -> None:
    x = elements()
    volume_of(tmp_path / "v", x, encoding="zstd")
    with serving(tmp_path) as server:
        volumes = [ndshm.Volume(url) for url in (tmp_path / "v", f"{server.url}/v")]
        for volume in volumes:
            np.testing.assert_array_equal(volume[...], x)  # the parent has helpers, and connections
        # No hook of Python runs: the child has the parent's volumes, pool and connections as they were.
        child = ctypes.CDLL(None).fork()
        if child == 0:
            try:
                for volume in volumes:
                    np.testing.assert_array_equal(volume[...], x)
                    np.testing.assert_array_equal(volume[3:9, 4, ::3], x[3:9, 4, ::3])
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        for volume in volumes:
            np.testing.assert_array_equal(volume[...], x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_ends_the_threads_that_helped_to_read(tmp_path: Path) -> None:
    code = f"""
import os, sys, warnings, numpy, ndshm
warnings.simplefilter("error")
volume = ndshm.Volume({str(tmp_path / "v")!r})
for _ in range(20):
    x = volume[...]
    child = os.fork()
    if child == 0:
        os._exit(not (volume[...] == x).all())
    assert os.waitpid(child, 0)[1] == 0
    if sys.platform == "linux":
        for task in os.listdir("/proc/self/task"):
            try:
                assert "ndshm-read" not in open(f"/proc/self/task/{{task}}/comm").read()
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has just ended
"""
    volume_of(tmp_path / "v", elements())
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_other_threads_run_while_a_server_is_silent(tmp_path: Path) -> None:
    x = elements()
    volume_of(tmp_path / "v", x)
    with serving(tmp_path, lambda path: "/c/" in path) as server:
        volume, found = ndshm.Volume(f"{server.url}/v"), list[Any]()
        reader = threading.Thread(target=lambda: found.append(volume[...]))
        reader.start()
        assert server.stalled.wait(30)
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + 0.3:
            count += 1
        assert count > 10_000
        # A read of another volume does not wait for the helpers of that one.
        other = ndshm.Volume(tmp_path / "v")
        np.testing.assert_array_equal(other[...], x)
        server.release.set()
        reader.join(30)
        np.testing.assert_array_equal(found[0], x)


@pytest.mark.parametrize("index", ["...", "0, 0, 0"])
def test_interrupt_ends_a_read_from_a_silent_server(tmp_path: Path, index: str) -> None:
    volume_of(tmp_path / "v", elements())
    with serving(tmp_path, lambda path: "/c/" in path) as server:
        code = f"""
import ndshm
volume = ndshm.Volume("{server.url}/v")
try:
    volume[{index}]
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert server.stalled.wait(60)
            time.sleep(0.1)
            begin = time.monotonic()
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=60)
            seconds = time.monotonic() - begin
        assert (out, child.returncode) == ("interrupted\n", 0)
        assert seconds < 5  # a server's silence is borne for minutes


def test_damaged_chunk_is_an_error_of_the_read_that_touches_it(tmp_path: Path) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x, encoding="zstd")
    file = tmp_path / "v/c/2/1/2"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ndshm.ChunkError, match="c/2/1/2"):
        volume[...]
    np.testing.assert_array_equal(volume[:16], x[:16])


def test_many_threads_read_one_volume(tmp_path: Path) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x, encoding="zstd")
    failed = list[BaseException]()

    def work(seed: int) -> None:
        try:
            for a, b in itertools.product(range(0, 12, 3), range(seed, 20, 7)):
                np.testing.assert_array_equal(volume[a : a + 9, b : b + 9], x[a : a + 9, b : b + 9])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
