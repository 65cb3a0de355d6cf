"""Typed n-dimensional arrays that several processes share.

Most programs need eleven names; `help(ndshm.create)` and the like say more.

`create`: an array of zeros under a name. `Array` has numpy's operators, and each access has a lock. Several lines share one::

    >>> import numpy, ndshm
    >>> array = ndshm.create("docs-example", (2, 3), "float32")
    >>> array += 1
    >>> with array.write() as x:
    ...     x[0] = x[1] + 2

`open`: the array that has a name, in this or another process. ``timeout=5`` waits for it::

    >>> float(ndshm.open("docs-example")[0, 2])
    3.0

`unlink`: remove a name. Processes that have the array keep it::

    >>> ndshm.unlink("docs-example")
    True

`from_array`: a copy of a numpy array under a name::

    >>> _ = ndshm.from_array("docs-example", numpy.arange(6).reshape(2, 3), replace=True)

`ls`: the arrays that have names::

    >>> next(row.shape for row in ndshm.ls() if row.name == "docs-example")
    (2, 3)

`share`: a copy without a name, to be sent to other processes. The last process that has it frees it::

    >>> import pickle
    >>> same = pickle.loads(pickle.dumps(ndshm.share(numpy.zeros(3))))

`paint`: an array that several processes paint at once, chunk by chunk::

    def fill(x, region):
        x[...] = region[0].start

    if __name__ == "__main__":
        array = ndshm.paint("example", (64, 512), (16, 512), "uint16", fill)

`Stream`: frames from one process, such as that of a camera, to any number of others, without a copy::

    >>> with ndshm.Stream.create("docs-stream", (2, 3), "uint16") as out:
    ...     number = out.send(numpy.ones((2, 3), "uint16"))
    ...     int(ndshm.Stream.open("docs-stream").next().x.sum())
    6

`create_volume`, `upload`, `download`: chunked volumes (Zarr, Precomputed, N5), on disk and behind URLs::

    >>> import tempfile
    >>> volume = ndshm.create_volume(tempfile.mkdtemp() + "/em", (4, 6), (2, 3), "uint8")
    >>> ndshm.upload(volume, numpy.ones((4, 6), "uint8")).result().stored
    4
    >>> int(ndshm.download(volume, "0:2,:").result().sum())
    12
    >>> ndshm.unlink("docs-example")
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from . import _core, _program, in_flight, shards
from . import multiprocessing as multiprocessing
from . import torch as torch
from ._array import Array
from ._attach import create, from_array
from ._attach import open as open
from ._caches import CacheInspection, ChunkCache
from ._core import attached
from ._dtypes import shown as _shown
from ._errors import (
    AlreadyExists,
    Cancelled,
    ChunkError,
    Closed,
    CudaError,
    Elsewhere,
    FramesHeld,
    HandleExpired,
    HasReader,
    HasWriter,
    Incomplete,
    InUse,
    InvalidArgument,
    Mismatch,
    MissingChunk,
    NdshmError,
    NoSpace,
    NotAnArray,
    NotAVolume,
    NotDescribed,
    NotFound,
    NoWriter,
    PaintError,
    PermissionDenied,
    SlotsHeld,
    StoreError,
    TimedOut,
    TooManyHandles,
    TooManyOpenFiles,
    TransferWarning,
    Unlinked,
    Unsupported,
    ViewCopied,
    ViewOutlivesGuard,
    WouldBlock,
    WouldDeadlock,
)
from ._guard import Guard, strict
from ._job import Progress
from ._libraries import install
from ._program import doctor, sweep
from ._render import Claim, FinishedChunk, RenderBuffer, paint
from ._share import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy, share, share_zeros
from ._shared_list import SharedList
from ._shared_memory import SharedMemory
from ._streams import Frame, NewFrame, Stream, StreamCursorInspection, StreamInspection, StreamReader, StreamWriter
from ._volume_arrays import VolumeView
from ._volumes import (
    Download,
    DownloadReport,
    Scale,
    Upload,
    UploadReport,
    Volume,
    VolumeInfo,
    create_volume,
    download,
    info,
    upload,
)

# Without `multiprocessing` and `open`: `from ndshm import *` would hide the standard library's module and Python's function.
__all__ = [
    "AlreadyExists",
    "Array",
    "CacheInspection",
    "Cancelled",
    "ChunkCache",
    "ChunkError",
    "Claim",
    "Closed",
    "CudaError",
    "Elsewhere",
    "FinishedChunk",
    "Frame",
    "FramesHeld",
    "Download",
    "DownloadReport",
    "Guard",
    "HandleExpired",
    "HasReader",
    "HasWriter",
    "InUse",
    "Incomplete",
    "InvalidArgument",
    "Listed",
    "ListedPartial",
    "Mismatch",
    "MissingChunk",
    "NdshmError",
    "NewFrame",
    "NoSpace",
    "NoWriter",
    "NotAVolume",
    "NotAnArray",
    "NotDescribed",
    "NotFound",
    "PaintError",
    "PermissionDenied",
    "Progress",
    "RenderBuffer",
    "Scale",
    "SharedList",
    "SharedMemory",
    "SlotsHeld",
    "StoreError",
    "Stream",
    "StreamCursorInspection",
    "StreamInspection",
    "StreamReader",
    "StreamWriter",
    "TimedOut",
    "TooManyHandles",
    "TooManyOpenFiles",
    "TransferWarning",
    "Unlinked",
    "Unsupported",
    "Upload",
    "UploadReport",
    "ViewCopied",
    "ViewOutlivesGuard",
    "Volume",
    "VolumeView",
    "VolumeInfo",
    "WouldBlock",
    "WouldDeadlock",
    "attached",
    "create",
    "create_volume",
    "doctor",
    "download",
    "from_array",
    "gc",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "in_flight",
    "info",
    "install",
    "ls",
    "paint",
    "set_sharing_strategy",
    "shards",
    "share",
    "share_zeros",
    "strict",
    "sweep",
    "unlink",
    "upload",
]


class Listed(NamedTuple):
    """A row of `ls`. `dtype`, `shape` and `order` are None where the array does not describe itself."""

    name: str
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    order: str | None


class ListedPartial(NamedTuple):
    """A row of ``ls(partial=True)``: an unfinished renderbuffer or download.

    `progress` is the number of finished chunks, and of all chunks. `attached` says whether a process is attached. The fields from `dtype` to
    `progress` are None if a killed process left a part of the buffer that cannot be resumed; then it is to be removed.
    """

    name: str
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    order: str | None
    fingerprint: str | None
    progress: tuple[int, int] | None
    attached: bool


@overload
def ls(*, partial: Literal[False] = False) -> list[Listed]: ...
@overload
def ls(*, partial: Literal[True]) -> list[ListedPartial]: ...
def ls(*, partial: bool = False) -> list[Listed] | list[ListedPartial]:
    """Return the plain arrays in the default directory, sorted by name.

    A file of another program looks like an array without a description. Counted arrays, arenas, locks of uploads and semaphores are not
    listed. With `partial`, returns the unfinished renderbuffers and downloads instead, such as a killed process leaves: `unlink` with
    `partial` removes them.
    """
    if partial:
        return [
            ListedPartial(name, size, None, None, None, None, None, attached)
            if found is None
            else ListedPartial(name, size, _shown(found[0]), tuple(found[1]), *found[2:], attached)
            for name, size, found, attached in _core.partial_listing()
        ]
    rows = _core.listing()
    return [Listed(name, size, dtype and _shown(dtype), None if lengths is None else tuple(lengths), order) for name, size, dtype, lengths, order in rows]


def unlink(name: str, *, partial: bool = False) -> bool:
    """Remove a name in the default directory, and return whether it existed.

    Attached processes keep the memory, which is freed when the last of them detaches.

    Parameters
    ----------
    name
        The name of the array.
    partial
        Remove an unfinished renderbuffer or download of this name instead, and not the array. Painters that are attached to it get
        `Unlinked` at their next claim.

    Raises
    ------
    NotFound
        The name exists only in the other of the two usual directories, which the text names.
    PermissionDenied, NotAnArray
        This user may not remove it, or it is a directory or a link.
    """
    return _core.unlink(name, partial=partial)


def gc(dry_run: bool = False, in_flight: bool = False, caches: bool = False) -> list[str]:
    """Remove the files that killed processes left in the default directory, and return their names.

    It removes what ``ndshm gc`` removes: also the locks of killed uploads, and what killed downloads without a name had painted. Plain
    arrays stay: they are removed by `unlink` only. With `in_flight`, counted arrays that no process has are removed even if a pickle
    of them could still be loaded. With `caches`, caches of chunks that no process has open are removed although they would stay. With
    `dry_run` nothing is removed.
    """
    return _core.reclaim(dry_run, in_flight, caches)


__version__: str


def _attribute(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # it takes longer to import than this package

        return version("ndshm")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # otherwise type checkers would accept every name
    __getattr__ = _attribute
_program.choose_manager()
