"""Where zarr-python's stores have their chunks, named alike in all processes, and what tells a chunk's bytes from later ones."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from zarr.storage import LocalStore, StorePath

# Age from which times tell a file from a later one, in nanoseconds: file systems round them.
_SETTLED = 2_000_000_000
# The same for an object on a web server, in seconds: its clock may differ from this one's.
_SETTLED_OBJECT = 60.0
# What an S3Store of obstore is told that does not change which bytes it reads. Credentials change while a program runs.
_NOT_THE_PLACE = {"access_key_id", "secret_access_key", "session_token", "token"}
# Options of obstore's clients that do not change what a server answers.
_NOT_THE_ANSWER = {"allow_http", "timeout", "connect_timeout", "pool_idle_timeout", "pool_max_idle_per_host", "http1_only", "http2_only"}


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
    """A chunk behind a web server or in S3."""

    name: str
    getter: Any

    async def ask(self) -> Version | None:
        """Return the version of the object, by a request without its bytes, or None if there is none, or its server does not say."""
        store, key = self.getter.store, self.getter.path
        try:
            if _is(store, _OBSTORE):
                return self._version(await store.store.head_async(key))
            # S3FileSystem answers from what it has listed before, unless it is told not to.
            fresh = {"refresh": True} if _is(store.fs, _S3FS) else {}
            return self._version(await store.fs._info(_path_below(store.path, key), **fresh))
        # Whatever it is, reading the chunk will say it, in zarr's own words.
        except Exception:
            return None

    async def fetch(self, prototype: Any) -> tuple[Any, Version | None] | None:
        """Return the bytes, and their version, which came with them; or None if that fails."""
        store, key = self.getter.store, self.getter.path
        try:
            if _is(store, _OBSTORE):
                answer: Any = await store.store.get_async(key)
                return prototype.buffer.from_bytes(await answer.bytes_async()), self._version(answer.meta)
            fs, path = store.fs, _path_below(store.path, key)
            if _is(fs, _S3FS):
                bucket, name, _ = fs.split_path(path)
                answer = await fs._call_s3("get_object", Bucket=bucket, Key=name)
                async with answer["Body"] as body:
                    return prototype.buffer.from_bytes(await body.read()), self._version({**answer, "size": answer.get("ContentLength")})
            session = await fs.set_session()
            async with session.get(fs.encode_url(path)) as answer:
                answer.raise_for_status()
                encoded = await answer.read()
                return prototype.buffer.from_bytes(encoded), self._version({**answer.headers, "size": len(encoded)})
        # As above.
        except Exception:
            return None

    def _version(self, facts: Mapping[str, Any]) -> Version | None:
        """Return the version that a server names, or None if that may not tell bytes from others."""
        # Each library has its own spelling: e_tag, ETag, LastModified, Last-Modified.
        said = {re.sub("[_-]", "", key).lower(): value for key, value in facts.items()}
        tag, changed = said.get("etag"), _time(said.get("lastmodified"))
        # A weak tag, or the one that some servers give to files which they did not write.
        if not isinstance(tag, str) or tag.startswith("W/") or not tag.strip('"0-1') or changed is None:
            return None
        is_settled = (datetime.now(timezone.utc) - changed).total_seconds() >= _SETTLED_OBJECT
        # Such tags are made of the bytes. Web servers make theirs of the time in seconds and the length.
        is_digest = self.name.startswith("s3\0") and re.fullmatch(r'"?[0-9a-f]{32}(-[0-9]+)?"?', tag) is not None
        return Version(_digest(tag.strip('"'), said.get("size"), int(changed.timestamp())), is_settled or is_digest)


Place = File | Object

_FSSPEC, _OBSTORE = "zarr.storage._fsspec.FsspecStore", "zarr.storage._obstore.ObjectStore"
_S3FS, _HTTPFS = "s3fs.core.S3FileSystem", "fsspec.implementations.http.HTTPFileSystem"


def _is(value: object, kind: str) -> bool:
    """Whether a value is of exactly this type. Its package need not be installed."""
    return f"{type(value).__module__}.{type(value).__qualname__}" == kind


async def place_of(getter: Any) -> Place | None:
    """Return where a chunk is, or None if its name may mean other bytes in another process."""
    if type(getter) is not StorePath:
        return None
    if type(getter.store) is LocalStore:
        return File(os.path.abspath(getter.store.root / getter.path))
    store: Any = getter.store
    name = None
    if _is(store, _FSSPEC):
        name = await _name_in_fsspec(store.fs, _path_below(store.path, getter.path))
    elif _is(store, _OBSTORE):
        name = _name_in_obstore(store.store, getter.path)
    return None if name is None else Object(name, getter)


async def _name_in_fsspec(fs: Any, path: str) -> str | None:
    # Headers and parameters can change what a server answers.
    if _is(fs, _HTTPFS) and not fs.kwargs and not fs.client_kwargs:
        return _name_on_the_web(path)
    if _is(fs, _S3FS) and not fs.version_aware and not fs.kwargs:
        try:
            client = await fs.set_session()
        except Exception:  # reading the chunk will say it
            return None
        return _name_in_s3(client.meta.endpoint_url, path)
    return None


def _name_in_obstore(store: Any, path: str) -> str | None:
    options = set(store.client_options or ()) - _NOT_THE_ANSWER
    if _is(store, "obstore.store.HTTPStore") and not options:
        return _name_on_the_web(_path_below(store.url, path))
    if _is(store, "obstore.store.S3Store") and not options:
        config = {key.lower().removeprefix("aws_"): str(value) for key, value in store.config.items()}
        endpoint = config.pop("endpoint", None) or config.pop("endpoint_url", None)
        if endpoint is None and any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")):
            return None  # the store does not say what the environment was when it was made
        bucket = config.pop("bucket", None) or config.pop("bucket_name", "")
        others = sorted(f"{key}={value}" for key, value in config.items() if key not in _NOT_THE_PLACE)
        return _name_in_s3(endpoint or "", _path_below(f"{bucket}/{store.prefix or ''}", path), *others)
    return None


def _name_on_the_web(url: str) -> str | None:
    # Libraries differ in where they put a path behind a query, and in what they escape.
    return None if set(url) & set("?#%") else f"http\0{url}"


def _name_in_s3(endpoint: str, path: str, *others: str) -> str:
    return "\0".join(("s3", endpoint.rstrip("/"), path, *others))


def _path_below(root: str, path: str) -> str:
    root = root.rstrip("/")
    return f"{root}/{path}".rstrip("/") if root else path


def _time(changed: Any) -> datetime | None:
    """Return when an object was changed, as libraries give it."""
    try:
        changed = parsedate_to_datetime(changed) if isinstance(changed, str) else changed
        return changed.replace(tzinfo=changed.tzinfo or timezone.utc) if isinstance(changed, datetime) else None
    except (ValueError, OverflowError):
        return None
