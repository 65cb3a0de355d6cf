"""Guards: a lock, and a view of the elements that ends with it."""

from __future__ import annotations

import math
import os
import sys
import warnings
from types import TracebackType
from typing import Any, Protocol

from . import _core
from ._errors import NdshmError, TimedOut, ViewOutlivesGuard, WouldBlock

_strict = False


def strict(enabled: bool = True) -> None:
    """Raise `ViewOutlivesGuard` as an error instead of a warning. Applies to the whole process."""
    global _strict
    _strict = enabled


def require_numpy(purpose: str) -> Any:
    """Return the module numpy. If it is not installed, raise an ImportError that names `purpose`."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(f"{purpose} needs numpy: `pip install numpy`, or use memoryview(array)") from error
    return numpy


def _optional_numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


class GuardedView:
    """The view of a block: `value`, a numpy array or, without numpy, a memoryview. `end` ends it."""

    __slots__ = ("_base", "_exporter", "_name", "_pid", "value")

    def __init__(self, exporter: _core.View, name: str) -> None:
        self._exporter, self._name, self._pid = exporter, name, os.getpid()
        raw = memoryview(exporter)
        numpy = sys.modules.get("numpy") or _optional_numpy()
        if numpy is None:
            self._base: Any = None
            self.value: Any = raw
        else:
            # In numpy a view of a view refers to the first array, here `base`. So the references to `base` count all views.
            self._base = numpy.asarray(raw)
            self.value = self._base.view()

    def is_inherited(self) -> bool:
        """Return whether the view was made before this process was forked."""
        return os.getpid() != self._pid

    def end(self, completed: bool) -> int:
        """Make the view read-only, and return how many other views of the memory are alive. Call it once.

        `completed` says whether the block ended without an exception.
        """
        base, value = self._base, self.value
        self._base = self.value = None
        self._exporter.end()
        if base is None:
            try:
                value.release()
            except BufferError:
                return 1
            return 0
        value.flags.writeable = False
        # One reference each: `base` here, the array `value`, and the argument of getrefcount.
        alive = sys.getrefcount(base) - 3
        base.flags.writeable = False
        if alive == 0 and completed:
            # One reference each: `value` here, the variable of the `with` block, and the argument. A memoryview or a torch tensor
            # of `value` refers to it, not to `base`. After an exception the traceback refers to `value` too.
            alive = max(sys.getrefcount(value) - 3, 0)
        return alive

    def report(self, alive: int, completed: bool, stacklevel: int) -> None:
        """Warn of views that are alive after the block, or raise if `strict` was chosen and the block raised nothing.

        `stacklevel` leads from this function to the block, as in `warnings.warn`.
        """
        if alive == 0:
            return
        text = (
            f"{alive} view(s) of `{self._name}` are alive after the guard has ended, and no lock protects them: "
            "copy what is needed later, with .copy()"
        )
        if _strict and completed:
            raise ViewOutlivesGuard(text)
        warnings.warn(text, ViewOutlivesGuard, stacklevel=stacklevel)


class Lockable(Protocol):
    """An object that a guard can lock."""

    @property
    def name(self) -> str:
        """The name of the array."""
        ...

    def lock(self, write: bool, timeout: float | None) -> _core.Lock:
        """Lock the array."""
        ...


class Guard:
    """A lock on an array, for ``with`` or ``async with``. `Array.read` and `Array.write` return one.

    When the block ends the lock is released and its view becomes read-only. If another view of the memory is still alive,
    `ViewOutlivesGuard` is issued as a warning: no lock protects such a view any more.
    """

    __slots__ = ("_array", "_lock", "_timeout", "_view", "_write")

    def __init__(self, array: Lockable, write: bool, timeout: float | None) -> None:
        self._array, self._write, self._timeout = array, write, timeout
        self._lock: _core.Lock | None = None
        self._view: GuardedView | None = None

    def __enter__(self) -> Any:
        return self._begin(self._timeout)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(error is None)

    async def __aenter__(self) -> Any:
        """Wait without blocking the event loop: retry the lock with pauses of at most 20 ms."""
        import asyncio
        import time

        end = math.inf if self._timeout is None else time.monotonic() + self._timeout
        pause = 0.0005
        while True:
            left = end - time.monotonic()
            try:
                return self._begin(0)
            except WouldBlock:
                if left <= 0:
                    if self._timeout:
                        raise TimedOut(f"`{self._array.name}` was locked for {self._timeout} seconds") from None
                    raise
            await asyncio.sleep(min(pause, max(left, 0)))
            pause = min(2 * pause, 0.02)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error is None)

    def _begin(self, timeout: float | None) -> Any:
        if self._lock is not None:
            raise RuntimeError("this guard is in use: take another one with read() or write()")
        lock = self._array.lock(self._write, timeout)
        try:
            self._view = GuardedView(lock.view(), self._array.name)
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return self._view.value

    def _end(self, completed: bool) -> None:
        lock, view = self._lock, self._view
        self._lock = self._view = None
        if lock is None or view is None:
            return
        alive = view.end(completed)
        lock.release()
        if view.is_inherited():
            raise NdshmError(
                f"the guard of `{self._array.name}` belongs to the parent of this process: take a guard after fork, in the child"
            )
        view.report(alive, completed, stacklevel=4)
