"""Work that runs in a thread of the library: waiting for it, from a thread or from a coroutine, and cancelling it."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections.abc import Generator
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from . import _core
from ._errors import Cancelled, TimedOut, TransferWarning
from ._guard import checked
from ._imports import importing

_T = TypeVar("_T")

# The longest time for which Ctrl-C is not noticed.
_TICK = 0.1
# How long the end of the program waits for cancelled work.
_AT_EXIT = 5.0

# Work that may still run, also when no caller waits for it. Not the jobs themselves, which keep their results. Each of its methods is
# one step, so that no lock is needed, and a signal's handler or a finalizer may begin work at any moment.
_running: dict[_core.JobWatch, str] = {}

# Whether the program has ended, and has been told what was cancelled.
_is_ended = False


class _Numbers(NamedTuple):

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


class Progress(_Numbers):
    """How far a download or upload is."""

    retrying: str | None = None
    """The request that has failed and is being retried for the longest time, with the reason. None if none is being retried.

    It is no item of the tuple, which has six."""


class Work(Generic[_T]):
    """A download or upload that runs in the background: see `Download` and `Upload`."""

    # Whether `result` gives a `TransferWarning` for each problem that did not stop the work.
    warns = True

    def __init__(self, job: _core.Job, title: str, show: bool) -> None:
        _keep(job, title)
        self._job, self._title = job, title
        self._bar = _bar(title) if show else None
        self._taking = threading.Lock()
        self._outcome: tuple[_T | None, BaseException | None] | None = None
        self._process = os.getpid()

    def __del__(self) -> None:
        # The error of an upload that is never shown means lost data.
        if _is_ended or getattr(self, "_process", None) != os.getpid() or self._outcome is not None or not self.done():
            return
        try:
            self._job.take()
        except Cancelled:
            pass
        except Exception as error:
            warnings.warn(f"{self._title} failed, and result() was not called: {error}", TransferWarning)

    def _converted(self, taken: Any) -> _T:
        """Return what `result` gives, of what the job gave."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise TypeError("this work runs in a thread of its process: send what result() returns")

    def done(self) -> bool:
        """Return whether the work has ended, with a result or an error."""
        return self._job.wait(0.0)

    def cancel(self) -> None:
        """Ask the work to stop after the chunks that are in hand. `result` then raises `Cancelled`, unless the work was just finished."""
        self._job.stop()

    @property
    def progress(self) -> Progress:
        """How far the work is."""
        progress = Progress(*self._job.progress)
        progress.retrying = self._job.retrying
        return progress

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
        checked(timeout)
        limit = None if timeout is None else time.monotonic() + timeout
        try:
            self._wait_until(limit, timeout)
            return self._take()
        finally:
            del self  # what is raised leads to this frame, and the work keeps what it raises

    def _wait_until(self, limit: float | None, timeout: float | None) -> None:
        try:
            while not self._job.wait(_TICK if limit is None else max(0.0, min(_TICK, limit - time.monotonic()))):
                self._show()
                if limit is not None and time.monotonic() >= limit:
                    raise TimedOut(f"{self._title} has not ended after {timeout} seconds{self._retrying()}; it goes on")
        except TimedOut:
            raise
        except BaseException:
            self._stop()
            raise

    def __await__(self) -> Generator[Any, None, _T]:
        return self._wait().__await__()

    async def _wait(self) -> _T:
        with importing("asyncio"):
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
        try:
            return self._take()
        finally:
            del self  # as in `result`

    def _stop(self) -> None:
        self.cancel()
        while not self._job.wait(_TICK):
            pass
        self._close_bar()

    def _settle(self) -> tuple[_T | None, BaseException | None]:
        with self._taking:
            if self._outcome is None:
                self._show()
                self._close_bar()
                try:
                    self._outcome = self._converted(self._job.take()), None
                except Exception as error:
                    self._outcome = None, error
            return self._outcome

    def _take(self) -> _T:
        value, failure = self._settle()
        if failure is not None:
            try:
                raise failure
            finally:
                del self, failure  # as in `result`
        for text in self._job.warnings() if self.warns else ():
            warnings.warn(text, TransferWarning, stacklevel=3)
        return value  # type: ignore[return-value]  # without an error there is a value

    def _show(self) -> None:
        if self._bar is not None:
            progress = self.progress
            self._bar.total = progress.nbytes_total or None
            self._bar.set_postfix_str(progress.retrying or "", refresh=False)
            self._bar.update(progress.nbytes - self._bar.n)

    def _retrying(self) -> str:
        text = self._job.retrying
        return "" if text is None else f", {text}"

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __repr__(self) -> str:
        done, total, *_ = self.progress
        return f"<ndshm.{type(self).__name__} {self._title}: {done} of {total}{self._retrying()}{self._ending()}>"

    def _repr_html_(self) -> str:
        with importing("ndshm._html"):
            from . import _html as html

        done, total, nbytes, nbytes_total, transferred, seconds = self.progress
        state = self._ending().removeprefix(", ") or f"runs{self._retrying()}"
        return html.table(
            {
                "work": self._title,
                "state": state,
                "chunks": f"{done} of {total}",
                "bytes": f"{nbytes:,} of {nbytes_total:,}",
                "transferred": f"{transferred:,}",
                "seconds": f"{seconds:.1f}",
            }
        )

    def _ending(self) -> str:
        if not self.done():
            return ""
        failure = self._settle()[1]
        try:
            if failure is None:
                return ", ended"
            return ", cancelled" if isinstance(failure, Cancelled) else f", failed: {failure}"
        finally:
            del failure  # as in `result`


def run(job: _core.Job) -> Any:
    """Wait for the end of a job, and return its result. Ctrl-C ends the wait, and the job soon after."""
    _keep(job, "")
    try:
        while not job.wait(_TICK):
            pass
    except BaseException:
        job.stop()
        raise
    return job.take()


def _bar(title: str) -> Any:
    try:
        with importing("tqdm.auto"):
            from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: `pip install tqdm`") from error
    return tqdm(total=None, desc=title, unit="B", unit_scale=True, unit_divisor=1024)


def _keep(job: _core.Job, title: str) -> None:
    _running[job.watch()] = title
    for watch in list(_running):
        if watch.wait(0.0):
            _running.pop(watch, None)


def _end() -> None:
    """At exit: cancel what still runs, so that nothing half-finished is left."""
    global _is_ended
    running = [watch for watch in list(_running) if not watch.wait(0.0)]  # other threads may begin work meanwhile
    for watch in running:
        watch.stop()
        if title := _running.get(watch):
            text = f"{title}: the program ended before the work, which is cancelled; call result() to wait for it"
            warnings.warn(text, TransferWarning, stacklevel=2)
    _is_ended = True
    limit = time.monotonic() + _AT_EXIT
    for watch in running:
        watch.wait(max(0.0, limit - time.monotonic()))


def _forked() -> None:
    """In a forked child: the threads are those of the parent."""
    _running.clear()


def _before_fork() -> None:
    """Wait until the threads of this package have ended, for a moment only if work runs that takes longer.

    A child may find locks of other threads, which it does not have. So Python 3.12 and later warn of each fork beside a thread.
    """
    _core.end_read_threads()  # those that are idle
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < (_PATIENCE if _is_working() else _LONGEST_END) and _has_threads():
            time.sleep(0.0002)
    except KeyboardInterrupt:
        _core.note_interrupt()  # what a hook raises is lost


# How many seconds a fork waits for work that runs, and for threads that are about to end.
_PATIENCE, _LONGEST_END = 0.05, 0.25


def _is_working() -> bool:
    return any(not watch.wait(0.0) for watch in list(_running))


# The names of threads that end when their work has ended.
_THREADS = frozenset(f"ndshm-{name}".encode() for name in "change- children decode- encode- fetch- job manager paint- requests reserve resolver stderr stdout store- write-".split())


def _has_threads() -> bool:
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return False  # not Linux
    return len(tasks) > 1 and any(_is_own(task) for task in tasks if int(task) != os.getpid())


def _is_own(task: str) -> bool:
    try:
        # As bytes: a text file could import a codec.
        with open(f"/proc/self/task/{task}/comm", "rb") as file:
            return file.read().rstrip(b"0123456789\n") in _THREADS
    except OSError:
        return False  # it has ended meanwhile


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_forked)
    # Before the wait: the hooks that were registered last come first.
    os.register_at_fork(before=_core.hold_jobs, after_in_parent=_core.free_jobs, after_in_child=_core.free_jobs_of_child)
