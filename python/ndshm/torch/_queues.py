"""multiprocessing's messages: those that fail while they are pickled, and children that are to send tensors as their parent does."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _libraries
from .._errors import NdshmError
from .._imports import importing
from . import _loader, _storages

if TYPE_CHECKING:
    from collections.abc import Callable


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Return the reducers that were registered for the pickles of multiprocessing."""
    from multiprocessing.reduction import ForkingPickler

    # There is a public method to register a reducer, but none to see or remove one.
    registered: dict[type, Callable[[Any], Any]] = getattr(ForkingPickler, "_extra_reducers")  # noqa: B009
    return registered


def patch(settings: Callable[[], int | str | None]) -> None:
    """Make the changes. `settings` returns how tensors are sent at that time: None if torch does it."""
    _patch_pickler()
    _patch_queues()
    _patch_spawning(settings)


class _Feeding(threading.local):
    """Whether this is the thread of a Queue, in which an error would be printed and lost."""

    loses_errors = False
    # What is still to be sent in it.
    buffer: Any = None


_feeding = _Feeding()


def _patch_pickler() -> None:
    """Take the handles of a message back that cannot be pickled to its end. Send an error of ours in place of a message that would be lost."""
    from multiprocessing.reduction import ForkingPickler

    dump, dumps = ForkingPickler.dump, ForkingPickler.dumps.__func__  # type: ignore[attr-defined]

    def new_dump(self: Any, obj: Any) -> Any:
        """See pickle.Pickler.dump."""
        around, is_complete = _storages.message(), False
        try:
            _storages.begin_message()
            result = dump(self, obj)
            is_complete = True
            return result
        finally:
            _storages.end_message(around, is_complete)

    def new_dumps(cls: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """See multiprocessing.reduction.ForkingPickler."""
        try:
            return dumps(cls, obj, *args, **kwargs)
        except NdshmError as error:
            if not _feeding.loses_errors:
                raise
            return dumps(cls, _loader.with_error(_feeding.buffer, obj, error) or _Failed(error), *args, **kwargs)

    ForkingPickler.dump = new_dump  # type: ignore[method-assign]
    ForkingPickler.dumps = classmethod(new_dumps)  # type: ignore[assignment]


def _patch_queues() -> None:
    """Note which threads lose errors: those of Queues.

    Such a thread prints an error, and a process that waits for the message waits for ever. Queues of ``concurrent.futures`` have a method of
    their own for errors, which tells the future.
    """
    from multiprocessing.queues import Queue

    feed = Queue._feed  # type: ignore[attr-defined]

    def new_feed(*args: Any, **kwargs: Any) -> None:
        """See multiprocessing.queues.Queue."""
        _feeding.loses_errors = Queue._on_queue_feeder_error in (*args, *kwargs.values())  # type: ignore[attr-defined]
        _feeding.buffer = args[0] if args else None
        feed(*args, **kwargs)

    Queue._feed = staticmethod(new_feed)  # type: ignore[attr-defined]


class _Failed:
    """A message that raises an exception in the process that loads it."""

    def __init__(self, error: NdshmError) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return fail, (type(self.error), str(self.error), os.getpid())


def fail(kind: type[NdshmError], text: str, sender: int) -> None:
    """Raise the error that a sender had."""
    raise kind(f"{text} (process {sender} could not send this message)")


def _patch_spawning(settings: Callable[[], int | str | None]) -> None:
    """Let spawned children install before they run the function that they are started for. Forked ones are installed already."""
    from multiprocessing import popen_forkserver, popen_spawn_posix

    def patched(launch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def new_launch(self: Any, process: Any) -> None:
            how = settings()
            if how is not None:
                process._ndshm_torch = _Installed(how)  # it is pickled with the process
            launch(self, process)

        return new_launch

    starting: list[Any] = [popen_spawn_posix.Popen, popen_forkserver.Popen]
    for popen in starting:
        popen._launch = patched(popen._launch)


class _Installed:
    """A setting that is pickled as the call which installs it."""

    def __init__(self, recycle: int | str) -> None:
        self.recycle = recycle

    def __reduce__(self) -> tuple[Any, ...]:
        return install_in_child, (self.recycle,)


def install_in_child(recycle: int | str) -> None:
    """Install as the parent did. A child that has not imported torch by now may never do so, and is not made to."""
    with importing("ndshm.torch._install"):
        from . import _install

    _libraries.when_imported("torch", partial(_install.install_in_child, recycle))
