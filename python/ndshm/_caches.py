"""Caches of decoded chunks, which all processes of a user share."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from . import _core
from ._attach import number_of
from ._errors import InvalidArgument

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class CacheInspection(NamedTuple):
    """What a cache holds, and what it was good for. `ChunkCache.inspect` returns it.

    `nbytes` is how many bytes of chunks fit, `filled` how many of them hold chunks, and `allocated` the memory that the cache has now. It stays for
    `keep` seconds after its last use, and was not used for `unused` seconds. The others
    count since the cache was made, over all processes: chunks that were found (`hits`), that were decoded into it (`fills`), waits for a process
    that decoded the chunk, chunks that made way for others (`evictions`), chunks that had changed in the store (`stale`), and what was not cached
    because it is longer than 64 MiB or a quarter of the cache (`too_long`), because readers held its places (`held`), because the machine is
    full (`no_space`), because another process took too long (`late`), or because the store did not say which version of an object it has sent,
    or the file had changed less than 2 s before (`unversioned`).
    """

    nbytes: int
    filled: int
    allocated: int
    keep: float
    unused: float
    hits: int
    fills: int
    waits: int
    evictions: int
    stale: int
    too_long: int
    held: int
    no_space: int
    late: int
    unversioned: int


class ChunkCache:
    """Memory for decoded chunks of volumes, shared by all processes of this user: each chunk is decoded once per machine.

    It outlives its processes, so that the next run finds it; an hour after its last use the manager or `ndshm.gc` removes it, and `unlink` at once.
    Its memory is taken as it is filled. When it is full, the
    chunks go that were not used for the longest time. Chunks of several volumes can be in one cache.

    It can be pickled: the receiver opens the same cache, or makes it if it has gone.

    Parameters
    ----------
    name
        The name. Without one it is the one cache of this user, ``chunks-`` and the user's number.
    nbytes
        The size in bytes, or as text: ``"16GiB"``. The cache is made if there is none of this name. None opens one that exists.
    keep
        For how many seconds it stays after its last use, while no process has it open; ``math.inf`` keeps it until it is unlinked, or
        removed by ``gc(caches=True)``. A cache that exists gets this time too. None leaves it as it is, an hour from the beginning.
    share
        With which users it is shared: ``"group:100"`` makes a cache that members of this group can use, and opens those of its members;
        ``"users:1000,1001"`` opens those of these users. Trust them: who may write to a cache can give others wrong bytes. None: only this
        user.

    Raises
    ------
    NotFound
        There is no such cache, and no size was given.
    Mismatch
        It exists with another size.
    InvalidArgument
        The size is less than 512 KiB, or no size.
    NoSpace, PermissionDenied
        It cannot be made, or it is another user's that `share` does not name, or every user may write to it.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/em.zarr"
    >>> _ = ndshm.create_volume(path, (64, 64, 64), (32, 32, 32), "uint8")
    >>> cache = ndshm.ChunkCache("docs-cache", "64MiB")
    >>> volume = ndshm.Volume(path, cache=cache)
    >>> int(volume[3, 4, 5])
    0
    >>> cache.unlink()
    True
    """

    __slots__ = ("_raw", "_share")

    def __init__(self, name: str | None = None, nbytes: int | str | None = None, *, keep: float | None = None, share: str | None = None) -> None:
        if name is None and nbytes is None:
            raise InvalidArgument('a cache without a name needs a size, such as ndshm.ChunkCache(nbytes="16GiB")')
        if keep is not None and not keep >= 0:
            raise InvalidArgument(f"keep={keep}: give seconds, 0 or more, or math.inf to keep it until it is unlinked")
        if name is None and share is not None:
            raise InvalidArgument(f"share={share!r}: a cache that users share needs a name")
        self._raw = _core.RawCache(name, None if nbytes is None else nbytes_of(nbytes), keep, share)
        self._share = share

    @property
    def name(self) -> str:
        """The name."""
        return self._raw.name

    @property
    def nbytes(self) -> int:
        """How many bytes of chunks fit."""
        return self._raw.nbytes

    def inspect(self) -> CacheInspection:
        """Return what it holds, and what it was good for."""
        return CacheInspection(**self._raw.inspect())

    def trim(self, nbytes: int | str) -> int:
        """Free memory until the chunks have at most so many bytes, and return how much memory the cache has then.

        Raises
        ------
        Unsupported
            This system cannot free a part of a file. Then `unlink` frees it all.
        """
        return self._raw.trim(nbytes_of(nbytes))

    def unlink(self) -> bool:
        """Remove the name, and return whether it existed. Processes that have the cache open go on; the memory is freed with the last."""
        return self._raw.unlink()

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.name, self.nbytes, self._raw.inspect()["keep"], self._share)

    def __repr__(self) -> str:
        return f"<ndshm.ChunkCache {self.name!r}: {self.nbytes} bytes>"


def _opened(name: str, nbytes: int, keep: float, share: str | None) -> ChunkCache:
    return ChunkCache(name, nbytes, keep=keep, share=share)


def nbytes_of(size: int | str) -> int:
    """Return a size in bytes, which may be a text such as ``"16GiB"``."""
    if not isinstance(size, str):
        return number_of(size, "nbytes")
    found = re.fullmatch(r"([0-9]+) ?(?:([KMGT])(?:iB)?)?", size.strip())
    if found is None:
        raise InvalidArgument(f'{size!r} is no size: give bytes, or a text such as "16GiB"')
    return int(found[1]) << _UNITS[found[2] or ""]

