"""The four methods of volumes, and `ndshm.cloudvolume.download` and `upload`, compared with what CloudVolume reads and writes."""

from __future__ import annotations

import functools
import http.server
import itertools
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudvolume.exceptions
import cloudvolume.sharedmemory as shm
import numpy as np
import pyspng
import pytest
import simplejpeg
import zarr
from cloudvolume import Bbox, CloudVolume
from outcomes import outcome
from volumes import CHUNK, OFFSET, SHAPE, elements, n5, precomputed, sharded

import ndshm
import ndshm.cloudvolume as ours

pytestmark = pytest.mark.usefixtures("installed")
PAGE = Path(__file__).parents[2] / "docs/guide/cloudvolume.md"

#: Encoding, compression, element type, channels.
LAYOUTS = [
    *[("raw", None, dtype, 1) for dtype in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32")],
    ("raw", False, "uint8", 1),
    ("raw", None, "uint8", 3),
    ("raw", False, "float32", 2),
    ("jpeg", None, "uint8", 1),
    ("png", None, "uint8", 1),
    ("compressed_segmentation", None, "uint32", 1),
    ("compressed_segmentation", False, "uint64", 1),
]
WHOLE = np.s_[:, :, :]
ONE = np.s_[12, 3, 4]
REGIONS = {
    "whole": WHOLE,
    "across-chunks": np.s_[15:41, 0:20, 5:20],
    "plane": np.s_[:, :, 7],
    "one-element": ONE,
    "steps": np.s_[10:40:3, :, 3:20:2],
}


@pytest.fixture(params=LAYOUTS, ids=lambda layout: "-".join(map(str, layout)))
def layout(request: pytest.FixtureRequest) -> Any:
    return request.param


def write(folder: Path, layout: Any, **how: Any) -> Any:
    encoding, compress, dtype, channels = layout
    return precomputed(folder / "volume", elements(dtype, channels), encoding=encoding, compress=compress, **how)


def read(vol: Any, region: Any = WHOLE, mip: int = 0) -> Any:
    """Return what CloudVolume itself reads."""
    fresh = CloudVolume(vol.cloudpath, mip=mip, bounded=vol.bounded, fill_missing=vol.fill_missing, background_color=vol.background_color)
    return np.array(fresh[region])


def tolerance(layout: Any) -> int:
    return 3 if layout[0] == "jpeg" else 0  # two decoders of the same picture


def check_equal(found: Any, expected: Any, differ: int = 0) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if differ:
        assert abs(found.astype(float) - expected.astype(float)).max() <= differ
    else:
        np.testing.assert_array_equal(found, expected)


def test_downloads_are_what_cloudvolume_reads(layout: Any, name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, layout)
    assert ours.why_not(vol) is None
    for mip, (_, region) in itertools.product((0, 1), REGIONS.items()):
        if mip == 1 and region is not WHOLE:
            continue
        if region == ONE and layout[3] > 1:
            continue  # CloudVolume takes the channels for x: see test_bugs.py
        expected = read(vol, region, mip)
        for parallel in (1, 2):
            vol.parallel = parallel
            check_equal(vol.download_to_shared_memory(region, name, mip), expected, tolerance(layout))
            check_equal(vol.download_to_file(str(tmp_path / "file"), region, mip), expected, tolerance(layout))
        for order in ("C", "F"):
            found = ours.download(vol, region, name, order, mip=mip)
            check_equal(found, expected, tolerance(layout))
            whole = region in (WHOLE, REGIONS["across-chunks"])
            assert not whole or found.flags[f"{order}_CONTIGUOUS"]


def test_results_are_those_of_the_original_methods(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint16", 3))

    def facts() -> Any:
        found = []
        for region in REGIONS.values():
            if region != ONE:
                for x in (vol.download_to_shared_memory(region, name), vol.download_to_file(str(tmp_path / "file"), region)):
                    attributes = (x.bounds, x.mip, x.resolution, x.layer_type, x.path, x.cloudpath, x.layer)
                    found.append((type(x).__name__, x.shape, x.strides, x.flags.writeable, x.tobytes(), str(attributes)))
        return found

    assert outcome("original", facts) == facts()


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_pictures_of_three_channels_are_written_in_the_right_order(encoding: str, tmp_path: Path) -> None:
    x = np.zeros((*SHAPE, 3), "u1")
    x[...] = (50, 100, 200)  # CloudVolume mixes them up when it reads them: see test_bugs.py
    vol = precomputed(tmp_path / "volume", np.zeros_like(x), encoding=encoding)
    ours.upload(vol, x, vol.bounds)
    chunk = next(file for file in (tmp_path / "volume/4_4_40").iterdir() if file.suffix == "")
    decoded = pyspng.load(chunk.read_bytes()) if encoding == "png" else simplejpeg.decode_jpeg(chunk.read_bytes(), colorspace="RGB")
    assert decoded.shape[2] == 3 and (abs(decoded.astype(int) - (50, 100, 200)) <= 2).all()


def test_uploads_are_what_cloudvolume_reads(layout: Any, name: str, tmp_path: Path) -> None:
    encoding, compress, dtype, channels = layout
    vol = write(tmp_path, layout)
    assert ours.why_not(vol, write=True) is None
    lossy = 20 if encoding == "jpeg" else 0
    size = (*vol.bounds.size3(), channels)
    for number, (order, parallel, partial) in enumerate(itertools.product("CF", (1, 2), (False, True))):
        x = (elements(dtype, channels) + number + 1).astype(dtype)
        if encoding == "jpeg":
            x[...] = np.arange(size[0], dtype=dtype)[:, None, None, None] + number  # a smooth picture
        vol.parallel = parallel
        handle, shared = shm.ndarray(size, dtype, name, order=order)
        shared[...] = x
        expected = read(vol)
        part = Bbox(OFFSET, np.add(OFFSET, (16, 32, 16))) if partial else None
        window = np.s_[:16, :32, :16] if partial else np.s_[:]
        expected[window] = x[window]
        vol.upload_from_shared_memory(name, vol.bounds, order=order, cutout_bbox=part)
        check_equal(read(vol), expected, lossy)
        (tmp_path / "file").write_bytes((x + 1).astype(dtype).tobytes(order))
        vol.upload_from_file(str(tmp_path / "file"), vol.bounds, order=order, cutout_bbox=part)
        expected[window] = (x + 1).astype(dtype)[window]
        check_equal(read(vol), expected, lossy)
        handle.close()


def test_new_volume_is_written_as_compress_says(name: str, tmp_path: Path) -> None:
    x = elements()
    for compress, suffix in ((None, ".gz"), ("gzip", ".gz"), (True, ".gz"), (False, ""), ("", "")):
        folder = tmp_path / f"volume-{compress}"
        info = CloudVolume.create_new_info(1, "image", "uint8", "raw", (4, 4, 40), OFFSET, SHAPE, chunk_size=CHUNK)
        vol = CloudVolume(f"file://{folder}", info=info, compress=compress)
        vol.commit_info()
        assert ours.upload(vol, x, vol.bounds) is not None
        assert {Path(file).suffix for file in os.listdir(folder / "4_4_40")} == {suffix}
        check_equal(read(vol), x)


def test_delete_black_uploads_removes_chunks(tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1), delete_black_uploads=True, fill_missing=True)
    x = elements()
    x[:16, :16, :16] = 0
    report = ours.upload(vol, x, vol.bounds)
    assert report is not None and report.background == 1
    check_equal(read(vol), x)
    assert not any(vol.exists(Bbox(OFFSET, np.add(OFFSET, CHUNK))).values())


def test_region_that_cuts_through_chunks_needs_non_aligned_writes(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    region = Bbox((12, 0, 4), (40, 20, 18))
    handle, shared = shm.ndarray((*region.size3(), 1), "uint8", name)
    shared[...] = 9
    with pytest.raises(cloudvolume.exceptions.AlignmentError):
        vol.upload_from_shared_memory(name, region)
    check_equal(read(vol), elements())
    vol.non_aligned_writes = True
    vol.upload_from_shared_memory(name, region)
    expected = elements()
    expected[2:30, 5:25, 1:15] = 9
    check_equal(read(vol), expected)
    # A chunk at the border of the region that is not stored.
    vol.delete(Bbox(OFFSET, np.add(OFFSET, CHUNK)))
    with pytest.raises(cloudvolume.exceptions.EmptyVolumeException):
        vol.upload_from_shared_memory(name, region)
    vol.fill_missing = True
    vol.upload_from_shared_memory(name, region)
    expected[:16, :16, :16] = 0
    expected[2:30, 5:25, 1:15] = 9
    check_equal(read(vol), expected)
    handle.close()


def test_two_uploads_may_change_the_same_chunk_at_the_same_time(tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1), non_aligned_writes=True)
    expected = elements()

    def change(row: int) -> None:
        x = np.full((1, *SHAPE[1:], 1), row, "u1")
        start = np.add(OFFSET, (row, 0, 0))
        ours.upload(CloudVolume(vol.cloudpath, non_aligned_writes=True), x, Bbox(start, np.add(start, (1, *SHAPE[1:]))))

    threads = [threading.Thread(target=change, args=(row,)) for row in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected[:16] = np.arange(16, dtype="u1")[:, None, None, None]
    check_equal(read(vol), expected)


@pytest.mark.parametrize("background", [0, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_unbounded_region_is_surrounded_by_background(background: int, order: str, name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 2), bounded=False, fill_missing=True, background_color=background)
    vol.delete(Bbox(OFFSET, np.add(OFFSET, CHUNK)))
    for region in (np.s_[0:30, -20:10, 0:10], np.s_[0:100, -50:100, 0:50], np.s_[200:210, 0:5, 0:5]):
        expected = read(vol, region)
        for place in (name, None):
            check_equal(ours.download(vol, region, place, order), expected)
        check_equal(ours.download(vol, region, path=tmp_path / "file", order=order), expected)
        check_equal(np.fromfile(tmp_path / "file", "u1").reshape(expected.shape, order=order), expected)


def test_autocrop_crops(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1), bounded=False, autocrop=True)
    check_equal(vol.download_to_shared_memory(np.s_[0:30, -20:10, 0:10], name), elements()[:20, :15, :7])
    handle, shared = shm.ndarray((40, 40, 40, 1), "uint8", name)
    shared[...] = 8
    vol.upload_from_shared_memory(name, Bbox((-14, -29, -17), (26, 11, 23)))
    expected = elements()
    expected[:16, :16] = 8
    check_equal(read(vol), expected)
    vol.upload_from_shared_memory(name, Bbox((100, 100, 100), (140, 140, 140)))  # nothing of it is in the volume
    handle.close()


def test_regions_outside_are_errors_of_cloudvolume(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    with pytest.raises(cloudvolume.exceptions.OutOfBoundsError):
        vol.download_to_shared_memory(np.s_[0:30, :, :], name)
    shm.ndarray((16, 16, 16, 1), "uint8", name)
    with pytest.raises(cloudvolume.exceptions.OutOfBoundsError):
        vol.upload_from_shared_memory(name, Bbox((-6, -5, 3), (10, 11, 19)))
    with pytest.raises(cloudvolume.exceptions.AlignmentError):
        vol.upload_from_shared_memory(name, Bbox(OFFSET, np.add(OFFSET, CHUNK)), cutout_bbox=Bbox((10, -5, 3), (42, 11, 19)))
    with pytest.raises(cloudvolume.exceptions.SubvoxelVolumeError):
        vol.download_to_shared_memory(np.s_[10:10, :, :], name)


def test_missing_chunk_is_an_error_of_cloudvolume_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    vol.delete(Bbox(OFFSET, np.add(OFFSET, CHUNK)))
    with pytest.raises(cloudvolume.exceptions.EmptyVolumeException):
        vol.download_to_shared_memory(WHOLE, name)
    with pytest.raises(cloudvolume.exceptions.EmptyVolumeException):
        vol.download_to_file(str(tmp_path / "file"), WHOLE)
    assert not os.path.exists(f"/dev/shm/{name}") and not (tmp_path / "file").exists()
    assert not [file for file in os.listdir(tmp_path) if file.startswith(".ndshm")]


def test_array_of_another_size_is_an_error_of_cloudvolume(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    with pytest.raises(shm.SharedMemoryReadError):
        vol.upload_from_shared_memory(name, vol.bounds)
    shm.ndarray((5,), "u1", name)
    with pytest.raises(shm.SharedMemoryReadError):
        vol.upload_from_shared_memory(name, vol.bounds)
    with pytest.raises(ndshm.sharedmemory.SharedMemoryReadError):
        vol.upload_from_file(str(tmp_path / "missing"), vol.bounds)


def test_array_that_does_not_fit_is_an_error_of_cloudvolume(tmp_path: Path, name: str) -> None:
    info = CloudVolume.create_new_info(1, "image", "uint8", "raw", (1, 1, 1), (0, 0, 0), (1 << 16, 1 << 16, 1 << 10), chunk_size=(1 << 11, 1 << 11, 64))
    vol = CloudVolume(f"file://{tmp_path}/huge", info=info, fill_missing=True)
    vol.commit_info()
    with pytest.raises(shm.SharedMemoryAllocationError):
        vol.download_to_shared_memory(WHOLE, name)


def test_readers_of_the_old_array_keep_it(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    first = vol.download_to_shared_memory(np.s_[10:20, :, :], name)
    kept = np.array(first)
    vol.download_to_shared_memory(np.s_[20:30, :, :], name)
    vol.download_to_shared_memory(np.s_[20:22, :, :], name)
    check_equal(np.asarray(first), kept)


def test_default_location_is_that_of_the_volume(tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    found = vol.download_to_shared_memory(WHOLE)
    assert os.path.exists(f"/dev/shm/{vol.image.shared_memory_id}")
    assert not found.handle.closed
    found.close()
    assert found.handle.closed and found[0, 0, 0, 0] == 2
    assert vol.unlink_shared_memory() and not vol.unlink_shared_memory()


def test_array_is_where_cloudvolume_looks_for_it_although_this_package_emulates(name: str, tmp_path: Path) -> None:
    write(tmp_path, ("raw", None, "uint8", 1))
    program = f"""
import os, ndshm.cloudvolume, ndshm.sharedmemory
from cloudvolume import CloudVolume
import cloudvolume.sharedmemory as shm
ndshm.cloudvolume.install()
vol = CloudVolume("file://{tmp_path}/volume", parallel=2)
x = vol.download_to_shared_memory(vol.bounds, "{name}")
_, y = shm.ndarray(x.shape, "u1", "{name}", readonly=True)
assert ndshm.sharedmemory.EMULATE_SHM and (x == y).all() and os.path.exists("/dev/shm/{name}")
vol[vol.bounds] = x + 1  # by worker processes
assert (vol[vol.bounds] == x + 1).all() and shm.unlink("{name}")
"""
    script = tmp_path / "program.py"
    script.write_text("if __name__ == '__main__':\n" + program.replace("\n", "\n    "))
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path / "emulated")}
    subprocess.run([sys.executable, script], env=environment, check=True)
    assert os.listdir(tmp_path / "emulated") == []


def test_file_has_the_permissions_of_other_files(tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    path = tmp_path / "file"
    umask = os.umask(0o022)
    try:
        vol.download_to_file(str(path), WHOLE)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o660)
    vol.download_to_file(str(path), WHOLE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_box_in_nanometres_is_converted(name: str, tmp_path: Path) -> None:
    vol = write(tmp_path, ("raw", None, "uint8", 1))
    region = Bbox((48, 0, 160), (80, 40, 400), unit="nm")
    check_equal(vol.download_to_shared_memory(region, name), read(vol, np.s_[12:20, 0:10, 4:10]))


@pytest.mark.parametrize("folder", ["with space", "100%25 #1?", "ü"])
def test_paths_are_taken_literally(folder: str, name: str, tmp_path: Path) -> None:
    vol = precomputed(tmp_path / folder, elements())
    check_equal(vol.download_to_shared_memory(WHOLE, name), elements())
    vol.upload_from_shared_memory(name, vol.bounds)
    check_equal(ndshm.download(vol, order="F").result()[...], elements())


def test_volume_behind_a_web_server(name: str, tmp_path: Path) -> None:
    write(tmp_path, ("raw", False, "uint16", 1))
    server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        vol = CloudVolume(f"http://127.0.0.1:{server.server_port}/volume")
        assert ours.why_not(vol) is None and ours.why_not(vol, write=True) == "volumes at http:// are not written"
        for region in REGIONS.values():
            check_equal(vol.download_to_shared_memory(region, name), read(vol, region))
    finally:
        server.shutdown()
        server.server_close()


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 100  # with fewer, connections wait for a second


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


def zarr_volume(folder: Path, axes: str, version: int) -> Any:
    """Write an OME-Zarr image of these axes with zarr-python, and return it and its elements as x, y, z, channel."""
    channels = 3 if "c" in axes else 1
    x = elements("uint16", channels)
    group = zarr.create_group(folder, zarr_format=version)
    order = ["xyzc".index(axis) for axis in axes]
    data = x if "c" in axes else x[..., 0]
    shape = [data.shape[axis] for axis in order]
    chunks = [{"x": 16, "y": 16, "z": 16, "c": 1}[axis] for axis in axes]
    separator = {"chunk_key_encoding": {"name": "v2", "separator": "/"}} if version == 2 else {}
    group.create_array("0", shape=shape, chunks=chunks, dtype="uint16", **separator)[...] = data.transpose(order)
    kinds = [{"name": axis, "type": "channel"} if axis == "c" else {"name": axis, "type": "space", "unit": "nanometer"} for axis in axes]
    scale = [{"x": 4, "y": 4, "z": 40, "c": 1}[axis] for axis in axes]
    offset = [{"x": 40, "y": -8, "z": 120, "c": 0}[axis] for axis in axes]
    transforms = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": offset}]
    multiscales = [{"axes": kinds, "datasets": [{"path": "0", "coordinateTransformations": transforms}], "version": "0.4", "name": "x"}]
    attributes = {"multiscales": multiscales} if version == 2 else {"ome": {"version": "0.5", "multiscales": multiscales}}
    attributes["omero"] = {"channels": [{"active": True}] * channels}
    group.attrs.update(attributes)
    return CloudVolume(f"zarr{version}://file://{folder}"), x


# CloudVolume fails to compute the bounds of Zarr 3 with channels.
@pytest.mark.parametrize(("axes", "version"), [("zyx", 2), ("zyx", 3), ("czyx", 2), ("xyz", 2), ("xyz", 3)])
def test_zarr_volumes(axes: str, version: int, name: str, tmp_path: Path) -> None:
    vol, x = zarr_volume(tmp_path / "zarr", axes, version)
    assert ours.why_not(vol) is None and ours.why_not(vol, write=True) is None
    if (axes, version) == ("zyx", 3):
        check_equal(np.array(vol[vol.bounds]), x)
    corner = vol.bounds.minpt
    region = Bbox(corner + (3, 4, 5), corner + (21, 30, 17))
    check_equal(vol.download_to_shared_memory(region, name), x[3:21, 4:30, 5:17])
    for order in "CF":
        found = ours.download(vol, vol.bounds, name, order)
        check_equal(found, x)
        assert found.flags[f"{order}_CONTIGUOUS"]
    found += 1
    vol.upload_from_shared_memory(name, vol.bounds)
    check_equal(ours.download(vol, vol.bounds), x + 1)


def test_n5_volumes(name: str, tmp_path: Path) -> None:
    for dtype in ("uint8", "uint16"):
        x = elements(dtype)
        vol = n5(tmp_path / dtype, x)
        check_equal(vol.download_to_shared_memory(np.s_[3:40, 5:20, :], name), x[3:40, 5:20])
        if dtype == "uint8":  # CloudVolume reads others with swapped bytes
            check_equal(np.array(vol[:]), x)


# What stays with CloudVolume.


def with_cache(folder: Path) -> Any:
    return write(folder, ("raw", None, "uint8", 1), cache=str(folder / "cache"))


def uncommitted(folder: Path) -> Any:
    vol = write(folder, ("raw", None, "uint8", 1))
    vol.info["scales"][0]["resolution"] = [8, 8, 80]
    return vol


def brotli(folder: Path) -> Any:
    return write(folder, ("raw", "br", "uint8", 1))


def of_interest(folder: Path) -> Any:
    vol = write(folder, ("raw", None, "uint8", 1))
    vol.info["scales"][0]["rois"] = [[10, -5, 3, 50, 28, 23]]
    vol.commit_info()
    return CloudVolume(vol.cloudpath)


def in_memory(folder: Path) -> Any:
    return CloudVolume.from_numpy(elements(), vol_path="mem://ndshm-test/volume", layer_type="image")


def float64(folder: Path) -> Any:
    return CloudVolume.from_numpy(elements("float64"), vol_path=f"file://{folder}/volume", layer_type="image")


def plain(**how: Any) -> Callable[[Path], Any]:
    return lambda folder: write(folder, ("raw", None, "uint8", 1), **how)


def locked(folder: Path) -> Any:
    vol = write(folder, ("raw", None, "uint8", 1))
    vol.meta.lock_mips([0])
    return vol


#: A part of each reason of `why_not`, for reading or writing, and a volume that has it.
LEFT: dict[str, tuple[bool, Callable[[Path], Any]]] = {
    "are not read": (False, in_memory),
    "`secrets`": (False, plain(secrets={"token": "x"})),
    "a cache": (False, with_cache),
    "an LRU": (False, plain(lru_bytes=1000)),
    "green threads": (False, plain(green_threads=True)),
    "float64 with 1 channels": (False, float64),
    "regions of interest": (False, of_interest),
    "is not stored, or was changed": (False, uncommitted),
    "other than gzip": (False, brotli),
    "the scale is locked": (True, locked),
    "with shards": (True, lambda folder: sharded(folder / "volume", elements(shape=(32, 32, 32)))),
    "`compress_level`": (True, plain(compress_level=3)),
    "`overwrite_partial_chunks`": (True, plain(non_aligned_writes=True, overwrite_partial_chunks=True)),
    "background other than 0": (True, plain(delete_black_uploads=True, background_color=3)),
    "not written with the compression": (True, lambda folder: write(folder, ("jpeg", "gzip", "uint8", 1))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_to_cloudvolume(reason: str, name: str, tmp_path: Path) -> None:
    writes, make = LEFT[reason]
    vol = make(tmp_path)
    found = ours.why_not(vol, write=writes)
    assert found is not None and reason in found
    with pytest.raises(ndshm.Unsupported, match=re.escape(found)):
        if writes:
            ours.upload(vol, name, vol.bounds)
        else:
            ours.download(vol, vol.bounds, name)
    if not writes:
        expected = np.array(vol[:])
        check_equal(np.array(vol.download_to_shared_memory(vol.bounds, name)), expected)
        check_equal(np.array(vol.download_to_file(str(tmp_path / "file"), vol.bounds)), expected)
        return
    shape = (*vol.bounds.size3(), 1)
    handle, shared = shm.ndarray(shape, vol.dtype, name)
    shared[...] = 7
    if reason == "the scale is locked":
        with pytest.raises(cloudvolume.exceptions.ReadOnlyException):
            vol.upload_from_shared_memory(name, vol.bounds)
        return
    vol.upload_from_shared_memory(name, vol.bounds)
    check_equal(read(vol), np.full(shape, 7, vol.dtype), 1)
    handle.close()


def test_uninstall_takes_everything_back() -> None:
    ours.uninstall()
    assert shm.ndarray.__module__ == "cloudvolume.sharedmemory"
    assert CloudVolume.create_new_info is not None
    method = type(CloudVolume.from_numpy(elements(), vol_path="mem://ndshm-test/other", layer_type="image")).download_to_file
    assert method.__module__ == "cloudvolume.frontends.precomputed" and "ours" not in repr(method)
    ours.install()
    ours.install()
    ours.uninstall()
    assert shm.ndarray.__module__ == "cloudvolume.sharedmemory"
