"""torch's DataLoader: what its workers keep and send, and batches that no process reads any more."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from .. import _core
from .._errors import NdshmError
from ._tensors import _torch

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long a worker that ends waits for its batches to be written, which the trainer reads in order to end their handles.
_FEEDING = 2.0

# Whether this process is a worker of a DataLoader.
_is_worker = False


def is_worker() -> bool:
    return _is_worker


def is_collating(depth: int) -> bool:
    """Return whether the caller, so many frames above, is torch's own function that stacks tensors. It overwrites what it asks for."""
    frame = sys._getframe(depth)
    # Between the two are torch's methods that count elements in bytes.
    for _ in range(3):
        if frame.f_code is _stacking:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


# The code of torch's function that stacks tensors.
_stacking: Any = None


def with_error(obj: Any, error: NdshmError) -> Any:
    """Return what a worker sends in place of a batch that cannot be sent, or None if this is no batch."""
    if not _is_worker or type(obj) is not tuple:
        return None
    message = cast("tuple[Any, ...]", obj)
    if len(message) != 2:
        return None
    worker = _torch("torch.utils.data").get_worker_info()
    where = f"in DataLoader worker process {os.getpid() if worker is None else worker.id}"
    return message[0], _torch("torch._utils").ExceptionWrapper((type(error), error, error.__traceback__), where)


def patch() -> None:
    """Make the changes to torch's DataLoader."""
    global _stacking
    _stacking = _torch("torch.utils.data._utils.collate").collate_tensor_fn.__code__
    worker = _torch("torch.utils.data._utils.worker")
    worker._ndshm_worker_loop, worker._worker_loop = worker._worker_loop, worker_loop
    loading = _torch("torch.utils.data.dataloader")._MultiProcessingDataLoaderIter
    begin, shut_down = loading.__init__, loading._shutdown_workers

    def new_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        self._ndshm_process = os.getpid()
        begin(self, *args, **kwargs)
        _loading.add(self)

    def new_shut_down(self: Any) -> None:
        """See torch.utils.data.dataloader._MultiProcessingDataLoaderIter."""
        unread = None if self._shutdown else _unread(self)
        try:
            shut_down(self)
        finally:
            _end(unread)

    loading.__init__, loading._shutdown_workers = new_begin, new_shut_down

    from multiprocessing.util import Finalize

    # After multiprocessing has ended and joined the workers. A forked child has its own exit, and the parent's iterators.
    Finalize(None, _end_all, exitpriority=-100)


def worker_loop(*args: Any, **kwargs: Any) -> Any:
    """Run torch's loop of a worker."""
    import inspect

    from . import _install, _storages

    worker = _torch("torch.utils.data._utils.worker")

    global _is_worker
    _is_worker = True
    # Under this name if the process has installed, as forked children have.
    loop = getattr(worker, "_ndshm_worker_loop", worker._worker_loop)
    given = inspect.signature(loop).bind(*args, **kwargs).arguments
    queue, done = given["data_queue"], given["done_event"]
    _storages.recycle(_install.most_recycled() // max(given["num_workers"], 1))
    try:
        return loop(*args, **kwargs)
    finally:
        _storages.end()
        # What is still to be sent is written, so that the trainer finds it: it knows of no other handles.
        if done.is_set() and queue._thread is not None:
            queue._thread.join(_FEEDING)


# Every iterator that loads by workers.
_loading: weakref.WeakSet[Any] = weakref.WeakSet()


def _unread(loading: Any) -> int | None:
    """Return a descriptor of the pipe by which the workers send batches."""
    if loading._ndshm_process != os.getpid():
        return None  # a forked child has no say about its parent's batches
    try:
        return os.dup(loading._worker_result_queue._reader.fileno())
    except (AttributeError, OSError):  # it did not begin, has ended, or there is no descriptor left: the deadline ends the handles
        return None


def _end_all() -> None:
    for loading in list(_loading):
        if not loading._shutdown:
            _end(_unread(loading))


def _end(unread: int | None) -> None:
    """Read what workers have sent and no process will load, and end its handles. The workers have ended."""
    if unread is None:
        return
    try:
        for message in _messages(_rest(unread)):
            with suppress(Exception):  # a message that cannot be loaded keeps its handles to the deadline
                _Discarding(io.BytesIO(message)).load()
    finally:
        os.close(unread)


def _rest(number: int) -> bytes:
    """Read what is in a pipe, without waiting."""
    os.set_blocking(number, False)
    parts: list[bytes] = []
    with suppress(BlockingIOError):
        while part := os.read(number, 1 << 16):
            parts.append(part)
    return b"".join(parts)


def _messages(rest: bytes) -> Iterator[bytes]:
    """Split what was in the pipe of a multiprocessing.connection.Connection. The last message may be written in part."""
    at = 0
    while at + 4 <= len(rest):
        (length,) = struct.unpack_from("!i", rest, at)
        at += 4
        if length == -1:
            if at + 8 > len(rest):
                return
            (length,) = struct.unpack_from("!Q", rest, at)
            at += 8
        yield rest[at : at + length]
        at += length


class _Nothing:
    """Whatever a message says that an object is or does."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        pass

    def add(self, _: Any) -> None:
        pass


class _Discarding(pickle.Unpickler):
    """Loads a message and makes none of its objects. The handles in it are used up."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "ndshm.torch._storages" and name == "receive" or module == "ndshm._array" and name == "_receive":
            return _discard
        return _Nothing

    def persistent_load(self, _: Any) -> Any:
        return _Nothing()


def _discard(handle: str, *_: Any) -> _Nothing:
    with suppress(NdshmError, OSError):
        _core.redeem(handle)
    return _Nothing()
