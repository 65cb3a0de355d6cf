"""zarr-python with decoded chunks in a shared cache: decoded once by all processes, changes are seen at once, what cannot be shared passes by."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage

import ndshm
import ndshm.zarr
from test_caches import SETTLED, Array, elements

PATH = "ndshm.zarr.SharedCachePipeline"

# How arrays are stored. They have 36 chunks that can be cached, or this number.
KINDS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (16, 16, 16)},
    "shards": {"chunks": (16, 16, 16), "shards": (32, 32, 32)},
    "format 2": {"chunks": (16, 16, 16), "zarr_format": 2, "order": "F"},
    "transposed": {"chunks": (16, 16, 16), "filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
    "big-endian": {"chunks": (16, 16, 16), "serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": None},
    # Around the shards, another codec, so that they are read as a whole.
    "wrapped shards": {"chunks": (32, 32, 32), "serializer": zarr.codecs.ShardingCodec(chunk_shape=(16, 16, 16))},
}
CHUNKS = {"wrapped shards": 2 * 2 * 2}

Select = Callable[[Any], Any]


def create(*place: Any, **how: Any) -> Any:
    """Create an array, of a kind that zarr warns about, too."""
    with warnings.catch_warnings(action="ignore"):
        return zarr.create_array(*place, **how)


def opened(place: Path) -> Any:
    """Open an array of any kind for reading."""
    with warnings.catch_warnings(action="ignore"):
        return zarr.open_array(place, mode="r")


@pytest.fixture
def cache(name: str) -> Iterator[ndshm.ChunkCache]:
    cache = ndshm.ChunkCache(name, "16MiB")
    with zarr.config.set({"codec_pipeline.path": PATH, "codec_pipeline.cache": cache}):
        yield cache
    cache.unlink()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    """Arrays of all kinds that are old enough to be cached, and their elements."""
    folder, x = tmp_path_factory.mktemp("arrays"), elements()
    for kind, how in KINDS.items():
        create(folder / kind, shape=x.shape, dtype=x.dtype, **how)[...] = x
    time.sleep(SETTLED)
    return folder, x


SELECTIONS: dict[str, tuple[Select, Select]] = {
    "all": (lambda a: a[...], lambda x: x),
    "a box": (lambda a: a[3:35, 17:18, 5:56], lambda x: x[3:35, 17:18, 5:56]),
    "one plane": (lambda a: a[20, :, 3:50], lambda x: x[20, :, 3:50]),
    "one element": (lambda a: a[39, 47, 55], lambda x: x[39, 47, 55]),
    "negative": (lambda a: a[-1, -20:-3], lambda x: x[-1, -20:-3]),
    "steps": (lambda a: a[::3, 5::7, 40], lambda x: x[::3, 5::7, 40]),
    "nothing": (lambda a: a[5:5], lambda x: x[5:5]),
    "orthogonal": (lambda a: a.oindex[[1, 20, 39], :, 3], lambda x: x[[1, 20, 39], :, 3]),
    "orthogonal ranges": (lambda a: a.oindex[1, 5:40, 3:20], lambda x: x[1, 5:40, 3:20]),
    "points": (lambda a: a.vindex[[1, 39], [2, 47], [3, 55]], lambda x: x[[1, 39], [2, 47], [3, 55]]),
    "a mask": (lambda a: a.vindex[np.arange(40 * 48 * 56).reshape(40, 48, 56) % 7 == 0], lambda x: x[np.arange(40 * 48 * 56).reshape(40, 48, 56) % 7 == 0]),
    "a block": (lambda a: a.blocks[0, 1], lambda x: None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_selections_are_those_of_zarr(places: tuple[Path, Array], cache: ndshm.ChunkCache, kind: str) -> None:
    folder, x = places
    a = opened(folder / kind)
    assert isinstance(a._async_array.codec_pipeline, ndshm.zarr.SharedCachePipeline)
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        plain = opened(folder / kind)
    for turn in range(2):
        for what, (of_zarr, of_numpy) in SELECTIONS.items():
            found, expected, by_numpy = of_zarr(a), of_zarr(plain), of_numpy(x)
            assert type(found) is type(expected) and found.dtype == expected.dtype and found.shape == expected.shape, (what, turn)
            assert (found == expected).all() and (by_numpy is None or (found == by_numpy).all()), (what, turn)
        assert cache.inspect().fills == CHUNKS.get(kind, 36)


def test_processes_decode_each_chunk_once(places: tuple[Path, Array], cache: ndshm.ChunkCache) -> None:
    folder, x = places
    # By the environment alone: the program knows nothing of it. All at once.
    code = "import sys, zarr; [print(int(zarr.open_array(path, mode='r')[...].sum(dtype='u8'))) for path in sys.argv[1:]]"
    environment = os.environ | {"ZARR_CODEC_PIPELINE__PATH": PATH, "NDSHM_CHUNK_CACHE": "1MiB"}
    paths = [str(folder / kind) for kind in ("chunks", "shards")]
    command = [sys.executable, "-c", f"import ndshm; from zarr import config; config.set({{'codec_pipeline.cache': ndshm.ChunkCache({cache.name!r})}}); {code}"]
    programs = [subprocess.Popen([*command, *paths], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for program in programs:
        assert program.communicate(timeout=120)[0].split() == [str(x.sum(dtype="u8"))] * 2 and program.returncode == 0
    counted = cache.inspect()
    assert (counted.fills, counted.late, counted.held) == (2 * 36, 0, 0)
    assert counted.hits == 3 * counted.fills


def test_environment_alone_is_enough(places: tuple[Path, Array], tmp_path: Path) -> None:
    code = "import sys, zarr; zarr.open_array(sys.argv[1], mode='r')[...]; import ndshm; print(ndshm.ChunkCache(None, '3MiB').inspect().fills)"
    environment = os.environ | {
        "ZARR_CODEC_PIPELINE__PATH": PATH,
        "NDSHM_CHUNK_CACHE": "3MiB",
        "EMULATE_SHM": "1",
        "NDSHM_EMULATED_DIR": str(tmp_path),
    }
    command = [sys.executable, "-c", code, str(places[0] / "chunks")]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout == "36\n"


def test_changes_are_seen_at_once(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x, other = elements(), elements(seed=2)
    for name, of in (("one", x), ("other", other)):
        create(tmp_path / name, shape=x.shape, dtype=x.dtype, **KINDS["big-endian"])[...] = of
    time.sleep(SETTLED)
    reading, writing = (zarr.open_array(tmp_path / "one", mode=mode) for mode in ("r", "r+"))
    assert (reading[...] == x).all() and cache.inspect().fills == 36
    new = x.copy()
    chunks, others = tmp_path / "one/c", tmp_path / "other/c"
    # Another file by a rename, one that is written over in place with equal length, one that goes, and one that zarr writes.
    os.replace(others / "0/0/0", chunks / "0/0/0")
    (chunks / "0/0/1").write_bytes((others / "0/0/1").read_bytes())
    new[:16, :16, :32] = other[:16, :16, :32]
    (chunks / "1/0/0").unlink()
    new[16:32, :16, :16] = 0
    writing[20, 20:25, 20] = new[20, 20:25, 20] = 7
    for _ in range(2):
        assert (reading[...] == new).all()
    time.sleep(SETTLED)
    for _ in range(2):
        assert (reading[...] == new).all()
    assert cache.inspect().fills == 36 + 3


def test_arrays_of_one_cache_are_told_apart(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    arrays = list[tuple[Any, Array]]()
    for number, dtype in enumerate(("u2", "i2", "f4", "c8", ">u2", [("a", "u1"), ("b", "f8")])):
        x = elements(seed=number).astype(dtype)
        for kind in ("chunks", "shards")[: 2 if isinstance(dtype, str) else 1]:  # zarr has no shards of records
            a = create(tmp_path / f"{number} {kind}", shape=x.shape, dtype=x.dtype, **KINDS[kind])
            a[...] = x
            arrays.append((a, x))
    time.sleep(SETTLED)
    for _ in range(2):
        for a, x in arrays:
            assert (a[...] == x).all() and a[...].dtype == a.dtype


def test_metadata_that_is_rewritten_is_seen(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x = elements((32, 32, 32))
    for kind in ("chunks", "shards", "format 2"):
        a = create(tmp_path / kind, shape=x.shape, dtype=x.dtype, **KINDS[kind])
        a[:16] = x[:16]  # of each shard a half is not stored
    time.sleep(SETTLED)

    def rewritten(kind: str, file: str, old: str, new: str) -> Any:
        assert (opened(tmp_path / kind)[:16] == x[:16]).all()
        text = (tmp_path / kind / file).read_text()
        assert old in text
        (tmp_path / kind / file).write_text(text.replace(old, new))
        return opened(tmp_path / kind)[...]

    assert (rewritten("chunks", "zarr.json", '"uint16"', '"int16"')[:16] == x[:16].view("i2")).all()
    assert (opened(tmp_path / "shards")[16:] == 0).all()
    assert (rewritten("shards", "zarr.json", '"fill_value": 0', '"fill_value": 7')[16:] == 7).all()
    turned = rewritten("format 2", ".zarray", '"order": "F"', '"order": "C"')
    assert (turned[:16, :16, :16] == x[:16, :16, :16].transpose(2, 1, 0)).all()


def test_what_cannot_be_shared_passes_by(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x = elements()
    with zarr.storage.ZipStore(tmp_path / "zipped.zip", mode="w") as zipped:
        stores = [zarr.storage.MemoryStore(), zipped, zarr.storage.WrapperStore(zarr.storage.LocalStore(tmp_path / "wrapped"))]
        arrays = [(zarr.create_array(store, shape=x.shape, chunks=(20, 20, 20), dtype=x.dtype), x) for store in stores]
        words = np.array(["a", "word", "of any length"] * 5, np.dtypes.StringDType())
        arrays.append((zarr.create_array(tmp_path / "words", shape=words.shape, chunks=(4,), dtype="string"), words))
        for a, elements_of in arrays:
            a[...] = elements_of
        time.sleep(SETTLED)
        for a, elements_of in arrays:
            for _ in range(2):
                assert (a[...] == elements_of).all()
        large = zarr.create_array(tmp_path / "large", shape=(5 << 20,), chunks=(5 << 20,), dtype="u1")
        large[...] = 5
        missing = zarr.create_array(tmp_path / "missing", shape=(5, 5), chunks=(2, 2), dtype="u1", fill_value=9)
        time.sleep(SETTLED)
        assert (large[...] == 5).all() and (missing[...] == 9).all()
    assert cache.inspect() == cache.inspect()._replace(hits=0, fills=0, stale=0)


def test_threads_forks_and_pickles(places: tuple[Path, Array], cache: ndshm.ChunkCache) -> None:
    folder, x = places
    a = zarr.open_array(folder / "chunks", mode="r")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: bool((a[...] == x).all()), range(24)))
    assert cache.inspect().fills == 36
    again = pickle.loads(pickle.dumps(a))
    assert isinstance(again._async_array.codec_pipeline, ndshm.zarr.SharedCachePipeline) and (again[...] == x).all()
    # zarr starts its own loop in a child. The child has the cache's own descriptor there.
    child = multiprocessing.get_context("fork").Process(target=read_and_exit, args=(a, x))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and cache.inspect().fills == 36
    # A spawned process has another configuration: the array brings its cache.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(read_and_exit, a, x).result(120)
    assert cache.inspect().fills == 36 and cache.inspect().hits > 36


def read_and_exit(a: Any, x: Array) -> None:
    assert (a[...] == x).all() and (a[3:5] == x[3:5]).all()


SLOW = """
import asyncio, sys, time, zarr, ndshm
from zarr.core.codec_pipeline import BatchedCodecPipeline
zarr.config.set({"codec_pipeline.path": "ndshm.zarr.SharedCachePipeline", "codec_pipeline.cache": ndshm.ChunkCache(sys.argv[1])})
async def decode(self, chunks):
    print("decoding", flush=True)
    await asyncio.sleep(600)
BatchedCodecPipeline.decode = decode
zarr.open_array(sys.argv[2], mode="r")[...]
"""


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_process_that_decodes_and_is_ended(
    places: tuple[Path, Array], cache: ndshm.ChunkCache, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    folder, x = places
    monkeypatch.setattr(ndshm.zarr, "_PATIENCE", 0.5)
    path = folder / "chunks"
    program = subprocess.Popen([sys.executable, "-c", SLOW, cache.name, str(path)], stdout=subprocess.PIPE, text=True)
    with contextlib.ExitStack() as at_end:
        at_end.callback(program.communicate, timeout=60)
        at_end.callback(program.kill)
        assert program.stdout is not None and program.stdout.readline() == "decoding\n"
        program.send_signal(end)
        if end == signal.SIGKILL:
            program.wait(60)
        a = zarr.open_array(path, mode="r")
        # Of a stopped process, the chunks that it has claimed are decoded past the cache.
        assert (a[...] == x).all()
        late = cache.inspect().late
        assert (late > 0) == (end == signal.SIGSTOP)
    assert (a[...] == x).all() and cache.inspect().fills == 36


def test_pipeline_without_a_cache_says_what_to_do(places: tuple[Path, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    a = path = places[0] / "chunks"
    with zarr.config.set({"codec_pipeline.path": PATH}):
        a = zarr.open_array(path, mode="r")
        with pytest.raises(ndshm.InvalidArgument, match="NDSHM_CHUNK_CACHE=16GiB"):
            a[...]
        monkeypatch.setenv("NDSHM_CHUNK_CACHE", "0")
        assert (a[...] == places[1]).all()
        with zarr.config.set({"codec_pipeline.cache": "lots"}), pytest.raises(ndshm.InvalidArgument, match="lots"):
            a[...]
