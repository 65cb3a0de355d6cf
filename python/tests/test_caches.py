"""Volumes through a cache of chunks: decoded once by all processes, what has changed is noticed, forks, kills and pickles."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
import small_shm

# A file that has changed less than this ago has no certain version.
SETTLED = 2.2

Array = np.ndarray[Any, Any]


def elements(shape: tuple[int, ...] = (40, 48, 56), seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(0, 2**16, shape, "u2")


@pytest.fixture
def cache(name: str) -> Iterator[ndshm.ChunkCache]:
    cache = ndshm.ChunkCache(name, "16MiB")
    yield cache
    cache.unlink()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Array]:
    """A volume of 36 chunks that is old enough to be cached."""
    path, x = str(tmp_path_factory.mktemp("volumes") / "em.zarr"), elements()
    ndshm.create_volume(path, x.shape, (16, 16, 16), "u2")[...] = x
    time.sleep(SETTLED)
    return path, x


def crop(volume: ndshm.Volume, x: Array, seed: int) -> None:
    """Read a random region and compare it."""
    random = np.random.default_rng(seed)
    starts = [int(random.integers(0, length - 10)) for length in x.shape]
    region = tuple(slice(start, start + int(random.integers(1, 11))) for start in starts)
    assert (volume[region] == x[region]).all()


def crops(volume: ndshm.Volume, x: Array, seeds: range) -> int:
    for seed in seeds:
        crop(volume, x, seed)
    return len(seeds)


def test_each_chunk_is_decoded_once(place: tuple[str, Array], cache: ndshm.ChunkCache) -> None:
    path, x = place
    volume = ndshm.Volume(path, cache=cache)
    assert volume.cache is cache
    for _ in range(2):
        assert (volume[...] == x).all()
        assert (volume[3:20:2, ::-3, 5] == x[3:20:2, ::-3, 5]).all()
        assert (volume.transposed("210")[1:9] == x.T[1:9]).all()
    found = cache.inspect()
    assert (found.fills, found.evictions, found.unversioned, found.nbytes) == (36, 0, 0, 16 << 20)
    assert found.hits >= 36
    array = ndshm.download(volume, "5:33,:,9:").result()
    assert (array[...] == x[5:33, :, 9:]).all() and cache.inspect().fills == 36


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_share_by_name(method: str, place: tuple[str, Array], cache: ndshm.ChunkCache) -> None:
    path, x = place
    volume = ndshm.Volume(path, cache=cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(3, context) as pool:
            done = [pool.submit(crops, volume, x, range(seed, seed + 40)) for seed in range(0, 240, 40)]
            assert sum(job.result() for job in done) == 240
    assert (volume[...] == x).all()
    assert cache.inspect().fills == 36


def test_unrelated_program_finds_what_was_decoded(place: tuple[str, Array], cache: ndshm.ChunkCache) -> None:
    path, x = place
    assert (ndshm.Volume(path, cache=cache)[...] == x).all()
    code = f"""
import ndshm
cache = ndshm.ChunkCache({cache.name!r})
volume = ndshm.Volume({path!r}, cache=cache)
print(int(volume[...].sum(dtype="u8")), cache.inspect().fills)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout
    assert out.split() == [str(x.sum(dtype="u8")), "36"]


def test_changed_files_are_noticed(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x, path = elements(), tmp_path / "em.zarr"
    writing = ndshm.create_volume(path, x.shape, (16, 16, 16), "u2")
    writing[...] = x
    other = elements(seed=2)
    ndshm.create_volume(tmp_path / "other.zarr", x.shape, (16, 16, 16), "u2")[...] = other
    time.sleep(SETTLED)
    volume, always, never = (ndshm.Volume(path, cache=cache, recheck=recheck) for recheck in ("open", True, False))
    assert all((one[...] == x).all() for one in (volume, always, never))
    # Another file by a rename, one that is written over in place with equal length, and one that goes.
    chunks, others = path / "c", tmp_path / "other.zarr/c"
    os.replace(others / "0/0/0", chunks / "0/0/0")
    same_length = (chunks / "0/0/1").stat().st_size
    (chunks / "0/0/1").write_bytes((others / "0/0/1").read_bytes())
    assert (chunks / "0/0/1").stat().st_size == same_length, "the test needs chunks that do not compress"
    (chunks / "1/0/0").unlink()
    new = x.copy()
    new[:16, :16, :32] = other[:16, :16, :32]
    new[16:32, :16, :16] = 0
    assert (never[...] == x).all() and (volume[...] == x).all(), "they do not look"
    assert (always[...] == new).all()
    assert (ndshm.Volume(path, cache=cache)[...] == new).all(), "a volume that is opened now"
    writing[16:32, :16, :16] = x[16:32, :16, :16]
    new[16:32, :16, :16] = x[16:32, :16, :16]
    assert (ndshm.Volume(path, cache=cache)[...] == new).all(), "what was missing is there"


def test_volumes_of_one_cache_are_told_apart(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    one, other = elements(), elements(seed=2)
    for label, x, chunks in [("one", one, (16, 16, 16)), ("other", other, (16, 16, 16)), ("same", one, (20, 16, 16))]:
        ndshm.create_volume(tmp_path / label, x.shape, chunks, "u2")[...] = x
    time.sleep(SETTLED)
    for _ in range(2):
        assert (ndshm.Volume(tmp_path / "one", cache=cache)[...] == one).all()
        assert (ndshm.Volume(tmp_path / "other", cache=cache)[...] == other).all()
        assert (ndshm.Volume(tmp_path / "same", cache=cache)[...] == one).all()
    # A link leads to the same volume.
    (tmp_path / "link").symlink_to(tmp_path / "one")
    fills = cache.inspect().fills
    assert (ndshm.Volume(tmp_path / "link", cache=cache)[...] == one).all()
    assert cache.inspect().fills == fills


def test_volume_sees_its_own_writes(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x = elements()
    ndshm.create_volume(tmp_path / "em", x.shape, (16, 16, 16), "u2")
    volume = ndshm.Volume(tmp_path / "em", cache=cache)
    assert (volume[...] == 0).all(), "its chunks are missing, and known to be"
    volume[:16] = x[:16]
    assert (volume[:16] == x[:16]).all() and (volume[16:] == 0).all()
    time.sleep(SETTLED)
    fills = cache.inspect().fills
    assert (volume[...][:16] == x[:16]).all() and (volume[:16] == x[:16]).all()
    assert cache.inspect().fills == fills + 12
    volume[:16, :16] = x[16:32, :16]
    assert (volume[:16, :16] == x[16:32, :16]).all() and (volume[:16, 16:] == x[:16, 16:]).all()


def test_full_memory_makes_chunks_go(tmp_path: Path) -> None:
    program = """
    import time
    import numpy, ndshm
    volume = ndshm.create_volume("em", (768, 1024, 512), (64, 64, 64), "uint8")
    x = (numpy.arange(768)[:, None, None] // 64 + numpy.arange(1024)[:, None] // 64 * 12 + 1).astype("uint8")
    volume[...] = numpy.broadcast_to(x, volume.shape)
    time.sleep(2.2)
    cache = ndshm.ChunkCache("cache", "1GiB")  # more than there is
    volume = ndshm.Volume("em", cache=cache)
    for _ in range(2):
        for start in range(0, 768, 64):
            assert (volume[start : start + 64] == x[start : start + 64]).all()
    found = cache.inspect()
    print(found.evictions > 500, found.filled > 200 << 20, found.allocated < 300 << 20)
    cache.unlink()
    """
    assert small_shm.run(program, tmp_path) == ["True True True"]


def read_for_ever(volume: ndshm.Volume, x: Array, seed: int) -> None:
    while True:
        crop(volume, x, seed)
        seed += 1


def test_killed_readers_leave_the_cache_as_it_was(place: tuple[str, Array], name: str) -> None:
    path, x = place
    cache = ndshm.ChunkCache(name, "1MiB")  # less than the volume: chunks make way all the time
    volume = ndshm.Volume(path, cache=cache)
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=read_for_ever, args=(volume, x, seed), daemon=True) for seed in (0, 10_000)]
    for child in children:
        child.start()
    fills = cache.inspect().fills
    while cache.inspect().fills < fills + 100:
        assert all(child.is_alive() for child in children)
        time.sleep(0.01)
    for child in children:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    begin = time.monotonic()
    assert (volume[...] == x).all()
    assert crops(volume, x, range(50)) == 50
    assert time.monotonic() - begin < 60
    assert cache.inspect().late == 0, "no key stayed locked"
    cache.unlink()


def test_child_reads_without_a_cache_that_has_gone(place: tuple[str, Array], name: str) -> None:
    path, x = place
    volume = ndshm.Volume(path, cache=ndshm.ChunkCache(name, "16MiB"))
    assert (volume[:16] == x[:16]).all()
    assert volume.cache is not None and volume.cache.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(not (volume[...] == x).all())
    assert os.waitpid(child, 0)[1] == 0
    assert (volume[...] == x).all(), "and the parent goes on with it"


def test_cache_of_the_environment(place: tuple[str, Array]) -> None:
    path, x = place
    code = f"""
import os, ndshm
volume = ndshm.Volume({path!r})
cache = ndshm.ChunkCache(nbytes="16MiB")
print(int(volume[...].sum(dtype="u8")), cache.inspect().fills, cache.name == f"chunks-{{os.getuid()}}")
cache.unlink()
"""
    environment = {**os.environ, "NDSHM_CHUNK_CACHE": "16MiB"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split() == [str(x.sum(dtype="u8")), "36", "True"]
    # Whether to look is the program's choice, wherever the cache is from.
    code = f"""
import os, ndshm
always, once = ndshm.Volume({path!r}, recheck=True), ndshm.Volume({path!r})
before = always[...].sum(), once[...].sum()
os.rename({path!r} + "/c/0/0/0", {path!r} + "/away")
after = always[...].sum(), once[...].sum()
os.rename({path!r} + "/away", {path!r} + "/c/0/0/0")
print(before[0] == before[1], after[0] < before[0], after[1] in before + after, always[...].sum() == before[0])
ndshm.ChunkCache(nbytes="16MiB").unlink()
"""
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split() == ["True"] * 4
    time.sleep(SETTLED)  # the file that was renamed is one that has just changed
    environment["NDSHM_CHUNK_CACHE"] = "lots"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert "NDSHM_CHUNK_CACHE" in run.stderr and "InvalidArgument" in run.stderr


def test_cache_is_trimmed_and_pickled(place: tuple[str, Array], cache: ndshm.ChunkCache) -> None:
    path, x = place
    volume = ndshm.Volume(path, 0, cache=cache, recheck=False)
    same = pickle.loads(pickle.dumps(volume))
    assert (same[...] == x).all() and (volume[...] == x).all()
    assert same.cache is not None and (same.cache.name, same.cache.nbytes) == (cache.name, cache.nbytes)
    assert cache.inspect().fills == 36
    before = cache.inspect().allocated
    left = cache.trim("64KiB")
    assert left < before - (500 << 10) and cache.inspect().allocated == left
    assert (volume[...] == x).all()


def test_unused_cache_is_removed_after_its_time(tmp_path: Path, place: tuple[str, Array]) -> None:
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path)}
    hold = """
import sys, ndshm
cache = ndshm.ChunkCache("held", "16MiB", keep=float(sys.argv[1]))
int(ndshm.Volume(sys.argv[2], cache=cache)[1, 2, 3])
print(cache.inspect().keep, cache.inspect().unused < 60, ndshm.gc(caches=True), flush=True)
input()
"""
    look = """
import ndshm
print(*[ndshm.gc(dry_run=True), ndshm.gc(caches=True), ndshm.gc(caches=True)], sep=";")
"""
    for keep in ["0", "inf", "3600"]:
        command = [sys.executable, "-c", hold, keep, place[0]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as user:
            assert user.stdout is not None
            assert user.stdout.readline().split() == [str(float(keep)), "True", "[]"]
            user.kill()
        found = subprocess.run([sys.executable, "-c", look], env=environment, check=True, capture_output=True, text=True).stdout
        held = "['.ndshm-cache-held']"
        assert found.strip() == f"{held if keep == '0' else '[]'};{held};[]"
    for wrong in [-1, float("nan")]:
        with pytest.raises(ndshm.InvalidArgument, match="keep="):
            ndshm.ChunkCache("wrong", "16MiB", keep=wrong)


def test_group_of_users_shares_a_cache(name: str, place: tuple[str, Array]) -> None:
    share = f"group:{os.getgid()}"
    cache = ndshm.ChunkCache(name, "16MiB", share=share)
    try:
        again = pickle.loads(pickle.dumps(cache))
        for held in (cache, again):
            assert (ndshm.Volume(place[0], cache=held)[...] == place[1]).all()
        assert (again._share, again.inspect().fills) == (share, 36)
    finally:
        cache.unlink()
    for wrong in ("all", "group:", "group:painters", "users:"):
        with pytest.raises(ndshm.InvalidArgument, match="group:GID"):
            ndshm.ChunkCache(name, "16MiB", share=wrong)
    with pytest.raises(ndshm.InvalidArgument, match="needs a name"):
        ndshm.ChunkCache(nbytes="16MiB", share=share)


def test_sizes_and_names_are_checked(name: str, place: tuple[str, Array]) -> None:
    for size in ("1.5GiB", "16GB", "G", "", "-1"):
        with pytest.raises(ndshm.InvalidArgument, match="size"):
            ndshm.ChunkCache(name, size)
    with pytest.raises(ndshm.InvalidArgument, match="512 KiB"):
        ndshm.ChunkCache(name, 1000)
    with pytest.raises(ndshm.InvalidArgument, match="16GiB"):
        ndshm.ChunkCache()
    with pytest.raises(ndshm.NotFound):
        ndshm.ChunkCache(name)
    cache = ndshm.ChunkCache(name, "1 MiB")
    assert ndshm.ChunkCache(name, 1 << 20).nbytes == cache.nbytes == 1 << 20
    assert repr(cache) == f"<ndshm.ChunkCache {name!r}: 1048576 bytes>"
    with pytest.raises(ndshm.Mismatch, match="1048576"):
        ndshm.ChunkCache(name, "2MiB")
    with pytest.raises(ndshm.InvalidArgument, match="recheck"):
        ndshm.Volume(place[0], cache=cache, recheck="sometimes")  # type: ignore[arg-type]
    assert cache.unlink() and not cache.unlink()
