"""torch's DataLoader: what its workers keep and send, and batches that no process reads any more."""

from __future__ import annotations

import io
import os
import pickle
import queue
import struct
import sys
import threading
import weakref
from contextlib import suppress
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from .. import _core
from .._errors import NdshmError
from ._tensors import _torch

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long a worker that ends waits for its batches to be written, which the trainer reads in order to end their handles.
_FEEDING = 2.0

# Whether this process is a worker of a DataLoader, and what is still to be sent of its batches.
_is_worker = False
_batches: Any = None


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


def with_error(batches: Any, obj: Any, error: NdshmError) -> Any:
    """Return what a worker sends in place of a batch that cannot be sent, or None if the messages of this queue are no batches."""
    if not _is_worker or batches is not _batches or type(obj) is not tuple:
        return None
    message = list[Any](obj)  # pyright: ignore[reportUnknownArgumentType]
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
        draining = None if self._shutdown else _Draining(self)
        try:
            shut_down(self)
        finally:
            if draining is not None:
                draining.end()

    loading.__init__, loading._shutdown_workers = new_begin, new_shut_down

    _ending.begin()
    util.register_after_fork(_ending, _Ending.begin)


class _Ending:
    """Ends what was not read when the process ends, whether that is a child of multiprocessing or not."""

    def begin(self) -> None:
        # After multiprocessing has ended and joined the workers. Children forget what their parent has registered for its own end.
        util.Finalize(None, _end_all, exitpriority=-100)


_ending = _Ending()


def worker_loop(*args: Any, **kwargs: Any) -> Any:
    """Run torch's loop of a worker."""
    import inspect

    from . import _install, _storages

    worker = _torch("torch.utils.data._utils.worker")

    global _batches, _is_worker
    _is_worker = True
    # Under this name if the process has installed, as forked children have.
    loop = getattr(worker, "_ndshm_worker_loop", worker._worker_loop)
    given = inspect.signature(loop).bind(*args, **kwargs).arguments
    sending, done = given["data_queue"], given["done_event"]
    _batches = sending._buffer
    given["index_queue"] = _Indices(given["index_queue"])
    _storages.recycle(_install.most_recycled() // max(given["num_workers"], 1))
    _storages.watch_unread()
    try:
        return loop(**given)
    finally:
        _storages.end()
        # What is still to be sent is written, so that the trainer finds it: it knows of no other handles.
        if done.is_set() and sending._thread is not None:
            sending._thread.join(_FEEDING)


class _Indices:
    """The queue by which a worker gets indices. The worker asks again every few seconds."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices

    def __getattr__(self, name: str) -> Any:
        return getattr(self.indices, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        from . import _storages

        try:
            return self.indices.get(*args, **kwargs)
        except queue.Empty:
            # The trainer does something else, perhaps for long.
            _storages.rest()
            raise


# Every iterator that loads by workers.
_loading: weakref.WeakSet[Any] = weakref.WeakSet()


def _unread(loading: Any) -> int | None:
    """Return a descriptor of the pipe by which the workers send batches."""
    if getattr(loading, "_ndshm_process", None) != os.getpid():
        return None  # a forked child has no say about its parent's batches; and one that began before `install` keeps their time
    try:
        return os.dup(loading._worker_result_queue._reader.fileno())
    except (AttributeError, OSError):  # it did not begin, has ended, or there is no descriptor left: the deadline ends the handles
        return None


class _Draining:
    """Reads what workers still send while the trainer waits for their end, since a worker cannot end that waits for room in the pipe.

    It begins when torch tells the workers to end: by then torch's own thread, which pins memory, has stopped reading.
    """

    def __init__(self, loading: Any) -> None:
        self.unread, self.parts, self.is_over = _unread(loading), list[bytes](), threading.Event()
        self.thread = threading.Thread(target=self.run, name="ndshm-unread", daemon=True)
        self.loading: Any = loading
        self.event: Any = getattr(loading, "_workers_done_event", None)
        if self.unread is not None and self.event is not None:
            loading._workers_done_event = self  # for the one call of `set`

    def set(self) -> None:
        self.loading._workers_done_event = self.event
        with suppress(RuntimeError):  # the interpreter is ending: what is in the pipe is read afterwards
            self.thread.start()
        self.event.set()

    def run(self) -> None:
        assert self.unread is not None
        while not self.is_over.wait(0.005):
            self.parts.append(_rest(self.unread))

    def end(self) -> None:
        """End the handles of what was read. The workers have ended."""
        if self.event is not None:
            self.loading._workers_done_event = self.event
        self.loading = None
        self.is_over.set()
        if self.thread.ident is not None:
            self.thread.join()
        _end(self.unread, b"".join(self.parts))


def _end_all() -> None:
    for loading in list(_loading):
        if not loading._shutdown:
            _end(_unread(loading))


def _end(unread: int | None, before: bytes = b"") -> None:
    """Read what workers have sent and no process will load, and end its handles. The workers have ended. `before` was read before."""
    if unread is None:
        return
    try:
        for message in _messages(before + _rest(unread)):
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
        if length < -1:
            return  # an interrupt has read a part of a message: what follows is the rest of it
        if length == -1:
            if at + 8 > len(rest):
                return
            (length,) = struct.unpack_from("!Q", rest, at)
            at += 8
        if at + length > len(rest):
            return
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
        return _DISCARDED.get((module, name), _Nothing)

    def persistent_load(self, _: Any) -> Any:
        return _Nothing()


def _discard(handle: str, *_: Any) -> _Nothing:
    with suppress(NdshmError, OSError):
        _core.redeem(handle)
    return _Nothing()


def _discard_part(attach: Any, arguments: Any, *_: Any) -> _Nothing:
    attach(*arguments)
    return _Nothing()


def _discard_view(sent: Any, *_: Any) -> _Nothing:
    attach, arguments = sent
    attach(*arguments)
    return _Nothing()


# What is called in place of the functions that attach to the array of a handle.
_DISCARDED = {
    ("ndshm.torch._storages", "receive"): _discard,
    ("ndshm._array", "_receive"): _discard,
    ("ndshm._array", "_receive_part"): _discard_part,
    ("ndshm.multiprocessing", "_receive"): _discard,
    ("ndshm.multiprocessing", "_receive_view"): _discard_view,
}
