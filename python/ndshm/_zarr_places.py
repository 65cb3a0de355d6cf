"""Where zarr-python's stores have their chunks, named alike in all processes, and what tells a chunk's bytes from later ones."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from zarr.storage import LocalStore, StorePath

# Age from which times tell a file or an object from a later one, in nanoseconds: file systems and web servers round them.
_SETTLED = 2_000_000_000
# What an S3Store of obstore is told that does not change which bytes it reads. Credentials change while a program runs.
_NOT_THE_PLACE = {"access_key_id", "secret_access_key", "session_token", "token", "allow_http", "client_options"}


class Version(NamedTuple):
    """What bytes a chunk has."""

    digest: bytes
    """Another one for other bytes."""
    is_settled: bool
    """Whether bytes that are written from now on have another digest."""


def _digest(*parts: object) -> bytes:
    return blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"), digest_size=16).digest()


class File(NamedTuple):
    """A chunk in a file of this machine, which is asked at each access."""

    name: str

    def version(self) -> Version | None:
        """Return what changes when the file changes, or None if there is no such file."""
        # Before the times, so that a file which changes in between is not settled.
        now = time.time_ns()
        try:
            # Opened, because network file systems ask the server then. FIFOs are not waited for.
            descriptor = os.open(self.name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            try:
                facts = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return None
        digest = _digest(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        return Version(digest, now - max(facts.st_mtime_ns, facts.st_ctime_ns) >= _SETTLED)


class Object(NamedTuple):
    """A chunk behind a web server or in S3, which is asked by a request without a body."""

    name: str
    getter: Any

    async def ask(self) -> Version | None:
        """Return the version of the object, or None if there is none, or its server does not say."""
        now = datetime.now(timezone.utc)
        store, key = self.getter.store, self.getter.path
        try:
            if _is(store, "zarr.storage._obstore.ObjectStore"):
                facts: Mapping[str, Any] = await store.store.head_async(key)
                tag, changed = facts.get("e_tag"), facts.get("last_modified")
            else:
                path = _path_below(store.path, key)
                # S3FileSystem answers from what it has listed before, unless it is told not to.
                facts = await store.fs._info(path, **({"refresh": True} if _is(store.fs, _S3FS) else {}))
                tag, changed = facts.get("ETag"), facts.get("LastModified") or facts.get("Last-Modified")
        # Whatever it is, reading the chunk will say it, in zarr's own words.
        except Exception:
            return None
        if not isinstance(tag, str) or not tag or tag.startswith("W/"):
            return None
        # The tags of S3 are made of the bytes. Web servers make theirs of the time in seconds and the length.
        is_settled = self.name.startswith("s3\0") or _is_older(changed, now)
        return Version(_digest(tag), is_settled)


Place = File | Object

_FSSPEC, _OBSTORE = "zarr.storage._fsspec.FsspecStore", "zarr.storage._obstore.ObjectStore"
_S3FS, _HTTPFS = "s3fs.core.S3FileSystem", "fsspec.implementations.http.HTTPFileSystem"


def _is(value: object, kind: str) -> bool:
    """Whether a value is of exactly this type. Its package need not be installed."""
    return f"{type(value).__module__}.{type(value).__qualname__}" == kind


def place_of(getter: Any) -> Place | None:
    """Return where a chunk is, or None if its name may mean other bytes in another process."""
    if type(getter) is not StorePath:
        return None
    if type(getter.store) is LocalStore:
        return File(os.path.abspath(getter.store.root / getter.path))
    store: Any = getter.store
    name = None
    if _is(store, _FSSPEC):
        name = _name_in_fsspec(store.fs, _path_below(store.path, getter.path))
    elif _is(store, _OBSTORE):
        name = _name_in_obstore(store.store, getter.path)
    return None if name is None else Object(name, getter)


def _name_in_fsspec(fs: Any, path: str) -> str | None:
    if _is(fs, _HTTPFS):
        return f"http\0{path}"
    if _is(fs, _S3FS) and not fs.version_aware:
        given: Mapping[str, Any] = fs.client_kwargs or {}
        endpoint = fs.endpoint_url or given.get("endpoint_url") or _s3_endpoint_of_environment()
        return "\0".join(("s3", endpoint, path))
    return None


def _name_in_obstore(store: Any, path: str) -> str | None:
    if _is(store, "obstore.store.HTTPStore"):
        return f"http\0{store.url.rstrip('/')}/{path}"
    if _is(store, "obstore.store.S3Store"):
        config = {key.lower().removeprefix("aws_"): str(value) for key, value in store.config.items()}
        endpoint = config.pop("endpoint", None) or config.pop("endpoint_url", None) or _s3_endpoint_of_environment()
        bucket = config.pop("bucket", None) or config.pop("bucket_name", "")
        others = sorted((key, value) for key, value in config.items() if key not in _NOT_THE_PLACE)
        return "\0".join(("s3", endpoint, _path_below(f"{bucket}/{store.prefix or ''}", path), *(f"{key}={value}" for key, value in others)))
    return None


def _s3_endpoint_of_environment() -> str:
    """Return where S3 is if the program does not say it."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((value for name in names if (value := os.environ.get(name))), "")


def _path_below(root: str, path: str) -> str:
    root = root.rstrip("/")
    return f"{root}/{path}".rstrip("/") if root else path


def _is_older(changed: Any, now: datetime) -> bool:
    """Whether an object changed so long ago that a later change has another time."""
    if isinstance(changed, str):
        try:
            changed = parsedate_to_datetime(changed)
        except ValueError:
            return False
    if not isinstance(changed, datetime):
        return False
    changed = changed if changed.tzinfo else changed.replace(tzinfo=timezone.utc)
    # A second more, because these times are whole seconds.
    age: float = (now - changed).total_seconds()
    return age * 1e9 >= _SETTLED + 1_000_000_000
