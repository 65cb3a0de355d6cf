"""Guards: a lock, and a view of the elements that ends with it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from . import _core
from ._errors import TimedOut, WouldBlock
from ._imports import importing
from ._types import Scalar

if TYPE_CHECKING:
    import numpy


# The module numpy, once it was needed.
_numpy: Any = None


def strict(enabled: bool = True) -> None:
    """Raise `ViewOutlivesGuard` as an error instead of a warning. Applies to the whole process."""
    _core.set_strict(enabled)


def require_numpy(purpose: str) -> Any:
    """Return the module numpy. If it is not installed, raise an ImportError that names `purpose`."""
    try:
        return _loaded_numpy()
    except ImportError as error:
        raise ImportError(f"{purpose} needs numpy: `pip install numpy`, or use memoryview(array)") from error


def optional_numpy() -> Any:
    """Return the module numpy, or None if it is not installed."""
    try:
        return _loaded_numpy()
    except ImportError:
        return None


def _loaded_numpy() -> Any:
    global _numpy
    if _numpy is None:
        with importing("numpy"):
            import numpy

        _numpy = numpy
    return _numpy


def checked(timeout: float | None) -> None:
    """Refuse a timeout that is not a number of seconds, 0 or more. A comparison with nan would never end a wait."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout={timeout}: give seconds, 0 or more, or None to wait without limit")


class Guard(_core.RawGuard, Generic[Scalar]):
    """A lock on an array, for ``with`` or ``async with``. `Array.read` and `Array.write` return one.

    When the block ends the lock is released and its view becomes read-only. If another view of the memory is still alive,
    `ViewOutlivesGuard` is issued as a warning: no lock protects such a view any more. Other views are parts of the view, memoryviews of it,
    tensors, and the view itself under another name. (One of them that took the name of the block's own view is not noticed.)
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __enter__(self) -> numpy.ndarray[Any, numpy.dtype[Scalar]]: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError("a guard has elements only inside of its block: `with array.read() as x:`, and use x there")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a guard belongs to its process: send the array, and lock it there")

    async def __aenter__(self) -> numpy.ndarray[Any, numpy.dtype[Scalar]]:
        """Wait without blocking the event loop: retry the lock with pauses of at most 20 ms."""
        with importing("asyncio"):
            import asyncio

        limit = self.timeout
        end = math.inf if limit is None else time.monotonic() + limit
        pause = 0.0005
        while True:
            left = end - time.monotonic()
            try:
                view: numpy.ndarray[Any, numpy.dtype[Scalar]] = self.enter_now()
                return view
            except WouldBlock:
                if left <= 0:
                    if limit:
                        raise TimedOut(f"`{self.name}` was locked for {limit} seconds") from None
                    raise
            except BaseException as error:  # by a signal, after the lock was taken, and before it was told
                self.__exit__(type(error), error, None)
                raise
            await asyncio.sleep(min(pause, max(left, 0)))
            pause = min(2 * pause, 0.02)
