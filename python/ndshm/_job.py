"""Work that runs in a thread of the library: waiting for it, from a thread or from a coroutine, and cancelling it."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections.abc import Generator
from typing import Any, Generic, NamedTuple, TypeVar

from . import _core
from ._errors import TimedOut, TransferWarning

_T = TypeVar("_T")

# The longest time for which Ctrl-C is not noticed.
_TICK = 0.1
# How long the end of the program waits for cancelled work.
_AT_EXIT = 5.0

# Work that may still run. It is kept here also when no caller waits for it.
_running: set[_core.Job] = set()
_lock = threading.Lock()


class Progress(NamedTuple):
    """How far a download or upload is."""

    done: int
    """Finished chunks, or stored objects."""
    total: int
    """All chunks, or objects. 0 until the volume is open."""
    nbytes: int
    """Finished bytes of the array, estimated from the mean size of a chunk."""
    nbytes_total: int
    """Bytes of the array."""
    transferred: int
    """Encoded bytes that were fetched or stored. 0 if the volume is fetched and decoded in one step."""
    seconds: float
    """Time since the first chunk was begun."""


class Work(Generic[_T]):
    """A download or upload that runs in the background: see `Download` and `Upload`."""

    def __init__(self, job: _core.Job, title: str, show: bool) -> None:
        _keep(job)
        self._job, self._title = job, title
        self._bar = _bar(title) if show else None
        self._taking = threading.Lock()
        self._outcome: tuple[_T | None, BaseException | None] | None = None

    def _converted(self, taken: Any) -> _T:
        """Return what `result` gives, of what the job gave."""
        raise NotImplementedError

    def done(self) -> bool:
        """Return whether the work has ended, with a result or an error."""
        return self._job.wait(0.0)

    def cancel(self) -> None:
        """Ask the work to stop after the chunks that are in hand. `result` then raises `Cancelled`, unless the work was just finished."""
        self._job.stop()

    @property
    def progress(self) -> Progress:
        """How far the work is."""
        return Progress(*self._job.progress)

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the end of the work, and return its result.

        Ctrl-C cancels the work: `KeyboardInterrupt` is raised once it has stopped, within a second unless a chunk takes longer to decode.

        Parameters
        ----------
        timeout
            Seconds to wait. None waits without limit.

        Raises
        ------
        TimedOut
            The work has not ended in time. It goes on.
        Cancelled
            It was cancelled.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._job.wait(_TICK if limit is None else max(0.0, min(_TICK, limit - time.monotonic()))):
                self._show()
                if limit is not None and time.monotonic() >= limit:
                    raise TimedOut(f"{self._title} has not ended after {timeout} seconds; it goes on")
        except TimedOut:
            raise
        except BaseException:
            self._stop()
            raise
        return self._take()

    def __await__(self) -> Generator[Any, None, _T]:
        return self._wait().__await__()

    async def _wait(self) -> _T:
        import asyncio

        pause = 0.001
        try:
            while not self.done():
                self._show()
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.05)
        except BaseException:
            self.cancel()
            while not self.done():
                await asyncio.sleep(0.01)
            self._close_bar()
            raise
        return self._take()

    def _stop(self) -> None:
        self.cancel()
        while not self._job.wait(_TICK):
            pass
        self._close_bar()

    def _take(self) -> _T:
        with self._taking:
            if self._outcome is None:
                self._show()
                self._close_bar()
                try:
                    self._outcome = self._converted(self._job.take()), None
                except Exception as error:
                    self._outcome = None, error
        value, failure = self._outcome
        if failure is not None:
            raise failure
        for text in self._job.warnings():
            warnings.warn(text, TransferWarning, stacklevel=3)
        return value  # type: ignore[return-value]  # without an error there is a value

    def _show(self) -> None:
        if self._bar is not None:
            progress = self.progress
            self._bar.total = progress.nbytes_total or None
            self._bar.update(progress.nbytes - self._bar.n)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __repr__(self) -> str:
        done, total, *_ = self.progress
        return f"<ndshm.{type(self).__name__} {self._title}: {done} of {total}{', ended' if self.done() else ''}>"


def run(job: _core.Job) -> Any:
    """Wait for the end of a job, and return its result. Ctrl-C ends the wait, and the job soon after."""
    _keep(job)
    try:
        while not job.wait(_TICK):
            pass
    except BaseException:
        job.stop()
        raise
    return job.take()


def _bar(title: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: `pip install tqdm`") from error
    return tqdm(total=None, desc=title, unit="B", unit_scale=True, unit_divisor=1024)


def _keep(job: _core.Job) -> None:
    with _lock:
        _running.difference_update([ended for ended in _running if ended.wait(0.0)])
        _running.add(job)


def _end() -> None:
    """At exit: cancel what still runs, so that nothing half-finished is left."""
    for job in _running:
        job.stop()
    limit = time.monotonic() + _AT_EXIT
    for job in _running:
        job.wait(max(0.0, limit - time.monotonic()))


def _forked() -> None:
    """In a forked child: the threads are those of the parent."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
