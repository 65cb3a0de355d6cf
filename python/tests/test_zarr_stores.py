"""zarr-python's arrays behind servers, with decoded chunks in a shared cache: entity tags say what is still the same."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import numpy as np
import obstore.store
import pytest
import s3fs
import zarr
import zarr.storage
from moto.server import ThreadedMotoServer
from zarr.core.sync import sync

import ndshm
import ndshm.zarr
from ndshm._zarr_places import Object, place_of
from servers import StallingServer, serving
from test_caches import Array, elements
from test_zarr import KINDS, PATH

BUCKET = "volumes"
# Of an array of 40 x 48 x 56 elements.
CHUNKS = 36


async def closed(files: s3fs.S3FileSystem) -> None:
    await (await files.set_session()).close()  # which warns otherwise


class S3(ThreadedMotoServer):
    """A server that answers as S3 does, with a bucket."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, verbose=False)

    def start(self) -> None:
        super().start()
        self.url = "http://{}:{}".format(*self.get_host_and_port())
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")
        self.client.create_bucket(Bucket=BUCKET)
        self.files = s3fs.S3FileSystem(endpoint_url=self.url, asynchronous=True, skip_instance_cache=True)

    def stop(self) -> None:
        sync(closed(self.files))
        super().stop()

    def by_fsspec(self, path: str) -> zarr.storage.FsspecStore:
        return zarr.storage.FsspecStore(self.files, path=f"{BUCKET}/{path}")

    def by_obstore(self, path: str) -> zarr.storage.ObjectStore[Any]:
        store = obstore.store.S3Store(BUCKET, prefix=path, endpoint=self.url, client_options={"allow_http": True})
        return zarr.storage.ObjectStore(store)


@pytest.fixture(scope="module", autouse=True)
def _credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "name")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="module")
def s3(_credentials: None) -> Iterator[S3]:
    server = S3()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def cache(name: str) -> Iterator[ndshm.ChunkCache]:
    cache = ndshm.ChunkCache(name, "16MiB")
    with zarr.config.set({"codec_pipeline.path": PATH, "codec_pipeline.cache": cache}):
        yield cache
    cache.unlink()


def opened(store: Any) -> Any:
    return zarr.open_array(store, mode="r")


def stored(store: Any, x: Array, kind: str = "chunks") -> Any:
    a = zarr.create_array(store, shape=x.shape, dtype=x.dtype, **KINDS[kind])
    a[...] = x
    return a


@pytest.mark.parametrize("kind", ["chunks", "shards"])
def test_s3_by_both_libraries(s3: S3, cache: ndshm.ChunkCache, kind: str) -> None:
    x = elements()
    path = f"both/{kind}"
    stored(s3.by_fsspec(path), x, kind)
    for turn, store in enumerate((s3.by_fsspec, s3.by_obstore)):
        a = opened(store(path))
        for _ in range(2):
            assert (a[...] == x).all()
            assert (a[3:35, 17, 5:56] == x[3:35, 17, 5:56]).all()
        counted = cache.inspect()
        # Both libraries name a bucket's objects alike, and so they share chunks.
        assert counted.fills == CHUNKS and counted.hits > CHUNKS * turn, (turn, counted)


READER = """
import sys, ndshm, zarr, zarr.storage, s3fs
zarr.config.set({"codec_pipeline.path": "ndshm.zarr.SharedCachePipeline", "codec_pipeline.cache": ndshm.ChunkCache(sys.argv[1])})
store = zarr.storage.FsspecStore(s3fs.S3FileSystem(endpoint_url=sys.argv[2], asynchronous=True), path=sys.argv[3], read_only=True)
print(int(zarr.open_array(store, mode="r")[...].sum(dtype="u8")))
"""


def test_processes_decode_each_object_once(s3: S3, cache: ndshm.ChunkCache) -> None:
    x = elements()
    stored(s3.by_fsspec("processes"), x)
    command = [sys.executable, "-c", READER, cache.name, s3.url, f"{BUCKET}/processes"]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for program in programs:
        assert program.communicate(timeout=120)[0] == f"{x.sum(dtype='u8')}\n" and program.returncode == 0
    counted = cache.inspect()
    assert (counted.fills, counted.hits, counted.held) == (CHUNKS, 2 * CHUNKS, 0)


@pytest.mark.parametrize("by", ["by_fsspec", "by_obstore"])
def test_replaced_objects_are_seen_after_opening(s3: S3, cache: ndshm.ChunkCache, by: str) -> None:
    x, other = elements(), elements(seed=2)
    store: Callable[[str], Any] = getattr(s3, by)
    a = stored(store(f"{by}/one"), x)
    stored(store(f"{by}/other"), other)
    assert (opened(store(f"{by}/one"))[...] == x).all() and cache.inspect().fills == CHUNKS
    # S3FileSystem knows now what the objects were.
    sync(s3.files._find(f"{BUCKET}/{by}/one"))
    # Another object of the same length, one that is gone, and one that zarr writes through an array that had read the old one.
    new = x.copy()
    s3.client.copy_object(Bucket=BUCKET, Key=f"{by}/one/c/0/0/0", CopySource=f"{BUCKET}/{by}/other/c/0/0/0")
    new[:16, :16, :16] = other[:16, :16, :16]
    s3.client.delete_object(Bucket=BUCKET, Key=f"{by}/one/c/1/0/0")
    new[16:32, :16, :16] = 0
    assert a[20, 20, 20] == x[20, 20, 20]
    a[20, 20:25, 20] = new[20, 20:25, 20] = 7
    # zarr shrinks an array without its pipeline.
    assert a[30, 40, 50] == x[30, 40, 50]
    a.resize((40, 48, 32))
    a.resize((40, 48, 56))
    new[:, :, 32:] = 0
    assert (a[:, :, 40:] == 0).all()
    assert (a[16:32, 16:32, 16:32] == new[16:32, 16:32, 16:32]).all()
    for _ in range(2):
        assert (opened(store(f"{by}/one"))[...] == new).all()
    # Two that are new, and no copy of what resizing removed.
    assert cache.inspect().fills == CHUNKS + 2


def test_object_that_changes_while_it_is_read_is_not_kept(s3: S3, cache: ndshm.ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = elements((16, 16, 16)), elements((16, 16, 16), seed=2)
    stored(s3.by_fsspec("changing/one"), x)
    stored(s3.by_fsspec("changing/other"), other)
    fetch = Object.fetch

    async def fetch_another(place: Object, prototype: Any) -> Any:
        monkeypatch.undo()
        s3.client.copy_object(Bucket=BUCKET, Key="changing/one/c/0/0/0", CopySource=f"{BUCKET}/changing/other/c/0/0/0")
        return await fetch(place, prototype)

    a = opened(s3.by_fsspec("changing/one"))
    monkeypatch.setattr(Object, "fetch", fetch_another)
    for fills in (0, 1, 1):
        assert (a[...] == other).all() and cache.inspect().fills == fills


def test_places_are_told_apart(s3: S3, cache: ndshm.ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [(f"apart/{number}", elements((16, 16, 16), seed=number)) for number in range(2)]
    for path, x in arrays:
        stored(s3.by_fsspec(path), x)
    for _ in range(2):
        for path, x in arrays:
            for store in (s3.by_fsspec, s3.by_obstore):
                assert (opened(store(path))[...] == x).all()
    assert cache.inspect().fills == 2

    def name(store: Any) -> str | None:
        place = sync(place_of(zarr.storage.StorePath(store, "c/0")))
        return None if place is None else place.name

    def by_obstore(**how: Any) -> str | None:
        return name(zarr.storage.ObjectStore(obstore.store.S3Store(BUCKET, prefix="x", **how)))

    def by_fsspec(**how: Any) -> str | None:
        files = s3fs.S3FileSystem(asynchronous=True, skip_instance_cache=True, **how)
        try:
            return name(zarr.storage.FsspecStore(files, path=f"{BUCKET}/x"))
        finally:
            sync(closed(files))

    here, there = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert by_obstore(endpoint=here) == by_fsspec(endpoint_url=here) == by_fsspec(client_kwargs={"endpoint_url": f"{here}/"}) is not None
    assert None is not by_fsspec() != by_fsspec(endpoint_url=there) != by_fsspec(endpoint_url=here) != by_obstore() is not None
    # The names are in the keys of what is kept: secrets stay out.
    assert by_obstore(access_key_id="one", secret_access_key="word") == by_obstore(access_key_id="other") == by_obstore()
    # Versions of objects have the same name, and what they are depends on the file system. Headers can change what a server answers.
    assert by_fsspec(version_aware=True) is None
    assert by_obstore(client_options={"default_headers": {"x": "y"}}) is None
    # s3fs says where the environment sends it, obstore does not.
    monkeypatch.setenv("AWS_ENDPOINT_URL", there)
    assert by_obstore() is None and by_fsspec() == by_fsspec(endpoint_url=there) == by_obstore(endpoint=there)

    def on_the_web(url: str, **how: Any) -> tuple[str | None, str | None]:
        files = fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True, **how)
        store = obstore.store.HTTPStore.from_url(url, client_options={"allow_http": True})
        return name(zarr.storage.FsspecStore(files, path=url)), name(zarr.storage.ObjectStore(store))

    plain = on_the_web("http://127.0.0.1/v")
    assert plain[0] == plain[1] is not None
    for url in ("http://127.0.0.1/v?of=1", "http://127.0.0.1/v%20w"):
        assert on_the_web(url) == (None, None)
    for how in ({"params": {"of": 1}}, {"headers": {"Host": "x"}}, {"client_kwargs": {"headers": {"Host": "x"}}}):
        assert on_the_web("http://127.0.0.1/v", **how)[0] is None


@contextlib.contextmanager
def on_the_web(folder: Path, *, tags: bool) -> Iterator[tuple[StallingServer, list[Any]]]:
    """Serve a folder to both libraries."""
    with serving(folder, tags=tags) as server:
        files = fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True)
        store = obstore.store.HTTPStore.from_url(f"{server.url}/a", client_options={"allow_http": True})
        try:
            yield server, [zarr.storage.FsspecStore(files, path=f"{server.url}/a", read_only=True), zarr.storage.ObjectStore(store, read_only=True)]
        finally:
            sync(files._session.close())  # which warns otherwise


def chunks_asked(server: StallingServer) -> int:
    return sum(path.startswith("/a/c/") for path in server.asked)


def set_age(folder: Path, seconds: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_web_server_with_tags(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x, other = elements(), elements(seed=2)
    stored(tmp_path / "a", x)
    with on_the_web(tmp_path, tags=True) as (server, stores):
        # Too young: its tag could be that of other bytes of the same length and second.
        set_age(tmp_path, -60)
        young = opened(stores[0])
        assert (young[...] == x).all() and cache.inspect().fills == 0
        set_age(tmp_path, 120)
        for store in stores:
            assert (opened(store)[...] == x).all() and cache.inspect().fills == CHUNKS
        assert chunks_asked(server) == 2 * CHUNKS
        # An open array asks again for what was too young.
        assert (young[...] == x).all() and chunks_asked(server) == 2 * CHUNKS
        stored(tmp_path / "b", other)
        os.replace(tmp_path / "b/c/0/0/0", tmp_path / "a/c/0/0/0")
        set_age(tmp_path, 90)
        new = x.copy()
        new[:16, :16, :16] = other[:16, :16, :16]
        for store in stores:
            assert (opened(store)[...] == new).all()


def test_web_server_without_tags_passes_by(tmp_path: Path, cache: ndshm.ChunkCache) -> None:
    x = elements()
    stored(tmp_path / "a", x)
    set_age(tmp_path, 120)
    with on_the_web(tmp_path, tags=False) as (server, stores):
        for store in stores:
            assert (opened(store)[...] == x).all()
        assert chunks_asked(server) == len(stores) * CHUNKS
    assert cache.inspect() == cache.inspect()._replace(hits=0, fills=0)
    assert not np.any(cache.inspect().held)
