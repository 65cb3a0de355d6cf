"""Volumes: downloads and uploads, how they are stopped, and what is left then."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ndshm
from conftest import counted_arrays, shared_files
from servers import serving

SHAPE, CHUNK = (20, 30, 40), (8, 16, 16)


def wait_until(met: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end, "waited for a minute in vain"
        time.sleep(0.01)


def elements(dtype: str = "uint16", shape: tuple[int, ...] = SHAPE) -> Any:
    return np.random.default_rng(7).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def volume_of(path: Path, x: Any, **how: Any) -> ndshm.Volume:
    volume = ndshm.create_volume(path, x.shape, CHUNK, x.dtype, **how)
    ndshm.upload(volume, x).result()
    return volume


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({}, "uint8"),
        ({"format": "zarr3", "encoding": "zstd"}, "float64"),
        ({"format": "zarr3", "encoding": "gzip", "shard": (16, 32, 32)}, "int32"),
        ({"format": "zarr2", "encoding": "blosc"}, "complex64"),
        ({"format": "precomputed"}, "float32"),
        ({"format": "precomputed", "encoding": "png"}, "uint16"),
        ({"format": "precomputed", "encoding": "compressed_segmentation", "origin": (100, -7, 3)}, "uint64"),
    ],
)
def test_downloaded_region_has_the_uploaded_elements(tmp_path: Path, name: str, how: Any, dtype: str, order: str) -> None:
    x = elements(dtype)
    volume = volume_of(tmp_path / "volume", x, **how)
    origin = how.get("origin", (0, 0, 0))
    part = (slice(3, 20), slice(0, 17), slice(9, 33))
    region = tuple(slice(axis.start + at, axis.stop + at) for axis, at in zip(part, origin, strict=True))
    array = ndshm.download(volume, region, name=name, order=order).result()
    want = x[part] if volume_axes(volume) == 3 else x[part][..., None]
    np.testing.assert_array_equal(array[...], want)
    assert (array.order, array.dtype, array.shape) == (order, x.dtype, want.shape)
    np.testing.assert_array_equal(ndshm.open(name)[...], want)


@pytest.mark.parametrize("wrong", [Path("array"), b"array", 3])
def test_name_of_a_download_that_is_no_text_is_refused_with_advice(tmp_path: Path, wrong: Any) -> None:
    volume = volume_of(tmp_path / "v.zarr", np.zeros(SHAPE, "u1"))
    with pytest.raises(ndshm.InvalidArgument, match="give text"):
        ndshm.download(volume, name=wrong)


def volume_axes(volume: ndshm.Volume) -> int:
    return len(ndshm.info(volume).scales[0].shape)


def test_info_describes_each_scale(tmp_path: Path) -> None:
    volume = ndshm.create_volume(
        f"precomputed://{tmp_path}/em", SHAPE, CHUNK, "uint32", kind="segmentation", resolution=(4, 4, 40), origin=(1, 2, 3)
    )
    info = ndshm.info(volume)
    (scale,) = info.scales
    assert info.url == volume.url == f"precomputed://{tmp_path}/em"
    assert (scale.shape, scale.origin, scale.chunk, scale.stored) == ((*SHAPE, 1), (1, 2, 3, 0), (*CHUNK, 1), (*CHUNK, 1))
    assert (scale.dtype, scale.kind, scale.unit, scale.resolution[:3]) == ("uint32", "segmentation", "nm", (4.0, 4.0, 40.0))
    assert scale.axes == ("x", "y", "z", "channel") and "Precomputed" in scale.description
    assert scale.bounds == np.s_[1:21, 2:32, 3:43, 0:1]
    same = pickle.loads(pickle.dumps(volume))
    assert (same.url, same.mip) == (volume.url, 0) and repr(same) == repr(volume)


def test_volume_is_created_once(tmp_path: Path) -> None:
    make = lambda **how: ndshm.create_volume(tmp_path / "v", SHAPE, CHUNK, "uint8", **how)  # noqa: E731
    make()
    make(exist_ok=True)
    with pytest.raises(ndshm.AlreadyExists):
        make()
    with pytest.raises(ndshm.AlreadyExists):
        make(exist_ok=True, encoding="gzip")


@pytest.mark.parametrize(
    "region",
    ["2:9,:,30:", np.s_[2:9, :, 30:], np.s_[2:9, None:None, 30:40], [slice(2, 9), slice(0, 30), slice(30, 40)]],
)
def test_regions_are_text_slices_or_boxes(tmp_path: Path, region: Any) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x)
    np.testing.assert_array_equal(ndshm.download(volume, region).result()[...], x[2:9, :, 30:])
    box = SimpleNamespace(minpt=np.array([2, 0, 30]), maxpt=np.array([9, 30, 40]))
    np.testing.assert_array_equal(ndshm.download(volume, box).result()[...], x[2:9, :, 30:])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda v: ndshm.download(v, np.s_[3, :, :]), ndshm.InvalidArgument, "not a slice"),
        (lambda v: ndshm.download(v, np.s_[0:9:2, :, :]), ndshm.InvalidArgument, "step"),
        (lambda v: ndshm.download(v, ":,:").result(), ndshm.InvalidArgument, "2 axes"),
        (lambda v: ndshm.download(v, "0:21,:,:").result(), ndshm.InvalidArgument, "ends at 20"),
        (lambda v: ndshm.download(v, "5:5,:,:").result(), ndshm.InvalidArgument, "empty"),
        (lambda v: ndshm.download(v, mip=2).result(), ndshm.InvalidArgument, "no scale 2"),
        (lambda v: ndshm.download(v, mip=-1), ndshm.InvalidArgument, "mip=-1"),
        (lambda v: ndshm.download(v, missing="zero"), ndshm.InvalidArgument, "missing="),
        (lambda v: ndshm.download(v, missing=1e9).result(), ndshm.InvalidArgument, "fill value"),
        (lambda v: ndshm.download(v, name="a", path="b"), ndshm.InvalidArgument, "either"),
        (lambda v: ndshm.download(v, name="a/b"), ndshm.InvalidArgument, "a/b"),
        (lambda v: ndshm.download(v, order="K"), ValueError, "order="),
        (lambda v: ndshm.download(v, path="/nowhere/file").result(), ndshm.NotFound, "nowhere"),
        (lambda v: ndshm.download("/nowhere/at/all").result(), ndshm.NotFound, "no such directory"),
        (lambda v: ndshm.download("ftp://host/em"), ndshm.InvalidArgument, "ftp"),
        (lambda v: ndshm.download(7), ndshm.InvalidArgument, "no volume"),
        (lambda v: ndshm.Volume(Path(__file__).parent), ndshm.NotFound, "no volume"),
        (lambda v: ndshm.Volume(__file__), ndshm.NotAVolume, "a file"),
        (lambda v: ndshm.upload(v, np.zeros(SHAPE, "u1")).result(), ndshm.Mismatch, "elements of type"),
        (lambda v: ndshm.upload(v, np.zeros((20, 30), "u2")).result(), ndshm.Mismatch, "shape"),
        (lambda v: ndshm.upload(v, np.zeros(SHAPE, ">u2")), ndshm.InvalidArgument, "big-endian"),
        (lambda v: ndshm.upload(v, np.zeros((4, 30, 40), "u2"), "0:4,:,:").result(), ndshm.InvalidArgument, "cuts through"),
        (lambda v: ndshm.upload(v, "py-no-such-array"), ndshm.NotFound, "py-no-such-array"),
        (lambda v: ndshm.upload(v, np.zeros(SHAPE, "u2"), cutout=":,:,:"), ndshm.InvalidArgument, "bbox"),
        (lambda v: ndshm.upload(v, np.zeros(SHAPE, "u2"), encoding="zip"), ndshm.InvalidArgument, "encoding="),
        (lambda v: ndshm.create_volume("x", SHAPE, CHUNK, "u2", format="n5"), ndshm.InvalidArgument, "format="),
        (lambda v: ndshm.create_volume("x", SHAPE, CHUNK, bool), ndshm.Unsupported, "uint8"),
        (lambda v: ndshm.create_volume("x", SHAPE, CHUNK, "u2", encoding="jpeg"), ndshm.InvalidArgument, "jpeg"),
        (lambda v: ndshm.create_volume("precomputed://x", SHAPE, CHUNK, "u8"), ndshm.InvalidArgument, "labels|segmentation"),
    ],
)
def test_bad_arguments_are_errors_that_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    volume = volume_of(tmp_path / "v", elements())
    with pytest.raises(error, match=says):
        call(volume)
    assert os.listdir(tmp_path) == ["v"]


def test_missing_chunks_are_filled_as_the_caller_says(tmp_path: Path) -> None:
    volume = ndshm.create_volume(tmp_path / "v", SHAPE, CHUNK, "int16", format="precomputed")
    with pytest.raises(ndshm.MissingChunk, match="not stored"):
        ndshm.download(volume).result()
    with pytest.warns(ndshm.TransferWarning, match="none of the chunks"):
        assert (ndshm.download(volume, missing="fill").result()[...] == 0).all()
    with pytest.warns(ndshm.TransferWarning, match="none of the chunks"):
        download = ndshm.download(volume, missing=-3)
        assert (download.result()[...] == -3).all()
    assert download.report.filled == download.report.chunks == 18
    with pytest.raises(ndshm.MissingChunk):
        ndshm.download(volume, missing="error").result()


def test_damaged_chunk_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    volume = volume_of(tmp_path / "v", elements(), format="zarr2", encoding="gzip")
    (tmp_path / "v" / "1/0/2").write_bytes(b"not gzip")
    with pytest.raises(ndshm.ChunkError, match="1/0/2"):
        ndshm.download(volume, name=name).result()
    assert not {file for file in shared_files() if name in file}


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1, :, ::-1].copy()[::-1, :, ::-1],
        lambda x: np.frombuffer(b"1" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
        lambda x: ndshm.share(x),
        lambda x: x.tolist() and np.moveaxis(np.moveaxis(x, 0, 2).copy(), 2, 0),
    ],
)
def test_array_with_any_strides_is_uploaded(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    x = elements()
    volume = ndshm.create_volume(tmp_path / "v", SHAPE, CHUNK, x.dtype)
    report = ndshm.upload(volume, change(x)).result()
    assert report.region == np.s_[0:20, 0:30, 0:40] and report.stored == 18 and report.nbytes == x.nbytes
    np.testing.assert_array_equal(ndshm.download(volume).result()[...], x)


def test_part_of_an_object_is_changed_only_when_asked(tmp_path: Path, name: str) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x)
    ndshm.from_array(name, np.full((3, 5, 7), 9, "uint16"))
    ndshm.upload(volume, name, "1:4,2:7,30:37", partial=True).result()
    x[1:4, 2:7, 30:37] = 9
    # Only the cutout, of a region that reaches beyond the volume.
    ndshm.upload(volume, np.full((8, 16, 16), 8, "uint16"), "16:24,0:16,0:16", cutout="16:20,0:16,0:16").result()
    x[16:20, 0:16, 0:16] = 8
    np.testing.assert_array_equal(ndshm.download(volume).result()[...], x)


def test_background_is_left_out_when_asked(tmp_path: Path) -> None:
    volume = volume_of(tmp_path / "v", elements())
    report = ndshm.upload(volume, np.zeros(SHAPE, "uint16"), skip_background=True).result()
    assert (report.stored, report.background) == (0, 18)
    assert not [file for file in (tmp_path / "v" / "c").rglob("*") if file.is_file()]


def test_upload_waits_for_writers_of_the_array(tmp_path: Path, name: str) -> None:
    volume = ndshm.create_volume(tmp_path / "v", (8,), (8,), "uint8")
    array = ndshm.create(name, 8, "uint8")
    with array.write():
        with pytest.raises(ndshm.WouldDeadlock):
            ndshm.upload(volume, array)
    code = f"""
import sys, ndshm
with ndshm.open({name!r}).write() as x:
    print("locked", flush=True)
    sys.stdin.readline()
    x[:] = 5
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        upload = ndshm.upload(volume, array)
        cancelled = ndshm.upload(volume, array)
        with pytest.raises(TimeoutError):
            upload.result(0.2)
        cancelled.cancel()
        with pytest.raises(ndshm.Cancelled):
            cancelled.result()
        child.stdin.write("\n")
        child.stdin.flush()
        upload.result(30)
    assert (ndshm.download(volume).result()[...] == 5).all()
    with array.write(timeout=0) as x:
        x[:] = 0


def zarr3(path: Path, names: list[str | None]) -> Path:
    path.mkdir()
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(SHAPE),
        "data_type": "uint8",
        "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(CHUNK)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}],
        "dimension_names": names,
    }
    (path / "zarr.json").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("order", ["C", "F"])
def test_array_knows_the_axes_of_its_volume(tmp_path: Path, name: str, order: str) -> None:
    origin = (100, -7, 3)
    volume = volume_of(tmp_path / "em", elements("uint8"), format="precomputed", origin=origin)
    named = ndshm.download(volume, "100:110,:,5:", name=name, order=order).result()
    nameless = ndshm.download(volume, "100:110,:,5:", order=order).result()
    opened = [ndshm.open(name), ndshm.open(name, (10, 30, 38, 1), "uint8", order=order)]
    for array in [named, nameless, *opened, pickle.loads(pickle.dumps(named))]:
        assert array.axes == ("x", "y", "z", "channel") == ndshm.info(volume).scales[0].axes
        assert "(10, 30, 38, 1) axes x, y, z, channel order " + order in repr(array)
        assert "x, y, z, channel" in array._repr_html_()
        assert array.notes["bbox"] == "100:110,-7:23,5:43,0:1" and array.notes["origin"] == "100 -7 3 0"
        assert array.notes["source"] == f"precomputed://{tmp_path / 'em'}" and array.notes["encoding"] == "raw"
        # One axis is cut by its name, in both orders.
        plane = np.take(array[...], 20 - 5, array.axes.index("z"))
        assert (plane[..., 0] == elements("uint8")[0:10, :, 20 - origin[2]]).all()
    merged = ndshm.open(name, (10 * 30, 38) if order == "C" else (10, 30 * 38), "uint8", order=order)
    assert merged.axes == () and "axes" not in repr(merged) and "axes" not in merged._repr_html_()
    assert ndshm.open(name, (10, 30, 38, 1), "uint8", order=order, reinterpret=True).notes == {}


@pytest.mark.filterwarnings("ignore:none of the chunks")
def test_array_with_exchanged_axes_is_not_stored_transposed(tmp_path: Path, name: str) -> None:
    array = ndshm.download(zarr3(tmp_path / "zyx", ["z", "y", "x"]), name=name).result()
    there = ndshm.create_volume(tmp_path / "xyz", SHAPE, CHUNK, "uint8", format="precomputed", resolution=(4, 4, 40))
    with pytest.raises(ndshm.InvalidArgument, match=r"z, y, x.*x, y, z.*transpose"):
        ndshm.upload(there, array).result()
    with pytest.raises(ndshm.InvalidArgument, match="transpose"):
        ndshm.create_volume(tmp_path / "copy", like=array, format="precomputed")
    assert not (tmp_path / "copy").exists()
    assert ndshm.upload(there, np.asarray(array)).result().nbytes == array.nbytes  # numpy's have no names
    same = ndshm.create_volume(tmp_path / "zarr", like=array, format="zarr3")
    assert ndshm.upload(same, array).result().nbytes == array.nbytes


def test_copy_under_a_name_keeps_the_notes(tmp_path: Path, name: str) -> None:
    volume = volume_of(tmp_path / "em", elements("uint8"), format="precomputed", origin=(100, -7, 3))
    downloaded = ndshm.download(volume, name=name + "-first").result()
    try:
        copy = ndshm.from_array(name, downloaded)
        assert copy.axes == downloaded.axes and copy.notes == {k: v for k, v in downloaded.notes.items() if k != "work"}
        assert ndshm.open(name).notes == copy.notes
        assert ndshm.upload(volume, copy).result().region == ndshm.upload(volume, downloaded).result().region
        assert ndshm.from_array(name, np.zeros(3), replace=True).notes == {}
    finally:
        ndshm.unlink(name + "-first")


def test_volume_like_an_array_begins_where_it_does_with_the_same_shape(tmp_path: Path) -> None:
    volume = volume_of(tmp_path / "em", elements("uint8"), format="precomputed", origin=(100, -7, 3))
    array = ndshm.download(volume).result()
    for number, (shape, origin) in enumerate([(SHAPE, (100, -7, 3)), ((*SHAPE, 1), (100, -7, 3)), ((5, 5, 5), (0, 0, 0))]):
        url = tmp_path / str(number)
        ndshm.create_volume(url, shape, like=array, format="precomputed")
        assert ndshm.info(url).scales[0].origin[:3] == origin


@pytest.mark.filterwarnings("ignore:none of the chunks")
def test_axis_without_a_name_of_its_own_is_its_number(tmp_path: Path) -> None:
    for number, (names, axes) in enumerate(
        [
            (["z", "y", "x"], ("z", "y", "x")),
            (["z", None, "x"], ("z", "1", "x")),
            (["x", "x", "my axis"], ()),
            (["\u202ez", "y", "x"], ("\u202ez", "y", "x")),
        ]
    ):
        path = zarr3(tmp_path / str(number), names)
        array = ndshm.download(path).result()
        assert array.axes == axes and "\u202e" not in repr(array) + array._repr_html_()
    assert ndshm.share(np.zeros(3)).axes == () and ndshm.share(np.zeros(3)).notes == {}


@pytest.mark.filterwarnings("ignore:none of the chunks")
@pytest.mark.skipif(sys.platform != "linux", reason="paths as long as a description")
def test_notes_that_do_not_fit_are_named_in_a_warning(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path
    while len(str(path)) < 3322:
        path = path / ("d" * min(200, 3342 - len(str(path))))
    path.parent.mkdir(parents=True)
    monkeypatch.chdir(zarr3(path, ["z", "y", "x"]))
    with pytest.warns(ndshm.TransferWarning, match="description lacks .*encoding"):
        array = ndshm.download(".", name=name).result()
    assert array.axes == ("z", "y", "x") and "encoding" not in array.notes and array.notes["source"] == f"zarr://{path}"


def test_booleans_stay_booleans(tmp_path: Path, name: str) -> None:
    path = tmp_path / "v"
    ndshm.create_volume(path, SHAPE, CHUNK, "uint8", format="zarr2")
    description = (path / ".zarray").read_text(encoding="utf-8")
    (path / ".zarray").write_text(description.replace('"|u1"', '"|b1"').replace('"fill_value": 0', '"fill_value": false'), encoding="utf-8")
    x = elements("bool")
    ndshm.upload(path, x).result()
    array = ndshm.download(path, name=name).result()
    assert array.dtype == bool and ndshm.open(name).dtype == bool
    np.testing.assert_array_equal(array[...], x)


def test_download_without_a_name_is_counted_and_has_one_when_it_is_pickled(tmp_path: Path) -> None:
    volume = volume_of(tmp_path / "v", elements())
    before = counted_arrays()
    array = ndshm.download(volume, order="F").result()
    assert array.is_counted and array.refcount == 1 and array.order == "F"
    assert array.name == "" and "counted" in repr(array) and not array.unlink() and counted_arrays() == before
    pickled = pickle.dumps(array)
    assert counted_arrays() - before == {array.name}
    same = pickle.loads(pickled)
    assert same.axes == array.axes and same.notes == array.notes and same.notes["bbox"] == "0:20,0:30,0:40"
    with same.write() as x:
        x[0] = 1
    assert (array[0] == 1).all() and (array[1:] == elements()[1:]).all()
    copy = ndshm.share(array)
    assert copy.notes == array.notes and copy.id != array.id
    with pytest.raises(ndshm.Unsupported, match="last process"):
        array.unlink()
    ndshm.in_flight.clear()
    del array, same, copy, x
    assert counted_arrays() <= before
    array = ndshm.download(volume).result()
    array.close()
    with pytest.raises(ValueError, match="download it again"):
        array.read().__enter__()


def test_array_that_processes_painted_without_a_name_is_not_pickled(tmp_path: Path) -> None:
    volume = volume_of(tmp_path / "v", elements())
    array = ndshm.download(volume, processes=True, workers=2).result()
    assert not {file for file in shared_files() if f"ndshm-download-{os.getpid()}-" in file}
    assert array.name == "" and "nameless" in repr(array) and not array.unlink()
    with pytest.raises(ndshm.NdshmError, match="by threads or under a name"):
        pickle.dumps(array)


SENDING = """
import pickle
import sys
import time

import ndshm

array = ndshm.download(sys.argv[1]).result()
ways = {"unsent": lambda: None, "sent": lambda: pickle.dumps(array)}
ways[sys.argv[2]]()
print(array.name, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["unsent", "sent"])
def test_kill_leaves_nothing_of_a_download_that_was_never_sent(tmp_path: Path, way: str) -> None:
    volume_of(tmp_path / "v", elements())
    before = counted_arrays()
    command = [sys.executable, "-c", SENDING, tmp_path / "v", way]
    with subprocess.Popen(command, env={**os.environ, "NDSHM_PICKLE_GRACE": "1"}, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        array = child.stdout.readline().strip()
        child.kill()
    assert bool(array) == (way == "sent")
    assert counted_arrays() - before == {array} - {""}
    time.sleep(1.1)  # the handle has expired
    ndshm.gc()
    assert counted_arrays() <= before


@pytest.mark.parametrize("way", ["whole", "part", "numpy"])
def test_download_paints_memory_that_exists(tmp_path: Path, name: str, way: str) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x, format="precomputed")
    batch = ndshm.create(name, (3, 10, 30, 80), "uint16", order="F")
    out: Any = {
        "whole": ndshm.share_zeros((10, 30, 40, 1), "uint16"),
        "part": batch.part(np.s_[1, :, :, 1::2]),
        "numpy": np.zeros((30, 3, 10, 40), "uint16").transpose(2, 0, 1, 3)[:, :, 1],
    }[way]
    download = ndshm.download(volume, "5:15,:,:", out=out)
    assert download.result() is out
    assert download.report == ndshm.DownloadReport(chunks=12, painted=12, filled=0, resumed=0, nbytes=24000, fetched=download.report.fetched)
    found = np.asarray(out)
    assert (found.reshape(10, 30, 40) == x[5:15]).all()
    if way == "part":
        everything = batch[...]
        assert not everything[0].any() and not everything[2].any() and not everything[1, :, :, ::2].any()
        with pytest.raises(ndshm.NotFound):
            batch.close()
            ndshm.unlink(name)
            ndshm.open(name)


def test_memory_that_does_not_fit_is_refused_and_not_painted(tmp_path: Path, name: str) -> None:
    volume = volume_of(tmp_path / "v", elements())
    zeros = np.zeros(SHAPE, "uint16")
    twice = np.lib.stride_tricks.as_strided(np.zeros(80, "uint16"), SHAPE, (2, 2, 2))
    readonly = np.zeros(SHAPE, "uint16")
    readonly.flags.writeable = False
    for out, how, why in [
        (zeros, {"name": name}, "either name, path or out"),
        (zeros, {"order": "C"}, "leave out processes"),
        (zeros, {"processes": True}, "leave out processes"),
        (np.ma.masked_array(zeros, False), {}, "mask"),
        (zeros[::-1], {}, "positive strides"),
        (readonly, {}, "read-only"),
        ([0], {}, "list"),
    ]:
        with pytest.raises(ndshm.InvalidArgument, match=why):
            ndshm.download(volume, out=out, **how)  # type: ignore[arg-type]
    with pytest.raises(ndshm.InvalidArgument, match="share memory"):
        ndshm.download(volume, out=twice)
    with pytest.raises(ndshm.InvalidArgument, match="positive"):
        ndshm.download(volume, out=ndshm.share_zeros(SHAPE, "uint16").part(np.s_[::-1]))
    with pytest.raises(ndshm.InvalidArgument, match="no elements"):
        ndshm.download(volume, out=zeros[:0])
    for wrong in (np.zeros(SHAPE, "int16"), np.zeros(SHAPE, "bool"), zeros[1:], zeros[..., None, None]):
        with pytest.raises(ndshm.Mismatch):
            ndshm.download(volume, out=wrong).result()
        assert not wrong.any()
    frozen = ndshm.share_zeros(SHAPE, "uint16")
    frozen.freeze()
    with pytest.raises(ndshm.PermissionDenied, match="frozen"):
        ndshm.download(volume, out=frozen)
    assert not zeros.any()


def test_parts_of_an_array_are_painted_one_after_the_other(tmp_path: Path) -> None:
    """By the thread that holds none of their locks, and so need not fear to wait for itself."""
    x = elements()
    volume = volume_of(tmp_path / "v", x)
    batch = ndshm.share_zeros((4, *SHAPE), "uint16")
    downloads = [ndshm.download(volume, out=part) for part in batch.parts()]
    with batch.read() as found:  # waits
        assert found.any()
    for download in downloads:
        download.result()
    assert (batch[...] == x).all()
    upload = ndshm.upload(volume, batch.part(0), "0:20,:,:")
    with batch.write() as found:
        assert upload.done()
        found[0] = 0
    assert (ndshm.download(volume).result()[...] == x).all()


def test_failed_work_keeps_nothing(tmp_path: Path) -> None:
    volume = volume_of(tmp_path / "v", elements())

    def fail() -> None:
        out = ndshm.share_zeros((1, 2, 3), "uint16")
        download = ndshm.download(volume, out=out)
        for _ in range(2):
            with pytest.raises(ndshm.Mismatch, match="shape"):
                download.result()

    before = counted_arrays()
    for _ in range(3):
        fail()
    gc.collect()
    assert counted_arrays() <= before


def test_copy_has_the_notes_only_if_they_fit(tmp_path: Path, name: str) -> None:
    array = ndshm.download(volume_of(tmp_path / "v", elements(), format="precomputed"), name=name).result()
    assert ndshm.share(array).axes == array.axes == ("x", "y", "z", "channel")
    assert ndshm.share(ndshm.open(name, (2, 10, 30, 40), "uint16")).notes == {}


def test_painted_array_is_locked_meanwhile(tmp_path: Path) -> None:
    x = elements()
    volume_of(tmp_path / "v", x)
    out = ndshm.share_zeros(SHAPE, "uint16")
    with serving(tmp_path, lambda path: "c/1/1/0" in path) as server:
        volume = ndshm.Volume(f"{server.url}/v")
        with out.read(), pytest.raises(ndshm.WouldDeadlock):
            ndshm.download(volume, out=out)
        # A guard of another thread is waited for.
        locked, release = threading.Event(), threading.Event()

        def hold() -> None:
            with out.read():
                locked.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait()
        download = ndshm.download(volume, out=out, requests=1)
        time.sleep(0.05)
        assert not download.done() and download.progress.total == 0
        release.set()
        thread.join()
        wait_until(lambda: download.progress.done == 9)
        with pytest.raises(ndshm.WouldBlock):
            out.read(timeout=0).__enter__()
        download.cancel()
        server.release.set()
        with pytest.raises(ndshm.Cancelled):
            download.result()
    with out.read() as found:
        assert found.any() and ((found == x) | (found == 0)).all()


def test_file_holds_the_elements_and_nothing_else(tmp_path: Path) -> None:
    x = elements("float32")
    volume = volume_of(tmp_path / "v", x)
    array = ndshm.download(volume, path=tmp_path / "x.raw", order="F").result()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "x.raw", "float32").reshape(SHAPE, order="F"), x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[...], x)
    with pytest.raises(ndshm.AlreadyExists):
        ndshm.download(volume, path=tmp_path / "x.raw").result()


def test_progress_bar_counts_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x)
    download = ndshm.download(volume, progress=True)
    download.result()
    assert download.progress[:4] == (18, 18, x.nbytes, x.nbytes)
    assert "46.9k/46.9k" in capfd.readouterr().err
    assert "18 of 18, ended" in repr(download)


def is_chunk(path: str) -> bool:
    return "/c/" in path


def test_interpreter_is_free_while_a_server_is_silent(tmp_path: Path) -> None:
    volume_of(tmp_path / "v", elements())
    with serving(tmp_path, is_chunk) as server:
        download = ndshm.download(f"{server.url}/v")
        waiter = threading.Thread(target=download.result)
        waiter.start()
        assert server.stalled.wait(30)
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + 0.3:
            count += 1
        assert count > 10_000
        server.release.set()
        waiter.join(30)
        np.testing.assert_array_equal(download.result()[...], elements())


@pytest.mark.parametrize(
    ("call", "stalls"),
    [*((call, stalls) for call in ("result", "await", "exit") for stalls in ("zarr.json", "/c/")), ("info", "zarr.json")],
)
def test_interrupt_ends_the_wait_for_a_silent_server(tmp_path: Path, name: str, call: str, stalls: str) -> None:
    volume_of(tmp_path / "v", elements())
    with serving(tmp_path, lambda path: stalls in path) as server:
        code = f"""
import asyncio, sys, time, ndshm
async def wait(download):
    await download
try:
    if {call!r} == "info":
        ndshm.info("{server.url}/v")
    download = ndshm.download("{server.url}/v", name={name!r})
    if {call!r} == "exit":
        time.sleep(3600)
    elif {call!r} == "await":
        asyncio.run(wait(download))
    else:
        download.result()
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
        print(f"{call}, {stalls}: ended {seconds:.2f} s after SIGINT")
        assert seconds < 5  # a server's silence is borne for minutes
    assert not {file for file in shared_files() if name in file}


def test_cancelled_download_keeps_its_chunks_when_asked(tmp_path: Path, name: str) -> None:
    x = elements()
    volume_of(tmp_path / "v", x)
    with serving(tmp_path, lambda path: "c/2/1/2" in path) as server:
        for keep in (False, True):
            download = ndshm.download(f"{server.url}/v", name=name, keep_partial=keep)
            wait_until(lambda: download.progress.done == 17)  # noqa: B023
            with pytest.raises(TimeoutError, match="goes on"):
                download.result(0)
            assert not download.done()
            download.cancel()
            for _ in range(2):
                with pytest.raises(ndshm.Cancelled):
                    download.result()
            assert bool([file for file in shared_files() if name in file]) == keep
        server.release.set()
        download = ndshm.download(f"{server.url}/v", name=name)
        np.testing.assert_array_equal(download.result()[...], x)
        assert (download.report.resumed, download.report.painted) == (17, 1)


def test_coroutines_wait_together_and_are_cancelled(tmp_path: Path, name: str) -> None:
    x = elements()
    volume = volume_of(tmp_path / "v", x)

    async def together() -> None:
        parts = ["0:8,:,:", "8:16,:,:", "16:,:,:"]
        arrays = await asyncio.gather(*(ndshm.download(volume, part) for part in parts))
        np.testing.assert_array_equal(np.concatenate([array[...] for array in arrays]), x)

    async def too_slow(url: str) -> None:
        await asyncio.wait_for(asyncio.ensure_future(_await(ndshm.download(url, name=name))), 0.5)

    asyncio.run(together())
    with serving(tmp_path, is_chunk) as server:
        with pytest.raises(TimeoutError):
            asyncio.run(too_slow(f"{server.url}/v"))
    assert not {file for file in shared_files() if name in file}


async def _await(download: ndshm.Download) -> ndshm.Array:
    return await download


def test_end_of_the_program_cancels_downloads(tmp_path: Path, name: str) -> None:
    volume_of(tmp_path / "v", elements())
    with serving(tmp_path, is_chunk) as server:
        code = f"""
import time, ndshm
download = ndshm.download("{server.url}/v", name={name!r})
while download.progress.total == 0:
    time.sleep(0.01)
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert not {file for file in shared_files() if name in file}


@pytest.mark.program
def test_killed_worker_is_a_warning_and_another_paints_its_chunk(tmp_path: Path, name: str) -> None:
    x = elements()
    volume_of(tmp_path / "v", x)
    with serving(tmp_path, is_chunk) as server:
        download = ndshm.download(f"{server.url}/v", name=name, processes=True, workers=2)
        assert server.stalled.wait(60)
        wait_until(lambda: len(children("worker")) == 2)
        os.kill(children("worker")[0], signal.SIGKILL)
        time.sleep(0.2)
        server.release.set()
        with pytest.warns(ndshm.TransferWarning, match="worker . ended"):
            array = download.result()
    np.testing.assert_array_equal(array[...], x)
    assert not children("worker")


def children(word: str) -> list[int]:
    """Return the processes that this one started with this argument."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and word.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except (OSError, IndexError):
            continue
    return found


def test_killed_program_leaves_only_what_gc_removes(tmp_path: Path, name: str) -> None:
    volume_of(tmp_path / "v", elements())
    before = counted_arrays()
    with serving(tmp_path, lambda path: "c/2/1/2" in path) as server:
        code = f"""
import ndshm
named = ndshm.download("{server.url}/v", name={name!r})
by_processes = ndshm.download("{server.url}/v", processes=True)
ndshm.download("{server.url}/v").result()
"""
        with subprocess.Popen([sys.executable, "-c", code]) as child:
            left = lambda: [file for file in shared_files() if name in file or f"ndshm-download-{child.pid}-" in file]  # noqa: E731
            wait_until(lambda: len(left()) == 4 and server.asked.count("/v/c/2/1/2") == 3)
            child.kill()
        # The first can be resumed; no process knows the name of the second; the third never had one.
        ndshm.RenderBuffer.join(name, "uint16").discard()
        assert len(left()) == 2
        ndshm.gc()
    assert not left() and counted_arrays() <= before


def test_forked_child_opens_volumes_for_itself(tmp_path: Path) -> None:
    x = elements()
    volume_of(tmp_path / "v", x)
    with serving(tmp_path) as server:
        volume = ndshm.Volume(f"{server.url}/v")
        download = ndshm.download(volume)
        download.result()
        child = os.fork()
        if child == 0:
            try:
                np.testing.assert_array_equal(ndshm.download(volume).result()[...], x)
                try:
                    download.progress  # of the parent, and still readable  # noqa: B018
                    download.done()
                except RuntimeError as error:
                    assert "parent" in str(error)
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_parts_are_planned_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = volume_of(tmp_path / "v", elements())
    bounds = ndshm.info(volume).scales[0].bounds
    parts = ndshm.shards.plan(volume, None, 4)
    covered = np.zeros(SHAPE, int)
    for part in parts:
        assert part is not None
        covered[part] += 1
    assert (covered == 1).all()
    assert ndshm.shards.plan(volume, "0:8,0:16,0:16", 2) == [np.s_[0:8, 0:16, 0:16], None]
    with pytest.raises(ndshm.InvalidArgument):
        ndshm.shards.plan(volume, None, 0)

    markers = ndshm.shards.Markers(tmp_path / "markers", "v to nowhere", bounds)
    assert len(markers.missing(4)) == 4
    markers.write(ndshm.shards.Shard(1, 4), parts[1], 100)
    assert [shard.part for shard in markers.missing(4)] == [0, 2, 3]
    other = ndshm.shards.Markers(tmp_path / "markers", "another work", bounds)
    assert len(other.missing(4)) == 4
    with pytest.raises(ndshm.InvalidArgument, match="whole region"):
        ndshm.shards.Markers(tmp_path / "markers", "w", None)

    with pytest.raises(ndshm.InvalidArgument, match="SLURM"):
        ndshm.shards.from_environment()
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    assert ndshm.shards.from_environment(5) == (2, 5)


def test_memory_of_a_dropped_download_is_freed(tmp_path: Path) -> None:
    """When it has ended before, and when it ends later."""

    def nameless() -> int:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return sum("(deleted)" in line and "/dev/shm" in line for line in maps)

    volume = volume_of(tmp_path / "volume", np.zeros(SHAPE, "u1"))
    before = nameless()
    download = ndshm.download(volume)
    while not download.done():
        time.sleep(0.001)
    assert nameless() == before + 1, "the array that `result` would give"
    del download
    assert nameless() == before
    ndshm.download(volume)
    end = time.monotonic() + 60
    while nameless() != before:
        assert time.monotonic() < end, "the memory is still mapped"
        time.sleep(0.01)


def test_failed_work_says_so_although_nobody_waits_for_it(tmp_path: Path) -> None:
    volume = ndshm.create_volume(tmp_path / "em.zarr", (16,), (8,), "u1")
    works = [ndshm.upload(volume, np.ones(16, "u2")), ndshm.upload(volume, np.ones(16, "u2"))]
    while not all(work.done() for work in works):
        time.sleep(0.01)
    assert "failed: " in repr(works[0]) and "<u2" in repr(works[0])
    with pytest.raises(ndshm.NdshmError):
        works[0].result()
    with pytest.warns(ndshm.TransferWarning, match=r"failed, and result\(\) was not called: .*<u2"):
        works.pop()
        gc.collect()
    done = ndshm.upload(volume, np.ones(16, "u1"))
    done.result()
    assert repr(done).endswith("ended>")


ABANDONED = """
import sys
import numpy, ndshm

volume = ndshm.create_volume(sys.argv[1], (4096, 4096), (64, 64), "u1", encoding="gzip")
x = numpy.random.default_rng(1).integers(0, 255, (4096, 4096)).astype("u1")
work = ndshm.upload(volume, x)
if sys.argv[2] == "waits":
    work.result()
"""


@pytest.mark.parametrize("way", ["waits", "ends"])
def test_program_that_ends_before_its_upload_is_told(tmp_path: Path, way: str) -> None:
    done = subprocess.run([sys.executable, "-c", ABANDONED, str(tmp_path / "v"), way], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr.count("TransferWarning") == (way == "ends"), done.stderr
    assert ("upload: the program ended before the work" in done.stderr) == (way == "ends")


@pytest.mark.parametrize("encoding", ["gzip", "compressed_segmentation_gzip"])
def test_created_volume_remembers_that_its_chunks_are_wrapped(tmp_path: Path, encoding: str) -> None:
    dtype, kind = ("uint32", "segmentation") if encoding.startswith("c") else ("uint8", "image")
    x = elements().astype(dtype)[..., None]
    made = [
        ndshm.create_volume(tmp_path / str(number), x.shape[:3], (16, 16, 16), dtype, format="precomputed", encoding=encoding, kind=kind)
        for number in range(3)
    ]
    ndshm.upload(made[0], x).result()
    made[1][...] = x
    pickle.loads(pickle.dumps(made[2]))[...] = x
    for volume in made:
        files = [path.name for path in Path(volume.url).rglob("*-*_*")]
        assert files and all(name.endswith(".gz") for name in files)
        # By its path, too: chunks that are stored show it.
        ndshm.upload(volume.url, x + 1).result()
        assert [path.name for path in Path(volume.url).rglob("*-*_*")] == files
        assert (ndshm.Volume(volume.url)[...] == x + 1).all()
