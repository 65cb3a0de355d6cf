"""multiprocessing's messages: those that fail while they are pickled, and children that are to send tensors as their parent does."""

from __future__ import annotations

import os
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
    return getattr(ForkingPickler, "_extra_reducers")  # noqa: B009


def patch(settings: Callable[[], int | str | None]) -> None:
    """Make the changes. `settings` returns how tensors are sent at that time: None if torch does it."""
    _patch_pickler()
    _patch_queues()
    _patch_spawning(settings)


def _patch_pickler() -> None:
    """Take the handles of a message back that cannot be pickled to its end."""
    from multiprocessing.reduction import ForkingPickler

    dump = ForkingPickler.dump

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

    ForkingPickler.dump = new_dump  # type: ignore[method-assign]


def _patch_queues() -> None:
    """Send an error of ours in place of the message that it kept a Queue's thread from sending.

    That thread prints the error otherwise, and whoever waits for the message waits for ever. Queues of ``concurrent.futures`` have a method
    of their own here, which tells the future.
    """
    from multiprocessing.queues import Queue

    report = Queue._on_queue_feeder_error

    def new_report(self: Any, error: BaseException, obj: Any) -> None:
        """See multiprocessing.queues.Queue."""
        if not isinstance(error, NdshmError) or not _send_error(self, error, obj):
            report(error, obj)

    Queue._on_queue_feeder_error = new_report


def _send_error(queue: Any, error: NdshmError, obj: Any) -> bool:
    """Send an error in place of a message, and return whether it was sent."""
    from multiprocessing.reduction import ForkingPickler

    try:
        message = ForkingPickler.dumps(_loader.with_error(obj, error) or _Failed(error))
    except Exception:  # whatever is raised here would end the thread
        return False
    queue._sem.acquire()  # the caller has given the message's place in the queue to the next one
    try:
        with queue._wlock:
            queue._writer.send_bytes(message)
    except OSError:  # nobody reads any more
        queue._sem.release()
        return False
    return True


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

    for popen in (popen_spawn_posix.Popen, popen_forkserver.Popen):
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
