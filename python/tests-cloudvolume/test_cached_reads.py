"""CloudVolume's own reads through a cache: the results are its own, and each chunk is decoded once per machine."""

from __future__ import annotations

import functools
import gc
import http.server
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudvolume.datasource.precomputed.image as their_image
import cloudvolume.exceptions
import numpy as np
import pytest
from cloudvolume import Bbox, CloudVolume
from volumes import CHUNK, OFFSET, SHAPE, elements, n5, precomputed, sharded

import ndshm
import ndshm.cloudvolume as ours

# A file that has changed less than this ago has no certain version.
SETTLED = 2.2
#: Encoding, compression, element type, channels. The first ones are read through the cache.
CACHED = [
    *[("raw", None, dtype, 1) for dtype in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32")],
    ("raw", False, "uint8", 3),
    ("raw", None, "float32", 2),
    ("png", None, "uint8", 1),
    ("compressed_segmentation", None, "uint32", 1),
    ("compressed_segmentation", False, "uint64", 1),
]
LEFT = [("jpeg", None, "uint8", 1), ("jpeg", None, "uint8", 3), ("png", None, "uint8", 3), ("raw", "br", "uint8", 1), ("raw", "zstd", "uint8", 1)]
CHUNKS = 3 * 3 * 2


def label_of(layout: Any) -> str:
    return "-".join(map(str, layout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Volumes of all layouts, with shards, and with holes, all old enough to be cached."""
    folder = tmp_path_factory.mktemp("volumes")
    for layout in (*CACHED, *LEFT):
        encoding, compress, dtype, channels = layout
        precomputed(folder / label_of(layout), elements(dtype, channels), encoding=encoding, compress=compress)
    for channels in (1, 2):
        holes = precomputed(folder / f"holes-{channels}", elements("int16", channels))
        holes.delete(Bbox(OFFSET, np.add(OFFSET, CHUNK)))
    sharded(folder / "sharded", elements("uint16", shape=(64, 40, 32)))
    time.sleep(SETTLED)
    return folder


@pytest.fixture
def cache(name: str) -> Iterator[ndshm.ChunkCache]:
    ours.uninstall()
    cache = ndshm.ChunkCache(name, "32MiB")
    yield cache
    ours.uninstall()
    cache.unlink()


def facts(read: Callable[[], Any]) -> Any:
    """Return what a caller can see of a result or an exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            x = read()
        except Exception as error:
            return type(error), str(error)
    if isinstance(x, tuple):
        return facts(lambda: x[0]), x[1:]
    if not isinstance(x, np.ndarray):
        return type(x), x
    known = {key: (type(value), str(value)) for key, value in getattr(x, "__dict__", {}).items()}
    flags = (x.flags.f_contiguous, x.flags.c_contiguous, x.flags.writeable, x.strides)
    return type(x), x.dtype, x.shape, flags, x.tobytes(), known


def check(path: Path, reads: list[Callable[[Any], Any]], cache: ndshm.ChunkCache, **how: Any) -> ndshm._caches.CacheInspection:
    """Compare reads of a volume with and without a cache, twice, and return what the cache says."""
    ours.uninstall()
    vol = CloudVolume(f"file://{path}", progress=False, **how)
    expected = [facts(lambda read=read: read(vol)) for read in reads]
    ours.install(cache=cache)
    for _ in range(2):
        vol = CloudVolume(f"file://{path}", progress=False, **how)
        for number, (read, right) in enumerate(zip(reads, expected, strict=True)):
            assert facts(lambda read=read: read(vol)) == right, number
    return cache.inspect()


def coarse(vol: Any) -> Any:
    """Read all of the second scale."""
    vol.mip = 1
    try:
        return vol[:]
    finally:
        vol.mip = 0


#: Reads that lie in the volume.
INSIDE: list[Callable[[Any], Any]] = [
    lambda vol: vol[:],
    lambda vol: vol[...],
    coarse,
    lambda vol: vol[15:41, 0:20, 5:20],
    lambda vol: vol[:, :, 7],
    lambda vol: vol[10:40:3, :, 3:20:2],
    lambda vol: vol[12:20, 0:9, 4:9, 0],
    lambda vol: vol[12, 3, 4],
    lambda vol: vol[Bbox((12, 0, 4), (20, 9, 9))],
    lambda vol: vol[Bbox((48, 0, 160), (80, 40, 400), unit="nm")],
    lambda vol: vol[[12, 13], [3, 4], [4, 5]],
    lambda vol: vol.download(Bbox((12, 0, 4), (20, 9, 9))),
    lambda vol: vol.download(vol.mip_bounds(1), mip=1),
    lambda vol: vol.download(Bbox((6, 0, 4), (7, 1, 5)), mip=1),
    lambda vol: vol.download(vol.mip_bounds(1), mip=(8, 8, 40)),
    lambda vol: vol.download(Bbox((6, 0, 4), (12, 9, 9)), coord_resolution=(8, 8, 40)),
    lambda vol: vol.download_point((20, 10, 10), size=8),
    lambda vol: vol.download_point((20, 10, 10), size=(1, 4, 2), mip=1),
    lambda vol: vol.scattered_points([(20, 10, 10), (21, 10, 10)]),
    lambda vol: vol[10:10, :, :],
    lambda vol: vol[::-1],
    lambda vol: vol.download(Bbox((12, 0, 4), (20, 9, 9)), mip=7),
]
#: Reads that reach beyond it.
OUTSIDE: list[Callable[[Any], Any]] = [
    lambda vol: vol[0:30, -20:10, 0:10],
    lambda vol: vol[0:100, -50:100, 0:50],
    lambda vol: vol[200:210, 0:5, 0:5],
    lambda vol: vol[-5:5, -5:5, -5:5],
    lambda vol: vol[5, 5, 5],
    lambda vol: vol.download(Bbox((-30, -30, -30), (20, 20, 20)), mip=1),
    lambda vol: vol.download(Bbox((0, 0, 0), (20, 20, 20)), parallel=1),
]


@pytest.mark.parametrize("layout", CACHED, ids=label_of)
def test_reads_are_those_of_cloudvolume(layout: Any, folder: Path, cache: ndshm.ChunkCache) -> None:
    found = check(folder / label_of(layout), INSIDE, cache)
    assert ours.why_not(CloudVolume(f"file://{folder / label_of(layout)}"), cached=True) is None
    # Both scales, and nothing twice.
    assert CHUNKS < found.fills <= 2 * CHUNKS and found.unversioned == 0


@pytest.mark.parametrize("layout", LEFT, ids=label_of)
def test_what_could_differ_is_read_by_cloudvolume(layout: Any, folder: Path, cache: ndshm.ChunkCache) -> None:
    assert check(folder / label_of(layout), INSIDE, cache).fills == 0
    assert ours.why_not(CloudVolume(f"file://{folder / label_of(layout)}"), cached=True) is not None


@pytest.mark.parametrize("how", [{}, {"fill_missing": True}, {"fill_missing": True, "background_color": 5}, {"background_color": -7}], ids=str)
@pytest.mark.parametrize("where", [{}, {"bounded": False}, {"bounded": False, "autocrop": True}, {"autocrop": True}], ids=str)
@pytest.mark.parametrize("channels", [1, 2])
def test_settings_apply_as_in_cloudvolume(channels: int, how: Any, where: Any, folder: Path, cache: ndshm.ChunkCache) -> None:
    found = check(folder / f"holes-{channels}", [*INSIDE, *OUTSIDE], cache, **how, **where)
    assert found.fills > 0


@pytest.mark.parametrize("how", [{}, {"bounded": False, "fill_missing": True, "background_color": 5}], ids=str)
def test_volume_with_shards(how: Any, folder: Path, cache: ndshm.ChunkCache) -> None:
    reads: list[Callable[[Any], Any]] = [
        lambda vol: vol[:],
        lambda vol: vol[3:40, 5:20, 7],
        lambda vol: vol[3, 4, 5],
        lambda vol: vol[-3:40, 5:20, 30:40],
        lambda vol: vol[-9, 4, 5],
        lambda vol: vol.scattered_points([(20, 10, 10), (21, 10, 10)]),
    ]
    assert check(folder / "sharded", reads, cache, **how).fills == 4 * 3 * 2


def test_other_arguments_are_those_of_cloudvolume(folder: Path, cache: ndshm.ChunkCache) -> None:
    region = Bbox((12, 0, 4), (20, 9, 9))
    reads: list[Callable[[Any], Any]] = [
        lambda vol: vol.download(region, segids=[20, 21]),
        lambda vol: vol.download(region, segids=[20, 21], preserve_zeros=True),
        lambda vol: vol.download(region, renumber=True),
        lambda vol: vol.download(region, label=20),
        lambda vol: vol.download(region, agglomerate=True, timestamp=5),
        lambda vol: vol.image.download(region, 0, order="C"),
        lambda vol: vol.image.download(region, 0, order="F", progress=False),
        lambda vol: vol.image.download(region, -1),
        lambda vol: vol.image.download(Bbox((12.5, 0, 4), (20, 9, 9)), 0).shape,
        lambda vol: vol.image.download(region, 0, location="none"),
        lambda vol: vol.unique(region),
    ]
    check(folder / "raw-None-uint64-1", reads, cache)


def test_parallel_reads_are_served(folder: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol = CloudVolume(f"file://{folder}/raw-None-uint8-1", parallel=2)
    x = vol.download(vol.bounds)
    np.testing.assert_array_equal(x, elements())
    assert type(x).__name__ == "VolumeCutout" and cache.inspect().fills == CHUNKS
    x.close()
    x += 1  # memory of the caller
    np.testing.assert_array_equal(vol[:], elements())
    vol.progress = True
    np.testing.assert_array_equal(vol[:], elements())
    assert cache.inspect().fills == CHUNKS


@pytest.mark.parametrize("compress", ["gzip", False])
def test_write_is_seen(compress: Any, tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol = precomputed(tmp_path / "volume", elements(), compress=compress)
    vol.non_aligned_writes = True
    reader = CloudVolume(vol.cloudpath)
    time.sleep(SETTLED)
    x = elements()
    for value in range(3):
        for one in (vol, reader):
            np.testing.assert_array_equal(one[:], x)
        vol[12:30, 0:9, 4:9] = np.full((18, 9, 5, 1), value, "u1")
        x[2:20, 5:14, 1:6] = value
        for one in (vol, reader):
            np.testing.assert_array_equal(one[:], x)
        if value == 0:
            time.sleep(SETTLED)  # what was written is cached now
    assert cache.inspect().fills > CHUNKS
    vol.delete(Bbox(OFFSET, np.add(OFFSET, CHUNK)))
    reader.fill_missing = True
    x[:16, :16, :16] = 0
    np.testing.assert_array_equal(reader[:], x)


def test_chunk_with_two_files_is_read_by_cloudvolume(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol = precomputed(tmp_path / "volume", elements(), compress="gzip")
    time.sleep(SETTLED)
    np.testing.assert_array_equal(vol[:], elements())
    hits = cache.inspect().hits
    corner, chunk = Bbox(OFFSET, np.add(OFFSET, CHUNK)), np.full((*CHUNK, 1), 7, "u1")
    for compress in (False, "br"):
        vol.compress = compress
        vol[corner] = chunk
        # CloudVolume reads one of both files, which depends on what it has read before.
        files = [file.name for file in (tmp_path / "volume/4_4_40").iterdir() if file.name.startswith("10-26_-5-11_3-19")]
        assert len(files) > 1
        assert facts(lambda: vol[corner])[4] in {chunk.tobytes("C"), elements()[:16, :16, :16].tobytes("C")}
    assert cache.inspect().hits == hits
    np.testing.assert_array_equal(vol[26:50, :, :], elements()[16:])
    assert cache.inspect().hits > hits, "others are served"


def test_changed_description_is_not_mixed_up(folder: Path, tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol = precomputed(tmp_path / "volume", elements(), compress=False)
    np.testing.assert_array_equal(vol[:], elements())
    vol.info["data_type"] = "int8"
    assert vol[:].dtype == np.int8 and ours.why_not(vol, cached=True) is not None
    vol.commit_info()
    assert vol[:].dtype == np.int8 and ours.why_not(vol, cached=True) is None
    np.testing.assert_array_equal(vol[:], elements().view("i1"))


PROGRAM = """
import sys, ndshm, ndshm.cloudvolume
from cloudvolume import CloudVolume
cache = ndshm.ChunkCache(sys.argv[2])
ndshm.cloudvolume.install(cache=cache)
vol = CloudVolume("file://" + sys.argv[1])
print(int(vol[:].sum(dtype="u8")), int(CloudVolume(vol.cloudpath, mip=1)[:].sum(dtype="u8")), cache.inspect().fills)
"""


def test_second_process_decodes_nothing(folder: Path, cache: ndshm.ChunkCache) -> None:
    path = folder / "raw-None-uint32-1"
    command = [sys.executable, "-c", PROGRAM, str(path), cache.name]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split() for _ in range(2))
    vol = CloudVolume(f"file://{path}")
    assert first == second and int(first[0]) == vol[:].sum(dtype="u8")
    fills = cache.inspect().fills
    assert int(first[2]) == fills > CHUNKS
    ours.install(cache=cache)
    np.testing.assert_array_equal(vol[:], elements("uint32"))
    assert cache.inspect().fills == fills and cache.inspect().hits > 0


def test_forked_child_and_threads_read(folder: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol, x = CloudVolume(f"file://{folder}/raw-None-uint16-1"), elements("uint16")
    np.testing.assert_array_equal(vol[:], x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads exist
        child = os.fork()
    if child == 0:
        os._exit(0 if (vol[:] == x).all() and (vol[12:30, 0:9, 4:9] == x[2:20, 5:14, 1:6]).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    fresh, wrong = CloudVolume(vol.cloudpath), []

    def read() -> None:
        for _ in range(20):
            if not (fresh[12:30, 0:9, 4:9] == x[2:20, 5:14, 1:6]).all():
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.inspect().fills == CHUNKS


def test_volume_is_pickled_and_freed_without_what_is_kept_for_it(folder: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol = CloudVolume(f"file://{folder}/raw-None-uint8-1")
    before = set(vol.image.__dict__)
    np.testing.assert_array_equal(vol[:], elements())
    assert set(vol.image.__dict__) == before and b"ndshm" not in pickle.dumps(vol)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(vol))[:], elements())
    reads = their_image.PrecomputedImageSource.download.__closure__[1].cell_contents
    opened = [entry.volume for entry in reads._opened[vol.image].values()]
    assert len(opened) == 1
    image = weakref.ref(vol.image)
    del vol
    gc.collect()
    assert image() is None and len(reads._opened) <= 1


def plain(**how: Any) -> Callable[[Path], Any]:
    return lambda folder: CloudVolume(f"file://{folder}/raw-None-uint8-1", **how)


#: A part of each reason of `why_not`, and a volume that has it.
REASONS: dict[str, Callable[[Path], Any]] = {
    "`secrets`": plain(secrets={"token": "x"}),
    "a cache": lambda folder: CloudVolume(f"file://{folder}/raw-None-uint8-1", cache=str(folder / "cache")),
    "an LRU": plain(lru_bytes=100_000),
    "green threads": plain(green_threads=True),
    "`use_https`": plain(use_https=True),
    "are not read": lambda folder: CloudVolume.from_numpy(elements(), vol_path="mem://ndshm-test/cached", layer_type="image"),
    "'jpeg' to other elements": lambda folder: CloudVolume(f"file://{folder}/jpeg-None-uint8-1"),
    "only Precomputed": lambda folder: n5(folder / "n5", elements()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reason", REASONS)
def test_what_is_left_to_cloudvolume(reason: str, folder: Path, cache: ndshm.ChunkCache) -> None:
    vol = REASONS[reason](folder)
    expected = facts(lambda: vol[:])
    ours.install(cache=cache)
    found = ours.why_not(vol, cached=True)
    assert found is not None and reason in found
    assert facts(lambda: vol[:]) == expected and cache.inspect().fills == 0


def test_cache_that_was_removed_does_not_stop_reads(folder: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    vol = CloudVolume(f"file://{folder}/raw-None-uint8-1")
    np.testing.assert_array_equal(vol[:], elements())
    cache.unlink()
    np.testing.assert_array_equal(vol[:], elements())


def test_uninstall_takes_the_cache_back(folder: Path, name: str, cache: ndshm.ChunkCache) -> None:
    original = their_image.PrecomputedImageSource.download
    ours.install()
    assert their_image.PrecomputedImageSource.download is original, "without a cache"
    ours.install(cache=cache)
    ours.install()
    assert their_image.PrecomputedImageSource.download is not original
    other = ndshm.ChunkCache(name + "-other", "32MiB")
    try:
        ours.install(cache=other)
        assert (CloudVolume(f"file://{folder}/raw-None-uint8-1")[:] == elements()).all()
        assert (cache.inspect().fills, other.inspect().fills) == (0, CHUNKS)
    finally:
        ours.uninstall()
        other.unlink()
    assert their_image.PrecomputedImageSource.download is original
    with pytest.raises(ndshm.InvalidArgument):
        ours.install(cache="8 bananas")
    assert their_image.PrecomputedImageSource.download is original


class WithTags(http.server.SimpleHTTPRequestHandler):
    """Serves files with entity tags."""

    def end_headers(self) -> None:
        path = self.translate_path(self.path)
        if os.path.isfile(path):
            found = os.stat(path)
            self.send_header("ETag", f'"{found.st_mtime_ns:x}-{found.st_ino:x}"')
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 100  # with fewer, connections wait for a second


def test_volume_behind_a_web_server(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    written = precomputed(tmp_path / "volume", elements("uint16"), compress=False)
    server = Server(("127.0.0.1", 0), functools.partial(WithTags, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        ours.install(cache=cache)
        vol, x = CloudVolume(f"http://127.0.0.1:{server.server_port}/volume"), elements("uint16")
        assert ours.why_not(vol, cached=True) is None
        for _ in range(2):
            np.testing.assert_array_equal(vol[:], x)
            np.testing.assert_array_equal(vol[12:30, 0:9, 4:9], x[2:20, 5:14, 1:6])
        assert cache.inspect().fills == CHUNKS
        corner = Bbox(OFFSET, np.add(OFFSET, CHUNK))
        written[corner] = x[:16, :16, :16] = np.full((*CHUNK, 1), 7, "u2")
        np.testing.assert_array_equal(vol[:], x)
        assert cache.inspect().fills == CHUNKS + 1
        written.delete(corner)
        with pytest.raises(cloudvolume.exceptions.EmptyVolumeException):
            vol[corner]
    finally:
        server.shutdown()
        server.server_close()


def test_rewritten_shard_is_seen(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    ours.install(cache=cache)
    x = elements("uint16", shape=(64, 40, 32))
    vol = sharded(tmp_path / "volume", x)
    reader = CloudVolume(vol.cloudpath)
    time.sleep(SETTLED)
    for _ in range(2):
        np.testing.assert_array_equal(reader[:], x)
    assert cache.inspect().fills == 4 * 3 * 2
    vol[:] = x + 1
    for one in (reader, vol):
        np.testing.assert_array_equal(one[:], x + 1)
