"""Typed n-dimensional arrays that several processes share.

>>> import ndshm
>>> array = ndshm.create("docs-example", (2, 3), "float32")
>>> with array.write() as x:
...     x[:] = 1
>>> float(ndshm.open("docs-example")[1, 2])
1.0
>>> ndshm.unlink("docs-example")
True
"""

from __future__ import annotations

from typing import NamedTuple

from . import _core, _program, in_flight, shards
from . import multiprocessing as multiprocessing
from . import torch as torch
from ._array import Array
from ._attach import create, from_array, open
from ._core import attached, unlink
from ._errors import (
    AlreadyExists,
    Cancelled,
    ChunkError,
    CudaError,
    HandleExpired,
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
    PaintError,
    PermissionDenied,
    StoreError,
    TimedOut,
    TooManyHandles,
    TooManyOpenFiles,
    TransferWarning,
    Unlinked,
    Unsupported,
    ViewOutlivesGuard,
    WouldBlock,
    WouldDeadlock,
)
from ._guard import Guard, strict
from ._job import Progress
from ._program import doctor
from ._render import Claim, RenderBuffer, paint
from ._share import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy, share, share_zeros
from ._shared_list import SharedList
from ._shared_memory import SharedMemory
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

# Without `multiprocessing`: `from ndshm import *` would hide the standard library's module.
__all__ = [
    "AlreadyExists",
    "Array",
    "Cancelled",
    "ChunkError",
    "Claim",
    "CudaError",
    "Download",
    "DownloadReport",
    "Guard",
    "HandleExpired",
    "InUse",
    "Incomplete",
    "InvalidArgument",
    "Listed",
    "Mismatch",
    "MissingChunk",
    "NdshmError",
    "NoSpace",
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
    "StoreError",
    "TimedOut",
    "TooManyHandles",
    "TooManyOpenFiles",
    "TransferWarning",
    "Unlinked",
    "Unsupported",
    "Upload",
    "UploadReport",
    "ViewOutlivesGuard",
    "Volume",
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
    "ls",
    "open",
    "paint",
    "set_sharing_strategy",
    "shards",
    "share",
    "share_zeros",
    "strict",
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


def ls() -> list[Listed]:
    """Return the plain arrays in the default directory, sorted by name.

    A file of another program looks like an array without a description. Counted arrays and arenas are not listed.
    """
    rows = _core.listing()
    return [Listed(name, size, dtype, None if lengths is None else tuple(lengths), order) for name, size, dtype, lengths, order in rows]


def gc(dry_run: bool = False, in_flight: bool = False) -> list[str]:
    """Remove the files that killed processes left in the default directory, and return their names.

    Plain arrays stay: they are removed by `unlink` only. With `in_flight`, counted arrays that no process has are removed even if a pickle
    of them could still be loaded. With `dry_run` nothing is removed.
    """
    return _core.reclaim(dry_run, in_flight)


_program.choose_manager()
